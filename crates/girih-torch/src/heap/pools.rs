//! Private pools: their users, how they behave, and bringing them back to what they were.

use girih_runtime::{Address, Checkpoint, PoolOptions};
use girih_trace::PoolId;

use super::{Heap, State};
use crate::error::{Outcome, unknown, unsupported};
use crate::sources::Source;

/// The blocks of a pool at one moment, to be brought back later.
pub struct HeapCheckpoint {
    /// PyTorch's id of the pool: the small one may be another's by then.
    pool: (u64, u64),
    pub(super) checkpoint: Checkpoint,
}

impl State {
    /// The id of a private pool that has been seen.
    fn known_pool(&self, pool: (u64, u64)) -> Outcome<PoolId> {
        self.journal
            .pools
            .find(pool)
            .map(PoolId)
            .ok_or_else(|| unknown(format!("device {} has no memory pool {pool:?}", self.ordinal)))
    }

    fn options(&mut self, pool: PoolId) -> &mut PoolOptions {
        let index = usize::from(pool.0);
        if self.pool_options.len() <= index {
            self.pool_options.resize(index + 1, PoolOptions::default());
        }
        &mut self.pool_options[index]
    }

    /// [`State::allocate`] for a private pool, whose memory may come from an allocator of its own.
    pub(super) fn allocate_in_pool(
        &mut self,
        size: u64,
        stream: u64,
        pool: (u64, u64),
    ) -> Outcome<Address> {
        let source = self.sources.get(&pool).copied();
        let pool = self.pool(pool)?;
        let Some(source) = source else {
            return self.allocate(size, stream, pool);
        };
        self.device.take_from(Some(source));
        let given = self.allocate(size, stream, pool);
        self.device.take_from(None);
        given
    }

    /// True if the pool has memory.
    fn pool_holds(&self, pool: PoolId) -> bool {
        let held = self.engine.policy().checkpoint(pool);
        held.is_ok_and(|held| !held.segments.is_empty())
    }

    /// False if a scope of the pool is no capture, whatever is said of it: releases of torch that
    /// cannot tell take every scope for one. What waits for the end of captures need not wait then,
    /// and a request may have what is cached.
    fn may_capture(&mut self, pool: PoolId) -> bool {
        !(self.options(pool).one_handle && self.config.tie_order.pool_scope_captures())
    }
}

impl Heap {
    /// Makes a pool, or adds a user to it (`createOrIncrefPool`).
    ///
    /// # Errors
    /// If there are too many pools.
    pub fn create_pool(&self, pool: (u64, u64)) -> Outcome<()> {
        self.with(|state| {
            let pool = state.pool(pool)?;
            state.engine.policy_mut().create_pool(pool);
            Ok(())
        })
    }

    /// A user of the pool is done with it (`releasePool`).
    ///
    /// # Errors
    /// If there is no such pool.
    pub fn release_pool(&self, pool: (u64, u64)) -> Outcome<()> {
        self.with(|state| {
            let pool = state.known_pool(pool)?;
            let (policy, mut env) = state.parts();
            policy.release_pool(&mut env, pool)?;
            if policy.pool_users(pool) == 0 {
                state.leaving.insert(pool);
                if !state.engine.policy().has_pool(pool) {
                    state.forget_pools();
                }
            }
            Ok(())
        })
    }

    /// The users of a pool (`getPoolUseCount`); 0 if there is no such pool.
    ///
    /// # Errors
    /// After a panic inside the heap.
    pub fn pool_users(&self, pool: (u64, u64)) -> Outcome<u32> {
        self.with(|state| {
            let pool = state.journal.pools.find(pool);
            Ok(pool.map_or(0, |pool| state.engine.policy().pool_users(PoolId(pool))))
        })
    }

    /// Changes how a pool behaves (`setUseOnOOM`, `setNoSplit`). The pool may be made later.
    ///
    /// # Errors
    /// If there are too many pools.
    pub fn set_pool_options(
        &self,
        pool: (u64, u64),
        change: impl FnOnce(&mut PoolOptions),
    ) -> Outcome<()> {
        self.with(|state| {
            let pool = state.pool(pool)?;
            let options = state.options(pool);
            change(options);
            let options = *options;
            state.engine.policy_mut().set_pool_options(pool, options);
            Ok(())
        })
    }

    /// The pool takes its memory in allocations of the device: each of its segments is one piece,
    /// which can be named by one handle. No graph may be captured in it.
    ///
    /// # Errors
    /// If there are too many pools, or if a scope of the pool is open or was.
    pub fn keep_in_one_handle(&self, pool: (u64, u64)) -> Outcome<()> {
        self.with(|state| {
            let known = state.pool(pool)?;
            if state.engine.policy().pool_users(known) > 1 || state.pool_holds(known) {
                return Err(unsupported(format!(
                    "memory pool {pool:?} of device {} is in use: whether its memory is in one handle \
                     is chosen before its first request",
                    state.ordinal
                )));
            }
            let options = state.options(known);
            options.one_handle = true;
            let options = *options;
            state.engine.policy_mut().set_pool_options(known, options);
            Ok(())
        })
    }

    /// The pool's memory comes from `source`, in allocations (`MemPool(allocator)`). The pool exists.
    ///
    /// # Errors
    /// If there are too many pools, or if the pool has memory of another source.
    pub fn set_pool_source(&self, pool: (u64, u64), source: Source) -> Outcome<()> {
        self.with(|state| {
            let known = state.pool(pool)?;
            if state.sources.get(&pool).is_some_and(|present| present.is(&source)) {
                return Ok(());
            }
            if state.pool_holds(known) {
                return Err(unsupported(format!(
                    "memory pool {pool:?} of device {} has memory already: which allocator it has is \
                     chosen before its first request",
                    state.ordinal
                )));
            }
            let options = state.options(known);
            options.own_source = true;
            let options = *options;
            state.engine.policy_mut().set_pool_options(known, options);
            state.sources.insert(pool, source);
            Ok(())
        })
    }

    /// Opens a scope of a pool, and with it a graph capture if `captures` (`beginAllocateToPool`).
    ///
    /// # Errors
    /// If there are too many pools.
    pub fn begin_pool(&self, pool: (u64, u64), captures: bool) -> Outcome<()> {
        self.with(|state| {
            let pool = state.pool(pool)?;
            let captures = captures && state.may_capture(pool);
            if captures {
                state.keep_states();
            }
            state.engine.policy_mut().begin_pool(pool, captures);
            Ok(())
        })
    }

    /// Closes the newest scope of a pool (`endAllocateToPool`).
    ///
    /// # Errors
    /// If there is no such pool.
    pub fn end_pool(&self, pool: (u64, u64), captures: bool) -> Outcome<()> {
        self.with(|state| {
            let pool = state.known_pool(pool)?;
            let captures = captures && state.may_capture(pool);
            state.engine.policy_mut().end_pool(pool, captures);
            Ok(())
        })
    }

    /// What a pool holds now (`getCheckpointState`).
    ///
    /// # Errors
    /// If there is no such pool.
    pub fn checkpoint(&self, pool: (u64, u64)) -> Outcome<HeapCheckpoint> {
        self.with(|state| {
            let known = state.known_pool(pool)?;
            Ok(HeapCheckpoint { pool, checkpoint: state.engine.policy().checkpoint(known)? })
        })
    }

    /// Frees every live block of the checkpoint's pool and allocates those of the checkpoint again,
    /// each at its address (`setCheckpointPoolState`). Returns the addresses that were freed and
    /// those that were allocated.
    ///
    /// # Errors
    /// If the memory is not held any more. Nothing has changed then.
    pub fn restore(&self, checkpoint: &HeapCheckpoint) -> Outcome<(Vec<Address>, Vec<Address>)> {
        self.with(|state| {
            if state.known_pool(checkpoint.pool)? != checkpoint.checkpoint.pool {
                return Err(unknown(format!(
                    "memory pool {:?} of device {} is gone, and another one has its name: a \
                     checkpoint of the former cannot be brought back",
                    checkpoint.pool, state.ordinal
                )));
            }
            let (policy, mut env) = state.parts();
            let restored = policy.restore(&mut env, &checkpoint.checkpoint)?;
            for &(_, address) in &restored.freed {
                if let Some((place, _)) = state.blocks.find(address) {
                    state.blocks.remove(place);
                }
            }
            for granted in &restored.allocated {
                state.blocks.insert(granted.address, granted.block);
            }
            let freed = restored.freed.into_iter().map(|(_, address)| address).collect();
            Ok((freed, restored.allocated.into_iter().map(|granted| granted.address).collect()))
        })
    }
}
