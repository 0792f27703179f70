//! The command `girih`.
//!
//! `main` parses, runs one command and turns what came of it into an exit status: 0 for done, 1 for
//! an answer that is a no (a plan that is wrong, an allocator that differs), 2 for a command that
//! could not be carried out, 128 and its number for what a signal cut short (130: Ctrl-C). Text goes to standard output,
//! progress and errors to standard error.

mod commands;
mod files;
mod interrupt;
mod load;
mod names;
mod progress;
mod table;
mod units;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::bail;
use clap::{CommandFactory, Parser, Subcommand};

/// What a training run cost in GPU memory, what it could cost, and why.
#[derive(Parser)]
#[command(name = "girih", version = env!("GIRIH_VERSION"), arg_required_else_help = true)]
#[command(after_help = "Programs run on Girih by the Python package: python -m girih run train.py")]
struct Cli {
    /// Prints one JSON object instead of text: bytes as integers, ratios as fractions.
    #[arg(long, global = true)]
    json: bool,
    /// Says nothing on standard error but errors.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Says on standard error what is done, line by line.
    #[arg(short, long, global = true)]
    verbose: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Says why a run was refused memory, which lines had it, and what would have fitted.
    Why(commands::why::WhyArgs),
    /// Says which tensors one run has and another has not.
    Diff(commands::diff::DiffArgs),
    /// Draws a recording: one page that needs no network, or a file for another viewer.
    Report(commands::report::ReportArgs),
    /// Says what a recording holds: events, iterations, phases, streams.
    Stats(commands::stats::StatsArgs),
    /// Runs a recording again under an allocator, on a simulated GPU.
    Replay(commands::replay::ReplayArgs),
    /// Plans where every tensor of a recording, or of a planning problem, goes.
    Plan(commands::plan::PlanArgs),
    /// Verifies a plan file.
    Check(commands::check::CheckArgs),
    /// Compares allocators on recordings, and says where the memory went.
    Compare(commands::compare::CompareArgs),
    /// Says at which microbatch, or on how many GPUs, a job fits under each allocator.
    Fit(commands::fit::FitArgs),
    /// Converts between snapshots, trace files and CSV.
    Convert(commands::convert::ConvertArgs),
    /// Holds the simulated allocator against PyTorch's own answers.
    Conform(commands::conform::ConformArgs),
    /// Measures planners on planning problems and recordings.
    Bench(commands::bench::BenchArgs),
    /// Shows how a caching allocator fragments, step by step.
    Lab(commands::lab::LabArgs),
    /// Writes what a shell completes the words of this command with.
    Completions(commands::describe::CompletionsArgs),
    /// Writes the man page.
    Man,
    /// Schedules what goes to the host and comes back where a step does not fit.
    Swap(commands::swap::SwapArgs),
    /// Decides for long contexts which tokens of each layer stay, go to the host, or are computed again.
    Alpha(commands::alpha::AlphaArgs),
}

/// What a command answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// Done, or yes.
    Yes,
    /// No: something that was to be verified is not so.
    No,
    /// A signal ended the search early: what was found is there, and is less than what was asked for.
    CutShort,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(said) => return help_or_error(&said),
    };
    progress::set_loudness(i8::from(cli.verbose) - i8::from(cli.quiet));
    interrupt::watch();
    let mut out = io::BufWriter::new(files::Standard(io::stdout().lock()));
    let result = run(&cli, &mut out).and_then(|answer| {
        out.flush()?;
        Ok(answer)
    });
    match result {
        Ok(Answer::Yes) => ExitCode::SUCCESS,
        Ok(Answer::No) => ExitCode::from(1),
        Ok(Answer::CutShort) => ExitCode::from(interrupt::status()),
        // Whoever read our output has stopped reading: there is nobody left to tell.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            progress::report_error(&error);
            ExitCode::from(2)
        }
    }
}

/// Prints help, a version, or what is wrong with the arguments. Help that nobody can read is an error.
fn help_or_error(said: &clap::Error) -> ExitCode {
    match said.print() {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            progress::report_error(
                &anyhow::Error::new(error).context("cannot write standard output"),
            );
            ExitCode::from(2)
        }
        _ => ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(2)),
    }
}

fn run(cli: &Cli, out: &mut dyn Write) -> anyhow::Result<Answer> {
    match &cli.command {
        Command::Why(args) => commands::why::run(args, cli.json, out),
        Command::Diff(args) => commands::diff::run(args, cli.json, out),
        Command::Report(args) => commands::report::run(args, cli.json, out),
        Command::Stats(args) => commands::stats::run(args, cli.json, out),
        Command::Bench(args) => commands::bench::run(args, cli.json, out),
        Command::Replay(args) => commands::replay::run(args, cli.json, out),
        Command::Plan(args) => commands::plan::run(args, cli.json, out),
        Command::Check(args) => commands::check::run(args, cli.json, out),
        Command::Compare(args) => commands::compare::run(args, cli.json, out),
        Command::Fit(args) => commands::fit::run(args, cli.json, out),
        Command::Convert(args) => commands::convert::run(args, cli.json, out),
        Command::Conform(args) => commands::conform::run(args, cli.json, out),
        Command::Lab(args) => commands::lab::run(args, cli.json, out),
        Command::Completions(_) | Command::Man if cli.json => {
            bail!("leave --json out: what a shell or a pager reads is no JSON")
        }
        Command::Completions(args) => commands::describe::completions(args, Cli::command(), out),
        Command::Man => commands::describe::man(Cli::command(), out),
        Command::Swap(args) => commands::swap::run(args, cli.json, out),
        Command::Alpha(args) => commands::alpha::run(args, cli.json, out),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
