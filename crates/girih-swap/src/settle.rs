//! A schedule from what shall go and when it shall come back.
//!
//! Bytes are let go of as late as can be: before the first operator that needs them, in the order in which the
//! copies were queued. A later wait is never a longer one. What nobody needed before it comes back stays, and is not
//! copied at all.

use std::collections::VecDeque;

use crate::schedule::{Away, Schedule};
use crate::step::Step;

/// One tensor that shall go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Item {
    pub(crate) gap: u32,
    /// Where its bytes are taken again.
    pub(crate) fetch: u32,
}

/// Where a schedule does not keep the budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Over {
    pub(crate) op: u32,
    pub(crate) bytes: u64,
}

/// Settles items, in order of [`Gap::after`](crate::Gap::after).
pub(crate) fn settle(step: &Step, budget: u64, items: &[Item]) -> Result<Schedule, Over> {
    let count = step.ops.len();
    let mut fetched: Vec<Vec<u32>> = vec![Vec::new(); count + 1];
    for (index, item) in items.iter().enumerate() {
        fetched[item.fetch as usize].push(index as u32);
    }
    let mut released = vec![None; items.len()];
    let mut stayed = vec![false; items.len()];
    let mut going: VecDeque<u32> = VecDeque::new();
    let mut next = 0;
    let mut gone = 0u64;
    for op in 0..count as u32 {
        while items.get(next).is_some_and(|item| step.gaps[item.gap as usize].after < op) {
            going.push_back(next as u32);
            next += 1;
        }
        for &index in &fetched[op as usize] {
            match released[index as usize] {
                Some(_) => gone -= step.bytes(items[index as usize].gap),
                None => stayed[index as usize] = true,
            }
        }
        let load = step.load[op as usize];
        while load - gone > budget {
            let Some(index) = going.pop_front() else {
                return Err(Over { op, bytes: load - gone - budget });
            };
            if !stayed[index as usize] {
                released[index as usize] = Some(op);
                gone += step.bytes(items[index as usize].gap);
            }
        }
    }
    let away = items.iter().zip(released).filter_map(|(item, release)| {
        let leave = step.gaps[item.gap as usize].after;
        release.map(|release| Away { gap: item.gap, leave, release, fetch: item.fetch })
    });
    Ok(Schedule { away: away.collect(), ..Schedule::default() })
}
