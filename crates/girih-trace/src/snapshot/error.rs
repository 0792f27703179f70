//! Why a snapshot could not be read.

use std::io;

use thiserror::Error;

use crate::pickle::PickleError;

/// Why a snapshot could not be read. Each says where: a byte of the decompressed pickle, or an
/// entry, segment or annotation by its index and key.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The source failed before the first byte.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is no pickle, a damaged one, or one that would run code.
    #[error(transparent)]
    Pickle(#[from] PickleError),
    /// A pickle, but not of a memory snapshot.
    #[error(
        "write one with `torch.cuda.memory._dump_snapshot(file)`: the pickle holds {found}, not a \
         memory snapshot"
    )]
    NotASnapshot {
        /// What it holds.
        found: String,
    },
    /// A part of the snapshot is not what it must be.
    #[error("record or copy it again, PyTorch writes no such snapshot: {place}: {problem}")]
    Shape {
        /// The part, with its indices.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Lists that are shared by reference would unfold to far more than the file holds.
    #[error(
        "record it again, PyTorch writes no such snapshot: it repeats its lists by reference, and in \
         full it would be far larger than its {bytes} bytes"
    )]
    Unfolds {
        /// Decompressed bytes of the pickle.
        bytes: u64,
    },
    /// Nothing is known of what it recorded.
    #[error("update girih, the snapshot has no action that is known: the first is {action:?}")]
    NoKnownAction {
        /// The name of the first.
        action: String,
    },
    /// More distinct streams or pools than ids.
    #[error("record a shorter part of the run: device {device} has more than 65536 {what}")]
    TooMany {
        /// The device.
        device: usize,
        /// Streams or pools.
        what: &'static str,
    },
}
