//! How much smaller a batch would have to be.
//!
//! A run that dies within its first forward pass has not shown what it needs. But its weights show
//! how many layers it has, and its lines how many have run:
//!
//! ```text
//!  weights      | embed | layer | layer | layer | layer | head |        4 alike
//!  activations          | ##### | ##### |#                              2 done
//! ```
//!
//! What activations will have needed in all is what they need now, times layers by layers done.

use rustc_hash::FxHashMap;

use girih_trace::Lifetimes;

use crate::category::Category;
use crate::frames::{Doing, Stacks};

/// Lines that leave less than one part in so many of the activations say nothing of layers.
const SMALL_PART: u64 = 50;

/// How many times what the activations have now they will have had at the end of the forward pass:
/// 1 if it is over, or if that cannot be told. `alive` are the requests alive at the refused one,
/// with what each is for; `doing` is what the program was doing then.
pub fn still_to_come(
    lives: &Lifetimes,
    stacks: &Stacks,
    alive: &[u32],
    categories: &[Category],
    doing: Doing,
) -> f64 {
    if doing != Doing::Forward {
        return 1.0;
    }
    let of = |wanted: Category| {
        let all = alive.iter().zip(categories);
        all.filter(move |(_, category)| **category == wanted)
            .map(|(&index, _)| &lives.requests[index as usize])
    };
    // Of the sizes of weights those that matter; each layer has each of them once or a few times.
    let mut sizes: FxHashMap<u64, u64> = FxHashMap::default();
    of(Category::Weights).for_each(|life| *sizes.entry(life.size).or_default() += 1);
    // An embedding and a head may be alike too.
    let layers = fewest(sizes.iter().map(|(&size, &count)| (size * count, count)), 2);
    let mut lines: FxHashMap<&str, (u64, u64)> = FxHashMap::default();
    for life in of(Category::Activations) {
        if let Some(told) = stacks.get(life.stack) {
            let (bytes, count) = lines.entry(&told.line).or_default();
            (*bytes, *count) = (*bytes + life.size, *count + 1);
        }
    }
    let done = fewest(lines.into_values(), 1);
    match (layers, done) {
        (Some(layers), Some(done)) if layers > done => layers as f64 / done as f64,
        _ => 1.0,
    }
}

/// The least count above `least`, of those with bytes that matter.
fn fewest(counted: impl Iterator<Item = (u64, u64)>, least: u64) -> Option<u64> {
    let counted: Vec<(u64, u64)> = counted.collect();
    let all: u64 = counted.iter().map(|(bytes, _)| bytes).sum();
    let matter = counted.iter().filter(|(bytes, count)| *count > least && bytes * SMALL_PART > all);
    matter.map(|&(_, count)| count).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layers_are_those_weights_that_are_alike_and_matter() {
        // Sizes in all and counts: two embeddings, eight layers with one wide and two narrow
        // weights.
        let weights = [(20, 2), (80, 8), (60, 16), (1, 17)];
        assert_eq!(fewest(weights.into_iter(), 2), Some(8));
        assert_eq!(fewest([(100, 1), (100, 2)].into_iter(), 2), None);
    }
}
