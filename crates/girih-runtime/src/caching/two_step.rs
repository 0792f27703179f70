//! Requests in two steps, for a caller that holds the policy under a lock
//! (`release_lock_on_cudamalloc`).
//!
//! A segment may take the device milliseconds, and all that other threads ask for could be served of what
//! is cached. So the caller may take segments itself, without the lock:
//!
//! ```text
//!  with the lock              without                    with the lock
//!  allocate ─► SegmentLeft ─► Device::alloc ─┬─ given ─► go_on
//!                                            └─ refused ─► go_on, which asks the device itself
//! ```
//!
//! A refusal is not the end: the policy asks once more, gives back what is cached, and so on, as ever.
//!
//! The pool is searched again, since others may have freed what serves the request: then the segment is
//! cached. What the policy may hold is looked at again too, for others may have taken memory.
//!
//! The second step is an ordinary request that finds the segment where it would call the device: the common
//! path is the same code with and without this.

use super::rounding::{SMALL_SIZE, round_size};
use super::search::Search;
use super::{Caching, Home};
use crate::device::{Address, DeviceError};
use crate::policy::{AllocError, BlockId, Env, Granted, Policy, Request};

/// A segment that the caller has taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    address: Address,
    size: u64,
}

impl Caching {
    /// From now on a request that needs a segment fails with [`AllocError::SegmentLeft`]: the caller asks
    /// the device for it and then calls [`Caching::go_on`]. Only the first attempt of a request is left to
    /// the caller; once something had to be given back for it, and for pages, the policy calls the device
    /// itself.
    pub fn leave_segments(&mut self, leaves: bool) {
        self.leaves_segments = leaves;
    }

    /// Serves a request that was left to the caller, with the segment at `taken`, which [`Device::alloc`]
    /// gave and which is the policy's from now on, whatever becomes of the request; or, if the device gave
    /// none, as if nothing had been left. Bytes.
    ///
    /// # Errors
    /// As [`Policy::allocate`], if there is no segment or it does not serve any more: settings have changed,
    /// or the limit would be passed. Then it goes back first.
    ///
    /// [`Device::alloc`]: crate::Device::alloc
    #[cold]
    pub fn go_on(
        &mut self,
        env: &mut Env<'_>,
        request: Request,
        taken: Option<(Address, u64)>,
    ) -> Result<Granted, AllocError> {
        self.taken = taken.map(|(address, size)| Taken { address, size });
        let leaves = std::mem::take(&mut self.leaves_segments);
        let granted = self.allocate(env, request);
        self.leaves_segments = leaves;
        if let Some(taken) = self.taken.take() {
            // What becomes of the request does not depend on it.
            let _ = self.keep(env, &request, taken);
        }
        granted
    }

    /// Leaves a segment of so many bytes to the caller. The pool will be searched again: that counts once.
    pub(super) fn leave_segment(&mut self, search: &Search, segment: u64) -> AllocError {
        if self.config.garbage_collection_threshold > 0.0 && self.limit.is_set() {
            let pool = self.pools.get_mut(search.home.pool);
            pool.searches = pool.searches.wrapping_sub(1);
        }
        AllocError::SegmentLeft(segment)
    }

    /// The block of the segment that was taken for a search, if there is one and it still serves.
    pub(super) fn use_taken(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
    ) -> Result<Option<BlockId>, DeviceError> {
        let Some(taken) = self.taken.take() else { return Ok(None) };
        if taken.size >= search.size && !search.expandable && self.may_hold(env, taken.size) {
            return Ok(Some(self.add_segment(env, search.home, taken.address, taken.size)));
        }
        let given_back = env.device.free(taken.address);
        if given_back.is_err() {
            // It can only be kept; it goes back with what else is cached.
            self.add_free_segment(env, search.home, taken);
        }
        given_back.map(|()| None)
    }

    /// Caches a segment that its request did not need, or gives it back if that would be too much or the
    /// pool has gone.
    fn keep(
        &mut self,
        env: &mut Env<'_>,
        request: &Request,
        taken: Taken,
    ) -> Result<(), DeviceError> {
        let size = round_size(request.size, &self.config.roundup_power2_divisions);
        let owner = self.pools.find(request.pool);
        let pool = 2 * owner.unwrap_or_default() as u32 + u32::from(size > SMALL_SIZE);
        let home = self.home(pool, request.stream);
        if owner.is_some() && self.may_hold(env, taken.size) {
            self.add_free_segment(env, home, taken);
            return Ok(());
        }
        env.device.free(taken.address).inspect_err(|_| self.add_free_segment(env, home, taken))
    }

    fn add_free_segment(&mut self, env: &mut Env<'_>, home: Home, taken: Taken) {
        let block = self.add_segment(env, home, taken.address, taken.size);
        self.insert_free(block);
    }

    /// True if the policy may hold so many bytes more.
    fn may_hold(&self, env: &mut Env<'_>, size: u64) -> bool {
        let after = self.held().saturating_add(size);
        self.limit_on(env).is_none_or(|limit| after <= limit)
    }
}
