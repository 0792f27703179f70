//! Giving memory back to the device (`garbage_collect_cached_blocks`,
//! `release_available_cached_blocks`, `release_cached_blocks`, `release_blocks`).

use girih_trace::{Action, PoolId};

use super::Caching;
use super::pool::Pools;
use super::search::Search;
use crate::device::DeviceError;
use crate::policy::{BlockId, Env};

impl Caching {
    /// Gives back whole free segments of large requests that were not used for long, until what is
    /// held falls below the threshold. Does not wait for anything.
    pub(super) fn collect_garbage(
        &mut self,
        env: &mut Env<'_>,
        limit: u64,
    ) -> Result<(), DeviceError> {
        let threshold = (self.config.garbage_collection_threshold * limit as f64) as u64;
        let target = self.held().saturating_sub(threshold);
        let searches = self.pools.get(Pools::LARGE).searches;
        let (mut total_age, mut count) = (0, 0);
        let mut candidates = Vec::new();
        if target > 0 {
            for id in self.pools.free_blocks(Pools::LARGE) {
                let block = &self.blocks[id];
                if block.is_split() {
                    continue;
                }
                let age = u64::from(searches.wrapping_sub(block.born));
                (total_age, count) = (total_age + age, count + 1);
                if !block.is_expandable() {
                    candidates.push((id, age));
                }
            }
        }
        let (mut reclaimed, mut progress) = (0, true);
        while reclaimed < target && progress && count > 0 {
            let old = total_age as f64 / f64::from(count);
            progress = false;
            let mut younger = Vec::new();
            for (id, age) in candidates {
                if (age as f64) < old {
                    younger.push((id, age));
                    continue;
                }
                reclaimed += self.blocks[id].size;
                self.release_segment(env, id)?;
                (total_age, count) = (total_age - age, count - 1);
                progress = true;
            }
            candidates = younger;
        }
        Ok(())
    }

    /// Gives back oversize free segments of the stream, if that makes room for the search: one that
    /// is large enough, or the largest ones. False if it does not; what was given back stays so.
    pub(super) fn release_available(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
    ) -> Result<bool, DeviceError> {
        let oversize = self.config.max_split_size;
        if oversize == u64::MAX {
            return Ok(false);
        }
        let wanted = search.size.max(oversize);
        let is_whole = |caching: &Caching, id: BlockId| {
            let block = &caching.blocks[id];
            !block.is_expandable() && !block.is_split()
        };
        let set = self.pools.shelf(search.home);
        let start = set.lower_bound(wanted);
        if let Some(entry) = set.get(start).copied()
            && is_whole(self, entry.block)
        {
            self.release_segment(env, entry.block)?;
            return Ok(true);
        }
        let mut smaller = Vec::new();
        let (mut cursor, mut released) = (set.prev(start), 0);
        while let Some(entry) = cursor.and_then(|at| set.get(at)) {
            if released >= wanted || entry.size < oversize {
                break;
            }
            if is_whole(self, entry.block) {
                released += entry.size;
                smaller.push(entry.block);
            }
            cursor = cursor.and_then(|at| set.prev(at));
        }
        for id in smaller {
            self.release_segment(env, id)?;
        }
        Ok(released >= wanted)
    }

    /// Gives back whatever is free and whole: of the default pools, and of private pools over which no
    /// graph may be replayed. Waits for all events first, unless a capture is under way.
    pub(super) fn release_cached_blocks(
        &mut self,
        env: &mut Env<'_>,
        capture: bool,
    ) -> Result<(), DeviceError> {
        if !capture {
            self.wait_for_frees(env)?;
        }
        self.release_pool_blocks(env, Pools::LARGE)?;
        self.release_pool_blocks(env, Pools::SMALL)?;
        (1..self.pools.owners.len()).try_for_each(|place| self.release_owner(env, place))
    }

    /// Bytes that [`Caching::release_cached_blocks`] gives back as things are.
    pub(super) fn cached_bytes(&self) -> u64 {
        let releasable = (0..).zip(&self.pools.owners).filter(|&(place, owner): &(u32, _)| {
            place == 0 || (owner.exists && !owner.keeps_free())
        });
        let pools = releasable.flat_map(|(place, _)| [2 * place, 2 * place + 1]);
        let free = pools.flat_map(|pool| self.pools.free_blocks(pool));
        free.map(|id| &self.blocks[id])
            .map(|block| match block {
                block if block.is_expandable() => self.bytes_of_whole_pages(block),
                block if block.is_split() => 0,
                block => block.size,
            })
            .sum()
    }

    /// Gives back whatever is free and whole of a private pool, unless a graph may be replayed over it.
    /// Waits for all events first, unless a capture is under way.
    pub(super) fn release_private_pool(
        &mut self,
        env: &mut Env<'_>,
        pool: PoolId,
    ) -> Result<(), DeviceError> {
        let Some(place) = self.pools.find(pool) else { return Ok(()) };
        if self.pools.owners[place].keeps_free() {
            return Ok(());
        }
        if !self.is_capturing() {
            self.wait_for_frees(env)?;
        }
        self.release_owner(env, place)
    }

    /// Gives back what is free of one owner, unless a graph may be replayed over it. Forgets it if it
    /// has no users and nothing is left.
    fn release_owner(&mut self, env: &mut Env<'_>, place: usize) -> Result<(), DeviceError> {
        let owner = self.pools.owners[place];
        if !owner.exists || owner.keeps_free() {
            return Ok(());
        }
        let small = 2 * place as u32;
        self.release_pool_blocks(env, small)?;
        self.release_pool_blocks(env, small + 1)?;
        if owner.users == 0 && self.holds_nothing(place) {
            self.pools.remove(place);
        }
        Ok(())
    }

    /// True if no block belongs to an owner. Blocks are counted, and not what took memory and what gave it
    /// back (`cudaMalloc_count`): pages of several requests go back in one call, and the count stays
    /// above 0 for ever.
    pub(super) fn holds_nothing(&self, place: usize) -> bool {
        let small = 2 * place as u32;
        !self.pools.has_free(small)
            && !self.pools.has_free(small + 1)
            && !self.blocks.iter().any(|(_, block)| block.home.pool / 2 == place as u32)
    }

    /// Gives back the whole free segments of a pool, in the order of its free set, then the free
    /// pages of its expandable segments.
    fn release_pool_blocks(&mut self, env: &mut Env<'_>, pool: u32) -> Result<(), DeviceError> {
        let (pages, segments): (Vec<BlockId>, Vec<BlockId>) =
            self.pools.free_blocks(pool).partition(|&id| self.blocks[id].is_expandable());
        for id in segments {
            if !self.blocks[id].is_split() {
                self.release_segment(env, id)?;
            }
        }
        pages.into_iter().try_for_each(|id| self.unmap_block(env, id))
    }

    /// Gives one whole free segment back (`release_block`). On an error it stays.
    fn release_segment(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), DeviceError> {
        let block = self.blocks[id];
        env.device.free(block.address)?;
        self.remove_free(id);
        self.blocks.remove(id);
        let owner = self.pools.owner(block.home.pool).id;
        env.log(Action::SegmentFree, block.address, block.size, block.home.stream, owner);
        let is_small = block.home.is_small();
        self.stats.num_device_free += 1;
        self.stats.segment.decrease(is_small, 1);
        self.stats.reserved_bytes.decrease(is_small, block.size);
        self.pools.count_given_back(block.home, block.size);
        if block.size >= self.config.max_split_size {
            self.stats.oversize_segments.decrease(1);
        }
        Ok(())
    }
}
