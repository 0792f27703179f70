//! Steps of programs of other kinds than those that are generated as traces: the schedule is near the bound, and no method
//! gets below it.

use crate::common::generated;
use crate::written::{accumulation, encoder_decoder, u_net};
use girih_swap::{Answer, Budgets, Links, Method, Step};
use girih_trace::generate::{Chance, Rng, Training};

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

/// Further from the bound than the others, for it is weak here: a linear program, which no schedule beats either, is at most
/// 2.9 % below the schedules (`scripts/linear-bound`).
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
