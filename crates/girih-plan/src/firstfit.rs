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
    order: Vec<(Reverse<u64>, u32)>,
}

impl Order {
    /// Larger for what comes first. It is 64 bits wide, so that a million are sorted quickly; what
    /// that rounds off is a part in 2^49 of an area, or in 2^24 of a size beside a life.
    fn key(self, item: &Item) -> u64 {
        let (size, life) = (u128::from(item.size), u128::from(item.life()));
        match self {
            Order::Size => item.size,
            Order::Area => rounded(size * life, 50),
            Order::Life => (life as u64) << 32 | rounded(size, 25),
        }
    }
}

/// `x` as a number whose order is that of `x`: the place of its highest bit, then `bits` bits from
/// there on.
fn rounded(x: u128, bits: u32) -> u64 {
    let place = u128::BITS - x.leading_zeros();
    let digits = if place > bits { x >> (place - bits) } else { x << (bits - place) };
    u64::from(place) << bits | (digits as u64 & ((1 << bits) - 1) >> 1)
}

/// Places the items that `placed` rejects, by index and item, in `order`, around those that it
/// accepts, which lie at their places in `layout` below `top` already. Writes `layout` and returns
/// the top of all; `None` as soon as they reach `limit`.
pub(crate) fn first_fit(
    instance: &Instance,
    order: Order,
    placed: impl Fn(usize, &Item) -> bool,
    (mut top, limit): (u64, Limit<'_>),
    scratch: &mut Scratch,
    layout: &mut [u64],
) -> Option<u64> {
    let Scratch { occupancy, order: queue } = scratch;
    occupancy.reset(instance);
    queue.clear();
    for (index, item) in (0u32..).zip(&instance.items) {
        if placed(index as usize, item) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_keeps_the_order_and_small_numbers_whole() {
        let mut numbers: Vec<u128> = (0..130).chain([1 << 20, (1 << 20) + 1]).collect();
        for place in 21..120 {
            numbers.extend([1 << place, (1 << place) + (1 << (place - 20)), (1 << place) * 3 / 2]);
        }
        for bits in [25, 50] {
            let rounded: Vec<u64> = numbers.iter().map(|&x| rounded(x, bits)).collect();
            assert!(rounded.windows(2).all(|pair| pair[0] < pair[1]), "{bits} bits");
        }
        let life = |size| Order::Life.key(&Item { lower: 0, upper: u32::MAX, size });
        assert!(life(u64::MAX) < u64::MAX && life(1) < life(2));
    }
}
