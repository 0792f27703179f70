//! A schedule from what shall go and when it shall come back.
//!
//! Bytes are let go of as late as can be: before the first operator that needs them, in the order in which the
//! copies were queued. A later wait is never a longer one. What nobody needed before it comes back stays, and is not
//! copied at all.

use crate::schedule::{Away, Schedule};
use crate::step::Step;

/// One tensor that shall go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Item {
    pub(crate) gap: u32,
    /// Where its bytes are taken again.
    pub(crate) fetch: u32,
}

/// What shall go.
pub(crate) struct Items {
    /// In order of [`Gap::after`](crate::Gap::after).
    pub(crate) list: Vec<Item>,
    /// The same in order of where their bytes are taken again, as indices into the list.
    pub(crate) order: Vec<u32>,
}

impl Items {
    /// From a list in order of [`Gap::after`](crate::Gap::after).
    pub(crate) fn of(list: Vec<Item>) -> Items {
        let mut order: Vec<u32> = (0..list.len() as u32).collect();
        order.sort_by_key(|&at| list[at as usize].fetch);
        Items { list, order }
    }
}

/// Where a schedule does not keep the budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Over {
    pub(crate) op: u32,
    pub(crate) bytes: u64,
}

/// Settles what shall go.
pub(crate) fn settle(step: &Step, budget: u64, items: &Items) -> Result<Schedule, Over> {
    let Items { list: items, order } = items;
    const STAYS: u32 = u32::MAX;
    // Where each is let go of; none yet, or never.
    let mut released: Vec<Option<u32>> = vec![None; items.len()];
    let mut fetched = order.iter().peekable();
    // Those that are on their way out, in order: from `going` to `next`.
    let (mut going, mut next) = (0, 0);
    let mut gone = 0u64;
    for (op, &load) in (0u32..).zip(&step.load) {
        while items.get(next).is_some_and(|item| step.gaps[item.gap as usize].after < op) {
            next += 1;
        }
        while let Some(&index) = fetched.next_if(|at| items[**at as usize].fetch == op) {
            match released[index as usize] {
                Some(_) => gone -= step.bytes(items[index as usize].gap),
                None => released[index as usize] = Some(STAYS),
            }
        }
        while load - gone > budget {
            if going == next {
                return Err(Over { op, bytes: load - gone - budget });
            }
            if released[going].is_none() {
                released[going] = Some(op);
                gone += step.bytes(items[going].gap);
            }
            going += 1;
        }
    }
    let released = items.iter().zip(released);
    let away = released.filter_map(|(item, release)| {
        let release = release.filter(|&op| op != STAYS)?;
        let leave = step.gaps[item.gap as usize].after;
        Some(Away { gap: item.gap, leave, release, fetch: item.fetch })
    });
    Ok(Schedule { away: away.collect(), ..Schedule::default() })
}
