//! One problem of either level: a greedy start, which a solver then improves.
//!
//! The problem is the one that the paper writes as a mixed integer program: offsets of buffers,
//! those that overlap in time one above the other, the peak as low as can be. Our exact search and
//! the program itself have the same optimum.

use std::ops::ControlFlow;

use super::{Progress, Settings};
use crate::bound::max_load;
use crate::exact::{self, Search};
use crate::portfolio::{self, Attempt, Budget};
use crate::problem::{Problem, ProblemError, Solution};

/// More buffers than this in one problem of a level are left to greedy planners: a node of the
/// search costs as much as the buffers and what they overlap with, and a tree of so many
/// is not searched through in any budget.
pub const SEARCHED_MAX: usize = 4000;

/// What solves the problems of both levels.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Solver {
    /// Our exact search.
    Search {
        /// Nodes of the tree at most, in both levels together.
        nodes: u64,
    },
    /// The mixed integer program, by HiGHS.
    #[cfg(feature = "highs")]
    Program {
        /// Seconds at most, in both levels together; HiGHS measures them. What it finds in them
        /// depends on the machine.
        seconds: f64,
    },
}

impl Solver {
    /// What the first level may use.
    pub(super) fn half(self) -> Solver {
        match self {
            Solver::Search { nodes } => Solver::Search { nodes: nodes / 2 },
            #[cfg(feature = "highs")]
            Solver::Program { seconds } => Solver::Program { seconds: seconds / 2.0 },
        }
    }

    /// What the next of `problems` may use, after those that `first` counts. Nodes that one leaves
    /// go to the others. Time does not, for nobody here knows what was left of it.
    pub(super) fn share(self, first: &Level, problems: usize) -> Solver {
        match self {
            Solver::Search { nodes } => Solver::Search {
                nodes: nodes.saturating_sub(first.nodes) / (problems - first.problems) as u64,
            },
            #[cfg(feature = "highs")]
            Solver::Program { seconds } => Solver::Program { seconds: seconds / problems as f64 },
        }
    }

    /// What is left for the second level.
    pub(super) fn rest(self, first: &Level) -> Solver {
        match self {
            Solver::Search { nodes } => Solver::Search { nodes: nodes.saturating_sub(first.nodes) },
            #[cfg(feature = "highs")]
            Solver::Program { .. } if first.problems > 0 => self.half(),
            #[cfg(feature = "highs")]
            Solver::Program { .. } => self,
        }
    }
}

/// A level, in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Level {
    /// Problems that were solved.
    pub problems: usize,
    /// Of them those whose solution is the lowest there is: at the largest load, or by the word of
    /// the solver.
    pub proven: usize,
    /// Of them those that were too large for the solver, so that greedy planners have the last word.
    pub greedy: usize,
    /// Buffers of the largest one.
    pub largest: usize,
    /// Nodes that the solver searched.
    pub nodes: u64,
}

impl Level {
    /// Counts a problem that was solved.
    pub(super) fn count(&mut self, problem: &Problem, solved: &Solved) {
        self.problems += 1;
        self.proven += usize::from(solved.is_proven);
        self.greedy += usize::from(solved.is_too_large && !solved.is_proven);
        self.largest = self.largest.max(problem.buffers.len());
        self.nodes += solved.nodes;
    }
}

/// What became of one problem.
pub(super) struct Solved {
    pub(super) solution: Solution,
    /// Bytes that no solution is lower than: not by the word of a solver that rounds.
    pub(super) least: u64,
    pub(super) is_proven: bool,
    pub(super) is_too_large: bool,
    pub(super) nodes: u64,
    pub(super) attempts: Vec<Attempt>,
}

/// Solves one problem with all that `settings` give. `progress` need not know which problem it is.
pub(super) fn solve(
    problem: &Problem,
    settings: Settings,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Solved, ProblemError> {
    let told = Progress { level: 0, number: 0, of: 0, height: 0, bound: 0, nodes: 0 };
    let greedy = portfolio::solve_with(problem, Budget::attempts(settings.attempts), |now| {
        progress(Progress { height: now.height, bound: now.bound, ..told })
    })?;
    let is_proven = greedy.is_proven();
    let portfolio::Outcome { solution, least, attempts, .. } = greedy;
    let start = Solved { solution, least, is_proven, is_too_large: false, nodes: 0, attempts };
    if is_proven {
        return Ok(start);
    }
    match settings.solver {
        Solver::Search { nodes } => search(problem, start, nodes, &mut |now| {
            let exact::Progress { height, bound, nodes, .. } = now;
            progress(Progress { height, bound, nodes, ..told })
        }),
        #[cfg(feature = "highs")]
        Solver::Program { seconds } => super::mip::improve(problem, start, seconds),
    }
}

/// Improves `start` by the exact search.
fn search(
    problem: &Problem,
    start: Solved,
    nodes: u64,
    progress: &mut dyn FnMut(exact::Progress) -> ControlFlow<()>,
) -> Result<Solved, ProblemError> {
    if problem.buffers.len() > SEARCHED_MAX {
        return Ok(Solved { is_too_large: true, ..start });
    }
    let goal = Search { nodes, enough: 0 };
    let found = exact::improve(problem, start.solution, goal, progress)?;
    debug_assert!(found.bound >= max_load(problem)?.bytes);
    let is_proven = found.is_proven();
    let exact::Outcome { solution, bound: least, nodes } = found;
    Ok(Solved { solution, least, is_proven, nodes, ..start })
}
