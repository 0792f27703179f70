//! A decision with its times: a step of `girih-swap`, run by its simulator.
//!
//! The passes are operators. Before each backward pass stands what is computed again for it:
//!
//! ```text
//!  operator  0      1 .. L   L+1   L+2   L+3   ..            3L+2
//!            begin  F0 .. F  head  R     B     .. R0  B0     end
//! ```
//!
//! What goes of a layer is one tensor, idle from its forward pass to what is computed again.

use girih_swap::simulate::Direction;
use girih_swap::{Away, Gap, Op, Pass, Run, Schedule, Step, Tensor, simulate};

use crate::decision::Decision;
use crate::problem::{Layer, Problem};

/// Where the passes of a step are among its operators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// How many layers there are.
    pub layers: usize,
}

impl Places {
    /// A layer's forward pass; of the number of layers, the head.
    pub fn forward(self, layer: usize) -> usize {
        1 + layer
    }

    /// What comes between the last forward and the first backward pass.
    pub fn head(self) -> usize {
        1 + self.layers
    }

    /// What of a layer is computed again.
    pub fn remake(self, layer: usize) -> usize {
        2 + self.layers + 2 * (self.layers - 1 - layer)
    }

    /// A layer's backward pass.
    pub fn backward(self, layer: usize) -> usize {
        self.remake(layer) + 1
    }

    /// What comes last.
    pub fn end(self) -> usize {
        2 + 3 * self.layers
    }
}

/// A decision as it runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// The step that the simulator ran.
    pub step: Step,
    /// What goes in it.
    pub schedule: Schedule,
    /// Its times.
    pub run: Run,
    /// The layer of each entry of the schedule.
    pub layer_of: Vec<usize>,
    /// The most bytes on the GPU.
    pub gpu_peak: u64,
    /// The most bytes on the host.
    pub host_peak: u64,
    /// Microseconds of the step.
    pub step_us: f64,
    /// Microseconds that the step waits for copies.
    pub stall_us: f64,
    /// Microseconds in which layers are computed again.
    pub remake_us: f64,
    /// Bytes that go out, and as many that come in.
    pub bytes: u64,
}

impl Outcome {
    /// Microseconds that each layer takes: both passes, what is computed again, and what it waits for copies.
    pub fn layers_us(&self, layers: usize) -> Vec<f64> {
        let places = Places { layers };
        let mut waits = vec![0.0; self.step.ops.len()];
        for stall in &self.run.stalls {
            waits[stall.op as usize] += stall.us;
        }
        let us = |op: usize| self.step.ops[op].us + waits[op];
        let of = |layer: usize| {
            us(places.forward(layer)) + us(places.remake(layer)) + us(places.backward(layer))
        };
        (0..layers).map(of).collect()
    }

    /// Microseconds that a layer's copies are waited for, each way, by layer.
    pub fn waits_us(&self, layers: usize) -> Vec<(f64, f64)> {
        let mut waits = vec![(0.0, 0.0); layers];
        for stall in &self.run.stalls {
            let own = &mut waits[self.layer_of[stall.away as usize]];
            match stall.direction {
                Direction::Out => own.0 += stall.us,
                Direction::In => own.1 += stall.us,
            }
        }
        waits
    }
}

/// Bytes of a layer that are there in its own passes.
pub(crate) fn present(layer: &Layer, shares: &[crate::Share], tiles: u32) -> u64 {
    layer.present(|kind| shares[kind].remake, tiles)
}

/// Runs a decision of the problem. The shares must be of its kinds, copies out end before copies in begin.
pub fn run(problem: &Problem, decision: &Decision) -> Outcome {
    let places = Places { layers: problem.layers.len() };
    let (schedule, tensors, gaps, layer_of) = schedule(decision, places);
    let mut step = Step { ops: ops(problem, decision, places), tensors, gaps, load: Vec::new() };
    step.load = loads(problem, decision, places);
    if let Some(buffers) = decision.buffers {
        let away = away(&step, &schedule);
        let own = others(problem, places);
        let load = |(own, away): (u64, u64)| problem.static_bytes + own + buffers + away;
        step.load = own.into_iter().zip(away).map(load).collect();
    }
    let run = simulate(&step, &problem.links, &schedule);
    let remakes = (0..places.layers).map(|layer| step.ops[places.remake(layer)].us);
    Outcome {
        gpu_peak: schedule.gpu_peak(&step),
        host_peak: schedule.host_peak(&step),
        step_us: run.step_us,
        stall_us: run.stall_us(),
        remake_us: remakes.fold(0.0, |sum, us| sum + us),
        bytes: schedule.bytes(&step),
        layer_of,
        run,
        schedule,
        step,
    }
}

/// The most bytes on the GPU and on the host: what [`run`] gives, without its times.
pub fn peaks(problem: &Problem, decision: &Decision) -> (u64, u64) {
    let places = Places { layers: problem.layers.len() };
    let (schedule, tensors, gaps, _) = schedule(decision, places);
    let ops = vec![Op::default(); places.end() + 1];
    let load = loads(problem, decision, places);
    let step = Step { ops, load, tensors, gaps };
    let gpu = match decision.buffers {
        Some(buffers) => {
            let most = others(problem, places).into_iter().max().unwrap_or(0);
            problem.static_bytes + buffers + most
        }
        None => schedule.gpu_peak(&step),
    };
    (gpu, schedule.host_peak(&step))
}

fn schedule(decision: &Decision, places: Places) -> (Schedule, Vec<Tensor>, Vec<Gap>, Vec<usize>) {
    let (mut schedule, mut tensors, mut gaps) = (Schedule::default(), Vec::new(), Vec::new());
    let mut layer_of = Vec::new();
    for layer in 0..places.layers {
        let bytes = decision.sums(layer).swap;
        if bytes == 0 {
            continue;
        }
        let index = tensors.len() as u32;
        let (after, before) = (places.forward(layer) as u32, places.remake(layer) as u32);
        tensors.push(Tensor { request: layer as u32, bytes, born: after, last: before + 1 });
        gaps.push(Gap { tensor: index, after, before });
        schedule.away.push(Away {
            gap: index,
            leave: after,
            release: decision.release[layer] as u32,
            fetch: decision.fetch[layer] as u32,
        });
        layer_of.push(layer);
    }
    (schedule, tensors, gaps, layer_of)
}

fn ops(problem: &Problem, decision: &Decision, places: Places) -> Vec<Op> {
    let mut ops = vec![Op::default(); places.end() + 1];
    let mut set = |op: usize, us: f64, pass: Pass| ops[op] = Op { key: 0, us, pass };
    set(0, problem.begin.us, Pass::Forward);
    set(places.head(), problem.head.us, Pass::Forward);
    set(places.end(), problem.end.us, Pass::Optimizer);
    for (index, layer) in problem.layers.iter().enumerate() {
        set(places.forward(index), layer.forward.us, Pass::Forward);
        set(places.remake(index), decision.remake_us(problem, index), Pass::Backward);
        set(places.backward(index), layer.backward.us, Pass::Backward);
    }
    ops
}

/// For each operator, the bytes of its own that are no layer's skeletal tensors.
fn others(problem: &Problem, places: Places) -> Vec<u64> {
    let mut own = vec![0; places.end() + 1];
    own[0] = problem.begin.bytes;
    own[places.head()] = problem.head.bytes;
    own[places.end()] = problem.end.bytes;
    for (index, layer) in problem.layers.iter().enumerate() {
        own[places.forward(index)] = layer.forward.bytes;
        // What is computed again is the forward pass again.
        own[places.remake(index)] = layer.forward.bytes;
        own[places.backward(index)] = layer.backward.bytes;
    }
    own
}

/// For each operator, the bytes on the GPU if nothing that goes were away.
fn loads(problem: &Problem, decision: &Decision, places: Places) -> Vec<u64> {
    let mut loads = others(problem, places);
    loads.iter_mut().for_each(|load| *load += problem.static_bytes);
    let mut earlier = 0;
    for (index, layer) in problem.layers.iter().enumerate() {
        let own = earlier + present(layer, &decision.shares[index], problem.tiles);
        for op in [places.forward(index), places.remake(index), places.backward(index)] {
            loads[op] += own;
        }
        let sums = decision.sums(index);
        earlier += sums.keep + sums.swap;
    }
    loads[places.head()] += earlier;
    loads
}

/// For each operator, the bytes that a schedule has away.
fn away(step: &Step, schedule: &Schedule) -> Vec<u64> {
    let mut change = vec![0i64; step.ops.len() + 1];
    for away in &schedule.away {
        let bytes = step.bytes(away.gap) as i64;
        change[away.release as usize] += bytes;
        change[away.fetch as usize] -= bytes;
    }
    let sums = change.iter().take(step.ops.len()).scan(0i64, |sum, change| {
        *sum += change;
        Some(*sum as u64)
    });
    sums.collect()
}
