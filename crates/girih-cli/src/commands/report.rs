//! `girih report`: a recording as a picture, and in the formats of other viewers.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, bail};
use clap::{ArgGroup, Args};
use girih_report::{
    Against, Allocator, Beside, Copies, Figures, Layout, Picture, Subject, html, memory_viz,
    perfetto,
};
use girih_runtime::simulate::{Allocator as Name, Setup, SimulateError};
use girih_swap::{Budgets, Links, Method, Steps};
use girih_trace::Earlier;
use serde::Serialize;

use super::row::{WhatIf, allocator_names};
use super::write_json;
use crate::Answer;
use crate::files::{Output, shown_input};
use crate::load::{self, Loaded, timed};
use crate::progress::Progress;
use crate::table::table;
use crate::units::{bytes, count, parse_bytes, percent};

/// The allocators that are replayed without being asked for.
const REPLAYED: [Name; 4] = [Name::Native, Name::Expandable, Name::Stitch, Name::Planned];

#[derive(Args)]
#[command(group(ArgGroup::new("outputs").required(true).multiple(true)
    .args(["output", "perfetto", "memory_viz"])))]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    source: load::Source,
    /// Writes the picture: one page of HTML that needs no network; - is standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Writes a trace for ui.perfetto.dev: counters, steps, phases, modules.
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
    /// Writes a snapshot for pytorch.org/memory_viz.
    #[arg(long, value_name = "FILE")]
    memory_viz: Option<PathBuf>,
    /// Another recording, which this one is held against.
    #[arg(long, value_name = "RUN", requires = "output")]
    against: Option<PathBuf>,
    /// The marks of the other recording.
    #[arg(long, value_name = "FILE", requires = "against")]
    against_marks: Option<PathBuf>,
    /// The allocators that are replayed, with commas between: native, expandable, stitch and planned
    /// without this.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = allocator_names(),
          hide_possible_values = true, requires = "output")]
    allocators: Option<Vec<Name>>,
    /// Replays nothing: the recording alone.
    #[arg(long, conflicts_with_all = ["allocators", "capacity", "conf", "plan"])]
    no_replays: bool,
    /// Shows what would go to the host and come back with so many bytes on the GPU: 40GiB, 512MiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, requires = "output")]
    gpu_budget: Option<u64>,
    #[command(flatten)]
    what_if: WhatIf,
}

#[derive(Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    figures: &'a Figures,
    page: Option<html::Written>,
    written: Vec<JsonFile>,
    seconds: f64,
}

/// A file that was written.
#[derive(Serialize)]
struct JsonFile {
    format: &'static str,
    file: String,
    bytes: u64,
}

/// A file to be written.
struct Wanted {
    format: &'static str,
    output: Output,
}

pub(crate) fn run(args: &ReportArgs, json: bool, out: &mut dyn Write) -> anyhow::Result<Answer> {
    let wanted = wanted(args)?;
    let to_standard = wanted.iter().filter(|it| it.output.is_standard()).count();
    if to_standard > 1 || (json && to_standard > 0) {
        bail!("give all outputs but one a file: only one thing can go to standard output");
    }
    let (made, seconds) = timed(|| write_all(args, &wanted));
    let (figures, page, written) = made?;
    let fits = figures.allocators.iter().any(|of| of.efficiency.is_some());
    if json {
        write_json(out, &Json { figures: &figures, page, written, seconds })?;
    } else if to_standard == 0 {
        print(&figures, page, &written, seconds, out)?;
    }
    Ok(if args.what_if.requires_fit() && !fits { Answer::No } else { Answer::Yes })
}

/// Where everything goes, looked at before any work is done.
fn wanted(args: &ReportArgs) -> anyhow::Result<Vec<Wanted>> {
    let mut inputs = args.source.inputs();
    inputs.extend([&args.against, &args.against_marks].into_iter().flatten().map(|path| &**path));
    let named =
        [("html", &args.output), ("perfetto", &args.perfetto), ("memory_viz", &args.memory_viz)];
    let mut wanted: Vec<Wanted> = Vec::new();
    let mut before: Vec<&Path> = Vec::new();
    for (format, path) in named {
        let Some(path) = path else { continue };
        if before.contains(&&**path) {
            bail!("give each output a file of its own: {} is named twice", path.display());
        }
        before.push(path);
        wanted.push(Wanted { format, output: Output::new(path, &inputs)? });
    }
    Ok(wanted)
}

type Made = (Figures, Option<html::Written>, Vec<JsonFile>);

fn write_all(args: &ReportArgs, wanted: &[Wanted]) -> anyhow::Result<Made> {
    let mut progress = Progress::new();
    let shown = shown_input(&args.source.file);
    progress.say(format!("reading {shown}"));
    let loaded = args.source.load()?;
    let has_page = args.output.is_some();
    progress.say(format!("{shown}: adding up"));
    let earlier = Earlier::of(&loaded.trace, &loaded.lives);
    let picture = Picture::of(subject(&loaded), &earlier);
    let mut beside = Beside::default();
    if has_page && !args.no_replays {
        let mut setup = args.what_if.setup(&loaded)?;
        replay(args, &loaded, &mut setup, &mut beside, &mut progress)?;
    }
    if let Some(budget) = args.gpu_budget {
        progress.say(format!("{shown}: scheduling copies"));
        beside.copies = Some(copies(&loaded, budget)?);
    }
    if let Some(other) = &args.against {
        progress.say(format!("reading {}", shown_input(other)));
        let (file, marks) = (other.clone(), args.against_marks.clone());
        let source = load::Source { file, marks, device: None };
        let other = source.load()?;
        let earlier = Earlier::of(&other.trace, &other.lives);
        beside.against = Some(Against::of(&Picture::of(subject(&other), &earlier), &picture));
    }
    let figures = Figures::of(&picture, &beside);
    let (mut page, mut written) = (None, Vec::new());
    for Wanted { format, output } in wanted {
        progress.say(format!("writing {}", output.shown()));
        let bytes = output.write(|out| {
            match *format {
                "html" => page = Some(html::write(&picture, &beside, env!("GIRIH_VERSION"), out)?),
                "perfetto" => perfetto::write(&picture, &beside, out)?,
                _ => memory_viz::write(&picture, out)?,
            }
            Ok(())
        })?;
        written.push(JsonFile { format, file: output.shown(), bytes });
    }
    Ok((figures, page, written))
}

fn subject(loaded: &Loaded) -> Subject<'_> {
    let Loaded { name, trace, lives, iterations, .. } = loaded;
    Subject { name, trace, lives, iterations }
}

/// What the allocators would have made of the run, and where a plan puts its blocks.
fn replay(
    args: &ReportArgs,
    loaded: &Loaded,
    setup: &mut Setup,
    beside: &mut Beside,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let shown = shown_input(&args.source.file);
    let names = args.allocators.as_deref().unwrap_or(&REPLAYED);
    args.what_if.say_if_not_followed(names);
    if names.contains(&Name::Planned) {
        progress.say(format!("{shown}: planning"));
        setup.plan = Some(args.what_if.plan(loaded, setup)?);
    }
    if names.contains(&Name::Again) {
        progress.say(format!("{shown}: a first launch"));
        setup.kept = WhatIf::kept(loaded, setup)?;
    }
    progress.say(format!("{shown}: {} allocators", names.len()));
    let placed = names.contains(&Name::Planned).then_some(Name::Planned);
    let (allocators, layout) = several_at_once(loaded, names, placed, setup);
    beside.allocators = allocators.into_iter().collect::<Result<_, _>>()?;
    beside.layout = layout.transpose()?;
    Ok(())
}

type Replayed = (Vec<Result<Allocator, SimulateError>>, Option<Result<Layout, SimulateError>>);

/// Replays on as many threads as there are processors.
fn several_at_once(
    loaded: &Loaded,
    names: &[Name],
    placed: Option<Name>,
    setup: &Setup,
) -> Replayed {
    let Loaded { trace, lives, .. } = loaded;
    let threads = thread::available_parallelism().map_or(1, usize::from).min(names.len());
    let next = AtomicUsize::new(0);
    let found = Mutex::new(names.iter().map(|_| None).collect::<Vec<_>>());
    let layout = thread::scope(|scope| {
        let replay = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(&name) = names.get(index) else { return };
                let replayed = Allocator::replay(trace, lives, name, setup);
                // Nothing panics while it is held.
                found.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(replayed);
            }
        };
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(replay)).collect();
        let layout = placed.map(|name| Layout::of(trace, lives, name, setup));
        replay();
        drop(others);
        layout
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    (found.into_iter().flatten().collect(), layout)
}

fn copies(loaded: &Loaded, gpu: u64) -> anyhow::Result<Copies> {
    let Loaded { name, trace, lives, iterations, .. } = loaded;
    let steps = Steps::of(trace, lives, iterations, None)
        .with_context(|| format!("cannot schedule the copies of {name}"))?;
    let step = &steps.list[steps.model];
    let method = Method::Girih;
    // As `girih swap` has them without being told.
    let links = Links::of_gigabytes(55.0, 55.0, 101.0);
    let answer = method
        .answer(step, &links, &Budgets { gpu, host: None })
        .context("please report this bug of Girih: the checker refuses the schedule")?;
    let assumed = super::swap::assumptions(None, &steps);
    Ok(Copies::of(&answer, step, (method.name(), steps.model, gpu), assumed))
}

fn print(
    figures: &Figures,
    page: Option<html::Written>,
    written: &[JsonFile],
    seconds: f64,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let at = |bytes_then: u64, event: u32| {
        format!("{} after event {}", bytes(bytes_then), count(u64::from(event)))
    };
    let mut rows = vec![
        row("events", count(figures.events as u64)),
        row("requested at most", at(figures.live_peak, figures.live_peak_event)),
        row("reserved at most", at(figures.reserved_peak, figures.reserved_peak_event)),
        row("lower bound", at(figures.lower_bound, figures.lower_bound_event)),
        row("steps", count(figures.steps as u64)),
    ];
    for allocator in &figures.allocators {
        let share = allocator.efficiency.map_or_else(
            || {
                format!(
                    "does not fit, without {} requests that are refused",
                    count(allocator.refused)
                )
            },
            |efficiency| format!("efficiency {}", percent(efficiency)),
        );
        let value = format!("{}, {share}", bytes(allocator.reserved_peak));
        rows.push(row(&format!("reserved by {}", allocator.name), value));
    }
    if let Some(copies) = &figures.copies {
        let value =
            format!("{} in {} copies", bytes(copies.bytes_out), count(copies.copies as u64));
        rows.push(row("to the host and back", value));
    }
    if let Some(against) = &figures.against {
        let value = format!("{} requested at most", bytes(against.live_peak));
        rows.push(row(&format!("against {}", against.name), value));
    }
    write!(out, "{}", table(&[&figures.name, ""], &rows))?;
    for file in written {
        writeln!(out, "{} written, {}", file.file, bytes(file.bytes))?;
    }
    if let Some(page) = page.filter(|page| page.left_out > 0) {
        writeln!(
            out,
            "{} of {} blocks are left out of the page, {} at once at the most",
            count(page.left_out as u64),
            count((page.blocks + page.left_out) as u64),
            bytes(page.left_out_most)
        )?;
    }
    writeln!(out, "made in {seconds:.2} s")?;
    Ok(())
}
