//! The judge: when a plan is made, kept for the next launch and dropped.
//!
//! ```text
//!            two alike            proof that fit
//!  learning ──────────► shadowed ────────────────► kept for the next launch ──► followed there
//!      ▲                    │                                                      │
//!      └────────────────────┴─────────────────────── misfits_max ──────────────────┘
//! ```
//!
//! - *Learning*: every iteration is recorded. When the last two have about as many requests, and a plan is due, one is
//!   made of all.
//! - *Shadowed*: a shadow goes along the plan. An iteration *fits* if at most one byte in [`Options::misfit`] that was
//!   asked for has no place in it. After [`Options::proof`] in a row that fit the plan is kept for the next launch.
//! - *Followed*: the lake gives its places from the first request on, and iterations fit or not as before.
//!
//! With a plan, iterations are recorded until [`Options::proof`] in a row have fitted. Those that
//! do not fit join the recording, and the next plan, which is shadowed beside the one that is followed, has room for them.
//! After [`Options::misfits_max`] in a row that did not fit the plan goes.
//!
//! A plan holds no more than no plan would ([`lake`](crate::lake)), so little depends on this: a plan that does not fit
//! costs the time in which places are tried in vain. Plans after the first are held back for twice as many
//! iterations each time, so that a run that always varies is not planned for ever.
//!
//! Without marks an iteration is as many requests as the plan has in one, and a recording is tried for
//! repetition whenever it has grown by a third.

use std::sync::Arc;

use girih_plan::Plan;
use girih_trace::MarkKind;

use super::recorder::Recorder;
use super::recording::Kind;
use crate::lake::{Following, Lake};

/// How plans are judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// An iteration fits a plan if at most one byte in so many has no place in it.
    pub misfit: u64,
    /// A plan is dropped once so many iterations in a row did not fit. One may be an evaluation.
    pub misfits_max: u32,
    /// A plan is kept once so many iterations in a row did, and no more are recorded.
    pub proof: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { misfit: 50, misfits_max: 2, proof: 3 }
    }
}

/// Iterations before the first plan: the first differs, and two must be alike.
const FIRST_PLAN: u64 = 3;
/// Two iterations are alike if one has at most one request in so many more.
const ALIKE: u64 = 5;
/// Without marks: requests before a recording is tried for the first time.
const FIRST_TRY: u64 = 2048;
/// Without marks: the recording must have become so many times as long since its iterations were
/// first found.
const CONFIRMED: u64 = 3;
/// Without marks: a plan's iteration is as long as before if it differs by one request in so many.
const SAME_LENGTH: usize = 20;

/// What the plan that the shadow goes along would have given in an iteration: the bytes that would have had their
/// place, and those that would not. None if there is no such plan, and none of it if it came in the middle.
pub(super) type Seen = Option<Option<(u64, u64)>>;

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Verdict {
    /// A plan is wanted of what was recorded.
    pub(super) wants_plan: bool,
    /// The plan that is followed goes.
    pub(super) drops_plan: bool,
    /// The plan has shown that it fits.
    pub(super) is_proven: bool,
}

/// Where the run stands. See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Judge {
    options: Options,
    /// The kind of mark that begins an iteration; none was seen yet.
    boundary: Option<MarkKind>,
    /// Iterations that have begun.
    steps: u64,
    /// Requests of the default pool.
    requests: u64,
    /// Requests when the iteration began, and in the one before.
    began_at: u64,
    last: u64,
    /// What had been found and missed when the iteration began.
    began: Following,
    /// Iterations in a row that fitted the plan, and that did not.
    fits: u32,
    misfits: u32,
    /// The plan is known to fit.
    is_proven: bool,
    /// Iterations that did not fit have joined the recording.
    has_misfits: bool,
    /// No plan is wanted before so many iterations; without marks, requests.
    not_before: u64,
    /// How long the plan after the next is held back.
    held_back: u64,
    /// Without marks: requests of an iteration of the plan.
    iteration: u64,
    /// Without marks: the request with which the recording began.
    recorded_from: u64,
    /// Without marks: the requests of an iteration as they were first found, and the length of the
    /// recording then.
    found: Option<(usize, u64)>,
}

impl Judge {
    /// A judge of a run that begins, and of the plan of an earlier run if one is followed: that has shown
    /// there that it fits.
    pub(super) fn new(options: Options, kept: Option<&Plan>) -> Judge {
        let iteration = kept.map_or(1, |plan| plan.iteration_requests().max(1) as u64);
        Judge {
            options,
            is_proven: kept.is_some(),
            not_before: if kept.is_some() { iteration } else { FIRST_TRY },
            held_back: 1,
            iteration,
            ..Judge::default()
        }
    }

    /// True if a mark of this kind begins an iteration: steps, and where none are marked, the
    /// optimizer's.
    pub(super) fn is_boundary(&mut self, kind: MarkKind) -> bool {
        match (kind, self.boundary) {
            (MarkKind::Step | MarkKind::Optimizer, None)
            | (MarkKind::Step, Some(MarkKind::Optimizer)) => {
                self.boundary = Some(kind);
                (self.steps, self.not_before) = (0, FIRST_PLAN);
                true
            }
            (kind, Some(boundary)) => kind == boundary,
            (_, None) => false,
        }
    }

    /// The kind of mark that begins an iteration, if one was seen.
    pub(super) fn boundary(&self) -> Option<MarkKind> {
        self.boundary
    }

    /// Notes a request of the default pool. True if the program marks nothing and it is time to
    /// [look](Judge::look).
    #[inline]
    pub(super) fn note(&mut self) -> bool {
        self.requests += 1;
        self.boundary.is_none() && self.requests >= self.not_before
    }

    /// True if a plan is to be gone along: something repeats in it. Without marks the same must have
    /// been found when the recording was much shorter, for microbatches repeat as well as steps do;
    /// or it takes the place of a plan whose iteration is no longer.
    pub(super) fn trusts(&mut self, plan: &Plan, present: Option<&Arc<Plan>>) -> bool {
        if plan.steady().is_none() {
            self.found = None;
            return false;
        }
        let (length, now) = (plan.iteration_requests(), self.requests - self.recorded_from);
        self.iteration = (length as u64).max(1);
        (self.fits, self.misfits, self.is_proven) = (0, 0, false);
        if self.boundary.is_some() {
            return true;
        }
        let present = present.map_or(0, |present| present.iteration_requests());
        let is_confirmed = (present > 0 && length >= present) || self.confirms(length, now);
        if is_confirmed {
            self.not_before = self.requests + self.iteration;
        }
        is_confirmed
    }

    /// Without marks: true if iterations of as many requests were found when the recording was much shorter than `now`.
    fn confirms(&mut self, length: usize, now: u64) -> bool {
        let (found, at) = *self.found.get_or_insert((length, now));
        if found.abs_diff(length) * SAME_LENGTH > length {
            self.found = Some((length, now));
            return false;
        }
        now >= CONFIRMED * at
    }

    /// True if the iteration that begins is to be recorded.
    pub(super) fn records(&self, has_plan: bool) -> bool {
        !has_plan || self.fits < self.options.proof
    }

    /// Another plan is held back for a while, and the one after it for longer.
    fn hold_back(&mut self, now: u64) {
        self.not_before = now + self.held_back;
        self.held_back = self.held_back.saturating_mul(2);
    }

    /// True if the iteration that has ended fits the plan that was followed, or would have fitted the one that was
    /// not. None if that cannot be told.
    fn has_fitted(&self, lake: &Lake, seen: Seen) -> Option<bool> {
        let (found, missed) = match seen {
            Some(whole) => whole?,
            None => {
                // A place that cannot be had now is no fault of the plan.
                let found = |of: &Following| of.hit_bytes + of.refused_bytes;
                let missed = |of: &Following| of.miss_bytes - of.refused_bytes;
                let now = lake.following();
                (found(&now) - found(&self.began), missed(&now) - missed(&self.began))
            }
        };
        Some(found > 0 && missed.saturating_mul(self.options.misfit) <= found + missed)
    }

    /// An iteration has ended. `seen` is what the plan for the next launch would have given; `is_free` says that
    /// no plan is being made.
    pub(super) fn end_iteration(
        &mut self,
        lake: &Lake,
        seen: Seen,
        recorder: &mut Recorder,
        is_free: bool,
    ) -> Verdict {
        let is_due = is_free && self.steps >= self.not_before;
        // What comes before the first iteration belongs to every recording.
        let is_opening = self.steps == 0;
        if is_opening || (seen.is_none() && lake.plan().is_none()) {
            let kind = if is_opening { Kind::Opening } else { Kind::Iteration };
            let is_kept = recorder.keep(kind);
            let count = self.requests - self.began_at;
            let is_alike = count.abs_diff(self.last) * ALIKE <= count.max(self.last);
            let wants_plan = !is_opening && is_alike && is_due && is_kept;
            if wants_plan {
                self.hold_back(self.steps);
            }
            return Verdict { wants_plan, ..Verdict::default() };
        }
        let Some(fits) = self.has_fitted(lake, seen) else {
            recorder.keep(Kind::Iteration);
            return Verdict::default();
        };
        if fits {
            recorder.drop_iteration();
        } else {
            self.has_misfits |= recorder.keep(Kind::Misfit);
        }
        let mut verdict = self.judge(fits);
        if !self.records(true) {
            recorder.stop();
        }
        if self.has_misfits && is_due {
            (self.has_misfits, verdict.wants_plan) = (false, true);
            self.hold_back(self.steps);
        }
        verdict
    }

    /// Judges an iteration that has a plan, which is followed or only seen.
    fn judge(&mut self, fits: bool) -> Verdict {
        (self.fits, self.misfits) = if fits { (self.fits + 1, 0) } else { (0, self.misfits + 1) };
        let is_proven = self.fits == self.options.proof && !self.is_proven;
        self.is_proven |= is_proven;
        let drops_plan = self.misfits >= self.options.misfits_max;
        if drops_plan {
            self.misfits = 0;
        }
        Verdict { wants_plan: false, drops_plan, is_proven }
    }

    /// The next iteration begins.
    pub(super) fn begin_iteration(&mut self, lake: &Lake) {
        self.last = self.requests - self.began_at;
        self.began_at = self.requests;
        self.began = lake.following();
        self.steps += 1;
    }

    /// Without marks: a recording begins in the middle of the run.
    pub(super) fn record_anew(&mut self) {
        (self.recorded_from, self.found) = (self.requests, None);
        self.not_before = self.requests + FIRST_TRY;
    }

    /// Without marks: the recording has grown by a third, or an iteration is over.
    pub(super) fn look(
        &mut self,
        lake: &Lake,
        seen: Seen,
        recorder: &mut Recorder,
        is_free: bool,
    ) -> Verdict {
        if seen.is_none() && lake.plan().is_none() {
            self.not_before = self.requests + (self.requests - self.recorded_from) / 3;
            let wants_plan = recorder.is_on() && is_free;
            return Verdict { wants_plan, ..Verdict::default() };
        }
        self.not_before = self.requests + self.iteration;
        let Some(fits) = self.has_fitted(lake, seen) else { return Verdict::default() };
        let verdict = self.judge(fits);
        if self.is_proven {
            recorder.forget();
        } else if !fits && !recorder.is_on() {
            recorder.restart(true);
            self.record_anew();
        }
        self.began = lake.following();
        verdict
    }
}
