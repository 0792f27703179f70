//! `girih why`: why a run was refused memory, and what would have fitted.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, bail};
use clap::Args;
use girih_runtime::simulate::SimulateError;
use girih_why::report::{JsonFit, JsonLine};
use girih_why::{
    At, By, Case, Diagnosis, Fit, Known, Question, Recorded, Report, Setting, diagnose, ranks,
    read_sentence,
};
use serde::Serialize;

use super::folder::{ENDINGS, is_recording};
use super::write_json;
use crate::Answer;
use crate::files::{self, shown_input};
use crate::load::{self, Loaded};
use crate::names::one_of;
use crate::progress::Progress;
use crate::table::{self, table};
use crate::units::{self, bytes, count};

#[derive(Args)]
pub(crate) struct WhyArgs {
    /// A PyTorch memory snapshot (pickle, .gz or .zst), a trace file of Girih, or a folder with one
    /// for each rank; - is standard input.
    run: PathBuf,
    #[command(flatten)]
    look: Look,
    /// Bytes that the process could have, if that is known better than the recording tells. Of a
    /// recording without an error: on a device of so many bytes, why would it have died?
    #[arg(long, value_name = "SIZE", value_parser = units::parse_capacity)]
    capacity: Option<u64>,
    /// Bytes of the card, such as 80GiB: what others have of it is told by that.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    card: Option<u64>,
    /// What the program printed: PyTorch's error in it says how large the card is and who has it.
    /// Without this, NAME.log beside the recording, if it is there.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Which of the refused requests, from 0. Without this the last, of which a run mostly dies.
    #[arg(long, value_name = "N")]
    error: Option<usize>,
}

/// Which tensors are listed.
#[derive(Args, Clone)]
pub(crate) struct Look {
    /// The marks of the run. Without this, NAME.marks.json or NAME.marks.json.gz beside the file.
    #[arg(long, value_name = "FILE")]
    marks: Option<PathBuf>,
    /// The device, if the recording has several. Without this, the one with the most events.
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// What the listed tensors are put together by.
    #[arg(long, value_name = "WHAT", value_parser = one_of(&By::ALL, By::name, By::about), default_value = "line")]
    group_by: By,
    /// When the listed tensors were alive: `error`, `peak`, `never-freed`, or `step:N` for the peak
    /// of a step.
    #[arg(long, value_name = "WHEN", value_parser = parse_at, default_value = "error")]
    at: At,
    /// How many places are listed.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) top: usize,
}

impl Look {
    /// Reads and understands a recording.
    pub(crate) fn load(&self, file: &Path) -> anyhow::Result<Loaded> {
        let (marks, device) = (self.marks.clone(), self.device);
        load::Source { file: file.to_owned(), marks, device }.load()
    }

    /// What is asked of it.
    pub(crate) fn question(&self) -> Question {
        Question { at: self.at, by: self.group_by, ..Question::default() }
    }

    /// The name of what the tensors are put together by.
    pub(crate) fn by(&self) -> &'static str {
        self.group_by.name()
    }
}

fn parse_at(text: &str) -> Result<At, String> {
    match text.split_once(':') {
        Some(("step", number)) => match number.parse() {
            Ok(step) => Ok(At::Step(step)),
            Err(_) => Err(format!("try step:0: `{text}` names no step")),
        },
        _ => match text {
            "error" => Ok(At::Error),
            "peak" => Ok(At::Peak),
            "never-freed" => Ok(At::NeverFreed),
            _ => Err(format!("use error, peak, never-freed or step:N, not `{text}`")),
        },
    }
}

/// The answer about a folder of ranks: that about the worst, and all.
#[derive(Serialize)]
struct JsonRanks<'a> {
    #[serde(flatten)]
    worst: &'a Report,
    differences: Vec<String>,
    ranks: Vec<&'a Report>,
}

pub(crate) fn run(args: &WhyArgs, json: bool, out: &mut dyn Write) -> anyhow::Result<Answer> {
    if args.run.is_dir() {
        return of_ranks(args, json, out);
    }
    let progress = Progress::new();
    let report = answer(args, &args.run, &progress)?;
    drop(progress);
    if json {
        write_json(out, &report)?;
    } else {
        print(&report, args, out)?;
    }
    Ok(Answer::Yes)
}

fn of_ranks(args: &WhyArgs, json: bool, out: &mut dyn Write) -> anyhow::Result<Answer> {
    if args.look.marks.is_some() || args.log.is_some() {
        bail!(
            "leave out --marks and --log, which are of one recording: {} is a folder",
            args.run.display()
        );
    }
    let files = recordings(&args.run)?;
    let mut progress = Progress::new();
    let mut reports = Vec::with_capacity(files.len());
    for (done, file) in files.iter().enumerate() {
        progress.part(done, files.len());
        reports.push(answer(args, file, &progress)?);
    }
    progress.whole();
    drop(progress);
    let order = ranks::worst_first(&reports);
    let differences = ranks::differences(&reports, &order);
    let ranks: Vec<&Report> = order.iter().map(|&index| &reports[index]).collect();
    if json {
        write_json(out, &JsonRanks { worst: ranks[0], differences, ranks })?;
        return Ok(Answer::Yes);
    }
    print(ranks[0], args, out)?;
    writeln!(out)?;
    let cell = |bytes_of: Option<u64>| bytes_of.map_or_else(|| "-".to_owned(), bytes);
    let rows: Vec<Vec<String>> = (ranks.iter())
        .map(|report| {
            let Report { name, verdict, live, idle, requested, .. } = report;
            let live = Some(live.unwrap_or(report.live_peak));
            vec![name.clone(), (*verdict).to_owned(), cell(live), cell(*idle), cell(*requested)]
        })
        .collect();
    write!(out, "{}", table(&["rank", "verdict", "alive", "idle", "refused"], &rows))?;
    for sentence in differences {
        write_wrapped(out, "", &sentence)?;
    }
    Ok(Answer::Yes)
}

/// The recordings of a folder, by name.
fn recordings(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let shown = folder.display();
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {shown}"))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {shown}"))?.path();
        if is_recording(&path) {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        bail!("name a folder with recordings: nothing in {shown} ends in {}", ENDINGS.join(", "));
    }
    Ok(files)
}

fn answer(args: &WhyArgs, file: &Path, progress: &Progress) -> anyhow::Result<Report> {
    let shown = shown_input(file);
    progress.say(format!("reading {shown}"));
    let loaded = args.look.load(file)?;
    let known = known(args, file)?;
    let question = Question { known, error: args.error, ..args.look.question() };
    progress.say(format!("{shown}: what would have fitted"));
    let diagnosis = ask(&loaded, &question, &mut several_at_once)
        .with_context(|| format!("no answer about {shown}"))?;
    Ok(Report::new(&loaded.name, &diagnosis, args.look.top))
}

/// Asks about a recording.
pub(crate) fn ask(
    loaded: &Loaded,
    question: &Question,
    replay: girih_why::diagnosis::Try<'_>,
) -> anyhow::Result<Diagnosis> {
    let Loaded { trace, lives, iterations, .. } = loaded;
    Ok(diagnose(Recorded { trace, lives, iterations }, question, replay)?)
}

/// What is known beside a recording: what was said, and what the error's text says.
fn known(args: &WhyArgs, file: &Path) -> anyhow::Result<Known> {
    let beside = file.with_file_name(format!("{}.log", load::name_of(file)));
    let is_beside = !files::is_standard(file) && beside.is_file();
    let log = args.log.clone().or_else(|| is_beside.then_some(beside));
    let told = match &log {
        None => Known::default(),
        Some(log) => {
            let text = files::read_whole(log)?;
            let found = read_sentence(&String::from_utf8_lossy(&text));
            match (found, &args.log) {
                (Some(known), _) => known,
                (None, None) => Known::default(),
                (None, Some(_)) => bail!(
                    "give --log what the program printed, with \"CUDA out of memory. Tried to \
                     allocate\": {} has no error of PyTorch's",
                    shown_input(log)
                ),
            }
        }
    };
    // The text rounds to 10 MiB; only a limit of the process is known from nowhere else.
    Ok(Known { capacity: args.capacity.or(told.capacity), card: args.card.or(told.card), ..told })
}

/// Replays on as many threads as there are processors; the plan, which takes longest, first.
fn several_at_once(case: &Case, settings: &[Setting]) -> Result<Vec<Fit>, SimulateError> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(settings.len());
    let next = AtomicUsize::new(0);
    let none = || settings.iter().map(|_| None).collect::<Vec<Option<Result<Fit, _>>>>();
    let found = Mutex::new(none());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let taken = next.fetch_add(1, Ordering::Relaxed);
                    let Some(index) = settings.len().checked_sub(taken + 1) else { return };
                    let fit = case.try_setting(&settings[index]);
                    // Nothing panics while it is held.
                    let mut found = found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    found[index] = Some(fit);
                }
            });
        }
    });
    let found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    found.into_iter().flatten().collect()
}

fn print(report: &Report, args: &WhyArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "{}", report.name)?;
    write_wrapped(out, "", &report.sentence)?;
    for sentence in &report.evidence {
        write_wrapped(out, "  ", sentence)?;
    }
    if !report.would_fit.is_empty() {
        let row = |fit: &JsonFit| {
            let spare = fit.spare.map_or_else(|| "-".to_owned(), bytes);
            vec![fit.setting.to_owned(), if fit.fits { "yes" } else { "no" }.to_owned(), spare]
        };
        let rows: Vec<Vec<String>> = report.would_fit.iter().map(row).collect();
        write!(out, "\n{}", table(&["would it have fitted?", "fits", "to spare"], &rows))?;
    }
    print_lines(&report.lines, args.look.by(), out)?;
    if !report.advice.is_empty() {
        writeln!(out, "\nWhat to do")?;
    }
    for (index, sentence) in report.advice.iter().enumerate() {
        write_wrapped(out, &format!("{}. ", index + 1), sentence)?;
    }
    Ok(())
}

fn print_lines(lines: &[JsonLine], by: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    let row = |line: &JsonLine| {
        let place = line.place.clone();
        vec![
            place,
            bytes(line.bytes),
            count(line.count),
            bytes(line.largest),
            line.category.to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = lines.iter().map(row).collect();
    if !rows.is_empty() {
        write!(out, "\n{}", table(&[by, "alive", "blocks", "largest", "for"], &rows))?;
    }
    Ok(())
}

/// Writes a sentence in lines of a terminal, those after the first as far in as the text of the
/// first.
fn write_wrapped(out: &mut dyn Write, begin: &str, sentence: &str) -> anyhow::Result<()> {
    let indent = " ".repeat(begin.len());
    for (index, line) in table::broken(sentence, table::WIDTH - begin.len()).iter().enumerate() {
        writeln!(out, "{}{line}", if index == 0 { begin } else { &indent })?;
    }
    Ok(())
}
