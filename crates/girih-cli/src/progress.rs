//! Progress for people: on standard error, on a terminal only, gone when the work is done.

use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::sync::atomic::{AtomicI8, Ordering};
use std::time::Duration;

use girih_why::units::printable;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How much is said on standard error: below 0 errors alone, above 0 what is done, line by line.
static LOUDNESS: AtomicI8 = AtomicI8::new(0);

/// Settles how much is said: -1 for `-q`, 1 for `-v`.
pub(crate) fn set_loudness(loudness: i8) {
    LOUDNESS.store(loudness, Ordering::Relaxed);
}

/// A line that says what is going on.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Parts that are done, of how many, if the work has parts.
    parts: Cell<Option<(usize, usize)>>,
}

impl Progress {
    /// Begins to say what is going on. Says nothing if standard error is no terminal.
    pub(crate) fn new() -> Progress {
        let bar = ProgressBar::new_spinner();
        if LOUDNESS.load(Ordering::Relaxed) != 0 {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        bar.set_style(
            ProgressStyle::with_template("{spinner} {msg} ({elapsed})")
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        bar.enable_steady_tick(Duration::from_millis(120));
        Progress { bar, parts: Cell::new(None) }
    }

    /// Shows nothing on a terminal: for work of which several pieces are done at once.
    pub(crate) fn hidden() -> Progress {
        Progress { bar: ProgressBar::hidden(), parts: Cell::new(None) }
    }

    /// Says what goes on from now.
    pub(crate) fn say(&self, what: impl Into<String>) {
        let what = printable(&what.into()).into_owned();
        if LOUDNESS.load(Ordering::Relaxed) > 0 {
            say_aside(&format!("girih: {what}"));
        }
        self.show(what);
    }

    /// Shows on a terminal what goes on, and says it nowhere else.
    pub(crate) fn show(&self, what: impl Into<String>) {
        let what = what.into();
        let share = match self.parts.get() {
            Some((done, all)) if all > 1 => format!("{:>3} % ", 100 * done / all),
            _ => String::new(),
        };
        self.bar.set_message(format!("{share}{what}"));
    }

    /// So many parts of the work are done.
    pub(crate) fn part(&self, done: usize, all: usize) {
        self.parts.set(Some((done, all)));
    }

    /// Prints something on standard output, with nothing that moves above or below it.
    pub(crate) fn make_room<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// The rest has no parts.
    pub(crate) fn whole(&mut self) {
        self.parts.set(None);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Says what has ended the command, in the place of whatever line says what is going on.
pub(crate) fn say_interrupted(by: &str) {
    use std::io::IsTerminal;
    let mut out = io::stderr();
    let clear = if out.is_terminal() { "\r\x1b[2K" } else { "" };
    let _ = writeln!(out, "{clear}girih: cut short by {by}");
}

/// Prints an error with all its causes.
pub(crate) fn report_error(error: &anyhow::Error) {
    // If standard error is closed there is nobody to tell.
    let _ = writeln!(io::stderr(), "girih: {}", printable(&in_one_line(error)));
}

/// An error and its causes, each once: many a message has its cause in it already.
pub(crate) fn in_one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

thread_local! {
    /// What this thread has said aside, where that is kept.
    static KEPT: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Does some work, and gives what it says aside on this thread, warnings too, to be said when its turn
/// comes.
pub(crate) fn kept<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    KEPT.set(Some(Vec::new()));
    let result = work();
    (result, KEPT.take().unwrap_or_default())
}

/// Says on standard error what standard output has no room for.
pub(crate) fn say_aside(text: &str) {
    KEPT.with_borrow_mut(|kept| match kept {
        Some(said) => said.push(text.to_owned()),
        None => {
            let _ = writeln!(io::stderr(), "{text}");
        }
    });
}

/// Prints a warning about a file.
pub(crate) fn warn(warning: &str) {
    if LOUDNESS.load(Ordering::Relaxed) < 0 {
        return;
    }
    say_aside(&format!("girih: warning: {}", printable(warning)));
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_that_a_message_has_in_it_is_not_said_again() {
        let root = || io::Error::other("the disk is full");
        let wrapped = anyhow::Error::new(root()).context("the file: the disk is full");
        assert_eq!(in_one_line(&wrapped), "the file: the disk is full");
        let told: anyhow::Result<()> = Err(root()).context("cannot write x");
        assert_eq!(in_one_line(&told.unwrap_err()), "cannot write x: the disk is full");
    }
}
