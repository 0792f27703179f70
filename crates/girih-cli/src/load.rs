//! Recordings: the file itself, the marks beside it, and what can be understood of it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Args;
use girih_trace::bounds::check_held;
use girih_trace::compress::Limits;
use girih_trace::{Iterations, Lifetimes, Recording, Trace, marks, open};
use girih_why::units::printable;

use crate::files::{self, shown_input};
use crate::progress;

/// Which recording, and which part of it.
#[derive(Args, Clone)]
pub(crate) struct Source {
    /// A PyTorch memory snapshot (pickle, .gz or .zst), or a trace file of Girih; - is standard input.
    pub(crate) file: PathBuf,
    /// The marks of the run. Without this, NAME.marks.json or NAME.marks.json.gz beside the file.
    #[arg(long, value_name = "FILE")]
    pub(crate) marks: Option<PathBuf>,
    /// The device, if the recording has several. Without this, the one with the most events.
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,
}

/// A trace, and what was understood of it.
pub(crate) struct Loaded {
    /// The file's name, without folder and endings.
    pub(crate) name: String,
    pub(crate) trace: Trace,
    pub(crate) lives: Lifetimes,
    pub(crate) iterations: Iterations,
    /// Devices that the recording has events of.
    pub(crate) devices: Vec<u32>,
}

impl Source {
    /// Reads and understands.
    pub(crate) fn load(&self) -> anyhow::Result<Loaded> {
        self.understand(read(&self.file)?)
    }

    /// Understands a recording that was read from this source.
    pub(crate) fn understand(&self, recording: Recording) -> anyhow::Result<Loaded> {
        let shown = shown_input(&self.file);
        let devices: Vec<u32> = recording.traces.iter().map(|trace| trace.device).collect();
        let mut trace = pick(recording, self.device, &shown)?;
        apply_marks(&mut trace, &self.file, self.marks.as_deref())?;
        for warning in &trace.origin.warnings {
            progress::warn(&format!("{shown}: {warning}"));
        }
        let lives = Lifetimes::of(&trace);
        check_held(&lives).with_context(|| format!("cannot read {shown}"))?;
        let iterations = Iterations::of(&trace, &lives);
        for note in iterations.notes(&trace) {
            progress::warn(&format!("{shown}: {note}"));
        }
        let name = printable(&name_of(&self.file)).into_owned();
        Ok(Loaded { name, trace, lives, iterations, devices })
    }

    /// The files that are read: what is written must be none of them.
    pub(crate) fn inputs(&self) -> Vec<&Path> {
        std::iter::once(&*self.file).chain(self.marks.as_deref()).collect()
    }
}

/// Reads a snapshot or a trace file.
pub(crate) fn read(path: &Path) -> anyhow::Result<Recording> {
    open::detect_and_read(files::open(path)?, Limits::default())
        .with_context(|| format!("cannot read {}", shown_input(path)))
}

/// The trace of a device; the one with the most events if none is named.
fn pick(recording: Recording, device: Option<u32>, shown: &str) -> anyhow::Result<Trace> {
    let mut traces = recording.traces;
    match device {
        Some(device) if !traces.is_empty() => {
            let devices: Vec<String> = traces.iter().map(|t| t.device.to_string()).collect();
            traces.retain(|trace| trace.device == device);
            traces.pop().with_context(|| {
                format!(
                    "use --device {}: {shown} has no events of device {device}",
                    devices.join(" or ")
                )
            })
        }
        // Of several with as many events, the first.
        _ => traces.into_iter().rev().max_by_key(|trace| trace.events.len()).with_context(|| {
            format!(
                "call torch.cuda.memory._record_memory_history() before the run, and take the snapshot \
                 after it: {shown} has no events"
            )
        }),
    }
}

/// Reads the marks that were named, or those beside the recording if there are any.
fn apply_marks(trace: &mut Trace, path: &Path, named: Option<&Path>) -> anyhow::Result<()> {
    let beside = || {
        if files::is_standard(path) {
            return None;
        }
        let stem = path.with_file_name(name_of(path));
        ["marks.json.gz", "marks.json"]
            .map(|ending| PathBuf::from(format!("{}.{ending}", stem.display())))
            .into_iter()
            .find(|candidate| candidate.is_file())
    };
    let is_found = named.is_none();
    let Some(file) = named.map(Path::to_path_buf).or_else(beside) else { return Ok(()) };
    let shown = shown_input(&file);
    let bytes = files::read_whole(&file)?;
    let marked = marks::read(&bytes).with_context(|| format!("cannot read {shown}"))?;
    if marked.is_empty() && !is_found {
        bail!("give --marks a file with marks: {shown} has none under `marks`, and no peaks");
    }
    if let Some(reason) = marked.is_of_another_time(trace) {
        if !is_found {
            bail!(
                "give --marks the marks of this run: {shown} belongs to another recording: {reason}"
            );
        }
        progress::warn(&format!("{shown} belongs to another recording and was left out: {reason}"));
        return Ok(());
    }
    for doubt in marked.doubts(trace) {
        progress::warn(&format!("{shown} may belong to another recording: {doubt}"));
    }
    marked.apply(trace);
    Ok(())
}

/// The name of a recording: its file name without the endings of the formats.
pub(crate) fn name_of(path: &Path) -> String {
    if files::is_standard(path) {
        return "standard input".to_owned();
    }
    let mut name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    for ending in [".gz", ".zst", ".pickle", ".pkl", ".girih", ".json", ".csv"] {
        if let Some(stem) = name.strip_suffix(ending) {
            name.truncate(stem.len());
        }
    }
    name
}

/// Measures how long something takes. The one clock of the command.
#[expect(clippy::disallowed_methods, reason = "the command line is where time is measured")]
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed().as_secs_f64())
}
