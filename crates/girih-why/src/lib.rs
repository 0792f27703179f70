//! Why a run was refused memory.
//!
//! A recording of a run that died is looked at where it died: what was alive, what was held and lay
//! idle, and whose that was; what there was to have; what stayed behind from step to step. Of the
//! things that could have been otherwise, the one that would have made the most difference is the
//! [`Verdict`]. Then the refused request is tried again under other settings, on a simulated
//! device, and what fits is advised.
//!
//! ```text
//!  recording ─► refusal ─► moment, capacity ─► growth, spike, idle, others ─► verdict ─┐
//!                  └─────► replays of the part before it, with it ─► would_fit ────────┴─► diagnosis
//! ```
//!
//! This crate opens no file, prints nothing, and has no thread and no clock.

pub mod advice;
pub mod batch;
pub mod capacity;
pub mod category;
pub mod diagnosis;
pub mod frames;
pub mod groups;
pub mod growth;
pub mod moment;
pub mod ranks;
pub mod refusal;
pub mod replays;
pub mod report;
pub mod spike;
pub mod steps;
pub mod units;
pub mod verdict;

pub use capacity::{Capacity, Known, read_sentence};
pub use category::Category;
pub use diagnosis::{At, Diagnosis, Question, Recorded, WhyError, diagnose};
pub use groups::{By, Group};
pub use refusal::Refusal;
pub use replays::{Case, Fit, SETTINGS, Setting};
pub use report::Report;
pub use verdict::Verdict;
