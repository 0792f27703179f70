//! What is transient within a pass: not the sum of its tensors, but what a plan of their places takes.
//!
//! Memo plans the places of one layer's transients and uses them for every layer (section 4.2). Here the planners of
//! `girih-plan` do it, for one pass at a time; what they find is within a few per cent of the most that is alive at
//! once, and mostly that.

use girih_plan::portfolio::{Budget, solve};
use girih_plan::problem::{Buffer, Problem};

/// Tries of planners for one pass: passes are small, and there may be hundreds of them.
const ATTEMPTS: u32 = 24;

/// Bytes that the plan of a pass takes. Lives are ticks of its own, from birth to the first tick at which it is gone;
/// lives without ticks are left out.
pub fn height(buffers: Vec<Buffer>) -> u64 {
    let buffers: Vec<Buffer> = buffers.into_iter().filter(|it| it.upper > it.lower).collect();
    let all: u64 = buffers.iter().map(|it| it.size).sum();
    let problem = Problem { buffers, period: 0, alignment: 1 };
    // A problem that the planners refuse is too large for them: then each tensor has a place of its own.
    solve(&problem, Budget::attempts(ATTEMPTS)).map_or(all, |outcome| outcome.solution.height)
}
