//! What no schedule can beat.
//!
//! During operator `i` some bytes must be away, `X(i)` above the budget. Of the tensors that lie idle then, those
//! whose last use is later than the beginning of a window must go out within it:
//!
//! ```text
//!             l ........................ i ............................ r
//!  out        |--- X(i) less what was idle before l ---|
//!  in                                    |--- X(i) less what is used after r ---|
//! ```
//!
//! So a window has bytes that must go out in it and bytes that must come in, and takes at least as long as the links
//! need for them. Windows side by side need their times one after the other: the best chain of them is the bound.
//! Tensors may be cut into bytes here, and a copy takes room only as it arrives; no schedule can do more.

use crate::coarse::Coarse;
use crate::links::Links;
use crate::step::Step;

/// Ends of windows that are tried at most. Any choice of them gives a bound; more give a better one.
const ENDS_MAX: usize = 240;

/// The least microseconds that the step can take with so many bytes on the GPU; of steps that cannot be run within
/// them, those of the least budget that can. O(n x 240 + 240^3).
pub fn bound(fine: &Step, links: &Links, budget: u64) -> f64 {
    let plain = fine.us();
    let budget = budget.max(fine.least_budget().0);
    if fine.peak() <= budget {
        return plain;
    }
    let coarse = Coarse::of(fine, |_| true);
    let step = &coarse.step;
    let windows = Windows::new(step, budget);
    plain + windows.lag(links)
}

struct Windows {
    /// The first operators of windows, and last the number of operators.
    ends: Vec<u32>,
    starts: Vec<f64>,
    /// Bytes that must go out between two ends, `[from][to]`, and come in.
    out: Vec<Vec<f64>>,
    inward: Vec<Vec<f64>>,
}

impl Windows {
    fn new(step: &Step, budget: u64) -> Windows {
        let ends = ends(step, budget);
        let mut out: Vec<Vec<f64>> = ends.iter().map(|&from| going(step, budget, from, &ends)).collect();
        let mut inward: Vec<Vec<f64>> = vec![vec![0.0; ends.len()]; ends.len()];
        for (to, &end) in ends.iter().enumerate() {
            for (from, bytes) in coming(step, budget, end, &ends).into_iter().enumerate() {
                inward[from][to] = bytes;
            }
        }
        add_up(&mut out);
        add_up(&mut inward);
        Windows { ends, starts: step.starts(), out, inward }
    }

    /// Microseconds that must be waited.
    fn lag(&self, links: &Links) -> f64 {
        let count = self.ends.len();
        let mut best = vec![0.0f64; count];
        for to in 1..count {
            best[to] = best[to - 1];
            for from in 0..to {
                let (out, inward) = (self.out[from][to], self.inward[from][to]);
                let least = (out / links.outward)
                    .max(inward / links.inward)
                    .max((out + inward) / links.both);
                let at = |end: usize| self.starts[self.ends[end] as usize];
                best[to] = best[to].max(best[from] + least - (at(to) - at(from)));
            }
        }
        best[count - 1]
    }
}

/// Where windows begin and end: where much is above the budget or little, and else evenly in time.
fn ends(step: &Step, budget: u64) -> Vec<u32> {
    let count = step.ops.len() as u32;
    if count as usize <= ENDS_MAX {
        return (0..=count).collect();
    }
    let starts = step.starts();
    let total = starts[count as usize];
    let mut ends: Vec<u32> = vec![0, count];
    let even = ENDS_MAX / 2;
    ends.extend((1..even).map(|k| Step::op_at(&starts, total * k as f64 / even as f64)));
    // Peaks and valleys, those that stick out most first.
    let excess = |op: u32| step.load[op as usize].max(budget);
    let turns = (1..count - 1).filter(|&op| {
        let (before, own, after) = (excess(op - 1), excess(op), excess(op + 1));
        (own > before && own >= after) || (own < before && own <= after)
    });
    let mut turns: Vec<(u64, u32)> = turns
        .map(|op| (excess(op).abs_diff(excess(op - 1)).max(excess(op).abs_diff(excess(op + 1))), op))
        .collect();
    turns.sort_unstable_by(|a, b| b.cmp(a));
    ends.extend(turns.iter().take((ENDS_MAX - even) / 2).flat_map(|&(_, op)| [op, op + 1]));
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// For each end, the bytes that must go out from the start of operator `from` to the start of the end's: of some
/// operator up to there, what it needs away and was not idle before.
fn going(step: &Step, budget: u64, from: u32, ends: &[u32]) -> Vec<f64> {
    let early = step.idle_of(|gap| gap.after < from);
    let mut most = 0u64;
    let mut op = from + 1;
    let until = |&end: &u32| {
        while op <= end && (op as usize) < step.ops.len() {
            let need = step.load[op as usize].saturating_sub(budget);
            most = most.max(need.saturating_sub(early[op as usize]));
            op += 1;
        }
        if end > from { most as f64 } else { 0.0 }
    };
    ends.iter().map(until).collect()
}

/// For each end, the bytes that must come in from the start of its operator to the start of operator `to`.
fn coming(step: &Step, budget: u64, to: u32, ends: &[u32]) -> Vec<f64> {
    let late = step.idle_of(|gap| gap.before > to);
    let mut most = 0u64;
    let mut op = to;
    let mut bytes = vec![0.0; ends.len()];
    for (at, &end) in ends.iter().enumerate().rev().filter(|(_, end)| **end < to) {
        while op > end {
            op -= 1;
            let need = step.load[op as usize].saturating_sub(budget);
            most = most.max(need.saturating_sub(late[op as usize]));
        }
        bytes[at] = most as f64;
    }
    bytes
}

/// Bytes of windows side by side add up.
fn add_up(bytes: &mut [Vec<f64>]) {
    let count = bytes.len();
    for width in 2..count {
        for from in 0..count - width {
            let to = from + width;
            let parts = (from + 1..to).map(|middle| bytes[from][middle] + bytes[middle][to]);
            bytes[from][to] = parts.fold(bytes[from][to], f64::max);
        }
    }
}
