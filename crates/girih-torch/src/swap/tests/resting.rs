//! Steps that repeat, whose every request comes as it was recorded: whether their views end, what room that needs, and how
//! many schedules are worth trying before.

use super::ablation::{HELD_OUT, RUNS, share_of, trace_of};
use super::recorded::Recorded;
use super::trained::Run;
use crate::swap::tuning::Tuning;

/// Steps of a run, of which the last few count.
const STEPS: usize = 90;
const COUNTED: usize = 10;

/// How many times the prices of the list the driver takes where copies go on.
const DEARNESS: f64 = 3.0;

/// And where views take as much as they do on an H200 before rest: 0.1 to 0.9 of a step (`bench/results/lake.md`).
const DEAR: f64 = 10.0;

/// What steps of a run took, over the step alone: all of them, and the last; pages mapped in each of these; plans that were
/// made, steps that were laid out, and refused.
struct Rested {
    all: f64,
    us: f64,
    plans: u64,
    pages: u64,
    laid_out: u64,
    refused: u64,
    without: u64,
}

fn rested(name: &str, share: f64, dearness: f64, tuning: Tuning) -> Option<Rested> {
    let recorded = Recorded::of(&trace_of(name)?)?;
    let step = &recorded.0;
    let mut run = Run::recorded(&recorded, share_of(step, share), dearness, tuning);
    let (mut all, mut us, mut pages) = (0.0, 0.0, 0);
    for number in 0..STEPS {
        run.go_on(&recorded);
        let before = run.mapped();
        let taken = run.step();
        run.finish_planning();
        all += taken;
        if number + COUNTED >= STEPS {
            us += taken;
            pages += run.mapped() - before;
        }
    }
    let layings = run.layings();
    let report = serde_json::to_value(run.report()).expect("numbers");
    Some(Rested {
        all: all / STEPS as f64 / step.us(),
        plans: report["sequences"][0]["plans"].as_u64().unwrap_or(0),
        us: us / COUNTED as f64 / step.us(),
        pages: pages / COUNTED as u64,
        laid_out: layings.laid_out,
        refused: layings.refused,
        without: layings.without_place,
    })
}

#[test]
#[ignore = "it takes minutes and prints a table"]
#[expect(clippy::print_stdout, reason = "it prints a table")]
fn ablation_of_rest() {
    println!(
        "| recording | of its peak | free, one part in | step | pages | laid out | refused | MiB |"
    );
    println!("| :-- | --: | --: | --: | --: | --: | --: | --: |");
    for (name, share) in RUNS.into_iter().chain(HELD_OUT) {
        for spare_part in [u64::MAX, 64, 32, 16, 8] {
            let tuning = Tuning { spare_part, ..Tuning::default() };
            let Some(it) = rested(name, share, DEARNESS, tuning) else { continue };
            let shown = if spare_part < 1000 { spare_part.to_string() } else { "none".to_owned() };
            println!(
                "| {name} | {share} | {shown} | {:.4} | {} | {} | {} | {} |",
                it.us,
                it.pages,
                it.laid_out,
                it.refused,
                it.without >> 20
            );
        }
    }
}

/// `plans_held_up`, `made_good` and `rested_gain`: with a gain of 1 no schedule is made of what is seen at rest.
const TRIED: [(u32, u32, f64); 6] = [
    (2, 64, 0.03),
    (2, 16, 0.03),
    (2, u32::MAX, 0.03),
    (2, 64, 1.0),
    (16, 64, 0.03),
    (16, u32::MAX, 1.0),
];

#[test]
#[ignore = "it takes minutes and prints a table"]
#[expect(clippy::print_stdout, reason = "it prints a table")]
fn ablation_of_plans_held_up() {
    println!(
        "| recording | of its peak | plans_held_up, made_good, rested_gain | plans | step, all | step, last | pages | laid out | refused |"
    );
    println!("| :-- | --: | --: | --: | --: | --: | --: | --: | --: |");
    for (name, share) in RUNS.into_iter().chain(HELD_OUT) {
        for (plans_held_up, made_good, rested_gain) in TRIED {
            let tuning = Tuning { plans_held_up, made_good, rested_gain, ..Tuning::default() };
            let Some(it) = rested(name, share, DEAR, tuning) else { continue };
            println!(
                "| {name} | {share} | {plans_held_up}, {made_good}, {rested_gain} | {} | {:.4} | {:.4} | {} | {} | {} |",
                it.plans, it.all, it.us, it.pages, it.laid_out, it.refused
            );
        }
    }
}

/// Steps of a run in which some are odd, and which those are: as where layers that are split are compared.
const STEPS_OF_ODD: usize = 120;
const ODD: [usize; 2] = [48, 80];

/// What steps of such a run took, over the step alone: the last before the first odd one, those from each odd one to the one
/// before the next in all, less as many as the first, and the last.
struct Disturbed {
    before: f64,
    more: [f64; 2],
    last: f64,
    pages: u64,
    laid_out: u64,
}

/// In an odd step there is as much as a part of the step's peak besides, in every eighth operator of the first half.
fn disturbed(name: &str, share: f64) -> Option<Disturbed> {
    let recorded = Recorded::of(&trace_of(name)?)?;
    let step = &recorded.0;
    let mut run = Run::recorded(&recorded, share_of(step, share), DEAR, Tuning::default());
    let besides = step.peak() / 64;
    let (mut us, mut pages) = (Vec::new(), 0);
    for number in 0..STEPS_OF_ODD {
        run.go_on(&recorded);
        if ODD.contains(&number) {
            (0..step.ops.len() / 2).step_by(8).for_each(|op| run.change_load(op, besides));
        }
        let before = run.mapped();
        us.push(run.step() / step.us());
        run.finish_planning();
        pages = run.mapped() - before;
    }
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let [first, second] = ODD;
    let before = mean(&us[first - COUNTED..first]);
    let more = |of: &[f64]| of.iter().map(|us| us - before).sum();
    Some(Disturbed {
        before,
        more: [more(&us[first..second]), more(&us[second..])],
        last: mean(&us[STEPS_OF_ODD - COUNTED..]),
        pages,
        laid_out: run.layings().laid_out,
    })
}

#[test]
#[ignore = "it takes minutes and prints a table"]
#[expect(clippy::print_stdout, reason = "it prints a table")]
fn ablation_of_odd_steps() {
    println!("| recording | of its peak | before | more | more | last | pages | laid out |");
    println!("| :-- | --: | --: | --: | --: | --: | --: | --: |");
    for (name, share) in RUNS.into_iter().chain(HELD_OUT) {
        let Some(it) = disturbed(name, share) else { continue };
        println!(
            "| {name} | {share} | {:.4} | {:.2} | {:.2} | {:.4} | {} | {} |",
            it.before, it.more[0], it.more[1], it.last, it.pages, it.laid_out
        );
    }
}
