//! What is seen of one step, and the step that is planned of it.
//!
//! States of optimizers have no operators: a program that skips an optimizer's step would be lost otherwise. They lie
//! idle between two of them:
//!
//! ```text
//!  of the sequence          0   1   2  ..  n-1
//!  that is planned      0   1   2   3  ..   n   n+1
//!                     begin ├─ as it was seen ─┤ optimizer
//!  a state            [ use ] . . . idle . . . [ use ]
//! ```

use girih_runtime::TimeStamp;
use girih_swap::{Gap, Op, Step, Tensor};
use rustc_hash::FxHashMap;

use super::policy::Whose;
use super::step::OPERATORS_MAX;
use super::table::RecordId;
use super::times::{Taken, times_of};

/// A tensor that autograd saved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) id: RecordId,
    size: u64,
    pub(super) born: u32,
    /// The last operator of its first stretch of uses: nobody else had it afterwards.
    after: Option<u32>,
    /// The operator that used it again.
    before: Option<u32>,
}

/// A state of an optimizer.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenState {
    pub(super) id: RecordId,
    pub(super) size: u64,
    /// How many operators had begun when it was offered.
    from: u32,
    /// And when it was asked for.
    until: Option<u32>,
}

/// What is seen of one step.
#[derive(Debug, Default)]
pub(super) struct Observation {
    pub(super) keys: Vec<u64>,
    /// The most bytes that were in use or away during each operator.
    pub(super) load: Vec<u64>,
    /// And while an optimizer stepped, since the last of them.
    pub(super) stepping: Option<u64>,
    pub(super) seen: Vec<Seen>,
    pub(super) by_record: FxHashMap<RecordId, u32>,
    /// In the order in which they were offered.
    pub(super) states: Vec<SeenState>,
    states_by_record: FxHashMap<RecordId, u32>,
    /// Points in time, with the operator that begins there.
    pub(super) stamps: Vec<(u32, TimeStamp)>,
    /// Waits for copies, with the operator that waited. Microseconds.
    pub(super) waits: Vec<(u32, f64)>,
    /// What the driver took to give, take and map memory. Microseconds.
    pub(super) driver_us: f64,
    /// The lake found no places in which steps like the last come to rest.
    pub(super) is_restless: bool,
    /// The number of the policy that it follows.
    pub(super) followed: u32,
    /// It ended with another.
    pub(super) is_mixed: bool,
    /// The time is taken at few points of it.
    pub(super) is_coarse: bool,
}

impl Observation {
    /// An operator begins, with so many bytes in use or away. False if there are too many.
    pub(super) fn begin(&mut self, key: u64, load: u64) -> bool {
        if self.keys.len() >= OPERATORS_MAX {
            return false;
        }
        if let Some(stepping) = self.stepping.take() {
            // An optimizer stepped in the middle of the step: during the operator before this one.
            let count = self.keys.len() as u32;
            self.saw_load(stepping);
            let used = self.states.iter_mut().filter(|state| state.until == Some(count));
            used.for_each(|state| state.until = Some(count.saturating_sub(1).max(state.from)));
        }
        self.keys.push(key);
        self.load.push(load);
        true
    }

    /// An optimizer begins to step.
    pub(super) fn begin_stepping(&mut self) {
        self.stepping.get_or_insert(0);
    }

    /// So many bytes are in use or away.
    pub(super) fn saw_load(&mut self, load: u64) {
        let most = self.stepping.as_mut().or(self.load.last_mut());
        if let Some(most) = most {
            *most = load.max(*most);
        }
    }

    /// The operator that began last saves a record of so many bytes.
    pub(super) fn saves(&mut self, id: RecordId, size: u64) -> bool {
        let Some(born) = self.keys.len().checked_sub(1) else { return false };
        if self.by_record.contains_key(&id) || born + 1 >= OPERATORS_MAX {
            return false;
        }
        self.by_record.insert(id, self.seen.len() as u32);
        self.seen.push(Seen { id, size, born: born as u32, after: None, before: None });
        true
    }

    /// Nobody but autograd has a record any more.
    pub(super) fn is_idle_now(&mut self, id: RecordId) {
        let now = self.keys.len() as u32;
        if let Some(&place) = self.by_record.get(&id) {
            let seen = &mut self.seen[place as usize];
            seen.after.get_or_insert(now.saturating_sub(2).max(seen.born));
        }
    }

    /// The operator that began last uses a record.
    pub(super) fn uses(&mut self, id: RecordId) {
        let now = self.keys.len() as u32;
        if let Some(&place) = self.by_record.get(&id) {
            self.seen[place as usize].before.get_or_insert(now.saturating_sub(1));
        }
    }

    /// A state of so many bytes is offered.
    pub(super) fn offers(&mut self, id: RecordId, size: u64) {
        if self.states.len() < OPERATORS_MAX {
            self.states_by_record.insert(id, self.states.len() as u32);
            let from = self.keys.len() as u32;
            self.states.push(SeenState { id, size, from, until: None });
        }
    }

    /// A record is gone; of a state that means: it is used.
    pub(super) fn dropped(&mut self, id: RecordId) {
        if let Some(place) = self.states_by_record.remove(&id) {
            self.states[place as usize].until = Some(self.keys.len() as u32);
        }
    }

    /// The next step begins, with the states that nobody has asked for.
    pub(super) fn next(&self) -> Observation {
        let mut next = Observation::default();
        let left = self.states.iter().filter(|state| state.until.is_none());
        left.for_each(|state| next.offers(state.id, state.size));
        next
    }

    /// Microseconds of each operator, and of what comes behind the last, without what was waited for, and with it.
    /// `whole`: from the first point in time of this step to the first of the next; none if that is not known.
    pub(super) fn taken(
        &self,
        whole: Option<f64>,
        between: &mut dyn FnMut(TimeStamp, TimeStamp) -> Option<f64>,
    ) -> Option<Taken> {
        let waits: f64 = self.waits.iter().map(|(_, us)| us).sum();
        let mut of = |waits: &[(u32, f64)], waited: f64| {
            let mut us = times_of(self.keys.len(), &self.stamps, waits, between)?;
            let rest = whole.map_or(0.0, |whole| whole - waited - us.iter().sum::<f64>());
            us.push(rest.max(0.0));
            Some(us)
        };
        Some(Taken {
            at: self.stamps.iter().map(|(at, _)| *at).collect(),
            us: of(&self.waits, waits)?,
            waited: of(&[], 0.0)?,
            is_coarse: self.is_coarse,
        })
    }

    /// The most bytes of each operator, and behind the last.
    pub(super) fn loads(&self) -> Vec<u64> {
        self.load.iter().copied().chain([self.stepping.unwrap_or(0)]).collect()
    }

    /// The step that is planned, whose operators take `us` and what comes behind them, with as much alive as `load`;
    /// and whose each of its tensors is.
    pub(super) fn step(&self, load: &[u64], us: &[f64]) -> (Step, Vec<Whose>) {
        let count = self.keys.len() as u32;
        let outer = |us: f64, key: u64| Op { key, us, ..Op::default() };
        let inner = self.keys.iter().zip(us).map(|(&key, &us)| outer(us, key));
        let behind = us.get(count as usize).copied().unwrap_or(0.0);
        let ops = [outer(0.0, 0)].into_iter().chain(inner).chain([outer(behind, 1)]);
        let load = [0].into_iter().chain((0..=count as usize).map(|at| load[at]));
        let mut step = Step { ops: ops.collect(), load: load.collect(), ..Step::default() };
        let states = (0..).zip(&self.states).map(|(place, state)| {
            let until = state.until.unwrap_or(count) + 1;
            let tensor = Tensor { request: 0, bytes: state.size, born: state.from, last: until };
            (Whose::State(place), tensor, state.from, until)
        });
        let saved = self.seen.iter().filter_map(|seen| {
            let (after, before) = (seen.after? + 1, seen.before? + 1);
            let (bytes, born) = (seen.size, seen.born + 1);
            let tensor = Tensor { request: 0, bytes, born, last: before };
            Some((Whose::Saved(seen.born), tensor, after, before))
        });
        let mut idle: Vec<_> = states.chain(saved).filter(|(.., a, b)| a + 2 <= *b).collect();
        idle.sort_by_key(|(_, tensor, ..)| tensor.born);
        let mut whose = Vec::with_capacity(idle.len());
        for (index, (who, tensor, after, before)) in (0u32..).zip(idle) {
            whose.push(who);
            step.tensors.push(Tensor { request: index, ..tensor });
            step.gaps.push(Gap { tensor: index, after, before });
        }
        step.gaps.sort_unstable_by_key(|gap| (gap.after, gap.tensor));
        (step, whose)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: u64) -> RecordId {
        RecordId(id)
    }

    /// Two states, of which one is used in the middle and offered again; two saved tensors.
    fn seen() -> Observation {
        let mut seen = Observation::default();
        seen.offers(record(1), 100);
        seen.offers(record(2), 200);
        for id in [10, 11] {
            assert!(seen.begin(id, 50 + id));
            assert!(seen.saves(record(id), id));
        }
        seen.dropped(record(1));
        seen.begin_stepping();
        seen.saw_load(500);
        seen.offers(record(3), 100);
        for id in [11, 10] {
            assert!(seen.begin(100 + id, 40));
            seen.uses(record(id));
        }
        seen.is_idle_now(record(10));
        seen.dropped(record(2));
        seen.begin_stepping();
        seen.saw_load(600);
        seen
    }

    #[test]
    fn states_lie_idle_from_where_they_are_offered_to_where_they_are_asked_for() {
        let seen = seen();
        assert_eq!(seen.loads(), [60, 500, 40, 40, 600], "an optimizer's own requests are told");
        let (step, whose) = seen.step(&seen.loads(), &[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(step.us(), 15.0);
        assert_eq!(step.load, [0, 60, 500, 40, 40, 600]);
        let gaps: Vec<_> = step
            .gaps
            .iter()
            .map(|gap| (whose[gap.tensor as usize], gap.after, gap.before))
            .collect();
        let (first, second) = (Whose::State(0), Whose::State(1));
        assert_eq!(gaps[..2], [(first, 0, 2), (second, 0, 5)], "the first: used in operator 2");
        assert_eq!(gaps[2], (Whose::State(2), 2, 5), "offered after it, and never asked for");
        assert!(step.tensors.is_sorted_by_key(|tensor| tensor.born));
    }

    #[test]
    fn who_is_not_asked_for_is_there_in_the_next_step() {
        let next = seen().next();
        let left: Vec<_> = next.states.iter().map(|it| (it.id, it.size, it.from)).collect();
        assert_eq!(left, [(record(3), 100, 0)]);
    }

    #[test]
    fn what_comes_behind_the_last_operator_takes_the_rest_of_the_step() {
        let mut seen = Observation::default();
        for at in 0..4 {
            seen.begin(at, 0);
            seen.stamps.push((at as u32, TimeStamp(at)));
        }
        seen.waits.push((1, 4.0));
        let mut between = |from: TimeStamp, to: TimeStamp| Some(10.0 * (to.0 - from.0) as f64);
        let taken = seen.taken(Some(60.0), &mut between).expect("it is known");
        assert_eq!(taken.waited[..3], [10.0, 10.0, 10.0]);
        assert_eq!(taken.us[..3], [10.0, 6.0, 10.0]);
        for (us, waited) in [(&taken.us, 4.0), (&taken.waited, 0.0)] {
            let sum: f64 = us.iter().sum();
            assert!((sum + waited - 60.0).abs() < 1e-9, "{us:?}");
        }
        let unknown = seen.taken(None, &mut between).expect("it is known");
        assert_eq!(unknown.us[4], 0.0);
    }
}
