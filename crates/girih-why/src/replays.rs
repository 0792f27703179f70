//! What would have fitted: the run up to the refused request, and that request, under other
//! settings.
//!
//! Every replay is of the policy itself on a simulated device of the capacity. What the run would
//! have asked for later nobody knows: that a setting fits says that it would have served this
//! request, and `spare` how much of the device it had not even touched by then.

use std::sync::Arc;

use girih_plan::{Budget, profile, solve};
use girih_runtime::simulate::{Allocator, Property, Setup, SimulateError, recorded_conf, simulate};
use girih_trace::bounds::check_held;
use girih_trace::parts::first_part;
use girih_trace::{
    Action, Contradiction, Earlier, Event, Iterations, Lifetime, Lifetimes, Tick, Trace,
};

use crate::refusal::{Refusal, own_allocator};

/// A way to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Its name: an allocator's, or what is added to `PYTORCH_CUDA_ALLOC_CONF`.
    pub name: &'static str,
    /// The allocator.
    pub allocator: Allocator,
    /// What is added to the settings of the recording.
    pub conf: &'static str,
}

/// Every setting that is tried: PyTorch's two allocators, the settings that its documentation and
/// "When does fragmentation occur in the CUDA caching allocator?" name against fragmentation, and
/// Girih's modes.
pub const SETTINGS: [Setting; 8] = [
    Setting { name: "native", allocator: Allocator::Native, conf: "" },
    Setting { name: "expandable", allocator: Allocator::Expandable, conf: "" },
    of_native("max_split_size_mb:128"),
    of_native("max_split_size_mb:512"),
    of_native("roundup_power2_divisions:8"),
    of_native("garbage_collection_threshold:0.8"),
    Setting { name: "stitch", allocator: Allocator::Stitch, conf: "" },
    Setting { name: "planned", allocator: Allocator::Planned, conf: "" },
];

/// The setting that has no effect without a limit of the process.
const COLLECTION: &str = "garbage_collection_threshold";

const fn of_native(conf: &'static str) -> Setting {
    Setting { name: conf, allocator: Allocator::Native, conf }
}

impl Setting {
    /// How a person asks for it; None for what PyTorch does by itself, and for what follows a plan of this very
    /// run, which nobody has before it.
    pub fn how(&self) -> Option<String> {
        match self.allocator {
            Allocator::Expandable => {
                Some("Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True".to_owned())
            }
            Allocator::Native if !self.conf.is_empty() => {
                Some(format!("Set PYTORCH_CUDA_ALLOC_CONF={}", self.conf))
            }
            Allocator::Stitch => Some("Run python -m girih run --mode stitch train.py".to_owned()),
            _ => None,
        }
    }
}

/// What came of a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fit {
    /// The setting.
    pub setting: Setting,
    /// True if it would have served every request up to the refused one, and that one.
    pub fits: bool,
    /// Bytes of the device that it had not touched then; None if it does not fit.
    pub spare: Option<u64>,
}

/// The run up to the refused request, ready to be replayed.
pub struct Case {
    trace: Trace,
    lives: Lifetimes,
    earlier: Arc<Result<Earlier, Contradiction>>,
    capacity: u64,
    /// The allocator that refused, and its settings.
    own: Allocator,
    conf: String,
    was_recorded: bool,
    /// More than any device holds was asked for: nothing serves it.
    is_absurd: bool,
}

impl Case {
    /// The part of a recording before a refused request, with that request at its end.
    pub fn new(
        trace: &Trace,
        lives: &Lifetimes,
        earlier: &Arc<Result<Earlier, Contradiction>>,
        refusal: &Refusal,
        capacity: u64,
        was_recorded: bool,
    ) -> Case {
        let (mut part, mut part_lives) = first_part(trace, lives, refusal.tick);
        let tick = Tick(part.events.len() as u32);
        let ends = part_lives.requests.iter().map(|life| life.address.saturating_add(life.size));
        let address = ends.max().unwrap_or(0).next_multiple_of(2 << 20);
        let Refusal { size, stream, pool, stack, .. } = *refusal;
        let event = Event { stack, ..Event::of(Action::Alloc, address, size, stream, pool) };
        part.events.push(event);
        part_lives.request_of.push(part_lives.requests.len() as u32);
        part_lives.requests.push(Lifetime {
            size,
            address,
            birth: tick,
            free_requested: Tick::NEVER,
            death: Tick::NEVER,
            stack,
            stream,
            pool,
        });
        Case {
            is_absurd: check_held(&part_lives).is_err(),
            trace: part,
            lives: part_lives,
            earlier: Arc::clone(earlier),
            capacity,
            own: own_allocator(trace),
            conf: recorded_conf(trace),
            // Which of Girih's modes has refused its trace does not say.
            was_recorded: was_recorded && trace.origin.kind != "trace",
        }
    }

    /// Replays under a setting. What the recorded run itself was set to is not replayed where the
    /// recording has the refusal: it did not fit.
    ///
    /// # Errors
    /// What [`simulate`] cannot carry out.
    pub fn try_setting(&self, setting: &Setting) -> Result<Fit, SimulateError> {
        // Garbage is collected below a limit of the process, which the device here has not: then it
        // changes nothing.
        let changes = !setting.conf.is_empty() && !setting.conf.starts_with(COLLECTION);
        let is_refused = self.was_recorded && setting.allocator == self.own && !changes;
        if is_refused || self.is_absurd {
            return Ok(Fit { setting: *setting, fits: false, spare: None });
        }
        let plan = if setting.allocator.is(Property::Plan) { self.plan() } else { None };
        if setting.allocator.is(Property::Plan) && plan.is_none() {
            // Nothing to plan: without a plan it is what it is without one.
            return self.replay(setting, Allocator::Stitch, &self.lives, None);
        }
        let fit = self.replay(setting, setting.allocator, &self.lives, plan)?;
        if setting.allocator.is(Property::Plan) && !fit.fits {
            // Nobody follows a plan that does not help.
            return self.replay(setting, Allocator::Stitch, &self.lives, None);
        }
        Ok(fit)
    }

    /// True if the run would have fitted under `setting` with each of these requests `share` as
    /// large.
    ///
    /// # Errors
    /// What [`simulate`] cannot carry out.
    pub fn fits_with(
        &self,
        setting: &Setting,
        scaled: &dyn Fn(u32) -> bool,
        share: f64,
    ) -> Result<bool, SimulateError> {
        if self.is_absurd {
            return Ok(false);
        }
        let mut lives = self.lives.clone();
        for (index, life) in lives.requests.iter_mut().enumerate() {
            if scaled(index as u32) {
                life.size = ((life.size as f64 * share) as u64).max(1);
            }
        }
        Ok(self.replay(setting, setting.allocator, &lives, None)?.fits)
    }

    /// Index of the refused request.
    pub fn refused(&self) -> u32 {
        self.lives.requests.len() as u32 - 1
    }

    fn plan(&self) -> Option<Arc<girih_plan::Plan>> {
        let iterations = Iterations::of(&self.trace, &self.lives);
        let plan = profile::plan(&self.trace, &self.lives, &iterations, |problem| {
            solve(problem, Budget::attempts(1))
        });
        plan.ok().map(Arc::new)
    }

    fn replay(
        &self,
        setting: &Setting,
        allocator: Allocator,
        lives: &Lifetimes,
        plan: Option<Arc<girih_plan::Plan>>,
    ) -> Result<Fit, SimulateError> {
        let setup = Setup {
            conf: joined(&self.conf, setting),
            capacity: Some(self.capacity),
            earlier: Some(Arc::clone(&self.earlier)),
            plan,
            ..Setup::default()
        };
        let simulation = simulate(&self.trace, lives, allocator, &setup)?;
        let fits = simulation.replayed.stop.is_none();
        let peak = simulation.stats.reserved_bytes.all().peak;
        let spare = fits.then(|| self.capacity.saturating_sub(peak));
        Ok(Fit { setting: *setting, fits, spare })
    }
}

/// The settings of a recording with those of a setting, which come last and hold. A share of the
/// card is a limit that the capacity knows already.
fn joined(conf: &str, setting: &Setting) -> String {
    let is_limited = conf.contains("per_process_memory_fraction");
    let unlimited = if is_limited { "per_process_memory_fraction:1.0" } else { "" };
    let parts = [conf.trim_matches(','), unlimited, setting.conf];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",")
}
