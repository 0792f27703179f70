//! A host that falls behind while schedules are tried: operators seem to take longer than they do.

use girih_swap::Step;

use super::ablation::{HELD_OUT, RUNS, settle, share_of, step_of};
use super::trained::Run;
use crate::swap::tuning::Tuning;

/// What steps take once nothing is held up any more, over the step without swapping: settled, and as promised.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    settled: f64,
    promised: f64,
    planning: f64,
}

/// Every third operator takes so many times as long until a schedule has stayed.
fn held_up(step: &Step, share: f64, times: f64, tuning: Tuning) -> Outcome {
    held_up_in(Run::new(step, share_of(step, share), tuning), step, times)
}

fn held_up_in(mut run: Run, step: &Step, times: f64) -> Outcome {
    let held = |op: usize| if op.is_multiple_of(3) { times } else { 1.0 };
    (0..step.ops.len()).for_each(|op| run.change_time(op, step.ops[op].us * held(op)));
    settle(&mut run);
    (0..step.ops.len()).for_each(|op| run.change_time(op, step.ops[op].us));
    // The first of them is read when the second has ended.
    for _ in 0..4 {
        run.step();
        run.finish_planning();
    }
    let settled = settle(&mut run) / step.us();
    let report = serde_json::to_value(run.report()).expect("numbers");
    let number = |name: &str| report[name].as_f64().expect("a number");
    Outcome {
        settled,
        promised: number("step_us_swapped") / step.us(),
        planning: number("planning_seconds"),
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn a_schedule_that_was_made_for_longer_operators_is_made_again() {
    let (name, share) = HELD_OUT[1];
    let Some(step) = step_of(name) else {
        return eprintln!("SKIPPED: the recordings are not there");
    };
    let usual = Tuning::default();
    let again = held_up(&step, share, 3.0, usual);
    let never = Tuning { times_differ: f64::INFINITY, times_told: f64::INFINITY, ..usual };
    let kept = held_up(&step, share, 3.0, never);
    assert!(again.settled <= kept.settled * 1.003, "{again:?}, {kept:?} without");
    assert!((again.promised / again.settled - 1.0).abs() < 0.01, "{again:?}");
    assert!(kept.promised > kept.settled * 1.2, "without, it promises what never was: {kept:?}");
}

#[test]
#[ignore = "it takes minutes and prints a table"]
#[expect(clippy::print_stdout, reason = "it prints a table")]
fn ablation_of_times() {
    println!("| recording | held up | times_differ | settled | promised | planning, s |");
    println!("| :-- | --: | --: | --: | --: | --: |");
    for (name, share) in RUNS.iter().chain(&HELD_OUT) {
        let Some(step) = step_of(name) else { continue };
        for times in [1.0, 1.5, 3.0] {
            for differ in [f64::INFINITY, 0.2, 0.1, 0.05, 0.02] {
                let tuning = Tuning { times_differ: differ, ..Tuning::default() };
                let Outcome { settled, promised, planning } = held_up(&step, *share, times, tuning);
                println!(
                    "| {name} | {times} | {differ} | {settled:.4} | {promised:.4} | {planning:.1} |"
                );
            }
        }
    }
}

/// Links carry a fifth more once schedules have settled, since no view is made beside copies any more: how far off it is
/// what a step is then said to take, after so many steps.
#[test]
#[ignore = "it takes minutes and prints a table"]
#[expect(clippy::print_stdout, reason = "it prints a table")]
fn ablation_of_links_at_rest() {
    println!("| recording | links_again | after 8 steps | 16 | 32 | 64 |");
    println!("| :-- | --: | --: | --: | --: | --: |");
    for (name, share) in RUNS.iter().chain(&HELD_OUT) {
        let Some(step) = step_of(name) else { continue };
        for again in [1, 4, 16, u64::MAX] {
            let tuning = Tuning { links_again: again, ..Tuning::default() };
            let mut run = Run::on([42e3; 2], &step, share_of(&step, *share), tuning);
            settle(&mut run);
            run.change_links([50e3; 2]);
            let mut off = Vec::new();
            for count in 1..=64_u32 {
                let us = run.step();
                run.finish_planning();
                if count.is_power_of_two() && count >= 8 {
                    let report = serde_json::to_value(run.report()).expect("numbers");
                    let due = report["step_us_swapped"].as_f64().expect("a number");
                    off.push(format!("{:+.2} %", 100.0 * (due / us - 1.0)));
                }
            }
            println!("| {name} | {again} | {} |", off.join(" | "));
        }
    }
}

/// What decides whether a step is planned once more: operators seem to take three times as long at first, and links are
/// half as fast as the executor reckons before it has measured them.
#[test]
#[ignore = "it takes minutes and prints a table"]
#[expect(clippy::print_stdout, reason = "it prints a table")]
fn ablation_of_planning_again() {
    let usual = Tuning::default();
    let tunings = [
        ("as chosen", usual),
        ("again_max 0", Tuning { again_max: 0, ..usual }),
        ("again_max 1", Tuning { again_max: 1, ..usual }),
        ("again_max 4", Tuning { again_max: 4, ..usual }),
        ("links_differ inf", Tuning { links_differ: f64::INFINITY, ..usual }),
        ("links_differ 0.2", Tuning { links_differ: 0.2, ..usual }),
        ("links_differ 0.1", Tuning { links_differ: 0.1, ..usual }),
        ("links_differ 0.02", Tuning { links_differ: 0.02, ..usual }),
        ("times_told inf", Tuning { times_told: f64::INFINITY, ..usual }),
        ("times_told 0.05", Tuning { times_told: 0.05, ..usual }),
        ("times_told 0.002", Tuning { times_told: 0.002, ..usual }),
    ];
    println!("| recording | numbers | settled | promised | planning, s |");
    println!("| :-- | :-- | --: | --: | --: |");
    for (name, share) in RUNS.iter().chain(&HELD_OUT) {
        let Some(step) = step_of(name) else { continue };
        for (shown, tuning) in tunings {
            let run = Run::on([27e3; 2], &step, share_of(&step, *share), tuning);
            let Outcome { settled, promised, planning } = held_up_in(run, &step, 3.0);
            println!("| {name} | {shown} | {settled:.4} | {promised:.4} | {planning:.1} |");
        }
    }
}
