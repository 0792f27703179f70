//! The least bytes that go out, or come in, in a window.
//!
//! Each operator of a window needs some bytes away. What went before the window costs it nothing, so all of that is taken to
//! be away. For the rest operators are walked in order, and where one still needs some, bytes go of the tensor that
//! stays away the longest:
//!
//! ```text
//!  needs      2    3    1    4
//!  a (2)   |---------------|             2 of a for the first, and 1 of b for the second, which does for the third
//!  b (3)        |------------------|
//!  c (3)             |-------------|     2 more of b and 1 of c for the fourth: 6 in all
//! ```
//!
//! Tensors may be cut into bytes here. That it is the least: some byte that is away during the operator must be added, and
//! the one that stays away the longest does for all later operators what any other would. What comes in is the same
//! from the other end.

use std::collections::BinaryHeap;

use crate::step::Step;

/// A step as a window sees it, from the one end or the other.
pub(crate) struct Flow {
    needs: Vec<u64>,
    /// For each place at which gaps begin: where they end, and their bytes. In order from the end that counts.
    begins: Vec<Vec<(u32, u64)>>,
}

impl Flow {
    /// What goes out: operators in their order.
    pub(crate) fn outward(step: &Step, needs: &[u64]) -> Flow {
        let mut begins = vec![Vec::new(); step.ops.len() + 1];
        for (index, gap) in (0u32..).zip(&step.gaps) {
            begins[gap.after as usize + 1].push((gap.before, step.bytes(index)));
        }
        Flow { needs: needs.to_vec(), begins }
    }

    /// What comes in: operators from the last one on, and gaps that begin where their tensors are used again.
    pub(crate) fn inward(step: &Step, needs: &[u64]) -> Flow {
        let count = step.ops.len() as u32;
        let mut begins = vec![Vec::new(); step.ops.len() + 1];
        for (index, gap) in (0u32..).zip(&step.gaps) {
            begins[(count - gap.before) as usize].push((count - 1 - gap.after, step.bytes(index)));
        }
        Flow { needs: needs.iter().rev().copied().collect(), begins }
    }

    /// For each of `ends`, ascending, the least bytes of gaps that begin at `from` or later, of those that operators up
    /// to the end, exclusively, need away. O(n log n).
    pub(crate) fn least(&self, from: u32, ends: &[u32]) -> Vec<u64> {
        let count = self.needs.len();
        // Bytes of gaps that cost nothing, or were taken; what ends at each operator is no longer away there.
        let mut away = 0u64;
        let mut over = vec![0u64; count + 1];
        for begins in &self.begins[..(from as usize).min(count)] {
            for &(end, bytes) in begins.iter().filter(|(end, _)| *end > from) {
                away += bytes;
                over[end as usize] += bytes;
            }
        }
        let mut open: BinaryHeap<(u32, u64)> = BinaryHeap::new();
        let mut taken = 0;
        let mut op = from as usize;
        let until = |&end: &u32| {
            while op < count.min(end as usize) {
                away -= over[op];
                open.extend(&self.begins[op]);
                while away < self.needs[op]
                    && let Some((end, bytes)) = open.pop()
                {
                    if end as usize <= op {
                        // Those that are left end earlier still.
                        open.clear();
                        break;
                    }
                    let part = bytes.min(self.needs[op] - away);
                    (away, taken) = (away + part, taken + part);
                    over[end as usize] += part;
                    if part < bytes {
                        open.push((end, bytes - part));
                    }
                }
                op += 1;
            }
            taken
        };
        ends.iter().map(until).collect()
    }
}

#[cfg(test)]
mod tests {
    use girih_trace::generate::{Chance, Rng};

    use super::*;
    use crate::step::{Gap, Op, Tensor};

    /// A step of up to six operators and four gaps of a few bytes, and what its operators need away.
    fn small(rng: &mut Rng) -> (Step, Vec<u64>) {
        let ops = 4 + rng.below(3) as u32;
        let mut step = Step { ops: vec![Op::default(); ops as usize], ..Step::default() };
        step.load = vec![0; ops as usize];
        for tensor in 0..1 + rng.below(4) as u32 {
            let after = rng.below(u64::from(ops) - 2) as u32;
            let before = after + 2 + rng.below(u64::from(ops - after) - 2) as u32;
            let bytes = 1 + rng.below(3);
            step.tensors.push(Tensor { request: tensor, bytes, born: after, last: before });
            step.gaps.push(Gap { tensor, after, before });
        }
        step.gaps.sort_unstable();
        // Gaps are sorted, tensors are as they were.
        let needs = step.idle().into_iter().map(|idle| rng.below(idle + 1)).collect();
        (step, needs)
    }

    /// The least bytes of the gaps for which `costs`, of all ways to have bytes away.
    fn brute(
        step: &Step,
        needs: &[u64],
        ops: std::ops::Range<u32>,
        costs: impl Fn(&Gap) -> bool,
    ) -> u64 {
        let count = step.gaps.len() as u32;
        let ways: u64 = (0..count).map(|gap| step.bytes(gap) + 1).product();
        let least = (0..ways).filter_map(|mut way| {
            let mut bytes = Vec::new();
            for gap in 0..count {
                bytes.push(way % (step.bytes(gap) + 1));
                way /= step.bytes(gap) + 1;
            }
            let of = |counts: &dyn Fn(&Gap) -> bool| -> u64 {
                let gaps = step.gaps.iter().zip(&bytes);
                gaps.filter(|(gap, _)| counts(gap)).map(|(_, bytes)| bytes).sum()
            };
            let does = ops.clone().all(|op| of(&|gap| gap.covers(op)) >= needs[op as usize]);
            does.then(|| of(&|gap| costs(gap)))
        });
        least.min().expect("all that is idle does")
    }

    #[test]
    fn the_least_is_that_of_all_ways_in_every_window_and_both_directions() {
        let mut rng = Rng::new(11);
        let mut some = 0;
        for _ in 0..300 {
            let (step, needs) = small(&mut rng);
            let ops = step.ops.len() as u32;
            let (out, inward) = (Flow::outward(&step, &needs), Flow::inward(&step, &needs));
            for from in 0..ops {
                let ends: Vec<u32> = (from..=ops).collect();
                // Out: of gaps that begin with `from` or later, for operators below the end.
                for (&end, least) in ends.iter().zip(out.least(from, &ends)) {
                    let wanted = brute(&step, &needs, from..end, |gap| gap.after + 1 >= from);
                    assert_eq!(least, wanted, "{step:?}, {needs:?}, {from}..{end}");
                    some += u32::from(least > 0);
                }
                // In: of gaps that end by `to`, for operators from the beginning on.
                let to = ops - from;
                for (&end, least) in ends.iter().zip(inward.least(from, &ends)) {
                    let wanted = brute(&step, &needs, ops - end..to, |gap| gap.before <= to);
                    assert_eq!(least, wanted, "{step:?}, {needs:?}, {}..{to}", ops - end);
                }
            }
        }
        assert!(some > 1000, "{some} windows need something");
    }
}
