//! A step as it is seen: what is saved and used in which order, how much is in use meanwhile, and how long it takes.
//!
//! Each save of a large tensor and each use of one is an *operator*, which lasts until the next. So a step of a
//! training run has some hundreds of them, enough to say when copies begin and end. What is seen of a whole step
//! becomes a [`girih_swap::Step`], which is planned on a thread of its own (`beside`); the schedule holds for every
//! step that does the same (`schedule`).
//!
//! The time is taken on the GPU, at some points of a step ([`Tuning::stamps`]), and read a step later, when the work is done:
//! nobody waits for it. What was waited for copies in between is taken off: to a plan that took it for work, every step
//! would have to wait there. What a plan is worth is seen when steps have followed it, since not all is known that makes
//! them wait (a lane may hold up another, a host fall behind). So a sequence is planned again with what the last plan has
//! shown, until [`Tuning::in_vain_max`] plans in a row make its step no shorter, or views hold it up
//! ([`Tuning::plans_held_up`]). What had the shortest step stays, be it no plan at all. Times are read later too, of groups
//! of operators: if these turn out to take less, or steps at rest more than they must, it is planned again (`times`).

mod planned;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use girih_runtime::TimeStamp;
use girih_runtime::lake::Asked;
use girih_swap::Links;
use girih_swap::sequences::{Cursor, SEQUENCES_MAX, Sequences};
use rustc_hash::FxHashMap;

use super::beside::Beside;
use super::links::Known;
use super::observed::Observation;
use super::policy::{Policy, Whose};
use super::report::SequenceReport;
use super::table::RecordId;
use super::times::Times;
use super::tried::NO_POLICY;
use super::tuning::Tuning;

/// Operators of a step at most: a longer one is not planned.
pub(super) const OPERATORS_MAX: usize = 1 << 17;

/// An operator of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Moment {
    /// The number of the step, from the first.
    step: u64,
    /// The number of the operator, from the beginning of the step.
    pub(super) operator: u32,
}

/// The steps of a run.
pub(crate) struct Steps {
    tuning: Tuning,
    room: u64,
    host: u64,
    links: Known,
    /// The number of the step that runs, and what is seen of it.
    number: u64,
    now: Observation,
    /// The step before, whose times are not read yet.
    before: Option<Observation>,
    /// The time is taken at every operator with a number that this divides, and so often in a step that is as long as the
    /// last: [`Steps::points`]. Of a step with too many operators every other one is let go of.
    stride: usize,
    /// Points in time that are not needed any more.
    spare: Vec<TimeStamp>,
    /// By the hash of the keys, of sequences that do not fit.
    times: FxHashMap<u64, Times>,
    sequences: Sequences,
    /// By the number of the sequence.
    policies: Vec<Option<Arc<Policy>>>,
    /// How many were planned.
    planned: u32,
    cursor: Option<Cursor>,
    /// The operator of the sequence that runs now, if the step is not lost.
    place: Option<(usize, u32)>,
    /// It was found there just now: what was due before it may not have been done.
    is_found: bool,
    /// Not all that the step has done is what the sequence does from its beginning on.
    is_other: bool,
    /// It does that with fewer bytes, all of which will have room.
    is_smaller: bool,
    /// The records of this step by the operator of the sequence that saved them.
    live: FxHashMap<u32, RecordId>,
    /// Those that shall leave and could not yet.
    pub(super) late: Vec<RecordId>,
    /// Those that shall come and could not yet.
    pub(super) wanted: Vec<RecordId>,
    /// Saved ones that somebody else still had when it was looked last.
    pub(super) shared: Vec<RecordId>,
    pinned: BTreeSet<RecordId>,
    /// What is planned now.
    beside: Beside,
    changes: u64,
    seconds: f64,
    last_us: [f64; 3],
    /// Of the step that was read last: [`Times::is_settled`], [`Times::is_anew`].
    is_settled: bool,
    is_anew: bool,
    /// The sequence of the step that has ended, and the number of the policy that it followed, if it was one throughout.
    ended: Option<(usize, u32)>,
}

impl Steps {
    pub(super) fn new(room: u64, host: u64) -> Steps {
        Steps {
            tuning: Tuning::default(),
            room,
            host,
            links: Known::default(),
            number: 0,
            now: Observation::default(),
            before: None,
            stride: 1,
            spare: Vec::new(),
            times: FxHashMap::default(),
            sequences: Sequences::default(),
            policies: Vec::new(),
            planned: 0,
            cursor: None,
            place: None,
            is_found: false,
            is_other: false,
            is_smaller: false,
            live: FxHashMap::default(),
            late: Vec::new(),
            wanted: Vec::new(),
            shared: Vec::new(),
            pinned: BTreeSet::new(),
            beside: Beside::default(),
            changes: 0,
            seconds: 0.0,
            last_us: [0.0; 3],
            is_settled: false,
            is_anew: false,
            ended: None,
        }
    }

    /// So many bytes may be in use from now on. What was planned was for another room.
    pub(super) fn set_room(&mut self, room: u64) {
        self.room = room;
        self.times.clear();
        self.sequences = Sequences::default();
        self.policies.clear();
        (self.cursor, self.place) = (None, None);
        self.beside = Beside::default();
        self.is_settled = false;
        self.live.clear();
        [&mut self.late, &mut self.wanted].into_iter().for_each(Vec::clear);
    }

    /// What the links were measured to carry. The next plan is made with it, unless nothing is planned any more.
    pub(super) fn set_links(&mut self, links: Links) {
        let planned = if self.is_settled { self.links.planned } else { links };
        self.links = Known { planned, now: links };
    }

    /// So many bytes are in use or away.
    pub(super) fn saw_load(&mut self, load: u64) {
        self.now.saw_load(load);
    }

    /// An operator begins. True if the time should be taken.
    pub(super) fn begin(&mut self, key: u64, load: u64) -> bool {
        let at = self.now.keys.len();
        let is_seen = self.now.begin(key, load);
        self.advance(key);
        is_seen && at.is_multiple_of(self.stride)
    }

    fn advance(&mut self, key: u64) {
        let Some(cursor) = &mut self.cursor else { return };
        let changes = cursor.changes();
        self.place = cursor.advance(&self.sequences, key).map(|(of, over)| (of, *over.end()));
        let has_changed = cursor.changes() != changes;
        self.is_found = has_changed;
        if self.now.followed == NO_POLICY {
            self.now.followed = self.number_of_policy();
        }
        if has_changed {
            self.changes += 1;
            self.find_again();
        }
        self.is_other |= has_changed || self.place.is_none();
        self.is_smaller = self.has_room();
        self.now.is_mixed |= self.is_smaller;
    }

    /// Which operator of the sequence saved each record, after the place in it has changed.
    fn find_again(&mut self) {
        self.live.clear();
        let Some((number, at)) = self.place else { return };
        let now = self.now.keys.len() as u32 - 1;
        let keys = self.sequences.keys(number);
        for seen in &self.now.seen {
            let there = at.checked_sub(now - seen.born);
            let is_same = |there: &u32| keys[*there as usize] == self.now.keys[seen.born as usize];
            if let Some(there) = there.filter(is_same) {
                self.live.insert(there, seen.id);
            }
        }
    }

    /// The number of the operator that runs now, from the beginning of the step.
    pub(super) fn operator(&self) -> u32 {
        self.now.keys.len().saturating_sub(1) as u32
    }

    /// The operator that runs now.
    pub(super) fn moment(&self) -> Moment {
        Moment { step: self.number, operator: self.operator() }
    }

    /// So many microseconds were waited for a copy.
    pub(super) fn waited(&mut self, at: Moment, us: f64) {
        let seen = match self.number.checked_sub(at.step) {
            Some(0) => Some(&mut self.now),
            Some(1) => self.before.as_mut(),
            _ => None,
        };
        if let Some(seen) = seen.filter(|seen| seen.waits.len() < OPERATORS_MAX) {
            seen.waits.push((at.operator, us));
        }
    }

    /// So many microseconds the driver took in the step that ends to give, take and map memory; and whether the lake has found
    /// that steps like it do not come to rest.
    pub(super) fn note_driver(&mut self, us: f64, is_restless: bool) {
        (self.now.driver_us, self.now.is_restless) = (us, is_restless);
    }

    /// The number of the operator that begins next.
    pub(super) fn next_operator(&self) -> u32 {
        self.now.keys.len() as u32
    }

    /// The operator that begins now saves a record of so many bytes.
    pub(super) fn saves(&mut self, id: RecordId, size: u64) {
        if self.now.saves(id, size) {
            self.shared.push(id);
            if let Some((_, at)) = self.place {
                self.live.insert(at, id);
            }
        }
    }

    /// Nobody but autograd has a record any more.
    pub(super) fn is_idle_now(&mut self, id: RecordId) {
        self.now.is_idle_now(id);
    }

    /// The operator that begins now uses a record.
    pub(super) fn uses(&mut self, id: RecordId) {
        self.now.uses(id);
    }

    /// A state of an optimizer is offered, of so many bytes.
    pub(super) fn offers(&mut self, id: RecordId, size: u64) {
        self.now.offers(id, size);
    }

    /// An optimizer begins to step.
    pub(super) fn begin_stepping(&mut self) {
        self.now.begin_stepping();
    }

    /// Points of the step at which the time is taken. A plan is as good as the times that it is made of; once none is made
    /// any more, times say no more than that the step is what it was.
    fn points(&self) -> usize {
        if self.is_settled { self.tuning.stamps_settled } else { self.tuning.stamps }
    }

    /// The time was taken where the last operator begins.
    pub(super) fn note_time(&mut self, stamp: TimeStamp) {
        let at = self.now.keys.len().saturating_sub(1) as u32;
        self.now.stamps.push((at, stamp));
        if self.now.stamps.len() < 2 * self.points() {
            return;
        }
        self.stride *= 2;
        let stride = self.stride as u32;
        let (kept, spare): (Vec<_>, Vec<_>) =
            self.now.stamps.drain(..).partition(|(at, _)| at.is_multiple_of(stride));
        self.now.stamps = kept;
        self.spare.extend(spare.iter().map(|(_, stamp)| *stamp));
    }

    /// True if the step before this one needed no swapping.
    pub(super) fn fits(&self) -> bool {
        let before = self.before.as_ref().and_then(|before| before.loads().into_iter().max());
        before.is_some_and(|peak| peak <= self.room)
    }

    /// A record is gone.
    pub(super) fn dropped(&mut self, id: RecordId) {
        self.pinned.remove(&id);
        self.now.dropped(id);
        for list in [&mut self.late, &mut self.wanted, &mut self.shared] {
            list.retain(|other| *other != id);
        }
    }

    /// A record shall stay.
    pub(super) fn pin(&mut self, id: RecordId) {
        self.pinned.insert(id);
    }

    pub(super) fn is_pinned(&self, id: RecordId) -> bool {
        self.pinned.contains(&id)
    }

    /// True if there is a policy for what the step does now.
    pub(super) fn is_following(&self) -> bool {
        self.policy().is_some()
    }

    /// True if there is a policy for all that the step has done so far. One for what it does now alone says who is used
    /// when, but not how many bytes must go.
    pub(super) fn is_as_planned(&self) -> bool {
        self.is_following() && !self.is_other && !self.is_smaller
    }

    /// False if the step does what was planned for a larger one, and will have room without that.
    pub(super) fn needs_all(&self) -> bool {
        !self.is_smaller
    }

    /// True if the step does what was planned for a larger one, and all of it will have room.
    fn has_room(&self) -> bool {
        let Some((policy, at)) = self.policy() else { return false };
        // What is alive in the operator that begins is not known yet.
        let [first, .., last, _] = *self.now.load else { return false };
        let Tuning { told_by, surely, .. } = self.tuning;
        let expected = at.checked_sub(1).and_then(|at| policy.expected(told_by, at, first, last));
        expected.is_some_and(|most| most <= self.room - self.room / surely)
    }

    /// What was planned, and the operator that begins now.
    pub(super) fn policy(&self) -> Option<(&Policy, u32)> {
        let (number, at) = self.place?;
        Some((self.policies.get(number)?.as_deref()?, at))
    }

    /// The records of those in a list of the policy whose time is now; if what was missed is wanted, where the step was
    /// found again also of those whose time was before, as long as they are not used before this operator.
    pub(super) fn due(
        &self,
        catches_up: bool,
        of: impl Fn(&Policy) -> &[(u32, Whose)],
    ) -> Vec<RecordId> {
        let Some((policy, at)) = self.policy() else { return Vec::new() };
        let list = of(policy);
        let first = match self.is_found && catches_up {
            true => 0,
            false => list.partition_point(|(op, _)| *op < at),
        };
        let until = list.partition_point(|(op, _)| *op <= at);
        let is_wanted = |who: &Whose| policy.before.get(who).is_some_and(|before| *before >= at);
        let due = list[first..until].iter().filter(|(op, who)| *op == at || is_wanted(who));
        due.filter_map(|(_, who)| self.record_of(policy, *who)).collect()
    }

    fn number_of_policy(&self) -> u32 {
        self.policy().map_or(NO_POLICY, |(policy, _)| policy.number)
    }

    /// True if a policy is followed, or will be from the first operator on if the step is like the last.
    pub(super) fn has_policy(&self) -> bool {
        let next = self.cursor.as_ref().and_then(Cursor::place);
        let next = next.filter(|_| self.now.keys.is_empty());
        let next = next.and_then(|(number, _)| self.policies.get(number)?.as_deref());
        next.is_some() || self.is_following()
    }

    /// The record of this step that a policy means.
    pub(super) fn record_of(&self, policy: &Policy, who: Whose) -> Option<RecordId> {
        match who {
            Whose::Saved(born) => self.live.get(&born).copied(),
            Whose::State(place) => {
                let state = self.now.states.get(place as usize)?;
                (policy.states.get(&place) == Some(&state.size)).then_some(state.id)
            }
        }
    }

    /// Those that are used last come first, as far as that is known; the others stay as they are, behind.
    pub(super) fn order_victims(&self, candidates: &mut [RecordId]) {
        let Some((policy, _)) = self.policy() else { return };
        let before: FxHashMap<RecordId, u32> = policy
            .before
            .iter()
            .filter_map(|(who, before)| Some((self.record_of(policy, *who)?, *before)))
            .collect();
        candidates.sort_by_key(|id| Reverse(before.get(id).copied().unwrap_or(0)));
    }

    /// A step is over. Points in time that are not needed any more are added to `forgotten`; `between` says the
    /// microseconds between two of them.
    pub(super) fn end(
        &mut self,
        mut between: impl FnMut(TimeStamp, TimeStamp) -> Option<f64>,
        forgotten: &mut Vec<TimeStamp>,
    ) {
        self.ended = None;
        if let Some((number, _)) = self.place {
            self.sequences.note_use(number);
            self.now.is_mixed |= self.is_other || self.now.followed != self.number_of_policy();
            self.ended = Some((number, self.now.followed)).filter(|_| !self.now.is_mixed);
        }
        if let Some(before) = self.before.take() {
            let loads = before.loads();
            let peak = peak_of(&loads);
            (self.is_settled, self.is_anew) = (peak <= self.room, false);
            let (begin, end) = (before.stamps.first(), self.now.stamps.first());
            let whole = begin.zip(end).and_then(|((_, begin), (_, end))| between(*begin, *end));
            if peak <= self.room {
                self.saw_fitting(&before);
            } else if let Some(taken) = before.taken(whole, &mut between) {
                self.saw_times(&before, &loads, taken, whole);
            }
            forgotten.extend(before.stamps.iter().map(|(_, stamp)| *stamp));
        }
        let mut next = self.now.next();
        next.is_coarse = self.is_settled;
        let now = std::mem::replace(&mut self.now, next);
        self.number += 1;
        self.stride = (now.keys.len() / self.points()).max(1);
        forgotten.append(&mut self.spare);
        if !now.keys.is_empty() && now.keys.len() < OPERATORS_MAX {
            self.before = Some(now);
        } else {
            forgotten.extend(now.stamps.iter().map(|(_, stamp)| *stamp));
        }
        if let Some(answer) = self.beside.answer() {
            self.take_up(answer);
        }
        self.live.clear();
        [&mut self.late, &mut self.wanted].into_iter().for_each(Vec::clear);
        self.place = None;
        (self.is_other, self.is_smaller) = (false, false);
        self.cursor = (self.sequences.count() > 0).then(|| self.sequences.begin());
    }

    /// Other numbers than the usual ones.
    #[cfg(test)]
    pub(super) fn tune(&mut self, tuning: Tuning) {
        self.tuning = tuning;
    }

    /// Waits for the thread that plans.
    #[cfg(test)]
    pub(super) fn finish_planning(&mut self) {
        if let Some(answer) = self.beside.wait() {
            self.take_up(answer);
        }
    }

    pub(super) fn policies(&self) -> usize {
        self.policies.iter().flatten().count()
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// True if the last step whose times were read needed no swapping, or follows the plan that has stayed for it.
    pub(super) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// What the step that begins will ask for. Somebody is trying what is best while steps are watched, and the copies of
    /// those to come may be others: the best of what can be planned has not been found yet.
    pub(super) fn asked(&self) -> Asked {
        let is_trying = self.before.is_some() && (!self.is_settled || self.is_anew);
        let is_other = self.ended.is_some_and(|(sequence, followed)| {
            let policy = self.policies.get(sequence).and_then(Option::as_ref);
            policy.map_or(NO_POLICY, |policy| policy.number) != followed
        });
        Asked { is_trying, is_other }
    }

    /// True if the copies of the step that begins are to be timed: all are while it is tried what is best copied, and some
    /// of those after it, by which it is said what steps take.
    pub(super) fn times_copies(&self) -> bool {
        !self.is_settled || self.number.is_multiple_of(self.tuning.links_again)
    }

    /// Microseconds of the step whose policy was taken up last: see [`Policy::us`].
    pub(super) fn planned_us(&self) -> [f64; 3] {
        self.last_us
    }

    pub(super) fn planning_seconds(&self) -> f64 {
        self.seconds
    }

    /// What is known of steps that do the same, of each kind: most steps first.
    pub(super) fn sequences(&self) -> Vec<SequenceReport> {
        let of = |times: &Times| times.report(&self.tuning, &self.links);
        let mut found: Vec<_> = self.times.values().map(of).collect();
        found.sort_by_key(|it| Reverse((it.steps, it.operators)));
        found
    }
}

fn peak_of(loads: &[u64]) -> u64 {
    loads.iter().copied().max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
