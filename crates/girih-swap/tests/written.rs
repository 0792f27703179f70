//! Steps of programs of other kinds than those that are generated as traces, written down use by use.

use girih_swap::{Gap, Op, Pass, Step, Tensor};
use girih_trace::generate::{Chance, Rng};

/// A step that is written down use by use.
#[derive(Default)]
struct Program {
    step: Step,
    /// What each operator holds besides tensors.
    own: Vec<u64>,
    /// Bytes and uses of each tensor.
    tensors: Vec<(u64, Vec<u32>)>,
}

impl Program {
    /// A tensor that is made by no operator yet.
    fn tensor(&mut self, bytes: u64) -> usize {
        self.tensors.push((bytes, Vec::new()));
        self.tensors.len() - 1
    }

    /// One more operator, which uses or makes these tensors.
    fn op(&mut self, us: f64, pass: Pass, own: u64, tensors: &[usize]) {
        let at = self.step.ops.len() as u32;
        self.step.ops.push(Op { key: u64::from(at), us, pass });
        self.own.push(own);
        tensors.iter().for_each(|&tensor| self.tensors[tensor].1.push(at));
    }

    fn step(self) -> Step {
        let Program { mut step, own, tensors } = self;
        step.load = own;
        for (request, (bytes, uses)) in (0u32..).zip(tensors) {
            let (Some(&born), Some(&last)) = (uses.first(), uses.last()) else { continue };
            step.load[born as usize..=last as usize].iter_mut().for_each(|load| *load += bytes);
            let tensor = step.tensors.len() as u32;
            step.tensors.push(Tensor { request, bytes, born, last });
            let gaps = uses.windows(2).filter(|uses| uses[0] + 2 <= uses[1]);
            step.gaps.extend(gaps.map(|uses| Gap { tensor, after: uses[0], before: uses[1] }));
        }
        step.gaps.sort_unstable_by_key(|gap| (gap.after, gap.before, gap.tensor));
        step
    }
}

const MIB: u64 = 1 << 20;

/// A number up to a fifth more or less.
fn about(rng: &mut Rng, value: f64) -> f64 {
    value * (0.8 + 0.4 * rng.below(1000) as f64 / 1000.0)
}

/// A U-Net: what each level of the way down makes is used again on the way up at its own level, the first of them last.
pub(crate) fn u_net(rng: &mut Rng) -> Step {
    let mut program = Program::default();
    let (levels, blocks) = (5usize, 4);
    let mut saved: Vec<(Vec<usize>, f64)> = Vec::new();
    let mut skips: Vec<usize> = Vec::new();
    let mut input = program.tensor(96 * MIB);
    program.op(50.0, Pass::Forward, 0, &[input]);
    for stage in 0..2 * levels {
        let (level, is_up) = match stage < levels {
            true => (stage, false),
            false => (2 * levels - 1 - stage, true),
        };
        let bytes = (96 * MIB) >> level;
        for block in 0..blocks {
            let us = about(rng, 500.0 + 700.0 / (1 << level) as f64);
            let output = program.tensor(about(rng, bytes as f64) as u64);
            let mut uses = vec![input, output];
            if is_up && block == 0 {
                uses.extend(skips.pop());
            }
            program.op(us, Pass::Forward, bytes / 4, &uses);
            saved.push((uses, us));
            input = output;
        }
        if !is_up {
            skips.push(input);
        }
    }
    while let Some((uses, us)) = saved.pop() {
        program.op(2.0 * us, Pass::Backward, 64 * MIB, &uses);
    }
    program.op(3000.0, Pass::Optimizer, 0, &[]);
    program.step()
}

/// An encoder and a decoder, each of whose layers reads what the encoder has made, on the way back too.
pub(crate) fn encoder_decoder(rng: &mut Rng) -> Step {
    let mut program = Program::default();
    let mut saved: Vec<(Vec<usize>, f64)> = Vec::new();
    let mut layer =
        |program: &mut Program, rng: &mut Rng, input: usize, mib: u64, memory: &[usize]| {
            let mut input = input;
            for part in [2, 1, 3] {
                let us = about(rng, 350.0 * part as f64);
                let output = program.tensor(mib * MIB * part);
                let mut uses = vec![input, output];
                uses.extend(memory.iter().filter(|_| part == 1));
                program.op(us, Pass::Forward, 8 * MIB, &uses);
                saved.push((uses, us));
                input = output;
            }
            input
        };
    let mut own = program.tensor(20 * MIB);
    program.op(100.0, Pass::Forward, 0, &[own]);
    for _ in 0..12 {
        own = layer(&mut program, rng, own, 20, &[]);
    }
    let memory = [program.tensor(160 * MIB), program.tensor(160 * MIB)];
    program.op(400.0, Pass::Forward, 0, &[own, memory[0], memory[1]]);
    let mut target = program.tensor(12 * MIB);
    program.op(100.0, Pass::Forward, 0, &[target]);
    for _ in 0..12 {
        target = layer(&mut program, rng, target, 12, &memory);
    }
    let mut is_decoder = 0;
    while let Some((uses, us)) = saved.pop() {
        program.op(2.0 * us, Pass::Backward, 16 * MIB, &uses);
        is_decoder += 1;
        if is_decoder == 36 {
            program.op(900.0, Pass::Backward, 0, &[own, memory[0], memory[1]]);
        }
    }
    program.step()
}

/// Four microbatches whose gradients are added up in buffers, which lie idle from one backward pass to the next.
pub(crate) fn accumulation(rng: &mut Rng) -> Step {
    let mut program = Program::default();
    let layers = 16;
    let sums: Vec<usize> = (0..layers).map(|_| program.tensor(48 * MIB)).collect();
    program.op(50.0, Pass::Forward, 0, &sums);
    for _ in 0..4 {
        let mut saved = Vec::new();
        let mut input = program.tensor(32 * MIB);
        program.op(30.0, Pass::Forward, 0, &[input]);
        for &sum in &sums {
            let us = about(rng, 900.0);
            let [inner, output] = [64, 32].map(|mib| program.tensor(mib * MIB));
            program.op(us, Pass::Forward, 8 * MIB, &[input, inner]);
            program.op(us / 2.0, Pass::Forward, 8 * MIB, &[inner, output]);
            saved.push(([input, inner, output], sum, us));
            input = output;
        }
        while let Some(([input, inner, output], sum, us)) = saved.pop() {
            program.op(us, Pass::Backward, 32 * MIB, &[inner, output]);
            program.op(2.0 * us, Pass::Backward, 48 * MIB, &[input, inner, sum]);
        }
    }
    for &sum in &sums {
        program.op(250.0, Pass::Optimizer, 0, &[sum]);
    }
    program.step()
}
