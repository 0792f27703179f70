//! Giving pages back to the device.

use std::ops::Range;

use girih_trace::{Action, PoolId};

use super::Lake;
use super::block::Block;
use super::views::Part;
use crate::chain::NIL;
use crate::device::DeviceError;
use crate::policy::{AllocError, BlockId, Env};

impl Lake {
    /// Bytes of the whole pages that are free.
    pub(super) fn releasable_bytes(&self) -> u64 {
        let free = self.heap.free_blocks().map(|id| &self.heap.blocks[id]);
        free.map(|block| {
            let Range { start, end } =
                self.segment_of(block).whole_pages(block.address, block.size);
            end.saturating_sub(start)
        })
        .sum()
    }

    /// Gives back all that is free, for a request of a private pool. False if there is nothing.
    pub(super) fn give_way(&mut self, env: &mut Env<'_>) -> Result<bool, AllocError> {
        let has_more = self.has_waiting() || self.releasable_bytes() > 0;
        if has_more {
            self.limbo.settle(env.device)?;
            self.wait_for_frees(env)?;
            self.release_free(env)?;
        }
        Ok(has_more)
    }

    /// Gives back every whole page that is free. Waits first for those who may still use them; where that
    /// cannot be, in a capture, pages stay.
    pub(super) fn release_free(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        let free: Vec<BlockId> = self.heap.free_blocks().collect();
        free.into_iter().try_for_each(|id| self.release_pages(env, id))
    }

    /// Gives back the pages that lie wholly inside a free block. What is left of it on both sides stays
    /// free. On an error nothing has changed.
    fn release_pages(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), DeviceError> {
        let block = self.heap.blocks[id];
        let Range { start, end } = self.segment_of(&block).whole_pages(block.address, block.size);
        if start >= end || !self.synchronize_users(env, id)? {
            return Ok(());
        }
        let size = end - start;
        self.drop_views_over(env, Part { address: start, size });
        env.device.unmap(start, size)?;
        let id = self.heap.carve(id, start, size);
        let Some(segment) = &mut self.segments[block.segment as usize] else { return Ok(()) };
        for handle in segment.forget(start, size) {
            self.limbo.release(env.device, handle);
        }
        self.heap.blocks[id].mapped = false;
        let Block { prev, next, home, .. } = self.heap.blocks[id];
        for neighbour in [prev, next] {
            if neighbour != NIL && !self.heap.blocks[neighbour].mapped {
                self.unmapped.remove(&(home.shelf, self.heap.blocks[neighbour].address));
                self.heap.absorb(id, neighbour);
            }
        }
        self.unmapped.insert((home.shelf, self.heap.blocks[id].address), id);
        self.held -= size;
        let stats = &mut self.beside.stats;
        stats.reserved_bytes.decrease(home.is_small, size);
        stats.num_device_free += 1;
        env.log(Action::SegmentUnmap, start, size, home.stream, PoolId::DEFAULT);
        self.drop_if_unmapped(env, id);
        Ok(())
    }
}
