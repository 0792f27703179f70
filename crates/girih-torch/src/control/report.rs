//! The report of a run: types of its own, so that what scripts read does not change with the
//! types inside.

use std::collections::BTreeMap;

use girih_plan::Plan;
use serde::Serialize;

use crate::device::HeapDevice;
use crate::heap::{Heap, State};
use crate::heaps;
use crate::oom::OutOfMemory;
use crate::swap::SwapReport;

/// All devices.
#[derive(Serialize)]
pub(super) struct Whole {
    mode: &'static str,
    devices: Vec<Report>,
}

impl Whole {
    pub(super) fn of(devices: Vec<Report>) -> Whole {
        Whole { mode: heaps::settings().mode.name(), devices }
    }
}

/// One device. Bytes, but for what says otherwise.
#[derive(Serialize)]
pub(super) struct Report {
    device: i32,
    /// What the user chose, or what the device can have in its place.
    mode: &'static str,
    /// What the policy does now: `caching`, `direct`, `learning`, `following`.
    stage: String,
    allocated: u64,
    allocated_peak: u64,
    active_peak: u64,
    requested_peak: u64,
    reserved: u64,
    reserved_peak: u64,
    device_free: u64,
    device_total: u64,
    /// Requests that failed (`num_ooms` of PyTorch).
    ooms: u64,
    /// Of these, those that only the memory fraction refused: the device had room.
    ooms_by_limit: u64,
    /// Requests that were refused before anything was tried (`throw_on_cudamalloc_oom`).
    oom_rejections: u64,
    /// The last request that got nothing.
    last_oom: Option<Oom>,
    /// The most that the memory fraction lets the heap hold; null without one.
    limit: Option<u64>,
    /// Requests that were tried again after cached memory was given back.
    retries: u64,
    /// Views that were made of free memory in several places.
    stitches: u64,
    /// Steps whose views were laid out, all at once, because they took too long.
    layouts: u64,
    /// Steps that were not, because some of their requests would have had no place.
    layouts_refused: u64,
    /// Bytes of those requests, or of the few that have none in a layout, in the last of these steps.
    layout_without_place: u64,
    #[serde(flatten)]
    following: Following,
    /// Calls of the driver by name.
    calls: BTreeMap<&'static str, u64>,
    /// Seconds that the driver took to give, take and map memory.
    driver_seconds: f64,
    /// That time by call, named as in `calls`.
    driver_seconds_by_call: BTreeMap<&'static str, f64>,
    /// Events in the recording; null if nothing is recorded.
    recorded_events: Option<u64>,
    /// Seconds that planning took beside the run.
    planning_seconds: f64,
    plan: Option<PlanSummary>,
    /// What swapping did; null if nothing is swapped.
    swap: Option<SwapReport>,
    /// What users should be told, and were not yet: `take_warnings`.
    warnings: Vec<String>,
}

/// A request that got nothing, and how things stood then.
#[derive(Serialize)]
struct Oom {
    requested: u64,
    /// What the heap would have had to take from the device.
    needed: u64,
    allocated: u64,
    reserved: u64,
    device_free: u64,
    by_limit: bool,
    /// The error's text.
    text: String,
}

impl Oom {
    fn of(oom: &OutOfMemory) -> Oom {
        Oom {
            requested: oom.requested,
            needed: oom.needed,
            allocated: oom.allocated,
            reserved: oom.reserved,
            device_free: oom.device_free,
            by_limit: oom.is_by_limit,
            text: oom.text.clone(),
        }
    }
}

/// How well a plan was followed; all 0 without one.
#[derive(Serialize, Default)]
struct Following {
    hits: u64,
    hit_bytes: u64,
    misses: u64,
    miss_bytes: u64,
    waits: u64,
}

/// What a plan amounts to: of the steady iteration, with what stays across iterations.
#[derive(Serialize)]
pub(super) struct PlanSummary {
    fingerprint: String,
    planner: String,
    proven: bool,
    /// How far its peak is above the bound, as a part of the bound.
    gap: f64,
    /// Bytes laid out for what comes and goes, and for what stays.
    arena_bytes: u64,
    persistent_bytes: u64,
    /// The most that is alive at once, and the bytes in which the plan has it.
    lower_bound: u64,
    peak: u64,
    requests: u64,
    iterations: u32,
    iteration_requests: u64,
    /// Whether anyone follows it: not if the run that it was made of holds more with it.
    helps: bool,
}

impl PlanSummary {
    pub(super) fn of(plan: &Plan) -> PlanSummary {
        let (lower_bound, peak) =
            (plan.persistent_bytes + plan.lower_bound, plan.persistent_bytes + plan.peak);
        PlanSummary {
            fingerprint: format!("{:016x}", plan.fingerprint()),
            planner: plan.planner.clone(),
            proven: plan.proven,
            gap: (peak - lower_bound) as f64 / lower_bound.max(1) as f64,
            arena_bytes: plan.arena_bytes,
            persistent_bytes: plan.persistent_bytes,
            lower_bound,
            peak,
            requests: plan.requests,
            iterations: plan.iterations,
            iteration_requests: plan.iteration_requests() as u64,
            helps: plan.helps(),
        }
    }
}

/// The report of a device.
pub(super) fn of(heap: &Heap) -> Result<Report, String> {
    heap.with(|state| Ok(look(state))).map_err(|error| error.to_string())
}

fn look(state: &mut State) -> Report {
    let info = state.device.memory_info();
    state.background.take_warnings().into_iter().for_each(|warning| state.warn(warning));
    let policy = state.engine.policy();
    let (stats, fraction) = (policy.stats(), state.fraction);
    let following = state.engine.following().map_or_else(Following::default, |f| Following {
        hits: f.hits,
        hit_bytes: f.hit_bytes,
        misses: f.misses,
        miss_bytes: f.miss_bytes,
        waits: f.waits,
    });
    let layings = state.engine.layings();
    Report {
        device: state.ordinal as i32,
        mode: state.mode.name(),
        stage: state.engine.stage().to_owned(),
        allocated: stats.allocated_bytes.all().current,
        allocated_peak: stats.allocated_bytes.all().peak,
        active_peak: stats.active_bytes.all().peak,
        requested_peak: stats.requested_bytes.all().peak,
        reserved: stats.reserved_bytes.all().current,
        reserved_peak: stats.reserved_bytes.all().peak,
        device_free: info.free,
        device_total: info.total,
        ooms: stats.num_ooms.saturating_sub(state.ooms_averted),
        ooms_by_limit: state.ooms_by_limit,
        oom_rejections: stats.num_oom_rejections,
        last_oom: state.last_oom.as_ref().map(Oom::of),
        limit: (fraction < 1.0).then_some((fraction * info.total as f64) as u64),
        retries: stats.num_alloc_retries,
        stitches: stats.num_stitches,
        layouts: layings.laid_out,
        layouts_refused: layings.refused,
        layout_without_place: layings.without_place,
        following,
        calls: state.device.calls().into_iter().filter(|&(_, count)| count > 0).collect(),
        driver_seconds: state.device.memory_time().as_secs_f64(),
        driver_seconds_by_call: seconds_by_call(&*state.device),
        recorded_events: state.journal.recorder().map(|recorder| recorder.len() as u64),
        planning_seconds: state.background.seconds(),
        plan: state.engine.plan().map(PlanSummary::of),
        swap: state.swap_report(),
        warnings: state.warnings.clone(),
    }
}

/// What the driver took for memory, by call; those that took nothing are not named.
fn seconds_by_call(device: &dyn HeapDevice) -> BTreeMap<&'static str, f64> {
    let times = device.memory_times().into_iter();
    times.map(|(name, time)| (name, time.as_secs_f64())).filter(|&(_, taken)| taken > 0.0).collect()
}
