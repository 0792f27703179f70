//! A thread that opens a gate which stays closed.
//!
//! It looks five times a second as long as the gate is closed now and then, and sleeps otherwise.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::gate::Word;

/// What a gate may be closed for. To make 4,096 pages accessible takes 150 ms behind it.
const LONG: Duration = Duration::from_millis(200);

/// So often a gate is opened by force before it is closed no more.
pub(crate) const FORCED_MAX: u32 = 3;

/// What a gate and its thread know of each other.
pub(crate) struct Watch {
    /// Counts closings and openings: odd while it is closed.
    turns: AtomicU64,
    /// How often it was opened by force.
    forced: AtomicU32,
    /// The thread waits until the gate is closed again.
    sleeps: AtomicBool,
    /// There is no gate any more.
    is_over: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Watch {
    /// Watches over a gate. None if there can be no thread.
    pub(crate) fn begin(word: Word) -> Option<Arc<Watch>> {
        let watch = Arc::new(Watch {
            turns: AtomicU64::new(0),
            forced: AtomicU32::new(0),
            sleeps: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            thread: OnceLock::new(),
        });
        let watched = Arc::clone(&watch);
        let builder = thread::Builder::new().name("girih-gate".to_owned());
        let thread = builder.spawn(move || watched.keep(word)).ok()?;
        let _ = watch.thread.set(thread.thread().clone());
        Some(watch)
    }

    /// The gate was closed, or is about to be opened.
    pub(crate) fn turn(&self) {
        self.turns.fetch_add(1, Ordering::SeqCst);
        if self.sleeps.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// True if it was opened by force too often.
    pub(crate) fn gives_up(&self) -> bool {
        self.forced.load(Ordering::Relaxed) >= FORCED_MAX
    }

    /// There is no gate any more.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.wake();
    }

    #[cfg(test)]
    pub(crate) fn sleeps(&self) -> bool {
        self.sleeps.load(Ordering::SeqCst)
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// What the thread does. No gate is opened that has not been closed all the while, but for one that is closed again in
    /// that moment: this costs its pages their millisecond, and nothing else.
    fn keep(&self, word: Word) {
        while !self.is_over() {
            let before = self.turns();
            if !self.stays(before) {
                continue;
            }
            if before % 2 == 1 {
                self.forced.fetch_add(1, Ordering::Relaxed);
                word.open();
            }
            self.sleeps.store(true, Ordering::SeqCst);
            while self.turns() == before && !self.is_over() {
                thread::park();
            }
            self.sleeps.store(false, Ordering::SeqCst);
        }
    }

    /// Waits for long. False as soon as there was another turn.
    #[expect(
        clippy::disallowed_methods,
        reason = "how long the driver is kept is a matter of time"
    )]
    fn stays(&self, turns: u64) -> bool {
        let began = Instant::now();
        while self.turns() == turns && !self.is_over() {
            match LONG.checked_sub(began.elapsed()) {
                None | Some(Duration::ZERO) => return true,
                // A wake that came late ends it, too.
                Some(left) => thread::park_timeout(left),
            }
        }
        false
    }

    fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }
}
