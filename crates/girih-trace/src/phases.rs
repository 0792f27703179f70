//! Phases of an iteration, its microbatches, and how long blocks live by that measure.
//!
//! Marks say where a forward, a backward or the optimizer begins. Without marks, microbatches are
//! what repeats inside one iteration, and within each the forward pass ends where most is alive:
//! activations pile up going forward and go away going back.
//!
//! ```text
//!   alive      /\      /\      /\
//!             /  \    /  \    /  \   __
//!            /    \  /    \  /    \_/  \
//!           F     B F     B F     B  O         3 microbatches, then the optimizer
//! ```

use std::ops::Range;

use crate::align::{Key, keys};
use crate::event::Tick;
use crate::iterations::{Iterations, model_iteration, repeats_inside};
use crate::lifetimes::{Lifetime, Lifetimes};
use crate::mark::MarkKind;
use crate::trace::Trace;

/// What goes on in a phase.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PhaseKind {
    /// Before the first iteration: model building.
    Setup,
    /// A forward pass.
    Forward,
    /// A backward pass.
    Backward,
    /// The optimizer.
    Optimizer,
    /// Evaluation.
    Evaluation,
    /// Between those.
    Other,
}

impl PhaseKind {
    /// The name that tables print.
    pub fn name(self) -> &'static str {
        match self {
            PhaseKind::Setup => "setup",
            PhaseKind::Forward => "forward",
            PhaseKind::Backward => "backward",
            PhaseKind::Optimizer => "optimizer",
            PhaseKind::Evaluation => "evaluation",
            PhaseKind::Other => "other",
        }
    }
}

/// One phase.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Phase {
    /// What goes on.
    pub kind: PhaseKind,
    /// From its first event to that of the next phase.
    pub ticks: Range<u32>,
    /// For a forward or backward pass, its number among those of its iteration, from 0.
    pub microbatch: Option<u32>,
}

/// How long a block lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Scope {
    /// Into another iteration, or for ever.
    Persistent,
    /// Into another phase of its iteration.
    Scoped,
    /// Within one phase.
    Transient,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Scope; 3] = [Scope::Persistent, Scope::Scoped, Scope::Transient];

    /// The name that tables print.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Persistent => "persistent",
            Scope::Scoped => "scoped",
            Scope::Transient => "transient",
        }
    }
}

/// The phases of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Phases {
    /// The phases in order. Together they cover the trace.
    pub list: Vec<Phase>,
    /// Forward passes in a steady iteration; 0 if unknown.
    pub microbatches: u32,
}

impl Phases {
    /// Finds the phases of a trace.
    pub fn of(trace: &Trace, lives: &Lifetimes, iterations: &Iterations) -> Phases {
        let events = trace.events.len() as u32;
        let mut starts = marked(trace, iterations);
        if !starts.iter().any(|start| start.1 == PhaseKind::Forward) {
            starts.extend(found(lives, iterations));
            starts.sort_by_key(|start| start.0);
        }
        let mut list = Vec::with_capacity(starts.len() + 1);
        let first = starts.first().map_or(events, |start| start.0);
        list.push(Phase { kind: PhaseKind::Setup, ticks: 0..first, microbatch: None });
        for (index, &(start, kind)) in starts.iter().enumerate() {
            let end = starts.get(index + 1).map_or(events, |next| next.0);
            list.push(Phase { kind, ticks: start..end, microbatch: None });
        }
        list.retain(|phase| !phase.ticks.is_empty());
        number_microbatches(&mut list, iterations);
        let microbatches = microbatches(&list, iterations);
        Phases { list, microbatches }
    }

    /// The phase of a tick, as an index; None for a trace without events.
    pub fn index_of(&self, tick: Tick) -> Option<usize> {
        self.list.partition_point(|phase| phase.ticks.start <= tick.0).checked_sub(1)
    }

    /// How long the block of each request lives.
    pub fn scopes(&self, lives: &Lifetimes, iterations: &Iterations) -> Vec<Scope> {
        let periods = self.periods(lives.request_of.len(), iterations);
        let scope = |request: &Lifetime| {
            if request.death == Tick::NEVER {
                return Scope::Persistent;
            }
            // The last tick at which it is alive.
            let last = request.death.index().saturating_sub(1).max(request.birth.index());
            let (birth, last) = (periods[request.birth.index()], periods[last]);
            match (birth.0 == last.0, birth.1 == last.1) {
                (false, _) => Scope::Persistent,
                (true, false) => Scope::Scoped,
                (true, true) => Scope::Transient,
            }
        };
        lives.requests.iter().map(scope).collect()
    }

    /// For each tick, the number of iterations and of phases that have begun by then.
    fn periods(&self, events: usize, iterations: &Iterations) -> Vec<(u32, u32)> {
        let mut iteration = iterations.list.iter().map(|it| it.ticks.start).peekable();
        let mut phase = self.list.iter().map(|phase| phase.ticks.start).peekable();
        let mut now = (0, 0);
        let at = |tick: u32| {
            while iteration.next_if(|&start| start <= tick).is_some() {
                now.0 += 1;
            }
            while phase.next_if(|&start| start <= tick).is_some() {
                now.1 += 1;
            }
            now
        };
        (0..events.max(1) as u32).map(at).collect()
    }
}

/// The number of iterations that have begun by a tick.
fn iteration_at(iterations: &Iterations, tick: Tick) -> usize {
    iterations.list.partition_point(|iteration| iteration.ticks.start <= tick.0)
}

/// Where phases begin, by the marks. An iteration begins a phase too.
fn marked(trace: &Trace, iterations: &Iterations) -> Vec<(u32, PhaseKind)> {
    let begun = iterations.list.iter().map(|iteration| (iteration.ticks.start, PhaseKind::Other));
    let mut starts: Vec<(u32, PhaseKind)> = begun.collect();
    starts.extend(trace.marks.iter().filter_map(|mark| {
        let kind = match mark.kind {
            MarkKind::Forward | MarkKind::ForwardStep => PhaseKind::Forward,
            MarkKind::Backward | MarkKind::BackwardStep => PhaseKind::Backward,
            MarkKind::Optimizer => PhaseKind::Optimizer,
            MarkKind::Eval => PhaseKind::Evaluation,
            MarkKind::Step
            | MarkKind::StepEnd
            | MarkKind::ForwardStepEnd
            | MarkKind::BackwardStepEnd => PhaseKind::Other,
            _ => return None,
        };
        Some((mark.before, kind))
    }));
    // Of several that begin at one event the last is meant: a step begins with its forward.
    starts.sort_by_key(|start| start.0);
    starts
}

/// Where phases begin by what repeats inside the steady iterations.
fn found(lives: &Lifetimes, iterations: &Iterations) -> Vec<(u32, PhaseKind)> {
    let keys = keys(lives);
    let load = load_at_births(lives);
    let mut starts = Vec::new();
    for iteration in &iterations.list {
        let own = iteration.requests.start as usize..iteration.requests.end as usize;
        // An iteration that is unlike the model (a first step) is cut by its own repetition.
        let (bounds, end) = microbatch_bounds(&keys[own.clone()]);
        let tick = |offset: usize| lives.requests[own.start + offset].birth.0;
        for bound in bounds.windows(2) {
            let top = (bound[0]..bound[1]).max_by_key(|&k| load[own.start + k]);
            starts.push((tick(bound[0]), PhaseKind::Forward));
            starts.extend(top.map(|top| (tick(top), PhaseKind::Backward)));
        }
        if end < own.len() {
            starts.push((tick(end), PhaseKind::Optimizer));
        }
    }
    starts
}

/// Where the microbatches of an iteration begin, the end of the last one at the end; and where what
/// comes after them begins. One microbatch if nothing repeats.
fn microbatch_bounds(keys: &[Key]) -> (Vec<usize>, usize) {
    match repeats_inside(keys) {
        Some((starts, period)) => {
            let end = (starts[starts.len() - 1] + period).min(keys.len());
            let mut bounds = starts;
            bounds.push(end);
            (bounds, end)
        }
        None => (vec![0, keys.len()], keys.len()),
    }
}

/// Bytes alive just after each request, those that are never freed left out.
fn load_at_births(lives: &Lifetimes) -> Vec<u64> {
    let mut change = vec![0i64; lives.request_of.len() + 1];
    for request in lives.requests.iter().filter(|request| request.death != Tick::NEVER) {
        // Only where sizes are beyond all bounds is it not exact.
        let (birth, death) = (request.birth.index(), request.death.index());
        change[birth] = change[birth].saturating_add_unsigned(request.size);
        change[death] = change[death].saturating_sub_unsigned(request.size);
    }
    let mut live = 0i64;
    let running: Vec<u64> = (change.iter())
        .map(|&change| {
            live = live.saturating_add(change);
            live.max(0) as u64
        })
        .collect();
    lives.requests.iter().map(|request| running[request.birth.index()]).collect()
}

fn number_microbatches(list: &mut [Phase], iterations: &Iterations) {
    let (mut current, mut forward, mut backward) = (0, 0, 0);
    for phase in list {
        let iteration = iteration_at(iterations, Tick(phase.ticks.start));
        if iteration != current {
            (current, forward, backward) = (iteration, 0, 0);
        }
        let count = match phase.kind {
            PhaseKind::Forward => &mut forward,
            PhaseKind::Backward => &mut backward,
            _ => continue,
        };
        phase.microbatch = Some(*count);
        *count += 1;
    }
}

/// Forward passes of the model iteration.
fn microbatches(list: &[Phase], iterations: &Iterations) -> u32 {
    let Some(model) = model_iteration(&iterations.list) else { return 0 };
    let ticks = &iterations.list[model].ticks;
    let inside = list.iter().filter(|phase| ticks.contains(&phase.ticks.start));
    inside.filter(|phase| phase.kind == PhaseKind::Forward).count() as u32
}
