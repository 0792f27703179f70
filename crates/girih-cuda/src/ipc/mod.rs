//! Memory of other processes.
//!
//! ```text
//!  exporter: export(address, size) ──► at most 128 bytes ──► import(bytes) :importer
//!
//!  an allocation    the driver's handle of 64 bytes                      cuIpcOpenMemHandle
//!  mapped memory    our process, and a descriptor of ours whose file     pidfd_getfd,
//!                   lists the descriptors of the handles                 import, map
//! ```
//!
//! A block of mapped memory may lie in several handles, which is why the importer finds a list. The
//! descriptors stay open until their handles are released, and are made once: to export a thing
//! twice costs nothing. There is one for each page and one for each list, so the first export raises the
//! limit of open descriptors as far as it goes, and an eighth of them is left to the program. The exporter
//! keeps the memory until the importers are done with it; PyTorch counts its references.
//!
//! Linux lets a process take over descriptors of another only if it may inspect it. Where Yama grants
//! that to ancestors alone (`kernel.yama.ptrace_scope` is 1, as on most desktops), a process that exports
//! mapped memory lets itself be inspected by every process of its user, as it would be without Yama.
//!
//! `message` is the form of the bytes, `descriptor` what is asked of the operating system.

mod descriptor;
mod message;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::process;

use girih_runtime::{Address, Device, DeviceError, Handle};
use rustc_hash::FxHashMap;
use thiserror::Error;

use self::descriptor::{Entry, Remote};
use self::message::{Kind, Message};
use crate::books::Mapping;
use crate::device::CudaDevice;
use crate::driver::types::{CuAccess, CuMemory};

/// The most bytes that [`CudaDevice::export`] gives.
pub const MESSAGE_BYTES_MAX: usize = message::BYTES_MAX;

/// Of the descriptors that a process may have open, the part that is not taken for memory is one in so many.
const LEFT: u64 = 8;

/// Memory, described for another process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exported {
    /// The description, at most [`MESSAGE_BYTES_MAX`] bytes.
    pub bytes: Vec<u8>,
    /// Where the address that was exported is in the memory that is described.
    pub offset: u64,
    /// Bytes of the memory that is described.
    pub size: u64,
}

/// Memory of another process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Imported {
    /// Its first byte, here.
    pub address: Address,
    /// Bytes.
    pub size: u64,
}

/// Why memory cannot be shared.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum IpcError {
    /// The address is not in memory of this device.
    #[error("{size} bytes at {address:#x} are not memory of this device")]
    Unknown {
        /// The address.
        address: Address,
        /// Bytes from there on.
        size: u64,
    },
    /// This kind of memory cannot be shared here.
    #[error("this memory cannot be shared with another process: {0}")]
    Unsupported(String),
    /// What came from the other process is not a description of memory.
    #[error("this is no description of another process's memory: {0}")]
    Malformed(String),
    /// The operating system does not give what the other process shares.
    #[error("the memory of process {pid} cannot be taken over: {reason}")]
    Process {
        /// The other process.
        pid: u32,
        /// Why not, and what to do.
        reason: String,
    },
    /// The device refuses.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// What is shared, both ways.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// A descriptor for each handle that was exported.
    descriptors: FxHashMap<Handle, OwnedFd>,
    lists: Vec<List>,
    /// How many descriptors the process may have open. None before the first export.
    pub(crate) allowed: Option<u64>,
    /// Lists ever made.
    serial: u64,
    imports: Vec<Import>,
}

/// Handles that were exported together.
#[derive(Debug)]
struct List {
    handles: Vec<Handle>,
    file: File,
    serial: u64,
}

/// Memory of another process that is open here.
#[derive(Debug)]
struct Import {
    message: Message,
    address: Address,
    /// How often it was opened and not yet closed. Without any it is about to be unmapped.
    users: u32,
    /// How often the last user has closed it.
    closings: u64,
}

/// What is left to do after an opening of memory of another process was closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closing {
    /// Nothing: others have it open.
    Shared,
    /// To wait for the device's work, and then to unmap it with this number.
    Last(u64),
}

impl Sharing {
    /// Closes what stands for a handle that is gone.
    pub(crate) fn forget(&mut self, handle: Handle) {
        if self.descriptors.remove(&handle).is_some() {
            self.lists.retain(|list| !list.handles.contains(&handle));
        }
    }

    /// Refuses a descriptor that was opened just now if it is one of those that are left to the program. The system
    /// gives the lowest number that is free: so many are open.
    fn admit(&mut self, number: RawFd) -> Result<(), IpcError> {
        let allowed = *self.allowed.get_or_insert_with(descriptor::open_most);
        if u64::from(number.unsigned_abs()) < allowed - allowed / LEFT {
            return Ok(());
        }
        Err(IpcError::Unsupported(format!(
            "each of its pages needs an open descriptor of its own, {} are shared already, and this process may have \
             {allowed} open, of which an eighth is left to the program; raise the limit (`ulimit -Hn`), or use a mode \
             without virtual memory (`native`)",
            self.descriptors.len()
        )))
    }

    /// Descriptors that are open: of handles, and of lists.
    #[cfg(test)]
    pub(crate) fn open(&self) -> [usize; 2] {
        [self.descriptors.len(), self.lists.len()]
    }
}

impl CudaDevice {
    /// Describes the memory in which the `size` bytes at `address` lie, for another process of this
    /// machine: the whole allocation, or all handles that are mapped there. The memory must not be
    /// given back before the other process has closed it.
    ///
    /// # Errors
    /// [`IpcError::Unknown`] if the bytes are not all memory of this device;
    /// [`IpcError::Unsupported`] if they cannot be shared, with the reason.
    pub fn export(&mut self, address: Address, size: u64) -> Result<Exported, IpcError> {
        let unknown = IpcError::Unknown { address, size };
        if let Some((start, allocation)) = self.books.allocation_at(address) {
            if allocation.size - (address - start) < size {
                return Err(unknown);
            }
            let handle = {
                let _scope = self.enter_relaxed()?;
                self.checked(self.driver.ipc_handle(start))?
            };
            let kind = Kind::Allocation { handle: handle.reserved };
            let (pid, serial, size) = (process::id(), allocation.serial, allocation.size);
            let bytes = Message { pid, serial, size, kind }.to_bytes();
            return Ok(Exported { bytes, offset: address - start, size });
        }
        let Some((start, mappings)) = self.books.mappings_of(address, size) else {
            return Err(unknown);
        };
        let size = mappings.iter().map(|mapping| mapping.size).sum();
        let (list, serial) = self.list_of(&mappings)?;
        let kind = Kind::Mapped { list };
        let bytes = Message { pid: process::id(), serial, size, kind }.to_bytes();
        Ok(Exported { bytes, offset: address - start, size })
    }

    /// The descriptor and the serial number of a list of the handles of `mappings`.
    fn list_of(&mut self, mappings: &[Mapping]) -> Result<(i32, u64), IpcError> {
        let handles: Vec<Handle> = mappings.iter().map(|mapping| mapping.handle).collect();
        if let Some(list) = self.sharing.lists.iter().find(|list| list.handles == handles) {
            return Ok((list.file.as_raw_fd(), list.serial));
        }
        let is_new = |handle: &Handle| !self.sharing.descriptors.contains_key(handle);
        let new: Vec<Handle> = handles.iter().copied().filter(is_new).collect();
        let file = self.write_list(mappings).inspect_err(|_| {
            // Nobody has been told of them, and the program may need as many.
            new.iter().for_each(|handle| _ = self.sharing.descriptors.remove(handle));
        })?;
        descriptor::let_others_take();
        self.sharing.serial += 1;
        let (number, serial) = (file.as_raw_fd(), self.sharing.serial);
        self.sharing.lists.push(List { handles, file, serial });
        Ok((number, serial))
    }

    /// Writes a list of the handles of `mappings`.
    fn write_list(&mut self, mappings: &[Mapping]) -> Result<File, IpcError> {
        let mut entries = Vec::with_capacity(mappings.len());
        for mapping in mappings {
            let number = self.descriptor_of(mapping.handle)?;
            entries.push(Entry { number, size: mapping.size });
        }
        let file = descriptor::write_list(&entries).map_err(|error| {
            IpcError::Unsupported(format!("a list of descriptors cannot be written: {error}"))
        })?;
        self.sharing.admit(file.as_raw_fd())?;
        Ok(file)
    }

    /// The number of the descriptor that stands for a handle.
    fn descriptor_of(&mut self, handle: Handle) -> Result<i32, IpcError> {
        if let Some(descriptor) = self.sharing.descriptors.get(&handle) {
            return Ok(descriptor.as_raw_fd());
        }
        if !self.books.physical("export", handle)?.shareable {
            let reason = "it was created without file descriptors, which this device or this \
                          container does not have; use a mode without virtual memory (`native`)";
            return Err(IpcError::Unsupported(reason.to_owned()));
        }
        let _scope = self.enter_relaxed()?;
        let descriptor = self.checked(self.driver.export(CuMemory(handle.0)))?;
        descriptor::close_in_programs(&descriptor);
        let number = descriptor.as_raw_fd();
        self.sharing.admit(number)?;
        self.sharing.descriptors.insert(handle, descriptor);
        Ok(number)
    }

    /// Opens memory that another process of this machine has described. The same memory may be
    /// opened several times; it is mapped once, and each opening is closed once.
    ///
    /// # Errors
    /// [`IpcError::Malformed`], [`IpcError::Process`], or [`IpcError::Device`]; nothing is open
    /// then.
    pub fn import(&mut self, bytes: &[u8]) -> Result<Imported, IpcError> {
        let message = Message::from_bytes(bytes)?;
        let size = message.size;
        let open = self.sharing.imports.iter_mut().find(|import| import.message == message);
        if let Some(import) = open {
            // Also if it is about to be unmapped: then it is not.
            import.users += 1;
            return Ok(Imported { address: import.address, size });
        }
        let address = match &message.kind {
            Kind::Allocation { handle } => {
                let _scope = self.enter_relaxed()?;
                self.checked(self.driver.ipc_open(message::driver_handle(handle)))?
            }
            Kind::Mapped { list } => self.import_mapped(message.pid, *list, size)?,
        };
        self.sharing.imports.push(Import { message, address, users: 1, closings: 0 });
        Ok(Imported { address, size })
    }

    /// Takes the handles of another process over and maps them side by side.
    fn import_mapped(&mut self, pid: u32, list: i32, size: u64) -> Result<Address, IpcError> {
        let remote = Remote::open(pid)?;
        let entries = remote.read_list(list, size, self.granularity())?;
        let _scope = self.enter_relaxed()?;
        let mut memories = Vec::with_capacity(entries.len());
        let mut result = Ok(());
        for entry in &entries {
            let imported = remote
                .descriptor(entry.number)
                .and_then(|descriptor| Ok(self.checked(self.driver.import(descriptor.as_fd()))?));
            match imported {
                Ok(memory) => memories.push((memory, entry.size)),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let mapped = result.and_then(|()| Ok(self.map_side_by_side(&memories, size)?));
        // Mapped memory lives until it is unmapped; what is not mapped goes.
        for (memory, _) in memories {
            self.calls.release += 1;
            let _ = self.driver.release(memory);
        }
        mapped
    }

    /// Maps memories in a reservation of their own; on an error nothing of it is left.
    fn map_side_by_side(
        &mut self,
        memories: &[(CuMemory, u64)],
        size: u64,
    ) -> Result<Address, DeviceError> {
        self.calls.reserve += 1;
        let address = self.checked(self.driver.reserve_addresses(size as usize))?;
        let mut end = address;
        let mut result = Ok(());
        for &(memory, bytes) in memories {
            self.calls.map += 1;
            result = self.driver.map(end, bytes as usize, memory);
            if result.is_err() {
                break;
            }
            end += bytes;
        }
        if result.is_ok() {
            let own = [CuAccess::new(self.device, CuAccess::READ_WRITE)];
            self.calls.set_access += 1;
            result = self.driver.set_access(address, size as usize, &own);
        }
        let Err(failure) = result else { return Ok(address) };
        if end > address {
            self.calls.unmap += 1;
            let _ = self.driver.unmap(address, (end - address) as usize);
        }
        self.calls.unreserve += 1;
        let _ = self.driver.free_addresses(address, size as usize);
        Err(self.refused(failure, size))
    }

    /// Closes what [`CudaDevice::import`] gave, once for each time that it did. With the last of
    /// them the device's work is waited for, and the memory is gone.
    ///
    /// # Errors
    /// [`IpcError::Unknown`] if nothing is open at `address`; [`IpcError::Device`] if the driver
    /// refuses: it is still open then.
    pub fn close(&mut self, address: Address) -> Result<(), IpcError> {
        let Closing::Last(closing) = self.begin_close(address)? else { return Ok(()) };
        let waited = self.synchronize().map_err(IpcError::from);
        let closed = waited.and_then(|()| self.finish_close(address, closing));
        if closed.is_err() {
            let imports = self.sharing.imports.iter_mut();
            imports.filter(|import| import.address == address).for_each(|import| import.users += 1);
        }
        closed
    }

    /// The first half of [`CudaDevice::close`], for those who share the device and must not keep others
    /// waiting: with [`Closing::Last`] they wait for its work ([`CudaDevice::waiter`]) and call
    /// [`CudaDevice::finish_close`] then. Until that the memory stays mapped, and it is not unmapped if
    /// it is opened again in the meantime.
    ///
    /// # Errors
    /// [`IpcError::Unknown`] if nothing is open at `address`.
    pub fn begin_close(&mut self, address: Address) -> Result<Closing, IpcError> {
        let import = self.sharing.imports.iter_mut().find(|import| import.address == address);
        let Some(import) = import.filter(|import| import.users > 0) else {
            return Err(IpcError::Unknown { address, size: 0 });
        };
        import.users -= 1;
        if import.users > 0 {
            return Ok(Closing::Shared);
        }
        import.closings += 1;
        Ok(Closing::Last(import.closings))
    }

    /// The second half of [`CudaDevice::close`]: unmaps the memory, unless it was opened again since,
    /// whether or not it has been closed again.
    ///
    /// # Errors
    /// [`IpcError::Device`] if the driver refuses; it is still mapped then.
    pub fn finish_close(&mut self, address: Address, closing: u64) -> Result<(), IpcError> {
        let is_it = |import: &Import| {
            (import.address, import.users, import.closings) == (address, 0, closing)
        };
        let Some(place) = self.sharing.imports.iter().position(is_it) else { return Ok(()) };
        let import = &self.sharing.imports[place];
        let size = import.message.size;
        let _scope = self.enter_relaxed()?;
        match import.message.kind {
            Kind::Allocation { .. } => self.checked(self.driver.ipc_close(address))?,
            Kind::Mapped { .. } => {
                self.calls.unmap += 1;
                self.checked(self.driver.unmap(address, size as usize))?;
                // Addresses without memory cost nothing: if they stay, they stay.
                self.calls.unreserve += 1;
                let _ = self.driver.free_addresses(address, size as usize);
            }
        }
        self.sharing.imports.swap_remove(place);
        Ok(())
    }
}
