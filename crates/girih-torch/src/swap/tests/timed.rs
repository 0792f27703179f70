//! A device whose streams have clocks: how long a step takes with its copies, without a GPU.
//!
//! The host is taken to be ahead of the device all the time, so that the order in which work is queued is all that counts.
//! A stream's clock is where its work ends that was queued so far; an event is a time; a wait moves a clock forward.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use girih_cuda::StreamHandle;
use girih_runtime::{
    Address, CapturedEnds, Copies, Device, DeviceError, GraphNode, Handle, HostAddress, HostMemory,
    MemoryInfo, Prices, StreamEvent, TimeStamp,
};
use girih_trace::StreamId;

use crate::device::{AddressesAlone, HeapDevice, Simulated};
use crate::settings;

/// Bytes a microsecond in each direction while the other is busy too: half of what an H200 does both ways.
const RATE: f64 = 50_500.0;

/// The clocks of the streams, by handle. Microseconds.
#[derive(Clone, Default)]
pub(super) struct Clock(Arc<Mutex<HashMap<u64, f64>>>);

impl Clock {
    fn with<T>(&self, stream: u64, body: impl FnOnce(&mut f64) -> T) -> T {
        let mut clocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        body(clocks.entry(stream).or_default())
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

pub(super) struct Timed {
    memory: Simulated,
    clock: Clock,
    streams: HashMap<StreamId, u64>,
    lanes: u64,
    /// Events and points in time.
    times: HashMap<u64, f64>,
    next: u64,
}

impl Timed {
    pub(super) fn new(capacity: u64) -> (Timed, Clock) {
        let settings = settings::Simulated { capacity, virtual_memory: true };
        let clock = Clock::default();
        let device = Timed {
            memory: Simulated::new(0, settings),
            clock: clock.clone(),
            streams: HashMap::new(),
            lanes: 0,
            times: HashMap::new(),
            next: 0,
        };
        (device, clock)
    }

    fn handle(&self, stream: StreamId) -> u64 {
        self.streams.get(&stream).copied().unwrap_or(0)
    }

    fn note(&mut self, us: f64) -> u64 {
        self.next += 1;
        self.times.insert(self.next, us);
        self.next
    }

    fn copy(&mut self, lane: StreamId, size: u64) {
        self.clock.run(self.handle(lane), size as f64 / RATE);
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
        Ok(1000 + self.lanes)
    }

    fn copy_out(
        &mut self,
        lane: StreamId,
        _from: Address,
        _to: HostAddress,
        size: u64,
    ) -> Result<(), DeviceError> {
        self.copy(lane, size);
        Ok(())
    }

    fn copy_in(
        &mut self,
        lane: StreamId,
        _from: HostAddress,
        _to: Address,
        size: u64,
    ) -> Result<(), DeviceError> {
        self.copy(lane, size);
        Ok(())
    }

    fn host_memory(&mut self) -> Arc<dyn HostMemory> {
        Arc::new(AddressesAlone::default())
    }

    fn take_time(&mut self, stream: StreamId) -> Result<TimeStamp, DeviceError> {
        let now = self.clock.now(self.handle(stream));
        Ok(TimeStamp(self.note(now)))
    }

    fn time_between(&mut self, from: TimeStamp, to: TimeStamp) -> Result<Option<f64>, DeviceError> {
        Ok(self.times.get(&from.0).zip(self.times.get(&to.0)).map(|(from, to)| to - from))
    }

    fn forget_time(&mut self, stamp: TimeStamp) {
        self.times.remove(&stamp.0);
    }
}

impl HeapDevice for Timed {
    fn set_stream(&mut self, id: StreamId, stream: StreamHandle) {
        self.streams.insert(id, stream.handle);
    }

    alone!();

    fn copies(&mut self) -> Option<&mut dyn Copies> {
        Some(self)
    }
}
