//! The blocks that the program holds, and those that it has freed and that still wait.

use girih_trace::{BlockState, StreamId};

use super::kinds::Place;
use crate::device::Address;
use crate::policy::BlockId;
use crate::slab::Slab;

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
