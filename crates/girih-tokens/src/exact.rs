//! The best decision of a small step, by trying them all.
//!
//! Each layer's bytes are divided on a grid: so much is computed again, the cheapest kinds first, and of the rest so
//! much goes. For each division all schedules are tried (`girih_swap::exact`). The program's optimum lies between
//! the points of the grid, so that it may be better, but never by more than the grid is coarse.

use girih_swap::Budgets;
use girih_swap::exact::exact as best_schedule;

use crate::decision::{Decision, Pattern};
use crate::problem::{Layer, Problem};
use crate::timeline::run;

/// Into how many parts each layer's bytes are divided, for steps of so many layers. More than that takes too long.
pub const PARTS: [u64; 5] = [1, 8, 6, 3, 1];

/// The best decision on the grid; none if none keeps the budgets, or if there are too many layers.
pub fn plan(problem: &Problem, budgets: &Budgets) -> Option<Decision> {
    let parts = *PARTS.get(problem.layers.len())?;
    let mut search = Search { problem, budgets, parts, best: None };
    search.choose(&mut Vec::new());
    search.best.map(|(_, _, decision)| decision)
}

struct Search<'a> {
    problem: &'a Problem,
    budgets: &'a Budgets,
    parts: u64,
    best: Option<(f64, u64, Decision)>,
}

impl Search<'_> {
    fn choose(&mut self, chosen: &mut Vec<(u64, u64)>) {
        if chosen.len() == self.problem.layers.len() {
            return self.judge(chosen);
        }
        for remake in 0..=self.parts {
            for swap in 0..=self.parts {
                chosen.push((remake, swap));
                self.choose(chosen);
                chosen.pop();
            }
        }
    }

    fn judge(&mut self, chosen: &[(u64, u64)]) {
        let (mut remake, mut swap) = (Vec::new(), Vec::new());
        for (layer, &(again, goes)) in self.problem.layers.iter().zip(chosen) {
            let own = cheapest(layer, again, self.parts);
            let stored = layer.bytes() - own.iter().sum::<u64>();
            swap.push(stored * goes / self.parts);
            remake.push(own);
        }
        let mut decision = Decision::split(self.problem, Pattern::TIGHT, &remake, &swap);
        let ran = run(self.problem, &decision);
        let (links, layer_of) = (&self.problem.links, &ran.layer_of);
        let Some((schedule, us)) = best_schedule(&ran.step, links, self.budgets) else { return };
        let bytes = schedule.bytes(&ran.step);
        let is_better = self
            .best
            .as_ref()
            .is_none_or(|best| us < best.0 - 1e-9 || (us <= best.0 + 1e-9 && bytes < best.1));
        if !is_better {
            return;
        }
        let mut goes = vec![false; self.problem.layers.len()];
        for away in &schedule.away {
            let layer = layer_of[away.gap as usize];
            goes[layer] = true;
            decision.release[layer] = away.release as usize;
            decision.fetch[layer] = away.fetch as usize;
        }
        for (shares, _) in decision.shares.iter_mut().zip(goes).filter(|(_, goes)| !goes) {
            for share in shares {
                share.keep += std::mem::take(&mut share.swap);
            }
        }
        self.best = Some((us, bytes, decision));
    }
}

/// So many parts of what of a layer can be computed again, the cheapest bytes first.
fn cheapest(layer: &Layer, part: u64, parts: u64) -> Vec<u64> {
    let remakable = |kind: &usize| layer.kinds[*kind].remake_us.is_some();
    let mut order: Vec<usize> = (0..layer.kinds.len()).filter(remakable).collect();
    let cost = |kind: usize| {
        let kind = &layer.kinds[kind];
        kind.remake_us.unwrap_or(0.0) / kind.bytes.max(1) as f64
    };
    order.sort_by(|&a, &b| cost(a).total_cmp(&cost(b)));
    let mut left = order.iter().map(|&kind| layer.kinds[kind].bytes).sum::<u64>() * part / parts;
    let mut remake = vec![0; layer.kinds.len()];
    for kind in order {
        remake[kind] = left.min(layer.kinds[kind].bytes);
        left -= remake[kind];
    }
    remake
}
