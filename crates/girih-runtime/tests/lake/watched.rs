//! The simulated device, with a shadow of its memory.

use girih_runtime::sim::SimDevice;
use girih_runtime::{
    Address, CapturedEnds, Device, DeviceError, GraphNode, Handle, MemoryInfo, Prices, StreamEvent,
};
use girih_trace::StreamId;

use super::shadow::Shadow;

/// A device whose calls a shadow follows.
pub(crate) struct Watched<'a> {
    pub(crate) device: &'a mut SimDevice,
    pub(crate) shadow: &'a mut Shadow,
}

impl Watched<'_> {
    /// Makes a call, and tells the shadow what has become of it.
    fn call<T: Clone>(
        &mut self,
        call: impl FnOnce(&mut SimDevice) -> Result<T, DeviceError>,
        tell: impl FnOnce(&mut Shadow, T),
    ) -> Result<T, DeviceError> {
        let result = call(self.device);
        match &result {
            Ok(value) => tell(self.shadow, value.clone()),
            Err(error @ DeviceError::Misuse { .. }) => self.shadow.misuses.push(error.clone()),
            Err(_) => {}
        }
        result
    }
}

/// The methods that leave memory as it is.
macro_rules! as_they_are {
    ($($name:ident($($argument:ident: $type:ty),*) -> $value:ty;)*) => {
        $(fn $name(&mut self, $($argument: $type),*) -> Result<$value, DeviceError> {
            self.call(|device| Device::$name(device, $($argument),*), |_, _| ())
        })*
    };
}

impl Device for Watched<'_> {
    as_they_are! {
        reserve(size: u64) -> Address;
        unreserve(address: Address, size: u64) -> ();
        set_access(address: Address, size: u64) -> ();
        record_event(stream: StreamId) -> StreamEvent;
        record_fence(users: &[StreamId]) -> StreamEvent;
        is_capturing(stream: StreamId) -> bool;
        captured_ends(stream: StreamId) -> Option<CapturedEnds>;
        graph_dependencies(node: GraphNode) -> Vec<GraphNode>;
        query_event(event: StreamEvent) -> bool;
        wait_event(stream: StreamId, event: StreamEvent) -> ();
        wait_measured(stream: StreamId, event: StreamEvent) -> ();
        synchronize_event(event: StreamEvent) -> ();
        destroy_event(event: StreamEvent) -> ();
        synchronize_stream(stream: StreamId) -> ();
    }

    fn memory_info(&mut self) -> MemoryInfo {
        self.device.memory_info()
    }

    fn granularity(&self) -> u64 {
        self.device.granularity()
    }

    fn maps_twice(&self) -> bool {
        self.device.maps_twice()
    }

    fn prices(&self) -> Prices {
        self.device.prices()
    }

    fn take_stalls(&mut self, most: u64) -> u64 {
        self.device.take_stalls(most)
    }

    fn alloc(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.call(|device| device.alloc(size), |shadow, address| shadow.alloc(address, size))
    }

    fn free(&mut self, address: Address) -> Result<(), DeviceError> {
        self.call(|device| device.free(address), |shadow, ()| shadow.free(address))
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        self.call(|device| device.create(size), |shadow, handle| shadow.create(handle, size))
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        self.call(|device| Device::release(device, handle), |shadow, ()| shadow.release(handle))
    }

    fn map(&mut self, address: Address, handle: Handle) -> Result<(), DeviceError> {
        self.call(|device| device.map(address, handle), |shadow, ()| shadow.map(address, handle))
    }

    fn unmap(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.call(|device| device.unmap(address, size), |shadow, ()| shadow.unmap(address, size))
    }
}
