//! GMLake: memory that is free in pieces is stitched together by mapping it again.
//!
//! A block of addresses can lead to any physical memory, and physical memory can be mapped at
//! several addresses. So free blocks that lie apart serve one large request: their handles are
//! mapped a second time, side by side.
//!
//! ```text
//!  request ─┬─ at most 1 MiB, or of a private pool ─► a caching policy inside
//!           └─ larger ─► best fit ─┬─ S1 exact ─────────────────────────────┐
//!                                  ├─ S2 single ───────► split ─────────────┤
//!                                  ├─ S3 multiple ─────► stitch ────────────┼─► give
//!                                  ├─ S4 insufficient ─► grow, then stitch ─┘
//!                                  └─ S5 the device has no more ─► give all back, once ─► error
//! ```
//!
//! This is the allocator of the paper *GMLake: Efficient and Transparent GPU Memory Defragmentation
//! for Large-scale DNN Training with Virtual Memory Stitching* (ASPLOS 2024), sections 3 and 4, as
//! a baseline. A training step asks for the same sizes again and again: after some iterations each
//! finds its block in S1, and the device is not called any more.
//!
//! Where the paper leaves a choice:
//! - Sizes, the limit and its default are those of the published code ([`Config`]), requests are
//!   rounded to 2 MiB. The paper's S4 grows by the deficit; the published code does so with
//!   `reAlloc=1` only ([`Config::grows_by_deficit`]). The fragmentation limit applies to blocks
//!   ([`LimitOf`]).
//! - A split needs no call of the device: both halves keep their addresses, and the stitched block
//!   of both has the former ones. Primitive blocks are never merged; the former size stays in reach
//!   as that stitched block.
//! - S1 takes a primitive block before a stitched one. A stitched block serves its own size alone,
//!   as in the paper; the published code gives it out by prefix too (`reuseLimit`).
//! - Memory is stitched within one stream, as in the published code.
//! - Before S5 what is free goes back to the device and the request is tried once more, as in the
//!   published code.
//!
//! Where the published code loses memory, gives it twice or unmaps what is in use, this does not:
//! device calls come first and are undone if one fails (`mapping`), and nothing is unmapped before
//! the streams that used it have come past (`stitch_free`).
//!
//! Private pools and their checkpoints are those of the caching policy inside (`splitter`).

mod best_fit;
mod config;
mod frees;
mod grants;
mod kinds;
mod mapping;
mod pools;
mod serve;
mod slab;
mod splitter;
mod stitch_free;
mod view;

use girih_trace::{Action, PoolId, StreamId};

pub use self::config::{Config, LimitOf};
use self::grants::{Grants, is_own};
pub use self::kinds::HANDLE;
use self::pools::{Pools, rounded};
use self::splitter::is_for_splitter;
use self::stitch_free::Retired;
use crate::caching::Caching;
use crate::caching::rounding::MAX_REQUEST;
use crate::pending::{Limbo, PendingFrees};
use crate::policy::{
    AllocError, BlockId, BlockView, Checkpoint, Env, Granted, Policy, PoolOptions, Request,
    Restored, SegmentView,
};
use crate::stats::Stats;

/// The policy that stitches. See the [module](self).
#[derive(Debug)]
pub struct Gmlake {
    config: Config,
    pools: Pools,
    grants: Grants,
    pending: PendingFrees,
    /// Blocks freed during a capture; they get their events after it.
    deferred: Vec<BlockId>,
    retired: Retired,
    limbo: Limbo,
    /// Serves small requests and private pools.
    splitter: Caching,
    /// Private pools whose free blocks serve the default pool when the device has no more.
    lenders: Vec<PoolId>,
    /// Open scopes with which a capture came.
    captures: usize,
    /// The share of the device that all parts together may hold.
    fraction: f64,
    /// Of all parts.
    stats: Stats,
}

impl Gmlake {
    /// A policy that holds nothing. `splitter` serves small requests and private pools; it holds
    /// nothing either. Its memory fraction is the limit of all parts together.
    pub fn new(config: Config, splitter: Caching) -> Gmlake {
        Gmlake {
            config,
            pools: Pools::default(),
            grants: Grants::default(),
            pending: PendingFrees::default(),
            deferred: Vec::new(),
            retired: Retired::default(),
            limbo: Limbo::default(),
            lenders: Vec::new(),
            captures: 0,
            fraction: splitter.memory_fraction(),
            stats: splitter.stats().clone(),
            splitter,
        }
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Stitched blocks that there are, given or not, and their bytes.
    pub fn stitched(&self) -> (usize, u64) {
        (self.pools.stitches.iter().count(), self.pools.stitched_bytes)
    }

    /// Completes frees, and unmaps what was retired. Not during a capture.
    fn complete_own(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        if self.captures == 0 {
            self.complete_frees(env)?;
            self.retired.reap(env.device, &mut self.limbo, false)?;
        }
        Ok(())
    }

    /// Gives back all that can be had by waiting, and all that is free. False if there is nothing,
    /// or if a capture is under way.
    fn make_room(&mut self, env: &mut Env<'_>) -> Result<bool, AllocError> {
        let is_waiting = self.stats.active.all.current > self.stats.allocation.all.current;
        if self.captures > 0 || !(is_waiting || self.releasable() > 0) {
            return Ok(false);
        }
        self.empty_cache(env)?;
        self.stats.num_alloc_retries += 1;
        Ok(true)
    }

    /// The error of a request that failed. Logs and counts nothing.
    fn out_of_memory(&self, env: &mut Env<'_>, requested: u64, segment: u64) -> AllocError {
        AllocError::OutOfMemory {
            requested,
            segment,
            allocated: self.stats.allocated_bytes.all.current,
            reserved: self.stats.reserved_bytes.all.current,
            limit: self.limit(env).unwrap_or(u64::MAX),
            device_free: env.device.memory_info().free,
        }
    }
}

impl Policy for Gmlake {
    fn name(&self) -> &'static str {
        "gmlake"
    }

    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        self.complete_own(env)?;
        if is_for_splitter(&request) {
            return self.allocate_in_splitter(env, request);
        }
        let Request { size: requested, stream, pool } = request;
        if requested >= MAX_REQUEST {
            return Err(self.out_of_memory(env, requested, requested));
        }
        let size = rounded(requested);
        let mut place = self.find(env, stream, size)?;
        if place.is_none() {
            if let Some(lent) = self.borrow(env, request)? {
                return Ok(lent);
            }
            if self.make_room(env)? {
                place = self.find(env, stream, size)?;
            }
        }
        if let Some(place) = place {
            return Ok(self.give(env, request, place));
        }
        let error = self.out_of_memory(env, requested, size);
        let free = env.device.memory_info().free;
        env.log(Action::Oom, free, size, stream, pool);
        self.stats.num_ooms += 1;
        Err(error)
    }

    fn has_room(&self, request: &Request) -> bool {
        if is_for_splitter(request) || request.size >= MAX_REQUEST {
            return self.splitter.has_room(request);
        }
        self.pools.has_room(request.stream, rounded(request.size), &self.config)
    }

    fn releasable(&self) -> u64 {
        let own = if self.captures > 0 { 0 } else { self.pools.idle_bytes };
        own + self.splitter.releasable()
    }

    fn free(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), AllocError> {
        if is_own(id) {
            return self.free_own(env, id);
        }
        self.with_splitter(|splitter| splitter.free(env, id))
    }

    fn record_stream(
        &mut self,
        env: &mut Env<'_>,
        id: BlockId,
        stream: StreamId,
    ) -> Result<(), AllocError> {
        if !is_own(id) {
            return self.splitter.record_stream(env, id, stream);
        }
        let grant = self.grants.in_use(id).ok_or(AllocError::UnknownBlock(id))?;
        if stream != grant.stream && !grant.users.contains(&stream) {
            grant.users.push(stream);
        }
        Ok(())
    }

    fn process_events(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        self.complete_own(env)?;
        let stats = self.splitter.stats();
        if stats.active.all.current == stats.allocation.all.current {
            return Ok(()); // No block waits there.
        }
        self.with_splitter(|splitter| splitter.process_events(env))
    }

    fn empty_cache(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        self.limbo.settle(env.device)?;
        if self.captures == 0 {
            self.wait_for_frees(env)?;
        }
        self.release_idle(env)?;
        self.with_splitter(|splitter| splitter.empty_cache(env))
    }

    fn create_pool(&mut self, pool: PoolId) {
        self.splitter.create_pool(pool);
    }

    fn set_pool_options(&mut self, pool: PoolId, options: PoolOptions) {
        self.splitter.set_pool_options(pool, options);
        self.lenders.retain(|&lender| lender != pool);
        if options.use_on_oom && self.splitter.pool_users(pool) > 0 {
            self.lenders.push(pool);
        }
    }

    fn pool_users(&self, pool: PoolId) -> u32 {
        self.splitter.pool_users(pool)
    }

    fn begin_pool(&mut self, pool: PoolId, captures: bool) {
        self.captures += usize::from(captures);
        self.splitter.begin_pool(pool, captures);
    }

    fn end_pool(&mut self, pool: PoolId, captures: bool) {
        self.captures = self.captures.saturating_sub(usize::from(captures));
        self.splitter.end_pool(pool, captures);
    }

    fn release_pool(&mut self, env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError> {
        self.with_splitter(|splitter| splitter.release_pool(env, pool))?;
        if self.splitter.pool_users(pool) == 0 {
            // What nobody uses goes back to the device before it is asked for more.
            self.lenders.retain(|&lender| lender != pool);
        }
        Ok(())
    }

    fn empty_pool(&mut self, env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError> {
        if pool == PoolId::DEFAULT {
            return self.empty_cache(env);
        }
        self.with_splitter(|splitter| splitter.empty_pool(env, pool))
    }

    fn set_memory_fraction(&mut self, fraction: f64) {
        self.fraction = fraction;
    }

    fn memory_fraction(&self) -> f64 {
        self.fraction
    }

    fn max_split_size(&self) -> u64 {
        self.splitter.max_split_size()
    }

    fn checkpoint(&self, pool: PoolId) -> Result<Checkpoint, AllocError> {
        self.splitter.checkpoint(pool)
    }

    fn restore(
        &mut self,
        env: &mut Env<'_>,
        checkpoint: &Checkpoint,
    ) -> Result<Restored, AllocError> {
        self.with_splitter(|splitter| splitter.restore(env, checkpoint))
    }

    fn reset_peak_stats(&mut self) {
        self.stats.reset_peaks();
        self.splitter.reset_peak_stats();
    }

    fn stats(&self) -> &Stats {
        &self.stats
    }

    fn visit(&self, visitor: &mut dyn FnMut(SegmentView, &[BlockView])) {
        for (segment, blocks) in self.views() {
            visitor(segment, &blocks);
        }
    }

    fn check(&self) -> Result<(), String> {
        self.check_all()
    }
}
