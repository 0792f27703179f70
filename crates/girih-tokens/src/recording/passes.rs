//! Where a recording's forward and backward passes go through layers.
//!
//! One forward pass that is followed by its backward pass is looked at. Where modules are marked, a layer is one whose
//! name ends in its only number (`layers.7`). Where they are not, what repeats in the forward pass is a layer
//! ([`repeats`](super::repeats)). A layer's backward pass ends as the last of what it kept is freed:
//!
//! ```text
//!  forward   | F0 | F1 | F2 |  head      backward | B2      | B1      | B0      |
//!  kept of   0    1    2                             2 freed   1 freed   0 freed
//! ```

use std::ops::Range;

use girih_trace::{Iterations, Lifetimes, MarkKind, PhaseKind, Phases, PoolId, Tick, Trace};

use super::RecordingError;
use super::SMALL;
use super::again::{Again, again};
use super::repeats::{Asked, layers};

/// The least part of what the forward pass keeps that must belong to layers that were found by repetition.
const LAYERED_MIN: f64 = 0.5;

/// The passes of one step, or of one microbatch, in ticks of the trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Passes {
    /// The iteration.
    pub step: Range<u32>,
    /// From the beginning of the forward to the end of the backward phase.
    pub microbatch: Range<u32>,
    /// Forward passes through layers, in order.
    pub forward: Vec<Range<u32>>,
    /// Backward passes, of the same layers.
    pub backward: Vec<Range<u32>>,
    /// Of each layer, the requests that it keeps, by birth. Its input is born before its pass.
    pub kept: Vec<Vec<u32>>,
    /// Of each layer, the request that stands for its input.
    pub inputs: Vec<Option<u32>>,
    /// Whether modules were marked.
    pub is_marked: bool,
    /// Whether layers run forward again within the backward pass.
    pub recomputes: bool,
    /// What of each layer does; empty if not all of them can be made out.
    pub again: Vec<Again>,
    /// Microbatches of the step; 1 if they are not known.
    pub microbatches: u32,
}

impl Passes {
    /// Finds them.
    ///
    /// # Errors
    /// If no layers can be made out, or they are not used in the order in which that must be.
    pub fn of(
        trace: &Trace,
        lives: &Lifetimes,
        iterations: &Iterations,
    ) -> Result<Passes, RecordingError> {
        let model = iterations.model().ok_or(RecordingError::NoStep)?;
        let step = iterations.list[model].ticks.clone();
        let phases = Phases::of(trace, lives, iterations);
        let (forward_phase, backward_phase) = adjacent(&phases, &step)?;
        let marked = marked(trace, &forward_phase);
        let is_marked = marked.len() >= 2;
        let is_kept = |request: u32| {
            let free = lives.requests[request as usize].free_requested.0;
            backward_phase.start <= free && free < step.end
        };
        let forward = if is_marked { marked } else { repeated(lives, &forward_phase, is_kept) };
        if forward.len() < 2 {
            return Err(RecordingError::NoLayers);
        }
        let size = |request: u32| lives.requests[request as usize].size;
        let (kept, inputs) = kept(lives, step.start, &forward, is_marked, is_kept);
        // Layers at either end that keep nothing, as below weights that do not learn, belong to what is around.
        let first = kept.iter().position(|kept| !kept.is_empty()).unwrap_or(0);
        let end = kept.iter().rposition(|kept| !kept.is_empty()).map_or(0, |last| last + 1);
        let (kept, inputs, forward) =
            (kept[first..end].to_vec(), inputs[first..end].to_vec(), forward[first..end].to_vec());
        if forward.len() < 2 {
            return Err(RecordingError::NoLayers);
        }
        if let Some(layer) = kept.iter().position(Vec::is_empty) {
            return Err(RecordingError::KeepsNothing { layer });
        }
        if !is_marked {
            let until = forward_phase.start..forward[forward.len() - 1].end;
            let all: u64 = born(lives, &until).filter(|&it| is_kept(it)).map(size).sum();
            let own: u64 = kept.iter().flatten().map(|&it| size(it)).sum();
            let part = own as f64 / all.max(1) as f64;
            if part < LAYERED_MIN {
                return Err(RecordingError::FewLayers { percent: (100.0 * part) as u32 });
            }
        }
        let backward = backward(lives, &kept, inputs[0], &backward_phase)?;
        let begins: Vec<u32> = trace
            .marks
            .iter()
            .filter(|mark| mark.kind == MarkKind::ForwardIn && is_layer(&mark.name))
            .map(|mark| mark.before)
            .filter(|before| backward_phase.contains(before))
            .collect();
        let own = |(forward, backward): (&Range<u32>, &Range<u32>)| {
            let begin = begins.iter().find(|begin| backward.contains(begin))?;
            again(lives, forward, backward, *begin)
        };
        let again: Option<Vec<Again>> = forward.iter().zip(&backward).map(own).collect();
        let (recomputes, again) = (!begins.is_empty(), again.unwrap_or_default());
        let microbatch = forward_phase.start..backward_phase.end;
        let microbatches = phases.microbatches.max(1);
        Ok(Passes {
            step,
            microbatch,
            forward,
            backward,
            kept,
            inputs,
            is_marked,
            recomputes,
            again,
            microbatches,
        })
    }
}

/// The last forward phase of the step that is followed by a backward phase, and that: gradients of the microbatches
/// before it are there already.
fn adjacent(
    phases: &Phases,
    step: &Range<u32>,
) -> Result<(Range<u32>, Range<u32>), RecordingError> {
    let inside = phases.list.iter().filter(|phase| step.contains(&phase.ticks.start));
    let passes: Vec<_> = inside
        .filter(|phase| matches!(phase.kind, PhaseKind::Forward | PhaseKind::Backward))
        .collect();
    let turn = passes.windows(2).rposition(|pair| {
        pair[0].kind == PhaseKind::Forward && pair[1].kind == PhaseKind::Backward
    });
    let turn = turn.ok_or(RecordingError::NoPasses)?;
    // What comes between the two belongs to the forward phase.
    let (forward, rest) = (passes[turn], &passes[turn + 1..]);
    // A backward pass that is marked where the program asks for it may be found again where the load falls.
    let of = |kind: PhaseKind| passes.iter().filter(|phase| phase.kind == kind).count();
    let each = (of(PhaseKind::Backward) / of(PhaseKind::Forward)).max(1);
    let begun = |kind: PhaseKind| passes[..=turn].iter().filter(|it| it.kind == kind).count();
    if begun(PhaseKind::Forward) != begun(PhaseKind::Backward) / each + 1 {
        return Err(RecordingError::Overlaps);
    }
    let follow = rest.iter().take_while(|phase| phase.kind == PhaseKind::Backward).count();
    let backward = follow.min(each);
    // What comes between it and the next pass, as handing gradients on, belongs to it.
    let next = rest.get(backward).map_or(step.end, |next| next.ticks.start);
    let last = rest[backward - 1].ticks.end;
    let optimizer = phases.list.iter().find(|phase| {
        phase.kind == PhaseKind::Optimizer && (last..next).contains(&phase.ticks.start)
    });
    let end = optimizer.map_or(next, |phase| phase.ticks.start);
    Ok((forward.ticks.start..rest[0].ticks.start, rest[0].ticks.start..end))
}

/// Requests that were born in a range of ticks, in the default pool.
pub(super) fn born<'a>(
    lives: &'a Lifetimes,
    ticks: &Range<u32>,
) -> impl Iterator<Item = u32> + use<'a> {
    let births = lives.born();
    let first = births.partition_point(|request| request.birth.0 < ticks.start);
    let end = births.partition_point(|request| request.birth.0 < ticks.end);
    let older = lives.older;
    (first..end)
        .filter(move |&index| births[index].pool == PoolId::DEFAULT)
        .map(move |index| (older + index) as u32)
}

/// What each layer keeps, and which of it stands for its input.
///
/// The input is what was handed on: the last that is born before the layer's pass, of those that are no small part of
/// what is kept. Where that is not kept, as where a norm keeps an fp32 copy of its own, it is the first that the
/// layer keeps. So it is where no modules are marked: what repeats may be cut anywhere within a layer.
fn kept(
    lives: &Lifetimes,
    step: u32,
    forward: &[Range<u32>],
    is_marked: bool,
    is_kept: impl Fn(u32) -> bool,
) -> (Vec<Vec<u32>>, Vec<Option<u32>>) {
    let size = |request: u32| lives.requests[request as usize].size;
    let own = |pass: &Range<u32>| born(lives, pass).filter(|&it| is_kept(it)).collect::<Vec<_>>();
    let mut kept: Vec<Vec<u32>> = forward.iter().map(own).collect();
    let usual = kept.iter().map(|kept| kept.iter().map(|&it| size(it)).sum::<u64>());
    let least = usual.clone().sum::<u64>() / forward.len() as u64 / SMALL;
    let mut handed: Vec<Option<u32>> = vec![None; forward.len()];
    for layer in (1..forward.len()).filter(|_| is_marked) {
        let before = forward[layer - 1].start..forward[layer].start;
        let last = born(lives, &before).filter(|&it| size(it) >= least).last();
        handed[layer] = last.filter(|&it| is_kept(it));
    }
    // Before the first layer there is more than what is handed on, since the step began: it has the size of what the
    // others are handed.
    if let Some(next) = handed[1] {
        let before = step..forward[0].start;
        let alike = born(lives, &before).filter(|&it| is_kept(it) && size(it) == size(next));
        handed[0] = alike.last();
    }
    for (layer, handed) in handed.iter().enumerate() {
        let Some(handed) = *handed else { continue };
        if layer > 0 {
            kept[layer - 1].retain(|&it| it != handed);
        }
        kept[layer].insert(0, handed);
    }
    let first = |kept: &Vec<u32>| kept.iter().copied().find(|&it| size(it) >= least);
    let inputs: Vec<Option<u32>> =
        handed.iter().zip(&kept).map(|(handed, kept)| handed.or_else(|| first(kept))).collect();
    // What the last layer hands on is kept for what comes behind it.
    let last = forward.len() - 1;
    let output = born(lives, &forward[last]).filter(|&it| size(it) >= least).last();
    if is_marked && inputs[last] != output {
        kept[last].retain(|&it| Some(it) != output);
    }
    (kept, inputs)
}

/// Passes through marked layers within a forward phase.
fn marked(trace: &Trace, phase: &Range<u32>) -> Vec<Range<u32>> {
    let mut passes: Vec<Range<u32>> = Vec::new();
    let mut open: Option<(&str, u32)> = None;
    for mark in trace.marks.iter().filter(|mark| phase.contains(&mark.before)) {
        match (mark.kind, open) {
            (MarkKind::ForwardIn, None) if is_layer(&mark.name) => {
                open = Some((&mark.name, mark.before));
            }
            (MarkKind::ForwardOut, Some((name, start))) if name == mark.name => {
                passes.push(start..mark.before);
                open = None;
            }
            _ => {}
        }
    }
    passes.retain(|pass| !pass.is_empty());
    passes
}

/// Whether a module is a layer: its name ends in its only number.
fn is_layer(name: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = name.rsplit('.');
    parts.next().is_some_and(is_number) && !parts.any(is_number)
}

/// Passes through what repeats in a forward phase.
fn repeated(
    lives: &Lifetimes,
    phase: &Range<u32>,
    is_kept: impl Fn(u32) -> bool,
) -> Vec<Range<u32>> {
    let own: Vec<u32> = born(lives, phase).collect();
    let life = |request: u32| &lives.requests[request as usize];
    let births: Vec<Tick> = own.iter().map(|&request| life(request).birth).collect();
    let asked = |&request: &u32| Asked {
        size: life(request).size,
        is_kept: is_kept(request),
        until: births.partition_point(|&birth| birth < life(request).death),
    };
    let asked: Vec<Asked> = own.iter().map(asked).collect();
    let tick = |number: usize| births.get(number).map_or(phase.end, |birth| birth.0);
    layers(&asked).into_iter().map(|layer| tick(layer.start)..tick(layer.end)).collect()
}

/// The backward passes: each ends as the last of what its layer kept is freed.
fn backward(
    lives: &Lifetimes,
    kept: &[Vec<u32>],
    input: Option<u32>,
    phase: &Range<u32>,
) -> Result<Vec<Range<u32>>, RecordingError> {
    // Who sent the first layer its input may hold it until later.
    let free = |request: &u32| match lives.requests[*request as usize].free_requested.0 {
        late if Some(*request) == input => late.min(phase.end - 1),
        free => free,
    };
    let ends: Vec<u32> =
        kept.iter().map(|kept| kept.iter().map(free).max().unwrap_or(0) + 1).collect();
    if ends.iter().any(|&end| end > phase.end) {
        return Err(RecordingError::Overlaps);
    }
    if let Some(layer) = ends.windows(2).position(|pair| pair[0] <= pair[1]) {
        return Err(RecordingError::NotInOrder { layer });
    }
    let mut passes = vec![0..0; kept.len()];
    for layer in (0..kept.len() - 1).rev() {
        passes[layer] = ends[layer + 1]..ends[layer];
    }
    // The last layer's begins as many requests before its end as the pass before it has, for the gradient of the
    // loss comes first.
    let last = kept.len() - 1;
    let usual = born(lives, &passes[last - 1]).count();
    let own: Vec<u32> = born(lives, &(phase.start..ends[last])).collect();
    let first = own[own.len().saturating_sub(usual)..].first();
    let start = first.map_or(phase.start, |&request| lives.requests[request as usize].birth.0);
    passes[last] = start.min(ends[last] - 1).max(phase.start)..ends[last];
    Ok(passes)
}
