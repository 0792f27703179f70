//! The static planner of STWeaver as its paper describes it (Huang et al., EuroSys 2026, section
//! 5.1), to be measured beside ours. It knows of each request the phases in which it comes and
//! goes, and plans in two steps, in time and then in space:
//!
//! ```text
//!  requests ─► HomoPhase groups ─► local plans ─► fusion ─► HomoSize groups ─► memory layers
//!              same two phases     one stack a    pairs,    same size,         smaller ones into
//!              (`homophase`)       group          if less   `layers`           the gaps of larger
//!                                                 is lost                      ones (`global`)
//!                                                 (`fusion`)
//! ```
//!
//! Each part says in its file what the paper gives and what it leaves open. What is open was
//! decided so that the planner is served well, and these decisions concern the whole:
//!
//! - **Transients.** A HomoPhase group is stacked because "their lifespans overlap". That holds of
//!   what lives across the boundary of two phases, and not of what comes and goes within one: there
//!   a stack would be the sum of everything. So only *scoped* requests form groups; transient
//!   ones go to the second step as they are.
//! - **Rings.** The paper plans one iteration on a line. Here a ring stays a ring: what crosses its
//!   end is in no group and holds its place at both ends in the second step. Requests that are
//!   always alive lie at the bottom, as the paper has weights and optimizer states.
//! - **Times** are half-open here, so that "ends before" means "ends no later than".
//! - **Dynamic requests** (section 5.2) are no matter of the static plan: all requests are static.
//!
//! A problem whose phases are all the same has no groups: [`plan_by_size`] is the second step alone.
//! That is what the program published with the paper does unless it is told otherwise. Its plans of
//! the recorded runs are never higher than those with groups, for what a group leaves idle within
//! its rectangle is lost to all others.

mod fusion;
mod global;
mod homophase;
mod layers;
mod phases;

use thiserror::Error;

use crate::instance::Instance;
use crate::problem::{Buffer, Problem, ProblemError, Solution};

use self::homophase::Member;
pub use self::phases::{PhaseSpan, Timeline};

/// The name that solutions carry.
pub const NAME: &str = "stweaver";

/// Why nothing can be planned.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StweaverError {
    /// The problem has no meaning.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// There is not one pair of phases for each buffer.
    #[error(
        "give each buffer one pair of phases, in their order: there are {phases} for {buffers} \
         buffers"
    )]
    Phases {
        /// Buffers of the problem.
        buffers: usize,
        /// Pairs of phases given.
        phases: usize,
    },
}

/// What the steps did, in numbers. The second step does not count what is always alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Steps {
    /// HomoPhase groups, those of a single request among them.
    pub groups: usize,
    /// Pairs of groups that were tried for a fusion.
    pub tried: usize,
    /// Pairs that were fused.
    pub fused: usize,
    /// Requests that the second step has to place: groups, and what is in none.
    pub requests: usize,
    /// Distinct sizes of those: HomoSize groups.
    pub sizes: usize,
    /// Requests that went into the gaps of larger layers.
    pub inserted: usize,
    /// Memory layers.
    pub layers: usize,
}

/// Plans `problem`, whose buffers come and go in the given `phases`, one pair for each in their
/// order. [`Timeline`] has them for a recording; any numbers give a plan that is right, if maybe a
/// poor one. Fusion takes O(n log n) for each pair of groups that is tried, which are few where phases
/// are those of training; the search for gaps is that of first fit.
pub fn plan(problem: &Problem, phases: &[PhaseSpan]) -> Result<Solution, StweaverError> {
    plan_in_steps(problem, phases).map(|(solution, _)| solution)
}

/// Plans `problem` without HomoPhase groups: HomoSize groups and global planning alone.
pub fn plan_by_size(problem: &Problem) -> Result<Solution, ProblemError> {
    second_step(problem, &mut Steps::default())
}

/// Plans like [`plan`] and says what the steps did.
pub fn plan_in_steps(
    problem: &Problem,
    phases: &[PhaseSpan],
) -> Result<(Solution, Steps), StweaverError> {
    problem.validate()?;
    if phases.len() != problem.buffers.len() {
        let buffers = problem.buffers.len();
        return Err(StweaverError::Phases { buffers, phases: phases.len() });
    }
    let mut steps = Steps::default();
    let (groups, alone) = homophase::groups(problem, phases);
    steps.groups = groups.len();
    let plans = fusion::fuse_adjacent(groups, &mut steps);

    // Each plan is now one large request. The second step sees nothing of what is in it.
    let mut members: Vec<Vec<Member>> = Vec::with_capacity(plans.len() + alone.len());
    let mut buffers = Vec::with_capacity(plans.len() + alone.len());
    for plan in plans {
        buffers.push(Buffer { lower: plan.lower, upper: plan.upper, size: plan.size });
        members.push(plan.members);
    }
    let grouped = buffers.len();
    buffers.extend(alone.iter().map(|&buffer| problem.buffers[buffer as usize]));
    let second = Problem { buffers, ..*problem };
    let solution = second_step(&second, &mut steps)?;

    let mut offsets = vec![0; problem.buffers.len()];
    for (members, start) in members.iter().zip(&solution.offsets) {
        for member in members {
            offsets[member.buffer as usize] = start + member.offset;
        }
    }
    for (&buffer, &offset) in alone.iter().zip(&solution.offsets[grouped..]) {
        offsets[buffer as usize] = offset;
    }
    Ok((Solution { offsets, ..solution }, steps))
}

/// HomoSize groups, memory layers and global planning.
fn second_step(problem: &Problem, steps: &mut Steps) -> Result<Solution, ProblemError> {
    let instance = Instance::new(problem)?;
    steps.requests = instance.items.len();
    let mut layout = vec![0; instance.items.len()];
    let top = global::place(&instance, steps, &mut layout);
    Ok(instance.solution(problem.buffers.len(), &layout, top, NAME))
}
