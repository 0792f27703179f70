//! When to plan and when to switch.
//!
//! With marks, everything is decided where an iteration begins: whether the last two were alike,
//! whether the last one fitted the plan, whether another plan is due. Plans after the first are held
//! back for twice as many iterations each time, so that a run whose lengths vary settles for one that
//! has room for most of them.
//!
//! A plan is made of what has been; what counts is what comes. Where two iterations asked for the
//! same, to the byte, it is followed at once. Otherwise a [`Scout`] goes along it for an iteration
//! first, and if that would not have fitted, the plan is laid aside. One under which the device is
//! called again and again is dropped.
//!
//! Without marks, the recording is tried for repetition whenever it has grown by a third, and the
//! scout also finds out when an iteration begins.

use std::sync::Arc;

use girih_plan::Plan;
use girih_trace::MarkKind;

use super::recorder::Recorder;
use super::recording::Kind;
use super::scout::Scout;
use super::{Auto, Planning, SWITCHES_MAX, Switch};
use crate::planned::{Following, Planned, credit};
use crate::policy::{Env, Policy, Request};
use crate::strikes::Strikes;

/// So much more than a plan needs may be held while it is taken up, one byte in so many.
const SLACK: u64 = 200;

/// The first plan is taken up if it saves so much of what is held, one byte in so many. Stitched holes
/// leave little behind; but what saves nothing is not worth the change.
const WORTH: u64 = 1024;
/// The same for a plan of iterations that differ in sizes.
const WORTH_VARYING: u64 = 16;
/// An iteration fits if at most one byte in so many was not found in the plan.
const MISFIT: u64 = 50;
/// A plan is dropped once so many iterations in a row did not fit. One may be an evaluation.
const MISFITS_MAX: u32 = 2;
/// Iterations in a row that must fit a plan before it is taken up.
const FITS: u32 = 2;
/// An iteration strains the device if the plan makes more than so many calls for memory in it.
const STRAINED: u64 = 8;
/// Memory is short if so many iterations in a row strain the device without a plan.
const PRESSED: u32 = 2;
/// A plan has shown that it fits if the last of so many iterations under it did.
const PROVEN: u64 = 3;
/// A plan is dropped after so many strained iterations ([`Strikes`]).
const STRAINS_MAX: u32 = 3;
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
    /// What was asked for in this iteration, in order, as a hash; and in the one before.
    asked: [u64; 2],
    /// The two iterations before this one asked for the same.
    was_same: bool,
    /// Calls for memory before the iteration began, and how often it was short by then.
    calls: u64,
    shortages: u64,
    /// Iterations without a plan in which memory was short again and again: new views were made, or
    /// the device was full. The first one always differs, and does not count.
    presses: Strikes,
    /// Iterations under the present plan that strained the device.
    strains: Strikes,
    /// Iterations under the present plan that did not fit it.
    misfits: Strikes,
    /// Iterations that have begun under the present plan.
    followed: u64,
    /// The present plan has shown that it fits.
    is_proven: bool,
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
    /// Goes along the next plan before it is followed.
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
            asked: [0; 2],
            was_same: false,
            calls: 0,
            shortages: 0,
            presses: Strikes::default(),
            strains: Strikes::default(),
            misfits: Strikes::default(),
            followed: 0,
            is_proven: false,
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

impl Turn {
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

    /// A plan of an earlier run is followed, which has shown there that it fits: the iterations that
    /// do not fit it here join the recording.
    pub(super) fn begin_with_plan(&mut self) {
        (self.watched, self.is_proven) = (WATCHED, true);
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
        self.scout = match self.boundary {
            None => Some(Scout::lost(plan, &recorder.latest(RECENT))),
            Some(_) if self.was_same => None,
            Some(_) => Some(Scout::waiting(plan)),
        };
    }

    /// A request of the default pool.
    #[inline]
    fn note(&mut self, request: &Request) {
        self.requests += 1;
        let word = request.size ^ u64::from(request.stream.0) << 56;
        self.asked[0] = (self.asked[0] ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
    }

    /// A mark that does not begin an iteration: a scout is told.
    pub(super) fn mark(&mut self, kind: MarkKind) {
        if let Some(scout) = &mut self.scout {
            scout.mark(kind);
        }
    }

    /// Another plan is held back for a while, and the one after it for longer.
    fn hold_back(&mut self, now: u64, unit: u64) {
        self.not_before = now + self.held_back * unit;
        self.held_back = (2 * self.held_back).min(HELD_BACK_MAX);
    }

    /// True if what came since the iteration began fits the plan.
    fn fits(&self, now: &Following) -> bool {
        fits(now.hit_bytes - self.began.hit_bytes, now.miss_bytes - self.began.miss_bytes)
    }

    /// True if memory goes back again and again in each iteration, not once in a while.
    fn is_pressed(&self) -> bool {
        self.presses.in_a_row() >= PRESSED
    }

    /// An iteration has ended under a plan, and calls for memory were made up to `calls`. True if
    /// there is too much of that.
    fn is_strained(&mut self, calls: u64) -> bool {
        // The first iteration maps what it needs.
        if self.followed > 1 {
            self.strains.note(calls - self.calls > STRAINED);
        }
        self.strains.count() >= STRAINS_MAX
    }
}

/// True if an iteration fits a plan in which it found and missed so many bytes.
pub(super) fn fits(found: u64, missed: u64) -> bool {
    missed.saturating_mul(MISFIT) <= found + missed
}

impl Auto {
    /// An iteration begins, and another one has ended.
    pub(super) fn begin_iteration(&mut self, env: &mut Env<'_>) {
        let [now, before] = self.turn.asked;
        (self.turn.was_same, self.turn.asked) = (now == before, [0, now]);
        if self.planning == Planning::NextIteration {
            self.plan_now();
        }
        if self.planned.is_following() {
            self.end_followed(env);
        } else {
            self.end_recorded();
        }
        if self.planning == Planning::AtOnce {
            self.plan_now();
        }
        self.take_turn(env);
        let is_recorded = !self.planned.is_following() || self.turn.watched > 0;
        if is_recorded {
            let planned = &self.planned;
            self.recorder.resume(|| planned.live());
        }
        let turn = &mut self.turn;
        turn.last = turn.requests - turn.began_at;
        turn.began_at = turn.requests;
        turn.began = self.planned.following();
        turn.calls = calls_for_memory(&self.planned);
        turn.shortages = shortages(&self.planned);
        turn.followed = if self.planned.is_following() { turn.followed + 1 } else { 0 };
        turn.steps += 1;
    }

    /// Switches to the next plan, unless a scout has still to go along it or did not find its way.
    fn take_turn(&mut self, env: &mut Env<'_>) {
        match &mut self.turn.scout {
            None => self.switch(env),
            Some(scout) if !scout.has_set_out() => scout.set_out(),
            Some(scout) if scout.fits() => {
                if scout.go_on() >= FITS {
                    self.switch(env);
                }
            }
            Some(_) => self.lay_aside(),
        }
    }

    /// The plan has shown that it fits.
    fn prove(&mut self, plan: &Arc<Plan>) {
        (self.proven, self.turn.is_proven) = (Some(Arc::clone(plan)), true);
    }

    /// The next plan will not be followed. Another may come of what has been recorded since.
    pub(super) fn lay_aside(&mut self) {
        (self.next, self.turn.scout) = (None, None);
    }

    /// An iteration has ended that no plan was followed in: two that are alike make a plan.
    fn end_recorded(&mut self) {
        let kind = if self.turn.steps == 0 { Kind::Opening } else { Kind::Iteration };
        let is_kept = self.recorder.keep(kind);
        let shortages = shortages(&self.planned);
        let turn = &mut self.turn;
        turn.presses.note(turn.steps > 0 && shortages - turn.shortages > STRAINED);
        let count = turn.requests - turn.began_at;
        let is_alike = count.abs_diff(turn.last) * 5 <= count.max(turn.last);
        let is_due = turn.steps >= turn.not_before && !self.is_out && self.next.is_none();
        if is_alike && is_due && is_kept {
            self.is_wanted = true;
            turn.hold_back(turn.steps, 1);
        }
    }

    /// An iteration has ended in which a plan was followed: it joins the recording if it did not
    /// fit.
    fn end_followed(&mut self, env: &mut Env<'_>) {
        let turn = &mut self.turn;
        let is_strained = turn.is_strained(calls_for_memory(&self.planned));
        let fits = turn.fits(&self.planned.following());
        if self.recorder.is_on() {
            // What comes before the first iteration belongs to every recording.
            if turn.steps == 0 {
                self.recorder.keep(Kind::Opening);
            } else if fits {
                self.recorder.drop_iteration();
                turn.watched -= turn.watched.min(1);
            } else {
                turn.has_misfits |= self.recorder.keep(Kind::Misfit);
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
        if fits && turn.followed == PROVEN && !turn.is_proven && turn.strains.count() == 0 {
            let plan = Arc::clone(self.planned.plan());
            self.prove(&plan);
        }
        let turn = &mut self.turn;
        if turn.followed > 0 {
            turn.misfits.note(!fits);
        }
        if is_strained || turn.misfits.in_a_row() >= MISFITS_MAX {
            (turn.strains, turn.misfits) = (Strikes::default(), Strikes::default());
            // What is refused leaves the plan as it is, and its strains are counted anew.
            let _ = self.planned.give_up(env);
        }
    }

    /// What a request of the default pool tells where the program marks nothing.
    #[inline]
    pub(super) fn before_request(&mut self, env: &mut Env<'_>, request: &Request) {
        self.turn.note(request);
        if self.turn.boundary.is_none() {
            self.find_way(env, request);
        } else if let Some(scout) = &mut self.turn.scout {
            scout.see(request);
        }
    }

    #[inline(never)]
    fn find_way(&mut self, env: &mut Env<'_>, request: &Request) {
        if self.recorder.has_overflowed() {
            self.record_anew();
        }
        let turn = &mut self.turn;
        if let Some(scout) = &mut turn.scout {
            if let (true, Some(plan)) = (scout.is_lost(), &self.next) {
                scout.locate(plan, &self.recorder.latest(RECENT));
            }
            if scout.arrives(request) {
                if scout.fits() { self.switch(env) } else { self.lay_aside() }
            }
        } else if self.planned.misses() >= turn.look_at {
            self.look();
        } else if turn.requests >= turn.not_before && self.recorder.is_on() && !self.is_out {
            self.try_recording();
        }
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
        } else {
            turn.has_misfits = false;
            self.recorder.keep(Kind::Opening);
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

    /// Follows the next plan, if there is one that has room. While a graph is captured it waits, and if
    /// the device refuses what comes with it, it waits as well.
    fn switch(&mut self, env: &mut Env<'_>) {
        if self.planned.is_capturing() {
            return;
        }
        let Some(plan) = self.next.clone() else { return };
        if self.turn.scout.is_none() {
            self.prove(&plan);
        }
        if !self.planned.is_following() && !self.has_room(&plan) {
            self.lay_aside();
            return;
        }
        let most = self.most_under(&plan);
        if !self.with(env, |planned, env| planned.follow_within(env, plan, most)).unwrap_or(false) {
            return;
        }
        let turn = &mut self.turn;
        self.switch_count += 1;
        if self.switches.len() < SWITCHES_MAX {
            self.switches.push(Switch { step: turn.steps, requests: turn.requests });
        }
        (self.next, turn.scout, self.is_wanted) = (None, None, false);
        turn.began = self.planned.following();
        (turn.followed, turn.strains, turn.misfits) = (0, Strikes::default(), Strikes::default());
        turn.is_proven = false;
        turn.look_at = turn.began.misses + MISSES;
        if self.switch_count == 1 {
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
    }
}

impl Auto {
    /// True if the arena of a plan fits into what was held before, beside what stays where it is:
    /// what the program has made so far pins the pages that it lies on. What the first iteration
    /// under the plan takes over from the one before it does not come twice: its places in the arena
    /// are empty until it is gone. Where pages have to move in every iteration a plan is worth a try,
    /// and all that it does not know to stay is taken to go.
    fn has_room(&self, plan: &Plan) -> bool {
        let stats = self.planned.stats();
        let going = stats.active_bytes.all.current.saturating_sub(plan.persistent_bytes);
        let going = if self.turn.is_pressed() { going } else { going.min(plan.carried_bytes()) };
        let reserved = &stats.reserved_bytes.all;
        let pinned = reserved.current.saturating_sub(self.planned.releasable());
        let held = pinned.saturating_sub(going).saturating_add(plan.arena_bytes);
        held <= self.most_under(plan)
    }

    /// The most bytes that may be held while a plan is taken up: no more beyond what was held than the
    /// plan saves afterwards. Where memory was short for so little to be held, a little more is no loss:
    /// expandable segments would hold more than that.
    fn most_under(&self, plan: &Plan) -> u64 {
        let peak = self.planned.stats().reserved_bytes.all.peak;
        let needed = plan.arena_bytes.saturating_add(plan.persistent_bytes);
        if !self.turn.is_pressed() {
            return peak.saturating_add(peak.saturating_sub(needed));
        }
        peak.max(needed.saturating_add(needed / SLACK)).saturating_add(credit(plan.arena_bytes))
    }

    /// True if a plan is worth a change: it holds less than is held without one, or as much without
    /// making views. One of iterations that differ in sizes must promise more: the next may be larger.
    pub(super) fn would_save(&self, plan: &Plan) -> bool {
        let bytes = plan.arena_bytes.saturating_add(plan.persistent_bytes);
        let held = self.planned.stats().reserved_bytes.all.peak;
        let saves = if varies(plan) {
            held / WORTH_VARYING
        } else if self.turn.is_pressed() {
            0
        } else {
            held / WORTH
        };
        self.planned.is_following() || bytes <= held - saves
    }
}

/// True if the iterations that a plan was made of differ in sizes, by more than would fit.
fn varies(plan: &Plan) -> bool {
    let entries = plan.steady().into_iter().flat_map(|sequence| &sequence.entries);
    let (least, most) = entries.fold((0u64, 0u64), |(least, most), entry| {
        (least.saturating_add(entry.size_min), most.saturating_add(entry.size_max))
    });
    !fits(least, most.saturating_sub(least))
}

/// How often memory was short: times that it went back to the device, and views that had to be made.
fn shortages(planned: &Planned) -> u64 {
    let stats = planned.stats();
    stats.num_device_free + stats.num_stitches
}

/// Calls that took memory from the device or gave it back.
fn calls_for_memory(planned: &Planned) -> u64 {
    let stats = planned.stats();
    stats.num_device_alloc + stats.num_device_free
}
