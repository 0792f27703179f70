//! `auto`: learns the plan while the program runs, and follows it.
//!
//! ```text
//!  opening   step 0   step 1   step 2  | step 3   step 4 ...             step 90
//!  [ recording .......................]|                                 [ recording
//!  expandable segments                 | the plan                         again if steps do not fit
//!                            job: plan ┘ switch at the beginning of a step
//! ```
//!
//! It begins as expandable segments, best with holes that are stitched, and records what it is asked
//! for. When two iterations are alike it wants a plan: [`Auto::take_job`] hands the recording out,
//! the owner runs it on a thread of its choice and hands the plan back to [`Auto::offer`]. At the
//! next beginning of a step the policy gives back what it caches and follows the plan. From then
//! on it records only for as long as there are steps that do not fit: those join the recording,
//! and the next plan has room for them too.
//!
//! Where the program marks no steps, the beginning of an iteration is found in the sequence of its
//! requests, and recordings are tried for repetition at growing intervals.
//!
//! To take up a plan, and to drop one, is for the better and never needed. What the device refuses there
//! is tried again when the next iteration begins, and fails neither a request nor a mark.

mod job;
mod recorder;
mod recording;
mod scout;
mod turn;

use std::sync::Arc;

use girih_plan::Plan;
use girih_trace::{Mark, PoolId};

pub use self::job::Job;
use self::recorder::Recorder;
use self::turn::Turn;
use crate::planned::Planned;
use crate::policy::{AllocError, Env, Granted, Policy, Request};
use crate::wrapper::Wrapper;

/// Who makes the plans, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Planning {
    /// The owner, with [`Auto::take_job`] and [`Auto::offer`].
    #[default]
    ByOwner,
    /// The policy itself, as soon as one is wanted: for simulations.
    AtOnce,
    /// The policy itself, an iteration after one is wanted: for simulations of a slow owner.
    NextIteration,
}

/// A change of plans.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Switch {
    /// Iterations that had begun before it, as far as the program marks them.
    pub step: u64,
    /// Requests outside private pools before it.
    pub requests: u64,
}

/// The policy that learns its plan. See the [module](self).
pub struct Auto {
    planned: Planned,
    recorder: Recorder,
    planning: Planning,
    turn: Turn,
    /// A plan is wanted.
    is_wanted: bool,
    /// A job is out.
    is_out: bool,
    /// Its plan is not wanted any more.
    is_stale: bool,
    /// The plan to switch to.
    next: Option<Arc<Plan>>,
    /// The plan that has shown that it fits.
    proven: Option<Arc<Plan>>,
    /// The first changes of plans, and how many there were.
    switches: Vec<Switch>,
    switch_count: u64,
}

/// Changes of plans that are kept: a run that always varies changes them for ever.
const SWITCHES_MAX: usize = 1024;

impl Auto {
    /// A policy that begins with `fallback`, which is also to serve what no plan foresees: best
    /// expandable segments whose holes are stitched. `granularity` is the device's.
    pub fn new(fallback: Box<dyn Policy>, granularity: u64) -> Auto {
        Auto::around(Planned::empty(fallback, granularity))
    }

    /// A policy that follows `plan` from the first request, and learns another one if it does not
    /// fit. The plan must have passed [`girih_plan::verify()`].
    pub fn with_plan(plan: Arc<Plan>, fallback: Box<dyn Policy>, granularity: u64) -> Auto {
        let mut auto = Auto::around(Planned::new(plan, fallback, granularity));
        auto.turn.begin_with_plan();
        auto
    }

    fn around(planned: Planned) -> Auto {
        let mut recorder = Recorder::default();
        recorder.restart(false);
        Auto {
            planned,
            recorder,
            planning: Planning::ByOwner,
            turn: Turn::default(),
            is_wanted: false,
            is_out: false,
            is_stale: false,
            next: None,
            proven: None,
            switches: Vec::new(),
            switch_count: 0,
        }
    }

    /// Says who makes the plans.
    pub fn set_planning(&mut self, planning: Planning) {
        self.planning = planning;
    }

    /// The recording to be planned, if a plan is wanted; its plan goes to [`Auto::offer`]. Worth
    /// asking after each mark, and now and then if there are none. Costs nothing if no plan is
    /// wanted, and little otherwise: the recording is shared, not copied.
    pub fn take_job(&mut self) -> Option<Job> {
        if !self.is_wanted || self.is_out {
            return None;
        }
        (self.is_wanted, self.is_out) = (false, true);
        Some(Job { recording: self.recorder.recording() })
    }

    /// Takes the plan of a job, which is followed from the beginning of an iteration on, the next
    /// one or the one after. A plan in which nothing repeats, or that would save next to nothing, is
    /// left alone, and recording goes on.
    pub fn offer(&mut self, plan: Arc<Plan>) {
        self.is_out = false;
        if std::mem::take(&mut self.is_stale) {
            return;
        }
        if self.turn.trusts(&plan, self.planned.plan()) && self.would_save(&plan) {
            self.turn.expect(&plan, &self.recorder);
            self.next = Some(plan);
        }
    }

    /// The plan that the run was found to fit, once for each: it is worth keeping for the next
    /// launch, also if there is no room for a change now.
    pub fn take_proven(&mut self) -> Option<Arc<Plan>> {
        self.proven.take()
    }

    /// The changes of plans so far, the first 1,024 of them.
    pub fn switches(&self) -> &[Switch] {
        &self.switches
    }

    /// How many changes of plans there were.
    pub fn switch_count(&self) -> u64 {
        self.switch_count
    }

    /// What follows the plans.
    pub fn planned(&self) -> &Planned {
        &self.planned
    }

    /// Runs an operation, recorded if a recording is under way.
    #[inline]
    fn with<T>(
        &mut self,
        env: &mut Env<'_>,
        operation: impl FnOnce(&mut Planned, &mut Env<'_>) -> T,
    ) -> T {
        if !self.recorder.is_on() {
            return operation(&mut self.planned, env);
        }
        let mut tee = self.recorder.tee(env.log);
        let mut env = Env { device: env.device, log: &mut tee };
        operation(&mut self.planned, &mut env)
    }
}

impl Wrapper for Auto {
    type Inner = Planned;

    fn inner(&self) -> &Planned {
        &self.planned
    }

    fn inner_mut(&mut self) -> &mut Planned {
        &mut self.planned
    }

    #[inline]
    fn run<T>(
        &mut self,
        env: &mut Env<'_>,
        operation: impl FnOnce(&mut Planned, &mut Env<'_>) -> T,
    ) -> T {
        self.with(env, operation)
    }

    fn name(&self) -> &'static str {
        "auto"
    }

    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        if request.pool == PoolId::DEFAULT {
            self.before_request(env, &request);
        }
        self.with(env, |planned, env| planned.allocate(env, request))
    }

    fn mark(&mut self, env: &mut Env<'_>, mark: &Mark) -> Result<(), AllocError> {
        let boundary = self.turn.boundary();
        if self.turn.is_boundary(mark.kind) {
            if self.turn.boundary() != boundary {
                // What was found without the marks may have been microbatches.
                self.lay_aside();
                self.is_stale = self.is_out;
                self.recorder.begin_iterations();
            }
            self.begin_iteration(env);
        } else {
            self.turn.mark(mark.kind);
        }
        self.recorder.mark(mark.kind);
        self.planned.mark(env, mark)
    }
}
