//! Pools: the free and the unmapped blocks of small or of large requests, and who owns them.
//!
//! Pools come in pairs, small then large. The first pair serves every request outside a scope; each
//! private pool (`MemPool`, CUDA graph) has a pair of its own, and they never lend to each other.

use std::collections::BTreeSet;

use girih_trace::{PoolId, StreamId};
use rustc_hash::FxHashMap;

use super::free_set::FreeSet;
use crate::device::Address;
use crate::policy::BlockId;

/// Where a stream stands in the order of streams: PyTorch compares the driver's handles.
pub(super) type Rank = (u64, StreamId);

/// The blocks of one size class of one owner (`BlockPool`).
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) is_small: bool,
    /// Free mapped blocks, a set for each stream, by rank.
    pub(super) free: Vec<(Rank, FreeSet)>,
    /// Unmapped blocks by stream and address.
    pub(super) unmapped: BTreeSet<(StreamId, Address, BlockId)>,
    /// Searches made while garbage collection is on: the clock of block ages.
    pub(super) searches: u32,
}

impl Pool {
    fn new(is_small: bool) -> Pool {
        Pool { is_small, free: Vec::new(), unmapped: BTreeSet::new(), searches: 0 }
    }

    /// The free blocks of a stream, if it ever had one.
    pub(super) fn of(&self, rank: Rank) -> Option<&FreeSet> {
        let place = self.free.binary_search_by_key(&rank, |entry| entry.0).ok()?;
        Some(&self.free[place].1)
    }

    /// The free blocks of a stream.
    pub(super) fn of_mut(&mut self, rank: Rank) -> &mut FreeSet {
        let place = match self.free.binary_search_by_key(&rank, |entry| entry.0) {
            Ok(place) => place,
            Err(place) => {
                self.free.insert(place, (rank, FreeSet::default()));
                place
            }
        };
        &mut self.free[place].1
    }

    /// Every free block, by stream and then by the order of the set.
    pub(super) fn iter_free(&self) -> impl Iterator<Item = BlockId> {
        self.free.iter().flat_map(|(_, set)| set.iter()).map(|entry| entry.block)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unmapped.is_empty() && self.iter_free().next().is_none()
    }
}

/// How a private pool behaves (`torch.cuda.MemPool`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolOptions {
    /// Blocks of the pool are never split (`no_split`).
    pub no_split: bool,
    /// The pool's free blocks serve the default pool when the device has no more (`use_on_oom`).
    pub use_on_oom: bool,
}

/// The owner of a pair of pools (`PrivatePool`; the default pools have one too).
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub(super) id: PoolId,
    pub(super) options: PoolOptions,
    /// Captures and `MemPool` objects that use the pool; 0 makes it freeable.
    pub(super) users: u32,
    /// `cudaMalloc_count`: goes up once for each allocation that took memory, down for each
    /// segment that went back.
    pub(super) segments: u32,
    /// False for a vacant place.
    pub(super) exists: bool,
}

/// Every pool. Index `2 * owner` is the small pool of an owner, `2 * owner + 1` its large one.
#[derive(Debug)]
pub(super) struct Pools {
    pub(super) pools: Vec<Pool>,
    pub(super) owners: Vec<Owner>,
    /// The places of private pools.
    places: FxHashMap<PoolId, usize>,
    vacant: Vec<usize>,
}

impl Default for Pools {
    fn default() -> Pools {
        let mut pools = Pools {
            pools: Vec::new(),
            owners: Vec::new(),
            places: FxHashMap::default(),
            vacant: Vec::new(),
        };
        pools.insert(PoolId::DEFAULT);
        pools
    }
}

impl Pools {
    /// The small pool of all requests outside scopes.
    pub(super) const SMALL: u32 = 0;
    /// The large pool of all requests outside scopes.
    pub(super) const LARGE: u32 = 1;

    /// The place of an owner, if it exists.
    pub(super) fn find(&self, id: PoolId) -> Option<usize> {
        if id == PoolId::DEFAULT { Some(0) } else { self.places.get(&id).copied() }
    }

    /// The place of an owner, which is made if it does not exist, and has a user afterwards.
    #[inline]
    pub(super) fn find_or_insert(&mut self, id: PoolId) -> usize {
        if id == PoolId::DEFAULT {
            return 0;
        }
        let place = self.find(id).unwrap_or_else(|| self.insert(id));
        let owner = &mut self.owners[place];
        owner.users = owner.users.max(1);
        place
    }

    fn insert(&mut self, id: PoolId) -> usize {
        let options = PoolOptions::default();
        let owner = Owner { id, options, users: 1, segments: 0, exists: true };
        let place = self.vacant.pop().unwrap_or(self.owners.len());
        self.places.insert(id, place);
        if place == self.owners.len() {
            self.owners.push(owner);
            self.pools.extend([Pool::new(true), Pool::new(false)]);
        } else {
            self.owners[place] = owner;
        }
        place
    }

    /// Forgets a private pool that has nothing left.
    pub(super) fn remove(&mut self, place: usize) {
        self.owners[place].exists = false;
        self.places.remove(&self.owners[place].id);
        self.vacant.push(place);
        self.pools[2 * place] = Pool::new(true);
        self.pools[2 * place + 1] = Pool::new(false);
    }

    /// The owner of a pool.
    pub(super) fn owner(&self, pool: u32) -> &Owner {
        &self.owners[pool as usize / 2]
    }

    /// The owner of a pool.
    pub(super) fn owner_mut(&mut self, pool: u32) -> &mut Owner {
        &mut self.owners[pool as usize / 2]
    }

    pub(super) fn get(&self, pool: u32) -> &Pool {
        &self.pools[pool as usize]
    }

    pub(super) fn get_mut(&mut self, pool: u32) -> &mut Pool {
        &mut self.pools[pool as usize]
    }

    /// True if nothing of the owner is free or unmapped. Blocks in use are not known here.
    pub(super) fn is_empty(&self, place: usize) -> bool {
        self.pools[2 * place].is_empty() && self.pools[2 * place + 1].is_empty()
    }
}
