//! The methods by their names, and what each answers.

use crate::bound::bound;
use crate::check::{Fault, check};
use crate::links::Links;
use crate::schedule::Schedule;
use crate::settings::Settings;
use crate::simulate::{Run, simulate};
use crate::step::Step;
use crate::{capuchin, chameleon, girih};

/// How much may be held where. Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budgets {
    /// On the GPU.
    pub gpu: u64,
    /// On the host; no limit if none.
    pub host: Option<u64>,
}

/// How schedules are made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Method {
    /// As a schedule on two links, searched until it meets the bound.
    Girih,
    /// Chameleon's policy generator, as its paper describes it.
    Chameleon,
    /// Capuchin's: by free time, with the identity (operator number, i-th tensor).
    Capuchin,
}

impl Method {
    /// Every method, the default first.
    pub const ALL: [Method; 3] = [Method::Girih, Method::Chameleon, Method::Capuchin];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Method::Girih => "girih",
            Method::Chameleon => "chameleon",
            Method::Capuchin => "capuchin",
        }
    }

    /// The method of that name.
    pub fn from_name(name: &str) -> Option<Method> {
        Method::ALL.into_iter().find(|method| method.name() == name)
    }

    /// A schedule of the step. It need not keep the budgets: the answer says whether it does.
    pub fn schedule(self, step: &Step, links: &Links, budgets: &Budgets) -> Schedule {
        match self {
            Method::Girih => girih::plan(step, links, budgets),
            Method::Chameleon => chameleon::plan(step, links, budgets),
            Method::Capuchin => capuchin::plan(step, links, budgets),
        }
    }

    /// A schedule of the step with its times, its cost and the bound beside it.
    ///
    /// # Errors
    /// If the checker refuses the schedule: an error of this crate.
    pub fn answer(self, step: &Step, links: &Links, budgets: &Budgets) -> Result<Answer, Fault> {
        if self != Method::Girih {
            return Answer::of(step, links, budgets, self.schedule(step, links, budgets));
        }
        let (schedule, us) = girih::plan_and_bound(step, links, budgets, &Settings::default());
        Answer::with(step, links, budgets, schedule, Some((budgets.gpu, us)))
    }
}

/// What swapping costs a step.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// What goes.
    pub schedule: Schedule,
    /// Its times.
    pub run: Run,
    /// Whether the budgets are kept.
    pub fits: bool,
    /// The most bytes on the GPU.
    pub gpu_peak: u64,
    /// The most bytes on the host.
    pub host_peak: u64,
    /// Bytes that go out, and as many that come in.
    pub bytes: u64,
    /// Microseconds that no schedule can beat.
    pub bound_us: f64,
}

impl Answer {
    /// Simulates a schedule and has it checked; one that does not keep the budgets, within what it takes.
    ///
    /// # Errors
    /// If the checker refuses it.
    pub fn of(
        step: &Step,
        links: &Links,
        budgets: &Budgets,
        schedule: Schedule,
    ) -> Result<Answer, Fault> {
        Answer::with(step, links, budgets, schedule, None)
    }

    /// Likewise; `known` is a budget and the bound of it.
    fn with(
        step: &Step,
        links: &Links,
        budgets: &Budgets,
        schedule: Schedule,
        known: Option<(u64, f64)>,
    ) -> Result<Answer, Fault> {
        let run = simulate(step, links, &schedule);
        let (gpu_peak, host_peak) = (schedule.gpu_peak(step), schedule.host_peak(step));
        let fits = gpu_peak <= budgets.gpu && budgets.host.is_none_or(|host| host_peak <= host);
        let taken = Budgets {
            gpu: budgets.gpu.max(gpu_peak),
            host: budgets.host.map(|host| host.max(host_peak)),
        };
        check(step, links, &taken, &schedule, &run)?;
        // Who keeps a larger budget than was asked for is held against the bound of that.
        let of = |gpu: u64| gpu.max(step.least_budget().0);
        let known = known.filter(|known| of(known.0) == of(taken.gpu));
        let bound_us = known.map_or_else(|| bound(step, links, taken.gpu), |known| known.1);
        let bytes = schedule.bytes(step);
        Ok(Answer { schedule, run, fits, gpu_peak, host_peak, bytes, bound_us })
    }
}
