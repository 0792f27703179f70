//! Will my job fit? What each allocator would make of a job at sizes at which nobody has run it.
//!
//! A job has a parameter: the microbatch, the tokens of a sequence, the GPUs that share it. Recordings of one rank at
//! two values of it say of each request how it grows, and so what the recording at any other value would be:
//!
//! ```text
//!  at 4   weights 8 MiB   hidden 16 MiB   logits 48 MiB          a recording
//!  at 8   weights 8 MiB   hidden 32 MiB   logits 96 MiB          a recording
//!            | the same      | 4 MiB each    | 12 MiB each       a law for each request
//!  at 11  weights 8 MiB   hidden 44 MiB   logits 132 MiB         built
//!            └──────────────── replayed on a simulated GPU of the capacity, allocator by allocator
//! ```
//!
//! [`Family`] matches the requests and has their laws ([`law`]); [`Subject`] is a recording, or one that was built,
//! ready for every allocator; [`largest`] looks for the largest value that fits. Where the parameter is the number of
//! GPUs, nothing is built: [`worlds`] takes the recordings as they are, and the worst rank decides.
//!
//! It is a crate of its own, because it needs traces, planners and policies, and is asked for by the command and later
//! by Python. No file, no print, no thread, no clock, no chance.

pub mod family;
pub mod law;
mod matching;
pub mod search;
pub mod subject;
pub mod worlds;

pub use family::{Family, HeldOut, Run, Tally, Unlike};
pub use law::{Kind, Law};
pub use search::{Found, largest};
pub use subject::{Outcome, Subject};
