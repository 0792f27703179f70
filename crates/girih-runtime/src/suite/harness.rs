//! The harness: a policy at work on a stage, and what must hold after each operation.

use std::collections::{BTreeMap, BTreeSet};

use girih_trace::{Mark, MarkKind, PoolId, StreamId};

use super::balance::Balance;
use super::scenario::{Op, Scenario};
use super::streams::Streams;
use crate::device::{Address, Device, DeviceError};
use crate::policy::{AllocError, Checkpoint, Env, Granted, Policy, PoolOptions, Request};
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

    /// The program lets later work of `after` come after the present work of `before`.
    fn order(&mut self, before: StreamId, after: StreamId);

    /// A graph is captured from a stream from now on, or no more.
    fn capture(&mut self, stream: StreamId, begins: bool);

    /// The program destroys a stream, whose work goes on.
    fn destroy(&mut self, stream: StreamId);

    /// The host waits for all work of the device.
    fn finish_all(&mut self);

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

    fn order(&mut self, before: StreamId, after: StreamId) {
        SimDevice::order(self, before, after);
    }

    fn capture(&mut self, stream: StreamId, begins: bool) {
        if begins { self.begin_capture(stream) } else { self.end_capture(stream) }
    }

    fn destroy(&mut self, stream: StreamId) {
        self.destroy_stream(stream);
    }

    fn finish_all(&mut self) {
        SimDevice::finish_all(self);
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
    /// Those of them that nobody was told of.
    borrowers: Vec<StreamId>,
    pool: PoolId,
}

/// An open scope.
#[derive(Clone, Copy, Debug)]
struct Scope {
    pool: PoolId,
    /// The stream from which a graph is captured with it.
    captures: Option<StreamId>,
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
    /// Users that the program has of private pools, by pool.
    users: BTreeMap<PoolId, u32>,
    scopes: Vec<Scope>,
    /// A graph is captured from this stream, of which nobody has told the policy.
    raw_capture: Option<StreamId>,
    /// Marks so far.
    marks: i64,
    checkpoints: Vec<Checkpoint>,
    streams: Streams,
    /// The program keeps to what PyTorch's allocator trusts that programs do.
    pub(super) is_trusted: bool,
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
            users: BTreeMap::new(),
            scopes: Vec::new(),
            raw_capture: None,
            marks: 0,
            checkpoints: Vec::new(),
            streams: Streams::default(),
            is_trusted: false,
            fault: None,
            op: None,
        }
    }

    pub(super) fn run(&mut self, scenario: &Scenario) {
        self.is_trusted = scenario.is_trusted;
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
                let stream = self.streams.now(stream);
                let capturing = self.scopes.iter().find(|scope| scope.captures == Some(stream));
                let pool = capturing.map_or(pool, |scope| scope.pool);
                self.alloc(size, stream, pool);
            }
            Op::Free { pick } if !self.live.is_empty() => {
                self.free(usize::from(pick) % self.live.len());
            }
            Op::RecordStream { pick, stream }
                if !self.live.is_empty()
                    && self.capturing() != Some(self.streams.now(stream))
                    && (self.scopes.is_empty() || !self.is_trusted) =>
            {
                let place = usize::from(pick) % self.live.len();
                let stream = self.streams.now(stream);
                let block = self.live[place].granted.block;
                let recorded = self.call(|policy, env| policy.record_stream(env, block, stream));
                if recorded.is_some() && !self.live[place].streams.contains(&stream) {
                    self.live[place].streams.push(stream);
                }
            }
            Op::Borrow { pick, stream } if !self.live.is_empty() && !self.captures() => {
                let place = usize::from(pick) % self.live.len();
                let stream = self.streams.now(stream);
                let block = &mut self.live[place];
                if !block.streams.contains(&stream) {
                    block.streams.push(stream);
                    block.borrowers.push(stream);
                }
            }
            Op::DestroyStream(stream) if !self.captures() => self.destroy(stream),
            Op::BeginScope { pool, stream, captures } if self.scopes.len() < 3 => {
                self.begin_scope(pool, stream, captures && !self.captures());
            }
            Op::EndScope => self.end_scope(),
            Op::RawCapture(stream) => self.toggle_raw_capture(stream),
            Op::ReleasePool(pool) if !self.captures() => {
                if let Some(users) = self.users.get_mut(&pool).filter(|users| **users > 0) {
                    *users -= 1;
                    self.call(|policy, env| policy.release_pool(env, pool));
                }
            }
            Op::EmptyPool(pool) if !self.captures() => {
                self.call(|policy, env| policy.empty_pool(env, pool));
            }
            Op::PoolOptions { pool, no_split } if pool != ONE_HANDLE => {
                let options = PoolOptions { no_split, ..PoolOptions::default() };
                self.policy.set_pool_options(pool, options);
            }
            Op::Checkpoint(pool) if self.raw_capture.is_none() => {
                self.checkpoints.extend(self.policy.checkpoint(pool).ok());
            }
            Op::Restore if !self.captures() => self.restore(),
            Op::Limit(tenths) => {
                let total = self.stage.device().memory_info().total;
                let limit = (tenths < 10).then(|| total / 10 * u64::from(tenths));
                self.policy.set_limit(limit);
                if self.policy.limit(total) != limit {
                    self.fail("the limit is not what was set");
                }
            }
            Op::Hold(stream) => self.stage.hold(self.streams.now(stream)),
            Op::Resume(stream) => self.stage.resume(self.streams.now(stream)),
            Op::ProcessEvents => drop(self.call(|policy, env| policy.process_events(env))),
            Op::EmptyCache if !self.captures() => self.empty_cache(),
            Op::Step => {
                // Time passes, so that views and waits may owe some.
                let (time_us, name) = (self.marks, String::new());
                self.marks += 1;
                let mark = Mark { before: 0, time_us, kind: MarkKind::Step, name };
                self.call(|policy, env| policy.mark(env, &mark));
            }
            _ => {}
        }
    }

    /// The stream from which a graph is captured, whoever knows of it.
    pub(super) fn capturing(&self) -> Option<StreamId> {
        self.raw_capture.or_else(|| self.scopes.iter().find_map(|scope| scope.captures))
    }

    fn captures(&self) -> bool {
        self.capturing().is_some()
    }

    /// True if a block is in use that a stream uses.
    pub(super) fn is_used_by(&self, name: StreamId) -> bool {
        let stream = self.streams.now(name);
        self.live.iter().any(|live| live.streams.contains(&stream))
    }

    /// The stream that has a name now.
    pub(super) fn now(&self, name: StreamId) -> StreamId {
        self.streams.now(name)
    }

    /// The program destroys a stream. What it owes to streams that come after this one it does before.
    fn destroy(&mut self, stream: StreamId) {
        if self.is_used_by(stream) {
            // A program keeps a stream for as long as it has something that the stream uses.
            return;
        }
        let gone = self.streams.now(stream);
        for (before, after) in self.streams.take_orders(|order| order.0 == gone || order.1 == gone)
        {
            self.stage.order(before, after);
        }
        self.stage.destroy(gone);
        self.streams.replace(stream);
    }

    fn begin_scope(&mut self, pool: PoolId, stream: StreamId, captures: bool) {
        let stream = self.streams.now(stream);
        // In a pool in one handle no graph is captured.
        let captures = captures && pool != ONE_HANDLE;
        if captures {
            self.come_after_all(stream);
        }
        *self.users.entry(pool).or_default() += 1;
        self.make_pool(pool);
        self.policy.begin_pool(pool, captures);
        self.scopes.push(Scope { pool, captures: captures.then_some(stream) });
        if captures {
            self.stage.capture(stream, true);
        }
    }

    fn end_scope(&mut self) {
        let Some(Scope { pool, captures }) = self.scopes.pop() else { return };
        if let Some(stream) = captures {
            self.stage.capture(stream, false);
        }
        self.policy.end_pool(pool, captures.is_some());
    }

    fn toggle_raw_capture(&mut self, stream: StreamId) {
        let stream = self.streams.now(stream);
        match self.raw_capture.take() {
            Some(capturing) => self.stage.capture(capturing, false),
            None if !self.captures() => {
                self.come_after_all(stream);
                self.stage.capture(stream, true);
                self.raw_capture = Some(stream);
            }
            None => {}
        }
    }

    /// A stream that is to capture can wait for nobody later: the program does it before.
    fn come_after_all(&mut self, stream: StreamId) {
        for (before, after) in
            self.streams.take_orders(|order| order.0 == stream || order.1 == stream)
        {
            self.stage.order(before, after);
        }
    }

    /// Brings the pool of the newest checkpoint back to it. The program waits for the device before: it
    /// hands the blocks' memory to whom it wants.
    fn restore(&mut self) {
        let Some(checkpoint) = self.checkpoints.pop() else { return };
        let is_of_pool = |live: &Live| live.pool == checkpoint.pool;
        if self.live.iter().any(|live| is_of_pool(live) && !live.borrowers.is_empty()) {
            return;
        }
        let result = {
            let mut env = Env::new(self.stage.device(), &mut self.log);
            self.policy.restore(&mut env, &checkpoint)
        };
        let restored = match result {
            Ok(restored) => restored,
            Err(AllocError::Unsupported { .. } | AllocError::OutOfMemory { .. }) => return,
            Err(AllocError::Device(error)) if self.stage.is_intended(&error) => return,
            Err(error) => self.fail(&error.to_string()),
        };
        let (gone, stay) = std::mem::take(&mut self.live).into_iter().partition(is_of_pool);
        self.live = stay;
        let gone: Vec<Live> = gone;
        let mut freed: Vec<_> = gone.iter().map(|live| live.granted.address).collect();
        freed.sort_unstable();
        if !restored.freed.iter().map(|&(_, address)| address).eq(freed) {
            self.fail("a checkpoint brought back frees other blocks than were in use");
        }
        for Live { granted, streams, .. } in gone {
            if let Err(error) = self.stage.end_use(granted.address, granted.size, &streams) {
                self.fail(&error);
            }
            self.occupied.remove(&granted.address);
        }
        self.stage.finish_all();
        let streams: BTreeMap<Address, StreamId> =
            checkpoint.live().map(|(segment, block)| (block.address, segment.stream)).collect();
        for granted in restored.allocated {
            let stream = streams[&granted.address];
            self.take_over(granted, stream, checkpoint.pool);
        }
    }

    /// Empties the cache: what goes back is what was said to be releasable, if nothing waits.
    fn empty_cache(&mut self) {
        let stats = self.policy.stats();
        let waits = stats.active.all().current > stats.allocation.all().current;
        let (reserved, releasable) = (stats.reserved_bytes.all().current, self.policy.releasable());
        let is_done = self.call(|policy, env| policy.empty_cache(env)).is_some();
        let left = self.policy.stats().reserved_bytes.all().current;
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
        let mut env = Env::new(self.stage.device(), &mut self.log);
        match operation(self.policy.as_mut(), &mut env) {
            Ok(value) => Some(value),
            Err(AllocError::OutOfMemory { .. }) => None,
            Err(AllocError::Device(error)) if self.stage.is_intended(&error) => None,
            Err(error) => self.fail(&error.to_string()),
        }
    }

    /// Allocates, and checks what was given. False if nothing was.
    pub(super) fn alloc(&mut self, size: u64, stream: StreamId, pool: PoolId) -> bool {
        self.make_pool(pool);
        for (before, after) in self.streams.take_orders(|order| order.1 == stream) {
            self.stage.order(before, after);
        }
        let request = Request { size, stream, pool };
        let Some(granted) = self.call(|policy, env| policy.allocate(env, request)) else {
            return false;
        };
        if granted.size < size || !granted.address.is_multiple_of(512) {
            self.fail(&format!("{granted:?} does not serve {size} bytes"));
        }
        self.take_over(granted, stream, pool);
        true
    }

    /// Makes a private pool whose memory is in one handle so before its first request.
    fn make_pool(&mut self, pool: PoolId) {
        if self.pools.insert(pool) && pool == ONE_HANDLE {
            let options = PoolOptions { one_handle: true, ..PoolOptions::default() };
            self.policy.create_pool(pool);
            self.policy.set_pool_options(pool, options);
        }
    }

    /// The program has a block that it was given, and uses it.
    fn take_over(&mut self, granted: Granted, stream: StreamId, pool: PoolId) {
        let (start, end) = (granted.address, granted.address + granted.size);
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
        self.live.push(Live { granted, streams: vec![stream], borrowers: Vec::new(), pool });
    }

    /// Frees a block; if the policy fails by the fault it must be able to do so again.
    pub(super) fn free(&mut self, place: usize) {
        let Live { granted, streams, borrowers, .. } = self.live.swap_remove(place);
        for borrower in borrowers {
            self.streams.owe(borrower, streams[0]);
        }
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
        let allocated = self.policy.stats().allocated_bytes.all().current;
        let given: u64 = self.live.iter().map(|live| live.granted.size).sum();
        if allocated != given {
            self.fail(&format!("{allocated} bytes allocated, {given} given"));
        }
        let reserved = self.policy.stats().reserved_bytes.all().current;
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
        if visible != reserved {
            self.fail(&format!("{reserved} bytes reserved, {visible} visible"));
        }
    }

    /// Ends every capture and closes every scope.
    pub(super) fn end_captures(&mut self) {
        if self.raw_capture.is_some() {
            self.toggle_raw_capture(StreamId(0));
        }
        while !self.scopes.is_empty() {
            self.end_scope();
        }
    }

    /// Frees everything, and checks that the device has everything back.
    pub(super) fn finish(&mut self) {
        self.end_captures();
        for stream in 0..=self.streams.newest().0.max(8) {
            self.stage.resume(StreamId(stream));
        }
        self.policy.set_limit(None);
        self.op = None;
        while !self.live.is_empty() {
            self.free(0);
        }
        for pool in std::mem::take(&mut self.pools) {
            for _ in 0..self.policy.pool_users(pool).max(1) {
                self.call(|policy, env| policy.release_pool(env, pool));
            }
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
            let present = [counters.all().current, counters.small.current, counters.large.current];
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
