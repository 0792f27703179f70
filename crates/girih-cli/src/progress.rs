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
    let _ = writeln!(io::stderr(), "girih: {error:#}");
}

/// Prints a warning about a file.
pub(crate) fn warn(warning: &str) {
    let _ = writeln!(io::stderr(), "girih: warning: {warning}");
}
