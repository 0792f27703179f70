//! A device with a shadow: which handle is mapped at which address, and what was written to it last.
//!
//! It answers what no count can: whether a block reads what its owner wrote, through whatever
//! addresses its memory was used before.

use std::collections::{BTreeMap, HashMap};

use girih_runtime::sim::SimDevice;
use girih_runtime::{Address, Device, DeviceError, Handle, MemoryInfo};

use super::world::MIB;

const PAGE: u64 = 2 * MIB;

pub(crate) struct Shadow {
    pub(crate) device: SimDevice,
    mapped: BTreeMap<Address, Handle>,
    tags: HashMap<Handle, u64>,
}

impl Shadow {
    pub(crate) fn new(bytes: u64) -> Shadow {
        let mut device = SimDevice::new(bytes);
        device.check_order();
        Shadow { device, mapped: BTreeMap::new(), tags: HashMap::new() }
    }

    /// The handles under a block, by address.
    fn handles(&self, address: Address, size: u64) -> Vec<Handle> {
        let handles: Vec<Handle> =
            self.mapped.range(address..address + size).map(|(_, &handle)| handle).collect();
        assert_eq!(handles.len() as u64, size / PAGE, "there is a page without memory");
        handles
    }

    /// Writes a tag to every page of a block.
    pub(crate) fn write(&mut self, address: Address, size: u64, tag: u64) {
        for handle in self.handles(address, size) {
            self.tags.insert(handle, tag);
        }
    }

    /// The tags of the pages of a block.
    pub(crate) fn read(&self, address: Address, size: u64) -> Vec<u64> {
        self.handles(address, size).iter().map(|handle| self.tags[handle]).collect()
    }
}

impl Device for Shadow {
    girih_runtime::streams_of!(device);

    fn memory_info(&mut self) -> MemoryInfo {
        self.device.memory_info()
    }

    fn granularity(&self) -> u64 {
        self.device.granularity()
    }

    fn alloc(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.device.alloc(size)
    }

    fn free(&mut self, address: Address) -> Result<(), DeviceError> {
        self.device.free(address)
    }

    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.device.reserve(size)
    }

    fn unreserve(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.device.unreserve(address, size)
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        self.device.create(size)
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        Device::release(&mut self.device, handle)
    }

    fn map(&mut self, address: Address, handle: Handle) -> Result<(), DeviceError> {
        self.device.map(address, handle)?;
        self.mapped.insert(address, handle);
        Ok(())
    }

    fn set_access(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.device.set_access(address, size)
    }

    fn unmap(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.device.unmap(address, size)?;
        self.mapped.retain(|&at, _| at < address || at >= address + size);
        Ok(())
    }
}
