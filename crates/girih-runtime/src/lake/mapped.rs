//! Blocks that become mapped, and unmapped ones: the books of it.

use girih_trace::{Action, PoolId};

use super::Lake;
use super::block::Block;
use crate::device::Address;
use crate::policy::{BlockId, Env};

impl Lake {
    /// `mapped` bytes of an unmapped block are mapped now, from `address` on: they become a free one, together with
    /// its free neighbours; the rest stays unmapped.
    pub(super) fn become_mapped(
        &mut self,
        env: &mut Env<'_>,
        id: BlockId,
        address: Address,
        mapped: u64,
    ) -> BlockId {
        let id = self.heap.carve(id, address, mapped);
        self.heap.blocks[id].mapped = true;
        self.heap.shelve(id);
        let home = self.heap.blocks[id].home;
        self.held += mapped;
        let stats = &mut self.beside.stats;
        stats.reserved_bytes.increase(home.is_small, mapped);
        stats.num_device_alloc += 1;
        env.log(Action::SegmentMap, address, mapped, home.stream, PoolId::DEFAULT);
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
