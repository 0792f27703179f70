//! How a heap calls for its program: hooks shall be set, or a user be told something.
//!
//! A heap is asked for memory under locks of others, and may not wait for Python's. So the call is made by a thread of
//! its own, and what it calls only leaves word for the program, which comes when it can.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::heaps;

static CALL: OnceLock<fn()> = OnceLock::new();
static WANTS_HOOKS: AtomicBool = AtomicBool::new(false);
static HAS_HOOKS: AtomicBool = AtomicBool::new(false);

/// From now on the program is called by this function, which takes no lock that is held while memory is asked for. The
/// first call counts.
pub(crate) fn set(call: fn()) {
    let _ = CALL.set(call);
}

/// Calls for the program. It may come later, or never.
pub(crate) fn call() {
    let Some(&call) = CALL.get() else { return };
    if heaps::is_finished() {
        return;
    }
    // Without a thread nobody comes: hooks are asked for again, and what shall be said waits for the next occasion.
    let _ = thread::Builder::new().name("girih-call".to_owned()).spawn(call);
}

/// A heap wants to know of saved tensors from now on.
pub(crate) fn want_hooks() {
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
