//! How much a command plans, and with which planners: the options that commands share, limits of time,
//! and Ctrl-C. What they mean is in [`girih_plan::strategy`].

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use clap::builder::TypedValueParser;
use girih_plan::strategy::{self, Done, Hints, Method, Part, StrategyError};
use girih_plan::{Outcome, Problem, ProblemError, Strategy};

use crate::interrupt;
use crate::names::one_of;
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
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = methods())]
    planner: Method,
    /// Leaves these out: what they are worth.
    #[arg(long, value_name = "NAME", value_parser = parts())]
    without: Vec<Part>,
    /// Threads that plan. The outcome is the same with any number. Without this, all of the machine.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// True once Ctrl-C has come; none as long as nobody watches for it.
    #[arg(skip)]
    stopped: RefCell<Option<&'static AtomicBool>>,
}

/// Where the search ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Limit {
    Attempts(u32),
    Time(Duration),
}

fn methods() -> impl TypedValueParser<Value = Method> {
    one_of(&Method::ALL, Method::name, Method::about)
}

fn parts() -> impl TypedValueParser<Value = Part> {
    one_of(&Part::ALL, Part::name, Part::about)
}

impl Effort {
    /// True if Ctrl-C has ended the search.
    pub(crate) fn was_cut_short(&self) -> bool {
        self.stopped.borrow().as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// True if the planner goes by what a recording tells besides its buffers.
    pub(crate) fn takes_hints(&self) -> bool {
        self.planner.takes_hints()
    }

    /// What was chosen. An error if no planner is left.
    pub(crate) fn strategy(&self) -> anyhow::Result<Strategy> {
        let effort = match self.budget {
            None => strategy::Effort::Interactive,
            Some(Limit::Attempts(attempts)) => strategy::Effort::Attempts(attempts),
            Some(Limit::Time(_)) => strategy::Effort::Unlimited,
        };
        match Strategy::new(self.planner, &self.without) {
            Ok(strategy) => Ok(strategy
                .with_effort(effort)
                .on_threads(self.threads.unwrap_or_else(all_threads))),
            Err(StrategyError::StandsAlone) => bail!(
                "leave --without out: --planner names one that stands alone, and is not made of others"
            ),
            Err(StrategyError::NoPlanner) => {
                bail!("leave less out: --without takes away all planners that --planner names")
            }
        }
    }

    /// What plans a problem by `strategy`, of which `hints` tell more, and says on a terminal how far
    /// it is. Ctrl-C ends it, and so does the end of the time that was given.
    pub(crate) fn solver(
        &self,
        strategy: &Strategy,
        hints: Hints,
        progress: &Progress,
    ) -> impl FnOnce(&Problem) -> Result<Outcome, ProblemError> {
        let stop = Stop::new(self.budget);
        *self.stopped.borrow_mut() = stop.by_ctrl_c;
        move |problem: &Problem| {
            let stop = stop.begun();
            strategy.solve(problem, hints, |now| {
                say(progress, now);
                stop.after(now.share)
            })
        }
    }
}

/// Says how far the planning is.
fn say(progress: &Progress, now: strategy::Progress) {
    let gap = (now.height - now.bound) as f64 / (now.bound.max(1)) as f64 * 100.0;
    let done = match now.done {
        Done::Attempts(attempts) => format!("after {attempts}"),
        Done::Nodes(nodes) => format!("after {nodes} nodes"),
        Done::Problem { level, number, of } => format!("in {number} of {of} at level {level}"),
    };
    progress.say(format!("planning: {} {done}, {gap:.4} % above the bound", bytes(now.height)));
}

/// When to stop: when the time is over, or Ctrl-C has come.
#[derive(Clone, Debug)]
struct Stop {
    time: Option<Duration>,
    begun: Option<Instant>,
    by_ctrl_c: Option<&'static AtomicBool>,
}

impl Stop {
    fn new(budget: Option<Limit>) -> Stop {
        let time = match budget {
            Some(Limit::Time(time)) => Some(time),
            Some(Limit::Attempts(_)) | None => None,
        };
        Stop { time, begun: None, by_ctrl_c: budget.map(|_| interrupt::wait_for_result()) }
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

fn parse_limit(text: &str) -> Result<Limit, String> {
    let wrong = || format!("write a number (200) or a time (500ms, 10s, 2m), not `{text}`");
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
    if time.is_zero() {
        return Err(wrong());
    }
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
        for wrong in ["", "0", "0s", "-3", "s", "10h", "-1s", "nans", "1e400s", "10 s s"] {
            let error = parse_limit(wrong).expect_err(wrong);
            assert!(error.contains("500ms"), "{error}");
        }
    }
}
