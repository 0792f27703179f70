//! What was held before, from the final segments: every event undone, the last first.
//!
//! ```text
//!  undo alloc:           the block is not there      undo segment_alloc:  nor is the segment
//!  undo free_completed:  a pending block is there    undo segment_free:   a segment is there, free
//!  undo free_requested:  it is in use                map and unmap likewise, for runs of pages
//! ```

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::{Contradiction, EarlierBlock, EarlierSegment};
use crate::event::{Action, Event, PoolId, StreamId};
use crate::trace::{BlockState, Trace};

/// Every segment of the small pool has this size, and no other segment has it (`kSmallBuffer`).
const SMALL_SEGMENT: u64 = 2 << 20;
/// The largest request of the small pool (`kSmallSize`).
const SMALL_SIZE: u64 = 1 << 20;

/// Blocks begin at multiples of this (`kMinBlockSize`).
const MIN_BLOCK: u64 = 512;

const STRAY: &str = "comes when a block must have been in use that is in no segment";

/// A segment or a mapped run.
#[derive(Clone, Copy)]
struct Run {
    end: u64,
    stream: StreamId,
    pool: PoolId,
    /// Not known for pages that are wholly free.
    is_small: Option<bool>,
    is_expandable: bool,
}

/// The state between two events, on the way back.
struct State {
    runs: BTreeMap<u64, Run>,
    live: FxHashMap<u64, EarlierBlock>,
}

/// The segments before the first event, with their live blocks. Requests are not named yet.
pub(super) fn rebuild(trace: &Trace) -> Result<Vec<EarlierSegment>, Contradiction> {
    let fault = |contradiction| Contradiction { event: trace.events.len(), contradiction };
    let mut state = State::at_the_end(trace).map_err(fault)?;
    for (index, event) in trace.events.iter().enumerate().rev() {
        let fault = |contradiction| Contradiction { event: index, contradiction };
        state.undo(event).map_err(fault)?;
    }
    let fault = |contradiction| Contradiction { event: 0, contradiction };
    let mut segments = state.finish(trace).map_err(fault)?;
    find_ends(trace, &mut segments);
    Ok(segments)
}

impl State {
    fn at_the_end(trace: &Trace) -> Result<State, &'static str> {
        let mut state = State { runs: BTreeMap::new(), live: FxHashMap::default() };
        for segment in trace.segments.iter().filter(|segment| segment.size > 0) {
            let aligned = (segment.address | segment.size).is_multiple_of(MIN_BLOCK);
            let end = segment.address.saturating_add(segment.size);
            if !aligned || state.meets(segment.address, end) {
                return Err("comes before final segments that overlap or are misaligned");
            }
            let run = Run {
                end,
                stream: segment.stream,
                pool: segment.pool,
                is_small: Some(segment.is_small),
                is_expandable: segment.is_expandable,
            };
            state.runs.insert(segment.address, run);
            if run.is_expandable {
                state.join(segment.address);
            }
            for block in segment.blocks.iter().filter(|it| it.state != BlockState::Inactive) {
                let end = Some(block.address.saturating_add(block.size));
                let requested = if block.requested > 0 { block.requested } else { block.size };
                let is_pending = block.state == BlockState::PendingFree;
                let address = block.address;
                let block = EarlierBlock { address, requested, end, is_pending, request: None };
                state.live.insert(address, block);
            }
        }
        Ok(state)
    }

    /// True if a run has a byte in `start..end`.
    fn meets(&self, start: u64, end: u64) -> bool {
        self.runs.range(..end).next_back().is_some_and(|(_, run)| run.end > start)
    }

    fn undo(&mut self, event: &Event) -> Result<(), &'static str> {
        let Event { address, size, .. } = *event;
        let aligned = (address | size).is_multiple_of(MIN_BLOCK);
        let end = address.checked_add(size).filter(|_| aligned);
        let end = end.ok_or("speaks of a segment that is misaligned");
        match event.action {
            Action::Alloc => match self.live.remove(&address) {
                Some(_) => Ok(()),
                None => {
                    Err("allocates a block that is in no final segment, and that no event frees")
                }
            },
            Action::FreeRequested => match self.live.get_mut(&address) {
                Some(block) => {
                    block.is_pending = false;
                    Ok(())
                }
                None => {
                    Err("asks to free a block that is neither freed later nor pending at the end")
                }
            },
            Action::FreeCompleted => {
                let block = EarlierBlock {
                    address,
                    requested: size,
                    end: None,
                    is_pending: true,
                    request: None,
                };
                match self.live.insert(address, block) {
                    None => Ok(()),
                    Some(_) => Err("frees a block where another is in use"),
                }
            }
            Action::SegmentAlloc => match self.runs.remove(&address) {
                Some(run) if Ok(run.end) == end => Ok(()),
                _ => Err(
                    "takes a segment that no event gives back, and that is not there at the end",
                ),
            },
            Action::SegmentFree => {
                let is_small = Some(size == SMALL_SEGMENT);
                self.add(event, end?, is_small, false)
            }
            Action::SegmentMap => self.undo_map(address, end?),
            Action::SegmentUnmap => {
                self.add(event, end?, None, true)?;
                self.join(address);
                Ok(())
            }
            Action::Oom | Action::Snapshot | Action::Annotate => Ok(()),
        }
    }

    /// Puts back what the event gave to the device.
    fn add(
        &mut self,
        event: &Event,
        end: u64,
        is_small: Option<bool>,
        is_expandable: bool,
    ) -> Result<(), &'static str> {
        if self.meets(event.address, end) {
            return Err("gives back memory that is held later without having been taken again");
        }
        let Event { stream, pool, .. } = *event;
        if event.address < end {
            self.runs.insert(event.address, Run { end, stream, pool, is_small, is_expandable });
        }
        Ok(())
    }

    /// Joins the run at `address` with its neighbours of the same expandable segment.
    fn join(&mut self, address: u64) {
        let Some(&run) = self.runs.get(&address) else { return };
        let belong = |one: &Run, other: &Run| {
            let classes = (one.is_small, other.is_small);
            other.is_expandable
                && (one.stream, one.pool) == (other.stream, other.pool)
                && (classes.0 == classes.1 || classes.0.is_none() || classes.1.is_none())
        };
        let (mut start, mut joined) = (address, run);
        if let Some(&next) = self.runs.get(&run.end).filter(|next| belong(&joined, next)) {
            self.runs.remove(&run.end);
            joined = Run { end: next.end, is_small: joined.is_small.or(next.is_small), ..joined };
        }
        if let Some((&at, &prev)) = self.runs.range(..address).next_back()
            && prev.end == address
            && belong(&joined, &prev)
        {
            self.runs.remove(&address);
            start = at;
            joined.is_small = joined.is_small.or(prev.is_small);
        }
        self.runs.insert(start, joined);
    }

    /// Takes mapped pages out of the run that they are in.
    fn undo_map(&mut self, address: u64, end: u64) -> Result<(), &'static str> {
        let found = self.runs.range(..=address).next_back().map(|(&at, &run)| (at, run));
        let Some((at, run)) = found.filter(|(_, run)| run.end >= end && run.is_expandable) else {
            return Err("maps pages that no event unmaps, and that are not there at the end");
        };
        self.runs.remove(&at);
        if at < address {
            self.runs.insert(at, Run { end: address, ..run });
        }
        if end < run.end {
            self.runs.insert(end, run);
        }
        Ok(())
    }

    /// The segments with their blocks. Fails if a block is in none, or overlaps another.
    fn finish(self, trace: &Trace) -> Result<Vec<EarlierSegment>, &'static str> {
        let mut blocks: Vec<EarlierBlock> = self.live.into_values().collect();
        blocks.sort_unstable_by_key(|block| block.address);
        let mut blocks = blocks.into_iter().peekable();
        let mut segments = Vec::with_capacity(self.runs.len());
        for (&address, run) in &self.runs {
            let mut segment = EarlierSegment {
                address,
                size: run.end - address,
                stream: run.stream,
                pool: run.pool,
                is_small: run.is_small.unwrap_or_else(|| class_of(trace, address, run.end)),
                is_expandable: run.is_expandable,
                base: address,
                blocks: Vec::new(),
            };
            let mut free_from = address;
            while let Some(block) = blocks.next_if(|block| block.address < run.end) {
                let end = block.end.unwrap_or(block.address.saturating_add(block.requested));
                if block.address < free_from || end > run.end {
                    return Err(STRAY);
                }
                if !block.address.is_multiple_of(MIN_BLOCK) {
                    return Err("comes after a block at an address that no block can have");
                }
                free_from = end;
                segment.blocks.push(block);
            }
            segments.push(segment);
        }
        if blocks.next().is_some() { Err(STRAY) } else { Ok(segments) }
    }
}

/// Whether pages of an expandable segment serve small requests, from the first request that they
/// served. If they served none, from their size: pages of the large pool have 20 MiB.
fn class_of(trace: &Trace, start: u64, end: u64) -> bool {
    let is_block = |event: &&Event| {
        let is_block = matches!(event.action, Action::Alloc | Action::FreeCompleted);
        is_block && (start..end).contains(&event.address)
    };
    match trace.events.iter().find(is_block) {
        Some(event) => event.size <= SMALL_SIZE,
        None => !(end - start).is_multiple_of(20 << 20),
    }
}

/// Finds where blocks ended whose size is not known: the first block that is given behind one of
/// them, before anything else, begins where it ends. Not so in expandable segments, where pages in
/// between may have gone back, but there no block keeps a remainder.
fn find_ends(trace: &Trace, segments: &mut [EarlierSegment]) {
    // Blocks that are still in use, with what bounds them above, and their place.
    let mut open: BTreeMap<u64, (u64, usize, usize)> = BTreeMap::new();
    for (at, segment) in segments.iter().enumerate() {
        if segment.is_expandable {
            continue;
        }
        let end = segment.address + segment.size;
        let starts = segment.blocks.iter().skip(1).map(|block| block.address).chain([end]);
        for (place, (block, limit)) in segment.blocks.iter().zip(starts).enumerate() {
            if block.end.is_none() {
                open.insert(block.address, (limit, at, place));
            }
        }
    }
    for event in &trace.events {
        if open.is_empty() {
            return;
        }
        match event.action {
            Action::FreeCompleted => drop(open.remove(&event.address)),
            Action::Alloc => {
                let before = open.range(..event.address).next_back();
                let Some((&address, &(limit, at, place))) = before else { continue };
                if event.address < limit {
                    segments[at].blocks[place].end = Some(event.address);
                    open.remove(&address);
                }
            }
            _ => {}
        }
    }
}
