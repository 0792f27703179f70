//! How much time views and waits may take, and what is held instead of more of them.
//!
//! Every page of a view costs the driver some tens of microseconds, and every wait of one stream for another takes away
//! some of what they could have done side by side. In a run that comes to rest views are over after a few steps; in one
//! whose sizes always vary they never are. Waits recur: the same hole of another stream is taken in every step. So both
//! have a share of the run's time, told by its marks, and views some time at the beginning that is free. What they take
//! beyond is a debt:
//!
//! ```text
//!  credit    ╭─ the share of each step
//!       0  ──┼──╯──╮─────────────────────── views draw on the free time first, waits on the share alone
//!                  ╰──╮   debt: growth is allowed instead of a view or a wait, the more the deeper
//! ```
//!
//! In debt a request is given what it need not wait for, and new pages where a view would have been made or a stream
//! would have waited, up to a tenth of the most that was in use, as long as the device has room. What is bought that way
//! stays: larger holes need fewer views, and a stream with holes of its own need not wait for another. So the debt is
//! paid off. Where the device has no room for that (an eighth of it stays free), views are made as if nothing were owed:
//! then memory is bounded and time is not. Where no time is known, nothing is ever owed.
//!
//! What waits take is measured by the device ([`Device::take_stalls`](crate::Device::take_stalls)), and each counts for
//! [`Options::stall_max_us`] at most: a stream that stands still for long mostly has nothing else to do, and its work is
//! wanted later. Those for the places of a plan owe nothing: they are made even in debt, for a plan that is followed in
//! part alone costs more, so that memory would be bought for them in vain.

use super::{Lake, Options, Search};
use crate::device::MemoryInfo;
use crate::policy::Env;

/// The account of time. Nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// What views may still take of the time at the beginning; waits have nothing of it.
    free: u64,
    /// What is left of the shares; below 0, what was taken too much.
    credit: i64,
    /// Microseconds, of the last mark.
    last: Option<i64>,
    /// Marks tell of time.
    is_timed: bool,
    /// What views took of the device in all.
    mapped: u64,
    /// The share of the time between the last two marks.
    share: u64,
}

impl Pace {
    /// An account at the beginning of a run.
    pub(super) fn new(options: &Options) -> Pace {
        Pace { free: free(options), credit: 0, last: None, is_timed: false, mapped: 0, share: 0 }
    }

    /// A mark of the program, so many microseconds after some moment.
    pub(super) fn pass(&mut self, options: &Options, time_us: i64) {
        if let Some(last) = self.last
            && let Ok(passed @ 1..) = u64::try_from(time_us.saturating_sub(last))
        {
            let share = passed.saturating_mul(1000) / options.time_share.max(1);
            self.share = share;
            // A long pause earns no more than the beginning.
            let most = i64::try_from(free(options)).unwrap_or(i64::MAX);
            let share = i64::try_from(share).unwrap_or(i64::MAX);
            self.credit = self.credit.saturating_add(share).min(most);
            self.is_timed = true;
        }
        self.last = Some(time_us);
    }

    /// Views took so long.
    pub(super) fn map(&mut self, nanoseconds: u64) {
        self.mapped = self.mapped.saturating_add(nanoseconds);
        let of_free = nanoseconds.min(self.free);
        self.free -= of_free;
        self.spend(nanoseconds - of_free);
    }

    /// Streams stood still for so long, or views took so much beyond what is free.
    fn spend(&mut self, nanoseconds: u64) {
        let nanoseconds = i64::try_from(nanoseconds).unwrap_or(i64::MAX);
        self.credit = self.credit.saturating_sub(nanoseconds);
    }

    /// What was taken too much.
    #[inline]
    fn debt(&self) -> u64 {
        if self.is_timed { self.credit.min(0).unsigned_abs() } else { 0 }
    }

    /// What views took of the device in all.
    pub(super) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// What they could have taken between the last two marks.
    pub(super) fn share(&self) -> u64 {
        self.share
    }

    #[inline]
    pub(super) fn is_in_debt(&self) -> bool {
        self.debt() > 0
    }
}

/// The time that is free at the beginning.
fn free(options: &Options) -> u64 {
    options.time_free_ms.saturating_mul(1_000_000)
}

impl Lake {
    /// A mark of the program, so many microseconds after some moment. What streams stood still for until now is of
    /// the time until now.
    pub(super) fn note_time(&mut self, env: &mut Env<'_>, time_us: i64) {
        if !self.is_capturing() {
            let most = self.options.stall_max_us.saturating_mul(1000);
            self.pace.spend(env.device.take_stalls(most));
        }
        self.pace.pass(&self.options, time_us);
    }

    /// Bytes that may be held for a request, with those that the debt buys.
    pub(super) fn allowed_in_debt(&self, env: &mut Env<'_>, search: &Search) -> u64 {
        let allowed = self.allowed(search);
        let most = self.most_in_use / self.options.bought.max(1);
        let whole = self.options.bought_in_ms.saturating_mul(1_000_000).max(1);
        let debt = self.pace.debt().min(whole);
        let bought = u128::from(most) * u128::from(debt) / u128::from(whole);
        let MemoryInfo { free, total } = env.device.memory_info();
        let kept = total / self.options.room.max(1);
        let room = self.held.saturating_add(free.saturating_sub(kept));
        allowed.saturating_add(bought as u64).min(room.max(allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn views_owe_what_they_take_beyond_the_free_time_and_their_share() {
        let options = Options { time_share: 100, time_free_ms: 2, ..Options::default() };
        let mut pace = Pace::new(&options);
        pace.pass(&options, 0);
        pace.pass(&options, 100_000);
        pace.map(6 * MS);
        assert_eq!(pace.debt(), 3 * MS, "two are free and one is the share");
        pace.pass(&options, 300_000);
        assert_eq!(pace.debt(), MS);
        pace.pass(&options, 3_600_000_000);
        pace.map(2 * MS);
        assert_eq!(pace.debt(), 0, "an hour earns no more than the beginning");
        pace.map(1);
        assert_eq!(pace.debt(), 1);
    }

    #[test]
    fn of_the_free_time_nothing_is_for_waits() {
        let options = Options { time_share: 100, time_free_ms: 3000, ..Options::default() };
        let mut pace = Pace::new(&options);
        pace.spend(5 * MS);
        pace.pass(&options, 0);
        assert_eq!(pace.debt(), 0, "no time is known yet");
        pace.pass(&options, 100_000);
        assert_eq!(pace.debt(), 4 * MS, "views have the free time, waits the share");
        pace.map(3000 * MS);
        assert_eq!(pace.debt(), 4 * MS);
        pace.map(MS);
        assert_eq!(pace.debt(), 5 * MS, "one account");
    }

    /// Whatever is taken and when: what is owed is what was taken beyond the shares, the free time for views alone,
    /// and nothing that was earned is kept beyond the limit.
    #[test]
    fn the_debt_is_what_was_taken_beyond_what_was_earned() {
        arbtest::arbtest(|u| {
            let time_share = u.int_in_range(1..=1000)?;
            let options =
                Options { time_share, time_free_ms: u.int_in_range(0..=50)?, ..Options::default() };
            let mut pace = Pace::new(&options);
            let (mut mapped, mut stalled, mut earned) = (0u64, 0u64, 0u64);
            let mut time = 0;
            pace.pass(&options, time);
            for _ in 0..u.int_in_range(0..=40)? {
                let nanoseconds = u.int_in_range(0..=20 * MS)?;
                match u.int_in_range(0..=2)? {
                    0 => {
                        pace.map(nanoseconds);
                        mapped += nanoseconds;
                    }
                    1 => {
                        pace.spend(nanoseconds);
                        stalled += nanoseconds;
                    }
                    _ => {
                        time += (nanoseconds / 1000) as i64;
                        pace.pass(&options, time);
                        earned += nanoseconds / 1000 * 1000 / time_share;
                    }
                }
                let beyond =
                    (mapped.saturating_sub(free(&options)) + stalled).saturating_sub(earned);
                if pace.is_timed {
                    assert!(pace.debt() >= beyond, "{} owed of {beyond}", pace.debt());
                    assert!(pace.debt() <= mapped + stalled);
                }
                assert!(pace.credit <= i64::try_from(free(&options)).unwrap());
            }
            Ok(())
        });
    }

    #[test]
    fn without_time_or_with_one_that_goes_back_nothing_is_owed() {
        let options = Options { time_free_ms: 0, ..Options::default() };
        let mut pace = Pace::new(&options);
        for time in [i64::MAX, 0, i64::MIN, i64::MIN] {
            pace.pass(&options, time);
            pace.map(u64::MAX);
            pace.spend(u64::MAX);
            assert_eq!(pace.debt(), 0);
        }
        pace.pass(&options, i64::MAX);
        assert!(pace.debt() > 0, "what was spent before is owed once time is known");
    }
}
