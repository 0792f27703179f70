//! Bringing a private pool back to where it was (`getCheckpointState`, `setCheckpointPoolState`).
//!
//! A recorded graph expects its blocks at the addresses at which they were when it was recorded.
//! Before it is replayed on another path of a program, the pool is brought back to that moment:
//!
//! ```text
//!  checkpoint   |  a  |    b    |      |        |
//!  now          |   c   |       |  d   |        |  segment that came later  |
//!  all freed    |             free              |           free            |
//!  restored     |  a  |    b    |      |        |           free            |
//! ```
//!
//! All that may be refused comes first, then all device calls, then the blocks: so a refusal leaves
//! everything as it was.

use std::collections::BTreeMap;

use girih_trace::{Action, PoolId};

use super::Caching;
use super::block::Block;
use crate::device::{Address, DeviceError};
use crate::policy::{
    AllocError, BlockId, BlockView, Checkpoint, Env, Granted, Restored, SegmentView,
};

impl Caching {
    /// The segments and blocks of a private pool.
    pub(super) fn take_checkpoint(&self, pool: PoolId) -> Result<Checkpoint, AllocError> {
        self.private_owner(pool)?;
        let mut segments = Vec::new();
        self.visit_segments(&mut |segment, blocks| {
            if segment.pool == pool {
                segments.push((segment, blocks.to_vec()));
            }
        });
        Ok(Checkpoint { pool, segments })
    }

    /// See [`Policy::restore`](crate::Policy::restore).
    pub(super) fn restore_checkpoint(
        &mut self,
        env: &mut Env<'_>,
        checkpoint: &Checkpoint,
    ) -> Result<Restored, AllocError> {
        let owner = self.private_owner(checkpoint.pool)?;
        self.check_held(checkpoint)?;
        self.wait_for_users(env, owner)?;
        let mut restored = Restored::default();
        for id in self.live_blocks(owner) {
            restored.freed.push((id, self.blocks[id].address));
            self.free_at_once(env, id);
        }
        let mut free: BTreeMap<Address, BlockId> = self
            .blocks
            .iter()
            .filter(|(_, block)| block.home.pool / 2 == owner && block.is_free() && block.mapped)
            .map(|(id, block)| (block.address, id))
            .collect();
        for (_, view) in checkpoint.live() {
            let holder = free.range(..=view.address).next_back().map(|(_, &id)| id);
            let Some(holder) = holder else { unreachable!("the bytes were found to be held") };
            restored.allocated.push(self.carve(env, holder, view, &mut free));
        }
        Ok(restored)
    }

    /// The place of a private pool among the owners.
    fn private_owner(&self, pool: PoolId) -> Result<u32, AllocError> {
        match self.pools.find(pool) {
            Some(place) if place > 0 => Ok(place as u32),
            _ => Err(refused(format!("there is no private pool {}", pool.0))),
        }
    }

    /// Every block in use of the checkpoint lies in memory that the pool holds for the same stream
    /// and sizes, and they are apart from each other.
    fn check_held(&self, checkpoint: &Checkpoint) -> Result<(), AllocError> {
        let mut held: BTreeMap<Address, SegmentView> = BTreeMap::new();
        self.visit_segments(&mut |segment, _| {
            if segment.pool == checkpoint.pool {
                held.insert(segment.address, segment);
            }
        });
        let mut last_end = 0;
        for (segment, block) in checkpoint.live() {
            let end = block.address + block.size;
            let holds = |now: &SegmentView| {
                (now.stream, now.is_small, now.backing)
                    == (segment.stream, segment.is_small, segment.backing)
                    && end <= now.address + now.size
            };
            let now = held.range(..=block.address).next_back().map(|(_, now)| now);
            if block.address < last_end || !now.is_some_and(holds) {
                return Err(refused(format!(
                    "the pool does not hold the {} bytes at {:#x} any more; a pool that is to be \
                     brought back must keep a user until then",
                    block.size, block.address
                )));
            }
            last_end = end;
        }
        Ok(())
    }

    /// Waits for the streams that may still use a block of the pool that is not theirs. Afterwards
    /// no block of the pool waits or is shared.
    fn wait_for_users(&mut self, env: &mut Env<'_>, owner: u32) -> Result<(), AllocError> {
        let of_pool = |(_, block): &(BlockId, &Block)| block.home.pool / 2 == owner;
        let is_waiting =
            self.blocks.iter().filter(of_pool).any(|(_, b)| !b.allocated && !b.is_free());
        let shared: Vec<BlockId> = self
            .blocks
            .iter()
            .filter(|entry| of_pool(entry) && entry.1.allocated && entry.1.shared)
            .map(|(id, _)| id)
            .collect();
        if self.is_capturing() && (is_waiting || !shared.is_empty()) {
            return Err(refused(
                "other streams use blocks of the pool, and they cannot be waited for while a graph \
                 is captured"
                    .to_owned(),
            ));
        }
        if is_waiting {
            self.wait_for_frees(env)?;
        }
        for &id in &shared {
            self.synchronize_uses(env, id)?;
        }
        for id in shared {
            self.forget_uses(id);
        }
        Ok(())
    }

    /// The blocks in use of an owner, by address.
    fn live_blocks(&self, owner: u32) -> Vec<BlockId> {
        let live = self.blocks.iter().filter(|(_, b)| b.allocated && b.home.pool / 2 == owner);
        let mut live: Vec<BlockId> = live.map(|(id, _)| id).collect();
        live.sort_unstable_by_key(|&id| self.blocks[id].address);
        live
    }

    /// Frees a block that no other stream uses.
    fn free_at_once(&mut self, env: &mut Env<'_>, id: BlockId) {
        let Block { address, size, requested, home, .. } = self.blocks[id];
        self.blocks[id].allocated = false;
        self.stats.count_free(home.is_small(), size);
        if size >= self.config.max_split_size {
            self.stats.oversize_allocations.decrease(1);
        }
        let pool = self.pools.owner(home.pool).id;
        env.log(Action::FreeRequested, address, requested, home.stream, pool);
        self.complete_free(env, id);
    }

    /// Cuts the bytes of `view` out of a free block and gives them. What is left on both sides is
    /// free, and takes its place in `free`.
    fn carve(
        &mut self,
        env: &mut Env<'_>,
        id: BlockId,
        view: &BlockView,
        free: &mut BTreeMap<Address, BlockId>,
    ) -> Granted {
        let whole = self.blocks[id];
        let (is_small, counted) = (whole.home.is_small(), !whole.is_expandable());
        let before = view.address - whole.address;
        let after = whole.size - before - view.size;
        self.remove_free(id);
        free.remove(&whole.address);
        if counted && whole.is_split() {
            self.stats.inactive_split.decrease(is_small, 1);
            self.stats.inactive_split_bytes.decrease(is_small, whole.size);
        }
        let parts = [
            (whole.address, before, whole.prev, id),
            (view.address + view.size, after, id, whole.next),
        ];
        for (address, size, left, right) in parts.into_iter().filter(|part| part.1 > 0) {
            let part = self.insert_fragment(&whole, address, size, left, right);
            free.insert(address, part);
            if counted {
                self.stats.inactive_split.increase(is_small, 1);
                self.stats.inactive_split_bytes.increase(is_small, size);
            }
        }
        let block = &mut self.blocks[id];
        (block.address, block.size) = (view.address, view.size);
        (block.requested, block.allocated) = (view.requested, true);
        self.count_carved(env, id);
        Granted { block: id, address: view.address, size: view.size }
    }

    fn count_carved(&mut self, env: &mut Env<'_>, id: BlockId) {
        let Block { address, size, requested, home, .. } = self.blocks[id];
        self.stats.count_allocation(home.is_small(), size, requested);
        if size >= self.config.max_split_size {
            self.stats.oversize_allocations.increase(1);
        }
        let pool = self.pools.owner(home.pool).id;
        env.log(Action::Alloc, address, requested, home.stream, pool);
    }

    /// Waits for every stream that was recorded on a block.
    fn synchronize_uses(&self, env: &mut Env<'_>, id: BlockId) -> Result<(), DeviceError> {
        let uses = self.uses.get(&id).map(Vec::as_slice).unwrap_or_default();
        uses.iter().try_for_each(|entry| env.device.synchronize_stream(entry.stream))
    }
}

fn refused(reason: String) -> AllocError {
    AllocError::Unsupported { operation: "bringing a pool back to a checkpoint", reason }
}
