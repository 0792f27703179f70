//! How a heap calls for its program: hooks shall be set, or a user be told something.
//!
//! ```text
//!  request ─► lock ─► "half full": due ─► unlock ─► call ─► word is left for the main thread
//! ```
//!
//! A call takes a lock of Python's, in some releases with its global one in turn, so it is made once the lock of the
//! heap is let go, by the thread that asked for memory. It waits for nobody: what is called only leaves word, and where
//! that thread is the main one it is heard before the program's next operator.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::heaps;

static CALL: OnceLock<fn()> = OnceLock::new();
static IS_DUE: AtomicBool = AtomicBool::new(false);
static WANTS_HOOKS: AtomicBool = AtomicBool::new(false);
static HAS_HOOKS: AtomicBool = AtomicBool::new(false);

/// From now on the program is called by this function, which takes no lock that is held while memory is asked for.
/// The first call counts.
pub(crate) fn set(call: fn()) {
    let _ = CALL.set(call);
}

/// Calls for the program, after the present request or the next one of [`LEAST`](super::LEAST) bytes. It may come
/// later, or never.
pub(super) fn call() {
    IS_DUE.store(true, Ordering::Relaxed);
}

/// Makes the call that is due, if there is one. To be called without locks.
#[inline]
pub(crate) fn make_due_call() {
    if IS_DUE.load(Ordering::Relaxed) {
        make_call();
    }
}

#[cold]
fn make_call() {
    if IS_DUE.swap(false, Ordering::Relaxed)
        && let Some(call) = CALL.get()
        && !heaps::is_finished()
    {
        call();
    }
}

/// A heap wants to know of saved tensors from now on.
pub(super) fn want_hooks() {
    WANTS_HOOKS.store(true, Ordering::Relaxed);
    call();
}

/// True once a heap wanted hooks.
pub(crate) fn wants_hooks() -> bool {
    WANTS_HOOKS.load(Ordering::Relaxed)
}

/// The program has set hooks.
pub(crate) fn note_hooks() {
    HAS_HOOKS.store(true, Ordering::Relaxed);
}

pub(super) fn has_hooks() -> bool {
    HAS_HOOKS.load(Ordering::Relaxed)
}
