//! What the lock is made of: the standard library's. `tests/lock.rs` puts `loom`'s in its place,
//! which goes through every order of events.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) use std::hint::spin_loop as pause;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
pub(crate) use std::sync::{Condvar, Mutex};
pub(crate) use std::thread::yield_now;

/// Looks at a lock before a thread sleeps: five to twenty microseconds.
pub(crate) const ROUNDS: u32 = 9;

/// Between letting go of the lock and looking for sleepers: nothing. In the model it is a fence.
#[inline]
pub(crate) fn fence_of_release() {}

/// Sleeps until called, or for `nap`; true if called. Now and then it is woken by nobody, and says
/// true.
pub(crate) fn wait_timeout<'a, T>(
    call: &Condvar,
    guard: MutexGuard<'a, T>,
    nap: Duration,
) -> (MutexGuard<'a, T>, bool) {
    let (guard, result) = call.wait_timeout(guard, nap).unwrap_or_else(PoisonError::into_inner);
    (guard, !result.timed_out())
}

/// A cell whose value is reached by a pointer.
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(crate) fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
        work(self.0.get())
    }
}
