//! A gate before each copy to the host, which is closed while pages are made accessible.
//!
//! `cuMemSetAccess` has the GPU write the entries of its page tables, page by page, and, as it seems, the engine that
//! copies to the host serves that too. As long as it has copies they have a millisecond first: a page that takes 25 us
//! otherwise takes 1,055, be it of 2 MiB or of 64, however short the copies are. Only where the engine finds nothing to
//! do, if only for a moment, the page comes before its time. (Copies *from* the host do not matter.)
//!
//! ```text
//!  lane:   │wait│ 16 MiB │wait│ 16 MiB │wait│ ··· closed ··· │ 16 MiB │wait│ ...
//!  host:                     close ─┤ set_access(page, page, ..) ├─ open
//! ```
//!
//! So copies to the host go in pieces, each of which waits on the device until a word of the host's memory is 0
//! (`cuStreamWaitValue32`). The host sets it while it makes pages accessible: the engine ends the piece that it has
//! begun, finds nothing, and all pages are served at once. On an H200 32 pages take 36 us each instead of 1,055, and
//! pieces and waits cost a copy 1.3 % of its speed (`gpu/facts/access.py`, bench/results/gpu.md).
//!
//! Nobody waits for ever. While the gate is closed the host is in a call of the driver. Should that wait for a lock that
//! another thread holds until the device is idle (`cuMemFree` waits for the device; what it holds is not known), the
//! device would not be idle before the gate is open. So a thread opens a gate that has been closed for long ([`Watch`]),
//! and where that happens again and again there is none.
#![expect(unsafe_code, reason = "a word of memory that the GPU reads while it is written")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use crate::context::Scope;
use crate::driver::types::{CuContext, CuStream};
use crate::driver::{Driver, Failure};
use crate::host::{PAGE, keep_from_children};
use crate::watch::Watch;

/// Bytes of a piece: 0.3 ms of an H200's link, which a page waits at most. Where they are half as long the link is 1 %
/// slower.
const PIECE: u64 = 16 << 20;

/// Pieces of a copy at most. A stream has room for about a thousand calls; with more the host waits.
const PIECES_MAX: u64 = 16;

/// A page that is pinned as long as the process, of which the first word is 0 where the gate is open: queued copies look
/// at it.
#[derive(Clone, Copy)]
pub(crate) struct Word(&'static MmapRaw);

impl Word {
    fn get(&self) -> &AtomicU32 {
        // SAFETY: the mapping is a page, aligned as one, that is never unmapped; only this word of it is used, and as an
        // atomic one alone.
        unsafe { AtomicU32::from_ptr(self.0.as_mut_ptr().cast()) }
    }

    pub(crate) fn open(&self) {
        self.get().store(0, Ordering::SeqCst);
    }

    fn close(&self) {
        self.get().store(1, Ordering::SeqCst);
    }
}

/// What copies to the host wait for.
pub(crate) struct Gate {
    word: Word,
    /// Where the device finds it.
    address: u64,
    watch: Arc<Watch>,
}

/// The gate is closed until this is dropped.
pub(crate) struct Closed<'a>(&'a Gate);

impl Gate {
    /// An open gate. None if the driver has no such waits, or no memory of the host can be had for it, or no thread.
    pub(crate) fn new(driver: &'static Driver, context: CuContext) -> Option<Gate> {
        if !driver.waits_for_values() {
            return None;
        }
        let memory = MmapOptions::new().len(PAGE as usize).map_anon().ok()?;
        let memory = MmapRaw::from(memory);
        // A process that is forked would take the page away from under the GPU.
        keep_from_children(&memory).ok()?;
        let host = memory.as_mut_ptr() as u64;
        let _scope = Scope::relaxed(driver, context).ok()?;
        driver.register(host, PAGE as usize).ok()?;
        let Ok(address) = driver.address_on_device(host) else {
            let _ = driver.unregister(host);
            return None;
        };
        let word = Word(Box::leak(Box::new(memory)));
        Some(Gate { word, address, watch: Watch::begin(word)? })
    }

    /// Closes it. None if it has been in the way too often.
    pub(crate) fn close(&self) -> Option<Closed<'_>> {
        if self.watch.gives_up() {
            return None;
        }
        self.word.close();
        self.watch.turn();
        Some(Closed(self))
    }

    /// What comes next on a stream waits until it is open.
    pub(crate) fn guard(&self, driver: &Driver, stream: CuStream) -> Result<(), Failure> {
        driver.wait_for_value(stream, self.address, 0)
    }

    /// The pieces of a copy, of which the host's memory is cut into these.
    pub(crate) fn cut(pieces: &[u64]) -> Vec<u64> {
        let whole: u64 = pieces.iter().sum();
        let most = PIECE.max(whole.div_ceil(PIECES_MAX).next_multiple_of(PAGE));
        let cut =
            |&bytes: &u64| (0..bytes).step_by(most as usize).map(move |at| most.min(bytes - at));
        pieces.iter().flat_map(cut).collect()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.watch.end();
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.watch.turn();
        self.0.word.open();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::device::CudaDevice;
    use crate::{fake, watch};

    const MIB: u64 = 1 << 20;

    /// Waits for what another thread does.
    #[track_caller]
    fn wait_until(is_so: impl Fn() -> bool) {
        for _ in 0..60_000 {
            if is_so() {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        panic!("it did not come within a minute");
    }

    #[test]
    fn one_that_stays_closed_is_opened_and_given_up_after_some_times() {
        fake::reset(64 * MIB);
        let device = CudaDevice::open(fake::driver(), 0).unwrap();
        let gate = Gate::new(fake::driver(), device.context).unwrap();
        let is_open = || gate.word.get().load(Ordering::SeqCst) == 0;
        assert!(is_open());
        let mut times = 0;
        while let Some(closed) = gate.close() {
            times += 1;
            // What keeps the host waits for it to be open.
            wait_until(is_open);
            drop(closed);
            assert!(is_open());
            // Many that are open at once again say nothing.
            (0..100).for_each(|_| drop(gate.close()));
        }
        assert_eq!(times, watch::FORCED_MAX);
    }

    #[test]
    fn its_thread_sleeps_while_nothing_happens_and_ends_with_it() {
        fake::reset(64 * MIB);
        let device = CudaDevice::open(fake::driver(), 0).unwrap();
        let gate = Gate::new(fake::driver(), device.context).unwrap();
        let watch = Arc::clone(&gate.watch);
        for _ in 0..3 {
            drop(gate.close());
            wait_until(|| watch.sleeps());
        }
        assert!(!watch.gives_up());
        drop(gate);
        // This one and the thread's.
        wait_until(|| Arc::strong_count(&watch) == 1);
    }

    #[test]
    fn pieces_are_of_one_size_and_few() {
        assert!(Gate::cut(&[]).is_empty());
        assert_eq!(Gate::cut(&[1]), [1]);
        assert_eq!(Gate::cut(&[16 * MIB]), [16 * MIB]);
        assert_eq!(Gate::cut(&[16 * MIB + 1, 8]), [16 * MIB, 1, 8]);
        assert_eq!(Gate::cut(&[40 * MIB]), [16 * MIB, 16 * MIB, 8 * MIB]);
        let long = Gate::cut(&[1024 * MIB]);
        assert_eq!(long, [64 * MIB; 16]);
        let odd = Gate::cut(&[1000 * MIB + 7, 300 * MIB]);
        assert_eq!(odd.iter().sum::<u64>(), 1300 * MIB + 7);
        assert!(odd.len() <= PIECES_MAX as usize + 1, "{odd:?}");
    }
}
