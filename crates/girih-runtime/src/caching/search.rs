//! Finding a free block, splitting it, and merging it back (`get_free_block`, `should_split`,
//! `alloc_found_block`, `free_block`, `try_merge_blocks`).
//!
//! ```text
//!  give:   |        free: id f        |        complete_free:  | free | used u | free |
//!       -> | used: new id |  free: f  |                     -> |     free: u          |
//! ```
//!
//! The request takes the low end under a new id; what remains keeps the old one.

use girih_trace::Action;

use super::Caching;
use super::block::{Block, Home};
use super::config::TieOrder;
use super::rounding::{MIN_BLOCK_SIZE, SMALL_SIZE};
use crate::chain::NIL;
use crate::free_set::{Cursor, Entry, FreeSet};
use crate::policy::{BlockId, Env, Granted};

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    /// Bytes after rounding.
    pub(super) size: u64,
    pub(super) home: Home,
    /// True if expandable segments may serve it.
    pub(super) expandable: bool,
}

/// A free block that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) block: BlockId,
    /// Where it is on its shelf; none if it was taken off.
    pub(super) place: Option<Cursor>,
}

impl Caching {
    /// The free block that best fits. Only one candidate is looked at: if it may not be used the
    /// search has failed.
    #[inline]
    pub(super) fn find_best_fit(&mut self, search: &Search) -> Option<Found> {
        if self.config.garbage_collection_threshold > 0.0 && self.limit.is_set() {
            let pool = self.pools.get_mut(search.home.pool);
            pool.searches = pool.searches.wrapping_add(1);
        }
        self.look_for(search)
    }

    /// The same without a trace: the ages of blocks stay as they are.
    #[inline]
    pub(super) fn look_for(&self, search: &Search) -> Option<Found> {
        let set = self.pools.shelf(search.home);
        let mut cursor = set.lower_bound(search.size);
        let mut entry = set.get(cursor)?;
        if self.blocks[entry.block].is_expandable() {
            cursor = self.skip_expandable(set, cursor, search.expandable)?;
            entry = set.get(cursor)?;
        }
        let config = &self.config;
        let (size, found) = (search.size, entry.size);
        if size < config.max_split_size && found >= config.max_split_size {
            return None;
        }
        let rounding = config.max_non_split_rounding;
        if size >= config.max_split_size && found >= size.saturating_add(rounding) {
            return None;
        }
        Some(Found { block: entry.block, place: Some(cursor) })
    }

    /// From an expandable block on: the best fit counts what a block could grow to; a search that
    /// may not use expandable segments passes over them.
    fn skip_expandable(&self, set: &FreeSet, start: Cursor, expandable: bool) -> Option<Cursor> {
        let is_expandable =
            |at: Cursor| set.get(at).is_some_and(|entry| self.blocks[entry.block].is_expandable());
        let mut cursor = start;
        if !expandable {
            while is_expandable(cursor) {
                cursor = set.next(cursor);
            }
            return Some(cursor);
        }
        let mut size = self.grown_size(set.get(cursor)?.block);
        while is_expandable(cursor) {
            let next = set.next(cursor);
            let Some(entry) = set.get(next) else { break };
            let next_size = self.grown_size(entry.block);
            if next_size >= size {
                break;
            }
            (cursor, size) = (next, next_size);
        }
        Some(cursor)
    }

    /// Bytes of a block and of the unmapped block behind it.
    fn grown_size(&self, id: BlockId) -> u64 {
        let block = &self.blocks[id];
        let next = block.next;
        let growth =
            if next != NIL && !self.blocks[next].mapped { self.blocks[next].size } else { 0 };
        block.size + growth
    }

    /// True if a block of `whole` bytes is cut for this search.
    fn should_split(&self, search: &Search, home: Home, whole: u64) -> bool {
        if self.pools.owner(home.pool).options.no_split {
            return false;
        }
        let remaining = whole - search.size;
        if home.is_small() || self.config.expandable_segments {
            remaining >= MIN_BLOCK_SIZE
        } else {
            search.size < self.config.max_split_size && remaining > SMALL_SIZE
        }
    }

    /// Gives a free block, or its low end, to a request of `requested` bytes.
    #[inline]
    pub(super) fn give(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        found: Found,
        requested: u64,
    ) -> Granted {
        let whole = &self.blocks[found.block];
        let (home, was_split, whole_size) = (whole.home, whole.is_split(), whole.size);
        let (is_small, counted) = (home.is_small(), !whole.is_expandable());
        let mut id = found.block;
        if self.should_split(search, home, whole_size) {
            id = self.split(found, search.size);
            if counted && was_split {
                self.stats.inactive_split_bytes.decrease(is_small, search.size);
            } else if counted {
                self.stats.inactive_split_bytes.increase(is_small, whole_size - search.size);
                self.stats.inactive_split.increase(is_small, 1);
            }
        } else {
            if let Some(place) = found.place {
                self.pools.shelf_mut(home).remove_at(place);
            }
            if counted && was_split {
                self.stats.inactive_split_bytes.decrease(is_small, whole_size);
                self.stats.inactive_split.decrease(is_small, 1);
            }
        }
        let owner = self.pools.owner(home.pool).id;
        let granted = self.take_into_use(id, requested);
        env.log(Action::Alloc, granted.address, requested, home.stream, owner);
        granted
    }

    /// Makes a block that is in no set one of a program that asked for `requested` bytes, and
    /// counts it.
    #[inline]
    pub(super) fn take_into_use(&mut self, id: BlockId, requested: u64) -> Granted {
        let block = &mut self.blocks[id];
        block.allocated = true;
        block.requested = requested;
        let (address, size, is_small) = (block.address, block.size, block.home.is_small());
        self.stats.count_allocation(is_small, size, requested);
        if size >= self.config.max_split_size {
            self.stats.oversize_allocations.increase(1);
        }
        Granted { block: id, address, size }
    }

    /// Cuts the low end off a free block and returns it. What remains is on the shelf afterwards.
    fn split(&mut self, found: Found, size: u64) -> BlockId {
        let head = self.cut_low_end(found.block, size);
        match found.place {
            Some(place) => {
                let (home, entry) = self.refresh(found.block);
                self.pools.shelf_mut(home).replace(place, entry);
            }
            None => self.insert_free(found.block),
        }
        head
    }

    /// Makes a block of the first `size` bytes of another, which keeps the rest. The new one is in
    /// no set.
    #[inline]
    pub(super) fn cut_low_end(&mut self, id: BlockId, size: u64) -> BlockId {
        let whole = &self.blocks[id];
        let (prev, segment, registration) = (whole.prev, whole.segment, whole.registration);
        let requested = whole.freed();
        let head = Block { requested, ..Block::new(whole.address, size, whole.home) };
        let registration = self.register_part(registration);
        let head = self.blocks.insert(Block { segment, registration, ..head });
        self.blocks.link(prev, head, id);
        let rest = &mut self.blocks[id];
        rest.address += size;
        rest.size -= size;
        head
    }

    /// Ends the life of a block that nobody uses any more: it merges with its free neighbours and
    /// goes back to its shelf.
    #[inline]
    pub(super) fn complete_free(&mut self, env: &mut Env<'_>, id: BlockId) {
        let freed = &self.blocks[id];
        let (home, size, requested) = (freed.home, freed.size, freed.requested);
        let (address, neighbours) = (freed.address, [freed.prev, freed.next]);
        let owner = self.pools.owner(home.pool).id;
        env.log(Action::FreeCompleted, address, requested, home.stream, owner);
        self.blocks[id].requested = self.order.free();
        let merged = self.shelve(id, neighbours);
        let block = &self.blocks[id];
        let (is_small, counted, split) =
            (home.is_small(), !block.is_expandable(), block.is_split());
        let gained = block.size - size;
        let stats = &mut self.stats;
        if counted {
            // What was merged in leaves, the merged block enters: one change of each counter.
            match (merged, split) {
                (0, true) => stats.inactive_split.increase(is_small, 1),
                (2, true) => stats.inactive_split.decrease(is_small, 1),
                (0, false) | (1, true) => {}
                (count, _) => stats.inactive_split.decrease(is_small, count),
            }
            if split {
                stats.inactive_split_bytes.increase(is_small, size);
            } else if gained > 0 {
                stats.inactive_split_bytes.decrease(is_small, gained);
            }
        }
        stats.count_complete(is_small, size, requested);
    }

    /// Merges a mapped block with its free mapped neighbours and puts it on its shelf, in the place
    /// of one of them if there is one. Returns how many were merged in.
    #[inline]
    pub(super) fn shelve(&mut self, id: BlockId, neighbours: [BlockId; 2]) -> u64 {
        let (mut merged, mut replaced) = (0, None);
        let home = self.blocks[id].home;
        let is_one = |block: &Block| block.is_free() && block.mapped;
        for neighbour in neighbours {
            if neighbour == NIL || !is_one(&self.blocks[neighbour]) {
                continue;
            }
            let entry = self.entry(neighbour);
            if let Some(other) = replaced.replace(entry) {
                self.pools.shelf_mut(home).remove(&other);
            }
            self.absorb(id, neighbour);
            merged += 1;
        }
        let (_, entry) = self.refresh(id);
        let shelf = self.pools.shelf_mut(home);
        match replaced.and_then(|other| shelf.find(&other)) {
            Some(place) => shelf.replace(place, entry),
            None => shelf.insert(entry),
        }
        merged
    }

    /// Lets `kept` absorb a neighbour, if that is as free and as mapped. Returns the bytes that it
    /// gained.
    pub(super) fn merge(&mut self, kept: BlockId, neighbour: BlockId) -> u64 {
        if neighbour == NIL {
            return 0;
        }
        let source = self.blocks[neighbour];
        if !source.is_free() || source.mapped != self.blocks[kept].mapped {
            return 0;
        }
        if source.mapped {
            self.remove_free(neighbour);
        } else {
            self.remove_unmapped(neighbour);
        }
        self.absorb(kept, neighbour);
        source.size
    }

    /// Adds the bytes of a neighbour, which goes, to `kept`.
    fn absorb(&mut self, kept: BlockId, neighbour: BlockId) {
        let Block { address, size, requested, .. } = self.blocks[neighbour];
        self.blocks.unlink(neighbour);
        self.blocks.remove(neighbour);
        let block = &mut self.blocks[kept];
        block.address = block.address.min(address);
        block.size += size;
        // The later of the two frees.
        block.requested = block.requested.max(requested);
    }

    /// Sets the age of a block that is free from now on; returns its home and its key.
    fn refresh(&mut self, id: BlockId) -> (Home, Entry) {
        let home = self.blocks[id].home;
        self.blocks[id].born = self.pools.get(home.pool).searches;
        (home, self.entry(id))
    }

    /// Puts a mapped block on its shelf.
    pub(super) fn insert_free(&mut self, id: BlockId) {
        let (home, entry) = self.refresh(id);
        self.pools.shelf_mut(home).insert(entry);
    }

    /// Takes a block off its shelf.
    pub(super) fn remove_free(&mut self, id: BlockId) {
        let (home, entry) = (self.blocks[id].home, self.entry(id));
        let found = self.pools.shelf_mut(home).remove(&entry);
        debug_assert!(found, "{entry:?} is not on its shelf");
    }

    /// Puts a block into the set of the unmapped.
    pub(super) fn insert_unmapped(&mut self, id: BlockId) {
        let block = self.blocks[id];
        let key = (block.home.stream, block.address, id);
        self.pools.get_mut(block.home.pool).unmapped.insert(key);
    }

    /// Takes a block out of the set of the unmapped.
    pub(super) fn remove_unmapped(&mut self, id: BlockId) {
        let block = self.blocks[id];
        let key = (block.home.stream, block.address, id);
        let found = self.pools.get_mut(block.home.pool).unmapped.remove(&key);
        debug_assert!(found, "{block:?} is not among the unmapped");
    }

    /// The key of a block on its shelf.
    pub(super) fn entry(&self, id: BlockId) -> Entry {
        let block = &self.blocks[id];
        let by_address = self.config.tie_order == TieOrder::Address;
        let registration = if by_address { 0 } else { block.registration };
        Entry { size: block.size, registration, address: block.address, block: id }
    }
}
