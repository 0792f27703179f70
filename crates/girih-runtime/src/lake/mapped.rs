//! Blocks that become mapped, and unmapped ones: the books of it.

use girih_trace::{Action, PoolId};

use super::Lake;
use super::block::Block;
use crate::chain::NIL;
use crate::device::Address;
use crate::policy::{BlockId, Env};

impl Lake {
    /// Cuts an unmapped block before an address in it. Returns the part from there on, which keeps the id.
    pub(super) fn cut_unmapped(&mut self, id: BlockId, address: Address) -> BlockId {
        let Block { address: start, home, .. } = self.heap.blocks[id];
        if address > start {
            self.unmapped.remove(&(home.shelf, start));
            let before = self.heap.cut(id, address - start);
            self.unmapped.insert((home.shelf, start), before);
            self.unmapped.insert((home.shelf, address), id);
        }
        id
    }

    /// The first `mapped` bytes of an unmapped block are mapped now: it becomes a free one, together with its free
    /// neighbours; the rest stays unmapped.
    pub(super) fn become_mapped(&mut self, env: &mut Env<'_>, id: BlockId, mapped: u64) {
        let block = self.heap.blocks[id];
        let shelf = block.home.shelf;
        self.unmapped.remove(&(shelf, block.address));
        if mapped < block.size {
            let address = block.address + mapped;
            let size = block.size - mapped;
            let rest = Block { address, size, prev: NIL, next: NIL, requested: 0, ..block };
            let rest = self.heap.blocks.insert(rest);
            self.heap.blocks.link(id, rest, block.next);
            self.unmapped.insert((shelf, address), rest);
        }
        let block = &mut self.heap.blocks[id];
        (block.mapped, block.size) = (true, mapped);
        let (address, home) = (block.address, block.home);
        self.heap.shelve(id);
        self.held += mapped;
        self.most_held = self.most_held.max(self.held);
        let stats = &mut self.beside.stats;
        stats.reserved_bytes.increase(home.is_small, mapped);
        stats.num_device_alloc += 1;
        env.log(Action::SegmentMap, address, mapped, home.stream, PoolId::DEFAULT);
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
