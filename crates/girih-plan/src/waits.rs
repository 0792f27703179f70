//! The waits that a plan asks for: where a stream takes bytes that another stream has used last.
//!
//! On one stream order is free. Bytes that another stream has used may be taken once that stream has
//! come to the point of their free, and so the taking stream waits, on the device, for an event that was
//! recorded there. Who follows a plan finds these waits one by one as requests come; the plan knows
//! them beforehand, for its steady iteration is a ring:
//!
//! ```text
//!  bytes
//!    |   [ a  stream 1 ).......[ b  stream 2 )        b waits for the free of a; distance: the
//!    |      [ c  1 )..............[ d  2 )            requests from there to b. d need not wait:
//!    +--------------------------------------- time    what b has waited for came after c's free
//! ```
//!
//! What is waited for is a fence: an event of the whole device, which covers all frees that came before
//! it, whosever they were. One is recorded with the first request after the free of an entry whose bytes are
//! another stream's next, and who waits does so for the earliest that covers the latest free of his bytes.
//!
//! A plan does not say in what order blocks are freed between two requests. Here it is that of their
//! births; where it was another, a wait more or less may be needed.

use std::collections::BTreeMap;

use girih_trace::StreamId;

use crate::plan::{Plan, Sequence, Tenancy};

/// One wait of the steady iteration. Entries are indices in the steady sequence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Wait {
    /// The entry whose bytes another stream has used.
    pub entry: u32,
    /// Its stream, which waits.
    pub stream: StreamId,
    /// The entry that had the bytes: its free is waited for.
    pub freed: u32,
    /// The stream of that entry.
    pub freed_stream: StreamId,
    /// Requests that come between the free and the entry that waits; around the ring if need be.
    pub distance: u32,
}

/// The waits of one steady sequence, in the order in which they are made, once the plan has been
/// followed for so long that they come again and again. A room counts as one block, of its first
/// entry. Without a steady sequence there are none, nor with one stream. O(n log n).
///
/// The plan must be one that [`verify`](crate::verify()) passes.
pub fn waits(plan: &Plan) -> Vec<Wait> {
    let Some(steady) = plan.steady() else { return Vec::new() };
    let takers = Takers::of(plan, steady);
    if takers.all.iter().all(|taker| taker.stream == takers.all[0].stream) {
        return Vec::new();
    }
    let mut follower = Follower::default();
    follower.is_fenced = follower.fenced(&takers);
    let mut before = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let waits = follower.round(&takers);
        if waits == before {
            break;
        }
        before = waits;
    }
    before
}

/// After so many rounds the waits are taken for those of all later ones. The second knows who had
/// all bytes last; what was waited for without that knowledge shows in the third at most, and mostly
/// not at all.
const ROUNDS_MAX: u32 = 8;

/// Who takes bytes in the steady sequence, and in what order they come and go.
struct Takers {
    all: Vec<Taker>,
    /// What happens, by the entry before which it does. Sorted.
    events: Vec<(u32, Happening)>,
    /// Entries of a round.
    round: u32,
}

/// What a follower does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// A taker's bytes are freed.
    Free(usize),
    /// Something is asked for, whatever it is.
    Request,
    /// A taker is given its bytes.
    Take(usize),
}

/// An entry, or a room from its first entry on.
#[derive(Clone, Copy)]
struct Taker {
    stream: StreamId,
    tenancy: Tenancy,
}

impl Takers {
    fn of(plan: &Plan, steady: &Sequence) -> Takers {
        let round = steady.entries.len() as u32;
        let tenancies = plan.tenancies(steady).into_iter();
        let all: Vec<Taker> = tenancies
            .map(|tenancy| Taker { stream: steady.entries[tenancy.lower as usize].stream, tenancy })
            .collect();
        let mut events = Vec::with_capacity(2 * all.len() + steady.entries.len());
        for (index, Taker { tenancy, .. }) in all.iter().enumerate() {
            events.push((tenancy.lower, Happening::Take(index)));
            events.push((tenancy.upper % round, Happening::Free(index)));
        }
        let requests = (0..).zip(&steady.entries).filter(|(_, entry)| entry.size_max > 0);
        events.extend(requests.map(|(index, _)| (index, Happening::Request)));
        events.sort_unstable();
        Takers { all, events, round }
    }
}

/// What a free leaves behind.
#[derive(Clone, Copy)]
struct Freed {
    /// Bytes from the start of the arena up to which it was the last one.
    end: u64,
    taker: usize,
    /// Which free it was, counted from 1.
    at: u64,
}

/// One who follows the plan.
#[derive(Default)]
struct Follower {
    /// The last free of each byte that was freed, by the first byte of a range.
    last: BTreeMap<u64, Freed>,
    /// Frees so far.
    clock: u64,
    /// For each taker: another stream has its bytes next, so that its free asks for a fence.
    is_fenced: Vec<bool>,
    /// A fence has been asked for since the last request.
    is_wanted: bool,
    /// The fences: each covers all frees up to this one. Ascending.
    fences: Vec<u64>,
    /// For each stream, the frees that it has waited for: all up to this one.
    waited: BTreeMap<StreamId, u64>,
}

impl Follower {
    /// Follows the ring once around; the waits that were made.
    fn round(&mut self, takers: &Takers) -> Vec<Wait> {
        let mut waits = Vec::new();
        for &(_, happening) in &takers.events {
            match happening {
                Happening::Free(taker) => self.free(takers, taker),
                Happening::Request if self.is_wanted => {
                    self.is_wanted = false;
                    self.fences.push(self.clock);
                }
                Happening::Request => {}
                Happening::Take(taker) => self.take(takers, taker, &mut waits),
            }
        }
        waits
    }

    /// For each taker whether another stream has bytes of it next. Twice around the ring: the last have
    /// the first behind them.
    fn fenced(&self, takers: &Takers) -> Vec<bool> {
        let mut is_fenced = vec![false; takers.all.len()];
        let mut scout = Follower { is_fenced: is_fenced.clone(), ..Follower::default() };
        for &(_, happening) in takers.events.iter().chain(&takers.events) {
            match happening {
                Happening::Free(taker) => scout.free(takers, taker),
                Happening::Request => {}
                Happening::Take(taker) => {
                    let others = scout.others_before(takers, taker);
                    others.for_each(|freed| is_fenced[freed.taker] = true);
                }
            }
        }
        is_fenced
    }

    /// The last frees of other streams' blocks in the bytes of a taker.
    fn others_before<'a>(
        &'a self,
        takers: &'a Takers,
        taker: usize,
    ) -> impl Iterator<Item = &'a Freed> {
        let Taker { stream, tenancy } = takers.all[taker];
        let (first, end) = (tenancy.offset, tenancy.offset + tenancy.size);
        // The range that begins before the bytes may reach into them.
        let from = self.last.range(..=first).next_back().map_or(first, |(start, _)| *start);
        let over = self.last.range(from..end).map(|(_, freed)| freed);
        over.filter(move |freed| freed.end > first && takers.all[freed.taker].stream != stream)
    }

    fn take(&mut self, takers: &Takers, taker: usize, waits: &mut Vec<Wait>) {
        let Taker { stream, tenancy } = takers.all[taker];
        let waited = self.waited.get(&stream).copied().unwrap_or(0);
        let latest = self.others_before(takers, taker).max_by_key(|freed| freed.at).copied();
        let Some(freed) = latest.filter(|freed| freed.at > waited) else { return };
        let fence = self.fences.partition_point(|&covers| covers < freed.at);
        if fence == self.fences.len() {
            self.fences.push(self.clock);
        }
        self.waited.insert(stream, self.fences[fence]);
        let other = &takers.all[freed.taker];
        let free = other.tenancy.upper % takers.round;
        let distance = (tenancy.lower + takers.round - free) % takers.round;
        let (entry, freed) = (tenancy.lower, other.tenancy.lower);
        waits.push(Wait { entry, stream, freed, freed_stream: other.stream, distance });
    }

    fn free(&mut self, takers: &Takers, taker: usize) {
        self.clock += 1;
        self.is_wanted |= self.is_fenced[taker];
        let Tenancy { offset, size, .. } = takers.all[taker].tenancy;
        let end = offset + size;
        // What reaches into the bytes from below ends there, and what reaches out of them above
        // begins again there.
        if let Some((_, below)) = self.last.range_mut(..offset).next_back()
            && below.end > offset
        {
            let rest = *below;
            below.end = offset;
            if rest.end > end {
                self.last.insert(end, rest);
            }
        }
        let covered: Vec<u64> = self.last.range(offset..end).map(|(start, _)| *start).collect();
        for start in covered {
            let freed = self.last.remove(&start).expect("it was just seen");
            if freed.end > end {
                self.last.insert(end, freed);
            }
        }
        self.last.insert(offset, Freed { end, taker, at: self.clock });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::plan::{Entry, Place, Role};
    use crate::portfolio::{Budget, solve};
    use crate::problem::{Buffer, Problem};

    /// A plan of nothing but a steady sequence: offset, size (in units of 512 bytes), stream and end
    /// of each entry.
    fn plan(entries: &[(u64, u64, u16, u32)]) -> Plan {
        let entry = |&(offset, size, stream, until): &(u64, u64, u16, u32)| {
            let (size, place) = (512 * size, Place::Arena(512 * offset));
            Entry { size_min: size, size_max: size, stream: StreamId(stream), place, until }
        };
        let entries = entries.iter().map(entry).collect();
        Plan {
            arena_bytes: 0,
            persistent_bytes: 0,
            lower_bound: 0,
            in_use: 0,
            peak: 0,
            proven: false,
            planner: String::new(),
            requests: 0,
            iterations: 2,
            rounds: 1,
            trial: None,
            rooms: Vec::new(),
            sequences: vec![Sequence { role: Role::Steady, entries, boundaries: Vec::new() }],
        }
    }

    /// Entry, freed entry and distance of each wait.
    fn told(plan: &Plan) -> Vec<(u32, u32, u32)> {
        waits(plan).iter().map(|wait| (wait.entry, wait.freed, wait.distance)).collect()
    }

    #[test]
    fn a_stream_waits_for_the_free_of_what_it_takes_and_around_the_ring_too() {
        // 0 and 1 share a place, and both have it again in the next round.
        let turns = plan(&[(0, 2, 0, 1), (0, 2, 1, 3), (9, 1, 0, 3)]);
        assert_eq!(told(&turns), [(0, 1, 0), (1, 0, 0)]);
        let wait = waits(&turns)[1];
        assert_eq!((wait.stream, wait.freed_stream), (StreamId(1), StreamId(0)));
        // The same on one stream is free of waits.
        assert_eq!(told(&plan(&[(0, 2, 0, 1), (0, 2, 0, 3)])), []);
    }

    #[test]
    fn what_was_freed_before_a_point_that_was_waited_for_needs_no_wait() {
        // 0 is freed before 1; who has waited for the free of 1 need not wait for that of 0.
        let entries = [(0, 1, 0, 1), (1, 1, 0, 2), (1, 1, 1, 3), (0, 1, 1, 4)];
        let waited = told(&plan(&entries));
        assert!(
            waited.contains(&(2, 1, 0)) && !waited.iter().any(|wait| wait.0 == 3),
            "{waited:?}"
        );
        // In the other order it must wait twice.
        let entries = [(0, 1, 0, 1), (1, 1, 0, 2), (0, 1, 1, 3), (1, 1, 1, 4)];
        let waited = told(&plan(&entries));
        assert!(waited.contains(&(2, 0, 1)) && waited.contains(&(3, 1, 1)), "{waited:?}");
    }

    #[test]
    fn what_is_left_of_a_block_on_either_side_of_a_later_one_is_still_waited_for() {
        for rest in [0, 2, 3] {
            // 1 takes a part of what 0 had, and 2 what 1 did not take.
            let entries = [(0, 4, 0, 1), (1, 1, 0, 2), (rest, 1, 1, 3)];
            assert!(told(&plan(&entries)).contains(&(2, 0, 1)), "unit {rest}");
        }
        // 1 takes what lies across the end of 0, on either side.
        for (first, second, rest) in [(0, 2, 1), (2, 1, 4)] {
            let entries = [(first, 3, 0, 1), (second, 2, 0, 2), (rest, 1, 1, 3)];
            assert!(told(&plan(&entries)).contains(&(2, 0, 1)), "unit {rest}");
        }
    }

    /// The waits by definition: who freed each unit last, and when, in a table; and after each step at which
    /// something was freed that another stream has next, a fence.
    fn by_units(plan: &Plan) -> Vec<Wait> {
        let entries = &plan.steady().unwrap().entries;
        let count = entries.len();
        let units = |entry: &Entry| match entry.place {
            Place::Arena(offset) => offset / 512..(offset + entry.size_max) / 512,
            _ => 0..0,
        };
        let mut last: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
        let mut waited: BTreeMap<StreamId, usize> = BTreeMap::new();
        let mut fences: Vec<usize> = Vec::new();
        let (mut clock, mut waits) = (0, Vec::new());
        let takes_next = |freed: usize, from: usize| {
            // Of each unit of the freed entry, who takes it next around the ring, itself at last.
            units(&entries[freed]).any(|unit| {
                let next = (from..from + count).map(|at| &entries[at % count]);
                let mut takers = next.filter(|entry| units(entry).contains(&unit));
                takers.next().is_some_and(|taker| taker.stream != entries[freed].stream)
            })
        };
        for at in 0..ROUNDS_MAX as usize * count {
            if at % count == 0 {
                waits.clear();
            }
            let mut is_fenced = false;
            for (index, entry) in entries.iter().enumerate() {
                if entry.until as usize % count == at % count {
                    clock += 1;
                    last.extend(units(entry).map(|unit| (unit, (index, clock))));
                    is_fenced |= takes_next(index, at);
                }
            }
            if is_fenced {
                fences.push(clock);
            }
            let taking = &entries[at % count];
            let frees = units(taking).filter_map(|unit| last.get(&unit));
            let others = frees.filter(|(freed, _)| entries[*freed].stream != taking.stream);
            let Some(&(freed, time)) = others.max_by_key(|(_, time)| *time) else { continue };
            let waited = waited.entry(taking.stream).or_default();
            if time <= *waited {
                continue;
            }
            let covering = fences.iter().copied().find(|&covers| covers >= time);
            *waited = covering.unwrap_or_else(|| {
                fences.push(clock);
                clock
            });
            let other = &entries[freed];
            let since = (at % count + count - other.until as usize % count) % count;
            waits.push(Wait {
                entry: (at % count) as u32,
                stream: taking.stream,
                freed: freed as u32,
                freed_stream: other.stream,
                distance: since as u32,
            });
        }
        waits
    }

    #[test]
    fn the_waits_are_those_of_a_table_of_bytes() {
        let mut seen = 0;
        arbtest::arbtest(|u| {
            let count = u.int_in_range(2..=14)?;
            let (mut buffers, mut streams) = (Vec::new(), Vec::new());
            for lower in 0..count {
                let upper = lower + u.int_in_range(1..=count - 1)?;
                buffers.push(Buffer { lower, upper, size: 512 * u.int_in_range(1..=4)? });
                streams.push(u.int_in_range(0..=2)?);
            }
            let problem = Problem { buffers, period: count, alignment: 512 };
            let solution = solve(&problem, Budget::attempts(2)).unwrap().solution;
            check(&problem, &solution).unwrap();
            let placed = problem.buffers.iter().zip(&solution.offsets).zip(&streams);
            let entries: Vec<_> = placed
                .map(|((it, offset), stream)| (offset / 512, it.size / 512, *stream, it.upper))
                .collect();
            let plan = plan(&entries);
            assert_eq!(waits(&plan), by_units(&plan), "{entries:?}");
            seen += waits(&plan).len();
            Ok(())
        });
        assert!(seen > 100, "only {seen} waits were compared");
    }
}
