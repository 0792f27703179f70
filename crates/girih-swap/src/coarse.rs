//! A step with operators put together between which nothing that matters happens.
//!
//! ```text
//!  operators   | . . . | . | . . . . . |        | a gap begins or ends
//!  slots       |   0   | 1 |     2     |
//! ```
//!
//! A slot takes the time of its operators, and holds the most of them. A schedule of the slots is one of the
//! operators: what is free in a slot is free in each of its operators.

use crate::schedule::{Away, Schedule};
use crate::step::{Gap, Op, Step};

pub(crate) struct Coarse {
    pub(crate) step: Step,
    /// The first operator of each slot, and last the number of operators.
    firsts: Vec<u32>,
    /// For each gap of `step`, the gap of the fine step.
    gaps: Vec<u32>,
}

impl Coarse {
    /// A step without the gaps that `keep` refuses.
    pub(crate) fn of(fine: &Step, keep: impl Fn(u32) -> bool) -> Coarse {
        let gaps: Vec<u32> = (0..fine.gaps.len() as u32).filter(|&gap| keep(gap)).collect();
        let mut is_first = vec![false; fine.ops.len()];
        if let Some(first) = is_first.first_mut() {
            *first = true;
        }
        for &gap in &gaps {
            let gap = fine.gaps[gap as usize];
            is_first[gap.after as usize + 1] = true;
            is_first[gap.before as usize] = true;
        }
        let mut slot_of = Vec::with_capacity(fine.ops.len());
        let mut firsts = Vec::new();
        let mut step = Step { tensors: fine.tensors.clone(), ..Step::default() };
        for (op, &is_first) in (0u32..).zip(&is_first) {
            if is_first {
                firsts.push(op);
                step.ops.push(Op { us: 0.0, ..fine.ops[op as usize] });
                step.load.push(0);
            }
            let slot = firsts.len() - 1;
            step.ops[slot].us += fine.ops[op as usize].us;
            step.load[slot] = step.load[slot].max(fine.load[op as usize]);
            slot_of.push(slot as u32);
        }
        let slot = |op: u32| slot_of[op as usize];
        step.gaps = gaps
            .iter()
            .map(|&gap| fine.gaps[gap as usize])
            .map(|Gap { tensor, after, before }| Gap {
                tensor,
                after: slot(after + 1) - 1,
                before: slot(before),
            })
            .collect();
        firsts.push(fine.ops.len() as u32);
        Coarse { step, firsts, gaps }
    }

    /// The schedule of the operators.
    pub(crate) fn refine(&self, fine: &Step, schedule: &Schedule) -> Schedule {
        let away = schedule.away.iter().map(|away| {
            let gap = self.gaps[away.gap as usize];
            let leave = self.firsts[away.leave as usize + 1] - 1;
            let (release, fetch) =
                (self.firsts[away.release as usize], self.firsts[away.fetch as usize]);
            debug_assert!(fine.gaps[gap as usize].after <= leave);
            Away { gap, leave, release, fetch }
        });
        Schedule { away: away.collect() }
    }
}
