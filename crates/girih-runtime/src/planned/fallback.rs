//! The fallback: who serves what has no place, and how much of the device it may hold.
//!
//! As long as no plan was ever followed, the fallback is all there is, and its counters are the
//! policy's. From the first plan on the policy counts for both, so that peaks are those of the sum.
//!
//! What the plan does not use now and what the fallback needs is one memory: before the policy comes
//! to hold more than ever under this plan, idle chunks go into the pool.

use super::{EntryId, Planned};
use crate::policy::{AllocError, Env, Granted, Policy, Request};

impl Planned {
    /// Serves a request from the fallback; if that has no more, from wherever there is something
    /// ([`last_resort`](super::last_resort)). `entry` is the request's in the plan, if it has one.
    pub(super) fn fall_back(
        &mut self,
        env: &mut Env<'_>,
        request: Request,
        entry: Option<EntryId>,
    ) -> Result<Granted, AllocError> {
        if !self.is_counting {
            return self.with_fallback(env, |fallback, env| fallback.allocate(env, request));
        }
        let holds_chunks = self.mapped_by_plan() > 0 || !self.retired.is_empty();
        if holds_chunks && !self.fallback.has_room(&request) {
            // What is refused stays mapped: the fallback may be served nevertheless.
            let _ = self.make_room(env, request.size);
        }
        self.share_limit(env);
        let refusals = self.refusals();
        let result = self.with_fallback(env, |fallback, env| fallback.allocate(env, request));
        if !matches!(result, Err(AllocError::OutOfMemory { .. })) {
            return result;
        }
        match self.last_resort(env, &request, entry, refusals)? {
            Some(granted) => Ok(granted),
            None => result.map_err(|error| self.in_all(env, error)),
        }
    }

    /// An error of the fallback, with what all of the policy holds and may hold.
    fn in_all(&mut self, env: &mut Env<'_>, mut error: AllocError) -> AllocError {
        let all = self.limit(env);
        let free = env.device.memory_info().free;
        if let AllocError::OutOfMemory { device_free, .. } = &mut error {
            *device_free = free;
        }
        error.in_all(&self.stats, all)
    }

    /// From now on the counters are of all parts: until now the fallback was all there is.
    pub(super) fn begin_counting(&mut self) {
        self.is_counting = true;
        self.of_fallback = self.fallback.stats().clone();
        self.stats = self.of_fallback.clone();
    }

    /// Runs an operation of the fallback, with the pool before the device, and takes what it did into
    /// the statistics.
    #[inline]
    pub(super) fn with_fallback<T>(
        &mut self,
        env: &mut Env<'_>,
        operation: impl FnOnce(&mut dyn Policy, &mut Env<'_>) -> T,
    ) -> T {
        let mut pooled = self.pool.before(env.device);
        let mut env = Env { device: &mut pooled, log: env.log };
        if !self.is_counting {
            return operation(&mut *self.fallback, &mut env);
        }
        let result = operation(&mut *self.fallback, &mut env);
        if self.pool.bytes() < self.pooled {
            self.count_pool();
        }
        let after = self.fallback.stats();
        self.stats.add_news(&mut self.of_fallback, after);
        let reserved = after.reserved_bytes.all.current;
        let peak = &mut self.following.fallback_reserved_peak;
        *peak = reserved.max(*peak);
        self.count_pool();
        self.note_growth();
        result
    }

    /// Bytes that all parts together may hold; none without a limit.
    pub(super) fn limit(&mut self, env: &mut Env<'_>) -> Option<u64> {
        (self.fraction < 1.0).then(|| (self.fraction * self.total(env) as f64) as u64)
    }

    /// Bytes of the device, which is asked once.
    fn total(&mut self, env: &mut Env<'_>) -> u64 {
        *self.total.get_or_insert_with(|| env.device.memory_info().total)
    }

    /// If more is held than may be, which is so after the limit has fallen, the pool goes back.
    pub(super) fn respect_limit(&mut self, env: &mut Env<'_>) {
        let held = self.stats.reserved_bytes.all.current;
        if self.limit(env).is_some_and(|limit| held > limit) {
            // What is refused stays in the pool.
            let _ = self.drain(env);
        }
    }

    /// Lets the fallback hold what the regions leave of the limit. What is in the pool it may have: the
    /// pool gives back what the fallback takes.
    pub(super) fn share_limit(&mut self, env: &mut Env<'_>) {
        self.respect_limit(env);
        let Some(limit) = self.limit(env) else { return };
        let left = limit.saturating_sub(self.mapped());
        // A quarter of a byte more: whichever way the fallback rounds, it comes out at `left`.
        let fraction = (left as f64 + 0.25) / self.total(env) as f64;
        self.fallback.set_memory_fraction(fraction);
    }
}
