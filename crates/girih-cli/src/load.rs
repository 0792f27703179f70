//! Recordings from files: the file itself, the marks beside it, and what can be understood of it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Args;
use girih_trace::compress::Limits;
use girih_trace::{Iterations, Lifetimes, Recording, Trace, marks, open};

use crate::progress;

/// Which recording, and which part of it.
#[derive(Args, Clone)]
pub(crate) struct Source {
    /// A PyTorch memory snapshot (pickle, .gz or .zst), or a trace file of Girih.
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
        let recording = read(&self.file)?;
        let devices: Vec<u32> = recording.traces.iter().map(|trace| trace.device).collect();
        let mut trace = pick(recording, self.device)
            .with_context(|| format!("{}: no such trace", self.file.display()))?;
        apply_marks(&mut trace, &self.file, self.marks.as_deref())?;
        for warning in &trace.origin.warnings {
            progress::warn(&format!("{}: {warning}", self.file.display()));
        }
        let lives = Lifetimes::of(&trace);
        let iterations = Iterations::of(&trace, &lives);
        Ok(Loaded { name: name_of(&self.file), trace, lives, iterations, devices })
    }
}

/// Reads a snapshot or a trace file.
pub(crate) fn read(path: &Path) -> anyhow::Result<Recording> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    open::detect_and_read(file, Limits::default())
        .with_context(|| format!("cannot read {}", path.display()))
}

/// The trace of a device; the one with the most events if none is named.
fn pick(recording: Recording, device: Option<u32>) -> anyhow::Result<Trace> {
    let mut traces = recording.traces;
    match device {
        Some(device) => {
            let devices: Vec<String> = traces.iter().map(|t| t.device.to_string()).collect();
            traces.retain(|trace| trace.device == device);
            traces.pop().with_context(|| {
                format!("it has no events of device {device}, but of: {}", devices.join(", "))
            })
        }
        // Of several with as many events, the first.
        None => traces.into_iter().rev().max_by_key(|trace| trace.events.len()).context(
            "it holds no events: was history recorded \
             (torch.cuda.memory._record_memory_history) before the snapshot was taken?",
        ),
    }
}

/// Reads the marks that were named, or those beside the recording if there are any.
fn apply_marks(trace: &mut Trace, path: &Path, named: Option<&Path>) -> anyhow::Result<()> {
    let beside = || {
        let stem = path.with_file_name(name_of(path));
        ["marks.json.gz", "marks.json"]
            .map(|ending| PathBuf::from(format!("{}.{ending}", stem.display())))
            .into_iter()
            .find(|candidate| candidate.is_file())
    };
    let Some(marks) = named.map(Path::to_path_buf).or_else(beside) else { return Ok(()) };
    let bytes = fs::read(&marks).with_context(|| format!("cannot read {}", marks.display()))?;
    marks::apply(trace, &bytes).with_context(|| format!("cannot read {}", marks.display()))
}

/// The name of a recording: its file name without the endings of the formats.
pub(crate) fn name_of(path: &Path) -> String {
    let mut name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    for ending in [".gz", ".zst", ".pickle", ".pkl", ".girih", ".json", ".csv"] {
        if let Some(stem) = name.strip_suffix(ending) {
            name.truncate(stem.len());
        }
    }
    name
}

/// Writes a file whole or not at all: what `fill` writes appears under `path` only once it is
/// complete, so that a full disk or an interrupt leaves what was there before.
pub(crate) fn write_whole(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let write = || {
        let mut file = new_file(folder)?;
        {
            let mut buffered = io::BufWriter::new(&mut file);
            fill(&mut buffered)?;
            buffered.flush()?;
        }
        if path.is_dir() {
            bail!("it is a folder");
        }
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// A new file in `folder` that gets a name of its own once it is complete. Others may read it, as
/// far as the user's mask allows: temporary files are private otherwise.
fn new_file(folder: &Path) -> io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

/// Measures how long something takes. The one clock of the command.
#[expect(clippy::disallowed_methods, reason = "the command line is where time is measured")]
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed().as_secs_f64())
}
