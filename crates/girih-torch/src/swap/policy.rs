//! What was planned for one sequence of operators.

use std::sync::Arc;

use girih_swap::bound::bound;
use girih_swap::{Links, Schedule, Step, simulate};
use rustc_hash::FxHashMap;

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
    /// Which one of the run; [`NO_POLICY`](super::times::NO_POLICY) as long as it has none.
    pub(super) number: u32,
    /// What it was made of.
    pub(super) basis: Option<Arc<Basis>>,
}

/// The step that a policy is for, as it was seen, and its schedule.
#[derive(Debug)]
pub(super) struct Basis {
    step: Step,
    schedule: Schedule,
    gpu: u64,
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
        let basis = Basis { step, schedule, gpu };
        policy.us = basis.us(links);
        policy.basis = Some(Arc::new(basis));
        for list in [&mut policy.leave, &mut policy.release, &mut policy.fetch] {
            list.sort_unstable();
        }
        policy
    }

    /// What its step takes ([`Policy::us`]) if the operators of the sequence, and what comes behind them, take `us`.
    pub(super) fn reckon(&self, us: &[f64], links: &Links) -> [f64; 3] {
        let Some(basis) = &self.basis else { return self.us };
        let mut step = basis.step.clone();
        retime(&mut step, us);
        Basis { step, schedule: basis.schedule.clone(), gpu: basis.gpu }.us(links)
    }
}

impl Basis {
    fn us(&self, links: &Links) -> [f64; 3] {
        let Basis { step, schedule, gpu } = self;
        [step.us(), simulate(step, links, schedule).step_us, bound(step, links, *gpu)]
    }
}

/// The operators of a step take as long as those of the sequence do: its first is the beginning.
pub(super) fn retime(step: &mut Step, us: &[f64]) {
    step.ops.iter_mut().skip(1).zip(us).for_each(|(op, us)| op.us = *us);
}
