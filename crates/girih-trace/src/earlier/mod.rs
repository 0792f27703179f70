//! Earlier: what the recorded allocator held when the first event came.
//!
//! A recording begins late when its ring was overwritten, or when it was switched on after the
//! model was built. Then the process holds segments that no event took: live blocks, and free
//! memory that later requests are served from. A replay that begins with nothing takes all of it
//! anew. What was held is rebuilt here, from one of two kinds of evidence:
//!
//! ```text
//!  first event ───────── events ─────────► last event ─► final segments
//!       ▲                                                      │
//!       ├── known: each event undone, the last first  ◄────────┘
//!       └── inferred: what the events touched that no event took
//! ```
//!
//! - **Known**, where the file has the final segments (`_dump_snapshot`): the events are undone one
//!   by one. Segments, live blocks and pending frees are then exact. What is not: the bytes granted
//!   to a block that was freed in the events, where free memory follows it. A block of the large
//!   pool may have kept a remainder of up to 1 MiB; the first request that was served behind it
//!   tells its end, and without one [`EarlierBlock::end`] is none. Nor do segments tell how old
//!   they and their free blocks are: the order of registration (torch 2.12 and later) and the ages
//!   for garbage collection are lost.
//! - **Inferred**, where the file has events alone: memory that was touched, and that no event took,
//!   was held. Its extent is a lower bound; the borders of segments are guessed from where blocks
//!   began. What no event touched shows only in the peaks that the run reported: up to as many
//!   bytes were live, and up to as many more were held, at addresses that nobody knows.

mod inferred;
mod known;
mod reservation;
mod shadow;

use rustc_hash::FxHashMap;
use thiserror::Error;

use crate::event::{PoolId, StreamId};
use crate::lifetimes::Lifetimes;
use crate::trace::Trace;

/// What was held before the first event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Earlier {
    /// The segments, by address, disjoint. Of an expandable segment, its mapped runs.
    pub segments: Vec<EarlierSegment>,
    /// How it is known.
    pub evidence: Evidence,
    /// Bytes of `segments` that no event touched and no final segment shows: only the peaks that
    /// the run reported tell of them. They stand in segments of their own, above all others.
    pub untouched: u64,
}

/// How [`Earlier`] is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// The final segments with every event undone.
    Known,
    /// The addresses that events touched, and the peaks that the run reported.
    Inferred,
}

/// A segment, or a mapped run of an expandable one, before the first event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EarlierSegment {
    /// Device address of its first byte.
    pub address: u64,
    /// Bytes, mapped.
    pub size: u64,
    /// The stream whose requests it serves.
    pub stream: StreamId,
    /// The pool that it belongs to.
    pub pool: PoolId,
    /// True for the pool of requests of at most 1 MiB.
    pub is_small: bool,
    /// True if it is a mapped run of an expandable segment.
    pub is_expandable: bool,
    /// The lowest address of its reservation that was ever mapped; its own address unless it is
    /// expandable.
    pub base: u64,
    /// Its live blocks, by address. All else in it was free.
    pub blocks: Vec<EarlierBlock>,
}

/// A block that was live before the first event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EarlierBlock {
    /// Device address of its first byte.
    pub address: u64,
    /// Bytes requested. Where nothing but its extent is known, the bytes of that.
    pub requested: u64,
    /// Address after its last granted byte, if it is known.
    pub end: Option<u64>,
    /// True if its free had been asked for before the first event.
    pub is_pending: bool,
    /// The older request of [`Lifetimes`] that it was given to; none for memory of which only the
    /// extent is known.
    pub request: Option<u32>,
}

/// The final segments and the events do not fit together, so that what was held before cannot be
/// rebuilt.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "record again with a larger `max_entries`: event {event} {contradiction}, so events were lost in \
     the middle, or the segments were taken at another time than the events"
)]
pub struct Contradiction {
    /// Index of the event at which it shows.
    pub event: usize,
    /// What the event contradicts.
    pub contradiction: &'static str,
}

impl Earlier {
    /// Rebuilds what was held before the first event of a trace. Without segments for a recording
    /// that began with nothing. Linear in the events but for a logarithm.
    ///
    /// # Errors
    /// If the file has final segments and the events contradict them.
    pub fn of(trace: &Trace, lives: &Lifetimes) -> Result<Earlier, Contradiction> {
        let mut earlier = if !trace.segments.is_empty() {
            let segments = known::rebuild(trace)?;
            Earlier { segments, evidence: Evidence::Known, untouched: 0 }
        } else if trace.origin.truncated {
            inferred::infer(trace, lives)
        } else {
            Earlier { segments: Vec::new(), evidence: Evidence::Inferred, untouched: 0 }
        };
        earlier.name_requests(lives);
        reservation::find_bases(trace, &mut earlier.segments);
        Ok(earlier)
    }

    /// True if nothing was held.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Bytes that were held of the device.
    pub fn reserved(&self) -> u64 {
        self.segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.size))
    }

    /// Bytes that the live blocks had requested.
    pub fn requested(&self) -> u64 {
        let blocks = self.segments.iter().flat_map(|segment| &segment.blocks);
        blocks.fold(0, |sum, block| sum.saturating_add(block.requested))
    }

    /// Sets which older request each block was given to: those have an address of their own.
    fn name_requests(&mut self, lives: &Lifetimes) {
        let older = lives.requests[..lives.older].iter().zip(0..);
        let by_address: FxHashMap<u64, u32> =
            older.map(|(request, index)| (request.address, index)).collect();
        for block in self.segments.iter_mut().flat_map(|segment| &mut segment.blocks) {
            block.request = by_address.get(&block.address).copied();
        }
    }
}

#[cfg(test)]
mod tests;
