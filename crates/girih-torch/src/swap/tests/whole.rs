//! What a run takes from its first step on, with the driver's time for views: how many schedules are worth trying.

use super::ablation::{HELD_OUT, RUNS, share_of, trace_of};
use super::recorded::Recorded;
use super::trained::Run;
use crate::swap::tuning::Tuning;

/// Steps of a run, of which the last few are shown alone too.
const STEPS: usize = 90;
const LAST: usize = 10;

#[test]
#[ignore = "it takes minutes and prints a table"]
#[expect(clippy::print_stdout, reason = "it prints a table")]
fn ablation_of_plans_held_up() {
    println!(
        "| recording | of its peak | driver, times the list | plans at most | plans | step, all | last | pages, last | laid out | refused |"
    );
    println!("| :-- | --: | --: | --: | --: | --: | --: | --: | --: | --: |");
    for (name, share) in RUNS.into_iter().chain(HELD_OUT) {
        let Some(recorded) = trace_of(name).and_then(|trace| Recorded::of(&trace)) else {
            continue;
        };
        let step = &recorded.0;
        for dearness in [1.85, 10.0] {
            for plans_held_up in [1, 2, 3, 4, 16] {
                let tuning = Tuning { plans_held_up, ..Tuning::default() };
                let mut run = Run::recorded(&recorded, share_of(step, share), dearness, tuning);
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
                    "| {name} | {share} | {dearness} | {plans_held_up} | {} | {:.4} | {:.4} | {} | {} | {} |",
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
}
