//! Dynamic layers: those whose requests have sizes that only a run itself decides, as those of experts.
//!
//! The paper's profiler marks a request as dynamic if it "originates from a dynamic layer" and notes the layer in which
//! it comes and the one in which it goes (section 4). Hooks of modules say when a layer runs. Recordings have marks of
//! modules; a module is dynamic if its name ends in a word for experts, those that all tokens share left out.
//!
//! A recording has seldom marks of what runs backward. There the layer is found by what it does: its backward pass
//! takes up what its forward pass left, and lets it go.
//!
//! ```text
//!  forward          in #### out                      what is born at # and lives on
//!  backward                         |------|         from the first of those that go, to the last
//! ```
//!
//! Where a layer is computed again, its forward pass runs within the backward pass of the whole, and what it leaves
//! goes within that too. Without such marks nothing is dynamic.

use std::ops::Range;

use girih_trace::{Lifetimes, MarkKind, Tick, Trace};

/// Stands for a request that comes from no dynamic layer.
const STATIC: u32 = u32::MAX;

/// The runs of dynamic layers in a trace, and what was asked for in them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DynamicLayers {
    /// The runs by their first tick: each forward, and each backward.
    runs: Vec<Range<u32>>,
    /// For each request the run in which it was born, or [`STATIC`].
    run_of: Vec<u32>,
}

impl DynamicLayers {
    /// The dynamic layers that the marks of `trace` tell of. O(n log n) in its requests.
    pub fn of(trace: &Trace, lives: &Lifetimes) -> DynamicLayers {
        let mut runs = forward_runs(trace);
        let backward: Vec<Range<u32>> =
            runs.iter().filter_map(|run| backward_run(trace, lives, run)).collect();
        runs.extend(backward);
        runs.sort_by_key(|run| (run.start, run.end));
        // One that begins within another belongs to it: hooks of modules are a stack, of which the lowest dynamic one
        // says which layer it is.
        let mut end = 0;
        runs.retain(|run| {
            let is_outer = run.start >= end;
            end = end.max(run.end);
            is_outer
        });
        let mut layers = DynamicLayers { runs, run_of: Vec::new() };
        let run_of = |(index, birth): (usize, Tick)| match index < lives.older {
            true => STATIC,
            false => layers.run_at(birth).map_or(STATIC, |run| run as u32),
        };
        let births = lives.requests.iter().map(|request| request.birth).enumerate();
        layers.run_of = births.map(run_of).collect();
        layers
    }

    /// The runs, by their first tick, as ranges of ticks that do not meet.
    pub fn runs(&self) -> &[Range<u32>] {
        &self.runs
    }

    /// The run in which a request was born, as an index into [`DynamicLayers::runs`]; None for a static request.
    pub fn run_of(&self, request: u32) -> Option<usize> {
        let run = self.run_of.get(request as usize).copied().unwrap_or(STATIC);
        (run != STATIC).then_some(run as usize)
    }

    /// True if a request is dynamic: the paper's *d*.
    pub fn is_dynamic(&self, request: u32) -> bool {
        self.run_of(request).is_some()
    }

    /// The run that goes on at a tick.
    pub(super) fn run_at(&self, tick: Tick) -> Option<usize> {
        let last = self.runs.partition_point(|run| run.start <= tick.0).checked_sub(1)?;
        self.runs[last].contains(&tick.0).then_some(last)
    }
}

/// Whether a module of this name is a dynamic layer.
fn is_dynamic_module(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    last.contains("expert") && !last.contains("shared")
}

/// The forward passes of dynamic layers.
fn forward_runs(trace: &Trace) -> Vec<Range<u32>> {
    let mut runs = Vec::new();
    let mut open: Vec<(&str, u32)> = Vec::new();
    let marks = trace.marks.iter().filter(|mark| is_dynamic_module(&mark.name));
    for mark in marks {
        match mark.kind {
            MarkKind::ForwardIn => open.push((&mark.name, mark.before)),
            MarkKind::ForwardOut => {
                if let Some(at) = open.iter().rposition(|(name, _)| *name == mark.name) {
                    runs.extend(open.drain(at..).take(1).map(|(_, start)| start..mark.before));
                }
            }
            _ => {}
        }
    }
    runs.retain(|run| !run.is_empty());
    runs
}

/// The backward pass that takes up what the forward pass `run` left; None if it left nothing to one.
fn backward_run(trace: &Trace, lives: &Lifetimes, run: &Range<u32>) -> Option<Range<u32>> {
    use MarkKind::{Backward, BackwardStep, Eval, Forward, ForwardStep, Optimizer, Step};
    let is_pass = |kind: MarkKind| {
        matches!(kind, Forward | ForwardStep | Backward | BackwardStep | Step | Optimizer | Eval)
    };
    let passed = trace.marks.partition_point(|mark| mark.before <= run.start);
    let inside = trace.marks[..passed].iter().rev().find(|mark| is_pass(mark.kind))?;
    let is_again = matches!(inside.kind, Backward | BackwardStep);
    let next = trace.marks[passed..].iter().find(|mark| is_pass(mark.kind));
    let boundary = next.map_or(trace.events.len() as u32, |mark| mark.before);
    let ends = trace.marks[passed..].iter().find(|mark| matches!(mark.kind, Step | Optimizer));
    let end = ends.map_or(trace.events.len() as u32, |mark| mark.before);
    // Computed again, it is taken up in the same pass of the whole; else in a later one.
    let taken_up = if is_again { run.end..boundary } else { boundary..end };
    let born = lives.born();
    let from = born.partition_point(|request| request.birth.0 < run.start);
    let to = born.partition_point(|request| request.birth.0 < run.end);
    let deaths = born[from..to].iter().map(|request| request.death.0);
    let (first, last) = deaths
        .filter(|death| taken_up.contains(death))
        .fold((u32::MAX, 0), |(first, last), death| (first.min(death), last.max(death)));
    (first < last).then_some(first..last + 1)
}

#[cfg(test)]
mod tests {
    use girih_trace::{Action, Event, Mark, PoolId, StreamId};

    use super::*;

    /// A forward pass of experts that leaves blocks 1 and 2 to the backward pass, between static requests.
    fn trace() -> Trace {
        let on = |action, block: u64| {
            Event::of(action, block << 20, 512 * block, StreamId(0), PoolId::DEFAULT)
        };
        let alloc = |block| on(Action::Alloc, block);
        let free = |block| on(Action::FreeCompleted, block);
        let events = vec![
            alloc(9), // 0: static
            alloc(1), // 1: in the experts
            alloc(2),
            alloc(3),
            free(3),
            alloc(8), // 5: static
            free(8),
            free(1), // 7: the backward of the experts
            alloc(4),
            free(4),
            free(2), // 10
            free(9),
        ];
        let mark =
            |before, kind, name: &str| Mark { before, time_us: 0, kind, name: name.to_owned() };
        let marks = vec![
            mark(0, MarkKind::Step, "0"),
            mark(0, MarkKind::Forward, ""),
            mark(0, MarkKind::ForwardIn, "layers.0.mlp"),
            mark(1, MarkKind::ForwardIn, "layers.0.mlp.experts"),
            mark(5, MarkKind::ForwardOut, "layers.0.mlp.experts"),
            mark(5, MarkKind::ForwardIn, "layers.0.mlp.shared_experts"),
            mark(6, MarkKind::ForwardOut, "layers.0.mlp.shared_experts"),
            mark(6, MarkKind::Backward, ""),
        ];
        Trace { events, marks, streams: vec![0], pools: vec![(0, 0)], ..Trace::default() }
    }

    #[test]
    fn a_layer_runs_from_its_mark_to_its_end_and_backward_while_what_it_left_goes() {
        let trace = trace();
        let lives = Lifetimes::of(&trace);
        let layers = DynamicLayers::of(&trace, &lives);
        assert_eq!(layers.runs(), [1..5, 7..11]);
        // In order of birth: 9, 1, 2, 3, 8, 4.
        let runs: Vec<_> = (0..6).map(|request| layers.run_of(request)).collect();
        assert_eq!(runs, [None, Some(0), Some(0), Some(0), None, Some(1)]);
    }

    #[test]
    fn without_marks_of_experts_nothing_is_dynamic() {
        let mut trace = trace();
        trace.marks.retain(|mark| !mark.name.ends_with(".experts"));
        let lives = Lifetimes::of(&trace);
        let layers = DynamicLayers::of(&trace, &lives);
        assert!(layers.runs().is_empty() && (0..6).all(|request| !layers.is_dynamic(request)));
    }
}
