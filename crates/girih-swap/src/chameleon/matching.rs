//! The match of Appendix A: tensors across steps by what operators have done with them, in integers.

use rustc_hash::FxHashMap;

use crate::step::{Gap, Step};

/// The commonest operators have a bit of their own.
const TAGGED: usize = 32;
/// Operators of a tensor's call stack that are remembered, 8 bits each.
const STACK: u32 = 8;

/// What is compared of a tensor at its last use before a gap. A recording has no types of elements; the part of the
/// step stands for the stage in which the released code compares.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Features {
    /// Operators that have used it (`opCount`).
    pub op_count: u32,
    /// Which of the commonest they were (`opTag`).
    pub op_tag: u32,
    /// The last eight of them, by frequency (`opCallStack`).
    pub op_stack: u64,
    /// Which of 64 parts of the sequence it is in.
    pub part: u32,
}

/// How common each operator is, from the step that was profiled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Matcher {
    rank: FxHashMap<u64, u32>,
    part_ops: u32,
}

impl Matcher {
    /// Counts the operators of a step.
    pub fn of(step: &Step) -> Matcher {
        let mut counts: FxHashMap<u64, u32> = FxHashMap::default();
        step.ops.iter().for_each(|op| *counts.entry(op.key).or_default() += 1);
        let mut keys: Vec<(u32, u64)> =
            counts.into_iter().map(|(key, count)| (count, key)).collect();
        keys.sort_unstable_by(|a, b| b.cmp(a));
        let rank = keys.into_iter().zip(0..).map(|((_, key), rank)| (key, rank)).collect();
        Matcher { rank, part_ops: (step.ops.len() as u32).div_ceil(64).max(1) }
    }

    /// The features of a gap's tensor. Operators that use it are those from its birth to its last use.
    pub fn features(&self, step: &Step, gap: Gap) -> Features {
        let born = step.tensors[gap.tensor as usize].born;
        let mut features = Features {
            op_count: gap.after - born + 1,
            op_tag: 0,
            op_stack: 0,
            part: gap.after / self.part_ops,
        };
        let first = born.max(gap.after.saturating_sub(STACK - 1));
        for op in first..=gap.after {
            let rank = self.rank.get(&step.ops[op as usize].key).copied();
            let one_hot = rank.filter(|&rank| (rank as usize) < TAGGED).map_or(0, |rank| 1 << rank);
            features.op_tag |= one_hot;
            let index = u64::from(rank.unwrap_or(u32::MAX).min(255));
            features.op_stack = features.op_stack << 8 | index;
        }
        features
    }
}
