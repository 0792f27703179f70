//! Every request straight to the device: what PyTorch does under `PYTORCH_NO_CUDA_MEMORY_CACHING`.
//!
//! ```text
//!  request ─┬─ of the default pool ─► an allocation of the device, which goes back when it is freed
//!           └─ of a private pool ───► a caching policy inside, which keeps what the pool has
//! ```
//!
//! Outside of private pools nothing is cached, so nothing is fragmented: a run that would not fit
//! for fragmentation fits, and can be recorded. It is slow. A block that other streams used goes
//! back to the device when their events are done; one that is freed while a graph is captured, when
//! the capture has ended (`frees`).
//!
//! Private pools are those of graphs and of `MemPool`: there memory that is freed must stay
//! (`pools`).

mod block;
mod frees;
mod pools;
mod view;

use girih_trace::{Action, BlockState, PoolId, StreamId};

use self::block::{Block, Blocks, is_own};
use crate::caching::Caching;
use crate::caching::rounding::MAX_REQUEST;
use crate::device::{Address, DeviceError};
use crate::pending::{Limbo, PendingFrees};
use crate::policy::{
    AllocError, BlockId, BlockView, Checkpoint, Env, Granted, Policy, PoolOptions, Request,
    Restored, SegmentView,
};
use crate::stats::Stats;

/// Every block is a multiple of this.
const ALIGNMENT: u64 = 512;

/// The policy that caches nothing but what private pools hold. See the [module](self).
#[derive(Debug)]
pub struct Direct {
    blocks: Blocks,
    pending: PendingFrees,
    /// Blocks freed during a capture; they get their events after it.
    deferred: Vec<BlockId>,
    /// Blocks whose events are done, and that the device must still take back.
    done: Vec<BlockId>,
    limbo: Limbo,
    /// Serves the private pools. Its default pool stays empty.
    pools: Caching,
    /// Private pools whose free blocks serve the default pool when the device has no more.
    lenders: Vec<PoolId>,
    /// Open scopes with which a capture came.
    captures: usize,
    /// The share of the device that all parts together may hold.
    fraction: f64,
    /// Of all parts.
    stats: Stats,
}

impl Direct {
    /// A policy that holds nothing. `pools` serves the requests of private pools; it holds nothing
    /// either. Its memory fraction is the limit of both together.
    pub fn new(pools: Caching) -> Direct {
        Direct {
            blocks: Blocks::default(),
            pending: PendingFrees::default(),
            deferred: Vec::new(),
            done: Vec::new(),
            limbo: Limbo::default(),
            lenders: Vec::new(),
            captures: 0,
            fraction: pools.memory_fraction(),
            stats: pools.stats().clone(),
            pools,
        }
    }

    /// Takes memory of the device. None if it has too little, or if the limit leaves too little.
    fn take(&self, env: &mut Env<'_>, size: u64) -> Result<Option<Address>, DeviceError> {
        let after = self.stats.reserved_bytes.all.current.saturating_add(size);
        if self.limit(env).is_some_and(|limit| after > limit) {
            return Ok(None);
        }
        match env.device.alloc(size) {
            Ok(address) => Ok(Some(address)),
            Err(DeviceError::OutOfMemory { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives back all that can be had by waiting, and what is free in pools without users. False if
    /// there is nothing, or if a capture is under way.
    fn make_room(&mut self, env: &mut Env<'_>) -> Result<bool, AllocError> {
        let is_waiting = self.stats.active.all.current > self.stats.allocation.all.current;
        if self.captures > 0 || !(is_waiting || self.pools.releasable() > 0) {
            return Ok(false);
        }
        self.empty_cache(env)?;
        self.stats.num_alloc_retries += 1;
        Ok(true)
    }

    /// Makes a block of what the device gave.
    fn give(&mut self, env: &mut Env<'_>, request: Request, address: u64, size: u64) -> Granted {
        let Request { size: requested, stream, pool } = request;
        let (state, users) = (BlockState::Allocated, Vec::new());
        let block = Block { address, size, requested, stream, state, events: 0, users };
        let is_small = block.is_small();
        env.log(Action::SegmentAlloc, address, size, stream, pool);
        env.log(Action::Alloc, address, requested, stream, pool);
        let stats = &mut self.stats;
        for counter in [&mut stats.segment, &mut stats.allocation, &mut stats.active] {
            counter.increase(is_small, 1);
        }
        for bytes in
            [&mut stats.reserved_bytes, &mut stats.allocated_bytes, &mut stats.active_bytes]
        {
            bytes.increase(is_small, size);
        }
        stats.requested_bytes.increase(is_small, requested);
        stats.num_device_alloc += 1;
        Granted { block: self.blocks.add(block), address, size }
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

impl Policy for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        let Request { size: requested, stream, pool } = request;
        if pool != PoolId::DEFAULT {
            if self.captures == 0 {
                self.complete_frees(env)?;
            }
            return self.allocate_in_pool(env, request);
        }
        self.process_events(env)?;
        if requested >= MAX_REQUEST {
            return Err(self.out_of_memory(env, requested, requested));
        }
        let size = requested.next_multiple_of(ALIGNMENT);
        let mut address = self.take(env, size)?;
        if address.is_none() {
            if let Some(lent) = self.borrow(env, request)? {
                return Ok(lent);
            }
            if self.make_room(env)? {
                address = self.take(env, size)?;
            }
        }
        if let Some(address) = address {
            return Ok(self.give(env, request, address, size));
        }
        let error = self.out_of_memory(env, requested, size);
        let free = env.device.memory_info().free;
        env.log(Action::Oom, free, size, stream, pool);
        self.stats.num_ooms += 1;
        Err(error)
    }

    fn has_room(&self, request: &Request) -> bool {
        request.pool != PoolId::DEFAULT && self.pools.has_room(request)
    }

    fn releasable(&self) -> u64 {
        self.pools.releasable()
    }

    fn free(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), AllocError> {
        if is_own(id) {
            return self.free_own(env, id);
        }
        self.with_pools(|pools| pools.free(env, id))
    }

    fn record_stream(
        &mut self,
        env: &mut Env<'_>,
        id: BlockId,
        stream: StreamId,
    ) -> Result<(), AllocError> {
        if !is_own(id) {
            return self.pools.record_stream(env, id, stream);
        }
        let block = self.blocks.in_use(id).ok_or(AllocError::UnknownBlock(id))?;
        if stream != block.stream && !block.users.contains(&stream) {
            block.users.push(stream);
        }
        Ok(())
    }

    fn process_events(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        if self.captures > 0 {
            return Ok(());
        }
        self.complete_frees(env)?;
        let stats = self.pools.stats();
        if stats.active.all.current == stats.allocation.all.current {
            return Ok(()); // No block waits there.
        }
        self.with_pools(|pools| pools.process_events(env))
    }

    fn empty_cache(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        self.limbo.settle(env.device)?;
        if self.captures == 0 {
            self.wait_for_frees(env)?;
        }
        self.with_pools(|pools| pools.empty_cache(env))
    }

    fn create_pool(&mut self, pool: PoolId) {
        self.pools.create_pool(pool);
    }

    fn set_pool_options(&mut self, pool: PoolId, options: PoolOptions) {
        self.pools.set_pool_options(pool, options);
        self.lenders.retain(|&lender| lender != pool);
        if options.use_on_oom && self.pools.pool_users(pool) > 0 {
            self.lenders.push(pool);
        }
    }

    fn pool_users(&self, pool: PoolId) -> u32 {
        self.pools.pool_users(pool)
    }

    fn begin_pool(&mut self, pool: PoolId, captures: bool) {
        self.captures += usize::from(captures);
        self.pools.begin_pool(pool, captures);
    }

    fn end_pool(&mut self, pool: PoolId, captures: bool) {
        self.captures = self.captures.saturating_sub(usize::from(captures));
        self.pools.end_pool(pool, captures);
    }

    fn release_pool(&mut self, env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError> {
        self.with_pools(|pools| pools.release_pool(env, pool))?;
        if self.pools.pool_users(pool) == 0 {
            // What nobody uses goes back to the device before it is asked for more.
            self.lenders.retain(|&lender| lender != pool);
        }
        Ok(())
    }

    fn empty_pool(&mut self, env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError> {
        if pool == PoolId::DEFAULT {
            return self.empty_cache(env);
        }
        self.with_pools(|pools| pools.empty_pool(env, pool))
    }

    fn set_memory_fraction(&mut self, fraction: f64) {
        self.fraction = fraction;
    }

    fn memory_fraction(&self) -> f64 {
        self.fraction
    }

    fn max_split_size(&self) -> u64 {
        self.pools.max_split_size()
    }

    fn checkpoint(&self, pool: PoolId) -> Result<Checkpoint, AllocError> {
        self.pools.checkpoint(pool)
    }

    fn restore(
        &mut self,
        env: &mut Env<'_>,
        checkpoint: &Checkpoint,
    ) -> Result<Restored, AllocError> {
        self.with_pools(|pools| pools.restore(env, checkpoint))
    }

    fn reset_peak_stats(&mut self) {
        self.stats.reset_peaks();
        self.pools.reset_peak_stats();
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

#[cfg(test)]
mod tests;
