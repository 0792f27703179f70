//! Steps and what their schedules take, as text, for the linear program of `scripts/linear-bound`.
//!
//! ```sh
//! cargo run --release -p girih-swap --example steps -- FOLDER
//! ```
//!
//! They are the programs that the tests have written down, on links of an older machine, and generated pipelines that are far
//! from the bound, each within some parts of its peak. A file has, line by line:
//!
//! ```text
//! links OUTWARD INWARD BOTH     bytes a microsecond
//! gpu BYTES                     the budget
//! us SCHEDULE BOUND             microseconds of the step
//! op US BYTES                   an operator, and what is alive during it
//! gap AFTER BEFORE BYTES        a tensor that lies idle between two operators
//! ```

#![expect(clippy::print_stdout, reason = "a program that prints what it writes")]

#[path = "../tests/written.rs"]
mod written;

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;

use girih_swap::bound::bound;
use girih_swap::girih::plan;
use girih_swap::{Budgets, Links, Step, Steps, simulate};
use girih_trace::generate::{Rng, Training, training};
use girih_trace::{Iterations, Lifetimes};

/// The step with its schedule's time and the bound within so much of its peak.
fn text(step: &Step, links: &Links, share: f64) -> String {
    let gpu = ((step.peak() as f64 * share) as u64).max(step.least_budget().0);
    let schedule = plan(step, links, &Budgets { gpu, host: None });
    let own = simulate(step, links, &schedule).step_us;
    let bound = bound(step, links, gpu);
    let mut text = format!(
        "links {} {} {}\ngpu {gpu}\nus {own} {bound}\n",
        links.outward, links.inward, links.both
    );
    // Writing to a string does not fail.
    for (op, load) in step.ops.iter().zip(&step.load) {
        let _ = writeln!(text, "op {} {load}", op.us);
    }
    for (index, gap) in (0u32..).zip(&step.gaps) {
        let _ = writeln!(text, "gap {} {} {}", gap.after, gap.before, step.bytes(index));
    }
    text
}

/// The second step of a pipeline's first stage, of three layers and sixteen microbatches.
fn pipeline(operators: bool) -> Result<Step, Box<dyn Error>> {
    let of = Training {
        steps: 2,
        layers: 3,
        stages: 4,
        microbatches: 16,
        operators,
        ..Training::default()
    };
    let trace = training(&of, 1);
    let lives = Lifetimes::of(&trace);
    let mut steps = Steps::of(&trace, &lives, &Iterations::of(&trace, &lives), None)?;
    Ok(steps.list.swap_remove(steps.model))
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("which folder is to be written to?")?;
    std::fs::create_dir_all(&folder)?;
    let old = Links::of_gigabytes(12.0, 12.0, 20.0);
    let own = [
        ("u_net", written::u_net(&mut Rng::new(1)), old, [0.7, 0.55]),
        ("encoder_decoder", written::encoder_decoder(&mut Rng::new(1)), old, [0.7, 0.55]),
        ("accumulation", written::accumulation(&mut Rng::new(1)), old, [0.7, 0.55]),
        ("pipeline", pipeline(false)?, Links::default(), [0.85, 0.7]),
        ("pipeline_operators", pipeline(true)?, Links::default(), [0.85, 0.7]),
    ];
    for (name, step, links, shares) in own {
        for share in shares {
            let path = Path::new(&folder).join(format!("{name}-{share}.txt"));
            std::fs::write(&path, text(&step, &links, share))?;
            println!("{}: {} operators, {} gaps", path.display(), step.ops.len(), step.gaps.len());
        }
    }
    Ok(())
}
