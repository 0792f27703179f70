//! Memory of the host that a [`CudaDevice`](crate::CudaDevice) copies to and from: one range of addresses, pinned in
//! parts.
//!
//! ```text
//!  reserved   |========|========|--------|========|....................|
//!              pinned   pinned   pageable  pinned   addresses alone
//! ```
//!
//! The pages of a part are found before it is pinned (`MADV_POPULATE_WRITE`, then `cuMemHostRegister`): the driver's own
//! way (`cuMemHostAlloc`) keeps other calls waiting meanwhile. They are large ones where the system has them, which are
//! found, and locked, ten times as fast (bench/results/swap.md). It is exact, where torch's pinned memory is a power of
//! two. A process that is forked gets none of it: pinned pages would be copied for it, all at once. Pages are found on
//! processors of the GPU's own socket, and so in its memory (`near`).
//!
//! The driver does not check addresses of the host, so the books here do. Nor does it promise a copy over the border of
//! two registrations, so copies are cut there.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use girih_runtime::{DeviceError, HostAddress, HostBacking, HostMemory};
use memmap2::{MmapOptions, MmapRaw};

use crate::books::misuse;
use crate::context::Scope;
use crate::driver::Driver;
use crate::driver::types::CuContext;
use crate::near::Near;

/// Bytes of a large page: ranges begin at a multiple, so that they consist of such.
const LARGE_PAGE: u64 = 2 << 20;

/// The driver does not pin memory from or to a part of a page.
pub(crate) const PAGE: u64 = 4096;

/// A range of addresses.
struct Range {
    memory: Arc<MmapRaw>,
    size: u64,
    /// Parts that have memory: first address, bytes, and whether they are pinned.
    parts: BTreeMap<HostAddress, (u64, bool)>,
}

/// The ranges by their addresses.
#[derive(Default)]
pub(crate) struct HostBooks {
    ranges: Mutex<BTreeMap<HostAddress, Range>>,
}

impl HostBooks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<HostAddress, Range>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sizes of the pieces that a copy of these bytes is made in; none if some of them are no memory of here. It
    /// is nearly always one.
    pub(crate) fn cut(&self, address: HostAddress, size: u64) -> Option<Vec<u64>> {
        let end = address.checked_add(size)?;
        let ranges = self.lock();
        let (_, range) = ranges.range(..=address).next_back()?;
        let mut pieces = Vec::with_capacity(1);
        let mut at = address;
        while at < end {
            let (&start, &(bytes, _)) = range.parts.range(..=at).next_back()?;
            let piece = end.min(start + bytes).checked_sub(at).filter(|piece| *piece > 0)?;
            pieces.push(piece);
            at += piece;
        }
        Some(pieces)
    }
}

/// The memory of one device.
pub(crate) struct Pinnable {
    pub(crate) driver: &'static Driver,
    pub(crate) context: CuContext,
    pub(crate) books: Arc<HostBooks>,
    /// The processors near the GPU, as the system lists them.
    pub(crate) near: Option<String>,
}

/// The host has too little: a refusal of the system, in words.
fn too_little(call: &'static str, reason: &dyn ToString) -> DeviceError {
    DeviceError::Driver { call, reason: reason.to_string() }
}

/// Has the system find the pages of a part.
#[cfg(target_os = "linux")]
fn find_pages(memory: &MmapRaw, at: usize, size: usize) -> Result<(), DeviceError> {
    match memory.advise_range(memmap2::Advice::PopulateWrite, at, size) {
        // Linux before 5.14: the driver finds them.
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
        found => found.map_err(|error| too_little("madvise", &error)),
    }
}

/// Elsewhere the driver finds them.
#[cfg(not(target_os = "linux"))]
fn find_pages(_memory: &MmapRaw, _at: usize, _size: usize) -> Result<(), DeviceError> {
    Ok(())
}

/// What the system should know of a range. It may be without, but for the fork.
#[cfg(target_os = "linux")]
fn advise(memory: &MmapRaw) -> std::io::Result<()> {
    let _ = memory.advise(memmap2::Advice::HugePage);
    keep_from_children(memory)
}

#[cfg(not(target_os = "linux"))]
fn advise(_memory: &MmapRaw) -> std::io::Result<()> {
    Ok(())
}

/// Processes that are forked get none of it.
#[cfg(target_os = "linux")]
pub(crate) fn keep_from_children(memory: &MmapRaw) -> std::io::Result<()> {
    memory.advise(memmap2::Advice::DontFork)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn keep_from_children(_memory: &MmapRaw) -> std::io::Result<()> {
    Ok(())
}

impl HostMemory for Pinnable {
    fn reserve(&self, size: u64) -> Result<HostAddress, DeviceError> {
        let refused = |reason: &dyn ToString| too_little("mmap", reason);
        if size == 0 || !size.is_multiple_of(PAGE) {
            return misuse("reserve", format!("{size} bytes are not whole pages"));
        }
        let with_room = size.checked_add(LARGE_PAGE).and_then(|bytes| usize::try_from(bytes).ok());
        let with_room = with_room.ok_or_else(|| refused(&"more than can be addressed"))?;
        let mut options = MmapOptions::new();
        let memory = options.len(with_room).no_reserve_swap().map_anon();
        let memory = MmapRaw::from(memory.map_err(|error| refused(&error))?);
        advise(&memory).map_err(|error| refused(&error))?;
        let address = (memory.as_mut_ptr() as u64).next_multiple_of(LARGE_PAGE);
        let range = Range { memory: Arc::new(memory), size, parts: BTreeMap::new() };
        self.books.lock().insert(address, range);
        Ok(address)
    }

    fn pin(&self, address: HostAddress, size: u64) -> Result<HostBacking, DeviceError> {
        let (at, memory) = {
            let mut ranges = self.books.lock();
            let found = ranges.range_mut(..=address).next_back();
            let end = address.checked_add(size);
            let is_within = |start: HostAddress, range: &Range| {
                end.is_some_and(|end| end <= start + range.size)
            };
            let Some((_, range)) = found.filter(|(start, range)| is_within(**start, range)) else {
                return misuse("pin", format!("{size} bytes at {address:#x} are not reserved"));
            };
            let before = range.parts.range(..address + size).next_back();
            let is_free = before.is_none_or(|(&start, &(bytes, _))| start + bytes <= address);
            if size == 0 || !(address | size).is_multiple_of(PAGE) || !is_free {
                return misuse("pin", format!("{size} bytes at {address:#x} have memory already"));
            }
            // Nobody else takes it meanwhile; no copy may use it yet, for nobody was told of it.
            range.parts.insert(address, (size, false));
            (address - range.memory.as_mut_ptr() as u64, Arc::clone(&range.memory))
        };
        // Also what the driver finds where the system was not asked, or does not know how.
        let _near = Near::new(self.near.as_deref());
        if let Err(error) = find_pages(&memory, at as usize, size as usize) {
            self.note(address, |parts| _ = parts.remove(&address));
            return Err(error);
        }
        let pinned = Scope::relaxed(self.driver, self.context)
            .and_then(|_scope| self.driver.register(address, size as usize));
        match pinned {
            Ok(()) => {
                self.note(address, |parts| _ = parts.insert(address, (size, true)));
                Ok(HostBacking::Pinned)
            }
            Err(failure) => Ok(HostBacking::Pageable(self.driver.error(failure))),
        }
    }

    fn release(&self, address: HostAddress) {
        let Some(range) = self.books.lock().remove(&address) else { return };
        let release = || {
            let _scope = Scope::relaxed(self.driver, self.context)?;
            self.driver.synchronize_context()?;
            let pinned = range.parts.iter().filter(|(_, (_, is_pinned))| *is_pinned);
            pinned.map(|(&start, _)| self.driver.unregister(start)).fold(Ok(()), Result::and)
        };
        if release().is_err() {
            // Copies may still write there: it stays mapped as long as the process.
            std::mem::forget(range.memory);
        }
    }
}

impl Pinnable {
    /// Changes the parts of the range of an address.
    fn note(
        &self,
        address: HostAddress,
        change: impl FnOnce(&mut BTreeMap<HostAddress, (u64, bool)>),
    ) {
        if let Some((_, range)) = self.books.lock().range_mut(..=address).next_back() {
            change(&mut range.parts);
        }
    }
}
