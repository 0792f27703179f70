//! `auto`: learns the plan while the program runs, and follows it.
//!
//! ```text
//!  opening   step 0   step 1   step 2  | step 3   step 4 ...             step 90
//!  [ recording .......................]|                                 [ recording
//!  expandable segments                 | the plan                         again if steps do not fit
//!                            job: plan ┘ switch at the beginning of a step
//! ```
//!
//! It begins as expandable segments and records what it is asked for. When two iterations are alike
//! it wants a plan: [`Auto::take_job`] hands the recording out, the owner runs it on a thread of its
//! choice and hands the plan back to [`Auto::offer`]. At the next beginning of a step the policy
//! gives back what it caches and follows the plan. From then on it records only for as long as there
//! are steps that do not fit: those join the recording, and the next plan has room for them too.
//!
//! Where the program marks no steps, the beginning of an iteration is found in the sequence of its
//! requests, and recordings are tried for repetition at growing intervals.

mod job;
mod recorder;
mod turn;

use std::sync::Arc;

use girih_plan::Plan;
use girih_trace::{Mark, PoolId, StreamId};

pub use self::job::Job;
use self::recorder::Recorder;
use self::turn::Turn;
use crate::caching::Config;
use crate::planned::Planned;
use crate::policy::{
    AllocError, BlockId, BlockView, Checkpoint, Env, Granted, Policy, PoolOptions, Request,
    Restored, SegmentView,
};
use crate::stats::Stats;

/// Bytes of a page of the expandable segments that `auto` begins with.
const PAGE: u64 = 8 << 20;

/// The settings of the expandable segments that [`Auto`] does best with. What lives on when a plan
/// is taken up pins the pages that it lies on; pages of 8 MiB instead of 20 pin half as much, and
/// cost two and a half times the calls to map them. Pages that the user has chosen are left alone.
pub fn settings(mut config: Config) -> Config {
    config.expandable_segments = true;
    if config.large_segment_size == Config::default().large_segment_size {
        config.large_segment_size = PAGE;
    }
    config
}

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
    /// The plan to switch to.
    next: Option<Arc<Plan>>,
    switches: Vec<Switch>,
}

impl Auto {
    /// A policy that begins with `fallback`, which is also to serve what no plan foresees: best
    /// expandable segments with these [`settings`]. `granularity` is the device's.
    pub fn new(fallback: Box<dyn Policy>, granularity: u64) -> Auto {
        Auto::around(Planned::empty(fallback, granularity))
    }

    /// A policy that follows `plan` from the first request, and learns another one if it does not
    /// fit. The plan must have passed [`girih_plan::verify()`].
    pub fn with_plan(plan: Arc<Plan>, fallback: Box<dyn Policy>, granularity: u64) -> Auto {
        let mut auto = Auto::around(Planned::new(plan, fallback, granularity));
        auto.turn.watch();
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
            next: None,
            switches: Vec::new(),
        }
    }

    /// Says who makes the plans.
    pub fn set_planning(&mut self, planning: Planning) {
        self.planning = planning;
    }

    /// The recording to be planned, if a plan is wanted; its plan goes to [`Auto::offer`]. Worth
    /// asking after each mark, and now and then if there are none. Costs nothing if no plan is
    /// wanted, and a copy of the recording otherwise.
    pub fn take_job(&mut self) -> Option<Job> {
        if !self.is_wanted || self.is_out {
            return None;
        }
        (self.is_wanted, self.is_out) = (false, true);
        Some(Job { trace: self.recorder.trace() })
    }

    /// Takes the plan of a job, which is followed from the beginning of the next iteration on. A
    /// plan in which nothing repeats is left alone, and recording goes on.
    pub fn offer(&mut self, plan: Arc<Plan>) {
        self.is_out = false;
        if self.turn.trusts(&plan, self.planned.plan()) {
            self.turn.expect(&plan, &self.recorder);
            self.next = Some(plan);
        }
    }

    /// The changes of plans so far.
    pub fn switches(&self) -> &[Switch] {
        &self.switches
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

impl Policy for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        if request.pool == PoolId::DEFAULT {
            self.before_request(env, &request)?;
        }
        self.with(env, |planned, env| planned.allocate(env, request))
    }

    fn free(&mut self, env: &mut Env<'_>, block: BlockId) -> Result<(), AllocError> {
        self.with(env, |planned, env| planned.free(env, block))
    }

    fn record_stream(
        &mut self,
        env: &mut Env<'_>,
        block: BlockId,
        stream: StreamId,
    ) -> Result<(), AllocError> {
        self.planned.record_stream(env, block, stream)
    }

    fn process_events(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        self.with(env, Policy::process_events)
    }

    fn empty_cache(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        self.with(env, Policy::empty_cache)
    }

    fn mark(&mut self, env: &mut Env<'_>, mark: &Mark) -> Result<(), AllocError> {
        if self.turn.is_boundary(mark.kind) {
            self.begin_iteration(env)?;
        }
        self.recorder.mark(mark.kind);
        self.planned.mark(env, mark)
    }

    fn create_pool(&mut self, pool: PoolId) {
        self.planned.create_pool(pool);
    }

    fn set_pool_options(&mut self, pool: PoolId, options: PoolOptions) {
        self.planned.set_pool_options(pool, options);
    }

    fn pool_users(&self, pool: PoolId) -> u32 {
        self.planned.pool_users(pool)
    }

    fn begin_pool(&mut self, pool: PoolId, captures: bool) {
        self.planned.begin_pool(pool, captures);
    }

    fn end_pool(&mut self, pool: PoolId, captures: bool) {
        self.planned.end_pool(pool, captures);
    }

    fn release_pool(&mut self, env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError> {
        self.with(env, |planned, env| planned.release_pool(env, pool))
    }

    fn empty_pool(&mut self, env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError> {
        self.with(env, |planned, env| planned.empty_pool(env, pool))
    }

    fn set_memory_fraction(&mut self, fraction: f64) {
        self.planned.set_memory_fraction(fraction);
    }

    fn memory_fraction(&self) -> f64 {
        self.planned.memory_fraction()
    }

    fn max_split_size(&self) -> u64 {
        self.planned.max_split_size()
    }

    fn checkpoint(&self, pool: PoolId) -> Result<Checkpoint, AllocError> {
        self.planned.checkpoint(pool)
    }

    fn restore(
        &mut self,
        env: &mut Env<'_>,
        checkpoint: &Checkpoint,
    ) -> Result<Restored, AllocError> {
        self.with(env, |planned, env| planned.restore(env, checkpoint))
    }

    fn reset_peak_stats(&mut self) {
        self.planned.reset_peak_stats();
    }

    fn stats(&self) -> &Stats {
        self.planned.stats()
    }

    fn visit(&self, visitor: &mut dyn FnMut(SegmentView, &[BlockView])) {
        self.planned.visit(visitor);
    }

    fn check(&self) -> Result<(), String> {
        self.planned.check()
    }
}
