//! First fit in an order of the items: each goes to the lowest place that is free all its life.
//!
//! Large items first leave the holes to the small ones. What counts as large is the [`Order`].
//! Ties go by birth: training repeats itself, and what is born in turn must be placed in turn, or
//! the gap grows tenfold (planners.md, finding 7).
//!
//! *Two-phase*: items that live long go first, by a time sweep, which packs nested lifetimes (the
//! saved activations of a pipeline) without loss; the short-lived ones fill the holes by first fit.

use std::cmp::Reverse;

use crate::instance::{Instance, Item};
use crate::occupancy::Occupancy;
use crate::planner::Limit;

/// By what first fit goes, the largest first; ties by birth.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Order {
    /// Bytes.
    Size,
    /// Bytes times sections of life.
    Area,
    /// Sections of life, then bytes.
    Life,
}

/// What first fit needs beside the items; kept between attempts so that it is allocated once.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    occupancy: Occupancy,
    order: Vec<(Reverse<u128>, u32)>,
}

impl Order {
    fn key(self, item: &Item) -> u128 {
        let (size, life) = (u128::from(item.size), u128::from(item.life()));
        match self {
            Order::Size => size,
            Order::Area => size * life,
            Order::Life => life << 64 | size,
        }
    }
}

/// Places the items that `placed` rejects, in `order`, around those that it accepts, which lie at
/// their places in `layout` below `top` already. Writes `layout` and returns the top of all; `None`
/// as soon as they reach `limit`.
pub(crate) fn first_fit(
    instance: &Instance,
    order: Order,
    placed: impl Fn(&Item) -> bool,
    (mut top, limit): (u64, Limit<'_>),
    scratch: &mut Scratch,
    layout: &mut [u64],
) -> Option<u64> {
    let Scratch { occupancy, order: queue } = scratch;
    occupancy.reset(instance);
    queue.clear();
    for (index, item) in (0u32..).zip(&instance.items) {
        if placed(item) {
            occupancy.enter(instance, item, layout[index as usize]);
        } else {
            queue.push((Reverse(order.key(item)), index));
        }
    }
    queue.sort_unstable();
    for &(_, index) in queue.iter() {
        let item = &instance.items[index as usize];
        let offset = occupancy.first_fit(instance, item, limit.top())?;
        occupancy.enter(instance, item, offset);
        layout[index as usize] = offset;
        top = top.max(offset + item.size);
    }
    (top < limit.top()).then_some(top)
}
