//! Why a trace file could not be read or written.

use std::io;

use thiserror::Error;

use super::{MAX_HEADER, VERSION};

/// Why a trace file could not be read or written.
#[derive(Debug, Error)]
pub enum FileError {
    /// The source or the target failed, or could not be decompressed.
    #[error("cannot read or write the trace file: {0}")]
    Io(#[from] io::Error),
    /// The magic is missing.
    #[error("this is no trace file of Girih: it does not begin with its magic")]
    NotATrace,
    /// A version from the future.
    #[error("the trace file has version {0}; this program reads up to {VERSION}: update it")]
    Version(u32),
    /// The file ends too early.
    #[error("the trace file ends in {0}; it was cut short, write or copy it again")]
    Truncated(String),
    /// The header is longer than any.
    #[error("the header of the trace file is {0} bytes long, at most {MAX_HEADER} are allowed")]
    HeaderLength(usize),
    /// The header does not match its checksum.
    #[error("the header of the trace file is damaged: its checksum differs; copy it again")]
    HeaderChecksum,
    /// The header is not the JSON that it should be.
    #[error("the header of the trace file: {0}")]
    Header(#[from] serde_json::Error),
    /// A column is wrong.
    #[error("trace {trace}, column `{column}`: {problem}")]
    Column {
        /// The trace, by its index in the file.
        trace: usize,
        /// The column.
        column: String,
        /// What is wrong with it.
        problem: String,
    },
}
