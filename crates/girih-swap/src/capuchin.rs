//! Capuchin's policy and its identity of tensors, as Chameleon's paper reports them (section 7.4).
//!
//! Tensors go by their free time, the time between the end of their copy out and the latest beginning of their copy
//! in, the longest first, until what is above the budget is covered. In later steps a tensor is known by the number
//! of the operator that makes it and its place among what that makes. One operator more or less before it, and it is
//! another tensor: the policy takes what it does not mean, and what it means is not where it looks for it.

use crate::execute::{Director, Execution, Leave, execute};
use crate::links::Links;
use crate::method::Budgets;
use crate::schedule::Schedule;
use crate::step::Step;

/// One tensor that goes, by operator numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Item {
    born: u32,
    nth: u32,
    bytes: u64,
    after: u32,
    fetch: u32,
}

/// What was made of one step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Policy {
    items: Vec<Item>,
}

/// The schedule of a step under its own policy.
pub fn plan(step: &Step, links: &Links, budgets: &Budgets) -> Schedule {
    Policy::of(step, links, budgets).execute(step, budgets).0.schedule
}

/// Which of those that its operator makes each tensor is.
fn nths(step: &Step) -> Vec<u32> {
    let nth = |(index, tensor): (usize, &crate::Tensor)| {
        let before = step.tensors[..index].iter().rev();
        before.take_while(|other| other.born == tensor.born).count() as u32
    };
    step.tensors.iter().enumerate().map(nth).collect()
}

impl Policy {
    /// Makes a policy from a step that was measured, operator by operator.
    pub fn of(step: &Step, links: &Links, budgets: &Budgets) -> Policy {
        let starts = step.starts();
        let free_us = |gap: u32| {
            let own = step.gaps[gap as usize];
            let idle = starts[own.before as usize] - starts[own.after as usize + 1];
            idle - links.round_trip_us(step.bytes(gap))
        };
        let mut order: Vec<u32> = (0..step.gaps.len() as u32).collect();
        order.sort_by(|&a, &b| free_us(b).total_cmp(&free_us(a)));
        let mut over: Vec<i64> =
            step.load.iter().map(|&load| load as i64 - budgets.gpu as i64).collect();
        let nths = nths(step);
        let mut items = Vec::new();
        for index in order {
            let gap = step.gaps[index as usize];
            let inside = gap.after as usize + 1..gap.before as usize;
            if over[inside.clone()].iter().all(|&bytes| bytes <= 0) {
                continue;
            }
            let bytes = step.bytes(index);
            over[inside].iter_mut().for_each(|over| *over -= bytes as i64);
            let due_us = starts[gap.before as usize] - bytes as f64 / links.inward;
            let fetch = Step::op_at(&starts, due_us.max(0.0)).clamp(gap.after + 2, gap.before);
            let (born, nth) = (step.tensors[gap.tensor as usize].born, nths[gap.tensor as usize]);
            items.push(Item { born, nth, bytes, after: gap.after, fetch });
        }
        Policy { items }
    }

    /// Runs a step under the policy. The operator at which it dies, if it does: it looks for a tensor, and there is
    /// none, or one of other bytes, or one that is in use.
    pub fn execute(&self, step: &Step, budgets: &Budgets) -> (Execution, Option<u32>) {
        let mut director = Follower { policy: self, step, nths: nths(step), gaps: Vec::new() };
        let execution = execute(step, budgets, &mut director);
        (execution, self.dies(step))
    }

    fn dies(&self, step: &Step) -> Option<u32> {
        let nths = nths(step);
        let is_there = |item: &&Item| {
            let tensors = step.gaps.iter().filter(|gap| gap.after == item.after).any(|gap| {
                let tensor = step.tensors[gap.tensor as usize];
                let nth = nths[gap.tensor as usize];
                (tensor.born, nth, tensor.bytes) == (item.born, item.nth, item.bytes)
            });
            !tensors
        };
        self.items.iter().filter(is_there).map(|item| item.after).min()
    }
}

struct Follower<'a> {
    policy: &'a Policy,
    step: &'a Step,
    nths: Vec<u32>,
    /// What went: the operator at which it is fetched, and the gap.
    gaps: Vec<(u32, u32)>,
}

impl Director for Follower<'_> {
    fn begins(&mut self, op: u32, fetch: &mut Vec<u32>, _go: &mut Vec<u32>) {
        fetch.extend(self.gaps.iter().filter(|gap| gap.0 == op).map(|gap| gap.1));
    }

    fn leaves(&mut self, gap: u32) -> Option<Leave> {
        let own = self.step.gaps[gap as usize];
        let name = (self.step.tensors[own.tensor as usize].born, self.nths[own.tensor as usize]);
        let known = |item: &&Item| (item.born, item.nth) == name && item.after == own.after;
        let item = self.policy.items.iter().find(known)?;
        self.gaps.push((item.fetch, gap));
        Some(Leave::default())
    }

    fn rank(&mut self, gap: u32, need: u64) -> i64 {
        self.step.bytes(gap).abs_diff(need) as i64
    }
}
