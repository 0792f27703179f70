//! The fallback: who serves what has no place, and how much of the device it may hold.
//!
//! As long as no plan was ever followed, the fallback is all there is, and its counters are the
//! policy's. From the first plan on the policy counts for both, so that peaks are those of the sum.
//!
//! What the plan does not use now and what the fallback needs is one memory: before the policy comes
//! to hold more than ever under this plan, idle chunks go back.

use super::Planned;
use crate::policy::{AllocError, Env, Granted, Policy, Request};

impl Planned {
    /// Serves a request from the fallback.
    pub(super) fn fall_back(
        &mut self,
        env: &mut Env<'_>,
        request: Request,
    ) -> Result<Granted, AllocError> {
        if !self.is_counting {
            return self.fallback.allocate(env, request);
        }
        let holds_chunks = self.mapped_by_plan() > 0 || !self.retired.is_empty();
        if holds_chunks && !self.fallback.has_room(&request) {
            self.make_room(env, request.size)?;
        }
        self.share_limit(env);
        let mut result = self.with_fallback(|fallback| fallback.allocate(env, request));
        if matches!(result, Err(AllocError::OutOfMemory { .. })) {
            // Before giving up: pages that the plan does not use at this moment.
            let before = self.mapped();
            self.trim(env)?;
            if self.mapped() < before {
                self.share_limit(env);
                self.stats.num_ooms = self.stats.num_ooms.saturating_sub(1);
                self.stats.num_alloc_retries += 1;
                result = self.with_fallback(|fallback| fallback.allocate(env, request));
            }
        }
        result.map_err(|error| self.in_all(env, error))
    }

    /// An error of the fallback, with what all of the policy holds and may hold.
    fn in_all(&mut self, env: &mut Env<'_>, mut error: AllocError) -> AllocError {
        let all = self.limit(env);
        if let AllocError::OutOfMemory { allocated, reserved, limit, .. } = &mut error {
            *allocated = self.stats.allocated_bytes.all.current;
            *reserved = self.stats.reserved_bytes.all.current;
            *limit = all.unwrap_or(u64::MAX);
        }
        error
    }

    /// Runs an operation of the fallback and takes what it did to the device into the statistics.
    #[inline]
    pub(super) fn with_fallback<T>(&mut self, operation: impl FnOnce(&mut dyn Policy) -> T) -> T {
        if !self.is_counting {
            return operation(&mut *self.fallback);
        }
        let before = self.fallback.stats().clone();
        let result = operation(&mut *self.fallback);
        let after = self.fallback.stats();
        self.stats.add_change(&before, after);
        let reserved = after.reserved_bytes.all.current;
        let peak = &mut self.following.fallback_reserved_peak;
        *peak = reserved.max(*peak);
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

    /// Lets the fallback hold what the regions leave of the limit.
    fn share_limit(&mut self, env: &mut Env<'_>) {
        let Some(limit) = self.limit(env) else { return };
        let left = limit.saturating_sub(self.mapped());
        // A quarter of a byte more: whichever way the fallback rounds, it comes out at `left`.
        let fraction = (left as f64 + 0.25) / self.total(env) as f64;
        self.fallback.set_memory_fraction(fraction);
    }
}
