//! The exact solver: the lowest height there is, with the proof, or the best so far with a bound.
//!
//! Branch and bound over canonical layouts (`state`), one capacity at a time (`tree`): is there
//! a layout of this height? Two thirds of the nodes go to the height that cannot be beaten, the least
//! that is not refuted; at first that is the maximum load. With the others the range between it and
//! what was found is halved, again and again. Several strategies (`strategy`) take turns at each
//! height; what has failed is remembered (`nogoods`), so that a new try does not begin anew.
//!
//! ```text
//!  height   bound                                        best
//!    |--------|------------?------------?---------?--------|-----
//!     refuted  every other  ..           2nd       1st      found
//! ```
//!
//! A search that goes wrong near its root does not come back within any limit, and another one finds
//! the same layout in a thousand nodes. So the tries at the least height are short and many, the longer
//! the rarer: 1 1 2 1 1 2 4 and so on times a dive (M. Luby, A. Sinclair, D. Zuckerman, *Optimal
//! Speedup of Las Vegas Algorithms*, 1993), and each has another noise in its order of answers.
//!
//! This is for what the portfolio leaves: some hundred buffers, tightly packed. The greedy planners
//! are far faster on everything that they can solve at the bound.
//!
//! The canonical layouts, the bound of a section and the components are those of M. D. Moffitt,
//! *MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning*, ASPLOS
//! 2023; the search asks the tightest section of a valley instead of placing by rising offset.

mod model;
mod nogoods;
mod state;
mod strategy;
mod tree;

use std::ops::ControlFlow;

use crate::bound::max_load;
use crate::instance::Instance;
use crate::problem::{Problem, ProblemError, Solution};
use model::Model;
use strategy::{STRATEGIES, Strategy};
use tree::{Tree, Verdict};

/// How far to search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Search {
    /// Nodes of the tree at most. A node costs a few microseconds for some hundred buffers.
    pub nodes: u64,
    /// Bytes that are low enough: the search ends as soon as it has a solution of this height. 0
    /// if only the lowest is.
    pub enough: u64,
}

/// What a search found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The lowest solution: the one to be beaten, if nothing was lower.
    pub solution: Solution,
    /// No solution is lower than this many bytes: the maximum load, or more if that was refuted.
    pub bound: u64,
    /// Nodes that were searched. 0 if there was nothing to beat, or if the problem is too large to
    /// be searched: its tables of overlaps would take more than 64 MiB.
    pub nodes: u64,
}

impl Outcome {
    /// Whether no solution can be lower.
    pub fn is_proven(&self) -> bool {
        self.solution.height <= self.bound
    }
}

/// What is told while the search goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Nodes searched so far.
    pub nodes: u64,
    /// The height of the best solution so far, in bytes.
    pub height: u64,
    /// The best lower bound so far, in bytes.
    pub bound: u64,
    /// The height that is being decided, in bytes.
    pub target: u64,
}

/// Looks for the lowest solution of `problem` that is lower than `start`, which must solve it.
/// `progress` is told of every few thousand nodes and may end the search.
///
/// The same arguments give the same outcome on every machine, as long as `progress` lets it.
pub fn improve(
    problem: &Problem,
    start: Solution,
    search: Search,
    mut progress: impl FnMut(Progress) -> ControlFlow<()>,
) -> Result<Outcome, ProblemError> {
    let bound = max_load(problem)?.bytes;
    let outcome = Outcome { solution: start, bound, nodes: 0 };
    if outcome.solution.height <= bound.max(search.enough) || search.nodes == 0 {
        return Ok(outcome);
    }
    let instance = Instance::new(problem)?;
    let Some(model) = Model::new(&instance) else { return Ok(outcome) };
    let mut solver = Solver::new(&instance, &model, outcome, search, problem.buffers.len());
    solver.run(&mut progress);
    let Solver { outcome, tree, .. } = solver;
    Ok(Outcome { nodes: tree.nodes, ..outcome })
}

/// A search under way. Heights are in steps of the model, above the residents.
struct Solver<'m> {
    instance: &'m Instance,
    model: &'m Model,
    tree: Tree<'m>,
    strategies: Vec<(Strategy, Vec<u32>)>,
    search: Search,
    outcome: Outcome,
    buffers: usize,
    /// The least height that is not refuted, and the least that is no improvement.
    lower: u64,
    upper: u64,
    /// Nodes that went to the least height and to those above it.
    spent: [u64; 2],
}

/// Nodes for the least height for each of those above it. Where the least height can be had, as in most problems
/// that people pose, each node elsewhere is lost; where it cannot, it is those that lower the best. Of 106 problems of
/// `examples/tight.rs` one solves 65 within 200,000 nodes, two 69, three 68, and 2.0, 2.2 and 2.5 % are left on average.
const LEAST_FOR_ABOVE: u64 = 2;

/// The caller, the budget or the proof says that it is enough.
struct Done;

impl<'m> Solver<'m> {
    fn new(
        instance: &'m Instance,
        model: &'m Model,
        outcome: Outcome,
        search: Search,
        buffers: usize,
    ) -> Solver<'m> {
        let tree = Tree::new(model, search.nodes);
        let of = |strategy: Strategy| (strategy, strategy.order.ranks(model, &tree.state));
        let strategies = STRATEGIES.into_iter().map(of).collect();
        let (ground, step) = (instance.height(0), instance.height(model.step) - instance.height(0));
        let lower = tree.state.sections.iter().map(|section| section.load).max().unwrap_or(0);
        let upper = outcome.solution.height.saturating_sub(ground).div_ceil(step);
        Solver {
            instance,
            model,
            tree,
            strategies,
            search,
            outcome,
            buffers,
            lower,
            upper,
            spent: [0; 2],
        }
    }

    /// Searches until the caller, the budget or the proof ends it.
    fn run(&mut self, progress: &mut dyn FnMut(Progress) -> ControlFlow<()>) {
        // Nodes in which every item can be placed, and placed anew. With half of that the problems D, G and I of
        // minimalloc take more than twice as many nodes; four times as much leaves K open within 200,000.
        let dive = 2 * self.model.sizes.len().max(64) as u64;
        // Above, limits double from nothing: the least height has had many tries before the first dive there.
        let mut limit = 2;
        for attempt in 1.. {
            let before = self.tree.nodes;
            if self.least(dive.saturating_mul(luby(attempt)), progress).is_err() {
                return;
            }
            self.spent[0] += self.tree.nodes - before;
            if self.spent[1] * LEAST_FOR_ABOVE <= self.spent[0] {
                let before = self.tree.nodes;
                if self.above(limit, progress).is_err() {
                    return;
                }
                self.spent[1] += self.tree.nodes - before;
                limit = limit.saturating_mul(2);
            }
            for (nth, (strategy, ranks)) in (0..).zip(&mut self.strategies) {
                let seed = attempt * STRATEGIES.len() as u64 + nth;
                *ranks = strategy.order.ranks_with_noise(self.model, &self.tree.state, seed);
            }
        }
    }

    /// Tries the least height that is open, and what comes after it as long as that is refuted.
    fn least(
        &mut self,
        limit: u64,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), Done> {
        // What is enough is asked for; what is lower than that, never.
        let target = |solver: &Solver<'_>| solver.lower.max(solver.enough());
        while self.decide(target(self), limit, progress)? == Verdict::Refuted {}
        Ok(())
    }

    /// Tries heights above the least one, each by every strategy for `limit` nodes.
    fn above(
        &mut self,
        limit: u64,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), Done> {
        // The highest height that no strategy could decide.
        let mut undecided = self.lower.max(self.enough());
        while undecided + 1 < self.upper {
            let target = undecided + (self.upper - undecided) / 2;
            match self.decide(target, limit, progress)? {
                Verdict::Limit => undecided = target,
                _ => undecided = undecided.max(self.lower),
            }
        }
        Ok(())
    }

    /// The height in steps that is low enough, rounded down.
    fn enough(&self) -> u64 {
        let (ground, step) = (self.instance.height(0), self.instance.height(self.model.step));
        self.search.enough.saturating_sub(ground) / (step - ground)
    }

    /// Asks each strategy for a layout of at most `target` steps, until one knows.
    fn decide(
        &mut self,
        target: u64,
        limit: u64,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Verdict, Done> {
        for (strategy, ranks) in &self.strategies {
            let limit = limit.min(self.search.nodes - self.tree.nodes);
            let told = Progress {
                nodes: 0,
                height: self.outcome.solution.height,
                bound: self.outcome.bound,
                target: self.instance.height(target * self.model.step),
            };
            let mut go_on = |nodes| progress(Progress { nodes, ..told }).is_continue();
            match self.tree.decide(target, (strategy.choice, ranks), limit, &mut go_on) {
                Verdict::Found => return self.found(),
                Verdict::Refuted => {
                    self.lower = target + 1;
                    self.outcome.bound = self.instance.height(self.lower * self.model.step);
                    return if self.lower < self.upper { Ok(Verdict::Refuted) } else { Err(Done) };
                }
                Verdict::Limit if self.tree.nodes < self.search.nodes => {}
                Verdict::Limit | Verdict::Stopped => return Err(Done),
            }
        }
        Ok(Verdict::Limit)
    }

    /// Keeps the layout that the tree has found.
    fn found(&mut self) -> Result<Verdict, Done> {
        let layout: Vec<u64> =
            self.tree.state.layout.iter().map(|offset| offset * self.model.step).collect();
        let ends = layout.iter().zip(&self.instance.items).map(|(offset, item)| offset + item.size);
        let top = ends.max().unwrap_or(0);
        self.outcome.solution = self.instance.solution(self.buffers, &layout, top, "exact");
        self.upper = top / self.model.step;
        let is_enough = self.outcome.solution.height <= self.search.enough;
        if is_enough || self.upper <= self.lower { Err(Done) } else { Ok(Verdict::Found) }
    }
}

/// The `nth` of the numbers 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 and so on; the first is that of 1.
fn luby(nth: u64) -> u64 {
    let mut nth = nth;
    loop {
        let ones = u64::BITS - nth.leading_zeros();
        if nth == (1 << ones) - 1 {
            return 1 << (ones - 1);
        }
        nth -= (1 << (ones - 1)) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::luby;

    #[test]
    fn long_tries_are_rare() {
        let first: Vec<u64> = (1..=15).map(luby).collect();
        assert_eq!(first, [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]);
    }
}
