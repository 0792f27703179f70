//! The lock of a heap.
//!
//! A heap is held for some ten nanoseconds, millions of times, and now and then, while the driver
//! maps memory, for milliseconds or for seconds. So the common way is one compare-and-swap to take
//! the lock and one store to let it go; who has to wait looks on for some microseconds, and then
//! sleeps.
//!
//! ```text
//!            compare-and-swap                      look again, at longer and longer intervals
//!      free ─────────────────► held         wait ─► free? take it ─► still held? sleep ─┐
//!       ▲ ▲                    │  │                 ▲                                    │
//!       │ └──────store─────────┘  │ panic           └──── told, or the nap is over ◄─────┘
//!       │                         ▼
//!       └─ never ────────────── poisoned
//! ```
//!
//! **Nobody is forgotten.** A sleeper first says that he sleeps, then looks at the lock once more;
//! who lets go first frees the lock, then looks for sleepers. A processor may make that look before
//! the store is seen by others, and a fence against it would cost as much as the compare-and-swap
//! that is saved. So both may look too early: the sleeper sees the lock held, and is not told. That
//! window is a few nanoseconds, and whoever is in it sleeps for one [`NAP`] and looks again. With the
//! fence no call is lost at all, which `tests/lock.rs` shows for every order of events.
//!
//! **Who comes first** is not settled: a thread that comes while others wait may take the lock. To
//! hand it on in order would move all that the heap consists of from one processor to another with
//! each call.
//!
//! **A panic** of the work poisons the lock, as with the standard one: what it protects may be half
//! changed.
//!
//! **After a fork** the child has the lock as it was: if another thread of its parent held it, it is
//! held for ever. The standard lock is no better, and the child of a process that uses CUDA cannot use
//! CUDA anyway.

use std::sync::PoisonError;
use std::time::Duration;

use crate::sync::{
    AtomicBool, AtomicU32, Condvar, Mutex, Ordering, ROUNDS, UnsafeCell, fence, fence_of_release,
    pause, wait_timeout, yield_now,
};

const FREE: u32 = 0;
const HELD: u32 = 1;
const POISONED: u32 = 2;

/// How long a thread sleeps that is not told that the lock is free.
const NAP: Duration = Duration::from_millis(1);

/// A value that one thread at a time may work with. See the [module](self).
///
/// It has cache lines of its own, two of them since processors fetch pairs: threads that work with
/// different locks do not disturb each other, nor do those that look at this one disturb the work.
#[repr(C, align(128))]
pub(crate) struct Lock<T> {
    word: AtomicU32,
    /// Somebody sleeps and was not told yet.
    has_sleepers: AtomicBool,
    /// Threads that sleep.
    sleepers: Mutex<u32>,
    call: Condvar,
    value: Apart<UnsafeCell<T>>,
}

/// Begins on a cache line of its own.
#[repr(align(128))]
struct Apart<T>(T);

/// The work of an earlier holder panicked.
#[derive(Debug)]
pub(crate) struct Poisoned;

// SAFETY: the value is reached by `with` alone, which one thread at a time is in. It goes from one
// thread to another, for which it must be `Send`; it is never shared.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A lock that is free.
    pub(crate) fn new(value: T) -> Lock<T> {
        Lock {
            word: AtomicU32::new(FREE),
            has_sleepers: AtomicBool::new(false),
            sleepers: Mutex::new(0),
            call: Condvar::new(),
            value: Apart(UnsafeCell::new(value)),
        }
    }

    /// Runs `work` on the value while no other thread does. A thread that is in there already must
    /// not come again: it would wait for itself.
    ///
    /// # Errors
    /// If the work of this or another thread panicked once.
    #[inline]
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R, Poisoned> {
        if !self.try_take() {
            self.wait()?;
        }
        let unwinding = Unwinding(self);
        let result = self.value.0.with_mut(|value| {
            // SAFETY: the lock is held by this thread, so nobody else has a reference to the value;
            // this one ends before the lock is let go.
            work(unsafe { &mut *value })
        });
        std::mem::forget(unwinding);
        self.let_go(FREE);
        Ok(result)
    }

    #[inline]
    fn try_take(&self) -> bool {
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    fn let_go(&self, word: u32) {
        self.word.store(word, Ordering::Release);
        fence_of_release();
        if self.has_sleepers.load(Ordering::Relaxed) {
            self.tell();
        }
    }

    /// Wakes one sleeper. He says himself if others sleep on, so that until he runs nobody else who
    /// lets go calls again.
    #[cold]
    fn tell(&self) {
        let sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_sleepers.store(false, Ordering::Relaxed);
        drop(sleepers);
        self.call.notify_one();
    }

    /// Takes the lock when it is free.
    #[cold]
    fn wait(&self) -> Result<(), Poisoned> {
        loop {
            for round in 0..ROUNDS {
                match self.word.load(Ordering::Relaxed) {
                    FREE if self.try_take() => return Ok(()),
                    POISONED => return Err(Poisoned),
                    _ => back_off(round),
                }
            }
            self.sleep();
        }
    }

    /// Sleeps until the lock seems to be free.
    fn sleep(&self) {
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        *sleepers += 1;
        loop {
            self.has_sleepers.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if self.word.load(Ordering::Relaxed) != HELD {
                break;
            }
            let (guard, is_told) = wait_timeout(&self.call, sleepers, NAP);
            sleepers = guard;
            if is_told {
                break;
            }
        }
        *sleepers -= 1;
        self.has_sleepers.store(*sleepers > 0, Ordering::Relaxed);
    }
}

/// Pauses of the processor before the second look: as long as a few calls take, so that the holder does
/// them with all that the heap consists of in its cache. To look sooner would move it to and fro.
const PAUSES: u32 = 32;

/// Rounds of looking in which only the processor pauses, twice as long each time. In those after them the
/// thread makes way for others, of which one may be the holder.
const PAUSED: u32 = 4;

/// Lets some time go by before another look.
fn back_off(round: u32) {
    if round < PAUSED {
        (0..PAUSES << round).for_each(|_| pause());
    } else {
        yield_now();
    }
}

/// Poisons the lock when the work panics: forgotten if it does not.
struct Unwinding<'a, T>(&'a Lock<T>);

impl<T> Drop for Unwinding<'_, T> {
    fn drop(&mut self) {
        self.0.let_go(POISONED);
    }
}
