//! The passes through layers: which stretches of time are one forward, or one backward, of one layer.
//!
//! The paper profiles one transformer layer and knows where it begins and ends. A recording knows it
//! where modules are marked: a layer is a module whose name ends in a number (`layers.7`). Its
//! forward goes from its mark to that of its end. Going back, a layer's first mark is that of its
//! gradient, or of its forward that is computed again; its pass goes on to the mark of the next one:
//!
//! ```text
//!  marks     forward  0 in  0 out 1 in  1 out     backward   1 in        0 in        optimizer
//!  passes             |-------|   |-------|                  |-----------|-----------|
//! ```
//!
//! Where nothing is marked, and in planning problems from elsewhere, the passes are found in the
//! sizes of the requests, which repeat from layer to layer (`repeats`). A run of requests that
//! repeats can be cut into layers at any of its requests. It is cut where the most bytes come and go
//! within the pieces.

use std::ops::Range;

use girih_trace::align::births_before;
use girih_trace::{Iterations, Lifetimes, Mark, MarkKind, Trace};

use super::repeats::{Run, runs};
use crate::plan::{Plan, Role};
use crate::problem::Problem;

/// The passes through layers of a problem, as ranges of its ticks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layers {
    /// Ascending, disjoint, none of them empty.
    passes: Vec<Range<u32>>,
}

impl Layers {
    /// Passes over these ticks. One that is empty or that overlaps with one that begins before it is
    /// left out.
    pub fn new(passes: impl IntoIterator<Item = Range<u32>>) -> Layers {
        let mut passes: Vec<Range<u32>> =
            passes.into_iter().filter(|pass| !pass.is_empty()).collect();
        passes.sort_by_key(|pass| (pass.start, pass.end));
        let mut end = 0;
        passes.retain(|pass| {
            let is_free = pass.start >= end;
            end = if is_free { pass.end } else { end };
            is_free
        });
        Layers { passes }
    }

    /// What repeats in the sizes of `problem`.
    pub fn repeated(problem: &Problem) -> Layers {
        Layers::default().or_repeated(problem)
    }

    /// The marked passes of the problem that [`crate::profile::plan`] asks its planner about when it
    /// makes `plan` of this recording, whichever planner it is: of the steady iteration, or of the
    /// whole recording where nothing repeats. None in what may come between two places of the
    /// steady iteration (evaluation).
    pub fn marked(
        plan: &Plan,
        trace: &Trace,
        lives: &Lifetimes,
        iterations: &Iterations,
    ) -> Layers {
        let passes = marked(trace, lives);
        let Some(model) = iterations.model().filter(|_| plan.steady().is_some()) else {
            return Layers::new(passes);
        };
        let model = &iterations.list[model].requests;
        let places = model.end - model.start;
        let is_inside = |pass: &&Range<u32>| model.start <= pass.start && pass.end <= model.end;
        let one_round: Vec<Range<u32>> = (passes.iter().filter(is_inside))
            .map(|pass| pass.start - model.start..pass.end - model.start)
            .collect();
        let joint = |place: u32| place + in_between(plan, place);
        let passes = (0..plan.rounds).flat_map(|round| {
            let first = round * places;
            let ticks =
                |pass: &Range<u32>| joint(pass.start + first)..joint(pass.end + first - 1) + 1;
            one_round.iter().map(ticks).collect::<Vec<_>>()
        });
        Layers::new(passes)
    }

    /// These passes, and what repeats in the sizes of `problem` before, between and after them.
    pub fn or_repeated(self, problem: &Problem) -> Layers {
        let buffers = &problem.buffers;
        let mut order: Vec<u32> = (0..buffers.len() as u32).collect();
        order.sort_by_key(|&buffer| buffers[buffer as usize].lower);
        let births: Vec<u32> = order.iter().map(|&b| buffers[b as usize].lower).collect();
        let deaths: Vec<u32> = order.iter().map(|&b| buffers[b as usize].upper).collect();
        let sizes: Vec<u64> = order.iter().map(|&b| buffers[b as usize].size).collect();
        let request_at = |tick: u32| births.partition_point(|&birth| birth < tick);

        let mut stretches = Vec::with_capacity(self.passes.len() + 1);
        let mut start = 0;
        for pass in &self.passes {
            stretches.push(start..request_at(pass.start).max(start));
            start = request_at(pass.end).max(start);
        }
        stretches.push(start..births.len());
        // The tick before which all requests before the `number`th are born.
        let tick = |number: usize| births.get(number).copied().unwrap_or(u32::MAX);
        let mut passes = self.passes;
        for run in runs(&sizes, stretches) {
            // How many requests are born before each one of the run is gone.
            let ends =
                deaths[run.requests.clone()].iter().map(|&death| request_at(death)).collect();
            let pieces = pieces(&run, &sizes, ends);
            passes.extend(pieces.map(|piece| tick(piece.start)..tick(piece.end)));
        }
        Layers::new(passes)
    }

    /// The passes, ascending.
    pub fn passes(&self) -> &[Range<u32>] {
        &self.passes
    }
}

/// Requests that come in between, up to a place of the ring.
fn in_between(plan: &Plan, place: u32) -> u32 {
    let lengths = plan.sequences.iter().map(|sequence| match sequence.role {
        Role::Interlude(at) if at <= place => sequence.entries.len() as u32,
        Role::Interlude(_) | Role::Opening | Role::Steady | Role::Variant(_) => 0,
    });
    lengths.sum()
}

/// Cuts a run into layers: at the request of the period at which pieces hold the most bytes that
/// come and go within one.
fn pieces(run: &Run, sizes: &[u64], ends: Vec<usize>) -> impl Iterator<Item = Range<usize>> {
    let Run { requests, period } = run.clone();
    // For each cut within a period, the bytes that it cuts through of what could lie in a piece.
    let mut crossing = vec![0u128; period];
    let mut all = 0;
    for (birth, end) in requests.clone().zip(ends) {
        if end > birth + period || end > requests.end {
            continue;
        }
        all += u128::from(sizes[birth]);
        for cut in birth + 1..end {
            crossing[(cut - requests.start) % period] += u128::from(sizes[birth]);
        }
    }
    let worth = |&cut: &usize| {
        let pieces = (requests.len() - cut) / period;
        (all - crossing[cut]) * pieces as u128
    };
    // The first of several.
    let cut = (0..period).rev().max_by_key(worth).unwrap_or(0);
    let first = requests.start + cut;
    let pieces = (requests.len() - cut) / period;
    (0..pieces).map(move |piece| first + piece * period..first + (piece + 1) * period)
}

/// The marked passes of a trace, as ranges of its requests, in order.
fn marked(trace: &Trace, lives: &Lifetimes) -> Vec<Range<u32>> {
    use MarkKind::{Backward, BackwardIn, BackwardStep, ForwardIn, ForwardOut, Other};
    let births = births_before(lives);
    let mut passes = Vec::new();
    let mut is_backward = false;
    // The layer whose pass is going on, and the request at which it began.
    let mut open: Option<(&str, u32)> = None;
    let mut close = |open: &mut Option<(&str, u32)>, end: u32| {
        passes.extend(open.take().map(|(_, start)| start..end).filter(|pass| !pass.is_empty()));
    };
    for Mark { before, kind, name, .. } in &trace.marks {
        let now = births.get(*before as usize).copied().unwrap_or(lives.requests.len() as u32);
        match kind {
            ForwardIn | BackwardIn if !is_layer(name) => {}
            // A layer whose forward is computed again within its own backward.
            ForwardIn | BackwardIn if open.is_some_and(|(layer, _)| layer == name) => {}
            ForwardIn | BackwardIn => {
                close(&mut open, now);
                open = Some((name, now));
            }
            ForwardOut if !is_backward && open.is_some_and(|(layer, _)| layer == name) => {
                close(&mut open, now);
            }
            ForwardOut | Other => {}
            _ => {
                close(&mut open, now);
                is_backward = matches!(kind, Backward | BackwardStep);
            }
        }
    }
    close(&mut open, lives.requests.len() as u32);
    passes
}

/// Whether a module is a layer: its name ends in its only number. Those with a number before are
/// parts of a layer (`layers.3.experts.0`).
fn is_layer(name: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = name.rsplit('.');
    parts.next().is_some_and(is_number) && !parts.any(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Buffer;

    #[test]
    fn what_overlaps_or_is_empty_is_left_out() {
        #[expect(clippy::reversed_empty_ranges, reason = "what is wrong is left out")]
        let layers = Layers::new([7..9, 3..3, 0..4, 2..6, 4..6, 9..8, 9..10]);
        assert_eq!(layers.passes(), [0..4, 4..6, 7..9, 9..10]);
    }

    #[test]
    fn a_layer_is_a_module_whose_name_ends_in_its_only_number() {
        for name in ["layers.0", "transformer.h.11", "7"] {
            assert!(is_layer(name), "{name}");
        }
        for name in
            ["", "layers", "layers.3.mlp", "layers.3.experts.0", "lm_head", "layers.", "l.x3"]
        {
            assert!(!is_layer(name), "{name}");
        }
    }

    #[test]
    fn a_run_is_cut_where_the_most_comes_and_goes_within_a_piece() {
        // Five requests a layer; the second to the fifth come and go between cuts before the second.
        let mut buffers = Vec::new();
        for layer in 0..4 {
            let at = 5 * layer;
            for (lower, upper, size) in [(0, 2, 1), (1, 5, 9), (2, 6, 9), (3, 4, 5), (4, 6, 7)] {
                buffers.push(Buffer { lower: at + lower, upper: at + upper, size });
            }
        }
        let problem = Problem { buffers, period: 0, alignment: 1 };
        assert_eq!(Layers::repeated(&problem).passes(), [1..6, 6..11, 11..16]);
        // What is known already is left as it is.
        let known = Layers::new(std::iter::once(0..10)).or_repeated(&problem);
        assert_eq!(known.passes(), [0..10, 10..15, 15..u32::MAX]);
        let most = Layers::new(std::iter::once(0..15)).or_repeated(&problem);
        assert_eq!(most.passes().len(), 1, "the last layer alone does not repeat");
    }
}
