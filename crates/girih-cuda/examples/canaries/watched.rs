//! The device, with a note of which handle is mapped where: under which other addresses the bytes of
//! a range are visible.

use std::collections::BTreeMap;

use girih_cuda::CudaDevice;
use girih_runtime::{Address, Device, DeviceError, Handle, MemoryInfo, Prices};

/// A device whose mappings are known.
pub(crate) struct Watched {
    pub(crate) device: CudaDevice,
    sizes: BTreeMap<Handle, u64>,
    /// The handle at each address.
    mapped: BTreeMap<Address, Handle>,
    /// The addresses of each handle.
    places: BTreeMap<Handle, Vec<Address>>,
}

impl Watched {
    pub(crate) fn new(device: CudaDevice) -> Watched {
        let (sizes, mapped, places) = Default::default();
        Watched { device, sizes, mapped, places }
    }

    /// The pieces of a range that lie in one handle each, under every address that they have. Memory
    /// that was allocated whole has no handle here, and no other address.
    pub(crate) fn views(&self, address: Address, size: u64) -> Vec<(Address, u64)> {
        let (mut views, mut at, end) = (Vec::new(), address, address + size);
        while at < end {
            let Some((&base, handle)) = self.mapped.range(..=at).next_back() else { break };
            let stop = (base + self.sizes[handle]).min(end);
            if stop <= at {
                break;
            }
            let offset = at - base;
            views.extend(self.places[handle].iter().map(|&place| (place + offset, stop - at)));
            at = stop;
        }
        if views.is_empty() { vec![(address, size)] } else { views }
    }

    /// Handles that were created and not released, and mappings that were not undone.
    pub(crate) fn left(&self) -> (usize, usize) {
        (self.sizes.len(), self.mapped.len())
    }
}

impl Device for Watched {
    girih_runtime::streams_of!(device);
    girih_runtime::calls_of!(device {
        fn alloc(size: u64) -> Address;
        fn free(address: Address) -> ();
        fn reserve(size: u64) -> Address;
        fn unreserve(address: Address, size: u64) -> ();
    });

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

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        let handle = self.device.create(size)?;
        self.sizes.insert(handle, size);
        Ok(handle)
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        self.device.release(handle)?;
        self.sizes.remove(&handle);
        self.places.remove(&handle);
        Ok(())
    }

    fn map(&mut self, address: Address, handle: Handle) -> Result<(), DeviceError> {
        self.device.map(address, handle)?;
        self.mapped.insert(address, handle);
        self.places.entry(handle).or_default().push(address);
        Ok(())
    }

    fn set_access(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.device.set_access(address, size)
    }

    fn unmap(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.device.unmap(address, size)?;
        let mut gone = self.mapped.split_off(&address);
        self.mapped.append(&mut gone.split_off(&(address + size)));
        for (address, handle) in gone {
            self.places.entry(handle).or_default().retain(|&place| place != address);
        }
        Ok(())
    }
}
