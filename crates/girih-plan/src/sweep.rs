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
//!
//! A walk may also begin at the peak, the section with the most units alive, and go both ways from
//! there. What is alive at the peak is stacked without a gap, by birth; what is born after it and
//! what has died before it never meet, so that the two walks do not disturb each other:
//!
//! ```text
//!  units
//!    |        tt          the peak is full to the last unit, and holes come only where
//!    |   xx  bbbbbb yy    there is room to spare
//!    |  aaaaaaaa  zzzzz
//!    +--------^------- sections
//!    <- reversed forward ->
//! ```
//!
//! What wraps belongs to both walks. It is stacked below everything and kept out of both, so that
//! this way is for rings that are cut where little is alive.

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
    /// From the peak both ways, forward first.
    FromPeak,
}

/// What a sweep needs beside the items; kept between attempts so that it is allocated once.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    births: Vec<Moment>,
    deaths: Vec<Moment>,
    /// What is alive when the walk begins: what wraps, or what is alive at the peak.
    wrapping: Vec<Moment>,
    /// For each item that wraps, by section of return: the section and the top of its stack.
    stairs: Vec<(u32, u64)>,
    /// The top of each of `wrapping` where it is stacked.
    tops: Vec<u64>,
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
            Direction::Forward | Direction::FromPeak => (item.lower, item.upper),
            Direction::Reversed => {
                let around = if item.upper > sections { 2 * sections } else { sections };
                (around - item.upper, around - item.lower)
            }
        }
    }

    /// A number by which items of one section are ordered; its own inverse.
    fn tie(self, index: u32) -> u32 {
        match self {
            Direction::Forward | Direction::FromPeak => index,
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
    if direction == Direction::FromPeak {
        return sweep_from_peak(instance, fit, member, limit, scratch, layout);
    }
    scratch.prepare(instance, direction, member);
    let top = scratch.stack(instance, direction, 0, layout);
    let wrapping = scratch.wrapping.iter().map(|moment| moment.section);
    scratch.stairs.clear();
    scratch.stairs.extend(wrapping.zip(scratch.tops.iter().copied()));
    scratch.walk(instance, (fit, direction), (top, limit), layout)
}

/// See [`Direction::FromPeak`].
fn sweep_from_peak(
    instance: &Instance,
    fit: Fit,
    member: impl Fn(&Item) -> bool,
    limit: Limit<'_>,
    scratch: &mut Scratch,
    layout: &mut [u64],
) -> Option<u64> {
    let peak = instance.peak();
    scratch.stairs.clear();
    let mut ground = 0;
    for (index, item) in instance.items.iter().enumerate() {
        if instance.wraps(item) && member(item) {
            layout[index] = ground;
            ground += item.size;
        }
    }
    let mut top = ground;
    for direction in [Direction::Forward, Direction::Reversed] {
        scratch.prepare_from(instance, direction, peak, &member);
        if direction == Direction::Forward {
            top = scratch.stack(instance, direction, ground, layout);
        } else {
            scratch.gaps.reset(scratch.tops.last().copied().unwrap_or(ground));
        }
        top = scratch.walk(instance, (fit, direction), (top, limit), layout)?;
    }
    Some(top)
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

    /// The same for one of the two walks from `peak`: births on its side, and the deaths of these
    /// and of what is alive at the peak, which is listed by birth.
    fn prepare_from(
        &mut self,
        instance: &Instance,
        direction: Direction,
        peak: u32,
        member: impl Fn(&Item) -> bool,
    ) {
        let Scratch { births, deaths, wrapping, .. } = self;
        for list in [&mut *births, &mut *deaths, &mut *wrapping] {
            list.clear();
        }
        let members = (0u32..).zip(&instance.items);
        for (index, item) in members.filter(|(_, item)| member(item) && !instance.wraps(item)) {
            let tie = direction.tie(index);
            let (begin, end) = direction.view(item, instance.sections);
            let is_alive = item.lower <= peak && peak < item.upper;
            let is_after = (item.lower > peak) == (direction == Direction::Forward);
            if is_alive {
                wrapping.push(Moment { section: begin, tie });
            } else if is_after {
                births.push(Moment { section: begin, tie });
            } else {
                continue;
            }
            deaths.push(Moment { section: end, tie });
        }
        births.sort_unstable();
        deaths.sort_unstable();
    }

    /// Stacks what is alive when the walk begins from unit `ground` up, in the order of the list;
    /// returns the top.
    fn stack(
        &mut self,
        instance: &Instance,
        direction: Direction,
        ground: u64,
        layout: &mut [u64],
    ) -> u64 {
        self.tops.clear();
        let mut top = ground;
        for moment in &self.wrapping {
            let index = direction.tie(moment.tie) as usize;
            layout[index] = top;
            top += instance.items[index].size;
            self.tops.push(top);
        }
        self.gaps.reset(top);
        top
    }

    /// Walks through time from what is stacked up to `top`; the top of all, or `None` as soon as it
    /// reaches the limit.
    fn walk(
        &mut self,
        instance: &Instance,
        (fit, direction): (Fit, Direction),
        (mut top, limit): (u64, Limit<'_>),
        layout: &mut [u64],
    ) -> Option<u64> {
        let Scratch { births, deaths, stairs, gaps, .. } = self;
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
}
