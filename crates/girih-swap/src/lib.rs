//! What does not fit: which tensors of a step go to the host and come back, and when.
//!
//! A [`Step`] is what one training step runs: operators with their times, the bytes alive during each, and the
//! tensors that lie idle in between. A [`Schedule`] says which of them go and come over two [`Links`].
//! [`simulate()`] gives a schedule its times, [`mod@check`] trusts neither, [`mod@bound`] says what no schedule can beat, and
//! [`exact`] finds the best one of small steps. The methods that make schedules live one a file.
//!
//! This crate knows traces. It knows no CUDA, no Python, no clock and no unseeded chance.

pub mod bound;
pub mod capuchin;
pub mod chameleon;
pub mod check;
mod coarse;
mod cover;
mod defer;
pub mod exact;
pub mod execute;
mod fetch;
mod flow;
pub mod girih;
pub mod later;
pub mod links;
pub mod method;
pub mod policies;
mod reach;
pub mod record;
mod room;
pub mod schedule;
pub mod sequences;
pub mod settings;
mod settle;
pub mod simulate;
pub mod step;
pub mod steps;
mod whole;

pub use later::{Later, later};
pub use links::Links;
pub use method::{Answer, Budgets, Method};
pub use schedule::{Away, Schedule};
pub use simulate::{Run, simulate};
pub use step::{Gap, Op, Pass, Step, Tensor};
pub use steps::{Assumed, StepError, Steps};
