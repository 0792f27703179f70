//! How long the driver takes for memory: the device times its own calls.
//!
//! Every call that gives, takes or maps memory is timed; those of a kind add up. What a page costs is the mean
//! over the run so far, for it depends on the card, the driver and the host alike.

use std::time::{Duration, Instant};

use girih_runtime::Prices;

/// What the driver does for memory: a call of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// `cuMemAlloc`.
    Alloc,
    /// `cuMemFree`.
    Free,
    /// `cuMemAddressReserve`.
    Reserve,
    /// `cuMemAddressFree`.
    Unreserve,
    /// `cuMemCreate`.
    Create,
    /// `cuMemRelease`.
    Release,
    /// `cuMemMap`.
    Map,
    /// `cuMemUnmap`, of however many pages.
    Unmap,
    /// `cuMemSetAccess`, of however many pages.
    SetAccess,
}

impl Work {
    /// Each, by the name of its count in [`Calls`](crate::Calls).
    const NAMES: [(Work, &str); 9] = [
        (Work::Alloc, "alloc"),
        (Work::Free, "free"),
        (Work::Reserve, "reserve"),
        (Work::Unreserve, "unreserve"),
        (Work::Create, "create"),
        (Work::Release, "release"),
        (Work::Map, "map"),
        (Work::Unmap, "unmap"),
        (Work::SetAccess, "set_access"),
    ];
}

/// Time and successes of the driver's calls for memory, by kind of work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    spent: [Duration; Work::NAMES.len()],
    done: [u32; Work::NAMES.len()],
}

impl Times {
    /// Does some work, and notes how long it took. Only work that succeeds tells of prices.
    #[expect(clippy::disallowed_methods, reason = "the device says what its calls cost")]
    pub(crate) fn measure<T, E>(
        &mut self,
        work: Work,
        call: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let began = Instant::now();
        let result = call();
        self.note(work, began.elapsed(), result.is_ok());
        result
    }

    fn note(&mut self, work: Work, took: Duration, is_done: bool) {
        self.spent[work as usize] += took;
        self.done[work as usize] = self.done[work as usize].saturating_add(u32::from(is_done));
    }

    /// The time of all of them.
    pub(crate) fn total(&self) -> Duration {
        self.spent.iter().sum()
    }

    /// The time of the calls of each kind, by the name of their count.
    pub(crate) fn by_call(&self) -> [(&'static str, Duration); Work::NAMES.len()] {
        Work::NAMES.map(|(work, name)| (name, self.spent[work as usize]))
    }

    /// What a page costs, and what was spent; before any page was made or mapped, what one costs on an H200.
    pub(crate) fn prices(&self) -> Prices {
        // Each page that was mapped was made accessible once, alone or with others.
        let per = |work: Work, count: Work| {
            let count = self.done[count as usize];
            (count > 0).then(|| (self.spent[work as usize] / count).as_nanos() as u64)
        };
        let mapped = per(Work::Map, Work::Map).zip(per(Work::SetAccess, Work::Map));
        let spent_ns = self.total().as_nanos() as u64;
        let (Some(made), Some((mapped, accessible))) = (per(Work::Create, Work::Create), mapped)
        else {
            return Prices { spent_ns, ..Prices::H200 };
        };
        let again = mapped + accessible;
        Prices { new_page_ns: made + again, mapped_again_ns: again, spent_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(times: &mut Times, work: Work, micros: u64, is_done: bool) {
        times.note(work, Duration::from_micros(micros), is_done);
    }

    #[test]
    fn prices_are_means_by_page_once_pages_were_made() {
        let mut times = Times::default();
        assert_eq!(times.prices(), Prices::H200);
        for _ in 0..4 {
            note(&mut times, Work::Create, 10, true);
            note(&mut times, Work::Map, 3, true);
        }
        // All four in one call.
        note(&mut times, Work::SetAccess, 100, true);
        let prices =
            Prices { new_page_ns: 38_000, mapped_again_ns: 28_000, spent_ns: 40_000 + 112_000 };
        assert_eq!(times.prices(), prices);
        note(&mut times, Work::Unmap, 1000, true);
        assert_eq!(times.prices(), Prices { spent_ns: 1_152_000, ..prices });
        assert_eq!(times.total(), Duration::from_micros(40 + 12 + 100 + 1000));
        let taken = times.by_call().map(|(name, time)| (name, time.as_micros()));
        let taken: Vec<_> = taken.into_iter().filter(|&(_, micros)| micros > 0).collect();
        assert_eq!(taken, [("create", 40), ("map", 12), ("unmap", 1000), ("set_access", 100)]);
    }

    #[test]
    fn a_refusal_takes_time_and_makes_no_page() {
        let mut times = Times::default();
        note(&mut times, Work::Create, 10, true);
        note(&mut times, Work::Create, 5000, false);
        note(&mut times, Work::Map, 2, true);
        note(&mut times, Work::SetAccess, 20, true);
        // The page waited for the refusal too: it is part of what pages cost now.
        assert_eq!(times.prices().mapped_again_ns, 22_000);
        assert_eq!(times.prices().new_page_ns, 5_010_000 + 22_000);
        assert!(times.measure(Work::Map, || Err::<(), ()>(())).is_err());
    }
}
