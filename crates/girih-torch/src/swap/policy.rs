//! What was planned for a sequence of operators.

use girih_swap::bound::bound;
use girih_swap::{Links, Schedule, Step, simulate};
use rustc_hash::FxHashMap;

/// What was planned for one sequence, by operators: who leaves, whose bytes are let go of, who is fetched. A tensor is
/// named by the operator that saved it.
#[derive(Debug, Default)]
pub(super) struct Policy {
    pub(super) leave: Vec<(u32, u32)>,
    pub(super) release: Vec<(u32, u32)>,
    pub(super) fetch: Vec<(u32, u32)>,
    /// For each tensor that goes, when it is used again.
    pub(super) before: FxHashMap<u32, u32>,
    /// Microseconds of a step: without swapping, as it was planned, and as no schedule can beat.
    pub(super) us: [f64; 3],
    /// Which one of the run.
    pub(super) number: u32,
}

impl Policy {
    pub(super) fn of(step: &Step, schedule: &Schedule, links: &Links, gpu: u64) -> Policy {
        let us = [step.us(), simulate(step, links, schedule).step_us, bound(step, links, gpu)];
        let mut policy = Policy { us, ..Policy::default() };
        for away in &schedule.away {
            let gap = step.gaps[away.gap as usize];
            let born = step.tensors[gap.tensor as usize].born;
            policy.leave.push((away.leave + 1, born));
            policy.release.push((away.release, born));
            policy.fetch.push((away.fetch, born));
            policy.before.insert(born, gap.before);
        }
        for list in [&mut policy.leave, &mut policy.release, &mut policy.fetch] {
            list.sort_unstable();
        }
        policy
    }
}
