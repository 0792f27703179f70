//! What was planned for one sequence of operators.

use girih_swap::bound::bound;
use girih_swap::{Away, Links, Schedule, Step, simulate};
use rustc_hash::FxHashMap;

/// Operators of a step at most that is kept with its schedule. Of a longer one what was promised stays as it was.
const KEPT_MAX: usize = 1 << 14;

/// A tensor of a step that may go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Whose {
    /// What autograd saved, by the operator that saved it.
    Saved(u32),
    /// A state of an optimizer, by its place in the order of offers.
    State(u32),
}

/// By operators of the sequence: who leaves, whose bytes are let go of, who is fetched.
#[derive(Debug, Default)]
pub(super) struct Policy {
    pub(super) leave: Vec<(u32, Whose)>,
    pub(super) release: Vec<(u32, Whose)>,
    pub(super) fetch: Vec<(u32, Whose)>,
    /// For each tensor that goes, when it is used again.
    pub(super) before: FxHashMap<Whose, u32>,
    /// Bytes of the states that go.
    pub(super) states: FxHashMap<u32, u64>,
    /// Microseconds of a step: without swapping, as it was planned, and as no schedule can beat.
    pub(super) us: [f64; 3],
    /// The links with which it was planned.
    pub(super) links: Links,
    /// Which one of the run; [`NO_POLICY`](super::tried::NO_POLICY) as long as it has none.
    pub(super) number: u32,
    /// What it was made of, unless that is long.
    pub(super) basis: Option<Basis>,
}

/// The step that a policy is for, as it was seen, and its schedule.
#[derive(Debug)]
pub(super) struct Basis {
    step: Step,
    schedule: Schedule,
    gpu: u64,
    /// The most bytes that are in use or away.
    most: u64,
}

impl Policy {
    /// Of a schedule for a step of [`Observation::step`](super::observed::Observation::step): its first operator is the
    /// beginning.
    pub(super) fn of(
        (step, whose): (Step, Vec<Whose>),
        schedule: Schedule,
        links: &Links,
        gpu: u64,
    ) -> Policy {
        let mut policy = Policy::default();
        let of_sequence = |op: u32| op.saturating_sub(1);
        for away in &schedule.away {
            let gap = step.gaps[away.gap as usize];
            let who = whose[gap.tensor as usize];
            policy.leave.push((of_sequence(away.leave + 1), who));
            policy.release.push((of_sequence(away.release), who));
            policy.fetch.push((of_sequence(away.fetch), who));
            policy.before.insert(who, of_sequence(gap.before));
            if let Whose::State(place) = who {
                policy.states.insert(place, step.bytes(away.gap));
            }
        }
        (policy.us, policy.links) = (us_of(&step, &schedule, links, gpu), *links);
        let is_short = step.ops.len().max(step.gaps.len()) <= KEPT_MAX;
        let most = step.peak();
        policy.basis = is_short.then_some(Basis { step, schedule, gpu, most });
        for list in [&mut policy.leave, &mut policy.release, &mut policy.fetch] {
            list.sort_unstable();
        }
        policy
    }

    /// Microseconds that a step takes that follows this, which was seen to have such tensors and times: the simulator's
    /// word on a step that was measured, whatever its sizes.
    pub(super) fn simulate(&self, (step, whose): &(Step, Vec<Whose>), links: &Links) -> f64 {
        let mut away: FxHashMap<Whose, Away> = FxHashMap::default();
        // As `Policy::of` counts: the first operator of a step is its beginning.
        for &(leave, who) in &self.leave {
            away.entry(who).or_insert(Away { gap: 0, leave, release: 0, fetch: 0 });
        }
        for &(release, who) in &self.release {
            away.entry(who).and_modify(|away| away.release = release + 1);
        }
        for &(fetch, who) in &self.fetch {
            away.entry(who).and_modify(|away| away.fetch = fetch + 1);
        }
        let of_gap = |(gap, number): (&girih_swap::Gap, u32)| {
            let away = Away { gap: number, ..*away.get(&whose[gap.tensor as usize])? };
            let is_within = away.leave >= gap.after
                && away.leave < away.release
                && away.release <= away.fetch
                && away.fetch <= gap.before;
            is_within.then_some(away)
        };
        let away = step.gaps.iter().zip(0..).filter_map(of_gap).collect();
        simulate(step, links, &Schedule { away, ..Schedule::default() }).step_us
    }

    /// The most bytes that will be in use or away in a step, if it goes on as the one that this is for and as much as
    /// its operators say that are over: `first` in the first, `now` in the last of them, which is that of the sequence.
    /// None before one part in `told_by` of what such a step adds up to is there.
    pub(super) fn expected(&self, told_by: u64, last: u32, first: u64, now: u64) -> Option<u64> {
        let Basis { step, most, .. } = self.basis.as_ref()?;
        let load = &step.load;
        let (own_first, own_now) = (*load.get(1)?, *load.get(last as usize + 1)?);
        let most = most.saturating_sub(own_first);
        let own = own_now.saturating_sub(own_first);
        if own < most / told_by || own == 0 {
            return None;
        }
        let part = now.saturating_sub(first) as f64 / own as f64;
        Some(first.saturating_add((most as f64 * part) as u64))
    }

    /// True if it knows its step.
    pub(super) fn can_reckon(&self) -> bool {
        self.basis.is_some()
    }

    /// What its step takes ([`Policy::us`]) if the operators of the sequence, and what comes behind them, take `us`.
    pub(super) fn reckon(&self, us: &[f64], links: &Links) -> [f64; 3] {
        let Some(Basis { step, schedule, gpu, .. }) = &self.basis else { return self.us };
        let mut step = step.clone();
        retime(&mut step, us);
        us_of(&step, schedule, links, *gpu)
    }
}

/// What a step takes: see [`Policy::us`].
fn us_of(step: &Step, schedule: &Schedule, links: &Links, gpu: u64) -> [f64; 3] {
    [step.us(), simulate(step, links, schedule).step_us, bound(step, links, gpu)]
}

/// The operators of a step take as long as those of the sequence do: its first is the beginning.
pub(super) fn retime(step: &mut Step, us: &[f64]) {
    step.ops.iter_mut().skip(1).zip(us).for_each(|(op, us)| op.us = *us);
}

#[cfg(test)]
mod tests {
    use girih_swap::{Away, Gap, Op, Tensor};

    use super::*;

    fn policy_of(count: usize) -> Policy {
        let all = 0..count as u32;
        let tensor = |request| Tensor { request, bytes: 1, born: 0, last: 3 };
        let gap = |tensor| Gap { tensor, after: 0, before: 3 };
        let step = Step {
            ops: vec![Op { us: 1.0, ..Op::default() }; count],
            load: vec![0; count],
            tensors: all.clone().map(tensor).collect(),
            gaps: all.clone().map(gap).collect(),
        };
        let away = Away { gap: 0, leave: 0, release: 1, fetch: 3 };
        let schedule = Schedule { away: vec![away], ..Schedule::default() };
        let whose = all.map(Whose::Saved).collect();
        Policy::of((step, whose), schedule, &Links::default(), u64::MAX)
    }

    #[test]
    fn what_a_policy_keeps_of_its_step_is_less_than_2_mib() {
        let own = size_of::<Op>() + size_of::<u64>() + size_of::<Tensor>() + size_of::<Gap>();
        assert!(KEPT_MAX * (own + size_of::<Away>()) < 2 << 20);
        assert!(policy_of(KEPT_MAX).basis.is_some());
        let long = policy_of(KEPT_MAX + 1);
        assert!(long.basis.is_none());
        assert_eq!(long.reckon(&[2.0; 4], &Links::default()), long.us, "it stays as it was");
    }

    #[test]
    fn what_is_promised_is_reckoned_with_other_times() {
        let policy = policy_of(4);
        assert_eq!(policy.us[0], 4.0);
        // The first operator is the beginning of the step.
        assert_eq!(policy.reckon(&[2.0; 3], &Links::default())[0], 7.0);
    }
}
