//! What each constant of the lake and of the judge is worth: every one at half and at twice its value, over recordings.
//!
//! ```sh
//! cargo run --release -p girih-runtime --example ablation -- corpus/*.girih corpus/*.pickle.gz
//! cargo run --release -p girih-runtime --example ablation -- pages=8192,page_max=8388608 corpus/*.girih
//! cargo run --release -p girih-runtime --example ablation -- iterations=48 corpus/fsdp2_R_r0.pickle.gz
//! cargo run --release -p girih-runtime --example ablation -- generated=3
//! ```
//!
//! Prints tables in Markdown. Of the lake: the least and the mean efficiency of `stitch` over the recordings, the
//! simulated cost of all calls of the device, the cost of the dearest iteration after the fourth of each recording,
//! and the waits of streams for each other in the last whole iteration, these three added up. Of the lake with a plan:
//! the least and the mean efficiency of `planned`, with a plan of the whole recording, and of a second launch of `auto`.
//! Of the judge: the same of a first and of a second launch of `auto`, and in how many runs the first kept a plan
//! and the second followed it.
//!
//! With settings there is one row for each group of them, beside that of the usual ones, in the first two tables. With
//! `dearness=N` the device tells of N times the prices of the list, with `capacity=N` it has N MiB, and with `each=1` the
//! only table has a row for each recording: what `stitch`, a plan of all of it and a second launch make of it, what
//! that cost, and the milliseconds that `stitch` asked of the device in each iteration. With `iterations=N` each
//! recording goes on until it has so many, if it has any that are alike, and there is one table, of
//! the constants of time. With `generated=N` there are N programs more of each kind that [`generated`] makes, whose sizes
//! never come again.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use girih_plan::{Budget, Plan, profile, solve};
use girih_runtime::auto;
use girih_runtime::lake::Options;
use girih_runtime::sim::Call;
use girih_runtime::simulate::{Allocator, Setup, Simulation, launch, simulate};
use girih_trace::compress::Limits;
use girih_trace::generate::{Buckets, Kind, Training, buckets, program, training};
use girih_trace::parts::prolonged;
use girih_trace::{Iterations, Lifetimes, Tick, Trace, marks, open};

/// Iterations in which a run comes to rest.
const EARLY: usize = 4;

/// A recording, ready to be replayed.
struct Run {
    name: String,
    trace: Trace,
    lives: Lifetimes,
    iterations: Iterations,
    setup: Setup,
}

impl Run {
    fn read(path: &Path, iterations: usize) -> Result<Run, Box<dyn Error>> {
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
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Run::of(name, trace, iterations))
    }

    fn of(name: String, mut trace: Trace, iterations: usize) -> Run {
        let mut lives = Lifetimes::of(&trace);
        let found = Iterations::of(&trace, &lives);
        if let Some(longer) = prolonged(&trace, &lives, &found, iterations) {
            (trace, lives) = longer;
            go_on(&mut trace);
        }
        let iterations = Iterations::of(&trace, &lives);
        let starts = iterations.list.iter().map(|iteration| Tick(iteration.ticks.start)).collect();
        let setup = Setup { iterations: starts, ..Setup::default() };
        Run { name, trace, lives, iterations, setup }
    }
}

/// Programs that differ in every step: lengths, what is routed to experts, both with recomputation, buckets, and those
/// of other kinds, small and five times as large.
fn generated(seed: u64) -> Vec<Trace> {
    let large = Training {
        layers: 12,
        hidden: 4096,
        sequence: 4096,
        microbatch: 1,
        microbatches: 8,
        steps: 24,
        jitter: 3000,
        ..Training::default()
    };
    let experts = Training { jitter: 0, experts: 8, ..large };
    let shape = Buckets { kinds: 6, steps: 48, ..Buckets::default() };
    let mut programs = vec![
        training(&large, seed),
        training(&experts, seed),
        training(&Training { recompute: true, stage: 1, ..large }, seed),
        training(&Training { recompute: true, jitter: 1000, ..experts }, seed),
        buckets(&shape, seed),
    ];
    let scales = Kind::ALL.into_iter().flat_map(|kind| [(kind, 1), (kind, 5)]);
    programs.extend(scales.map(|(kind, scale)| program(kind, scale, 24, seed)));
    programs
}

/// Lets time rise where iterations were repeated: from one to the next as much passes as between two marks.
fn go_on(trace: &mut Trace) {
    let recorded = trace.marks.windows(2).take_while(|pair| pair[0].time_us <= pair[1].time_us);
    let (mut count, mut passed) = (0, 0);
    recorded.for_each(|pair| {
        (count, passed) = (count + 1, passed + pair[1].time_us - pair[0].time_us);
    });
    let (mut later, mut last) = (0, i64::MIN);
    for mark in &mut trace.marks {
        if mark.time_us.saturating_add(later) < last {
            later = last - mark.time_us + passed / count.max(1);
        }
        mark.time_us = mark.time_us.saturating_add(later);
        last = mark.time_us;
    }
}

/// A row of the table: what `stitch` makes of all recordings.
fn row(what: &str, runs: &[Run], lake: Options) -> Result<(), Box<dyn Error>> {
    let (mut efficiencies, mut cost, mut dearest, mut waits) = (Vec::new(), 0.0, 0.0, 0);
    for run in runs {
        let setup = Setup { lake, ..run.setup.clone() };
        let simulation = simulate(&run.trace, &run.lives, Allocator::Stitch, &setup)?;
        efficiencies.push(simulation.efficiency());
        cost += simulation.calls.sum().microseconds / 1e3;
        dearest += late(&simulation);
        // The last may be cut short.
        let whole = simulation.iterations.iter().rev().nth(1);
        waits += whole.map_or(0, |calls| calls.of(Call::WaitEvent).calls);
    }
    let (least, mean) = least_and_mean(&efficiencies);
    println!("| {what} | {least:.4} | {mean:.4} | {cost:.0} | {dearest:.0} | {waits} |");
    Ok(())
}

/// Milliseconds that all calls of each iteration ask of the device.
fn costs(simulation: &Simulation) -> impl Iterator<Item = f64> {
    simulation.iterations.iter().map(|calls| calls.sum().microseconds / 1e3)
}

/// Those of the dearest iteration that is not an early one.
fn late(simulation: &Simulation) -> f64 {
    costs(simulation).skip(EARLY).fold(0.0, f64::max)
}

/// A row for each recording: its efficiency and what that cost, without a plan, with one of all of it, and in a second
/// launch; and of the first of these milliseconds of all calls in each iteration.
fn each(what: &str, runs: &[Run], plans: &[Plans], lake: Options) -> Result<(), Box<dyn Error>> {
    for (run, plans) in runs.iter().zip(plans) {
        let plan = Some(Arc::clone(&plans.whole));
        let setup = Setup { lake, plan, kept: plans.kept.clone(), ..run.setup.clone() };
        print!("| {what} | {} |", run.name);
        let ways = [Allocator::Stitch, Allocator::Planned, Allocator::Again];
        let all = ways.map(|way| simulate(&run.trace, &run.lives, way, &setup));
        let all: Vec<_> = all.into_iter().collect::<Result<_, _>>()?;
        for simulation in &all {
            let cost = simulation.calls.sum().microseconds / 1e3;
            print!(" {:.4} | {cost:.0} | {:.0} |", simulation.efficiency(), late(simulation));
        }
        let costs: Vec<_> = costs(&all[0]).map(|cost| format!("{cost:.0}")).collect();
        println!(" {} |", costs.join(" "));
    }
    Ok(())
}

/// The plans of a recording: of all of it, and the one that a first launch keeps.
struct Plans {
    whole: Arc<Plan>,
    kept: Option<Arc<Plan>>,
}

impl Plans {
    fn of(run: &Run) -> Result<Plans, Box<dyn Error>> {
        let Run { trace, lives, iterations, setup, .. } = run;
        let whole = profile::plan(trace, lives, iterations, |problem| {
            solve(problem, Budget::interactive(problem.buffers.len()))
        })?;
        let kept = launch::first(trace, lives, iterations, setup)?;
        Ok(Plans { whole: Arc::new(whole), kept })
    }
}

/// A row of the table of plans: what `planned` and a second launch of `auto` make of all recordings.
fn planned(what: &str, runs: &[Run], plans: &[Plans], lake: Options) -> Result<(), Box<dyn Error>> {
    let (mut whole, mut again, mut refused) = (Vec::new(), Vec::new(), 0);
    for (run, plans) in runs.iter().zip(plans) {
        let Run { trace, lives, setup, .. } = run;
        let plan = Some(Arc::clone(&plans.whole));
        let setup = Setup { lake, plan, kept: plans.kept.clone(), ..setup.clone() };
        let simulation = simulate(trace, lives, Allocator::Planned, &setup)?;
        whole.push(simulation.efficiency());
        refused += simulation.following.map_or(0, |following| following.refused_bytes >> 20);
        again.push(simulate(trace, lives, Allocator::Again, &setup)?.efficiency());
    }
    let ((least, mean), (least_again, mean_again)) =
        (least_and_mean(&whole), least_and_mean(&again));
    println!(
        "| {what} | {least:.4} | {mean:.4} | {least_again:.4} | {mean_again:.4} | {refused} |"
    );
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
        let Run { trace, lives, iterations, setup, .. } = run;
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
const KNOBS: [(&str, Knob); 23] = [
    ("slack", |options| &mut options.slack),
    ("slack_min", |options| &mut options.slack_min),
    ("slack_knee", |options| &mut options.slack_knee),
    ("pages", |options| &mut options.pages),
    ("request_pages", |options| &mut options.request_pages),
    ("page_max", |options| &mut options.page_max),
    ("near", |options| &mut options.near),
    ("view_pages_max", |options| &mut options.view_pages_max),
    ("stale", |options| &mut options.stale),
    ("patched", |options| &mut options.patched),
    ("time_share", |options| &mut options.time_share),
    ("stall_max_us", |options| &mut options.stall_max_us),
    ("time_free_ms", |options| &mut options.time_free_ms),
    ("bought", |options| &mut options.bought),
    ("bought_in_ms", |options| &mut options.bought_in_ms),
    ("room", |options| &mut options.room),
    ("in_vain", |options| &mut options.in_vain),
    ("rest", |options| &mut options.rest),
    ("alike", |options| &mut options.alike),
    ("lost", |options| &mut options.lost),
    ("trials", |options| &mut options.trials),
    ("ahead", |options| &mut options.ahead),
    ("strain", |options| &mut options.strain),
];

/// Those of time, which matter where time passes.
const OF_TIME: [&str; 8] = [
    "time_share",
    "stall_max_us",
    "time_free_ms",
    "bought",
    "bought_in_ms",
    "room",
    "in_vain",
    "rest",
];

/// Those that matter with a plan alone.
const OF_PLANS: [&str; 2] = ["ahead", "strain"];

/// The usual options with a constant at half or at twice its value, and what to call them.
fn varied(name: &str, knob: Knob, double: bool) -> (String, Options) {
    let mut options = Options::default();
    let value = knob(&mut options);
    *value = if double { *value * 2 } else { *value / 2 };
    let what = format!("`{name}` {}", *value);
    (what, options)
}

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
    let (mut settings, paths): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|arg| arg.contains('='));
    let mut number = |name: &str| {
        let found = settings.iter().find_map(|it| it.strip_prefix(name)?.strip_prefix('='));
        let found = found.map(str::parse::<u64>).transpose();
        settings.retain(|it| !it.starts_with(&format!("{name}=")));
        found
    };
    let iterations = number("iterations")?.map_or(0, |count| count as usize);
    let (seeds, dearness) = (number("generated")?.unwrap_or(0), number("dearness")?.unwrap_or(1));
    let capacity = number("capacity")?.map(|mib| mib << 20);
    let is_each = number("each")?.is_some();
    let runs = paths.iter().map(|path| Run::read(Path::new(path), iterations));
    let made = (0..seeds)
        .flat_map(generated)
        .enumerate()
        .map(|(number, trace)| Ok(Run::of(format!("generated {number}"), trace, iterations)));
    let mut runs = runs.chain(made).collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    for Run { setup, .. } in &mut runs {
        (setup.dearness, setup.capacity) = (dearness, capacity);
    }
    println!("{} recordings\n", runs.len());
    if is_each {
        let of = ["stitch", "planned", "again"].map(|way| format!("{way} | cost, ms | late, ms"));
        println!("| what | recording | {} | iterations, ms |", of.join(" | "));
        println!("|:--|:--|{}:--|", "--:|".repeat(9));
        let plans = runs.iter().map(Plans::of).collect::<Result<Vec<_>, _>>()?;
        each("as it is", &runs, &plans, Options::default())?;
        return settings
            .iter()
            .try_for_each(|it| each(&format!("`{it}`"), &runs, &plans, parse(it)?));
    }
    println!("| what | least efficiency | mean | cost, ms | late iterations, ms | waits |");
    println!("|:--|--:|--:|--:|--:|--:|");
    let usual = Options::default();
    row("as it is", &runs, usual)?;
    for group in &settings {
        row(&format!("`{group}`"), &runs, parse(group)?)?;
    }
    let has_settings = !settings.is_empty();
    for (name, knob) in KNOBS.into_iter().filter(|_| !has_settings) {
        let is_asked = iterations == 0 || OF_TIME.contains(&name);
        for double in [false, true].into_iter().filter(|_| is_asked && !OF_PLANS.contains(&name)) {
            let (what, options) = varied(name, knob, double);
            row(&what, &runs, options)?;
        }
    }
    if iterations > 0 {
        return Ok(());
    }
    println!("\n| what | planned, least | mean | again, least | mean | refused, MiB |");
    println!("|:--|--:|--:|--:|--:|--:|");
    let plans = runs.iter().map(Plans::of).collect::<Result<Vec<_>, _>>()?;
    planned("as it is", &runs, &plans, usual)?;
    for group in &settings {
        planned(&format!("`{group}`"), &runs, &plans, parse(group)?)?;
    }
    if has_settings {
        return Ok(());
    }
    for (name, knob) in KNOBS.into_iter().filter(|(name, _)| OF_PLANS.contains(name)) {
        for double in [false, true] {
            let (what, options) = varied(name, knob, double);
            planned(&what, &runs, &plans, options)?;
        }
    }
    judged(&runs)
}

/// The table of the judge.
fn judged(runs: &[Run]) -> Result<(), Box<dyn Error>> {
    println!("\n| what | first, least | mean | second, least | mean | kept | followed |");
    println!("|:--|--:|--:|--:|--:|--:|--:|");
    let usual = auto::Options::default();
    launches("as it is", runs, usual)?;
    for double in [false, true] {
        let of = |value: u64| if double { value * 2 } else { value / 2 };
        let of_few = |value: u32| of(value.into()) as u32;
        let changed = [
            ("misfit", auto::Options { misfit: of(usual.misfit), ..usual }),
            ("misfits_max", auto::Options { misfits_max: of_few(usual.misfits_max), ..usual }),
            ("proof", auto::Options { proof: of_few(usual.proof), ..usual }),
        ];
        for (name, options) in changed {
            let what = format!("`{name}`, {}", if double { "twice" } else { "half" });
            launches(&what, runs, options)?;
        }
    }
    Ok(())
}
