//! One door for every file that holds a recording.

use std::io::{self, Cursor, Read};

use thiserror::Error;

use crate::bounds::{self, BoundsError};
use crate::compress::{Input, Limits, fill};
use crate::file::{self, FileError, MAGIC};
use crate::snapshot::{self, ReadError};
use crate::trace::Recording;

/// Why a file could not be opened as a recording.
#[derive(Debug, Error)]
pub enum OpenError {
    /// It could not be read or decompressed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is a snapshot, but a damaged one.
    #[error(transparent)]
    Snapshot(#[from] ReadError),
    /// It is a trace file, but a damaged one.
    #[error(transparent)]
    File(#[from] FileError),
    /// It says of sizes and addresses what cannot be.
    #[error(transparent)]
    Bounds(#[from] BoundsError),
    /// It has no bytes.
    #[error("write or copy it again: it is empty")]
    Empty,
    /// It is nothing that is known.
    #[error(
        "give a PyTorch memory snapshot or a trace file of Girih: this is neither, it begins with {0}"
    )]
    Unknown(String),
}

/// Opcodes with which a pickled dict, list or tuple begins: PROTO, or without it, as in protocols
/// 0 and 1, MARK, EMPTY_DICT, EMPTY_LIST.
const PICKLE_STARTS: [u8; 4] = [0x80, b'(', b'}', b']'];

/// Reads a snapshot or a trace file, whichever `input` is; it may be gzipped or in zstd.
///
/// # Errors
/// If `input` is neither of them, a damaged one, or one beyond all bounds ([`bounds::check_sizes`]); see
/// [`OpenError`].
pub fn detect_and_read(input: impl Read, limits: Limits) -> Result<Recording, OpenError> {
    let mut input = Input::new(input, limits)?;
    let mut head = [0; MAGIC.len()];
    let length = fill(&mut input, &mut head)?;
    let head = &head[..length];
    let recording = match head {
        _ if head == MAGIC => file::read_behind(head, input, limits)?,
        [first, ..] if PICKLE_STARTS.contains(first) => {
            snapshot::read_decompressed(Cursor::new(head).chain(input))?
        }
        [] => return Err(OpenError::Empty),
        _ => return Err(OpenError::Unknown(as_text(head))),
    };
    recording.traces.iter().try_for_each(bounds::check_sizes)?;
    Ok(recording)
}

/// Bytes as they are shown: what is no printable character is escaped.
fn as_text(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes.escape_ascii())
}
