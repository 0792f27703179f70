//! Seeded generators of traces, for tests, fuzzing and benchmarks.
//!
//! [`training`] makes traces like those of Megatron-LM, [`buckets()`] such as have steps of several
//! kinds, [`program`] programs of other kinds, [`died()`] such as run out of memory; [`recording`] makes arbitrary valid ones,
//! with streams, pools, deferred frees, segments, stacks and marks, small enough to look at. All
//! are functions of their arguments alone: one seed, one trace, on every machine.
//!
//! [`recording`] draws its decisions from a [`Chance`]: numbers from a seed ([`Rng`]) or bytes
//! from a fuzzer ([`Bytes`]), so that one generator serves property tests and fuzz targets.

mod buckets;
mod builder;
mod chance;
mod died;
mod kinds;
mod random;
mod training;

pub use buckets::{Buckets, buckets};
pub use chance::{Bytes, Chance, Rng};
pub use died::{Death, died, died_with};
pub use kinds::{Kind, program};
pub use random::recording;
pub use training::{Change, ChangeKind, Training, training};
