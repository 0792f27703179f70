//! Blocks that other streams use: frees that wait for events, and frees inside a graph capture
//! (`recordStream`, `insert_events`, `process_events`, `synchronize_and_free_events`,
//! `insert_events_deferred_until_no_capture`).

use girih_trace::StreamId;

use super::Caching;
use crate::device::{Device, DeviceError};
use crate::policy::{BlockId, Env};

/// A stream that uses a block which was allocated for another.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamUse {
    pub(super) stream: StreamId,
    /// Recorded during a capture: its work is part of the graph, not of the stream.
    captured: bool,
    /// The capture whose graph the use is surely a part of, if that was asked.
    pub(super) graph: Option<u64>,
}

impl Caching {
    /// Adds a stream to a block in use, and the capture that this use is a part of, if that is known.
    pub(super) fn add_use(&mut self, id: BlockId, stream: StreamId, graph: Option<u64>) {
        // One thread may capture while another uses blocks as ever. PyTorch cannot tell them apart.
        let captured = self.is_capturing() && !self.config.own_order;
        let uses = self.uses.entry(id).or_default();
        if !uses.iter().any(|known| known.stream == stream) {
            uses.push(StreamUse { stream, captured, graph });
        }
        self.blocks[id].shared = true;
    }

    /// True if a graph is being captured from another stream of a block, begun by whomever: no event may be
    /// recorded there.
    pub(super) fn is_captured(&self, env: &mut Env<'_>, id: BlockId) -> Result<bool, DeviceError> {
        for entry in self.uses.get(&id).map(Vec::as_slice).unwrap_or_default() {
            if env.device.is_capturing(entry.stream)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Forgets the other streams of a block in use: they have been waited for.
    pub(super) fn forget_uses(&mut self, id: BlockId) {
        self.uses.remove(&id);
        self.blocks[id].shared = false;
    }

    /// Records an event on each stream that uses the block. Afterwards the block is not shared any
    /// more but waits. On an error nothing has changed.
    pub(super) fn record_events(
        &mut self,
        device: &mut dyn Device,
        id: BlockId,
    ) -> Result<(), DeviceError> {
        let uses = self.uses.get(&id).map(Vec::as_slice).unwrap_or_default();
        let streams: Vec<StreamId> = uses.iter().map(|entry| entry.stream).collect();
        let events = self.pending.record(device, &mut self.limbo, id, &streams)?;
        self.uses.remove(&id);
        self.blocks[id].shared = false;
        // Never more than there are other streams, whose ids have 16 bits.
        self.blocks[id].events = events as u16;
        Ok(())
    }

    /// Completes the frees whose events are done (`process_events`). Cheap if none waits.
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
            self.complete_event(env, id);
        }
        Ok(())
    }

    /// Waits for every event and completes every free (`synchronize_and_free_events`).
    pub(super) fn wait_for_frees(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        self.stats.num_sync_all_streams += 1;
        self.end_deferral(env)?;
        while let Some(id) = self.pending.wait_next(env.device, &mut self.limbo)? {
            self.complete_event(env, id);
        }
        Ok(())
    }

    fn complete_event(&mut self, env: &mut Env<'_>, id: BlockId) {
        self.blocks[id].events -= 1;
        if self.blocks[id].events == 0 {
            self.complete_free(env, id);
        }
    }

    /// Records an event for a block that was freed during a capture. False if one is still under way.
    fn record_after_capture(
        &mut self,
        env: &mut Env<'_>,
        id: BlockId,
    ) -> Result<bool, DeviceError> {
        // The streams may be gone by now: none is named, unlike in PyTorch's allocator.
        let uses = self.uses.get(&id).map(Vec::as_slice).unwrap_or_default();
        let users: Vec<StreamId> = uses.iter().map(|entry| entry.stream).collect();
        let is_used = !users.is_empty();
        if is_used && !self.pending.record_fence(env.device, id, &users)? {
            return Ok(false);
        }
        self.forget_uses(id);
        self.blocks[id].events = u16::from(is_used);
        Ok(true)
    }

    /// Gives the blocks that were freed during a capture their events. Streams that were recorded
    /// inside the capture need none: the graph is known to be done. A capture that nobody has told of may
    /// still be under way; its blocks stay.
    fn end_deferral(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        let mut staying = 0;
        while let Some(&id) = self.deferred.get(staying) {
            if let Some(uses) = self.uses.get_mut(&id) {
                uses.retain(|entry| !entry.captured);
            }
            if !self.record_after_capture(env, id)? {
                staying += 1;
                continue;
            }
            self.deferred.remove(staying);
            if self.blocks[id].events == 0 {
                self.complete_free(env, id);
            }
        }
        Ok(())
    }
}
