//! What goes at least where tensors go whole.
//!
//! During an operator some bytes must be away, of tensors that lie idle then. Each of them is away or it is not, so
//! what is away is a sum of some of their sizes:
//!
//! ```text
//!  must be away   |------------------|
//!  tensors        |-----|-----|-----|-----|      three do not do: four are away
//! ```
//!
//! Sizes are counted in units that divide them all; where that would be too many units, in coarser ones, rounded down,
//! and a sum may then be more by a unit for each tensor.

use crate::step::Step;

/// Units in what must be away, at most.
const UNITS_MAX: u64 = 1 << 16;

/// For each operator, the least bytes that are away during it in any schedule within the budget: the least sum of
/// idle tensors' sizes that is no less than what is above the budget.
pub(crate) fn away_at_least(step: &Step, budget: u64) -> Vec<u64> {
    let (mut begins, mut ends) =
        (vec![Vec::new(); step.ops.len() + 1], vec![Vec::new(); step.ops.len() + 1]);
    for (index, gap) in (0u32..).zip(&step.gaps) {
        begins[gap.after as usize + 1].push(step.bytes(index));
        ends[gap.before as usize].push(step.bytes(index));
    }
    // Sizes of the tensors that lie idle, with how many there are of each.
    let mut idle = std::collections::BTreeMap::<u64, u64>::new();
    let mut sums = Sums::default();
    let mut known: Option<(u64, u64)> = None;
    let ops = step.load.iter().zip(begins.iter().zip(&ends));
    let least = ops.map(|(load, (begins, ends))| {
        for &bytes in begins {
            *idle.entry(bytes).or_default() += 1;
        }
        for bytes in ends {
            if let Some(count) = idle.get_mut(bytes) {
                *count -= 1;
                if *count == 0 {
                    idle.remove(bytes);
                }
            }
        }
        known = known.filter(|_| begins.is_empty() && ends.is_empty());
        let need = load.saturating_sub(budget);
        if need == 0 {
            return 0;
        }
        match known {
            Some((of, least)) if of == need => least,
            _ => {
                let least = sums.least(&idle, need);
                known = Some((need, least));
                least
            }
        }
    });
    least.collect()
}

/// Sums of sizes, a bit for each number of units.
#[derive(Default)]
struct Sums {
    words: Vec<u64>,
    before: Vec<u64>,
}

impl Sums {
    /// The least sum that is no less than `need`, or a little below that; `need` if they are less together.
    fn least(&mut self, sizes: &std::collections::BTreeMap<u64, u64>, need: u64) -> u64 {
        let Some((&smallest, _)) = sizes.first_key_value() else { return need };
        // Where the smallest is next to nothing, sums come in steps of next to nothing.
        let common = sizes.keys().copied().fold(0, common_divisor);
        let unit = common.max(need.div_ceil(UNITS_MAX)).max(1);
        let count: u64 = sizes.values().sum();
        // So much more than its units a sum may be.
        let error = if unit == common { 0 } else { count.min(need / smallest.max(1) + 1) };
        if error * unit >= smallest {
            return need;
        }
        let from = (need.div_ceil(unit)).saturating_sub(error);
        let largest = sizes.last_key_value().map_or(0, |(size, _)| size / unit);
        let width = (from + largest + 1) as usize;
        self.words.clear();
        self.words.resize(width.div_ceil(64), 0);
        self.words[0] = 1;
        for (&size, &count) in sizes {
            // Any number of them up to `count`: by halves, so that equal tensors cost little.
            let (units, mut left, mut part) = (size / unit, count, 1);
            while left > 0 {
                let now = part.min(left);
                self.add(units.saturating_mul(now));
                (left, part) = (left - now, 2 * part);
            }
        }
        let found =
            (from..width as u64).find(|&sum| self.words[sum as usize / 64] >> (sum % 64) & 1 == 1);
        found.map_or(need, |sum| (sum * unit).max(need))
    }

    /// One more summand.
    fn add(&mut self, units: u64) {
        let (skip, shift) = ((units / 64) as usize, units % 64);
        if skip >= self.words.len() {
            return;
        }
        self.before.clear();
        self.before.extend_from_slice(&self.words);
        for at in skip..self.words.len() {
            let low = self.before[at - skip] << shift;
            let high = match (at - skip).checked_sub(1) {
                Some(below) if shift > 0 => self.before[below] >> (64 - shift),
                _ => 0,
            };
            self.words[at] |= low | high;
        }
    }
}

fn common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}

#[cfg(test)]
mod tests {
    use girih_trace::generate::{Chance, Rng};

    use super::*;

    #[test]
    fn the_least_sum_is_that_of_all_subsets_or_a_little_less() {
        let mut rng = Rng::new(3);
        let (mut exact, mut above) = (0, 0);
        for round in 0..400 {
            // Some sizes have a large divisor, some none.
            let scale = [1, 1000, 1 << 20, (1 << 20) + 1][round % 4];
            let odd = if round % 8 < 4 { 0 } else { 1 };
            let sizes: Vec<u64> = (0..1 + rng.below(9))
                .map(|_| (1 + rng.below(30)) * scale + odd * rng.below(7))
                .collect();
            let whole: u64 = sizes.iter().sum();
            let need = 1 + rng.below(whole);
            let subsets = (0..1u32 << sizes.len()).map(|bits| {
                let chosen = sizes.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1);
                chosen.map(|(_, size)| size).sum::<u64>()
            });
            let wanted = subsets.filter(|&sum| sum >= need).min().expect("all of them do");
            let mut counted = std::collections::BTreeMap::new();
            sizes.iter().for_each(|&size| *counted.entry(size).or_default() += 1);
            let least = Sums::default().least(&counted, need);
            assert!(need <= least && least <= wanted, "{sizes:?}, {need}: {least}, {wanted}");
            exact += u32::from(least == wanted);
            above += u32::from(least > need);
        }
        assert!(exact > 200 && above > 150, "{exact} exact, {above} above what is needed");
    }
}
