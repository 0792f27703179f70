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
//! - **Dynamic requests** (section 5.2) are no matter of the static plan: `dynamic` finds them in a recording, and
//!   [`Synthesis`] what the plan of the others leaves to them. To the planner alone all requests are static.
//!
//! A problem whose phases are all the same has no groups: [`plan_by_size`] is the second step alone.
//! That is what the program published with the paper does unless it is told otherwise. Its plans of
//! the recorded runs are never higher than those with groups, for what a group leaves idle within
//! its rectangle is lost to all others.
//!
//! Lost, that is, as the paper is written. The published program lets what comes later use the bytes above
//! a group's skyline: its bubbles are *open* ([`Bubbles`]). So there are three plans of a recording;
//! [`plan_as_released`] tries all and keeps the lowest, as the program's own tuning does.

mod dynamic;
mod fusion;
mod global;
mod homophase;
mod layers;
mod phases;
mod synthesis;
mod temporary;

use thiserror::Error;

use crate::instance::{Instance, Item};
use crate::problem::{Buffer, Problem, ProblemError, Solution};

pub use self::dynamic::DynamicLayers;
use self::global::Block;
use self::homophase::{LocalPlan, Member};
pub use self::phases::{PhaseSpan, Timeline};
pub use self::synthesis::{LayerSpaces, Space, Synthesis};

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

/// Whether requests in no group may use what a group leaves idle in its rectangle.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bubbles {
    /// They may not, as the paper has it: a local plan is one large request.
    #[default]
    Closed,
    /// They may, as in the published program.
    Open,
}

/// Plans `problem`, whose buffers come and go in the given `phases`, one pair for each in their
/// order. [`Timeline`] has them for a recording; any numbers give a plan that is right, if maybe a
/// poor one. Fusion takes O(n log n) for each pair of groups that is tried, which are few where phases
/// are those of training; the search for gaps is that of first fit.
pub fn plan(
    problem: &Problem,
    phases: &[PhaseSpan],
    bubbles: Bubbles,
) -> Result<Solution, StweaverError> {
    plan_in_steps(problem, phases, bubbles).map(|(solution, _)| solution)
}

/// Plans `problem` without HomoPhase groups: HomoSize groups and global planning alone.
pub fn plan_by_size(problem: &Problem) -> Result<Solution, ProblemError> {
    second_step(problem, &mut Steps::default())
}

/// The lowest of the plans with groups, with their bubbles closed and open, and without; of equals the first.
pub fn plan_as_released(
    problem: &Problem,
    phases: &[PhaseSpan],
) -> Result<Solution, StweaverError> {
    let closed = plan(problem, phases, Bubbles::Closed)?;
    let open = plan(problem, phases, Bubbles::Open)?;
    let by_size = plan_by_size(problem)?;
    let lower =
        |one: Solution, other: Solution| if other.height < one.height { other } else { one };
    Ok(lower(lower(closed, open), by_size))
}

/// Plans like [`plan`] and says what the steps did.
pub fn plan_in_steps(
    problem: &Problem,
    phases: &[PhaseSpan],
    bubbles: Bubbles,
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
    let solution = match bubbles {
        Bubbles::Closed => closed(problem, &plans, &alone, &mut steps)?,
        Bubbles::Open => open(problem, &plans, &alone, &mut steps)?,
    };
    Ok((solution, steps))
}

/// The second step where each local plan is one large request: it sees nothing of what is in it.
fn closed(
    problem: &Problem,
    plans: &[LocalPlan],
    alone: &[u32],
    steps: &mut Steps,
) -> Result<Solution, ProblemError> {
    let rectangle = |plan: &LocalPlan| {
        let &LocalPlan { lower, upper, size, .. } = plan;
        Buffer { lower, upper, size }
    };
    let mut buffers: Vec<Buffer> = plans.iter().map(rectangle).collect();
    buffers.extend(alone.iter().map(|&buffer| problem.buffers[buffer as usize]));
    let second = Problem { buffers, ..*problem };
    let solution = second_step(&second, steps)?;

    let mut offsets = vec![0; problem.buffers.len()];
    for (plan, start) in plans.iter().zip(&solution.offsets) {
        for member in &plan.members {
            offsets[member.buffer as usize] = start + member.offset;
        }
    }
    for (&buffer, &offset) in alone.iter().zip(&solution.offsets[plans.len()..]) {
        offsets[buffer as usize] = offset;
    }
    Ok(Solution { offsets, ..solution })
}

/// The second step where a local plan finds its place whole, and then holds what is in it alone.
fn open(
    problem: &Problem,
    plans: &[LocalPlan],
    alone: &[u32],
    steps: &mut Steps,
) -> Result<Solution, ProblemError> {
    let mut is_member = vec![false; problem.buffers.len()];
    for member in plans.iter().flat_map(|plan| &plan.members) {
        is_member[member.buffer as usize] = true;
    }
    // A resident lies below everything, and a member where its group is.
    let instance = Instance::with_residents(problem, |buffer| !is_member[buffer as usize])?;
    let mut item_of = vec![u32::MAX; problem.buffers.len()];
    let numbers: Vec<u32> = (0..problem.buffers.len() as u32).collect();
    for (item, buffer) in (0..).zip(instance.of_items(&numbers)) {
        item_of[buffer as usize] = item;
    }
    let mut blocks: Vec<Block> =
        plans.iter().map(|plan| rectangle(plan, problem.alignment, &instance, &item_of)).collect();
    let items = alone.iter().map(|&buffer| item_of[buffer as usize]);
    let mut items: Vec<u32> = items.filter(|&item| item != u32::MAX).collect();
    items.sort_unstable();
    blocks.extend(items.iter().map(|&item| Block::whole(instance.items[item as usize])));
    // Layers are made by birth.
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by_key(|&block| blocks[block].item.lower);
    let by_birth: Vec<Block> = order.iter().map(|&block| blocks[block].clone()).collect();
    steps.requests = blocks.len();
    let mut places = vec![0; blocks.len()];
    let top = global::place(&instance, &by_birth, steps, &mut places);

    let mut layout = vec![0; instance.items.len()];
    for (&block, &place) in order.iter().zip(&places) {
        match (&blocks[block].parts, block.checked_sub(plans.len())) {
            (Some(parts), _) => {
                for &(item, above) in parts {
                    layout[item as usize] = place + above;
                }
            }
            (None, Some(nth)) => layout[items[nth] as usize] = place,
            (None, None) => {}
        }
    }
    Ok(instance.solution(problem.buffers.len(), &layout, top, NAME))
}

/// The rectangle of a local plan in sections and units. It begins with the first member that comes, and ends with
/// the last that goes; on a ring that may be beyond the cut.
fn rectangle(plan: &LocalPlan, unit: u64, instance: &Instance, item_of: &[u32]) -> Block {
    let item = |member: &Member| instance.items[item_of[member.buffer as usize] as usize];
    let first = plan.members.iter().min_by_key(|member| member.lower).map_or(0, |m| item(m).lower);
    let last = plan.members.iter().max_by_key(|member| member.upper).map_or(0, |m| item(m).upper);
    let upper = if last <= first { last + instance.sections } else { last };
    let parts = plan.members.iter().map(|m| (item_of[m.buffer as usize], m.offset / unit));
    let item = Item { lower: first, upper, size: plan.size / unit };
    Block { item, parts: Some(parts.collect()) }
}

/// HomoSize groups, memory layers and global planning.
fn second_step(problem: &Problem, steps: &mut Steps) -> Result<Solution, ProblemError> {
    let instance = Instance::new(problem)?;
    steps.requests = instance.items.len();
    let mut layout = vec![0; instance.items.len()];
    let blocks: Vec<Block> = instance.items.iter().copied().map(Block::whole).collect();
    let top = global::place(&instance, &blocks, steps, &mut layout);
    Ok(instance.solution(problem.buffers.len(), &layout, top, NAME))
}
