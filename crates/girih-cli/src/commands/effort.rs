//! How much a command plans, and with which planners: the options that commands share.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::{Args, ValueEnum};
use girih_plan::bound::max_load;
use girih_plan::exact::{self, Search};
use girih_plan::memo::{self, Layers, Settings};
use girih_plan::portfolio::{schedule_for, solve_among};
use girih_plan::stweaver::{self, PhaseSpan, StweaverError, Timeline};
use girih_plan::{Budget, Key, Outcome, Plan, Planner, Problem, ProblemError, profile, solve};

use crate::load::Loaded;
use crate::progress::Progress;
use crate::units::bytes;

/// How much is tried.
#[derive(Args, Clone, Debug)]
pub(crate) struct Effort {
    /// How much is tried: planners with their settings by number, the same outcome on any machine
    /// (200), or a time (500ms, 10s, 2m). For exact and memo the number is of thousands of nodes of
    /// the search tree, and half of the time is the first level's; stweaver does all that it can.
    /// Without this, what a plan that is awaited may take. What is found when Ctrl-C comes is kept.
    #[arg(long, value_name = "NUMBER|TIME", value_parser = parse_limit)]
    budget: Option<Limit>,
    /// The planner; auto is all of them, one after another, until one is proven best.
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    planner: Kind,
    /// Leaves these out: what they are worth.
    #[arg(long, value_name = "NAME", value_enum)]
    without: Vec<Trick>,
    /// Threads that plan. The outcome is the same with any number. Without this, all of the machine.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// True once Ctrl-C has come; none as long as nobody watches for it.
    #[arg(skip)]
    stopped: RefCell<Option<Arc<AtomicBool>>>,
}

/// Where the search ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Limit {
    Attempts(u32),
    Time(Duration),
}

/// A planner by name, whatever its settings.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Kind {
    /// All of them.
    #[default]
    Auto,
    /// A walk through time that places each buffer at its birth.
    Sweep,
    /// First fit in the order of sizes, areas or lives.
    FirstFit,
    /// What lives long by a sweep, the rest by first fit.
    TwoPhase,
    /// The lowest valley of the skyline.
    Skyline,
    /// Branch and bound, from the first plan that auto tries: the least height there is, if there
    /// is time to prove it.
    Exact,
    /// STWeaver's static planner: its second step, by size, where no phases are known.
    Stweaver,
    /// Memo's two levels: one layer for all that are alike, then the whole.
    Memo,
}

/// What a recording tells of a planning problem besides its buffers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// The phases in which its buffers come and go, one pair for each; none in a bare problem.
    pub(crate) phases: Option<Vec<PhaseSpan>>,
    /// The passes through layers that its modules mark. What repeats beside them is looked for.
    pub(crate) layers: Layers,
}

/// What can be left out.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Trick {
    /// All sweeps.
    Sweep,
    /// All first fits.
    FirstFit,
    /// All two-phase planners.
    TwoPhase,
    /// All skylines.
    Skyline,
    /// Skylines with noise.
    Noise,
    /// Folding of what repeats.
    Folding,
    /// The exact search that comes last.
    Exact,
    /// Rooms that requests share whose sizes differ from step to step.
    Rooms,
}

impl Known {
    /// What the phases and the modules of a recording tell of the problem that its steady iteration
    /// poses, and the problem.
    pub(crate) fn of(loaded: &Loaded) -> Result<(Problem, Known), ProblemError> {
        let Loaded { trace, lives, iterations, .. } = loaded;
        let mut problem = Problem::default();
        let plan = profile::plan(trace, lives, iterations, |asked| {
            problem.clone_from(asked);
            // Only the shape of the plan is looked at.
            solve(asked, Budget::attempts(1))
        })?;
        let phases = Timeline::of(&plan, trace, lives, iterations).spans(&problem);
        let layers = Layers::marked(&plan, trace, lives, iterations);
        Ok((problem, Known { phases: Some(phases), layers }))
    }
}

impl Kind {
    /// Whether it is none of the planners that a portfolio is made of.
    fn stands_alone(self) -> bool {
        matches!(self, Kind::Exact | Kind::Stweaver | Kind::Memo)
    }

    fn is_one(self, planner: &Planner) -> bool {
        match self {
            Kind::Auto => true,
            Kind::Sweep => matches!(planner, Planner::Sweep(..)),
            Kind::FirstFit => matches!(planner, Planner::FirstFit(_)),
            Kind::TwoPhase => matches!(planner, Planner::TwoPhase { .. }),
            Kind::Skyline => matches!(planner, Planner::Skyline(_)),
            Kind::Exact | Kind::Stweaver | Kind::Memo => false,
        }
    }
}

impl Trick {
    fn is_used(self, planner: &Planner) -> bool {
        match self {
            Trick::Sweep => Kind::Sweep.is_one(planner),
            Trick::FirstFit => Kind::FirstFit.is_one(planner),
            Trick::TwoPhase => Kind::TwoPhase.is_one(planner),
            Trick::Skyline => Kind::Skyline.is_one(planner),
            Trick::Exact | Trick::Rooms => false,
            Trick::Noise => matches!(planner, Planner::Skyline(Key { noise: 1.., .. })),
            Trick::Folding => matches!(planner, Planner::Folded),
        }
    }
}

/// The planners of a kind without those that use what is left out, in the order in which they are
/// tried on so many buffers. Skylines with noise go on without end.
fn planners(kind: Kind, without: &[Trick], buffers: usize) -> Box<dyn Iterator<Item = Planner>> {
    let wanted = move |without: &[Trick], planner: &Planner| {
        kind.is_one(planner) && !without.iter().any(|trick| trick.is_used(planner))
    };
    let is_endless = matches!(kind, Kind::Auto | Kind::Skyline)
        && !without.iter().any(|trick| matches!(trick, Trick::Skyline | Trick::Noise));
    let count = if is_endless { usize::MAX } else { KNOWN };
    let without = without.to_vec();
    Box::new(schedule_for(buffers).take(count).filter(move |planner| wanted(&without, planner)))
}

/// So many planners of the schedule have all kinds among them, and all but skylines with noise.
const KNOWN: usize = 25;
/// Nodes of the exact search for each attempt of a budget.
const NODES: u64 = 1000;

/// Nodes of the exact search that take a second or two, times the square of the buffers: about what
/// a node costs, if the problem is not small.
const NODES_AT_ONCE: u64 = 10_000_000_000;

impl Effort {
    /// True if Ctrl-C has ended the search.
    pub(crate) fn was_cut_short(&self) -> bool {
        self.stopped.borrow().as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// True if the planner goes by what a recording tells besides its buffers.
    pub(crate) fn wants_to_know(&self) -> bool {
        matches!(self.planner, Kind::Stweaver | Kind::Memo)
    }

    /// The planner of a recording with this effort.
    pub(crate) fn plan(
        &self,
        loaded: &Loaded,
        solve: impl FnOnce(&Problem) -> Result<Outcome, ProblemError>,
    ) -> Result<Plan, ProblemError> {
        let Loaded { trace, lives, iterations, .. } = loaded;
        if self.without.contains(&Trick::Rooms) {
            profile::plan_without_rooms(trace, lives, iterations, solve)
        } else {
            profile::plan(trace, lives, iterations, solve)
        }
    }

    /// What plans a problem with this effort, and says on a terminal how far it is. An error if no
    /// planner is left.
    pub(crate) fn solver(
        &self,
        progress: &Progress,
    ) -> anyhow::Result<impl FnOnce(&Problem) -> Result<Outcome, ProblemError>> {
        self.solver_knowing(Known::default(), progress)
    }

    /// The same, with what is known of the problem.
    pub(crate) fn solver_knowing(
        &self,
        known: Known,
        progress: &Progress,
    ) -> anyhow::Result<impl FnOnce(&Problem) -> Result<Outcome, ProblemError>> {
        let leaves_out = self.without.iter().any(|&trick| trick != Trick::Rooms);
        if self.planner.stands_alone() && leaves_out {
            bail!(
                "--without leaves out planners of auto, and --planner names one that is none of them"
            );
        }
        // Folding finds no plan where nothing repeats.
        let is_empty =
            planners(self.planner, &self.without, 0).all(|planner| planner == Planner::Folded);
        if is_empty && !self.planner.stands_alone() {
            bail!("no planner is left: --without takes away all that --planner names");
        }
        let stop = Stop::new(self.budget);
        *self.stopped.borrow_mut() = stop.by_ctrl_c.clone();
        Ok(move |problem: &Problem| {
            let stop = stop.begun();
            match self.planner {
                Kind::Exact => self.exact(problem, &stop, progress),
                Kind::Stweaver => by_stweaver(problem, known.phases.as_deref()),
                Kind::Memo => self.memo(problem, known.layers, &stop, progress),
                _ => self.portfolio(problem, &stop, progress),
            }
        })
    }

    /// Planners of ours, one after another.
    fn portfolio(
        &self,
        problem: &Problem,
        stop: &Stop,
        progress: &Progress,
    ) -> Result<Outcome, ProblemError> {
        let threads = self.threads.unwrap_or_else(all_threads);
        let budget = self.budget_for(problem).on_threads(threads);
        let planners = planners(self.planner, &self.without, problem.buffers.len());
        solve_among(problem, budget, planners, |now| {
            say(progress, now.height, now.bound, &format!("after {}", now.done));
            stop.after(1.0)
        })
    }

    /// Branch and bound alone, from the first plan of the portfolio.
    fn exact(
        &self,
        problem: &Problem,
        stop: &Stop,
        progress: &Progress,
    ) -> Result<Outcome, ProblemError> {
        let first = solve(problem, Budget::attempts(1))?;
        let goal = Search { nodes: self.nodes_for(problem), enough: 0 };
        let found = exact::improve(problem, first.solution, goal, |now| {
            say(progress, now.height, now.bound, &format!("after {} nodes", now.nodes));
            stop.after(1.0)
        })?;
        let exact::Outcome { solution, bound: least, nodes } = found;
        Ok(Outcome { solution, least, nodes, ..first })
    }

    /// Memo's two levels. Of a time, the first level has the first half.
    fn memo(
        &self,
        problem: &Problem,
        layers: Layers,
        stop: &Stop,
        progress: &Progress,
    ) -> Result<Outcome, ProblemError> {
        let settings = Settings::searching(self.nodes_for(problem));
        let layers = layers.or_repeated(problem);
        let found = memo::plan_with(problem, &layers, settings, |now| {
            let memo::Progress { level, number, of, height, bound, .. } = now;
            say(progress, height, bound, &format!("in {number} of {of} at level {level}"));
            let share = number as f64 / of as f64;
            stop.after(if level == 1 { share / 2.0 } else { 1.0 })
        })?;
        let (bound, nodes) = (max_load(problem)?, found.nodes());
        let memo::Outcome { solution, least, attempts, .. } = found;
        Ok(Outcome { solution, bound, attempts, least, nodes })
    }

    /// Nodes of the search that is a planner of its own: a second or so without a budget.
    fn nodes_for(&self, problem: &Problem) -> u64 {
        match self.budget {
            None => (NODES_AT_ONCE / (problem.buffers.len().max(1) as u64).pow(2)).min(50_000),
            Some(Limit::Attempts(thousands)) => NODES * u64::from(thousands),
            Some(Limit::Time(_)) => u64::MAX,
        }
    }

    /// The exact search is the portfolio's last planner; in a given time it has all that is left.
    fn budget_for(&self, problem: &Problem) -> Budget {
        let usual = Budget::interactive(problem.buffers.len());
        let is_exact =
            self.planner == Kind::Auto && !self.without.contains(&Trick::Exact) && usual.nodes > 0;
        match self.budget {
            None if is_exact => usual,
            None => usual.with_nodes(0),
            Some(Limit::Attempts(attempts)) if is_exact => {
                Budget::attempts(attempts).with_nodes(NODES * u64::from(attempts))
            }
            Some(Limit::Attempts(attempts)) => Budget::attempts(attempts),
            Some(Limit::Time(_)) if is_exact => usual.with_nodes(u64::MAX),
            Some(Limit::Time(_)) => Budget::attempts(u32::MAX),
        }
    }
}

/// STWeaver's planner, which has no budget and tries one plan.
fn by_stweaver(problem: &Problem, phases: Option<&[PhaseSpan]>) -> Result<Outcome, ProblemError> {
    let solution = match phases {
        None => stweaver::plan_by_size(problem)?,
        Some(phases) => match stweaver::plan(problem, phases) {
            Ok(solution) => solution,
            Err(StweaverError::Problem(error)) => return Err(error),
            Err(error @ StweaverError::Phases { .. }) => {
                panic!("phases of another problem: {error}")
            }
        },
    };
    let bound = max_load(problem)?;
    Ok(Outcome { solution, least: bound.bytes, bound, attempts: Vec::new(), nodes: 0 })
}

/// Says how far the planning is.
fn say(progress: &Progress, height: u64, bound: u64, after: &str) {
    let gap = (height - bound) as f64 / (bound.max(1)) as f64 * 100.0;
    progress.say(format!("planning: {} {after}, {gap:.4} % above the bound", bytes(height)));
}

/// When to stop: when the time is over, or Ctrl-C has come.
#[derive(Clone, Debug)]
struct Stop {
    time: Option<Duration>,
    begun: Option<Instant>,
    by_ctrl_c: Option<Arc<AtomicBool>>,
}

impl Stop {
    fn new(budget: Option<Limit>) -> Stop {
        let time = match budget {
            Some(Limit::Time(time)) => Some(time),
            Some(Limit::Attempts(_)) | None => None,
        };
        Stop { time, begun: None, by_ctrl_c: budget.and_then(|_| stopped_by_ctrl_c()) }
    }

    /// The time begins now.
    #[expect(clippy::disallowed_methods, reason = "a person has asked for a time")]
    fn begun(self) -> Stop {
        Stop { begun: self.time.map(|_| Instant::now()), ..self }
    }

    /// Whether to go on, for what has this part of the time.
    fn after(&self, part: f64) -> ControlFlow<()> {
        let is_past =
            |begun: Instant| self.time.is_some_and(|time| begun.elapsed() >= time.mul_f64(part));
        let is_stopped = self.by_ctrl_c.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed));
        if is_stopped || self.begun.is_some_and(is_past) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// The processors that this process may use.
fn all_threads() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u32)
}

/// True from the first Ctrl-C on; a second one ends the command. None if Ctrl-C cannot be watched
/// for: then the first does.
fn stopped_by_ctrl_c() -> Option<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let handler = move || {
        if told.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    };
    ctrlc::try_set_handler(handler).ok().map(|()| stop)
}

fn parse_limit(text: &str) -> Result<Limit, String> {
    let wrong = || format!("`{text}` is neither a number (200) nor a time (500ms, 10s, 2m)");
    if let Ok(attempts) = text.parse::<u32>() {
        return if attempts > 0 { Ok(Limit::Attempts(attempts)) } else { Err(wrong()) };
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let milliseconds = match &text[digits.len()..] {
        "ms" => 1.0,
        "s" => 1000.0,
        "m" => 60_000.0,
        _ => return Err(wrong()),
    };
    let number: f64 = digits.trim_end().parse().map_err(|_| wrong())?;
    let time = Duration::try_from_secs_f64(number * milliseconds / 1000.0).map_err(|_| wrong())?;
    Ok(Limit::Time(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_a_number_or_a_time() {
        assert_eq!(parse_limit("200"), Ok(Limit::Attempts(200)));
        assert_eq!(parse_limit("10s"), Ok(Limit::Time(Duration::from_secs(10))));
        assert_eq!(parse_limit("1.5 m"), Ok(Limit::Time(Duration::from_secs(90))));
        assert_eq!(parse_limit("20ms"), Ok(Limit::Time(Duration::from_millis(20))));
        for wrong in ["", "0", "-3", "s", "10h", "-1s", "nans", "1e400s", "10 s s"] {
            let error = parse_limit(wrong).expect_err(wrong);
            assert!(error.contains("500ms"), "{error}");
        }
    }

    #[test]
    fn every_kind_of_planner_is_there_and_what_is_left_out_is_not() {
        for &kind in Kind::value_variants() {
            assert_eq!(planners(kind, &[], 0).next().is_some(), !kind.stands_alone(), "{kind:?}");
        }
        let of_planners = |trick: &&Trick| !matches!(trick, Trick::Exact | Trick::Rooms);
        for &trick in Trick::value_variants().iter().filter(of_planners) {
            assert!(
                planners(Kind::Auto, &[], 0).take(KNOWN).any(|planner| trick.is_used(&planner))
            );
            let mut left = planners(Kind::Auto, &[trick], 0).take(500);
            assert!(left.all(|planner| !trick.is_used(&planner)), "{trick:?}");
        }
        let later: Vec<Planner> = schedule_for(0).skip(KNOWN).take(500).collect();
        assert!(later.iter().all(|planner| Trick::Noise.is_used(planner)));
    }
}
