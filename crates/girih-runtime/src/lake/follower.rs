//! The follower: which place of the plan the next request has.
//!
//! It goes along the plan request by request. A request that is not the expected one is odd: either
//! it came in between, and the expected one is still to come, or something did not come, and the
//! follower is behind. One request does not tell which, so it keeps two positions:
//!
//! ```text
//!  plan          a  b  c  d  e  f  g            expects b, gets d
//!  position         ^b                          stays: d may have come in between
//!  alternative            ^d -> e               goes on from d: b and c may have been left out
//! ```
//!
//! Both go on with what follows. The alternative takes over when it has kept up [`IN_STEP`] times
//! while the position has not; it is dropped when it fails. So a request too many costs one miss
//! and a request too few costs two, wherever they come, and nothing is forgotten at the next
//! iteration. What is too far off for that (a phase that was skipped) is found again by the last
//! [`IN_STEP`] sizes in a row, or by the next mark.
//!
//! Where something else may come, an interlude or an iteration of another kind, it is an alternative from the
//! beginning, one of several; the first requests tell which it is.

use girih_plan::{Entry, Plan, Role};
use girih_trace::{MarkKind, StreamId};
use rustc_hash::FxHashMap;

/// An entry of the plan: its index over all sequences, in their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EntryId(pub u32);

/// Requests in a row that settle where the program is.
const IN_STEP: u32 = 3;
/// Alternatives at once, besides the nearest ahead.
const ALTERNATIVES_MAX: usize = 32;
/// How far ahead an alternative is looked for.
const WINDOW: usize = 64;
/// Places at which the same sizes in a row are remembered.
const OCCURRENCES: usize = 64;
/// How much larger or smaller than ever seen a request of a varying place may be.
const STRETCH: u64 = 4;

/// Comes after the last entry of a plan in which nothing repeats.
const END: u32 = u32::MAX;

/// What is compared with a request. 24 bytes, so that a plan of 100,000 entries stays in cache.
#[derive(Clone, Copy, Debug)]
struct Expected {
    /// The range of sizes that are taken for this place.
    accepts: (u64, u64),
    stream: StreamId,
    next: u32,
    /// An interlude may come before the next one.
    leads_aside: bool,
}

impl Expected {
    fn is(&self, size: u64, stream: StreamId) -> bool {
        self.accepts.0 <= size && size <= self.accepts.1 && self.stream == stream
    }

    /// True if the place has had one size only: a sure sign.
    fn is_sure(&self) -> bool {
        self.accepts.0 == self.accepts.1
    }
}

/// A second position, and how often in a row it has kept up.
#[derive(Clone, Copy, Debug)]
struct Alternative {
    at: u32,
    kept_up: u32,
}

/// Follows a plan.
#[derive(Debug)]
pub struct Follower {
    entries: Vec<Expected>,
    sequences: Vec<Span>,
    /// Where the steady iteration begins; [`END`] without one.
    steady: u32,
    position: u32,
    /// Those that have kept up so far; none while all is as expected.
    alternatives: Vec<Alternative>,
    /// Odd requests since the position was last right.
    odd: u32,
    /// The last sizes, newest last.
    recent: [u64; IN_STEP as usize],
    /// Where in the plan `IN_STEP` sure sizes in a row have just been.
    grams: FxHashMap<u64, Vec<u32>>,
    /// What may come before an entry, interludes and variants, by the entry.
    interludes: Vec<(u32, u32)>,
}

/// A sequence among the entries.
#[derive(Debug)]
struct Span {
    role: Role,
    start: u32,
    end: u32,
    boundaries: Vec<(u32, MarkKind)>,
}

impl Follower {
    /// A follower at the first entry of `plan`.
    pub fn new(plan: &Plan) -> Follower {
        let mut sequences = Vec::with_capacity(plan.sequences.len());
        let mut start = 0;
        for sequence in &plan.sequences {
            let end = start + sequence.entries.len() as u32;
            let boundaries =
                sequence.boundaries.iter().map(|&(entry, kind)| (start + entry, kind)).collect();
            sequences.push(Span { role: sequence.role, start, end, boundaries });
            start = end;
        }
        let steady = sequences.iter().find(|span| span.role == Role::Steady);
        let (steady, steady_end) = steady.map_or((END, END), |span| (span.start, span.end));
        // The end of the ring is its beginning.
        let on_ring = |entry: u32| if entry == steady_end { steady } else { entry };
        let places = (steady_end - steady) / plan.rounds.max(1);
        let round = |round: u32| on_ring(steady + round * places);
        let mut interludes: Vec<(u32, u32)> = sequences
            .iter()
            .filter_map(|span| match span.role {
                Role::Interlude(at) => Some((on_ring(steady + at), span.start)),
                Role::Variant(number) => Some((round(number), span.start)),
                Role::Opening | Role::Steady => None,
            })
            .collect();
        interludes.sort_unstable();
        let mut entries = Vec::with_capacity(start as usize);
        for (span, sequence) in sequences.iter().zip(&plan.sequences) {
            let after = match span.role {
                Role::Opening | Role::Steady => steady,
                Role::Interlude(at) => on_ring(steady + at),
                Role::Variant(number) => round(number + 1),
            };
            for (index, entry) in (span.start..).zip(&sequence.entries) {
                let next = if index + 1 == span.end { after } else { index + 1 };
                let leads_aside = interludes.binary_search_by_key(&next, |&(at, _)| at).is_ok();
                let (accepts, stream) = (range(entry), entry.stream);
                entries.push(Expected { accepts, stream, next, leads_aside });
            }
        }
        let grams = grams(&entries, &sequences);
        let position = if entries.is_empty() { END } else { 0 };
        Follower {
            entries,
            sequences,
            steady,
            position,
            alternatives: Vec::new(),
            odd: 0,
            recent: [0; IN_STEP as usize],
            grams,
            interludes,
        }
    }

    /// The entry whose place this request has, if it has one. Takes a step along the plan.
    #[inline]
    pub fn follow(&mut self, size: u64, stream: StreamId) -> Option<EntryId> {
        self.recent.rotate_left(1);
        self.recent[IN_STEP as usize - 1] = size;
        if self.alternatives.is_empty()
            && let Some(expected) = self.entries.get(self.position as usize)
            && expected.is(size, stream)
        {
            let found = self.position;
            if expected.leads_aside {
                self.arrive(expected.next);
            } else {
                self.position = expected.next;
            }
            self.odd = 0;
            return Some(EntryId(found));
        }
        self.follow_odd(size, stream)
    }

    /// The same of a request that is odd, or comes while there is an alternative.
    #[inline(never)]
    fn follow_odd(&mut self, size: u64, stream: StreamId) -> Option<EntryId> {
        let kept_up = self.step_alternatives(size, stream);
        if let Some(expected) = self.entries.get(self.position as usize)
            && expected.is(size, stream)
        {
            let found = self.position;
            self.go_on(expected.next);
            return Some(EntryId(found));
        }
        self.odd += 1;
        if let Some((entry, kept_up)) = kept_up {
            if kept_up >= IN_STEP {
                let at = self.entries[entry as usize].next;
                // Others of which the beginning is the same are as good still.
                self.alternatives.retain(|other| other.kept_up >= IN_STEP && other.at != at);
                self.go_on(at);
            }
            // Once is no proof: the place may be wanted by the request that it belongs to. But an iteration
            // has a beginning.
            return (kept_up > 1 || self.begins_kind(entry)).then_some(EntryId(entry));
        }
        if self.odd >= IN_STEP
            && let Some(entry) = self.find_recent(stream)
        {
            self.go_to(self.entries[entry as usize].next);
            return Some(EntryId(entry));
        }
        // What may come in between here may still.
        self.arrive(self.position);
        self.alternatives.extend(self.look_ahead(size, stream));
        None
    }

    /// True for the first entry of an iteration of another kind.
    fn begins_kind(&self, entry: u32) -> bool {
        let is_kind = |span: &Span| matches!(span.role, Role::Variant(_));
        self.sequences.iter().any(|span| span.start == entry && is_kind(span))
    }

    /// The entries that are to come, the next one first; round and round on a ring.
    pub fn ahead(&self) -> impl Iterator<Item = EntryId> {
        let next = |&at: &u32| self.entries.get(at as usize).map(|entry| entry.next);
        let is_entry = |&at: &u32| (at as usize) < self.entries.len();
        std::iter::successors(Some(self.position), next).take_while(is_entry).map(EntryId)
    }

    /// Goes to the beginning of the steady iteration, as if the program were about to begin one. A
    /// few requests will tell if it is not. Stays where it is if nothing repeats.
    pub fn join(&mut self) {
        if self.steady != END {
            self.go_to(self.steady);
        }
    }

    /// Tells the follower of a mark of the program.
    pub fn mark(&mut self, kind: MarkKind) {
        let Some(target) = self.boundary(kind) else { return };
        // In step there is nothing to mend, but a step and an evaluation begin where they begin.
        let certain = matches!(kind, MarkKind::Step | MarkKind::Eval);
        if target != self.position && (certain || self.odd > 0) {
            self.go_to(target);
        }
    }

    /// Goes to `position`, whatever else seemed possible.
    fn go_to(&mut self, position: u32) {
        self.alternatives.clear();
        self.go_on(position);
    }

    /// Goes on from `position`, which is right.
    fn go_on(&mut self, position: u32) {
        self.arrive(position);
        self.odd = 0;
    }

    /// Moves to `position`. What may come in between here becomes an alternative.
    fn arrive(&mut self, position: u32) {
        self.position = position;
        if self.interludes.is_empty() {
            return;
        }
        let first = self.interludes.partition_point(|&(at, _)| at < position);
        let here = self.interludes[first..].iter().take_while(|&&(at, _)| at == position);
        for &(_, at) in here.take(ALTERNATIVES_MAX.saturating_sub(self.alternatives.len())) {
            if self.alternatives.iter().all(|other| other.at != at) {
                self.alternatives.push(Alternative { at, kept_up: 0 });
            }
        }
    }

    /// Lets the alternatives try the request, and drops those that fail: the entry that the first of those
    /// has taken that kept up longest, and how often it did.
    #[cold]
    fn step_alternatives(&mut self, size: u64, stream: StreamId) -> Option<(u32, u32)> {
        let entries = &self.entries;
        let mut best: Option<(u32, u32)> = None;
        self.alternatives.retain_mut(|alternative| {
            let Alternative { at, kept_up } = *alternative;
            let Some(expected) = entries.get(at as usize).filter(|it| it.is(size, stream)) else {
                return false;
            };
            *alternative = Alternative { at: expected.next, kept_up: kept_up + 1 };
            if best.is_none_or(|(_, most)| kept_up + 1 > most) {
                best = Some((at, kept_up + 1));
            }
            true
        });
        best
    }

    /// The nearest entry ahead that surely is this request, as a new alternative. If there is
    /// none, the request may stand in the place of the expected one, with another size.
    fn look_ahead(&self, size: u64, stream: StreamId) -> Option<Alternative> {
        let mut at = self.entries.get(self.position as usize)?.next;
        for _ in 0..WINDOW {
            let Some(expected) = self.entries.get(at as usize) else { break };
            if expected.is_sure() && expected.is(size, stream) {
                return Some(Alternative { at: expected.next, kept_up: 1 });
            }
            at = expected.next;
        }
        Some(Alternative { at: self.entries[self.position as usize].next, kept_up: 0 })
    }

    /// The entry at which the last sizes in a row come in the plan, nearest ahead of the position.
    fn find_recent(&self, stream: StreamId) -> Option<u32> {
        let ends = self.grams.get(&gram(self.recent))?;
        let ahead = ends.partition_point(|&end| end < self.position);
        let nearest = *ends.get(ahead).or(ends.first())?;
        (self.entries[nearest as usize].stream == stream).then_some(nearest)
    }

    /// The boundary of this kind that is nearest to the position, in its own sequence if possible.
    fn boundary(&self, kind: MarkKind) -> Option<u32> {
        let here =
            self.sequences.iter().find(|s| s.start <= self.position && self.position < s.end);
        // An opening ends where the steady iteration begins; only what is ahead counts there.
        let is_ahead = |&entry: &u32| entry >= self.position;
        let own = here.and_then(|span| match span.role {
            Role::Opening => of_kind(span, kind).find(is_ahead),
            role => {
                // Where an interlude begins, it is one of several that may come.
                let counts = |&entry: &u32| role == Role::Steady || entry != span.start;
                of_kind(span, kind).filter(counts).min_by_key(|entry| entry.abs_diff(self.position))
            }
        });
        let begins = |span: &&Span| {
            span.role != Role::Opening && span.boundaries.contains(&(span.start, kind))
        };
        own.or_else(|| self.sequences.iter().find(begins).map(|span| span.start))
    }
}

/// The boundaries of a kind in a sequence.
fn of_kind(span: &Span, kind: MarkKind) -> impl Iterator<Item = u32> {
    span.boundaries.iter().filter(move |(_, other)| *other == kind).map(|&(entry, _)| entry)
}

/// The sizes that are taken for the place of `entry`: the one size that it ever had, or about those
/// that it had.
fn range(entry: &Entry) -> (u64, u64) {
    if entry.size_min == entry.size_max {
        (entry.size_min, entry.size_max)
    } else {
        (entry.size_min / STRETCH, entry.size_max.saturating_mul(STRETCH))
    }
}

fn gram(sizes: [u64; IN_STEP as usize]) -> u64 {
    sizes
        .into_iter()
        .fold(0, |hash, size| (hash ^ size).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23))
}

/// For each run of `IN_STEP` sure sizes within a sequence, the entries at which it ends.
fn grams(entries: &[Expected], sequences: &[Span]) -> FxHashMap<u64, Vec<u32>> {
    let mut grams: FxHashMap<u64, Vec<u32>> = FxHashMap::default();
    for span in sequences {
        let own = &entries[span.start as usize..span.end as usize];
        for (start, window) in (span.start..).zip(own.windows(IN_STEP as usize)) {
            if window.iter().all(Expected::is_sure) {
                let sizes = std::array::from_fn(|k| window[k].accepts.0);
                let ends = grams.entry(gram(sizes)).or_default();
                if ends.len() < OCCURRENCES {
                    ends.push(start + IN_STEP - 1);
                }
            }
        }
    }
    grams
}

#[cfg(test)]
mod tests {
    use super::*;
    use girih_plan::{Place, Sequence};

    fn sequence(role: Role, sizes: &[u64]) -> Sequence {
        let entry = |&size: &u64| Entry {
            size_min: size,
            size_max: size,
            stream: StreamId(0),
            place: Place::Outside,
            until: 0,
        };
        Sequence { role, entries: sizes.iter().map(entry).collect(), boundaries: Vec::new() }
    }

    fn plan(sequences: Vec<Sequence>) -> Plan {
        Plan { iterations: 2, sequences, ..Plan::default() }
    }

    /// Follows `sizes`; a number for each entry that was found, `-` for none.
    fn follow(follower: &mut Follower, sizes: &[u64]) -> String {
        let word = |size: &u64| match follower.follow(*size, StreamId(0)) {
            Some(EntryId(entry)) => entry.to_string(),
            None => "-".to_owned(),
        };
        sizes.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    const RING: [u64; 8] = [10, 20, 30, 40, 50, 60, 70, 80];

    #[test]
    fn the_ring_is_followed_round_and_round() {
        let mut follower = Follower::new(&plan(vec![sequence(Role::Steady, &RING)]));
        assert_eq!(follow(&mut follower, &RING), "0 1 2 3 4 5 6 7");
        assert_eq!(follow(&mut follower, &RING), "0 1 2 3 4 5 6 7");
    }

    #[test]
    fn an_odd_request_is_missed_alone() {
        let mut follower = Follower::new(&plan(vec![sequence(Role::Steady, &RING)]));
        assert_eq!(follow(&mut follower, &[10, 20, 99, 30, 40]), "0 1 - 2 3");
    }

    #[test]
    fn an_odd_request_of_a_size_that_comes_later_does_not_pull_the_follower_along() {
        let mut follower = Follower::new(&plan(vec![sequence(Role::Steady, &RING)]));
        assert_eq!(follow(&mut follower, &[10, 70, 20, 30, 40, 50]), "0 - 1 2 3 4");
    }

    #[test]
    fn a_request_that_does_not_come_costs_one_more() {
        let mut follower = Follower::new(&plan(vec![sequence(Role::Steady, &RING)]));
        assert_eq!(follow(&mut follower, &[10, 30, 40, 50, 60, 70]), "0 - 3 4 5 6");
    }

    #[test]
    fn an_opening_leads_into_the_ring() {
        let opening = sequence(Role::Opening, &[1, 2, 3]);
        let mut follower = Follower::new(&plan(vec![opening, sequence(Role::Steady, &RING)]));
        assert_eq!(follow(&mut follower, &[1, 2, 3, 10, 20]), "0 1 2 3 4");
        assert_eq!(follower.steady, 3);
    }

    #[test]
    fn an_interlude_is_entered_where_it_comes_and_left_at_its_end() {
        let ring = sequence(Role::Steady, &RING);
        let eval = sequence(Role::Interlude(8), &[10, 20, 31, 41, 51, 61]);
        let mut follower = Follower::new(&plan(vec![ring, eval]));
        assert_eq!(follow(&mut follower, &RING), "0 1 2 3 4 5 6 7");
        // It begins as the ring does: the first requests take the ring's places.
        assert_eq!(follow(&mut follower, &[10, 20, 31, 41, 51, 61]), "0 1 10 11 12 13");
        assert_eq!(follow(&mut follower, &RING), "0 1 2 3 4 5 6 7");
    }

    #[test]
    fn a_phase_that_was_skipped_is_found_again_by_three_sizes_in_a_row() {
        let long: Vec<u64> = (0..500).map(|k| 1000 + k).collect();
        let mut follower = Follower::new(&plan(vec![sequence(Role::Steady, &long)]));
        follow(&mut follower, &long[..10]);
        assert_eq!(follow(&mut follower, &long[400..405]), "- - 402 403 404");
    }

    #[test]
    fn a_place_that_varied_takes_any_size_about_those_seen() {
        let mut steady = sequence(Role::Steady, &RING);
        (steady.entries[1].size_min, steady.entries[1].size_max) = (20, 400);
        let mut follower = Follower::new(&plan(vec![steady]));
        assert_eq!(follow(&mut follower, &[10, 123, 30, 40]), "0 1 2 3");
    }

    #[test]
    fn a_step_mark_brings_the_follower_to_the_beginning_of_the_ring() {
        let mut steady = sequence(Role::Steady, &RING);
        steady.boundaries.push((0, MarkKind::Step));
        let mut follower = Follower::new(&plan(vec![steady]));
        assert_eq!(follow(&mut follower, &[10, 20, 30]), "0 1 2");
        follower.mark(MarkKind::Step);
        assert_eq!(follow(&mut follower, &[10, 20]), "0 1");
    }
}
