//! Why a snapshot could not be read.

use std::io;

use thiserror::Error;

use crate::pickle::PickleError;

/// Why a snapshot could not be read. Each says where: a byte of the decompressed pickle, or an
/// entry, segment or annotation by its index and key.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The source failed before the first byte.
    #[error("cannot read the snapshot: {0}")]
    Io(#[from] io::Error),
    /// It is no pickle, a damaged one, or one that would run code.
    #[error(transparent)]
    Pickle(#[from] PickleError),
    /// A pickle, but not of a memory snapshot.
    #[error(
        "the pickle holds {found}, not a memory snapshot; `torch.cuda.memory._dump_snapshot(file)` \
         writes one"
    )]
    NotASnapshot {
        /// What it holds.
        found: String,
    },
    /// A part of the snapshot is not what it must be.
    #[error("{place}: {problem}")]
    Shape {
        /// The part, with its indices.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Lists that are shared by reference would unfold to far more than the file holds.
    #[error(
        "the snapshot repeats its lists by reference: in full it would be far larger than its \
         {bytes} bytes; PyTorch writes no such file"
    )]
    Unfolds {
        /// Decompressed bytes of the pickle.
        bytes: u64,
    },
    /// More distinct streams or pools than ids.
    #[error("device {device} has more than 65536 {what}")]
    TooMany {
        /// The device.
        device: usize,
        /// Streams or pools.
        what: &'static str,
    },
}
