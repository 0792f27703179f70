//! Blocks, and the slab that holds them.
//!
//! The blocks of a segment are a doubly linked list by address. They live in one slab and link by
//! index, 32 bits each, so that a block is one cache line and a split takes no memory from the
//! host once the slab has grown.
//!
//! ```text
//!  segment:   |  a: in use  | b: free |     c: in use     |
//!              prev -   next b   prev a  next c   prev b  next -
//! ```

use std::ops::{Index, IndexMut};

use girih_trace::StreamId;

use crate::device::Address;
use crate::order::Stamp;
use crate::policy::BlockId;

/// No block.
pub(super) const NIL: BlockId = BlockId(u32::MAX);
/// No expandable segment.
pub(super) const NO_SEGMENT: u32 = u32::MAX;
/// The segment of a block that is a view ([`super::views`]): its bytes are lent by others.
pub(super) const STITCHED: u32 = u32::MAX - 1;

/// Where a block belongs: its pool, its stream, and the shelf of free blocks of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Home {
    /// Index of the pool; even for small requests, odd for large ones.
    pub(super) pool: u32,
    /// Index of the shelf.
    pub(super) shelf: u32,
    pub(super) stream: StreamId,
}

impl Home {
    pub(super) fn is_small(self) -> bool {
        self.pool.is_multiple_of(2)
    }
}

/// A run of bytes of a segment, in use, free, or unmapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) address: Address,
    pub(super) size: u64,
    /// Bytes requested; of a free block, where the order of streams is kept, the stamp of its last free
    /// ([`Block::freed`]).
    pub(super) requested: u64,
    pub(super) prev: BlockId,
    pub(super) next: BlockId,
    pub(super) home: Home,
    /// Index of its expandable segment, or [`NO_SEGMENT`].
    pub(super) segment: u32,
    /// Decides between free blocks of one size; see [`TieOrder`](super::TieOrder).
    pub(super) registration: u32,
    /// The pool's count of searches when the block became free; the difference is its age. Of a
    /// stitched block, the place of its view.
    pub(super) born: u32,
    /// Events that must be done before the block is free.
    pub(super) events: u16,
    /// Part of a view that is in use.
    pub(super) lent: bool,
    /// In use by the program.
    pub(super) allocated: bool,
    /// Backed by memory.
    pub(super) mapped: bool,
    /// Other streams were recorded on it.
    pub(super) shared: bool,
    /// False for a vacant place of the slab.
    pub(super) exists: bool,
}

impl Block {
    /// A mapped block without neighbours, neither in use nor in a free set.
    pub(super) fn new(address: Address, size: u64, home: Home) -> Block {
        Block {
            address,
            size,
            requested: 0,
            prev: NIL,
            next: NIL,
            home,
            segment: NO_SEGMENT,
            registration: 0,
            born: 0,
            events: 0,
            allocated: false,
            mapped: true,
            shared: false,
            lent: false,
            exists: true,
        }
    }

    /// Of a free block: the last free of any of its bytes. 0 if nobody has used them, or if the order of
    /// streams is PyTorch's.
    pub(super) fn freed(&self) -> Stamp {
        self.requested
    }

    /// True if it is a part of its segment (`is_split`).
    pub(super) fn is_split(&self) -> bool {
        self.prev != NIL || self.next != NIL
    }

    pub(super) fn is_expandable(&self) -> bool {
        self.segment != NO_SEGMENT
    }

    /// True if it is a view: no part of a segment.
    pub(super) fn is_stitched(&self) -> bool {
        self.segment == STITCHED
    }

    /// True if nobody uses it or may still use it. It may be unmapped.
    pub(super) fn is_free(&self) -> bool {
        !self.allocated && self.events == 0 && !self.shared && !self.lent
    }
}

/// The blocks, by id. Vacant places are linked through `next`.
#[derive(Debug)]
pub(super) struct Slab {
    blocks: Vec<Block>,
    vacant: BlockId,
}

impl Default for Slab {
    fn default() -> Slab {
        Slab { blocks: Vec::new(), vacant: NIL }
    }
}

impl Slab {
    #[inline]
    pub(super) fn insert(&mut self, block: Block) -> BlockId {
        let id = self.vacant;
        if id == NIL {
            let id =
                u32::try_from(self.blocks.len()).expect("fewer than 2^32 blocks fit in memory");
            self.blocks.push(block);
            return BlockId(id);
        }
        self.vacant = self[id].next;
        self[id] = block;
        id
    }

    pub(super) fn remove(&mut self, id: BlockId) {
        let vacant = self.vacant;
        let block = &mut self[id];
        block.exists = false;
        block.allocated = false;
        block.next = vacant;
        self.vacant = id;
    }

    /// The block, if it is in use by the program.
    pub(super) fn allocated(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id.0 as usize).filter(|block| block.allocated)
    }

    /// The block of an id, if there is one now.
    #[inline]
    pub(super) fn get(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id.0 as usize).filter(|block| block.exists)
    }

    /// Every block, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        let ids = (0..).map(BlockId);
        ids.zip(&self.blocks).filter(|(_, block)| block.exists)
    }

    /// Links `new` between `left` and `right`, either of which may be [`NIL`].
    pub(super) fn link(&mut self, left: BlockId, new: BlockId, right: BlockId) {
        self[new].prev = left;
        self[new].next = right;
        if left != NIL {
            self[left].next = new;
        }
        if right != NIL {
            self[right].prev = new;
        }
    }

    /// Unlinks a neighbour that `kept` has absorbed.
    pub(super) fn unlink(&mut self, id: BlockId) {
        let (prev, next) = (self[id].prev, self[id].next);
        if prev != NIL {
            self[prev].next = next;
        }
        if next != NIL {
            self[next].prev = prev;
        }
    }
}

impl Index<BlockId> for Slab {
    type Output = Block;

    fn index(&self, id: BlockId) -> &Block {
        &self.blocks[id.0 as usize]
    }
}

impl IndexMut<BlockId> for Slab {
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_one_cache_line() {
        assert_eq!(size_of::<Block>(), 64);
    }

    #[test]
    fn a_removed_place_is_used_again_and_is_not_seen() {
        let mut slab = Slab::default();
        let home = Home { pool: 0, shelf: 0, stream: StreamId(0) };
        let block = Block::new(512, 512, home);
        let (a, b) = (slab.insert(block), slab.insert(block));
        slab.remove(a);
        assert_eq!(slab.iter().map(|(id, _)| id).collect::<Vec<_>>(), [b]);
        assert!(slab.allocated(a).is_none());
        assert_eq!(slab.insert(block), a);
    }
}
