//! The way of a block back to the device.
//!
//! ```text
//!  free ─┬─ nobody else uses it ──────────────────────────────► the device has it back
//!        ├─ other streams do ─► pending, until their events are done ─► done ─┘
//!        └─ a graph is captured ─► deferred, until the capture ends ─► pending, or done
//! ```
//!
//! The driver waits for running work before it takes memory back, and what a capture records never
//! runs. So during a capture nothing goes back, no event is recorded and none is asked.

use girih_trace::{Action, BlockState, PoolId};

use super::Direct;
use super::block::Block;
use crate::device::DeviceError;
use crate::policy::{AllocError, BlockId, Env};

impl Direct {
    /// Takes back a block that lies in no private pool.
    pub(super) fn free_own(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), AllocError> {
        let block = self.blocks.in_use(id).ok_or(AllocError::UnknownBlock(id))?;
        if self.beside.is_capturing() {
            self.let_go(env, id);
            self.deferred.push(id);
        } else if block.users.is_empty() {
            env.device.free(block.address)?;
            self.let_go(env, id);
            self.complete(env, id);
        } else {
            block.events = self.pending.record(env.device, &mut self.limbo, id, &block.users)?;
            self.let_go(env, id);
        }
        Ok(())
    }

    /// Gives back the blocks whose events are done. Not during a capture.
    pub(super) fn complete_frees(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        self.end_deferral(env)?;
        let mut cursor = 0;
        while let Some(id) = self.pending.next_done(env.device, &mut self.limbo, &mut cursor)? {
            self.count_event(id);
        }
        self.give_back_done(env)
    }

    /// Waits for every event and gives every freed block back. Not during a capture.
    pub(super) fn wait_for_frees(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        self.end_deferral(env)?;
        while let Some(id) = self.pending.wait_next(env.device, &mut self.limbo)? {
            self.count_event(id);
        }
        self.give_back_done(env)
    }

    /// True if a block was freed that the device does not have back yet.
    pub(super) fn has_waiting(&self) -> bool {
        !(self.pending.is_empty() && self.deferred.is_empty() && self.done.is_empty())
    }

    /// Gives the blocks that were freed during a capture their events.
    fn end_deferral(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        while let Some(&id) = self.deferred.last() {
            let block = &mut self.blocks[id];
            block.events = self.pending.record(env.device, &mut self.limbo, id, &block.users)?;
            let is_done = block.events == 0;
            self.deferred.pop();
            if is_done {
                self.done.push(id);
            }
        }
        Ok(())
    }

    fn count_event(&mut self, id: BlockId) {
        let block = &mut self.blocks[id];
        block.events -= 1;
        if block.events == 0 {
            self.done.push(id);
        }
    }

    fn give_back_done(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        while let Some(&id) = self.done.last() {
            env.device.free(self.blocks[id].address)?;
            self.done.pop();
            self.complete(env, id);
        }
        Ok(())
    }

    /// Counts that the program let a block go.
    fn let_go(&mut self, env: &mut Env<'_>, id: BlockId) {
        let block = &mut self.blocks[id];
        block.state = BlockState::PendingFree;
        let (is_small, size) = (block.is_small(), block.size);
        let &mut Block { address, requested, stream, .. } = block;
        self.beside.stats.count_free(is_small, size);
        env.log(Action::FreeRequested, address, requested, stream, PoolId::DEFAULT);
    }

    /// Counts that the device has a block back. The block is gone afterwards.
    fn complete(&mut self, env: &mut Env<'_>, id: BlockId) {
        let block = self.blocks.remove(id);
        let is_small = block.is_small();
        let Block { address, size, requested, stream, .. } = block;
        env.log(Action::FreeCompleted, address, requested, stream, PoolId::DEFAULT);
        env.log(Action::SegmentFree, address, size, stream, PoolId::DEFAULT);
        let stats = &mut self.beside.stats;
        stats.count_complete(is_small, size, requested);
        stats.segment.decrease(is_small, 1);
        stats.reserved_bytes.decrease(is_small, size);
        stats.num_device_free += 1;
    }
}
