//! The planner of Memo as its paper describes it (Zhao et al., SIGMOD 2025, *Memo: Fine-grained
//! Tensor Management For Ultra-long Context LLM Training*, section 4.2), to be measured beside
//! ours. All layers of a transformer are alike, so one pass through one layer is planned for all of
//! them, and stands for itself in the plan of the whole:
//!
//! ```text
//!  layers                    first level            second level
//!   | #  # |  #  # |  #  # |     +--+                +--+  +--+  +--+
//!   |##  # | ##  # | ##  # |  -> |# #| height 2  ->  |  |  |  |  |  |   a pseudo-request each
//!   | ---- | ----------------    |## |               +--+  +--+  +--+
//!                                +--+                  -----------      what outlives its layer
//! ```
//!
//! 1. The passes through layers are found: by the marks of modules, or where requests of the same
//!    sizes come again and again ([`Layers`]).
//! 2. *First level*: the transient requests of one pass, those that come and go within it, are a
//!    problem of their own. It is solved as exactly as the budget allows (`level`).
//! 3. Each pass is replaced by one pseudo-request of the height found.
//! 4. *Second level*: the whole is solved in the same way, and the offsets of the first level are
//!    put back, each above the place of its pseudo-request.
//!
//! The paper solves both levels as a mixed integer program (`mip`, with the feature `highs`); our
//! exact search ([`mod@crate::exact`]) solves the same problem, mostly sooner. What the paper
//! leaves open was decided so that the planner is served well:
//!
//! - **Skeletal requests**, those that outlive the pass that made them, are no matter of the paper's
//!   planner: they lie in two buffers apart, between which they are swapped out. Nothing is swapped
//!   here, so that they are requests of the second level, each for itself. That level is therefore
//!   larger than the paper's.
//! - **Layers that are not alike.** Passes are held to be of one *kind* if their transient requests
//!   have the same sizes and times; each kind is solved once. Experts' passes differ in their sizes,
//!   so that each may be a kind of its own.
//! - **The pseudo-request** lives from the first birth of what it stands for to the last death, not
//!   for all of the pass. A pass with a single transient request needs none.
//! - **Weights and optimizer states** that are always alive lie at the bottom, and a steady iteration
//!   may be a ring, where the paper has a line.
//! - **What is too large** for a solver ([`SEARCHED_MAX`] buffers for the search, `PAIRS_MAX` pairs for
//!   the program) is left to greedy planners; [`Level::greedy`] counts it. The paper says nothing of
//!   it. Where no layer is found, the second level is all there is.
//! - **A start.** Each solver is given the best of a few greedy planners to improve; its height
//!   is the program's capacity, `M_cap`.
//!
//! What Memo gives away is what a pass leaves idle within its rectangle: nothing else goes there.

mod layers;
mod level;
#[cfg(feature = "highs")]
mod mip;
mod repeats;

use std::collections::hash_map::Entry;
use std::ops::ControlFlow;

use rustc_hash::FxHashMap;

use crate::bound::max_load;
use crate::problem::{Buffer, Problem, ProblemError, Solution};

pub use self::layers::Layers;
pub use self::level::{Level, SEARCHED_MAX, Solver};
use self::level::{Solved, solve};
#[cfg(feature = "highs")]
pub use self::mip::PAIRS_MAX;

/// The name that solutions carry.
pub const NAME: &str = "memo";

/// How well each level is solved.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Settings {
    /// Greedy planners that are run for the start of each problem; at least one is.
    pub attempts: u32,
    /// What improves it.
    pub solver: Solver,
}

impl Settings {
    /// Our exact search, with so many nodes at most for both levels together: the kinds of passes
    /// share half of them, and the second level has what is left.
    pub fn searching(nodes: u64) -> Settings {
        Settings { attempts: 9, solver: Solver::Search { nodes } }
    }
}

/// What was found, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The plan.
    pub solution: Solution,
    /// Bytes that no solution of the problem is lower than. The largest load, or what the search
    /// of the second level has shown if no pass was replaced.
    pub least: u64,
    /// Passes that were replaced by a pseudo-request.
    pub passes: usize,
    /// Requests that were replaced with them.
    pub inner: usize,
    /// The first level: a problem for each kind of pass.
    pub first: Level,
    /// The second level: the whole, with pseudo-requests.
    pub second: Level,
    /// The heights that greedy planners reached in the second level.
    pub attempts: Vec<crate::portfolio::Attempt>,
}

impl Outcome {
    /// Whether no solution of the problem can be lower. Both levels may be solved exactly, and yet a
    /// plan without pseudo-requests be lower.
    pub fn is_proven(&self) -> bool {
        self.solution.height == self.least
    }

    /// Nodes that the solvers searched in both levels.
    pub fn nodes(&self) -> u64 {
        self.first.nodes + self.second.nodes
    }
}

/// What is told while a problem of either level is solved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// 1 or 2.
    pub level: u8,
    /// The number of the problem within its level, from 1.
    pub number: usize,
    /// Problems of the level.
    pub of: usize,
    /// The height of its best solution so far, in bytes.
    pub height: u64,
    /// Its lower bound so far, in bytes.
    pub bound: u64,
    /// Nodes of the exact search that went into it.
    pub nodes: u64,
}

/// Plans `problem`, whose passes through layers are `layers`. The same arguments give the same
/// outcome, unless the solver is given a time.
///
/// # Errors
/// If the problem has no meaning.
pub fn plan(
    problem: &Problem,
    layers: &Layers,
    settings: Settings,
) -> Result<Outcome, ProblemError> {
    plan_with(problem, layers, settings, |_| ControlFlow::Continue(()))
}

/// Plans like [`plan`] and tells `progress` how far it is, which may end the problem that is being
/// solved: its best so far is taken, and the next one begins. A solver that is given a time is not
/// ended.
///
/// # Errors
/// If the problem has no meaning.
pub fn plan_with(
    problem: &Problem,
    layers: &Layers,
    settings: Settings,
    mut progress: impl FnMut(Progress) -> ControlFlow<()>,
) -> Result<Outcome, ProblemError> {
    let load = max_load(problem)?.bytes;
    let Cut { passes, alone } = Cut::of(problem, layers);
    let (kinds, kind_of) = kinds(problem, &passes);

    let mut first = Level::default();
    let mut plans = Vec::with_capacity(kinds.len());
    let half = settings.solver.half();
    for (number, kind) in (1..).zip(&kinds) {
        let solver = half.share(&first, kinds.len());
        let settings = Settings { solver, ..settings };
        let (level, of) = (1, kinds.len());
        let solved =
            solve(kind, settings, &mut |now| progress(Progress { level, number, of, ..now }))?;
        first.count(kind, &solved);
        plans.push(solved.solution);
    }

    let mut whole = Problem { buffers: Vec::new(), ..*problem };
    let pseudo =
        |(pass, &kind): (&Vec<u32>, &usize)| pseudo_request(problem, pass, plans[kind].height);
    whole.buffers.extend(passes.iter().zip(&kind_of).map(pseudo));
    whole.buffers.extend(alone.iter().map(|&buffer| problem.buffers[buffer as usize]));
    let settings = Settings { solver: settings.solver.rest(&first), ..settings };
    let (level, number, of) = (2, 1, 1);
    let solved =
        solve(&whole, settings, &mut |now| progress(Progress { level, number, of, ..now }))?;
    let mut second = Level::default();
    second.count(&whole, &solved);

    let Solved { solution, least, attempts, .. } = solved;
    let mut offsets = vec![0; problem.buffers.len()];
    let (starts, others) = solution.offsets.split_at(passes.len());
    for ((pass, kind), start) in passes.iter().zip(&kind_of).zip(starts) {
        for (&buffer, offset) in pass.iter().zip(&plans[*kind].offsets) {
            offsets[buffer as usize] = start + offset;
        }
    }
    for (&buffer, &offset) in alone.iter().zip(others) {
        offsets[buffer as usize] = offset;
    }
    let solution = Solution { offsets, height: solution.height, planner: NAME };
    let least = if passes.is_empty() { least } else { load };
    let inner = passes.iter().map(Vec::len).sum();
    Ok(Outcome { solution, least, passes: passes.len(), inner, first, second, attempts })
}

/// The buffers of a problem, divided.
struct Cut {
    /// The transient buffers of each pass that has several, by birth.
    passes: Vec<Vec<u32>>,
    /// All the others.
    alone: Vec<u32>,
}

impl Cut {
    fn of(problem: &Problem, layers: &Layers) -> Cut {
        let buffers = &problem.buffers;
        let mut order: Vec<u32> = (0..buffers.len() as u32).collect();
        order.sort_by_key(|&buffer| buffers[buffer as usize].lower);
        let mut cut = Cut { passes: Vec::new(), alone: Vec::new() };
        let mut rest = &order[..];
        for pass in layers.passes() {
            let birth = |&buffer: &u32| buffers[buffer as usize].lower;
            let (before, from) = rest.split_at(rest.partition_point(|b| birth(b) < pass.start));
            let (born, after) = from.split_at(from.partition_point(|b| birth(b) < pass.end));
            cut.alone.extend(before);
            rest = after;
            // What crosses the end of a ring has a death beyond it.
            let end = if problem.period > 0 { pass.end.min(problem.period) } else { pass.end };
            let (inner, outer): (Vec<u32>, Vec<u32>) = born.iter().partition(|&&buffer| {
                let Buffer { upper, size, .. } = buffers[buffer as usize];
                upper <= end && size > 0
            });
            cut.alone.extend(outer);
            if inner.len() > 1 {
                cut.passes.push(inner);
            } else {
                cut.alone.extend(inner);
            }
        }
        cut.alone.extend(rest);
        // The solvers break ties by the index.
        cut.alone.sort_unstable();
        cut
    }
}

/// The problem of each kind of pass, on a line that begins with its first request, and the kind of
/// each pass. The buffers of a problem are in the order of those of its passes.
fn kinds(problem: &Problem, passes: &[Vec<u32>]) -> (Vec<Problem>, Vec<usize>) {
    let mut number_of: FxHashMap<Vec<Buffer>, usize> = FxHashMap::default();
    let mut problems = Vec::new();
    let mut kind_of = Vec::with_capacity(passes.len());
    for pass in passes {
        let start = problem.buffers[pass[0] as usize].lower;
        let inner = pass.iter().map(|&buffer| {
            let Buffer { lower, upper, size } = problem.buffers[buffer as usize];
            Buffer { lower: lower - start, upper: upper - start, size }
        });
        let kind = match number_of.entry(inner.collect()) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let buffers = new.key().clone();
                problems.push(Problem { buffers, period: 0, alignment: problem.alignment });
                *new.insert(problems.len() - 1)
            }
        };
        kind_of.push(kind);
    }
    (problems, kind_of)
}

/// What stands for a pass in the second level.
fn pseudo_request(problem: &Problem, pass: &[u32], height: u64) -> Buffer {
    let inner = || pass.iter().map(|&buffer| problem.buffers[buffer as usize]);
    Buffer {
        lower: inner().map(|buffer| buffer.lower).min().expect("a pass has several buffers"),
        upper: inner().map(|buffer| buffer.upper).max().expect("a pass has several buffers"),
        size: height,
    }
}
