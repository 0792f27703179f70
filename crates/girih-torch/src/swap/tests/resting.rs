//! Steps that repeat, whose every request comes as it was recorded: whether their views end, and what room that needs.

use super::ablation::{HELD_OUT, RUNS, share_of, trace_of};
use super::recorded::Recorded;
use super::trained::Run;
use crate::swap::tuning::Tuning;

/// Steps of a run, of which the last few count.
const STEPS: usize = 90;
const COUNTED: usize = 10;

/// How many times the prices of the list the driver takes where copies go on.
const DEARNESS: f64 = 3.0;

/// What the last steps of a run took: over the step alone, pages mapped in each; steps that were laid out, and refused.
struct Rested {
    us: f64,
    pages: u64,
    laid_out: u64,
    refused: u64,
    without: u64,
}

fn rested(name: &str, share: f64, tuning: Tuning) -> Option<Rested> {
    let recorded = Recorded::of(&trace_of(name)?)?;
    let step = &recorded.0;
    let mut run = Run::recorded(&recorded, share_of(step, share), DEARNESS, tuning);
    let (mut us, mut pages) = (0.0, 0);
    for number in 0..STEPS {
        run.go_on(&recorded);
        let before = run.mapped();
        let taken = run.step();
        run.finish_planning();
        if number + COUNTED >= STEPS {
            us += taken;
            pages += run.mapped() - before;
        }
    }
    let layings = run.layings();
    Some(Rested {
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
            let Some(it) = rested(name, share, tuning) else { continue };
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
