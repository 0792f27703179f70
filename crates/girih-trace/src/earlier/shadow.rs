//! Where segments must have ended, from what the recorded allocator chose.
//!
//! The allocator takes the smallest free block that a request fits (best fit), and takes memory
//! from the device only if there is none. So with segments drawn too long, its choices look wrong:
//!
//! ```text
//!  free:   F |      96 MiB      |    G |   64 MiB   |        a request of 32 MiB was given F
//!  then:   F | 32 |B    64      |    G |   64 MiB   |        so a border B cuts F
//! ```
//!
//! [`first_border`] follows the recorded addresses through one pool and stream, and returns the
//! border that the first wrong choice asks for. Its caller draws the segments anew, and asks again.
//! A border is possible where no block ever lay across.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashSet;

use super::EarlierSegment;
use super::inferred::{Home, SMALL_SIZE, UNIT, block_span};
use crate::event::{Action, Event};

/// The free memory of one pool and stream while the events pass.
struct Shadow<'a> {
    free: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    live: BTreeMap<u64, u64>,
    /// Addresses at which segments begin.
    starts: FxHashSet<u64>,
    /// Where a border may be, by address.
    possible: &'a [u64],
}

/// The addresses within a home's memory at which a segment may begin: multiples of 2 MiB that lie
/// inside no block.
pub(super) fn possible_borders(spans: &mut Vec<(u64, u64)>) -> Vec<u64> {
    spans.sort_unstable();
    spans.dedup();
    let mut possible = Vec::new();
    let mut last = 0;
    for &(start, end) in spans.iter() {
        if start >= last && start.is_multiple_of(UNIT) {
            possible.push(start);
        }
        last = last.max(end);
    }
    possible
}

/// The border that the first wrong choice of the allocator asks for. None if every choice is
/// right, or none of those that are wrong can be put right.
pub(super) fn first_border(
    events: &[Event],
    home: Home,
    segments: &[EarlierSegment],
    possible: &[u64],
) -> Option<u64> {
    let mut shadow = Shadow::new(segments, possible);
    let mut fresh = None;
    for event in events.iter().filter(|event| (event.pool, event.stream) == (home.0, home.1)) {
        let Some((start, end)) = block_span(event.address, event.size) else { continue };
        match event.action {
            Action::SegmentAlloc if event.size != UNIT => {
                shadow.starts.insert(start);
                shadow.add(start, end);
                fresh = Some(start);
            }
            Action::SegmentFree if event.size != UNIT => shadow.remove_whole(start, end),
            Action::Alloc if event.size > SMALL_SIZE => {
                let border = shadow.allocate(start, end, fresh.take());
                if border.is_some() {
                    return border;
                }
            }
            Action::FreeCompleted if event.size > SMALL_SIZE => shadow.release(start),
            _ => {}
        }
    }
    None
}

impl<'a> Shadow<'a> {
    fn new(segments: &[EarlierSegment], possible: &'a [u64]) -> Shadow<'a> {
        let mut shadow = Shadow {
            free: BTreeMap::new(),
            by_size: BTreeSet::new(),
            live: BTreeMap::new(),
            starts: segments.iter().map(|segment| segment.address).collect(),
            possible,
        };
        for segment in segments {
            let last = segment.address + segment.size;
            let mut at = segment.address;
            for (index, block) in segment.blocks.iter().enumerate() {
                let limit = segment.blocks.get(index + 1).map_or(last, |next| next.address);
                let rounded = block_span(block.address, block.requested).map_or(limit, |it| it.1);
                let end = block.end.unwrap_or(rounded).min(limit);
                let end = if limit - end <= SMALL_SIZE { limit } else { end };
                shadow.live.insert(block.address, end);
                shadow.add(at, block.address);
                at = end;
            }
            shadow.add(at, last);
        }
        shadow
    }

    fn add(&mut self, start: u64, end: u64) {
        if start < end {
            self.free.insert(start, end);
            self.by_size.insert((end - start, start));
        }
    }

    fn take(&mut self, start: u64, end: u64) {
        self.free.remove(&start);
        self.by_size.remove(&(end - start, start));
    }

    /// A segment goes back.
    fn remove_whole(&mut self, start: u64, end: u64) {
        if self.free.get(&start) == Some(&end) {
            self.take(start, end);
        }
        self.starts.remove(&start);
    }

    /// Gives the block `start..end`, or returns the border without which it would not have been
    /// given. `fresh` is a segment that was taken for it.
    fn allocate(&mut self, start: u64, end: u64, fresh: Option<u64>) -> Option<u64> {
        let size = end - start;
        let found = self.free.range(..=start).next_back().map(|(&at, &last)| (at, last));
        let Some((at, last)) = found.filter(|&(_, last)| last >= end) else {
            self.live.insert(start, end);
            return None;
        };
        if at < start {
            // Blocks are cut from the low end.
            if self.possible.binary_search(&start).is_ok() {
                return Some(start);
            }
            self.take(at, last);
            self.add(at, start);
            self.give(start, end, last);
            return None;
        }
        let border = self.better(size, start, fresh).and_then(|other| {
            let cut = if fresh == Some(start) { None } else { self.cut_chosen(end, last, other) };
            cut.or_else(|| self.cut_other(other))
        });
        if border.is_none() {
            self.take(at, last);
            self.give(start, end, last);
        }
        border
    }

    /// Takes `start..end` from the low end of free memory up to `last`, which is in no set.
    fn give(&mut self, start: u64, end: u64, last: u64) {
        let end = if last - end <= SMALL_SIZE { last } else { end };
        self.add(end, last);
        self.live.insert(start, end);
    }

    /// The free block that best fit would have taken instead of the one at `start`.
    fn better(&self, size: u64, start: u64, fresh: Option<u64>) -> Option<(u64, u64)> {
        let mut fitting = self.by_size.range((size, 0)..).map(|&(size, at)| (at, at + size));
        if fresh == Some(start) {
            return fitting.find(|&(at, _)| at != start);
        }
        fitting.next().filter(|&(at, _)| at != start)
    }

    /// The first border behind a block, which ends at `end`, that makes the chosen free block a
    /// better fit than `other`.
    fn cut_chosen(&self, end: u64, last: u64, other: (u64, u64)) -> Option<u64> {
        let first = self.possible.partition_point(|&border| border < end);
        let chosen = self.free.range(..end).next_back().map(|(&at, _)| at)?;
        let border = *self.possible.get(first)?;
        let is_better = (border - chosen, chosen) < (other.1 - other.0, other.0);
        (border < last && is_better).then_some(border)
    }

    /// The border nearest to the middle of a free block that was not chosen.
    fn cut_other(&self, (start, end): (u64, u64)) -> Option<u64> {
        let middle = start + (end - start) / 2;
        let first = self.possible.partition_point(|&border| border <= start);
        let borders = self.possible[first..].iter().copied().take_while(|&border| border < end);
        borders.min_by_key(|&border| border.abs_diff(middle))
    }

    /// Frees the block at an address, and merges it with its free neighbours of its segment.
    fn release(&mut self, address: u64) {
        let Some(last) = self.live.remove(&address) else { return };
        let (mut start, mut end) = (address, last);
        if let Some(&next) = self.free.get(&last)
            && !self.starts.contains(&last)
        {
            self.take(last, next);
            end = next;
        }
        let before = self.free.range(..address).next_back().map(|(&at, &end)| (at, end));
        if let Some((at, _)) = before.filter(|&(_, end)| end == address)
            && !self.starts.contains(&address)
        {
            self.take(at, address);
            start = at;
        }
        self.add(start, end);
    }
}
