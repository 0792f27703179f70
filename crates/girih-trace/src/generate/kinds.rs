//! Traces of programs of other kinds than the training of one model: what is large at once, how long it lives and what
//! varies differ from kind to kind.

use super::builder::{Builder, Live};
use super::chance::{Chance, Rng};
use crate::event::{PoolId, StackId, StreamId};
use crate::mark::MarkKind;
use crate::trace::Trace;

const MIB: u64 = 1 << 20;

/// A kind of program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Reinforcement learning: answers of any length are written first, with caches that are copied as they grow, and
    /// learnt from then.
    Rollouts,
    /// A detector: images of a few sizes, and proposals of which there are as many as chance will have it.
    Detector,
    /// A model whose layers are gathered on a stream of their own, one ahead, and whose gradients go from another.
    Gathered,
    /// A recommender: few large tables, sparse gradients of any size, and an optimizer that works on copies.
    Sparse,
    /// Two models of different sizes that are trained in turns, with an evaluation now and then.
    Turns,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] =
        [Kind::Rollouts, Kind::Detector, Kind::Gathered, Kind::Sparse, Kind::Turns];
}

/// The trace of a program of a kind. It takes a few GiB at `scale` 1, and so many times as much at others.
pub fn program(kind: Kind, scale: u64, steps: u32, seed: u64) -> Trace {
    let mut builder = Builder::new(0, "generated");
    builder.trace.streams = vec![0, 1, 2];
    let mut run = Run { builder, rng: Rng::new(seed), scale };
    let weights = match kind {
        Kind::Sparse => vec![400 * MIB, 700 * MIB, 300 * MIB],
        Kind::Turns => [vec![16 * MIB; 24], vec![5 * MIB; 30]].concat(),
        Kind::Rollouts | Kind::Detector | Kind::Gathered => vec![24 * MIB; 24],
    };
    weights.iter().for_each(|&size| _ = run.alloc(size, 0));
    let mut state = Vec::new();
    for step in 0..steps {
        run.builder.mark(MarkKind::Step, &step);
        match kind {
            Kind::Rollouts => run.rollouts(),
            Kind::Detector => run.detector(),
            Kind::Gathered => run.gathered(),
            Kind::Sparse => run.sparse(),
            Kind::Turns => run.turns(step),
        }
        if step == 0 {
            state.extend(weights.iter().map(|&size| run.alloc(size, 0)));
        }
        run.builder.wait(300_000);
    }
    run.builder.trace
}

/// A program under way.
struct Run {
    builder: Builder,
    rng: Rng,
    scale: u64,
}

impl Run {
    /// A block of `size` bytes, times the scale.
    fn alloc(&mut self, size: u64, stream: u16) -> Live {
        let size = size * self.scale;
        self.builder.alloc(size, StreamId(stream), PoolId::DEFAULT, StackId::NONE)
    }

    fn free(&mut self, blocks: impl IntoIterator<Item = Live>) {
        blocks.into_iter().for_each(|block| self.builder.free(block));
    }

    /// A number from `least` on, and below `most`.
    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.rng.below(most - least)
    }

    /// Forward and backward over `layers`, each of which keeps two activations.
    fn train(&mut self, layers: usize, activation: u64, gradient: u64) -> Vec<Live> {
        let mut kept = Vec::new();
        for _ in 0..layers {
            let wide = self.alloc(3 * activation, 0);
            kept.push([self.alloc(activation, 0), self.alloc(activation / 2, 0)]);
            self.free([wide]);
        }
        let backward = |pair: [Live; 2]| {
            let scratch = self.alloc(2 * activation, 0);
            let gradient = self.alloc(gradient, 0);
            self.free(pair);
            self.free([scratch]);
            gradient
        };
        kept.into_iter().rev().map(backward).collect()
    }

    fn rollouts(&mut self) {
        let mut caches: Vec<Vec<Live>> = Vec::new();
        for _ in 0..8 {
            let (pieces, each) = (self.between(2, 9), self.between(256, 1024) * 512);
            let mut of_answer: Vec<Live> = Vec::new();
            for piece in 1..=pieces {
                // Each layer's cache is copied into one that is longer.
                for layer in 0..12 {
                    let longer = self.alloc(piece * each * 8, 0);
                    match of_answer.get_mut(layer) {
                        Some(shorter) => {
                            let shorter = std::mem::replace(shorter, longer);
                            self.free([shorter]);
                        }
                        None => of_answer.push(longer),
                    }
                }
                let logits = self.between(8, 64) * MIB;
                let logits = self.alloc(logits, 0);
                self.free([logits]);
            }
            caches.push(of_answer);
        }
        self.free(caches.into_iter().flatten());
        let length = self.between(300, 1000) * 65_536;
        let gradients = self.train(24, length, 24 * MIB);
        self.free(gradients);
    }

    fn detector(&mut self) {
        let side = self.between(20, 40) * 32;
        let image = side * side * 64;
        let pyramid: Vec<Live> = (0..5).map(|level| self.alloc(image >> level, 0)).collect();
        let mut proposals = Vec::new();
        for _ in 0..60 {
            let count = self.between(1, 2000);
            let features = self.alloc(count * 12_544, 0);
            let masks = self.alloc(count * 784, 0);
            let scores = self.alloc(count * 364, 0);
            proposals.extend([features, scores]);
            self.free([masks]);
            if self.rng.one_in(3) {
                let at = self.rng.below(proposals.len() as u64) as usize;
                let dropped = proposals.swap_remove(at);
                self.free([dropped]);
            }
        }
        let gradients = self.train(24, image / 4, 24 * MIB);
        self.free(proposals.into_iter().chain(pyramid));
        self.free(gradients);
    }

    fn gathered(&mut self) {
        let batch = self.between(28, 36) * MIB;
        let mut kept = Vec::new();
        let mut ahead = self.alloc(96 * MIB, 1);
        for _ in 0..24 {
            let layer = std::mem::replace(&mut ahead, self.alloc(96 * MIB, 1));
            let wide = self.alloc(3 * batch, 0);
            kept.push(self.alloc(batch, 0));
            self.free([wide, layer]);
        }
        for activation in kept.into_iter().rev() {
            let layer = std::mem::replace(&mut ahead, self.alloc(96 * MIB, 1));
            let gradient = self.alloc(96 * MIB, 0);
            let reduced = self.alloc(12 * MIB, 2);
            self.free([activation, layer, gradient]);
            self.free([reduced]);
        }
        self.free([ahead]);
    }

    fn sparse(&mut self) {
        let mut gradients = Vec::new();
        for table in [400, 700, 300] {
            let rows = self.between(table / 20, table / 4);
            let indices = self.alloc(rows * 16_384, 0);
            let looked_up = self.alloc(rows * MIB, 0);
            gradients.extend([indices, looked_up]);
        }
        let dense = self.train(8, 40 * MIB, 9 * MIB);
        for table in [400, 700, 300] {
            // Sums are made of rows that come twice, and then all of the table is worked on.
            let summed = self.between(table / 25, table / 5) * MIB;
            let summed = self.alloc(summed, 0);
            let copies = [self.alloc(table * MIB, 0), self.alloc(table * MIB / 2, 0)];
            self.free(copies);
            self.free([summed]);
        }
        self.free(gradients.into_iter().chain(dense));
    }

    fn turns(&mut self, step: u32) {
        if step % 7 == 6 {
            for _ in 0..30 {
                let image = self.between(60, 90) * MIB;
                let image = self.alloc(image, 0);
                self.free([image]);
            }
        }
        let made = self.train(24, 30 * MIB, 16 * MIB);
        for _ in 0..2 {
            let judged = self.train(30, 11 * MIB, 5 * MIB);
            self.free(judged);
        }
        self.free(made);
    }
}
