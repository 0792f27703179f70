//! What a training run asked of its memory.
//!
//! A [`Trace`] is an ordered list of [`Event`]s of one device: allocations, frees, what the
//! allocator took from the device and gave back, and [`Mark`]s that say where a step or a module
//! began. A recording, a simulation and a run on a GPU are all traces, of this one type.
//!
//! This crate knows how to read one ([`snapshot`], [`mod@file`]) and how to understand one
//! ([`lifetimes`], [`iterations`], [`statistics`]). It knows no allocator, no CUDA, no thread and
//! no clock.

pub mod align;
pub mod bounds;
pub mod compress;
pub mod earlier;
pub mod event;
pub mod file;
pub mod generate;
pub mod iterations;
pub mod kinds;
pub mod lifetimes;
pub mod mark;
pub mod marks;
pub mod open;
pub mod parts;
pub mod phases;
pub mod pickle;
mod ranges;
mod seeded;
pub mod snapshot;
pub mod statistics;
pub mod trace;
pub mod uses;

pub use earlier::{Contradiction, Earlier, EarlierBlock, EarlierSegment, Evidence};
pub use event::{Action, Event, PoolId, StackId, StreamId, Tick};
pub use iterations::{Iteration, Iterations, Source};
pub use lifetimes::{Lifetime, Lifetimes};
pub use mark::{Mark, MarkKind, Recorded};
pub use phases::{Phase, PhaseKind, Phases, Scope};
pub use statistics::Statistics;
pub use trace::{Block, BlockState, Origin, Recording, Segment, Settings, Trace};
pub use uses::{Operator, Use, Uses};
