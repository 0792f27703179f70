//! Girih's own trace file, `.girih`: small, quick to read, and open to numpy.
//!
//! A file is a header in JSON and then columns: one array of integers after another, each a zstd
//! frame with a checksum. The layout is in `docs/trace-format.md`, with a reader in Python.
//!
//! ```text
//!  ┌───────┬─────────┬────────┬───────┬─────────────┬──────────┬──────────┬────
//!  │ magic │ version │ length │ crc32 │ JSON header │ column 0 │ column 1 │ ...
//!  └───────┴─────────┴────────┴───────┴─────────────┴──────────┴──────────┴────
//!      8        4         4       4      `length`     as many bytes as the header says
//! ```
//!
//! What makes it small is that a free says nothing new: the address, size, stream and pool of a
//! free are those of an earlier allocation, and the file holds only how many allocations ago.

mod column;
mod error;
mod events;
mod header;
mod read;
#[cfg(test)]
mod tests;
mod write;

use std::io::{Read, Write};

pub use self::error::FileError;
use crate::compress::{Input, Limits};
use crate::trace::Recording;

/// The first bytes of every trace file. As PNG's, they show damage by a transfer as text.
pub const MAGIC: [u8; 8] = *b"\x89GIRIH\r\n";
/// The latest version, that of files with uses. It is the latest that is read.
pub const VERSION: u32 = 2;
/// The version of files without uses, which every release of Girih reads.
const VERSION_WITHOUT_USES: u32 = 1;
/// The longest header in bytes.
const MAX_HEADER: usize = 16 << 20;
/// Bytes that the names of all marks of a trace may take.
const MAX_NAMES: usize = 256 << 20;

/// Writes a recording: every trace with all that belongs to it. What is written is read within the
/// limits that a reader has by itself, however often the recording repeats itself.
///
/// # Errors
/// If `output` fails, if a trace refers to streams, pools, stacks, frames or events that it does not
/// have, or if its names are longer than any reader takes.
pub fn write(recording: &Recording, output: impl Write) -> Result<(), FileError> {
    write::write(recording, output, Limits::default())
}

/// Reads a recording. The file itself may be compressed once more, with gzip or zstd.
///
/// # Errors
/// If `input` fails, if it is no trace file, or one that is cut short or damaged; see
/// [`FileError`].
pub fn read(input: impl Read, limits: Limits) -> Result<Recording, FileError> {
    read::read(&[], Input::new(input, limits)?, limits)
}

/// Reads a recording of which the first bytes, `head`, were looked at already.
pub(crate) fn read_behind<R: Read>(
    head: &[u8],
    input: Input<R>,
    limits: Limits,
) -> Result<Recording, FileError> {
    read::read(head, input, limits)
}
