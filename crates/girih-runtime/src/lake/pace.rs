//! How much time views may take, and what is held instead of more of them.
//!
//! Every page of a view costs the driver some tens of microseconds. In a run that comes to rest that is over after a few
//! steps; in one whose sizes always vary it never is. So views have a share of the run's time, told by its marks, and
//! some time at the beginning that is free. What they take beyond is a debt:
//!
//! ```text
//!  credit   free ─╮
//!                 ╰──╮  ╭─ the share of each step
//!            0  ─────┼──╯──╮─────────────────────
//!                          ╰──╮   debt: growth is allowed instead of a view, the more the deeper
//! ```
//!
//! In debt a request may be given new pages where a view would have been made, up to a tenth of the most that was in
//! use, as long as the device has room. What is bought that way stays, and larger holes need fewer views: the debt is
//! paid off. Where no time is known, nothing is ever owed.

use super::{Lake, Options, Search};
use crate::device::MemoryInfo;
use crate::policy::Env;

/// Of a device, one byte in so many stays free when time is bought.
const ROOM: u64 = 8;

/// The account of time. Nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// What views may still take; below 0, what they took too much.
    credit: i64,
    /// Microseconds, of the last mark.
    last: Option<i64>,
    /// Marks tell of time.
    is_timed: bool,
}

impl Pace {
    /// An account at the beginning of a run.
    pub(super) fn new(options: &Options) -> Pace {
        Pace { credit: free(options), last: None, is_timed: false }
    }

    /// A mark of the program, so many microseconds after some moment.
    pub(super) fn pass(&mut self, options: &Options, time_us: i64) {
        if let Some(last) = self.last
            && let Ok(passed @ 1..) = u64::try_from(time_us.saturating_sub(last))
        {
            let share = (passed.saturating_mul(1000) / options.time_share).min(i64::MAX as u64);
            // A long pause earns no more than the beginning.
            self.credit = self.credit.saturating_add(share as i64).min(free(options));
            self.is_timed = true;
        }
        self.last = Some(time_us);
    }

    /// Views took so long.
    pub(super) fn spend(&mut self, nanoseconds: u64) {
        let nanoseconds = i64::try_from(nanoseconds).unwrap_or(i64::MAX);
        self.credit = self.credit.saturating_sub(nanoseconds);
    }

    /// What views took too much.
    fn debt(&self) -> u64 {
        if self.is_timed { self.credit.min(0).unsigned_abs() } else { 0 }
    }
}

/// The time that is free at the beginning.
fn free(options: &Options) -> i64 {
    i64::try_from(options.time_free_ms.saturating_mul(1_000_000)).unwrap_or(i64::MAX)
}

impl Lake {
    /// Bytes that may be held for a request before holes are stitched, with those that the debt buys. None if there
    /// is no debt.
    pub(super) fn allowed_in_debt(&self, env: &mut Env<'_>, search: &Search) -> Option<u64> {
        let debt = Some(self.pace.debt()).filter(|&debt| debt > 0)?;
        let allowed = self.allowed(search);
        let most = self.most_in_use / self.options.bought.max(1);
        let whole = self.options.bought_in_ms.saturating_mul(1_000_000).max(1);
        let bought = u128::from(most) * u128::from(debt.min(whole)) / u128::from(whole);
        let MemoryInfo { free, total } = env.device.memory_info();
        let room = self.held.saturating_add(free.saturating_sub(total / ROOM));
        Some(allowed.saturating_add(bought as u64).min(room.max(allowed)))
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
        pace.spend(5 * MS);
        assert_eq!(pace.debt(), 3 * MS, "the share of the time before was beyond what is kept");
        pace.pass(&options, 300_000);
        assert_eq!(pace.debt(), MS);
        pace.pass(&options, 3_600_000_000);
        pace.spend(2 * MS);
        assert_eq!(pace.debt(), 0, "an hour earns no more than the beginning");
        pace.spend(1);
        assert_eq!(pace.debt(), 1);
    }

    #[test]
    fn without_time_or_with_one_that_goes_back_nothing_is_owed() {
        let options = Options { time_free_ms: 0, ..Options::default() };
        let mut pace = Pace::new(&options);
        for time in [i64::MAX, 0, i64::MIN, i64::MIN] {
            pace.pass(&options, time);
            pace.spend(u64::MAX);
            assert_eq!(pace.debt(), 0);
        }
        pace.pass(&options, i64::MAX);
        assert!(pace.debt() > 0, "what was spent before is owed once time is known");
    }
}
