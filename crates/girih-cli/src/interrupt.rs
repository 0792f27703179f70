//! Ctrl-C: a command says that it was cut short, leaves nothing on the terminal, and exits with
//! 130.
//!
//! A search that has something to show for its time so far asks for the first Ctrl-C and ends by
//! itself; a second one ends the command.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::progress;

/// Exit status of a command that Ctrl-C ended: 128 and the number of SIGINT, as a shell has it.
pub(crate) const STATUS: u8 = 130;

/// Whether the first Ctrl-C is for the command itself.
static HAS_RESULT: AtomicBool = AtomicBool::new(false);
static HAS_COME: AtomicBool = AtomicBool::new(false);

/// Watches for Ctrl-C from now on. Where it cannot be watched for, the system ends the command.
pub(crate) fn watch() {
    let _ = ctrlc::try_set_handler(|| {
        let is_second = HAS_COME.swap(true, Ordering::Relaxed);
        if is_second || !HAS_RESULT.load(Ordering::Relaxed) {
            progress::say_interrupted();
            std::process::exit(i32::from(STATUS));
        }
    });
}

/// Leaves the first Ctrl-C to the command, which looks here for it and gives what it has.
pub(crate) fn wait_for_result() -> &'static AtomicBool {
    HAS_RESULT.store(true, Ordering::Relaxed);
    &HAS_COME
}
