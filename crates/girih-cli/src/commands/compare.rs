//! `girih compare`: what each allocator would have made of a run, and where the memory went; of folders, of
//! all runs in them.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use girih_plan::{Plan, granted};
use girih_runtime::simulate::{Allocator, Setup, Simulation, simulate, waste_at_peak};
use girih_runtime::waste::Waste;
use girih_trace::Action;
use serde::Serialize;

use super::aggregate::Held;
use super::compare_folders::of_folders;
use super::earlier::earlier_sentence;
use super::in_order::in_order;
use super::learn::{JsonOutOfSample, OutOfSample, Share, learn};
use super::row::{
    JsonRow, WhatIf, again_sentence, columns, recorded_peak, stop_and_rest_sentence, table_row,
    unhelpful_sentence,
};
use super::write_json;
use crate::Answer;
use crate::files;
use crate::load::{self, Loaded, timed};
use crate::progress::{self, Progress};
use crate::table::table;
use crate::units::{bytes, percent, percent_left};

/// Those that are there to be measured against, and asked for.
const BASELINES: [Allocator; 4] =
    [Allocator::Gmlake, Allocator::Gmlake128, Allocator::GmlakeCode, Allocator::Stweaver];

/// Those that have rows alone where allocators have columns: a terminal has no room for more.
const ROWS_ALONE: [Allocator; 3] =
    [Allocator::Gmlake128, Allocator::GmlakeCode, Allocator::Stweaver];

/// Whether an allocator of this name has a column where allocators have columns.
pub(crate) fn has_column(allocator: &str) -> bool {
    ROWS_ALONE.iter().all(|other| other.name() != allocator)
}

/// The allocators that can be compared, in the order of their rows.
const COMPARED: [Allocator; 10] = [
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

#[derive(Args)]
pub(crate) struct CompareArgs {
    /// PyTorch memory snapshots (pickle, .gz or .zst), trace files of Girih, or folders with those of many
    /// jobs and ranks.
    #[arg(required = true, value_name = "FILE|DIR")]
    pub(super) files: Vec<PathBuf>,
    /// The marks of the runs, in the order of the files. Without this, NAME.marks.json or
    /// NAME.marks.json.gz beside each.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(super) marks: Vec<PathBuf>,
    /// The device, if the recordings have several.
    #[arg(long, value_name = "N")]
    pub(super) device: Option<u32>,
    /// Learns a plan from this share of the iterations, such as 50% or 0.5, and follows it in the rest.
    #[arg(long, value_name = "SHARE", conflicts_with = "plan")]
    pub(super) learn: Option<Share>,
    /// Compares the published allocators too that Girih is measured against: GMLake with each of its limits, and
    /// STWeaver.
    #[arg(long)]
    baselines: bool,
    /// Recordings that are read and replayed at once. What is printed is the same with any number; what is
    /// needed of the host's memory is not. Without this, as many as there are processors.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,
    #[command(flatten)]
    pub(super) what_if: WhatIf,
}

impl CompareArgs {
    /// Those that are asked for.
    fn compared(&self) -> Vec<Allocator> {
        let is_wanted = |allocator: &Allocator| self.baselines || !BASELINES.contains(allocator);
        COMPARED.into_iter().filter(is_wanted).collect()
    }
}

/// One recording under all allocators.
struct Comparison {
    loaded: Loaded,
    /// Max load: the most that was alive at once, in blocks of 512 bytes.
    lower_bound: u64,
    rows: Vec<(Simulation, Waste, f64)>,
    learnt: Option<OutOfSample>,
    setup: Setup,
}

#[derive(Serialize)]
struct Json {
    recordings: Vec<JsonRecording>,
}

#[derive(Serialize)]
pub(crate) struct JsonRecording {
    name: String,
    lower_bound: u64,
    recorded: Option<JsonRecorded>,
    rows: Vec<JsonRow>,
    /// Of the native allocator.
    waste_at_peak: BTreeMap<&'static str, u64>,
    /// Of each allocator.
    waste_at_peak_by_allocator: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    kept_plan: Option<JsonKept>,
    #[serde(skip_serializing_if = "Option::is_none")]
    learn: Option<JsonOutOfSample>,
    truncated: bool,
    warnings: Vec<String>,
}

/// The plan that the first launch keeps.
#[derive(Serialize)]
struct JsonKept {
    tight: bool,
    varies: bool,
    helps: bool,
    followed: bool,
}

impl JsonKept {
    fn new(plan: &Plan) -> JsonKept {
        JsonKept {
            tight: plan.is_tight(),
            varies: plan.varies(),
            helps: plan.helps(),
            followed: plan.is_reliable(),
        }
    }
}

#[derive(Serialize)]
struct JsonRecorded {
    allocated_peak: Option<u64>,
    reserved_peak: u64,
    efficiency: Option<f64>,
}

/// What came of one recording, without the recording itself.
pub(crate) struct Finished {
    /// With `--json`.
    pub(crate) json: Option<JsonRecording>,
    /// Without it.
    text: Vec<u8>,
    pub(crate) held: Vec<Held>,
    /// Whether it fits under some allocator.
    pub(crate) fits: bool,
}

impl Finished {
    fn new(comparison: Comparison, json: bool) -> anyhow::Result<Finished> {
        let held: Vec<Held> = comparison.rows.iter().map(|(row, ..)| Held::new(row)).collect();
        let fits = comparison.rows.iter().any(|(row, ..)| row.replayed.stop.is_none());
        let mut text = Vec::new();
        if !json {
            comparison.print(&mut text)?;
        }
        let json = json.then(|| comparison.into_json());
        Ok(Finished { json, text, held, fits })
    }
}

pub(crate) fn run(args: &CompareArgs, json: bool, out: &mut dyn Write) -> anyhow::Result<Answer> {
    if args.files.iter().any(|file| file.is_dir()) {
        return of_folders(args, json, out);
    }
    if args.marks.len() > args.files.len() {
        bail!(
            "give --marks at most one file for each recording: there are {} for {}",
            args.marks.len(),
            args.files.len()
        );
    }
    let source = |(index, file): (usize, &PathBuf)| {
        let marks = args.marks.get(index).cloned();
        load::Source { file: file.clone(), marks, device: args.device }
    };
    let sources: Vec<load::Source> = args.files.iter().enumerate().map(source).collect();
    let mut recordings = Vec::new();
    let mut all_fit = true;
    compare_all(&sources, args, json, |_, finished| {
        let Finished { json, text, fits, .. } = finished?;
        all_fit &= fits;
        recordings.extend(json);
        out.write_all(&text)?;
        Ok(out.flush()?)
    })?;
    if json {
        write_json(out, &Json { recordings })?;
    }
    Ok(answer(args, all_fit))
}

/// The answer, which is a no if all were to fit and one does not.
pub(crate) fn answer(args: &CompareArgs, all_fit: bool) -> Answer {
    if args.what_if.requires_fit() && !all_fit { Answer::No } else { Answer::Yes }
}

/// Compares all, so many at once as `--jobs` says, and gives what came of each in order.
pub(crate) fn compare_all(
    sources: &[load::Source],
    args: &CompareArgs,
    json: bool,
    mut take: impl FnMut(usize, anyhow::Result<Finished>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let one = |source: &load::Source, progress: &Progress| {
        compare(source, args, progress).and_then(|comparison| Finished::new(comparison, json))
    };
    let at_once = args.jobs.map_or_else(
        || std::thread::available_parallelism().map_or(1, usize::from),
        |jobs| jobs as usize,
    );
    // Standard input is read by one, and in the order in which it is named.
    let is_standard = |source: &load::Source| source.inputs().into_iter().any(files::is_standard);
    if sources.len() < 2
        || at_once < 2
        || sources.iter().any(is_standard)
        || args.what_if.reads_standard()
    {
        for (index, source) in sources.iter().enumerate() {
            let progress = Progress::new();
            let finished = one(source, &progress);
            // Nothing that moves may be left above the table.
            drop(progress);
            take(index, finished)?;
        }
        return Ok(());
    }
    let progress = Progress::new();
    let say = |done: usize| {
        progress.part(done, sources.len());
        progress.show(format!("{done} of {} recordings compared", sources.len()));
    };
    say(0);
    let work = |source: &load::Source| progress::kept(|| one(source, &Progress::hidden()));
    in_order(sources, at_once, work, |index, (finished, said)| {
        progress.make_room(|| {
            said.iter().for_each(|line| progress::say_aside(line));
            take(index, finished)
        })?;
        say(index + 1);
        Ok(())
    })
}

fn compare(
    source: &load::Source,
    args: &CompareArgs,
    progress: &Progress,
) -> anyhow::Result<Comparison> {
    let shown = source.file.display();
    progress.say(format!("{shown}: reading"));
    let loaded = source.load()?;
    let mut setup = args.what_if.setup(&loaded)?;
    progress.say(format!("{shown}: planning"));
    setup.plan = Some(args.what_if.plan(&loaded, &setup)?);
    progress.say(format!("{shown}: a first launch"));
    setup.kept = WhatIf::kept(&loaded, &setup)?;
    let compared = args.compared();
    let mut rows = Vec::with_capacity(compared.len());
    let all = compared.len();
    for (done, allocator) in compared.into_iter().enumerate() {
        progress.part(done, all);
        progress.say(format!("{shown}: {}", allocator.name()));
        let (simulation, seconds) =
            timed(|| simulate(&loaded.trace, &loaded.lives, allocator, &setup));
        let simulation = simulation?;
        let waste = waste_at_peak(&loaded.trace, &loaded.lives, &simulation, &setup)?;
        rows.push((simulation, waste, seconds));
    }
    let (lower_bound, _) = loaded.lives.peak(granted);
    progress.say(format!("{shown}: learning"));
    let learnt = args.learn.map(|share| learn(&loaded, share, &setup)).transpose()?;
    Ok(Comparison { loaded, lower_bound, rows, learnt, setup })
}

fn causes(waste: &Waste) -> BTreeMap<&'static str, u64> {
    waste.causes().into_iter().collect()
}

impl Comparison {
    fn into_json(self) -> JsonRecording {
        let trace = &self.loaded.trace;
        let recorded = recorded_peak(trace).map(|reserved_peak| {
            let allocated_peak = trace.recorded.allocated_peak;
            let efficiency = allocated_peak.map(|peak| peak as f64 / reserved_peak as f64);
            JsonRecorded { allocated_peak, reserved_peak, efficiency }
        });
        let by_allocator =
            self.rows.iter().map(|(s, waste, _)| (s.allocator.name(), causes(waste)));
        JsonRecording {
            lower_bound: self.lower_bound,
            recorded,
            rows: (self.rows.iter())
                .map(|(simulation, _, seconds)| {
                    JsonRow::new(simulation, trace, &self.setup, *seconds)
                })
                .collect(),
            waste_at_peak: causes(&self.rows[0].1),
            waste_at_peak_by_allocator: by_allocator.collect(),
            kept_plan: self.setup.kept.as_deref().map(JsonKept::new),
            learn: self.learnt.as_ref().map(JsonOutOfSample::new),
            truncated: trace.origin.truncated,
            warnings: trace.origin.warnings.clone(),
            name: self.loaded.name,
        }
    }

    fn print(&self, out: &mut dyn Write) -> anyhow::Result<()> {
        writeln!(out, "{}", self.loaded.name)?;
        write!(out, "{}", table(&columns(&self.setup), &self.table_rows()))?;
        writeln!(out)?;
        self.print_waste(out)?;
        let beginnings = self.rows.iter().map(|(simulation, ..)| &simulation.beginning);
        if let Some(sentence) = earlier_sentence(beginnings, &self.loaded.lives) {
            writeln!(out, "\n{sentence}")?;
        }
        writeln!(out, "\n{}", again_sentence(self.setup.kept.as_deref()))?;
        if let Some(sentence) = unhelpful_sentence(self.setup.plan.as_deref()) {
            writeln!(out, "{sentence}")?;
        }
        if let Some(learnt) = &self.learnt {
            write!(out, "\n{}", learnt.text(&self.setup))?;
        }
        self.print_capacity(out)?;
        self.print_errors(out)?;
        writeln!(out)?;
        Ok(())
    }

    fn table_rows(&self) -> Vec<Vec<String>> {
        let trace = &self.loaded.trace;
        let blank = || "-".to_owned();
        let width = columns(&self.setup).len();
        let mut rows = Vec::new();
        let with_fit = |mut row: Vec<String>| {
            if self.setup.capacity.is_some() {
                row.insert(1, blank());
            }
            row.resize_with(width, blank);
            row
        };
        if let Some(reserved) = recorded_peak(trace) {
            let mut row = vec!["recorded".to_owned(), blank(), bytes(reserved)];
            if let Some(allocated) = trace.recorded.allocated_peak {
                let efficiency = allocated as f64 / reserved as f64;
                row[1] = bytes(allocated);
                row.extend([percent(efficiency), percent_left(efficiency)]);
            }
            rows.push(with_fit(row));
        }
        rows.extend(self.rows.iter().map(|(simulation, ..)| table_row(simulation, &self.setup)));
        let bound = bytes(self.lower_bound);
        let row =
            vec!["lower bound".to_owned(), bound.clone(), bound, percent(1.0), percent_left(1.0)];
        rows.push(with_fit(row));
        rows
    }

    /// Where the bytes were that were reserved at each allocator's peak and not requested.
    fn print_waste(&self, out: &mut dyn Write) -> anyhow::Result<()> {
        let shown: Vec<_> = (self.rows.iter())
            .filter(|(simulation, ..)| {
                // `again` is like `planned` or like `auto`.
                simulation.allocator != Allocator::Again && has_column(simulation.allocator.name())
            })
            .collect();
        let mut header = vec!["unused at the peak"];
        header.extend(shown.iter().map(|(simulation, ..)| simulation.allocator.name()));
        let names = Waste::default().causes().map(|(name, _)| name);
        let mut rows: Vec<Vec<String>> = Vec::new();
        for (index, name) in names.into_iter().enumerate() {
            let amounts: Vec<u64> =
                shown.iter().map(|(_, waste, _)| waste.causes()[index].1).collect();
            if amounts.iter().any(|&amount| amount > 0) {
                let cells = amounts.into_iter().map(bytes);
                rows.push([explain(name).to_owned()].into_iter().chain(cells).collect());
            }
        }
        let totals = shown.iter().map(|(_, waste, _)| bytes(waste.total()));
        rows.push(["in all".to_owned()].into_iter().chain(totals).collect());
        write!(out, "{}", table(&header, &rows))?;
        Ok(())
    }

    fn print_capacity(&self, out: &mut dyn Write) -> anyhow::Result<()> {
        let Some(capacity) = self.setup.capacity else { return Ok(()) };
        writeln!(out, "\non a device of {}:", bytes(capacity))?;
        for (simulation, ..) in &self.rows {
            let name = simulation.allocator.name();
            match &simulation.replayed.stop {
                None => writeln!(out, "  {name} fits")?,
                Some(stop) => {
                    let lives = &self.loaded.lives;
                    writeln!(out, "  {name} {}", stop_and_rest_sentence(stop, simulation, lives))?;
                }
            }
        }
        Ok(())
    }

    /// Out-of-memory errors in the recording itself.
    fn print_errors(&self, out: &mut dyn Write) -> anyhow::Result<()> {
        let ooms = self.loaded.trace.events.iter().filter(|event| event.action == Action::Oom);
        for event in ooms.take(3) {
            writeln!(
                out,
                "\nthe recorded run was refused {} when the device had {} free",
                bytes(event.size),
                bytes(event.address)
            )?;
        }
        Ok(())
    }
}

/// What a cause of waste means, in as few letters as leave room for a column of each allocator.
/// docs/simulation.md has it at length.
fn explain(cause: &str) -> &str {
    match cause {
        "pending_free" => "freed, waiting",
        "rounding" => "rounding",
        "remainder" => "block remainders",
        "other_pool" => "in the other pool",
        "other_stream" => "of another stream",
        "split_pinned" => "pinned by a block",
        "page_granularity" => "partly used pages",
        "cached_whole" => "free and whole",
        other => other,
    }
}
