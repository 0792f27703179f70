//! What each constant of the lake and of the judge is worth: every one at half and at twice its value, over recordings.
//!
//! ```sh
//! cargo run --release -p girih-runtime --example ablation -- corpus/*.girih corpus/*.pickle.gz
//! cargo run --release -p girih-runtime --example ablation -- pages=8192,page_max=8388608 corpus/*.girih
//! ```
//!
//! Prints two tables in Markdown. Of the lake: the least and the mean efficiency of `stitch` over the recordings, the
//! simulated cost of all calls of the device, and the cost of the dearest iteration after the fourth of each
//! recording, both added up. Of the judge: the least and the mean efficiency of a first and of a second launch of
//! `auto`, and in how many runs the first kept a plan and the second followed it.
//!
//! With settings there is one row for each group of them, beside that of the usual ones.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::error::Error;
use std::fs::File;
use std::path::Path;

use girih_runtime::auto;
use girih_runtime::lake::Options;
use girih_runtime::simulate::{Allocator, Setup, launch, simulate};
use girih_trace::compress::Limits;
use girih_trace::{Iterations, Lifetimes, Tick, Trace, marks, open};

/// Iterations in which a run comes to rest.
const EARLY: usize = 4;

/// A recording, ready to be replayed.
struct Run {
    trace: Trace,
    lives: Lifetimes,
    iterations: Iterations,
    setup: Setup,
}

impl Run {
    fn read(path: &Path) -> Result<Run, Box<dyn Error>> {
        let recording = open::detect_and_read(File::open(path)?, Limits::default())?;
        let longest = recording.traces.into_iter().max_by_key(|trace| trace.events.len());
        let mut trace = longest.ok_or("no device has events")?;
        let name = path.to_string_lossy();
        for ending in [".marks.json", ".marks.json.gz"] {
            let beside =
                name.trim_end_matches(".gz").trim_end_matches(".pickle").to_owned() + ending;
            if let Ok(bytes) = std::fs::read(beside) {
                marks::apply(&mut trace, &bytes)?;
            }
        }
        let lives = Lifetimes::of(&trace);
        let iterations = Iterations::of(&trace, &lives);
        let starts = iterations.list.iter().map(|iteration| Tick(iteration.ticks.start)).collect();
        let setup = Setup { iterations: starts, ..Setup::default() };
        Ok(Run { trace, lives, iterations, setup })
    }
}

/// A row of the table: what `stitch` makes of all recordings.
fn row(what: &str, runs: &[Run], lake: Options) -> Result<(), Box<dyn Error>> {
    let (mut efficiencies, mut cost, mut late) = (Vec::new(), 0.0, 0.0);
    for run in runs {
        let setup = Setup { lake, ..run.setup.clone() };
        let simulation = simulate(&run.trace, &run.lives, Allocator::Stitch, &setup)?;
        efficiencies.push(simulation.efficiency());
        cost += simulation.calls.sum().microseconds / 1e3;
        let costs = simulation.iterations.iter().map(|calls| calls.sum().microseconds / 1e3);
        late += costs.skip(EARLY).fold(0.0, f64::max);
    }
    let (least, mean) = least_and_mean(&efficiencies);
    println!("| {what} | {least:.4} | {mean:.4} | {cost:.0} | {late:.0} |");
    Ok(())
}

fn least_and_mean(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (least, values.iter().sum::<f64>() / values.len().max(1) as f64)
}

/// A row of the judge's table: what two launches of `auto` make of all recordings.
fn launches(what: &str, runs: &[Run], judge: auto::Options) -> Result<(), Box<dyn Error>> {
    let (mut first, mut second, mut kept, mut followed) = (Vec::new(), Vec::new(), 0, 0);
    for run in runs {
        let Run { trace, lives, iterations, setup } = run;
        let setup = Setup { judge, ..setup.clone() };
        let plan = launch::first(trace, lives, iterations, &setup)?;
        kept += usize::from(plan.is_some());
        followed += usize::from(plan.as_ref().is_some_and(|plan| plan.is_reliable()));
        let setup = Setup { kept: plan, ..setup };
        first.push(simulate(trace, lives, Allocator::Auto, &setup)?.efficiency());
        second.push(simulate(trace, lives, Allocator::Again, &setup)?.efficiency());
    }
    let ((least, mean), (least_again, mean_again)) =
        (least_and_mean(&first), least_and_mean(&second));
    println!(
        "| {what} | {least:.4} | {mean:.4} | {least_again:.4} | {mean_again:.4} | {kept} | {followed} |"
    );
    Ok(())
}

type Knob = fn(&mut Options) -> &mut u64;

/// The constants of the lake by name.
const KNOBS: [(&str, Knob); 10] = [
    ("slack", |options| &mut options.slack),
    ("slack_min", |options| &mut options.slack_min),
    ("pages", |options| &mut options.pages),
    ("request_pages", |options| &mut options.request_pages),
    ("page_max", |options| &mut options.page_max),
    ("view_pages_max", |options| &mut options.view_pages_max),
    ("time_share", |options| &mut options.time_share),
    ("time_free_ms", |options| &mut options.time_free_ms),
    ("bought", |options| &mut options.bought),
    ("bought_in_ms", |options| &mut options.bought_in_ms),
];

/// The usual options with those of `settings`: `NAME=VALUE`, separated by commas.
fn parse(settings: &str) -> Result<Options, Box<dyn Error>> {
    let mut options = Options::default();
    for setting in settings.split(',') {
        let (name, value) = setting.split_once('=').ok_or("a setting is NAME=VALUE")?;
        let knob = KNOBS.iter().find(|(known, _)| *known == name);
        let (_, knob) = knob.ok_or_else(|| format!("{name} is no setting of the lake"))?;
        *knob(&mut options) = value.parse()?;
    }
    Ok(options)
}

fn main() -> Result<(), Box<dyn Error>> {
    let (settings, paths): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|arg| arg.contains('='));
    let runs =
        paths.iter().map(|path| Run::read(Path::new(path))).collect::<Result<Vec<_>, _>>()?;
    println!("{} recordings\n", runs.len());
    println!("| what | least efficiency | mean | cost, ms | late iterations, ms |");
    println!("|:--|--:|--:|--:|--:|");
    let usual = Options::default();
    row("as it is", &runs, usual)?;
    for group in &settings {
        row(&format!("`{group}`"), &runs, parse(group)?)?;
    }
    if !settings.is_empty() {
        return Ok(());
    }
    for (name, knob) in KNOBS {
        for double in [false, true] {
            let mut options = usual;
            let value = knob(&mut options);
            *value = if double { *value * 2 } else { *value / 2 };
            let what = format!("`{name}` {}", *value);
            row(&what, &runs, options)?;
        }
    }
    println!("\n| what | first, least | mean | second, least | mean | kept | followed |");
    println!("|:--|--:|--:|--:|--:|--:|--:|");
    let usual = auto::Options::default();
    launches("as it is", &runs, usual)?;
    for double in [false, true] {
        let of = |value: u64| if double { value * 2 } else { value / 2 };
        let of_few = |value: u32| of(value.into()) as u32;
        let changed = [
            ("misfit", auto::Options { misfit: of(usual.misfit), ..usual }),
            ("misfits_max", auto::Options { misfits_max: of_few(usual.misfits_max), ..usual }),
            ("proof", auto::Options { proof: of_few(usual.proof), ..usual }),
            (
                "proof_of_kinds",
                auto::Options { proof_of_kinds: of_few(usual.proof_of_kinds), ..usual },
            ),
            ("watched", auto::Options { watched: of_few(usual.watched), ..usual }),
            ("held_back_max", auto::Options { held_back_max: of(usual.held_back_max), ..usual }),
            ("first_try", auto::Options { first_try: of(usual.first_try), ..usual }),
        ];
        for (name, options) in changed {
            let what = format!("`{name}`, {}", if double { "twice" } else { "half" });
            launches(&what, &runs, options)?;
        }
    }
    Ok(())
}
