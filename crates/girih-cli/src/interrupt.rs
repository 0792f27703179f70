//! Signals that end a command: Ctrl-C, SIGTERM of a scheduler, SIGHUP of a terminal that goes.
//!
//! A command that is ended so says it, leaves nothing on the terminal and no file half written, and
//! exits with 128 and the number of the signal, as a shell has it: 130, 143, 129.
//!
//! A search that has something to show for its time so far asks for the first signal and ends by
//! itself; a second one ends the command.
//!
//! What whoever started the command has it ignore stays ignored: SIGHUP under `nohup`, SIGINT in the
//! background of a script. Each signal is looked at for itself.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::{files, progress};

/// A shell's exit status of what a signal ended is its number and this.
const STATUS: i32 = 128;

/// Whether the first signal is for the command itself.
static HAS_RESULT: AtomicBool = AtomicBool::new(false);
static HAS_COME: AtomicBool = AtomicBool::new(false);
/// The number of the signal that came first, 0 until then.
static NUMBER: AtomicI32 = AtomicI32::new(0);

/// Watches for the signals from now on. Where they cannot be watched for, the system ends the command.
#[cfg(unix)]
#[expect(clippy::disallowed_methods, reason = "a signal comes while the command works")]
pub(crate) fn watch() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let ignored = ignored();
    let is_watched = |number: &i32| match ignored {
        Some(mask) => mask & (1 << (number - 1)) == 0,
        // Who used `nohup` cannot be known: the system does with SIGHUP what it was told.
        None => *number != SIGHUP,
    };
    let watched = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(is_watched);
    let Ok(mut signals) = signal_hook::iterator::Signals::new(watched) else { return };
    std::thread::spawn(move || signals.forever().for_each(come));
}

/// Elsewhere the system ends the command.
#[cfg(not(unix))]
pub(crate) fn watch() {}

/// The signals that this process was started to ignore, the first in the lowest bit, where the
/// system tells. To ask the C library would be unsafe.
#[cfg(unix)]
fn ignored() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(unix)]
fn come(number: i32) {
    let is_second = HAS_COME.load(Ordering::Relaxed);
    if !is_second {
        NUMBER.store(number, Ordering::Relaxed);
        // Who sees that a signal has come sees which.
        HAS_COME.store(true, Ordering::Release);
    }
    if is_second || !HAS_RESULT.load(Ordering::Relaxed) {
        end();
    }
}

/// Ends the command, with a word and without what it was writing.
pub(crate) fn end() -> ! {
    files::discard_unfinished();
    progress::say_interrupted(name());
    std::process::exit(STATUS + NUMBER.load(Ordering::Relaxed))
}

/// Leaves the first signal to the command, which looks here for it and gives what it has.
pub(crate) fn wait_for_result() -> &'static AtomicBool {
    HAS_RESULT.store(true, Ordering::Relaxed);
    &HAS_COME
}

/// The exit status of a command that a signal cut short.
pub(crate) fn status() -> u8 {
    // The numbers are small.
    (STATUS + NUMBER.load(Ordering::Relaxed)) as u8
}

/// The signal that has come, as people call it.
pub(crate) fn name() -> &'static str {
    match NUMBER.load(Ordering::Relaxed) {
        15 => "SIGTERM",
        1 => "SIGHUP",
        _ => "Ctrl-C",
    }
}
