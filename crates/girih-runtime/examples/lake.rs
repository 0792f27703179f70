//! What each constant of the lake is worth: every one at half and at twice its value, over recordings.
//!
//! ```sh
//! cargo run --release -p girih-runtime --example lake -- corpus/*.girih corpus/*.pickle.gz
//! cargo run --release -p girih-runtime --example lake -- pages=8192,page_max=8388608 corpus/*.girih
//! ```
//!
//! With settings there is one row for each group of them, beside that of the usual ones.
//!
//! Prints a table in Markdown: the least and the mean efficiency of `stitch` over the recordings, the simulated
//! cost of all calls of the device, and the cost of the dearest iteration after the fourth of each recording,
//! both added up.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::error::Error;
use std::fs::File;
use std::path::Path;

use girih_runtime::lake::Options;
use girih_runtime::simulate::{Allocator, Setup, simulate};
use girih_trace::compress::Limits;
use girih_trace::{Iterations, Lifetimes, Tick, Trace, marks, open};

/// Iterations in which a run comes to rest.
const EARLY: usize = 4;

/// A recording, ready to be replayed.
struct Run {
    trace: Trace,
    lives: Lifetimes,
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
        Ok(Run { trace, lives, setup })
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
    let least = efficiencies.iter().copied().fold(f64::INFINITY, f64::min);
    let mean = efficiencies.iter().sum::<f64>() / efficiencies.len().max(1) as f64;
    println!("| {what} | {least:.4} | {mean:.4} | {cost:.0} | {late:.0} |");
    Ok(())
}

type Knob = fn(&mut Options) -> &mut u64;

/// The constants by name.
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
    Ok(())
}
