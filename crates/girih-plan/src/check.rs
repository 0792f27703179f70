//! The checker, which trusts no planner.
//!
//! It shares no code with the planners and none with the bound: what it accepts is right whatever
//! they do. There are two. [`check_pairs`] is the definition written down: every pair of buffers,
//! O(n^2). [`check`] finds the same with a walk through time, O(n log n): an ordered set holds the
//! buffers that are alive by offset, and a newcomer may not reach into its neighbours.
//!
//! ```text
//!  alive, by offset:   [ a )   [  b  )      [ c )
//!  newcomer:                 [ x )                     x reaches into b: both named
//! ```
//!
//! Neither asks whether the height is as low as it could be: an arena may have room to spare.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::problem::{Buffer, Problem, ProblemError, Solution};

/// The law that a solution breaks. Buffers are named by their index in the problem; ranges are
/// half-open.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Violation {
    /// The problem itself has no meaning, so that nothing can solve it.
    #[error("the problem is not valid: {0}")]
    Problem(#[from] ProblemError),
    /// The solution does not give one offset to each buffer.
    #[error("the solution has {offsets} offsets for {buffers} buffers")]
    Count {
        /// Buffers of the problem.
        buffers: usize,
        /// Offsets of the solution.
        offsets: usize,
    },
    /// An offset is no multiple of the alignment.
    #[error("buffer {buffer} lies at byte {offset}, which is not a multiple of {alignment}")]
    Misaligned {
        /// The buffer.
        buffer: usize,
        /// Its offset in bytes.
        offset: u64,
        /// The alignment of the problem.
        alignment: u64,
    },
    /// A buffer ends above the height of the arena.
    #[error(
        "buffer {buffer} of {size} bytes at byte {offset} ends above the arena of {height} bytes"
    )]
    AboveHeight {
        /// The buffer.
        buffer: usize,
        /// Its offset in bytes.
        offset: u64,
        /// Its size in bytes.
        size: u64,
        /// The height of the solution in bytes.
        height: u64,
    },
    /// Two buffers hold the same byte at the same tick.
    #[error(
        "buffers {first} and {second} both hold the bytes [{}, {}) from tick {tick} on",
        bytes.0, bytes.1
    )]
    Overlap {
        /// The one with the smaller index.
        first: usize,
        /// The one with the larger index.
        second: usize,
        /// The bytes that both hold.
        bytes: (u64, u64),
        /// A tick at which both are alive: the first after the birth of one of them.
        tick: u32,
    },
}

/// Checks that `solution` solves `problem`: one offset for each buffer, each a multiple of the
/// alignment, nothing above the height, and no byte held by two buffers at one tick. Buffers of 0
/// bytes hold nothing and may lie anywhere. O(n log n).
pub fn check(problem: &Problem, solution: &Solution) -> Result<(), Violation> {
    check_each(problem, solution)?;

    let mut births: Vec<(u32, usize)> = Vec::new();
    let mut deaths: Vec<(u32, usize)> = Vec::new();
    for (index, buffer) in problem.buffers.iter().enumerate().filter(|(_, b)| b.size > 0) {
        for (from, to) in pieces(buffer, problem.period) {
            births.push((from, index));
            deaths.push((to, index));
        }
    }
    births.sort_unstable();
    deaths.sort_unstable();

    let mut alive: BTreeMap<u64, usize> = BTreeMap::new();
    let mut deaths = deaths.into_iter().peekable();
    for (tick, newcomer) in births {
        while let Some((_, dead)) = deaths.next_if(|(death, _)| *death <= tick) {
            alive.remove(&solution.offsets[dead]);
        }
        let offset = solution.offsets[newcomer];
        let end = offset + problem.buffers[newcomer].size;
        // What is alive is disjoint so far, so that the one below and the one above are enough.
        let below = alive.range(..=offset).next_back();
        let above = alive.range(offset..end).next();
        for (_, &other) in below.into_iter().chain(above) {
            overlap(problem, solution, newcomer, other, tick)?;
        }
        alive.insert(offset, newcomer);
    }
    Ok(())
}

/// The same law as [`check`], as its definition says it: every pair of buffers, and every two
/// pieces of their lifetimes. O(n^2).
pub fn check_pairs(problem: &Problem, solution: &Solution) -> Result<(), Violation> {
    check_each(problem, solution)?;
    for (second, b) in problem.buffers.iter().enumerate().filter(|(_, b)| b.size > 0) {
        for (first, a) in problem.buffers[..second].iter().enumerate().filter(|(_, a)| a.size > 0) {
            for (a_from, a_to) in pieces(a, problem.period) {
                for (b_from, b_to) in pieces(b, problem.period) {
                    if a_from < b_to && b_from < a_to {
                        overlap(problem, solution, first, second, a_from.max(b_from))?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// What can be said of each buffer alone.
fn check_each(problem: &Problem, solution: &Solution) -> Result<(), Violation> {
    problem.validate()?;
    let (buffers, offsets) = (problem.buffers.len(), solution.offsets.len());
    if buffers != offsets {
        return Err(Violation::Count { buffers, offsets });
    }
    let (alignment, height) = (problem.alignment, solution.height);
    for (buffer, (&Buffer { size, .. }, &offset)) in
        problem.buffers.iter().zip(&solution.offsets).enumerate()
    {
        if size > 0 && offset % alignment != 0 {
            return Err(Violation::Misaligned { buffer, offset, alignment });
        }
        if size > 0 && offset.checked_add(size).is_none_or(|end| end > height) {
            return Err(Violation::AboveHeight { buffer, offset, size, height });
        }
    }
    Ok(())
}

/// Refuses two buffers that hold a common byte; `tick` is one at which both are alive.
fn overlap(
    problem: &Problem,
    solution: &Solution,
    one: usize,
    other: usize,
    tick: u32,
) -> Result<(), Violation> {
    let end = |buffer: usize| solution.offsets[buffer] + problem.buffers[buffer].size;
    let from = solution.offsets[one].max(solution.offsets[other]);
    let to = end(one).min(end(other));
    if from < to {
        let (first, second) = (one.min(other), one.max(other));
        return Err(Violation::Overlap { first, second, bytes: (from, to), tick });
    }
    Ok(())
}

/// The lifetime of a buffer as one or two ranges of the ticks `0..period`.
fn pieces(buffer: &Buffer, period: u32) -> impl Iterator<Item = (u32, u32)> + Clone {
    let wraps = period > 0 && buffer.upper > period;
    let first = (buffer.lower, if wraps { period } else { buffer.upper });
    let second = wraps.then(|| (0, buffer.upper - period));
    std::iter::once(first).chain(second)
}
