//! HomoPhase groups: requests that come in one phase and go in another, the same two for all.
//!
//! All requests of a group are alive where the first phase ends, so that no plan of the group alone
//! is lower than a stack of them. The paper packs them "contiguously" and later wants them "by end
//! time in descending order": so the last to go lies at the bottom. In training that is a
//! staircase, for activations go in the reverse of the order in which they came.
//!
//! ```text
//!  address    phase 0 : phase 1
//!     |        .  d d : .  .  .        The dots in the rectangle are bubbles: reserved, not used.
//!     |        c  c c : c  .  .
//!     |        .  b b : b  b  .
//!     |        a  a a : a  a  a
//!     +------------------------- time
//! ```

use std::cmp::Reverse;

use super::phases::PhaseSpan;
use crate::problem::Problem;

/// A request in a local plan. It is alive in `[lower, upper)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Member {
    /// The index of its buffer in the problem.
    pub(super) buffer: u32,
    /// First tick at which it is alive.
    pub(super) lower: u32,
    /// First tick at which it is no longer alive.
    pub(super) upper: u32,
    /// Bytes, rounded up to the alignment.
    pub(super) size: u64,
    /// Bytes from the start of the local plan.
    pub(super) offset: u64,
}

/// The plan of one group by itself: a rectangle in time and space with its requests in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LocalPlan {
    /// The phases of the group; of a fused one, the first and the last phase of both.
    pub(super) phases: PhaseSpan,
    /// Its requests, by offset.
    pub(super) members: Vec<Member>,
    /// Bytes: the largest `offset + size`.
    pub(super) size: u64,
    /// First tick at which one of them is alive.
    pub(super) lower: u32,
    /// First tick at which none of them is alive any more.
    pub(super) upper: u32,
}

impl LocalPlan {
    /// The local plan of a group: its requests stacked, the last to go at the bottom. What offsets
    /// they had is forgotten. There must be at least one.
    pub(super) fn stack(phases: PhaseSpan, mut members: Vec<Member>) -> LocalPlan {
        members.sort_unstable_by_key(|m| (Reverse(m.upper), m.lower, m.buffer));
        let mut size = 0;
        for member in &mut members {
            member.offset = size;
            size += member.size;
        }
        LocalPlan::of(phases, members)
    }

    /// The plan of `members`, which are by offset.
    pub(super) fn of(phases: PhaseSpan, members: Vec<Member>) -> LocalPlan {
        let size = members.iter().map(|m| m.offset + m.size).max().unwrap_or(0);
        let lower = members.iter().map(|m| m.lower).min().unwrap_or(0);
        let upper = members.iter().map(|m| m.upper).max().unwrap_or(0);
        LocalPlan { phases, members, size, lower, upper }
    }
}

/// The groups of `problem` with their local plans, by phases, and the buffers that are in none, in
/// their order. Buffers of 0 bytes are left out.
pub(super) fn groups(problem: &Problem, phases: &[PhaseSpan]) -> (Vec<LocalPlan>, Vec<u32>) {
    let period = problem.period;
    let mut scoped: Vec<(PhaseSpan, u32)> = Vec::new();
    let mut alone = Vec::new();
    for (index, (buffer, &span)) in (0u32..).zip(problem.buffers.iter().zip(phases)) {
        let crosses_the_end = period > 0 && buffer.upper > period;
        let is_always_alive = period > 0 && buffer.upper - buffer.lower == period;
        if buffer.size == 0 {
            continue;
        }
        if span.birth == span.death || crosses_the_end || is_always_alive {
            alone.push(index);
        } else {
            scoped.push((span, index));
        }
    }
    scoped.sort_unstable();
    let member = |&(_, buffer): &(PhaseSpan, u32)| {
        let of = &problem.buffers[buffer as usize];
        let size = of.size.next_multiple_of(problem.alignment);
        Member { buffer, lower: of.lower, upper: of.upper, size, offset: 0 }
    };
    let stack = |group: &[(PhaseSpan, u32)]| {
        LocalPlan::stack(group[0].0, group.iter().map(member).collect())
    };
    (scoped.chunk_by(|a, b| a.0 == b.0).map(stack).collect(), alone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Buffer;

    fn span(birth: u32, death: u32) -> PhaseSpan {
        PhaseSpan { birth, death }
    }

    fn problem(buffers: &[(u32, u32, u64)], period: u32) -> Problem {
        let buffers = buffers.iter().map(|&(lower, upper, size)| Buffer { lower, upper, size });
        Problem { buffers: buffers.collect(), period, alignment: 4 }
    }

    #[test]
    fn a_group_is_a_stack_with_the_last_to_go_at_the_bottom() {
        let problem = problem(&[(0, 8, 8), (1, 7, 3), (2, 9, 4), (3, 6, 5)], 0);
        let (groups, alone) = groups(&problem, &[span(0, 1); 4]);
        assert_eq!((groups.len(), alone.len()), (1, 0));
        let placed: Vec<_> = groups[0].members.iter().map(|m| (m.buffer, m.offset)).collect();
        assert_eq!(placed, [(2, 0), (0, 4), (1, 12), (3, 16)]);
        assert_eq!((groups[0].lower, groups[0].upper, groups[0].size), (0, 9, 24));
    }

    #[test]
    fn requests_are_grouped_by_both_phases() {
        let problem = problem(&[(0, 8, 1), (1, 4, 1), (2, 9, 1), (3, 8, 1)], 0);
        let (groups, _) = groups(&problem, &[span(0, 2), span(0, 1), span(0, 2), span(1, 2)]);
        let members = |plan: &LocalPlan| plan.members.iter().map(|m| m.buffer).collect::<Vec<_>>();
        assert_eq!(groups.iter().map(members).collect::<Vec<_>>(), [vec![1], vec![2, 0], vec![3]]);
    }

    #[test]
    fn what_is_transient_or_crosses_the_end_or_is_always_alive_is_alone() {
        let problem = problem(&[(0, 5, 1), (1, 3, 1), (7, 12, 1), (0, 10, 1), (4, 9, 0)], 10);
        let (groups, alone) =
            groups(&problem, &[span(0, 1), span(0, 0), span(1, 2), span(0, 1), span(0, 1)]);
        assert_eq!((groups.len(), groups[0].members[0].buffer), (1, 0));
        assert_eq!(alone, [1, 2, 3], "and what has no bytes is nowhere");
    }
}
