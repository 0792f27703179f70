//! The report of a run: types of its own, so that what scripts read does not change with the
//! types inside.

use std::collections::BTreeMap;

use girih_plan::Plan;
use serde::Serialize;

use crate::heap::{Heap, State};
use crate::heaps;

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
    /// What the user chose.
    mode: &'static str,
    /// What the policy does now: `caching`, `direct`, `learning`, `following`,
    /// `outgrown`.
    stage: String,
    allocated: u64,
    allocated_peak: u64,
    active_peak: u64,
    requested_peak: u64,
    reserved: u64,
    reserved_peak: u64,
    device_free: u64,
    device_total: u64,
    /// Requests that failed, and those that were tried again.
    ooms: u64,
    retries: u64,
    #[serde(flatten)]
    following: Following,
    /// Calls of the driver by name.
    calls: BTreeMap<&'static str, u64>,
    /// Events in the recording; null if nothing is recorded.
    recorded_events: Option<u64>,
    /// How often `auto` has changed its plan.
    switches: u64,
    /// Seconds that planning took beside the run.
    planning_seconds: f64,
    plan: Option<PlanSummary>,
    /// What users should be told, and were not yet: `take_warnings`.
    warnings: Vec<String>,
}

/// How well a plan was followed; all 0 without one.
#[derive(Serialize, Default)]
struct Following {
    hits: u64,
    hit_bytes: u64,
    misses: u64,
    miss_bytes: u64,
    waits: u64,
    fallback_reserved_peak: u64,
}

/// What a plan amounts to.
#[derive(Serialize)]
pub(super) struct PlanSummary {
    fingerprint: String,
    planner: String,
    proven: bool,
    /// How far its peak is above the bound, as a part of the bound.
    gap: f64,
    arena_bytes: u64,
    persistent_bytes: u64,
    lower_bound: u64,
    peak: u64,
    requests: u64,
    iterations: u32,
    iteration_requests: u64,
}

impl PlanSummary {
    pub(super) fn of(plan: &Plan) -> PlanSummary {
        PlanSummary {
            fingerprint: format!("{:016x}", plan.fingerprint()),
            planner: plan.planner.clone(),
            proven: plan.proven,
            gap: plan.gap(),
            arena_bytes: plan.arena_bytes,
            persistent_bytes: plan.persistent_bytes,
            lower_bound: plan.lower_bound,
            peak: plan.peak,
            requests: plan.requests,
            iterations: plan.iterations,
            iteration_requests: plan.iteration_requests() as u64,
        }
    }
}

/// The report of a device.
pub(super) fn of(heap: &Heap) -> Result<Report, String> {
    heap.with(|state| Ok(look(state))).map_err(|error| error.to_string())
}

fn look(state: &mut State) -> Report {
    let info = state.device.memory_info();
    let fresh = state.background.take_warnings();
    state.warnings.extend(fresh);
    let stats = state.engine.policy().stats();
    let following = state.engine.following().map_or_else(Following::default, |f| Following {
        hits: f.hits,
        hit_bytes: f.hit_bytes,
        misses: f.misses,
        miss_bytes: f.miss_bytes,
        waits: f.waits,
        fallback_reserved_peak: f.fallback_reserved_peak,
    });
    Report {
        device: state.ordinal as i32,
        mode: state.mode.name(),
        stage: state.engine.stage().to_owned(),
        allocated: stats.allocated_bytes.all.current,
        allocated_peak: stats.allocated_bytes.all.peak,
        active_peak: stats.active_bytes.all.peak,
        requested_peak: stats.requested_bytes.all.peak,
        reserved: stats.reserved_bytes.all.current,
        reserved_peak: stats.reserved_bytes.all.peak,
        device_free: info.free,
        device_total: info.total,
        ooms: stats.num_ooms,
        retries: stats.num_alloc_retries,
        following,
        calls: state.device.calls().into_iter().filter(|&(_, count)| count > 0).collect(),
        recorded_events: state.journal.recorder().map(|recorder| recorder.len() as u64),
        switches: state.engine.switches(),
        planning_seconds: state.background.seconds(),
        plan: state.engine.plan().map(PlanSummary::of),
        warnings: state.warnings.clone(),
    }
}
