//! Blocks of PyTorch's allocator: one cache line each.

use girih_trace::StreamId;

use crate::chain::{NIL, linked};
use crate::device::Address;
use crate::order::Stamp;
use crate::policy::BlockId;

/// No expandable segment.
pub(super) const NO_SEGMENT: u32 = u32::MAX;

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
    /// The pool's count of searches when the block became free; the difference is its age.
    pub(super) born: u32,
    /// Events that must be done before the block is free.
    pub(super) events: u16,
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

    /// True if nobody uses it or may still use it. It may be unmapped.
    pub(super) fn is_free(&self) -> bool {
        !self.allocated && self.events == 0 && !self.shared
    }
}

/// The blocks, by id.
pub(super) type Slab = crate::chain::Slab<Block>;

linked!(Block);

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
