//! Control: what the Python package asks of the heaps, besides memory.
//!
//! Settings before the first request; marks of the program while it runs; and what came of it, as
//! JSON, as a trace file, or as a plan. Errors are sentences for a user.

mod files;
mod report;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use girih_plan::{Budget, Plan, ProblemError, file, profile, solve};
use girih_runtime::simulate::Setup;
use girih_runtime::simulate::trial::tried;
use girih_trace::{Iterations, Lifetimes, MarkKind, Recording, Trace};
use serde::Serialize;

pub(crate) use self::files::write_whole;
use crate::error::HeapError;
use crate::heap::Heap;
pub use crate::heap::Saved;
use crate::heaps;
use crate::kept_plans;
use crate::settings::Settings;
pub use crate::swap::states::OtherStates;
use crate::swap::{attention, states};

/// Sets how the heaps behave, from a JSON object: see [`Settings::parse`].
///
/// # Errors
/// If something in it is wrong, or if it is too late: settings are chosen once, before the first
/// request.
pub fn configure(options_json: &str) -> Result<(), String> {
    heaps::configure(Settings::parse(options_json)?)
}

/// Says whether [`configure`] would take these settings, and changes nothing.
///
/// # Errors
/// What is wrong with them.
pub fn check_settings(options_json: &str) -> Result<(), String> {
    Settings::parse(options_json).map(drop)
}

/// Changes the settings of the caching allocator while the program runs, in the words of
/// `PYTORCH_CUDA_ALLOC_CONF`: see [`Settings::changed`].
///
/// # Errors
/// After a panic inside a heap.
pub fn change_settings(text: &str) -> Result<(), String> {
    heaps::change_settings(text).map_err(|error| error.to_string())
}

/// Tells every heap that a step, a phase or a module begins or ends. `kind` is a name of the marks
/// file (`step`, `forward`, `optimizer`, ...); another becomes an annotation. `name` is the
/// microbatch, the module, or the text; it may be empty. A heap that is made later in the same step
/// is told of it too.
///
/// # Errors
/// What the driver refused.
pub fn mark(kind: &str, name: &str) -> Result<(), String> {
    heaps::mark(MarkKind::from_name(kind), name).map_err(|error| error.to_string())
}

/// The memory of a private pool, which has had no request yet, comes in allocations of the device,
/// each of which has one handle.
///
/// # Errors
/// If there is no such device, or if the pool is in use.
pub fn keep_in_one_handle(device: i32, pool: (u64, u64)) -> Result<(), String> {
    let kept = heaps::heap(device).and_then(|heap| heap.keep_in_one_handle(pool));
    kept.map_err(|error| error.to_string())
}

/// What came of the run so far: of one device, an object; of all that were used, an object with
/// `devices`. The fields are those of `report`'s types.
///
/// # Errors
/// If the device was not used.
pub fn report(device: Option<i32>) -> Result<String, String> {
    let text = match device {
        Some(device) => return report_of(used(device)?),
        None => {
            let devices: Result<Vec<_>, String> =
                heaps::all().map(|(_, heap)| report::of(heap)).collect();
            serde_json::to_string(&report::Whole::of(devices?))
        }
    };
    text.map_err(|error| format!("the report cannot be written: {error}"))
}

/// The report of one heap.
///
/// # Errors
/// After a panic inside the heap.
pub fn report_of(heap: &Heap) -> Result<String, String> {
    let report = report::of(heap)?;
    serde_json::to_string(&report).map_err(|error| format!("the report cannot be written: {error}"))
}

/// What users should be told and were not yet: each sentence comes once, though several devices
/// have it.
pub fn take_warnings() -> Vec<String> {
    /// Warnings that a process is told; whoever has read so many needs no more.
    const TOLD_MAX: usize = 1000;
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let take = |heap: &Heap| {
        heap.with(|state| {
            let mut warnings = std::mem::take(&mut state.warnings);
            warnings.extend(state.background.take_warnings());
            Ok(warnings)
        })
    };
    let of_heaps = heaps::all().flat_map(|(_, heap)| take(heap).unwrap_or_default());
    let warnings = heaps::take_warnings().into_iter().chain(of_heaps);
    // What it holds is written whole: a panic of another holder leaves it right.
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    warnings.filter(|warning| told.len() < TOLD_MAX && told.insert(warning.clone())).collect()
}

/// Writes what was recorded of a device to a trace file. Returns the number of events.
///
/// # Errors
/// If nothing is recorded, or the file cannot be written.
pub fn save_trace(device: i32, path: &str) -> Result<u64, String> {
    let trace = used(device)?.trace().map_err(|error| error.to_string())?;
    let events = trace.events.len() as u64;
    let recording = Recording { traces: vec![trace] };
    write_whole(Path::new(path), |output| {
        girih_trace::file::write(&recording, output).map_err(|error| error.to_string())
    })?;
    Ok(events)
}

/// Makes a plan of what was recorded of a device and writes it to a plan file. Returns what it
/// amounts to, as a JSON object.
///
/// # Errors
/// If nothing is recorded, if nothing was asked of the device, or if the file cannot be written.
pub fn plan(device: i32, path: &str) -> Result<String, String> {
    plan_of(used(device)?, path)
}

/// As [`plan`], of one heap.
///
/// # Errors
/// As [`plan`].
pub fn plan_of(heap: &Heap, path: &str) -> Result<String, String> {
    let trace = heap.trace().map_err(|error| error.to_string())?;
    if trace.events.is_empty() {
        return Err(
            "ask for memory first: the device was asked for none yet, so there is nothing to plan"
                .to_owned(),
        );
    }
    let (plan, seconds) = timed(|| make_plan(&trace));
    let plan = plan.map_err(|error| error.to_string())?;
    save_plan(&plan, Path::new(path))?;
    let summary = Planned { seconds, plan: report::PlanSummary::of(&plan) };
    serde_json::to_string(&summary).map_err(|error| error.to_string())
}

/// The file in `folder` in which the mode `auto` keeps the plan of the run that `key` names, with
/// `{device}` for the number of the device: as the mode `plan` takes it.
pub fn plan_file(folder: &str, key: &str) -> String {
    kept_plans::plan_file(Path::new(folder), key, "{device}").to_string_lossy().into_owned()
}

/// Autograd saves a tensor of a device, on the stream of that handle. The id of its record; 0 if it has none.
///
/// # Errors
/// What the driver refused.
pub fn save(device: i32, saved: Saved, stream: u64) -> Result<u64, String> {
    heaps::existing(device)
        .map_or(Ok(0), |heap| heap.save(saved, stream))
        .map_err(|error| error.to_string())
}

/// Autograd is about to use a saved tensor of a device that has a record: it is there then.
///
/// # Errors
/// What the driver refused, or that there is too little memory; the latter begins as PyTorch's own error does.
pub fn use_saved(device: i32, id: u64, stream: u64) -> Result<(), SavedError> {
    let used = heaps::heap(device).and_then(|heap| heap.use_saved(id, stream));
    used.map_err(|error| SavedError::of(&error))
}

/// Why a saved tensor is not there. Sentences for a user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SavedError {
    /// The GPU has too little memory for it.
    OutOfMemory(String),
    /// Another reason.
    Other(String),
}

impl SavedError {
    fn of(error: &HeapError) -> SavedError {
        match error {
            HeapError::OutOfMemory(oom) => SavedError::OutOfMemory(oom.text.clone()),
            other => SavedError::Other(other.to_string()),
        }
    }
}

/// Autograd has given up a saved tensor that has a record.
///
/// # Errors
/// What the driver refused.
pub fn drop_saved(device: i32, id: u64) -> Result<(), String> {
    // The interpreter gives up what is left when the driver may be gone already.
    if heaps::is_finished() {
        return Ok(());
    }
    heaps::existing(device)
        .map_or(Ok(()), |heap| heap.drop_saved(id))
        .map_err(|error| error.to_string())
}

/// True once some heap swaps: then states of optimizers may be offered.
pub fn wants_states() -> bool {
    states::are_wanted()
}

/// An optimizer has stepped, and nobody can reach these states of it, on one device, before [`use_states`]. For each the
/// id of its record, which [`drop_saved`] gives up too; 0 if it has none.
///
/// # Errors
/// What the driver refused; then none has a record.
pub fn offer_states(
    device: i32,
    offered: &[Saved],
    others: OtherStates,
    stream: u64,
) -> Result<Vec<u64>, String> {
    let Some(heap) = heaps::existing(device) else { return Ok(vec![0; offered.len()]) };
    heap.offer_states(offered, others, stream).map_err(|error| error.to_string())
}

/// States of a device are asked for: by the step of their optimizer, or between steps. They are there then, and their
/// records are gone.
///
/// # Errors
/// As [`use_saved`]; then they can be asked for again.
pub fn use_states(device: i32, ids: &[u64], stream: u64, is_step: bool) -> Result<(), SavedError> {
    let used = heaps::heap(device).and_then(|heap| heap.use_states(ids, stream, is_step));
    used.map_err(|error| SavedError::of(&error))
}

/// From now on heaps call for the program with `call`, on any thread and under no lock of theirs: warnings are to be taken,
/// or hooks to be set ([`wants_hooks`]). It must not wait for what is held while memory is asked for.
pub fn set_call(call: fn()) {
    attention::set(call);
}

/// True once a heap without a budget wants to know what autograd saves: its GPU is half full.
pub fn wants_hooks() -> bool {
    attention::wants_hooks()
}

/// The hooks are set: nobody is called for them any more.
pub fn note_hooks() {
    attention::note_hooks();
}

/// The process ends: frees do nothing from now on. To be called once CUDA is about to go.
pub fn finish() {
    heaps::finish();
}

/// What [`plan`] returns.
#[derive(Serialize)]
struct Planned {
    /// Seconds that planning took.
    seconds: f64,
    #[serde(flatten)]
    plan: report::PlanSummary,
}

fn used(device: i32) -> Result<&'static Heap, String> {
    heaps::existing(device).ok_or_else(|| format!("use device {device} first: it was not used yet"))
}

/// A plan of a trace, tried there.
fn make_plan(trace: &Trace) -> Result<Plan, ProblemError> {
    let lives = Lifetimes::of(trace);
    let iterations = Iterations::of(trace, &lives);
    let plan = profile::plan(trace, &lives, &iterations, |problem| {
        solve(problem, Budget::interactive(problem.buffers.len()))
    })?;
    Ok(tried(plan, trace, &lives, &Setup::default()))
}

/// Writes a plan file whole or not at all. The plan is verified first.
pub(crate) fn save_plan(plan: &Plan, path: &Path) -> Result<(), String> {
    write_whole(path, |output| file::write(plan, output).map_err(|error| error.to_string()))
}

/// Measures how long something takes. Seconds.
#[expect(clippy::disallowed_methods, reason = "reports say how long planning took")]
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed().as_secs_f64())
}
