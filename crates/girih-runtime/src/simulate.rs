//! Simulation: what an allocator would have made of a recorded run.
//!
//! The production policy on the simulated device, put together from a name and settings. This is
//! what the command line, and later Python, ask for. What an earlier launch leaves to `again` is in [`mod@launch`].

pub mod launch;
mod rest;

use std::sync::Arc;

use girih_plan::{Plan, granted};
use girih_trace::bounds::{BoundsError, HELD_MAX, check_held};
use girih_trace::{Contradiction, Earlier, Lifetimes, StreamId, Tick, Trace};
use thiserror::Error;

use self::rest::{Rest, since};
use crate::auto::{Auto, Planning, Switch};
use crate::caching::config::ConfigError;
use crate::caching::rounding::round_size;
use crate::caching::{Caching, Config, TieOrder};
use crate::direct::Direct;
use crate::gmlake::{self, Gmlake};
use crate::hooked::Hooked;
use crate::lake::Following;
use crate::lake::{self, Lake};
use crate::policy::{AllocError, Env, Policy};
use crate::replay::{Beginning, Options, Replayed, begin, replay, replay_from};
use crate::sim::{CallTotals, SimDevice};
use crate::stats::Stats;
use crate::waste::{Viewpoint, Waste, waste};

/// Bytes of a device that sets no limit: twice what may be alive at once. What is kept of a device grows
/// with the pages that it gives.
const UNLIMITED: u64 = 2 * HELD_MAX;

/// Calls of the device after which a replay is given up, and for each event as many more: a few seconds'
/// work, many times what any allocator needs for a recording of a GPU.
const CALLS_MAX: u64 = 1 << 22;
const CALLS_PER_EVENT: u64 = 1024;

/// The allocators that can be simulated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Allocator {
    /// Each request straight to the device; private pools cached as by PyTorch.
    Direct,
    /// PyTorch's caching allocator.
    Native,
    /// The same with expandable segments.
    Expandable,
    /// GMLake as published: free memory is stitched.
    Gmlake,
    /// Expandable segments whose holes are stitched.
    Stitch,
    /// Follows a plan; `stitch` serves what it does not cover.
    Planned,
    /// Begins as `stitch`, and follows a plan as soon as it has learnt one.
    Auto,
    /// `auto` in a second launch: it follows the plan that the first one kept, if that is one to rely on.
    Again,
}

impl Allocator {
    /// Every allocator.
    pub const ALL: [Allocator; 8] = [
        Allocator::Direct,
        Allocator::Native,
        Allocator::Expandable,
        Allocator::Gmlake,
        Allocator::Stitch,
        Allocator::Planned,
        Allocator::Auto,
        Allocator::Again,
    ];

    /// True if it takes pages of the device, and not segments.
    fn is_expandable(self) -> bool {
        use Allocator::{Again, Auto, Expandable, Planned, Stitch};
        matches!(self, Expandable | Stitch | Planned | Auto | Again)
    }

    /// The name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Allocator::Direct => "direct",
            Allocator::Native => "native",
            Allocator::Expandable => "expandable",
            Allocator::Gmlake => "gmlake",
            Allocator::Stitch => "stitch",
            Allocator::Planned => "planned",
            Allocator::Auto => "auto",
            Allocator::Again => "again",
        }
    }
}

/// What to simulate with.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Settings as in `PYTORCH_CUDA_ALLOC_CONF`; for `expandable`, `stitch`, `planned`, `auto` and `again`,
    /// `expandable_segments:True` is added.
    /// For `gmlake` they are those of what serves its small requests.
    pub conf: String,
    /// Settings of `gmlake`, unused otherwise.
    pub gmlake: gmlake::Config,
    /// How the lake weighs memory against time, for `stitch`, `planned`, `auto` and `again`.
    pub lake: lake::Options,
    /// The order in which equal free blocks are taken; it differs from torch release to release.
    pub tie_order: TieOrder,
    /// Bytes of the device; None for as many as are asked for.
    pub capacity: Option<u64>,
    /// The plan to follow. Needed for `planned`, unused otherwise.
    pub plan: Option<Arc<Plan>>,
    /// The plan that an earlier launch kept ([`launch::first`]); None if it kept none. For `again`, unused otherwise.
    pub kept: Option<Arc<Plan>>,
    /// Peaks, and how well a plan is followed, are of what comes from this tick on; None for the whole run.
    pub rest: Option<Tick>,
    /// Checks the order of uses across streams. Slower.
    pub check_order: bool,
    /// Ticks, rising, at which iterations begin, to tell their calls of the device apart; none to
    /// leave that.
    pub iterations: Arc<[Tick]>,
    /// `auto` gets each plan an iteration after it wanted it, as from another thread; otherwise
    /// at once.
    pub plans_late: bool,
    /// What [`Earlier::of`] says of the trace; None to have it asked each time.
    pub earlier: Option<Arc<Result<Earlier, Contradiction>>>,
}

impl Setup {
    /// Who makes the plans of `auto`.
    fn planning(&self) -> Planning {
        if self.plans_late { Planning::NextIteration } else { Planning::AtOnce }
    }
}

/// What `auto` learnt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Learning {
    /// When it took up which plan.
    pub switches: Vec<Switch>,
    /// For each of them, the most bytes allocated and the most reserved until the next one.
    pub peaks: Vec<(u64, u64)>,
}

impl Learning {
    /// The most bytes allocated and the most reserved since the first switch; `(0, 0)` without one.
    pub fn peaks_after(&self) -> (u64, u64) {
        self.peaks.iter().fold((0, 0), |most, &peak| (most.0.max(peak.0), most.1.max(peak.1)))
    }

    /// Peak allocated by peak reserved since the first switch, none without a switch.
    pub fn efficiency_after(&self) -> Option<f64> {
        (!self.peaks.is_empty()).then(|| ratio(self.peaks_after()))
    }

    /// Peak allocated by peak reserved since the last switch, none without a switch.
    pub fn efficiency_at_last(&self) -> Option<f64> {
        self.peaks.last().map(|&peaks| ratio(peaks))
    }
}

fn ratio((allocated, reserved): (u64, u64)) -> f64 {
    if reserved == 0 { 1.0 } else { allocated as f64 / reserved as f64 }
}

/// Why nothing was simulated.
#[derive(Debug, Error)]
pub enum SimulateError {
    /// The settings make no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The allocator is `planned` and there is no plan.
    #[error("the allocator `planned` needs a plan: make one with `girih plan`")]
    NoPlan,
    /// More is alive at once than a device holds.
    #[error(transparent)]
    Bounds(#[from] BoundsError),
    /// The allocator keeps the device busier than any run does, for it holds what no GPU has.
    #[error(
        "{allocator} has called the device {calls} times by event {event}: the sizes of this \
         recording are those of no GPU"
    )]
    Overworked {
        /// The allocator.
        allocator: &'static str,
        /// The event at which the replay was given up, from 0.
        event: u32,
        /// Calls until then.
        calls: u64,
    },
    /// The device refused a call for another reason than memory: a bug of ours.
    #[error("the simulated device refused a call, which is a bug of Girih: {0}")]
    Device(#[from] AllocError),
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// The allocator.
    pub allocator: Allocator,
    /// What was held when the replay began.
    pub beginning: Beginning,
    /// What was replayed, and the first request that got nothing.
    pub replayed: Replayed,
    /// The allocator's counters at the end.
    pub stats: Stats,
    /// How well the plan was followed, for `planned`, `auto` and `again`.
    pub following: Option<Following>,
    /// What was learnt, for `auto` and `again`.
    pub learning: Option<Learning>,
    /// Calls of the device and their simulated cost.
    pub calls: CallTotals,
    /// Those of each iteration of [`Setup::iterations`], each up to the beginning of the next.
    pub iterations: Vec<CallTotals>,
}

impl Simulation {
    /// Peak allocated by peak reserved; 1 for a run without requests. Of `gmlake` it is peak requested:
    /// its blocks are whole handles, and what a request leaves of them nobody uses.
    pub fn efficiency(&self) -> f64 {
        let used = match self.allocator {
            Allocator::Gmlake => self.stats.requested_bytes.all.peak,
            _ => self.stats.allocated_bytes.all.peak,
        };
        ratio((used, self.stats.reserved_bytes.all.peak))
    }
}

/// Simulates `allocator` on a recorded run.
///
/// # Errors
/// If the settings make no sense, if there is no plan to follow, or if the recording holds more than any
/// device does; see [`SimulateError`].
pub fn simulate(
    trace: &Trace,
    lives: &Lifetimes,
    allocator: Allocator,
    setup: &Setup,
) -> Result<Simulation, SimulateError> {
    let options = Options {
        check_order: setup.check_order,
        count_calls_at: &setup.iterations,
        reset_peaks_at: setup.rest,
        ..Options::default()
    };
    run(trace, lives, allocator, setup, options, |_, _| ())
}

/// Simulates up to the moment at which `simulation` held the most of the device and most of it was
/// allocated, and says where the memory was then that nobody had requested. What is free is looked
/// at with the eyes of the request for which the most was taken at once on the way there.
pub fn waste_at_peak(
    trace: &Trace,
    lives: &Lifetimes,
    simulation: &Simulation,
    setup: &Setup,
) -> Result<Waste, SimulateError> {
    let at = simulation.replayed.peak_at;
    let options = Options { until: Some(at), reset_peaks_at: setup.rest, ..Options::default() };
    let mut found = Waste::default();
    run(trace, lives, simulation.allocator, setup, options, |policy, config| {
        found = look(policy, config, lives, simulation.replayed.grown_at);
    })?;
    Ok(found)
}

/// The waste of a policy with the eyes of the request at tick `at`.
fn look(policy: &dyn Policy, config: &Config, lives: &Lifetimes, at: Tick) -> Waste {
    let request = lives.request_of.get(at.index()).filter(|&&index| index != Lifetimes::NONE);
    let request = request.map(|&index| &lives.requests[index as usize]);
    let rounded = |size| match policy.name() {
        "planned" | "auto" | "direct" => granted(size),
        "gmlake" if size > 1 << 20 => size.next_multiple_of(gmlake::HANDLE),
        _ => round_size(size, &config.roundup_power2_divisions),
    };
    let from = Viewpoint {
        stream: request.map_or(StreamId(0), |request| request.stream),
        pool: request.map_or_else(Default::default, |request| request.pool),
        is_small: request.is_some_and(|request| request.size <= 1 << 20),
        rounded: &rounded,
    };
    waste(policy, from)
}

/// Puts policy and device together, replays, and shows the policy to `inspect` at the end.
fn run(
    trace: &Trace,
    lives: &Lifetimes,
    allocator: Allocator,
    setup: &Setup,
    options: Options<'_>,
    mut inspect: impl FnMut(&dyn Policy, &Config),
) -> Result<Simulation, SimulateError> {
    check_held(lives)?;
    let options = Options { calls_max: Some(calls_max(trace)), ..options };
    let mut device = device(setup);
    let config = config(allocator, setup)?;
    let caching = || {
        let mut caching = Caching::new(config.clone());
        caching.set_stream_handles(trace.streams.clone());
        caching
    };
    let (mut following, mut learning) = (None, None);
    let mut beginning = Beginning::Requested;
    let (replayed, stats) = match allocator {
        Allocator::Direct => {
            let mut policy = Direct::new(caching());
            let replayed = replay(trace, lives, &mut policy, &mut device, options)?;
            inspect(&policy, &config);
            (replayed, policy.stats().clone())
        }
        Allocator::Gmlake => {
            let mut policy = Gmlake::new(setup.gmlake.clone(), caching());
            let replayed = replay(trace, lives, &mut policy, &mut device, options)?;
            inspect(&policy, &config);
            (replayed, policy.stats().clone())
        }
        Allocator::Stitch => {
            let mut policy = lake(&config, trace, setup);
            let replayed = replay(trace, lives, &mut policy, &mut device, options)?;
            inspect(&policy, &config);
            (replayed, Policy::stats(&policy).clone())
        }
        Allocator::Native | Allocator::Expandable => {
            let mut policy = caching();
            let asked = || Arc::new(Earlier::of(trace, lives));
            let earlier = setup.earlier.clone().unwrap_or_else(asked);
            let (how, held) = begin(trace, &earlier, &mut policy, &mut device)?;
            beginning = how;
            let held = held.as_ref();
            let replayed = replay_from(trace, lives, &mut policy, &mut device, options, held)?;
            inspect(&policy, &config);
            (replayed, policy.stats().clone())
        }
        Allocator::Planned => {
            let plan = setup.plan.clone().ok_or(SimulateError::NoPlan)?;
            let mut policy = Rest::of(lake(&config, trace, setup).with_plan(plan), Lake::following);
            let replayed = replay(trace, lives, &mut policy, &mut device, options)?;
            inspect(&policy.inner, &config);
            following = Some(since(policy.counted()));
            (replayed, Policy::stats(&policy.inner).clone())
        }
        Allocator::Auto | Allocator::Again => {
            let kept = setup.kept.as_ref().filter(|plan| plan.is_reliable());
            let lake = match kept.filter(|_| allocator == Allocator::Again) {
                Some(plan) => lake(&config, trace, setup).with_plan(Arc::clone(plan)),
                None => lake(&config, trace, setup),
            };
            let learnt = run_auto(trace, lives, lake, setup.planning(), options, &mut device)?;
            let Learnt { auto, replayed, earlier, counted } = learnt;
            inspect(&auto, &config);
            following = Some(since((counted.0.0, counted.1.0)));
            let mut stats = auto.stats().clone();
            let peaks = |of: &Stats| (of.allocated_bytes.all.peak, of.reserved_bytes.all.peak);
            learning = Some(Learning {
                switches: auto.switches().to_vec(),
                // What came before the first switch is left out.
                peaks: earlier.iter().chain([&stats]).skip(1).map(peaks).collect(),
            });
            for before in &earlier[counted.0.1..] {
                stats.raise_peaks(before);
            }
            (replayed, stats)
        }
    };
    check_calls(allocator, &replayed)?;
    let calls = device.totals().clone();
    let starts = &replayed.calls_before;
    let ends = starts.iter().skip(1).chain([&calls]);
    let iterations = starts.iter().zip(ends).map(|(start, end)| end.since(start)).collect();
    Ok(Simulation { allocator, beginning, replayed, stats, following, learning, calls, iterations })
}

/// The device of a setup.
fn device(setup: &Setup) -> SimDevice {
    SimDevice::new(setup.capacity.unwrap_or(UNLIMITED))
}

/// The settings of an allocator.
fn config(allocator: Allocator, setup: &Setup) -> Result<Config, ConfigError> {
    let mut config = Config::parse(&setup.conf)?;
    config.tie_order = setup.tie_order;
    config.expandable_segments |= allocator.is_expandable();
    Ok(config)
}

/// Calls of the device after which the replay of a trace is given up.
fn calls_max(trace: &Trace) -> u64 {
    CALLS_MAX + CALLS_PER_EVENT * trace.events.len() as u64
}

/// Refuses a replay that was given up.
fn check_calls(allocator: Allocator, replayed: &Replayed) -> Result<(), SimulateError> {
    match replayed.overworked {
        None => Ok(()),
        Some((tick, calls)) => {
            Err(SimulateError::Overworked { allocator: allocator.name(), event: tick.0, calls })
        }
    }
}

/// The lake, as `stitch` and beneath a plan.
fn lake(config: &Config, trace: &Trace, setup: &Setup) -> Lake {
    let mut pools = Caching::new(Config { own_order: true, ..config.clone() });
    pools.set_stream_handles(trace.streams.clone());
    Lake::new(setup.lake, pools)
}

/// `auto` after a replay.
struct Learnt {
    auto: Auto,
    replayed: Replayed,
    /// The counters at each switch, after which their peaks began anew.
    earlier: Vec<Stats>,
    /// How its plans were followed and how many switches there were, at [`Setup::rest`] and now.
    counted: ((Following, usize), (Following, usize)),
}

/// Replays under `auto`, which begins with `lake`.
fn run_auto(
    trace: &Trace,
    lives: &Lifetimes,
    lake: Lake,
    planning: Planning,
    options: Options<'_>,
    device: &mut SimDevice,
) -> Result<Learnt, AllocError> {
    let mut auto = Auto::new(lake);
    auto.set_planning(planning);
    let mut earlier = Vec::new();
    let hooked = Hooked::new(auto, |auto: &mut Auto, _: &mut Env<'_>, _| {
        if auto.switches().len() > earlier.len() {
            earlier.push(auto.stats().clone());
            auto.reset_peak_stats();
        }
        Ok(())
    });
    let count =
        |hooked: &Hooked<Auto, _>| (hooked.inner.lake().following(), hooked.inner.switches().len());
    let mut policy = Rest::of(hooked, count);
    let replayed = replay(trace, lives, &mut policy, device, options)?;
    let counted = policy.counted();
    Ok(Learnt { auto: policy.inner.inner, replayed, earlier, counted })
}
