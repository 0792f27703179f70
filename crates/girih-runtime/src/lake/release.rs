//! Giving pages back to the device.

use super::Lake;
use super::views::Part;
use crate::device::DeviceError;
use crate::policy::{AllocError, BlockId, Env};

impl Lake {
    /// Bytes of the whole pages that are free.
    pub(super) fn releasable_bytes(&self) -> u64 {
        let free = self.heap.free_blocks(true).map(|id| &self.heap.blocks[id]);
        let free = free.map(|block| (block.segment, block.part()));
        let mut free: Vec<(u32, Part)> = free.chain(self.idle_places()).collect();
        free.sort_unstable_by_key(|(_, part)| part.address);
        // A page may lie on both sides of where a plan's window begins.
        let runs =
            free.chunk_by(|(one, part), (other, next)| one == other && part.end() == next.address);
        let whole = runs.map(|run| {
            let ((segment, first), (_, last)) = (run[0], run[run.len() - 1]);
            self.whole_bytes(segment, Part::between(first.address, last.end()))
        });
        whole.sum()
    }

    /// Bytes of the whole pages in a part of a segment, all of which is mapped.
    pub(super) fn whole_bytes(&self, segment: u32, part: Part) -> u64 {
        let segment = self.segments.get(segment);
        segment.and_then(|segment| segment.whole_pages(part)).map_or(0, |whole| whole.size)
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
        self.lend_all_places();
        let free: Vec<BlockId> = self.heap.free_blocks(true).collect();
        free.into_iter().try_for_each(|id| self.release_pages(env, id))?;
        if self.held == 0 {
            self.begin_anew();
        }
        let unmapped: Vec<BlockId> = self.heap.free_blocks(false).collect();
        unmapped.into_iter().for_each(|id| self.drop_if_unmapped(env, id));
        Ok(())
    }

    /// Gives back the pages that lie wholly inside a free block. What is left of it on both sides stays
    /// free. On an error nothing has changed.
    fn release_pages(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), DeviceError> {
        let block = self.heap.blocks[id];
        let whole = self.segment_of(&block).whole_pages(block.part());
        let Some(pages) = whole.filter(|whole| whole.size > 0) else { return Ok(()) };
        if !self.synchronize_users(env, id)? {
            return Ok(());
        }
        self.drop_views_over(env, pages);
        env.device.unmap(pages.address, pages.size)?;
        let id = self.heap.carve(id, pages);
        let Some(segment) = self.segments.get_mut(block.segment) else { return Ok(()) };
        for handle in segment.forget(pages) {
            self.limbo.release(env.device, handle);
        }
        self.become_unmapped(env, id);
        self.drop_if_unmapped(env, id);
        Ok(())
    }
}
