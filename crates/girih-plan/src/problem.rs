//! The planning problem, and what solves it.
//!
//! Time is a ring or a line. On a line (`period` 0) a buffer lives in `[lower, upper)`. On a ring
//! of `period` ticks a buffer with `upper <= period` lives in the same way; one with
//! `upper > period` wraps: it lives in `[lower, period)` and in `[0, upper - period)`, and holds
//! one place in both, so that a plan of one iteration can be followed for ever.
//!
//! ```text
//!  ring of 10:   lower 7, upper 12   ->   alive at 7 8 9 0 1
//! ```

/// One buffer. Sizes in bytes, times in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Buffer {
    /// First tick at which it is alive.
    pub lower: u32,
    /// First tick at which it is no longer alive; on a ring, at most `lower + period`.
    pub upper: u32,
    /// Bytes. A buffer of 0 bytes takes no room and may lie anywhere.
    pub size: u64,
}

/// A set of buffers to be placed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Problem {
    /// The buffers; their index is their identity.
    pub buffers: Vec<Buffer>,
    /// Ticks after which time begins again; 0 for a line.
    pub period: u32,
    /// Every offset must be a multiple of this; 1 for none. At least 1.
    pub alignment: u64,
}

/// An offset for each buffer of a [`Problem`], in its order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Solution {
    /// Bytes from the start of the arena.
    pub offsets: Vec<u64>,
    /// Bytes of the arena: the largest `offset + size`.
    pub height: u64,
    /// The planner that found it.
    pub planner: &'static str,
}
