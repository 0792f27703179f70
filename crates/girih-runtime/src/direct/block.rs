//! The blocks that are allocations of the device, one each.
//!
//! Private pools have blocks of their own under ids of their own. One bit tells the two apart:
//!
//! ```text
//!  id   0 | index in the private pools          1 | index in Blocks
//! ```

use girih_trace::{BlockState, PoolId, StreamId};

use crate::device::Address;
use crate::policy::{Backing, BlockId, BlockView, SegmentView};

/// Set in the ids of these blocks.
const OWN: u32 = 1 << 31;
/// Requests up to this count as small, as in PyTorch's statistics.
const SMALL_SIZE: u64 = 1 << 20;

/// True if the block is an allocation of the device; false if it lies in a private pool.
pub(super) fn is_own(id: BlockId) -> bool {
    id.0 & OWN != 0
}

/// A block. It is alive until the device has it back.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) address: Address,
    pub(super) size: u64,
    pub(super) requested: u64,
    pub(super) stream: StreamId,
    pub(super) state: BlockState,
    /// Events that its free waits for.
    pub(super) events: u32,
    /// Other streams that use it.
    pub(super) users: Vec<StreamId>,
}

impl Block {
    pub(super) fn is_small(&self) -> bool {
        self.size <= SMALL_SIZE
    }

    /// The allocation, and the block that is all of it.
    pub(super) fn view(&self) -> (SegmentView, BlockView) {
        let &Block { address, size, requested, stream, state, .. } = self;
        let (pool, is_small, backing) = (PoolId::DEFAULT, self.is_small(), Backing::Allocation);
        let segment = SegmentView { address, size, stream, pool, is_small, backing };
        (segment, BlockView { address, size, requested, state })
    }
}

/// Every block by its id.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// Vacant places are `None`.
    blocks: Vec<Option<Block>>,
    vacant: Vec<u32>,
}

impl Blocks {
    pub(super) fn add(&mut self, block: Block) -> BlockId {
        let index = self.vacant.pop().unwrap_or(self.blocks.len() as u32);
        if index as usize == self.blocks.len() {
            self.blocks.push(None);
        }
        self.blocks[index as usize] = Some(block);
        BlockId(OWN | index)
    }

    /// The block, which is alive.
    pub(super) fn at(&mut self, id: BlockId) -> &mut Block {
        self.get_mut(id).expect("a block lives until the device has it back")
    }

    /// The block, if it was given and not freed.
    pub(super) fn in_use(&mut self, id: BlockId) -> Option<&mut Block> {
        self.get_mut(id).filter(|block| block.state == BlockState::Allocated)
    }

    /// Forgets the block, which was alive.
    pub(super) fn remove(&mut self, id: BlockId) -> Block {
        let index = id.0 & !OWN;
        self.vacant.push(index);
        self.blocks[index as usize].take().expect("a block goes back once")
    }

    /// The blocks that are alive.
    pub(super) fn iter(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        let ids = (0..).map(|index: u32| BlockId(OWN | index));
        ids.zip(&self.blocks).filter_map(|(id, block)| Some((id, block.as_ref()?)))
    }

    fn get_mut(&mut self, id: BlockId) -> Option<&mut Block> {
        self.blocks.get_mut((id.0 & !OWN) as usize)?.as_mut()
    }
}
