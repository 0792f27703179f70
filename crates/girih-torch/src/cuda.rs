//! A GPU, and the phantom of one, as the device of a heap.

use std::time::Duration;

use girih_cuda::ipc::{self, IpcError};
use girih_cuda::{Backing, Calls, CudaDevice, OpenError, Phantom, StreamHandle};
use girih_runtime::{Address, Copies, DeviceError};
use girih_trace::StreamId;

use crate::callers;
use crate::device::{BegunAlloc, Closing, Exported, HeapDevice};
use crate::error::{HeapError, Outcome, unsupported};

/// Bytes that a phantom has if the user does not say: 4 TiB.
const PHANTOM: u64 = 1 << 42;

/// Of a device's free memory, the part that a phantom keeps solid. The rest is for what asks the driver itself:
/// libraries with workspaces of their own, and the code of kernels.
const SOLID: (u64, u64) = (3, 4);

/// Opens the GPU of number `ordinal`.
///
/// # Errors
/// If there is none, or no driver; with what is missing.
pub(crate) fn open(ordinal: u32) -> Outcome<CudaDevice> {
    CudaDevice::new(ordinal).map_err(|error| {
        let text = error.to_string();
        Box::new(match error {
            OpenError::NoSuchDevice { .. } => HeapError::Unknown(text),
            OpenError::Load(_) | OpenError::Refused { .. } => HeapError::Driver(text),
        })
    })
}

/// A phantom of `capacity` bytes over a device, or of 4 TiB, that gives `solid` bytes of it as they are, or the
/// greater part of what is free. Workspaces of cuBLAS have bytes of their own.
///
/// # Errors
/// If there is no memory at all.
pub(crate) fn phantom<D: Backing>(
    device: D,
    capacity: Option<u64>,
    solid: Option<u64>,
) -> Outcome<Phantom<D>> {
    let mut phantom = Phantom::new(device, capacity.unwrap_or(PHANTOM))?;
    let free = phantom.device_mut().memory_info().free;
    let most = free / SOLID.1 * SOLID.0;
    let phantom = phantom.with_solid(solid.map_or(most, |solid| solid.min(most)));
    Ok(phantom.with_workspaces(callers::is_workspace))
}

impl From<IpcError> for Box<HeapError> {
    fn from(error: IpcError) -> Box<HeapError> {
        let text = error.to_string();
        match error {
            IpcError::Device(error) => error.into(),
            IpcError::Unsupported(_) => Box::new(HeapError::Unsupported(text)),
            _ => Box::new(HeapError::Unknown(text)),
        }
    }
}

impl HeapDevice for CudaDevice {
    fn set_stream(&mut self, id: StreamId, stream: StreamHandle) {
        CudaDevice::set_stream(self, id, stream);
    }

    fn stream_identity(&mut self, handle: u64) -> Option<u64> {
        CudaDevice::stream_identity(self, handle)
    }

    fn begin_alloc(&mut self, size: u64) -> Option<BegunAlloc> {
        let begun = CudaDevice::begin_alloc(self, size).ok()?;
        Some(Box::new(move || begun.make()))
    }

    fn finish_alloc(&mut self, address: Address, size: u64) {
        CudaDevice::finish_alloc(self, address, size);
    }

    fn enable_peer(&mut self, peer: i32) -> Outcome<()> {
        Ok(CudaDevice::enable_peer(self, ordinal(peer)?)?)
    }

    fn export(&mut self, address: Address, size: u64) -> Outcome<Exported> {
        let exported = CudaDevice::export(self, address, size)?;
        Ok(Exported { bytes: exported.bytes, offset: exported.offset })
    }

    fn import(&mut self, description: &[u8]) -> Outcome<Address> {
        Ok(CudaDevice::import(self, description)?.address)
    }

    fn begin_close(&mut self, address: Address) -> Outcome<Closing> {
        match CudaDevice::begin_close(self, address) {
            Ok(ipc::Closing::Shared) => Ok(Closing::Shared),
            Ok(ipc::Closing::Last(closing)) => {
                let waiter = self.waiter();
                Ok(Closing::Last { wait: Box::new(move || Ok(waiter.synchronize()?)), closing })
            }
            Err(IpcError::Unknown { .. }) => Ok(Closing::Unknown),
            Err(error) => Err(error.into()),
        }
    }

    fn has_virtual_memory(&self) -> bool {
        self.properties().virtual_memory
    }

    fn tells_of_captures(&self) -> bool {
        CudaDevice::tells_of_captures(self)
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.properties().uuid
    }

    fn finish_close(&mut self, address: Address, closing: u64) -> Outcome<()> {
        Ok(CudaDevice::finish_close(self, address, closing)?)
    }

    fn calls(&self) -> Vec<(&'static str, u64)> {
        by_name(CudaDevice::calls(self))
    }

    fn memory_time(&self) -> Duration {
        CudaDevice::memory_time(self)
    }

    fn memory_times(&self) -> Vec<(&'static str, Duration)> {
        CudaDevice::memory_times(self).into_iter().collect()
    }

    fn copies(&mut self) -> Option<&mut dyn Copies> {
        Some(self)
    }
}

impl<D: HeapDevice + Backing> HeapDevice for Phantom<D> {
    fn set_stream(&mut self, id: StreamId, stream: StreamHandle) {
        self.device_mut().set_stream(id, stream);
    }

    fn stream_identity(&mut self, handle: u64) -> Option<u64> {
        self.device_mut().stream_identity(handle)
    }

    fn enable_peer(&mut self, peer: i32) -> Outcome<()> {
        self.device_mut().enable_peer(peer)
    }

    fn export(&mut self, _address: Address, _size: u64) -> Outcome<Exported> {
        Err(unsupported("memory of a phantom device cannot be shared with another process"))
    }

    fn import(&mut self, description: &[u8]) -> Outcome<Address> {
        self.device_mut().import(description)
    }

    fn begin_close(&mut self, address: Address) -> Outcome<Closing> {
        self.device_mut().begin_close(address)
    }

    fn finish_close(&mut self, address: Address, closing: u64) -> Outcome<()> {
        self.device_mut().finish_close(address, closing)
    }

    fn tells_of_captures(&self) -> bool {
        self.device().tells_of_captures()
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.device().uuid()
    }

    fn calls(&self) -> Vec<(&'static str, u64)> {
        self.device().calls()
    }

    fn memory_time(&self) -> Duration {
        self.device().memory_time()
    }

    fn memory_times(&self) -> Vec<(&'static str, Duration)> {
        self.device().memory_times()
    }
}

fn ordinal(device: i32) -> Result<u32, DeviceError> {
    u32::try_from(device).map_err(|_| DeviceError::Driver {
        call: "cuDeviceGet",
        reason: format!("there is no device {device}"),
    })
}

/// The counters by the names of the methods of [`Device`](girih_runtime::Device), where there is one.
fn by_name(calls: Calls) -> Vec<(&'static str, u64)> {
    let Calls {
        alloc,
        free,
        reserve,
        unreserve,
        create,
        release,
        map,
        unmap,
        set_access,
        memory_info,
        event_create,
        event_record,
        event_query,
        stream_wait,
        value_wait,
        synchronize,
        copy_out,
        copy_in,
    } = calls;
    vec![
        ("alloc", alloc),
        ("free", free),
        ("reserve", reserve),
        ("unreserve", unreserve),
        ("create", create),
        ("release", release),
        ("map", map),
        ("unmap", unmap),
        ("set_access", set_access),
        ("memory_info", memory_info),
        ("create_event", event_create),
        ("record_event", event_record),
        ("query_event", event_query),
        ("wait_event", stream_wait),
        ("wait_value", value_wait),
        ("synchronize", synchronize),
        ("copy_out", copy_out),
        ("copy_in", copy_in),
    ]
}
