//! The linear program: what becomes of each layer at the least time, when it is settled which copies end and begin
//! before which passes.
//!
//! With those points fixed everything is linear in the bytes that go (`s`), the bytes that are computed again (`r`),
//! and the waits of the compute stream (`w`). Behind each forward pass the link has a backlog (`q`), as in Lindley's
//! recursion for a queue, and likewise where copies in begin:
//!
//! ```text
//!  minimize   sum of w + time to compute r again
//!  q[i+1] >= q[i] + s[i]/B - (time of pass i+1 + w[i+1])        the link works while the next layer runs
//!  q[i] + s[i]/B <= passes and waits from i+1 to its release    a copy has ended when its bytes are needed
//!  bytes of layers before j, less what is away, and all of j <= budget        for each pass of each layer j
//!  sum of s <= budget of the host,   s[i] + r[i] <= bytes of layer i
//! ```
//!
//! Memo's program (section 4.1) is the case in which all layers have the same s, no w is allowed, and the points are
//! those of two buffers.

use girih_swap::Budgets;

use crate::decision::{Decision, Pattern};
use crate::problem::{Layer, Problem};
use crate::simplex::Lp;
use crate::timeline::{Places, peaks};

/// The cost of copying everything, as a part of the step: of two answers with the same time the one that copies less.
/// Late layers cost up to twice as much, and computing again as much more in early ones, so that equal layers have
/// equal answers in a row.
const COPY_COST: f64 = 1e-6;
/// Likewise of a backlog, so that none is there without need.
const BACKLOG_COST: f64 = 1e-9;

/// A program's answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Best {
    /// What becomes of each layer, rounded to bytes.
    pub decision: Decision,
    /// Microseconds that it takes longer than if everything stayed, by the program: waits, and what is computed again.
    pub extra_us: f64,
}

/// The best decision under a pattern; none if nothing keeps the budgets under it. Bytes are rounded, within the
/// budgets.
pub fn best(problem: &Problem, budgets: &Budgets, pattern: Pattern) -> Option<Best> {
    let solve = |gpu_margin: u64| {
        let mut program = Program::new(problem, pattern);
        program.forward();
        program.backward();
        program.memory(budgets.gpu.saturating_sub(gpu_margin));
        let host_margin = problem.layers.len() as u64;
        program.host(budgets.host.map(|host| host.saturating_sub(host_margin)));
        let optimum = program.lp.solve().ok()?;
        let values = &optimum.values;
        let best = Best { decision: program.decision(values), extra_us: program.extra_us(values) };
        Some((best, program.rounding()))
    };
    let keeps = |best: &Best| peaks(problem, &best.decision).0 <= budgets.gpu;
    let (best, margin) = solve(0)?;
    match keeps(&best) {
        true => Some(best),
        // Tiles are rounded up, and so are errors of rounding.
        false => solve(margin).map(|(best, _)| best).filter(keeps),
    }
}

/// Kinds of one layer that cost the same for each byte: they share a split.
struct Group {
    kinds: Vec<usize>,
    bytes: u64,
    /// Microseconds to compute all of it again.
    us: f64,
    is_tiled: bool,
    variable: usize,
}

struct Program<'a> {
    problem: &'a Problem,
    pattern: Pattern,
    places: Places,
    /// For each layer, the operators before which its copy out has ended, and its copy in may begin.
    release: Vec<usize>,
    fetch: Vec<usize>,
    lp: Lp,
    /// What a variable of 1 is: bytes, and microseconds.
    byte_unit: f64,
    us_unit: f64,
    groups: Vec<Vec<Group>>,
    swap: Vec<usize>,
    /// Waits for copies out before each forward pass, the head, and what follows it.
    forward_waits: Vec<usize>,
    /// Waits for copies in before each layer is computed again.
    backward_waits: Vec<usize>,
}

impl<'a> Program<'a> {
    fn new(problem: &'a Problem, pattern: Pattern) -> Program<'a> {
        let layers = problem.layers.len();
        let places = Places { layers };
        let most = problem.layers.iter().map(Layer::bytes).max().unwrap_or(0);
        let byte_unit = most.max(1) as f64;
        let passes = 2 * layers + 1;
        let us_unit = (problem.plain_us() / passes as f64).max(1e-6);
        let mut lp = Lp::default();
        let all = problem.skeletal_bytes().max(1) as f64 / byte_unit;
        let copy_cost = COPY_COST * passes as f64 / all;
        let of_layer = |layer: &Layer| layer.bytes() as f64 / byte_unit;
        let late = |index: usize| (index + 1) as f64 / layers as f64;
        let swap =
            problem.layers.iter().enumerate().map(|(index, layer)| {
                lp.variable(copy_cost * (1.0 + late(index)), of_layer(layer))
            });
        let swap = swap.collect();
        let groups = problem.layers.iter().enumerate().map(|(index, layer)| {
            let mut groups = groups(layer);
            for group in &mut groups {
                let bytes = group.bytes as f64 / byte_unit;
                let cost = group.us / us_unit / bytes + copy_cost * (1.0 - late(index));
                group.variable = lp.variable(cost, bytes);
            }
            groups
        });
        let groups = groups.collect();
        let mut waits =
            |count: usize| (0..count).map(|_| lp.variable(1.0, f64::INFINITY)).collect();
        let (forward_waits, backward_waits) = (waits(layers + 2), waits(layers));
        Program {
            problem,
            pattern,
            places,
            release: (0..layers).map(|layer| pattern.release(layer, places)).collect(),
            fetch: (0..layers).map(|layer| pattern.fetch(layer, places)).collect(),
            lp,
            byte_unit,
            us_unit,
            groups,
            swap,
            forward_waits,
            backward_waits,
        }
    }

    /// How many bytes the rounding of a decision may add to a pass.
    fn rounding(&self) -> u64 {
        let kinds = self.problem.layers.iter().map(|layer| layer.kinds.len() as u64 + 2);
        kinds.sum::<u64>() + (self.byte_unit * 1e-7) as u64
    }

    /// The time of a unit of bytes on a link, in units.
    fn copy(&self, rate: f64) -> f64 {
        self.byte_unit / rate / self.us_unit
    }

    /// The terms of computing a layer again, as time.
    fn remake_terms(&self, layer: usize, factor: f64) -> Vec<(usize, f64)> {
        let term = |group: &Group| {
            let bytes = group.bytes as f64 / self.byte_unit;
            (group.variable, factor * group.us / self.us_unit / bytes)
        };
        self.groups[layer].iter().map(term).collect()
    }

    fn forward(&mut self) {
        let layers = self.problem.layers.len();
        let copy = self.copy(self.problem.links.outward);
        let us = |layer: usize| self.problem.layers[layer].forward.us / self.us_unit;
        let head = self.problem.head.us / self.us_unit;
        let passes: Vec<f64> = (0..layers).map(us).chain([head]).collect();
        let mut backlog: Option<usize> = None;
        for layer in 0..layers {
            let before = backlog.map(|backlog| (backlog, 1.0));
            let queued: Vec<(usize, f64)> =
                before.into_iter().chain([(self.swap[layer], copy)]).collect();
            if layer + 1 < layers {
                let next = self.lp.variable(BACKLOG_COST, f64::INFINITY);
                let mut terms = queued.clone();
                terms.extend([(self.forward_waits[layer + 1], -1.0), (next, -1.0)]);
                self.lp.row(&terms, passes[layer + 1]);
                backlog = Some(next);
            }
            // The operators of the forward pass are numbered from 1.
            let release = self.release[layer] - 1;
            let mut terms = queued;
            terms.extend((layer + 1..=release).map(|at| (self.forward_waits[at], -1.0)));
            self.lp.row(&terms, passes[layer + 1..release].iter().sum());
        }
    }

    /// The time from one operator behind the head to another, as terms to be taken off a row, and a number.
    fn between(&self, from: usize, to: usize) -> (Vec<(usize, f64)>, f64) {
        let (mut terms, mut passes) = (Vec::new(), 0.0);
        for layer in 0..self.problem.layers.len() {
            if (from..to).contains(&self.places.remake(layer)) {
                terms.extend(self.remake_terms(layer, -1.0));
                terms.push((self.backward_waits[layer], -1.0));
            }
            if (from..to).contains(&self.places.backward(layer)) {
                passes += self.problem.layers[layer].backward.us / self.us_unit;
            }
        }
        (terms, passes)
    }

    fn backward(&mut self) {
        let layers = self.problem.layers.len();
        let copy = self.copy(self.problem.links.inward);
        let mut starts = self.fetch.clone();
        starts.sort_unstable();
        starts.dedup();
        let mut backlog: Option<usize> = None;
        for (number, &at) in starts.iter().enumerate() {
            let mut terms: Vec<(usize, f64)> = backlog.map(|it| (it, 1.0)).into_iter().collect();
            for layer in (0..layers).rev().filter(|&layer| self.fetch[layer] == at) {
                terms.push((self.swap[layer], copy));
                // What is computed again of it waits for it.
                let (until, passes) = self.between(at, self.places.remake(layer));
                let wait = (self.backward_waits[layer], -1.0);
                self.lp.row(&[&terms[..], &until, &[wait]].concat(), passes);
            }
            if let Some(&next_at) = starts.get(number + 1) {
                let next = self.lp.variable(BACKLOG_COST, f64::INFINITY);
                let (until, passes) = self.between(at, next_at);
                terms.extend(until);
                terms.push((next, -1.0));
                self.lp.row(&terms, passes);
                backlog = Some(next);
            }
        }
    }

    /// What is on the GPU in each pass is within the budget.
    fn memory(&mut self, budget: u64) {
        let Problem { layers, static_bytes, tiles, .. } = self.problem;
        let (count, places) = (layers.len(), self.places);
        let room = budget as f64 - *static_bytes as f64;
        let tiled = 1.0 - 1.0 / f64::from((*tiles).max(1));
        // Of the layers before one: what they keep, less what is computed again, less what is away.
        let earlier = |until: usize, op: usize| {
            let mut terms: Vec<(usize, f64)> = Vec::new();
            for layer in 0..until {
                terms.extend(self.groups[layer].iter().map(|group| (group.variable, -1.0)));
                if self.release[layer] <= op && op < self.fetch[layer] {
                    terms.push((self.swap[layer], -1.0));
                }
            }
            let bytes: u64 = layers[..until].iter().map(Layer::bytes).sum();
            (terms, bytes)
        };
        let mut rows: Vec<(Vec<(usize, f64)>, u64)> = Vec::new();
        for (own, layer) in layers.iter().enumerate() {
            let tiles = self.groups[own].iter().filter(|group| group.is_tiled);
            let tiles: Vec<_> = tiles.map(|group| (group.variable, -tiled)).collect();
            for (op, slot) in [
                (places.forward(own), layer.forward.bytes),
                // What is computed again is the forward pass again.
                (places.remake(own), layer.forward.bytes),
                (places.backward(own), layer.backward.bytes),
            ] {
                let (mut terms, bytes) = earlier(own, op);
                terms.extend(&tiles);
                rows.push((terms, bytes + layer.bytes() + slot));
            }
        }
        let (terms, bytes) = earlier(count, places.head());
        rows.push((terms, bytes + self.problem.head.bytes));
        rows.push((Vec::new(), self.problem.begin.bytes.max(self.problem.end.bytes)));
        for (terms, bytes) in rows {
            self.lp.row(&terms, (room - bytes as f64) / self.byte_unit);
        }
    }

    fn host(&mut self, budget: Option<u64>) {
        for (layer, &swap) in self.swap.iter().enumerate() {
            let mut terms = vec![(swap, 1.0)];
            terms.extend(self.groups[layer].iter().map(|group| (group.variable, 1.0)));
            let bytes = self.problem.layers[layer].bytes() as f64;
            self.lp.row(&terms, bytes / self.byte_unit);
        }
        if let Some(budget) = budget {
            let terms: Vec<(usize, f64)> = self.swap.iter().map(|&swap| (swap, 1.0)).collect();
            self.lp.row(&terms, budget as f64 / self.byte_unit);
        }
    }

    fn extra_us(&self, values: &[f64]) -> f64 {
        let waits = self.forward_waits.iter().chain(&self.backward_waits).map(|&it| values[it]);
        let layers = 0..self.problem.layers.len();
        let remakes = layers.flat_map(|layer| self.remake_terms(layer, 1.0));
        let remakes = remakes.map(|(variable, factor)| factor * values[variable]);
        waits.chain(remakes).sum::<f64>() * self.us_unit
    }

    /// Bytes are rounded so that more is computed again, never less, and no more goes than is left.
    fn decision(&self, values: &[f64]) -> Decision {
        let (mut remake, mut swap) = (Vec::new(), Vec::new());
        for (index, layer) in self.problem.layers.iter().enumerate() {
            let mut own = vec![0; layer.kinds.len()];
            for group in &self.groups[index] {
                let part = values[group.variable] * self.byte_unit / group.bytes as f64;
                // A part of a millionth is an error of rounding.
                let part = if part < 1e-7 { 0.0 } else { part };
                for &kind in &group.kinds {
                    let bytes = layer.kinds[kind].bytes;
                    own[kind] = ((bytes as f64 * part).ceil() as u64).min(bytes);
                }
            }
            let stored = layer.bytes() - own.iter().sum::<u64>();
            let goes = (values[self.swap[index]] * self.byte_unit).ceil() as u64;
            let is_nothing = (goes as f64) < self.byte_unit * 1e-7;
            swap.push(if is_nothing { 0 } else { goes.min(stored) });
            remake.push(own);
        }
        Decision::split(self.problem, self.pattern, &remake, &swap)
    }
}

/// The kinds of a layer that can be computed again, those together that cost the same for each byte.
fn groups(layer: &Layer) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (index, kind) in layer.kinds.iter().enumerate() {
        let Some(us) = kind.remake_us.filter(|_| kind.bytes > 0) else { continue };
        let cost = us / kind.bytes as f64;
        let is_same = |group: &&mut Group| {
            let own = group.us / group.bytes as f64;
            group.is_tiled == kind.is_tiled && (own - cost).abs() <= 1e-9 * own.max(cost)
        };
        match groups.iter_mut().find(is_same) {
            Some(group) => {
                group.kinds.push(index);
                group.bytes += kind.bytes;
                group.us += us;
            }
            None => groups.push(Group {
                kinds: vec![index],
                bytes: kind.bytes,
                us,
                is_tiled: kind.is_tiled,
                variable: 0,
            }),
        }
    }
    groups
}
