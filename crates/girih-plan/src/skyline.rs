//! The lowest valley (best fit of Sekiyama et al. 2018, arXiv 1804.10001).
//!
//! The tops of what was placed so far form a skyline over the sections. The lowest valley is taken;
//! of the items whose whole life fits into it, the one with the largest key is put on its ground.
//! If none fits, the valley is raised to its lower neighbour: what is lost there is lost.
//!
//! ```text
//!  units
//!    |####          ###      valley [4, 14): of those that live inside,
//!    |####..........###      the largest key goes to the ground and splits it in up to three
//!    |#################
//!    +----------------- sections
//! ```
//!
//! On a ring the skyline is a ring too, and a valley may lie across the cut, so that what wraps is
//! an item like any other. A line is a ring with a wall: one more section, endlessly high.
//!
//! The key weighs size against life by their logarithms; a little noise breaks ties, and a little
//! more explores. A segment tree over births holds the largest key and the earliest death, so that
//! the search descends only where something can fit: O(n log n) in practice, 10 ms for 2 x 10^4.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::instance::{Instance, Item};
use crate::planner::Limit;

/// What makes an item come first in its valley.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// Weight of the logarithm of the size in percent; the rest is that of the life. At most 100.
    pub size_weight: u8,
    /// Width of the noise, in percent of a doubling. 0 for none.
    pub noise: u16,
    /// Chooses the noise.
    pub seed: u32,
}

impl Key {
    /// The key of `item`: unequal for unequal indices, larger for what comes first. Of equals the
    /// earlier birth comes first.
    fn of(self, item: &Item, index: u32) -> u64 {
        let by_size = u64::from(self.size_weight.min(100)) * log2(item.size);
        let by_life = u64::from(100 - self.size_weight.min(100)) * log2(u64::from(item.life()));
        let chance = u128::from(mix(u64::from(self.seed) << 32 | u64::from(index)));
        let noise = (chance * (u128::from(self.noise) << LOG_BITS)) >> 64;
        // At most 29 bits without noise; only noise beyond all use saturates.
        let key = (1 + by_size + by_life + noise as u64).min(u64::from(u32::MAX));
        key << 32 | u64::from(u32::MAX - index)
    }
}

/// Bits of a logarithm that stand behind the point.
const LOG_BITS: u32 = 16;

/// The logarithm of `x >= 1` to the base 2, in integers so that it is the same on every machine:
/// squaring doubles the logarithm, and each doubling that passes 2 yields a bit.
fn log2(x: u64) -> u64 {
    let whole = x.ilog2();
    // x / 2^whole as a fixed-point number in [1, 2) with 31 bits behind the point.
    let mut mantissa = if whole > 31 { x >> (whole - 31) } else { x << (31 - whole) };
    let mut log = u64::from(whole);
    for _ in 0..LOG_BITS {
        mantissa = (mantissa * mantissa) >> 31;
        let bit = mantissa >> 32;
        mantissa >>= bit;
        log = log << 1 | bit;
    }
    log
}

/// A hash of 64 bits to 64 bits (the finalizer of SplitMix64).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What the planner needs beside the items; kept between attempts so that it is allocated once.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    ring: Ring,
    unplaced: Unplaced,
}

/// Places all items, writes their offsets to `layout` and returns the top that they reach; `None`
/// as soon as they reach `limit`.
pub(crate) fn skyline(
    instance: &Instance,
    key: Key,
    limit: Limit<'_>,
    scratch: &mut Scratch,
    layout: &mut [u64],
) -> Option<u64> {
    let Scratch { ring, unplaced } = scratch;
    unplaced.reset(instance, key);
    ring.reset(instance);
    let mut top = 0;
    let mut left = instance.items.len();
    while left > 0 {
        let (start, end) = ring.lowest_valley();
        let Some(index) = unplaced.best_within(start, end, instance.sections) else {
            ring.raise_to_neighbour(start);
            continue;
        };
        unplaced.remove(index);
        let item = &instance.items[index];
        let offset = ring.place(start, item);
        layout[index] = offset;
        top = top.max(offset + item.size);
        if top >= limit.top() {
            return None;
        }
        left -= 1;
    }
    (top < limit.top()).then_some(top)
}

/// The skyline: a ring of steps of one height each, named by the section in which they start.
#[derive(Debug, Default)]
struct Ring {
    /// Sections, with the wall.
    sections: u32,
    steps: Vec<Step>,
    /// The steps by height, lowest first, then by start. An entry whose height is not that of its
    /// step is out of date; a step that changes its ends alone keeps its entry.
    lowest: BinaryHeap<Reverse<(u64, u32)>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Step {
    height: u64,
    next: u32,
    previous: u32,
}

impl Step {
    /// The height of the wall, and of a section in which no step starts.
    const NO_HEIGHT: u64 = u64::MAX;
}

impl Ring {
    fn reset(&mut self, instance: &Instance) {
        let has_wall = !instance.items.iter().any(|item| instance.wraps(item));
        self.sections = instance.sections + u32::from(has_wall);
        self.steps.clear();
        self.steps.resize(self.sections as usize, Step::default());
        self.lowest.clear();
        if has_wall {
            let wall = instance.sections;
            self.steps[0] = Step { height: 0, next: wall, previous: wall };
            self.steps[wall as usize] = Step { height: Step::NO_HEIGHT, next: 0, previous: 0 };
        }
        self.lowest.push(Reverse((0, 0)));
    }

    /// The start of the lowest step, and its end: past the last section if it lies across the cut,
    /// and past everything if it is the whole ring.
    fn lowest_valley(&mut self) -> (u32, u32) {
        loop {
            let &Reverse((height, start)) = self.lowest.peek().expect("every step is listed");
            let step = &self.steps[start as usize];
            if step.height != height {
                self.lowest.pop();
                continue;
            }
            let end = match step.next {
                next if next == start => u32::MAX,
                next if next < start => next + self.sections,
                next => next,
            };
            return (start, end);
        }
    }

    /// Puts `item` on the step at `start`, inside of which it lives; returns the step's height.
    fn place(&mut self, start: u32, item: &Item) -> u64 {
        let Step { height: ground, next, .. } = self.steps[start as usize];
        let (from, to) = (item.lower, item.upper % self.sections);
        let is_whole_ring = next == start;
        if is_whole_ring {
            // The step may start anywhere: let it start with the item.
            self.steps[start as usize].height = Step::NO_HEIGHT;
            self.steps[from as usize] = Step { height: ground, next: from, previous: from };
        } else if start != from {
            self.split(start, from);
        }
        if is_whole_ring || self.steps[from as usize].next != to {
            self.split(from, to);
            self.lowest.push(Reverse((ground, to)));
        }
        self.lift(from, ground + item.size);
        ground
    }

    /// Raises the step at `start`, in which nothing fits, to the lower of its neighbours.
    fn raise_to_neighbour(&mut self, start: u32) {
        let Step { next, previous, .. } = self.steps[start as usize];
        let height = self.steps[next as usize].height.min(self.steps[previous as usize].height);
        self.lift(start, height);
    }

    /// Sets the height of the step at `start` and joins it with the neighbours that are as high.
    fn lift(&mut self, start: u32, height: u64) {
        let Step { next, previous, .. } = self.steps[start as usize];
        self.steps[start as usize].height = height;
        if next != start && self.steps[next as usize].height == height {
            self.swallow_next(start);
        }
        if previous != start && self.steps[previous as usize].height == height {
            self.swallow_next(previous);
        } else {
            self.lowest.push(Reverse((height, start)));
        }
    }

    /// Cuts the step at `start` in two of the same height; the second begins at `at` and is not
    /// listed yet.
    fn split(&mut self, start: u32, at: u32) {
        let Step { height, next, .. } = self.steps[start as usize];
        self.steps[at as usize] = Step { height, next, previous: start };
        self.steps[start as usize].next = at;
        self.steps[next as usize].previous = at;
    }

    /// Joins the step at `start` with the next one.
    fn swallow_next(&mut self, start: u32) {
        let gone = self.steps[start as usize].next;
        let next = self.steps[gone as usize].next;
        self.steps[gone as usize].height = Step::NO_HEIGHT;
        self.steps[start as usize].next = next;
        self.steps[next as usize].previous = start;
    }
}

/// The items still to be placed: a segment tree over them by birth.
#[derive(Debug, Default)]
struct Unplaced {
    /// A power of two. Node 1 is the root; the leaf of item `i` is `leaves + i`.
    leaves: usize,
    nodes: Vec<Summary>,
    /// For each section, the first item born in it or later.
    born_from: Vec<u32>,
}

/// What a node knows of the items below it.
#[derive(Clone, Copy, Debug)]
struct Summary {
    largest_key: u64,
    earliest_death: u32,
}

impl Summary {
    const NOTHING: Summary = Summary { largest_key: 0, earliest_death: u32::MAX };

    fn join(self, other: Summary) -> Summary {
        Summary {
            largest_key: self.largest_key.max(other.largest_key),
            earliest_death: self.earliest_death.min(other.earliest_death),
        }
    }
}

impl Unplaced {
    fn reset(&mut self, instance: &Instance, key: Key) {
        let items = &instance.items;
        self.leaves = items.len().next_power_of_two();
        self.nodes.clear();
        self.nodes.resize(2 * self.leaves, Summary::NOTHING);
        for (index, item) in items.iter().enumerate() {
            self.nodes[self.leaves + index] =
                Summary { largest_key: key.of(item, index as u32), earliest_death: item.upper };
        }
        for v in (1..self.leaves).rev() {
            self.nodes[v] = self.nodes[2 * v].join(self.nodes[2 * v + 1]);
        }
        self.born_from.clear();
        for (index, item) in (0u32..).zip(items) {
            self.born_from.resize(item.lower as usize + 1, index);
        }
        self.born_from.resize(instance.sections as usize + 1, items.len() as u32);
    }

    fn remove(&mut self, index: usize) {
        let mut v = self.leaves + index;
        self.nodes[v] = Summary::NOTHING;
        while v > 1 {
            v /= 2;
            self.nodes[v] = self.nodes[2 * v].join(self.nodes[2 * v + 1]);
        }
    }

    /// The item with the largest key that lives within the valley `[start, end)`. An `end` beyond
    /// the sections reaches across the cut, [`u32::MAX`] is the whole ring.
    fn best_within(&self, start: u32, end: u32, sections: u32) -> Option<usize> {
        let mut best = (0, 0);
        if end == u32::MAX {
            self.best_of(0, sections, u32::MAX - 1, &mut best);
        } else if end <= sections {
            self.best_of(start, end, end, &mut best);
        } else {
            self.best_of(start, sections, end, &mut best);
            self.best_of(0, end - sections, end - sections, &mut best);
        }
        (best.0 > 0).then(|| best.1 - self.leaves)
    }

    /// Improves `best`, a key with its leaf, among the items born in `[from, to)` that die at
    /// `end` at the latest.
    fn best_of(&self, from: u32, to: u32, end: u32, best: &mut (u64, usize)) {
        let mut left = self.leaves + self.born_from[from as usize] as usize;
        let mut right = self.leaves + self.born_from[to as usize] as usize;
        while left < right {
            if left & 1 == 1 {
                self.descend(left, end, best);
                left += 1;
            }
            if right & 1 == 1 {
                right -= 1;
                self.descend(right, end, best);
            }
            (left, right) = (left / 2, right / 2);
        }
    }

    /// Improves `best` below `v`, the more promising half first.
    fn descend(&self, v: usize, end: u32, best: &mut (u64, usize)) {
        let Summary { largest_key, earliest_death } = self.nodes[v];
        if largest_key <= best.0 || earliest_death > end {
            return;
        }
        if v >= self.leaves {
            *best = (largest_key, v);
            return;
        }
        let (left, right) = (2 * v, 2 * v + 1);
        if self.nodes[left].largest_key >= self.nodes[right].largest_key {
            self.descend(left, end, best);
            self.descend(right, end, best);
        } else {
            self.descend(right, end, best);
            self.descend(left, end, best);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Buffer, Problem};

    #[test]
    fn the_logarithm_is_that_of_the_mathematicians() {
        for x in [1, 2, 3, 7, 1000, 4095, 1 << 31, (1 << 33) - 1, 12_345_678_901_234, u64::MAX] {
            let exact = (x as f64).log2() * f64::from(1 << LOG_BITS);
            assert!((log2(x) as f64 - exact).abs() < 2.0, "{x}: {} {exact}", log2(x));
        }
    }

    #[test]
    fn a_valley_across_the_cut_holds_what_wraps_and_what_comes_after_the_cut() {
        let b = |lower, upper| Buffer { lower, upper, size: 1 };
        let buffers = vec![b(0, 3), b(1, 2), b(2, 5), b(4, 7)];
        let problem = Problem { buffers, period: 6, alignment: 1 };
        let instance = Instance::new(&problem).expect("valid");
        let lives: Vec<_> = instance.items.iter().map(|item| (item.lower, item.upper)).collect();
        assert_eq!((lives, instance.sections), (vec![(0, 3), (1, 2), (2, 4), (3, 5)], 4));

        let mut unplaced = Unplaced::default();
        unplaced.reset(&instance, Key { size_weight: 0, noise: 0, seed: 0 });
        for expected in [Some(3), Some(1), None] {
            let best = unplaced.best_within(3, 6, instance.sections);
            assert_eq!(best, expected);
            best.into_iter().for_each(|index| unplaced.remove(index));
        }
    }

    #[test]
    fn a_larger_item_comes_first_and_of_equals_the_earlier() {
        let item = |size| Item { lower: 0, upper: 4, size };
        let key = Key { size_weight: 50, noise: 0, seed: 0 };
        assert!(key.of(&item(9), 5) > key.of(&item(8), 4));
        assert!(key.of(&item(9), 4) > key.of(&item(9), 5));
        let by_life = Key { size_weight: 0, ..key };
        assert_eq!(by_life.of(&item(9), 4), by_life.of(&item(1), 4));
    }
}
