//! What was held before, from the events alone.
//!
//! Memory that a block was given in, and that no event took from the device, was held before. The
//! touched addresses of each pool and stream are what is known to have been free, or in use by a
//! block that an event frees. Segments are drawn around them:
//!
//! ```text
//!  touched:    |####|  |##########|##| |#####|            |
//!  segments:   [ live ][    free     ]B[  free  ][ live  ]
//!              2 MiB                  ▲ a block began here while the memory before it was free:
//!              aligned                  a segment begins
//! ```
//!
//! - Segments begin and end at multiples of 2 MiB; those of the small pool are 2 MiB long.
//! - A block is cut from the low end of a run of free memory. Where one begins and the memory
//!   before it was free, that is of another segment.
//! - Best fit takes the smallest free block: where it seems not to have done so, a segment ends
//!   (`shadow`).
//! - A segment that is given back shows its extent.
//! - Between touched addresses of a segment, what nobody touched was in use all along, unless it is
//!   less than 1 MiB in the large pool: so little is no block but a remainder.
//!
//! What lies elsewhere shows in the peaks alone. The bytes that the run reported as allocated at
//! most, less the most that the events add up to, were live if the peak came within the recording;
//! likewise for the bytes reserved. Both are the most that can have been there. They become
//! segments above all others, whose free memory is in pieces too small to serve a request.

use std::collections::BTreeMap;

use super::shadow;
use super::{Earlier, EarlierBlock, EarlierSegment, Evidence};
use crate::event::{Action, Event, PoolId, StreamId, Tick};
use crate::lifetimes::{Lifetime, Lifetimes};
use crate::ranges::Ranges;
use crate::trace::Trace;

/// Blocks are multiples of this (`kMinBlockSize`).
const MIN_BLOCK: u64 = 512;
/// Segments begin and end at multiples of this, and those of the small pool have its size.
pub(super) const UNIT: u64 = 2 << 20;
/// Bytes of a page of the large pool's expandable segments (`kLargeBuffer`).
const LARGE_PAGE: u64 = 20 << 20;
/// The largest request of the small pool, and the largest remainder that a block of the large pool
/// keeps (`kSmallSize`).
pub(super) const SMALL_SIZE: u64 = 1 << 20;
/// Bytes of free memory between two pieces of what is live and untouched, at most about 1 MiB.
const PIECE: u64 = SMALL_SIZE / 2;
/// The most borders that are sought in the choices of the allocator, for each home.
const MAX_BORDERS: usize = 200;
/// The most events that are visited in search of them: about ten seconds.
const MAX_VISITS: usize = 30_000_000;
/// The most pieces that untouched memory is cut into.
const MAX_PIECES: u64 = 1 << 16;
/// No device has addresses as high. What claims to lie there is left out.
const LAST_ADDRESS: u64 = 1 << 62;

/// A pool and a stream, and whether it is the pool of small requests.
pub(super) type Home = (PoolId, StreamId, bool);

/// The addresses that one home was given blocks at, in memory that no event took.
#[derive(Default)]
struct Touched {
    ranges: Ranges,
    /// Every block, `start..end`, in any order.
    spans: Vec<(u64, u64)>,
    /// Addresses at which a segment begins or ends.
    borders: Vec<u64>,
    /// Those of segments that were given back.
    exact: Vec<u64>,
}

impl Touched {
    fn add(&mut self, start: u64, end: u64) {
        self.ranges.insert(start, end);
        self.spans.push((start, end));
    }
}

/// Infers what was held.
pub(super) fn infer(trace: &Trace, lives: &Lifetimes) -> Earlier {
    let older: Vec<&Lifetime> =
        lives.requests[..lives.older].iter().filter(|older| span(older).is_some()).collect();
    let mut homes = touched(trace, &older);
    if !trace.settings.expandable_segments {
        find_borders(trace, &older, &mut homes);
    }
    let mut segments = Vec::new();
    for (&home, touched) in &mut homes {
        segments.extend(settle(trace, home, touched, &older));
    }
    segments.sort_by_key(|segment| segment.address);
    // Two homes can only meet in a damaged recording; the first keeps the memory.
    let mut end = 0;
    segments.retain(|segment| {
        let fits = segment.address >= end;
        if fits {
            end = segment.address + segment.size;
        }
        fits
    });
    let mut earlier = Earlier { segments, evidence: Evidence::Inferred, untouched: 0 };
    add_untouched(trace, lives, &mut earlier);
    earlier
}

/// The addresses of a block that has a place, `start..end`.
fn span(life: &Lifetime) -> Option<(u64, u64)> {
    block_span(life.address, life.size)
}

pub(super) fn block_span(address: u64, size: u64) -> Option<(u64, u64)> {
    let end = address.checked_add(size.max(1).checked_next_multiple_of(MIN_BLOCK)?)?;
    let is_placed = address > 0 && address.is_multiple_of(MIN_BLOCK) && end <= LAST_ADDRESS;
    is_placed.then_some((address, end))
}

fn home_of(event: &Event) -> Home {
    (event.pool, event.stream, event.size <= SMALL_SIZE)
}

/// Follows what the events hold of the device; true if the event speaks of memory that was held
/// before.
fn is_earlier(event: &Event, taken: &mut Ranges) -> bool {
    let end = event.address.saturating_add(event.size);
    match event.action {
        Action::SegmentAlloc | Action::SegmentMap => {
            taken.insert(event.address, end);
            false
        }
        Action::SegmentFree | Action::SegmentUnmap => {
            let is_earlier = !taken.meets(event.address, end);
            taken.remove(event.address, end);
            is_earlier
        }
        _ => !taken.contains(event.address),
    }
}

/// Gathers what was touched, by home.
fn touched(trace: &Trace, older: &[&Lifetime]) -> BTreeMap<Home, Touched> {
    let mut homes: BTreeMap<Home, Touched> = BTreeMap::new();
    for life in older {
        if let Some((start, end)) = span(life) {
            let home = (life.pool, life.stream, life.size <= SMALL_SIZE);
            homes.entry(home).or_default().add(start, end);
        }
    }
    let mut taken = Ranges::default();
    for event in &trace.events {
        if !is_earlier(event, &mut taken) {
            continue;
        }
        let Event { address, size, pool, stream, .. } = *event;
        let Some((start, end)) = block_span(address, size) else { continue };
        match event.action {
            Action::Alloc => homes.entry(home_of(event)).or_default().add(start, end),
            Action::SegmentFree => {
                let touched = homes.entry((pool, stream, size == UNIT)).or_default();
                touched.ranges.insert(start, end);
                touched.exact.extend([start, end]);
            }
            Action::SegmentUnmap if trace.settings.expandable_segments => {
                // The class is that of the blocks in it; pages of the large pool have 20 MiB.
                let met = |small| {
                    homes.get(&(pool, stream, small)).is_some_and(|it| it.ranges.meets(start, end))
                };
                let is_small = met(true) || (!met(false) && !size.is_multiple_of(LARGE_PAGE));
                homes.entry((pool, stream, is_small)).or_default().ranges.insert(start, end);
            }
            _ => {}
        }
    }
    homes
}

/// Finds the addresses at which a segment of the large pool must begin: a block was given there
/// while the memory before it was free.
fn find_borders(trace: &Trace, older: &[&Lifetime], homes: &mut BTreeMap<Home, Touched>) {
    let mut taken = Ranges::default();
    let mut live: BTreeMap<u64, u64> = older.iter().filter_map(|life| span(life)).collect();
    for event in &trace.events {
        if !is_earlier(event, &mut taken) {
            continue;
        }
        match event.action {
            Action::Alloc => {
                let Some((start, end)) = block_span(event.address, event.size) else { continue };
                let is_free_before = || {
                    let before = live.range(..start).next_back();
                    before.is_none_or(|(_, &end)| end.saturating_add(SMALL_SIZE) < start)
                };
                if start.is_multiple_of(UNIT)
                    && let Some(touched) = homes.get_mut(&home_of(event))
                    && touched.ranges.contains(start - 1)
                    && is_free_before()
                {
                    touched.borders.push(start);
                }
                live.insert(start, end);
            }
            Action::FreeCompleted => drop(live.remove(&event.address)),
            _ => {}
        }
    }
}

/// Draws segments around what one home touched, and again with each border that the choices of the
/// allocator ask for.
fn settle(
    trace: &Trace,
    home: Home,
    touched: &mut Touched,
    older: &[&Lifetime],
) -> Vec<EarlierSegment> {
    if home.2 || trace.settings.expandable_segments {
        return draw(trace, home, touched, older);
    }
    let possible = shadow::possible_borders(&mut touched.spans);
    touched.borders.retain(|border| possible.binary_search(border).is_ok());
    touched.borders.append(&mut touched.exact);
    let mut segments = draw(trace, home, touched, older);
    for _ in 0..MAX_BORDERS.min(MAX_VISITS / trace.events.len().max(1)) {
        let border = shadow::first_border(&trace.events, home, &segments, &possible);
        let Some(border) = border.filter(|border| !touched.borders.contains(border)) else { break };
        touched.borders.push(border);
        segments = draw(trace, home, touched, older);
    }
    segments
}

/// Draws segments around what one home touched, cut at its borders.
fn draw(trace: &Trace, home: Home, touched: &Touched, older: &[&Lifetime]) -> Vec<EarlierSegment> {
    let mut segments = Vec::new();
    let (pool, stream, is_small) = home;
    let is_expandable = trace.settings.expandable_segments;
    let (unit, origin) = match is_expandable {
        true => page(trace, touched, is_small),
        false => (UNIT, 0),
    };
    let mut cells = Ranges::default();
    for (start, end) in touched.ranges.iter() {
        let first = origin + (start - origin) / unit * unit;
        cells.insert(first, origin + (end - origin).next_multiple_of(unit));
    }
    let mut borders = touched.borders.clone();
    borders.sort_unstable();
    borders.dedup();
    for (start, end) in cells.iter() {
        let mut at = start;
        while at < end {
            let next = match borders.partition_point(|&border| border <= at) {
                _ if is_small && !is_expandable => at + UNIT,
                place => borders.get(place).map_or(end, |&border| border.min(end)),
            };
            let blocks = blocks_of(touched, home, at, next, older);
            let size = next - at;
            segments.push(EarlierSegment {
                address: at,
                size,
                stream,
                pool,
                is_small,
                is_expandable,
                base: at,
                blocks,
            });
            at = next;
        }
    }
    segments
}

/// Bytes of a page of an expandable segment, and an address below everything touched at which one
/// begins.
fn page(trace: &Trace, touched: &Touched, is_small: bool) -> (u64, u64) {
    let page = if is_small { UNIT } else { LARGE_PAGE };
    let first = touched.ranges.iter().next().map_or(0, |(start, _)| start);
    let last = touched.ranges.iter().last().map_or(0, |(_, end)| end);
    let is_near = |event: &&Event| {
        event.action == Action::SegmentMap
            && event.size.is_multiple_of(page)
            && (first..=last).contains(&event.address)
    };
    let near = trace.events.iter().find(is_near);
    let known = near.map_or(first / UNIT * UNIT, |event| event.address);
    let back = known.saturating_sub(first).next_multiple_of(page);
    (page, known.saturating_sub(back))
}

/// The live blocks of a segment: those that events free, and what nobody touched.
fn blocks_of(
    touched: &Touched,
    home: Home,
    start: u64,
    end: u64,
    older: &[&Lifetime],
) -> Vec<EarlierBlock> {
    let mut blocks = Vec::new();
    let is_large_cell = !home.2;
    let mut untouched = |from: u64, to: u64| {
        let is_remainder = is_large_cell && from > start && to - from <= SMALL_SIZE;
        if from < to && !is_remainder {
            blocks.push(EarlierBlock {
                address: from,
                requested: to - from,
                end: Some(to),
                is_pending: false,
                request: None,
            });
        }
    };
    let mut at = start;
    for (from, to) in touched.ranges.within(start, end) {
        untouched(at, from);
        at = to;
    }
    untouched(at, end);
    // Older requests come by address.
    let first = older.partition_point(|life| life.address < start);
    for life in &older[first..] {
        let Some((from, to)) = span(life).filter(|&(from, _)| from < end) else { break };
        if to <= end && (life.pool, life.stream) == (home.0, home.1) {
            blocks.push(EarlierBlock {
                address: from,
                requested: life.size,
                end: None,
                is_pending: life.free_requested == life.death && life.death != Tick::NEVER,
                request: None,
            });
        }
    }
    blocks.sort_by_key(|block| block.address);
    let mut free_from = start;
    blocks.retain(|block| {
        let fits = block.address >= free_from;
        if fits {
            let last = block.address + block.requested.max(1).next_multiple_of(MIN_BLOCK);
            free_from = block.end.unwrap_or(last);
        }
        fits
    });
    blocks
}

/// Adds what only the reported peaks tell of, in one segment above all others.
fn add_untouched(trace: &Trace, lives: &Lifetimes, earlier: &mut Earlier) {
    let unplaced = lives.requests[..lives.older].iter().filter(|life| life.address == 0);
    let unplaced: u64 = unplaced.map(|life| life.size).sum();
    let opaque = |block: &&EarlierBlock| block.end.is_some();
    let placed: u64 = (earlier.segments.iter().flat_map(|segment| &segment.blocks))
        .filter(opaque)
        .map(|block| block.requested)
        .sum();
    let live = unplaced.saturating_sub(placed).min(LAST_ADDRESS / 2) / MIN_BLOCK * MIN_BLOCK;
    if live == 0 {
        return;
    }
    let reported = trace.recorded.reserved_peak.unwrap_or(0);
    let held = reported.saturating_sub(trace.most_taken()).saturating_sub(earlier.reserved());
    let most_free = (live / MIN_BLOCK).min(MAX_PIECES) * PIECE;
    let size = held.clamp(live, live + most_free).next_multiple_of(UNIT);
    let last = earlier.segments.last().map_or(0, |segment| segment.address + segment.size);
    let ends = trace.events.iter().filter(|event| event.action != Action::Oom);
    let ends = ends.map(|event| event.address.saturating_add(event.size));
    let highest = ends.filter(|&end| end <= LAST_ADDRESS).max().unwrap_or(0).max(last);
    let address = highest.next_multiple_of(UNIT) + UNIT;
    earlier.segments.push(EarlierSegment {
        address,
        size,
        stream: StreamId(0),
        pool: PoolId::DEFAULT,
        is_small: false,
        is_expandable: false,
        base: address,
        blocks: spread(address, size, live),
    });
    earlier.untouched = size;
}

/// Live blocks of `live` bytes in all, spread over a segment so that between two of them there is
/// less than 1 MiB: too little for any request of the large pool.
fn spread(address: u64, size: u64, live: u64) -> Vec<EarlierBlock> {
    let pieces = (size - live).div_ceil(PIECE).clamp(1, live / MIN_BLOCK);
    let free = size - live;
    // Both are shared out in units of blocks, evenly.
    let share = |bytes: u64, piece: u64| {
        let units = u128::from(bytes / MIN_BLOCK) * u128::from(piece) / u128::from(pieces);
        units as u64 * MIN_BLOCK
    };
    let block = |piece: u64| {
        let start = address + share(live, piece) + share(free, piece);
        let bytes = share(live, piece + 1) - share(live, piece);
        EarlierBlock {
            address: start,
            requested: bytes,
            end: Some(start + bytes),
            is_pending: false,
            request: None,
        }
    };
    (0..pieces).map(block).collect()
}
