//! Windows of any width, all of them at once.
//!
//! Of what operator `p` needs away, all must go out or come in within a window around it but what lies idle throughout the window:
//!
//! ```text
//!             l ............... p ..................... r
//!  a    |-----------------------------------------------------|      neither
//!  b          |-----------------------------------------------|      out before p
//!  c    |-----------------------------------------|                  in after p
//! ```
//!
//! Out before `p` and in after it do not run at once, so the window lasts as long as one link needs for both. `p` may
//! be `l` or `r` itself.
//!
//! Windows end at one operator after the other. Of each beginning is known what the best window from there to here
//! is worth: where a tensor is used again it ceases to lie idle throughout those that began in its gap, and where an operator
//! needs more than any before it, so do all windows from before it. Both are sums over ranges of beginnings, in a tree.

use crate::step::Step;

/// The best windows up to an operator that moves on.
pub(crate) struct Reach<'a> {
    /// Bytes a microsecond.
    rate: f64,
    needs: &'a [u64],
    /// Bytes that can be copied until each operator begins.
    until: &'a [f64],
    idle: Vec<u64>,
    /// For each operator the gaps that end with it: the first beginning within each, and its bytes.
    ends: Vec<Vec<(u32, u64)>>,
    /// Bytes by beginnings: what a window from there must copy, and what the best chain up to there has waited; less what can be
    /// copied until then.
    worth: Tree,
    /// What is needed at most from each beginning on: ranges of beginnings that have it in common, by where they begin, falling.
    most: Vec<(u32, u64)>,
}

impl<'a> Reach<'a> {
    /// `until` has an entry more than the step has operators.
    pub(crate) fn new(step: &Step, needs: &'a [u64], until: &'a [f64], rate: f64) -> Reach<'a> {
        let mut ends = vec![Vec::new(); step.ops.len() + 1];
        for (index, gap) in (0u32..).zip(&step.gaps) {
            ends[gap.before as usize].push((gap.after + 1, step.bytes(index)));
        }
        let worth = Tree::new(step.ops.len());
        Reach { rate, needs, until, idle: step.idle(), ends, worth, most: Vec::new() }
    }

    /// How long operators wait up to `to`, with a window that ends there: by the best of all beginnings. Each operator
    /// from 0 on is asked for once, then begun from.
    pub(crate) fn until(&mut self, to: u32) -> f64 {
        for &(first, bytes) in &self.ends[to as usize] {
            self.worth.add(first, to, bytes as f64);
        }
        let need = self.needs.get(to as usize).copied().unwrap_or(0);
        let mut end = to;
        while let Some(&(first, least)) = self.most.last()
            && least < need
        {
            self.worth.add(first, end, (need - least) as f64);
            (end, _) = (first, self.most.pop());
        }
        if end < to {
            self.most.push((end, need));
        }
        (self.worth.most() - self.until[to as usize]) / self.rate
    }

    /// Windows begin at `from` too from now on; up to there operators wait for so long.
    pub(crate) fn begin(&mut self, from: u32, waited_us: f64) {
        let at = from as usize;
        let must = self.needs[at] as f64 - self.idle[at] as f64;
        self.worth.set(from, waited_us * self.rate + self.until[at + 1] + must);
        self.most.push((from, self.needs[at]));
    }
}

/// Numbers in a row, to ranges of which others are added, and the most of all.
struct Tree {
    /// A power of two.
    leaves: usize,
    /// The most below each node, what is added to all below it included; leaves behind the rest.
    most: Vec<f64>,
    /// What is added to all below each node.
    added: Vec<f64>,
}

impl Tree {
    /// So many numbers, none of which is known yet.
    fn new(count: usize) -> Tree {
        let leaves = count.next_power_of_two();
        Tree { leaves, most: vec![f64::NEG_INFINITY; 2 * leaves], added: vec![0.0; leaves] }
    }

    fn most(&self) -> f64 {
        self.most[1]
    }

    fn set(&mut self, at: u32, value: f64) {
        let leaf = self.leaves + at as usize;
        let mut above = leaf / 2;
        let mut added = 0.0;
        while above > 0 {
            added += self.added[above];
            above /= 2;
        }
        self.most[leaf] = value - added;
        self.count(leaf);
    }

    /// Adds to those of `from..to`.
    fn add(&mut self, from: u32, to: u32, value: f64) {
        if from >= to {
            return;
        }
        let (first, last) = (self.leaves + from as usize, self.leaves + to as usize - 1);
        let (mut begin, mut end) = (first, last + 1);
        while begin < end {
            if begin % 2 == 1 {
                self.apply(begin, value);
                begin += 1;
            }
            if end % 2 == 1 {
                end -= 1;
                self.apply(end, value);
            }
            (begin, end) = (begin / 2, end / 2);
        }
        self.count(first);
        self.count(last);
    }

    fn apply(&mut self, node: usize, value: f64) {
        self.most[node] += value;
        if node < self.leaves {
            self.added[node] += value;
        }
    }

    /// Counts the most of the nodes above one anew.
    fn count(&mut self, node: usize) {
        let mut node = node / 2;
        while node > 0 {
            self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]) + self.added[node];
            node /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use girih_trace::generate::{Chance, Rng};

    use super::*;
    use crate::step::{Gap, Op, Tensor};

    #[test]
    fn the_best_window_is_that_of_all_beginnings_and_operators_within() {
        let mut rng = Rng::new(5);
        let mut waits = 0;
        for _ in 0..300 {
            let count = 3 + rng.below(20) as u32;
            let mut step = Step { ops: vec![Op::default(); count as usize], ..Step::default() };
            step.load = vec![0; count as usize];
            for tensor in 0..rng.below(12) as u32 {
                let after = rng.below(u64::from(count) - 2) as u32;
                let before = after + 2 + rng.below(u64::from(count - after) - 2) as u32;
                let bytes = 1 + rng.below(9);
                step.tensors.push(Tensor { request: tensor, bytes, born: after, last: before });
                step.gaps.push(Gap { tensor, after, before });
            }
            step.gaps.sort_unstable();
            let needs: Vec<u64> = step.idle().iter().map(|&idle| rng.below(idle + 1)).collect();
            let sums = (0..=count)
                .scan(0.0, |sum, _| Some(std::mem::replace(sum, *sum + rng.below(9) as f64)));
            let until: Vec<f64> = sums.collect();
            let rate = 4.0;
            let mut reach = Reach::new(&step, &needs, &until, rate);
            let mut best = vec![0.0f64; count as usize + 1];
            for to in 0..=count {
                let own = reach.until(to);
                let wanted = (0..to).map(|from| {
                    let gaps = step.gaps.iter().zip(0u32..);
                    let idle = gaps.filter(|(gap, _)| gap.after < from && gap.before > to);
                    let idle: u64 = idle.map(|(_, gap)| step.bytes(gap)).sum();
                    let most = needs[from as usize..needs.len().min(to as usize + 1)].iter().max();
                    let must = *most.unwrap() as f64 - idle as f64;
                    let copied = until[to as usize] - until[from as usize + 1];
                    best[from as usize] + (must - copied) / rate
                });
                let wanted = wanted.fold(f64::NEG_INFINITY, f64::max);
                let is_same = own == wanted || (own - wanted).abs() < 1e-9;
                assert!(is_same, "{own} {wanted}: {step:?}, {needs:?}, {to}");
                let before = (to as usize).checked_sub(1).map_or(0.0, |before| best[before]);
                best[to as usize] = before.max(own);
                waits += u32::from(own > before);
                if to < count {
                    reach.begin(to, best[to as usize]);
                }
            }
        }
        assert!(waits > 500, "{waits} windows wait");
    }
}
