//! Growth: how much more the policy may come to hold of the device before what is idle goes back.
//!
//! What the plan does not use now and what the fallback keeps are one memory, but to pass a page
//! from one to the other costs calls of the device and a wait for all streams. So the first time
//! that the two together would hold more than ever under this plan, what is idle goes into the pool
//! of pages first, where it does not count here; the next time a little growth is let pass, then twice
//! as much, and so on:
//!
//! ```text
//!  held                                             ____________ ceiling
//!                                    ______________/              here always, until the plan goes
//!                          _________/      8 credits
//!                   ______/   4 credits
//!  ________________/ 2 credits
//!          back    back   back      back
//! ```
//!
//! A run that fits its plan never grows; one that does not settles after a few steps at what it
//! needs. The ceiling is what was held before the plan; where the plan came first, little more than it
//! foresees or than is ever in use. A plan under which the run keeps coming back there is worth nothing.
//!
//! The opening comes once, and builds the model: beyond what the plan foresees, what is idle goes
//! back first every time there, and no credit comes of it.

use crate::strikes::Strikes;

/// A credit is this share of the arena, one byte in so many, and at least a page of expandable
/// segments (`kLargeBuffer`): one odd request is no reason for anything. Less than that is not worth
/// giving back either.
const CREDIT: u64 = 256;
pub(super) const CREDIT_MIN: u64 = 20 << 20;
/// A plan followed from the first request may hold so much more than it foresees, one byte in so
/// many.
const OUTSIDE: u64 = 8;
/// Before that something idle goes back for all but this share of what it foresees or of what was in use, one
/// byte in so many, and [`CREDIT_MIN`] at least: where no plan is followed, stitched holes leave no more
/// behind.
const LEEWAY: u64 = 800;
/// The ceiling may be met so often ([`Strikes`]).
const PATIENCE: u32 = 3;

/// Bytes by which a run under a plan with such an arena may grow at first.
pub(crate) fn credit(arena: u64) -> u64 {
    (arena / CREDIT).max(CREDIT_MIN)
}

/// What is held and may be held. Bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Growth {
    /// The most that was held since the plan is followed.
    pub(super) high: u64,
    /// What the plan foresees.
    foreseen: u64,
    /// What may be held.
    pub(super) ceiling: u64,
    /// The most that was in use, as far as it is known.
    in_use: u64,
    /// A credit.
    unit: u64,
    /// No iteration has begun under this plan.
    is_opening: bool,
    /// By how much the policy may still grow.
    credit: u64,
    /// How often something went back.
    times: u32,
    /// It did so in this iteration, at the ceiling.
    is_at_ceiling: bool,
    /// Iterations in which it did.
    at_ceiling: Strikes,
}

impl Growth {
    /// Of a plan that is followed from the first request and foresees so many bytes at once;
    /// `arena` is what an iteration takes.
    pub(super) fn of_plan(bytes: u64, arena: u64) -> Growth {
        // A plan file may claim anything of what lies outside its regions.
        let ceiling = bytes.saturating_add(bytes / OUTSIDE);
        let foreseen = Growth { foreseen: bytes, ceiling, is_opening: true, ..Growth::default() };
        foreseen.with_arena(arena)
    }

    /// Of a plan that is taken up now, while `held` are held, and `top` were at most.
    pub(super) fn of_switch(held: u64, top: u64, arena: u64) -> Growth {
        Growth { high: held, ceiling: top, ..Growth::default() }.with_arena(arena)
    }

    fn with_arena(self, arena: u64) -> Growth {
        let unit = credit(arena);
        Growth { unit, credit: unit, ..self }
    }

    /// So much is in use now, or will be with the request at hand.
    pub(super) fn note_use(&mut self, in_use: u64) {
        self.in_use = self.in_use.max(in_use);
    }

    /// What may be held without anything going back for it.
    fn most(&self) -> u64 {
        if self.foreseen == 0 {
            return self.ceiling;
        }
        let needed = self.foreseen.max(self.in_use);
        needed.saturating_add((needed / LEEWAY).max(CREDIT_MIN)).min(self.ceiling)
    }

    /// The most that was held, or may be.
    pub(super) fn top(&self) -> u64 {
        self.ceiling.max(self.high)
    }

    /// True if nothing need go back for it that `after` are held: the plan foresees as much, and it
    /// is the plan that grows, or the opening, in which it foresees what others need too.
    pub(super) fn is_foreseen(&self, after: u64, for_plan: bool) -> bool {
        (for_plan || self.is_opening) && after <= self.foreseen
    }

    /// True until an iteration begins under a plan that is followed from the first request.
    pub(super) fn is_opening(&self) -> bool {
        self.is_opening
    }

    /// So much is held now.
    #[inline]
    pub(super) fn note(&mut self, held: u64) {
        self.high = self.high.max(held);
    }

    /// True if the policy may grow by `bytes` and hold `after`, and nothing goes back for it.
    pub(super) fn is_free(&self, after: u64, bytes: u64) -> bool {
        after <= self.high || (after <= self.most() && bytes <= self.credit)
    }

    /// The policy is about to grow by `bytes` and to hold `after`, more than ever, while `idle` bytes
    /// could go back. True if they must, first.
    pub(super) fn gives_back(&mut self, after: u64, bytes: u64, idle: u64) -> bool {
        if self.is_opening || idle < CREDIT_MIN {
            return idle >= CREDIT_MIN;
        }
        if self.is_free(after, bytes) {
            self.credit -= bytes;
            return false;
        }
        self.is_at_ceiling |= after > self.most();
        self.times += 1;
        self.credit = self.unit << self.times.min(16);
        true
    }

    /// An iteration begins.
    pub(super) fn begin_iteration(&mut self) {
        self.is_opening = false;
        self.at_ceiling.note(self.is_at_ceiling);
        self.is_at_ceiling = false;
    }

    /// True if the plan saves nothing.
    pub(super) fn is_in_vain(&self) -> bool {
        self.at_ceiling.count() >= PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Grows by `bytes` wherever that is let pass, and gives back `bytes` where it is not: the most
    /// that is held, and how often something went back.
    fn press(mut growth: Growth, times: u32, bytes: u64) -> (u64, u32) {
        let (mut held, mut backs) = (growth.high, 0);
        for _ in 0..times {
            if held + bytes > growth.high && growth.gives_back(held + bytes, bytes, GIB) {
                held -= bytes;
                backs += 1;
            }
            held += bytes;
            growth.note(held);
        }
        (growth.high, backs)
    }

    #[test]
    fn a_little_growth_passes_and_then_something_goes_back() {
        let growth = Growth::of_switch(10 * GIB, 14 * GIB, 8 * GIB);
        assert!(growth.is_free(10 * GIB + CREDIT_MIN, CREDIT_MIN));
        assert!(!growth.is_free(11 * GIB, GIB));
        assert_eq!(press(growth, 1, CREDIT_MIN), (10 * GIB + CREDIT_MIN, 0));
        assert_eq!(press(growth, 1, GIB).1, 1);
    }

    #[test]
    fn what_keeps_pressing_gets_to_the_ceiling_after_few_returns_and_never_beyond() {
        let growth = Growth::of_switch(10 * GIB, 14 * GIB, 8 * GIB);
        let bytes = 64 << 20;
        let (high, backs) = press(growth, 50, bytes);
        assert!(high > 12 * GIB && backs < 8, "{high} bytes, {backs} returns");
        let (high, _) = press(growth, 1000, bytes);
        assert!(high <= 14 * GIB, "{high} bytes");
    }

    #[test]
    fn a_plan_under_which_the_ceiling_is_met_again_and_again_is_in_vain() {
        let mut growth = Growth::of_switch(10 * GIB, 10 * GIB, 8 * GIB);
        for time in 0..2 * PATIENCE - 1 {
            assert!(!growth.is_in_vain(), "after {time} iterations");
            // More than once in an iteration is no more.
            assert!(growth.gives_back(11 * GIB, GIB, GIB) && growth.gives_back(11 * GIB, GIB, GIB));
            growth.begin_iteration();
        }
        assert!(growth.is_in_vain());
        growth.begin_iteration();
        assert!(!growth.is_in_vain(), "an iteration went by without");
    }

    #[test]
    fn in_the_opening_all_that_is_idle_goes_back_and_no_growth_is_let_pass_for_it() {
        let mut growth = Growth::of_plan(10 * GIB, 8 * GIB);
        for held in 0..10 {
            assert!(growth.gives_back(held * GIB, GIB, GIB));
            assert!(!growth.gives_back(held * GIB, GIB, CREDIT_MIN - 1), "it is not worth it");
        }
        growth.begin_iteration();
        assert!(growth.gives_back(11 * GIB, GIB, GIB), "the credit is that of a new plan");
    }

    #[test]
    fn under_a_plan_from_the_first_request_on_little_more_is_held_than_is_in_use() {
        let press_up = |in_use: u64| {
            let mut growth = Growth::of_plan(80 * GIB, 8 * GIB);
            growth.begin_iteration();
            growth.note(80 * GIB);
            growth.note_use(in_use);
            press(growth, 10_000, 2 << 20).0
        };
        assert_eq!(press_up(GIB), 80 * GIB + 80 * GIB / LEEWAY / (2 << 20) * (2 << 20));
        let more = press_up(84 * GIB) - 84 * GIB;
        assert!(more <= 84 * GIB / LEEWAY && more > 84 * GIB / LEEWAY - (2 << 20), "{more} bytes");
        // Where there was no plan before, it is what was held then.
        let growth = Growth::of_switch(80 * GIB, 90 * GIB, 8 * GIB);
        assert!(press(growth, 10_000, 2 << 20).0 > 89 * GIB);
    }

    #[test]
    fn a_plan_that_claims_the_impossible_has_a_ceiling_too() {
        assert_eq!(Growth::of_plan(u64::MAX, GIB).top(), u64::MAX);
    }

    #[test]
    fn what_was_held_once_under_the_plan_may_be_held_again() {
        let mut growth = Growth::of_plan(10 * GIB, 8 * GIB);
        growth.note(9 * GIB);
        assert!(growth.is_free(9 * GIB, 2 * GIB));
    }
}
