//! Why a trace file could not be read or written.

use std::io;

use thiserror::Error;

use super::{MAX_HEADER, MAX_NAMES, VERSION};

/// Why a trace file could not be read or written.
#[derive(Debug, Error)]
pub enum FileError {
    /// The source or the target failed, or could not be decompressed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The magic is missing.
    #[error("give a file that `girih convert` wrote: this one has not the magic of a trace file")]
    NotATrace,
    /// A version from the future.
    #[error("update girih: the trace file has version {0}, and this one reads up to {VERSION}")]
    Version(u32),
    /// The file ends too early.
    #[error("write or copy it again, it was cut short: the trace file ends in {0}")]
    Truncated(String),
    /// The header is longer than any.
    #[error(
        "make the recording shorter: the header of the trace file has {0} bytes, and at most \
         {MAX_HEADER} are allowed"
    )]
    HeaderLength(usize),
    /// The header does not match its checksum.
    #[error("copy it again, it is damaged: the checksum of its header differs")]
    HeaderChecksum,
    /// The header is not the JSON that it should be.
    #[error("copy it again, it is damaged: the header of the trace file: {0}")]
    Header(#[from] serde_json::Error),
    /// The names of the marks are longer than any.
    #[error(
        "shorten the names of the marks: they take {0} bytes, and at most {MAX_NAMES} are allowed"
    )]
    Names(usize),
    /// A trace that is to be written has an index to nothing.
    #[error("please report this bug: trace {trace} refers to a {what} that it does not have")]
    Dangling {
        /// The trace, by its index in the recording.
        trace: usize,
        /// What is not there.
        what: &'static str,
    },
    /// A column is wrong.
    #[error("copy it again, it is damaged: trace {trace}, column `{column}`: {problem}")]
    Column {
        /// The trace, by its index in the file.
        trace: usize,
        /// The column.
        column: String,
        /// What is wrong with it.
        problem: String,
    },
}
