//! Blocks that become mapped, and unmapped ones: the books of it.

use girih_trace::{Action, PoolId};

use super::Lake;
use super::block::Block;
use super::views::Part;
use crate::policy::{BlockId, Env};

impl Lake {
    /// A part of an unmapped block is mapped now: it becomes a free one, together with its free neighbours; the rest
    /// stays unmapped.
    pub(super) fn become_mapped(&mut self, env: &mut Env<'_>, id: BlockId, part: Part) -> BlockId {
        let id = self.heap.carve(id, part);
        self.heap.blocks[id].mapped = true;
        self.heap.shelve(id);
        let home = self.heap.blocks[id].home;
        self.held += part.size;
        let stats = &mut self.beside.stats;
        stats.reserved_bytes.increase(home.is_small, part.size);
        stats.num_device_alloc += 1;
        env.log(Action::SegmentMap, part.address, part.size, home.stream, PoolId::DEFAULT);
        id
    }

    /// A block on no shelf is not mapped any more: it joins its unmapped neighbours.
    pub(super) fn become_unmapped(&mut self, env: &mut Env<'_>, id: BlockId) {
        let block = &mut self.heap.blocks[id];
        (block.mapped, block.requested) = (false, 0);
        let &mut Block { address, size, home, .. } = block;
        self.heap.shelve(id);
        self.held -= size;
        let stats = &mut self.beside.stats;
        stats.reserved_bytes.decrease(home.is_small, size);
        stats.num_device_free += 1;
        env.log(Action::SegmentUnmap, address, size, home.stream, PoolId::DEFAULT);
    }
}
