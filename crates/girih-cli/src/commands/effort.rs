//! How much a command plans, and with which planners: the options that commands share.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::{Args, ValueEnum};
use girih_plan::portfolio::{schedule, solve_among};
use girih_plan::{Budget, Key, Outcome, Planner, Problem, ProblemError};

use crate::progress::Progress;
use crate::units::bytes;

/// How much is tried.
#[derive(Args, Clone, Debug)]
pub(crate) struct Effort {
    /// How much is tried: planners with their settings by number, the same outcome on any machine
    /// (200), or a time (500ms, 10s, 2m). Without this, what a plan that is awaited may take. What
    /// is found when Ctrl-C comes is kept.
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
    /// The exact search that comes last.
    Exact,
}

impl Kind {
    fn is_one(self, planner: &Planner) -> bool {
        match self {
            Kind::Auto => true,
            Kind::Sweep => matches!(planner, Planner::Sweep(..)),
            Kind::FirstFit => matches!(planner, Planner::FirstFit(_)),
            Kind::TwoPhase => matches!(planner, Planner::TwoPhase { .. }),
            Kind::Skyline => matches!(planner, Planner::Skyline(_)),
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
            Trick::Exact => false,
            Trick::Noise => matches!(planner, Planner::Skyline(Key { noise: 1.., .. })),
        }
    }
}

/// The planners of a kind without those that use what is left out, in the order in which they are
/// tried. Skylines with noise go on without end.
fn planners(kind: Kind, without: &[Trick]) -> Box<dyn Iterator<Item = Planner>> {
    let wanted = move |without: &[Trick], planner: &Planner| {
        kind.is_one(planner) && !without.iter().any(|trick| trick.is_used(planner))
    };
    let is_endless = matches!(kind, Kind::Auto | Kind::Skyline)
        && !without.iter().any(|trick| matches!(trick, Trick::Skyline | Trick::Noise));
    let count = if is_endless { usize::MAX } else { KNOWN };
    let without = without.to_vec();
    Box::new(schedule().take(count).filter(move |planner| wanted(&without, planner)))
}

/// Planners of the schedule among which all kinds are.
const KNOWN: usize = 20;
/// Nodes of the exact search for each attempt of a budget.
const NODES: u64 = 1000;

impl Effort {
    /// What plans a problem with this effort, and says on a terminal how far it is. An error if no
    /// planner is left.
    pub(crate) fn solver(
        &self,
        progress: &Progress,
    ) -> anyhow::Result<impl FnOnce(&Problem) -> Result<Outcome, ProblemError>> {
        let mut planners = planners(self.planner, &self.without).peekable();
        if planners.peek().is_none() {
            bail!("no planner is left: --without takes away all that --planner names");
        }
        let threads = self.threads.unwrap_or_else(all_threads);
        let is_stopped = self.budget.and_then(|_| stopped_by_ctrl_c());
        Ok(move |problem: &Problem| {
            let budget = self.budget_for(problem).on_threads(threads);
            let until = self.until();
            solve_among(problem, budget, planners, |now| {
                let height = bytes(now.height);
                let gap = (now.height - now.bound) as f64 / (now.bound.max(1)) as f64 * 100.0;
                progress.say(format!(
                    "planning: {height} after {}, {gap:.4} % above the bound",
                    now.done
                ));
                let is_over = until.is_some_and(is_past)
                    || is_stopped.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed));
                if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
        })
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

    #[expect(clippy::disallowed_methods, reason = "a person has asked for a time")]
    fn until(&self) -> Option<Instant> {
        let Some(Limit::Time(time)) = self.budget else { return None };
        Instant::now().checked_add(time)
    }
}

#[expect(clippy::disallowed_methods, reason = "a person has asked for a time")]
fn is_past(instant: Instant) -> bool {
    Instant::now() >= instant
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
            assert!(planners(kind, &[]).next().is_some(), "{kind:?}");
        }
        for &trick in Trick::value_variants().iter().filter(|&&trick| trick != Trick::Exact) {
            assert!(planners(Kind::Auto, &[]).take(KNOWN).any(|planner| trick.is_used(&planner)));
            let mut left = planners(Kind::Auto, &[trick]).take(500);
            assert!(left.all(|planner| !trick.is_used(&planner)), "{trick:?}");
        }
        let later: Vec<Planner> = schedule().skip(KNOWN).take(500).collect();
        assert!(later.iter().all(|planner| Trick::Noise.is_used(planner)));
    }
}
