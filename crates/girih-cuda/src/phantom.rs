//! More memory than there is, for recording.
//!
//! A run that does not fit can still be recorded if nobody minds what it computes. Every range of a
//! phantom is backed by the same few handles, mapped again and again:
//!
//! ```text
//!  addresses   [ 1 GiB ][ 1 GiB ][64M][64M][2M]     [ 1 GiB ][2M][2M]
//!                  └────────┴──────┐ └────┴───┐  └──────┐ │     └──┴┐
//!  physical                    [ 1 GiB ]  [ 64 MiB ]  [2M]
//! ```
//!
//! Tensors there share their bytes, so every number in them is garbage, and so is every index that a program
//! reads from memory: what looks things up by such an index may fail. Sizes, streams and order are
//! those of the true run, and they are all that a recording holds.
//!
//! Some of the memory can be kept *solid* ([`Phantom::with_solid`]): allocations get bytes of their own while it
//! lasts, and parts of it are left to small and to tiny ones, for indices are small ([`Solid`]).
//!
//! The workspace of a library has bytes of its own whatever there is ([`Phantom::with_workspaces`]): kernels that share
//! out a product wait there for each other, for a word that the tensors which share its bytes would write over. Such a
//! kernel never ends.

use girih_runtime::{Address, Device, DeviceError, Handle, MemoryInfo, Prices};

use crate::books::Books;
use crate::device::CudaDevice;
use crate::idle::Idle;
use crate::solid::Solid;

/// Bytes of the handles that back everything, besides one of the granularity. A handle maps whole or
/// not at all, so that a large range is made of large ones, of which each costs one call.
const LADDER: [u64; 2] = [1 << 30, 64 << 20];

/// A device that can stand behind a phantom.
pub trait Backing: Device {
    /// Waits for all work of the device.
    ///
    /// # Errors
    /// [`DeviceError::Driver`]: a kernel failed, or a capture is under way.
    fn finish(&mut self) -> Result<(), DeviceError>;
}

impl Backing for CudaDevice {
    fn finish(&mut self) -> Result<(), DeviceError> {
        self.synchronize()
    }
}

/// A device that says it has more memory than the one behind it.
pub struct Phantom<D = CudaDevice> {
    device: D,
    capacity: u64,
    /// Bytes allocated and created.
    used: u64,
    /// The handles that back everything, the largest first.
    rungs: Vec<(u64, Handle)>,
    /// What the caller sees: its allocations, handles and mappings.
    books: Books,
    /// Handles ever created.
    handles: u64,
    /// Freed ranges over the rungs.
    idle: Idle,
    solid: Solid,
    /// Whether the request that is served now is for the workspace of a library.
    is_workspace: fn() -> bool,
}

impl<D: Backing> Phantom<D> {
    /// A phantom of `capacity` bytes over `device`, which loses about 1 GiB, or less if it has less.
    ///
    /// # Errors
    /// Those of [`Device::create`] for the smallest handle.
    pub fn new(mut device: D, capacity: u64) -> Result<Phantom<D>, DeviceError> {
        let granularity = device.granularity();
        let mut rungs = Vec::new();
        for size in LADDER {
            let is_whole = size > granularity && size.is_multiple_of(granularity);
            // Something is left for the smaller ones, and for what is solid.
            if is_whole && size <= device.memory_info().free / 2 {
                // Without the large ones it works too, with more calls.
                rungs.extend(device.create(size).ok().map(|handle| (size, handle)));
            }
        }
        match device.create(granularity) {
            Ok(handle) => rungs.push((granularity, handle)),
            Err(error) => {
                for (_, handle) in rungs {
                    let _ = device.release(handle);
                }
                return Err(error);
            }
        }
        let books = Books::new(granularity);
        Ok(Phantom {
            device,
            capacity,
            used: 0,
            rungs,
            books,
            handles: 0,
            idle: Idle::default(),
            solid: Solid::of(0),
            is_workspace: || false,
        })
    }

    /// Gives allocations memory of their own as long as `bytes` last, and as the device has them.
    #[must_use]
    pub fn with_solid(mut self, bytes: u64) -> Phantom<D> {
        self.solid = Solid::of(bytes);
        self
    }

    /// Gives an allocation memory of its own, whatever is solid, where `is_workspace` says so while it is asked for.
    #[must_use]
    pub fn with_workspaces(mut self, is_workspace: fn() -> bool) -> Phantom<D> {
        self.is_workspace = is_workspace;
        self
    }

    /// The device behind it: for streams, counters and properties.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device behind it, to add streams and enable peers.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Fails if `size` more bytes are more than the phantom says it has.
    fn take(&self, size: u64) -> Result<(), DeviceError> {
        let free = self.capacity.saturating_sub(self.used);
        if size > free {
            return Err(DeviceError::OutOfMemory { requested: size, free });
        }
        Ok(())
    }

    /// Gives back what was freed and is kept for the next allocation of its size.
    ///
    /// # Errors
    /// [`DeviceError::Driver`]: what was not given back yet is kept.
    pub fn trim(&mut self) -> Result<(), DeviceError> {
        self.solid.let_go(&mut self.device, 0)?;
        self.device.finish()?;
        while let Some((backed, address)) = self.idle.any(0) {
            self.device.unmap(address, backed)?;
            self.idle.take(backed);
            // Addresses without memory cost nothing: if they stay, they stay.
            let _ = self.device.unreserve(address, backed);
        }
        Ok(())
    }

    /// Maps the rungs over `size` bytes at `address`: all of it or, on an error, nothing.
    fn back(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        let mut done = 0;
        while done < size {
            let fits = self.rungs.iter().find(|(bytes, _)| *bytes <= size - done);
            let (bytes, handle) = fits.copied().unwrap_or(self.rungs[self.rungs.len() - 1]);
            if let Err(error) = self.device.map(address + done, handle) {
                if done > 0 {
                    let _ = self.device.unmap(address, done);
                }
                return Err(error);
            }
            done += bytes;
        }
        Ok(())
    }

    /// Reserves, backs and opens `size` bytes; on an error nothing of it is left.
    fn back_anew(&mut self, size: u64) -> Result<Address, DeviceError> {
        let address = self.device.reserve(size)?;
        if let Err(error) = self.back(address, size) {
            let _ = self.device.unreserve(address, size);
            return Err(error);
        }
        if let Err(error) = self.device.set_access(address, size) {
            let _ = self.device.unmap(address, size);
            let _ = self.device.unreserve(address, size);
            return Err(error);
        }
        Ok(address)
    }
}

impl<D: Backing> Device for Phantom<D> {
    /// Of the memory that it says it has.
    fn memory_info(&mut self) -> MemoryInfo {
        MemoryInfo { free: self.capacity.saturating_sub(self.used), total: self.capacity }
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
        self.books.check_size("alloc", size, false)?;
        self.take(size)?;
        let backed = size.next_multiple_of(self.granularity());
        let address = match self.solid.take(&mut self.device, size) {
            Some(address) => address,
            None if (self.is_workspace)() => self.solid.own(&mut self.device, size)?,
            None => match self.idle.take(backed) {
                Some(address) => address,
                None => self.back_anew(backed)?,
            },
        };
        self.books.add_allocation(address, size);
        self.used += size;
        Ok(address)
    }

    /// Waits for nothing: what is freed stays mapped. Beyond what is kept it waits for running kernels, as freeing does.
    fn free(&mut self, address: Address) -> Result<(), DeviceError> {
        let size = self.books.check_free(address)?;
        let backed = size.next_multiple_of(self.granularity());
        if !self.solid.free(&mut self.device, address)? && !self.idle.keep(backed, address) {
            self.device.finish()?;
            self.device.unmap(address, backed)?;
            // From here on the memory is gone. Addresses without memory cost nothing: if they stay,
            // they stay.
            let _ = self.device.unreserve(address, backed);
        }
        self.books.remove_allocation(address);
        self.used -= size;
        Ok(())
    }

    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        let address = self.device.reserve(size)?;
        self.books.add_reservation(address, size);
        Ok(address)
    }

    fn unreserve(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.books.check_unreserve(address, size)?;
        self.device.unreserve(address, size)?;
        self.books.remove_reservation(address);
        Ok(())
    }

    /// Nothing is created: the handle is a size.
    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        self.books.check_size("create", size, true)?;
        self.take(size)?;
        self.handles += 1;
        let handle = Handle(self.handles);
        self.books.add_handle(handle, size, false);
        self.used += size;
        Ok(handle)
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        self.used -= self.books.check_release(handle)?;
        self.books.remove_handle(handle);
        Ok(())
    }

    fn map(&mut self, address: Address, handle: Handle) -> Result<(), DeviceError> {
        let size = self.books.check_map(address, handle)?;
        self.back(address, size)?;
        self.books.add_mapping(address, handle);
        Ok(())
    }

    fn set_access(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.books.check_mapped("set_access", address, size)?;
        self.device.set_access(address, size)
    }

    fn unmap(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.books.check_mapped("unmap", address, size)?;
        self.device.unmap(address, size)?;
        self.books.remove_mappings(address, size);
        Ok(())
    }

    girih_runtime::streams_of!(device);
}
