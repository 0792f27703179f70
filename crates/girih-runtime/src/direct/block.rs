//! The blocks that are allocations of the device, one each.

use girih_trace::{BlockState, PoolId, StreamId};

use crate::device::Address;
use crate::policy::{Backing, BlockId, BlockView, SegmentView};
use crate::slab::Slab;

/// Requests up to this count as small, as in PyTorch's statistics.
const SMALL_SIZE: u64 = 1 << 20;

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
        (segment, BlockView { address, size, requested, whole: 0, state })
    }
}

/// Every block by its id.
pub(super) type Blocks = Slab<BlockId, Block>;

impl Blocks {
    /// The block, if it was given and not freed.
    pub(super) fn in_use(&mut self, id: BlockId) -> Option<&mut Block> {
        self.get_mut(id).filter(|block| block.state == BlockState::Allocated)
    }
}
