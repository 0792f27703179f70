//! A step from a recording: its layers, what they keep, what is transient in their passes, and how long those take.
//!
//! *Skeletal* is what is born in a layer's forward pass and freed in its backward pass, *transient* the rest of what
//! lives within the step (Memo, section 3.1). The bytes of a pass are what a plan of everything takes that is there
//! then and is not skeletal. What lives through the whole step is static.
//!
//! The layer's input cannot be computed again within the layer. It is what the layer before hands on: the last that
//! is born there, if that is kept. If it is not, as where a norm keeps its own fp32 copy, it is the first that the
//! layer keeps. Attention's output is known by its log-sum-exp: 4 bytes for each head and token beside 2 bytes for
//! each feature.

pub mod again;
pub mod passes;
pub mod repeats;

use std::ops::Range;

use girih_plan::problem::Buffer;
use girih_trace::bounds::check_held;
use girih_trace::{Iterations, Lifetime, Lifetimes, Trace};
use rustc_hash::FxHashMap;
use thiserror::Error;

use self::passes::Passes;
use crate::problem::{Kind, Layer, Problem, Role, Slot};
use crate::transients::height;

/// Features of a head in use today.
const HEAD_WIDTHS: [u64; 9] = [32, 64, 80, 96, 112, 128, 160, 192, 256];
/// What is smaller than this part of a layer is no kind of its own.
pub(crate) const SMALL: u64 = 256;

/// Why no step can be made of a recording.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RecordingError {
    /// Nothing repeats.
    #[error("record several steps: nothing in the recording repeats, and no steps are marked")]
    NoStep,
    /// No forward pass is followed by a backward pass.
    #[error("record whole steps of training: no forward pass is followed by a backward pass")]
    NoPasses,
    /// There are no layers.
    #[error(
        "use `girih swap`, which schedules steps of any kind: no modules are marked, and nothing \
         repeats in the forward pass, so there are no layers"
    )]
    NoLayers,
    /// There are layers, but the step is not made of them.
    #[error(
        "use `girih swap`, which schedules steps of any kind: this one is not made of layers that \
         are alike, what repeats in its forward pass has {percent} % of what it keeps"
    )]
    FewLayers {
        /// The part that belongs to layers.
        percent: u32,
    },
    /// A layer keeps nothing.
    #[error("record training, not inference: layer {layer} keeps nothing for a backward pass")]
    KeepsNothing {
        /// The layer.
        layer: usize,
    },
    /// Layers are not used in the reverse order.
    #[error(
        "use `girih swap`, which schedules steps of any kind: what layer {layer} keeps is freed \
         before what layer {} keeps, so that they do not run backward in the reverse order",
        layer + 1
    )]
    NotInOrder {
        /// The first of the two.
        layer: usize,
    },
    /// Microbatches overlap.
    #[error(
        "record one microbatch at a time: what the forward pass keeps is not used in the backward \
         pass that follows it, so several are in flight, as in a pipeline"
    )]
    Overlaps,
    /// More is alive than any GPU has.
    #[error("copy the recording again, it is damaged: more than 4 TiB are alive at once")]
    TooLarge,
    /// Nobody says how long anything takes.
    #[error("say how long a step takes, with --step-time 800ms: the events have no times")]
    NoTimes,
}

/// What was assumed of a recording that does not say it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Assumed {
    /// Layers were found by repetition.
    pub layers: bool,
    /// Times are those of the events' clock, which is the host's.
    pub times: bool,
    /// What it costs to compute a tensor again is its part of the bytes.
    pub costs: bool,
    /// Which tensor is attention's output is not known.
    pub attention: bool,
    /// The program computes its layers again in the backward pass.
    pub recomputes: bool,
    /// What that makes is taken for what the layers would keep.
    pub lifted: bool,
    /// One microbatch of so many was looked at.
    pub microbatches: u32,
}

/// A step of a recording.
#[derive(Clone, PartialEq, Debug)]
pub struct Recorded {
    /// The step as it was recorded, on links and tiles of no meaning.
    pub problem: Problem,
    /// What of the bytes of each slot does not depend on the tokens: gradients, and what is older than the step.
    pub fixed: Fixed,
    /// What was assumed.
    pub assumed: Assumed,
}

/// Bytes of each slot that stay the same whatever the tokens.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fixed {
    /// Of [`Problem::begin`].
    pub begin: u64,
    /// Of [`Problem::head`].
    pub head: u64,
    /// Of [`Problem::end`].
    pub end: u64,
    /// Of each layer's forward and backward pass.
    pub layers: Vec<(u64, u64)>,
    /// Gradients that each layer's backward pass leaves for the optimizer.
    pub gradients: Vec<u64>,
    /// Those of all else, as embeddings and the head.
    pub other_gradients: u64,
}

/// Makes a step of a recording. With `step_us`, the step takes so many microseconds, else what its events say.
///
/// # Errors
/// If no layers can be made out, or nobody says how long anything takes.
pub fn read(
    trace: &Trace,
    lives: &Lifetimes,
    iterations: &Iterations,
    step_us: Option<f64>,
) -> Result<Recorded, RecordingError> {
    check_held(lives).map_err(|_| RecordingError::TooLarge)?;
    let passes = Passes::of(trace, lives, iterations)?;
    let mut reader = Reader::new(trace, lives, &passes);
    let (mut problem, fixed) = reader.problem();
    let attention = problem
        .layers
        .iter()
        .any(|layer| layer.kinds.iter().any(|kind| kind.role == Role::Attention));
    // The run as it was recorded: with what it computes again.
    let again = problem.layers.iter().filter(|_| !passes.again.is_empty());
    let measured = problem.plain_us() + again.map(Layer::remake_us).sum::<f64>();
    match step_us {
        None if measured <= 0.0 => return Err(RecordingError::NoTimes),
        None => {}
        Some(us) => scale(&mut problem, us / f64::from(passes.microbatches), measured),
    }
    let has_operators = reader.costs.is_some();
    let assumed = Assumed {
        layers: !passes.is_marked,
        times: !has_operators,
        costs: !has_operators,
        attention: !attention,
        recomputes: passes.recomputes,
        lifted: !passes.again.is_empty(),
        microbatches: passes.microbatches,
    };
    Ok(Recorded { problem, fixed, assumed })
}

/// Scales all times so that a step of `measured` microseconds takes `us`; evenly by layers where nothing was measured,
/// a backward pass twice as long as a forward pass.
fn scale(problem: &mut Problem, us: f64, measured: f64) {
    let factor = us / measured.max(f64::MIN_POSITIVE);
    let even = us / (3 * problem.layers.len()) as f64;
    for layer in &mut problem.layers {
        if measured > 0.0 {
            layer.forward.us *= factor;
            layer.backward.us *= factor;
        } else {
            (layer.forward.us, layer.backward.us) = (even, 2.0 * even);
        }
        let bytes: u64 =
            layer.kinds.iter().filter(|it| it.remake_us.is_some()).map(|it| it.bytes).sum();
        for kind in &mut layer.kinds {
            let even = layer.forward.us * kind.bytes as f64 / bytes.max(1) as f64;
            let scaled = |us: f64| if measured > 0.0 { us * factor } else { even };
            kind.remake_us = kind.remake_us.map(scaled);
        }
    }
    for slot in [&mut problem.begin, &mut problem.head, &mut problem.end] {
        slot.us *= if measured > 0.0 { factor } else { 0.0 };
    }
}

struct Reader<'a> {
    trace: &'a Trace,
    lives: &'a Lifetimes,
    passes: &'a Passes,
    /// Requests that are there at some time of the step, but not all through it.
    within: Vec<u32>,
    /// The layer that keeps each request.
    keeper: FxHashMap<u32, usize>,
    /// For each tick, microseconds of operators that began before it, where operators are known.
    costs: Option<Vec<f64>>,
    /// Heights of plans that were made already.
    heights: FxHashMap<Vec<Buffer>, u64>,
}

impl<'a> Reader<'a> {
    fn new(trace: &'a Trace, lives: &'a Lifetimes, passes: &'a Passes) -> Reader<'a> {
        let layers = passes.kept.iter().enumerate();
        let kept = layers.flat_map(|(layer, kept)| kept.iter().map(move |&it| (it, layer)));
        let again = passes.again.iter().enumerate().flat_map(|(layer, again)| {
            again.kept.iter().chain(&again.first).map(move |&it| (it, layer))
        });
        let keeper = kept.chain(again).collect();
        let operators = &trace.uses.operators;
        let is_timed = operators.iter().any(|operator| operator.duration_us > 0);
        let costs = is_timed.then(|| {
            let mut sums = vec![0.0; trace.events.len() + 2];
            for operator in operators {
                sums[operator.before as usize + 1] += f64::from(operator.duration_us);
            }
            let mut sum = 0.0;
            sums.iter_mut().for_each(|own| {
                sum += *own;
                *own = sum;
            });
            sums
        });
        let step = &passes.step;
        let is_within = |life: &Lifetime| {
            life.birth.0 < step.end && life.death.0 > step.start && !is_static(life, step)
        };
        let within = (0u32..).zip(&lives.requests).filter(|(_, life)| is_within(life));
        let within = within.map(|(index, _)| index).collect();
        Reader { trace, lives, passes, within, keeper, costs, heights: FxHashMap::default() }
    }

    fn problem(&mut self) -> (Problem, Fixed) {
        let Passes { step, microbatch, forward, backward, microbatches, .. } = self.passes;
        let count = forward.len();
        // Of several microbatches one is looked at, without what comes before and after it.
        let whole = if *microbatches > 1 { microbatch } else { step };
        let mut fixed = Fixed::default();
        let mut slot = |ticks: Range<u32>| self.slot(&ticks, None);
        let (begin, begin_fixed) = slot(whole.start..forward[0].start);
        let (head, head_fixed) = slot(forward[count - 1].end..backward[count - 1].start);
        let (end, end_fixed) = slot(backward[0].end..whole.end);
        (fixed.begin, fixed.head, fixed.end) = (begin_fixed, head_fixed, end_fixed);
        let mut layers = Vec::with_capacity(count);
        for layer in 0..count {
            // What comes between two layers belongs to the first.
            let until = forward.get(layer + 1).map_or(forward[layer].end, |next| next.start);
            // What is made again is not there in the forward pass.
            let is_kept = self.passes.again.get(layer).is_none();
            let (own, own_fixed) =
                self.slot(&(forward[layer].start..until), Some(layer).filter(|_| is_kept));
            let (mut back, back_fixed) = self.slot(&backward[layer], Some(layer));
            fixed.layers.push((own_fixed, back_fixed));
            let again = self.passes.again.get(layer).map(|again| self.us(&again.ticks));
            back.us = (back.us - again.unwrap_or(0.0)).max(0.0);
            let (kinds, copied) = self.kinds(layer, again.unwrap_or(own.us));
            layers.push(Layer { kinds, forward: own, backward: back, copied });
        }
        fixed.gradients = backward.iter().map(|pass| self.gradients(pass)).collect();
        let all = self.gradients(&(forward[count - 1].end..microbatch.end));
        fixed.other_gradients = all.saturating_sub(fixed.gradients.iter().sum());
        let is_static = |life: &&Lifetime| is_static(life, step);
        let static_bytes = self.lives.requests.iter().filter(is_static).map(|it| it.size).sum();
        let problem =
            Problem { layers, begin, head, end, static_bytes, tiles: 1, ..Problem::default() };
        (problem, fixed)
    }

    /// Microseconds of a range of ticks: of its operators, or between its events.
    fn us(&self, ticks: &Range<u32>) -> f64 {
        if let Some(costs) = &self.costs {
            return costs[ticks.end as usize] - costs[ticks.start as usize];
        }
        let events = &self.trace.events;
        let time = |tick: u32| events[(tick as usize).min(events.len() - 1)].time_us;
        time(ticks.end).saturating_sub(time(ticks.start)).max(0) as f64
    }

    /// Bytes that are born in a range of ticks and live on behind all backward passes: gradients, which the optimizer
    /// is still to see.
    fn gradients(&self, ticks: &Range<u32>) -> u64 {
        let end = self.passes.microbatch.end;
        let lives = self.within.iter().map(|&index| &self.lives.requests[index as usize]);
        let stays = lives.filter(|life| ticks.contains(&life.birth.0) && life.death.0 > end);
        stays.map(|life| life.size).sum()
    }

    /// A slot over a range of ticks, and the bytes of it that do not depend on the tokens. In a pass through a layer what
    /// the layer keeps comes as what is transient goes, or the other way round: there the slot has what both take together,
    /// less all that the layer keeps.
    fn slot(&mut self, ticks: &Range<u32>, layer: Option<usize>) -> (Slot, u64) {
        let us = if ticks.is_empty() { 0.0 } else { self.us(ticks) };
        let step = &self.passes.step;
        let last = self.passes.backward[0].end;
        let (mut through, mut through_fixed, mut kept) = (0, 0, 0);
        let (mut all, mut unmoved) = (Vec::new(), Vec::new());
        let window = ticks.start..ticks.end.max(ticks.start + 1);
        for &index in &self.within {
            let life = &self.lives.requests[index as usize];
            let is_there = life.birth.0 < window.end && life.death.0 > window.start;
            // A layer's input is born in the pass before its own, and counts there like anything else.
            let keeper = self.keeper.get(&index).filter(|&&keeper| {
                let Passes { forward, backward, .. } = self.passes;
                forward[keeper].start <= ticks.start && ticks.end <= backward[keeper].end
            });
            let is_own = keeper.is_some() && keeper == layer.as_ref() && self.is_kind(index);
            if !is_there || keeper.is_some() && !is_own {
                continue;
            }
            kept += if is_own { life.size } else { 0 };
            let is_fixed = !is_own && (life.birth.0 < step.start || life.death.0 > last);
            if life.birth.0 <= window.start && life.death.0 >= window.end {
                through += life.size;
                through_fixed += if is_fixed { life.size } else { 0 };
                continue;
            }
            let lower = life.birth.0.max(window.start) - window.start;
            let upper = life.death.0.min(window.end) - window.start;
            let buffer = Buffer { lower, upper, size: life.size };
            all.push(buffer);
            if is_fixed {
                unmoved.push(buffer);
            }
        }
        let bytes = (through + self.height(all)).saturating_sub(kept);
        let fixed = (through_fixed + self.height(unmoved)).min(bytes);
        (Slot { us, bytes }, fixed)
    }

    /// False for what a program that computes its layers again keeps beside what these would keep.
    fn is_kind(&self, request: u32) -> bool {
        !self.passes.again.iter().any(|again| again.first.contains(&request))
    }

    /// Bytes of what the layer before hands on and nobody keeps, where this one keeps its own copy of twice as many in place
    /// of it, as a norm does that computes in fp32: what is left of the copy can be made again.
    fn handed_on(&self, layer: usize, copy: u32) -> Option<u64> {
        let forward = &self.passes.forward;
        let start = forward[layer].start;
        let before = layer.checked_sub(1).map_or(self.passes.step.start, |it| forward[it].start);
        let Lifetime { birth, size, .. } = self.lives.requests[copy as usize];
        let is_handed_on = |index: &u32| {
            let life = &self.lives.requests[*index as usize];
            let is_there = (before..start).contains(&life.birth.0) && life.death.0 > start;
            is_there && !self.keeper.contains_key(index) && life.size * 2 == size
        };
        (birth.0 >= start && self.within.iter().any(is_handed_on)).then_some(size / 2)
    }

    /// The height of a plan. Layers that are alike have the same problem but for the times of their events.
    fn height(&mut self, mut buffers: Vec<Buffer>) -> u64 {
        let mut ticks: Vec<u32> = buffers.iter().flat_map(|it| [it.lower, it.upper]).collect();
        ticks.sort_unstable();
        ticks.dedup();
        let rank = |tick: u32| ticks.partition_point(|&it| it < tick) as u32;
        for buffer in &mut buffers {
            (buffer.lower, buffer.upper) = (rank(buffer.lower), rank(buffer.upper));
        }
        if let Some(&known) = self.heights.get(&buffers) {
            return known;
        }
        let found = height(buffers.clone());
        self.heights.insert(buffers, found);
        found
    }

    /// What a layer keeps, or would keep, by kind, and [`Layer::copied`]; to compute all of it again takes so many microseconds.
    fn kinds(&self, layer: usize, again_us: f64) -> (Vec<Kind>, u64) {
        let again = self.passes.again.get(layer);
        let kept: Vec<u32> = match again {
            // But for its input, all that it keeps is made again.
            Some(again) => {
                self.passes.inputs[layer].into_iter().chain(again.kept.clone()).collect()
            }
            None => self.passes.kept[layer].clone(),
        };
        let life = |request: u32| &self.lives.requests[request as usize];
        let size = |request: u32| life(request).size;
        let all: u64 = kept.iter().map(|&it| size(it)).sum();
        let is_large = |request: u32| size(request) * SMALL >= all;
        let input = self.passes.inputs[layer];
        let attention = attention(&kept.iter().map(|&it| size(it)).collect::<Vec<_>>());
        let mut kinds: Vec<Kind> = Vec::new();
        let (mut small, mut copied) = (0, 0);
        let mut before = again.map_or(self.passes.forward[layer].start, |again| again.ticks.start);
        for (at, &request) in kept.iter().enumerate() {
            // Operators from behind the last that made one, up to the one that made this.
            let end = before.max(life(request).birth.0 + 1);
            let cost =
                self.costs.as_ref().map(|costs| costs[end as usize] - costs[before as usize]);
            before = end;
            let (name, role) = match () {
                () if Some(request) == input => ("input".to_owned(), Role::Input),
                () if attention.is_some_and(|own| own.contains(&at)) => {
                    ("attention".to_owned(), Role::Attention)
                }
                () if !is_large(request) => {
                    small += size(request);
                    continue;
                }
                () => (format!("tensor {at}"), Role::Other),
            };
            let remake_us = match role {
                Role::Input => None,
                // Nobody says what attention alone takes: where the program does not, it is not computed again.
                Role::Attention if again.is_none() => cost,
                Role::Attention | Role::Other => Some(cost.unwrap_or(0.0)),
            };
            let kind = Kind { name, bytes: size(request), remake_us, role, is_tiled: false };
            let half = self.handed_on(layer, request).filter(|_| role == Role::Input);
            let Some(bytes) = half.filter(|_| again.is_none()) else {
                kinds.push(kind);
                continue;
            };
            let (name, role) = ("copy of the input".to_owned(), Role::Other);
            copied = bytes;
            kinds.push(Kind { bytes, ..kind });
            kinds.push(Kind { name, bytes, remake_us: Some(0.0), role, is_tiled: false });
        }
        if small > 0 {
            let (name, role) = ("small ones".to_owned(), Role::Input);
            kinds.push(Kind { name, bytes: small, remake_us: None, role, is_tiled: false });
        }
        if self.costs.is_none() {
            share_by_bytes(&mut kinds, again_us);
        }
        (kinds, copied)
    }
}

/// Divides the time to compute all of a layer again by the bytes.
fn share_by_bytes(kinds: &mut [Kind], again_us: f64) {
    let again = kinds.iter().filter(|kind| kind.remake_us.is_some());
    let all: u64 = again.map(|kind| kind.bytes).sum();
    for kind in kinds.iter_mut().filter(|kind| kind.remake_us.is_some()) {
        kind.remake_us = Some(again_us * kind.bytes as f64 / all.max(1) as f64);
    }
}

/// Whether a block is there all through the step.
fn is_static(life: &Lifetime, step: &Range<u32>) -> bool {
    life.birth.0 <= step.start && life.death.0 >= step.end
}

/// Attention's output and its log-sum-exp among the sizes that a layer keeps, by birth, as two that follow each other.
fn attention(sizes: &[u64]) -> Option<[usize; 2]> {
    let is_lse = |output: u64, own: u64| {
        own > 0 && HEAD_WIDTHS.iter().any(|head| own.checked_mul(*head) == output.checked_mul(2))
    };
    let pair = sizes.windows(2).position(|pair| is_lse(pair[0], pair[1]));
    pair.map(|at| [at, at + 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_is_known_by_its_log_sum_exp() {
        // Width 4096 and heads of 128: an output of 8192 bytes a token has 128 bytes of log-sum-exp.
        assert_eq!(attention(&[16_384, 8192, 2048, 8192, 128, 28_672]), Some([3, 4]));
        assert_eq!(attention(&[28_672, 8192, 130, 8192]), None);
        assert_eq!(attention(&[]), None);
    }
}
