//! Long contexts: which tokens of which layer stay on the GPU, go to the host, or are computed again.
//!
//! The memory of a transformer's step grows with the tokens, its time with their square. So a layer's activations
//! can be copied to the host while the next layers run, as far as the link keeps up, and the rest can be computed
//! again. Memo (seed 3 of this project: Zhao et al., SIGMOD 2025) splits every layer at the same token. Here each
//! layer has a split of its own, between three tiers:
//!
//! ```text
//!  tokens of a layer   |  to the host and back  |  stays  |  computed again  |
//! ```
//!
//! A [`Problem`] says what a step is: layers with their times and what they keep for the backward pass. A
//! [`Decision`] says what becomes of every byte of that, and when copies may begin and must have ended. The
//! [`timeline`] is `girih-swap`'s: its simulator and its checker. [`program`] is the linear program whose optimum
//! is the decision, [`mod@bound`] what no decision can beat, [`recount`] a checker that counts the bytes anew.
//! Problems come from the [`shape`] of a model or from a [`recording`].
//!
//! It is a crate of its own and no part of `girih-swap`, because it needs the planners of `girih-plan` for what is
//! transient within a layer. No CUDA, no file, no clock, no chance, no thread.

pub mod baselines;
pub mod bound;
pub mod decision;
pub mod exact;
mod girih;
pub mod longest;
pub mod memo;
pub mod method;
pub mod problem;
pub mod program;
pub mod recording;
pub mod recount;
pub mod scale;
pub mod shape;
pub mod simplex;
pub mod timeline;
pub mod transients;

pub use decision::{Decision, Share};
pub use method::{Answer, Method, Refusal};
pub use problem::{Budgets, Kind, Layer, Problem, Slot};
