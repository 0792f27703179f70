//! The way of a block back into the pool: what of it is this policy's.

use girih_trace::{Action, BlockState, PoolId};

use super::{Grant, Stweaver, is_small};
use crate::device::DeviceError;
use crate::pending::{Limbo, PendingFrees};
use crate::policy::{AllocError, BlockId, Env};
use crate::returning::Returning;

impl Stweaver {
    /// The block, if it was given and not freed.
    pub(super) fn in_use(&mut self, id: BlockId) -> Option<&mut Grant> {
        self.grants.get_mut(id).filter(|grant| grant.state == BlockState::Allocated)
    }

    /// Takes back a block of the pool.
    pub(super) fn free_own(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), AllocError> {
        self.in_use(id).ok_or(AllocError::UnknownBlock(id))?;
        Ok(self.take_back(env, id)?)
    }

    fn address(&self, offset: u64) -> u64 {
        self.pool.as_ref().map_or(0, |pool| pool.address + offset)
    }
}

impl Returning for Stweaver {
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
        let &mut Grant { offset, size, requested, stream, .. } = grant;
        self.beside.stats.count_free(is_small(size), size);
        let address = self.address(offset);
        env.log(Action::FreeRequested, address, requested, stream, PoolId::DEFAULT);
    }

    fn complete(&mut self, env: &mut Env<'_>, id: BlockId) {
        let Grant { offset, size, requested, stream, .. } = self.grants.remove(id);
        let address = self.address(offset);
        let freed = self.order.free();
        if let Some(pool) = &mut self.pool {
            pool.space.give_back(offset, size, stream, freed);
        }
        env.log(Action::FreeCompleted, address, requested, stream, PoolId::DEFAULT);
        self.beside.stats.count_complete(is_small(size), size, requested);
    }
}
