//! What a heap needs of its device besides memory: streams by the driver's handles, peers, other
//! processes, and how often the driver was called.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use girih_cuda::{Backing, StreamHandle};
use girih_runtime::sim::{Call, SimDevice};
use girih_runtime::{
    Address, Copies, Device, DeviceError, Handle, HostAddress, HostBacking, HostMemory, MemoryInfo,
    Prices, TimeStamp,
};
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

    /// That time by call, named as in [`HeapDevice::calls`]. Nothing of a device that does not tell.
    fn memory_times(&self) -> Vec<(&'static str, Duration)> {
        Vec::new()
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
    match settings.sim {
        Some(simulated) => ready(Simulated::new(ordinal, simulated), settings),
        None => ready(cuda::open(ordinal)?, settings),
    }
}

/// A device, or the phantom of it in the mode that wants one, if there can be one.
fn ready<D: HeapDevice + Backing + 'static>(
    device: D,
    settings: &Settings,
) -> Outcome<Box<dyn HeapDevice>> {
    if settings.mode == Mode::Phantom && device.has_virtual_memory() {
        return Ok(Box::new(cuda::phantom(
            device,
            settings.phantom_capacity,
            settings.phantom_solid,
        )?));
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
    /// Streams for copies that were opened, and points in time that were taken.
    lanes: u64,
    stamps: u64,
}

impl Simulated {
    /// The device of number `ordinal`.
    pub(crate) fn new(ordinal: u32, settings: settings::Simulated) -> Simulated {
        Simulated {
            device: SimDevice::new(settings.capacity),
            base: u64::from(ordinal) << 52,
            has_virtual_memory: settings.virtual_memory,
            uuid: u128::from(ordinal).to_be_bytes(),
            lanes: 0,
            stamps: 0,
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

    fn memory_times(&self) -> Vec<(&'static str, Duration)> {
        let totals = self.device.totals();
        let time = |call| Duration::from_secs_f64(totals.of(call).microseconds / 1e6);
        Call::ALL.into_iter().map(|call| (call.name(), time(call))).collect()
    }

    fn copies(&mut self) -> Option<&mut dyn Copies> {
        Some(self)
    }
}

/// Addresses of the host one after another, behind which there is nothing.
#[derive(Default)]
pub(crate) struct AddressesAlone {
    reserved: AtomicU64,
}

impl HostMemory for AddressesAlone {
    fn reserve(&self, size: u64) -> Result<HostAddress, DeviceError> {
        Ok((1 << 40) + self.reserved.fetch_add(size, Ordering::Relaxed))
    }

    fn pin(&self, _address: HostAddress, _size: u64) -> Result<HostBacking, DeviceError> {
        Ok(HostBacking::Pinned)
    }

    fn release(&self, _address: HostAddress) {}
}

/// Its memory has no contents, so nothing moves, and nothing takes time.
impl Copies for Simulated {
    fn open_lane(&mut self) -> Result<u64, DeviceError> {
        self.lanes += 1;
        // No handle of a program's stream.
        Ok(u64::MAX - self.lanes)
    }

    fn copy_out(
        &mut self,
        _lane: StreamId,
        _from: Address,
        _to: HostAddress,
        _size: u64,
    ) -> Result<(), DeviceError> {
        Ok(())
    }

    fn copy_in(
        &mut self,
        _lane: StreamId,
        _from: HostAddress,
        _to: Address,
        _size: u64,
    ) -> Result<(), DeviceError> {
        Ok(())
    }

    fn host_memory(&mut self) -> Arc<dyn HostMemory> {
        Arc::new(AddressesAlone::default())
    }

    fn take_time(&mut self, _stream: StreamId) -> Result<TimeStamp, DeviceError> {
        self.stamps += 1;
        Ok(TimeStamp(self.stamps))
    }

    fn time_between(&mut self, _: TimeStamp, _: TimeStamp) -> Result<Option<f64>, DeviceError> {
        Ok(None)
    }

    fn forget_time(&mut self, _stamp: TimeStamp) {}
}

impl Backing for Simulated {
    /// What was asked of it is done at once.
    fn finish(&mut self) -> Result<(), DeviceError> {
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn phantom(capacity: u64) -> Box<dyn HeapDevice> {
        let settings = format!(
            r#"{{"mode": "phantom", "phantom_capacity": {}, "sim": {{"capacity": {capacity}}}}}"#,
            512 * GIB
        );
        open(0, &Settings::parse(&settings).expect("right settings")).expect("there is one")
    }

    #[test]
    fn a_rank_far_larger_than_the_card_is_given_addresses_and_the_card_does_not_run_out() {
        let mut phantom = phantom(4 * GIB);
        let info = phantom.memory_info();
        assert_eq!((info.free, info.total), (512 * GIB, 512 * GIB));
        // Sizes from a few bytes to some gigabytes, 300 GiB of them in all.
        let sizes = (0..300_u64).map(|index| match index % 4 {
            0 => 2 * GIB + index,
            1 => GIB + 3 * MIB,
            2 => GIB + 77,
            _ => 512 * index,
        });
        let given: Vec<(Address, u64)> =
            sizes.map(|size| (phantom.alloc(size).expect("there are addresses"), size)).collect();
        let mut ranges = given.clone();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "they overlap");
        assert!(given.iter().map(|(_, size)| size).sum::<u64>() > 290 * GIB);
        for (address, _) in given {
            phantom.free(address).expect("it was given");
        }
        assert_eq!(phantom.memory_info().free, 512 * GIB);
        assert!(phantom.alloc(513 * GIB).is_err(), "it has said how much it has");
    }

    #[test]
    fn what_is_backed_is_within_the_card_whatever_was_given() {
        // Of 4 GiB, 1 GiB, 64 MiB and 2 MiB back everything; three quarters of the rest are solid.
        let settings = settings::Simulated { capacity: 4 * GIB, virtual_memory: true };
        let mut phantom = cuda::phantom(Simulated::new(0, settings), Some(512 * GIB), None)
            .expect("there is room");
        let begun = phantom.device_mut().memory_info().free;
        assert_eq!(begun, 4 * GIB - GIB - 66 * MIB);
        let mut least = begun;
        for _ in 0..100 {
            phantom.alloc(700 * MIB).expect("there are addresses");
            least = least.min(phantom.device_mut().memory_info().free);
        }
        // Two of them have bytes of their own, and a quarter of the solid part is left to small ones.
        assert_eq!(begun - least, 2 * 700 * MIB);
        for _ in 0..2000 {
            phantom.alloc(2 * MIB).expect("there are addresses");
            least = least.min(phantom.device_mut().memory_info().free);
        }
        assert!(least >= begun / 4, "{least} of {begun} are left");
    }

    #[test]
    fn a_phantom_with_a_share_of_the_card_leaves_the_rest_to_others() {
        let taken = |solid: u64| {
            let settings = settings::Simulated { capacity: 16 * GIB, virtual_memory: true };
            let mut phantom = cuda::phantom(Simulated::new(0, settings), None, Some(solid))
                .expect("there is room");
            let begun = phantom.device_mut().memory_info().free;
            for _ in 0..20_000 {
                phantom.alloc(2 * MIB).expect("there are addresses");
            }
            begun - phantom.device_mut().memory_info().free
        };
        assert_eq!(taken(GIB), GIB);
        assert_eq!(taken(3 * GIB), 3 * GIB);
        // Never more than without a share.
        assert!(taken(64 * GIB) < 16 * GIB / 4 * 3);
    }
}
