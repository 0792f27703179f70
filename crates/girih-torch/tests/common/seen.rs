//! A simulated device that a test sees beside the heap on it.
#![allow(dead_code, unreachable_pub, reason = "each test needs a part of it")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use girih_cuda::StreamHandle;
use girih_runtime::sim::SimDevice;
use girih_runtime::{
    Address, CapturedEnds, Device, DeviceError, GraphNode, Handle, MemoryInfo, Prices, StreamEvent,
};
use girih_torch::{Closing, Exported, Heap, HeapDevice, Outcome, Settings};
use girih_trace::StreamId;

/// See the [module](self).
#[derive(Clone)]
pub struct Seen {
    device: Arc<Mutex<SimDevice>>,
    /// What the heap has said of its streams.
    streams: Arc<Mutex<HashMap<StreamId, StreamHandle>>>,
    /// The number of the stream that has each handle now.
    identities: Arc<Mutex<HashMap<u64, u64>>>,
}

impl Seen {
    /// A device of so many bytes whose order of streams is checked, and a heap on it.
    pub fn with_heap(bytes: u64, settings: &str) -> (Seen, Heap) {
        let mut device = SimDevice::new(bytes);
        device.check_order();
        let seen = Seen {
            device: Arc::new(Mutex::new(device)),
            streams: Arc::default(),
            identities: Arc::default(),
        };
        let settings = Settings::parse(settings).expect("right settings");
        let heap = Heap::over(Box::new(seen.clone()), 0, &settings);
        (seen, heap)
    }

    /// The device itself.
    pub fn device(&self) -> MutexGuard<'_, SimDevice> {
        self.device.lock().unwrap()
    }

    /// The id by which the heap knows a stream.
    pub fn id(&self, device: u32, handle: u64) -> StreamId {
        let streams = self.streams.lock().unwrap();
        let is_it = |stream: &StreamHandle| (stream.device, stream.handle) == (device, handle);
        let found = streams.iter().find(|(_, stream)| is_it(stream));
        *found.expect("the heap has been told of it").0
    }

    /// From now on the stream of a handle is that of this number.
    pub fn set_identity(&self, handle: u64, number: u64) {
        self.identities.lock().unwrap().insert(handle, number);
    }
}

/// The calls of a device, each of which must keep its rules.
macro_rules! lawful {
    ($($name:ident($($argument:ident: $type:ty),*) -> $value:ty;)*) => {
        $(fn $name(&mut self, $($argument: $type),*) -> Result<$value, DeviceError> {
            let result = Device::$name(&mut *self.device(), $($argument),*);
            assert!(!matches!(result, Err(DeviceError::Misuse { .. })), "{result:?}");
            result
        })*
    };
}

impl Device for Seen {
    lawful! {
        alloc(size: u64) -> Address;
        free(address: Address) -> ();
        reserve(size: u64) -> Address;
        unreserve(address: Address, size: u64) -> ();
        create(size: u64) -> Handle;
        release(handle: Handle) -> ();
        map(address: Address, handle: Handle) -> ();
        set_access(address: Address, size: u64) -> ();
        unmap(address: Address, size: u64) -> ();
        record_event(stream: StreamId) -> StreamEvent;
        record_fence(users: &[StreamId]) -> StreamEvent;
        is_capturing(stream: StreamId) -> bool;
        captured_ends(stream: StreamId) -> Option<CapturedEnds>;
        graph_dependencies(node: GraphNode) -> Vec<GraphNode>;
        query_event(event: StreamEvent) -> bool;
        wait_event(stream: StreamId, event: StreamEvent) -> ();
        synchronize_event(event: StreamEvent) -> ();
        destroy_event(event: StreamEvent) -> ();
        synchronize_stream(stream: StreamId) -> ();
    }

    fn memory_info(&mut self) -> MemoryInfo {
        self.device().memory_info()
    }

    fn granularity(&self) -> u64 {
        self.device().granularity()
    }

    fn maps_twice(&self) -> bool {
        self.device().maps_twice()
    }

    fn prices(&self) -> Prices {
        self.device().prices()
    }
}

impl HeapDevice for Seen {
    fn set_stream(&mut self, id: StreamId, stream: StreamHandle) {
        self.streams.lock().unwrap().insert(id, stream);
    }

    fn stream_identity(&mut self, handle: u64) -> Option<u64> {
        self.identities.lock().unwrap().get(&handle).copied()
    }

    fn enable_peer(&mut self, _peer: i32) -> Outcome<()> {
        Ok(())
    }

    fn export(&mut self, _address: Address, _size: u64) -> Outcome<Exported> {
        unreachable!("nothing is exported")
    }

    fn import(&mut self, _description: &[u8]) -> Outcome<Address> {
        unreachable!("nothing is imported")
    }

    fn begin_close(&mut self, _address: Address) -> Outcome<Closing> {
        Ok(Closing::Unknown)
    }

    fn finish_close(&mut self, _address: Address, _closing: u64) -> Outcome<()> {
        Ok(())
    }

    fn calls(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}
