//! What views cost a step that swaps: recordings with all of their requests, in the order in which they came.

use super::ablation::{HELD_OUT, RUNS, settle, share_of, trace_of};
use super::recorded::Recorded;
use super::trained::Run;
use crate::swap::tuning::Tuning;

/// How many times the prices of the list an H100's driver takes for a page beside a thread that launches kernels
/// (`gpu/facts/busy.py`); an H200's takes 1.3 to 1.9 times as much in runs that swap (`bench/results/gpu/gate-h200.json`).
const DEARNESS: f64 = 1.85;

/// Pages that are mapped in each of so many steps.
fn mapped(run: &mut Run, steps: usize) -> Vec<u64> {
    let step = |_| {
        let before = run.mapped();
        run.step();
        run.mapped() - before
    };
    (0..steps).map(step).collect()
}

#[test]
#[ignore = "it takes minutes and prints a table"]
#[expect(clippy::print_stdout, reason = "it prints a table")]
fn table_of_views() {
    println!(
        "| recording | budget | of 24 settled steps | with the driver's time | pages mapped in each |"
    );
    println!("| :-- | --: | --: | --: | :-- |");
    for (name, share) in RUNS.iter().chain(&HELD_OUT) {
        let Some(recorded) = trace_of(name).and_then(|trace| Recorded::of(&trace)) else {
            continue;
        };
        let step = &recorded.0;
        let mut run = Run::recorded(&recorded, share_of(step, *share), DEARNESS, Tuning::default());
        settle(&mut run);
        let (begin, driver) = (run.now(), run.driver_us());
        let pages: Vec<String> = mapped(&mut run, 24).iter().map(u64::to_string).collect();
        let all = (run.now() - begin) / 24.0 / step.us();
        let driver = (run.driver_us() - driver) / 24.0 / step.us();
        println!("| {name} | {share} | {:.4} | {all:.4} | {} |", all - driver, pages.join(" "));
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn all_requests_of_a_recording_are_served_within_a_budget_and_views_end() {
    let Some(recorded) = trace_of("llama2b_vary.girih").and_then(|it| Recorded::of(&it)) else {
        return eprintln!("SKIPPED: the recordings are not there");
    };
    let step = &recorded.0;
    let mut run = Run::recorded(&recorded, share_of(step, 0.8), 0.0, Tuning::default());
    let pages = mapped(&mut run, 3);
    assert!(pages[0] > 0 && run.refused == 0, "{pages:?}, {} refused", run.refused);
    settle(&mut run);
    assert_eq!((mapped(&mut run, 4), run.refused), (vec![0; 4], 0));
}
