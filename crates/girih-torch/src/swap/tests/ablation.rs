//! What the numbers of [`Tuning`] are worth: steps of recordings, run by the executor on streams with clocks.
//!
//! The first step is run by an executor that knows nothing, the later ones as it has planned.
//!
//! ```text
//! cargo test --release -p girih-torch --lib -- --ignored --nocapture ablation
//! ```

use std::fs::File;
use std::path::Path;

use girih_swap::{Step, Steps};
use girih_trace::compress::Limits;
use girih_trace::{Iterations, Lifetimes, Trace, marks, open};

use super::trained::Run;
use crate::swap::tuning::Tuning;

/// Where recordings lie: those of the repository, and more beside it.
const FOLDERS: [&str; 2] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../corpus"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces"),
];
/// Steps in which much has to go at these shares of their peaks, and can.
pub(super) const RUNS: [(&str, f64); 5] = [
    ("llama2b_vary.girih", 0.8),
    ("diffusion.pickle.gz", 0.6),
    ("segmentation.pickle.gz", 0.8),
    ("lightning.pickle.gz", 0.8),
    ("trainer.pickle.gz", 0.8),
];
/// Others, on which nothing was chosen: they say whether a choice holds.
pub(super) const HELD_OUT: [(&str, f64); 4] = [
    ("llama2b_N.girih", 0.8),
    ("megatron_gpt2-V-R_r0.girih", 0.8),
    ("llama2b_R_vary.pickle.gz", 0.8),
    ("megatron_llama7b-V_r0.pickle.gz", 0.8),
];
/// A recording with its marks.
pub(super) fn trace_of(name: &str) -> Option<Trace> {
    let path = FOLDERS.iter().map(|folder| Path::new(folder).join(name)).find(|it| it.is_file())?;
    let file = File::open(&path).expect("it was there just now");
    let recording = open::detect_and_read(file, Limits::default()).expect("it is a recording");
    let mut traces = recording.traces;
    let mut trace = traces.swap_remove(0);
    let beside = path.with_file_name(name.replace(".pickle.gz", ".marks.json.gz"));
    if beside != path && beside.is_file() {
        let text = std::fs::read(beside).expect("marks");
        marks::apply(&mut trace, &text).expect("they are marks");
    }
    Some(trace)
}

/// The step of a recording that stands for all.
pub(super) fn step_of(name: &str) -> Option<Step> {
    let trace = &trace_of(name)?;
    let lives = Lifetimes::of(trace);
    let iterations = Iterations::of(trace, &lives);
    let mut steps = Steps::of(trace, &lives, &iterations, None).expect("it has steps");
    Some(steps.list.swap_remove(steps.model))
}

/// So much of what a step needs.
pub(super) fn share_of(step: &Step, share: f64) -> u64 {
    (step.peak() as f64 * share) as u64
}

/// How a setting did on one recording: the first step and the settled ones over the step without swapping, and what was
/// done badly.
#[derive(Clone, Copy, Default)]
struct Outcome {
    first: f64,
    settled: f64,
    demanded: u64,
    refused: u32,
    plans: f64,
}

/// Steps until a plan stays. Microseconds of the last.
pub(super) fn settle(run: &mut Run) -> f64 {
    // What is read is a step old, and the plan that stays is taken up after that.
    let (mut left, mut us) = (4, f64::NAN);
    for _ in 0..200 {
        us = run.step();
        run.finish_planning();
        left -= u32::from(run.report().is_settled());
        if left == 0 {
            break;
        }
    }
    us
}

fn outcome(step: &Step, share: f64, tuning: Tuning, settles: bool) -> Outcome {
    let mut run = Run::new(step, share_of(step, share), tuning);
    let alone = step.us();
    let first = run.step() / alone;
    let report = run.report();
    let demanded = report.demanded();
    let settled = if settles { settle(&mut run) / alone } else { f64::NAN };
    let (refused, plans) = (run.refused, run.report().planning_seconds());
    Outcome { first, settled, demanded, refused, plans }
}

/// A number of the tuning with its name, other values for it, and whether steps must settle to show it.
struct Knob {
    name: &'static str,
    values: &'static [f64],
    settles: bool,
    set: fn(&mut Tuning, f64),
}

const KNOBS: [Knob; 10] = [
    Knob {
        name: "ahead_part",
        values: &[2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 1e18],
        settles: false,
        set: |tuning, value| tuning.ahead_part = value as u64,
    },
    Knob {
        name: "coming_part",
        values: &[1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 1e18],
        settles: false,
        set: |tuning, value| tuning.coming_part = value as u64,
    },
    Knob {
        name: "free_part",
        values: &[4.0, 8.0, 16.0, 32.0, 64.0, 1e18],
        settles: false,
        set: |tuning, value| tuning.free_part = value as u64,
    },
    Knob {
        name: "looked_at",
        values: &[1.0, 16.0, 64.0, 256.0, 4096.0],
        settles: true,
        set: |tuning, value| tuning.looked_at = value as usize,
    },
    Knob {
        name: "stamps",
        values: &[8.0, 32.0, 128.0, 512.0, 4096.0, 16384.0],
        settles: true,
        set: |tuning, value| tuning.stamps = value as usize,
    },
    Knob {
        name: "stamps_settled",
        values: &[1.0, 16.0, 128.0, 1024.0],
        settles: true,
        set: |tuning, value| tuning.stamps_settled = value as usize,
    },
    Knob {
        name: "plans_max",
        values: &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
        settles: true,
        set: |tuning, value| tuning.plans_max = value as u32,
    },
    Knob {
        name: "in_vain_max",
        values: &[1.0, 2.0, 3.0, 4.0],
        settles: true,
        set: |tuning, value| tuning.in_vain_max = value as u32,
    },
    Knob {
        name: "better",
        values: &[0.0, 0.005, 0.01, 0.02],
        settles: true,
        set: |tuning, value| tuning.better = value,
    },
    Knob {
        name: "steps_judged",
        values: &[2.0, 3.0, 5.0],
        settles: true,
        set: |tuning, value| tuning.steps_judged = value as u32,
    },
];

#[test]
#[ignore = "it takes minutes and prints a table"]
fn ablation() {
    print_table(&KNOBS);
}

/// At how many points the time is taken, alone.
#[test]
#[ignore = "it takes minutes and prints a table"]
fn ablation_of_stamps() {
    let of_stamps: Vec<Knob> =
        KNOBS.into_iter().filter(|knob| knob.name.starts_with("stamps")).collect();
    print_table(&of_stamps);
}

#[expect(clippy::print_stdout, reason = "it prints a table")]
fn print_table(knobs: &[Knob]) {
    let read = |runs: &[(&'static str, f64)]| -> Vec<(&str, f64, Step)> {
        runs.iter().filter_map(|&(name, share)| Some((name, share, step_of(name)?))).collect()
    };
    let (steps, held_out) = (read(&RUNS), read(&HELD_OUT));
    for (name, share, step) in steps.iter().chain(&held_out) {
        println!(
            "{name}: {} operators, {} gaps, {:.0} ms, {:.1} GiB, of which {share} is given",
            step.ops.len(),
            step.gaps.len(),
            step.us() / 1e3,
            step.peak() as f64 / (1_u64 << 30) as f64
        );
    }
    println!("\n| number | value | first step | held out | late | settled | planning, s |");
    println!("| :-- | --: | --: | --: | --: | --: | --: |");
    for knob in knobs {
        for &value in knob.values {
            let mut tuning = Tuning::default();
            let usual = tuning;
            (knob.set)(&mut tuning, value);
            let mark = if tuning == usual { " (chosen)" } else { "" };
            let mean = |runs: &[(&str, f64, Step)], settles: bool| {
                let mut sum = Outcome::default();
                for (_, share, step) in runs {
                    let one = outcome(step, *share, tuning, settles);
                    sum.first += one.first / runs.len() as f64;
                    sum.settled += one.settled / runs.len() as f64;
                    sum.demanded += one.demanded;
                    sum.plans += one.plans;
                    assert_eq!(one.refused, 0, "what fits is served");
                }
                sum
            };
            let (own, others) = (mean(&steps, knob.settles), mean(&held_out, knob.settles));
            let settled = match knob.settles {
                true => format!(
                    "{:.4} + {:.4} | {:.1}",
                    own.settled,
                    others.settled,
                    own.plans + others.plans
                ),
                false => " | ".to_owned(),
            };
            let shown = if value < 1e9 { value.to_string() } else { "none".to_owned() };
            println!(
                "| {} | {shown}{mark} | {:.4} | {:.4} | {} + {} | {settled} |",
                knob.name, own.first, others.first, own.demanded, others.demanded
            );
        }
    }
}

/// Steps that have room for everything, but for one in so many: what is remembered of it.
fn with_larger_steps(step: &Step, period: usize, remembered: u32) -> (f64, u64, f64) {
    let tuning = Tuning { remembered, ..Tuning::default() };
    let mut run = Run::new(step, share_of(step, 1.1), tuning);
    let usual = step.load.iter().copied().enumerate().max_by_key(|(_, load)| *load);
    let (op, peak) = usual.expect("it has operators");
    let before = run.load_besides(op);
    let (mut us, mut count) = (0.0, 0);
    for number in 0..192 {
        let is_larger = number % period == period - 1;
        run.change_load(op, if is_larger { before + peak * 3 / 10 } else { before });
        let step = run.step();
        run.finish_planning();
        if number >= 64 {
            (us, count) = (us + step, count + 1);
        }
    }
    let report = serde_json::to_value(run.report()).expect("numbers and texts");
    let moved = report["bytes_out"].as_u64().unwrap_or(0);
    (us / f64::from(count) / step.us(), moved, run.report().planning_seconds())
}

#[test]
#[ignore = "it takes minutes and prints a table"]
#[expect(clippy::print_stdout, reason = "it prints a table")]
fn ablation_of_what_is_remembered() {
    println!("| recording | one larger step in | remembered | step | GB out | planning, s |");
    println!("| :-- | --: | --: | --: | --: | --: |");
    for (name, _) in RUNS.iter().chain(&HELD_OUT) {
        let Some(step) = step_of(name) else { continue };
        for period in [2, 3, 8, 24] {
            for remembered in [1, 2, 4, 16] {
                let (us, bytes, planning) = with_larger_steps(&step, period, remembered);
                let bytes = bytes as f64 / 1e9;
                println!(
                    "| {name} | {period} | {remembered} | {us:.4} | {bytes:.1} | {planning:.1} |"
                );
            }
        }
    }
}

/// What it is worth to measure links: settled steps of some recordings on others than the usual ones, with and without.
#[test]
#[ignore = "it takes minutes and prints a table"]
#[expect(clippy::print_stdout, reason = "it prints a table")]
fn ablation_of_links() {
    println!("| recording | links, GB/s | links_least | settled | as planned last |");
    println!("| :-- | --: | --: | --: | --: |");
    let usual = Tuning::default();
    for (name, share) in [RUNS[0], HELD_OUT[0], HELD_OUT[1]] {
        let Some(step) = step_of(name) else { continue };
        for rate in [12e3, 25e3, 41e3] {
            for (shown, least) in [("64 MiB", usual.links_least), ("none", u64::MAX)] {
                let tuning = Tuning { links_least: least, ..usual };
                let mut run = Run::on([rate; 2], &step, share_of(&step, share), tuning);
                let settled = settle(&mut run) / step.us();
                let report = serde_json::to_value(run.report()).expect("numbers");
                let planned = report["step_us_swapped"].as_f64().unwrap_or(0.0) / step.us();
                println!("| {name} | {} | {shown} | {settled:.4} | {planned:.4} |", rate / 1e3);
            }
        }
    }
}

/// The table is made by hand; that what makes it works is seen each time.
#[test]
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn a_step_of_a_recording_is_swapped_on_streams_with_clocks() {
    let Some(step) = step_of("llama2b_vary.girih") else {
        return eprintln!("SKIPPED: the recordings are not there");
    };
    let fits = outcome(&step, 1.2, Tuning::default(), false);
    assert!((fits.first - 1.0).abs() < 1e-9, "what fits takes its time and no more");
    let swapped = outcome(&step, 0.8, Tuning::default(), false);
    assert!(swapped.first > 1.0, "copies take time");
    assert_eq!(swapped.refused, 0);
    let alone = outcome(&step, 0.8, Tuning { ahead_part: u64::MAX, ..Tuning::default() }, false);
    assert!(alone.first > swapped.first, "{} without copies ahead", alone.first);
}

/// Without the time of each operator a step of this recording takes 2.9 % longer than its schedule says.
#[test]
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn a_step_takes_as_long_as_the_schedule_that_it_follows_says() {
    let Some(step) = step_of("megatron_gpt2-V-R_r0.girih") else {
        return eprintln!("SKIPPED: the recordings are not there");
    };
    let mut run = Run::on([25e3; 2], &step, share_of(&step, 0.8), Tuning::default());
    let settled = settle(&mut run) / step.us();
    let report = serde_json::to_value(run.report()).expect("numbers");
    let promised = report["step_us_swapped"].as_f64().expect("a number") / step.us();
    assert!(promised >= 0.999 && settled < promised * 1.005, "{settled:.4}, not {promised:.4}");
    assert!(report["bytes_out"].as_u64().expect("a number") > 1 << 30, "much goes");
}

/// Without this a plan takes its own waits for work, sees that nothing is waited for, and stays.
#[test]
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn a_wait_for_a_copy_is_no_work_and_the_plan_with_the_shortest_step_stays() {
    let Some(step) = step_of("llama2b_vary.girih") else {
        return eprintln!("SKIPPED: the recordings are not there");
    };
    let mut run = Run::new(&step, share_of(&step, 0.8), Tuning::default());
    let (mut times, mut planned, mut settled_at) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..26 {
        times.push(run.step() / step.us());
        run.finish_planning();
        let report = serde_json::to_value(run.report()).expect("numbers");
        planned.push(report["step_us"].as_f64().expect("a number") / step.us());
        settled_at.extend(run.report().is_settled().then_some(number));
    }
    let Tuning { in_vain_max, steps_judged, .. } = Tuning::default();
    assert!(
        settled_at[0] >= in_vain_max * steps_judged
            && settled_at == Vec::from_iter(settled_at[0]..26),
        "{settled_at:?}"
    );
    let first = planned.iter().find(|us| **us > 0.0).expect("it is planned");
    assert!((0.7..1.05).contains(first), "a step takes {first:.3} of itself without waits");
    assert!(times[3] > 1.3, "and there are waits");
    let (before, settled) = (&times[4..22], times[25]);
    let least = before.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(settled <= least * 1.001, "{settled:.3} in the end, {least:.3} before: {times:.3?}");
}
