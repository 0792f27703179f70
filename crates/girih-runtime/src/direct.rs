//! Every request straight to the device: what PyTorch does under `PYTORCH_NO_CUDA_MEMORY_CACHING`.
//!
//! Nothing is cached, so nothing is fragmented: a run that would not fit for fragmentation fits, and
//! can be recorded. It is slow. A block that other streams used goes back to the device when their
//! events are done.

use girih_trace::{Action, BlockState, PoolId, StreamId};

use crate::device::{Address, DeviceError};
use crate::pending::{Limbo, PendingFrees};
use crate::policy::{
    AllocError, Backing, BlockId, BlockView, Env, Granted, Policy, Request, SegmentView,
};
use crate::stats::{Counters, Stats};

/// Every block is a multiple of this.
const ALIGNMENT: u64 = 512;
/// Requests up to this count as small, as in PyTorch's statistics.
const SMALL_SIZE: u64 = 1 << 20;

#[derive(Clone, Debug)]
struct Block {
    address: Address,
    size: u64,
    requested: u64,
    stream: StreamId,
    pool: PoolId,
    state: BlockState,
    events: u32,
    /// Other streams that use it.
    uses: Vec<StreamId>,
}

impl Block {
    fn is_small(&self) -> bool {
        self.size <= SMALL_SIZE
    }
}

/// The policy that caches nothing.
#[derive(Debug, Default)]
pub struct Direct {
    /// By id; free places are inactive.
    blocks: Vec<Block>,
    vacant: Vec<BlockId>,
    pending: PendingFrees,
    /// Blocks whose events are done, and that the device must still take back.
    done: Vec<BlockId>,
    limbo: Limbo,
    stats: Stats,
}

impl Direct {
    /// A policy that holds nothing.
    pub fn new() -> Direct {
        Direct::default()
    }

    fn in_use(&self, id: BlockId) -> Result<&Block, AllocError> {
        let block = self.blocks.get(id.0 as usize);
        block
            .filter(|block| block.state == BlockState::Allocated)
            .ok_or(AllocError::UnknownBlock(id))
    }

    fn at(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id.0 as usize]
    }

    /// Takes memory; if there is none, waits for the frees that are pending and tries once more.
    fn take(&mut self, env: &mut Env<'_>, size: u64) -> Result<Option<Address>, DeviceError> {
        for last in [false, true] {
            match env.device.alloc(size) {
                Ok(address) => return Ok(Some(address)),
                Err(DeviceError::OutOfMemory { .. }) if !last && !self.pending.is_empty() => {
                    self.stats.num_alloc_retries += 1;
                    self.wait_for_frees(env)?;
                }
                Err(DeviceError::OutOfMemory { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn wait_for_frees(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        self.stats.num_sync_all_streams += 1;
        while let Some(id) = self.pending.wait_next(env.device, &mut self.limbo)? {
            self.count_event(id);
        }
        self.give_back_done(env)
    }

    fn count_event(&mut self, id: BlockId) {
        let block = self.at(id);
        block.events -= 1;
        if block.events == 0 {
            self.done.push(id);
        }
    }

    fn give_back_done(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        while let Some(&id) = self.done.last() {
            env.device.free(self.at(id).address)?;
            self.done.pop();
            self.complete(env, id);
        }
        Ok(())
    }

    /// Counts that the program let a block go.
    fn let_go(&mut self, env: &mut Env<'_>, id: BlockId) {
        let block = self.at(id);
        block.state = BlockState::PendingFree;
        let block = block.clone();
        self.stats.allocation.decrease(block.is_small(), 1);
        self.stats.allocated_bytes.decrease(block.is_small(), block.size);
        env.log(Action::FreeRequested, block.address, block.requested, block.stream, block.pool);
    }

    /// Counts that the device has a block back.
    fn complete(&mut self, env: &mut Env<'_>, id: BlockId) {
        let block = self.at(id);
        block.state = BlockState::Inactive;
        let block = block.clone();
        let is_small = block.is_small();
        self.vacant.push(id);
        env.log(Action::FreeCompleted, block.address, block.requested, block.stream, block.pool);
        env.log(Action::SegmentFree, block.address, block.size, block.stream, block.pool);
        let stats = &mut self.stats;
        stats.active.decrease(is_small, 1);
        stats.active_bytes.decrease(is_small, block.size);
        stats.requested_bytes.decrease(is_small, block.requested);
        stats.segment.decrease(is_small, 1);
        stats.reserved_bytes.decrease(is_small, block.size);
        stats.num_device_free += 1;
    }
}

impl Policy for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        let Request { size: requested, stream, pool } = request;
        self.process_events(env)?;
        let size = requested.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
        let Some(address) = self.take(env, size)? else {
            let free = env.device.memory_info().free;
            env.log(Action::Oom, free, size, stream, pool);
            self.stats.num_ooms += 1;
            return Err(AllocError::OutOfMemory {
                requested,
                segment: size,
                allocated: self.stats.allocated_bytes.all.current,
                reserved: self.stats.reserved_bytes.all.current,
                limit: u64::MAX,
                device_free: free,
            });
        };
        let state = BlockState::Allocated;
        let uses = Vec::new();
        let block = Block { address, size, requested, stream, pool, state, events: 0, uses };
        let is_small = block.is_small();
        let id = match self.vacant.pop() {
            Some(id) => {
                *self.at(id) = block;
                id
            }
            None => {
                self.blocks.push(block);
                BlockId(self.blocks.len() as u32 - 1)
            }
        };
        env.log(Action::SegmentAlloc, address, size, stream, pool);
        env.log(Action::Alloc, address, requested, stream, pool);
        let stats = &mut self.stats;
        for counter in [&mut stats.segment, &mut stats.allocation, &mut stats.active] {
            counter.increase(is_small, 1);
        }
        for bytes in
            [&mut stats.reserved_bytes, &mut stats.allocated_bytes, &mut stats.active_bytes]
        {
            bytes.increase(is_small, size);
        }
        stats.requested_bytes.increase(is_small, requested);
        stats.num_device_alloc += 1;
        Ok(Granted { block: id, address, size })
    }

    fn free(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), AllocError> {
        self.in_use(id)?;
        let block = &mut self.blocks[id.0 as usize];
        if block.uses.is_empty() {
            env.device.free(block.address)?;
            self.let_go(env, id);
            self.complete(env, id);
            return Ok(());
        }
        block.events = self.pending.record(env.device, &mut self.limbo, id, &block.uses)?;
        self.let_go(env, id);
        Ok(())
    }

    fn record_stream(
        &mut self,
        _env: &mut Env<'_>,
        id: BlockId,
        stream: StreamId,
    ) -> Result<(), AllocError> {
        let block = self.in_use(id)?;
        if stream != block.stream && !block.uses.contains(&stream) {
            self.at(id).uses.push(stream);
        }
        Ok(())
    }

    fn process_events(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        let mut cursor = 0;
        while let Some(id) = self.pending.next_done(env.device, &mut self.limbo, &mut cursor)? {
            self.count_event(id);
        }
        Ok(self.give_back_done(env)?)
    }

    fn empty_cache(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        self.limbo.settle(env.device)?;
        Ok(self.wait_for_frees(env)?)
    }

    fn reset_peak_stats(&mut self) {
        self.stats.reset_peaks();
    }

    fn stats(&self) -> &Stats {
        &self.stats
    }

    fn visit(&self, visitor: &mut dyn FnMut(SegmentView, &[BlockView])) {
        let mut blocks: Vec<&Block> =
            self.blocks.iter().filter(|block| block.state != BlockState::Inactive).collect();
        blocks.sort_unstable_by_key(|block| block.address);
        for block in blocks {
            let &Block { address, size, requested, stream, pool, state, .. } = block;
            let (is_small, backing) = (block.is_small(), Backing::Allocation);
            visitor(
                SegmentView { address, size, stream, pool, is_small, backing },
                &[BlockView { address, size, requested, state }],
            );
        }
    }

    fn check(&self) -> Result<(), String> {
        let (mut allocated, mut active) = (Counters::default(), Counters::default());
        for block in self.blocks.iter().filter(|block| block.state != BlockState::Inactive) {
            active.increase(block.is_small(), block.size);
            if block.state == BlockState::Allocated {
                allocated.increase(block.is_small(), block.size);
            }
        }
        for (name, kept, counted) in [
            ("allocated", self.stats.allocated_bytes, allocated),
            ("active", self.stats.active_bytes, active),
            ("reserved", self.stats.reserved_bytes, active),
        ] {
            if kept.all.current != counted.all.current {
                return Err(format!("{name}: {kept:?} kept, {counted:?} counted"));
            }
        }
        Ok(())
    }
}
