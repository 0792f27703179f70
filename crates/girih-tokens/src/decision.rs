//! What becomes of every byte that layers keep, and when copies may begin and must have ended.

use crate::problem::{Layer, Problem, Role};
use crate::timeline::Places;

/// What becomes of one kind of one layer. The three parts add up to its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Bytes that stay on the GPU.
    pub keep: u64,
    /// Bytes that go to the host and come back.
    pub swap: u64,
    /// Bytes that are let go of and computed again.
    pub remake: u64,
}

/// What becomes of a step.
///
/// Copies out are queued as their layer's forward pass ends, in order. `release` and `fetch` name operators of the
/// [`timeline`](crate::timeline), not times, so that the bytes on the GPU are known whatever the copies take.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Decision {
    /// For each layer, one share for each of its kinds.
    pub shares: Vec<Vec<Share>>,
    /// For each layer, the operator before which its copy out has ended.
    pub release: Vec<usize>,
    /// For each layer, the operator before which its copy in may begin; not before `release`, and not after what is
    /// computed again of it.
    pub fetch: Vec<usize>,
    /// Bytes of buffers that are there all along for what layers keep, as Memo has two. None if each layer's bytes
    /// are taken and given back as they come and go.
    pub buffers: Option<u64>,
}

/// The distances by which copies may overlap with layers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Pattern {
    /// The copy out of layer i has ended before the forward pass of layer `i + out`; at least 1, with which nothing
    /// overlaps. Memo's two buffers are 2.
    pub out: usize,
    /// The copy in of layer i begins so many operators of the timeline before it is used, of which each layer has
    /// two: what is computed again, and its backward pass. 0 is no overlap. Memo: 2.
    pub inward: usize,
    /// Copies out may go on during the head.
    pub through_head: bool,
}

impl Pattern {
    /// Two rounding buffers, as Memo has them.
    pub const MEMO: Pattern = Pattern { out: 2, inward: 2, through_head: false };
    /// Nothing overlaps: the pattern with the fewest bytes on the GPU.
    pub const TIGHT: Pattern = Pattern { out: 1, inward: 0, through_head: false };

    /// The operator before which the copy out of this layer has ended.
    pub fn release(self, layer: usize, places: Places) -> usize {
        let last = places.head() + usize::from(self.through_head);
        places.forward(layer + self.out).min(last)
    }

    /// The operator before which the copy in of this layer may begin: behind the head, and where it has ended before.
    pub fn fetch(self, layer: usize, places: Places) -> usize {
        places.remake(layer).saturating_sub(self.inward).max(places.head() + 1)
    }
}

impl Decision {
    /// Everything stays.
    pub fn plain(problem: &Problem) -> Decision {
        let keep = |layer: &Layer| -> Vec<Share> {
            layer.kinds.iter().map(|kind| Share { keep: kind.bytes, ..Share::default() }).collect()
        };
        Decision::of(problem, Pattern::MEMO, problem.layers.iter().map(keep).collect())
    }

    /// Shares under a pattern.
    pub fn of(problem: &Problem, pattern: Pattern, shares: Vec<Vec<Share>>) -> Decision {
        let layers = problem.layers.len();
        let places = Places { layers };
        let release = |layer: usize| pattern.release(layer, places);
        let fetch = |layer: usize| pattern.fetch(layer, places);
        let (release, fetch) =
            ((0..layers).map(release).collect(), (0..layers).map(fetch).collect());
        Decision { shares, release, fetch, buffers: None }
    }

    /// Shares from what of each kind is computed again, and how many bytes of each layer go: the first kinds in
    /// order go first, the layer's input and attention's output before all others.
    pub fn split(
        problem: &Problem,
        pattern: Pattern,
        remake: &[Vec<u64>],
        swap: &[u64],
    ) -> Decision {
        let shares = problem.layers.iter().zip(remake).zip(swap);
        let shares = shares.map(|((layer, remake), &swap)| {
            let mut order: Vec<usize> = (0..layer.kinds.len()).collect();
            order.sort_by_key(|&kind| layer.kinds[kind].role == Role::Other);
            let mut shares = vec![Share::default(); layer.kinds.len()];
            let mut left = swap;
            for kind in order {
                let bytes = layer.kinds[kind].bytes;
                let remake = remake[kind].min(bytes);
                let swap = left.min(bytes - remake);
                left -= swap;
                shares[kind] = Share { keep: bytes - remake - swap, swap, remake };
            }
            shares
        });
        Decision::of(problem, pattern, shares.collect())
    }

    /// Bytes of a layer that stay, go, and are computed again.
    pub fn sums(&self, layer: usize) -> Share {
        self.shares[layer].iter().fold(Share::default(), |sum, share| Share {
            keep: sum.keep + share.keep,
            swap: sum.swap + share.swap,
            remake: sum.remake + share.remake,
        })
    }

    /// Microseconds that a layer's bytes take to be computed again.
    pub fn remake_us(&self, problem: &Problem, layer: usize) -> f64 {
        let parts = problem.layers[layer].kinds.iter().zip(&self.shares[layer]);
        let parts = parts.filter(|(kind, share)| share.remake > 0 && kind.bytes > 0);
        let us = parts.map(|(kind, share)| {
            kind.remake_us.unwrap_or(0.0) * share.remake as f64 / kind.bytes as f64
        });
        us.fold(0.0, |sum, us| sum + us)
    }

    /// Memo's alpha of a layer: of what is neither its input nor attention's output, the part that goes. 0 if there
    /// is nothing else.
    pub fn alpha(&self, problem: &Problem, layer: usize) -> f64 {
        let parts = problem.layers[layer].kinds.iter().zip(&self.shares[layer]);
        let others = parts.filter(|(kind, _)| kind.role == Role::Other);
        let (swap, bytes) =
            others.fold((0, 0), |sum, (kind, share)| (sum.0 + share.swap, sum.1 + kind.bytes));
        if bytes == 0 { 0.0 } else { swap as f64 / bytes as f64 }
    }
}
