//! Threads that pin memory of the host, piece by piece, while the program goes on.
//!
//! ```text
//!  addresses  |==|==|==|--|==|~~|~~|~~|~~|......................|
//!              pinned            four threads        not yet wanted
//!                    not pinned: pageable
//! ```
//!
//! They go on by themselves until as much is there as was wanted. To pin is to find the pages, and to lock them: a
//! tenth of a second for each GiB and up to a whole one, and for a part of it the driver keeps others waiting. So no
//! request of the program does it; it waits at most, for a piece, and only where its copy has no place.

use std::process;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use girih_runtime::{DeviceError, HostAddress, HostBacking, HostMemory};

use super::ranges::Part;
use crate::heaps;

/// Bytes that are pinned at once. Of four threads that share 4 GB a second the first has a piece of 256 MiB after a
/// quarter of a second, one of 1 GiB after a whole one; whoever waits, and the end of the process, waits for so much.
/// A copy is cut at the borders: four calls of some microseconds for a GiB, which takes 19,000. Smaller pieces were
/// not found faster, nor larger ones (bench/results/swap.md).
pub(super) const PIECE: u64 = 256 << 20;
/// Threads that pin. Two find pages nearly twice as fast as one, four a little faster on two cores; more would take
/// cores from the program.
const PINNERS: u64 = 4;
/// How long the end of a process waits for the pieces that are being pinned. Each takes less than a second.
const PATIENCE: Duration = Duration::from_secs(2);

/// Threads of this process that pin now, and the process: one that was forked has none of them.
static WORKING: AtomicUsize = AtomicUsize::new(0);
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// A piece, and what is behind it now.
pub(super) type Piece = (Part, Result<HostBacking, DeviceError>);

/// What threads and their heap share.
#[derive(Default)]
struct Books {
    /// Where the range begins; none before it is wanted.
    base: Option<HostAddress>,
    size: u64,
    /// Bytes from the beginning that were begun.
    next: u64,
    /// Pieces that came to nothing, and may be tried again.
    vacant: Vec<Part>,
    /// Bytes that are pinned or pageable; those that are about to be included; and how many there shall be.
    done: u64,
    begun: u64,
    goal: u64,
    working: usize,
    /// What came and was not taken in yet.
    come: Vec<Piece>,
    is_over: bool,
}

impl Books {
    /// The next piece, if one is wanted.
    fn take_piece(&mut self) -> Option<Part> {
        if self.is_over || heaps::is_finished() || self.begun >= self.goal {
            return None;
        }
        let piece = self.vacant.pop().or_else(|| {
            let size = PIECE.min(self.size - self.next);
            let part = Part { address: self.base? + self.next, size };
            self.next += size;
            (size > 0).then_some(part)
        })?;
        self.begun += piece.size;
        Some(piece)
    }

    fn note(&mut self, piece: Part, outcome: Result<HostBacking, DeviceError>) {
        if !matches!(outcome, Ok(HostBacking::Pinned)) {
            // What the system refuses it refuses again: no more than somebody waits for.
            self.goal = self.goal.min(self.begun);
        }
        if outcome.is_err() {
            self.begun -= piece.size;
            self.goal = self.goal.min(self.begun);
            self.vacant.push(piece);
        } else {
            self.done += piece.size;
        }
        self.come.push((piece, outcome));
    }
}

struct Shared {
    memory: Arc<dyn HostMemory>,
    books: Mutex<Books>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pins as long as something is wanted. Whoever calls is counted as working.
    fn work(&self) {
        let mut working = Working { shared: self, is_counted: true };
        let mut books = self.lock();
        while let Some(piece) = books.take_piece() {
            drop(books);
            let outcome = self.memory.pin(piece.address, piece.size);
            books = self.lock();
            books.note(piece, outcome);
            self.changed.notify_all();
        }
        // Within the lock that said there is nothing: who wants more from now on begins another thread.
        books.working -= 1;
        working.is_counted = false;
        self.changed.notify_all();
    }
}

/// Somebody works until this is dropped, whatever becomes of him.
struct Working<'a> {
    shared: &'a Shared,
    /// The books count him.
    is_counted: bool,
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        if self.is_counted {
            self.shared.lock().working -= 1;
            self.shared.changed.notify_all();
        }
        WORKING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The pinning of one heap.
pub(super) struct Pins {
    shared: Arc<Shared>,
    process: u32,
}

impl Pins {
    /// For at most `size` bytes, whole pages. Nothing is taken yet.
    pub(super) fn new(memory: Arc<dyn HostMemory>, size: u64) -> Pins {
        let books = Mutex::new(Books { size, ..Books::default() });
        let shared = Arc::new(Shared { memory, books, changed: Condvar::new() });
        Pins { shared, process: process::id() }
    }

    /// From now on so many bytes shall be there, or all. Threads see to it.
    ///
    /// # Errors
    /// If there are no addresses for them.
    pub(super) fn want(&self, bytes: u64) -> Result<(), DeviceError> {
        let mut books = self.shared.lock();
        if books.base.is_none() && books.size > 0 {
            books.base = Some(self.shared.memory.reserve(books.size)?);
        }
        books.goal = bytes.min(books.size).max(books.goal);
        let wanted = (books.goal - books.done.min(books.goal)).div_ceil(PIECE);
        while (books.working as u64) < wanted.min(PINNERS) {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name("girih-pin".to_owned());
            books.working += 1;
            PROCESS.store(self.process, Ordering::Relaxed);
            WORKING.fetch_add(1, Ordering::Relaxed);
            if thread.spawn(move || shared.work()).is_err() {
                let is_alone = books.working == 1;
                drop(books);
                match is_alone {
                    // Whoever needs it does it.
                    true => self.shared.work(),
                    false => drop(Working { shared: &self.shared, is_counted: true }),
                }
                return Ok(());
            }
        }
        Ok(())
    }

    /// What has come since the last time.
    pub(super) fn collect(&self) -> Vec<Piece> {
        std::mem::take(&mut self.shared.lock().come)
    }

    /// Waits until something comes. False if nothing will.
    pub(super) fn wait(&self) -> bool {
        let waits = |books: &mut Books| books.come.is_empty() && books.working > 0;
        let waited = self.shared.changed.wait_while(self.shared.lock(), waits);
        !waited.unwrap_or_else(PoisonError::into_inner).come.is_empty()
    }
}

impl Drop for Pins {
    /// Waits for the pieces under way, and gives all back. In a process that was forked there is neither.
    fn drop(&mut self) {
        if process::id() != self.process {
            return;
        }
        let mut books = self.shared.lock();
        books.is_over = true;
        let is_working = |books: &mut Books| books.working > 0;
        let ended = self.shared.changed.wait_while(books, is_working);
        books = ended.unwrap_or_else(PoisonError::into_inner);
        if let Some(base) = books.base.take() {
            self.shared.memory.release(base);
        }
    }
}

/// The process ends, and no thread begins a piece any more: waits for those under way, so that none is in the driver
/// when that goes.
pub(crate) fn await_end() {
    if PROCESS.load(Ordering::Relaxed) != process::id() {
        return;
    }
    let step = Duration::from_millis(1);
    let mut waited = Duration::ZERO;
    while WORKING.load(Ordering::Relaxed) > 0 && waited < PATIENCE {
        thread::sleep(step);
        waited += step;
    }
}
