//! The tables and figures of the papers on STWeaver and GMLake, as far as recordings tell: every number that needs no GPU.
//!
//! ```sh
//! cargo run --release -p girih-runtime --example seeds -- FOLDER ... > bench/results/seeds/recordings.md
//! ```
//!
//! Reads every recording of the folders, with the marks beside it, and prints tables in Markdown. All allocators run on the
//! simulated device, so that nothing here is a time of a GPU; *calls* are what those of the device would have cost on an
//! H200 (`sim/cost.rs`). *Fragmentation* is what is reserved at the peak and not allocated; *less than native* is the part
//! of native's that is gone.

#![expect(clippy::print_stdout, reason = "a program that prints tables")]
#![expect(clippy::disallowed_methods, reason = "it measures how long planning takes")]

use std::error::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use girih_plan::strategy::{Hints, Method, Strategy};
use girih_plan::stweaver::{
    Bubbles, DynamicLayers, Synthesis, plan as plan_by_phase, plan_by_size,
};
use girih_plan::{Plan, granted};
use girih_runtime::Device;
use girih_runtime::sim::{Call, SimDevice};
use girih_runtime::simulate::trial::tried;
use girih_runtime::simulate::{Allocator, Setup, Simulation, launch, simulate};
use girih_runtime::stweaver;
use girih_trace::compress::Limits;
use girih_trace::phases::{Phases, Scope};
use girih_trace::{Iterations, Lifetimes, Trace, marks, open};

type Fallible<T> = Result<T, Box<dyn Error>>;

const GIB: f64 = (1u64 << 30) as f64;

/// The allocators in the order of the columns. Native comes first: the others are measured against it.
const ALLOCATORS: [Allocator; 10] = [
    Allocator::Native,
    Allocator::Expandable,
    Allocator::Gmlake,
    Allocator::Gmlake128,
    Allocator::GmlakeCode,
    Allocator::Stweaver,
    Allocator::Stitch,
    Allocator::Planned,
    Allocator::Auto,
    Allocator::Again,
];

/// A recording, ready to be replayed.
struct Run {
    name: String,
    trace: Trace,
    lives: Lifetimes,
    iterations: Iterations,
    setup: Setup,
}

impl Run {
    fn read(path: &Path) -> Fallible<Run> {
        let recording = open::detect_and_read(File::open(path)?, Limits::default())?;
        let longest = recording.traces.into_iter().max_by_key(|trace| trace.events.len());
        let mut trace = longest.ok_or("no device has events")?;
        let stem = stem(path);
        for ending in [".marks.json", ".marks.json.gz"] {
            if let Ok(bytes) = fs::read(path.with_file_name(format!("{stem}{ending}"))) {
                marks::apply(&mut trace, &bytes)?;
            }
        }
        let lives = Lifetimes::of(&trace);
        let iterations = Iterations::of(&trace, &lives);
        let mut setup = Setup::default();
        let strategy = Strategy::default();
        let plan = strategy.plan(&trace, &lives, &iterations, |problem| {
            strategy.solve(problem, Hints::default(), |_| std::ops::ControlFlow::Continue(()))
        })?;
        setup.plan = Some(Arc::new(tried(plan, &trace, &lives, &setup)));
        setup.kept = launch::first(&trace, &lives, &iterations, &setup)?;
        Ok(Run { name: stem, trace, lives, iterations, setup })
    }

    /// Whether its steps ask for the same.
    fn is_alike(&self) -> bool {
        let plan = self.setup.plan.as_ref();
        plan.is_some_and(|plan| plan.steady().is_some() && !plan.varies() && !plan.has_kinds())
    }

    fn simulate(&self, allocator: Allocator) -> Fallible<Simulation> {
        Ok(simulate(&self.trace, &self.lives, allocator, &self.setup)?)
    }
}

/// The name of a recording without its endings.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = name.trim_end_matches(".gz");
    name.trim_end_matches(".pickle").trim_end_matches(".girih").to_owned()
}

/// The recordings of a folder, by name.
fn recordings(folder: &Path) -> Fallible<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.to_string_lossy();
        let name = name.trim_end_matches(".gz");
        if name.ends_with(".pickle") || name.ends_with(".girih") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn main() -> Fallible<()> {
    let mut paths = Vec::new();
    for folder in std::env::args().skip(1) {
        paths.extend(recordings(Path::new(&folder))?);
    }
    // One that lies in two of the folders is one recording.
    paths.sort_by_key(|path| stem(path));
    paths.dedup_by_key(|path| stem(path));
    let runs = paths.iter().map(|path| Run::read(path)).collect::<Fallible<Vec<_>>>()?;
    if runs.is_empty() {
        return Err("name folders with recordings".into());
    }
    efficiency(&runs)?;
    breakdown(&runs)?;
    composition(&runs)?;
    planners(&runs)?;
    regularity(&runs);
    driver_calls()?;
    Ok(())
}

fn reserved(simulation: &Simulation) -> f64 {
    simulation.stats.reserved_bytes.all().peak as f64
}

/// Bytes at the peak that nothing uses.
fn fragmentation(simulation: &Simulation) -> f64 {
    reserved(simulation) - simulation.used_peak as f64
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// STWeaver's figures 2, 7 to 10; GMLake's figures 10 to 13 and its aggregate.
fn efficiency(runs: &[Run]) -> Fallible<()> {
    println!("## Memory efficiency\n");
    println!("Peak used by peak reserved, in percent; the last column is native's peak.\n");
    let names: Vec<&str> = ALLOCATORS.iter().map(|allocator| allocator.name()).collect();
    println!("| recording | {} | GiB |", names.join(" | "));
    println!("|:--{}|--:|", "|--:".repeat(names.len()));
    let mut all: Vec<Vec<Simulation>> = Vec::new();
    for run in runs {
        let row: Vec<Simulation> =
            ALLOCATORS.iter().map(|&it| run.simulate(it)).collect::<Fallible<_>>()?;
        let cells: Vec<String> =
            row.iter().map(|it| format!("{:.1}", 100.0 * it.efficiency())).collect();
        println!("| {} | {} | {:.2} |", run.name, cells.join(" | "), reserved(&row[0]) / GIB);
        all.push(row);
    }
    let all: Vec<(&Run, Vec<Simulation>)> = runs.iter().zip(all).collect();
    aggregate("The aggregate of all", &all);
    ahead(&all);
    let alike: Vec<_> = all.into_iter().filter(|(run, _)| run.is_alike()).collect();
    println!(
        "Whose steps are alike, to one byte in 512, and of one kind: what a plan that is followed by number is for.\n"
    );
    aggregate("The aggregate of those whose steps are alike", &alike);
    Ok(())
}

/// Where a published allocator wastes less than Girih's modes.
fn ahead(all: &[(&Run, Vec<Simulation>)]) {
    const PUBLISHED: [Allocator; 4] =
        [Allocator::Gmlake, Allocator::Gmlake128, Allocator::GmlakeCode, Allocator::Stweaver];
    const MODES: [Allocator; 3] = [Allocator::Planned, Allocator::Auto, Allocator::Again];
    println!("## Where a published allocator is ahead\n");
    println!(
        "The best of GMLake and STWeaver, where it is a tenth of a point or more above one of Girih's modes; each in \
         percent.\n"
    );
    println!("| recording | published | | planned | auto | again |");
    println!("|:--|:--|--:|--:|--:|--:|");
    for (run, row) in all {
        let of = |allocator: Allocator| {
            let found = row.iter().find(|simulation| simulation.allocator == allocator);
            100.0 * found.map_or(0.0, Simulation::efficiency)
        };
        let best = PUBLISHED.into_iter().max_by(|a, b| of(*a).total_cmp(&of(*b)));
        let Some(best) = best else { continue };
        let modes = MODES.map(of);
        if modes.iter().any(|mode| of(best) >= mode + 0.1) {
            let [planned, auto, again] = modes;
            println!(
                "| {} | {} | {:.2} | {planned:.2} | {auto:.2} | {again:.2} |",
                run.name,
                best.name(),
                of(best)
            );
        }
    }
    println!();
}

/// What the allocators come to over recordings.
fn aggregate(title: &str, all: &[(&Run, Vec<Simulation>)]) {
    println!("\n## {title}: {} recordings\n", all.len());
    println!(
        "Fragmentation as a part of what is reserved. *Less fragmentation*: of all bytes that native wastes at its \
         peaks. *Calls*: the mean cost of the device's calls.\n"
    );
    println!(
        "| allocator | mean efficiency | least | mean fragmentation | points less than native | most \
         | GiB less reserved, mean | most | less fragmentation | calls, s |"
    );
    println!("|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for (column, allocator) in ALLOCATORS.iter().enumerate() {
        let of = |value: &dyn Fn(&Simulation, &Simulation) -> f64| -> Vec<f64> {
            all.iter().map(|(_, row)| value(&row[column], &row[0])).collect()
        };
        let efficiency = of(&|it, _| it.efficiency());
        let points = of(&|it, native| 100.0 * (it.efficiency() - native.efficiency()));
        let less = of(&|it, native| (reserved(native) - reserved(it)) / GIB);
        let left = of(&|it, _| fragmentation(it)).iter().sum::<f64>();
        let before = of(&|_, native| fragmentation(native)).iter().sum::<f64>();
        let calls = of(&|it, _| it.calls.sum().microseconds / 1e6);
        let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        println!(
            "| {} | {:.2} % | {:.2} % | {:.2} % | {:.2} | {:.1} | {:.2} | {:.2} | {:.1} % | {:.2} |",
            allocator.name(),
            100.0 * mean(&efficiency),
            100.0 * efficiency.iter().copied().fold(f64::INFINITY, f64::min),
            100.0 * (1.0 - mean(&efficiency)),
            mean(&points),
            most(&points),
            mean(&less),
            most(&less),
            100.0 * (1.0 - left / before),
            mean(&calls),
        );
    }
    println!();
}

/// STWeaver's figure 12: without the static plan, without reuse, and whole.
fn breakdown(runs: &[Run]) -> Fallible<()> {
    println!("## What each part of STWeaver is worth (its figure 12)\n");
    println!(
        "Efficiency in percent. *gone* is the part of native's fragmentation that the static plan, and all of it, removes. *In step at \
         each step*: the place in the plan is found again where a step begins, which the paper does not do.\n"
    );
    println!(
        "| recording | caching | static plan alone | whole | static plan: gone | whole: gone | off the plan | in step \
         at each step | off the plan |"
    );
    println!("|:--|--:|--:|--:|--:|--:|--:|--:|--:|");
    for run in runs {
        let native = run.simulate(Allocator::Native)?;
        let setup = Setup {
            stweaver: stweaver::Options { reuses: false, ..stweaver::Options::default() },
            ..run.setup.clone()
        };
        let alone = simulate(&run.trace, &run.lives, Allocator::Stweaver, &setup)?;
        let whole = run.simulate(Allocator::Stweaver)?;
        let gone =
            |it: &Simulation| 100.0 * (1.0 - fragmentation(it) / fragmentation(&native).max(1.0));
        let resyncs = stweaver::Options { resyncs: true, ..stweaver::Options::default() };
        let setup = Setup { stweaver: resyncs, ..run.setup.clone() };
        let again = simulate(&run.trace, &run.lives, Allocator::Stweaver, &setup)?;
        let off = |it: &Simulation| {
            let following = it.following.unwrap_or_default();
            let all = following.hit_bytes + following.miss_bytes;
            100.0 * following.miss_bytes as f64 / all.max(1) as f64
        };
        println!(
            "| {} | {:.1} | {:.1} | {:.1} | {:.1} % | {:.1} % | {:.2} % | {:.1} | {:.2} % |",
            run.name,
            100.0 * native.efficiency(),
            100.0 * alone.efficiency(),
            100.0 * whole.efficiency(),
            gone(&alone),
            gone(&whole),
            off(&whole),
            100.0 * again.efficiency(),
            off(&again),
        );
    }
    println!();
    Ok(())
}

/// STWeaver's table 3, of the recordings that have dynamic layers.
fn composition(runs: &[Run]) -> Fallible<()> {
    println!("## Composition of allocation types (STWeaver's table 3)\n");
    println!(
        "GiB at the peak, of the recordings in which layers of experts are marked. *Asked* is the part of all bytes asked for that is dynamic.\n"
    );
    println!(
        "| recording | total | static pool | fallback without reuse | fallback with reuse | asked | of it reused | groups |"
    );
    println!("|:--|--:|--:|--:|--:|--:|--:|--:|");
    for run in runs {
        let layers = DynamicLayers::of(&run.trace, &run.lives);
        if layers.runs().is_empty() {
            continue;
        }
        let synthesis = Synthesis::of(&run.trace, &run.lives, &layers)?;
        let setup = Setup {
            stweaver: stweaver::Options { reuses: false, ..stweaver::Options::default() },
            ..run.setup.clone()
        };
        let alone = simulate(&run.trace, &run.lives, Allocator::Stweaver, &setup)?;
        let whole = run.simulate(Allocator::Stweaver)?;
        let served = whole.served.unwrap_or_default();
        let asked: u64 = run.lives.requests.iter().map(|request| request.size).sum();
        println!(
            "| {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} % | {:.1} % | {} |",
            run.name,
            whole.stats.allocated_bytes.all().peak as f64 / GIB,
            served.pool as f64 / GIB,
            alone.served.unwrap_or_default().fallback as f64 / GIB,
            served.fallback as f64 / GIB,
            100.0 * served.dynamic as f64 / asked.max(1) as f64,
            100.0 * served.reused as f64 / served.dynamic.max(1) as f64,
            synthesis.spaces.len(),
        );
    }
    println!();
    Ok(())
}

/// STWeaver's static planner in each reading, and its table 2.
fn planners(runs: &[Run]) -> Fallible<()> {
    println!("## STWeaver's static plan of all requests\n");
    println!(
        "By the paper's measure: (largest load + persistent) by (height + persistent), in percent, of the steady \
         iteration. *Headline* is the lowest of the three, as the published program's own tuning keeps it. Seconds are of the \
         whole plan of the recording, one run on one core.\n"
    );
    println!(
        "| recording | requests | closed bubbles | open bubbles | by size | headline | girih | above the bound: headline | girih | headline, s | girih, s |"
    );
    println!("|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for run in runs {
        let Run { trace, lives, iterations, .. } = run;
        let strategy = Strategy::new(Method::Stweaver, &[])?;
        let (problem, hints) = strategy.hints(trace, lives, iterations)?;
        let phases = hints.phases.clone().unwrap_or_default();
        let heights = [
            plan_by_phase(&problem, &phases, Bubbles::Closed)?.height,
            plan_by_phase(&problem, &phases, Bubbles::Open)?.height,
            plan_by_size(&problem)?.height,
        ];
        let go_on = |_| std::ops::ControlFlow::Continue(());
        let timed = |strategy: &Strategy| -> Fallible<(Plan, f64)> {
            let start = Instant::now();
            let plan = strategy.plan(trace, lives, iterations, |problem| {
                strategy.solve(problem, hints.clone(), go_on)
            })?;
            Ok((plan, start.elapsed().as_secs_f64()))
        };
        let (theirs, their_time) = timed(&strategy)?;
        let (ours, our_time) = timed(&Strategy::default())?;
        let bound = theirs.lower_bound;
        let part = |height: u64| {
            let persistent = theirs.persistent_bytes;
            100.0 * (bound + persistent) as f64 / (height + persistent).max(1) as f64
        };
        let above = |height: u64| 100.0 * (height.max(bound) - bound) as f64 / bound.max(1) as f64;
        let [closed, open, by_size] = heights.map(part);
        let headline = heights.into_iter().min().unwrap_or(0);
        println!(
            "| {} | {} | {closed:.1} | {open:.1} | {by_size:.1} | {:.2} | {:.2} | {:.3} % | {:.3} % \
             | {their_time:.3} | {our_time:.3} |",
            run.name,
            problem.buffers.len(),
            part(headline),
            part(ours.peak),
            above(headline),
            above(ours.peak),
        );
    }
    println!();
    Ok(())
}

/// STWeaver's figures 3 and 4.
fn regularity(runs: &[Run]) {
    println!("## Sizes and lifetimes (STWeaver's figures 3 and 4)\n");
    println!(
        "Of one iteration: the requests of more than 512 bytes and how many sizes they have; of all, the parts of requests by how long they live.\n"
    );
    println!("| recording | requests > 512 B | sizes | persistent | scoped | transient |");
    println!("|:--|--:|--:|--:|--:|--:|");
    for run in runs {
        let Run { name, trace, lives, iterations, .. } = run;
        let model = iterations.model().map(|model| iterations.list[model].requests.clone());
        let range = model.unwrap_or(0..lives.requests.len() as u32);
        let requests = &lives.requests[range.start as usize..range.end as usize];
        let mut sizes: Vec<u64> =
            requests.iter().filter(|it| it.size > 512).map(|it| granted(it.size)).collect();
        let count = sizes.len();
        sizes.sort_unstable();
        sizes.dedup();
        let phases = Phases::of(trace, lives, iterations);
        let scopes = phases.scopes(lives, iterations);
        let scopes = &scopes[range.start as usize..range.end as usize];
        let part = |scope: Scope| {
            let of = scopes.iter().filter(|&&it| it == scope).count();
            format!("{:.1} %", 100.0 * of as f64 / scopes.len().max(1) as f64)
        };
        println!(
            "| {name} | {count} | {} | {} | {} | {} |",
            sizes.len(),
            part(Scope::Persistent),
            part(Scope::Scoped),
            part(Scope::Transient)
        );
    }
}

/// GMLake's table 1 and figure 6: what 2 GiB cost in handles of a size.
fn driver_calls() -> Fallible<()> {
    const BYTES: u64 = 2 << 30;
    println!("\n## Calls of the driver for 2 GiB (GMLake's table 1)\n");
    println!(
        "As parts of what `cuMemAlloc` of all at once costs, on the H200 whose costs the simulated device has.\n"
    );
    println!("| handles of | reserve | create | map | set access | in all |");
    println!("|:--|--:|--:|--:|--:|--:|");
    let mut whole = SimDevice::new(1 << 40);
    whole.alloc(BYTES)?;
    let unit = whole.totals().sum().microseconds;
    for chunk in [2u64 << 20, 128 << 20, 1 << 30] {
        let mut device = SimDevice::new(1 << 40);
        let start = device.reserve(BYTES)?;
        for at in (start..start + BYTES).step_by(chunk as usize) {
            let handle = device.create(chunk)?;
            device.map(at, handle)?;
            device.set_access(at, chunk)?;
        }
        let of = |call: Call| device.totals().of(call).microseconds / unit;
        println!(
            "| {} MiB | {:.3} | {:.2} | {:.2} | {:.2} | {:.1} |",
            chunk >> 20,
            of(Call::Reserve),
            of(Call::Create),
            of(Call::Map),
            of(Call::SetAccess),
            device.totals().sum().microseconds / unit
        );
    }
    Ok(())
}
