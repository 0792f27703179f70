//! A device whose streams are queues, run one entry at a time in an order that a seed chooses.
//!
//! Clocks stand beside it, which tell of a race even where this order does not bring it about.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use girih_cuda::StreamHandle;
use girih_runtime::{
    Address, CapturedEnds, Copies, Device, DeviceError, GraphNode, Handle, HostAddress, HostMemory,
    MemoryInfo, Prices, StreamEvent, TimeStamp,
};
use girih_trace::StreamId;
use girih_trace::generate::{Chance, Rng};

use super::clocks::{Clocks, Use};
use crate::device::{AddressesAlone, HeapDevice, Simulated};
use crate::settings;

/// Bytes that contents are kept of.
pub(super) const UNIT: u64 = 256 << 10;

/// Bytes of the GPU: of which handle or allocation, and which of its units.
type Unit = (u64, u64);

/// What work reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Place {
    Gpu(Unit),
    Host(HostAddress),
}

fn on_gpu(units: &[Unit]) -> Vec<Place> {
    units.iter().copied().map(Place::Gpu).collect()
}

fn on_host(address: HostAddress, units: &[Unit]) -> Vec<Place> {
    (address..).step_by(UNIT as usize).take(units.len()).map(Place::Host).collect()
}

/// The answers to "do the streams go on here?", one after the other: first those given, then no.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    given: Vec<bool>,
    asked: usize,
}

impl Turns {
    fn next(&mut self) -> bool {
        if self.asked == self.given.len() {
            self.given.push(false);
        }
        self.asked += 1;
        self.given[self.asked - 1]
    }

    /// Those that come after these, if all that were asked for are taken in order. None after the last.
    pub(super) fn following(mut self) -> Option<Turns> {
        self.given.truncate(self.asked);
        while self.given.pop_if(|last| *last).is_some() {}
        *self.given.last_mut()? = true;
        Some(Turns { given: self.given, asked: 0 })
    }
}

/// Work of a stream.
#[derive(Clone, Debug)]
enum Work {
    Write(Vec<Unit>, u64),
    /// The bytes must be these, or the text says whose they are.
    Look(Vec<Unit>, u64, String),
    Out(Vec<Unit>, HostAddress),
    In(HostAddress, Vec<Unit>),
    Reach(u64),
    Wait(u64),
}

#[derive(Default)]
struct Inner {
    streams: BTreeMap<u64, VecDeque<Work>>,
    /// Events that were reached.
    reached: HashSet<u64>,
    /// What an event waits for besides itself.
    parts: HashMap<u64, Vec<u64>>,
    next: u64,
    gpu: HashMap<Unit, u64>,
    host: HashMap<HostAddress, u64>,
    /// Where each unit of addresses is mapped.
    mapped: BTreeMap<Address, (u64, u64)>,
    wrong: Vec<String>,
    copies_out: u64,
    rng: Option<Rng>,
    calls: u64,
    fault: Option<u64>,
    clocks: Clocks<Place>,
    /// Streams that the program has destroyed.
    gone: HashSet<u64>,
    /// Whether the streams go on at all; without, they do as far as the program says.
    turns: Option<Turns>,
}

impl Inner {
    /// A piece of work must come after all others that use the same places, whatever the streams do.
    fn order(&mut self, stream: u64, uses: Use, places: &[Place], what: &str) {
        if let Some(race) = self.clocks.work(stream, uses, places) {
            self.wrong.push(format!("{what}: {race}"));
        }
    }

    fn finish(&mut self) {
        while self.advance() {}
        self.clocks.see_all();
    }

    fn is_reached(&self, event: u64) -> bool {
        self.reached.contains(&event)
            && self.parts.get(&event).is_none_or(|parts| parts.iter().all(|&p| self.is_reached(p)))
    }

    fn units(&self, address: Address, size: u64) -> Vec<Unit> {
        (0..size.div_ceil(UNIT))
            .map(|index| {
                let at = address + index * UNIT;
                let (&start, &(of, bytes)) =
                    self.mapped.range(..=at).next_back().expect("it is mapped");
                assert!(at - start < bytes, "{at:#x} is not mapped");
                (of, (at - start) / UNIT)
            })
            .collect()
    }

    fn push(&mut self, stream: u64, work: Work) {
        self.streams.entry(stream).or_default().push_back(work);
    }

    /// Runs one entry of some stream that may run. False if none may.
    fn advance(&mut self) -> bool {
        let ready: Vec<u64> = self
            .streams
            .iter()
            .filter(|(_, queue)| match queue.front() {
                Some(Work::Wait(event)) => self.is_reached(*event),
                Some(_) => true,
                None => false,
            })
            .map(|(stream, _)| *stream)
            .collect();
        if ready.is_empty() {
            return false;
        }
        let at = self.rng.as_mut().map_or(0, |rng| rng.below(ready.len() as u64)) as usize;
        let work = self.streams.get_mut(&ready[at]).and_then(VecDeque::pop_front);
        match work.expect("it has work") {
            Work::Write(units, tag) => {
                units.into_iter().for_each(|unit| _ = self.gpu.insert(unit, tag));
            }
            Work::Look(units, tag, whose) => {
                let found: Vec<u64> =
                    units.iter().map(|unit| self.gpu.get(unit).copied().unwrap_or(0)).collect();
                if found.iter().any(|&other| other != tag) {
                    self.wrong.push(format!("{whose}: {tag} was written, {found:?} found"));
                }
            }
            Work::Out(units, host) => {
                for (unit, at) in units.into_iter().zip((host..).step_by(UNIT as usize)) {
                    let tag = self.gpu.get(&unit).copied().unwrap_or(0);
                    self.host.insert(at, tag);
                }
            }
            Work::In(host, units) => {
                for (unit, at) in units.into_iter().zip((host..).step_by(UNIT as usize)) {
                    let tag = self.host.get(&at).copied().unwrap_or(0);
                    self.gpu.insert(unit, tag);
                }
            }
            Work::Reach(event) => _ = self.reached.insert(event),
            Work::Wait(_) => {}
        }
        true
    }
}

/// What the program does on the GPU, and what it saw there.
#[derive(Clone, Default)]
pub(super) struct World(Arc<Mutex<Inner>>);

impl World {
    fn with<T>(&self, body: impl FnOnce(&mut Inner) -> T) -> T {
        body(&mut self.0.lock().expect("nobody panics with it"))
    }

    /// A kernel that writes.
    pub(super) fn write(&self, stream: u64, address: Address, size: u64, tag: u64) {
        self.with(|inner| {
            let units = inner.units(address, size);
            inner.order(stream, Use::Write, &on_gpu(&units), "a kernel writes");
            inner.push(stream, Work::Write(units, tag));
        });
    }

    /// A kernel that reads.
    pub(super) fn look(&self, stream: u64, address: Address, size: u64, tag: u64, whose: &str) {
        self.with(|inner| {
            let units = inner.units(address, size);
            inner.order(stream, Use::Read, &on_gpu(&units), whose);
            inner.push(stream, Work::Look(units, tag, whose.to_owned()));
        });
    }

    /// A stream of the program waits for what another was given so far.
    pub(super) fn wait(&self, stream: u64, other: u64) {
        self.with(|inner| {
            inner.next += 1;
            let event = inner.next;
            inner.clocks.record(other, event);
            inner.push(other, Work::Reach(event));
            inner.clocks.wait(stream, event);
            inner.push(stream, Work::Wait(event));
        });
    }

    /// The program destroys a stream, which goes on until its work is done; nobody may name it any more.
    pub(super) fn destroy(&self, stream: u64) {
        self.with(|inner| inner.gone.insert(stream));
    }

    /// The streams go on, as far as they come in so many turns.
    pub(super) fn turn(&self, turns: u64) {
        self.with(|inner| match &mut inner.turns {
            None => (0..turns).for_each(|_| _ = inner.advance()),
            Some(turns) => {
                let go = turns.next();
                while go && inner.advance() {}
            }
        });
    }

    /// The streams go on, as far as they can, or not at all: as these say.
    pub(super) fn take_turns(&self, turns: Turns) {
        self.with(|inner| inner.turns = Some(turns));
    }

    /// What they said.
    pub(super) fn turns(&self) -> Option<Turns> {
        self.with(|inner| inner.turns.clone())
    }

    /// Everything is done.
    pub(super) fn finish(&self) {
        self.with(|inner| {
            inner.finish();
            let left: usize = inner.streams.values().map(VecDeque::len).sum();
            assert_eq!(left, 0, "streams wait for each other");
        });
    }

    /// What was seen that was not written.
    pub(super) fn wrong(&self) -> Vec<String> {
        self.with(|inner| inner.wrong.clone())
    }

    /// The call of that number, from 1, fails.
    pub(super) fn fail(&self, call: u64) {
        self.with(|inner| inner.fault = Some(call));
    }

    /// Whether it came to that.
    pub(super) fn copies_out(&self) -> u64 {
        self.with(|inner| inner.copies_out)
    }

    pub(super) fn fault_came(&self) -> bool {
        self.with(|inner| inner.fault.is_some_and(|call| inner.calls >= call))
    }
}

/// The device.
pub(super) struct Adversary {
    memory: Simulated,
    world: World,
    handles: HashMap<u64, u64>,
    streams: HashMap<StreamId, u64>,
    lanes: u64,
}

impl Adversary {
    /// Of `capacity` bytes, with what the program does on it.
    pub(super) fn new(capacity: u64, seed: u64) -> (Adversary, World) {
        let world = World::default();
        world.with(|inner| inner.rng = Some(Rng::new(seed)));
        let settings = settings::Simulated { capacity, virtual_memory: true };
        let memory = Simulated::new(0, settings);
        let (handles, streams) = (HashMap::new(), HashMap::new());
        (Adversary { memory, world: world.clone(), handles, streams, lanes: 0 }, world)
    }

    /// Counts a call, which fails if it is the one.
    fn call(&self, name: &'static str) -> Result<(), DeviceError> {
        self.world.with(|inner| {
            inner.calls += 1;
            match inner.fault {
                Some(call) if call == inner.calls => Err(DeviceError::Injected { call, name }),
                _ => Ok(()),
            }
        })
    }

    /// The driver crashes on the handle of a stream that is gone.
    fn stream(&self, id: StreamId) -> u64 {
        let stream = self.streams[&id];
        self.world.with(|inner| {
            if inner.gone.contains(&stream) {
                inner.wrong.push(format!("stream {stream} is named, which is gone"));
            }
        });
        stream
    }

    fn fresh(&self) -> u64 {
        self.world.with(|inner| {
            inner.next += 1;
            inner.next
        })
    }
}

impl Device for Adversary {
    fn memory_info(&mut self) -> MemoryInfo {
        self.memory.memory_info()
    }

    fn granularity(&self) -> u64 {
        self.memory.granularity()
    }

    fn maps_twice(&self) -> bool {
        true
    }

    fn prices(&self) -> Prices {
        self.memory.prices()
    }

    fn alloc(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.call("alloc")?;
        let address = self.memory.alloc(size)?;
        let of = self.fresh();
        self.world.with(|inner| inner.mapped.insert(address, (of, size)));
        Ok(address)
    }

    fn free(&mut self, address: Address) -> Result<(), DeviceError> {
        self.call("free")?;
        self.world.finish();
        self.memory.free(address)?;
        self.world.with(|inner| inner.mapped.remove(&address));
        Ok(())
    }

    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.call("reserve")?;
        self.memory.reserve(size)
    }

    fn unreserve(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.memory.unreserve(address, size)
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        self.call("create")?;
        let handle = self.memory.create(size)?;
        let of = self.fresh();
        self.handles.insert(handle.0, of);
        Ok(handle)
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        self.memory.release(handle)
    }

    fn map(&mut self, address: Address, handle: Handle) -> Result<(), DeviceError> {
        self.call("map")?;
        self.memory.map(address, handle)?;
        let of = self.handles[&handle.0];
        let size = self.granularity();
        self.world.with(|inner| inner.mapped.insert(address, (of, size)));
        Ok(())
    }

    fn set_access(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.call("set_access")?;
        self.memory.set_access(address, size)
    }

    fn unmap(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.memory.unmap(address, size)?;
        self.world.with(|inner| {
            inner.mapped.retain(|at, _| !(address..address + size).contains(at));
        });
        Ok(())
    }

    fn record_event(&mut self, stream: StreamId) -> Result<StreamEvent, DeviceError> {
        self.call("record_event")?;
        let (stream, event) = (self.stream(stream), self.fresh());
        self.world.with(|inner| {
            inner.clocks.record(stream, event);
            inner.push(stream, Work::Reach(event));
        });
        Ok(StreamEvent(event))
    }

    fn record_fence(&mut self, _users: &[StreamId]) -> Result<StreamEvent, DeviceError> {
        self.call("record_fence")?;
        let event = self.fresh();
        self.world.with(|inner| {
            let streams: Vec<u64> = inner.streams.keys().copied().collect();
            let mut parts = Vec::new();
            for stream in streams {
                inner.next += 1;
                parts.push(inner.next);
                inner.clocks.record(stream, event);
                inner.push(stream, Work::Reach(parts[parts.len() - 1]));
            }
            inner.reached.insert(event);
            inner.parts.insert(event, parts);
        });
        Ok(StreamEvent(event))
    }

    fn is_capturing(&mut self, stream: StreamId) -> Result<bool, DeviceError> {
        self.stream(stream);
        Ok(false)
    }

    fn captured_ends(&mut self, _stream: StreamId) -> Result<Option<CapturedEnds>, DeviceError> {
        Ok(None)
    }

    fn graph_dependencies(&mut self, _node: GraphNode) -> Result<Vec<GraphNode>, DeviceError> {
        Ok(Vec::new())
    }

    fn query_event(&mut self, event: StreamEvent) -> Result<bool, DeviceError> {
        Ok(self.world.with(|inner| {
            let is_reached = inner.is_reached(event.0);
            if is_reached {
                inner.clocks.see(event.0);
            }
            is_reached
        }))
    }

    fn wait_event(&mut self, stream: StreamId, event: StreamEvent) -> Result<(), DeviceError> {
        self.call("wait_event")?;
        let stream = self.stream(stream);
        self.world.with(|inner| {
            inner.clocks.wait(stream, event.0);
            inner.push(stream, Work::Wait(event.0));
        });
        Ok(())
    }

    fn synchronize_event(&mut self, _event: StreamEvent) -> Result<(), DeviceError> {
        self.world.finish();
        Ok(())
    }

    fn destroy_event(&mut self, _event: StreamEvent) -> Result<(), DeviceError> {
        Ok(())
    }

    fn synchronize_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.stream(stream);
        self.world.finish();
        Ok(())
    }
}

impl Copies for Adversary {
    fn open_lane(&mut self) -> Result<u64, DeviceError> {
        self.lanes += 1;
        Ok(1000 + self.lanes)
    }

    fn copy_out(
        &mut self,
        lane: StreamId,
        from: Address,
        to: HostAddress,
        size: u64,
    ) -> Result<(), DeviceError> {
        self.call("copy_out")?;
        let lane = self.stream(lane);
        self.world.with(|inner| {
            inner.copies_out += 1;
            let units = inner.units(from, size);
            inner.order(lane, Use::Read, &on_gpu(&units), "a copy out");
            inner.order(lane, Use::Write, &on_host(to, &units), "a copy out");
            inner.push(lane, Work::Out(units, to));
        });
        Ok(())
    }

    fn copy_in(
        &mut self,
        lane: StreamId,
        from: HostAddress,
        to: Address,
        size: u64,
    ) -> Result<(), DeviceError> {
        self.call("copy_in")?;
        let lane = self.stream(lane);
        self.world.with(|inner| {
            let units = inner.units(to, size);
            inner.order(lane, Use::Read, &on_host(from, &units), "a copy in");
            inner.order(lane, Use::Write, &on_gpu(&units), "a copy in");
            inner.push(lane, Work::In(from, units));
        });
        Ok(())
    }

    fn host_memory(&mut self) -> Arc<dyn HostMemory> {
        Arc::new(AddressesAlone::default())
    }

    fn take_time(&mut self, stream: StreamId) -> Result<TimeStamp, DeviceError> {
        self.call("take_time")?;
        self.stream(stream);
        Ok(TimeStamp(self.fresh()))
    }

    /// A millisecond for each.
    fn time_between(&mut self, from: TimeStamp, to: TimeStamp) -> Result<Option<f64>, DeviceError> {
        Ok(Some(1000.0 * (to.0 - from.0) as f64))
    }

    fn forget_time(&mut self, _stamp: TimeStamp) {}
}

impl HeapDevice for Adversary {
    fn set_stream(&mut self, id: StreamId, stream: StreamHandle) {
        self.streams.insert(id, stream.handle);
        self.world.with(|inner| _ = inner.streams.entry(stream.handle).or_default());
    }

    alone!();

    fn calls(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    fn copies(&mut self) -> Option<&mut dyn Copies> {
        Some(self)
    }
}
