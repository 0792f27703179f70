//! A step with operators put together between which nothing that matters happens.
//!
//! ```text
//!  operators   | . . . | . | . . . . . |        | a gap begins or ends
//!  slots       |   0   | 1 |     2     |
//! ```
//!
//! The operator of a slot that holds the most is a slot of its own, so what must be away by then is due when it begins
//! and not earlier. A slot takes the time of its operators, and holds the most of them: a schedule of the slots is one
//! of the operators.

use rustc_hash::FxHashMap;

use crate::schedule::{Away, Schedule};
use crate::settle::{Item, Items, settle};
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
        Coarse::with(fine, keep, true)
    }

    /// Likewise, but only the operators that hold the most need their bytes: whatever runs within the budget on the
    /// fine step does on this one.
    pub(crate) fn relaxed(fine: &Step, keep: impl Fn(u32) -> bool) -> Coarse {
        Coarse::with(fine, keep, false)
    }

    fn with(fine: &Step, keep: impl Fn(u32) -> bool, counts_all: bool) -> Coarse {
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
        let most = split_at_most(fine, &mut is_first);
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
            if counts_all || most[op as usize] {
                step.load[slot] = step.load[slot].max(fine.load[op as usize]);
            }
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

    /// The operators of each slot.
    pub(crate) fn slots(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        self.firsts.windows(2).map(|pair| pair[0] as usize..pair[1] as usize)
    }

    /// The schedule of the operators, with bytes let go of as late as each operator allows.
    pub(crate) fn refine(&self, fine: &Step, budget: u64, schedule: &Schedule) -> Schedule {
        let items = schedule.away.iter().map(|away| Item {
            gap: self.gaps[away.gap as usize],
            fetch: self.firsts[away.fetch as usize],
        });
        let mut items: Vec<Item> = items.collect();
        items.sort_by_key(|item| item.gap);
        let mut refined = settle(fine, budget, &Items::of(items)).unwrap_or_default();
        // Copies out that were put off are queued when the last operator of their slot has ended. On the fine step
        // bytes are let go of no earlier, so that is before.
        let leave =
            |away: &Away| (self.gaps[away.gap as usize], self.firsts[away.leave as usize + 1] - 1);
        let put_off: FxHashMap<u32, u32> = schedule.away.iter().map(leave).collect();
        for away in &mut refined.away {
            let leave = put_off.get(&away.gap).copied().unwrap_or(away.leave);
            away.leave = leave.clamp(away.leave, away.release - 1);
        }
        refined
    }
}

/// Lets the operator that holds the most between two first ones, and the one behind it, be first ones too. Which
/// hold the most.
fn split_at_most(fine: &Step, is_first: &mut [bool]) -> Vec<bool> {
    let mut most = vec![false; is_first.len()];
    let mut begin = 0;
    for end in 1..=is_first.len() {
        if end < is_first.len() && !is_first[end] {
            continue;
        }
        let highest = (begin..end).max_by_key(|&op| (fine.load[op], end - op)).unwrap_or(begin);
        most[highest] = true;
        is_first[highest] = true;
        if highest + 1 < end {
            is_first[highest + 1] = true;
        }
        begin = end;
    }
    most
}
