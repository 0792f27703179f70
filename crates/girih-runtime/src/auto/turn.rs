//! When to plan and when to switch.
//!
//! With marks, everything is decided where an iteration begins: whether the last two were alike,
//! whether the last one fitted the plan, whether another plan is due. Plans after the first are held
//! back for twice as many iterations each time, so that a run whose lengths vary settles for one that
//! has room for most of them.
//!
//! Without marks, the recording is tried for repetition whenever it has grown by a third, and a
//! *scout* runs along the next plan until an iteration begins.

use std::ops::Range;
use std::sync::Arc;

use girih_plan::Plan;
use girih_trace::{MarkKind, StreamId};

use super::recorder::Recorder;
use super::{Auto, Planning, Switch};
use crate::planned::{EntryId, Follower, Following};
use crate::policy::{AllocError, Env, Request};

/// An iteration fits if at most one byte in so many was not found in the plan.
const MISFIT: u64 = 50;
/// Iterations that may join the recording, after a switch and after one that did not fit.
const WATCHED: u32 = 8;
/// Iterations before the first plan: the first differs, and two must be alike.
const FIRST_PLAN: u64 = 3;
/// A plan is held back for so many iterations at most.
const HELD_BACK_MAX: u64 = 32;
/// Without marks: requests before the recording is tried for the first time.
const FIRST_TRY: u64 = 2048;
/// Without marks: the recording must have become so many times as long since its iterations were
/// first found.
const CONFIRMED: u64 = 3;
/// Without marks: iterations that must fit before a plan has proven itself.
const PROOF: u64 = 32;
/// Without marks: the latest requests, by which the place in a new plan is found.
const RECENT: usize = 512;
/// Without marks: requests in a row by which a scout knows where it is.
const IN_STEP: usize = 32;
/// Without marks: requests in a row that a scout does not find before it looks for its place anew.
const LOST: usize = 64;
/// Without marks: misses after which the fit is looked at again.
const MISSES: u64 = 32;

/// Where the run stands, and what was decided.
pub(super) struct Turn {
    /// The kind of mark that begins an iteration; none was seen yet.
    boundary: Option<MarkKind>,
    /// Iterations that have begun.
    steps: u64,
    /// Requests of the default pool.
    requests: u64,
    /// Requests when the iteration began.
    began_at: u64,
    /// What had been found and missed when the iteration began.
    began: Following,
    /// Requests of the iteration before.
    last: u64,
    /// Iterations that may still join the recording.
    watched: u32,
    /// Iterations that did not fit have joined the recording.
    has_misfits: bool,
    /// No plan is wanted before so many iterations; without marks, requests.
    not_before: u64,
    /// How long the plan after the next is held back.
    held_back: u64,
    /// Without marks: the request with which the recording began.
    recorded_from: u64,
    /// Without marks: the requests of an iteration as they were first found, and the length of the
    /// recording then.
    found: Option<(usize, u64)>,
    /// Without marks: the request at which the plan has proven itself.
    proven_at: u64,
    /// Without marks: misses at which the fit is looked at.
    look_at: u64,
    /// Without marks: finds where an iteration of the next plan begins.
    scout: Option<Scout>,
}

impl Default for Turn {
    fn default() -> Turn {
        Turn {
            boundary: None,
            steps: 0,
            requests: 0,
            began_at: 0,
            began: Following::default(),
            last: 0,
            watched: 0,
            has_misfits: false,
            not_before: FIRST_TRY,
            held_back: 1,
            recorded_from: 0,
            found: None,
            proven_at: 0,
            look_at: MISSES,
            scout: None,
        }
    }
}

/// A follower that runs ahead.
struct Scout {
    follower: Follower,
    /// Entries of the ring.
    ring: Range<u32>,
    /// The entry that was found last, once so many in a row were found that it can be trusted.
    last: Option<u32>,
    /// Requests in a row that were found.
    in_step: usize,
    /// Requests since one was found.
    lost: usize,
    /// Requests after which the switch comes wherever the program is.
    patience: usize,
}

impl Scout {
    /// A scout along `plan`, in a run whose latest requests were `recent`, the newest first.
    fn new(plan: &Plan, recent: &[(u64, StreamId)]) -> Scout {
        let follower = Follower::new(plan);
        let start = follower.steady_start().map_or(0, |entry| entry.0);
        let count = plan.steady().map_or(0, |steady| steady.entries.len());
        let ring = start..start + count as u32;
        let mut scout =
            Scout { follower, ring, last: None, in_step: 0, lost: 0, patience: 4 * count };
        scout.locate(plan, recent);
        scout
    }

    /// Goes to where the latest requests are best known.
    fn locate(&mut self, plan: &Plan, recent: &[(u64, StreamId)]) {
        let entries = plan.steady().map_or(&[][..], |steady| &steady.entries);
        let count = entries.len();
        // How many of the latest requests are those before an entry, up to the first few others.
        let known = |next: usize| {
            let (mut same, mut other) = (0, 0);
            for (back, &(size, stream)) in (1..=count).zip(recent) {
                let entry = &entries[(next + count - back) % count];
                let fits = entry.size_min <= size && size <= entry.size_max;
                let is_same = fits && entry.stream == stream;
                same += u32::from(is_same);
                other += u32::from(!is_same);
                if other > 4 {
                    break;
                }
            }
            same
        };
        if let Some(next) = (0..count).max_by_key(|&next| known(next)) {
            self.follower.go_to(EntryId(self.ring.start + next as u32));
        }
        self.lost = 0;
    }

    /// True if an iteration has begun before this request, or if it takes too long to find one: the
    /// ring was left near its end, and is found again near its beginning.
    fn arrives(&mut self, request: &Request) -> bool {
        self.patience = self.patience.saturating_sub(1);
        let found = self.follower.follow(request.size, request.stream);
        let found = found.map(|entry| entry.0).filter(|entry| self.ring.contains(entry));
        match found {
            Some(_) => (self.in_step, self.lost) = (self.in_step + 1, 0),
            None => (self.in_step, self.lost) = (0, self.lost + 1),
        }
        let before = self.last;
        if self.in_step >= IN_STEP {
            self.last = found;
        }
        let quarter = (self.ring.end - self.ring.start) / 4;
        let was_late = before.is_some_and(|entry| entry >= self.ring.end - quarter);
        let is_early = found.is_some_and(|entry| entry < self.ring.start + quarter);
        (was_late && is_early) || self.patience == 0
    }
}

impl Turn {
    /// True if a mark of this kind begins an iteration: steps, and where none are marked, the
    /// optimizer's.
    pub(super) fn is_boundary(&mut self, kind: MarkKind) -> bool {
        match (kind, self.boundary) {
            (MarkKind::Step | MarkKind::Optimizer, None)
            | (MarkKind::Step, Some(MarkKind::Optimizer)) => {
                self.boundary = Some(kind);
                (self.steps, self.not_before, self.scout) = (0, FIRST_PLAN, None);
                true
            }
            (kind, Some(boundary)) => kind == boundary,
            (_, None) => false,
        }
    }

    /// Lets the next iterations join the recording if they do not fit.
    pub(super) fn watch(&mut self) {
        self.watched = WATCHED;
    }

    /// True if a plan is to be followed: something repeats in it. Without marks the same must have
    /// been found when the recording was much shorter, for microbatches repeat as well as steps do;
    /// or it takes the place of a plan whose iteration is no longer.
    pub(super) fn trusts(&mut self, plan: &Plan, present: &Plan) -> bool {
        if plan.steady().is_none() {
            self.found = None;
            return false;
        }
        if self.boundary.is_some() {
            return true;
        }
        let (length, now) = (plan.iteration_requests(), self.requests - self.recorded_from);
        let present = present.iteration_requests();
        if present > 0 && length >= present {
            return true;
        }
        let (found, at) = *self.found.get_or_insert((length, now));
        if found.abs_diff(length) * 20 > length {
            self.found = Some((length, now));
            return false;
        }
        now >= CONFIRMED * at
    }

    /// The next plan is there.
    pub(super) fn expect(&mut self, plan: &Plan, recorder: &Recorder) {
        if self.boundary.is_none() {
            self.scout = Some(Scout::new(plan, &recorder.latest(RECENT)));
        }
    }

    /// Another plan is held back for a while, and the one after it for longer.
    fn hold_back(&mut self, now: u64, unit: u64) {
        self.not_before = now + self.held_back * unit;
        self.held_back = (2 * self.held_back).min(HELD_BACK_MAX);
    }

    /// True if what came since the iteration began fits the plan.
    fn fits(&self, now: &Following) -> bool {
        let missed = now.miss_bytes - self.began.miss_bytes;
        let found = now.hit_bytes - self.began.hit_bytes;
        missed * MISFIT <= found + missed
    }
}

impl Auto {
    /// An iteration begins, and another one has ended.
    pub(super) fn begin_iteration(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        if self.planning == Planning::NextIteration {
            self.plan_now();
        }
        if self.planned.is_following() {
            self.end_followed();
        } else {
            self.end_recorded();
        }
        if self.planning == Planning::AtOnce {
            self.plan_now();
        }
        self.switch(env)?;
        let is_recorded = !self.planned.is_following() || self.turn.watched > 0;
        if is_recorded {
            let planned = &self.planned;
            self.recorder.resume(|| planned.live());
        }
        let turn = &mut self.turn;
        turn.last = turn.requests - turn.began_at;
        turn.began_at = turn.requests;
        turn.began = self.planned.following();
        turn.steps += 1;
        Ok(())
    }

    /// An iteration has ended that no plan was followed in: two that are alike make a plan.
    fn end_recorded(&mut self) {
        if self.recorder.is_full() {
            self.recorder.restart(true);
            self.turn.not_before = self.turn.steps + FIRST_PLAN;
        }
        self.recorder.keep();
        let turn = &mut self.turn;
        let count = turn.requests - turn.began_at;
        let is_alike = count.abs_diff(turn.last) * 5 <= count.max(turn.last);
        let is_due = turn.steps >= turn.not_before && !self.is_out && self.next.is_none();
        if is_alike && is_due {
            self.is_wanted = true;
            turn.hold_back(turn.steps, 1);
        }
    }

    /// An iteration has ended in which a plan was followed: it joins the recording if it did not
    /// fit.
    fn end_followed(&mut self) {
        let turn = &mut self.turn;
        let fits = turn.fits(&self.planned.following());
        if self.recorder.is_on() {
            // What comes before the first iteration belongs to every recording.
            if turn.steps == 0 {
                self.recorder.keep();
            } else if fits {
                self.recorder.drop_iteration();
                turn.watched -= turn.watched.min(1);
            } else {
                self.recorder.keep();
                turn.has_misfits = true;
            }
        }
        if !fits && turn.steps > 0 {
            turn.watched = WATCHED;
        }
        if turn.watched == 0 {
            self.recorder.stop();
        }
        let is_due = turn.steps >= turn.not_before && !self.is_out && self.next.is_none();
        if turn.has_misfits && is_due {
            turn.has_misfits = false;
            self.is_wanted = true;
            turn.hold_back(turn.steps, 1);
        }
    }

    /// What a request of the default pool tells where the program marks nothing.
    #[inline]
    pub(super) fn before_request(
        &mut self,
        env: &mut Env<'_>,
        request: &Request,
    ) -> Result<(), AllocError> {
        self.turn.requests += 1;
        if self.turn.boundary.is_some() {
            return Ok(());
        }
        self.find_way(env, request)
    }

    #[inline(never)]
    fn find_way(&mut self, env: &mut Env<'_>, request: &Request) -> Result<(), AllocError> {
        let turn = &mut self.turn;
        if let Some(scout) = &mut turn.scout {
            if let (true, Some(plan)) = (scout.lost > LOST, &self.next) {
                scout.locate(plan, &self.recorder.latest(RECENT));
            }
            if scout.arrives(request) {
                self.switch(env)?;
            }
        } else if self.planned.misses() >= turn.look_at {
            self.look();
        } else if turn.requests >= turn.not_before && self.recorder.is_on() && !self.is_out {
            self.try_recording();
        }
        Ok(())
    }

    /// The recording has grown by a third: perhaps it repeats now. Under a plan that has proven
    /// itself it is not needed any more.
    fn try_recording(&mut self) {
        let turn = &mut self.turn;
        turn.not_before = turn.requests + (turn.requests - turn.recorded_from) / 3;
        if self.planned.is_following() && !turn.has_misfits {
            if turn.requests >= turn.proven_at {
                self.recorder.forget();
            }
        } else if self.recorder.is_full() {
            self.record_anew();
        } else {
            turn.has_misfits = false;
            self.is_wanted = true;
            if self.planning != Planning::ByOwner {
                self.plan_now();
            }
        }
    }

    /// Begins a recording in the middle of the run.
    fn record_anew(&mut self) {
        self.recorder.restart(true);
        let turn = &mut self.turn;
        (turn.recorded_from, turn.found) = (turn.requests, None);
        turn.not_before = turn.requests + FIRST_TRY;
    }

    /// Looks, once in an iteration at most, at how well it fits. A plan that does not fit gets a
    /// successor: what repeated was a part of an iteration, or the iterations vary.
    fn look(&mut self) {
        let now = self.planned.following();
        let turn = &mut self.turn;
        turn.look_at = now.misses + MISSES;
        let iteration = self.planned.plan().iteration_requests() as u64;
        let seen = now.hits + now.misses - turn.began.hits - turn.began.misses;
        if seen < iteration {
            return;
        }
        let fits = turn.fits(&now);
        turn.began = now;
        if !fits {
            turn.has_misfits = true;
            turn.proven_at = turn.requests + PROOF * iteration;
            if !self.recorder.is_on() {
                self.record_anew();
            }
        }
    }

    /// Makes the plan that is wanted.
    fn plan_now(&mut self) {
        if let Some(job) = self.take_job() {
            self.offer(Arc::new(job.run()));
        }
    }

    /// Follows the next plan, if there is one. While a graph is captured it waits.
    fn switch(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        let Some(plan) = self.next.clone() else { return Ok(()) };
        if !self.with(env, |planned, env| planned.follow(env, plan))? {
            return Ok(());
        }
        let turn = &mut self.turn;
        self.switches.push(Switch { step: turn.steps, requests: turn.requests });
        (self.next, turn.scout, self.is_wanted) = (None, None, false);
        turn.began = self.planned.following();
        turn.look_at = turn.began.misses + MISSES;
        if self.switches.len() == 1 {
            // Until now there was nothing to follow; from now on plans replace each other.
            turn.held_back = 1;
        }
        if turn.boundary.is_some() {
            turn.watched = WATCHED;
        } else {
            // The recording goes on until the plan has proven itself.
            let iteration = self.planned.plan().iteration_requests() as u64;
            turn.proven_at = turn.requests + PROOF * iteration;
            turn.has_misfits = false;
        }
        Ok(())
    }
}
