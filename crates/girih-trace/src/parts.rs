//! Parts of a run: what was recorded up to an iteration, and what it would be if it went on.
//!
//! ```text
//!  recorded   | opening | step 0 | step 1 | step 2 | st
//!  first part | opening | step 0 | step 1 |
//!  prolonged  | opening | step 0 | step 1 | step 1 | step 1 | step 1 | ...
//!    its sizes                     | of 1   | of 1   | of 2   | of 1   | ...
//! ```
//!
//! Both are a trace with lifetimes of its own. They are made of the lifetimes of the whole, and not from the events
//! anew: what was held before the first event is known from all of a recording, and was there from the beginning.

use std::ops::Range;

use crate::align::{Key, align, keys};
use crate::event::Tick;
use crate::iterations::{Iteration, Iterations};
use crate::lifetimes::{Lifetime, Lifetimes};
use crate::mark::Mark;
use crate::trace::Trace;

/// The events of a recording before `end`, as if it had ended there: a block that lives then is never freed.
///
/// Its final segments and its peaks are those of another moment, and are left out.
pub fn first_part(trace: &Trace, lives: &Lifetimes, end: Tick) -> (Trace, Lifetimes) {
    let count = end.index().min(trace.events.len());
    let mut first = Trace {
        device: trace.device,
        events: trace.events[..count].to_vec(),
        streams: trace.streams.clone(),
        pools: trace.pools.clone(),
        stacks: trace.stacks.clone(),
        frames: trace.frames.clone(),
        settings: trace.settings.clone(),
        origin: trace.origin.clone(),
        uses: trace.uses.first_part(end.0),
        ..Trace::default()
    };
    first.marks = trace.marks.iter().filter(|mark| mark.before < end.0).cloned().collect();
    let within = |tick: Tick| if tick < end { tick } else { Tick::NEVER };
    let born = lives.born().partition_point(|request| request.birth < end);
    let requests = lives.requests[..lives.older + born].iter().map(|request| Lifetime {
        free_requested: within(request.free_requested),
        death: within(request.death),
        ..*request
    });
    let first_lives = Lifetimes {
        requests: requests.collect(),
        older: lives.older,
        request_of: lives.request_of[..count].to_vec(),
        unclosed: lives.unclosed,
    };
    (first, first_lives)
}

/// A recording that goes on until it has at least `count` iterations. None if none of its iterations are alike, or if
/// it has as many.
///
/// One steady iteration is repeated: the latest that is known to be whole, into which as many blocks come as go out of
/// it, so that nothing piles up. A block that crosses from one into the next is freed there where the recorded one was.
/// Its sizes are those of the steady iterations in turn, place by place: a run whose sizes vary goes on varying. Times
/// are those of the recorded events, and so do not rise.
pub fn prolonged(
    trace: &Trace,
    lives: &Lifetimes,
    iterations: &Iterations,
    count: usize,
) -> Option<(Trace, Lifetimes)> {
    let (first, last) = iterations.steady?;
    if iterations.list.len() >= count {
        return None;
    }
    // The last may be cut short, and what comes after it is not known.
    let whole = first..=(last - 1).max(first);
    let round = |index: usize| Round::new(lives, &iterations.list[index]);
    let is_balanced = |index: &usize| round(*index).out.len() == round(*index).into.len();
    let model = whole.clone().rev().find(is_balanced).unwrap_or(*whole.end());
    let keys = keys(lives);
    let slice = |index: usize| {
        let requests = &iterations.list[index].requests;
        &keys[requests.start as usize..requests.end as usize]
    };
    let sizes: Vec<Vec<u64>> =
        (first..=last).map(|index| sizes_by_place(slice(model), slice(index))).collect();
    let mut longer = Prolonged::new(trace, lives, round(model));
    for (_, sizes) in (model + 1..count).zip(sizes.iter().cycle()) {
        longer.repeat(sizes);
    }
    Some((longer.trace, longer.lives))
}

/// The size of each place of an iteration, `model`, in another one; its own where the other has no such place.
fn sizes_by_place(model: &[Key], other: &[Key]) -> Vec<u64> {
    let mut sizes: Vec<u64> = model.iter().map(|key| key.size).collect();
    for (place, key) in align(model, other).into_iter().zip(other) {
        if let Some(place) = place {
            sizes[place as usize] = key.size;
        }
    }
    sizes
}

/// What is repeated.
struct Round {
    /// The events.
    ticks: Range<u32>,
    /// The requests that were born in them.
    own: Range<u32>,
    /// Those of them that die later, by birth.
    out: Vec<u32>,
    /// Requests born before that die in them, by birth. The k-th is in the next round the k-th of `out` of this one.
    into: Vec<u32>,
}

impl Round {
    fn new(lives: &Lifetimes, iteration: &Iteration) -> Round {
        let Iteration { requests: own, ticks } = iteration.clone();
        let death = |index: &u32| lives.requests[*index as usize].death;
        let dies_inside = |index: &u32| ticks.contains(&death(index).0);
        let crosses = |index: &u32| death(index) != Tick::NEVER && !dies_inside(index);
        let out = own.clone().filter(crosses).collect();
        let into = (0..own.start).filter(dies_inside).collect();
        Round { ticks, own, out, into }
    }
}

/// A recording that is made longer.
struct Prolonged<'a> {
    recorded: (&'a Trace, &'a Lifetimes),
    round: Round,
    /// Requests of the round before that are still to die, one for each of [`Round::into`].
    carried: Vec<u32>,
    trace: Trace,
    lives: Lifetimes,
}

impl<'a> Prolonged<'a> {
    fn new(trace: &'a Trace, lives: &'a Lifetimes, round: Round) -> Prolonged<'a> {
        let (first, first_lives) = first_part(trace, lives, Tick(round.ticks.end));
        let (recorded, carried) = ((trace, lives), round.out.clone());
        Prolonged { recorded, round, carried, trace: first, lives: first_lives }
    }

    /// Adds the events once more, with a size for each of the requests.
    fn repeat(&mut self, sizes: &[u64]) {
        let (trace, lives) = self.recorded;
        let start = self.trace.events.len() as u32;
        let base = self.lives.requests.len() as u32;
        let Round { ticks, own, out, into } = &self.round;
        let moved = |tick: Tick| {
            if ticks.contains(&tick.0) { Tick(tick.0 - ticks.start + start) } else { Tick::NEVER }
        };
        for (index, &size) in own.clone().zip(sizes) {
            let request = lives.requests[index as usize];
            let (free_requested, death) = (moved(request.free_requested), moved(request.death));
            let birth = moved(request.birth);
            self.lives.requests.push(Lifetime { size, birth, free_requested, death, ..request });
        }
        // What crossed into these events dies where its like did.
        for (&index, &recorded) in self.carried.iter().zip(into) {
            let recorded = lives.requests[recorded as usize];
            let request = &mut self.lives.requests[index as usize];
            request.death = moved(recorded.death);
            if request.free_requested == Tick::NEVER {
                let asked = moved(recorded.free_requested);
                request.free_requested = if asked == Tick::NEVER { request.death } else { asked };
            }
        }
        for tick in ticks.clone() {
            let request = lives.request_of[tick as usize];
            let now = if own.contains(&request) {
                request - own.start + base
            } else {
                let crossed = into.binary_search(&request).ok();
                let now = crossed.and_then(|place| self.carried.get(place));
                now.copied().unwrap_or(Lifetimes::NONE)
            };
            self.lives.request_of.push(now);
        }
        let events = ticks.start as usize..ticks.end as usize;
        self.trace.events.extend_from_slice(&trace.events[events]);
        let marks = trace.marks.iter().filter(|mark| ticks.contains(&mark.before));
        let marks =
            marks.map(|mark| Mark { before: mark.before - ticks.start + start, ..mark.clone() });
        self.trace.marks.extend(marks);
        self.carried = out.iter().map(|&index| index - own.start + base).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Action, Event, PoolId, StackId, StreamId};
    use crate::mark::MarkKind;

    fn event(action: Action, address: u64, size: u64) -> Event {
        let (stream, pool, stack) = (StreamId(0), PoolId::DEFAULT, StackId::NONE);
        Event { address, size, time_us: 0, stack, stream, pool, action }
    }

    /// Weights, and steps in each of which 60 blocks come and go and a batch is taken over from the step before.
    fn steps(count: u64) -> Trace {
        steps_of(&vec![0; count as usize])
    }

    /// The same, each step with so many bytes more for each of the 60.
    fn steps_of(more: &[u64]) -> Trace {
        let mut trace = Trace { streams: vec![0], pools: vec![(0, 0)], ..Trace::default() };
        let push = |trace: &mut Trace, action, address: u64, size| {
            trace.events.push(event(action, 4096 * (1 + address), size));
        };
        push(&mut trace, Action::Alloc, 1000, 7000);
        for (step, more) in (0..).zip(more) {
            trace.marks.push(Mark {
                before: trace.events.len() as u32,
                time_us: 0,
                kind: MarkKind::Step,
                name: String::new(),
            });
            push(&mut trace, Action::Alloc, 500 + step % 2, 900);
            for block in 0..60 {
                push(&mut trace, Action::Alloc, block, 10 + block + more);
            }
            for block in 0..60 {
                push(&mut trace, Action::FreeCompleted, block, 10 + block + more);
            }
            if step > 0 {
                push(&mut trace, Action::FreeCompleted, 501 - step % 2, 900);
            }
        }
        trace
    }

    /// Sizes, births and lives of the requests: all that a replay or a plan sees of them.
    fn told(lives: &Lifetimes) -> Vec<(u64, Tick, Tick)> {
        lives.requests.iter().map(|request| (request.size, request.birth, request.death)).collect()
    }

    fn of(trace: &Trace) -> (Lifetimes, Iterations) {
        let lives = Lifetimes::of(trace);
        let iterations = Iterations::of(trace, &lives);
        (lives, iterations)
    }

    #[test]
    fn a_first_part_is_what_a_recording_of_it_would_have_been() {
        let whole = steps(5);
        let (lives, iterations) = of(&whole);
        let end = iterations.list[2].ticks.start;
        let (first, first_lives) = first_part(&whole, &lives, Tick(end));
        let (alone, alone_iterations) = of(&steps(2));
        assert_eq!((first.events, first.marks), (steps(2).events, steps(2).marks));
        assert_eq!(first_lives, alone);
        assert_eq!(alone_iterations.list, iterations.list[..2]);
    }

    #[test]
    fn what_was_there_before_is_there_in_the_first_part_too() {
        let mut whole = steps(4);
        // Freed at the end alone: nothing in the first part tells of it.
        whole.events.push(event(Action::FreeCompleted, 1 << 40, 12_345));
        let (lives, iterations) = of(&whole);
        assert_eq!((lives.older, iterations.list.len()), (1, 4));
        let (_, first) = first_part(&whole, &lives, Tick(iterations.list[1].ticks.start));
        assert_eq!((first.older, first.requests[0].size), (1, 12_345));
        assert_eq!(first.requests[0].death, Tick::NEVER);
    }

    #[test]
    fn a_first_part_of_nothing_and_of_everything() {
        let whole = steps(3);
        let (lives, _) = of(&whole);
        let (none, no_lives) = first_part(&whole, &lives, Tick(0));
        assert!(none.events.is_empty() && none.marks.is_empty() && no_lives.requests.is_empty());
        let (all, all_lives) = first_part(&whole, &lives, Tick(whole.events.len() as u32));
        assert_eq!((&all.events, &all.marks, all_lives), (&whole.events, &whole.marks, lives));
    }

    #[test]
    fn a_run_that_goes_on_is_the_longer_run() {
        let (short, long) = (steps(4), steps(12));
        let (lives, iterations) = of(&short);
        let (trace, longer) = prolonged(&short, &lives, &iterations, 10).expect("steps are alike");
        let ticks = trace.events.len();
        assert_eq!(trace.marks, long.marks[..trace.marks.len()]);
        assert!(trace.marks.len() >= 10, "{} steps", trace.marks.len());
        let (_, expected) = first_part(&long, &Lifetimes::of(&long), Tick(ticks as u32));
        assert_eq!(told(&longer), told(&expected));
        assert_eq!(longer.request_of, expected.request_of);
        assert!(prolonged(&short, &lives, &iterations, 4).is_none(), "it has as many");
    }

    #[test]
    fn sizes_that_vary_go_on_varying() {
        let varied = steps_of(&[0, 5, 0, 7]);
        let (lives, iterations) = of(&varied);
        assert_eq!(iterations.steady, Some((0, 3)));
        let (trace, longer) = prolonged(&varied, &lives, &iterations, 9).expect("steps are alike");
        let again = Iterations::of(&trace, &longer);
        // The first block of each step after the batch.
        let size = |it: &Iteration| longer.requests[it.requests.start as usize + 1].size;
        let sizes: Vec<u64> = again.list.iter().map(size).collect();
        assert_eq!(sizes, [10, 15, 10, 10, 15, 10, 17, 10, 15]);
    }
}
