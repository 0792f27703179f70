//! Any run that bytes decide: a step is made of it and decided, or it is refused. The fuzz target and the property test
//! call this.

use girih_swap::Budgets;
use girih_tokens::Method;
use girih_tokens::recording::read;
use girih_tokens::scale::Scaled;
use girih_trace::generate::{Bytes, Chance, Training, recording, training};
use girih_trace::{Iterations, Lifetimes, Trace};

/// How many recordings were decided, and how many refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Count {
    pub(crate) decided: u32,
    pub(crate) refused: u32,
}

/// One recording of a program that does anything, and one of a training run.
pub(crate) fn any(bytes: &[u8]) -> Count {
    let mut chance = Bytes::new(bytes);
    let params = Training {
        layers: 1 + chance.below(4) as u32,
        stages: 1 + chance.below(2) as u32,
        stage: 0,
        microbatches: 1 + chance.below(3) as u32,
        recompute: chance.below(2) == 1,
        jitter: chance.below(101),
        operators: chance.below(2) == 1,
        ..Training::default()
    };
    let run = training(&params, chance.next_u64());
    let mut count = Count::default();
    for trace in recording(&mut chance, 300).traces.iter().chain([&run]) {
        one(trace, &mut count);
    }
    count
}

fn one(trace: &Trace, count: &mut Count) {
    let lives = Lifetimes::of(trace);
    let Ok(recorded) = read(trace, &lives, &Iterations::of(trace, &lives), None) else {
        count.refused += 1;
        return;
    };
    count.decided += 1;
    let problem = recorded.problem.clone();
    let half = problem.static_bytes + problem.skeletal_bytes() / 2;
    let answer = Method::Girih.answer(&problem, &Budgets { gpu: half, host: None });
    let answer = answer.expect("what was read can be decided");
    assert!(!answer.fits || answer.outcome.gpu_peak <= half, "{answer:?}");
    let longer = Scaled::one(recorded, 7, 0.3).at(1 << 20);
    assert_eq!(longer.layers.len(), problem.layers.len());
}
