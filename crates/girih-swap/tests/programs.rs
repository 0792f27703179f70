//! Steps of programs of other kinds than those that are generated as traces: the schedule is near the bound, and no method
//! gets below it.

use crate::common::generated;
use girih_swap::{Answer, Budgets, Gap, Links, Method, Op, Pass, Step, Tensor};
use girih_trace::generate::{Chance, Rng, Training};

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
fn u_net(rng: &mut Rng) -> Step {
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
fn encoder_decoder(rng: &mut Rng) -> Step {
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
fn accumulation(rng: &mut Rng) -> Step {
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

/// Every method's answer within the budget; no step is shorter than its bound.
fn answers(step: &Step, links: &Links, budgets: &Budgets) -> Vec<Answer> {
    let answer = |method: Method| {
        let answer = method.answer(step, links, budgets).unwrap();
        let (own, bound) = (answer.run.step_us, answer.bound_us);
        assert!(own >= bound - 1e-6, "{method:?} takes {own}, bound {bound}, {budgets:?}");
        answer
    };
    Method::ALL.into_iter().map(answer).collect()
}

/// The most that a step of the program takes over its bound, of some seeds and budgets in which it must wait.
fn worst_of(program: fn(&mut Rng) -> Step, seeds: u64) -> f64 {
    // Links of an older machine: with faster ones nothing waits.
    let links = Links::of_gigabytes(12.0, 12.0, 20.0);
    let mut worst = 1.0f64;
    for seed in 1..=seeds {
        let step = program(&mut Rng::new(seed));
        for part in [0.7, 0.55] {
            let gpu = ((step.peak() as f64 * part) as u64).max(step.least_budget().0);
            let own = &answers(&step, &links, &Budgets { gpu, host: None })[0];
            assert!(own.fits && own.bound_us > step.us() * 1.1, "{seed}, {part}: nothing waits");
            worst = worst.max(own.run.step_us / own.bound_us);
        }
    }
    worst
}

#[test]
fn a_u_net_is_scheduled_within_3_percent_of_its_bound() {
    let worst = worst_of(u_net, 2);
    assert!(worst < 1.03, "{worst}");
}

#[test]
fn an_encoder_and_a_decoder_are_scheduled_within_3_percent_of_their_bound() {
    let worst = worst_of(encoder_decoder, 2);
    assert!(worst < 1.03, "{worst}");
}

/// Further from the bound than the others: whether the schedule or the bound is at fault is not known. Ten times as many tries
/// bring 0.2 % (docs/swapping.md).
#[test]
fn gradients_that_are_added_up_are_scheduled_within_8_percent_of_their_bound() {
    let worst = worst_of(accumulation, 1);
    assert!(worst < 1.08, "{worst}");
}

#[test]
fn no_method_is_below_the_bound_of_a_generated_run() {
    let mut rng = Rng::new(8);
    for seed in 0..24 {
        let params = Training {
            steps: 3,
            layers: 2 + rng.below(6) as u32,
            stages: 1 + rng.below(4) as u32,
            microbatches: 1 + rng.below(5) as u32,
            recompute: rng.one_in(3),
            operators: rng.one_in(2),
            experts: 4 * rng.below(2) as u32,
            ..Training::default()
        };
        let steps = generated(&params, seed);
        let step = &steps.list[steps.model];
        let least = step.least_budget().0;
        for part in [0, 1, 2] {
            answers(
                step,
                &Links::default(),
                &Budgets { gpu: least + (step.peak() - least) * part / 3, host: None },
            );
        }
    }
}
