//! Taking memory from the device, and what is tried when it has none (`alloc_block`, and the chain
//! in `malloc`).

use girih_trace::Action;

use super::Caching;
use super::block::{Block, Home};
use super::pool::Pools;
use super::rounding::segment_size;
use super::search::{Found, Search};
use crate::device::{Address, DeviceError};
use crate::policy::{AllocError, BlockId, Env};

/// What the device gave.
enum Taken {
    /// A block of at least the bytes looked for, in no free set.
    Block(BlockId),
    /// Too little memory, of the device or under the limit.
    Nothing,
    /// Too little, and nothing else is to be tried.
    Rejected,
    /// Nothing yet: the caller takes the segment.
    Left,
}

impl Caching {
    /// Bytes that may be held; none without a limit.
    pub(super) fn limit_on(&self, env: &mut Env<'_>) -> Option<u64> {
        self.limit.on(env.device)
    }

    /// Bytes held of the device: segments and mapped pages (`total_allocated_memory`).
    pub(super) fn held(&self) -> u64 {
        self.stats.reserved_bytes.all().current
    }

    /// The way of a request that no free block serves. Returns a block that is in no free set.
    /// After events were waited for the pool is not searched again: PyTorch does not either.
    #[cold]
    #[inline(never)]
    pub(super) fn take_from_device(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        capture: bool,
        requested: u64,
    ) -> Result<BlockId, AllocError> {
        self.limbo.settle(env.device)?;
        self.granularity = env.device.granularity();
        if let Some(block) = self.use_taken(env, search)? {
            return Ok(block);
        }
        if self.config.garbage_collection_threshold > 0.0
            && let Some(limit) = self.limit_on(env)
        {
            self.collect_garbage(env, limit)?;
        }
        let segment = segment_size(search.size, self.config.large_segment_size);
        match self.take(env, search, segment, self.leaves_segments)? {
            Taken::Block(block) => return Ok(block),
            Taken::Left => return Err(self.leave_segment(search, segment)),
            Taken::Rejected => {
                self.stats.num_oom_rejections += 1;
                return Err(self.out_of_memory(env, requested, segment).into_rejection());
            }
            Taken::Nothing => {}
        }
        if let Some(block) = self.borrow_from_private_pools(search) {
            return Ok(block);
        }
        if self.release_available(env, search)?
            && let Taken::Block(block) = self.take(env, search, segment, false)?
        {
            return Ok(block);
        }
        if !capture {
            self.release_cached_blocks(env, false)?;
            self.stats.num_alloc_retries += 1;
            if let Taken::Block(block) = self.take(env, search, segment, false)? {
                return Ok(block);
            }
        }
        let error = self.out_of_memory(env, requested, segment);
        let free = env.device.memory_info().free;
        let owner = self.pools.owner(search.home.pool).id;
        env.log(Action::Oom, free, search.size, search.home.stream, owner);
        self.stats.num_ooms += 1;
        Err(error)
    }

    /// The error of a request that failed. Logs and counts nothing.
    #[cold]
    pub(super) fn out_of_memory(
        &self,
        env: &mut Env<'_>,
        requested: u64,
        segment: u64,
    ) -> AllocError {
        let limit = self.limit_on(env);
        AllocError::out_of_memory(env, &self.stats, limit, requested, segment)
    }

    /// Takes a segment, or pages, for a search; or leaves a segment to the caller.
    fn take(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        segment: u64,
        leaves: bool,
    ) -> Result<Taken, DeviceError> {
        let after = self.held().saturating_add(segment);
        if self.limit_on(env).is_some_and(|limit| after > limit) {
            return Ok(Taken::Nothing);
        }
        if self.config.throw_on_cudamalloc_oom && after > env.device.memory_info().total {
            return Ok(Taken::Rejected);
        }
        let taken = match search.expandable {
            true => self.take_expandable(env, search)?,
            false if leaves => return Ok(Taken::Left),
            false => self.take_segment(env, search, segment)?,
        };
        let Some(block) = taken else { return Ok(Taken::Nothing) };
        Ok(Taken::Block(block))
    }

    fn take_segment(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        size: u64,
    ) -> Result<Option<BlockId>, DeviceError> {
        let address = match env.device.alloc(size) {
            Ok(address) => address,
            Err(DeviceError::OutOfMemory { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(self.add_segment(env, search.home, address, size)))
    }

    /// Enters a segment that the device gave. Returns its block, which is in no set.
    pub(super) fn add_segment(
        &mut self,
        env: &mut Env<'_>,
        home: Home,
        address: Address,
        size: u64,
    ) -> BlockId {
        let registration = self.register();
        let block = Block::new(address, size, home);
        let id = self.blocks.insert(Block { registration, ..block });
        let is_small = home.is_small();
        self.stats.segment.increase(is_small, 1);
        self.stats.reserved_bytes.increase(is_small, size);
        self.pools.count_taken(home, size);
        if size >= self.config.max_split_size {
            self.stats.oversize_segments.increase(1);
        }
        self.stats.num_device_alloc += 1;
        let owner = self.pools.owner(home.pool).id;
        env.log(Action::SegmentAlloc, address, size, home.stream, owner);
        id
    }

    /// The free blocks of pools that lend when memory runs out (`use_on_oom`), for a request of the
    /// default pool.
    fn borrow_from_private_pools(&mut self, search: &Search) -> Option<BlockId> {
        let Home { pool, stream, .. } = search.home;
        if pool > Pools::LARGE {
            return None;
        }
        for place in 1..self.pools.owners.len() {
            let owner = &self.pools.owners[place];
            if !owner.exists || !owner.options.use_on_oom {
                continue;
            }
            let home = self.home(2 * place as u32 + pool, stream);
            let lent = Search { home, expandable: false, ..*search };
            if let Some(Found { block, .. }) = self.find_best_fit(&lent) {
                self.remove_free(block);
                return Some(block);
            }
        }
        None
    }
}
