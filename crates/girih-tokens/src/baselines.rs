//! What is commonly done, as points of the same space: everything stays, everything is computed again, whole tensors
//! go.

use girih_swap::Budgets;

use crate::decision::{Decision, Pattern, Share};
use crate::memo;
use crate::problem::{Layer, Problem, Role};
use crate::timeline::peaks;

/// Full recomputation: a layer's input stays, all else is computed again, attention too.
pub fn recompute(problem: &Problem) -> Decision {
    let remake = problem.layers.iter().map(|layer| remakable(layer).collect::<Vec<_>>());
    let swap = vec![0; problem.layers.len()];
    Decision::split(problem, Pattern::MEMO, &remake.collect::<Vec<_>>(), &swap)
}

/// The step as a program runs it that computes all layers again: attention is no more than its part of the forward pass
/// there, and a layer that keeps a copy of its input has its input beside it.
pub fn recomputed(problem: &Problem) -> Problem {
    let mut problem = problem.clone();
    for layer in &mut problem.layers {
        let attention = layer.kinds.iter_mut().filter(|kind| kind.role == Role::Attention);
        attention.for_each(|kind| kind.remake_us = kind.remake_us.or(Some(0.0)));
        layer.forward.bytes += layer.copied;
        layer.backward.bytes += layer.copied;
    }
    problem
}

/// Full swapping: everything goes but the last two layers, over two buffers (Memo, section 5.3).
pub fn swap(problem: &Problem) -> Decision {
    memo::at(problem, 1.0)
}

/// Whole tensors go, none is computed again, as in Chameleon and other schedulers of tensors: those of the first
/// layers first, of a layer the largest first, as many as it takes until the rest fits.
pub fn whole_tensors(problem: &Problem, budgets: &Budgets) -> Decision {
    let mut order: Vec<(usize, usize)> = Vec::new();
    for (layer, own) in problem.layers.iter().enumerate() {
        let mut kinds: Vec<usize> = (0..own.kinds.len()).collect();
        kinds.sort_by_key(|&kind| std::cmp::Reverse(own.kinds[kind].bytes));
        order.extend(kinds.into_iter().map(|kind| (layer, kind)));
    }
    let first = |count: usize| {
        let mut decision = Decision::plain(problem);
        for &(layer, kind) in &order[..count] {
            let share = &mut decision.shares[layer][kind];
            *share = Share { swap: share.keep, ..Share::default() };
        }
        decision
    };
    // What more goes never takes more bytes.
    let (mut low, mut high) = (0, order.len());
    while low < high {
        let middle = low.midpoint(high);
        match peaks(problem, &first(middle)).0 <= budgets.gpu {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    first(low)
}

/// The decision with the fewest bytes on the GPU: all that can be is computed again, and of the rest as much goes as
/// the host holds, from the first layers, with nothing else beside a layer's passes. If this does not fit, nothing
/// does: in every pass it holds the least that can be held then.
pub fn least(problem: &Problem, host: Option<u64>) -> Decision {
    let mut left = host.unwrap_or(u64::MAX);
    let (mut remake, mut swap) = (Vec::new(), Vec::new());
    for layer in &problem.layers {
        let own: Vec<u64> = remakable(layer).collect();
        let goes = left.min(layer.bytes() - own.iter().sum::<u64>());
        left -= goes;
        remake.push(own);
        swap.push(goes);
    }
    Decision::split(problem, Pattern::TIGHT, &remake, &swap)
}

/// For each kind of a layer, the bytes that can be computed again.
fn remakable(layer: &Layer) -> impl Iterator<Item = u64> {
    layer.kinds.iter().map(|kind| kind.remake_us.map_or(0, |_| kind.bytes))
}
