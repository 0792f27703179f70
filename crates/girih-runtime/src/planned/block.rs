//! Blocks of the regions, and where they lie.
//!
//! The fallback has blocks of its own under ids of its own. To tell the two apart costs one bit:
//!
//! ```text
//!  id   0 | index in the fallback          1 | index in Blocks
//! ```
//!
//! So a block of the fallback needs no entry here, and an id stays valid whichever plan is followed.

use girih_trace::{BlockState, PoolId, StreamId};

use super::cells::Span;
use crate::device::Address;
use crate::policy::BlockId;

/// Set in the ids of blocks of the regions.
const OWN: u32 = 1 << 31;

/// True if the block lies in a region; false if it is the fallback's.
#[inline]
pub(super) fn is_own(id: BlockId) -> bool {
    id.0 & OWN != 0
}

/// A block of a region.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) home: Home,
    pub(super) address: Address,
    pub(super) size: u64,
    pub(super) requested: u64,
    pub(super) stream: StreamId,
    pub(super) pool: PoolId,
    /// Other streams that use it.
    pub(super) users: Vec<StreamId>,
    /// Events that its free waits for.
    pub(super) events: u32,
    pub(super) state: BlockState,
}

/// Where a block lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Home {
    Vacant,
    Arena(Spot),
    Persistent(Spot),
    /// In a region of an earlier plan, by its index.
    Retired(u32, Spot),
}

/// Where in its region a block lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Spot {
    pub(super) offset: u64,
    /// The cells that it holds.
    pub(super) span: Span,
    /// Events are recorded when it is freed.
    pub(super) fence: bool,
    /// It is not the block's place in the plan: see [`guests`](super::guests).
    pub(super) is_guest: bool,
}

/// The blocks of all regions.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    blocks: Vec<Block>,
    vacant: Vec<u32>,
}

impl Blocks {
    #[inline]
    pub(super) fn add(&mut self, block: Block) -> BlockId {
        match self.vacant.pop() {
            Some(index) => {
                self.blocks[index as usize] = block;
                BlockId(OWN | index)
            }
            None => {
                self.blocks.push(block);
                BlockId(OWN | (self.blocks.len() as u32 - 1))
            }
        }
    }

    /// The block, which exists.
    #[inline]
    pub(super) fn at(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[(id.0 & !OWN) as usize]
    }

    /// The block, if it was given and not freed.
    #[inline]
    pub(super) fn in_use(&mut self, id: BlockId) -> Option<&mut Block> {
        self.blocks
            .get_mut((id.0 & !OWN) as usize)
            .filter(|block| block.home != Home::Vacant && block.state == BlockState::Allocated)
    }

    #[inline]
    pub(super) fn remove(&mut self, id: BlockId) {
        let block = self.at(id);
        block.home = Home::Vacant;
        if !block.users.is_empty() {
            block.users = Vec::new();
        }
        self.vacant.push(id.0 & !OWN);
    }

    /// The blocks that are in use or pending, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter().filter(|block| block.home != Home::Vacant)
    }

    /// The blocks that are in use or pending, in no order.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Block> {
        self.blocks.iter_mut().filter(|block| block.home != Home::Vacant)
    }
}
