//! Schedules: which tensors go, and at which operators.
//!
//! ```text
//!  operator     after   leave          release        fetch          before
//!               use ends  | copy out ........|  away    | copy in ........| used
//!  on the GPU   ===================================      =======================
//! ```
//!
//! The copy out is queued when operator `leave` has ended. Before operator `release` the compute stream waits for
//! it, and the bytes are free from there on. Before operator `fetch` bytes are taken again and the copy in is
//! queued; before operator `before` of the gap the compute stream waits for that. All of it is by operators, none
//! by time: whatever the copies take, the bytes on the GPU are what the schedule says.

use crate::simulate::Direction;
use crate::step::Step;

/// One tensor that goes in one of its gaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Away {
    /// The gap, as an index into [`Step::gaps`].
    pub gap: u32,
    /// The copy out is queued at the end of this operator.
    pub leave: u32,
    /// The first operator during which its bytes are free.
    pub release: u32,
    /// The first operator during which they are taken again; at most the gap's `before`.
    pub fetch: u32,
}

/// A copy that was queued and turned out to be for nothing: of a tensor that was used before it had gone, or that went
/// again before it was used. Nobody waits for it, and no bytes are free for it, but its link is busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wasted {
    /// The gap, as an index into [`Step::gaps`].
    pub gap: u32,
    /// Where it goes.
    pub direction: Direction,
    /// It is queued before this operator, ahead of what is queued there for good.
    pub at: u32,
}

/// What goes in a step. Copies run in the order in which they are queued; of those that leave at one operator, in
/// this order, and of those that are fetched at one, in the order of their use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Schedule {
    /// The tensors that go.
    pub away: Vec<Away>,
    /// Copies for nothing, in the order in which they are queued. What was planned has none.
    pub wasted: Vec<Wasted>,
}

impl Schedule {
    /// Bytes that were copied for nothing, both ways together.
    pub fn wasted_bytes(&self, step: &Step) -> u64 {
        self.wasted.iter().map(|wasted| step.bytes(wasted.gap)).sum()
    }

    /// Bytes that go out, and as many that come in.
    pub fn bytes(&self, step: &Step) -> u64 {
        self.away.iter().map(|away| step.bytes(away.gap)).sum()
    }

    /// Bytes on the GPU during each operator.
    pub fn held(&self, step: &Step) -> Vec<u64> {
        let mut change = vec![0i64; step.ops.len() + 1];
        for away in &self.away {
            let bytes = step.bytes(away.gap) as i64;
            change[away.release as usize] -= bytes;
            change[away.fetch as usize] += bytes;
        }
        let mut sum = 0;
        let held = step.load.iter().zip(change).map(|(&load, change)| {
            sum += change;
            (load as i64 + sum) as u64
        });
        held.collect()
    }

    /// The most bytes on the GPU.
    pub fn gpu_peak(&self, step: &Step) -> u64 {
        self.held(step).into_iter().max().unwrap_or(0)
    }

    /// The most bytes on the host. A tensor has its place there from the queueing of its copy out to the wait for
    /// its copy in.
    pub fn host_peak(&self, step: &Step) -> u64 {
        let mut changes: Vec<(u32, i64)> = Vec::with_capacity(2 * self.away.len());
        for away in &self.away {
            let bytes = step.bytes(away.gap) as i64;
            changes.push((away.leave + 1, bytes));
            changes.push((step.gaps[away.gap as usize].before + 1, -bytes));
        }
        // At one boundary, what is given back comes first: it was waited for before the operator.
        changes.sort_unstable();
        let held = changes.iter().scan(0i64, |sum, change| {
            *sum += change.1;
            Some(*sum)
        });
        held.max().unwrap_or(0) as u64
    }
}
