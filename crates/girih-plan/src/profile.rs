//! From a trace to a plan.
//!
//! Steady iterations are aligned with one of them, the *model*, place by place. What a place needs
//! over all of them is its envelope: the largest size and the longest life. The envelopes are a
//! planning problem on a ring, and its solution is the arena:
//!
//! ```text
//!  step 1     a(4) b(9) c(2)            place   a    b    c
//!  step 2     a(4) b(7) c(2)      ->    room    4    9    2     one offset each, for ever
//!  step 3     a(4) b(8) x c(2)                            x: a run of its own, or unplanned
//! ```
//!
//! What comes before is the opening. Its requests that have a place keep it; what lives across
//! iterations is stacked in the persistent region; the rest goes into the gaps below the arena's
//! height, or outside. Runs that come in between two places (evaluation) are interludes, laid
//! around what is alive there.

use std::ops::Range;

use girih_trace::align::{Key, align, births_before, keys};
use girih_trace::iterations::model_iteration;
use girih_trace::{Iterations, Lifetime, Lifetimes, MarkKind, Tick, Trace};

use crate::fill::Fill;
use crate::plan::{ALIGNMENT, Entry, Place, Plan, Role, Sequence, granted};
use crate::portfolio::Outcome;
use crate::problem::{Buffer, Problem};

/// Requests in a row without a place that are worth a sequence of their own.
const INTERLUDE: usize = 4;

/// The most iterations that go once round the ring. Two are needed where a block of one iteration
/// is replaced by that of the next: both are alive for a moment, in different places.
const ROUNDS_MAX: u32 = 2;

/// Blocks that outlive an iteration are worth a second round from this many bytes on.
const WORTH_A_ROUND: u64 = 1 << 20;

/// Stands for a request that has no place in the steady iteration.
const NO_PLACE: u32 = u32::MAX;

/// Makes a plan of a trace. `solve` is the planner: it is asked once, for the steady iteration, or
/// for the whole trace if nothing in it repeats.
pub fn plan(
    trace: &Trace,
    lives: &Lifetimes,
    iterations: &Iterations,
    solve: impl FnOnce(&Problem) -> Outcome,
) -> Plan {
    let profile = Profile::new(trace, lives, iterations);
    match profile.steady {
        Some(steady) => profile.with_steady(steady, solve),
        None => profile.without_steady(solve),
    }
}

/// The trace, and where its requests stand in the steady iteration.
struct Profile<'a> {
    trace: &'a Trace,
    lives: &'a Lifetimes,
    iterations: &'a Iterations,
    /// For each tick, the first request born at it or later.
    births: Vec<u32>,
    /// The place of each request in the model iteration, or [`NO_PLACE`].
    place_of: Vec<u32>,
    /// The place of the first request from each on, in its iteration, that has one; the number of
    /// places if none has.
    next_place: Vec<u32>,
    steady: Option<Steady>,
}

/// The steady iterations.
#[derive(Clone, Copy)]
struct Steady {
    first: usize,
    last: usize,
    model: usize,
    places: u32,
}

/// A run of requests that came in between two places of the steady iteration.
struct Interlude {
    /// The place before which it came.
    at: u32,
    /// The run, where it was first seen.
    run: Range<u32>,
    /// Its envelope.
    entries: Vec<Entry>,
    /// Places whose blocks were alive in it, sorted.
    survivors: Vec<u32>,
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

impl<'a> Profile<'a> {
    fn new(trace: &'a Trace, lives: &'a Lifetimes, iterations: &'a Iterations) -> Self {
        let steady = iterations.steady.map(|(first, last)| {
            let inner = model_iteration(&iterations.list[first..=last]).unwrap_or(0);
            // The model needs a successor, which says when what crosses the boundary dies.
            let model = (first + inner).min(last - 1);
            let places = iterations.list[model].requests.len() as u32;
            Steady { first, last, model, places }
        });
        let count = lives.requests.len();
        let mut profile = Profile {
            trace,
            lives,
            iterations,
            births: births_before(lives),
            place_of: vec![NO_PLACE; count],
            next_place: vec![0; count + 1],
            steady,
        };
        profile.align();
        profile
    }

    /// Aligns every iteration up to the last steady one with the model, and what comes before the
    /// first as far as it is one.
    fn align(&mut self) {
        let Some(steady) = self.steady else { return };
        let keys = keys(self.lives);
        let slice = |requests: &Range<u32>| &keys[requests.start as usize..requests.end as usize];
        let template = slice(&self.iterations.list[steady.model].requests);
        for iteration in &self.iterations.list[..=steady.last] {
            let start = iteration.requests.start as usize;
            for (offset, place) in align(template, slice(&iteration.requests)).iter().enumerate() {
                self.place_of[start + offset] = place.unwrap_or(NO_PLACE);
            }
            let mut next = steady.places;
            for index in (start..iteration.requests.end as usize).rev() {
                if self.place_of[index] != NO_PLACE {
                    next = self.place_of[index];
                }
                self.next_place[index] = next;
            }
        }
        self.align_before(template, &keys);
    }

    /// Aligns the end of model building with the end of the model: iterations that were found in
    /// the sequence begin with the first that is whole, and the end of a first step comes before.
    fn align_before(&mut self, template: &[Key], keys: &[Key]) {
        let end = self.iterations.list[0].requests.start as usize;
        let start = end.saturating_sub(template.len() + template.len() / 4);
        let backward = |keys: &[Key]| keys.iter().rev().copied().collect::<Vec<Key>>();
        let places = align(&backward(template), &backward(&keys[start..end]));
        for (offset, place) in places.iter().enumerate() {
            if let Some(place) = place {
                self.place_of[end - 1 - offset] = template.len() as u32 - 1 - place;
            }
        }
    }

    /// The first request that is born after the block of this one is gone.
    fn end(&self, request: &Lifetime) -> Option<u32> {
        self.births.get(request.death.index()).copied()
    }

    fn with_steady(self, steady: Steady, solve: impl FnOnce(&Problem) -> Outcome) -> Plan {
        let (mut ring, rounds) = unroll(self.envelope(steady));
        let mut interludes = self.interludes(steady);
        let outcome = solve(&joint_problem(&ring, &interludes));
        let height = outcome.solution.height;
        let rooms = interludes.iter_mut().flat_map(|interlude| &mut interlude.entries);
        let planned = ring.iter_mut().chain(rooms).filter(|entry| entry.until > 0);
        for (entry, &offset) in planned.zip(&outcome.solution.offsets) {
            entry.place = Place::Arena(offset);
        }
        let (opening, persistent_bytes) = self.opening(steady, &ring, height);
        let model = &self.iterations.list[steady.model];
        let boundaries = self.boundaries(&model.requests, &model.ticks);
        let rounds_of = (0..rounds).flat_map(|round| {
            boundaries.iter().map(move |&(entry, kind)| (entry + round * steady.places, kind))
        });
        let ring = Sequence { role: Role::Steady, boundaries: rounds_of.collect(), entries: ring };
        let interludes = interludes.into_iter().map(|interlude| Sequence {
            role: Role::Interlude(interlude.at),
            boundaries: self.boundaries(&interlude.run, &self.ticks_of(&interlude.run)),
            entries: interlude.entries,
        });
        let opening = (!opening.entries.is_empty()).then_some(opening);
        Plan {
            arena_bytes: height,
            persistent_bytes,
            lower_bound: outcome.bound.bytes,
            peak: height,
            proven: outcome.is_proven(),
            planner: outcome.solution.planner.to_owned(),
            requests: self.lives.born().len() as u64,
            iterations: (steady.last - steady.first + 1) as u32,
            rounds,
            sequences: opening.into_iter().chain([ring]).chain(interludes).collect(),
        }
    }

    /// The envelope of each place over all steady iterations. Places that cannot come back every
    /// iteration, for what is born there stays, lie outside the plan: `until` 0.
    fn envelope(&self, steady: Steady) -> Vec<Entry> {
        let model = &self.iterations.list[steady.model].requests;
        let mut stays = vec![false; steady.places as usize];
        let mut entries: Vec<Entry> = model
            .clone()
            .zip(0..)
            .map(|(request, place)| {
                let request = &self.lives.requests[request as usize];
                let (size, stream) = (request.size, request.stream);
                let until = place + 1;
                Entry { size_min: size, size_max: size, stream, place: Place::Outside, until }
            })
            .collect();
        for number in steady.first..=steady.last {
            for index in self.iterations.list[number].requests.clone() {
                let place = self.place_of[index as usize];
                if place == NO_PLACE {
                    continue;
                }
                let request = &self.lives.requests[index as usize];
                let entry = &mut entries[place as usize];
                entry.size_min = entry.size_min.min(request.size);
                entry.size_max = entry.size_max.max(request.size);
                match self.ring_time(steady, number, request) {
                    Some(until) => entry.until = entry.until.max(until),
                    // What is alive at the end of the trace says nothing of the last iteration.
                    None => stays[place as usize] |= number != steady.last,
                }
            }
        }
        for (place, entry) in entries.iter_mut().enumerate() {
            if stays[place] || entry.until > place as u32 + ROUNDS_MAX * steady.places {
                entry.until = 0;
            }
        }
        entries
    }

    /// The moment at which the block of a request of iteration `from` is gone, in places since that
    /// iteration began. None if it stays, or if the trace does not tell.
    fn ring_time(&self, steady: Steady, from: usize, request: &Lifetime) -> Option<u32> {
        let end = self.end(request)?;
        if end as usize == self.lives.requests.len() {
            // Freed after the last request of the trace: the ring closes there.
            return Some(steady.places);
        }
        let iteration = self.iterations.index_of(end).filter(|&index| index <= steady.last)?;
        let rounds = (iteration - from) as u32;
        (rounds <= ROUNDS_MAX).then(|| rounds * steady.places + self.next_place[end as usize])
    }

    /// Runs without a place inside the steady iterations. Runs at the same place that are alike
    /// become one, with their envelope.
    fn interludes(&self, steady: Steady) -> Vec<Interlude> {
        let mut found: Vec<Interlude> = Vec::new();
        let keys = keys(self.lives);
        let slice = |run: &Range<u32>| &keys[run.start as usize..run.end as usize];
        for number in steady.first..=steady.last {
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

    /// The ticks from just after the request before a run to its end.
    fn ticks_of(&self, run: &Range<u32>) -> Range<u32> {
        let after = |request: u32| self.lives.requests[request as usize].birth.0 + 1;
        let start = if run.start == 0 { 0 } else { after(run.start - 1) };
        start..after(run.end - 1)
    }

    /// The marks within `ticks`, each before an entry of the sequence that is made of `requests`.
    fn boundaries(&self, requests: &Range<u32>, ticks: &Range<u32>) -> Vec<(u32, MarkKind)> {
        let first = self.trace.marks.partition_point(|mark| mark.before < ticks.start);
        self.trace.marks[first..]
            .iter()
            .take_while(|mark| mark.before < ticks.end)
            .filter(|mark| is_boundary(mark.kind))
            .map(|mark| {
                let next = self.births.get(mark.before as usize).copied().unwrap_or(u32::MAX);
                (next.clamp(requests.start, requests.end) - requests.start, mark.kind)
            })
            .collect()
    }

    /// The opening, and the bytes of the persistent region.
    fn opening(&self, steady: Steady, ring: &[Entry], arena: u64) -> (Sequence, u64) {
        let first = &self.iterations.list[steady.first];
        let count = first.requests.start;
        let mut persistent = 0;
        let mut entries = Vec::with_capacity(count as usize);
        let ends = |index: u32| {
            let end = self.end(&self.lives.requests[index as usize]).unwrap_or(u32::MAX);
            (end, end.min(count).max(index + 1))
        };
        let size_of = |index: u32| match self.home(steady, ring, index) {
            Some((_, size_max)) => granted(size_max),
            None => granted(self.lives.requests[index as usize].size),
        };
        // What lives on into the first steady iteration must not be in the way there.
        let upper = |index: u32| match ends(index) {
            (end, _) if end == first.requests.end => count + steady.places,
            (end, _) if end > count && end < first.requests.end => {
                count + self.next_place[end as usize].max(1)
            }
            (_, until) => until,
        };
        let own = (0..count).map(|k| Buffer { lower: k, upper: upper(k), size: size_of(k) });
        let mut fill = Fill::new(own.chain(after_opening(ring, count)).collect());
        for (index, entry) in ring.iter().filter(|entry| entry.until > 0).enumerate() {
            if let Place::Arena(offset) = entry.place {
                fill.take(count as usize + index, offset);
            }
        }
        let mut homeless = Vec::new();
        for index in 0..count {
            let request = &self.lives.requests[index as usize];
            let size = request.size;
            let (end, until) = ends(index);
            let mut entry = Entry {
                size_min: size,
                size_max: size,
                stream: request.stream,
                place: Place::Outside,
                until,
            };
            // A block that outlives the first steady iteration is there to stay.
            if end == u32::MAX || end > first.requests.end {
                entry.place = Place::Persistent(persistent);
                persistent += granted(size);
            } else if let Some((offset, size_max)) = self.home(steady, ring, index)
                && fill.take(index as usize, offset)
            {
                entry.size_max = size_max;
                entry.place = Place::Arena(offset);
            } else {
                homeless.push(index);
            }
            entries.push(entry);
        }
        settle(&mut entries, &homeless, &mut fill, arena);
        let boundaries = self.boundaries(&(0..count), &(0..first.ticks.start));
        (Sequence { role: Role::Opening, entries, boundaries }, persistent)
    }

    /// The offset that the place of an opening request has on the ring, with the bytes that it has
    /// room for. The last iteration of the opening stands where the last one of the ring does.
    fn home(&self, steady: Steady, ring: &[Entry], request: u32) -> Option<(u64, u64)> {
        let place = self.place_of[request as usize];
        if place == NO_PLACE {
            return None;
        }
        let own = &self.lives.requests[request as usize];
        let start = self.iterations.list[steady.first].requests.start;
        let crosses = self.end(own).is_none_or(|end| end > start);
        let iteration = self.iterations.index_of(request);
        // Before the first iteration only what crosses into it is worth aligning: the rest may lie
        // anywhere.
        if iteration.is_none() && !crosses {
            return None;
        }
        let rounds = ring.len() / steady.places as usize;
        let back = iteration.map_or(steady.first + 1, |iteration| steady.first - iteration);
        let round = (rounds - back % rounds) % rounds;
        let index = round * steady.places as usize + place as usize;
        let entry = &ring[index];
        // A place that does not cross is no home for a block that does.
        let is_home = own.size <= entry.size_max
            && (!crosses || entry.until as usize > (round + 1) * steady.places as usize);
        match entry.place {
            Place::Arena(offset) if is_home => Some((offset, entry.size_max)),
            _ => None,
        }
    }

    /// The plan of a trace in which nothing repeats: one sequence, on a line.
    fn without_steady(self, solve: impl FnOnce(&Problem) -> Outcome) -> Plan {
        let count = self.lives.requests.len() as u32;
        let mut persistent_bytes = 0;
        let mut problem = Problem { buffers: Vec::new(), period: 0, alignment: ALIGNMENT };
        let mut entries: Vec<Entry> = Vec::with_capacity(count as usize);
        for (index, request) in self.lives.requests.iter().enumerate() {
            let size = request.size;
            let lower = index as u32;
            let mut entry = Entry {
                size_min: size,
                size_max: size,
                stream: request.stream,
                place: Place::Outside,
                until: self.end(request).unwrap_or(count).max(lower + 1),
            };
            if request.death == Tick::NEVER {
                entry.place = Place::Persistent(persistent_bytes);
                persistent_bytes += granted(size);
            } else {
                let size = granted(size);
                problem.buffers.push(Buffer { lower, upper: entry.until, size });
            }
            entries.push(entry);
        }
        let outcome = solve(&problem);
        for (buffer, &offset) in problem.buffers.iter().zip(&outcome.solution.offsets) {
            entries[buffer.lower as usize].place = Place::Arena(offset);
        }
        let ticks = 0..self.trace.events.len() as u32;
        let boundaries = self.boundaries(&(0..count), &ticks);
        Plan {
            arena_bytes: outcome.solution.height,
            persistent_bytes,
            lower_bound: outcome.bound.bytes,
            peak: outcome.solution.height,
            proven: outcome.is_proven(),
            planner: outcome.solution.planner.to_owned(),
            requests: self.lives.born().len() as u64,
            iterations: 0,
            rounds: 1,
            sequences: vec![Sequence { role: Role::Opening, entries, boundaries }],
        }
    }
}

/// Marks that bring a follower in step. Those of modules are too many to be worth it.
fn is_boundary(kind: MarkKind) -> bool {
    use MarkKind::{Backward, BackwardStep, Eval, Forward, ForwardStep, Optimizer, Step, StepEnd};
    matches!(
        kind,
        Step | StepEnd | Forward | Backward | ForwardStep | BackwardStep | Optimizer | Eval
    )
}

/// The ring of one iteration, or of two if blocks outlive one that are worth it, and how many.
/// What outlives the ring then still lies outside: `until` 0.
fn unroll(mut entries: Vec<Entry>) -> (Vec<Entry>, u32) {
    let places = entries.len() as u32;
    let laps = |(index, entry): &(u32, &Entry)| entry.until > index + places;
    let lapping: u64 = (0..).zip(&entries).filter(laps).map(|(_, entry)| entry.size_max).sum();
    if lapping >= WORTH_A_ROUND {
        let mut second = entries.clone();
        for entry in second.iter_mut().filter(|entry| entry.until > 0) {
            entry.until += places;
        }
        entries.extend(second);
        return (entries, 2);
    }
    for (index, entry) in (0..).zip(&mut entries) {
        if entry.until > index + places {
            entry.until = 0;
        }
    }
    (entries, 1)
}

/// The ring and what comes in between as one problem: time stands still for the ring while an
/// interlude goes on, and what is alive then keeps its place. Its buffers are the entries with a
/// life (`until` above 0), first those of the ring, then those of the interludes.
///
/// ```text
///  ring          0   1   2   3                4   5      (interlude before place 4)
///  interlude                    0   1   2
///  joint time    0   1   2   3  4   5   6     7   8
/// ```
fn joint_problem(ring: &[Entry], interludes: &[Interlude]) -> Problem {
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
    for (index, entry) in (0..).zip(ring).filter(|(_, entry)| entry.until > 0) {
        let upper = match entry.until {
            until if until > count => period + after(until - count),
            until if survives(index, until) => after(until),
            until => before(until),
        };
        let lower = after(index);
        // On a ring a block lives once round at most.
        let upper = upper.clamp(lower + 1, lower + period);
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
    Problem { buffers, period, alignment: ALIGNMENT }
}

/// The ring's blocks as they follow an opening of `count` requests, for one round.
fn after_opening(ring: &[Entry], count: u32) -> impl Iterator<Item = Buffer> {
    let living = (0..).zip(ring).filter(|(_, entry)| entry.until > 0);
    living.map(move |(index, entry)| Buffer {
        lower: count + index,
        upper: count + entry.until.min(ring.len() as u32).max(index + 1),
        size: granted(entry.size_max),
    })
}

/// Places the entries of these indices by first fit, the largest first, as long as they stay at or
/// below `limit` bytes; the others stay outside.
fn settle(entries: &mut [Entry], homeless: &[u32], fill: &mut Fill, limit: u64) {
    let mut order = homeless.to_vec();
    order.sort_by_key(|&k| (u64::MAX - entries[k as usize].size_max, k));
    for index in order {
        if let Some(offset) = fill.first_fit(index as usize, limit) {
            entries[index as usize].place = Place::Arena(offset);
        }
    }
}
