//! States of optimizers in the plan of a step, on streams with clocks.

use girih_swap::{Gap, Op, Step, Tensor};
use serde_json::Value;

use super::MIB;
use super::trained::Run;
use crate::swap::tuning::Tuning;

/// Forward and backward through so many layers, each of which saves so many MiB and takes so many microseconds.
fn through(layers: u32, mib: u64, us: f64) -> Step {
    let mut step = Step::default();
    for op in 0..2 * layers {
        let depth = op.min(2 * layers - 1 - op) + 1;
        let us = if op < layers { us } else { 2.0 * us };
        step.ops.push(Op { key: u64::from(op), us, ..Op::default() });
        // Weights, what is saved, and a temporary.
        step.load.push((64 + u64::from(depth) * mib + mib / 2) * MIB);
    }
    for layer in 0..layers {
        let last = 2 * layers - 1 - layer;
        step.tensors.push(Tensor { request: layer, bytes: mib * MIB, born: layer, last });
        if layer + 1 < layers {
            step.gaps.push(Gap { tensor: layer, after: layer, before: last });
        }
    }
    step
}

const STATES: [u64; 8] = [128 * MIB; 8];
const OPTIMIZER_US: f64 = 3_000.0;

/// A run of such steps within so many MiB, with an optimizer whose states are offered or are just there. The times of
/// `count` steps, and what was reported.
fn run(step: &Step, mib: u64, offered: bool, count: usize) -> (Vec<f64>, Value, u32) {
    let mut run = match offered {
        true => Run::new(step, mib * MIB, Tuning::default()),
        false => {
            let mut other = step.clone();
            other.load.iter_mut().for_each(|load| *load += STATES.iter().sum::<u64>());
            Run::new(&other, mib * MIB, Tuning::default())
        }
    };
    run.optimize(if offered { &STATES } else { &[] }, OPTIMIZER_US);
    let times = (0..count).map(|_| {
        let us = run.step();
        run.finish_planning();
        us
    });
    let times = times.collect();
    let report = serde_json::to_value(run.report()).expect("numbers and texts");
    (times, report, run.refused)
}

fn least(times: &[f64]) -> f64 {
    times.iter().copied().fold(f64::INFINITY, f64::min)
}

#[test]
fn states_go_where_a_plan_is_better_off_for_it() {
    // The copies of what is saved take longer than the passes; the states have the links for themselves before.
    let step = through(24, 160, 1_000.0);
    let (with, report, refused) = run(&step, 2_600, true, 40);
    let (without, ..) = run(&step, 2_600, false, 40);
    assert_eq!(refused, 0, "{report}");
    let (with, without) = (least(&with[30..]), least(&without[30..]));
    assert!(with < 0.97 * without, "{with:.0} us with states that go, {without:.0} without");
    assert!(report["states_out"].as_u64().expect("a number") > 0, "{report}");
    let planned = report["step_us_swapped"].as_f64().expect("a number");
    assert!((planned / with - 1.0).abs() < 0.05, "{planned:.0} us were planned, {with:.0} seen");
}

#[test]
fn where_the_passes_hide_all_copies_no_step_is_longer_for_states() {
    // All that has to go is hidden behind the passes.
    let step = through(24, 32, 4_000.0);
    let (times, report, refused) = run(&step, 1_560, true, 40);
    assert_eq!(refused, 0, "{report}");
    let settled = &times[30..];
    let alone = step.us() + OPTIMIZER_US;
    assert!(settled.iter().all(|us| *us < 1.01 * alone), "{alone:.0} us alone: {settled:.0?}");
}

#[test]
fn what_no_plan_without_them_could_keep_fits_and_is_planned() {
    // The states alone are 1024 MiB.
    let step = through(16, 64, 3_000.0);
    let (times, report, refused) = run(&step, 1_250, true, 40);
    assert_eq!(refused, 0, "{report}");
    assert!(report["policies"] == 1, "{report}");
    let (first, settled) = (times[1], least(&times[30..]));
    assert!(settled <= first, "{settled:.0} us as planned, {first:.0} before");
    let planned = report["step_us_swapped"].as_f64().expect("a number");
    assert!((planned / settled - 1.0).abs() < 0.05, "{planned:.0} us planned, {settled:.0} seen");
}
