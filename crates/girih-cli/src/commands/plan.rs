//! `girih plan`: where every tensor of a recording, or of a planning problem, goes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use girih_plan::bound::Bound;
use girih_plan::csv::{self, Table};
use girih_plan::strategy::Hints;
use girih_plan::{Outcome, Problem, Trial, Wait, check, file, waits};
use girih_runtime::simulate::Setup;
use girih_runtime::simulate::trial::tried;
use girih_trace::compress::{Input, Limits};
use girih_why::units::printable;
use serde::Serialize;

use super::effort::Effort;
use super::write_json;
use crate::Answer;
use crate::files::{self, Output, shown_input};
use crate::interrupt;
use crate::load::{self, Loaded, timed};
use crate::progress::{Progress, say_aside};
use crate::table::table;
use crate::units::{bytes, count};

#[derive(Args)]
pub(crate) struct PlanArgs {
    /// A PyTorch memory snapshot (pickle, .gz or .zst), or a trace file of Girih; - is standard input.
    #[arg(required_unless_present = "csv", conflicts_with = "csv")]
    file: Option<PathBuf>,
    /// The marks of the run. Without this, NAME.marks.json or NAME.marks.json.gz beside the file.
    #[arg(long, value_name = "FILE", conflicts_with = "csv")]
    marks: Option<PathBuf>,
    /// The device, if the recording has several.
    #[arg(long, value_name = "N", conflicts_with = "csv")]
    device: Option<u32>,
    /// Plans a planning problem instead: rows of id,lower,upper,size.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    #[command(flatten)]
    effort: Effort,
    /// Says what proves the bound, which planners brought the height down, and where one stream
    /// waits for another.
    #[arg(long)]
    explain: bool,
    /// Where to write the plan; for a CSV problem, the rows with their offsets. - is standard output.
    #[arg(short, long, value_name = "PLAN")]
    output: Option<PathBuf>,
}

#[derive(Serialize)]
struct Json {
    name: String,
    requests: u64,
    persistent_bytes: u64,
    iteration_requests: usize,
    lower_bound: u64,
    peak: u64,
    arena_bytes: u64,
    gap: f64,
    proven: bool,
    planner: String,
    attempts: Vec<JsonAttempt>,
    /// Bytes that no plan can be lower than.
    least: u64,
    exact_nodes: u64,
    certificate: Certificate,
    #[serde(skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    /// Of a recording: where a stream waits for another one in the steady sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<Vec<JsonWait>>,
    /// Iterations of the steady sequence.
    #[serde(skip)]
    rounds: u32,
    /// A signal ended the search.
    cut_short: bool,
    seconds: f64,
    /// What the recording holds with the plan and without.
    #[serde(skip_serializing_if = "Option::is_none")]
    trial: Option<JsonTrial>,
}

/// Bytes that a recording holds at most in a replay.
#[derive(Serialize)]
struct JsonTrial {
    with: u64,
    without: u64,
    /// Whether anyone follows the plan.
    helps: bool,
}

/// A wait. Entries are indices in the steady sequence.
#[derive(Serialize)]
struct JsonWait {
    entry: u32,
    stream: u16,
    freed: u32,
    freed_stream: u16,
    /// Requests from the free to the entry that waits.
    distance: u32,
}

impl JsonWait {
    fn new(wait: &Wait) -> JsonWait {
        let Wait { entry, stream, freed, freed_stream, distance } = *wait;
        JsonWait { entry, stream: stream.0, freed, freed_stream: freed_stream.0, distance }
    }
}

#[derive(Serialize)]
struct JsonAttempt {
    planner: String,
    height: Option<u64>,
}

/// What proves the bound: blocks that are alive together, side by side whatever the plan.
#[derive(Serialize)]
struct Certificate {
    /// The tick of the planning problem.
    tick: u32,
    /// Blocks alive then.
    blocks: usize,
    /// How many of each size, the sizes with the most bytes first.
    sizes: Vec<SizeCount>,
}

#[derive(Serialize)]
struct SizeCount {
    bytes: u64,
    count: usize,
}

impl Certificate {
    fn of(problem: &Problem, bound: &Bound) -> Certificate {
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for &buffer in &bound.live {
            let size = problem.buffers[buffer as usize].size;
            *counts.entry(size.next_multiple_of(problem.alignment)).or_default() += 1;
        }
        let mut sizes: Vec<SizeCount> =
            counts.into_iter().map(|(bytes, count)| SizeCount { bytes, count }).collect();
        sizes.sort_by_key(|size| {
            (Reverse(size.bytes.saturating_mul(size.count as u64)), size.bytes)
        });
        Certificate { tick: bound.tick, blocks: bound.live.len(), sizes }
    }
}

pub(crate) fn run(args: &PlanArgs, json: bool, out: &mut dyn Write) -> anyhow::Result<Answer> {
    let inputs: Vec<&Path> =
        [&args.csv, &args.file, &args.marks].into_iter().flatten().map(PathBuf::as_path).collect();
    let output = args.output.as_deref().map(|named| Output::new(named, &inputs)).transpose()?;
    let is_taken = output.as_ref().is_some_and(Output::is_standard);
    if json && is_taken {
        bail!("leave --json out or name a file: --json and the output - both want standard output");
    }
    let result = match (&args.csv, &args.file) {
        (Some(csv), _) => plan_csv(args, csv, output.as_ref())?,
        (None, Some(file)) => plan_recording(args, file, output.as_ref())?,
        (None, None) => bail!("give a recording, or a planning problem with --csv"),
    };
    if json {
        write_json(out, &result)?;
    } else if is_taken {
        // What is said would be taken for a part of the plan.
        let mut text = Vec::new();
        print(&result, args, output.as_ref(), &mut text)?;
        say_aside(String::from_utf8_lossy(&text).trim_end());
    } else {
        print(&result, args, output.as_ref(), out)?;
    }
    Ok(if result.cut_short { Answer::CutShort } else { Answer::Yes })
}

fn plan_recording(args: &PlanArgs, path: &Path, output: Option<&Output>) -> anyhow::Result<Json> {
    let progress = Progress::new();
    progress.say(format!("reading {}", shown_input(path)));
    let source =
        load::Source { file: path.to_owned(), marks: args.marks.clone(), device: args.device };
    let loaded = source.load()?;
    progress.say("planning");
    let strategy = args.effort.strategy()?;
    let Loaded { trace, lives, iterations, .. } = &loaded;
    let hints = if args.effort.takes_hints() {
        strategy.hints(trace, lives, iterations)?.1
    } else {
        Hints::default()
    };
    let solver = args.effort.solver(&strategy, hints, &progress);
    let mut made = None;
    let (plan, seconds) = timed(|| {
        strategy.plan(trace, lives, iterations, |problem| {
            let outcome = solver(problem)?;
            let searched = (outcome.least, outcome.nodes);
            made = Some((Certificate::of(problem, &outcome.bound), attempts(&outcome), searched));
            Ok(outcome)
        })
    });
    let plan = plan.with_context(|| format!("cannot plan {}", shown_input(path)))?;
    progress.say("trying the plan");
    let plan = tried(plan, trace, lives, &Setup::default());
    let trial =
        plan.trial.map(|Trial { with, without }| JsonTrial { with, without, helps: plan.helps() });
    let (certificate, attempts, (least, exact_nodes)) = made.expect("the planner is asked once");
    if let Some(output) = output {
        output.write(|writer| Ok(file::write(&plan, writer)?))?;
    }
    Ok(Json {
        name: loaded.name,
        requests: plan.requests,
        persistent_bytes: plan.persistent_bytes,
        iteration_requests: plan.iteration_requests(),
        lower_bound: plan.lower_bound,
        peak: plan.peak,
        arena_bytes: plan.arena_bytes,
        gap: plan.gap(),
        proven: plan.proven,
        planner: plan.planner.clone(),
        attempts,
        least,
        exact_nodes,
        certificate,
        fingerprint: Some(format!("{:016x}", plan.fingerprint())),
        waits: Some(waits(&plan).iter().map(JsonWait::new).collect()),
        rounds: plan.rounds,
        cut_short: args.effort.was_cut_short(),
        seconds,
        trial,
    })
}

fn plan_csv(args: &PlanArgs, path: &Path, output: Option<&Output>) -> anyhow::Result<Json> {
    let progress = Progress::new();
    progress.say(format!("reading {}", shown_input(path)));
    let problem = read_csv(path)?;
    progress.say("planning");
    let strategy = args.effort.strategy()?;
    let solver = args.effort.solver(&strategy, Hints::default(), &progress);
    let (outcome, seconds) = timed(|| solver(&problem.problem));
    let outcome = outcome.with_context(|| format!("cannot plan {}", shown_input(path)))?;
    // The checker shares nothing with the planners: what it passes is right.
    check::check(&problem.problem, &outcome.solution)
        .context("please report this bug of Girih: the planner made a mistake")?;
    if let Some(output) = output {
        output.write(|writer| Ok(problem.write(writer, Some(&outcome.solution))?))?;
    }
    Ok(Json {
        name: printable(&load::name_of(path)).into_owned(),
        requests: problem.problem.buffers.len() as u64,
        persistent_bytes: 0,
        iteration_requests: problem.problem.buffers.len(),
        lower_bound: outcome.bound.bytes,
        peak: outcome.solution.height,
        arena_bytes: outcome.solution.height,
        gap: outcome.gap(),
        proven: outcome.is_proven(),
        planner: outcome.solution.planner.to_owned(),
        attempts: attempts(&outcome),
        least: outcome.least,
        exact_nodes: outcome.nodes,
        certificate: Certificate::of(&problem.problem, &outcome.bound),
        fingerprint: None,
        waits: None,
        rounds: 1,
        cut_short: args.effort.was_cut_short(),
        seconds,
        trial: None,
    })
}

/// Reads a planning problem, which may be compressed.
pub(crate) fn read_csv(path: &Path) -> anyhow::Result<Table> {
    let shown = shown_input(path);
    let input = Input::new(files::open(path)?, Limits::default())
        .with_context(|| format!("cannot read {shown}"))?;
    csv::read(BufReader::new(input)).with_context(|| format!("cannot read {shown}"))
}

fn attempts(outcome: &Outcome) -> Vec<JsonAttempt> {
    let attempts = outcome.attempts.iter();
    attempts
        .map(|attempt| JsonAttempt { planner: attempt.planner.to_string(), height: attempt.height })
        .collect()
}

fn print(
    result: &Json,
    args: &PlanArgs,
    output: Option<&Output>,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let verdict = match (result.proven, result.gap) {
        (true, 0.0) => "at the lower bound: no plan can be lower".to_owned(),
        (true, gap) => {
            format!("{:.3} % above the lower bound, and no plan can be lower", gap * 100.0)
        }
        (false, gap) => format!("{:.3} % above the lower bound", gap * 100.0),
    };
    let rows = [
        row("requests", count(result.requests)),
        row("requests of an iteration", count(result.iteration_requests as u64)),
        row("stays across iterations", bytes(result.persistent_bytes)),
        row("lower bound of an iteration", bytes(result.lower_bound)),
        row("the plan's arena", bytes(result.arena_bytes)),
    ];
    write!(out, "{}", table(&[&result.name, ""], &rows))?;
    writeln!(out, "\n{verdict} ({}, {:.3} s)", result.planner, result.seconds)?;
    if let Some(JsonTrial { with, without, helps }) = result.trial {
        let (with, without) = (bytes(with), bytes(without));
        let verdict = if helps { "" } else { ": it is no help, and nobody follows it" };
        writeln!(out, "the recording holds {with} with it, {without} without{verdict}")?;
    }
    if result.cut_short {
        let by = interrupt::name();
        writeln!(out, "{by} cut the search short: this is the best that was found until then")?;
    }
    if args.explain {
        explain(result, out)?;
        explain_waits(result, out)?;
    }
    if let Some(output) = output {
        writeln!(out, "written to {}", output.shown())?;
    }
    Ok(())
}

/// Sizes of the certificate that are shown one by one.
const SIZES_SHOWN: usize = 8;

fn explain(result: &Json, out: &mut dyn Write) -> anyhow::Result<()> {
    let Certificate { tick, blocks, sizes } = &result.certificate;
    writeln!(
        out,
        "\nAt tick {} {} blocks are alive, {} together:",
        count(u64::from(*tick)),
        count(*blocks as u64),
        bytes(result.lower_bound)
    )?;
    let row = |size: &SizeCount| {
        let sum = size.bytes.saturating_mul(size.count as u64);
        vec![count(size.count as u64), bytes(size.bytes), bytes(sum)]
    };
    let mut rows: Vec<Vec<String>> = sizes.iter().take(SIZES_SHOWN).map(row).collect();
    let others = sizes.iter().skip(SIZES_SHOWN);
    let (others, sum) = others.fold((0, 0), |(others, sum), size| {
        (others + size.count, size.bytes.saturating_mul(size.count as u64).saturating_add(sum))
    });
    if others > 0 {
        rows.push(vec![count(others as u64), "others".to_owned(), bytes(sum)]);
    }
    write!(out, "{}", table(&["blocks", "of", "together"], &rows))?;

    match result.attempts.len() {
        // A published planner has one plan.
        0 => return Ok(()),
        1 => writeln!(out, "\nOne planner was tried:")?,
        tried => writeln!(out, "\n{tried} planners were tried. The height came down with:")?,
    }
    let mut best = u64::MAX;
    let mut rows = Vec::new();
    for (index, attempt) in result.attempts.iter().enumerate() {
        let Some(height) = attempt.height.filter(|height| *height < best) else { continue };
        best = height;
        let above = (height - result.lower_bound) as f64 / result.lower_bound.max(1) as f64;
        let place = count(index as u64 + 1);
        rows.push(vec![
            place,
            bytes(height),
            format!("{:.4} %", 100.0 * above),
            attempt.planner.clone(),
        ]);
    }
    write!(out, "{}", table(&["try", "height", "above", "planner"], &rows))?;
    Ok(())
}

/// Waits that are shown one by one, those with the least time to pass.
const WAITS_SHOWN: usize = 5;

/// Says where streams wait for each other; nothing if none does.
fn explain_waits(result: &Json, out: &mut dyn Write) -> anyhow::Result<()> {
    let waits = result.waits.as_deref().unwrap_or_default();
    if waits.is_empty() {
        return Ok(());
    }
    let every = if result.rounds > 1 { "every two iterations" } else { "an iteration" };
    let mut nearest: Vec<&JsonWait> = waits.iter().collect();
    nearest.sort_by_key(|wait| (wait.distance, wait.entry));
    nearest.truncate(WAITS_SHOWN);
    let many = if waits.len() == 1 { "time" } else { "times" };
    writeln!(
        out,
        "\nOne stream takes what another has used, and waits, {} {many} {every}. The nearest:",
        count(waits.len() as u64)
    )?;
    let row = |wait: &&JsonWait| {
        let of = |entry: u32, stream: u16| vec![count(u64::from(entry)), count(u64::from(stream))];
        let taker = of(wait.entry, wait.stream);
        let freed = of(wait.freed, wait.freed_stream);
        [taker, freed, vec![count(u64::from(wait.distance))]].concat()
    };
    let rows: Vec<Vec<String>> = nearest.iter().map(row).collect();
    let heads = ["request", "on stream", "takes what had", "on stream", "requests since its free"];
    write!(out, "{}", table(&heads, &rows))?;
    Ok(())
}
