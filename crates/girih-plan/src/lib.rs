//! Where every tensor goes.
//!
//! A [`Problem`] is a set of buffers, each with a size and a lifetime; a [`Solution`] gives each an
//! offset so that no two buffers that are alive together share a byte, in an arena as low as can
//! be. Planners live one a file; [`bound`] says what none of them can beat; [`check`] trusts none.
//!
//! This crate knows no runtime, opens no file, reads no clock and uses no unseeded chance.

pub mod problem;

pub use problem::{Buffer, Problem, Solution};
