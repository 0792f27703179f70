//! The card as a program uses it: streams, writing to memory and reading it, all in the order of the
//! streams, through a binding of the driver that shares nothing with this crate.
//!
//! What is read lands in a ring of pinned memory, to be looked at once the streams have come past:
//! so the host waits for nothing that a block's owner would not wait for.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr;
use std::slice;

use cudarc::driver::sys;

/// Bytes of the ring.
const RING: usize = 512 << 20;
/// Bytes that a delay writes to, and how often.
const SCRATCH: usize = 64 << 20;
const DELAY: u32 = 40;

/// What a call of the driver said.
fn done(call: &str, result: sys::CUresult) -> Result<(), String> {
    if result == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(format!("{call}: {result:?}")) }
}

/// A stream of the card, by its number.
pub(crate) type Stream = usize;

/// The card, its streams, and what was read.
pub(crate) struct Card {
    streams: Vec<sys::CUstream>,
    scratch: u64,
    ring: *mut u8,
    /// Bytes of the ring that are in use.
    used: usize,
}

impl Card {
    /// The device of number 0, whose primary context is retained by somebody else, with so many
    /// streams that wait for no other.
    pub(crate) fn open(streams: usize) -> Result<Card, String> {
        let mut context = ptr::null_mut();
        // SAFETY: the pointer is to a local of the right type.
        let retained = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, 0) };
        done("cuDevicePrimaryCtxRetain", retained)?;
        // SAFETY: the context was just retained, and is not released.
        done("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context) })?;
        let streams = (0..streams).map(|_| Card::stream()).collect::<Result<_, _>>()?;
        let (mut ring, mut scratch) = (ptr::null_mut::<c_void>(), 0);
        // SAFETY: the pointer is to a local of the right type.
        done("cuMemAllocHost", unsafe { sys::cuMemAllocHost_v2(&raw mut ring, RING) })?;
        // SAFETY: the pointer is to a local of the right type.
        done("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&raw mut scratch, SCRATCH) })?;
        Ok(Card { streams, scratch, ring: ring.cast(), used: 0 })
    }

    fn stream() -> Result<sys::CUstream, String> {
        let mut stream = ptr::null_mut();
        // SAFETY: the pointer is to a local; 1 is CU_STREAM_NON_BLOCKING.
        done("cuStreamCreate", unsafe { sys::cuStreamCreate(&raw mut stream, 1) })?;
        Ok(stream)
    }

    /// The driver's handles of the streams.
    pub(crate) fn handles(&self) -> impl Iterator<Item = u64> {
        self.streams.iter().map(|&stream| stream as u64)
    }

    /// Writes a word to every four bytes of a range.
    pub(crate) fn fill(
        &self,
        stream: Stream,
        address: u64,
        bytes: u64,
        word: u32,
    ) -> Result<(), String> {
        let stream = self.streams[stream];
        // SAFETY: the driver checks the range; the stream lives as long as the card.
        let set = unsafe { sys::cuMemsetD32Async(address, word, bytes as usize / 4, stream) };
        done("cuMemsetD32Async", set)
    }

    /// Reads a range into the ring. None if that has too little room.
    pub(crate) fn read(
        &mut self,
        stream: Stream,
        address: u64,
        bytes: u64,
    ) -> Result<Option<Range<usize>>, String> {
        let place = self.used..self.used + bytes as usize;
        if place.end > RING {
            return Ok(None);
        }
        // SAFETY: the place lies within the ring.
        let target = unsafe { self.ring.add(place.start) };
        // SAFETY: the ring has so many bytes there, and nothing else is written to them until it is
        // emptied; the driver checks the source.
        let copied = unsafe {
            sys::cuMemcpyDtoHAsync_v2(target.cast(), address, bytes as usize, self.streams[stream])
        };
        done("cuMemcpyDtoHAsync", copied)?;
        self.used = place.end;
        Ok(Some(place))
    }

    /// Waits for all streams.
    pub(crate) fn wait(&self) -> Result<(), String> {
        // SAFETY: no arguments.
        done("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    /// What was read, as words. The streams have been waited for since.
    pub(crate) fn words(&self, place: Range<usize>) -> &[u32] {
        assert!(place.end <= self.used && place.start.is_multiple_of(4), "{place:?} was not read");
        // SAFETY: the place lies within the ring.
        let first = unsafe { self.ring.add(place.start) };
        // SAFETY: so many bytes of the ring are in use there, the ring is aligned to pages and the
        // place to words, and no copy is under way.
        unsafe { slice::from_raw_parts(first.cast(), place.len() / 4) }
    }

    /// Forgets what was read.
    pub(crate) fn empty_ring(&mut self) {
        self.used = 0;
    }

    /// Keeps a stream busy for about a millisecond.
    pub(crate) fn delay(&self, stream: Stream) -> Result<(), String> {
        (0..DELAY).try_for_each(|word| self.fill(stream, self.scratch, SCRATCH as u64, word))
    }

    /// Lets what comes on a stream wait for what was there on another.
    pub(crate) fn follow(&self, after: Stream, before: Stream) -> Result<(), String> {
        let mut event = ptr::null_mut();
        // SAFETY: the pointer is to a local; 2 is CU_EVENT_DISABLE_TIMING.
        done("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut event, 2) })?;
        // SAFETY: event and stream live.
        let recorded = unsafe { sys::cuEventRecord(event, self.streams[before]) };
        done("cuEventRecord", recorded)?;
        // SAFETY: event and stream live.
        let waits = unsafe { sys::cuStreamWaitEvent(self.streams[after], event, 0) };
        done("cuStreamWaitEvent", waits)?;
        // SAFETY: it lives, and is used no more; the driver keeps it until the wait is over.
        done("cuEventDestroy", unsafe { sys::cuEventDestroy_v2(event) })
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // An error that comes late was seen before, or is of no account any more.
        let _ = self.wait();
        // SAFETY: it was allocated when the card was opened, and is read no more.
        unsafe { sys::cuMemFreeHost(self.ring.cast()) };
        // SAFETY: it was allocated when the card was opened.
        unsafe { sys::cuMemFree_v2(self.scratch) };
        for &stream in &self.streams {
            // SAFETY: it was made when the card was opened; nobody allocates for it any more.
            unsafe { sys::cuStreamDestroy_v2(stream) };
        }
    }
}
