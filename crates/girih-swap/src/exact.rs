//! The best schedule of a small step, by trying them all.
//!
//! All schedules are tried in any choice of gaps, of operators before which they come back, and of operators after which
//! their copies out are queued. To wait later for a copy out is never worse, so that is not tried. A copy out that is put
//! off is of use only to a copy in that is waited for: what goes before it is let go of before it, so the link out has no
//! less to do by then. Where none is waited for none is put off.

use crate::links::Links;
use crate::settle::{Item, Items, settle};
use crate::simulate::{Direction, simulate};
use crate::step::Step;
use crate::{Budgets, Schedule};

/// The schedule with the shortest step, and of several the one that copies least; none if no schedule keeps the
/// budgets. Exponential in the gaps: for some four of them and nine operators.
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
        let items = Items::of(self.items.clone());
        let Ok(mut schedule) = settle(self.step, self.budgets.gpu, &items) else { return };
        // Those that are used first come back first, where they are fetched at one operator.
        schedule.away.sort_by_key(|away| {
            let gap = self.step.gaps[away.gap as usize];
            (away.leave, gap.before, away.gap)
        });
        self.put_off(&mut schedule, 0);
    }

    /// Judges it with every choice of operators after which the copies out from the `first` on are queued.
    fn put_off(&mut self, schedule: &mut Schedule, first: usize) {
        let run = simulate(self.step, self.links, schedule);
        self.keep(schedule, run.step_us);
        if !run.stalls.iter().any(|stall| stall.direction == Direction::In) {
            return;
        }
        for at in first..schedule.away.len() {
            let own = schedule.away[at];
            for leave in own.leave + 1..own.release {
                schedule.away[at].leave = leave;
                self.put_off(schedule, at + 1);
            }
            schedule.away[at].leave = own.leave;
        }
    }

    fn keep(&mut self, schedule: &Schedule, us: f64) {
        if self.budgets.host.is_some_and(|host| schedule.host_peak(self.step) > host) {
            return;
        }
        let bytes = schedule.bytes(self.step);
        let is_better = self.best.as_ref().is_none_or(|(best, best_us)| {
            us < best_us - 1e-9 || (us <= best_us + 1e-9 && bytes < best.bytes(self.step))
        });
        if is_better {
            self.best = Some((schedule.clone(), us));
        }
    }
}
