//! Which planners a problem is given to, and how much they try.
//!
//! ```text
//!  Strategy ─┬─ Auto, or one kind ─► portfolio: planners one after another, at last the exact search
//!            ├─ Exact ─────────────► the portfolio's first plan ─► exact search
//!            ├─ Stweaver ──────────► its one plan               } with the hints of a recording,
//!            └─ Memo ──────────────► two levels of the search   } if there are any
//! ```
//!
//! A [`Strategy`] is what a user chooses, as a value: a [`Method`], parts of it that are left out to
//! see what they are worth, an [`Effort`], and threads. The published planners go by more than the
//! buffers of a problem: a recording gives them [`Hints`].
//!
//! There is no clock here. Who has a limit of time looks at it when [`Progress`] is told, and ends
//! the search by the answer.

use std::ops::ControlFlow;

use girih_trace::{Iterations, Lifetimes, Trace};
use thiserror::Error;

use crate::bound::max_load;
use crate::exact::{self, Search};
use crate::memo::{self, Layers};
use crate::plan::Plan;
use crate::planner::Planner;
use crate::portfolio::{
    Budget, Outcome, SETTINGS, nodes_at_once, schedule_for, solve, solve_among,
};
use crate::problem::{Problem, ProblemError};
use crate::profile;
use crate::skyline::Key;
use crate::stweaver::{self, Bubbles, PhaseSpan, StweaverError, Timeline};

/// The planners that are asked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Method {
    /// The whole portfolio ([`mod@crate::portfolio`]), and the exact search at last.
    #[default]
    Auto,
    /// Of the portfolio, the sweeps.
    Sweep,
    /// Of the portfolio, first fit in each order.
    FirstFit,
    /// Of the portfolio, the planners in two phases.
    TwoPhase,
    /// Of the portfolio, the skylines.
    Skyline,
    /// Branch and bound alone ([`mod@exact`]), from the portfolio's first plan.
    Exact,
    /// The lowest plan of STWeaver's planner ([`mod@stweaver`]); by size where no phases are known.
    Stweaver,
    /// That planner by phase and size, with closed bubbles.
    StweaverClosed,
    /// The same with open bubbles.
    StweaverOpen,
    /// Memo's two levels ([`mod@memo`]), by the layers that are known, or else by what repeats.
    Memo,
}

impl Method {
    /// Every method.
    pub const ALL: [Method; 10] = [
        Method::Auto,
        Method::Sweep,
        Method::FirstFit,
        Method::TwoPhase,
        Method::Skyline,
        Method::Exact,
        Method::Stweaver,
        Method::StweaverClosed,
        Method::StweaverOpen,
        Method::Memo,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Method::Auto => "auto",
            Method::Sweep => "sweep",
            Method::FirstFit => "first-fit",
            Method::TwoPhase => "two-phase",
            Method::Skyline => "skyline",
            Method::Exact => "exact",
            Method::Stweaver => "stweaver",
            Method::StweaverClosed => "stweaver-closed",
            Method::StweaverOpen => "stweaver-open",
            Method::Memo => "memo",
        }
    }

    /// What it is, in a sentence.
    pub fn about(self) -> &'static str {
        match self {
            Method::Auto => "All of them",
            Method::Sweep => "A walk through time that places each buffer at its birth",
            Method::FirstFit => "First fit in the order of sizes, areas or lives",
            Method::TwoPhase => "What lives long by a sweep, the rest by first fit",
            Method::Skyline => "The lowest valley of the skyline",
            Method::Exact => {
                "Branch and bound, from the first plan that auto tries: the least height there is, if \
                 there is time to prove it"
            }
            Method::Stweaver => {
                "STWeaver's static planner, the lowest of its plans: by phase and size in both ways \
                 below, and by size alone, which is all where no phases are known"
            }
            Method::StweaverClosed => {
                "The same by phase and size as its paper has it: each group is a rectangle of its own"
            }
            Method::StweaverOpen => {
                "The same by phase and size as released: others use what a group leaves idle"
            }
            Method::Memo => "Memo's two levels: one layer for all that are alike, then the whole",
        }
    }

    /// True if it is no part of the portfolio, so that nothing can be left out of it.
    pub fn stands_alone(self) -> bool {
        self == Method::Exact || self.takes_hints()
    }

    /// True if it goes by what a recording tells besides the buffers: see [`Hints`].
    pub fn takes_hints(self) -> bool {
        matches!(
            self,
            Method::Stweaver | Method::StweaverClosed | Method::StweaverOpen | Method::Memo
        )
    }

    fn includes(self, planner: &Planner) -> bool {
        match self {
            Method::Auto => true,
            Method::Sweep => matches!(planner, Planner::Sweep(..)),
            Method::FirstFit => matches!(planner, Planner::FirstFit(_)),
            Method::TwoPhase => matches!(planner, Planner::TwoPhase { .. }),
            Method::Skyline => matches!(planner, Planner::Skyline(_)),
            Method::Exact
            | Method::Stweaver
            | Method::StweaverClosed
            | Method::StweaverOpen
            | Method::Memo => false,
        }
    }
}

/// What can be left out, to see what it is worth.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Part {
    /// All sweeps.
    Sweep,
    /// All first fits.
    FirstFit,
    /// All planners in two phases.
    TwoPhase,
    /// All skylines.
    Skyline,
    /// Skylines with noise.
    Noise,
    /// Folding of what repeats.
    Folding,
    /// The exact search that comes last.
    Exact,
    /// Rooms that requests share whose sizes differ from step to step: no planner, but a part of
    /// the problem that a recording poses.
    Rooms,
}

impl Part {
    /// Every part.
    pub const ALL: [Part; 8] = [
        Part::Sweep,
        Part::FirstFit,
        Part::TwoPhase,
        Part::Skyline,
        Part::Noise,
        Part::Folding,
        Part::Exact,
        Part::Rooms,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Part::Sweep => "sweep",
            Part::FirstFit => "first-fit",
            Part::TwoPhase => "two-phase",
            Part::Skyline => "skyline",
            Part::Noise => "noise",
            Part::Folding => "folding",
            Part::Exact => "exact",
            Part::Rooms => "rooms",
        }
    }

    /// What it is, in a sentence.
    pub fn about(self) -> &'static str {
        match self {
            Part::Sweep => "All sweeps",
            Part::FirstFit => "All first fits",
            Part::TwoPhase => "All two-phase planners",
            Part::Skyline => "All skylines",
            Part::Noise => "Skylines with noise",
            Part::Folding => "Folding of what repeats",
            Part::Exact => "The exact search that comes last",
            Part::Rooms => "Rooms that requests share whose sizes differ from step to step",
        }
    }

    fn includes(self, planner: &Planner) -> bool {
        match self {
            Part::Sweep => Method::Sweep.includes(planner),
            Part::FirstFit => Method::FirstFit.includes(planner),
            Part::TwoPhase => Method::TwoPhase.includes(planner),
            Part::Skyline => Method::Skyline.includes(planner),
            Part::Exact | Part::Rooms => false,
            Part::Noise => matches!(planner, Planner::Skyline(Key { noise: 1.., .. })),
            Part::Folding => matches!(planner, Planner::Folded),
        }
    }
}

/// How much is tried.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Effort {
    /// What a plan that is awaited may take ([`Budget::interactive`]); a search that stands alone
    /// takes a second or two at most.
    #[default]
    Interactive,
    /// So many planners with their settings, and for each a thousand nodes of the exact search. The
    /// same on any machine.
    Attempts(u32),
    /// As much as there is, until the one who is told of the progress has had enough.
    Unlimited,
}

/// Nodes of the exact search for each attempt.
const NODES: u64 = 1000;

/// Nodes of the exact search that take a second or two, times the square of the buffers: about what
/// a node costs, if the problem is not small.
const NODES_AT_ONCE: u64 = 10_000_000_000;

/// What a recording tells of a planning problem besides its buffers.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// The phases in which its buffers come and go, one pair for each; none in a bare problem.
    pub phases: Option<Vec<PhaseSpan>>,
    /// The passes through layers that its modules mark. What repeats beside them is looked for.
    pub layers: Layers,
}

/// Why there is no such strategy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum StrategyError {
    /// Something is left out of a method that is not made of it.
    #[error("leave nothing out: the method stands alone")]
    StandsAlone,
    /// All planners of the method are left out. Folding alone is none, for it finds no plan where
    /// nothing repeats.
    #[error("leave less out: no planner of the method is left")]
    NoPlanner,
}

/// How far a search is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Progress {
    /// The height of the best solution so far, in bytes.
    pub height: u64,
    /// What it cannot be lower than, as far as is known, in bytes.
    pub bound: u64,
    /// What was done for it.
    pub done: Done,
    /// The part of a limit of time that may be over when what is under way ends, from 0 to 1: an
    /// answer of [`ControlFlow::Break`] ends this, and what comes after it has the rest.
    pub share: f64,
}

/// What a search has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// So many planners with their settings.
    Attempts(u32),
    /// So many nodes of the exact search.
    Nodes(u64),
    /// It is at a problem of Memo's two levels.
    Problem {
        /// The level, 1 or 2.
        level: u8,
        /// The number of the problem within the level, from 1.
        number: usize,
        /// Problems of the level.
        of: usize,
    },
}

/// How a problem is planned. See the [module](self).
#[derive(Clone, Debug)]
pub struct Strategy {
    method: Method,
    without: Vec<Part>,
    effort: Effort,
    threads: u32,
}

/// The whole portfolio, as long as somebody waits for it, on one thread.
impl Default for Strategy {
    fn default() -> Strategy {
        let (method, effort) = (Method::default(), Effort::default());
        Strategy { method, without: Vec::new(), effort, threads: 1 }
    }
}

impl Strategy {
    /// A method without these parts of it, on one thread, with the usual effort.
    ///
    /// # Errors
    /// If the method stands alone and a part other than [`Part::Rooms`] is left out, or if no planner
    /// remains.
    pub fn new(method: Method, without: &[Part]) -> Result<Strategy, StrategyError> {
        if method.stands_alone() && without.iter().any(|&part| part != Part::Rooms) {
            return Err(StrategyError::StandsAlone);
        }
        let strategy = Strategy { method, without: without.to_vec(), ..Strategy::default() };
        let is_empty = strategy.planners(0).all(|planner| planner == Planner::Folded);
        if is_empty && !method.stands_alone() {
            return Err(StrategyError::NoPlanner);
        }
        Ok(strategy)
    }

    /// The same with this effort.
    pub fn with_effort(self, effort: Effort) -> Strategy {
        Strategy { effort, ..self }
    }

    /// The same on so many threads, at least 1; the outcome is the same with any number.
    pub fn on_threads(self, threads: u32) -> Strategy {
        Strategy { threads, ..self }
    }

    /// Makes a plan of a trace as [`profile::plan`] does, with rooms or without.
    ///
    /// # Errors
    /// As there.
    pub fn plan(
        &self,
        trace: &Trace,
        lives: &Lifetimes,
        iterations: &Iterations,
        solve: impl FnOnce(&Problem) -> Result<Outcome, ProblemError>,
    ) -> Result<Plan, ProblemError> {
        if self.leaves_out(Part::Rooms) {
            profile::plan_without_rooms(trace, lives, iterations, solve)
        } else {
            profile::plan(trace, lives, iterations, solve)
        }
    }

    /// The problem that [`Strategy::plan`] asks of the trace, and what the phases and the modules of
    /// the trace tell of it.
    ///
    /// # Errors
    /// As there.
    pub fn hints(
        &self,
        trace: &Trace,
        lives: &Lifetimes,
        iterations: &Iterations,
    ) -> Result<(Problem, Hints), ProblemError> {
        let mut problem = Problem::default();
        let plan = self.plan(trace, lives, iterations, |asked| {
            problem.clone_from(asked);
            // Only the shape of the plan is looked at.
            solve(asked, Budget::attempts(1))
        })?;
        let phases = Timeline::of(&plan, trace, lives, iterations).spans(&problem);
        let layers = Layers::marked(&plan, trace, lives, iterations);
        Ok((problem, Hints { phases: Some(phases), layers }))
    }

    /// Solves a problem, of which `hints` tell more, and says now and then how far it is. STWeaver's
    /// planner, which has one plan, says nothing.
    ///
    /// # Errors
    /// If the problem has no meaning.
    ///
    /// # Panics
    /// If the hints have phases of another problem.
    pub fn solve(
        &self,
        problem: &Problem,
        hints: Hints,
        progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Outcome, ProblemError> {
        match self.method {
            Method::Exact => self.exact(problem, progress),
            Method::Stweaver | Method::StweaverClosed | Method::StweaverOpen => {
                self.by_stweaver(problem, hints.phases.as_deref())
            }
            Method::Memo => self.memo(problem, hints.layers, progress),
            _ => self.portfolio(problem, progress),
        }
    }

    fn leaves_out(&self, part: Part) -> bool {
        self.without.contains(&part)
    }

    /// The planners of the portfolio that are tried on so many buffers, in order. Skylines with
    /// noise go on without end.
    fn planners(&self, buffers: usize) -> impl Iterator<Item = Planner> + '_ {
        let is_endless = matches!(self.method, Method::Auto | Method::Skyline)
            && !self.leaves_out(Part::Skyline)
            && !self.leaves_out(Part::Noise);
        let count = if is_endless { usize::MAX } else { SETTINGS };
        schedule_for(buffers).take(count).filter(|planner| {
            self.method.includes(planner) && !self.without.iter().any(|part| part.includes(planner))
        })
    }

    /// Planners of ours, one after another.
    fn portfolio(
        &self,
        problem: &Problem,
        mut progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Outcome, ProblemError> {
        let buffers = problem.buffers.len();
        let budget = self.budget_for(buffers).on_threads(self.threads);
        solve_among(problem, budget, self.planners(buffers), |now| {
            let (height, bound, done) = (now.height, now.bound, Done::Attempts(now.done));
            progress(Progress { height, bound, done, share: 1.0 })
        })
    }

    /// Branch and bound alone.
    fn exact(
        &self,
        problem: &Problem,
        mut progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Outcome, ProblemError> {
        let first = solve(problem, Budget::attempts(1))?;
        let goal = Search { nodes: self.nodes_for(problem), enough: 0 };
        let found = exact::improve(problem, first.solution, goal, |now| {
            let (height, bound, done) = (now.height, now.bound, Done::Nodes(now.nodes));
            progress(Progress { height, bound, done, share: 1.0 })
        })?;
        let exact::Outcome { solution, bound: least, nodes } = found;
        Ok(Outcome { solution, least, nodes, ..first })
    }

    /// STWeaver's planner, which has no budget.
    fn by_stweaver(
        &self,
        problem: &Problem,
        phases: Option<&[PhaseSpan]>,
    ) -> Result<Outcome, ProblemError> {
        let with = |phases: &[PhaseSpan]| match self.method {
            Method::StweaverClosed => stweaver::plan(problem, phases, Bubbles::Closed),
            Method::StweaverOpen => stweaver::plan(problem, phases, Bubbles::Open),
            _ => stweaver::plan_as_released(problem, phases),
        };
        let solution = match phases.map(with) {
            None => stweaver::plan_by_size(problem)?,
            Some(Ok(solution)) => solution,
            Some(Err(StweaverError::Problem(error))) => return Err(error),
            Some(Err(error @ StweaverError::Phases { .. })) => {
                panic!("phases of another problem: {error}")
            }
        };
        let bound = max_load(problem)?;
        Ok(Outcome { solution, least: bound.bytes, bound, attempts: Vec::new(), nodes: 0 })
    }

    /// Memo's two levels. Of a limit of time, the first level has the first half.
    fn memo(
        &self,
        problem: &Problem,
        layers: Layers,
        mut progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Outcome, ProblemError> {
        let settings = memo::Settings::searching(self.nodes_for(problem));
        let layers = layers.or_repeated(problem);
        let found = memo::plan_with(problem, &layers, settings, |now| {
            let memo::Progress { level, number, of, height, bound, .. } = now;
            let share = if level == 1 { number as f64 / of as f64 / 2.0 } else { 1.0 };
            progress(Progress { height, bound, done: Done::Problem { level, number, of }, share })
        })?;
        let (bound, nodes) = (max_load(problem)?, found.nodes());
        let memo::Outcome { solution, least, attempts, .. } = found;
        Ok(Outcome { solution, bound, attempts, least, nodes })
    }

    /// Nodes of a search that stands alone.
    fn nodes_for(&self, problem: &Problem) -> u64 {
        match self.effort {
            Effort::Interactive => {
                let buffers = problem.buffers.len();
                let of_any = NODES_AT_ONCE / (buffers.max(1) as u64).pow(2);
                of_any.min(50_000).max(nodes_at_once(buffers))
            }
            Effort::Attempts(thousands) => NODES * u64::from(thousands),
            Effort::Unlimited => u64::MAX,
        }
    }

    /// What the portfolio may take. The exact search is its last planner, and without a limit has all
    /// that is left.
    fn budget_for(&self, buffers: usize) -> Budget {
        let usual = Budget::interactive(buffers);
        let is_exact =
            self.method == Method::Auto && !self.leaves_out(Part::Exact) && usual.nodes > 0;
        match self.effort {
            Effort::Interactive if is_exact => usual,
            Effort::Interactive => usual.with_nodes(0),
            Effort::Attempts(attempts) if is_exact => {
                Budget::attempts(attempts).with_nodes(NODES * u64::from(attempts))
            }
            Effort::Attempts(attempts) => Budget::attempts(attempts),
            Effort::Unlimited if is_exact => usual.with_nodes(u64::MAX),
            Effort::Unlimited => Budget::attempts(u32::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strategy(method: Method, without: &[Part]) -> Strategy {
        Strategy::new(method, without).expect("a planner is left")
    }

    #[test]
    fn every_method_has_its_planners_and_what_is_left_out_is_not_tried() {
        for method in Method::ALL {
            let tried = strategy(method, &[]).planners(0).next();
            assert_eq!(tried.is_some(), !method.stands_alone(), "{method:?}");
        }
        for part in Part::ALL.into_iter().filter(|part| !matches!(part, Part::Exact | Part::Rooms))
        {
            let all = strategy(Method::Auto, &[]);
            assert!(all.planners(0).take(SETTINGS).any(|planner| part.includes(&planner)));
            let left = strategy(Method::Auto, &[part]);
            let mut left = left.planners(0).take(500);
            assert!(left.all(|planner| !part.includes(&planner)), "{part:?}");
        }
    }

    #[test]
    fn after_the_settings_come_skylines_with_noise_alone() {
        for buffers in [0, 10_000, 1_000_000] {
            let mut later = schedule_for(buffers).skip(SETTINGS).take(500);
            assert!(later.all(|planner| Part::Noise.includes(&planner)), "{buffers}");
            let last = schedule_for(buffers).take(SETTINGS).last();
            assert_eq!(last, Some(Planner::FirstFit(crate::Order::Life)), "{buffers}");
        }
    }

    #[test]
    fn the_exact_search_is_the_last_of_auto_alone_and_has_what_the_effort_leaves() {
        let nodes = |method, without: &[Part], effort, buffers| {
            strategy(method, without).with_effort(effort).budget_for(buffers).nodes
        };
        let efforts = [Effort::Interactive, Effort::Attempts(7), Effort::Unlimited];
        assert_eq!(efforts.map(|it| nodes(Method::Auto, &[], it, 10)), [250_000, 7_000, u64::MAX]);
        for effort in efforts {
            assert_eq!(nodes(Method::Auto, &[Part::Exact], effort, 10), 0);
            assert_eq!(nodes(Method::Skyline, &[], effort, 10), 0);
            assert_eq!(nodes(Method::Auto, &[], effort, 100_000), 0, "that many are out of reach");
        }
    }
}
