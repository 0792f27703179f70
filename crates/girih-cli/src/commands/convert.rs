//! `girih convert`: from one kind of file to another.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use girih_plan::csv::Table;
use girih_plan::{ALIGNMENT, Buffer, Problem, granted, profile};
use girih_trace::bounds::{REQUEST_MAX, check_sizes};
use girih_trace::{Trace, file};
use serde::Serialize;

use super::plan::read_csv;
use super::write_json;
use crate::Answer;
use crate::files::Output;
use crate::load::{self, Loaded};
use crate::progress::{Progress, say_aside};
use crate::units::bytes;

#[derive(Args)]
pub(crate) struct ConvertArgs {
    #[command(flatten)]
    source: load::Source,
    /// Where to write; - is standard output. The ending says what: .girih for a trace file, .csv for a
    /// planning problem.
    output: PathBuf,
    /// What to write, if the ending does not say it.
    #[arg(long, value_enum)]
    to: Option<Format>,
    /// What of a recording becomes a planning problem: the whole run on a line, or the steady
    /// iteration on a ring, unrolled once.
    #[arg(long, value_enum, default_value = "run")]
    part: Part,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A trace file of Girih: all of the recording, its marks included.
    Girih,
    /// A planning problem: rows of id,lower,upper,size.
    Csv,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Run,
    Iteration,
}

#[derive(Serialize)]
struct Json {
    output: String,
    format: &'static str,
    bytes: u64,
}

pub(crate) fn run(args: &ConvertArgs, json: bool, out: &mut dyn Write) -> anyhow::Result<Answer> {
    let progress = Progress::new();
    progress.say(format!("reading {}", args.source.file.display()));
    let format = match (args.to, args.output.extension().and_then(|ending| ending.to_str())) {
        (Some(format), _) => format,
        (None, Some("girih")) => Format::Girih,
        (None, Some("csv")) => Format::Csv,
        _ => bail!(
            "end {} in .girih or .csv, or use --to: its name does not say what to write",
            args.output.display()
        ),
    };
    let from_csv = load::name_of(&args.source.file).len() < args.source.file.as_os_str().len()
        && args.source.file.to_string_lossy().trim_end_matches(".gz").ends_with(".csv");
    let output = Output::new(&args.output, &args.source.inputs())?;
    if json && output.is_standard() {
        bail!("leave --json out or name a file: --json and the output - both want standard output");
    }
    let written = match (from_csv, format) {
        (true, Format::Csv) => {
            let table = read_csv(&args.source.file)?;
            output.write(|writer| Ok(table.write(writer, None)?))?
        }
        (true, Format::Girih) => {
            let recording = trace_of_problem(&read_csv(&args.source.file)?)?;
            output.write(|writer| Ok(file::write(&recording, writer)?))?
        }
        (false, Format::Girih) => {
            // Every device goes along; the marks are those of the one that was chosen.
            let mut recording = load::read(&args.source.file)?;
            let loaded = args.source.understand(recording.clone())?;
            for trace in &mut recording.traces {
                if trace.device == loaded.trace.device {
                    trace.clone_from(&loaded.trace);
                }
            }
            progress.say("writing");
            output.write(|writer| Ok(file::write(&recording, writer)?))?
        }
        (false, Format::Csv) => {
            let loaded = args.source.load()?;
            let table = Table::from(problem_of(&loaded, args.part)?);
            output.write(|writer| Ok(table.write(writer, None)?))?
        }
    };
    drop(progress);
    if json {
        let format = if format == Format::Girih { "girih" } else { "csv" };
        write_json(
            out,
            &Json { output: args.output.display().to_string(), format, bytes: written },
        )?;
    } else if output.is_standard() {
        say_aside(&format!("{}: {}", output.shown(), bytes(written)));
    } else {
        writeln!(out, "{}: {}", output.shown(), bytes(written))?;
    }
    Ok(Answer::Yes)
}

/// The run as a planning problem: a buffer a request, in ticks of the trace; or its steady
/// iteration as the planners see it.
fn problem_of(loaded: &Loaded, part: Part) -> anyhow::Result<Problem> {
    if part == Part::Iteration {
        let Loaded { trace, lives, iterations, name, .. } = loaded;
        if iterations.steady.is_none() {
            bail!("use --part run: {name} has no iterations that are alike");
        }
        let mut seen = Problem::default();
        profile::plan(trace, lives, iterations, |problem| {
            seen.clone_from(problem);
            girih_plan::solve(problem, girih_plan::Budget::attempts(1))
        })?;
        return Ok(seen);
    }
    let end = loaded.trace.events.len() as u32 + 1;
    let buffers = loaded.lives.requests.iter().map(|request| Buffer {
        lower: request.birth.0,
        upper: request.death.0.clamp(request.birth.0 + 1, end),
        size: granted(request.size),
    });
    Ok(Problem { buffers: buffers.collect(), period: 0, alignment: ALIGNMENT })
}

/// A planning problem as a recording: each buffer an allocation and a free, each at an address of
/// its own.
fn trace_of_problem(table: &Table) -> anyhow::Result<girih_trace::Recording> {
    use girih_trace::{Action, Event, PoolId, StackId, StreamId};
    let mut order: Vec<(u32, bool, usize)> = Vec::new();
    for (index, buffer) in table.problem.buffers.iter().enumerate() {
        order.push((buffer.lower, true, index));
        order.push((buffer.upper, false, index));
    }
    // What dies at a tick makes room for what is born at it.
    order.sort_unstable();
    let mut address = 1u64 << 30;
    let addresses: Option<Vec<u64>> = (table.problem.buffers.iter())
        .map(|buffer| {
            let own = address;
            address = address.checked_add(granted(buffer.size))?;
            Some(own)
        })
        .collect();
    let addresses =
        addresses.context("give smaller sizes: they add up to more than there are addresses")?;
    let mut trace = Trace { streams: vec![0], pools: vec![(0, 0)], ..Trace::default() };
    for (tick, is_birth, index) in order {
        let event = |action| Event {
            address: addresses[index],
            size: table.problem.buffers[index].size,
            time_us: i64::from(tick),
            stack: StackId::NONE,
            stream: StreamId(0),
            pool: PoolId::DEFAULT,
            action,
        };
        if is_birth {
            trace.events.push(event(Action::Alloc));
        } else {
            trace.events.extend([event(Action::FreeRequested), event(Action::FreeCompleted)]);
        }
    }
    // What would be refused when it is read is not written.
    if check_sizes(&trace).is_err() {
        bail!("give smaller sizes: a buffer has more bytes than the {REQUEST_MAX} of any GPU");
    }
    trace.origin.kind = "planning problem".to_owned();
    Ok(girih_trace::Recording { traces: vec![trace] })
}
