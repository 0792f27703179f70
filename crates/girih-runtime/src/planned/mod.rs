//! `planned`: follows a plan.
//!
//! ```text
//!  request ─► follower ─► a place in the arena ───────► free now? ─► given      hit
//!                       ├ a place among what stays ───► free now? ─► given      hit
//!                       └ none, or not free ─┬► idle space of the arena         miss, a guest
//!                                            └► the fallback policy             miss
//! ```
//!
//! What lives across iterations is stacked in a region of its own, so that nothing that comes and
//! goes is ever pinned by it. The arena holds the iteration. Everything else is the fallback's: the
//! odd request, evaluation that nobody planned, private pools of graphs. Pages are mapped when the
//! first block comes to lie on them; before anything new is mapped, what the fallback holds free is
//! given back, so that what model building left behind is not paid for twice. All parts take their
//! pages from one pool and give them back there (`page_pool`).
//!
//! The plan may change in the middle of a run, and there may be none (`switch`).
//!
//! A plan is a hint. A place is given only if no live block has any of its bytes, and a stream gets
//! bytes of another only after it (`order`). What the device refuses on the way to a place costs the
//! place: the fallback serves the request.

mod block;
mod cells;
mod fallback;
mod follower;
mod frees;
mod growth;
mod guests;
mod last_resort;
mod last_uses;
mod layout;
mod pages;
mod region;
mod switch;
mod view;

pub use follower::{EntryId, Follower};
pub(crate) use growth::credit;
pub(crate) use layout::empty_plan;
pub(crate) use view::Live;

use std::sync::Arc;

use girih_plan::{Plan, granted};
use girih_trace::{Action, BlockState, Mark, MarkKind, PoolId, StreamId};

use self::block::{Block, Blocks, Home, Spot, is_own};
use self::frees::is_captured;
use self::growth::Growth;
use self::guests::Guests;
use self::last_uses::LastUses;
use self::layout::{Layout, Reserved};
use self::region::Region;
use self::switch::{Review, Strain};
use crate::caching::Config;
use crate::order::Order;
use crate::page_pool::PagePool;
use crate::pending::{Limbo, PendingFrees};
use crate::policy::{
    AllocError, BlockId, BlockView, Checkpoint, Env, Granted, Policy, PoolOptions, Request,
    Restored, SegmentView,
};
use crate::stats::{Counters, Stats};

/// Requests of at most this many bytes count as small, as in PyTorch (`kSmallSize`).
const SMALL: u64 = 1 << 20;

/// How well plans were followed: what happened while there was one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Following {
    /// Requests that were given their place.
    pub hits: u64,
    /// Bytes requested by them.
    pub hit_bytes: u64,
    /// Requests that had no place or could not have it, those of private pools left out.
    pub misses: u64,
    /// Bytes requested by them.
    pub miss_bytes: u64,
    /// Those misses that were given space of the arena that was idle; the fallback served the
    /// others.
    pub guests: u64,
    /// Bytes requested by them.
    pub guest_bytes: u64,
    /// The most bytes that the fallback held of the device.
    pub fallback_reserved_peak: u64,
    /// Waits of one stream for another that were put on the device.
    pub waits: u64,
}

impl Following {
    /// A request of `size` bytes was given its place, or something else.
    #[inline]
    fn note(&mut self, is_hit: bool, size: u64) {
        let (count, bytes) = match is_hit {
            true => (&mut self.hits, &mut self.hit_bytes),
            false => (&mut self.misses, &mut self.miss_bytes),
        };
        *count += 1;
        *bytes += size;
    }
}

/// The policy that follows a plan. See the [module](self).
pub struct Planned {
    layout: Layout,
    follower: Follower,
    /// Regions of earlier plans in which blocks live; vacant places are `None`.
    retired: Vec<Option<Region>>,
    /// The last block of a retired region is gone.
    retired_is_idle: bool,
    fallback: Box<dyn Policy>,
    order: Order,
    last_uses: LastUses,
    blocks: Blocks,
    /// Frees of blocks of the regions that wait for other streams.
    pending: PendingFrees,
    /// Blocks of the regions freed during a capture; they get their events after it.
    deferred: Vec<BlockId>,
    /// Device calls that are owed.
    limbo: Limbo,
    /// Stands before the device for all parts. It keeps pages while a plan is followed.
    pool: PagePool,
    /// Bytes of the pool that the statistics know of.
    pooled: u64,
    /// Of all parts, if `is_counting`; else the fallback's are the policy's.
    stats: Stats,
    is_counting: bool,
    /// The counters of the fallback, as far as they are in `stats`.
    of_fallback: Stats,
    growth: Growth,
    following: Following,
    is_following: bool,
    strain: Strain,
    guests: Guests,
    review: Review,
    given_up: u64,
    /// The program marks its steps.
    is_marked: bool,
    /// Open scopes with which a capture came.
    captures: usize,
    /// The share of the device that all parts together may hold.
    fraction: f64,
    /// Bytes of the device, once they were asked for.
    total: Option<u64>,
    granularity: u64,
}

impl Planned {
    /// A policy that follows `plan` from its first entry and serves from `fallback` what has no
    /// place. `granularity` is the device's.
    ///
    /// The plan must have passed [`girih_plan::verify()`]: places that leave their region would
    /// otherwise be found out only when they are asked for.
    pub fn new(plan: Arc<Plan>, fallback: Box<dyn Policy>, granularity: u64) -> Planned {
        let mut planned = Planned::empty(fallback, granularity);
        planned.begin_counting();
        planned.follower = Follower::new(&plan);
        planned.layout = Layout::new(plan, granularity);
        planned.is_following = !planned.layout.places.is_empty();
        planned.pool.keep(planned.is_following);
        planned.begin_review();
        planned.relax();
        let plan = &planned.layout.plan;
        let bytes = plan.opening_peak().max(plan.arena_bytes + plan.persistent_bytes);
        planned.growth = Growth::of_plan(bytes, plan.arena_bytes);
        planned
    }

    /// A policy without a plan: `fallback` serves everything, until [`Planned::follow`] says
    /// otherwise. `granularity` is the device's.
    pub fn empty(fallback: Box<dyn Policy>, granularity: u64) -> Planned {
        let layout = Layout::new(Arc::new(empty_plan()), granularity);
        Planned {
            follower: Follower::new(&layout.plan),
            layout,
            retired: Vec::new(),
            retired_is_idle: false,
            fraction: fallback.memory_fraction(),
            fallback,
            order: Order::default(),
            last_uses: LastUses::default(),
            blocks: Blocks::default(),
            pending: PendingFrees::default(),
            deferred: Vec::new(),
            limbo: Limbo::default(),
            pool: PagePool::default(),
            pooled: 0,
            stats: Stats::default(),
            is_counting: false,
            of_fallback: Stats::default(),
            growth: Growth::default(),
            following: Following::default(),
            is_following: false,
            strain: Strain::default(),
            guests: Guests::default(),
            review: Review::default(),
            given_up: 0,
            is_marked: false,
            captures: 0,
            total: None,
            granularity,
        }
    }

    /// The plan that is followed; one of nothing if there is none.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.layout.plan
    }

    /// True if a plan is followed: there was one, and it was not dropped.
    pub fn is_following(&self) -> bool {
        self.is_following
    }

    /// True while a graph is captured. Plans are not changed then.
    pub(crate) fn is_capturing(&self) -> bool {
        self.captures > 0
    }

    /// How often a plan was dropped because it did not fit or saved nothing.
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// How well plans were followed so far.
    pub fn following(&self) -> Following {
        Following { waits: self.order.waits(), ..self.following }
    }

    /// Misses so far; see [`Following::misses`].
    #[inline]
    pub(crate) fn misses(&self) -> u64 {
        self.following.misses
    }

    /// The place of an entry of the plan for a request, held and mapped; None if it has none, or if
    /// something is in the way, be it a live block or a device that is full.
    #[inline(always)] // A hit is one piece: what is found out stays in registers.
    fn take_place(
        &mut self,
        env: &mut Env<'_>,
        request: &Request,
        entry: EntryId,
    ) -> Result<Option<Granted>, AllocError> {
        let Reserved { mut home, size_max, room, opens } = self.layout.places[entry.0 as usize];
        if self.strain.is_suspended || !self.is_marked {
            self.find_next_iteration(env, entry);
        }
        if request.size > size_max || self.strain.is_suspended {
            return Ok(None);
        }
        let size = granted(request.size);
        let (region, spot) = match &mut home {
            Home::Arena(spot) => (&mut self.layout.arena, spot),
            Home::Persistent(spot) => (&mut self.layout.persistent, spot),
            Home::Vacant | Home::Retired(..) => return Ok(None),
        };
        if let Some(room) = room {
            let filling = &mut self.layout.rooms[room as usize];
            if opens {
                filling.restart();
            }
            let Some(offset) = filling.place(size) else { return Ok(None) };
            spot.offset = offset;
            spot.span = region.span(offset, size);
        } else if size != granted(size_max) {
            spot.span = region.span(spot.offset, size);
        }
        let spot = *spot;
        let granted = self.settle(env, home, spot, request)?;
        if let (Some(room), Some(_)) = (room, &granted) {
            self.layout.rooms[room as usize].note(spot.offset, size);
        }
        Ok(granted)
    }

    /// Puts a block at `spot`, mapped and in order. None if a live block is there, or if the bytes
    /// cannot be made ready.
    #[inline(always)]
    fn settle(
        &mut self,
        env: &mut Env<'_>,
        home: Home,
        spot: Spot,
        request: &Request,
    ) -> Result<Option<Granted>, AllocError> {
        let stays = matches!(home, Home::Persistent(_));
        if stays && !self.layout.users.admit(spot.span, request.stream) {
            return Ok(None);
        }
        if !self.layout.region(stays).take(spot.span) {
            return Ok(None);
        }
        let size = granted(request.size);
        let ready = self.make_ready(env, home, spot, request, size);
        let region = self.layout.region(stays);
        if !matches!(ready, Ok(true)) {
            region.give(spot.span);
            return ready.map(|_| None);
        }
        let address = region.address(spot.offset);
        if stays {
            self.layout.users.note(spot.span, request.stream);
        }
        let block = self.add(home, address, size, request);
        let Request { size: requested, stream, pool } = *request;
        env.log(Action::Alloc, address, requested, stream, pool);
        Ok(Some(Granted { block, address, size }))
    }

    #[inline]
    fn add(&mut self, home: Home, address: u64, size: u64, request: &Request) -> BlockId {
        let is_small = request.size <= SMALL;
        self.stats.allocation.increase(is_small, 1);
        self.stats.active.increase(is_small, 1);
        self.stats.allocated_bytes.increase(is_small, size);
        self.stats.active_bytes.increase(is_small, size);
        self.stats.requested_bytes.increase(is_small, request.size);
        self.blocks.add(Block {
            home,
            address,
            size,
            requested: request.size,
            stream: request.stream,
            pool: request.pool,
            users: Vec::new(),
            events: 0,
            state: BlockState::Allocated,
        })
    }
}

impl Policy for Planned {
    fn name(&self) -> &'static str {
        "planned"
    }

    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        self.last_uses.see(request.stream, self.layout.arena.cell_count(), &mut self.order);
        if self.captures == 0 {
            self.order.settle(env.device, &mut self.limbo, request.stream);
        }
        if self.is_counting {
            // What is refused is due before the next request as well.
            let _ = self.catch_up(env);
        }
        if !self.is_following || request.pool != PoolId::DEFAULT {
            return self.fall_back(env, request, None);
        }
        let entry = self.follower.follow(request.size, request.stream);
        if let Some(entry) = entry
            && let Ok(Some(granted)) = self.take_place(env, &request, entry)
        {
            self.following.note(true, request.size);
            return Ok(granted);
        }
        // A plan that cannot be dropped now is judged again after the next miss.
        let _ = self.judge(env);
        let granted = match self.take_idle(env, &request) {
            Ok(Some(granted)) => granted,
            Ok(None) | Err(_) => {
                self.fall_back(env, request, entry.filter(|_| self.is_following))?
            }
        };
        let is_hit = self.is_in_its_place(granted.block);
        self.following.note(is_hit, request.size);
        Ok(granted)
    }

    /// Whether a place of the plan is free is seen only when it is taken.
    fn has_room(&self, request: &Request) -> bool {
        self.fallback.has_room(request)
    }

    fn releasable(&self) -> u64 {
        self.fallback.releasable() + self.idle_in_regions() + self.pool.bytes()
    }

    fn unmapped(&self) -> u64 {
        self.pool.bytes()
    }

    fn free(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), AllocError> {
        if !is_own(id) {
            return self.with_fallback(env, |fallback, env| fallback.free(env, id));
        }
        let block = self.blocks.in_use(id).ok_or(AllocError::UnknownBlock(id))?;
        let (address, size, requested) = (block.address, block.size, block.requested);
        let (stream, pool) = (block.stream, block.pool);
        let is_deferred =
            !block.users.is_empty() && (self.captures > 0 || is_captured(env, &block.users)?);
        if !is_deferred && !block.users.is_empty() {
            block.events = self.pending.record(env.device, &mut self.limbo, id, &block.users)?;
        }
        env.log(Action::FreeRequested, address, requested, stream, pool);
        if is_deferred {
            self.deferred.push(id);
        }
        if block.users.is_empty() {
            self.complete(env, id);
        } else {
            block.state = BlockState::PendingFree;
        }
        let is_small = requested <= SMALL;
        self.stats.allocation.decrease(is_small, 1);
        self.stats.allocated_bytes.decrease(is_small, size);
        Ok(())
    }

    fn record_stream(
        &mut self,
        env: &mut Env<'_>,
        id: BlockId,
        stream: StreamId,
    ) -> Result<(), AllocError> {
        if !is_own(id) {
            return self
                .with_fallback(env, |fallback, env| fallback.record_stream(env, id, stream));
        }
        let block = self.blocks.in_use(id).ok_or(AllocError::UnknownBlock(id))?;
        if stream != block.stream && !block.users.contains(&stream) {
            block.users.push(stream);
        }
        Ok(())
    }

    fn process_events(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        if self.captures == 0 {
            self.process_own_events(env)?;
        }
        let stats = self.fallback.stats();
        if stats.active.all.current == stats.allocation.all.current {
            return Ok(()); // No block waits there.
        }
        self.with_fallback(env, |fallback, env| fallback.process_events(env))
    }

    fn empty_cache(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        self.wait_for_own_frees(env)?;
        self.with_fallback(env, |fallback, env| fallback.empty_cache(env))?;
        self.trim(env)?;
        self.order.forget_fences(env.device, &mut self.limbo);
        self.drain(env)
    }

    fn mark(&mut self, env: &mut Env<'_>, mark: &Mark) -> Result<(), AllocError> {
        self.follower.mark(mark.kind);
        if mark.kind == MarkKind::Step {
            self.is_marked = true;
            if self.growth.is_opening() && self.captures == 0 {
                // What is refused stays where it is until somebody needs it.
                let _ = self.end_opening(env);
            }
            self.begin_iteration(env);
        }
        self.with_fallback(env, |fallback, env| fallback.mark(env, mark))
    }

    fn create_pool(&mut self, pool: PoolId) {
        self.fallback.create_pool(pool);
    }

    fn set_pool_options(&mut self, pool: PoolId, options: PoolOptions) {
        self.fallback.set_pool_options(pool, options);
    }

    fn pool_users(&self, pool: PoolId) -> u32 {
        self.fallback.pool_users(pool)
    }

    fn has_pool(&self, pool: PoolId) -> bool {
        self.fallback.has_pool(pool)
    }

    fn reserved_of_pool(&self, pool: PoolId) -> Option<Counters> {
        self.fallback.reserved_of_pool(pool)
    }

    fn begin_pool(&mut self, pool: PoolId, captures: bool) {
        self.captures += usize::from(captures);
        self.fallback.begin_pool(pool, captures);
    }

    fn end_pool(&mut self, pool: PoolId, captures: bool) {
        self.captures = self.captures.saturating_sub(usize::from(captures));
        self.fallback.end_pool(pool, captures);
    }

    fn release_pool(&mut self, env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError> {
        self.with_fallback(env, |fallback, env| fallback.release_pool(env, pool))
    }

    fn empty_pool(&mut self, env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError> {
        if pool == PoolId::DEFAULT {
            return self.empty_cache(env);
        }
        self.with_fallback(env, |fallback, env| fallback.empty_pool(env, pool))?;
        self.drain(env)
    }

    fn set_memory_fraction(&mut self, fraction: f64) {
        self.fraction = fraction;
        self.fallback.set_memory_fraction(fraction);
    }

    fn memory_fraction(&self) -> f64 {
        self.fraction
    }

    fn max_split_size(&self) -> u64 {
        self.fallback.max_split_size()
    }

    fn configure(&mut self, env: &mut Env<'_>, config: &Config) -> Result<(), AllocError> {
        self.with_fallback(env, |fallback, env| fallback.configure(env, config))
    }

    fn checkpoint(&self, pool: PoolId) -> Result<Checkpoint, AllocError> {
        self.fallback.checkpoint(pool)
    }

    fn restore(
        &mut self,
        env: &mut Env<'_>,
        checkpoint: &Checkpoint,
    ) -> Result<Restored, AllocError> {
        self.with_fallback(env, |fallback, env| fallback.restore(env, checkpoint))
    }

    fn reset_peak_stats(&mut self) {
        self.stats.reset_peaks();
        self.fallback.reset_peak_stats();
    }

    fn stats(&self) -> &Stats {
        if self.is_counting { &self.stats } else { self.fallback.stats() }
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
