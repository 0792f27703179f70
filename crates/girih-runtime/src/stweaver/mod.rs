//! STWeaver: a static plan that is followed by number, and dynamic requests in what it leaves idle.
//!
//! This is the allocator of the paper *Reducing GPU Memory Fragmentation via Spatio-Temporal Planning for Efficient
//! Large-Scale Model Training* (EuroSys 2026), section 6, as a baseline. Its plan is a [`Synthesis`], made before.
//!
//! ```text
//!  request ─┬─ static ──► the next place of the plan, if the size is that of the plan and the bytes are free ──┐
//!           ├─ dynamic ─► best fit in what is free of the reusable space of its HomoLayer group (equation 6) ──┼─► give
//!           └─ all else, and what finds no place ─► a caching policy ──────────────────────────────────────────┘
//! ```
//!
//! Before training a pool is taken as large as the plan and its opening, in one piece of the device's own memory;
//! nothing else is mapped or given back later. The static allocator provides "pre-planned memory addresses
//! sequentially": the n-th static request has the n-th place, and after the last of the steady iteration comes its
//! first. One request too many or too few, and all that follow have the places of others; the paper has nothing that
//! finds the way back, and so this has not, unless it is asked for ([`Options::resyncs`]).
//!
//! Where the paper leaves a choice:
//! - A place is given only if all of its bytes are free, and only to a request of the planned size, as in the published
//!   code. Else the caching policy serves it.
//! - Which layer runs is told by [`Stweaver::set_layer`], as the hooks of modules tell the published code. The n-th run
//!   of a dynamic layer has the spaces of the n-th in the plan, and its k-th request those of the k-th there.
//! - In evaluation the published code gives each request the best fit among all free bytes of the pool: from the mark of
//!   an evaluation to that of the next step, so does this.
//! - Streams are in no plan of the paper's. Here bytes that another stream used are given when the device has been told
//!   to wait for it (`order`).
//! - The pool goes back to the device only when the cache is emptied and nothing is in it; the published code keeps it.
//!   If the device has too little for it, the run goes on without a plan, where the published code ends the process.

mod frees;
mod space;
mod view;

use std::sync::Arc;

use girih_plan::stweaver::Synthesis;
use girih_plan::{Entry, Place, Role, plan};
use girih_trace::{Action, BlockState, Mark, MarkKind, PoolId, StreamId};

use self::space::{FreeSpace, Use};
use crate::beside::{self, Beside, is_own};
use crate::caching::Caching;
use crate::device::{Address, DeviceError};
use crate::lake::Following;
use crate::order::{Counts, Order};
use crate::pending::{Limbo, PendingFrees};
use crate::policy::{AllocError, BlockId, BlockView, Env, Granted, Request, SegmentView};
use crate::returning::Returning;
use crate::slab::Slab;
use crate::wrapper::Wrapper;

/// What of STWeaver is at work: its parts, to see what each is worth (section 8.4 of the paper).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Dynamic requests reuse what the static plan leaves idle; without, the caching policy serves them.
    pub reuses: bool,
    /// At the mark of a step the plan is followed from the beginning of the steady iteration, wherever it was. The
    /// paper has no such thing, and the published code has a function for it that nobody calls.
    pub resyncs: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { reuses: true, resyncs: false }
    }
}

/// A block of the pool. It is alive until its bytes are free again.
#[derive(Debug)]
struct Grant {
    /// Bytes from the start of the pool.
    offset: u64,
    size: u64,
    requested: u64,
    stream: StreamId,
    state: BlockState,
    /// Events that its free waits for.
    events: u32,
    /// Other streams that use it.
    users: Vec<StreamId>,
}

/// The memory of the plan.
#[derive(Debug)]
struct Pool {
    address: Address,
    size: u64,
    space: FreeSpace,
}

/// Where the program is, by count.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// The next static request, over the opening and the steady sequence.
    next: usize,
    /// Runs of dynamic layers that have begun.
    runs: usize,
    /// Requests of the present one so far.
    in_run: usize,
    /// Steps that have begun.
    steps: usize,
}

/// What was asked for and how it was served, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Served {
    /// The pool of the plan.
    pub pool: u64,
    /// Requested by dynamic requests.
    pub dynamic: u64,
    /// Of them, requested by those that reused the pool.
    pub reused: u64,
    /// The most that the caching policy held of the device.
    pub fallback: u64,
}

/// The policy. See the [module](self).
#[derive(Debug)]
pub struct Stweaver {
    options: Options,
    plan: Arc<Synthesis>,
    /// The places of the plan in the order of requests: those of the opening, then those of the steady sequence.
    entries: Vec<Planned>,
    /// Where the steady sequence begins.
    steady: usize,
    count: Count,
    /// The dynamic layer that runs, as its caller counts them.
    layer: Option<u32>,
    is_evaluating: bool,
    pool: Option<Pool>,
    /// The device had too little for the pool.
    is_without: bool,
    grants: Slab<BlockId, Grant>,
    pending: PendingFrees,
    /// Blocks freed during a capture; they get their events after it.
    deferred: Vec<BlockId>,
    order: Order,
    limbo: Limbo,
    following: Following,
    served: Served,
    /// The caching policy: it serves what has no place, and private pools.
    beside: Beside,
}

/// A place of the plan.
#[derive(Clone, Copy, Debug)]
struct Planned {
    /// Bytes granted.
    size: u64,
    /// Bytes from the start of the pool; None outside of it.
    offset: Option<u64>,
}

impl Stweaver {
    /// A policy without a plan, that holds nothing. `fallback` serves what has no place; it holds nothing either. Its
    /// memory fraction is the limit of all parts together.
    pub fn new(options: Options, fallback: Caching) -> Stweaver {
        Stweaver {
            options,
            plan: Arc::default(),
            entries: Vec::new(),
            steady: 0,
            count: Count::default(),
            layer: None,
            is_evaluating: false,
            pool: None,
            is_without: false,
            grants: Slab::default(),
            pending: PendingFrees::default(),
            deferred: Vec::new(),
            order: Order::default(),
            limbo: Limbo::default(),
            following: Following::default(),
            served: Served::default(),
            beside: Beside::new(fallback),
        }
    }

    /// Follows a plan from the next request on. For a policy that holds nothing of the pool.
    pub fn set_plan(&mut self, synthesis: Arc<Synthesis>) {
        let plan = &synthesis.plan;
        let sequences = |role: Role| plan.sequences.iter().filter(move |it| it.role == role);
        let arena = plan.arena_bytes;
        let planned = |entry: &Entry| {
            let offset = match entry.place {
                Place::Arena(offset) => Some(offset),
                // What stays lies above the arena.
                Place::Persistent(offset) => arena.checked_add(offset),
                // Experts share rooms in plans of others.
                Place::Room(_) | Place::Outside => None,
            };
            Planned { size: plan::granted(entry.size_max), offset }
        };
        let of = |role| sequences(role).flat_map(|sequence| &sequence.entries).map(planned);
        self.entries = of(Role::Opening).collect();
        for &(entry, offset) in &synthesis.temporaries {
            if let Some(planned) = self.entries.get_mut(entry as usize) {
                planned.offset = Some(offset);
            }
        }
        self.steady = self.entries.len();
        self.entries.extend(of(Role::Steady));
        self.plan = synthesis;
    }

    /// The dynamic layer whose run goes on from now on, by any number that its next run does not share; None outside of
    /// dynamic layers.
    pub fn set_layer(&mut self, layer: Option<u32>) {
        if layer.is_some() && layer != self.layer {
            self.count.runs += 1;
            self.count.in_run = 0;
        }
        self.layer = layer;
    }

    /// How the plan was followed: requests and bytes in the pool and outside of it.
    pub fn following(&self) -> Following {
        Following { waits: self.order.waits(), ..self.following }
    }

    /// How requests were served so far.
    pub fn served(&self) -> Served {
        let fallback = crate::policy::Policy::stats(self.beside.inner()).reserved_bytes.all().peak;
        Served { fallback, ..self.served }
    }

    /// Takes the pool of the plan, if there is one and it is not there yet.
    fn take_pool(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        let size = self.plan.pool_bytes();
        if self.pool.is_some() || self.is_without || size == 0 {
            return Ok(());
        }
        if !self.beside.allows(env, size) {
            self.is_without = true;
            return Ok(());
        }
        let address = match env.device.alloc(size) {
            Ok(address) => address,
            Err(DeviceError::OutOfMemory { .. }) => {
                self.is_without = true;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.pool = Some(Pool { address, size, space: FreeSpace::of(size) });
        self.served.pool = self.served.pool.max(size);
        env.log(Action::SegmentAlloc, address, size, StreamId(0), PoolId::DEFAULT);
        let stats = &mut self.beside.stats;
        stats.segment.increase(false, 1);
        stats.reserved_bytes.increase(false, size);
        stats.num_device_alloc += 1;
        Ok(())
    }

    /// Gives the pool back, if nothing is in it. The device waits for what runs.
    fn release_pool_if_idle(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        if self.grants.iter().next().is_some() {
            return Ok(());
        }
        if let Some(pool) = &self.pool {
            let (address, size) = (pool.address, pool.size);
            env.device.free(address)?;
            self.pool = None;
            env.log(Action::SegmentFree, address, size, StreamId(0), PoolId::DEFAULT);
            let stats = &mut self.beside.stats;
            stats.segment.decrease(false, 1);
            stats.reserved_bytes.decrease(false, size);
            stats.num_device_free += 1;
        }
        self.order.forget_fences(env.device, &mut self.limbo);
        Ok(())
    }

    /// The bytes of the pool that a request of `size` granted bytes is to have, if it has any.
    fn place(&self, size: u64) -> Option<u64> {
        let space = &self.pool.as_ref()?.space;
        if self.is_evaluating {
            return space.best_fit(size);
        }
        if self.layer.is_some() {
            if !self.options.reuses {
                return None;
            }
            let layers = self.layers_now()?;
            let reusable = &self.plan.spaces[layers.of(self.count.in_run)];
            return space.best_fit_within(reusable, size);
        }
        let planned = self.entries.get(self.count.next)?;
        let offset = planned.offset.filter(|_| planned.size == size)?;
        space.is_free(offset, size).then_some(offset)
    }

    /// The spaces of the layer that runs: before the steady iteration those of the opening, then round and round.
    fn layers_now(&self) -> Option<&girih_plan::stweaver::LayerSpaces> {
        let run = self.count.runs.checked_sub(1)?;
        let (opening, steady) = (&self.plan.opening, &self.plan.steady);
        opening.get(run).or_else(|| {
            let run = (run - opening.len()).checked_rem(steady.len())?;
            steady.get(run)
        })
    }

    /// A step begins.
    fn step_begins(&mut self) {
        self.is_evaluating = false;
        self.count.steps += 1;
        let Some(steady) = self.plan.plan.steady().filter(|_| self.options.resyncs) else { return };
        let opening = self.plan.plan.sequences.iter().filter(|it| it.role == Role::Opening);
        let marked = opening.flat_map(|it| &it.boundaries).filter(|it| it.1 == MarkKind::Step);
        // The first step after those of the opening is the first of the steady iteration.
        let Some(step) = self.count.steps.checked_sub(marked.count() + 1) else { return };
        let rounds = self.plan.plan.rounds.max(1) as usize;
        self.count.next = self.steady + step % rounds * (steady.entries.len() / rounds);
        self.count.runs = self.plan.opening.len();
    }

    /// Counts a request of `size` bytes that was served, in the pool or elsewhere.
    fn step(&mut self, size: u64, is_hit: bool) {
        let following = &mut self.following;
        let (count, bytes) = match is_hit {
            true => (&mut following.hits, &mut following.hit_bytes),
            false => (&mut following.misses, &mut following.miss_bytes),
        };
        *count += 1;
        *bytes += size;
        if self.is_evaluating {
            return;
        }
        if self.layer.is_some() {
            self.count.in_run += 1;
            self.served.dynamic += size;
            self.served.reused += if is_hit { size } else { 0 };
            return;
        }
        self.count.next += 1;
        if self.count.next == self.entries.len() && self.steady < self.entries.len() {
            self.count.next = self.steady;
        }
    }

    /// Gives `size` bytes of the pool, which are free. None if the stream cannot be made to wait now for those that
    /// used them.
    fn give(
        &mut self,
        env: &mut Env<'_>,
        request: Request,
        (offset, size): (u64, u64),
    ) -> Result<Option<Granted>, DeviceError> {
        let Request { size: requested, stream, pool } = request;
        let Some(own) = &mut self.pool else { return Ok(None) };
        let Use { stream: user, freed } = own.space.last_use(offset, size);
        if user != Some(stream)
            && !self.order.wait(env.device, &mut self.limbo, freed, stream, Counts::No)?
        {
            return Ok(None);
        }
        own.space.take(offset, size);
        let address = own.address + offset;
        let (state, events, users) = (BlockState::Allocated, 0, Vec::new());
        let grant = Grant { offset, size, requested, stream, state, events, users };
        let block = self.grants.add(grant);
        env.log(Action::Alloc, address, requested, stream, pool);
        self.beside.stats.count_allocation(is_small(size), size, requested);
        Ok(Some(Granted { block, address, size }))
    }

    /// Completes frees. Not during a capture.
    fn complete_own(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        if self.beside.is_capturing() { Ok(()) } else { self.complete_frees(env) }
    }
}

/// Whether a block counts as small, as in PyTorch's statistics.
fn is_small(size: u64) -> bool {
    size <= 1 << 20
}

impl Wrapper for Stweaver {
    type Inner = Beside;

    fn inner(&self) -> &Beside {
        &self.beside
    }

    fn inner_mut(&mut self) -> &mut Beside {
        &mut self.beside
    }

    fn name(&self) -> &'static str {
        "stweaver"
    }

    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        self.complete_own(env)?;
        let is_planned = request.pool == PoolId::DEFAULT;
        if is_planned && !self.beside.is_capturing() {
            self.take_pool(env)?;
            let size = plan::granted(request.size);
            if let Some(offset) = self.place(size)
                && let Some(granted) = self.give(env, request, (offset, size))?
            {
                self.step(request.size, true);
                return Ok(granted);
            }
        }
        let granted = beside::allocate(self, env, request, |own, env| {
            let has_more = own.has_waiting() || own.pool.is_some();
            if has_more {
                own.wait_for_frees(env)?;
                own.release_pool_if_idle(env)?;
            }
            Ok(has_more)
        })?;
        if is_planned {
            self.step(request.size, false);
        }
        Ok(granted)
    }

    fn has_room(&self, request: &Request) -> bool {
        self.beside.has_room(request)
    }

    fn releasable(&self) -> u64 {
        let is_idle = self.grants.iter().next().is_none() && !self.beside.is_capturing();
        let own = self.pool.as_ref().filter(|_| is_idle).map_or(0, |pool| pool.size);
        own + self.beside.releasable()
    }

    fn free(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), AllocError> {
        if is_own(id) {
            return self.free_own(env, id);
        }
        self.beside.free(env, id)
    }

    fn record_stream(
        &mut self,
        env: &mut Env<'_>,
        id: BlockId,
        stream: StreamId,
    ) -> Result<(), AllocError> {
        if !is_own(id) {
            return self.beside.record_stream(env, id, stream);
        }
        let grant = self.in_use(id).ok_or(AllocError::UnknownBlock(id))?;
        if stream != grant.stream && !grant.users.contains(&stream) {
            grant.users.push(stream);
        }
        Ok(())
    }

    fn process_events(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        self.complete_own(env)?;
        self.beside.process_events(env)
    }

    fn empty_cache(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        self.limbo.settle(env.device)?;
        if !self.beside.is_capturing() {
            self.wait_for_frees(env)?;
            self.release_pool_if_idle(env)?;
        }
        self.beside.empty_cache(env)
    }

    fn empty_pool(&mut self, env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError> {
        if pool == PoolId::DEFAULT {
            return self.empty_cache(env);
        }
        self.beside.empty_pool(env, pool)
    }

    fn mark(&mut self, env: &mut Env<'_>, mark: &Mark) -> Result<(), AllocError> {
        match mark.kind {
            MarkKind::Eval => self.is_evaluating = true,
            MarkKind::Step => self.step_begins(),
            _ => {}
        }
        self.beside.mark(env, mark)
    }

    fn visit(&self, visitor: &mut dyn FnMut(SegmentView, &[BlockView])) {
        for (segment, blocks) in self.views() {
            visitor(segment, &blocks);
        }
    }

    fn check(&self) -> Result<(), String> {
        self.check_all()
    }
}
