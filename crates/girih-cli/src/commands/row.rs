//! One allocator on one recording: the arguments that choose it, its JSON object, its table row.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use clap::builder::TypedValueParser;
use girih_plan::{Budget, Plan, Problem, file, profile, solve};
use girih_runtime::AllocError;
use girih_runtime::caching::{Config, TieOrder};
use girih_runtime::gmlake;
use girih_runtime::replay::{
    Beginning, Stop, first_segment_difference, recorded_reserved_peak, recorded_segment_events,
};
use girih_runtime::sim::CallTotals;
use girih_runtime::simulate::trial::tried;
use girih_runtime::simulate::{Allocator, Property, Setup, Simulation, launch, recorded_conf};
use girih_trace::{Earlier, Evidence, Lifetimes, Tick, Trace};
use serde::Serialize;

use super::earlier::JsonEarlier;
use crate::files::{self, shown_input};
use crate::load::Loaded;
use crate::names::one_of;
use crate::progress;
use crate::table::table;
use crate::units::{self, bytes, count, milliseconds, percent, percent_left};

/// Reads the name of an allocator; the help says what each is.
pub(crate) fn allocator_names() -> impl TypedValueParser<Value = Allocator> {
    one_of(&Allocator::ALL, Allocator::name, Allocator::about)
}

/// What if: settings, another device, another release.
#[derive(Args, Clone)]
pub(crate) struct WhatIf {
    /// Settings of the allocators, as in PYTORCH_CUDA_ALLOC_CONF. Without this, those that the
    /// recording was made with.
    #[arg(long, value_name = "STRING")]
    conf: Option<String>,
    /// Bytes of the device, such as 80GiB: would the run have fitted?
    #[arg(long, value_name = "SIZE", value_parser = units::parse_capacity)]
    pub(crate) capacity: Option<u64>,
    /// Exits with status 1 if the run does not fit on the device of --capacity; of `compare`, if it fits
    /// under no allocator.
    #[arg(long, requires = "capacity")]
    require_fit: bool,
    /// The torch release whose order among equal free blocks is taken.
    #[arg(long, value_name = "VERSION", default_value = "2.11")]
    torch: String,
    /// GMLake neither splits nor stitches blocks of less. In the published code, 512MiB.
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = units::parse_bytes)]
    gmlake_limit: u64,
    /// Follows this plan instead of one made from the recording itself; - is standard input.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
}

impl WhatIf {
    /// The setup of the simulations, for now without a plan.
    pub(crate) fn setup(&self, loaded: &Loaded) -> anyhow::Result<Setup> {
        let tie_order = tie_order(&self.torch)?;
        if let Some(conf) = &self.conf {
            Config::parse(conf).context("--conf")?;
        }
        let conf = self.conf.clone().unwrap_or_else(|| recorded_conf(&loaded.trace));
        let capacity = self.capacity;
        let earlier = Some(Arc::new(Earlier::of(&loaded.trace, &loaded.lives)));
        let fragmentation_limit = self.gmlake_limit;
        let gmlake = gmlake::Config { fragmentation_limit, ..gmlake::Config::default() };
        let starts = loaded.iterations.list.iter().map(|it| Tick(it.ticks.start));
        let iterations = starts.collect();
        Ok(Setup { conf, tie_order, capacity, earlier, gmlake, iterations, ..Setup::default() })
    }

    /// The plan that a first launch keeps of such a run, for `again`.
    pub(crate) fn kept(loaded: &Loaded, setup: &Setup) -> anyhow::Result<Option<Arc<Plan>>> {
        let Loaded { trace, lives, iterations, .. } = loaded;
        Ok(launch::first(trace, lives, iterations, setup)?)
    }

    /// The plan that was named, or one made from the recording. Says so if the plan that was named is of
    /// another recording.
    pub(crate) fn plan(&self, loaded: &Loaded, setup: &Setup) -> anyhow::Result<Arc<Plan>> {
        let Some(path) = &self.plan else { return make_plan(loaded, setup).map(Arc::new) };
        let shown = shown_input(path);
        let read = file::read(BufReader::new(files::open(path)?));
        let plan = read.with_context(|| format!("cannot read {shown}"))?;
        let (own, given) =
            (planned_by(loaded, Budget::attempts(1))?.fingerprint(), plan.fingerprint());
        if own != given {
            progress::warn(&format!(
                "{shown} was made from another recording than {}, or from a part of it: its \
                 fingerprint is {given:016x}, that of this recording {own:016x}; it is followed as far \
                 as it fits",
                loaded.name
            ));
        }
        Ok(Arc::new(plan))
    }

    /// Says so if a plan was named and none of these allocators follows one that is given.
    pub(crate) fn say_if_not_followed(&self, allocators: &[Allocator]) {
        if self.plan.is_some() && !allocators.iter().any(|it| it.is(Property::Plan)) {
            let names: Vec<&str> = allocators.iter().map(|it| it.name()).collect();
            progress::warn(&format!(
                "--plan is not followed: `planned` follows the plan that it is given, {} does not",
                names.join(" or ")
            ));
        }
    }

    /// Whether the plan is on standard input.
    pub(crate) fn reads_standard(&self) -> bool {
        self.plan.as_deref().is_some_and(files::is_standard)
    }

    /// Whether a run that does not fit is a no.
    pub(crate) fn requires_fit(&self) -> bool {
        self.require_fit
    }
}

/// Releases of torch of which it is known how they order equal free blocks: 2.1 to this.
const LAST_RELEASE: u32 = 15;

/// The order of a release that is known.
pub(super) fn tie_order(torch: &str) -> anyhow::Result<TieOrder> {
    let mut numbers = torch.split('.').map(|number| number.parse::<u32>().ok());
    let release = (numbers.next().flatten(), numbers.next().flatten());
    match (TieOrder::of_torch(torch), release) {
        (Some(order), (Some(2), Some(1..=LAST_RELEASE))) => Ok(order),
        (Some(_), _) => {
            bail!("use --torch 2.1 to 2.{LAST_RELEASE}: the release {torch} is not known")
        }
        (None, _) => {
            bail!("use --torch 2.1 to 2.{LAST_RELEASE}: `{torch}` is no release of torch")
        }
    }
}

/// Makes a plan of the recording, and tries it there.
fn make_plan(loaded: &Loaded, setup: &Setup) -> anyhow::Result<Plan> {
    let plan = planned(loaded, |problem| Budget::interactive(problem.buffers.len()))?;
    Ok(tried(plan, &loaded.trace, &loaded.lives, setup))
}

/// Makes a plan of the recording with a given budget.
fn planned_by(loaded: &Loaded, budget: Budget) -> anyhow::Result<Plan> {
    planned(loaded, |_| budget)
}

fn planned(loaded: &Loaded, budget: impl FnOnce(&Problem) -> Budget) -> anyhow::Result<Plan> {
    let Loaded { trace, lives, iterations, name, .. } = loaded;
    let plan = profile::plan(trace, lives, iterations, |problem| solve(problem, budget(problem)));
    plan.with_context(|| format!("cannot plan {name}"))
}

/// One allocator's figures as `--json` gives them.
#[derive(Serialize)]
pub(crate) struct JsonRow {
    pub(crate) allocator: &'static str,
    events: u64,
    requests: u64,
    allocated_peak: u64,
    active_peak: u64,
    reserved_peak: u64,
    requested_peak: u64,
    /// None for a run that stopped: what it did not get to counts too.
    efficiency: Option<f64>,
    fragmentation: Option<f64>,
    num_alloc_retries: u64,
    num_ooms: u64,
    num_device_alloc: u64,
    num_device_free: u64,
    device_calls: u64,
    device_microseconds: f64,
    /// Calls of the device in each iteration.
    iterations: Vec<JsonCalls>,
    seconds: f64,
    recorded_reserved_peak: Option<u64>,
    segment_events_equal: Option<bool>,
    first_difference: Option<String>,
    /// What was held when the replay began, where it was rebuilt.
    #[serde(skip_serializing_if = "Option::is_none")]
    earlier: Option<JsonEarlier>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<u64>,
    fits: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped: Option<JsonStop>,
    #[serde(flatten)]
    following: Option<JsonFollowing>,
}

/// Calls of the device in an iteration.
#[derive(Serialize)]
struct JsonCalls {
    /// By kind.
    calls: BTreeMap<&'static str, u64>,
    /// Simulated cost, by kind.
    microseconds: BTreeMap<&'static str, f64>,
}

impl JsonCalls {
    fn new(totals: &CallTotals) -> JsonCalls {
        let called = || totals.called().map(|(call, total)| (call.name(), total));
        JsonCalls {
            calls: called().map(|(name, total)| (name, total.calls)).collect(),
            microseconds: called().map(|(name, total)| (name, total.microseconds)).collect(),
        }
    }
}

/// The first request that got nothing.
#[derive(Serialize)]
struct JsonStop {
    request: u32,
    event: u32,
    size: u64,
    reason: String,
}

/// How well a plan was followed.
#[derive(Serialize)]
struct JsonFollowing {
    planned_hits: u64,
    planned_hit_bytes: u64,
    planned_misses: u64,
    planned_miss_bytes: u64,
    stream_waits: u64,
}

impl JsonRow {
    pub(crate) fn new(
        simulation: &Simulation,
        trace: &Trace,
        setup: &Setup,
        seconds: f64,
    ) -> JsonRow {
        let stats = &simulation.stats;
        let calls = simulation.calls.sum();
        let difference = compared_with_recording(simulation, trace);
        let following = simulation.following.map(|following| JsonFollowing {
            planned_hits: following.hits,
            planned_hit_bytes: following.hit_bytes,
            planned_misses: following.misses,
            planned_miss_bytes: following.miss_bytes,
            stream_waits: following.waits,
        });
        let stopped = simulation.replayed.stop.as_ref().map(|stop| JsonStop {
            request: stop.request,
            event: stop.tick.0,
            size: stop.size,
            reason: why_stopped(&stop.error),
        });
        JsonRow {
            allocator: simulation.allocator.name(),
            events: simulation.replayed.events,
            requests: simulation.replayed.requests,
            allocated_peak: stats.allocated_bytes.all().peak,
            active_peak: stats.active_bytes.all().peak,
            reserved_peak: stats.reserved_bytes.all().peak,
            requested_peak: stats.requested_bytes.all().peak,
            efficiency: efficiency(simulation),
            fragmentation: efficiency(simulation).map(|efficiency| 1.0 - efficiency),
            num_alloc_retries: stats.num_alloc_retries,
            num_ooms: stats.num_ooms,
            num_device_alloc: stats.num_device_alloc,
            num_device_free: stats.num_device_free,
            device_calls: calls.calls,
            device_microseconds: calls.microseconds,
            iterations: simulation.iterations.iter().map(JsonCalls::new).collect(),
            seconds,
            recorded_reserved_peak: recorded_peak(trace),
            segment_events_equal: difference.as_ref().map(Option::is_none),
            first_difference: difference.flatten(),
            earlier: JsonEarlier::new(&simulation.beginning),
            capacity: setup.capacity,
            fits: stopped.is_none(),
            stopped,
            following,
        }
    }
}

/// The peak that the recorded process reported, or that its segment events show.
pub(crate) fn recorded_peak(trace: &Trace) -> Option<u64> {
    trace.recorded.reserved_peak.or_else(|| recorded_reserved_peak(trace))
}

/// For the allocator that made the recording: its first difference from the recording, if there is
/// one. None for other allocators, and where the recording has no segment events at all.
pub(crate) fn compared_with_recording(
    simulation: &Simulation,
    trace: &Trace,
) -> Option<Option<String>> {
    let made_it = match simulation.allocator {
        Allocator::Native => !trace.settings.expandable_segments,
        Allocator::Expandable => trace.settings.expandable_segments,
        _ => false,
    };
    let recorded = recorded_segment_events(trace);
    (made_it && !recorded.is_empty()).then(|| {
        let replayed = &simulation.replayed.segment_events;
        first_segment_difference(&recorded, replayed).map(|difference| {
            match &simulation.beginning {
                Beginning::Rebuilt(rebuilt) if rebuilt.evidence == Evidence::Inferred => format!(
                    "{difference}; what was held when the recording began is inferred, not known"
                ),
                Beginning::Rebuilt(rebuilt) if rebuilt.assumed > 0 => format!(
                    "{difference}; what was held when the recording began is not known to the byte"
                ),
                Beginning::Rebuilt(_) => difference,
                _ if trace.origin.truncated => format!(
                    "{difference}; the recording began when segments were held already, which \
                     the replay must take anew"
                ),
                _ => difference,
            }
        })
    })
}

/// The columns of the table of allocators: waste is what efficiency leaves of 100 %; the calls are those of the
/// device.
const COLUMNS: [&str; 7] =
    ["allocator", "allocated", "reserved", "efficiency", "waste", "calls", "cost"];

/// The columns, with one more where it is asked whether the run fits.
pub(crate) fn columns(setup: &Setup) -> Vec<&'static str> {
    let mut columns = COLUMNS.to_vec();
    if setup.capacity.is_some() {
        columns.insert(1, "fits");
    }
    columns
}

/// The efficiency of a run; none for one that stopped, which might have gone on to hold anything.
pub(crate) fn efficiency(simulation: &Simulation) -> Option<f64> {
    simulation.replayed.stop.is_none().then(|| simulation.efficiency())
}

/// A row of the table of allocators, with the cells of [`columns`].
pub(crate) fn table_row(simulation: &Simulation, setup: &Setup) -> Vec<String> {
    let stats = &simulation.stats;
    let calls = simulation.calls.sum();
    let share =
        |shown: fn(f64) -> String| efficiency(simulation).map_or_else(|| "-".to_owned(), shown);
    let mut row = vec![
        simulation.allocator.name().to_owned(),
        bytes(stats.allocated_bytes.all().peak),
        bytes(stats.reserved_bytes.all().peak),
        share(percent),
        share(percent_left),
        count(calls.calls),
        milliseconds(calls.microseconds),
    ];
    if setup.capacity.is_some() {
        let fits = if simulation.replayed.stop.is_none() { "yes" } else { "no" };
        row.insert(1, fits.to_owned());
    }
    row
}

/// The columns of the table of mapping work.
const WORK: [&str; 8] =
    ["iteration", "create", "map", "set access", "unmap", "release", "other", "cost"];
/// Iterations that the table shows at most; of more, the first and the last.
const WORK_ROWS_MAX: usize = 12;

/// What the device was asked for in each iteration; none if there are no iterations.
pub(crate) fn mapping_work(simulation: &Simulation) -> Option<String> {
    use girih_runtime::sim::Call::{Create, Map, Release, SetAccess, Unmap};
    let kinds = [Create, Map, SetAccess, Unmap, Release];
    let count_of = simulation.iterations.len();
    let row = |(at, totals): (usize, &CallTotals)| {
        let of_kind = kinds.map(|kind| totals.of(kind).calls);
        let (all, of_kinds) = (totals.sum(), of_kind.iter().sum::<u64>());
        let mut row = vec![at.to_string()];
        row.extend(of_kind.into_iter().chain([all.calls - of_kinds]).map(count));
        row.push(milliseconds(all.microseconds));
        row
    };
    let is_shown =
        |at: usize| count_of <= WORK_ROWS_MAX || at < WORK_ROWS_MAX / 2 || at + 3 >= count_of;
    let rows = simulation.iterations.iter().enumerate().filter(|&(at, _)| is_shown(at));
    let rows: Vec<_> = rows.map(row).collect();
    (!rows.is_empty()).then(|| table(&WORK, &rows))
}

/// A sentence on the first request that got nothing.
pub(crate) fn stop_sentence(stop: &Stop, lives: &Lifetimes) -> String {
    let which = match (stop.request as usize).checked_sub(lives.older) {
        Some(born) => {
            let of = count(lives.born().len() as u64);
            format!("at request {} of {of}", count(born as u64 + 1))
        }
        None => "at a block that is older than the recording".to_owned(),
    };
    format!("stops {which}, for {}: {}", bytes(stop.size), why_stopped(&stop.error))
}

/// Why a request got nothing.
fn why_stopped(error: &AllocError) -> String {
    match error {
        AllocError::OutOfMemory { segment, allocated, reserved, limit, device_free, .. } => {
            let cap = match *limit {
                u64::MAX => String::new(),
                limit => format!(", of {} that it may hold", bytes(limit)),
            };
            let short = match segment.checked_sub(*device_free) {
                Some(short @ 1..) => format!(", {} too little", bytes(short)),
                _ => String::new(),
            };
            format!(
                "{} more are needed and {} are free on the device{short}; {} are reserved{cap}, {} \
                 of them allocated",
                bytes(*segment),
                bytes(*device_free),
                bytes(*reserved),
                bytes(*allocated)
            )
        }
        other => other.to_string(),
    }
}

/// A sentence on the first request that got nothing, beside figures of all of the run: it is replayed to its
/// end without what is refused.
pub(crate) fn stop_and_rest_sentence(
    stop: &Stop,
    simulation: &Simulation,
    lives: &Lifetimes,
) -> String {
    let refused = match simulation.replayed.failed {
        1 => "1 request that is refused".to_owned(),
        failed => format!("{} requests that are refused", count(failed)),
    };
    format!(
        "{}; the figures are of the run that goes on without the {refused}",
        stop_sentence(stop, lives)
    )
}

/// A sentence on what the first launch left to the second.
pub(crate) fn again_sentence(kept: Option<&Plan>) -> String {
    match kept.map(unreliable) {
        None => "again has no plan: the first launch keeps none".to_owned(),
        Some(None) => "again follows the plan that the first launch keeps".to_owned(),
        Some(Some(why)) => {
            format!("again does not follow the plan that the first launch keeps: {why}")
        }
    }
}

/// Why nobody follows a plan; None for one that helps.
pub(crate) fn unhelpful(plan: &Plan) -> Option<String> {
    let trial = plan.trial.filter(|_| !plan.helps())?;
    let (with, without) = (bytes(trial.with), bytes(trial.without));
    Some(match trial.with.saturating_sub(trial.without) {
        more if with == without => format!(
            "the run that it was made of holds {without} without it, and {} bytes more with it",
            count(more)
        ),
        _ => format!("the run that it was made of holds {with} with it, and {without} without"),
    })
}

/// A sentence on a plan that nobody follows; None for one that helps.
pub(crate) fn unhelpful_sentence(plan: Option<&Plan>) -> Option<String> {
    plan.and_then(unhelpful).map(|why| format!("planned does not follow its plan: {why}"))
}

/// Why `auto` does not follow a plan of an earlier launch; None if it does.
pub(crate) fn unreliable(plan: &Plan) -> Option<String> {
    if let Some(why) = unhelpful(plan) {
        return Some(why);
    }
    if plan.varies() {
        return Some("its iterations differ in sizes".to_owned());
    }
    let places = plan.arena_bytes.saturating_add(plan.persistent_bytes);
    let (held, used) = (bytes(places), bytes(plan.in_use));
    (!plan.is_tight()).then(|| match places.saturating_sub(plan.in_use) {
        more if held == used => {
            format!("its places are {} bytes more than the {used} in use", count(more))
        }
        _ => format!("its places are {held}, and {used} were in use"),
    })
}

#[cfg(test)]
mod tests {
    use girih_plan::Trial;

    use super::*;

    #[test]
    fn sizes_that_look_alike_are_told_apart_in_bytes() {
        let said = |with, without| {
            let plan = Plan { trial: Some(Trial { with, without }), ..Plan::default() };
            unhelpful(&plan)
        };
        let alike = said((20 << 30) + 2048, 20 << 30).expect("it is no help");
        assert!(alike.ends_with("20.0 GiB without it, and 2,048 bytes more with it"), "{alike}");
        let apart = said(21 << 30, 20 << 30).expect("it is no help");
        assert!(apart.ends_with("21.0 GiB with it, and 20.0 GiB without"), "{apart}");
        assert_eq!(said(20 << 30, 20 << 30), None);
    }
}
