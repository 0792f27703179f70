//! Finding a free block, splitting it, and merging it back (`get_free_block`, `should_split`,
//! `alloc_found_block`, `free_block`, `try_merge_blocks`).
//!
//! ```text
//!  give:   |        free: id f        |        complete_free:  | free | used u | free |
//!       -> | used: new id |  free: f  |                     -> |     free: u          |
//! ```
//!
//! The request takes the low end under a new id; what remains keeps the old one.

use girih_trace::{Action, StreamId};

use super::Caching;
use super::block::{Block, NIL};
use super::config::TieOrder;
use super::free_set::{Cursor, Entry, FreeSet};
use super::pool::Rank;
use super::rounding::{MIN_BLOCK_SIZE, SMALL_SIZE};
use crate::policy::{BlockId, Env, Granted};

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    /// Bytes after rounding.
    pub(super) size: u64,
    pub(super) stream: StreamId,
    pub(super) rank: Rank,
    pub(super) pool: u32,
    /// True if expandable segments may serve it.
    pub(super) expandable: bool,
}

impl Caching {
    /// The free block that best fits, taken out of its free set. Only one candidate is looked at:
    /// if it may not be used the search has failed.
    #[inline]
    pub(super) fn take_best_fit(&mut self, search: &Search) -> Option<BlockId> {
        if self.config.garbage_collection_threshold > 0.0 && self.config.memory_fraction < 1.0 {
            let pool = self.pools.get_mut(search.pool);
            pool.searches = pool.searches.wrapping_add(1);
        }
        let set = self.pools.get(search.pool).of(search.rank)?;
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
        Some(self.pools.get_mut(search.pool).of_mut(search.rank).remove_at(cursor))
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

    /// True if a block is cut for this search.
    fn should_split(&self, search: &Search, whole: &Block) -> bool {
        if self.pools.owner(whole.pool).options.no_split {
            return false;
        }
        let remaining = whole.size - search.size;
        if self.pools.get(whole.pool).is_small || self.config.expandable_segments {
            remaining >= MIN_BLOCK_SIZE
        } else {
            search.size < self.config.max_split_size && remaining > SMALL_SIZE
        }
    }

    /// Gives a block that is in no free set, or its low end, to a request of `requested` bytes.
    #[inline]
    pub(super) fn give(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        found: BlockId,
        requested: u64,
    ) -> Granted {
        let whole = self.blocks[found];
        let is_small = self.pools.get(whole.pool).is_small;
        let counted = !whole.is_expandable();
        let id = if self.should_split(search, &whole) {
            let head = self.split(found, &whole, search);
            if counted && whole.is_split() {
                self.stats.inactive_split_bytes.decrease(is_small, search.size);
            } else if counted {
                let remaining = whole.size - search.size;
                self.stats.inactive_split_bytes.increase(is_small, remaining);
                self.stats.inactive_split.increase(is_small, 1);
            }
            head
        } else {
            if counted && whole.is_split() {
                self.stats.inactive_split_bytes.decrease(is_small, whole.size);
                self.stats.inactive_split.decrease(is_small, 1);
            }
            found
        };
        let block = &mut self.blocks[id];
        block.allocated = true;
        block.requested = requested;
        let (address, size) = (block.address, block.size);
        let owner = self.pools.owner(whole.pool).id;
        env.log(Action::Alloc, address, requested, search.stream, owner);
        let stats = &mut self.stats;
        stats.allocation.increase(is_small, 1);
        stats.allocated_bytes.increase(is_small, size);
        stats.active.increase(is_small, 1);
        stats.active_bytes.increase(is_small, size);
        stats.requested_bytes.increase(is_small, requested);
        if size >= self.config.max_split_size {
            stats.oversize_allocations.increase(1);
        }
        Granted { block: id, address, size }
    }

    /// Cuts the low end off `found`, which goes back to its free set. Returns the low end.
    fn split(&mut self, found: BlockId, whole: &Block, search: &Search) -> BlockId {
        let registration = self.register_part(whole.registration);
        let head = self.blocks.insert(Block {
            segment: whole.segment,
            registration,
            ..Block::new(whole.address, search.size, whole.stream, whole.pool)
        });
        self.blocks.link(whole.prev, head, found);
        let rest = &mut self.blocks[found];
        rest.address += search.size;
        rest.size -= search.size;
        self.insert_free(found);
        head
    }

    /// Ends the life of a block that nobody uses any more: it merges with its free neighbours and
    /// goes back to its free set.
    #[inline]
    pub(super) fn complete_free(&mut self, env: &mut Env<'_>, id: BlockId) {
        let freed = self.blocks[id];
        let owner = self.pools.owner(freed.pool).id;
        env.log(Action::FreeCompleted, freed.address, freed.requested, freed.stream, owner);
        let (before, after) = (self.merge(id, freed.prev), self.merge(id, freed.next));
        self.insert_free(id);
        let merged = self.blocks[id];
        let is_small = self.pools.get(freed.pool).is_small;
        let stats = &mut self.stats;
        if !merged.is_expandable() {
            // What was merged in leaves, the merged block enters: one change of each counter.
            let left = u64::from(before > 0) + u64::from(after > 0);
            let entered = u64::from(merged.is_split());
            if entered > left {
                stats.inactive_split.increase(is_small, entered - left);
            } else {
                stats.inactive_split.decrease(is_small, left - entered);
            }
            if entered == 1 {
                stats.inactive_split_bytes.increase(is_small, merged.size - before - after);
            } else {
                stats.inactive_split_bytes.decrease(is_small, before + after);
            }
        }
        stats.active.decrease(is_small, 1);
        stats.active_bytes.decrease(is_small, freed.size);
        stats.requested_bytes.decrease(is_small, freed.requested);
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
        self.blocks.unlink(neighbour);
        let block = &mut self.blocks[kept];
        block.address = block.address.min(source.address);
        block.size += source.size;
        self.blocks.remove(neighbour);
        source.size
    }

    /// Puts a mapped block into the free set of its pool and stream.
    pub(super) fn insert_free(&mut self, id: BlockId) {
        let block = self.blocks[id];
        let (entry, rank) = (self.entry(id), self.rank(block.stream));
        let pool = self.pools.get_mut(block.pool);
        self.blocks[id].born = pool.searches;
        pool.of_mut(rank).insert(entry);
    }

    /// Takes a block out of its free set.
    pub(super) fn remove_free(&mut self, id: BlockId) {
        let block = self.blocks[id];
        let (entry, rank) = (self.entry(id), self.rank(block.stream));
        let found = self.pools.get_mut(block.pool).of_mut(rank).remove(&entry);
        debug_assert!(found, "{block:?} is not in its free set");
    }

    /// Puts a block into the set of the unmapped.
    pub(super) fn insert_unmapped(&mut self, id: BlockId) {
        let block = self.blocks[id];
        let key = (block.stream, block.address, id);
        self.pools.get_mut(block.pool).unmapped.insert(key);
    }

    /// Takes a block out of the set of the unmapped.
    pub(super) fn remove_unmapped(&mut self, id: BlockId) {
        let block = self.blocks[id];
        let key = (block.stream, block.address, id);
        let found = self.pools.get_mut(block.pool).unmapped.remove(&key);
        debug_assert!(found, "{block:?} is not among the unmapped");
    }

    /// The key of a block in its free set.
    pub(super) fn entry(&self, id: BlockId) -> Entry {
        let block = &self.blocks[id];
        let by_address = self.config.tie_order == TieOrder::Address;
        let registration = if by_address { 0 } else { block.registration };
        Entry { size: block.size, registration, address: block.address, block: id }
    }
}
