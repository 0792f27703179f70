//! A policy that steps have followed, and how long they took.
//!
//! ```text
//!             time of a step as measured
//!  |───────────────────────────────────────────|
//!  | what its schedule says     | views        |
//!             |─────────────────|──────────────|
//!             what it may take once views are made no more: not less than its schedule says
//! ```
//!
//! Where copies are others than in the step before, so is what is free when, and views are made until the lake has come to
//! rest. So a policy that is tried is judged by what its steps *may* take; and once it has stayed, by what they do take.
//! Driver's time is hidden behind the work of the GPU for the most part: to take off all of it would make that
//! one the best which makes most views. Steps without a policy differ from each other in who goes, so that they
//! never come to rest: they are taken as they are.

use std::collections::VecDeque;
use std::sync::Arc;

use super::policy::Policy;

/// The number of no policy.
pub(super) const NO_POLICY: u32 = 0;

/// Steps that do the same are alike if the most that they have in use differs by no more than one part of so many.
const ALIKE: u64 = 64;

/// Steps of which the middle one counts: the last that there were. The first that a program makes find memory that
/// nobody has cut up yet, and are never had again.
const RECENT: usize = 9;

/// What a step took, and of that the driver to give, take and map memory. Microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Took {
    pub(super) us: f64,
    pub(super) driver_us: f64,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Tried {
    policy: Option<Arc<Policy>>,
    /// Steps that have followed it from their beginning to their end since it was taken up.
    steps: u32,
    /// What the last of those took that count, at most [`RECENT`], and what they may take. Microseconds.
    recent: VecDeque<[f64; 2]>,
    /// The least that one may take. Microseconds.
    least_us: f64,
    /// The most bytes that were in use or away in them. Where sizes vary it is the largest: others take less whatever they
    /// follow.
    peak: u64,
    /// Its steps have had time to come to rest.
    is_proven: bool,
    /// It leaves a part of the room free.
    is_roomy: bool,
}

impl Default for Tried {
    fn default() -> Tried {
        Tried {
            policy: None,
            steps: 0,
            recent: VecDeque::new(),
            least_us: f64::INFINITY,
            peak: 0,
            is_proven: false,
            is_roomy: false,
        }
    }
}

impl Tried {
    /// A policy that is taken up, which leaves a part of the room free or does not.
    pub(super) fn of(policy: Arc<Policy>, is_roomy: bool) -> Tried {
        Tried { policy: Some(policy), is_roomy, ..Tried::default() }
    }

    /// A step has followed it, with so many bytes in use or away at most. None if what it took does not count.
    pub(super) fn note(&mut self, took: Option<Took>, peak: u64) {
        self.steps = self.steps.saturating_add(1);
        let Some(took) = took else { return };
        if !are_alike(peak, self.peak) {
            if peak < self.peak {
                return;
            }
            self.peak = peak;
            self.begin_window();
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        let promised = self.promised_us().unwrap_or(f64::INFINITY);
        let least = (took.us - took.driver_us).max(promised.min(took.us));
        self.recent.push_back([took.us, least]);
        self.least_us = self.least_us.min(least);
    }

    fn begin_window(&mut self) {
        self.recent.clear();
        self.least_us = f64::INFINITY;
    }

    /// It is followed once more: what its steps took is forgotten.
    pub(super) fn begin_anew(&mut self) {
        self.steps = 0;
        self.begin_window();
    }

    /// From now on it is taken as it is.
    pub(super) fn prove(&mut self) {
        self.is_proven = true;
    }

    pub(super) fn is_proven(&self) -> bool {
        self.is_proven
    }

    pub(super) fn is_roomy(&self) -> bool {
        self.is_roomy
    }

    /// True if its steps take more than they may, by this part of themselves: they make views.
    pub(super) fn is_held_up(&self, part: f64) -> bool {
        let (us, least) = (self.median(0), self.median(1));
        us.zip(least).is_some_and(|(us, least)| least < us * (1.0 - part))
    }

    /// True if none of its last steps, so many of them, took more than it may by this part of itself.
    pub(super) fn is_at_rest(&self, part: f64, steps: usize) -> bool {
        let last = self.recent.iter().rev().take(steps);
        self.recent.len() >= steps && { last }.all(|[us, least]| *least >= us * (1.0 - part))
    }

    /// All but its last steps, so many of them, are forgotten: those before were none of this kind.
    pub(super) fn forget_before(&mut self, steps: usize) {
        self.recent.drain(..self.recent.len().saturating_sub(steps));
        let least = self.recent.iter().map(|[_, least]| *least);
        self.least_us = least.fold(f64::INFINITY, f64::min);
    }

    pub(super) fn policy(&self) -> Option<&Arc<Policy>> {
        self.policy.as_ref()
    }

    pub(super) fn number(&self) -> u32 {
        self.policy.as_ref().map_or(NO_POLICY, |policy| policy.number)
    }

    /// What its schedule says of its step: see [`Policy::us`].
    pub(super) fn promised(&self) -> [f64; 3] {
        self.policy.as_ref().map_or([0.0; 3], |policy| policy.us)
    }

    /// What its step takes by its schedule, in microseconds; none without one.
    pub(super) fn promised_us(&self) -> Option<f64> {
        self.policy.as_ref().map(|policy| policy.us[1])
    }

    pub(super) fn steps(&self) -> u32 {
        self.steps
    }

    /// True if there was a step that counts.
    pub(super) fn is_known(&self) -> bool {
        !self.recent.is_empty()
    }

    /// True if its steps were as large as another's.
    pub(super) fn is_like(&self, other: &Tried) -> bool {
        are_alike(self.peak, other.peak)
    }

    /// What the middle one of its last steps took, in microseconds.
    pub(super) fn us(&self) -> Option<f64> {
        self.median(0)
    }

    fn median(&self, of: usize) -> Option<f64> {
        let mut us: Vec<f64> = self.recent.iter().map(|both| both[of]).collect();
        us.sort_by(f64::total_cmp);
        us.get(us.len() / 2).copied()
    }

    /// What its steps may take once nothing else is tried: see the [module](self). Microseconds; infinite if there were none.
    pub(super) fn hope_us(&self) -> f64 {
        match &self.policy {
            Some(_) if !self.is_proven => self.least_us,
            _ => self.us().unwrap_or(f64::INFINITY),
        }
    }
}

fn are_alike(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= one.max(other) / ALIKE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(us: f64, driver_us: f64) -> Option<Took> {
        Some(Took { us, driver_us })
    }

    #[test]
    fn the_middle_one_of_the_last_steps_counts() {
        let mut tried = Tried::default();
        tried.note(None, 1000);
        assert!(!tried.is_known() && tried.hope_us().is_infinite());
        tried.note(took(1.0, 0.0), 1000);
        (0..RECENT / 2).for_each(|_| tried.note(took(9.0, 0.0), 1000));
        assert_eq!(tried.us(), Some(9.0), "one that was short says nothing of the others");
        (0..RECENT).for_each(|_| tried.note(took(5.0, 0.0), 1000));
        assert_eq!((tried.us(), tried.recent.len()), (Some(5.0), RECENT));
        tried.begin_anew();
        assert_eq!((tried.us(), tried.steps()), (None, 0));
    }

    #[test]
    fn the_largest_steps_alone_are_compared() {
        let mut tried = Tried::default();
        let mut note = |us: f64, peak: u64| {
            tried.note(took(us, 0.0), peak);
            tried.us()
        };
        let seen = [(90.0, 1000), (60.0, 900), (91.0, 990), (80.0, 1010), (120.0, 1100)];
        let known = [90.0, 90.0, 91.0, 90.0, 120.0].map(Some);
        assert_eq!(seen.map(|(us, peak)| note(us, peak)), known);
    }

    /// Of 1.4 s the driver has 0.9, behind the work of the GPU; by its schedule the step takes 1.2.
    #[test]
    fn a_policy_may_take_what_its_schedule_says_but_not_less() {
        let policy =
            |us: f64| Arc::new(Policy { number: 1, us: [1.0, us, 1.0], ..Policy::default() });
        let of = |us: f64| {
            let mut tried = Tried::of(policy(us), false);
            tried.note(took(1.4, 0.9), 1000);
            tried
        };
        assert_eq!(of(1.2).hope_us(), 1.2);
        assert_eq!(of(0.4).hope_us(), 1.4 - 0.9);
        assert_eq!(of(1.7).hope_us(), 1.4, "what was measured is possible");
        assert_eq!([1.2, 1.38, 1.7].map(|us| of(us).is_held_up(0.02)), [true, false, false]);
        let mut proven = of(1.2);
        proven.prove();
        assert_eq!(proven.hope_us(), 1.4);
        let mut without = Tried::default();
        without.note(took(1.4, 0.9), 1000);
        assert_eq!(without.hope_us(), 1.4);
    }
}
