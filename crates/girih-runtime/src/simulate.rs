//! Simulation: what an allocator would have made of a recorded run.
//!
//! The production policy on the simulated device, put together from a name and settings. This is
//! what the command line, and later Python, ask for.

use std::sync::Arc;

use girih_plan::{Plan, granted};
use girih_trace::{Lifetimes, StreamId, Tick, Trace};
use thiserror::Error;

use crate::caching::config::ConfigError;
use crate::caching::rounding::round_size;
use crate::caching::{Caching, Config, TieOrder};
use crate::direct::Direct;
use crate::planned::{Following, Planned};
use crate::policy::{AllocError, Policy};
use crate::replay::{Options, Replayed, recorded_segment_addresses, replay};
use crate::sim::{CallTotals, SimDevice};
use crate::stats::Stats;
use crate::waste::{Viewpoint, Waste, waste};

/// Bytes of a device that sets no limit: 32 TiB.
const UNLIMITED: u64 = 1 << 45;

/// Bytes of a page of an expandable segment of the small pool (`kSmallBuffer`).
const SMALL_PAGE: u64 = 2 << 20;

/// The allocators that can be simulated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Allocator {
    /// Each request straight to the device.
    Direct,
    /// PyTorch's caching allocator.
    Native,
    /// The same with expandable segments.
    Expandable,
    /// Follows a plan; expandable segments serve what it does not cover.
    Planned,
}

impl Allocator {
    /// Every allocator.
    pub const ALL: [Allocator; 4] =
        [Allocator::Direct, Allocator::Native, Allocator::Expandable, Allocator::Planned];

    /// The name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Allocator::Direct => "direct",
            Allocator::Native => "native",
            Allocator::Expandable => "expandable",
            Allocator::Planned => "planned",
        }
    }
}

/// What to simulate with.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Settings as in `PYTORCH_CUDA_ALLOC_CONF`; for `expandable` and `planned`,
    /// `expandable_segments:True` is added.
    pub conf: String,
    /// The order in which equal free blocks are taken; it differs from torch release to release.
    pub tie_order: TieOrder,
    /// Bytes of the device; None for as many as are asked for.
    pub capacity: Option<u64>,
    /// The plan to follow. Needed for `planned`, unused otherwise.
    pub plan: Option<Arc<Plan>>,
    /// Checks the order of uses across streams. Slower.
    pub check_order: bool,
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
    /// The device refused a call for another reason than memory: a bug of ours.
    #[error("the simulated device refused a call, which is a bug of Girih: {0}")]
    Device(#[from] AllocError),
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// The allocator.
    pub allocator: Allocator,
    /// What was replayed, and the first request that got nothing.
    pub replayed: Replayed,
    /// The allocator's counters at the end.
    pub stats: Stats,
    /// How well the plan was followed, for `planned`.
    pub following: Option<Following>,
    /// Calls of the device and their simulated cost.
    pub calls: CallTotals,
}

impl Simulation {
    /// Peak allocated by peak reserved; 1 for a run without requests.
    pub fn efficiency(&self) -> f64 {
        let reserved = self.stats.reserved_bytes.all.peak;
        if reserved == 0 {
            return 1.0;
        }
        self.stats.allocated_bytes.all.peak as f64 / reserved as f64
    }
}

/// Simulates `allocator` on a recorded run.
pub fn simulate(
    trace: &Trace,
    lives: &Lifetimes,
    allocator: Allocator,
    setup: &Setup,
) -> Result<Simulation, SimulateError> {
    let options = Options { check_order: setup.check_order, ..Options::default() };
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
    let options = Options { until: Some(at), ..Options::default() };
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
        "planned" | "direct" => granted(size),
        _ => round_size(size, &config.roundup_power2_divisions),
    };
    let from = Viewpoint {
        stream: request.map_or(StreamId(0), |request| request.stream),
        pool: request.map_or_else(Default::default, |request| request.pool),
        is_small: request.is_some_and(|request| request.size <= 1 << 20),
        rounded: &rounded,
        pages: (SMALL_PAGE, config.large_segment_size),
    };
    waste(policy, from)
}

/// Puts policy and device together, replays, and shows the policy to `inspect` at the end.
fn run(
    trace: &Trace,
    lives: &Lifetimes,
    allocator: Allocator,
    setup: &Setup,
    options: Options,
    mut inspect: impl FnMut(&dyn Policy, &Config),
) -> Result<Simulation, SimulateError> {
    let mut device = SimDevice::new(setup.capacity.unwrap_or(UNLIMITED));
    let mut config = Config::parse(&setup.conf)?;
    config.tie_order = setup.tie_order;
    if matches!(allocator, Allocator::Expandable | Allocator::Planned) {
        config.expandable_segments = true;
    }
    let caching = || {
        let mut caching = Caching::new(config.clone());
        caching.set_stream_handles(trace.streams.clone());
        caching
    };
    let mut following = None;
    let (replayed, stats) = match allocator {
        Allocator::Direct => {
            let mut policy = Direct::new();
            let replayed = replay(trace, lives, &mut policy, &mut device, options)?;
            inspect(&policy, &config);
            (replayed, policy.stats().clone())
        }
        Allocator::Native | Allocator::Expandable => {
            device.script_allocs(recorded_segment_addresses(trace));
            let mut policy = caching();
            let replayed = replay(trace, lives, &mut policy, &mut device, options)?;
            inspect(&policy, &config);
            (replayed, policy.stats().clone())
        }
        Allocator::Planned => {
            let plan = setup.plan.clone().ok_or(SimulateError::NoPlan)?;
            let fallback = Box::new(caching());
            let mut policy = Planned::new(plan, fallback, SimDevice::GRANULARITY);
            let replayed = replay(trace, lives, &mut policy, &mut device, options)?;
            inspect(&policy, &config);
            following = Some(policy.following());
            (replayed, policy.stats().clone())
        }
    };
    let calls = device.totals().clone();
    Ok(Simulation { allocator, replayed, stats, following, calls })
}
