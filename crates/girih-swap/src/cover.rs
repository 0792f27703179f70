//! Which gaps go: enough of them that every operator keeps the budget.

use crate::links::Links;
use crate::step::Step;

/// What is preferred of several gaps that would do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// The longest idle time beyond its own copies.
    Idle,
    /// The most bytes x time above the budget that it takes away, for its copy time.
    Relief,
    /// Used again last.
    Before,
    /// Idle first.
    After,
}

impl By {
    pub(crate) const ALL: [By; 4] = [By::Idle, By::Before, By::After, By::Relief];
}

/// Gaps in the order of preference, and how covers are made of them.
pub(crate) struct Cover<'a> {
    step: &'a Step,
    budget: u64,
    /// For each operator, the gaps that begin to cover it and those that cease to.
    begins: Vec<Vec<u32>>,
    /// The score of each gap by each preference; higher is better.
    scores: [Vec<f64>; 4],
}

impl<'a> Cover<'a> {
    pub(crate) fn new(step: &'a Step, links: &Links, budget: u64) -> Cover<'a> {
        let starts = step.starts();
        let mut over_us = vec![0.0; step.ops.len() + 1];
        for (op, own) in step.ops.iter().enumerate() {
            let us = if step.load[op] > budget { own.us } else { 0.0 };
            over_us[op + 1] = over_us[op] + us;
        }
        let mut begins = vec![Vec::new(); step.ops.len() + 1];
        let mut scores: [Vec<f64>; 4] = Default::default();
        for (index, gap) in (0u32..).zip(&step.gaps) {
            begins[gap.after as usize + 1].push(index);
            let (first, end) = (gap.after as usize + 1, gap.before as usize);
            let trip = links.round_trip_us(step.bytes(index));
            let idle = starts[end] - starts[first] - trip;
            // Who cannot hide its own copies comes last, by whatever preference.
            let late = if idle < 0.0 { -1e15 } else { 0.0 };
            scores[By::Idle as usize].push(idle + late);
            scores[By::Relief as usize].push(over_us[end] - over_us[first] - trip + late);
            scores[By::Before as usize].push(starts[end] + late);
            scores[By::After as usize].push(late - starts[first]);
        }
        Cover { step, budget, begins, scores }
    }

    /// Adds gaps to `chosen` until every operator keeps the budget, or as far as that goes. Operators are walked in
    /// order; where one has too much, the best gap of those that cover it is taken. `headroom` bytes below the budget
    /// are kept free besides where that can be: room into which what comes back can come before something else has
    /// gone. `noise` is added to a score, scaled by the time of the step.
    pub(crate) fn complete(
        &self,
        chosen: &mut [bool],
        by: By,
        headroom: u64,
        mut noise: impl FnMut() -> f64,
    ) {
        let budget = self.budget.saturating_sub(headroom);
        let scores = &self.scores[by as usize];
        let scale = self.step.us();
        // The best first.
        let mut open: std::collections::BinaryHeap<(Ordered, u32)> = Default::default();
        let mut gone = 0u64;
        let mut ends = vec![0u64; self.step.ops.len() + 1];
        for op in 0..self.step.ops.len() {
            gone -= ends[op];
            for &gap in &self.begins[op] {
                if chosen[gap as usize] {
                    gone += self.step.bytes(gap);
                    ends[self.step.gaps[gap as usize].before as usize] += self.step.bytes(gap);
                } else {
                    let score = scores[gap as usize] + noise() * scale;
                    open.push((Ordered(score), gap));
                }
            }
            while self.step.load[op].saturating_sub(gone) > budget {
                let Some((_, gap)) = open.pop() else { break };
                let before = self.step.gaps[gap as usize].before as usize;
                if before > op {
                    chosen[gap as usize] = true;
                    gone += self.step.bytes(gap);
                    ends[before] += self.step.bytes(gap);
                }
            }
        }
    }
}

/// A score with a total order.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Ordered(f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Ordered) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Ordered) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}
