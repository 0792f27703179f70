//! Where the steps of a program begin, as far as is needed to tell what stays behind from step to
//! step.
//!
//! Marks say it. Stacks do too: the program's lines outside of any module's forward come round
//! again and again, and the line that comes round most often, the earliest of those, begins a step:
//!
//! ```text
//!  build, build, | batch, loss, backward, step, | batch, loss, backward, step, | batch, loss
//! ```
//!
//! Where the loop is one line, the lines come round that it calls. Without stacks, or where the
//! loop is a library's, it is the sequence of requests that repeats; but the layers of one forward
//! pass repeat too, and leave activations behind as a leak leaves graphs. So such steps count only
//! where each gives back more than it leaves.

use rustc_hash::FxHashMap;

use girih_trace::{Action, Iterations, Lifetimes, MarkKind, Source, Tick, Trace};

use crate::frames::{Stacks, Told};

/// The ticks at which steps begin, rising, before `end`. Empty if no steps can be told.
pub fn starts(
    trace: &Trace,
    lives: &Lifetimes,
    iterations: &Iterations,
    stacks: &Stacks,
    end: Tick,
) -> Vec<Tick> {
    let marked: Vec<Tick> = (trace.marks.iter())
        .filter(|mark| mark.kind == MarkKind::Step && mark.before < end.0)
        .map(|mark| Tick(mark.before))
        .collect();
    if marked.len() > 1 {
        return marked;
    }
    let by_caller = rounds(trace, stacks, end, |told| told.caller.as_deref());
    if by_caller.len() > 1 {
        return by_caller;
    }
    let by_callee = rounds(trace, stacks, end, |told| told.callee.as_deref());
    if by_callee.len() > 1 {
        return by_callee;
    }
    if iterations.source == Source::None {
        return marked;
    }
    let found: Vec<Tick> = (iterations.list.iter())
        .map(|iteration| Tick(iteration.ticks.start))
        .filter(|&start| start < end)
        .collect();
    if gives_back_more_than_it_leaves(lives, &found, end) { found } else { marked }
}

/// The ticks at which the line begins that comes round most often, the earliest of those.
fn rounds<'a>(
    trace: &Trace,
    stacks: &'a Stacks,
    end: Tick,
    line_of: impl Fn(&'a Told) -> Option<&'a str>,
) -> Vec<Tick> {
    let mut runs: FxHashMap<&str, Vec<Tick>> = FxHashMap::default();
    let mut order: Vec<&str> = Vec::new();
    let mut now = "";
    let mut known: FxHashMap<u32, Option<&str>> = FxHashMap::default();
    for (index, event) in trace.events[..end.index().min(trace.events.len())].iter().enumerate() {
        if event.action != Action::Alloc {
            continue;
        }
        let line = *(known.entry(event.stack.0))
            .or_insert_with(|| stacks.get(event.stack).and_then(&line_of));
        let Some(line) = line.filter(|&line| line != now) else { continue };
        now = line;
        let begun = runs.entry(line).or_insert_with(|| {
            order.push(line);
            Vec::new()
        });
        begun.push(Tick(index as u32));
    }
    // Of those that come round equally often but for the last time, the first.
    let most = runs.values().map(Vec::len).max().unwrap_or(0);
    let first = order.iter().find(|line| runs[*line].len() + 1 >= most && most > 1);
    first.and_then(|line| runs.remove(line)).filter(|begun| begun.len() > 1).unwrap_or_default()
}

fn gives_back_more_than_it_leaves(lives: &Lifetimes, starts: &[Tick], end: Tick) -> bool {
    let (Some(&first), Some(&last)) = (starts.first(), starts.last()) else { return false };
    let (mut left, mut given_back) = (0_u64, 0_u64);
    for life in lives.born().iter().filter(|life| life.birth >= first && life.birth < last) {
        let sum = if life.death >= end { &mut left } else { &mut given_back };
        *sum = sum.saturating_add(life.size);
    }
    given_back > left
}
