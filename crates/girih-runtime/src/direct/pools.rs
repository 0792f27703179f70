//! Private pools: a caching policy inside serves them, and only them.
//!
//! A captured graph writes to the addresses that it was captured with, freed or not, whenever it is
//! replayed. So what a private pool has is kept until the pool has no users, and its blocks can be
//! brought back to a checkpoint.
//!
//! Pools and single allocations share one limit. Before the pools may grow, they are told how much
//! of it is left for them.

use girih_trace::PoolId;

use super::Direct;
use crate::caching::Caching;
use crate::policy::{AllocError, Env, Granted, Policy, Request};

impl Direct {
    /// Serves a request of a private pool.
    pub(super) fn allocate_in_pool(
        &mut self,
        env: &mut Env<'_>,
        request: Request,
    ) -> Result<Granted, AllocError> {
        self.share_limit(env);
        let (ooms, rejections) = (self.stats.num_ooms, self.stats.num_oom_rejections);
        let mut result = self.with_pools(|pools| pools.allocate(env, request));
        let is_refused = matches!(result, Err(AllocError::OutOfMemory { .. }));
        if is_refused && self.captures == 0 && self.has_waiting() {
            self.wait_for_frees(env)?;
            self.share_limit(env);
            let stats = &mut self.stats;
            (stats.num_ooms, stats.num_oom_rejections) = (ooms, rejections);
            stats.num_sync_all_streams += 1;
            stats.num_alloc_retries += 1;
            result = self.with_pools(|pools| pools.allocate(env, request));
        }
        result.map_err(|error| self.in_all(env, error))
    }

    /// Serves a request of the default pool from what is free in a private pool that lends
    /// ([`PoolOptions::use_on_oom`](crate::policy::PoolOptions::use_on_oom)); none if no such pool
    /// has room.
    pub(super) fn borrow(
        &mut self,
        env: &mut Env<'_>,
        request: Request,
    ) -> Result<Option<Granted>, AllocError> {
        let lent = |&pool: &PoolId| Request { pool, ..request };
        let Some(lent) = self.lenders.iter().map(lent).find(|lent| self.pools.has_room(lent))
        else {
            return Ok(None);
        };
        self.with_pools(|pools| pools.allocate(env, lent)).map(Some)
    }

    /// Runs an operation of the private pools and takes what it did into the statistics.
    pub(super) fn with_pools<T>(&mut self, operation: impl FnOnce(&mut Caching) -> T) -> T {
        let before = self.pools.stats().clone();
        let result = operation(&mut self.pools);
        self.stats.add_change(&before, self.pools.stats());
        result
    }

    /// Bytes that all parts together may hold; none without a limit.
    pub(super) fn limit(&self, env: &mut Env<'_>) -> Option<u64> {
        (self.fraction < 1.0).then(|| {
            let limit = self.fraction * env.device.memory_info().total as f64;
            let is_rounded = self.pools.config().tie_order.rounds_limit();
            if is_rounded { limit.round() as u64 } else { limit as u64 }
        })
    }

    /// Lets the pools hold what the single allocations leave of the limit.
    fn share_limit(&mut self, env: &mut Env<'_>) {
        let share = self.limit(env).map_or(1.0, |limit| {
            let reserved = self.stats.reserved_bytes.all.current;
            let single = reserved - self.pools.stats().reserved_bytes.all.current;
            let left = limit.saturating_sub(single);
            // A quarter of a byte more: whichever way the pools round, it comes out at `left`.
            (left as f64 + 0.25) / env.device.memory_info().total as f64
        });
        self.pools.set_memory_fraction(share);
    }

    /// An error of the pools, with what all parts hold and may hold.
    fn in_all(&self, env: &mut Env<'_>, mut error: AllocError) -> AllocError {
        if let AllocError::OutOfMemory { allocated, reserved, limit, .. } = &mut error {
            *allocated = self.stats.allocated_bytes.all.current;
            *reserved = self.stats.reserved_bytes.all.current;
            *limit = self.limit(env).unwrap_or(u64::MAX);
        }
        error
    }
}
