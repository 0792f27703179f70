//! The way of a freed block: at once, or when the events of other streams are done.
//!
//! ```text
//!  free ─┬─ no other stream used it ──────────────────► its bytes are free
//!        ├─ others did ─► pending, an event for each ─► its bytes are free
//!        └─ during a capture ─► deferred until its end ─► pending
//! ```

use girih_trace::{Action, PoolId, StreamId};

use super::Lake;
use super::block::Block;
use crate::device::{Device, DeviceError};
use crate::order::Stamp;
use crate::policy::{AllocError, BlockId, Env};
use crate::wrapper::Wrapper;

impl Lake {
    /// Adds a stream to a block in use.
    pub(super) fn add_use(&mut self, id: BlockId, stream: StreamId) {
        let uses = self.uses.entry(id).or_default();
        if !uses.contains(&stream) {
            uses.push(stream);
        }
        self.heap.blocks[id].shared = true;
    }

    /// Takes back a block of the lake.
    #[inline]
    pub(super) fn free_own(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), AllocError> {
        let block = self.heap.blocks.allocated(id).ok_or(AllocError::UnknownBlock(id))?;
        if block.shared {
            return self.free_shared(env, id);
        }
        self.let_go(env, id);
        self.complete(env, id);
        Ok(())
    }

    /// The same of a block that other streams use.
    #[cold]
    #[inline(never)]
    fn free_shared(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), AllocError> {
        let is_deferred = self.is_capturing() || self.is_captured(env, id)?;
        if !is_deferred {
            self.record_events(env.device, id)?;
        }
        self.let_go(env, id);
        if is_deferred {
            self.deferred.push(id);
        }
        Ok(())
    }

    /// The program uses a block no more.
    #[inline]
    fn let_go(&mut self, env: &mut Env<'_>, id: BlockId) {
        let block = &mut self.heap.blocks[id];
        block.allocated = false;
        let &mut Block { address, size, requested, user, .. } = block;
        let is_small = block.is_small();
        let split = self.beside.inner().config().max_split_size;
        let stats = &mut self.beside.stats;
        stats.count_free(is_small, size);
        if size >= split {
            stats.oversize_allocations.decrease(1);
        }
        env.log(Action::FreeRequested, address, requested, user, PoolId::DEFAULT);
    }

    /// Makes the bytes of a freed block free. The block is gone afterwards, or another.
    #[inline]
    fn complete(&mut self, env: &mut Env<'_>, id: BlockId) {
        let block = &mut self.heap.blocks[id];
        let freed = self.order.free();
        let requested = std::mem::replace(&mut block.requested, freed);
        let &mut Block { address, size, user, planned, .. } = block;
        let is_small = block.is_small();
        env.log(Action::FreeCompleted, address, requested, user, PoolId::DEFAULT);
        if self.repeats.is_watching() && !is_small {
            self.repeats.freed(address);
        }
        if planned {
            self.leave_place(id, freed);
        } else {
            self.return_bytes(id, freed);
        }
        self.in_use -= size;
        self.beside.stats.count_complete(is_small, size, requested);
    }

    /// Gives the bytes of a block that has no place in a window back to whom they are of.
    fn return_bytes(&mut self, id: BlockId, freed: Stamp) {
        let block = &self.heap.blocks[id];
        if block.is_stitched() {
            return self.return_view(id);
        }
        let (part, user, home) = (block.part(), block.user, block.home);
        if user != home.stream {
            self.order.want();
            self.stain(part, home.stream, Some(user), freed);
        }
        self.heap.shelve(id);
    }

    /// True if a graph is being captured from another stream of a block, begun by whomever: no event may be
    /// recorded there.
    fn is_captured(&self, env: &mut Env<'_>, id: BlockId) -> Result<bool, DeviceError> {
        for &stream in self.uses.get(&id).map(Vec::as_slice).unwrap_or_default() {
            if env.device.is_capturing(stream)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Records an event on each stream that uses the block, which waits for them afterwards. On an error
    /// nothing has changed.
    fn record_events(&mut self, device: &mut dyn Device, id: BlockId) -> Result<(), DeviceError> {
        let uses = self.uses.get(&id).map(Vec::as_slice).unwrap_or_default();
        let events = self.pending.record(device, &mut self.limbo, id, uses)?;
        self.uses.remove(&id);
        self.heap.blocks[id].shared = false;
        // Never more than there are other streams, whose ids have 16 bits.
        self.heap.blocks[id].events = events as u16;
        Ok(())
    }

    /// Completes the frees whose events are done. Cheap if none waits. Not during a capture.
    #[inline]
    pub(super) fn complete_frees(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        if self.pending.is_empty() && self.deferred.is_empty() {
            return Ok(());
        }
        self.poll_events(env)
    }

    #[inline(never)]
    fn poll_events(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        self.end_deferral(env)?;
        let mut cursor = 0;
        while let Some(id) = self.pending.next_done(env.device, &mut self.limbo, &mut cursor)? {
            self.event_done(env, id);
        }
        Ok(())
    }

    /// Waits for every event and completes every free. Not during a capture.
    pub(super) fn wait_for_frees(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        self.end_deferral(env)?;
        while let Some(id) = self.pending.wait_next(env.device, &mut self.limbo)? {
            self.event_done(env, id);
        }
        Ok(())
    }

    fn event_done(&mut self, env: &mut Env<'_>, id: BlockId) {
        let block = &mut self.heap.blocks[id];
        block.events -= 1;
        if block.events == 0 {
            self.complete(env, id);
        }
    }

    /// Gives the blocks that were freed during a capture their events. A capture that nobody has told of may
    /// still be under way; then they stay, and the first says so for all.
    fn end_deferral(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        let mut ended = 0;
        let result = loop {
            let Some(&id) = self.deferred.get(ended) else { break Ok(()) };
            let uses = self.uses.get(&id).map(Vec::as_slice).unwrap_or_default();
            // The streams may be gone by now: they tell their devices alone.
            match self.pending.record_fence(env.device, id, uses) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
            self.uses.remove(&id);
            let block = &mut self.heap.blocks[id];
            (block.shared, block.events) = (false, 1);
            ended += 1;
        };
        self.deferred.drain(..ended);
        result
    }

    /// True if a block was freed that is not free yet.
    pub(super) fn has_waiting(&self) -> bool {
        !(self.pending.is_empty() && self.deferred.is_empty())
    }
}
