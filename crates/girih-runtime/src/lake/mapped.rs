//! Blocks that become mapped, and unmapped ones: the books of it.

use girih_trace::{Action, PoolId};

use super::Lake;
use super::block::Block;
use crate::chain::NIL;
use crate::device::Address;
use crate::policy::{BlockId, Env};

impl Lake {
    /// `mapped` bytes of an unmapped block are mapped now, from `address` on: they become a free one, together with
    /// its free neighbours; the rest stays unmapped.
    pub(super) fn become_mapped(
        &mut self,
        env: &mut Env<'_>,
        mut id: BlockId,
        address: Address,
        mapped: u64,
    ) -> BlockId {
        let Block { address: start, home, .. } = self.heap.blocks[id];
        self.unmapped.remove(&(home.shelf, start));
        if address > start {
            let before = self.heap.cut(id, address - start);
            self.unmapped.insert((home.shelf, start), before);
        }
        if mapped < self.heap.blocks[id].size {
            self.unmapped.insert((home.shelf, address + mapped), id);
            id = self.heap.cut(id, mapped);
        }
        self.heap.blocks[id].mapped = true;
        self.heap.shelve(id);
        self.held += mapped;
        self.most_held = self.most_held.max(self.held);
        let stats = &mut self.beside.stats;
        stats.reserved_bytes.increase(home.is_small, mapped);
        stats.num_device_alloc += 1;
        env.log(Action::SegmentMap, address, mapped, home.stream, PoolId::DEFAULT);
        id
    }

    /// A block on no shelf is not mapped any more: it joins its unmapped neighbours.
    pub(super) fn become_unmapped(&mut self, env: &mut Env<'_>, id: BlockId) {
        let Block { address, size, prev, next, home, .. } = self.heap.blocks[id];
        self.heap.blocks[id].mapped = false;
        for neighbour in [prev, next] {
            if neighbour != NIL && !self.heap.blocks[neighbour].mapped {
                self.unmapped.remove(&(home.shelf, self.heap.blocks[neighbour].address));
                self.heap.absorb(id, neighbour);
            }
        }
        self.heap.blocks[id].requested = 0;
        self.unmapped.insert((home.shelf, self.heap.blocks[id].address), id);
        self.held -= size;
        let stats = &mut self.beside.stats;
        stats.reserved_bytes.decrease(home.is_small, size);
        stats.num_device_free += 1;
        env.log(Action::SegmentUnmap, address, size, home.stream, PoolId::DEFAULT);
    }
}
