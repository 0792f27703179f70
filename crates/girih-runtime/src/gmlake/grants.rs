//! The blocks that the program holds, and those that it has freed and that still wait.
//!
//! The caching policy inside has blocks under ids of its own. One bit tells the two apart:
//!
//! ```text
//!  id   0 | index in the caching policy          1 | index in Grants
//! ```

use girih_trace::{BlockState, StreamId};

use super::kinds::Place;
use super::slab::{Id, Slab};
use crate::device::Address;
use crate::policy::BlockId;

/// Set in the ids of these blocks.
const OWN: u32 = 1 << 31;

/// True if the block is primitive or stitched; false if it lies in the caching policy.
pub(super) fn is_own(id: BlockId) -> bool {
    id.0 & OWN != 0
}

impl Id for BlockId {
    fn of(index: u32) -> BlockId {
        BlockId(OWN | index)
    }

    fn index(self) -> usize {
        (self.0 & !OWN) as usize
    }
}

/// A block of the program. It is alive until its place is inactive again.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) place: Place,
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

/// Every block of the program by its id.
pub(super) type Grants = Slab<BlockId, Grant>;

impl Grants {
    /// The block, if it was given and not freed.
    pub(super) fn in_use(&mut self, id: BlockId) -> Option<&mut Grant> {
        self.get_mut(id).filter(|grant| grant.state == BlockState::Allocated)
    }
}
