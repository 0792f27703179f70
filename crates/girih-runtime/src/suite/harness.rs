//! The harness: a policy at work on a stage, and what must hold after each operation.

use std::collections::{BTreeMap, BTreeSet};

use girih_trace::{Mark, MarkKind, PoolId, StreamId};

use super::balance::Balance;
use super::scenario::{Op, Scenario};
use crate::device::{Address, Device, DeviceError};
use crate::policy::{AllocError, Env, Granted, Policy, PoolOptions, Request};
use crate::sim::{LiveObjects, SimDevice};

/// The private pool whose memory is in one handle. Others are as the policy has them.
const ONE_HANDLE: PoolId = PoolId(2);

/// A device on which scenarios run, and what can be done to it and seen of it from outside of the
/// policy.
pub trait Stage {
    /// The device.
    fn device(&mut self) -> &mut dyn Device;

    /// Keeps a stream's work from being done.
    fn hold(&mut self, stream: StreamId);

    /// Does a stream's work.
    fn resume(&mut self, stream: StreamId);

    /// A block was given: work of `stream` uses it from now on.
    ///
    /// # Errors
    /// If the memory cannot be used, or not yet.
    fn begin_use(&mut self, address: Address, size: u64, stream: StreamId) -> Result<(), String>;

    /// A block is about to be freed, which `streams` have used, its own first.
    ///
    /// # Errors
    /// If it was not in use.
    fn end_use(&mut self, address: Address, size: u64, streams: &[StreamId]) -> Result<(), String>;

    /// True if a call failed because the test wants it to.
    fn is_intended(&self, error: &DeviceError) -> bool;

    /// What was taken from the device and not given back, in words; none if nothing is missing.
    fn missing(&mut self) -> Option<String>;
}

impl Stage for SimDevice {
    fn device(&mut self) -> &mut dyn Device {
        self
    }

    fn hold(&mut self, stream: StreamId) {
        SimDevice::hold(self, stream);
    }

    fn resume(&mut self, stream: StreamId) {
        SimDevice::resume(self, stream);
    }

    fn begin_use(&mut self, address: Address, size: u64, stream: StreamId) -> Result<(), String> {
        self.acquire(address, size, stream).map_err(|error| error.to_string())
    }

    fn end_use(&mut self, address: Address, size: u64, streams: &[StreamId]) -> Result<(), String> {
        SimDevice::release(self, address, size, streams).map_err(|error| error.to_string())
    }

    fn is_intended(&self, error: &DeviceError) -> bool {
        matches!(error, DeviceError::Injected { .. })
    }

    fn missing(&mut self) -> Option<String> {
        let live = self.live();
        (live != LiveObjects::default()).then(|| format!("{live:?}"))
    }
}

/// A block that the program holds.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) granted: Granted,
    /// Every stream that uses it, its own first.
    streams: Vec<StreamId>,
}

/// A policy at work, and what is known of it.
pub(super) struct Harness<S> {
    pub(super) stage: S,
    pub(super) policy: Box<dyn Policy>,
    pub(super) log: Balance,
    pub(super) live: Vec<Live>,
    /// Ends of the blocks in use, by address.
    occupied: BTreeMap<Address, Address>,
    pools: BTreeSet<PoolId>,
    /// The device call that is to fail, for messages.
    pub(super) fault: Option<u64>,
    /// What is being done, for messages; none at the end, when everything is freed.
    op: Option<(u64, Op)>,
}

impl<S: Stage> Harness<S> {
    pub(super) fn new(stage: S, policy: Box<dyn Policy>) -> Harness<S> {
        Harness {
            stage,
            policy,
            log: Balance::default(),
            live: Vec::new(),
            occupied: BTreeMap::new(),
            pools: BTreeSet::new(),
            fault: None,
            op: None,
        }
    }

    pub(super) fn run(&mut self, scenario: &Scenario) {
        for (index, op) in scenario.ops.iter().enumerate() {
            self.step(index as u64, *op);
            self.check();
        }
        self.finish();
    }

    /// Does the operation of number `index`.
    pub(super) fn step(&mut self, index: u64, op: Op) {
        self.op = Some((index, op));
        match op {
            Op::Alloc { size, stream, pool } => {
                self.alloc(size, stream, pool);
            }
            Op::Free { pick } if !self.live.is_empty() => {
                self.free(usize::from(pick) % self.live.len());
            }
            Op::RecordStream { pick, stream } if !self.live.is_empty() => {
                let place = usize::from(pick) % self.live.len();
                let block = self.live[place].granted.block;
                let recorded = self.call(|policy, env| policy.record_stream(env, block, stream));
                if recorded.is_some() && !self.live[place].streams.contains(&stream) {
                    self.live[place].streams.push(stream);
                }
            }
            Op::Hold(stream) => self.stage.hold(stream),
            Op::Resume(stream) => self.stage.resume(stream),
            Op::ProcessEvents => drop(self.call(|policy, env| policy.process_events(env))),
            Op::EmptyCache => self.empty_cache(),
            Op::Step => {
                let mark =
                    Mark { before: 0, time_us: 0, kind: MarkKind::Step, name: String::new() };
                self.call(|policy, env| policy.mark(env, &mark));
            }
            Op::Free { .. } | Op::RecordStream { .. } => {}
        }
    }

    /// Empties the cache: what goes back is what was said to be releasable, if nothing waits.
    fn empty_cache(&mut self) {
        let stats = self.policy.stats();
        let waits = stats.active.all.current > stats.allocation.all.current;
        let (reserved, releasable) = (stats.reserved_bytes.all.current, self.policy.releasable());
        let is_done = self.call(|policy, env| policy.empty_cache(env)).is_some();
        let left = self.policy.stats().reserved_bytes.all.current;
        if is_done && !waits && releasable > 0 && left != reserved - releasable {
            self.fail(&format!(
                "{releasable} of {reserved} bytes were releasable, and {left} are left"
            ));
        }
    }

    /// Calls the policy. None if it failed as it may: for memory, or by the fault.
    fn call<T>(
        &mut self,
        operation: impl FnOnce(&mut dyn Policy, &mut Env<'_>) -> Result<T, AllocError>,
    ) -> Option<T> {
        let mut env = Env { device: self.stage.device(), log: &mut self.log };
        match operation(self.policy.as_mut(), &mut env) {
            Ok(value) => Some(value),
            Err(AllocError::OutOfMemory { .. }) => None,
            Err(AllocError::Device(error)) if self.stage.is_intended(&error) => None,
            Err(error) => self.fail(&error.to_string()),
        }
    }

    /// Allocates, and checks what was given. False if nothing was.
    pub(super) fn alloc(&mut self, size: u64, stream: StreamId, pool: PoolId) -> bool {
        if self.pools.insert(pool) && pool == ONE_HANDLE {
            let options = PoolOptions { one_handle: true, ..PoolOptions::default() };
            self.policy.create_pool(pool);
            self.policy.set_pool_options(pool, options);
        }
        let request = Request { size, stream, pool };
        let Some(granted) = self.call(|policy, env| policy.allocate(env, request)) else {
            return false;
        };
        let (start, end) = (granted.address, granted.address + granted.size);
        if granted.size < size || !start.is_multiple_of(512) {
            self.fail(&format!("{granted:?} does not serve {size} bytes"));
        }
        let before = self.occupied.range(..end).next_back();
        if let Some((other, _)) = before.filter(|(_, other_end)| **other_end > start) {
            self.fail(&format!("{granted:?} overlaps the block at {other:#x}"));
        }
        if self.live.iter().any(|live| live.granted.block == granted.block) {
            self.fail(&format!("{granted:?} has the id of a block in use"));
        }
        if let Err(error) = self.stage.begin_use(start, granted.size, stream) {
            self.fail(&error);
        }
        self.occupied.insert(start, end);
        self.live.push(Live { granted, streams: vec![stream] });
        true
    }

    /// Frees a block; if the policy fails by the fault it must be able to do so again.
    pub(super) fn free(&mut self, place: usize) {
        let Live { granted, streams } = self.live.swap_remove(place);
        if let Err(error) = self.stage.end_use(granted.address, granted.size, &streams) {
            self.fail(&error);
        }
        self.occupied.remove(&granted.address);
        let id = granted.block;
        if self.call(|policy, env| policy.free(env, id)).is_none() {
            if let Err(error) = self.policy.check() {
                self.fail(&error);
            }
            if self.call(|policy, env| policy.free(env, id)).is_none() {
                self.fail("a free that failed cannot be tried again");
            }
        }
    }

    /// What must hold after every operation.
    pub(super) fn check(&self) {
        if let Err(error) = self.policy.check() {
            self.fail(&error);
        }
        let allocated = self.policy.stats().allocated_bytes.all.current;
        let given: u64 = self.live.iter().map(|live| live.granted.size).sum();
        if allocated != given {
            self.fail(&format!("{allocated} bytes allocated, {given} given"));
        }
        let reserved = self.policy.stats().reserved_bytes.all.current;
        let mut visible = 0;
        let mut last = 0;
        self.policy.visit(&mut |segment, blocks| {
            visible += segment.size;
            let tiled: u64 = blocks.iter().map(|block| block.size).sum();
            let ordered = segment.address >= last && blocks[0].address == segment.address;
            if tiled != segment.size || !ordered {
                self.fail(&format!("blocks do not tile {segment:?}, or it is out of order"));
            }
            last = segment.address + segment.size;
        });
        let unmapped = self.policy.unmapped();
        if visible + unmapped != reserved {
            self.fail(&format!(
                "{reserved} bytes reserved, {visible} visible, {unmapped} unmapped"
            ));
        }
    }

    /// Frees everything, and checks that the device has everything back.
    pub(super) fn finish(&mut self) {
        for stream in 0..8 {
            self.stage.resume(StreamId(stream));
        }
        self.op = None;
        while !self.live.is_empty() {
            self.free(0);
        }
        for pool in std::mem::take(&mut self.pools) {
            self.call(|policy, env| policy.release_pool(env, pool));
        }
        // A fault may fall into the first two: the calls that are owed are made by the next.
        for _ in 0..3 {
            self.call(|policy, env| policy.process_events(env));
            self.call(|policy, env| policy.empty_cache(env));
        }
        self.check();
        if let Some(missing) = self.stage.missing() {
            self.fail(&format!("the device does not have back {missing}"));
        }
        let stats = self.policy.stats();
        for (name, counters) in [
            ("allocation", stats.allocation),
            ("segment", stats.segment),
            ("active", stats.active),
            ("inactive_split", stats.inactive_split),
            ("allocated_bytes", stats.allocated_bytes),
            ("reserved_bytes", stats.reserved_bytes),
            ("active_bytes", stats.active_bytes),
            ("inactive_split_bytes", stats.inactive_split_bytes),
            ("requested_bytes", stats.requested_bytes),
        ] {
            let present = [counters.all.current, counters.small.current, counters.large.current];
            if present != [0; 3] {
                self.fail(&format!("{name} is {present:?} when everything is freed"));
            }
        }
        if let Err(error) = self.log.check() {
            self.fail(&error);
        }
    }

    fn fail(&self, what: &str) -> ! {
        let fault = self.fault.map_or(String::new(), |call| format!(", call {call} made to fail"));
        let end = || "freeing everything at the end".to_owned();
        let op = self.op.map_or_else(end, |(index, op)| format!("operation {index}, {op:?}"));
        panic!("{}{fault}: {op}: {what}", self.policy.name());
    }
}
