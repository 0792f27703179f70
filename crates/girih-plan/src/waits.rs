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
//! The events of a free are recorded on all streams at once, so that who has waited for one free has
//! waited for all earlier ones, whosever they were. The bytes of an entry are looked at from the
//! lowest up, and each free that is not covered yet is waited for.
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
    /// Of each taking and each free: the entry before which it comes, 0 for a free and 1 for a
    /// taking, and the taker. Sorted.
    events: Vec<(u32, u8, usize)>,
    /// Entries of a round.
    round: u32,
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
        let mut events: Vec<(u32, u8, usize)> = Vec::with_capacity(2 * all.len());
        for (index, Taker { tenancy, .. }) in all.iter().enumerate() {
            events.push((tenancy.lower, 1, index));
            events.push((tenancy.upper % round, 0, index));
        }
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
    /// For each stream, the frees that it has waited for: all up to this one.
    waited: BTreeMap<StreamId, u64>,
}

impl Follower {
    /// Follows the ring once around; the waits that were made.
    fn round(&mut self, takers: &Takers) -> Vec<Wait> {
        let mut waits = Vec::new();
        for &(_, is_taking, taker) in &takers.events {
            if is_taking == 1 {
                self.take(takers, taker, &mut waits);
            } else {
                self.free(takers, taker);
            }
        }
        waits
    }

    fn take(&mut self, takers: &Takers, taker: usize, waits: &mut Vec<Wait>) {
        let Taker { stream, tenancy } = takers.all[taker];
        let (first, end) = (tenancy.offset, tenancy.offset + tenancy.size);
        let waited = self.waited.entry(stream).or_default();
        // The range that begins before the bytes may reach into them.
        let from = self.last.range(..=first).next_back().map_or(first, |(start, _)| *start);
        for (_, freed) in self.last.range(from..end).filter(|(_, freed)| freed.end > first) {
            let other = &takers.all[freed.taker];
            if freed.at <= *waited || other.stream == stream {
                continue;
            }
            *waited = freed.at;
            let free = other.tenancy.upper % takers.round;
            let distance = (tenancy.lower + takers.round - free) % takers.round;
            let (entry, freed) = (tenancy.lower, other.tenancy.lower);
            waits.push(Wait { entry, stream, freed, freed_stream: other.stream, distance });
        }
    }

    fn free(&mut self, takers: &Takers, taker: usize) {
        self.clock += 1;
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
            peak: 0,
            proven: false,
            planner: String::new(),
            requests: 0,
            iterations: 2,
            rounds: 1,
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

    /// The waits by definition: who freed each unit last, and when, in a table.
    fn by_units(plan: &Plan) -> Vec<Wait> {
        let entries = &plan.steady().unwrap().entries;
        let count = entries.len();
        let units = |entry: &Entry| match entry.place {
            Place::Arena(offset) => offset / 512..(offset + entry.size_max) / 512,
            _ => 0..0,
        };
        let mut last: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
        let mut waited: BTreeMap<StreamId, usize> = BTreeMap::new();
        let (mut clock, mut waits) = (0, Vec::new());
        for at in 0..ROUNDS_MAX as usize * count {
            if at % count == 0 {
                waits.clear();
            }
            for (index, entry) in entries.iter().enumerate() {
                if entry.until as usize % count == at % count {
                    clock += 1;
                    last.extend(units(entry).map(|unit| (unit, (index, clock))));
                }
            }
            let taking = &entries[at % count];
            let waited = waited.entry(taking.stream).or_default();
            for unit in units(taking) {
                let Some(&(freed, time)) = last.get(&unit) else { continue };
                let other = &entries[freed];
                if other.stream != taking.stream && time > *waited {
                    *waited = time;
                    let since = (at % count + count - other.until as usize % count) % count;
                    waits.push(Wait {
                        entry: (at % count) as u32,
                        stream: taking.stream,
                        freed: freed as u32,
                        freed_stream: other.stream,
                        distance: since as u32,
                    });
                }
            }
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
