//! A caching policy beside a policy's own memory.
//!
//! ```text
//!  request ─► Policy ─┬─ what it is for ─► its own blocks ───┐
//!                     └─ all else ───────► caching policy ───┴─► one limit, one statistics
//! ```
//!
//! A policy that has a way of its own for some requests leaves the others to a caching policy, and
//! always those of private pools. A captured graph writes to the addresses that it was captured
//! with, freed or not, whenever it is replayed. So what a private pool has is kept where it is until
//! the pool has no users, and its blocks can be brought back to a checkpoint.
//!
//! Both parts are one policy to whoever looks. [`Beside`] is a [`Wrapper`] around the caching policy
//! that takes what this does into the statistics of all parts, and the policy is a wrapper around
//! that. They share one limit: before the caching policy may grow, it is told how much is left.
//!
//! Each part has blocks under ids of its own. One bit tells the two apart:
//!
//! ```text
//!  id   0 | index in the caching policy          1 | index in the Slab of own blocks
//! ```

use girih_trace::{Action, PoolId, StreamId};

use crate::caching::Caching;
use crate::limit::Limit;
use crate::policy::{AllocError, BlockId, Env, Granted, Policy, PoolOptions, Request};
use crate::slab::Id;
use crate::stats::Stats;
use crate::wrapper::Wrapper;

/// Set in the ids of own blocks.
const OWN: u32 = 1 << 31;

/// True if the block is one of the policy's own; false if it lies in the caching policy.
pub(crate) fn is_own(id: BlockId) -> bool {
    id.0 & OWN != 0
}

/// Of own blocks.
impl Id for BlockId {
    fn of(index: u32) -> BlockId {
        BlockId(OWN | index)
    }

    fn index(self) -> usize {
        (self.0 & !OWN) as usize
    }
}

/// The caching policy, and what it shares with the policy's own memory. See the [module](self).
///
/// As a policy it shows and checks the caching policy alone, and counts all parts. It is public for
/// the policies that name it as what they have inside; its module is not.
#[derive(Debug)]
pub struct Beside {
    caching: Caching,
    /// Private pools whose free blocks serve the default pool when the device has no more.
    lenders: Vec<PoolId>,
    /// Open scopes with which a capture came.
    captures: usize,
    /// What all parts together may hold.
    limit: Limit,
    /// Of all parts.
    pub(crate) stats: Stats,
}

impl Beside {
    /// `caching` holds nothing, and neither does the policy. Its limit is that of all
    /// parts together.
    pub(crate) fn new(caching: Caching) -> Beside {
        Beside {
            lenders: Vec::new(),
            captures: 0,
            limit: caching.own_limit(),
            stats: caching.stats().clone(),
            caching,
        }
    }

    /// True during a capture.
    pub(crate) fn is_capturing(&self) -> bool {
        self.captures > 0
    }

    /// True if the limit allows `size` bytes more.
    pub(crate) fn allows(&self, env: &mut Env<'_>, size: u64) -> bool {
        let after = self.stats.reserved_bytes.all().current.saturating_add(size);
        self.limit_on(env).is_none_or(|limit| after <= limit)
    }

    /// Serves a request of the default pool from what is free in a private pool that lends
    /// ([`PoolOptions::use_on_oom`]); none if no such pool has room.
    pub(crate) fn borrow(
        &mut self,
        env: &mut Env<'_>,
        request: Request,
    ) -> Result<Option<Granted>, AllocError> {
        let lent = |&pool: &PoolId| Request { pool, ..request };
        let Some(lent) = self.lenders.iter().map(lent).find(|lent| self.caching.has_room(lent))
        else {
            return Ok(None);
        };
        // It takes nothing of the device, so it need not know the limit.
        self.run(env, |caching, env| caching.allocate(env, lent)).map(Some)
    }

    /// The error of a request that failed. Logs and counts nothing.
    #[cold]
    pub(crate) fn out_of_memory(
        &self,
        env: &mut Env<'_>,
        requested: u64,
        segment: u64,
    ) -> AllocError {
        let limit = self.limit_on(env);
        AllocError::out_of_memory(env, &self.stats, limit, requested, segment)
    }

    /// The error of a request for which `segment` bytes could not be had. Logs it and counts it.
    pub(crate) fn refuse(
        &mut self,
        env: &mut Env<'_>,
        request: Request,
        segment: u64,
    ) -> AllocError {
        let error = self.out_of_memory(env, request.size, segment);
        let free = env.device.memory_info().free;
        env.log(Action::Oom, free, segment, request.stream, request.pool);
        self.stats.num_ooms += 1;
        error
    }

    /// Bytes that all parts together may hold; none without a limit.
    fn limit_on(&self, env: &mut Env<'_>) -> Option<u64> {
        self.limit.on(env.device)
    }

    /// Lets the caching policy hold what the own memory leaves of the limit.
    fn share_limit(&mut self, env: &mut Env<'_>) {
        let share = self.limit_on(env).map(|limit| {
            let reserved = self.stats.reserved_bytes.all().current;
            let own = reserved - self.caching.stats().reserved_bytes.all().current;
            limit.saturating_sub(own)
        });
        self.caching.set_limit(share);
    }
}

impl Wrapper for Beside {
    type Inner = Caching;

    fn inner(&self) -> &Caching {
        &self.caching
    }

    fn inner_mut(&mut self) -> &mut Caching {
        &mut self.caching
    }

    /// Takes what the operation did into the statistics of all parts.
    fn run<T>(
        &mut self,
        env: &mut Env<'_>,
        operation: impl FnOnce(&mut Caching, &mut Env<'_>) -> T,
    ) -> T {
        let before = self.caching.stats().clone();
        let result = operation(&mut self.caching, env);
        self.stats.add_change(&before, self.caching.stats());
        result
    }

    /// Lets the caching policy take what the limit leaves for it.
    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        self.share_limit(env);
        self.run(env, |caching, env| caching.allocate(env, request))
    }

    fn record_stream(
        &mut self,
        env: &mut Env<'_>,
        block: BlockId,
        stream: StreamId,
    ) -> Result<(), AllocError> {
        self.caching.record_stream(env, block, stream) // It counts nothing.
    }

    fn process_events(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        let stats = self.caching.stats();
        if stats.active.all().current == stats.allocation.all().current {
            return Ok(()); // No block waits there.
        }
        self.run(env, Caching::process_events)
    }

    fn set_pool_options(&mut self, pool: PoolId, options: PoolOptions) {
        self.caching.set_pool_options(pool, options);
        self.lenders.retain(|&lender| lender != pool);
        if options.use_on_oom && self.caching.pool_users(pool) > 0 {
            self.lenders.push(pool);
        }
    }

    fn begin_pool(&mut self, pool: PoolId, captures: bool) {
        self.captures += usize::from(captures);
        self.caching.begin_pool(pool, captures);
    }

    fn end_pool(&mut self, pool: PoolId, captures: bool) {
        self.captures = self.captures.saturating_sub(usize::from(captures));
        self.caching.end_pool(pool, captures);
    }

    fn release_pool(&mut self, env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError> {
        self.run(env, |caching, env| caching.release_pool(env, pool))?;
        if self.caching.pool_users(pool) == 0 {
            // What nobody uses goes back to the device before it is asked for more.
            self.lenders.retain(|&lender| lender != pool);
        }
        Ok(())
    }

    fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = Limit::Bytes(limit);
    }

    fn limit(&self, total: u64) -> Option<u64> {
        self.limit.of_total(total)
    }

    fn reset_peak_stats(&mut self) {
        self.stats.reset_peaks();
        self.caching.reset_peak_stats();
    }

    fn stats(&self) -> &Stats {
        &self.stats
    }
}

/// Serves a request of `policy` from the caching policy beside its own memory. If that is refused,
/// `give_way` gives back own memory, or says that there is none, and the request is tried once more.
/// Not during a capture, in which no stream may be waited for.
pub(crate) fn allocate<P: Wrapper<Inner = Beside>>(
    policy: &mut P,
    env: &mut Env<'_>,
    request: Request,
    give_way: impl FnOnce(&mut P, &mut Env<'_>) -> Result<bool, AllocError>,
) -> Result<Granted, AllocError> {
    let stats = &P::inner(policy).stats;
    let (ooms, rejections) = (stats.num_ooms, stats.num_oom_rejections);
    let mut result = Wrapper::allocate(P::inner_mut(policy), env, request);
    let is_refused = matches!(result, Err(AllocError::OutOfMemory { .. }));
    if is_refused && !P::inner(policy).is_capturing() && give_way(policy, env)? {
        let stats = &mut P::inner_mut(policy).stats;
        (stats.num_ooms, stats.num_oom_rejections) = (ooms, rejections);
        stats.num_sync_all_streams += 1;
        stats.num_alloc_retries += 1;
        result = Wrapper::allocate(P::inner_mut(policy), env, request);
    }
    result.map_err(|error| {
        let beside = P::inner(policy);
        error.in_all(&beside.stats, beside.limit_on(env))
    })
}

/// Gives back all of `policy` that can be had by waiting, and all that is free. False if there is
/// nothing, or if a capture is under way.
pub(crate) fn make_room<P: Wrapper<Inner = Beside>>(
    policy: &mut P,
    env: &mut Env<'_>,
) -> Result<bool, AllocError> {
    let stats = &P::inner(policy).stats;
    let is_waiting = stats.active.all().current > stats.allocation.all().current;
    let has_more = is_waiting || Wrapper::releasable(policy) > 0;
    if P::inner(policy).is_capturing() || !has_more {
        return Ok(false);
    }
    Wrapper::empty_cache(policy, env)?;
    P::inner_mut(policy).stats.num_alloc_retries += 1;
    Ok(true)
}
