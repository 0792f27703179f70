//! The interludes of a plan beside its ring: what is surely alive in an interlude keeps its bytes.
//!
//! Time stands still for the ring while an interlude goes on. An entry of the ring that was born
//! before the place where the interlude comes, and that is still alive after the next entry of the
//! ring was born, is alive all the while:
//!
//! ```text
//!  ring          0   1   2   3                4   5      (interlude before place 4)
//!  interlude                    0   1   2
//!  joint time    0   1   2   3  4   5   6     7   8
//! ```
//!
//! What ends at the very place may have gone before the interlude: a plan does not tell.

use crate::check::{Violation, check};
use crate::plan::{ALIGNMENT, Plan, Role, Tenancy};
use crate::problem::{Buffer, Problem, ProblemError, Solution};

/// Checks the ring and all interludes as one problem, on the joint time. The plan's sequences must
/// be right, each for itself. The buffers that a violation names are the entries of the arena and
/// the rooms, of the ring first and then of the interludes in their order.
pub(crate) fn check_together(plan: &Plan) -> Result<(), Violation> {
    let Some(ring) = plan.steady() else { return Ok(()) };
    let interludes = || {
        plan.sequences.iter().filter_map(|sequence| match sequence.role {
            Role::Interlude(at) => Some((at as usize, sequence)),
            Role::Opening | Role::Steady | Role::Variant(_) => None,
        })
    };
    if interludes().next().is_none() {
        return Ok(());
    }
    let count = ring.entries.len();
    let total = count + interludes().map(|(_, sequence)| sequence.entries.len()).sum::<usize>();
    if total > Problem::MAX_BUFFERS {
        return Err(Violation::Problem(ProblemError::TooMany { buffers: total }));
    }
    // Entries of interludes that come before each place of the ring, or right before its end.
    let mut here = vec![0usize; count + 1];
    interludes().for_each(|(at, sequence)| here[at] += sequence.entries.len());
    // Joint time before the interludes of each place, and where the next interlude begins.
    let mut starts: Vec<usize> = Vec::with_capacity(count + 1);
    let mut passed = 0;
    for (place, entries) in here.iter().enumerate() {
        starts.push(place + passed);
        passed += entries;
    }
    let mut next = starts.clone();

    let mut joint = Joint {
        problem: Problem { alignment: ALIGNMENT, ..Problem::default() },
        offsets: Vec::new(),
    };
    joint.problem.period = total as u32;
    for tenancy in plan.tenancies(ring) {
        let (index, until) = (tenancy.lower as usize, tenancy.upper as usize);
        let upper = if until > count { total + starts[until - count] } else { starts[until] };
        joint.push(tenancy, starts[index] + here[index], upper);
    }
    for (at, sequence) in interludes() {
        for tenancy in plan.tenancies(sequence) {
            let (index, until) = (tenancy.lower as usize, tenancy.upper as usize);
            joint.push(tenancy, next[at] + index, next[at] + until);
        }
        next[at] += sequence.entries.len();
    }
    let solution =
        Solution { offsets: joint.offsets, height: plan.arena_bytes, planner: "plan file" };
    check(&joint.problem, &solution)
}

/// A problem with its solution, while it is put together.
struct Joint {
    problem: Problem,
    offsets: Vec<u64>,
}

impl Joint {
    /// Adds what lives in `[lower, upper)` on the joint time.
    fn push(&mut self, Tenancy { offset, size, .. }: Tenancy, lower: usize, upper: usize) {
        self.problem.buffers.push(Buffer { lower: lower as u32, upper: upper as u32, size });
        self.offsets.push(offset);
    }
}
