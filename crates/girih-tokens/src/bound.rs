//! A time that no decision can beat.
//!
//! During each pass some bytes must not be on the GPU: they have been copied out since the first layer's forward
//! pass, they come back before its backward pass, or they are computed again. However the bytes are chosen, R of
//! them computed again take at least what the cheapest R take, and the others take their time on the links:
//!
//! ```text
//!  begin F0 |---- S/B out, or the passes ----| pass |---- S/B in, or the passes ----| B0 end      S = missing - R
//! ```
//!
//! The bound is the least over R of the largest over all passes. It is convex in R.

use girih_swap::Budgets;

use crate::problem::{Layer, Problem};

/// Microseconds that no decision within these budgets can beat.
pub fn bound(problem: &Problem, budgets: &Budgets) -> f64 {
    let relaxed = Relaxed::new(problem, budgets.gpu);
    let (mut low, mut high) = (relaxed.least_remade(budgets.host), relaxed.most_remade());
    // A convex function on a range: thirds until the range is a millionth.
    for _ in 0..100 {
        let (left, right) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        match relaxed.us(left) <= relaxed.us(right) {
            true => high = right,
            false => low = left,
        }
    }
    // What is left of the range may hide no more than its slope allows; the times are never negative.
    relaxed.us(low).min(relaxed.us(high)).min(relaxed.us(low.midpoint(high)))
}

/// A pass during which bytes are missing.
struct Cut {
    /// Bytes that are above the budget when everything is there.
    missing: f64,
    /// Of them, those that may be computed again.
    remakable: f64,
    /// Microseconds of the passes from this one to the end of its half.
    rest_us: f64,
}

struct Relaxed<'a> {
    problem: &'a Problem,
    /// Forward passes and the head; the head and backward passes.
    forward: Vec<Cut>,
    backward: Vec<Cut>,
    /// What can be computed again: bytes and microseconds, the cheapest first.
    remakes: Vec<(f64, f64)>,
}

impl<'a> Relaxed<'a> {
    fn new(problem: &'a Problem, budget: u64) -> Relaxed<'a> {
        let Problem { layers, tiles, .. } = problem;
        let tiled = 1.0 - 1.0 / f64::from((*tiles).max(1));
        let remakable = |layer: &Layer| {
            let kinds = layer.kinds.iter().filter(|kind| kind.remake_us.is_some());
            kinds.map(|kind| kind.bytes as f64).sum::<f64>()
        };
        let in_tiles = |layer: &Layer| {
            let kinds = layer.kinds.iter().filter(|kind| kind.is_tiled && kind.remake_us.is_some());
            kinds.map(|kind| kind.bytes as f64).sum::<f64>() * tiled
        };
        let over = problem.static_bytes as f64 - budget as f64;
        let (mut forward, mut backward) = (Vec::new(), Vec::new());
        let (mut bytes, mut again) = (0.0, 0.0);
        for (index, layer) in layers.iter().enumerate() {
            let own = layer.bytes() as f64;
            let cut = |slot: u64, rest_us: f64| Cut {
                missing: over + bytes + own + slot as f64,
                remakable: again + in_tiles(layer),
                rest_us,
            };
            let rest = layers[index..].iter().map(|layer| layer.forward.us).sum();
            let done = layers[index..].iter().map(|layer| layer.backward.us).sum();
            // Before the first layer nothing can have gone.
            if index > 0 {
                forward.push(cut(layer.forward.bytes, rest));
                backward.push(cut(layer.backward.bytes, done));
            }
            bytes += own;
            again += remakable(layer);
        }
        let head = || Cut {
            missing: over + bytes + problem.head.bytes as f64,
            remakable: again,
            rest_us: 0.0,
        };
        forward.push(head());
        backward.push(head());
        let kinds = layers.iter().flat_map(|layer| &layer.kinds);
        let mut remakes: Vec<(f64, f64)> = kinds
            .filter(|kind| kind.bytes > 0)
            .filter_map(|kind| Some((kind.bytes as f64, kind.remake_us?)))
            .collect();
        remakes.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
        Relaxed { problem, forward, backward, remakes }
    }

    fn most_remade(&self) -> f64 {
        self.remakes.iter().map(|remake| remake.0).sum()
    }

    /// Bytes that must be computed again because the host does not hold them.
    fn least_remade(&self, host: Option<u64>) -> f64 {
        let Some(host) = host else { return 0.0 };
        let cuts = self.forward.iter().chain(&self.backward);
        let least = cuts.map(|cut| (cut.missing - host as f64).min(cut.remakable));
        least.fold(0.0, f64::max)
    }

    /// The bound when so many bytes are computed again.
    fn us(&self, remade: f64) -> f64 {
        let Problem { layers, links, begin, head, end, .. } = self.problem;
        let (Some(first), forward, backward) = (
            layers.first(),
            layers.iter().map(|layer| layer.forward.us).sum::<f64>(),
            layers.iter().map(|layer| layer.backward.us).sum::<f64>(),
        ) else {
            return self.problem.plain_us();
        };
        let copied = |cut: &Cut| (cut.missing - remade.min(cut.remakable)).max(0.0);
        let out = |cut: &Cut| first.forward.us + copied(cut) / links.outward + cut.rest_us;
        let back = |cut: &Cut| cut.rest_us + copied(cut) / links.inward + first.backward.us;
        let until_head = self.forward.iter().map(out).fold(forward, f64::max);
        let from_head = self.backward.iter().map(back);
        let from_head = from_head.fold(backward + self.remake_us(remade), f64::max);
        begin.us + until_head + head.us + from_head + end.us
    }

    /// Microseconds of the cheapest so many bytes.
    fn remake_us(&self, mut bytes: f64) -> f64 {
        let mut us = 0.0;
        for &(all, all_us) in &self.remakes {
            let part = bytes.min(all);
            us += all_us * part / all;
            bytes -= part;
        }
        us
    }
}
