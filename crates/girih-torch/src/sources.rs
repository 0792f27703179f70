//! Pools with an allocator of their own (`torch.cuda.MemPool(allocator)`).
//!
//! Such a pool is a private pool like any other: the policy shares out its segments, counts them as
//! reserved, and gives them back. Only where a segment comes from differs, and where it goes:
//!
//! ```text
//!  request of the pool ─► policy ─► Device::alloc ─► Sourced ─┬─ its allocator, during such a request
//!                                                             └─ the device, otherwise
//!  empty_cache, out of memory ─► Device::free ─► Sourced ───────► whoever gave the address
//! ```
//!
//! An allocator is two functions of the caller. They run with the heap locked, as PyTorch's own
//! allocator calls them under its lock: they must not call back into the heap. With
//! `release_lock_on_cudamalloc` the one that gives memory may run without the lock, on several threads at
//! once, as there.

#![expect(unsafe_code, reason = "a source is two functions of C")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::time::Duration;

use girih_cuda::StreamHandle;
use girih_runtime::{Address, Copies, Device, DeviceError, Handle, MemoryInfo, Prices};
use girih_trace::StreamId;

use crate::device::{BegunAlloc, Closing, Exported, HeapDevice};
use crate::error::{Outcome, unsupported};

/// Gives `size` bytes, or null. `girih_source_alloc`.
pub type SourceAlloc = unsafe extern "C" fn(user: *mut c_void, size: u64) -> *mut c_void;
/// Takes back what the other function gave. `girih_source_free`.
pub type SourceFree = unsafe extern "C" fn(user: *mut c_void, address: *mut c_void);

/// The allocator of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    alloc: SourceAlloc,
    free: SourceFree,
    /// Handed to both.
    user: *mut c_void,
}

// SAFETY: who makes a source says that its functions can be called on any thread.
unsafe impl Send for Source {}

impl Source {
    /// The allocator of two functions.
    ///
    /// # Safety
    /// Both can be called with `user` on any thread, until the process ends; they do not unwind, and
    /// do not call this library.
    pub unsafe fn new(alloc: SourceAlloc, free: SourceFree, user: *mut c_void) -> Source {
        Source { alloc, free, user }
    }

    /// Asks it for memory. None if it has none.
    fn alloc(&self, size: u64) -> Option<Address> {
        // SAFETY: who made the source says that it can be called with its own `user`.
        let address = unsafe { (self.alloc)(self.user, size) } as Address;
        (address != 0).then_some(address)
    }

    /// True if both are the same allocator.
    pub(crate) fn is(&self, other: &Source) -> bool {
        self.user == other.user && std::ptr::fn_addr_eq(self.alloc, other.alloc)
    }
}

/// A device whose allocations may come from elsewhere.
pub(crate) struct Sourced {
    device: Box<dyn HeapDevice>,
    /// Who gives what is allocated now; the device if nobody.
    present: Option<Source>,
    /// What sources gave and did not get back: its bytes, and whose it is.
    given: BTreeMap<Address, (u64, Source)>,
}

impl Sourced {
    /// The device alone.
    pub(crate) fn new(device: Box<dyn HeapDevice>) -> Sourced {
        Sourced { device, present: None, given: BTreeMap::new() }
    }

    /// True if `address` lies in memory that a source gave.
    fn is_given(&self, address: Address) -> bool {
        let before = self.given.range(..=address).next_back();
        before.is_some_and(|(&start, &(size, _))| address - start < size)
    }
}

impl Device for Sourced {
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
        let Some(source) = self.present else { return self.device.alloc(size) };
        let Some(address) = source.alloc(size) else {
            let free = self.device.memory_info().free;
            return Err(DeviceError::OutOfMemory { requested: size, free });
        };
        self.given.insert(address, (size, source));
        Ok(address)
    }

    fn free(&mut self, address: Address) -> Result<(), DeviceError> {
        let Some((_, source)) = self.given.remove(&address) else {
            return self.device.free(address);
        };
        // SAFETY: as above, and it gave the address, which goes back once.
        unsafe { (source.free)(source.user, address as *mut c_void) };
        Ok(())
    }

    girih_runtime::calls_of!(device {
        fn reserve(size: u64) -> Address;
        fn unreserve(address: Address, size: u64) -> ();
        fn create(size: u64) -> Handle;
        fn release(handle: Handle) -> ();
        fn map(address: Address, handle: Handle) -> ();
        fn set_access(address: Address, size: u64) -> ();
        fn unmap(address: Address, size: u64) -> ();
    });

    girih_runtime::streams_of!(device);
}

impl HeapDevice for Sourced {
    fn take_from(&mut self, source: Option<Source>) {
        self.present = source;
    }

    fn begin_alloc(&mut self, size: u64) -> Option<BegunAlloc> {
        let Some(source) = self.present else { return self.device.begin_alloc(size) };
        let nothing = DeviceError::OutOfMemory { requested: size, free: 0 };
        Some(Box::new(move || source.alloc(size).ok_or(nothing)))
    }

    fn finish_alloc(&mut self, address: Address, size: u64) {
        match self.present {
            Some(source) => _ = self.given.insert(address, (size, source)),
            None => self.device.finish_alloc(address, size),
        }
    }

    fn set_stream(&mut self, id: StreamId, stream: StreamHandle) {
        self.device.set_stream(id, stream);
    }

    fn stream_identity(&mut self, handle: u64) -> Option<u64> {
        self.device.stream_identity(handle)
    }

    fn tells_of_captures(&self) -> bool {
        self.device.tells_of_captures()
    }

    fn has_virtual_memory(&self) -> bool {
        self.device.has_virtual_memory()
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.device.uuid()
    }

    fn enable_peer(&mut self, peer: i32) -> Outcome<()> {
        self.device.enable_peer(peer)
    }

    fn export(&mut self, address: Address, size: u64) -> Outcome<Exported> {
        if self.is_given(address) {
            return Err(unsupported(
                "share tensors from outside the pool: this memory is of a MemPool with an allocator of \
                 its own, and Girih does not know how to share it with another process",
            ));
        }
        self.device.export(address, size)
    }

    fn import(&mut self, description: &[u8]) -> Outcome<Address> {
        self.device.import(description)
    }

    fn begin_close(&mut self, address: Address) -> Outcome<Closing> {
        self.device.begin_close(address)
    }

    fn finish_close(&mut self, address: Address, closing: u64) -> Outcome<()> {
        self.device.finish_close(address, closing)
    }

    fn calls(&self) -> Vec<(&'static str, u64)> {
        self.device.calls()
    }

    fn memory_time(&self) -> Duration {
        self.device.memory_time()
    }

    fn memory_times(&self) -> Vec<(&'static str, Duration)> {
        self.device.memory_times()
    }

    fn copies(&mut self) -> Option<&mut dyn Copies> {
        self.device.copies()
    }
}
