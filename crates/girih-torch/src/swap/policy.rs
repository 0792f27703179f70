//! What was planned for one sequence of operators.

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
    /// Which one of the run.
    pub(super) number: u32,
}

impl Policy {
    /// Of a schedule for a step of [`Observation::step`](super::observed::Observation::step): its first operator is the
    /// beginning.
    pub(super) fn of(
        (step, whose): &(Step, Vec<Whose>),
        schedule: &Schedule,
        links: &Links,
        gpu: u64,
    ) -> Policy {
        let us = [step.us(), simulate(step, links, schedule).step_us, bound(step, links, gpu)];
        let mut policy = Policy { us, ..Policy::default() };
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
        for list in [&mut policy.leave, &mut policy.release, &mut policy.fetch] {
            list.sort_unstable();
        }
        policy
    }
}
