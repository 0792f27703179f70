//! The best schedule of a small step, by trying them all.
//!
//! All schedules are tried in which copies out are queued at once, in any choice of gaps and of operators before
//! which they come back, and in any order of those that come back at one operator. To wait later for a copy out is
//! never worse, so that is not tried.

use crate::links::Links;
use crate::settle::{Item, settle};
use crate::simulate::simulate;
use crate::step::Step;
use crate::{Budgets, Schedule};

/// The schedule with the shortest step, and of several the one that copies least; none if no schedule keeps the
/// budgets. Exponential in the gaps: for some five of them and a dozen operators.
pub fn exact(step: &Step, links: &Links, budgets: &Budgets) -> Option<(Schedule, f64)> {
    let mut search = Search { step, links, budgets, items: Vec::new(), best: None };
    search.choose(0);
    search.best
}

struct Search<'a> {
    step: &'a Step,
    links: &'a Links,
    budgets: &'a Budgets,
    items: Vec<Item>,
    best: Option<(Schedule, f64)>,
}

impl Search<'_> {
    fn choose(&mut self, gap: u32) {
        let Some(own) = self.step.gaps.get(gap as usize).copied() else { return self.judge() };
        self.choose(gap + 1);
        for fetch in own.after + 2..=own.before {
            self.items.push(Item { gap, fetch });
            self.choose(gap + 1);
            self.items.pop();
        }
    }

    fn judge(&mut self) {
        let Ok(mut schedule) = settle(self.step, self.budgets.gpu, &self.items) else { return };
        // Those that are used first come back first, where they are fetched at one operator.
        schedule.away.sort_by_key(|away| {
            let gap = self.step.gaps[away.gap as usize];
            (away.leave, gap.before, away.gap)
        });
        if self.budgets.host.is_some_and(|host| schedule.host_peak(self.step) > host) {
            return;
        }
        let us = simulate(self.step, self.links, &schedule).step_us;
        let bytes = schedule.bytes(self.step);
        let is_better = self.best.as_ref().is_none_or(|(best, best_us)| {
            us < best_us - 1e-9 || (us <= best_us + 1e-9 && bytes < best.bytes(self.step))
        });
        if is_better {
            self.best = Some((schedule, us));
        }
    }
}
