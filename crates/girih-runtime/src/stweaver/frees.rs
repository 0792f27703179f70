//! The way of a block back into the pool.
//!
//! ```text
//!  free ─┬─ nobody else uses it ──────────────────────────────► free bytes of its stream
//!        ├─ other streams do ─► pending, until their events are done ─┘
//!        └─ and a graph is captured ─► deferred, until the capture ends ─► pending
//! ```

use girih_trace::{Action, BlockState, PoolId};

use super::{Grant, Stweaver, is_small};
use crate::device::DeviceError;
use crate::policy::{AllocError, BlockId, Env};

impl Stweaver {
    /// The block, if it was given and not freed.
    pub(super) fn in_use(&mut self, id: BlockId) -> Option<&mut Grant> {
        self.grants.get_mut(id).filter(|grant| grant.state == BlockState::Allocated)
    }

    /// Takes back a block of the pool.
    pub(super) fn free_own(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), AllocError> {
        let is_capturing = self.beside.is_capturing();
        let grant = self.grants.get_mut(id).filter(|grant| grant.state == BlockState::Allocated);
        let grant = grant.ok_or(AllocError::UnknownBlock(id))?;
        if grant.users.is_empty() {
            self.let_go(env, id);
            self.complete(env, id);
        } else if is_capturing {
            self.let_go(env, id);
            self.deferred.push(id);
        } else {
            grant.events = self.pending.record(env.device, &mut self.limbo, id, &grant.users)?;
            self.let_go(env, id);
        }
        Ok(())
    }

    /// Completes the frees whose events are done. Not during a capture.
    pub(super) fn complete_frees(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        self.end_deferral(env)?;
        let mut cursor = 0;
        while let Some(id) = self.pending.next_done(env.device, &mut self.limbo, &mut cursor)? {
            self.count_event(env, id);
        }
        Ok(())
    }

    /// Waits for every event and completes every free. Not during a capture.
    pub(super) fn wait_for_frees(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        self.end_deferral(env)?;
        while let Some(id) = self.pending.wait_next(env.device, &mut self.limbo)? {
            self.count_event(env, id);
        }
        Ok(())
    }

    /// True if a block was freed whose bytes are not free yet.
    pub(super) fn has_waiting(&self) -> bool {
        !(self.pending.is_empty() && self.deferred.is_empty())
    }

    /// Gives the blocks that were freed during a capture their events.
    fn end_deferral(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        while let Some(&id) = self.deferred.last() {
            let grant = &mut self.grants[id];
            grant.events = self.pending.record(env.device, &mut self.limbo, id, &grant.users)?;
            self.deferred.pop();
        }
        Ok(())
    }

    fn count_event(&mut self, env: &mut Env<'_>, id: BlockId) {
        let grant = &mut self.grants[id];
        grant.events -= 1;
        if grant.events == 0 {
            self.complete(env, id);
        }
    }

    fn address(&self, offset: u64) -> u64 {
        self.pool.as_ref().map_or(0, |pool| pool.address + offset)
    }

    /// Counts that the program let a block go.
    fn let_go(&mut self, env: &mut Env<'_>, id: BlockId) {
        let grant = &mut self.grants[id];
        grant.state = BlockState::PendingFree;
        let &mut Grant { offset, size, requested, stream, .. } = grant;
        self.beside.stats.count_free(is_small(size), size);
        let address = self.address(offset);
        env.log(Action::FreeRequested, address, requested, stream, PoolId::DEFAULT);
    }

    /// Makes the bytes of a block free. The block is gone afterwards.
    fn complete(&mut self, env: &mut Env<'_>, id: BlockId) {
        let Grant { offset, size, requested, stream, .. } = self.grants.remove(id);
        let address = self.address(offset);
        let freed = self.order.free();
        if let Some(pool) = &mut self.pool {
            pool.space.give_back(offset, size, stream, freed);
        }
        env.log(Action::FreeCompleted, address, requested, stream, PoolId::DEFAULT);
        self.beside.stats.count_complete(is_small(size), size, requested);
    }
}
