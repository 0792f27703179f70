//! PyTorch's door: a heap for each device, and the C interface over them (`include/girih.h`).
//!
//! ```text
//!  PyTorch ─► C++ class ─► abi ─► heaps ─► heap ─► policy ─► device
//!                                            │
//!                                  control ──┴──► journal ─► sink, recorder
//! ```
//!
//! This is the outermost room: the one that knows locks, threads, clocks and files, so that the
//! policies inside know none of them. What a policy decides here is what it decides in a replay.

pub mod abi;
mod addresses;
mod background;
mod callers;
pub mod control;
mod cuda;
mod degrade;
mod device;
mod early;
mod engine;
mod error;
mod heap;
pub mod heaps;
mod journal;
mod kept;
mod kept_plans;
#[expect(unsafe_code, reason = "a lock hands out what it protects")]
mod lock;
#[cfg(test)]
mod lock_tests;
mod oom;
pub mod plug;
mod pool_ids;
mod recorder;
mod settings;
mod sources;
mod streams;
pub mod swap;
mod sync;
mod units;

pub use device::{BegunAlloc, Closing, Exported, HeapDevice, Wait};
pub use error::{HeapError, Outcome};
pub use heap::{Heap, HeapCheckpoint, Saved};
pub use oom::OutOfMemory;
pub use settings::{Mode, Settings, Simulated};
pub use sources::{Source, SourceAlloc, SourceFree};
