//! A device whose streams have clocks: how long a step takes with its copies, without a GPU.
//!
//! The host is taken to be ahead of the device all the time, so that the order in which work is queued is all that counts.
//! Only the driver's calls for memory may keep it ([`Timed::with_driver`]).
//! A stream's clock is where its work ends that was queued so far; an event is a time; a wait moves a clock forward.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use girih_cuda::StreamHandle;
use girih_runtime::{
    Address, CapturedEnds, Copies, Device, DeviceError, GraphNode, Handle, HostAddress, HostMemory,
    MemoryInfo, Prices, StreamEvent, TimeStamp,
};
use girih_trace::StreamId;

use crate::device::{AddressesAlone, HeapDevice, Simulated};
use crate::settings;

/// Bytes a microsecond out and in, whatever goes the other way: half of what an H200 does both ways.
pub(super) const RATES: [f64; 2] = [50_500.0; 2];

/// The handles of lanes are beyond this one.
const LANES: u64 = 1000;

/// The clocks of the streams, by handle, in microseconds; and what the links carry, out and in, in bytes a microsecond.
#[derive(Clone, Default)]
pub(super) struct Clock(Arc<Mutex<Clocks>>);

#[derive(Default)]
struct Clocks {
    streams: HashMap<u64, f64>,
    rates: [f64; 2],
}

impl Clock {
    fn with<T>(&self, stream: u64, body: impl FnOnce(&mut f64) -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        body(all.streams.entry(stream).or_default())
    }

    /// The links carry so much from now on.
    pub(super) fn set_rates(&self, rates: [f64; 2]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).rates = rates;
    }

    fn rates(&self) -> [f64; 2] {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).rates
    }

    /// A kernel.
    pub(super) fn run(&self, stream: u64, us: f64) {
        self.with(stream, |now| *now += us);
    }

    /// Where the work of a stream ends.
    pub(super) fn now(&self, stream: u64) -> f64 {
        self.with(stream, |now| *now)
    }
}

/// What the device refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    Nothing,
    /// The time on a lane, the call of that number from 0.
    Time(u64),
    /// Whether work is over: it never says so.
    Answers,
}

pub(super) struct Timed {
    memory: Simulated,
    refused: Refused,
    /// Copies, points in time that were asked for on lanes, and those that were not given back.
    copied: u64,
    asked: u64,
    points: HashSet<u64>,
    clock: Clock,
    streams: HashMap<StreamId, u64>,
    lanes: u64,
    /// Events and points in time.
    times: HashMap<u64, f64>,
    next: u64,
    /// How many times the prices of the list the driver takes for memory; 0 for no time at all.
    dearness: f64,
}

impl Timed {
    /// Of so many bytes, with links of these rates: out and in.
    pub(super) fn new(capacity: u64, rates: [f64; 2]) -> (Timed, Clock) {
        let settings = settings::Simulated { capacity, virtual_memory: true };
        let clock = Clock::default();
        clock.set_rates(rates);
        let device = Timed {
            memory: Simulated::new(0, settings),
            refused: Refused::Nothing,
            copied: 0,
            asked: 0,
            points: HashSet::new(),
            clock: clock.clone(),
            streams: HashMap::new(),
            lanes: 0,
            times: HashMap::new(),
            next: 0,
            dearness: 0.0,
        };
        (device, clock)
    }

    /// The driver takes so many times the prices of the list.
    pub(super) fn with_driver(self, dearness: f64) -> Timed {
        Timed { dearness, ..self }
    }

    /// From now on it refuses this.
    pub(super) fn refuse(&mut self, refused: Refused) {
        self.refused = refused;
    }

    pub(super) fn copied(&self) -> u64 {
        self.copied
    }

    /// Points in time that were not given back.
    pub(super) fn points(&self) -> usize {
        self.points.len()
    }

    fn handle(&self, stream: StreamId) -> u64 {
        self.streams.get(&stream).copied().unwrap_or(0)
    }

    fn note(&mut self, us: f64) -> u64 {
        self.next += 1;
        self.times.insert(self.next, us);
        self.next
    }

    fn copy(&mut self, lane: StreamId, size: u64, rate: f64) {
        self.copied += 1;
        self.clock.run(self.handle(lane), size as f64 / rate);
    }
}

impl Device for Timed {
    girih_runtime::calls_of!(memory {
        fn alloc(size: u64) -> Address;
        fn free(address: Address) -> ();
        fn reserve(size: u64) -> Address;
        fn unreserve(address: Address, size: u64) -> ();
        fn create(size: u64) -> Handle;
        fn release(handle: Handle) -> ();
        fn map(address: Address, handle: Handle) -> ();
        fn set_access(address: Address, size: u64) -> ();
        fn unmap(address: Address, size: u64) -> ();
    });

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

    fn record_event(&mut self, stream: StreamId) -> Result<StreamEvent, DeviceError> {
        let now = self.clock.now(self.handle(stream));
        Ok(StreamEvent(self.note(now)))
    }

    fn record_fence(&mut self, _users: &[StreamId]) -> Result<StreamEvent, DeviceError> {
        let latest = self.streams.values().map(|&stream| self.clock.now(stream));
        let latest = latest.fold(0.0, f64::max);
        Ok(StreamEvent(self.note(latest)))
    }

    fn is_capturing(&mut self, _stream: StreamId) -> Result<bool, DeviceError> {
        Ok(false)
    }

    fn captured_ends(&mut self, _stream: StreamId) -> Result<Option<CapturedEnds>, DeviceError> {
        Ok(None)
    }

    fn graph_dependencies(&mut self, _node: GraphNode) -> Result<Vec<GraphNode>, DeviceError> {
        Ok(Vec::new())
    }

    /// The host is ahead: nothing that it asks for is over.
    fn query_event(&mut self, _event: StreamEvent) -> Result<bool, DeviceError> {
        Ok(false)
    }

    fn wait_event(&mut self, stream: StreamId, event: StreamEvent) -> Result<(), DeviceError> {
        let at = self.times.get(&event.0).copied().unwrap_or(0.0);
        self.clock.with(self.handle(stream), |now| *now = now.max(at));
        Ok(())
    }

    fn synchronize_event(&mut self, _event: StreamEvent) -> Result<(), DeviceError> {
        Ok(())
    }

    fn destroy_event(&mut self, event: StreamEvent) -> Result<(), DeviceError> {
        self.times.remove(&event.0);
        Ok(())
    }

    fn synchronize_stream(&mut self, _stream: StreamId) -> Result<(), DeviceError> {
        Ok(())
    }
}

impl Copies for Timed {
    fn open_lane(&mut self) -> Result<u64, DeviceError> {
        self.lanes += 1;
        Ok(LANES + self.lanes)
    }

    fn copy_out(
        &mut self,
        lane: StreamId,
        _from: Address,
        _to: HostAddress,
        size: u64,
    ) -> Result<(), DeviceError> {
        self.copy(lane, size, self.clock.rates()[0]);
        Ok(())
    }

    fn copy_in(
        &mut self,
        lane: StreamId,
        _from: HostAddress,
        _to: Address,
        size: u64,
    ) -> Result<(), DeviceError> {
        self.copy(lane, size, self.clock.rates()[1]);
        Ok(())
    }

    fn host_memory(&mut self) -> Arc<dyn HostMemory> {
        Arc::new(AddressesAlone::default())
    }

    fn take_time(&mut self, stream: StreamId) -> Result<TimeStamp, DeviceError> {
        let handle = self.handle(stream);
        let call = self.asked;
        self.asked += u64::from(handle > LANES);
        if handle > LANES && self.refused == Refused::Time(call) {
            return Err(DeviceError::Injected { call, name: "take_time" });
        }
        let now = self.clock.now(handle);
        let point = self.note(now);
        self.points.insert(point);
        Ok(TimeStamp(point))
    }

    fn time_between(&mut self, from: TimeStamp, to: TimeStamp) -> Result<Option<f64>, DeviceError> {
        if self.refused == Refused::Answers {
            return Ok(None);
        }
        Ok(self.times.get(&from.0).zip(self.times.get(&to.0)).map(|(from, to)| to - from))
    }

    fn forget_time(&mut self, stamp: TimeStamp) {
        self.times.remove(&stamp.0);
        assert!(self.points.remove(&stamp.0), "it was given back before");
    }
}

impl HeapDevice for Timed {
    fn set_stream(&mut self, id: StreamId, stream: StreamHandle) {
        self.streams.insert(id, stream.handle);
    }

    alone!();

    fn calls(&self) -> Vec<(&'static str, u64)> {
        self.memory.calls()
    }

    fn memory_time(&self) -> Duration {
        Duration::from_nanos(self.memory.prices().spent_ns).mul_f64(self.dearness)
    }

    fn copies(&mut self) -> Option<&mut dyn Copies> {
        Some(self)
    }
}
