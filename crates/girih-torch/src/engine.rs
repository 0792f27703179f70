//! The policy of a heap, and what only some policies have: how well a plan is followed, and the
//! planning of `auto`.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use girih_plan::{Plan, file};
use girih_runtime::auto::{Auto, Job};
use girih_runtime::caching::{Caching, Config};
use girih_runtime::direct::Direct;
use girih_runtime::gmlake::Gmlake;
use girih_runtime::lake::{Asked, Lake, Layings, Options};
use girih_runtime::{Address, AllocError, BlockId, Env, Following, Granted, Policy, Request};

use crate::device::HeapDevice;
use crate::kept::{self, Gpu};
use crate::kept_plans;
use crate::settings::{Mode, Settings};
use crate::units::exact;

/// A policy. The hot calls go to it without a table of functions.
pub(crate) enum Engine {
    Caching(Box<Caching>),
    Lake(Box<Lake>),
    Direct(Box<Direct>),
    Gmlake(Box<Gmlake>),
    Auto(Box<Auto>),
}

impl Engine {
    /// The policy of `settings`, which the device can have (see [`degrade`](crate::degrade)), for the
    /// device of number `ordinal`; and what a user should be told.
    pub(crate) fn new(
        settings: &Settings,
        ordinal: u32,
        device: &mut dyn HeapDevice,
    ) -> (Engine, Vec<String>) {
        let gpu = Gpu { ordinal, uuid: device.uuid() };
        let room = device.memory_info().total;
        let caching = || Box::new(Caching::new(settings.config.clone()));
        let is_swapping = settings.swap.gpu_budget.is_some();
        let weights = if is_swapping { Options::swapping() } else { Options::default() };
        let learning = |plan: Option<Plan>| {
            let config = Config { expandable_segments: true, ..settings.config.clone() };
            let lake = Lake::weighed(weights, config);
            Engine::Auto(Box::new(Auto::new(match plan {
                Some(plan) => lake.with_plan(Arc::new(plan)),
                None => lake,
            })))
        };
        let mut warnings = Vec::new();
        let engine = match settings.mode {
            Mode::Native | Mode::Expandable => Engine::Caching(caching()),
            Mode::Stitch => Engine::Lake(Box::new(Lake::weighed(weights, settings.config.clone()))),
            Mode::Gmlake => {
                Engine::Gmlake(Box::new(Gmlake::new(settings.gmlake.clone(), *caching())))
            }
            Mode::Profile | Mode::Phantom => Engine::Direct(Box::new(Direct::new(*caching()))),
            Mode::Auto => {
                let kept = kept::to_read(settings, gpu);
                let plan = kept.map(|path| match read_plan(&path, room) {
                    Ok(plan) => {
                        kept_plans::touch(&path);
                        Ok(plan)
                    }
                    Err(error) => Err((path, error)),
                });
                let plan = plan.filter(|plan| plan.as_ref().map_or(true, Plan::is_reliable));
                learning(plan.transpose().unwrap_or_else(|(path, error)| {
                    warnings.push(format!(
                        "device {ordinal}: the kept plan {} is not used: {error}. A new one will \
                         be made.",
                        path.display()
                    ));
                    None
                }))
            }
            Mode::Plan => {
                let path = plan_path(settings, gpu);
                match read_plan(&path, room) {
                    Ok(plan) => {
                        if !plan.helps() {
                            warnings.push(format!(
                                "device {ordinal}: the plan {} is not followed: the run that it was \
                                 made of holds more with it than without. The run goes on in the \
                                 mode `auto`.",
                                path.display()
                            ));
                        }
                        learning(Some(plan))
                    }
                    Err(error) => {
                        warnings.push(format!(
                            "device {ordinal}: the plan {} is not followed: {error}. The run goes \
                             on in the mode `auto`.",
                            path.display()
                        ));
                        learning(None)
                    }
                }
            }
        };
        (engine, warnings)
    }

    /// The policy, for all that is not hot.
    pub(crate) fn policy(&self) -> &dyn Policy {
        match self {
            Engine::Caching(policy) => &**policy,
            Engine::Lake(policy) => &**policy,
            Engine::Direct(policy) => &**policy,
            Engine::Gmlake(policy) => &**policy,
            Engine::Auto(policy) => &**policy,
        }
    }

    /// The policy, for all that is not hot.
    pub(crate) fn policy_mut(&mut self) -> &mut dyn Policy {
        match self {
            Engine::Caching(policy) => &mut **policy,
            Engine::Lake(policy) => &mut **policy,
            Engine::Direct(policy) => &mut **policy,
            Engine::Gmlake(policy) => &mut **policy,
            Engine::Auto(policy) => &mut **policy,
        }
    }

    /// [`Policy::allocate`].
    #[inline]
    pub(crate) fn allocate(
        &mut self,
        env: &mut Env<'_>,
        request: Request,
    ) -> Result<Granted, AllocError> {
        match self {
            Engine::Caching(policy) => policy.allocate(env, request),
            Engine::Lake(policy) => Policy::allocate(&mut **policy, env, request),
            Engine::Direct(policy) => policy.allocate(env, request),
            Engine::Gmlake(policy) => policy.allocate(env, request),
            Engine::Auto(policy) => policy.allocate(env, request),
        }
    }

    /// From now on a request of the caching policy that needs a segment fails with
    /// [`AllocError::SegmentLeft`], or no more. The other policies leave none.
    pub(crate) fn leave_segments(&mut self, leaves: bool) {
        if let Engine::Caching(policy) = self {
            policy.leave_segments(leaves);
        }
    }

    /// [`Caching::go_on`], after such an error.
    pub(crate) fn go_on(
        &mut self,
        env: &mut Env<'_>,
        request: Request,
        taken: Option<(Address, u64)>,
    ) -> Result<Granted, AllocError> {
        match self {
            Engine::Caching(policy) => policy.go_on(env, request, taken),
            _ => self.allocate(env, request),
        }
    }

    /// [`Policy::free`].
    #[inline]
    pub(crate) fn free(&mut self, env: &mut Env<'_>, block: BlockId) -> Result<(), AllocError> {
        match self {
            Engine::Caching(policy) => policy.free(env, block),
            Engine::Lake(policy) => Policy::free(&mut **policy, env, block),
            Engine::Direct(policy) => policy.free(env, block),
            Engine::Gmlake(policy) => policy.free(env, block),
            Engine::Auto(policy) => policy.free(env, block),
        }
    }

    /// Says which driver handle each stream has: some policies walk streams in that order.
    pub(crate) fn set_stream_handles(&mut self, handles: &[u64]) {
        if let Engine::Caching(policy) = self {
            policy.set_stream_handles(handles.to_vec());
        }
    }

    /// The recording that is to be planned, if the policy wants a plan.
    pub(crate) fn take_job(&mut self) -> Option<Job> {
        if let Engine::Auto(policy) = self { policy.take_job() } else { None }
    }

    /// Hands the policy the plan of a job.
    pub(crate) fn offer(&mut self, plan: Arc<Plan>) {
        if let Engine::Auto(policy) = self {
            policy.offer(plan);
        }
    }

    /// The plan that the run was found to fit, once.
    pub(crate) fn take_proven(&mut self) -> Option<Arc<Plan>> {
        if let Engine::Auto(policy) = self { policy.take_proven() } else { None }
    }

    /// Tensors come and go: see [`Lake::expect`](girih_runtime::lake::Lake::expect).
    pub(crate) fn expect(&mut self, asked: Asked) {
        match self {
            Engine::Lake(policy) => policy.expect(asked),
            Engine::Auto(policy) => policy.expect(asked),
            _ => {}
        }
    }

    /// How often the policy gave up the plan that it followed.
    pub(crate) fn given_up(&self) -> u64 {
        if let Engine::Auto(policy) = self { policy.given_up() } else { 0 }
    }

    /// What the policy does now, as a word: `caching`, `direct`, `following`, or `learning` while
    /// there is no plan, or none that fits.
    pub(crate) fn stage(&self) -> &'static str {
        match self {
            Engine::Caching(_) | Engine::Lake(_) | Engine::Gmlake(_) => "caching",
            Engine::Direct(_) => "direct",
            Engine::Auto(policy) if policy.lake().plan().is_some() => "following",
            Engine::Auto(_) => "learning",
        }
    }

    /// How well a plan is followed, if one is.
    pub(crate) fn following(&self) -> Option<Following> {
        if let Engine::Auto(policy) = self { Some(policy.lake().following()) } else { None }
    }

    /// Steps that were to be laid out.
    pub(crate) fn layings(&self) -> Layings {
        match self {
            Engine::Lake(policy) => policy.layings(),
            Engine::Auto(policy) => policy.lake().layings(),
            _ => Layings::default(),
        }
    }

    /// The plan that is followed, if one is.
    pub(crate) fn plan(&self) -> Option<&Plan> {
        if let Engine::Auto(policy) = self {
            policy.lake().plan().map(|plan| &**plan)
        } else {
            None
        }
    }
}

/// The plan file of a device in the mode `plan`: the one that was named, which may be that of a run
/// in the mode `auto`.
fn plan_path(settings: &Settings, gpu: Gpu) -> PathBuf {
    let path = settings.plan.as_deref().unwrap_or(Path::new(""));
    let path = PathBuf::from(path.to_string_lossy().replace("{device}", &gpu.ordinal.to_string()));
    match kept::to_read(settings, gpu) {
        Some(kept) if !path.exists() && kept::is_named(settings, gpu, &path) => kept,
        _ => path,
    }
}

/// Reads a plan for a device of `room` bytes. It is verified by the reader.
fn read_plan(path: &Path, room: u64) -> Result<Plan, String> {
    let file = File::open(path).map_err(|error| format!("it cannot be opened ({error})"))?;
    let plan = file::read(BufReader::new(file)).map_err(|error| error.to_string())?;
    let needed = plan.arena_bytes.saturating_add(plan.persistent_bytes);
    if needed > room {
        return Err(format!(
            "it lays out {}, and the device has {}: it was made for another run",
            exact(needed),
            exact(room)
        ));
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::Heap;

    const MIB: u64 = 1 << 20;
    const DEFAULT: (u64, u64) = (0, 0);
    const POOL: (u64, u64) = (0, 1);

    fn profiling(more: &str) -> Heap {
        let json = format!(r#"{{"mode": "profile", "sim": {{"capacity": {}}} {more}}}"#, 64 * MIB);
        Heap::new(0, &Settings::parse(&json).expect("right settings")).expect("a simulated device")
    }

    #[test]
    fn profile_keeps_the_memory_fraction_that_a_program_or_its_settings_ask_for() {
        let by_program = profiling("");
        by_program.set_memory_fraction(0.25).unwrap();
        let by_settings = profiling(r#", "conf": "per_process_memory_fraction:0.25""#);
        for heap in [by_program, by_settings] {
            assert_eq!(heap.memory_fraction().unwrap(), 0.25);
            let address = heap.allocate(16 * MIB, 0, DEFAULT).unwrap();
            for pool in [DEFAULT, POOL] {
                let refused = heap.allocate(512, 0, pool).unwrap_err().to_string();
                assert!(refused.contains("set_per_process_memory_fraction"), "{refused}");
            }
            assert!(heap.free(address).unwrap());
            heap.check().unwrap();
        }
    }

    #[test]
    fn a_share_is_made_bytes_as_the_release_does_and_is_said_as_it_was_set() {
        // 2/3 of 96 MiB is 64 MiB less a fraction of a byte.
        let share = 2.0 / 3.0 - 1e-9;
        for (torch, least) in [("2.11", 64 * MIB - 1), ("2.12", 64 * MIB - 1), ("2.13", 64 * MIB)] {
            for mode in ["native", "stitch", "profile", "auto"] {
                let sim = format!(r#""sim": {{"capacity": {}}}"#, 96 * MIB);
                let json = format!(r#"{{"mode": "{mode}", "torch": "{torch}", {sim}}}"#);
                let settings = Settings::parse(&json).expect("right settings");
                let heap = Heap::new(0, &settings).expect("a simulated device");
                heap.set_memory_fraction(share).unwrap();
                assert_eq!(heap.memory_fraction().unwrap(), share, "{mode} under {torch}");
                assert_eq!(heap.largest_free().unwrap(), least, "{mode} under {torch}");
            }
        }
    }

    #[test]
    fn profile_keeps_the_memory_of_a_graph_and_brings_it_back_to_a_checkpoint() {
        let heap = profiling("");
        heap.begin_pool(POOL, true).unwrap();
        let address = heap.allocate(4 * MIB, 0, POOL).unwrap();
        heap.end_pool(POOL, true).unwrap();
        let checkpoint = heap.checkpoint(POOL).unwrap();
        assert!(heap.free(address).unwrap());
        heap.empty_cache(DEFAULT).unwrap();
        let held = heap.segment_of(address).unwrap();
        assert!(held.is_some(), "a replay writes to memory that is there");
        assert_eq!(heap.restore(&checkpoint).unwrap(), (vec![], vec![address]));
        assert!(heap.free(address).unwrap());
        heap.release_pool(POOL).unwrap();
        heap.empty_cache(DEFAULT).unwrap();
        assert_eq!(heap.segment_of(address).unwrap(), None);
        heap.check().unwrap();
    }
}
