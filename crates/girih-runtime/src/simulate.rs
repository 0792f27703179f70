//! Simulation: what an allocator would have made of a recorded run.
//!
//! The production policy on the simulated device, put together from a name and settings
//! ([`mod@crate::registry`]). This is what the command line, and later Python, ask for. What an earlier launch leaves to `again` is in [`mod@launch`].

pub mod launch;
pub(crate) mod learner;
pub(crate) mod planned;
mod simulated;
pub mod trial;
pub(crate) mod woven;

use std::sync::Arc;

use girih_plan::Plan;
use girih_trace::bounds::{BoundsError, HELD_MAX, check_held};
use girih_trace::{Contradiction, Earlier, Lifetimes, StreamId, Tick, Trace};
use thiserror::Error;

pub(crate) use self::simulated::{Recorded, Simulated};
use crate::auto::{self, Planning};
use crate::caching::config::ConfigError;
use crate::caching::{Config, TieOrder};
use crate::gmlake;
use crate::lake::{self, Following};
use crate::policy::{AllocError, BlockView, SegmentView};
pub use crate::registry::{Allocator, Property};
use crate::replay::{Beginning, Options, Replayed, replay_from};
use crate::sim::{CallTotals, SimDevice};
use crate::stats::Stats;
use crate::stweaver::{self, Served};
use crate::waste::{Viewpoint, Waste, waste};

/// Bytes of a device that sets no limit: twice what may be alive at once. What is kept of a device grows
/// with the pages that it gives.
const UNLIMITED: u64 = 2 * HELD_MAX;

/// Calls of the device after which a replay is given up, and for each event as many more: a few seconds'
/// work, many times what any allocator needs for a recording of a GPU.
const CALLS_MAX: u64 = 1 << 22;
const CALLS_PER_EVENT: u64 = 1024;

/// What to simulate with.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Settings as in `PYTORCH_CUDA_ALLOC_CONF`, those of the recording by [`recorded_conf`]; for `expandable`,
    /// `stitch`, `planned`, `auto` and `again`, `expandable_segments:True` is added.
    /// For `gmlake` they are those of what serves its small requests.
    pub conf: String,
    /// Settings of `gmlake`, unused otherwise.
    pub gmlake: gmlake::Config,
    /// What of STWeaver is at work, for `stweaver`.
    pub stweaver: stweaver::Options,
    /// How the lake weighs memory against time, for `stitch`, `planned`, `auto` and `again`.
    pub lake: lake::Options,
    /// How plans are judged, for `auto` and `again`.
    pub judge: auto::Options,
    /// The order in which equal free blocks are taken; it differs from torch release to release.
    pub tie_order: TieOrder,
    /// Bytes of the device; None for as many as are asked for.
    pub capacity: Option<u64>,
    /// The device tells of so many times the prices of the list; 0 is 1.
    pub dearness: u64,
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
    #[error("make a plan with `girih plan`: the allocator `planned` needs one")]
    NoPlan,
    /// More is alive at once than a device holds.
    #[error(transparent)]
    Bounds(#[from] BoundsError),
    /// The allocator keeps the device busier than any run does, for it holds what no GPU has.
    #[error(
        "copy the recording again, its sizes are those of no GPU: {allocator} has called the device \
         {calls} times by event {event}"
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
    #[error("please report this bug of Girih: the simulated device refused a call: {0}")]
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
    /// What served the requests, for `stweaver`.
    pub served: Option<Served>,
    /// The most bytes that were of use at once: those allocated, of `gmlake` those requested, for its
    /// blocks are whole handles, and what a request leaves of them nobody uses.
    pub used_peak: u64,
    /// Calls of the device and their simulated cost.
    pub calls: CallTotals,
    /// Those of each iteration of [`Setup::iterations`], each up to the beginning of the next.
    pub iterations: Vec<CallTotals>,
}

impl Simulation {
    /// Peak used by peak reserved; 1 for a run without requests.
    pub fn efficiency(&self) -> f64 {
        ratio((self.used_peak, self.stats.reserved_bytes.all().peak))
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
    run(trace, lives, allocator, setup, options, &mut |_| ())
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
    run(trace, lives, simulation.allocator, setup, options, &mut |policy| {
        found = look(policy, lives, simulation.replayed.grown_at);
    })?;
    Ok(found)
}

/// Simulates up to the operation at tick `until`, and shows each segment that is held then, with its blocks.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_until(
    trace: &Trace,
    lives: &Lifetimes,
    allocator: Allocator,
    setup: &Setup,
    until: Tick,
    see: &mut dyn FnMut(SegmentView, &[BlockView]),
) -> Result<Simulation, SimulateError> {
    let options = Options { until: Some(until), ..Options::default() };
    run(trace, lives, allocator, setup, options, &mut |policy| policy.visit(see))
}

/// The waste of a policy with the eyes of the request at tick `at`.
fn look(policy: &dyn Simulated, lives: &Lifetimes, at: Tick) -> Waste {
    let request = lives.request_of.get(at.index()).filter(|&&index| index != Lifetimes::NONE);
    let request = request.map(|&index| &lives.requests[index as usize]);
    let from = Viewpoint {
        stream: request.map_or(StreamId(0), |request| request.stream),
        pool: request.map_or_else(Default::default, |request| request.pool),
        is_small: request.is_some_and(|request| request.size <= 1 << 20),
        rounded: &|size| policy.rounded(size),
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
    inspect: &mut dyn FnMut(&dyn Simulated),
) -> Result<Simulation, SimulateError> {
    check_held(lives)?;
    let options = Options { calls_max: Some(calls_max(trace)), ..options };
    let recorded = Recorded { trace, lives, earlier: setup.earlier.clone() };
    let parts = allocator.parts(config(setup)?, setup, &trace.streams);
    let run = Run { allocator, recorded, device: device(setup), options, inspect };
    allocator.run(run, &parts)
}

/// A simulation that lacks only its policy.
pub(crate) struct Run<'a> {
    allocator: Allocator,
    recorded: Recorded<'a>,
    device: SimDevice,
    options: Options<'a>,
    inspect: &'a mut dyn FnMut(&dyn Simulated),
}

impl Run<'_> {
    /// Runs it with `policy`, which holds nothing.
    pub(crate) fn of<P: Simulated>(self, mut policy: P) -> Result<Simulation, SimulateError> {
        let Run { allocator, recorded, mut device, options, inspect } = self;
        let (beginning, held) = policy.begin(&recorded, &mut device)?;
        let Recorded { trace, lives, .. } = recorded;
        let replayed = replay_from(trace, lives, &mut policy, &mut device, options, held.as_ref())?;
        inspect(&policy);
        check_calls(allocator, &replayed)?;
        let stats = policy.stats().clone();
        let calls = device.totals().clone();
        let starts = &replayed.calls_before;
        let ends = starts.iter().skip(1).chain([&calls]);
        let iterations = starts.iter().zip(ends).map(|(start, end)| end.since(start)).collect();
        Ok(Simulation {
            allocator,
            beginning,
            replayed,
            used_peak: policy.used_peak(&stats),
            stats,
            following: policy.following(),
            served: policy.served(),
            calls,
            iterations,
        })
    }
}

/// The device of a setup.
fn device(setup: &Setup) -> SimDevice {
    let mut device = SimDevice::new(setup.capacity.unwrap_or(UNLIMITED));
    device.set_dearness(setup.dearness.max(1));
    device
}

/// What a recorded process was set to, as far as an allocator of ours takes it: the recording may be of
/// a release that knows more. Without `expandable_segments`: whether memory is taken in segments or in
/// pages is what tells `native` from `expandable`, whichever made the recording.
pub fn recorded_conf(trace: &Trace) -> String {
    let conf = trace.settings.conf.trim_matches(',');
    match Config::parse(conf) {
        // What comes last holds.
        Ok(config) if config.expandable_segments => format!("{conf},expandable_segments:False"),
        Ok(_) => conf.to_owned(),
        Err(_) => String::new(),
    }
}

/// The settings of a setup.
fn config(setup: &Setup) -> Result<Config, ConfigError> {
    Ok(Config { tie_order: setup.tie_order, ..Config::parse(&setup.conf)? })
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

#[cfg(test)]
mod tests {
    use girih_trace::{Action, Event, PoolId};

    use super::*;

    #[test]
    fn a_run_in_expandable_segments_has_a_native_row_of_its_own() {
        let conf_of = |conf: &str| {
            let mut trace = Trace::default();
            trace.settings.conf = conf.to_owned();
            recorded_conf(&trace)
        };
        let conf = conf_of("expandable_segments:True,max_split_size_mb:64,");
        let config = Config::parse(&conf).expect("the settings are right");
        assert!(!config.expandable_segments && config.max_split_size == 64 << 20, "{conf}");
        assert_eq!(conf_of("max_split_size_mb:64"), "max_split_size_mb:64");
        assert_eq!(conf_of("a_setting_of_torch_3:1"), "");
    }

    #[test]
    fn what_a_release_rounds_up_to_is_rounding_under_every_policy_that_does_so() {
        // A quarter of a power of two: 5 MiB for 4 MiB and a byte.
        let (size, pool) = ((4 << 20) + 1, PoolId::DEFAULT);
        let event = Event::of(Action::Alloc, 1 << 40, size, StreamId(0), pool);
        let (streams, pools) = (vec![0], vec![(0, 0)]);
        let trace = Trace { events: vec![event], streams, pools, ..Trace::default() };
        let lives = Lifetimes::of(&trace);
        let conf = "roundup_power2_divisions:4".to_owned();
        let setup = Setup { conf, plan: Some(Arc::default()), ..Setup::default() };
        for allocator in Allocator::ALL.into_iter().filter(|it| it.is(Property::Pages)) {
            let simulation = simulate(&trace, &lives, allocator, &setup).expect("it fits");
            let waste = waste_at_peak(&trace, &lives, &simulation, &setup).expect("it fits");
            let rounding = waste.causes().into_iter().find(|(name, _)| *name == "rounding");
            assert_eq!(rounding, Some(("rounding", (1 << 20) - 1)), "{}", allocator.name());
        }
    }
}
