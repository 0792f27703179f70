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
//! Places that differ in size from step to step and are alive together, those of experts, share a
//! room (`rooms`). What comes before is the opening. Its requests that have a place keep it; what
//! lives across iterations is stacked in the persistent region; the rest goes into the gaps below
//! the arena's height, or outside. Runs that come in between two places (evaluation) are interludes,
//! laid around what is alive there. Whatever the planner, blocks of different streams are then moved
//! apart as far as the height allows ([`mod@crate::streams`]).

mod interlude;
mod line;
mod opening;
mod rooms;
mod steady;
mod variants;

use std::ops::Range;

use girih_trace::align::{Key, align, births_before, keys};
use girih_trace::kinds::SMALL_MAX;
use girih_trace::{Iterations, Lifetime, Lifetimes, MarkKind, StreamId, Tick, Trace};
use rustc_hash::FxHashSet;

use self::interlude::joint_problem;
use self::steady::{Steady, unroll};
use self::variants::Kept;
use crate::plan::{Entry, Place, Plan, ROOM_GRAIN, Role, Room, Sequence, granted};
use crate::portfolio::Outcome;
use crate::problem::{Problem, ProblemError};
use crate::streams::keep_apart;

/// Stands for a request that has no place in the steady iteration.
const NO_PLACE: u32 = u32::MAX;

/// What a plan may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// What differs in size may share a room; else each request has a place of its own.
    pub rooms: bool,
    /// Kinds of iterations besides the steady one: what a plan of all of them costs to make, to keep and to follow
    /// grows with them.
    pub variants_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { rooms: true, variants_max: 15 }
    }
}

/// Makes a plan of a trace. `solve` is the planner: it is asked once, for the steady iteration, or
/// for the whole trace if nothing in it repeats.
///
/// # Errors
/// Those of `solve`, and [`ProblemError::TooLarge`] where the requests, rounded up, add up to more than
/// can be counted: then `solve` is not asked.
pub fn plan(
    trace: &Trace,
    lives: &Lifetimes,
    iterations: &Iterations,
    solve: impl FnOnce(&Problem) -> Result<Outcome, ProblemError>,
) -> Result<Plan, ProblemError> {
    plan_as(trace, lives, iterations, Options::default(), solve)
}

/// The same with a place for each request, and no rooms: what rooms are worth.
///
/// # Errors
/// As [`plan`].
pub fn plan_without_rooms(
    trace: &Trace,
    lives: &Lifetimes,
    iterations: &Iterations,
    solve: impl FnOnce(&Problem) -> Result<Outcome, ProblemError>,
) -> Result<Plan, ProblemError> {
    let options = Options { rooms: false, ..Options::default() };
    plan_as(trace, lives, iterations, options, solve)
}

/// The same with other options.
///
/// # Errors
/// As [`plan`].
pub fn plan_as(
    trace: &Trace,
    lives: &Lifetimes,
    iterations: &Iterations,
    options: Options,
    solve: impl FnOnce(&Problem) -> Result<Outcome, ProblemError>,
) -> Result<Plan, ProblemError> {
    check_total(lives)?;
    let mut profile = Profile::new(trace, lives, iterations);
    profile.options = options;
    let mut plan = match profile.steady {
        Some(steady) => profile.with_steady(steady, solve),
        None => profile.without_steady(solve),
    }?;
    // A request for nothing never comes to a follower; its place is there all the same, and has a size.
    for entry in plan.sequences.iter_mut().flat_map(|sequence| &mut sequence.entries) {
        entry.size_max = entry.size_max.max(1);
    }
    Ok(plan)
}

/// Makes sure that whatever is summed up of the requests can be: a place may stand twice on the ring,
/// and in rooms and in what stays besides.
fn check_total(lives: &Lifetimes) -> Result<(), ProblemError> {
    let mut total = 0u64;
    for (buffer, request) in lives.requests.iter().enumerate() {
        let most =
            request.size.checked_next_multiple_of(ROOM_GRAIN).map(|size| size.max(ROOM_GRAIN));
        let most = most.and_then(|size| size.checked_mul(4));
        let sum = most.and_then(|size| total.checked_add(size));
        total = sum.ok_or(ProblemError::TooLarge { buffer })?;
    }
    Ok(())
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
    /// Which iterations are steady ones; the others between the first and the last are of other kinds, or come
    /// once.
    is_member: Vec<bool>,
    options: Options,
}

/// The first iteration that is of some kind and after which nothing more is made that stays, as far as that ends
/// in the first half of the run: until then it is the opening, whatever comes in between.
fn first_of_kinds(iterations: &Iterations, lives: &Lifetimes) -> usize {
    let list = &iterations.list;
    let stays = |index: u32| {
        let request = &lives.requests[index as usize];
        request.size > SMALL_MAX && request.death == Tick::NEVER
    };
    let adds = |&k: &usize| list[k].requests.clone().any(stays);
    let latest = (0..list.len() / 2).rev().find(adds).map_or(0, |k| k + 1);
    let of_kinds = || iterations.kinds.iter().flatten().copied();
    of_kinds().filter(|&k| k >= latest).min().or(of_kinds().min()).unwrap_or(0)
}

impl<'a> Profile<'a> {
    fn new(trace: &'a Trace, lives: &'a Lifetimes, iterations: &'a Iterations) -> Self {
        let members = iterations.members();
        let steady = iterations.model().map(|model| {
            let first = match iterations.is_run() {
                true => members[0],
                // What the ring is made of must be within.
                false => first_of_kinds(iterations, lives).min(model),
            };
            let last = members[members.len() - 1];
            let places = iterations.list[model].requests.len() as u32;
            Steady { first, last, model, places }
        });
        let mut is_member = vec![false; iterations.list.len()];
        let first = steady.map_or(0, |steady: Steady| steady.first);
        members.into_iter().filter(|&k| k >= first).for_each(|number| is_member[number] = true);
        let count = lives.requests.len();
        let mut profile = Profile {
            trace,
            lives,
            iterations,
            births: births_before(lives),
            place_of: vec![NO_PLACE; count],
            next_place: vec![0; count + 1],
            steady,
            is_member,
            options: Options::default(),
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

    fn with_steady(
        self,
        steady: Steady,
        solve: impl FnOnce(&Problem) -> Result<Outcome, ProblemError>,
    ) -> Result<Plan, ProblemError> {
        let mut envelope = self.envelope(steady);
        let lasting = match self.iterations.is_run() {
            true => FxHashSet::default(),
            false => self.lasting(steady),
        };
        let mut kept = Kept::new(lasting);
        let is_here: Vec<bool> =
            envelope.iter().map(|entry| kept.is_here(entry, steady.places)).collect();
        let here = envelope.iter_mut().zip(is_here).filter(|&(_, is_here)| is_here);
        kept.place(here.map(|(entry, _)| {
            entry.until = 0;
            entry
        }));
        let (mut ring, rounds) = unroll(envelope);
        let mut interludes = self.interludes(steady);
        let drafts = if self.options.rooms { self.rooms(steady, &mut ring) } else { Vec::new() };
        let problem = joint_problem(&ring, &drafts, &interludes);
        let between = interludes.iter_mut().flat_map(|interlude| &mut interlude.entries);
        let mut planned: Vec<&mut Entry> =
            ring.iter_mut().chain(between).filter(|entry| has_place_of_its_own(entry)).collect();
        let streams = planned.iter().map(|entry| entry.stream);
        let streams: Vec<StreamId> = streams.chain(drafts.iter().map(|room| room.stream)).collect();
        let outcome = solve_apart(&problem, &streams, solve)?;
        let height = outcome.solution.height;
        let (own, shared) = outcome.solution.offsets.split_at(planned.len());
        for (entry, &offset) in planned.iter_mut().zip(own) {
            entry.place = Place::Arena(offset);
        }
        let rooms = drafts.iter().zip(shared);
        let rooms: Vec<Room> =
            rooms.map(|(draft, &offset)| Room { offset, bytes: draft.bytes }).collect();
        let opening;
        (opening, kept.end) = self.opening(steady, &ring, &rooms, (height, kept.end));
        let model = &self.iterations.list[steady.model];
        let boundaries = self.boundaries(&model.requests, &model.ticks);
        let rounds_of = (0..rounds).flat_map(|round| {
            boundaries.iter().map(move |&(entry, kind)| (entry + round * steady.places, kind))
        });
        let variants = self.variants(steady, &ring, (rounds, height), &mut kept);
        let ring = Sequence { role: Role::Steady, boundaries: rounds_of.collect(), entries: ring };
        let interludes = interludes.into_iter().map(|interlude| Sequence {
            role: Role::Interlude(interlude.at),
            boundaries: self.boundaries(&interlude.run, &self.ticks_of(&interlude.run)),
            entries: interlude.entries,
        });
        let opening = (!opening.entries.is_empty()).then_some(opening);
        Ok(Plan {
            arena_bytes: height,
            persistent_bytes: kept.end,
            lower_bound: outcome.bound.bytes,
            in_use: self.lives.peak(granted).0,
            trial: None,
            peak: height,
            proven: outcome.is_proven(),
            planner: outcome.solution.planner.to_owned(),
            requests: self.lives.born().len() as u64,
            iterations: self.members() as u32,
            rounds,
            rooms,
            sequences: opening
                .into_iter()
                .chain([ring])
                .chain(interludes)
                .chain(variants)
                .collect(),
        })
    }

    /// How many iterations are steady ones.
    fn members(&self) -> usize {
        self.is_member.iter().filter(|&&is_member| is_member).count()
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
}

/// True for an entry that is planned, and not in a room.
fn has_place_of_its_own(entry: &Entry) -> bool {
    entry.until > 0 && !matches!(entry.place, Place::Room(_))
}

/// Solves `problem` by `solve`, and then keeps apart what its buffers' `streams` keep apart.
fn solve_apart(
    problem: &Problem,
    streams: &[StreamId],
    solve: impl FnOnce(&Problem) -> Result<Outcome, ProblemError>,
) -> Result<Outcome, ProblemError> {
    let outcome = solve(problem)?;
    let solution = keep_apart(problem, streams, outcome.solution)?;
    Ok(Outcome { solution, ..outcome })
}

/// Marks that bring a follower in step. Those of modules are too many to be worth it.
fn is_boundary(kind: MarkKind) -> bool {
    use MarkKind::{Backward, BackwardStep, Eval, Forward, ForwardStep, Optimizer, Step, StepEnd};
    matches!(
        kind,
        Step | StepEnd | Forward | Backward | ForwardStep | BackwardStep | Optimizer | Eval
    )
}
