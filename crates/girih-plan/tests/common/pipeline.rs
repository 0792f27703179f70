//! Problems like those of one stage of a pipeline that trains a transformer under the 1F1B
//! schedule: microbatches go forward and leave activations behind, layer by layer; a few forwards
//! later their backwards take them up again in reverse; short-lived buffers come and go within.

use girih_plan::{Buffer, Problem};

/// The shape of the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pipeline {
    /// Microbatches of an iteration.
    pub(crate) microbatches: u32,
    /// Layers of the stage.
    pub(crate) layers: u32,
    /// Forwards that run ahead of the first backward: stages behind this one.
    pub(crate) ahead: u32,
    /// Whether what lives across iterations does so on a ring, or the iteration stands alone.
    pub(crate) ring: bool,
    /// Varies the sizes a little, as experts do; 0 leaves every microbatch alike.
    pub(crate) jitter: u64,
}

/// A buffer while it is alive.
#[derive(Clone, Copy)]
struct Held {
    lower: u32,
    size: u64,
}

/// Unit of all sizes: activations of one hidden vector for all tokens of a microbatch.
const HIDDEN: u64 = 16 << 20;

struct Clock {
    now: u32,
    buffers: Vec<Buffer>,
    noise: u64,
    jitter: u64,
}

impl Clock {
    fn alloc(&mut self, size: u64) -> Held {
        self.noise = self.noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let extra = if self.jitter == 0 { 0 } else { (self.noise >> 40) % self.jitter };
        self.now += 1;
        Held { lower: self.now - 1, size: (size + extra).next_multiple_of(512) }
    }

    fn free(&mut self, held: Held) {
        let Held { lower, size } = held;
        self.buffers.push(Buffer { lower, upper: self.now, size });
        self.now += 1;
    }

    /// Runs a kernel that needs `size` bytes of its own.
    fn scratch(&mut self, size: u64) {
        let held = self.alloc(size);
        self.free(held);
    }
}

impl Pipeline {
    /// About 20 buffers for each layer of each microbatch.
    pub(crate) fn problem(self) -> Problem {
        let mut clock = Clock { now: 0, buffers: Vec::new(), noise: 1, jitter: self.jitter };
        let mut saved: Vec<Vec<Vec<Held>>> = Vec::new();
        let mut lasting = vec![clock.alloc(2 << 30), clock.alloc(1 << 30)];
        for step in 0..self.microbatches + self.ahead {
            if step < self.microbatches {
                saved.push((0..self.layers).map(|_| forward(&mut clock)).collect());
            }
            if step >= self.ahead {
                let microbatch = saved.remove(0);
                backward(&mut clock, microbatch);
            }
        }
        for _ in 0..self.layers {
            let (a, b) = (clock.alloc(HIDDEN * 3), clock.alloc(HIDDEN * 3));
            clock.scratch(HIDDEN);
            clock.free(a);
            clock.free(b);
        }
        // The loss and the norm of the gradients are read in the next iteration.
        let over = [clock.alloc(512), clock.alloc(HIDDEN)];
        let period = clock.now + 1;
        for held in lasting.drain(..) {
            clock.buffers.push(Buffer { lower: held.lower, upper: period, size: held.size });
        }
        for held in over {
            let upper = if self.ring { period + 40 } else { period };
            clock.buffers.push(Buffer { lower: held.lower, upper, size: held.size });
        }
        clock.buffers.sort_unstable_by_key(|buffer| buffer.lower);
        let period = if self.ring { period } else { 0 };
        Problem { buffers: clock.buffers, period, alignment: 512 }
    }
}

/// One layer forward: what it saves for its backward.
fn forward(clock: &mut Clock) -> Vec<Held> {
    let norm = clock.alloc(HIDDEN);
    let statistics = clock.alloc(HIDDEN / 2048);
    let qkv = clock.alloc(HIDDEN * 3);
    let rotary = clock.alloc(HIDDEN * 2);
    clock.scratch(HIDDEN / 4);
    let attention = clock.alloc(HIDDEN);
    clock.free(rotary);
    let sums = clock.alloc(HIDDEN / 64);
    let projected = clock.alloc(HIDDEN);
    clock.scratch(HIDDEN / 2);
    let residual = clock.alloc(HIDDEN);
    clock.free(projected);
    let gate = clock.alloc(HIDDEN * 8);
    let act = clock.alloc(HIDDEN * 4);
    let out = clock.alloc(HIDDEN);
    clock.scratch(HIDDEN);
    vec![norm, statistics, qkv, attention, sums, residual, gate, act, out]
}

/// A microbatch backward, from the last layer to the first.
fn backward(clock: &mut Clock, layers: Vec<Vec<Held>>) {
    let mut gradient = clock.alloc(HIDDEN);
    for layer in layers.into_iter().rev() {
        for (index, held) in layer.into_iter().enumerate().rev() {
            if index % 3 == 0 {
                let next = clock.alloc(HIDDEN);
                clock.scratch(held.size.min(HIDDEN * 3));
                clock.free(gradient);
                gradient = next;
            }
            clock.free(held);
        }
        clock.scratch(HIDDEN * 4);
    }
    clock.free(gradient);
}
