//! Blocks that tile their segments, and the slab that holds them.
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

use crate::policy::BlockId;

/// No block.
pub(crate) const NIL: BlockId = BlockId(u32::MAX);

/// A block of a list.
pub(crate) trait Link {
    /// The blocks before and behind it in its segment; [`NIL`] for none.
    fn neighbours(&self) -> [BlockId; 2];

    /// The same, to be changed. The second links vacant places of the slab.
    fn neighbours_mut(&mut self) -> [&mut BlockId; 2];

    /// False for a vacant place of the slab.
    fn exists(&self) -> bool;

    /// True if it is in use by the program, which a vacant place never is.
    fn is_allocated(&self) -> bool;

    /// Its place is vacant from now on.
    fn die(&mut self);
}

/// Makes a block of a list of a structure with the fields `prev`, `next`, `exists` and `allocated`.
macro_rules! linked {
    ($block:ty) => {
        impl crate::chain::Link for $block {
            fn neighbours(&self) -> [crate::policy::BlockId; 2] {
                [self.prev, self.next]
            }

            fn neighbours_mut(&mut self) -> [&mut crate::policy::BlockId; 2] {
                [&mut self.prev, &mut self.next]
            }

            fn exists(&self) -> bool {
                self.exists
            }

            fn is_allocated(&self) -> bool {
                self.allocated
            }

            fn die(&mut self) {
                self.exists = false;
                self.allocated = false;
            }
        }
    };
}
pub(crate) use linked;

/// The blocks, by id. Vacant places are linked through their second neighbour.
#[derive(Debug)]
pub(crate) struct Slab<B> {
    blocks: Vec<B>,
    vacant: BlockId,
}

impl<B> Default for Slab<B> {
    fn default() -> Slab<B> {
        Slab { blocks: Vec::new(), vacant: NIL }
    }
}

impl<B: Link> Slab<B> {
    #[inline]
    pub(crate) fn insert(&mut self, block: B) -> BlockId {
        let id = self.vacant;
        // There is no place of the id [`NIL`].
        let Some(place) = self.blocks.get_mut(id.0 as usize) else { return self.push(block) };
        self.vacant = place.neighbours()[1];
        *place = block;
        id
    }

    /// Adds a block where no place is vacant.
    #[cold]
    fn push(&mut self, block: B) -> BlockId {
        let id = u32::try_from(self.blocks.len()).ok().map(BlockId).filter(|&id| id != NIL);
        let id = id.expect("fewer than 2^32 blocks fit in memory");
        self.blocks.push(block);
        id
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: BlockId) {
        let vacant = self.vacant;
        let block = &mut self[id];
        block.die();
        *block.neighbours_mut()[1] = vacant;
        self.vacant = id;
    }

    /// The block, if it is in use by the program.
    #[inline]
    pub(crate) fn allocated(&self, id: BlockId) -> Option<&B> {
        self.blocks.get(id.0 as usize).filter(|block| block.is_allocated())
    }

    /// The block of an id, if there is one now.
    #[inline]
    pub(crate) fn get(&self, id: BlockId) -> Option<&B> {
        self.blocks.get(id.0 as usize).filter(|block| block.exists())
    }

    /// Every block, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (BlockId, &B)> {
        let ids = (0..).map(BlockId);
        ids.zip(&self.blocks).filter(|(_, block)| block.exists())
    }

    /// The same without their ids.
    pub(crate) fn values(&self) -> impl Iterator<Item = &B> {
        self.blocks.iter().filter(|block| block.exists())
    }

    /// Links `new` between `left` and `right`, either of which may be [`NIL`].
    pub(crate) fn link(&mut self, left: BlockId, new: BlockId, right: BlockId) {
        let [prev, next] = self[new].neighbours_mut();
        (*prev, *next) = (left, right);
        if left != NIL {
            *self[left].neighbours_mut()[1] = new;
        }
        if right != NIL {
            *self[right].neighbours_mut()[0] = new;
        }
    }

    /// Unlinks a block: its neighbours are each other's.
    pub(crate) fn unlink(&mut self, id: BlockId) {
        let [prev, next] = self[id].neighbours();
        if prev != NIL {
            *self[prev].neighbours_mut()[1] = next;
        }
        if next != NIL {
            *self[next].neighbours_mut()[0] = prev;
        }
    }
}

impl<B> Index<BlockId> for Slab<B> {
    type Output = B;

    fn index(&self, id: BlockId) -> &B {
        &self.blocks[id.0 as usize]
    }
}

impl<B> IndexMut<BlockId> for Slab<B> {
    fn index_mut(&mut self, id: BlockId) -> &mut B {
        &mut self.blocks[id.0 as usize]
    }
}
