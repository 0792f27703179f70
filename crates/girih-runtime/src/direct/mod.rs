//! Every request straight to the device: what PyTorch does under `PYTORCH_NO_CUDA_MEMORY_CACHING`.
//!
//! ```text
//!  request ─┬─ of the default pool ─► an allocation of the device, which goes back when it is freed
//!           └─ of a private pool ───► a caching policy, which keeps what the pool has
//! ```
//!
//! Outside of private pools nothing is cached, so nothing is fragmented: a run that would not fit
//! for fragmentation fits, and can be recorded. It is slow. A block that other streams used goes
//! back to the device when their events are done; one that is freed while a graph is captured, when
//! the capture has ended (`frees`).
//!
//! Private pools are those of graphs and of `MemPool`: there memory that is freed must stay, so a
//! caching policy beside the single allocations serves them, and only them (`beside`).

mod block;
mod frees;
mod view;

use girih_trace::{Action, BlockState, PoolId, StreamId};

use self::block::{Block, Blocks};
use crate::beside::{self, Beside, is_own};
use crate::caching::Caching;
use crate::caching::rounding::MAX_REQUEST;
use crate::device::{Address, DeviceError};
use crate::pending::{Limbo, PendingFrees};
use crate::policy::{AllocError, BlockId, BlockView, Env, Granted, Request, SegmentView};
use crate::wrapper::Wrapper;

/// Every block is a multiple of this.
const ALIGNMENT: u64 = 512;

/// The policy that caches nothing but what private pools hold. See the [module](self).
#[derive(Debug)]
pub struct Direct {
    blocks: Blocks,
    pending: PendingFrees,
    /// Blocks freed during a capture; they get their events after it.
    deferred: Vec<BlockId>,
    /// Blocks whose events are done, and that the device must still take back.
    done: Vec<BlockId>,
    limbo: Limbo,
    /// Serves the private pools. Its default pool stays empty.
    beside: Beside,
}

impl Direct {
    /// A policy that holds nothing. `pools` serves the requests of private pools; it holds nothing
    /// either. Its memory fraction is the limit of both together.
    pub fn new(pools: Caching) -> Direct {
        Direct {
            blocks: Blocks::default(),
            pending: PendingFrees::default(),
            deferred: Vec::new(),
            done: Vec::new(),
            limbo: Limbo::default(),
            beside: Beside::new(pools),
        }
    }

    /// Takes memory of the device. None if it has too little, or if the limit leaves too little.
    fn take(&self, env: &mut Env<'_>, size: u64) -> Result<Option<Address>, DeviceError> {
        if !self.beside.allows(env, size) {
            return Ok(None);
        }
        match env.device.alloc(size) {
            Ok(address) => Ok(Some(address)),
            Err(DeviceError::OutOfMemory { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a block of what the device gave.
    fn give(&mut self, env: &mut Env<'_>, request: Request, address: u64, size: u64) -> Granted {
        let Request { size: requested, stream, pool } = request;
        let (state, users) = (BlockState::Allocated, Vec::new());
        let block = Block { address, size, requested, stream, state, events: 0, users };
        let is_small = block.is_small();
        env.log(Action::SegmentAlloc, address, size, stream, pool);
        env.log(Action::Alloc, address, requested, stream, pool);
        let stats = &mut self.beside.stats;
        stats.segment.increase(is_small, 1);
        stats.reserved_bytes.increase(is_small, size);
        stats.count_allocation(is_small, size, requested);
        stats.num_device_alloc += 1;
        Granted { block: self.blocks.add(block), address, size }
    }
}

impl Wrapper for Direct {
    type Inner = Beside;

    fn inner(&self) -> &Beside {
        &self.beside
    }

    fn inner_mut(&mut self) -> &mut Beside {
        &mut self.beside
    }

    fn name(&self) -> &'static str {
        "direct"
    }

    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        if request.pool != PoolId::DEFAULT {
            if !self.beside.is_capturing() {
                self.complete_frees(env)?;
            }
            return beside::allocate(self, env, request, |direct, env| {
                let has_more = direct.has_waiting();
                if has_more {
                    direct.wait_for_frees(env)?;
                }
                Ok(has_more)
            });
        }
        self.process_events(env)?;
        if request.size >= MAX_REQUEST {
            return Err(self.beside.out_of_memory(env, request.size, request.size));
        }
        let size = request.size.next_multiple_of(ALIGNMENT);
        let mut address = self.take(env, size)?;
        if address.is_none() {
            if let Some(lent) = self.beside.borrow(env, request)? {
                return Ok(lent);
            }
            if beside::make_room(self, env)? {
                address = self.take(env, size)?;
            }
        }
        match address {
            Some(address) => Ok(self.give(env, request, address, size)),
            None => Err(self.beside.refuse(env, request, size)),
        }
    }

    fn has_room(&self, request: &Request) -> bool {
        request.pool != PoolId::DEFAULT && self.beside.has_room(request)
    }

    fn free(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), AllocError> {
        if is_own(id) {
            return self.free_own(env, id);
        }
        self.beside.free(env, id)
    }

    fn record_stream(
        &mut self,
        env: &mut Env<'_>,
        id: BlockId,
        stream: StreamId,
    ) -> Result<(), AllocError> {
        if !is_own(id) {
            return self.beside.record_stream(env, id, stream);
        }
        let block = self.blocks.in_use(id).ok_or(AllocError::UnknownBlock(id))?;
        if stream != block.stream && !block.users.contains(&stream) {
            block.users.push(stream);
        }
        Ok(())
    }

    fn process_events(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        if self.beside.is_capturing() {
            return Ok(());
        }
        self.complete_frees(env)?;
        self.beside.process_events(env)
    }

    fn empty_cache(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        self.limbo.settle(env.device)?;
        if !self.beside.is_capturing() {
            self.wait_for_frees(env)?;
        }
        self.beside.empty_cache(env)
    }

    fn empty_pool(&mut self, env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError> {
        if pool == PoolId::DEFAULT {
            return self.empty_cache(env);
        }
        self.beside.empty_pool(env, pool)
    }

    fn visit(&self, visitor: &mut dyn FnMut(SegmentView, &[BlockView])) {
        for (segment, blocks) in self.views() {
            visitor(segment, &blocks);
        }
    }

    fn check(&self) -> Result<(), String> {
        self.check_all()
    }
}

#[cfg(test)]
mod tests;
