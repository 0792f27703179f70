//! The caching policy inside: it serves requests of at most 1 MiB, and private pools.
//!
//! Small requests would waste handles of 2 MiB, so PyTorch's splitter packs them, as the paper says.
//! The memory of private pools must stay at its addresses for as long as a graph may be replayed
//! over it, so nothing there is stitched.
//!
//! Both parts share one limit. Before the splitter may grow, it is told how much of it is left.

use girih_trace::PoolId;

use super::Gmlake;
use crate::caching::Caching;
use crate::policy::{AllocError, Env, Granted, Policy, Request};

/// Requests of up to 1 MiB are small.
const SMALL_SIZE: u64 = 1 << 20;

/// True if the splitter serves the request.
pub(super) fn is_for_splitter(request: &Request) -> bool {
    request.pool != PoolId::DEFAULT || request.size <= SMALL_SIZE
}

impl Gmlake {
    /// Serves a request from the splitter. If the device has too little for it, what is inactive in
    /// the pools goes back first.
    pub(super) fn allocate_in_splitter(
        &mut self,
        env: &mut Env<'_>,
        request: Request,
    ) -> Result<Granted, AllocError> {
        self.share_limit(env);
        let (ooms, rejections) = (self.stats.num_ooms, self.stats.num_oom_rejections);
        let mut result = self.with_splitter(|splitter| splitter.allocate(env, request));
        let is_refused = matches!(result, Err(AllocError::OutOfMemory { .. }));
        let has_more = self.has_waiting() || self.pools.idle_bytes > 0;
        if is_refused && self.captures == 0 && has_more {
            self.wait_for_frees(env)?;
            self.release_idle(env)?;
            self.share_limit(env);
            let stats = &mut self.stats;
            (stats.num_ooms, stats.num_oom_rejections) = (ooms, rejections);
            stats.num_sync_all_streams += 1;
            stats.num_alloc_retries += 1;
            result = self.with_splitter(|splitter| splitter.allocate(env, request));
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
        let Some(lent) = self.lenders.iter().map(lent).find(|lent| self.splitter.has_room(lent))
        else {
            return Ok(None);
        };
        self.with_splitter(|splitter| splitter.allocate(env, lent)).map(Some)
    }

    /// Runs an operation of the splitter and takes what it did into the statistics.
    pub(super) fn with_splitter<T>(&mut self, operation: impl FnOnce(&mut Caching) -> T) -> T {
        let before = self.splitter.stats().clone();
        let result = operation(&mut self.splitter);
        self.stats.add_change(&before, self.splitter.stats());
        result
    }

    /// Bytes that all parts together may hold; none without a limit.
    pub(super) fn limit(&self, env: &mut Env<'_>) -> Option<u64> {
        (self.fraction < 1.0).then(|| {
            let limit = self.fraction * env.device.memory_info().total as f64;
            let is_rounded = self.splitter.config().tie_order.rounds_limit();
            if is_rounded { limit.round() as u64 } else { limit as u64 }
        })
    }

    /// Lets the splitter hold what the pools leave of the limit.
    fn share_limit(&mut self, env: &mut Env<'_>) {
        let share = self.limit(env).map_or(1.0, |limit| {
            let reserved = self.stats.reserved_bytes.all.current;
            let pools = reserved - self.splitter.stats().reserved_bytes.all.current;
            let left = limit.saturating_sub(pools);
            // A quarter of a byte more: whichever way the splitter rounds, it comes out at `left`.
            (left as f64 + 0.25) / env.device.memory_info().total as f64
        });
        self.splitter.set_memory_fraction(share);
    }

    /// An error of the splitter, with what all parts hold and may hold.
    fn in_all(&self, env: &mut Env<'_>, mut error: AllocError) -> AllocError {
        if let AllocError::OutOfMemory { allocated, reserved, limit, .. } = &mut error {
            *allocated = self.stats.allocated_bytes.all.current;
            *reserved = self.stats.reserved_bytes.all.current;
            *limit = self.limit(env).unwrap_or(u64::MAX);
        }
        error
    }
}
