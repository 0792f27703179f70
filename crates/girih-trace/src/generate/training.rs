//! Traces like those of Megatron-LM's training loop.
//!
//! One stage of a pipeline runs its microbatches in the order of 1F1B: a few forward passes to
//! fill the pipeline, then one forward and one backward in turn, then the backward passes that
//! are left.
//!
//! ```text
//!  stage 0 of 2, 4 microbatches:   F0  F1 B0  F2 B1  F3 B2  B3   optimizer
//! ```
//!
//! A forward pass leaves activations, which its backward pass frees in the opposite order. With
//! recompute it leaves the inputs of the layers only, and the backward pass makes the rest again.

use std::collections::HashMap;

use super::builder::{Builder, Live};
use super::chance::{Chance, Rng};
use crate::event::{PoolId, StackId, StreamId};
use crate::mark::MarkKind;
use crate::trace::Trace;

/// What to train, and how.
#[derive(Clone, PartialEq, Debug)]
pub struct Training {
    /// Transformer layers of this stage.
    pub layers: u32,
    /// Width of the model.
    pub hidden: u64,
    /// Tokens of a sequence.
    pub sequence: u64,
    /// Sequences of a microbatch.
    pub microbatch: u64,
    /// Microbatches of a step.
    pub microbatches: u32,
    /// Stages of the pipeline, at least 1.
    pub stages: u32,
    /// Which of them this is.
    pub stage: u32,
    /// Whether layers are run again in the backward pass instead of keeping their activations.
    pub recompute: bool,
    /// Steps. The first has workspaces and the optimizer's state to allocate.
    pub steps: u32,
    /// The sequence of each microbatch is shorter by up to so many tokens; 0 for none.
    pub jitter: u64,
    /// Experts of a layer, to which its tokens are routed as chance will have it; 0 for a layer
    /// without them.
    pub experts: u32,
    /// An evaluation of one forward pass after every so many steps; 0 for none.
    pub evaluate_every: u32,
    /// Whether the trace says which operators ran and which blocks they used.
    pub operators: bool,
    /// One deviation from the pattern.
    pub change: Option<Change>,
}

/// One request that is there or not there in one step only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// The step, from 0.
    pub step: u32,
    /// The request of that step, from 0.
    pub request: u32,
    /// What happens to it.
    pub kind: ChangeKind,
}

/// What happens to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChangeKind {
    /// Another request of so many bytes comes before it, and is freed after it.
    Extra(u64),
    /// It does not come.
    Missing,
}

impl Default for Training {
    /// A small model: a few thousand events.
    fn default() -> Self {
        Training {
            layers: 4,
            hidden: 1024,
            sequence: 1024,
            microbatch: 2,
            microbatches: 4,
            stages: 2,
            stage: 0,
            recompute: false,
            steps: 4,
            jitter: 0,
            experts: 0,
            evaluate_every: 0,
            operators: false,
            change: None,
        }
    }
}

/// The trace of a training run. The seed matters to the times, and to the lengths if they vary.
pub fn training(params: &Training, seed: u64) -> Trace {
    let mut run = Run {
        params,
        rng: Rng::new(seed),
        builder: Builder::new(0, "generated"),
        kept: HashMap::new(),
        step: None,
        requests: 0,
        main_grads: Vec::new(),
        has_optimizer_state: false,
        input: None,
    };
    run.build_model();
    for step in 0..params.steps {
        run.train(step);
        if params.evaluate_every > 0 && (step + 1) % params.evaluate_every == 0 {
            run.evaluate(step);
        }
    }
    run.builder.trace
}

/// Bytes of a half and of a float.
const HALF: u64 = 2;
const FLOAT: u64 = 4;

struct Run<'a> {
    params: &'a Training,
    rng: Rng,
    builder: Builder,
    /// What each microbatch keeps for its backward pass: tokens, and for each layer its tensors.
    kept: HashMap<u32, (u64, Vec<Vec<Live>>)>,
    /// The step in progress, and the requests that it has made.
    step: Option<u32>,
    requests: u32,
    /// Sizes of the weights, in the order of the layers.
    main_grads: Vec<u64>,
    has_optimizer_state: bool,
    /// What the latest operator made: the input of the next one.
    input: Option<Live>,
}

impl Run<'_> {
    /// Weights and main gradients: they live for ever.
    fn build_model(&mut self) {
        let Training { layers, hidden, .. } = *self.params;
        for _ in 0..layers {
            for elements in [3 * hidden * hidden, hidden * hidden, 8 * hidden * hidden, 2 * hidden]
            {
                self.persist(elements * HALF);
                self.main_grads.push(elements);
            }
        }
        for index in 0..self.main_grads.len() {
            self.persist(self.main_grads[index] * FLOAT);
        }
    }

    fn train(&mut self, step: u32) {
        let Training { microbatches, stages, stage, .. } = *self.params;
        self.builder.mark(MarkKind::Step, &step);
        (self.step, self.requests) = (Some(step), 0);
        if step == 0 {
            // Libraries allocate their workspaces at their first use.
            self.persist(32 << 20);
            self.persist(8 << 20);
        }
        let warmup = stages.saturating_sub(stage + 1).min(microbatches);
        for microbatch in 0..warmup {
            self.forward(microbatch);
        }
        for microbatch in warmup..microbatches {
            self.forward(microbatch);
            self.backward(microbatch - warmup);
        }
        for microbatch in microbatches - warmup..microbatches {
            self.backward(microbatch);
        }
        self.optimize();
        self.step = None;
        self.builder.mark(MarkKind::StepEnd, &step);
    }

    fn forward(&mut self, microbatch: u32) {
        self.builder.mark(MarkKind::ForwardStep, &microbatch);
        let tokens = self.tokens();
        let width = self.params.hidden * HALF;
        let mut layers = Vec::new();
        let mut input = self.alloc(tokens * width);
        for _ in 0..self.params.layers {
            let (activations, output) = self.layer(tokens);
            let mut kept: Vec<Live> = input.into_iter().collect();
            if self.params.recompute {
                self.free_all(activations);
            } else {
                kept.extend(activations);
            }
            layers.push(kept);
            input = output;
        }
        layers.push(input.into_iter().collect());
        self.kept.insert(microbatch, (tokens, layers));
        self.builder.mark(MarkKind::ForwardStepEnd, &microbatch);
    }

    fn backward(&mut self, microbatch: u32) {
        let Some((tokens, mut layers)) = self.kept.remove(&microbatch) else { return };
        self.builder.mark(MarkKind::BackwardStep, &microbatch);
        let width = self.params.hidden * HALF;
        let mut gradient = self.alloc(tokens * width);
        self.free_all(layers.pop().unwrap_or_default());
        for layer in layers.into_iter().rev() {
            if self.params.recompute {
                let (activations, output) = self.layer(tokens);
                self.free_all(output);
                self.layer_gradients(tokens);
                self.free_all(activations);
            } else {
                self.operator("backward", &layer);
                self.layer_gradients(tokens);
            }
            let next = self.alloc(tokens * width);
            self.free_all(gradient);
            self.free_all(layer);
            gradient = next;
        }
        self.free_all(gradient);
        self.builder.mark(MarkKind::BackwardStepEnd, &microbatch);
    }

    /// The forward pass of a layer: the activations that its backward pass needs, and its output.
    fn layer(&mut self, tokens: u64) -> (Vec<Live>, Option<Live>) {
        let width = self.params.hidden * HALF;
        let mut activations = Vec::new();
        // Norm, queries keys and values, attention, its projection.
        for factor in [1, 3, 1, 1] {
            activations.extend(self.alloc(tokens * width * factor));
        }
        let scratch = self.alloc(tokens * FLOAT * 16);
        activations.extend(self.alloc(tokens * width));
        // The wide part of the MLP before and after its activation function.
        for tokens in self.routed(tokens) {
            for _ in 0..2 {
                activations.extend(self.alloc(tokens * width * 4));
            }
        }
        self.free_all(scratch);
        let output = self.alloc(tokens * width);
        (activations, output)
    }

    /// How many tokens each expert gets; all of them where there are none.
    fn routed(&mut self, tokens: u64) -> Vec<u64> {
        let experts = u64::from(self.params.experts);
        if experts == 0 {
            return vec![tokens];
        }
        let shares: Vec<u64> = (0..experts).map(|_| 70 + self.rng.below(61)).collect();
        let all: u64 = shares.iter().sum();
        let bounds = shares.iter().scan(0, |sum, share| {
            *sum += share;
            Some(tokens * *sum / all)
        });
        let bounds: Vec<u64> = [0].into_iter().chain(bounds).collect();
        bounds.windows(2).map(|pair| (pair[1] - pair[0]).max(1)).collect()
    }

    /// The temporary tensors of a layer's backward pass.
    fn layer_gradients(&mut self, tokens: u64) {
        let Training { hidden, .. } = *self.params;
        let wide = self.alloc(tokens * hidden * HALF * 4);
        let weights = self.alloc(8 * hidden * hidden * HALF);
        self.free_all(wide);
        let narrow = self.alloc(tokens * hidden * HALF * 3);
        self.free_all(weights);
        self.free_all(narrow);
    }

    /// The step of Adam: its state is allocated the first time.
    fn optimize(&mut self) {
        self.builder.mark(MarkKind::Optimizer, &"adam");
        let norm = self.alloc(FLOAT);
        for index in 0..self.main_grads.len() {
            let bytes = self.main_grads[index] * FLOAT;
            if !self.has_optimizer_state {
                for _ in 0..3 {
                    self.persist(bytes);
                }
            }
            let update = self.alloc(bytes);
            self.free_all(update);
        }
        self.has_optimizer_state = true;
        self.free_all(norm);
    }

    /// A forward pass that keeps nothing, on sequences of half the length.
    fn evaluate(&mut self, step: u32) {
        self.builder.mark(MarkKind::Eval, &step);
        let tokens = (self.params.sequence / 2).max(1) * self.params.microbatch;
        let mut input = self.alloc(tokens * self.params.hidden * HALF);
        for _ in 0..self.params.layers {
            let (activations, output) = self.layer(tokens);
            self.free_all(activations);
            self.free_all(input);
            input = output;
        }
        self.free_all(input);
    }

    fn tokens(&mut self) -> u64 {
        let Training { sequence, microbatch, jitter, .. } = *self.params;
        let shorter = if jitter > 0 { self.rng.below(jitter + 1) } else { 0 };
        sequence.saturating_sub(shorter).max(1) * microbatch
    }

    /// Allocates what is never freed.
    fn persist(&mut self, bytes: u64) {
        self.alloc_now(bytes);
    }

    /// Allocates, unless the change takes this request away.
    fn alloc(&mut self, bytes: u64) -> Option<Live> {
        let change = self.params.change;
        let change = change.filter(|it| Some(it.step) == self.step && it.request == self.requests);
        self.requests += 1;
        match change.map(|change| change.kind) {
            Some(ChangeKind::Missing) => None,
            Some(ChangeKind::Extra(extra)) => {
                let extra = self.alloc_now(extra);
                let live = self.alloc_now(bytes);
                self.builder.free(extra);
                Some(live)
            }
            None => Some(self.alloc_now(bytes)),
        }
    }

    fn alloc_now(&mut self, bytes: u64) -> Live {
        let pause = self.rng.below(20);
        self.builder.wait(pause);
        let inputs: Vec<Live> = self.input.into_iter().collect();
        self.operator("forward", &inputs);
        let live = self.builder.alloc(bytes, StreamId(0), PoolId::DEFAULT, StackId::NONE);
        self.input = Some(live);
        if self.params.operators {
            self.builder.uses(live);
        }
        live
    }

    /// An operator that uses these blocks, where operators are recorded.
    fn operator(&mut self, name: &str, used: &[Live]) {
        if self.params.operators {
            self.builder.operator(name);
            used.iter().for_each(|&live| self.builder.uses(live));
        }
    }

    fn free_all(&mut self, blocks: impl IntoIterator<Item = Live>) {
        for block in blocks {
            self.builder.free(block);
        }
    }
}
