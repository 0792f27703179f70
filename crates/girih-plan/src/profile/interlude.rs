//! Interludes: runs of requests that come in between two places of the steady iteration, such as
//! evaluation between steps.

use std::ops::Range;

use girih_trace::align::{align, keys};

use super::rooms::Draft;
use super::steady::Steady;
use super::{NO_PLACE, Profile, has_place_of_its_own};
use crate::plan::{ALIGNMENT, Entry, Place, granted};
use crate::problem::{Buffer, Problem};

/// Requests in a row without a place that are worth a sequence of their own.
const INTERLUDE: usize = 4;

/// A run of requests that came in between two places of the steady iteration.
pub(super) struct Interlude {
    /// The place before which it came.
    pub(super) at: u32,
    /// The run, where it was first seen.
    pub(super) run: Range<u32>,
    /// Its envelope.
    pub(super) entries: Vec<Entry>,
    /// Places whose blocks were alive in it, sorted.
    pub(super) survivors: Vec<u32>,
}

impl Interlude {
    /// Widens the envelope by another run of the same kind.
    fn join(&mut self, entries: &[Entry], survivors: Vec<u32>) {
        for (own, new) in self.entries.iter_mut().zip(entries) {
            own.size_min = own.size_min.min(new.size_min);
            own.size_max = own.size_max.max(new.size_max);
            own.until = if own.until.min(new.until) == 0 { 0 } else { own.until.max(new.until) };
        }
        self.survivors.extend(survivors);
        self.survivors.sort_unstable();
        self.survivors.dedup();
    }
}

impl Profile<'_> {
    /// Runs without a place inside the steady iterations. Runs at the same place that are alike
    /// become one, with their envelope.
    pub(super) fn interludes(&self, steady: Steady) -> Vec<Interlude> {
        let mut found: Vec<Interlude> = Vec::new();
        let keys = keys(self.lives);
        let slice = |run: &Range<u32>| &keys[run.start as usize..run.end as usize];
        for number in (steady.first..=steady.last).filter(|&number| self.is_member[number]) {
            let requests = self.iterations.list[number].requests.clone();
            for run in self.unplaced_runs(&requests) {
                let next = self.next_place[run.end as usize];
                let at = if run.end == requests.end { steady.places } else { next };
                let entries = self.run_entries(&run);
                let survivors = self.survivors(&requests, run.start);
                let is_twin = |other: &&mut Interlude| {
                    other.at == at && other.entries.len() == entries.len() && {
                        let places = align(slice(&other.run), slice(&run));
                        places.iter().flatten().count() * 10 >= run.len() * 9
                    }
                };
                match found.iter_mut().find(is_twin) {
                    Some(twin) => twin.join(&entries, survivors),
                    None => found.push(Interlude { at, run, entries, survivors }),
                }
            }
        }
        found.sort_by_key(|interlude| interlude.at);
        found
    }

    /// The places of an iteration whose blocks were born before `run` and are alive in it.
    fn survivors(&self, requests: &Range<u32>, run: u32) -> Vec<u32> {
        let is_alive = |&index: &u32| {
            let request = &self.lives.requests[index as usize];
            self.end(request).is_none_or(|end| end > run)
        };
        let mut places: Vec<u32> = (requests.start..run)
            .filter(is_alive)
            .map(|index| self.place_of[index as usize])
            .filter(|&place| place != NO_PLACE)
            .collect();
        places.sort_unstable();
        places
    }

    fn unplaced_runs(&self, requests: &Range<u32>) -> Vec<Range<u32>> {
        let mut runs = Vec::new();
        let mut start = requests.start;
        for index in requests.clone().chain([requests.end]) {
            let placed = index == requests.end || self.place_of[index as usize] != NO_PLACE;
            if placed {
                if (index - start) as usize >= INTERLUDE {
                    runs.push(start..index);
                }
                start = index + 1;
            }
        }
        runs
    }

    /// The entries of a run, whose blocks must be gone by its end to have a place: what lives
    /// longer stays outside (`until` 0).
    fn run_entries(&self, run: &Range<u32>) -> Vec<Entry> {
        run.clone()
            .map(|index| {
                let request = &self.lives.requests[index as usize];
                let end = self.end(request).filter(|&end| end <= run.end);
                let until = end.map_or(0, |end| end - run.start);
                Entry {
                    size_min: request.size,
                    size_max: request.size,
                    stream: request.stream,
                    place: Place::Outside,
                    until,
                }
            })
            .collect()
    }
}

/// The ring and what comes in between as one problem: time stands still for the ring while an
/// interlude goes on, and what is alive then keeps its place. Its buffers are the entries with a
/// life (`until` above 0) and no room, first those of the ring, then those of the interludes; then
/// the ring's rooms.
///
/// ```text
///  ring          0   1   2   3                4   5      (interlude before place 4)
///  interlude                    0   1   2
///  joint time    0   1   2   3  4   5   6     7   8
/// ```
pub(super) fn joint_problem(ring: &[Entry], rooms: &[Draft], interludes: &[Interlude]) -> Problem {
    let count = ring.len() as u32;
    let length = |interlude: &Interlude| interlude.entries.len() as u32;
    // Joint time just before a place of the ring, after or before what comes in between there.
    let after =
        |place: u32| place + interludes.iter().filter(|i| i.at <= place).map(length).sum::<u32>();
    let before =
        |place: u32| place + interludes.iter().filter(|i| i.at < place).map(length).sum::<u32>();
    let period = after(count);
    let survives = |index: u32, until: u32| {
        let here = interludes.iter().filter(|interlude| interlude.at == until);
        here.into_iter().any(|interlude| interlude.survivors.binary_search(&index).is_ok())
    };
    let mut buffers = Vec::with_capacity(ring.len());
    let life = |index: u32, until: u32, survives: bool| {
        let upper = match until {
            until if until > count => period + after(until - count),
            until if survives => after(until),
            until => before(until),
        };
        let lower = after(index);
        // On a ring a block lives once round at most.
        (lower, upper.clamp(lower + 1, lower + period))
    };
    for (index, entry) in (0..).zip(ring).filter(|(_, entry)| has_place_of_its_own(entry)) {
        let (lower, upper) = life(index, entry.until, survives(index, entry.until));
        buffers.push(Buffer { lower, upper, size: granted(entry.size_max) });
    }
    let mut start = 0;
    for interlude in interludes {
        // Several at one place follow each other.
        start = before(interlude.at).max(start);
        for (index, entry) in (0..).zip(&interlude.entries).filter(|(_, entry)| entry.until > 0) {
            let (lower, upper) = (start + index, start + entry.until);
            buffers.push(Buffer { lower, upper, size: granted(entry.size_max) });
        }
        start += length(interlude);
    }
    for room in rooms {
        // Whether its last member survives is not worth the question.
        let (lower, upper) = life(room.lower, room.upper, true);
        buffers.push(Buffer { lower, upper, size: room.bytes });
    }
    Problem { buffers, period, alignment: ALIGNMENT }
}
