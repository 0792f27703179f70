//! What no planner can beat: the maximum load.
//!
//! All buffers that are alive at one tick lie side by side, so no arena is lower than the sum of
//! their sizes, each rounded up to the alignment. The largest of these sums is the bound, and the
//! tick with the buffers alive at it is the certificate: anyone can add them up again.
//!
//! ```text
//!  bytes                        load 3 5 5 2 4 4
//!    5 |   . # # . . .                 ^ bound 5, tick 1
//!    3 | # # # . # #
//!      +------------- ticks
//! ```
//!
//! Real traces of training can be planned at this height (planners.md calls it LB); stronger
//! bounds matter only for small adversarial sets.

use crate::problem::{Buffer, Problem, ProblemError};

/// A lower bound of the height of every solution, with what proves it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bound {
    /// Bytes, a multiple of the alignment.
    pub bytes: u64,
    /// The first tick at which the load is that high.
    pub tick: u32,
    /// The buffers alive at that tick, ascending. Their sizes, each rounded up to the alignment,
    /// add up to `bytes`.
    pub live: Vec<u32>,
}

impl Buffer {
    /// Whether the buffer is alive at `tick`, on a line (`period` 0) or on a ring.
    pub fn is_alive(&self, tick: u32, period: u32) -> bool {
        let again = u64::from(tick) + u64::from(period);
        (self.lower <= tick && tick < self.upper) || (period > 0 && again < u64::from(self.upper))
    }
}

/// The maximum load of `problem` and its certificate. O(n log n).
pub fn max_load(problem: &Problem) -> Result<Bound, ProblemError> {
    problem.validate()?;
    let (bytes, tick) = peak(problem);
    let live = (0u32..)
        .zip(&problem.buffers)
        .filter(|(_, buffer)| buffer.is_alive(tick, problem.period))
        .map(|(index, _)| index)
        .collect();
    Ok(Bound { bytes, tick, live })
}

/// The largest load, and the first tick that has it. The load grows at births alone, so that the
/// ticks of births, and tick 0 for what wraps, are all that need to be looked at.
fn peak(problem: &Problem) -> (u64, u32) {
    let period = problem.period;
    let wraps = |buffer: &Buffer| period > 0 && buffer.upper > period;
    let size = |buffer: &Buffer| buffer.size.next_multiple_of(problem.alignment);
    let death = |buffer: &Buffer| buffer.upper - if wraps(buffer) { period } else { 0 };

    let buffers = &problem.buffers;
    let mut births: Vec<_> = buffers.iter().map(|b| (b.lower, size(b))).collect();
    let mut deaths: Vec<_> = buffers.iter().map(|b| (death(b), size(b))).collect();
    births.sort_unstable();
    deaths.sort_unstable();

    let mut load: u64 = buffers.iter().filter(|b| wraps(b)).map(size).sum();
    let mut peak = (load, 0);
    let mut deaths = deaths.into_iter().peekable();
    for born in births.chunk_by(|a, b| a.0 == b.0) {
        let tick = born[0].0;
        while let Some((_, size)) = deaths.next_if(|(death, _)| *death <= tick) {
            load -= size;
        }
        load += born.iter().map(|(_, size)| size).sum::<u64>();
        if load > peak.0 {
            peak = (load, tick);
        }
    }
    peak
}
