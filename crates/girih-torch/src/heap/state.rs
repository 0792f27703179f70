//! What the lock of a heap protects, and the operations on blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::time::Instant;

use girih_cuda::StreamHandle;
use girih_runtime::PoolOptions;
use girih_runtime::caching::Config;
use girih_runtime::{Address, AllocError, Counters, Env, Granted, Policy, Request, Stats};
use girih_trace::{Mark, MarkKind, PoolId, StreamId};

use crate::addresses::Addresses;
use crate::background::Background;
use crate::degrade;
use crate::device::HeapDevice;
use crate::engine::Engine;
use crate::error::{HeapError, Outcome};
use crate::journal::Journal;
use crate::kept::{self, Gpu};
use crate::oom::{OutOfMemory, Scene, explain};
use crate::recorder::Recorder;
use crate::settings::{Mode, Release, Settings};
use crate::sources::{Source, Sourced};
use crate::streams::StreamKey;
use crate::swap::edge::Edge;
use crate::swap::{LEAST, Swap};

/// The inside of a heap.
pub(crate) struct State {
    pub(crate) ordinal: u32,
    pub(crate) mode: Mode,
    pub(crate) config: Config,
    /// The share of the device that may be held, as it was set.
    pub(crate) fraction: f64,
    release: Release,
    pub(crate) engine: Engine,
    pub(crate) device: Box<dyn HeapDevice>,
    pub(crate) journal: Journal,
    pub(crate) blocks: Addresses,
    /// How the private pools behave, by [`PoolId`].
    pub(super) pool_options: Vec<PoolOptions>,
    /// Private pools without users, which are gone once they hold nothing.
    pub(super) leaving: BTreeSet<PoolId>,
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
    /// Refusals of the policy that the program was not told of: tensors went, and the request was made again.
    pub(crate) ooms_averted: u64,
    /// The last request that got nothing.
    pub(crate) last_oom: Option<OutOfMemory>,
    /// What a user should be told.
    pub(crate) warnings: Vec<String>,
    /// A plan file is followed, and the user was not told that it does not fit.
    watches_fit: bool,
    /// What does not fit goes to the host. Taken out while it works.
    pub(super) swap: Option<Box<Swap>>,
    /// When it begins to, without a budget.
    pub(super) edge: Edge,
}

/// Warnings that are kept until somebody takes them.
const WARNINGS_MAX: usize = 64;

/// Adds a warning to those that nobody has taken yet. If there are too many, or the same, it is left out.
pub(crate) fn add_warning(warnings: &mut Vec<String>, warning: String) {
    if warnings.len() < WARNINGS_MAX && !warnings.contains(&warning) {
        warnings.push(warning);
    }
}

/// Requests after which planning is looked after where the program makes no marks.
const LOOK_EVERY: u32 = 4096;

/// Microseconds since the first mark of the process.
#[expect(clippy::disallowed_methods, reason = "a mark tells policies how much time has passed")]
fn now_us() -> i64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    i64::try_from(FIRST.get_or_init(Instant::now).elapsed().as_micros()).unwrap_or(i64::MAX)
}

impl State {
    pub(super) fn new(mut device: Box<dyn HeapDevice>, ordinal: u32, settings: &Settings) -> State {
        let (settings, lost) = degrade::for_device(settings, device.has_virtual_memory());
        let (mut engine, mut warnings) = Engine::new(&settings, ordinal, &mut *device);
        warnings.extend(lost);
        let kept = kept::to_write(&settings, Gpu { ordinal, uuid: device.uuid() });
        let device = Box::new(Sourced::new(device));
        engine.leave_segments(settings.mode.takes_segments_unlocked(&settings.config));
        let watches_fit = settings.mode == Mode::Plan && engine.plan().is_some();
        let mut state = State {
            ordinal,
            mode: settings.mode,
            config: settings.config.clone(),
            fraction: settings.config.memory_fraction,
            release: settings.release,
            engine,
            device,
            journal: Journal::new(
                ordinal as i32,
                settings.record.then(|| Recorder::new(settings.record_bytes)),
            ),
            blocks: Addresses::new(),
            pool_options: Vec::new(),
            leaving: BTreeSet::new(),
            sources: BTreeMap::new(),
            baseline: Stats::default(),
            pool_baselines: BTreeMap::new(),
            background: Background::new(ordinal, kept),
            plans_given_up: 0,
            until_look: LOOK_EVERY,
            ooms_by_limit: 0,
            ooms_averted: 0,
            last_oom: None,
            warnings,
            watches_fit,
            swap: None,
            edge: Edge::new(settings.swap, settings.mode.stitches()),
        };
        state.look_at_captures(false);
        state.open_swap(&settings);
        state
    }

    /// The policy and what it works in.
    pub(crate) fn parts(&mut self) -> (&mut dyn Policy, Env<'_>) {
        let env = Env::new(&mut *self.device, &mut self.journal);
        (self.engine.policy_mut(), env)
    }

    /// The id of a stream of this device; the device is told of a new one.
    #[inline]
    pub(crate) fn stream(&mut self, handle: u64) -> Outcome<StreamId> {
        match self.journal.streams.recent(handle) {
            Some(id) => Ok(StreamId(id)),
            None => self.find_stream(StreamKey { device: self.ordinal, handle }, false),
        }
    }

    /// The id of a stream. `is_transient` says that the program may destroy it, as far as is known now.
    #[cold]
    fn find_stream(&mut self, stream: StreamKey, is_transient: bool) -> Outcome<StreamId> {
        let (id, is_new) = self.journal.streams.id(stream)?;
        if is_transient && self.journal.streams.note_transient(id) || is_new {
            let StreamKey { device, handle } = stream;
            self.device.set_stream(StreamId(id), StreamHandle { device, handle, is_transient });
            self.engine.set_stream_handles(self.journal.streams.handles());
        }
        Ok(StreamId(id))
    }

    /// A stream of this device, there now, which the program may destroy. If it has the handle of one that
    /// is gone it waits for all that was done before it came.
    pub(super) fn see_stream(&mut self, handle: u64) -> Outcome<()> {
        let id = self.find_stream(StreamKey { device: self.ordinal, handle }, true)?;
        let Some(identity) = self.device.stream_identity(handle) else { return Ok(()) };
        if self.journal.streams.note_identity(id.0, identity) {
            let fence = self.device.record_fence(&[])?;
            let waited = self.device.wait_event(id, fence);
            self.device.destroy_event(fence)?;
            waited?;
        }
        Ok(())
    }

    /// True if the program may destroy a stream, or has: it is named in calls that are about it, and in no others.
    pub(crate) fn is_transient(&self, stream: StreamId) -> bool {
        self.journal.streams.is_transient(stream.0)
    }

    /// The id of a pool, which gets one if it has none.
    #[inline]
    pub(crate) fn pool(&mut self, pool: (u64, u64)) -> Outcome<PoolId> {
        match self.journal.pools.known(pool) {
            Some(id) => Ok(PoolId(id)),
            None => self.add_pool(pool),
        }
    }

    #[cold]
    fn add_pool(&mut self, pool: (u64, u64)) -> Outcome<PoolId> {
        if self.journal.pools.is_full() {
            self.forget_pools();
        }
        Ok(PoolId(self.journal.pools.add(pool)?))
    }

    /// Lets the ids of pools go that are gone: they had no users any more, and hold nothing now.
    pub(super) fn forget_pools(&mut self) {
        let policy = self.engine.policy();
        self.leaving.retain(|&pool| {
            let is_gone = !policy.has_pool(pool);
            if is_gone {
                if let Some(name) = self.journal.pools.pool(pool.0) {
                    self.sources.remove(&name);
                }
                self.pool_baselines.remove(&pool);
                self.journal.pools.remove(pool.0);
                if let Some(options) = self.pool_options.get_mut(usize::from(pool.0)) {
                    *options = PoolOptions::default();
                }
            }
            !is_gone && policy.pool_users(pool) == 0
        });
    }

    #[inline]
    pub(super) fn allocate(&mut self, size: u64, stream: u64, pool: PoolId) -> Outcome<Address> {
        let request = Request { size, stream: self.stream(stream)?, pool };
        if size >= LEAST && self.edge.is_due(self.bytes_in_use().saturating_add(size)) {
            self.look_at_edge(request);
        }
        if self.swap.is_some() {
            return self.allocate_with_swap(request);
        }
        match self.take(request) {
            Ok(address) => Ok(address),
            Err(error) => Err(self.explain(request, error)),
        }
    }

    /// Serves a request of what the policy can have.
    #[inline]
    pub(crate) fn take(&mut self, request: Request) -> Result<Address, AllocError> {
        let mut env = Env::new(&mut *self.device, &mut self.journal);
        let granted = self.engine.allocate(&mut env, request)?;
        Ok(self.enter(granted))
    }

    /// The same, for one who can make room if it is refused: see [`Env::may_wait`].
    pub(crate) fn take_at_once(&mut self, request: Request) -> Result<Address, AllocError> {
        let mut env = Env::new(&mut *self.device, &mut self.journal);
        env.may_wait = false;
        let granted = self.engine.allocate(&mut env, request)?;
        Ok(self.enter(granted))
    }

    /// Enters a block that the policy has given. Its address.
    #[inline]
    pub(super) fn enter(&mut self, granted: Granted) -> Address {
        self.blocks.insert(granted.address, granted.block);
        self.until_look -= 1;
        if self.until_look == 0 {
            self.look_after_planning();
        }
        granted.address
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
        let mut env = Env::new(&mut *self.device, &mut self.journal);
        self.engine.free(&mut env, block)?;
        self.blocks.remove(place);
        if let Some(swap) = &mut self.swap {
            swap.freed(address);
        }
        Ok(true)
    }

    pub(super) fn record_stream(&mut self, address: Address, stream: StreamKey) -> Outcome<bool> {
        let Some((_, block)) = self.blocks.find(address) else { return Ok(false) };
        let stream = self.find_stream(stream, false)?;
        let (policy, mut env) = self.parts();
        policy.record_stream(&mut env, block, stream)?;
        Ok(true)
    }

    pub(super) fn mark(&mut self, kind: MarkKind, name: &str) -> Outcome<()> {
        if kind == MarkKind::Step {
            self.end_step_of_swap();
        }
        if let Some(swap) = &mut self.swap {
            swap.mark(kind, name);
        }
        if let Some(recorder) = self.journal.recorder_mut() {
            recorder.mark(kind, name);
        }
        let mark = Mark { before: 0, time_us: now_us(), kind, name: name.to_owned() };
        // A plan that is ready is gone along from this very mark on.
        self.look_after_planning();
        let (policy, mut env) = self.parts();
        policy.mark(&mut env, &mark)?;
        self.look_after_planning();
        Ok(())
    }

    /// See [`Heap::is_planning`](super::Heap::is_planning).
    pub(super) fn is_planning(&self) -> bool {
        self.background.is_working()
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
        if self.background.keeps()
            && !self.background.is_busy()
            && let Some(job) = self.engine.take_job()
        {
            self.background.start(job);
        }
        self.look_at_fit();
    }

    /// Keeps what a user should be told, unless too much was not yet, or the same.
    pub(crate) fn warn(&mut self, warning: String) {
        add_warning(&mut self.warnings, warning);
    }

    /// Tells the user once if the plan file is of another run.
    fn look_at_fit(&mut self) {
        if !self.watches_fit {
            return;
        }
        let Some(following) = self.engine.following() else { return };
        let (hits, misses) = (following.hits, following.misses);
        if self.engine.plan().is_none() || (hits + misses >= u64::from(LOOK_EVERY) && misses > hits)
        {
            self.watches_fit = false;
            self.warn(format!(
                "device {}: the plan does not fit this run: {misses} of {} requests had no place \
                 in it and were served without one. Was it made of another model, \
                 batch or rank? The next run should begin with \
                 one that fits: make it again with the mode `profile`, or use the mode `auto`.",
                self.ordinal,
                hits + misses
            ));
        }
    }

    /// See [`Heap::check`](super::Heap::check).
    pub(super) fn check(&self) -> Result<(), String> {
        self.engine.policy().check()?;
        let blocks = self.engine.policy().stats().allocation.all().current;
        if blocks != self.blocks.len() as u64 {
            return Err(format!("{blocks} blocks are in use, {} are known", self.blocks.len()));
        }
        self.swap.as_ref().map_or(Ok(()), |swap| swap.check())
    }

    #[cold]
    pub(crate) fn explain(&mut self, request: Request, error: AllocError) -> Box<HeapError> {
        self.explain_with(request, error, &[])
    }

    /// As [`State::explain`], with more that a user should know.
    #[cold]
    pub(crate) fn explain_with(
        &mut self,
        request: Request,
        error: AllocError,
        more: &[String],
    ) -> Box<HeapError> {
        if let AllocError::SegmentLeft(segment) = error {
            return Box::new(HeapError::SegmentLeft(self.segment_left(request, segment)));
        }
        if !matches!(error, AllocError::OutOfMemory { .. }) {
            return error.into();
        }
        let scene = Scene {
            device: self.ordinal as i32,
            mode: self.mode,
            config: &self.config,
            release: self.release,
            info: self.device.memory_info(),
            stream: self.journal.stream_handle(request.stream),
        };
        let mut oom = explain(self.engine.policy(), request, &error, &scene);
        for line in more {
            oom.text.push('\n');
            oom.text.push_str(line);
        }
        self.ooms_by_limit += u64::from(oom.is_by_limit);
        self.last_oom = Some(oom.clone());
        Box::new(HeapError::OutOfMemory(oom))
    }
}
