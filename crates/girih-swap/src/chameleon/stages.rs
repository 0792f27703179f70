//! Algorithm 1: the stages. The light mode sees the sequence of operators and nothing else.

use rustc_hash::FxHashMap;

/// Steps that must be alike before policies are made (`m`; section 7.1).
pub const WARM_UP_STEPS: u32 = 2;
/// Steps in which policies are made (`n`).
pub const POLICY_STEPS: u32 = 5;
/// Sequences are the same if their lengths differ by less than this part.
const LENGTH_PART: f64 = 0.05;
/// And if the cosine between them is above this.
const COSINE_MIN: f64 = 0.95;

/// What the profiler does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stage {
    /// It watches; memory that runs out is met by swapping passively.
    #[default]
    WarmUp,
    /// It makes a policy from each step and runs it in the next.
    GenPolicy,
    /// The fastest policy is used.
    Stable,
}

/// The state of Algorithm 1.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Stages {
    stage: Stage,
    stable_steps: u32,
    previous: Option<Sequence>,
}

/// A sequence of operators: how often each comes. The cosine of unequal lengths is not specified; that of histograms
/// has a meaning for any.
#[derive(Clone, PartialEq, Debug)]
struct Sequence {
    length: usize,
    counts: FxHashMap<u64, f64>,
}

impl Sequence {
    fn of(keys: &[u64]) -> Sequence {
        let mut counts: FxHashMap<u64, f64> = FxHashMap::default();
        keys.iter().for_each(|&key| *counts.entry(key).or_default() += 1.0);
        Sequence { length: keys.len(), counts }
    }

    fn is_like(&self, other: &Sequence) -> bool {
        let longer = self.length.max(other.length) as f64;
        let differs = self.length.abs_diff(other.length) as f64;
        let norm =
            |it: &Sequence| it.counts.values().map(|count| count * count).sum::<f64>().sqrt();
        let product = self.counts.iter();
        let product: f64 =
            product.map(|(key, count)| count * other.counts.get(key).unwrap_or(&0.0)).sum();
        let cosine = product / (norm(self) * norm(other)).max(f64::MIN_POSITIVE);
        differs < LENGTH_PART * longer.max(1.0) && cosine > COSINE_MIN
    }
}

impl Stages {
    /// The stage.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// A step has run these operators. The stage of the next one.
    pub fn observe(&mut self, keys: &[u64]) -> Stage {
        let sequence = Sequence::of(keys);
        let is_same = self.previous.as_ref().is_none_or(|before| before.is_like(&sequence));
        if is_same {
            self.stable_steps += 1;
            if self.stage == Stage::WarmUp && self.stable_steps > WARM_UP_STEPS {
                (self.stage, self.stable_steps) = (Stage::GenPolicy, 0);
            } else if self.stage == Stage::GenPolicy && self.stable_steps > POLICY_STEPS {
                self.stage = Stage::Stable;
            }
        } else {
            (self.stage, self.stable_steps) = (Stage::WarmUp, 0);
        }
        self.previous = Some(sequence);
        self.stage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_follow_each_other_and_start_over_when_the_sequence_changes() {
        use Stage::{GenPolicy, Stable, WarmUp};
        let train: Vec<u64> = (0..100).map(|k| k % 7).collect();
        let longer: Vec<u64> = (0..104).map(|k| k % 7).collect();
        let validated: Vec<u64> = (0..106).map(|k| k % 7).collect();
        let other: Vec<u64> = (0..100).map(|k| k % 7 + 40).collect();
        let mut stages = Stages::default();
        let mut run = |keys: &[u64], count: usize| -> Vec<Stage> {
            (0..count).map(|_| stages.observe(keys)).collect()
        };
        assert_eq!(run(&train, 3), [WarmUp, WarmUp, GenPolicy]);
        assert_eq!(run(&train, 6), [GenPolicy, GenPolicy, GenPolicy, GenPolicy, GenPolicy, Stable]);
        assert_eq!(run(&longer, 2), [Stable, Stable], "less than 5 % longer");
        assert_eq!(run(&train, 1), [Stable]);
        assert_eq!(run(&validated, 1), [WarmUp], "more than 5 % longer");
        assert_eq!(run(&validated, 3), [WarmUp, WarmUp, GenPolicy]);
        assert_eq!(run(&other, 1), [WarmUp], "as long, and something else");
    }
}
