//! What the lock is made of in a model: `loom`'s. The real thing is `src/sync.rs`.

use std::sync::PoisonError;
use std::time::Duration;

use loom::sync::MutexGuard;

pub(crate) use loom::cell::UnsafeCell;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
pub(crate) use loom::sync::{Condvar, Mutex};
pub(crate) use loom::thread::yield_now;

/// One look, so that threads sleep as often as can be.
pub(crate) const ROUNDS: u32 = 1;

/// No thread is waited for here by letting time go by.
pub(crate) fn pause() {}

/// With this fence nobody who sleeps is forgotten. There are no naps here to make up for it.
pub(crate) fn fence_of_release() {
    fence(Ordering::SeqCst);
}

/// Sleeps until called.
pub(crate) fn wait_timeout<'a, T>(
    call: &Condvar,
    guard: MutexGuard<'a, T>,
    _nap: Duration,
) -> (MutexGuard<'a, T>, bool) {
    (call.wait(guard).unwrap_or_else(PoisonError::into_inner), true)
}
