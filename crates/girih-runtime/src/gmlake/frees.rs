//! The way of a block back into its pool.
//!
//! ```text
//!  free ─┬─ nobody else uses it ──────────────────────────────► inactive
//!        ├─ other streams do ─► pending, until their events are done ─┘
//!        └─ and a graph is captured ─► deferred, until the capture ends ─► pending
//! ```
//!
//! On its own stream a block is reused at once: work there is done in order. During a capture no
//! event is recorded and none is asked.

use girih_trace::{Action, BlockState, PoolId};

use super::Gmlake;
use super::grants::Grant;
use crate::device::DeviceError;
use crate::policy::{AllocError, BlockId, Env};

impl Gmlake {
    /// Takes back a primitive or stitched block.
    pub(super) fn free_own(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), AllocError> {
        let grant = self.grants.in_use(id).ok_or(AllocError::UnknownBlock(id))?;
        if grant.users.is_empty() {
            self.let_go(env, id);
            self.complete(env, id);
        } else if self.beside.is_capturing() {
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

    /// True if a block was freed and is not inactive yet.
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

    /// Counts that the program let a block go.
    fn let_go(&mut self, env: &mut Env<'_>, id: BlockId) {
        let grant = &mut self.grants[id];
        grant.state = BlockState::PendingFree;
        let &mut Grant { address, size, requested, stream, .. } = grant;
        self.beside.stats.count_free(false, size);
        env.log(Action::FreeRequested, address, requested, stream, PoolId::DEFAULT);
    }

    /// Makes a block's place inactive. The block is gone afterwards.
    fn complete(&mut self, env: &mut Env<'_>, id: BlockId) {
        let Grant { place, address, size, requested, stream, .. } = self.grants.remove(id);
        self.pools.give_back(place);
        env.log(Action::FreeCompleted, address, requested, stream, PoolId::DEFAULT);
        self.beside.stats.count_complete(false, size, requested);
    }
}
