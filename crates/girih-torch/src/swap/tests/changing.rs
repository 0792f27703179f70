//! Recordings whose steps differ, all of them one after the other: nothing is ever as it was planned.

use girih_swap::bound::bound;
use girih_swap::{Links, Step};
use girih_trace::generate::{Chance, Rng};

use super::ablation::trace_of;
use super::recorded::Recorded;
use super::trained::Run;
use crate::swap::tuning::Tuning;

/// Recordings of steps that vary, and shares of their peaks that most of them can keep.
const RUNS: [(&str, f64); 9] = [
    ("llama2b_vary.girih", 0.8),
    ("llama2b_R_vary.pickle.gz", 0.85),
    ("moe_vary.girih", 0.9),
    ("kinds/experts.girih", 0.8),
    ("kinds/gan.girih", 0.8),
    ("kinds/evaluation.girih", 0.8),
    ("kinds/turns.girih", 0.8),
    ("kinds/video.girih", 0.8),
    ("diffusion.pickle.gz", 0.8),
];

/// Steps of a run for the table, drawn from those of the recording; the second half counts.
const STEPS: usize = 60;

/// What a run of all steps took: microseconds alone, swapped, and by the bounds of each; pages mapped; refusals.
#[derive(Default)]
struct Taken {
    alone: f64,
    us: f64,
    bound: f64,
    pages: u64,
    steps: u32,
    retries: i64,
    released: u64,
    refused: u32,
    /// Of all steps.
    victims: u64,
    demanded: u64,
    /// Steps that were simulated as they were, what they took by that, and as measured.
    checked: (u64, f64, f64),
}

/// So many steps, with another part of the budget left free, and other numbers.
fn run(steps: &[(Step, Recorded)], count: usize, budget: u64, spare: f64, tuning: Tuning) -> Taken {
    let most = steps.iter().max_by_key(|(step, _)| step.peak()).expect("there are steps");
    let mut run = Run::recorded(most, budget, 0.0, tuning);
    let room = crate::swap::settings::room(budget);
    run.set_room(room - (budget as f64 * spare) as u64);
    let mut taken = Taken::default();
    let mut rng = Rng::new(5);
    for number in 0..count {
        let step = &steps[rng.below(steps.len() as u64) as usize];
        run.go_on(step);
        let before = run.mapped();
        let (retries, released) = run.retries();
        let us = run.step();
        run.finish_planning();
        if 2 * number >= count {
            taken.alone += step.0.us();
            taken.us += us;
            taken.bound += bound(&step.0, &Links::default(), room);
            taken.pages += run.mapped() - before;
            taken.retries += run.retries().0 - retries;
            taken.released += run.retries().1 - released;
            taken.steps += 1;
        }
    }
    let report = run.report();
    taken.victims = report.victims();
    taken.demanded = report.demanded();
    taken.checked = report.checked();
    taken.refused = run.refused;
    taken
}

#[test]
#[ignore = "it takes minutes and prints a table"]
#[expect(clippy::print_stdout, reason = "it prints a table")]
fn ablation_of_changing_steps() {
    let usual = Tuning::default();
    let settings = [
        ("as chosen", 0.0, usual),
        ("surely none", 0.0, Tuning { surely: 1, ..usual }),
        ("surely 4", 0.0, Tuning { surely: 4, ..usual }),
        ("surely 64", 0.0, Tuning { surely: 64, ..usual }),
        ("told_by 2", 0.0, Tuning { told_by: 2, ..usual }),
        ("told_by 32", 0.0, Tuning { told_by: 32, ..usual }),
        ("5 % free", 0.05, usual),
    ];
    println!(
        "| recording | budget | numbers | over alone | over bound | pages a step | retries | released | refused \
         | victims | demanded | checked | over simulated |"
    );
    println!("| :-- | --: | :-- | --: | --: | --: | --: | --: | --: | --: | --: |");
    for (name, share) in RUNS {
        let Some(trace) = trace_of(name) else { continue };
        let steps = Recorded::all_of(&trace);
        let Some(peak) = steps.iter().map(|(step, _)| step.peak()).max() else { continue };
        for (shown, spare, tuning) in settings {
            let it = run(&steps, STEPS, (peak as f64 * share) as u64, spare, tuning);
            let (checked, simulated, measured) = it.checked;
            println!(
                "| {name} | {share} | {shown} | {:.4} | {:.4} | {} | {} | {} | {} | {} | {} | {checked} | {:.4} |",
                it.us / it.alone,
                it.us / it.bound,
                it.pages / u64::from(it.steps.max(1)),
                it.retries,
                it.released,
                it.refused,
                it.victims,
                it.demanded,
                measured / simulated,
            );
        }
    }
}

/// So many steps of one of the recordings; none if it is not there.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn run_of(name: &str, count: usize) -> Option<Taken> {
    let (_, share) = RUNS.into_iter().find(|(run, _)| *run == name)?;
    let steps = trace_of(name).map(|trace| Recorded::all_of(&trace)).unwrap_or_default();
    let Some(peak) = steps.iter().map(|(step, _)| step.peak()).max() else {
        eprintln!("SKIPPED: the recordings are not there");
        return None;
    };
    Some(run(&steps, count, (peak as f64 * share) as u64, 0.0, Tuning::default()))
}

/// They took 1.048 times as long when they followed the schedule of the largest as it stands.
#[test]
fn steps_of_other_sizes_follow_a_schedule_no_longer_than_they_need_to() {
    let Some(Taken { us, alone, refused, .. }) = run_of("kinds/gan.girih", STEPS) else { return };
    assert!(us < 1.035 * alone, "{:.4}", us / alone);
    assert_eq!(refused, 0);
}

#[test]
fn what_a_step_of_any_size_took_is_what_the_simulator_says_of_it() {
    let Some(Taken { checked, .. }) = run_of("moe_vary.girih", STEPS) else { return };
    let (count, simulated, measured) = checked;
    assert!(count > 3, "{count} steps were simulated");
    assert!((measured / simulated - 1.0).abs() < 0.01, "{measured} us, not {simulated}");
}

/// Each request that was refused had the host wait for the device and all that was free go back, views with it, before
/// anything went that could: 96 times in the last 30 steps of 60.
#[test]
fn tensors_go_before_the_host_waits_and_all_that_is_free_is_given_back() {
    let Some(Taken { us, alone, retries, refused, .. }) = run_of("kinds/experts.girih", 20) else {
        return;
    };
    assert!(retries < 3, "all that is free was given back {retries} times");
    assert!(us < 1.1 * alone, "{:.4}", us / alone);
    assert_eq!(refused, 0);
}
