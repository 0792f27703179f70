//! The large requests of a step, with what they were given.

use girih_trace::StreamId;
use rustc_hash::FxHashMap;

use super::layout::{Item, Ring};
use super::views::Part;
use crate::device::Address;

/// Requests of a step at most that are remembered, and parts of theirs: together 2 MiB for a step, of which there are
/// two. What comes after them is served by the search.
pub(super) const REQUESTS_MAX: usize = 1 << 14;
pub(super) const PARTS_MAX: usize = 1 << 16;
/// Steps are the same if no more than one request in so many is another: one that a tensor more or less that went to the
/// host has asked for.
const FEW: u32 = 200;
/// The request is not freed yet.
pub(super) const ALIVE: u32 = u32::MAX;

/// The requests of one size and stream, by their numbers.
pub(super) type Alike = FxHashMap<(u64, StreamId), Vec<u32>>;

/// True if so many of a step's requests are all but a few.
pub(super) fn is_most(known: u32, count: u32) -> bool {
    count.saturating_sub(known) <= count / FEW
}

/// A request of a step, and what it was given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) address: Address,
    /// The place of the view that it was given; none if its bytes lay side by side.
    pub(super) view: Option<u32>,
    /// Where its parts begin among those of the step.
    pub(super) parts: u32,
    /// The number of the request before which it was freed. Those of the next step go on counting.
    pub(super) until: u32,
    /// The number of the one that it is in the step before.
    pub(super) twin: Option<u32>,
}

/// The requests of a step, in order.
#[derive(Debug, Default)]
pub(super) struct Turn {
    pub(super) requests: Vec<Seen>,
    pub(super) parts: Vec<Part>,
    pub(super) alike: Alike,
    /// How many of them came in the step before, too.
    pub(super) known: u32,
    /// There were more than can be remembered.
    pub(super) is_cut_off: bool,
}

impl Turn {
    pub(super) fn count(&self) -> u32 {
        self.requests.len() as u32
    }

    /// True if of so many requests in a hundred each is one of the step before, and the other way round.
    pub(super) fn is_like(&self, before: &Turn, percent: u64) -> bool {
        let most = u64::from(self.count().max(before.count()));
        most > 0 && u64::from(self.known) * 100 >= most * percent
    }

    /// True if it has the requests of the step before and no others, but for a few.
    pub(super) fn is_same(&self, before: &Turn) -> bool {
        self.known > 0 && is_most(self.known, self.count().max(before.count()))
    }

    /// The requests that come again, of the stream that has most of the bytes, where this step is the same as the one
    /// before: what is alive yet lives as long as it did then.
    pub(super) fn ring(&self, before: &Turn) -> Option<Ring> {
        if self.is_cut_off || before.is_cut_off {
            return None;
        }
        let count = self.count();
        let mut streams: FxHashMap<StreamId, u64> = FxHashMap::default();
        for (&(size, stream), numbers) in &self.alike {
            *streams.entry(stream).or_default() += size * numbers.len() as u64;
        }
        let (&stream, _) = streams.iter().max_by_key(|&(stream, bytes)| (*bytes, *stream))?;
        let mut items = Vec::new();
        for (&(size, of), numbers) in &self.alike {
            for &number in numbers.iter().filter(|_| of == stream) {
                let seen = &self.requests[number as usize];
                let life = match (seen.until, seen.twin) {
                    (ALIVE, Some(twin)) => match before.requests[twin as usize].until {
                        ALIVE => continue,
                        until => (until - twin).max(count - number + 1),
                    },
                    (ALIVE, None) => continue,
                    (until, _) => until - number,
                };
                if (1..=count).contains(&life) {
                    items.push(Item { number, size, life });
                }
            }
        }
        items.sort_unstable_by_key(|item| item.number);
        Some(Ring { items, stream, count, cut: 0 })
    }

    /// True if a request lives on when its step has ended.
    pub(super) fn lasts(&self, seen: &Seen) -> bool {
        seen.until >= self.count()
    }

    /// How many requests came while this one lived; of one that is alive yet as many as there are in a step.
    pub(super) fn life(&self, number: u32) -> u32 {
        match self.requests[number as usize].until {
            ALIVE => self.count(),
            until => until.saturating_sub(number),
        }
    }

    pub(super) fn parts_of(&self, number: u32) -> &[Part] {
        let start_of = |number: usize| self.requests.get(number).map(|seen| seen.parts as usize);
        let start = start_of(number as usize).unwrap_or(self.parts.len());
        let end = start_of(number as usize + 1).unwrap_or(self.parts.len());
        &self.parts[start..end]
    }
}
