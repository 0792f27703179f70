//! Progress for people: on standard error, on a terminal only, gone when the work is done.

use std::io::{self, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A line that says what is going on.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Begins to say what is going on. Says nothing if standard error is no terminal.
    pub(crate) fn new() -> Progress {
        let bar = ProgressBar::new_spinner();
        bar.set_style(
            ProgressStyle::with_template("{spinner} {msg} ({elapsed})")
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        bar.enable_steady_tick(Duration::from_millis(120));
        Progress(bar)
    }

    /// Says what goes on from now.
    pub(crate) fn say(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Prints an error with all its causes.
pub(crate) fn report_error(error: &anyhow::Error) {
    // If standard error is closed there is nobody to tell.
    let _ = writeln!(io::stderr(), "girih: {}", in_one_line(error));
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

/// Says on standard error what standard output has no room for.
pub(crate) fn say_aside(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints a warning about a file.
pub(crate) fn warn(warning: &str) {
    let _ = writeln!(io::stderr(), "girih: warning: {warning}");
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
