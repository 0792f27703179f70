//! Time sweeps: place every item at its birth, knowing nothing but what is alive.
//!
//! This is what an allocator does on line, with a choice of the gap ([`Fit`]) and of the way that
//! time runs ([`Direction`]). It costs O(n x gaps), and it is at its best where lifetimes nest.
//!
//! On a ring the items that wrap are alive when the walk begins and come back before it ends. All
//! of them are alive at the cut, so they are stacked there first, the first to come back lowest:
//!
//! ```text
//!  bytes
//!    |cc........cccc      c comes back last: it lies on top
//!    |bbbb....bbbbbb      what dies at or before a birth of a wrapping item may lie under it,
//!    |aa....aaaaaaaa      what dies later lies above: a floor that depends on the death alone
//!    +--------------- time
//! ```
//!
//! No item need therefore be looked for in the future: the floor keeps it out of the way.

use crate::gaps::{Fit, Gaps};
use crate::instance::{Instance, Item};
use crate::planner::Limit;

/// The way that time runs in a sweep.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// From birth to death.
    Forward,
    /// From death to birth: the mirror image, an equally good plan.
    Reversed,
}

/// What a sweep needs beside the items; kept between attempts so that it is allocated once.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    births: Vec<Moment>,
    deaths: Vec<Moment>,
    wrapping: Vec<Moment>,
    /// For each item that wraps, by section of return: the section and the top of its stack.
    stairs: Vec<(u32, u64)>,
    gaps: Gaps,
}

/// The birth or the death of an item, as the sweep sees time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Moment {
    section: u32,
    /// Ties go by the order of items in time, mirrored with it.
    tie: u32,
}

impl Direction {
    /// The lifetime of `item` as this direction sees it. It begins in `0..sections`.
    fn view(self, item: &Item, sections: u32) -> (u32, u32) {
        match self {
            Direction::Forward => (item.lower, item.upper),
            Direction::Reversed => {
                let around = if item.upper > sections { 2 * sections } else { sections };
                (around - item.upper, around - item.lower)
            }
        }
    }

    /// A number by which items of one section are ordered; its own inverse.
    fn tie(self, index: u32) -> u32 {
        match self {
            Direction::Forward => index,
            Direction::Reversed => u32::MAX - index,
        }
    }
}

/// Places the items that `member` accepts, writes their offsets to `layout`, and returns the top
/// that they reach; `None` as soon as they reach `limit`.
pub(crate) fn sweep(
    instance: &Instance,
    (fit, direction): (Fit, Direction),
    member: impl Fn(&Item) -> bool,
    limit: Limit<'_>,
    scratch: &mut Scratch,
    layout: &mut [u64],
) -> Option<u64> {
    scratch.prepare(instance, direction, member);
    let mut top = scratch.stack_wrapping(instance, direction, layout);
    let Scratch { births, deaths, stairs, gaps, .. } = scratch;

    let mut deaths = deaths.iter().peekable();
    for birth in births.iter() {
        while let Some(death) = deaths.next_if(|death| death.section <= birth.section) {
            let index = direction.tie(death.tie) as usize;
            gaps.give(layout[index], instance.items[index].size);
        }
        let index = direction.tie(birth.tie) as usize;
        let item = &instance.items[index];
        let (_, end) = direction.view(item, instance.sections);
        let offset = gaps.take(item.size, floor(stairs, end), fit);
        top = top.max(offset + item.size);
        if top >= limit.top() {
            return None;
        }
        layout[index] = offset;
    }
    (top < limit.top()).then_some(top)
}

/// The lowest unit for an item that dies at `end`: above all that have come back by then.
fn floor(stairs: &[(u32, u64)], end: u32) -> u64 {
    let below = stairs.partition_point(|stair| stair.0 < end);
    if below == 0 { 0 } else { stairs[below - 1].1 }
}

impl Scratch {
    /// Sorts births and deaths. What wraps is born before the walk and dies in it.
    fn prepare(
        &mut self,
        instance: &Instance,
        direction: Direction,
        member: impl Fn(&Item) -> bool,
    ) {
        let Scratch { births, deaths, wrapping, .. } = self;
        for list in [&mut *births, &mut *deaths, &mut *wrapping] {
            list.clear();
        }
        for (index, item) in (0u32..).zip(&instance.items).filter(|(_, item)| member(item)) {
            let tie = direction.tie(index);
            let (begin, end) = direction.view(item, instance.sections);
            let born = if instance.wraps(item) { &mut *wrapping } else { &mut *births };
            born.push(Moment { section: begin, tie });
            let section = if instance.wraps(item) { end - instance.sections } else { end };
            deaths.push(Moment { section, tie });
        }
        for list in [births, deaths, wrapping] {
            list.sort_unstable();
        }
    }

    /// Stacks what wraps from unit 0 up, the first to come back lowest; returns the top.
    fn stack_wrapping(
        &mut self,
        instance: &Instance,
        direction: Direction,
        layout: &mut [u64],
    ) -> u64 {
        self.stairs.clear();
        let mut top = 0;
        for moment in &self.wrapping {
            let index = direction.tie(moment.tie) as usize;
            layout[index] = top;
            top += instance.items[index].size;
            self.stairs.push((moment.section, top));
        }
        self.gaps.reset(top);
        top
    }
}
