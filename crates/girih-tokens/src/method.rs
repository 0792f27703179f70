//! The methods by their names, and what each answers.

use std::borrow::Cow;

use girih_swap::Budgets;
use girih_swap::check::check;
use thiserror::Error;

use crate::bound::bound;
use crate::decision::Decision;
use crate::exact;
use crate::problem::Problem;
use crate::recount::recount;
use crate::timeline::{Outcome, peaks, run};
use crate::{baselines, girih, memo};

/// How it is decided what stays, goes, and is computed again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Method {
    /// For each layer by linear programs, the best of several.
    Girih,
    /// One alpha for all layers, as Memo's paper describes it.
    Memo,
    /// Everything goes but the last two layers.
    Swap,
    /// Whole tensors go, as few as possible.
    WholeTensors,
    /// Everything but the layers' inputs is computed again.
    Recompute,
    /// Everything stays.
    Plain,
    /// All decisions on a grid, of a few layers.
    Exact,
}

impl Method {
    /// Every method, the default first.
    pub const ALL: [Method; 7] = [
        Method::Girih,
        Method::Memo,
        Method::Swap,
        Method::WholeTensors,
        Method::Recompute,
        Method::Plain,
        Method::Exact,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Method::Girih => "girih",
            Method::Memo => "memo",
            Method::Swap => "swap",
            Method::WholeTensors => "whole-tensors",
            Method::Recompute => "recompute",
            Method::Plain => "plain",
            Method::Exact => "exact",
        }
    }

    /// The method of that name.
    pub fn from_name(name: &str) -> Option<Method> {
        Method::ALL.into_iter().find(|method| method.name() == name)
    }

    /// Decides. It need not keep the budgets: the answer says whether it does.
    ///
    /// # Errors
    /// If the method has nothing to say of such a problem.
    pub fn decide(self, problem: &Problem, budgets: &Budgets) -> Result<Decision, Refusal> {
        check_problem(problem)?;
        self.decide_on(&self.runs(problem), budgets)
    }

    /// The step as the method runs it.
    fn runs(self, problem: &Problem) -> Cow<'_, Problem> {
        match self {
            Method::Recompute => Cow::Owned(baselines::recomputed(problem)),
            _ => Cow::Borrowed(problem),
        }
    }

    fn decide_on(self, problem: &Problem, budgets: &Budgets) -> Result<Decision, Refusal> {
        Ok(match self {
            Method::Girih => girih::plan(problem, budgets),
            Method::Memo => memo::plan(problem, budgets),
            Method::Swap => baselines::swap(problem),
            Method::WholeTensors => baselines::whole_tensors(problem, budgets),
            Method::Recompute => baselines::recompute(problem),
            Method::Plain => Decision::plain(problem),
            Method::Exact if problem.layers.len() >= exact::PARTS.len() => {
                return Err(Refusal::TooManyLayers { layers: problem.layers.len() });
            }
            Method::Exact => exact::plan(problem, budgets)
                .unwrap_or_else(|| baselines::least(problem, budgets.host)),
        })
    }

    /// Whether the method keeps the budgets, without its times.
    ///
    /// # Errors
    /// As [`Method::decide`].
    pub fn fits(self, problem: &Problem, budgets: &Budgets) -> Result<bool, Refusal> {
        check_problem(problem)?;
        let problem = &*self.runs(problem);
        let decision = match self {
            // If the least does not fit, nothing does, and if it does, so does the answer.
            Method::Girih => baselines::least(problem, budgets.host),
            other => other.decide_on(problem, budgets)?,
        };
        Ok(within(peaks(problem, &decision), budgets))
    }

    /// Decides, runs and checks.
    ///
    /// # Errors
    /// As [`Method::decide`]; or if a checker refuses the answer, which is a mistake of this crate.
    pub fn answer(self, problem: &Problem, budgets: &Budgets) -> Result<Answer, Refusal> {
        check_problem(problem)?;
        let problem = &*self.runs(problem);
        let decision = self.decide_on(problem, budgets)?;
        let outcome = run(problem, &decision);
        recount(problem, &decision, &outcome).map_err(|fault| Refusal::Wrong(fault.to_string()))?;
        let (gpu, host) = (outcome.gpu_peak, outcome.host_peak);
        // The bytes on the GPU are those that were counted: that checker goes by instants, of which passes without
        // any time share one.
        let taken = Budgets { gpu: u64::MAX, host: Some(host) };
        check(&outcome.step, &problem.links, &taken, &outcome.schedule, &outcome.run)
            .map_err(|fault| Refusal::Wrong(fault.to_string()))?;
        let fits = within((gpu, host), budgets);
        // Who keeps larger budgets than were asked for is held against the bound of those.
        let kept = Budgets {
            gpu: budgets.gpu.max(gpu),
            host: budgets.host.map(|budget| budget.max(host)),
        };
        Ok(Answer { method: self, bound_us: bound(problem, &kept), decision, outcome, fits })
    }
}

fn within((gpu, host): (u64, u64), budgets: &Budgets) -> bool {
    gpu <= budgets.gpu && budgets.host.is_none_or(|budget| host <= budget)
}

fn check_problem(problem: &Problem) -> Result<(), Refusal> {
    match problem.layers.is_empty() || !problem.is_sound() {
        true => Err(Refusal::Unsound),
        false => Ok(()),
    }
}

/// Why there is no answer.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum Refusal {
    /// Numbers beyond all bounds, or no layers.
    #[error(
        "give layers, and numbers within bounds: 1 PiB, 30 years, {} layers",
        crate::problem::MAX_LAYERS
    )]
    Unsound,
    /// The exact method is for small steps.
    #[error(
        "take --method girih, or --layers {}: all decisions are tried for so many, and there are \
         {layers}",
        exact::PARTS.len() - 1
    )]
    TooManyLayers {
        /// How many there are.
        layers: usize,
    },
    /// A checker refused the answer.
    #[error("report this, it is a mistake of girih: the checker refused the answer: {0}")]
    Wrong(String),
}

/// What was decided, and what it costs.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// Who decided.
    pub method: Method,
    /// What becomes of each layer.
    pub decision: Decision,
    /// Its times and bytes.
    pub outcome: Outcome,
    /// Whether the budgets are kept.
    pub fits: bool,
    /// Microseconds that no decision can beat.
    pub bound_us: f64,
}

impl Answer {
    /// What limits a layer: of a step that does not fit, the memory that is too small; nothing, if none of the layer is
    /// computed again and nobody waits for its copies; the host, if its budget is used up; else the link.
    pub fn limit(&self, layer: usize, budgets: &Budgets) -> memo::Limit {
        let wait = self.outcome.waits_us(self.decision.shares.len())[layer];
        let is_free = self.decision.sums(layer).remake == 0 && wait.0 + wait.1 <= 0.0;
        // Splits are rounded to bytes: a thousandth of the budget is as good as all of it.
        let is_full = |budget: u64| self.outcome.host_peak >= budget - budget / 1000;
        match is_free {
            _ if self.outcome.gpu_peak > budgets.gpu => memo::Limit::Gpu,
            _ if !self.fits => memo::Limit::Host,
            true => memo::Limit::None,
            false if budgets.host.is_some_and(is_full) => memo::Limit::Host,
            false => memo::Limit::Link,
        }
    }
}
