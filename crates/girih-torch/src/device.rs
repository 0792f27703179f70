//! What a heap needs of its device besides memory: streams by the driver's handles, peers, other
//! processes, and how often the driver was called.

use std::time::Duration;

use girih_cuda::StreamHandle;
use girih_runtime::sim::{Call, SimDevice};
use girih_runtime::{Address, Copies, Device, DeviceError, Handle, MemoryInfo, Prices};
use girih_trace::StreamId;

use crate::cuda;
use crate::error::{Outcome, unsupported};
use crate::settings::{self, Mode, Settings};
use crate::sources::Source;

/// A device for a heap.
pub trait HeapDevice: Device + Send {
    /// From now on `id` is this stream, of this device or of another.
    fn set_stream(&mut self, id: StreamId, stream: StreamHandle);

    /// A number that no other stream of the process has or will have, of a stream of this device that is
    /// there now. None if the driver does not tell.
    fn stream_identity(&mut self, _handle: u64) -> Option<u64> {
        None
    }

    /// Until it is called again, allocations come from `source`, or from the device if there is none.
    /// A device that cannot do so never gets a source.
    fn take_from(&mut self, _source: Option<Source>) {}

    /// An allocation of `size` bytes that is made without the device, which others use meanwhile. It is the
    /// device's once [`HeapDevice::finish_alloc`] was told of what it gave. None if the device cannot do
    /// so, or refuses now: [`Device::alloc`] says why.
    fn begin_alloc(&mut self, _size: u64) -> Option<BegunAlloc> {
        None
    }

    /// The allocation of `size` bytes that [`HeapDevice::begin_alloc`] began gave this address.
    fn finish_alloc(&mut self, _address: Address, _size: u64) {}

    /// Lets `peer` read and write the memory of this device, present and future.
    fn enable_peer(&mut self, peer: i32) -> Outcome<()>;

    /// Describes the memory in which `size` bytes at `address` lie, for another process.
    fn export(&mut self, address: Address, size: u64) -> Outcome<Exported>;

    /// Maps what another process described.
    fn import(&mut self, description: &[u8]) -> Outcome<Address>;

    /// Closes one opening of what [`HeapDevice::import`] gave. What is left to do with the last one of
    /// them may take as long as the device works, so it is not done here.
    fn begin_close(&mut self, address: Address) -> Outcome<Closing>;

    /// Unmaps what [`Closing::Last`] spoke of under this number, unless it was opened again since.
    fn finish_close(&mut self, address: Address, closing: u64) -> Outcome<()>;

    /// True if addresses can be reserved and memory mapped at them; otherwise [`Device::alloc`] and
    /// [`Device::free`] are all that there is.
    fn has_virtual_memory(&self) -> bool {
        true
    }

    /// True if [`Device::captured_ends`] tells of graphs that are being captured.
    fn tells_of_captures(&self) -> bool {
        true
    }

    /// The number that the GPU has in every process, if it has one.
    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }

    /// Calls of the driver so far, by the name of the method of [`Device`].
    fn calls(&self) -> Vec<(&'static str, u64)>;

    /// How long those of them took that give, take or map memory. Nothing of a device that does not tell.
    fn memory_time(&self) -> Duration {
        Duration::ZERO
    }

    /// The device as one that copies to the host and back; none if it cannot.
    fn copies(&mut self) -> Option<&mut dyn Copies> {
        None
    }
}

/// What is left to do after an opening of memory of another process was closed.
pub enum Closing {
    /// Nothing: the device gave no such address.
    Unknown,
    /// Nothing: others have it open.
    Shared,
    /// To wait, without the device, for kernels that may still use it, and then to unmap it.
    Last {
        /// Waits.
        wait: Wait,
        /// For [`HeapDevice::finish_close`].
        closing: u64,
    },
}

/// Asks for memory, while others use the device.
pub type BegunAlloc = Box<dyn FnOnce() -> Result<Address, DeviceError> + Send>;

/// Waits for all work of a device, while others use it.
pub type Wait = Box<dyn FnOnce() -> Outcome<()> + Send>;

/// Memory, described for another process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exported {
    /// The description: at most [`IPC_BYTES`](crate::abi::IPC_BYTES).
    pub bytes: Vec<u8>,
    /// Where the address that was exported is in the memory that is described.
    pub offset: u64,
}

/// Opens the device of number `ordinal`: simulated, a phantom, or a GPU.
///
/// # Errors
/// If there is no such device, or no driver.
pub(crate) fn open(ordinal: u32, settings: &Settings) -> Outcome<Box<dyn HeapDevice>> {
    if let Some(simulated) = settings.sim {
        return Ok(Box::new(Simulated::new(ordinal, simulated)));
    }
    let device = cuda::open(ordinal)?;
    if settings.mode == Mode::Phantom && device.has_virtual_memory() {
        return Ok(Box::new(cuda::phantom(device, settings.phantom_capacity)?));
    }
    Ok(Box::new(device))
}

/// The simulated device in the place of a GPU. Addresses of different devices differ, as they do
/// on GPUs: a heap is found by an address alone.
pub(crate) struct Simulated {
    device: SimDevice,
    /// What is added to every address.
    base: Address,
    has_virtual_memory: bool,
    uuid: [u8; 16],
}

impl Simulated {
    /// The device of number `ordinal`.
    pub(crate) fn new(ordinal: u32, settings: settings::Simulated) -> Simulated {
        Simulated {
            device: SimDevice::new(settings.capacity),
            base: u64::from(ordinal) << 52,
            has_virtual_memory: settings.virtual_memory,
            uuid: u128::from(ordinal).to_be_bytes(),
        }
    }

    /// Refuses a call as the driver does on a GPU without virtual memory.
    fn needs_virtual_memory(&self, call: &'static str) -> Result<(), DeviceError> {
        if self.has_virtual_memory {
            return Ok(());
        }
        let reason = "operation not supported (CUDA_ERROR_NOT_SUPPORTED)".to_owned();
        Err(DeviceError::Driver { call, reason })
    }
}

impl HeapDevice for Simulated {
    fn set_stream(&mut self, _id: StreamId, _stream: StreamHandle) {}

    fn enable_peer(&mut self, _peer: i32) -> Outcome<()> {
        Ok(())
    }

    fn export(&mut self, _address: Address, _size: u64) -> Outcome<Exported> {
        Err(unsupported("memory of the simulated device cannot be shared with another process"))
    }

    fn import(&mut self, _description: &[u8]) -> Outcome<Address> {
        Err(unsupported("the simulated device cannot map memory of another process"))
    }

    fn begin_close(&mut self, _address: Address) -> Outcome<Closing> {
        Ok(Closing::Unknown)
    }

    fn finish_close(&mut self, _address: Address, _closing: u64) -> Outcome<()> {
        Ok(())
    }

    fn has_virtual_memory(&self) -> bool {
        self.has_virtual_memory
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        Some(self.uuid)
    }

    fn calls(&self) -> Vec<(&'static str, u64)> {
        let totals = self.device.totals();
        Call::ALL.into_iter().map(|call| (call.name(), totals.of(call).calls)).collect()
    }

    /// Simulated, and what streams and events cost with it.
    fn memory_time(&self) -> Duration {
        Duration::from_secs_f64(self.device.totals().sum().microseconds / 1e6)
    }
}

impl Device for Simulated {
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

    fn alloc(&mut self, size: u64) -> Result<Address, DeviceError> {
        Ok(self.device.alloc(size)? + self.base)
    }

    fn free(&mut self, address: Address) -> Result<(), DeviceError> {
        self.device.free(address - self.base)
    }

    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.needs_virtual_memory("cuMemAddressReserve")?;
        Ok(self.device.reserve(size)? + self.base)
    }

    fn unreserve(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.device.unreserve(address - self.base, size)
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        self.needs_virtual_memory("cuMemCreate")?;
        self.device.create(size)
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        Device::release(&mut self.device, handle)
    }

    fn map(&mut self, address: Address, handle: Handle) -> Result<(), DeviceError> {
        self.device.map(address - self.base, handle)
    }

    fn set_access(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.device.set_access(address - self.base, size)
    }

    fn unmap(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.device.unmap(address - self.base, size)
    }

    girih_runtime::streams_of!(device);
}
