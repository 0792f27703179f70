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
//! and a sum may then be more by a unit for each tensor; tensors that are next to nothing may be cut there.

use crate::step::Step;

/// Units in what must be away, at most.
const UNITS_MAX: u64 = 1 << 16;
/// What is less than this part of what must be away is next to nothing.
const SMALL_MIN: u64 = 64;

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
                let sizes = idle.iter().map(|(&size, &count)| (size, count));
                let least = sums.least(sizes, need, UNITS_MAX);
                known = Some((need, least));
                least
            }
        }
    });
    least.collect()
}

/// Sums of sizes, a bit for each number of units.
#[derive(Default)]
pub(crate) struct Sums {
    words: Vec<u64>,
    before: Vec<u64>,
}

impl Sums {
    /// The least sum that is no less than `need`, or a little below that but not below `need`; `need` if they are less
    /// together. `sizes` ascending, each with how many there are of it.
    ///
    /// Where there would be more than `units_max` units, those that are next to nothing beside `need` may add up to
    /// anything that they are together; of the others every sum is tried. The least that is enough by itself does, if no sum of smaller ones is less.
    pub(crate) fn least(
        &mut self,
        sizes: impl Iterator<Item = (u64, u64)> + Clone,
        need: u64,
        units_max: u64,
    ) -> u64 {
        let common = sizes.clone().fold(0, |common, (size, _)| common_divisor(common, size));
        if let Some(least) = multiple(sizes.clone(), need, common) {
            return least;
        }
        // Where all sums can be told apart none is cut.
        let is_fine = need > common.saturating_mul(units_max);
        let small_max = if is_fine { need / SMALL_MIN } else { 0 };
        let is_small = |size: u64| size < small_max;
        let small = sizes.clone().filter(|&(size, _)| is_small(size));
        let small: u64 = small.map(|(size, count)| size * count).sum();
        if small >= need {
            return need;
        }
        let alone = sizes.clone().map(|(size, _)| size).find(|&size| size >= need);
        let parts = sizes.filter(|&(size, _)| !is_small(size) && size < need);
        let (mut whole, mut count, mut smallest) = (small, 0, need);
        for (size, own) in parts.clone() {
            (whole, count, smallest) = (whole + size * own, count + own, smallest.min(size));
        }
        if whole < need {
            return alone.unwrap_or(need);
        }
        let common = parts.clone().fold(0, |common, (size, _)| common_divisor(common, size));
        let unit = common.max(need.div_ceil(units_max)).max(1);
        // So many units more than it is counted with a sum may be.
        let error = if unit == common { 0 } else { count.min(need / smallest + 1) };
        let from = (need - small).div_ceil(unit).saturating_sub(error);
        // No sum that is needed is twice as much: each summand is less than what is needed.
        let width = (2 * need / unit + 2) as usize;
        self.words.clear();
        self.words.resize(width.div_ceil(64), 0);
        self.words[0] = 1;
        for (size, count) in parts {
            // Any number of them up to `count`: by halves, so that equal tensors cost little.
            let (units, mut left, mut part) = (size / unit, count, 1);
            while left > 0 {
                let now = part.min(left);
                self.add(units.saturating_mul(now));
                (left, part) = (left - now, 2 * part);
            }
        }
        let found = self.first(from as usize).map_or(need, |sum| (sum as u64 * unit).max(need));
        alone.map_or(found, |alone| alone.min(found))
    }

    /// The first sum from `from` units on.
    fn first(&self, from: usize) -> Option<usize> {
        let (at, bit) = (from / 64, from % 64);
        let own = self.words.get(at)? >> bit << bit;
        if own != 0 {
            return Some(64 * at + own.trailing_zeros() as usize);
        }
        let next = (at + 1..self.words.len()).find(|&at| self.words[at] != 0)?;
        Some(64 * next + self.words[next].trailing_zeros() as usize)
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

/// The least sum if every multiple of what divides all sizes is one, up to what is needed: where no size leaves a gap behind the
/// sums of smaller ones. `sizes` ascending.
fn multiple(sizes: impl Iterator<Item = (u64, u64)>, need: u64, common: u64) -> Option<u64> {
    let mut whole = 0u64;
    for (size, count) in sizes {
        if size > whole + common {
            return None;
        }
        whole += size * count;
        if whole >= need {
            return Some(need.next_multiple_of(common.max(1)));
        }
    }
    None
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
            let mut counted = std::collections::BTreeMap::<u64, u64>::new();
            sizes.iter().for_each(|&size| *counted.entry(size).or_default() += 1);
            let counted = counted.iter().map(|(&size, &count)| (size, count));
            let units_max = [1 << 16, 1 << 9][round / 8 % 2];
            let least = Sums::default().least(counted, need, units_max);
            assert!(need <= least && least <= wanted, "{sizes:?}, {need}: {least}, {wanted}");
            exact += u32::from(least == wanted);
            above += u32::from(least > need);
        }
        assert!(exact > 200 && above > 150, "{exact} exact, {above} above what is needed");
    }
}
