//! What can go wrong in a heap. The C interface has a status for each kind, and its text.

use girih_runtime::{AllocError, DeviceError};
use thiserror::Error;

use crate::oom::OutOfMemory;

/// Why a heap did not do what it was asked.
#[derive(Debug, Error)]
pub enum HeapError {
    /// Nothing that is free serves the request and the device gives no more.
    #[error("{}", .0.text)]
    OutOfMemory(OutOfMemory),
    /// There is no such block, device or pool.
    #[error("{0}")]
    Unknown(String),
    /// The driver refused a call for another reason than memory.
    #[error("{0}")]
    Driver(String),
    /// It cannot be done with this kind of memory.
    #[error("{0}")]
    Unsupported(String),
    /// The device is to be asked for a segment without the lock. It never leaves the heap.
    #[error("a segment is to be taken from the device without the lock")]
    SegmentLeft(SegmentLeft),
    /// A panic inside. The heap refuses all further work.
    #[error("{0}")]
    Bug(String),
}

/// A request that goes on once the device was asked for a segment, without the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentLeft {
    /// Bytes of the segment.
    pub(crate) segment: u64,
    /// Bytes asked for.
    pub(crate) size: u64,
    /// The handle of the stream.
    pub(crate) stream: u64,
    /// PyTorch's id of the pool.
    pub(crate) pool: (u64, u64),
}

/// What an operation of a heap gives. The error is boxed: what is returned when all is well stays
/// in registers.
pub type Outcome<T> = Result<T, Box<HeapError>>;

/// An error of [`HeapError::Unknown`].
pub(crate) fn unknown(text: impl Into<String>) -> Box<HeapError> {
    Box::new(HeapError::Unknown(text.into()))
}

/// An error of [`HeapError::Unsupported`].
pub(crate) fn unsupported(text: impl Into<String>) -> Box<HeapError> {
    Box::new(HeapError::Unsupported(text.into()))
}

/// An error of [`HeapError::Bug`].
pub(crate) fn bug(text: impl Into<String>) -> Box<HeapError> {
    Box::new(HeapError::Bug(text.into()))
}

impl From<DeviceError> for Box<HeapError> {
    fn from(error: DeviceError) -> Box<HeapError> {
        Box::new(match error {
            DeviceError::Misuse { .. } => HeapError::Bug(format!(
                "Girih broke a rule of the device, which is a bug of Girih: {error}; please report it"
            )),
            error => HeapError::Driver(error.to_string()),
        })
    }
}

impl From<AllocError> for Box<HeapError> {
    fn from(error: AllocError) -> Box<HeapError> {
        match error {
            AllocError::Device(error) => error.into(),
            AllocError::Unsupported { .. } => Box::new(HeapError::Unsupported(error.to_string())),
            error => Box::new(HeapError::Unknown(error.to_string())),
        }
    }
}
