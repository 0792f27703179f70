//! How a search goes: which question it asks next, and which answer it tries first.
//!
//! None is best everywhere, and what one does not see for a million nodes another finds in a
//! thousand. So they take turns, with limits that grow.

use std::cmp::Reverse;

use super::model::{Model, mix};
use super::state::State;

/// Which section is asked for its bottom item. Ties go to the one with the least room to spare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Choice {
    /// The one with the fewest answers for its weight. A section becomes heavier whenever it
    /// fails, so that the search learns what is hard and decides that first.
    Weighted,
    /// The one with the fewest answers.
    Fewest,
}

/// Which item is tried first: the one that is largest by the first word, ties by the next. Load
/// is the largest of a section of its life; area is size times life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// Longest life first.
    LifeAreaLoad,
    /// Fullest section first, then largest area.
    LoadAreaLife,
    /// Fullest section first, then longest life.
    LoadLifeArea,
    /// Largest size first.
    SizeLifeArea,
}

/// One way to search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Strategy {
    pub(super) choice: Choice,
    pub(super) order: Order,
}

/// All of them, as they take turns.
pub(super) const STRATEGIES: [Strategy; 4] = [
    Strategy { choice: Choice::Weighted, order: Order::LifeAreaLoad },
    Strategy { choice: Choice::Fewest, order: Order::LoadAreaLife },
    Strategy { choice: Choice::Weighted, order: Order::LoadLifeArea },
    Strategy { choice: Choice::Fewest, order: Order::SizeLifeArea },
];

/// How far chance moves an item in the order, at most, as a part of all items. A tenth keeps what the order is
/// good for. It is not delicate: of 106 problems of `examples/tight.rs` half of that solves 75, that itself 73, twice
/// that 72, five times that 71.
const NOISE: f64 = 0.1;

impl Order {
    /// The ranks, with noise of a seed.
    pub(super) fn ranks_with_noise(self, model: &Model, state: &State<'_>, seed: u64) -> Vec<u32> {
        let ranks = self.ranks(model, state);
        let width = ranks.len() as f64 * NOISE;
        let noise = |item: usize| {
            let chance = mix(mix(seed) ^ item as u64) >> 32;
            f64::from(ranks[item]) + chance as f64 / 2f64.powi(32) * width
        };
        let mut order: Vec<usize> = (0..ranks.len()).collect();
        order.sort_by(|&a, &b| noise(a).total_cmp(&noise(b)).then(a.cmp(&b)));
        numbered(&order)
    }

    /// For each item the number of those that come before it.
    pub(super) fn ranks(self, model: &Model, state: &State<'_>) -> Vec<u32> {
        let largest = |item: usize| {
            let key = |size: u64, life: u64, load: u64| {
                let area = u128::from(size) * u128::from(life);
                let [size, life, load] = [size, life, load].map(u128::from);
                match self {
                    Order::LifeAreaLoad => [life, area, load],
                    Order::LoadAreaLife => [load, area, life],
                    Order::LoadLifeArea => [load, life, area],
                    Order::SizeLifeArea => [size, life, area],
                }
            };
            let load = |section: u32| state.sections[section as usize].load;
            let life = model.life(item);
            key(
                model.sizes[item],
                life.count() as u64,
                model.life(item).map(load).max().unwrap_or(0),
            )
        };
        let mut order: Vec<usize> = (0..model.sizes.len()).collect();
        order.sort_by_cached_key(|&item| (Reverse(largest(item)), item));
        numbered(&order)
    }
}

/// For each item its place in `order`.
fn numbered(order: &[usize]) -> Vec<u32> {
    let mut ranks = vec![0; order.len()];
    for (rank, item) in (0..).zip(order) {
        ranks[*item] = rank;
    }
    ranks
}
