//! Programs that run out of memory, each for one reason that is known.
//!
//! They are what a program asks for and lets go of, with call stacks as PyTorch records them; how
//! it ends depends on the allocator and the device that they are run on. Shapes are drawn from the
//! seed: layers, widths, batches, how far the backward pass keeps what it makes. One seed, one
//! program.

use super::builder::{Builder, Live};
use super::chance::{Chance, Rng};
use crate::event::{PoolId, StackId, StreamId};
use crate::trace::Trace;

/// Why a program runs out of memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Death {
    /// The batch is too large: it dies in its first step.
    TooMuch,
    /// Lengths vary, and memory falls into pieces.
    Fragmented,
    /// `total = total + loss` keeps the graph of each step.
    LeakOfGraphs,
    /// A list keeps an output of each step.
    LeakByList,
    /// It would fit, if others had not so much of the card.
    OtherProcess,
    /// A graph's pool keeps what its capture needed.
    OtherPool,
    /// The optimizer's first step makes its states.
    OptimizerSpike,
    /// One line of an evaluation asks for much more than the steps before.
    LineSpike,
    /// Another stream keeps what it needed.
    OtherStream,
}

impl Death {
    /// Every reason.
    pub const ALL: [Death; 9] = [
        Death::TooMuch,
        Death::Fragmented,
        Death::LeakOfGraphs,
        Death::LeakByList,
        Death::OtherProcess,
        Death::OtherPool,
        Death::OptimizerSpike,
        Death::LineSpike,
        Death::OtherStream,
    ];
}

/// The shape of a model and its training.
#[derive(Clone, Copy, Debug)]
struct Shape {
    layers: u64,
    width: u64,
    vocabulary: u64,
    /// Tokens of a batch.
    tokens: u64,
    /// Bytes of an element.
    bytes: u64,
    /// Tensors that a layer leaves for the backward pass.
    saved: u64,
    has_adam: bool,
}

impl Shape {
    fn draw(rng: &mut Rng) -> Shape {
        let any = |rng: &mut Rng, all: &[u64]| all[rng.below(all.len() as u64) as usize];
        Shape {
            layers: 3 + rng.below(22),
            width: 64 * (4 + rng.below(28)),
            vocabulary: 1000 * (1 + rng.below(50)),
            tokens: 256 * (4 + rng.below(60)),
            bytes: any(rng, &[2, 4]),
            saved: 2 + rng.below(8),
            has_adam: !rng.one_in(3),
        }
    }

    fn activation(&self) -> u64 {
        self.tokens * self.width * self.bytes
    }

    fn logits(&self) -> u64 {
        self.tokens * self.vocabulary * self.bytes
    }

    /// Bytes of the weights of a layer.
    fn matrices(&self) -> [u64; 4] {
        let square = self.width * self.width * self.bytes;
        [3 * square, square, 4 * square, 4 * square]
    }
}

/// A program in the making.
struct Program {
    builder: Builder,
    shape: Shape,
    stream: StreamId,
    pool: PoolId,
    weights: Vec<Live>,
    gradients: Vec<Live>,
    has_states: bool,
}

/// The innermost frames of every stack.
const INSIDE: [&str; 3] = [
    "??:0 torch::unwind::unwind()",
    "memory_snapshot.cpp:0 torch::cuda::(anonymous namespace)::gather_with_cpp()",
    "CUDACachingAllocator.cpp:0 c10::cuda::CUDACachingAllocator::Native::malloc(unsigned long)",
];
const MODULE: &str = "torch/nn/modules/module.py:1787 _call_impl";
const MAIN: &str = "/proj/run/train.py:90 <module>";

/// The program of a reason and a seed.
pub fn died(death: Death, seed: u64) -> Trace {
    died_with(death, seed, 1.0)
}

/// The same program with batches of this share of their size.
pub fn died_with(death: Death, seed: u64, share: f64) -> Trace {
    let mut rng = Rng::new(seed ^ (death as u64) << 32);
    let mut shape = Shape::draw(&mut rng);
    shape.tokens = ((shape.tokens as f64 * share) as u64).max(1);
    let mut program = Program::new(shape);
    program.build();
    let steps = 4 + rng.below(8);
    match death {
        Death::TooMuch | Death::OptimizerSpike => {
            program.shape.has_adam |= death == Death::OptimizerSpike;
            if death == Death::OptimizerSpike {
                // Small batches: what does not fit is the states.
                program.shape.tokens = 256 + 256 * rng.below(2);
                program.shape.vocabulary = 1000;
            }
            for _ in 0..2 {
                program.step(true);
            }
        }
        Death::OtherProcess => (0..steps).for_each(|_| program.step(true)),
        Death::Fragmented => {
            let longest = shape.tokens;
            for step in 0..4 * steps {
                let share = if step == 0 { 6 } else { 3 + rng.below(14) };
                program.shape.tokens = (longest * share / 16).max(64) + rng.below(64);
                program.step(true);
            }
        }
        Death::LeakOfGraphs => (0..3 * steps).for_each(|_| program.accumulate()),
        Death::LeakByList => {
            for _ in 0..3 * steps {
                program.step(true);
                program.keep();
            }
        }
        Death::OtherPool => {
            program.capture();
            (0..steps).for_each(|_| program.step(true));
        }
        Death::OtherStream => {
            program.beside();
            (0..steps).for_each(|_| program.step(true));
        }
        Death::LineSpike => {
            (0..steps).for_each(|_| program.step(true));
            program.evaluate(4 + rng.below(4));
        }
    }
    program.builder.trace
}

impl Program {
    fn new(shape: Shape) -> Program {
        let mut builder = Builder::new(0, "generated");
        builder.trace.streams = vec![0, 0x55aa_0000_1000];
        builder.trace.pools = vec![(0, 0), (1, 0)];
        let (stream, pool) = (StreamId(0), PoolId::DEFAULT);
        let (weights, gradients) = (Vec::new(), Vec::new());
        Program { builder, shape, stream, pool, weights, gradients, has_states: false }
    }

    fn alloc(&mut self, size: u64, frames: &[&str]) -> Live {
        let stack = self.stack(frames);
        self.builder.alloc(size.max(512), self.stream, self.pool, stack)
    }

    fn free(&mut self, live: Live) {
        self.builder.free(live);
    }

    /// The stack of these frames, the innermost first.
    fn stack(&mut self, frames: &[&str]) -> StackId {
        let trace = &mut self.builder.trace;
        let mut indices = Vec::new();
        for frame in INSIDE.iter().chain(frames) {
            let known = trace.frames.iter().position(|known| known == frame);
            indices.push(known.unwrap_or_else(|| {
                trace.frames.push((*frame).to_owned());
                trace.frames.len() - 1
            }) as u32);
        }
        let known = trace.stacks.iter().position(|known| *known == indices);
        StackId(known.unwrap_or_else(|| {
            trace.stacks.push(indices);
            trace.stacks.len() - 1
        }) as u32)
    }

    fn build(&mut self) {
        let frames = [
            "torch/nn/modules/module.py:1344 convert",
            "torch/nn/modules/module.py:930 _apply",
            "/proj/run/train.py:20 build",
            MAIN,
        ];
        let embedding = self.shape.vocabulary * self.shape.width * self.shape.bytes;
        let weight = self.alloc(embedding, &frames);
        self.weights.push(weight);
        for _ in 0..self.shape.layers {
            for size in self.shape.matrices() {
                let weight = self.alloc(size, &frames);
                self.weights.push(weight);
            }
            let norm = self.alloc(self.shape.width * self.shape.bytes, &frames);
            self.weights.push(norm);
        }
    }

    /// A forward pass called at a line: what it leaves, by layer, and the logits.
    fn forward(&mut self, caller: &str) -> Vec<Vec<Live>> {
        let Shape { layers, saved, .. } = self.shape;
        let size = self.shape.activation();
        let embedding = "/proj/run/model.py:31 forward";
        let mut left = vec![vec![self.alloc(size, &[embedding, MODULE, caller, MAIN])]];
        for _ in 0..layers {
            let mut kept = Vec::new();
            for index in 0..saved {
                let line = format!("/proj/run/model.py:{} forward", 50 + index);
                let frames = [
                    "torch/nn/functional.py:2000 linear",
                    &*line,
                    MODULE,
                    "/proj/run/model.py:33 forward",
                    MODULE,
                    caller,
                    MAIN,
                ];
                let scratch = self.alloc(size / 2, &frames);
                kept.push(self.alloc(if index == 1 { 4 * size } else { size }, &frames));
                self.free(scratch);
            }
            left.push(kept);
        }
        let head = "/proj/run/model.py:36 forward";
        left.push(vec![self.alloc(self.shape.logits(), &[head, MODULE, caller, MAIN])]);
        left
    }

    fn backward(&mut self, left: Vec<Vec<Live>>) {
        let node = [
            "??:0 at::native::mm(at::Tensor const&)",
            "??:0 torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)",
            "??:0 torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask>)",
        ];
        let has_gradients = !self.gradients.is_empty();
        let sizes: Vec<u64> = self.weights.iter().map(|weight| weight.size).collect();
        let mut sizes = sizes.into_iter().rev();
        let size = self.shape.activation();
        let mut wanted: Option<Live> = None;
        let last = left.len() - 1;
        for (index, kept) in left.into_iter().rev().enumerate() {
            let next = self.alloc(size, &node);
            let wide = self.alloc(4 * size, &node);
            let many = if index == 0 || index == last { 1 } else { 5 };
            for size in sizes.by_ref().take(many) {
                if !has_gradients {
                    let gradient = self.alloc(size, &node);
                    self.gradients.push(gradient);
                }
            }
            self.free(wide);
            kept.into_iter().rev().for_each(|live| self.free(live));
            wanted.replace(next).into_iter().for_each(|old| self.free(old));
        }
        wanted.into_iter().for_each(|old| self.free(old));
    }

    /// A step of training; its lines come round.
    fn step(&mut self, optimizes: bool) {
        let batch = self.alloc(8 * self.shape.tokens, &["/proj/run/train.py:40 train", MAIN]);
        let left = self.forward("/proj/run/train.py:41 train");
        let loss = self.alloc(512, &["/proj/run/train.py:42 train", MAIN]);
        self.backward(left);
        if optimizes {
            self.optimize();
        }
        std::mem::take(&mut self.gradients).into_iter().for_each(|gradient| self.free(gradient));
        self.free(loss);
        self.free(batch);
    }

    fn optimize(&mut self) {
        if !self.shape.has_adam {
            return;
        }
        let frames = |line: &'static str| {
            [line, "torch/optim/optimizer.py:517 wrapper", "/proj/run/train.py:44 train", MAIN]
        };
        let sizes: Vec<u64> = self.weights.iter().map(|weight| weight.size).collect();
        if !self.has_states {
            for &size in &sizes {
                for _ in 0..2 {
                    self.alloc(size, &frames("torch/optim/adam.py:174 _init_group"));
                }
            }
            self.has_states = true;
        }
        let all: Vec<Live> = (sizes.into_iter())
            .map(|size| self.alloc(size, &frames("torch/optim/adam.py:680 _multi_tensor_adam")))
            .collect();
        all.into_iter().for_each(|live| self.free(live));
    }

    /// A step of `total = total + loss`: its graph stays.
    fn accumulate(&mut self) {
        self.alloc(8 * self.shape.tokens, &["/proj/run/train.py:60 evaluate", MAIN]);
        self.forward("/proj/run/train.py:61 evaluate");
        self.alloc(512, &["/proj/run/train.py:62 evaluate", MAIN]);
    }

    /// A list keeps what a step has made.
    fn keep(&mut self) {
        let size = 2 * self.shape.activation();
        self.alloc(size, &["/proj/run/train.py:47 train", MAIN]);
    }

    /// A pass captured in a pool of its own; what it needed stays there, free.
    fn capture(&mut self) {
        self.pool = PoolId(1);
        let left = self.forward("/proj/run/train.py:30 capture");
        left.into_iter().flatten().for_each(|live| self.free(live));
        self.alloc(self.shape.activation(), &["/proj/run/train.py:31 capture", MAIN]);
        self.pool = PoolId::DEFAULT;
    }

    /// A pass on another stream, of which something stays in each of its segments.
    fn beside(&mut self) {
        self.stream = StreamId(1);
        // As large as what the model has: what is idle there must matter.
        let all: u64 = self.weights.iter().map(|weight| weight.size).sum();
        let size = self.shape.activation().max(all / (8 * self.shape.layers)).max(8 << 20);
        let line = ["/proj/run/data.py:12 prefetch", "/proj/run/train.py:35 train", MAIN];
        // Each segment is cut in two: what is freed is large, and what stays keeps it from going
        // back.
        let mut large = Vec::new();
        for _ in 0..self.shape.layers {
            let whole = self.alloc(8 * size, &line);
            self.free(whole);
            large.push(self.alloc(7 * size, &line));
            self.alloc(size, &line);
        }
        large.into_iter().for_each(|live| self.free(live));
        self.stream = StreamId(0);
    }

    /// An evaluation that keeps no graph, and one line of which makes much more.
    fn evaluate(&mut self, times: u64) {
        let line = ["/proj/run/train.py:72 evaluate", MAIN];
        let batch = self.alloc(8 * self.shape.tokens, &["/proj/run/train.py:70 evaluate", MAIN]);
        let one = self.shape.activation() * self.shape.layers * self.shape.saved;
        for _ in 0..times {
            self.alloc(one, &line);
        }
        self.free(batch);
    }
}
