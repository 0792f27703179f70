//! How the time that a schedule takes grows with the step: generated runs of some families, each of so many events.
//!
//! ```sh
//! cargo run --release -p girih-swap --example growth -- 200000 800000
//! cargo run --release -p girih-swap --example growth -- only=deep seed=7 200000
//! ```
//!
//! A run has two steps, of which the second is planned within 0.7 of its peak. Prints a table in Markdown: seconds of a
//! processor for the step itself, the bound, the schedule (with the bound that it asks for) and the check, the bound over the step as it is,
//! step / bound, and the most memory that the process has held so far.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::error::Error;
use std::time::Instant;

use girih_swap::bound::bound;
use girih_swap::check::check;
use girih_swap::girih::plan;
use girih_swap::{Budgets, Links, Steps, simulate};
use girih_trace::generate::{Training, training};
use girih_trace::{Iterations, Lifetimes, Trace};

/// A run that can be made longer.
struct Family {
    name: &'static str,
    of: Training,
    /// What is made longer: the microbatches of a step, or the layers of the model.
    is_deep: bool,
}

fn families() -> Vec<Family> {
    let long = Training { steps: 2, layers: 16, stages: 1, ..Training::default() };
    let family = |name, of, is_deep| Family { name, of, is_deep };
    vec![
        family("one stage", long.clone(), false),
        family("last of 4", Training { stages: 4, stage: 3, ..long.clone() }, false),
        family("first of 8", Training { stages: 8, ..long.clone() }, false),
        family("recompute", Training { recompute: true, stages: 4, ..long.clone() }, false),
        family("experts", Training { experts: 8, stages: 4, ..long.clone() }, false),
        family("lengths vary", Training { jitter: 200, stages: 4, ..long.clone() }, false),
        family("operators", Training { operators: true, stages: 4, ..long.clone() }, false),
        family("deep", Training { microbatches: 1, ..long.clone() }, true),
        family("deep, 4 of each", Training { microbatches: 4, stages: 2, ..long }, true),
    ]
}

impl Family {
    /// A run of about so many events.
    fn trace(&self, events: u64, seed: u64) -> Trace {
        let of = |count: u32| {
            let mut params = self.of.clone();
            match self.is_deep {
                true => params.layers = count,
                false => params.microbatches = count,
            }
            training(&params, seed)
        };
        // Events of one more, from the difference of two small runs.
        let [few, more] = [16, 32].map(|count| of(count).events.len() as u64);
        of((events / ((more - few) / 16).max(1)).max(1) as u32)
    }
}

/// Seconds that this thread has had a processor, where the system tells; else those that went by.
fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let told = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split(' ').next()?.parse::<f64>().ok().map(|ns| ns / 1e9)
    };
    #[expect(clippy::disallowed_methods, reason = "it tells how long planning takes")]
    let begin = Instant::now();
    let before = told();
    let result = work();
    let own = before.and_then(|before| Some(told()? - before));
    (result, own.unwrap_or_else(|| begin.elapsed().as_secs_f64()))
}

/// MiB that the process has held at most; 0 where the system does not tell.
fn most_mib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut only, mut seed, mut counts): (Option<String>, u64, Vec<u64>) = (None, 1, Vec::new());
    for arg in std::env::args().skip(1) {
        if let Some(name) = arg.strip_prefix("only=") {
            only = Some(name.to_owned());
        } else if let Some(number) = arg.strip_prefix("seed=") {
            seed = number.parse()?;
        } else {
            counts.push(arg.parse()?);
        }
    }
    println!(
        "| run | events | operators | gaps | step, s | bound, s | schedule, s | check, s | bound | step / bound | MiB |"
    );
    println!("| :-- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |");
    for family in families().iter().filter(|it| only.as_ref().is_none_or(|only| only == it.name)) {
        for &events in &counts {
            let trace = family.trace(events, seed);
            let (steps, step_s) = timed(|| {
                let lives = Lifetimes::of(&trace);
                let iterations = Iterations::of(&trace, &lives);
                Steps::of(&trace, &lives, &iterations, None)
            });
            let steps = steps?;
            let step = &steps.list[steps.model];
            let gpu = ((step.peak() as f64 * 0.7) as u64).max(step.least_budget().0);
            let (links, budgets) = (Links::default(), Budgets { gpu, host: None });
            let (bound_us, bound_s) = timed(|| bound(step, &links, gpu));
            let (schedule, schedule_s) = timed(|| plan(step, &links, &budgets));
            let run = simulate(step, &links, &schedule);
            let (checked, check_s) = timed(|| check(step, &links, &budgets, &schedule, &run));
            checked?;
            println!(
                "| {} | {} | {} | {} | {step_s:.2} | {bound_s:.2} | {schedule_s:.2} | {check_s:.2} | {:.4} | {:.4} | {} |",
                family.name,
                trace.events.len(),
                step.ops.len(),
                step.gaps.len(),
                bound_us / step.us(),
                run.step_us / bound_us,
                most_mib()
            );
        }
    }
    Ok(())
}
