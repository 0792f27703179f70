//! `girih bench planners`: every planner on every problem of a folder, one process each.
//!
//! Problems are CSV files of rows id,lower,upper,size and recordings, of which the steady iteration
//! is planned; published planners (`girih_plan::stweaver`, `girih_plan::memo`) stand beside ours.
//! Each row is a process of its own, so that its memory is its own and a planner that takes too long
//! can be stopped.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use girih_plan::strategy::Hints;
use girih_plan::{Problem, Strategy, check};
use serde::{Deserialize, Serialize};

use super::effort::Effort;
use super::plan::read_csv;
use super::write_json;
use crate::Answer;
use crate::interrupt;
use crate::load::{self, timed};
use crate::progress::{Progress, in_one_line};
use crate::table::table;
use crate::units::{bytes, count};

#[derive(Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Runs every planner on every problem of a folder: how low, how fast, how much memory.
    Planners(PlannersArgs),
    /// One row of it.
    #[command(hide = true)]
    Row(RowArgs),
}

#[derive(Args)]
struct PlannersArgs {
    /// The folder: planning problems (.csv) and recordings (.pickle, .girih), compressed or not.
    folder: PathBuf,
    /// How much is tried in each row: a number of planners with their settings, or a time.
    #[arg(long, value_name = "NUMBER|TIME")]
    budget: Option<String>,
    /// Stops a row after so many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    timeout: u64,
}

#[derive(Args)]
struct RowArgs {
    file: PathBuf,
    #[command(flatten)]
    effort: Effort,
    /// Forgets the phases and the layers that the marks of a recording tell.
    #[arg(long)]
    bare: bool,
}

/// What is run, and what it is called: the options of `girih plan`.
const ROWS: [(&str, &[&str]); 19] = [
    ("auto", &[]),
    ("sweep", &["--planner", "sweep"]),
    ("first fit", &["--planner", "first-fit"]),
    ("two-phase", &["--planner", "two-phase"]),
    ("skyline", &["--planner", "skyline"]),
    ("exact", &["--planner", "exact"]),
    ("stweaver", &["--planner", "stweaver"]),
    ("stweaver, by phase and size", &["--planner", "stweaver-closed"]),
    ("stweaver, open bubbles", &["--planner", "stweaver-open"]),
    ("stweaver, by size", &["--planner", "stweaver", BARE]),
    ("memo, by marks", &["--planner", "memo"]),
    ("memo", &["--planner", "memo", BARE]),
    ("auto without sweep", &["--without", "sweep"]),
    ("auto without first fit", &["--without", "first-fit"]),
    ("auto without two-phase", &["--without", "two-phase"]),
    ("auto without skyline", &["--without", "skyline"]),
    ("auto without noise", &["--without", "noise"]),
    ("auto without folding", &["--without", "folding"]),
    ("auto without exact", &["--without", "exact"]),
];

/// Plans a recording like a planning problem from elsewhere.
const BARE: &str = "--bare";
/// Rows that need what only a recording tells: their planners have one without it.
const OF_RECORDINGS: [&str; 4] = ["stweaver", "stweaver-closed", "stweaver-open", "memo"];

/// What a row finds.
#[derive(Serialize, Deserialize, Clone)]
struct Found {
    buffers: usize,
    lower_bound: u64,
    height: u64,
    proven: bool,
    found_by: String,
    attempts: usize,
    /// Nodes of the exact search.
    exact_nodes: u64,
    seconds: f64,
    /// The most memory that the process had, in bytes; none where the system does not say.
    memory_peak: Option<u64>,
}

#[derive(Serialize)]
struct Json {
    problems: Vec<JsonProblem>,
}

#[derive(Serialize)]
struct JsonProblem {
    name: String,
    rows: Vec<JsonRow>,
}

#[derive(Serialize)]
struct JsonRow {
    planner: &'static str,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    found: Option<Found>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(crate) fn run(args: &BenchArgs, json: bool, out: &mut dyn Write) -> anyhow::Result<Answer> {
    match &args.what {
        What::Planners(args) => planners(args, json, out),
        What::Row(args) => row(args, out),
    }
}

fn planners(args: &PlannersArgs, json: bool, out: &mut dyn Write) -> anyhow::Result<Answer> {
    let files = problems(&args.folder)?;
    let progress = Progress::new();
    let mut result = Json { problems: Vec::new() };
    for (done, file) in files.iter().enumerate() {
        progress.part(done, files.len());
        let name = load::name_of(file);
        let rows: Vec<JsonRow> = ROWS
            .iter()
            .filter(|(_, options)| !is_csv(file) || suits_problems(options))
            .map(|(planner, options)| {
                progress.say(format!("{name}: {planner}"));
                match measure(file, options, args) {
                    Ok(found) => JsonRow { planner, found: Some(found), error: None },
                    Err(error) => {
                        JsonRow { planner, found: None, error: Some(in_one_line(&error)) }
                    }
                }
            })
            .collect();
        if !json {
            progress.make_room(|| {
                print(&name, &rows, out)?;
                out.flush().map_err(anyhow::Error::from)
            })?;
        }
        result.problems.push(JsonProblem { name, rows });
    }
    if json {
        write_json(out, &result)?;
    }
    let failed =
        result.problems.iter().flat_map(|problem| &problem.rows).any(|r| r.error.is_some());
    Ok(if failed { Answer::No } else { Answer::Yes })
}

/// The planning problems and recordings of a folder, by name.
fn problems(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("cannot read the folder {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = uncompressed(&path);
        if [".csv", ".pickle", ".girih"].iter().any(|ending| name.ends_with(ending)) {
            files.push(path);
        }
    }
    if files.is_empty() {
        bail!("name a folder with .csv, .pickle or .girih files: {} has none", folder.display());
    }
    files.sort();
    Ok(files)
}

/// Whether a row says something of a planning problem, which has neither phases nor marks.
fn suits_problems(options: &[&str]) -> bool {
    options.contains(&BARE) || !options.iter().any(|option| OF_RECORDINGS.contains(option))
}

fn is_csv(path: &Path) -> bool {
    uncompressed(path).ends_with(".csv")
}

/// The name of a file, as it would be without compression.
fn uncompressed(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.trim_end_matches(".gz").trim_end_matches(".zst").to_owned()
}

/// Runs a row in a process of its own.
#[expect(clippy::disallowed_methods, reason = "a benchmark has a time limit")]
fn measure(file: &Path, options: &[&str], args: &PlannersArgs) -> anyhow::Result<Found> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(own);
    command.args(["bench", "row"]).arg(file).args(options);
    command.args(args.budget.iter().flat_map(|budget| ["--budget", budget]));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start a process")?;
    // The row would go on without us.
    let is_ended = interrupt::wait_for_result();
    let until = Instant::now() + Duration::from_secs(args.timeout);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if is_ended.load(Ordering::Acquire) {
            child.kill()?;
            child.wait()?;
            interrupt::end();
        }
        if Instant::now() >= until {
            child.kill()?;
            child.wait()?;
            bail!("give it a longer --timeout: stopped after {} s", args.timeout);
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let mut said = String::new();
    if !status.success() {
        child.stderr.take().context("no standard error")?.read_to_string(&mut said)?;
        bail!("{}", said.trim().trim_start_matches("girih: "));
    }
    child.stdout.take().context("no standard output")?.read_to_string(&mut said)?;
    serde_json::from_str(&said)
        .context("please report this bug of Girih: a row said something unexpected")
}

/// Plans one problem and says what came of it.
fn row(args: &RowArgs, out: &mut dyn Write) -> anyhow::Result<Answer> {
    let strategy = args.effort.strategy()?;
    let (problem, hints) = if is_csv(&args.file) {
        (read_csv(&args.file)?.problem, Hints::default())
    } else {
        let source = load::Source { file: args.file.clone(), marks: None, device: None };
        let loaded = source.load()?;
        strategy.hints(&loaded.trace, &loaded.lives, &loaded.iterations)?
    };
    let hints = if args.bare { Hints::default() } else { hints };
    write_json(out, &plan(&problem, &args.effort, &strategy, hints)?)?;
    Ok(Answer::Yes)
}

fn plan(
    problem: &Problem,
    effort: &Effort,
    strategy: &Strategy,
    hints: Hints,
) -> anyhow::Result<Found> {
    let progress = Progress::new();
    let solver = effort.solver(strategy, hints, &progress);
    let (outcome, seconds) = timed(|| solver(problem));
    let memory_peak = memory_peak();
    let outcome = outcome?;
    check::check(problem, &outcome.solution)
        .context("please report this bug of Girih: the planner made a mistake")?;
    Ok(Found {
        buffers: problem.buffers.len(),
        lower_bound: outcome.bound.bytes,
        height: outcome.solution.height,
        proven: outcome.is_proven(),
        found_by: outcome.solution.planner.to_owned(),
        // A planner that has one plan tries it.
        attempts: outcome.attempts.len().max(1),
        exact_nodes: outcome.nodes,
        seconds,
        memory_peak,
    })
}

/// The most memory that this process has had.
fn memory_peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib << 10)
}

fn print(name: &str, rows: &[JsonRow], out: &mut dyn Write) -> anyhow::Result<()> {
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| match (&row.found, &row.error) {
            (Some(found), _) => {
                let above = (found.height - found.lower_bound) as f64;
                let above = 100.0 * above / found.lower_bound.max(1) as f64;
                vec![
                    row.planner.to_owned(),
                    if found.proven { "proven".to_owned() } else { format!("{above:.4} %") },
                    bytes(found.height),
                    format!("{:.3} s", found.seconds),
                    count(found.attempts as u64),
                    count(found.exact_nodes),
                    found.memory_peak.map_or("-".to_owned(), bytes),
                ]
            }
            (None, error) => {
                let error = error.as_deref().unwrap_or_default();
                let first: String =
                    error.lines().next().unwrap_or_default().chars().take(80).collect();
                let mut cells = vec![row.planner.to_owned(), first];
                cells.resize(7, String::new());
                cells
            }
        })
        .collect();
    let found = rows.iter().find_map(|row| row.found.as_ref());
    let (buffers, bound) = found.map_or((0, 0), |found| (found.buffers, found.lower_bound));
    writeln!(out, "{name}: {} buffers, at least {}", count(buffers as u64), bytes(bound))?;
    let head = ["planner", "above", "height", "time", "tries", "nodes", "memory"];
    writeln!(out, "{}", table(&head, &cells))?;
    Ok(())
}
