//! A policy with somebody looking on: a function is called after each request and each mark.
//!
//! Simulations tell the peaks before and after a change of plans apart with it, tests change plans
//! in the middle of a run.

use girih_trace::{Mark, PoolId, StreamId};

use crate::policy::{
    AllocError, BlockId, BlockView, Checkpoint, Env, Granted, Policy, PoolOptions, Request,
    Restored, SegmentView,
};
use crate::stats::Stats;

/// After what the function is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moment {
    /// A request, served or not.
    Request,
    /// A mark.
    Mark,
}

/// `inner`, and what looks on.
pub(crate) struct Hooked<P, F> {
    pub(crate) inner: P,
    hook: F,
}

impl<P, F> Hooked<P, F>
where
    P: Policy,
    F: FnMut(&mut P, &mut Env<'_>, Moment) -> Result<(), AllocError> + Send,
{
    pub(crate) fn new(inner: P, hook: F) -> Hooked<P, F> {
        Hooked { inner, hook }
    }
}

impl<P, F> Policy for Hooked<P, F>
where
    P: Policy,
    F: FnMut(&mut P, &mut Env<'_>, Moment) -> Result<(), AllocError> + Send,
{
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        let granted = self.inner.allocate(env, request);
        (self.hook)(&mut self.inner, env, Moment::Request)?;
        granted
    }

    fn free(&mut self, env: &mut Env<'_>, block: BlockId) -> Result<(), AllocError> {
        self.inner.free(env, block)
    }

    fn record_stream(
        &mut self,
        env: &mut Env<'_>,
        block: BlockId,
        stream: StreamId,
    ) -> Result<(), AllocError> {
        self.inner.record_stream(env, block, stream)
    }

    fn process_events(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        self.inner.process_events(env)
    }

    fn empty_cache(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        self.inner.empty_cache(env)
    }

    fn mark(&mut self, env: &mut Env<'_>, mark: &Mark) -> Result<(), AllocError> {
        self.inner.mark(env, mark)?;
        (self.hook)(&mut self.inner, env, Moment::Mark)
    }

    fn create_pool(&mut self, pool: PoolId) {
        self.inner.create_pool(pool);
    }

    fn set_pool_options(&mut self, pool: PoolId, options: PoolOptions) {
        self.inner.set_pool_options(pool, options);
    }

    fn pool_users(&self, pool: PoolId) -> u32 {
        self.inner.pool_users(pool)
    }

    fn begin_pool(&mut self, pool: PoolId, captures: bool) {
        self.inner.begin_pool(pool, captures);
    }

    fn end_pool(&mut self, pool: PoolId, captures: bool) {
        self.inner.end_pool(pool, captures);
    }

    fn release_pool(&mut self, env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError> {
        self.inner.release_pool(env, pool)
    }

    fn empty_pool(&mut self, env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError> {
        self.inner.empty_pool(env, pool)
    }

    fn set_memory_fraction(&mut self, fraction: f64) {
        self.inner.set_memory_fraction(fraction);
    }

    fn memory_fraction(&self) -> f64 {
        self.inner.memory_fraction()
    }

    fn max_split_size(&self) -> u64 {
        self.inner.max_split_size()
    }

    fn checkpoint(&self, pool: PoolId) -> Result<Checkpoint, AllocError> {
        self.inner.checkpoint(pool)
    }

    fn restore(
        &mut self,
        env: &mut Env<'_>,
        checkpoint: &Checkpoint,
    ) -> Result<Restored, AllocError> {
        self.inner.restore(env, checkpoint)
    }

    fn reset_peak_stats(&mut self) {
        self.inner.reset_peak_stats();
    }

    fn stats(&self) -> &Stats {
        self.inner.stats()
    }

    fn visit(&self, visitor: &mut dyn FnMut(SegmentView, &[BlockView])) {
        self.inner.visit(visitor);
    }

    fn check(&self) -> Result<(), String> {
        self.inner.check()
    }
}
