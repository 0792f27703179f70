//! Pools: the free and the unmapped blocks of small or of large requests, and who owns them.
//!
//! Pools come in pairs, small then large. The first pair serves every request outside a scope; each
//! private pool (`MemPool`, CUDA graph) has a pair of its own, and they never lend to each other.

use std::collections::BTreeSet;

use girih_trace::{PoolId, StreamId};
use rustc_hash::FxHashMap;

use super::block::Home;
use crate::device::Address;
use crate::free_set::FreeSet;
use crate::policy::{BlockId, PoolOptions};
use crate::stats::Counters;

/// Where a stream stands in the order of streams: PyTorch compares the driver's handles.
pub(super) type Rank = (u64, StreamId);

/// The blocks of one size class of one owner (`BlockPool`).
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// The shelves of its free mapped blocks, one for each stream, by rank.
    shelves: Vec<(Rank, u32)>,
    /// The home that was asked for last.
    recent: Option<Home>,
    /// Unmapped blocks by stream and address.
    pub(super) unmapped: BTreeSet<(StreamId, Address, BlockId)>,
    /// Searches made while garbage collection is on: the clock of block ages.
    pub(super) searches: u32,
}

/// The owner of a pair of pools (`PrivatePool`; the default pools have one too).
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub(super) id: PoolId,
    pub(super) options: PoolOptions,
    /// Captures and `MemPool` objects that use the pool; 0 makes it freeable.
    pub(super) users: u32,
    /// False for a vacant place.
    pub(super) exists: bool,
}

impl Owner {
    /// True if what is free must stay, since a graph may be replayed over it.
    pub(super) fn keeps_free(&self) -> bool {
        self.users > 0 && !self.options.one_handle
    }
}

/// Every pool. Index `2 * owner` is the small pool of an owner, `2 * owner + 1` its large one.
#[derive(Debug)]
pub(super) struct Pools {
    pub(super) pools: Vec<Pool>,
    pub(super) owners: Vec<Owner>,
    /// The free blocks of each pool and stream.
    shelves: Vec<FreeSet>,
    /// The places of private pools.
    places: FxHashMap<PoolId, usize>,
    vacant: Vec<usize>,
    /// Bytes held of the device for each private pool that ever held any, also after it has gone
    /// (`reserved_bytes_by_private_pools`).
    reserved: FxHashMap<PoolId, Counters>,
}

impl Default for Pools {
    fn default() -> Pools {
        let mut pools = Pools {
            pools: Vec::new(),
            owners: Vec::new(),
            shelves: Vec::new(),
            places: FxHashMap::default(),
            vacant: Vec::new(),
            reserved: FxHashMap::default(),
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

    /// Adds a user to a private pool, which is made if it does not exist.
    pub(super) fn add_user(&mut self, id: PoolId) {
        if id == PoolId::DEFAULT {
            return;
        }
        match self.find(id) {
            Some(place) => self.owners[place].users += 1,
            None => _ = self.insert(id),
        }
    }

    fn insert(&mut self, id: PoolId) -> usize {
        let options = PoolOptions::default();
        let owner = Owner { id, options, users: 1, exists: true };
        let place = self.vacant.pop().unwrap_or(self.owners.len());
        self.places.insert(id, place);
        if place == self.owners.len() {
            self.owners.push(owner);
            self.pools.extend([Pool::default(), Pool::default()]);
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
    }

    /// Counts bytes that the device gave for a pool.
    pub(super) fn count_taken(&mut self, home: Home, size: u64) {
        if home.pool > Pools::LARGE {
            let owner = self.owner(home.pool).id;
            self.reserved.entry(owner).or_default().increase(home.is_small(), size);
        }
    }

    /// Counts bytes of a pool that went back to the device.
    pub(super) fn count_given_back(&mut self, home: Home, size: u64) {
        if home.pool > Pools::LARGE {
            let owner = self.owner(home.pool).id;
            self.reserved.entry(owner).or_default().decrease(home.is_small(), size);
        }
    }

    /// Bytes held of the device for a private pool; none if it never held any.
    pub(super) fn reserved(&self, id: PoolId) -> Option<Counters> {
        self.reserved.get(&id).copied()
    }

    /// Sets the peaks of what each pool holds to the present values.
    pub(super) fn reset_peaks(&mut self) {
        self.reserved.values_mut().for_each(Counters::reset_peaks);
    }

    /// The owner of a pool.
    pub(super) fn owner(&self, pool: u32) -> &Owner {
        &self.owners[pool as usize / 2]
    }

    pub(super) fn get(&self, pool: u32) -> &Pool {
        &self.pools[pool as usize]
    }

    pub(super) fn get_mut(&mut self, pool: u32) -> &mut Pool {
        &mut self.pools[pool as usize]
    }

    /// The home of the blocks of a pool and stream. `rank` places the stream among the others.
    #[inline]
    pub(super) fn home(
        &mut self,
        pool: u32,
        rank: impl FnOnce() -> Rank,
        stream: StreamId,
    ) -> Home {
        match self.pools[pool as usize].recent {
            Some(home) if home.stream == stream => home,
            _ => self.find_home(pool, rank(), stream),
        }
    }

    fn find_home(&mut self, pool: u32, rank: Rank, stream: StreamId) -> Home {
        let shelves = &mut self.pools[pool as usize].shelves;
        let shelf = match shelves.binary_search_by_key(&rank, |entry| entry.0) {
            Ok(place) => shelves[place].1,
            Err(place) => {
                let shelf = self.shelves.len() as u32;
                self.shelves.push(FreeSet::default());
                shelves.insert(place, (rank, shelf));
                shelf
            }
        };
        let home = Home { pool, shelf, stream };
        self.pools[pool as usize].recent = Some(home);
        home
    }

    /// The home of the blocks of a pool and stream, if there ever were any.
    pub(super) fn known_home(&self, pool: u32, rank: Rank) -> Option<Home> {
        let shelves = &self.pools[pool as usize].shelves;
        let place = shelves.binary_search_by_key(&rank, |entry| entry.0).ok()?;
        Some(Home { pool, shelf: shelves[place].1, stream: rank.1 })
    }

    /// The free blocks of a home.
    pub(super) fn shelf(&self, home: Home) -> &FreeSet {
        &self.shelves[home.shelf as usize]
    }

    /// The free blocks of a home.
    pub(super) fn shelf_mut(&mut self, home: Home) -> &mut FreeSet {
        &mut self.shelves[home.shelf as usize]
    }

    /// Every free block of a pool, by stream and then by the order of the shelf.
    pub(super) fn free_blocks(&self, pool: u32) -> impl Iterator<Item = BlockId> {
        let shelves = self.pools[pool as usize].shelves.iter();
        shelves.flat_map(|(_, shelf)| self.shelves[*shelf as usize].iter()).map(|entry| entry.block)
    }

    /// True if a pool has a free or an unmapped block.
    pub(super) fn has_free(&self, pool: u32) -> bool {
        !self.get(pool).unmapped.is_empty() || self.free_blocks(pool).next().is_some()
    }

    /// Number of free blocks of all pools.
    pub(super) fn free_count(&self) -> usize {
        self.shelves.iter().map(FreeSet::len).sum()
    }
}
