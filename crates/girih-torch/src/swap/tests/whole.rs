//! What a run takes from its first step on, with the driver's time for views: how many schedules are worth trying.

use super::ablation::{HELD_OUT, RUNS, share_of, trace_of};
use super::recorded::Recorded;
use super::trained::Run;
use crate::swap::tuning::Tuning;

/// Steps of a run, of which the last few are shown alone too.
const STEPS: usize = 90;
const LAST: usize = 10;

/// How many times the prices of the list the driver takes: views of the shapes of `bench/results/lake.md` ("Two are
/// tried") take 0.1 to 0.9 of a step.
const DEARNESS: f64 = 10.0;

/// `plans_held_up`, `made_good` and `rested_gain`: with a gain of 1 no schedule is made of what is seen at rest.
const TRIED: [(u32, u32, f64); 6] = [
    (2, 64, 0.03),
    (2, 16, 0.03),
    (2, u32::MAX, 0.03),
    (2, 64, 1.0),
    (16, 64, 0.03),
    (16, u32::MAX, 1.0),
];

#[expect(clippy::print_stdout, reason = "it prints a table")]
fn table(runs: &[(&'static str, f64)]) {
    for &(name, share) in runs {
        let Some(recorded) = trace_of(name).and_then(|trace| Recorded::of(&trace)) else {
            continue;
        };
        let step = &recorded.0;
        for (plans_held_up, made_good, rested_gain) in TRIED {
            let tuning = Tuning { plans_held_up, made_good, rested_gain, ..Tuning::default() };
            let mut run = Run::recorded(&recorded, share_of(step, share), DEARNESS, tuning);
            let (mut all, mut last, mut pages) = (0.0, 0.0, 0);
            for number in 0..STEPS {
                run.go_on(&recorded);
                let before = run.mapped();
                let taken = run.step();
                run.finish_planning();
                all += taken;
                if number + LAST >= STEPS {
                    last += taken;
                    pages += run.mapped() - before;
                }
            }
            let report = serde_json::to_value(run.report()).expect("numbers");
            let layings = run.layings();
            println!(
                "| {name} | {share} | {plans_held_up} | {made_good} | {rested_gain} | {} | {:.4} | {:.4} | {} | {} | {} |",
                report["sequences"][0]["plans"],
                all / STEPS as f64 / step.us(),
                last / LAST as f64 / step.us(),
                pages / LAST as u64,
                layings.laid_out,
                layings.refused,
            );
        }
    }
}

/// Of recording, part of its peak, the three numbers, plans made, a step over the step alone, of all and of the last, pages
/// that these mapped, steps laid out and refused.
#[test]
#[ignore = "it takes minutes and prints a table"]
fn ablation_of_plans_held_up() {
    table(&RUNS);
}

/// The same of the other recordings.
#[test]
#[ignore = "it takes minutes and prints a table"]
fn ablation_of_plans_held_up_elsewhere() {
    table(&HELD_OUT);
}
