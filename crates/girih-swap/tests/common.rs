//! What the tests share.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(unreachable_pub, reason = "the tests are crates of their own")]

use arbitrary::Unstructured;
use girih_swap::{Gap, Links, Op, Pass, Step, Steps, Tensor};
use girih_trace::generate::{Bytes, Chance, Training, training};
use girih_trace::{Iterations, Lifetimes};

/// Links of 2 bytes a microsecond out, 2 in and 3 together: a small step has whole numbers.
pub fn slow() -> Links {
    Links { outward: 2.0, inward: 2.0, both: 3.0 }
}

/// Arbitrary small steps: up to `ops` operators and `gaps` gaps.
pub fn small_step(u: &mut Unstructured<'_>, ops: u64, gaps: u64) -> arbitrary::Result<Step> {
    let length = u.arbitrary_len::<u8>()?.min(200);
    Ok(step_of(&mut Bytes::new(u.bytes(length)?), ops, gaps))
}

/// The step of a source of chance.
pub fn step_of(chance: &mut impl Chance, ops: u64, gaps: u64) -> Step {
    let ops = 3 + chance.below(ops - 2) as u32;
    let mut step = Step::default();
    for _ in 0..ops {
        let us = (1 + chance.below(6)) as f64;
        step.ops.push(Op { key: chance.below(5), us, pass: Pass::Forward });
        step.load.push(chance.below(6));
    }
    for tensor in 0..1 + chance.below(gaps) as u32 {
        let after = chance.below(u64::from(ops - 2)) as u32;
        let before = after + 2 + chance.below(u64::from(ops - after - 2)) as u32;
        let bytes = 1 + chance.below(12);
        step.tensors.push(Tensor { request: tensor, bytes, born: after, last: before });
        step.gaps.push(Gap { tensor, after, before });
        step.load[after as usize..=before as usize].iter_mut().for_each(|load| *load += bytes);
    }
    step.gaps.sort_unstable_by_key(|gap| (gap.after, gap.before, gap.tensor));
    step
}

/// The steps of a generated run.
pub fn generated(params: &Training, seed: u64) -> Steps {
    let trace = training(params, seed);
    let lives = Lifetimes::of(&trace);
    let iterations = Iterations::of(&trace, &lives);
    Steps::of(&trace, &lives, &iterations, Some(200_000.0)).expect("a run has steps")
}
