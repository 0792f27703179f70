//! The memory reduction list and the candidate list (sections 5.2 and 5.3).

use crate::step::Step;

/// `C` of Eq. 2, which the paper does not say.
const SIZE_WEIGHT: f64 = 1.0;
/// A candidate is large enough from this part of the peak on; the paper does not say.
const SIZE_PART: u64 = 4096;

/// The MRL: for each operator, the bytes above the limit.
pub fn reductions(step: &Step, budget: u64) -> Vec<u64> {
    step.load.iter().map(|load| load.saturating_sub(budget)).collect()
}

/// The CL: gaps that overlap what is above the limit and are large enough, by descending score
/// (Eq. 2). In eager training these lie between the last forward and the first backward use.
pub fn candidates(step: &Step, reduce: &[u64], chosen: &[bool]) -> Vec<u32> {
    let mut entries = vec![0u32; reduce.len() + 1];
    for (op, &bytes) in reduce.iter().enumerate() {
        entries[op + 1] = entries[op] + u32::from(bytes > 0);
    }
    let least = step.peak() / SIZE_PART;
    let count = |gap: u32| {
        let gap = step.gaps[gap as usize];
        entries[gap.before as usize] - entries[gap.after as usize + 1]
    };
    let is_large = |&gap: &u32| !chosen[gap as usize] && step.bytes(gap) >= least;
    let all = (0..step.gaps.len() as u32).filter(is_large);
    let mut list: Vec<u32> = all.filter(|&gap| count(gap) > 0).collect();
    let most_entries = list.iter().map(|&gap| count(gap)).max().unwrap_or(1).max(1);
    let most_bytes = list.iter().map(|&gap| step.bytes(gap)).max().unwrap_or(1).max(1);
    let score = |gap: u32| {
        f64::from(count(gap)) / f64::from(most_entries)
            + SIZE_WEIGHT * (step.bytes(gap) as f64 / most_bytes as f64)
    };
    list.sort_by(|&a, &b| score(b).total_cmp(&score(a)).then(a.cmp(&b)));
    list
}
