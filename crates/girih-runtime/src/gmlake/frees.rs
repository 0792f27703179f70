//! The way of a block back into its pool: what of it is this policy's.

use girih_trace::{Action, BlockState, PoolId};

use super::Gmlake;
use super::grants::Grant;
use crate::device::DeviceError;
use crate::pending::{Limbo, PendingFrees};
use crate::policy::{AllocError, BlockId, Env};
use crate::returning::Returning;

impl Gmlake {
    /// Takes back a primitive or stitched block.
    pub(super) fn free_own(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), AllocError> {
        self.grants.in_use(id).ok_or(AllocError::UnknownBlock(id))?;
        Ok(self.take_back(env, id)?)
    }
}

impl Returning for Gmlake {
    fn is_capturing(&self) -> bool {
        self.beside.is_capturing()
    }

    fn pending(&mut self) -> (&mut PendingFrees, &mut Limbo) {
        (&mut self.pending, &mut self.limbo)
    }

    fn deferred(&mut self) -> &mut Vec<BlockId> {
        &mut self.deferred
    }

    fn has_users(&self, id: BlockId) -> bool {
        !self.grants[id].users.is_empty()
    }

    fn record_events(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), DeviceError> {
        let grant = &mut self.grants[id];
        grant.events = self.pending.record(env.device, &mut self.limbo, id, &grant.users)?;
        Ok(())
    }

    fn events(&mut self, id: BlockId) -> &mut u32 {
        &mut self.grants[id].events
    }

    fn let_go(&mut self, env: &mut Env<'_>, id: BlockId) {
        let grant = &mut self.grants[id];
        grant.state = BlockState::PendingFree;
        let &mut Grant { address, size, requested, stream, .. } = grant;
        self.beside.stats.count_free(false, size);
        env.log(Action::FreeRequested, address, requested, stream, PoolId::DEFAULT);
    }

    fn complete(&mut self, env: &mut Env<'_>, id: BlockId) {
        let Grant { place, address, size, requested, stream, .. } = self.grants.remove(id);
        self.pools.give_back(place);
        env.log(Action::FreeCompleted, address, requested, stream, PoolId::DEFAULT);
        self.beside.stats.count_complete(false, size, requested);
    }
}
