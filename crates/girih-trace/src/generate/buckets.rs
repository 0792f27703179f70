//! The trace of a run whose steps come in several kinds: batches of one of a few sizes, as images in buckets of
//! resolutions.
//!
//! A step finds the gradients of the one before and frees them; its batch takes the place of the one before; it
//! leaves both to the next, which may be of any other kind.

use super::builder::{Builder, Live};
use super::chance::{Chance, Rng};
use crate::event::{PoolId, StackId, StreamId};
use crate::mark::MarkKind;
use crate::trace::Trace;

/// The shape of a run in buckets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buckets {
    /// Kinds of steps: the batch of kind `k` has `k + 2` parts of so many as the largest.
    pub kinds: u32,
    /// Steps.
    pub steps: u32,
    /// Layers of the model.
    pub layers: u32,
    /// Bytes of a layer's weights.
    pub weights: u64,
    /// Bytes of a layer's activations in a step of the largest kind.
    pub activations: u64,
}

impl Default for Buckets {
    /// A run of 40 steps of four kinds, with 1.2 GiB in use.
    fn default() -> Buckets {
        Buckets { kinds: 4, steps: 40, layers: 12, weights: 8 << 20, activations: 56 << 20 }
    }
}

/// The trace of a run in buckets. The seed says which kind each step is of; the first is of the largest.
pub fn buckets(shape: &Buckets, seed: u64) -> Trace {
    let Buckets { kinds, steps, layers, weights, activations } = *shape;
    let mut rng = Rng::new(seed);
    let mut builder = Builder::new(0, "generated");
    let alloc = |builder: &mut Builder, size: u64| {
        builder.alloc(size, StreamId(0), PoolId::DEFAULT, StackId::NONE)
    };
    for _ in 0..layers {
        alloc(&mut builder, weights);
    }
    let (mut gradients, mut batch): (Vec<Live>, Option<Live>) = (Vec::new(), None);
    for step in 0..steps {
        builder.mark(MarkKind::Step, &step);
        let kind = if step == 0 { kinds - 1 } else { rng.below(u64::from(kinds)) as u32 };
        let share = |bytes: u64| (bytes * u64::from(kind + 2) / u64::from(kinds + 1)).max(1);
        let next = alloc(&mut builder, share(activations / 4));
        batch.replace(next).into_iter().for_each(|old| builder.free(old));
        gradients.drain(..).for_each(|old| builder.free(old));
        // An image that is smaller is made so in more passes.
        for _ in 0..2 * layers * (kinds - 1 - kind) {
            let resized = alloc(&mut builder, share(activations / 2));
            builder.free(resized);
        }
        let mut kept = Vec::new();
        for _ in 0..layers {
            let wide = alloc(&mut builder, share(2 * activations));
            kept.push(alloc(&mut builder, share(activations)));
            builder.free(wide);
        }
        for activation in kept.into_iter().rev() {
            let scratch = alloc(&mut builder, share(activations) + weights);
            gradients.push(alloc(&mut builder, weights));
            builder.free(activation);
            builder.free(scratch);
        }
        if step == 0 {
            builder.mark(MarkKind::Optimizer, &"adam");
            for _ in 0..2 * layers {
                alloc(&mut builder, weights);
            }
        }
    }
    builder.trace
}
