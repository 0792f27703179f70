//! Variants: iterations of other kinds than the steady one, in the same arena.
//!
//! ```text
//!                steady (largest kind)            variant                       steady
//!  forward     |=====================|          |=========|                    |==========
//!  gradients            |================== A ==|    |===================== A ==|
//!  batch        |==================== B ==|===== B ==|                        |==========
//! ```
//!
//! A variant stands in the place of a round of the ring: what that round finds at its beginning the variant
//! finds, and what it leaves to the next the variant leaves, at the same offsets. So any kind may follow any
//! other, and nobody is in the way. The rest goes into gaps below the ring's height, the largest first; what finds
//! none has no place. That is little, as the steady iteration is the largest of all kinds.
//!
//! What lives through a whole iteration of another kind, as the gradients of a model whose turn it is not, is
//! alive nearly always: it has a place in the persistent region, of its own or with what is as large and
//! stands at the same place in other kinds.

use std::collections::VecDeque;
use std::ops::Range;

use girih_trace::StreamId;
use rustc_hash::{FxHashMap, FxHashSet};

use super::Profile;
use super::steady::Steady;
use crate::fill::Fill;
use crate::plan::{Entry, Place, Role, Sequence, granted};
use crate::problem::Buffer;

/// Entries of all kinds of iterations besides the steady one: what a plan of all of them costs to make, to keep and to
/// follow grows with them.
const ENTRIES_MAX: usize = 1 << 17;

/// Bytes that a round of the ring leaves to the next.
#[derive(Clone, Copy)]
struct Left {
    size: u64,
    stream: StreamId,
    offset: u64,
}

impl Profile<'_> {
    /// The variants of a ring that is laid out in so many rounds and bytes: of each kind one for each round, the
    /// largest kinds first and after them what came once: of a program that has kinds it may well be one of them.
    pub(super) fn variants(
        &self,
        steady: Steady,
        ring: &[Entry],
        (rounds, height): (u32, u64),
        kept: &mut Kept,
    ) -> Vec<Sequence> {
        let list = &self.iterations.list;
        let mut sequences = Vec::new();
        let (mut count, mut total) = (0, 0);
        let kinds = &self.iterations.kinds;
        let has_kinds = !self.iterations.is_run();
        // The last one leaves what the recording does not show the end of.
        let once = (steady.first..list.len().saturating_sub(1))
            .filter(|k| has_kinds && kinds.iter().all(|kind| !kind.contains(k)))
            .map(|k| vec![k]);
        for kind in kinds.iter().cloned().chain(once) {
            let others = kind.into_iter().filter(|&k| k >= steady.first && !self.is_member[k]);
            let others: Vec<Range<u32>> = others.map(|k| list[k].requests.clone()).collect();
            let Some(run) = others.first() else { continue };
            count += 1;
            total += run.len() * rounds as usize;
            if count > self.options.variants_max || total > ENTRIES_MAX {
                break;
            }
            let mut envelope = self.envelope_of(&others);
            let count = envelope.len() as u32;
            let is_lasting: Vec<bool> =
                envelope.iter().map(|it| it.until > 0 && kept.is_here(it, count)).collect();
            let all = envelope.iter_mut().zip(is_lasting);
            kept.place(all.filter(|&(_, is_lasting)| is_lasting).map(|(entry, _)| entry));
            let found = self.found(run);
            let ticks =
                list.iter().find(|it| it.requests == *run).map_or(0..0, |it| it.ticks.clone());
            let boundaries = self.boundaries(run, &ticks);
            for round in 0..rounds {
                let before = left(ring, steady.places, (round + rounds - 1) % rounds);
                let own = left(ring, steady.places, round);
                let mut entries = envelope.clone();
                lay_out(&mut entries, &before, &found, &own, height);
                let role = Role::Variant(round);
                sequences.push(Sequence { role, entries, boundaries: boundaries.clone() });
            }
        }
        sequences
    }

    /// The entries of iterations of one kind. What lives on beyond them has its end beyond their number; what is
    /// there to stay has none: `until` 0.
    fn envelope_of(&self, runs: &[Range<u32>]) -> Vec<Entry> {
        let run = &runs[0];
        let mut entries: Vec<Entry> = run.clone().map(|index| self.entry_of(run, index)).collect();
        // Iterations of a kind have the same large requests. Where they have as many small ones these are taken
        // for the same too.
        for other in runs[1..].iter().filter(|other| other.len() == run.len()) {
            for (own, index) in entries.iter_mut().zip(other.clone()) {
                let new = self.entry_of(other, index);
                own.size_min = own.size_min.min(new.size_min);
                own.size_max = own.size_max.max(new.size_max);
                let stays = own.until.min(new.until) == 0;
                own.until = if stays { 0 } else { own.until.max(new.until) };
            }
        }
        entries
    }

    /// The sizes and streams of what lives through a whole iteration after its own, in any kind.
    pub(super) fn lasting(&self, steady: Steady) -> FxHashSet<(u64, StreamId)> {
        let list = &self.iterations.list;
        let mut lasting = FxHashSet::default();
        for number in self.iterations.kinds.iter().flatten().copied() {
            let Some(next) = list.get(number + 1).filter(|_| number >= steady.first) else {
                continue;
            };
            for index in list[number].requests.clone() {
                let request = &self.lives.requests[index as usize];
                if self.end(request).is_some_and(|end| end > next.requests.end) {
                    lasting.insert((granted(request.size), request.stream));
                }
            }
        }
        lasting
    }

    fn entry_of(&self, run: &Range<u32>, index: u32) -> Entry {
        let request = &self.lives.requests[index as usize];
        let until = self.end(request).map_or(0, |end| end.min(run.end + 1) - run.start);
        let (size, stream) = (request.size, request.stream);
        Entry { size_min: size, size_max: size, stream, place: Place::Outside, until }
    }

    /// When what an iteration found at its beginning was gone, in its requests: the latest of each size, and of
    /// all.
    fn found(&self, run: &Range<u32>) -> FxHashMap<Option<u64>, u32> {
        let mut gone = FxHashMap::default();
        let earlier = &self.lives.requests[..run.start as usize];
        for request in earlier {
            let Some(end) = self.end(request).filter(|end| run.contains(end)) else { continue };
            for key in [Some(granted(request.size)), None] {
                let latest = gone.entry(key).or_insert(0);
                *latest = (end - run.start).max(*latest);
            }
        }
        gone
    }
}

/// Places in the persistent region for what lives through iterations of other kinds.
pub(super) struct Kept {
    /// What does, by size and stream.
    lasting: FxHashSet<(u64, StreamId)>,
    /// Its places, in order of birth.
    places: FxHashMap<(u64, StreamId), Vec<u64>>,
    /// Where the next place begins.
    pub(super) end: u64,
}

impl Kept {
    /// Places for what is `lasting`, which begin with the persistent region.
    pub(super) fn new(lasting: FxHashSet<(u64, StreamId)>) -> Kept {
        Kept { lasting, places: FxHashMap::default(), end: 0 }
    }

    /// True for an entry of an iteration of so many entries that has its place here: one that outlives it. On the
    /// ring what outlives two rounds has no end (`until` 0).
    pub(super) fn is_here(&self, entry: &Entry, count: u32) -> bool {
        let key = (granted(entry.size_max), entry.stream);
        (entry.until > count || entry.until == 0) && self.lasting.contains(&key)
    }

    /// Gives these entries of one iteration their places, the first of a size the first of the size.
    pub(super) fn place<'e>(&mut self, entries: impl Iterator<Item = &'e mut Entry>) {
        let mut taken: FxHashMap<(u64, StreamId), usize> = FxHashMap::default();
        for entry in entries {
            let key = (granted(entry.size_max), entry.stream);
            let places = self.places.entry(key).or_default();
            let number = taken.entry(key).or_insert(0);
            if *number == places.len() {
                places.push(self.end);
                self.end += key.0;
            }
            entry.place = Place::Persistent(places[*number]);
            *number += 1;
        }
    }
}

/// What a round of the ring leaves to the next one, in order of birth.
fn left(ring: &[Entry], places: u32, round: u32) -> Vec<Left> {
    let (start, end) = (round * places, (round + 1) * places);
    let own = ring[start as usize..end as usize].iter().filter(|entry| entry.until > end);
    own.filter_map(|entry| match entry.place {
        Place::Arena(offset) => {
            Some(Left { size: granted(entry.size_max), stream: entry.stream, offset })
        }
        _ => None,
    })
    .collect()
}

/// In what order entries look for a place, and whether what is left to the next iteration may lie where the ring
/// leaves something larger. That cuts the arena where it suits the ring, and not always the variant.
type Attempt = (fn(&Buffer) -> u64, bool);

/// What is tried, until everything has a place.
const ATTEMPTS: [Attempt; 6] = [
    (by_size, false),
    (by_area, false),
    (by_life, false),
    (by_size, true),
    (by_area, true),
    (by_life, true),
];

fn by_size(buffer: &Buffer) -> u64 {
    buffer.size
}

fn by_area(buffer: &Buffer) -> u64 {
    buffer.size.saturating_mul(by_life(buffer))
}

fn by_life(buffer: &Buffer) -> u64 {
    u64::from(buffer.upper - buffer.lower)
}

/// Gives the entries of a variant their places: beside what the round before has left, until it is gone, and
/// with what they leave where the ring's round leaves its own, all below `limit` bytes. Of several attempts that
/// is taken which leaves the fewest bytes without a place.
fn lay_out(
    entries: &mut [Entry],
    before: &[Left],
    found: &FxHashMap<Option<u64>, u32>,
    own: &[Left],
    limit: u64,
) {
    let count = entries.len() as u32;
    let mut least = u64::MAX;
    let open = entries.to_vec();
    for (order, is_exact) in ATTEMPTS {
        let mut attempt = open.clone();
        let pinned = pin(&open, own, is_exact);
        let outside = fill(&mut attempt, before, found, &pinned, order, limit);
        if outside < least {
            least = outside;
            entries.copy_from_slice(&attempt);
        }
        if least == 0 {
            break;
        }
    }
    for (index, entry) in (0..).zip(entries) {
        entry.until = entry.until.min(count);
        if let Place::Persistent(_) = entry.place {
            continue;
        }
        if entry.until <= index {
            (entry.place, entry.until) = (Place::Outside, index + 1);
        }
    }
}

/// Gives entries their places, those of `pinned` first and then by `order`, the largest first. The bytes of those
/// that find none below `limit` bytes.
fn fill(
    entries: &mut [Entry],
    before: &[Left],
    found: &FxHashMap<Option<u64>, u32>,
    pinned: &FxHashMap<u32, u64>,
    order: fn(&Buffer) -> u64,
    limit: u64,
) -> u64 {
    let count = entries.len() as u32;
    let of_all = found.get(&None).copied().unwrap_or(count);
    let before = before.iter().map(|left| {
        let upper = found.get(&Some(left.size)).copied().unwrap_or(of_all).max(1);
        (Buffer { lower: 0, upper, size: left.size }, None, Some(left.offset))
    });
    let is_open = |entry: &Entry| entry.until > 0 && entry.place == Place::Outside;
    let own = (0..).zip(entries.iter()).filter(|(_, entry)| is_open(entry));
    let own = own.map(|(index, entry)| {
        let (lower, upper) = (index, entry.until.min(count).max(index + 1));
        let size = granted(entry.size_max);
        (Buffer { lower, upper, size }, Some(index as usize), pinned.get(&index).copied())
    });
    let all: Vec<(Buffer, Option<usize>, Option<u64>)> = before.chain(own).collect();
    let mut fill = Fill::new(all.iter().map(|&(buffer, ..)| buffer).collect());
    let mut rest = Vec::new();
    for (at, &(_, index, offset)) in all.iter().enumerate() {
        let place = offset.filter(|&offset| fill.take(at, offset));
        match (index, place) {
            (Some(index), Some(offset)) => entries[index].place = Place::Arena(offset),
            (Some(index), None) => rest.push((at, index)),
            (None, _) => {}
        }
    }
    rest.sort_by_key(|&(at, _)| (u64::MAX - order(&all[at].0), u64::MAX - all[at].0.size, at));
    let mut outside = 0;
    for (at, index) in rest {
        match fill.first_fit(at, limit) {
            Some(offset) => entries[index].place = Place::Arena(offset),
            None => outside += all[at].0.size,
        }
    }
    outside
}

/// The offsets of entries that live on beyond the variant: of what the ring's round leaves, the first of the same
/// size; of what is left then, the first that is large enough, unless it has to be exact.
fn pin(entries: &[Entry], own: &[Left], is_exact: bool) -> FxHashMap<u32, u64> {
    let count = entries.len() as u32;
    let mut by_size: FxHashMap<(u64, StreamId), VecDeque<usize>> = FxHashMap::default();
    for (number, left) in own.iter().enumerate() {
        by_size.entry((left.size, left.stream)).or_default().push_back(number);
    }
    let mut free = vec![true; own.len()];
    let mut pinned = FxHashMap::default();
    let mut others = Vec::new();
    let crosses = |entry: &Entry| entry.until > count && entry.place == Place::Outside;
    for (index, entry) in (0..).zip(entries).filter(|(_, entry)| crosses(entry)) {
        let same = by_size.get_mut(&(granted(entry.size_max), entry.stream));
        match same.and_then(VecDeque::pop_front) {
            Some(number) => {
                free[number] = false;
                pinned.insert(index, own[number].offset);
            }
            None => others.push((index, entry)),
        }
    }
    for (index, entry) in others.into_iter().filter(|_| !is_exact) {
        let fits = |&number: &usize| {
            let left = &own[number];
            free[number] && left.stream == entry.stream && left.size >= granted(entry.size_max)
        };
        if let Some(number) = (0..own.len()).find(fits) {
            free[number] = false;
            pinned.insert(index, own[number].offset);
        }
    }
    pinned
}
