//! A moment of a run: what is alive, what is held, and whose the idle bytes are.
//!
//! Told from the recording alone, by address, and so true whoever the allocator was; of a request that only a
//! replay was refused, from what the replayed allocator held:
//!
//! ```text
//!  stream 0, default pool   |####|  hole  |##|hole|######|      own: in pieces
//!  stream 7, default pool   |      idle       |##|               another stream's
//!  stream 0, pool (0, 1)    |##|   idle   |                     another pool's
//!  the device               |    free    |
//! ```

use std::collections::BTreeMap;

use girih_plan::granted;
use girih_runtime::policy::{BlockView, SegmentView};
use girih_trace::{
    Action, BlockState, Contradiction, Earlier, Lifetimes, PoolId, StreamId, Tick, Trace,
};

/// Segments of PyTorch's that serve requests of at most 1 MiB have so many bytes (`kSmallBuffer`).
const SMALL_SEGMENT: u64 = 2 << 20;
/// The largest request of the small pool (`kSmallSize`).
const SMALL_SIZE: u64 = 1 << 20;

/// Whose a piece of memory is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner {
    /// The stream whose requests it serves.
    pub stream: StreamId,
    /// The pool.
    pub pool: PoolId,
}

/// What an owner holds at a moment. Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Holding {
    /// Held of the device.
    pub reserved: u64,
    /// Of these, in no live block.
    pub idle: u64,
    /// The largest idle piece that lies in one.
    pub largest: u64,
    /// Idle pieces.
    pub pieces: u64,
}

impl Holding {
    /// Adds an idle piece. One of a segment for small requests is none that a large one could have.
    fn add_idle(&mut self, bytes: u64, is_small: bool) {
        self.idle += bytes;
        self.pieces += 1;
        if !is_small {
            self.largest = self.largest.max(bytes);
        }
    }
}

/// What is alive and what is held at a moment. Bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Moment {
    /// Requested by the blocks that are alive.
    pub live: u64,
    /// What they were granted, in blocks of 512 bytes.
    pub granted: u64,
    /// Of `granted`, what the program has let go of and a stream still holds.
    pub pending: u64,
    /// Held of the device.
    pub reserved: u64,
    /// By owner.
    pub owners: BTreeMap<Owner, Holding>,
    /// The requests that are alive, as indices of the lifetimes.
    pub requests: Vec<u32>,
}

impl Moment {
    /// With these `requests` alive, and nothing that is known to be held.
    pub(crate) fn of(lives: &Lifetimes, requests: Vec<u32>, tick: Tick) -> Moment {
        let mut moment = Moment { requests, ..Moment::default() };
        for &index in &moment.requests {
            let life = &lives.requests[index as usize];
            let bytes = granted(life.size);
            moment.live += life.size;
            moment.granted += bytes;
            if life.free_requested < tick {
                moment.pending += bytes;
            }
        }
        moment
    }

    /// Adds a segment that a replayed allocator holds, with its blocks.
    pub(crate) fn hold(&mut self, segment: SegmentView, blocks: &[BlockView]) {
        let owner = Owner { stream: segment.stream, pool: segment.pool };
        let holding = self.owners.entry(owner).or_default();
        for block in blocks.iter().filter(|block| block.state == BlockState::Inactive) {
            holding.add_idle(block.size, segment.is_small);
        }
        holding.reserved += segment.size;
        self.reserved += segment.size;
    }

    /// Bytes held and in no live block.
    pub fn idle(&self) -> u64 {
        self.reserved.saturating_sub(self.granted)
    }

    /// What the owners that `of` picks hold in all; `largest` is the largest of theirs.
    pub fn sum(&self, of: impl Fn(&Owner) -> bool) -> Holding {
        let mut sum = Holding::default();
        for (_, holding) in self.owners.iter().filter(|(owner, _)| of(owner)) {
            sum.reserved += holding.reserved;
            sum.idle += holding.idle;
            sum.pieces += holding.pieces;
            sum.largest = sum.largest.max(holding.largest);
        }
        sum
    }
}

/// The requests that are alive before the event of a tick.
pub fn alive(lives: &Lifetimes, tick: Tick) -> Vec<u32> {
    let is_alive = |&index: &u32| {
        let life = &lives.requests[index as usize];
        ((index as usize) < lives.older || life.birth < tick) && life.death >= tick
    };
    (0..lives.requests.len() as u32).filter(is_alive).collect()
}

/// What was held before the event of a tick.
pub fn at(
    trace: &Trace,
    lives: &Lifetimes,
    earlier: &Result<Earlier, Contradiction>,
    tick: Tick,
) -> Moment {
    let runs = held(trace, earlier, tick);
    let mut moment = Moment::of(lives, alive(lives, tick), tick);
    let block = |&index: &u32| {
        let life = &lives.requests[index as usize];
        (life.address, granted(life.size))
    };
    let mut blocks: Vec<(u64, u64)> = moment.requests.iter().map(block).collect();
    blocks.sort_unstable();
    let mut blocks = blocks.into_iter().peekable();
    for (address, run) in &runs {
        let holding = moment.owners.entry(run.owner).or_default();
        let end = address + run.size;
        let mut free_from = *address;
        let mut hole = |from: u64, to: u64| {
            let bytes = to.saturating_sub(from);
            if bytes > 0 {
                holding.add_idle(bytes, run.is_small);
            }
        };
        while let Some((start, size)) = blocks.next_if(|&(start, _)| start < end) {
            if start >= *address {
                hole(free_from, start);
                free_from = free_from.max(start + size);
            }
        }
        hole(free_from, end);
        holding.reserved += run.size;
        moment.reserved += run.size;
    }
    // A recording that lost its beginning shows less of what was held than of what was alive.
    moment.reserved = moment.reserved.max(moment.granted);
    moment
}

/// The most that was held at once before the event of a tick.
pub fn most_held(trace: &Trace, earlier: &Result<Earlier, Contradiction>, tick: Tick) -> u64 {
    let mut now = earlier.as_ref().map_or(0, Earlier::reserved);
    let mut most = now;
    for event in &trace.events[..tick.index().min(trace.events.len())] {
        match event.action {
            Action::SegmentAlloc | Action::SegmentMap => now = now.saturating_add(event.size),
            Action::SegmentFree | Action::SegmentUnmap => now = now.saturating_sub(event.size),
            _ => {}
        }
        most = most.max(now);
    }
    most
}

/// A run of addresses that is held.
#[derive(Clone, Copy, Debug)]
struct Run {
    size: u64,
    owner: Owner,
    is_small: bool,
    is_expandable: bool,
}

/// What is held before the event of a tick, by address; runs of one reservation that touch are one.
fn held(trace: &Trace, earlier: &Result<Earlier, Contradiction>, tick: Tick) -> BTreeMap<u64, Run> {
    let mut runs: BTreeMap<u64, Run> = BTreeMap::new();
    for segment in earlier.iter().flat_map(|earlier| &earlier.segments) {
        let owner = Owner { stream: segment.stream, pool: segment.pool };
        let (size, is_small) = (segment.size, segment.is_small);
        let is_expandable = segment.is_expandable;
        runs.insert(segment.address, Run { size, owner, is_small, is_expandable });
    }
    // Pages of an expandable segment are mapped for the request that follows, whose size tells the
    // pool.
    let mut mapped: Vec<u64> = Vec::new();
    for event in &trace.events[..tick.index().min(trace.events.len())] {
        let owner = Owner { stream: event.stream, pool: event.pool };
        match event.action {
            Action::SegmentAlloc => {
                let is_small = event.size == SMALL_SEGMENT;
                let run = Run { size: event.size, owner, is_small, is_expandable: false };
                runs.insert(event.address, run);
            }
            Action::SegmentFree => {
                runs.remove(&event.address);
            }
            Action::SegmentMap => {
                let run = Run { size: event.size, owner, is_small: false, is_expandable: true };
                runs.insert(event.address, run);
                mapped.push(event.address);
            }
            Action::SegmentUnmap => cut(&mut runs, event.address, event.size),
            Action::Alloc => {
                for address in mapped.drain(..) {
                    if let Some(run) = runs.get_mut(&address) {
                        run.is_small = event.size <= SMALL_SIZE;
                    }
                }
            }
            _ => {}
        }
    }
    join(runs)
}

/// Takes a range out of the runs that it touches.
fn cut(runs: &mut BTreeMap<u64, Run>, from: u64, size: u64) {
    let to = from.saturating_add(size);
    let touched: Vec<(u64, Run)> = (runs.range(..to).rev())
        .take_while(|(address, run)| **address + run.size > from)
        .map(|(&address, &run)| (address, run))
        .collect();
    for (address, run) in touched {
        runs.remove(&address);
        if address < from {
            runs.insert(address, Run { size: from - address, ..run });
        }
        if address + run.size > to {
            runs.insert(to, Run { size: address + run.size - to, ..run });
        }
    }
}

fn join(runs: BTreeMap<u64, Run>) -> BTreeMap<u64, Run> {
    let mut joined: BTreeMap<u64, Run> = BTreeMap::new();
    for (address, run) in runs {
        if let Some(mut last) = joined.last_entry() {
            let touches = *last.key() + last.get().size == address;
            let last = last.get_mut();
            let is_same = (last.owner, last.is_small) == (run.owner, run.is_small);
            if touches && is_same && last.is_expandable && run.is_expandable {
                last.size += run.size;
                continue;
            }
        }
        joined.insert(address, run);
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use girih_trace::Event;

    const MIB: u64 = 1 << 20;

    fn event(action: Action, address: u64, mebibytes: u64, stream: u16) -> Event {
        Event::of(action, address * MIB, mebibytes * MIB, StreamId(stream), PoolId::DEFAULT)
    }

    fn moment(events: Vec<Event>) -> Moment {
        let streams = vec![0, 7];
        let trace = Trace { events, streams, pools: vec![(0, 0)], ..Trace::default() };
        let lives = Lifetimes::of(&trace);
        let earlier = Earlier::of(&trace, &lives);
        at(&trace, &lives, &earlier, Tick(trace.events.len() as u32))
    }

    #[test]
    fn idle_bytes_belong_to_the_stream_of_their_segment() {
        let moment = moment(vec![
            event(Action::SegmentAlloc, 1000, 20, 0),
            event(Action::Alloc, 1000, 5, 0),
            event(Action::Alloc, 1010, 2, 0),
            event(Action::SegmentAlloc, 2000, 30, 1),
            event(Action::Alloc, 2000, 10, 1),
            event(Action::FreeRequested, 2000, 10, 1),
            event(Action::FreeCompleted, 2000, 10, 1),
        ]);
        assert_eq!((moment.live, moment.reserved, moment.idle()), (7 * MIB, 50 * MIB, 43 * MIB));
        let own = moment.sum(|owner| owner.stream == StreamId(0));
        assert_eq!((own.idle, own.largest, own.pieces), (13 * MIB, 8 * MIB, 2));
        assert_eq!(moment.sum(|owner| owner.stream == StreamId(1)).idle, 30 * MIB);
    }

    #[test]
    fn pages_that_were_unmapped_are_held_no_more_and_runs_that_touch_are_one() {
        let moment = moment(vec![
            event(Action::SegmentMap, 1000, 20, 0),
            event(Action::SegmentMap, 1020, 20, 0),
            event(Action::Alloc, 1000, 10, 0),
            event(Action::SegmentUnmap, 1030, 10, 0),
        ]);
        assert_eq!(moment.reserved, 30 * MIB);
        let own = moment.sum(|_| true);
        assert_eq!((own.idle, own.largest, own.pieces), (20 * MIB, 20 * MIB, 1));
    }
}
