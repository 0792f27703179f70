//! What the lock of a heap protects, and the operations on blocks.

use std::collections::BTreeMap;

use girih_runtime::PoolOptions;
use girih_runtime::caching::Config;
use girih_runtime::{Address, AllocError, Counters, Env, Policy, Request, Stats};
use girih_trace::{Mark, MarkKind, PoolId, StreamId};

use crate::addresses::Addresses;
use crate::background::Background;
use crate::device::HeapDevice;
use crate::engine::{Engine, kept_plan_file};
use crate::error::{HeapError, Outcome};
use crate::journal::Journal;
use crate::oom::{OutOfMemory, Scene, explain};
use crate::recorder::Recorder;
use crate::settings::{Mode, Settings};
use crate::sources::{Source, Sourced};

/// The inside of a heap.
pub(crate) struct State {
    pub(crate) ordinal: u32,
    pub(crate) mode: Mode,
    pub(crate) config: Config,
    pub(crate) engine: Engine,
    pub(crate) device: Box<dyn HeapDevice>,
    pub(crate) journal: Journal,
    pub(crate) blocks: Addresses,
    /// How the private pools behave, by [`PoolId`].
    pub(super) pool_options: Vec<PoolOptions>,
    /// The private pools whose memory is not the device's, and whose it is.
    pub(super) sources: BTreeMap<(u64, u64), Source>,
    /// The counters at the last `reset_accumulated`: what came and went before does not count.
    pub(crate) baseline: Stats,
    /// The same of what each private pool holds.
    pub(super) pool_baselines: BTreeMap<PoolId, Counters>,
    /// Planning beside the run.
    pub(crate) background: Background,
    /// How often the policy had given up its plan when planning was looked after.
    plans_given_up: u64,
    /// Requests until planning is looked after again.
    until_look: u32,
    /// Requests that only the memory fraction refused.
    pub(crate) ooms_by_limit: u64,
    /// The last request that got nothing.
    pub(crate) last_oom: Option<OutOfMemory>,
    /// What a user should be told.
    pub(crate) warnings: Vec<String>,
    /// A plan file is followed, and the user was not told that it does not fit.
    watches_fit: bool,
}

/// Requests after which planning is looked after where the program makes no marks.
const LOOK_EVERY: u32 = 4096;

impl State {
    pub(super) fn new(mut device: Box<dyn HeapDevice>, ordinal: u32, settings: &Settings) -> State {
        let (engine, warnings) = Engine::new(settings, ordinal, &mut *device);
        let device = Box::new(Sourced::new(device));
        let watches_fit = settings.mode == Mode::Plan && engine.plan().is_some();
        State {
            ordinal,
            mode: settings.mode,
            config: settings.config.clone(),
            engine,
            device,
            journal: Journal::new(ordinal as i32, settings.record.then(Recorder::new)),
            blocks: Addresses::new(),
            pool_options: Vec::new(),
            sources: BTreeMap::new(),
            baseline: Stats::default(),
            pool_baselines: BTreeMap::new(),
            background: Background::new(ordinal, kept_plan_file(settings, ordinal)),
            plans_given_up: 0,
            until_look: LOOK_EVERY,
            ooms_by_limit: 0,
            last_oom: None,
            warnings,
            watches_fit,
        }
    }

    /// The policy and what it works in.
    pub(crate) fn parts(&mut self) -> (&mut dyn Policy, Env<'_>) {
        let env = Env { device: &mut *self.device, log: &mut self.journal };
        (self.engine.policy_mut(), env)
    }

    /// The id of a stream; the device is told of a new one.
    #[inline]
    pub(crate) fn stream(&mut self, handle: u64) -> Outcome<StreamId> {
        let (id, is_new) = self.journal.streams.id(handle, "streams")?;
        if is_new {
            self.add_stream(handle)?;
        }
        Ok(StreamId(id))
    }

    #[cold]
    fn add_stream(&mut self, handle: u64) -> Outcome<()> {
        self.device.add_stream(handle)?;
        self.engine.set_stream_handles(self.journal.streams.all());
        Ok(())
    }

    /// The id of a pool, which gets one if it has none.
    #[inline]
    pub(crate) fn pool(&mut self, pool: (u64, u64)) -> Outcome<PoolId> {
        Ok(PoolId(self.journal.pools.id(pool, "memory pools")?.0))
    }

    #[inline]
    pub(super) fn allocate(
        &mut self,
        size: u64,
        stream: u64,
        pool: (u64, u64),
    ) -> Outcome<Address> {
        let request = Request { size, stream: self.stream(stream)?, pool: self.pool(pool)? };
        let mut env = Env { device: &mut *self.device, log: &mut self.journal };
        match self.engine.allocate(&mut env, request) {
            Ok(granted) => {
                self.blocks.insert(granted.address, granted.block);
                self.until_look -= 1;
                if self.until_look == 0 {
                    self.look_after_planning();
                }
                Ok(granted.address)
            }
            Err(error) => Err(self.explain(request, error)),
        }
    }

    /// True if the policy says that it could serve the request of what it holds. Of a stream or pool
    /// that was never seen it holds nothing.
    pub(super) fn has_room(&self, size: u64, stream: u64, pool: (u64, u64)) -> bool {
        let ids = self.journal.streams.find(stream).zip(self.journal.pools.find(pool));
        let request =
            |(stream, pool)| Request { size, stream: StreamId(stream), pool: PoolId(pool) };
        ids.is_some_and(|ids| self.engine.policy().has_room(&request(ids)))
    }

    #[inline]
    pub(super) fn free(&mut self, address: Address) -> Outcome<bool> {
        let Some((place, block)) = self.blocks.find(address) else { return Ok(false) };
        let mut env = Env { device: &mut *self.device, log: &mut self.journal };
        self.engine.free(&mut env, block)?;
        self.blocks.remove(place);
        Ok(true)
    }

    pub(super) fn record_stream(&mut self, address: Address, stream: u64) -> Outcome<bool> {
        let Some((_, block)) = self.blocks.find(address) else { return Ok(false) };
        let stream = self.stream(stream)?;
        let (policy, mut env) = self.parts();
        policy.record_stream(&mut env, block, stream)?;
        Ok(true)
    }

    pub(super) fn mark(&mut self, kind: MarkKind, name: &str) -> Outcome<()> {
        if let Some(recorder) = self.journal.recorder_mut() {
            recorder.mark(kind, name);
        }
        let mark = Mark { before: 0, time_us: 0, kind, name: name.to_owned() };
        // A plan that is ready can be switched to at this very mark.
        self.look_after_planning();
        let (policy, mut env) = self.parts();
        policy.mark(&mut env, &mark)?;
        self.look_after_planning();
        Ok(())
    }

    /// Hands the policy a plan that is ready, and begins the next job if it wants one.
    #[cold]
    fn look_after_planning(&mut self) {
        self.until_look = LOOK_EVERY;
        if self.background.is_busy()
            && let Some(plan) = self.background.collect()
        {
            self.engine.offer(plan);
        }
        if let Some(plan) = self.engine.take_proven() {
            self.background.keep(plan);
        }
        if self.engine.given_up() > self.plans_given_up {
            self.plans_given_up = self.engine.given_up();
            self.background.throw_away();
        }
        if !self.background.is_busy()
            && let Some(job) = self.engine.take_job()
        {
            self.background.start(job);
        }
        self.look_at_fit();
    }

    /// Tells the user once if the plan file is of another run.
    fn look_at_fit(&mut self) {
        if !self.watches_fit {
            return;
        }
        let Some(following) = self.engine.following() else { return };
        let (hits, misses) = (following.hits, following.misses);
        let is_given_up = self.engine.plan().is_none() || self.engine.switches() > 0;
        if is_given_up || (hits + misses >= u64::from(LOOK_EVERY) && misses > hits) {
            self.watches_fit = false;
            self.warnings.push(format!(
                "device {}: the plan does not fit this run: {misses} of {} requests had no place \
                 in it and were served as by expandable segments. Was it made of another model, \
                 batch or rank? This run learns a plan of its own; the next one should begin with \
                 one that fits: make it again with the mode `profile`, or use the mode `auto`.",
                self.ordinal,
                hits + misses
            ));
        }
    }

    #[cold]
    fn explain(&mut self, request: Request, error: AllocError) -> Box<HeapError> {
        if !matches!(error, AllocError::OutOfMemory { .. }) {
            return error.into();
        }
        let scene = Scene {
            device: self.ordinal as i32,
            mode: self.mode,
            config: &self.config,
            info: self.device.memory_info(),
            stream: self.journal.stream_handle(request.stream),
        };
        let oom = explain(self.engine.policy(), request, &error, &scene);
        self.ooms_by_limit += u64::from(oom.is_by_limit);
        self.last_oom = Some(oom.clone());
        Box::new(HeapError::OutOfMemory(oom))
    }
}
