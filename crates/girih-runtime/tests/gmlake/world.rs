//! A GMLake on a simulated device that checks the order of uses, and what a program does with it.

use girih_runtime::caching::{Caching, Config as Splitter};
use girih_runtime::gmlake::{Config, Gmlake};
use girih_runtime::sim::{Call, SimDevice};
use girih_runtime::{AllocError, BlockId, Env, Granted, Policy, Request};
use girih_trace::{PoolId, StreamId};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// Settings under which everything is split and stitched.
pub(crate) fn eager() -> Config {
    Config { fragmentation_limit: 2 * MIB, ..Config::default() }
}

pub(crate) struct World {
    pub(crate) device: SimDevice,
    pub(crate) lake: Gmlake,
    first: Option<BlockId>,
}

impl World {
    /// An eager GMLake on a device of so many bytes.
    pub(crate) fn new(bytes: u64) -> World {
        World::with(bytes, eager())
    }

    pub(crate) fn with(bytes: u64, config: Config) -> World {
        let mut device = SimDevice::new(bytes);
        device.check_order();
        World { device, lake: Gmlake::new(config, Caching::new(Splitter::default())), first: None }
    }

    /// Runs an operation, and walks the policy after it.
    pub(crate) fn run<T>(
        &mut self,
        operation: impl FnOnce(&mut Gmlake, &mut Env<'_>) -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        let mut env = Env { device: &mut self.device, log: &mut () };
        let result = operation(&mut self.lake, &mut env);
        self.lake.check().unwrap();
        result
    }

    /// Allocates on stream 0.
    pub(crate) fn alloc(&mut self, size: u64) -> Granted {
        self.alloc_on(0, size)
    }

    /// Allocates, and uses every byte.
    pub(crate) fn alloc_on(&mut self, stream: u16, size: u64) -> Granted {
        self.try_alloc(stream, size).unwrap()
    }

    pub(crate) fn try_alloc(&mut self, stream: u16, size: u64) -> Result<Granted, AllocError> {
        self.try_alloc_in(PoolId::DEFAULT, stream, size)
    }

    pub(crate) fn try_alloc_in(
        &mut self,
        pool: PoolId,
        stream: u16,
        size: u64,
    ) -> Result<Granted, AllocError> {
        let stream = StreamId(stream);
        let request = Request { size, stream, pool };
        let granted = self.run(|lake, env| lake.allocate(env, request))?;
        self.first = self.first.or(Some(granted.block));
        self.device.acquire(granted.address, granted.size, stream).expect("the memory can be used");
        Ok(granted)
    }

    /// Frees a block that stream 0 alone used.
    pub(crate) fn free(&mut self, granted: Granted) {
        self.free_used(granted, &[0]);
    }

    /// Frees a block that these streams used, its own first.
    pub(crate) fn free_used(&mut self, granted: Granted, streams: &[u16]) {
        let streams: Vec<StreamId> = streams.iter().map(|&stream| StreamId(stream)).collect();
        self.device.release(granted.address, granted.size, &streams).unwrap();
        self.run(|lake, env| lake.free(env, granted.block)).unwrap();
    }

    pub(crate) fn record_stream(&mut self, granted: Granted, stream: u16) {
        self.run(|lake, env| lake.record_stream(env, granted.block, StreamId(stream))).unwrap();
    }

    pub(crate) fn process_events(&mut self) {
        self.run(Policy::process_events).unwrap();
    }

    pub(crate) fn empty_cache(&mut self) {
        self.run(Policy::empty_cache).unwrap();
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.lake.stats().reserved_bytes.all.current
    }

    /// The id of the block that was given first.
    pub(crate) fn first_block(&self) -> BlockId {
        self.first.expect("a block was given")
    }

    /// True if every byte of a block that is in use can be used.
    pub(crate) fn is_mapped(&mut self, granted: &Granted) -> bool {
        // Unordered on purpose: the block is taken and given once more by its own stream.
        self.device.release(granted.address, granted.size, &[]).is_ok()
            && self.device.acquire(granted.address, granted.size, StreamId(0)).is_ok()
    }

    /// Successful calls of a kind so far.
    pub(crate) fn calls(&self, call: Call) -> u64 {
        self.device.totals().of(call).calls
    }

    /// Calls that the device refused. What it refuses to take back is owed to it and tried again, so
    /// no error tells of it.
    pub(crate) fn refused(&self) -> u64 {
        self.device.calls() - self.device.totals().sum().calls
    }

    /// Idle blocks of these sizes that lie apart: what is between them is held, and returned.
    pub(crate) fn scattered(&mut self, sizes: &[u64]) -> Vec<Granted> {
        let blocks: Vec<Granted> = sizes.iter().map(|&size| self.alloc(size)).collect();
        let between = sizes.iter().map(|_| self.alloc(2 * MIB)).collect();
        blocks.into_iter().for_each(|block| self.free(block));
        between
    }
}
