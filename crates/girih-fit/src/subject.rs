//! A subject: a recording, or one that was built, and what each allocator makes of it on a device of a capacity.

use std::sync::{Arc, OnceLock};

use girih_plan::{Budget, Plan, profile, solve};
use girih_runtime::replay::Stop;
use girih_runtime::simulate::trial::tried;
use girih_runtime::simulate::{Allocator, Setup, SimulateError, launch, simulate};
use girih_trace::{Earlier, Evidence, Iterations, Lifetimes, Trace};

/// A recording that is ready to be replayed.
pub struct Subject {
    trace: Trace,
    lives: Lifetimes,
    iterations: Iterations,
    setup: Setup,
    /// Planned for as long as `girih compare` would, and not with the first planner alone.
    is_thorough: bool,
    /// None inside if nothing can be planned.
    plan: OnceLock<Option<Arc<Plan>>>,
}

/// What an allocator made of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// The most bytes that it reserved.
    pub reserved: u64,
    /// Bytes of the device that it never had, if the run fits.
    pub spare: Option<u64>,
    /// Requests for which it had to give cached memory back first: PyTorch's `num_alloc_retries`. A run with many fits,
    /// and is slow.
    pub retries: u64,
    /// The first request that was not served, if it does not fit.
    pub stop: Option<Stop>,
}

impl Outcome {
    /// True if every request was served.
    pub fn fits(&self) -> bool {
        self.stop.is_none()
    }
}

impl Subject {
    /// A recording as it is, on the device of `setup`; what it held when it began is rebuilt.
    pub fn recorded(
        trace: Trace,
        lives: Lifetimes,
        iterations: Iterations,
        setup: Setup,
    ) -> Subject {
        let earlier = Some(Arc::new(Earlier::of(&trace, &lives)));
        let setup = Setup { earlier, ..setup };
        let (is_thorough, plan) = (true, OnceLock::new());
        Subject { trace, lives, iterations, setup, is_thorough, plan }
    }

    /// A recording that was built: whatever it held when it began is asked for first. It is planned by the first
    /// planner alone, for a search asks many of these.
    pub fn built(trace: Trace, lives: Lifetimes, setup: Setup) -> Subject {
        let nothing = Earlier { segments: Vec::new(), evidence: Evidence::Inferred, untouched: 0 };
        let setup = Setup { earlier: Some(Arc::new(Ok(nothing))), ..setup };
        let iterations = Iterations::of(&trace, &lives);
        let (is_thorough, plan) = (false, OnceLock::new());
        Subject { trace, lives, iterations, setup, is_thorough, plan }
    }

    /// The same, planned as thoroughly as a recording: for the value that a search has found.
    #[must_use]
    pub fn thoroughly(self) -> Subject {
        Subject { is_thorough: true, plan: OnceLock::new(), ..self }
    }

    /// The requests.
    pub fn lives(&self) -> &Lifetimes {
        &self.lives
    }

    /// What an allocator makes of it. Where nothing can be planned, `planned` is `stitch`.
    ///
    /// # Errors
    /// What [`simulate`] cannot carry out.
    pub fn under(&self, allocator: Allocator) -> Result<Outcome, SimulateError> {
        let mut setup = self.setup.clone();
        let mut allocator = allocator;
        match allocator {
            Allocator::Planned => {
                setup.plan = self.plan();
                if setup.plan.is_none() {
                    allocator = Allocator::Stitch;
                }
            }
            Allocator::Again => {
                setup.kept = launch::first(&self.trace, &self.lives, &self.iterations, &setup)?;
            }
            _ => {}
        }
        let simulation = simulate(&self.trace, &self.lives, allocator, &setup)?;
        let reserved = simulation.stats.reserved_bytes.all().peak;
        let retries = simulation.stats.num_alloc_retries;
        let stop = simulation.replayed.stop;
        let spare = setup.capacity.filter(|_| stop.is_none());
        Ok(Outcome {
            reserved,
            spare: spare.map(|all| all.saturating_sub(reserved)),
            retries,
            stop,
        })
    }

    /// A plan, tried as every plan is before it is followed.
    fn plan(&self) -> Option<Arc<Plan>> {
        let make = || {
            let plan = profile::plan(&self.trace, &self.lives, &self.iterations, |problem| {
                let budget = match self.is_thorough {
                    true => Budget::interactive(problem.buffers.len()),
                    false => Budget::attempts(1),
                };
                solve(problem, budget)
            });
            let plan = plan.ok()?;
            Some(Arc::new(tried(plan, &self.trace, &self.lives, &self.setup)))
        };
        self.plan.get_or_init(make).clone()
    }
}
