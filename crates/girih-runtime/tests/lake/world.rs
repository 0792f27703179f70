//! A policy on a simulated device that checks the order of uses, and what a program does with it. A
//! shadow of the memory looks on, and no call may break a rule of the device.

use girih_runtime::caching::{Caching, Config as Splitter};
use girih_runtime::gmlake::{Config, Gmlake};
use girih_runtime::sim::{Call, SimDevice};
use girih_runtime::{AllocError, BlockId, DeviceError, Env, Granted, Log, Policy, Request};
use girih_trace::{Action, Event, PoolId, StreamId};

use super::shadow::Shadow;
use super::watched::Watched;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// Settings under which everything is split and stitched.
pub(crate) fn eager() -> Config {
    Config { fragmentation_limit: 2 * MIB, ..Config::default() }
}

/// Bytes of segments that were unmapped. What is unmapped beside them are views.
#[derive(Default)]
struct SegmentsUnmapped(u64);

impl Log for SegmentsUnmapped {
    fn record(&mut self, event: Event) {
        self.0 += if event.action == Action::SegmentUnmap { event.size } else { 0 };
    }
}

pub(crate) struct World<P> {
    pub(crate) device: SimDevice,
    pub(crate) lake: P,
    pub(crate) shadow: Shadow,
    log: SegmentsUnmapped,
    first: Option<BlockId>,
}

impl World<Gmlake> {
    /// An eager GMLake on a device of so many bytes.
    pub(crate) fn new(bytes: u64) -> World<Gmlake> {
        World::with(bytes, eager())
    }

    pub(crate) fn with(bytes: u64, config: Config) -> World<Gmlake> {
        World::of(bytes, Gmlake::new(config, Caching::new(Splitter::default())))
    }
}

impl<P: Policy> World<P> {
    pub(crate) fn of(bytes: u64, lake: P) -> World<P> {
        let mut device = SimDevice::new(bytes);
        device.check_order();
        let (shadow, log) = (Shadow::default(), SegmentsUnmapped::default());
        World { device, lake, shadow, log, first: None }
    }

    /// Runs an operation, and walks the policy after it.
    pub(crate) fn run<T>(
        &mut self,
        operation: impl FnOnce(&mut P, &mut Env<'_>) -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        let mut device = Watched { device: &mut self.device, shadow: &mut self.shadow };
        let mut env = Env::new(&mut device, &mut self.log);
        let result = operation(&mut self.lake, &mut env);
        self.lake.check().unwrap();
        assert_eq!(self.shadow.misuses, [], "what is refused is owed, and no error tells of it");
        result
    }

    /// Runs an operation that may fail for memory or by a fault.
    pub(crate) fn attempt<T>(
        &mut self,
        operation: impl FnOnce(&mut P, &mut Env<'_>) -> Result<T, AllocError>,
    ) -> Option<T> {
        match self.run(operation) {
            Ok(value) => Some(value),
            Err(AllocError::OutOfMemory { .. }) => None,
            Err(AllocError::Device(
                DeviceError::Injected { .. } | DeviceError::OutOfMemory { .. },
            )) => None,
            Err(error) => panic!("{error}"),
        }
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
        self.begin_use(granted, stream);
        Ok(granted)
    }

    /// Allocates as a program that goes on without what it does not get.
    pub(crate) fn attempt_alloc(
        &mut self,
        pool: PoolId,
        stream: u16,
        size: u64,
    ) -> Option<Granted> {
        let stream = StreamId(stream);
        let request = Request { size, stream, pool };
        let granted = self.attempt(|lake, env| lake.allocate(env, request))?;
        self.begin_use(granted, stream);
        Some(granted)
    }

    /// Every byte of a block is used, and written to.
    fn begin_use(&mut self, granted: Granted, stream: StreamId) {
        self.first = self.first.or(Some(granted.block));
        self.device.acquire(granted.address, granted.size, stream).expect("the memory can be used");
        self.shadow.give(granted.address, granted.size);
    }

    /// Frees a block that stream 0 alone used.
    pub(crate) fn free(&mut self, granted: Granted) {
        self.free_used(granted, &[0]);
    }

    /// Frees a block that these streams used, its own first.
    pub(crate) fn free_used(&mut self, granted: Granted, streams: &[u16]) {
        self.let_go(granted, streams);
        self.run(|lake, env| lake.free(env, granted.block)).unwrap();
    }

    /// The program is done with a block that these streams used, its own first, and frees it next.
    pub(crate) fn let_go(&mut self, granted: Granted, streams: &[u16]) {
        let streams: Vec<StreamId> = streams.iter().map(|&stream| StreamId(stream)).collect();
        self.device.release(granted.address, granted.size, &streams).unwrap();
        assert!(self.shadow.take(granted.address));
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
        self.lake.stats().reserved_bytes.all().current
    }

    /// Bytes of views that were unmapped so far. For expandable segments.
    pub(crate) fn views_unmapped(&self) -> u64 {
        self.shadow.unmapped.saturating_sub(self.log.0)
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
        let pairs = sizes.iter().map(|&size| (self.alloc(size), self.alloc(2 * MIB)));
        let (blocks, between): (Vec<_>, Vec<_>) = pairs.unzip();
        blocks.into_iter().for_each(|block| self.free(block));
        between
    }
}
