//! Many planners, one after another, until one is proven best or the budget is spent.
//!
//! No planner is best everywhere, but each is cheap; on real traces one of the first few reaches
//! the lower bound, which proves it. The order is fixed and there is no clock, so that the same
//! problem always gets the same plan. Every planner is given the height to beat and stops when it
//! cannot. What gap they leave in a small problem goes to the exact search ([`mod@exact`]).
//!
//! After the first two attempts they go in batches of eight. All of a batch have the same height to
//! beat, and the first of the lowest wins, so that it makes no difference how many threads share a batch
//! (`batch`).
//!
//! Folding (`fold`) stands apart: it is an attempt only where enough repeats, and it takes none from
//! the others, so that nothing is worse for it.

mod batch;

use std::iter::Peekable;
use std::ops::ControlFlow;

use self::batch::{BATCH, Bench};
use crate::bound::{Bound, max_load};
use crate::exact;
use crate::firstfit::Order;
use crate::gaps::Fit;
use crate::instance::Instance;
use crate::planner::Planner;
use crate::problem::{Problem, ProblemError, Solution};
use crate::skyline::Key;
use crate::sweep::Direction;

/// How much may be tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Planners to run at most, each with its settings. At least one is run.
    pub attempts: u32,
    /// Threads that share the work, the caller's with them; at least 1. The outcome is the same
    /// with any number.
    pub threads: u32,
    /// Nodes of the exact search ([`mod@exact`]) at most, if the planners leave a gap. 0 for none.
    pub nodes: u64,
}

/// Attempts of the first batch.
const FIRST: u32 = 2;

/// Up to so many buffers the exact search is worth a try while somebody waits.
const EXACT_MAX: usize = 1000;

/// Nodes of the exact search for so many buffers while somebody waits: about half a second. A node of 200
/// buffers takes about 2 us, one of 1,000 five times that. Of the generated problems of
/// `examples/tight.rs` 65 are solved within these, and 70 within four times as many.
pub(crate) fn nodes_at_once(buffers: usize) -> u64 {
    if buffers > EXACT_MAX {
        return 0;
    }
    (120_000_000 / buffers.max(1) as u64).min(250_000)
}

impl Budget {
    /// So many attempts, on the caller's thread.
    pub fn attempts(attempts: u32) -> Budget {
        Budget { attempts, threads: 1, nodes: 0 }
    }

    /// The same with so many nodes of the exact search.
    pub fn with_nodes(self, nodes: u64) -> Budget {
        Budget { nodes, ..self }
    }

    /// The same shared by so many threads.
    pub fn on_threads(self, threads: u32) -> Budget {
        Budget { threads, ..self }
    }

    /// A budget for `buffers` buffers whose plan is awaited: at worst about 0.1 s for 16,000, a
    /// second for 96,000 and ten for a million on one core, and much less if a proof comes first,
    /// as it mostly does. A tight problem of a few hundred buffers takes half a second more.
    pub fn interactive(buffers: usize) -> Budget {
        let buffers = buffers.max(1);
        // In a large problem an attempt is what somebody waits for: few, the best ones.
        let attempts = (100_000 / buffers).max((1_000_000 / buffers).min(9)).clamp(4, 401);
        Budget::attempts(attempts as u32).with_nodes(nodes_at_once(buffers))
    }
}

/// What became of one planner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// The planner with its settings.
    pub planner: Planner,
    /// The height of its solution in bytes; `None` if it gave up because it could not beat the
    /// best before it.
    pub height: Option<u64>,
}

/// The best that was found, and what is known of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The lowest solution, the first found of equals.
    pub solution: Solution,
    /// What no solution can be lower than.
    pub bound: Bound,
    /// What was tried, in order.
    pub attempts: Vec<Attempt>,
    /// Bytes that no solution can be lower than: the bound, or more if the exact search has shown it.
    pub least: u64,
    /// Nodes of the exact search; 0 if there was none.
    pub nodes: u64,
}

impl Outcome {
    /// Whether the solution is as low as can be.
    pub fn is_proven(&self) -> bool {
        self.solution.height == self.least
    }

    /// How far the solution is above the bound, as a part of the bound: 0.01 for 1 %.
    pub fn gap(&self) -> f64 {
        if self.bound.bytes == 0 {
            return 0.0;
        }
        (self.solution.height - self.bound.bytes) as f64 / self.bound.bytes as f64
    }
}

/// What is told after each attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Attempts made, with this one.
    pub done: u32,
    /// Attempts that the budget allows.
    pub of: u32,
    /// This attempt.
    pub attempt: Attempt,
    /// The height of the best solution in bytes, so far.
    pub height: u64,
    /// The lower bound in bytes.
    pub bound: u64,
}

/// Solves `problem` as well as the budget allows.
pub fn solve(problem: &Problem, budget: Budget) -> Result<Outcome, ProblemError> {
    solve_with(problem, budget, |_| ControlFlow::Continue(()))
}

/// Solves `problem` like [`solve`] and tells `progress` after each attempt, which may end the
/// search: the best so far is returned then.
pub fn solve_with(
    problem: &Problem,
    budget: Budget,
    progress: impl FnMut(Progress) -> ControlFlow<()>,
) -> Result<Outcome, ProblemError> {
    solve_among(problem, budget, schedule_for(problem.buffers.len()), progress)
}

/// Solves `problem` like [`solve_with`], with these planners in this order: what [`schedule_for`] is
/// without some of it says what they are worth.
///
/// # Panics
/// If there is no planner but folding.
pub fn solve_among(
    problem: &Problem,
    budget: Budget,
    planners: impl IntoIterator<Item = Planner>,
    mut progress: impl FnMut(Progress) -> ControlFlow<()>,
) -> Result<Outcome, ProblemError> {
    let bound = max_load(problem)?;
    let instance = Instance::new(problem)?;
    let mut bench = Bench::new(&instance, budget.threads, bound.bytes);
    let mut planners = planners.into_iter().peekable();
    let mut attempts = Vec::new();

    let mut of = budget.attempts.max(1);
    // Attempts that count, and whether somebody has had enough.
    let (mut spent, mut is_ended) = (0, false);
    'batches: while spent < budget.attempts.max(1) && !bench.is_proven() {
        let batch = next_batch(&mut planners, spent, budget.attempts.max(1) - spent);
        if batch.is_empty() {
            break;
        }
        let is_folding = batch[0] == Planner::Folded;
        for (planner, height) in batch.iter().zip(bench.run(&batch)) {
            if is_folding && height.tried.is_none() {
                continue;
            }
            let attempt = Attempt { planner: *planner, height: height.tried };
            attempts.push(attempt);
            of = of.saturating_add(u32::from(is_folding));
            spent += u32::from(!is_folding);
            let done = attempts.len() as u32;
            let told = Progress { done, of, attempt, height: height.best, bound: bound.bytes };
            if progress(told).is_break() {
                is_ended = true;
                break 'batches;
            }
        }
    }
    let solution = bench.solution(problem.buffers.len());
    let (least, nodes) = (bound.bytes, 0);
    let outcome = Outcome { solution, bound, attempts, least, nodes };
    if outcome.is_proven() || budget.nodes == 0 || is_ended {
        return Ok(outcome);
    }
    search(problem, outcome, budget, progress)
}

/// The planners that are tried next: folding alone, and of the others a batch, when `spent` attempts
/// were made and `left` are allowed.
fn next_batch(
    planners: &mut Peekable<impl Iterator<Item = Planner>>,
    spent: u32,
    left: u32,
) -> Vec<Planner> {
    if let Some(folded) = planners.next_if_eq(&Planner::Folded) {
        return vec![folded];
    }
    // The first two set the height to beat, and mostly prove it: they run side by side.
    let size = if spent == 0 { FIRST } else { BATCH }.min(left);
    let others = (0..size).map_while(|_| planners.next_if(|it| *it != Planner::Folded));
    others.collect()
}

/// Goes on from the best that the planners have found to the least height there is.
fn search(
    problem: &Problem,
    found: Outcome,
    budget: Budget,
    mut progress: impl FnMut(Progress) -> ControlFlow<()>,
) -> Result<Outcome, ProblemError> {
    let Outcome { solution, bound, attempts, .. } = found;
    let last = *attempts.last().expect("at least one planner was tried");
    let done = attempts.len() as u32;
    let of = budget.attempts.max(done);
    let goal = exact::Search { nodes: budget.nodes, enough: 0 };
    let exact::Outcome { solution, bound: least, nodes } =
        exact::improve(problem, solution, goal, |now| {
            let (height, bound) = (now.height, now.bound);
            progress(Progress { done, of, attempt: last, height, bound })
        })?;
    Ok(Outcome { solution, bound, attempts, least, nodes })
}

/// Every planner worth a try, the most promising first, without end: when all settings were had,
/// skylines with ever new noise go on. Folding is not among them, for it asks them in its turn.
pub fn schedule() -> impl Iterator<Item = Planner> {
    let explore = (0..).map(|round: u32| {
        let (size_weight, noise) = EXPLORED[round as usize % EXPLORED.len()];
        Planner::Skyline(Key { size_weight, noise, seed: 1 + round })
    });
    KNOWN.into_iter().chain(explore)
}

/// The [`schedule`] as it is best for so many buffers, with folding: after the first two where these
/// take no time, else before all. From 100,000 buffers on, where each attempt takes its time, what
/// proves nearly all schedules of pipelines comes before the first skyline.
pub fn schedule_for(buffers: usize) -> impl Iterator<Item = Planner> {
    let [skyline, by_area, by_life, ..] = KNOWN;
    let first =
        if buffers < LARGE { [skyline, by_area, by_life] } else { [by_area, by_life, skyline] };
    let before = if buffers < SMALL { FIRST as usize } else { 0 };
    let mut planners = first.into_iter().chain(schedule().skip(first.len()));
    let start: Vec<Planner> = planners.by_ref().take(before).chain([Planner::Folded]).collect();
    start.into_iter().chain(planners)
}

/// From so many buffers on a problem is large.
const LARGE: usize = 100_000;
/// Up to so many buffers an attempt takes a few milliseconds.
const SMALL: usize = 2_000;

/// Planners of [`schedule_for`] with [`KNOWN`] settings, and folding: what comes after so many are
/// skylines with ever new noise.
pub(crate) const SETTINGS: usize = KNOWN.len() + 1;

/// The settings that recorded and generated runs asked for. The first four are what a large problem
/// gets: a skyline proves most recorded runs, two-phase from the peak most schedules of pipelines.
const KNOWN: [Planner; 21] = [
    skyline(20, 0),
    two_phase(4, Direction::FromPeak, Order::Area),
    two_phase(4, Direction::FromPeak, Order::Life),
    two_phase(4, Direction::Forward, Order::Area),
    Planner::FirstFit(Order::Size),
    skyline(50, 3),
    two_phase(4, Direction::Reversed, Order::Size),
    skyline(0, 43),
    skyline(20, 14),
    skyline(30, 3),
    Planner::Sweep(Fit::Best, Direction::Forward),
    Planner::Sweep(Fit::First, Direction::Forward),
    Planner::Sweep(Fit::Best, Direction::Reversed),
    Planner::Sweep(Fit::First, Direction::Reversed),
    two_phase(8, Direction::Reversed, Order::Area),
    two_phase(10, Direction::Reversed, Order::Size),
    skyline(5, 0),
    skyline(85, 0),
    skyline(0, 0),
    Planner::FirstFit(Order::Area),
    Planner::FirstFit(Order::Life),
];

/// Weights of the size and widths of the noise that solve what ties and near ties keep from the
/// bound; noise of 3 % breaks ties alone.
const EXPLORED: [(u8, u16); 12] = [
    (0, 43),
    (50, 3),
    (20, 14),
    (5, 144),
    (10, 14),
    (50, 43),
    (20, 43),
    (80, 3),
    (0, 14),
    (10, 144),
    (30, 14),
    (70, 14),
];

const fn skyline(size_weight: u8, noise: u16) -> Planner {
    Planner::Skyline(Key { size_weight, noise, seed: 0 })
}

const fn two_phase(long_log2: u8, direction: Direction, order: Order) -> Planner {
    Planner::TwoPhase { long_log2, sweep: (Fit::First, direction), order }
}
