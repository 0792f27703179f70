//! The lake: one owner of all addresses and pages of a device.
//!
//! What is free anywhere in the lake serves whoever asks. A request asks in turn for the place that a plan has for
//! it; for a hole of its own stream; for a *view*, which shows pages of several places side by side; and for
//! new pages. What is held is never more than the most that was ever in use, a little slack, and what lies at
//! the ends of pages, for only whole pages can be shown elsewhere; and where sizes vary for so long that views take too
//! much of the run's time, what is bought with memory instead (`pace`).
//!
//! ```text
//!  allocate ─► round ─► its place in the window of the plan ──free──► give
//!                            │ none, taken                             ▲
//!                            ▼                                         │
//!                 hole that fits in the home of the stream ──found──► split
//!                            │ none                                    ▲
//!                            ▼                                         │
//!          an idle view whose bytes are free ──────────────────────────┤
//!          new pages, as long as little more is held than was in use ──┤
//!          idle places that the plan does not want soon ───────────────┤
//!          a new view of holes, idle places and what they lack ────────┤
//!                            │ refused                                 │
//!                            ▼                                         │
//!          wait for frees, give everything back, try again ────────────┘
//! ```
//!
//! It owns: the reservations and their pages (`pages`, `growth`, `mapped`), the blocks that tile them and the
//! shelves of the free and the unmapped ones (`block`), the plan (`follow`, `follower`, `places`) and its window (`window`,
//! `cells`, `last_uses`), the views (`views`, `lending`, `stitching`, `patching`) and how much time they and waits may take (`pace`), who used which bytes last (`users`), frees
//! on their way (`frees`), and giving back (`release`). Private pools, whose addresses a graph may have for
//! ever, are not the lake's: a caching policy beside it serves them (`beside`), under one limit and one
//! statistics.

mod block;
mod cells;
mod follow;
mod follower;
mod frees;
mod growth;
mod last_uses;
mod laying;
mod layout;
mod lending;
mod mapped;
mod pace;
mod pages;
mod patching;
mod places;
mod rehearsal;
mod release;
mod repeats;
mod segments;
mod stitching;
mod turn;
mod users;
mod view;
mod views;
mod window;

use std::sync::Arc;

use girih_plan::Plan;
use girih_trace::{Action, Mark, MarkKind, PoolId, StreamId};
use rustc_hash::FxHashMap;

use self::block::{Heap, Home};
use self::follow::Followed;
pub use self::follow::Following;
pub use self::follower::{EntryId, Follower};
pub use self::laying::Layings;
use self::pace::Pace;
pub(crate) use self::rehearsal::Rehearsal;
pub use self::repeats::Asked;
use self::repeats::Repeats;
use self::segments::Segments;
use self::users::Stains;
pub(crate) use self::view::Live;
use self::views::Views;
use crate::beside::{self, Beside};
use crate::caching::rounding::{MAX_REQUEST, SMALL_SIZE, round_size};
use crate::caching::{Caching, Config};
use crate::order::Order;
use crate::pending::{Limbo, PendingFrees};
use crate::policy::{
    AllocError, BlockId, BlockView, Checkpoint, Env, Granted, Request, Restored, SegmentView,
};
use crate::wrapper::Wrapper;

/// Set in the ids of blocks of private pools.
const POOLED: u32 = 1 << 30;

/// A block of a private pool, as others know it.
fn pooled(granted: Granted) -> Granted {
    Granted { block: BlockId(granted.block.0 | POOLED), ..granted }
}

/// The id within its pool of a block of a private pool; none of one of the lake.
fn in_pool(id: BlockId) -> Option<BlockId> {
    (id.0 & POOLED != 0).then_some(BlockId(id.0 & !POOLED))
}

/// An error of a block of a private pool, as others know it.
fn unknown(id: BlockId) -> impl Fn(AllocError) -> AllocError {
    move |error| match error {
        AllocError::UnknownBlock(_) => AllocError::UnknownBlock(id),
        other => other,
    }
}

/// How the lake weighs memory against time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// So much more may be held than was ever in use, one byte in so many, before holes are stitched.
    pub slack: u64,
    /// And so many bytes at least.
    pub slack_min: u64,
    /// Where it would be more than so many bytes, as many as their geometric mean, but for the places of a plan: of a
    /// run that fills a card little slack is much memory.
    pub slack_knee: u64,
    /// A new page is what is in use, divided by this, or a little more.
    pub pages: u64,
    /// And at least what is missing for a request, divided by this.
    pub request_pages: u64,
    /// The largest page, in bytes.
    pub page_max: u64,
    /// Of so many holes, the smallest that fit, a request no larger than that is given the one with the lowest address.
    pub near: u64,
    /// Pages that all views together may have mapped. Each takes the driver some memory.
    pub view_pages_max: u64,
    /// A view is given other pages once it was not used in so many steps, the present one among them; at least 1.
    pub stale: u64,
    /// And only in place of a new one of so many pages.
    pub patched: u64,
    /// Views and waits of one stream for another may take one nanosecond of the run in so many, before memory is bought
    /// instead, where there is room for it.
    pub time_share: u64,
    /// A wait counts for so many microseconds at most, however long the stream stands still: about what it made a
    /// step of FSDP2 longer, on two H200s (`bench/results/lake.md`).
    pub stall_max_us: u64,
    /// And views so many milliseconds at its beginning.
    pub time_free_ms: u64,
    /// Of the most that was ever in use, one byte in so many may be held beyond all that where they take longer.
    pub bought: u64,
    /// All of it, if they took so many milliseconds too much.
    pub bought_in_ms: u64,
    /// Of the device, one byte in so many stays free where time is bought.
    pub room: u64,
    /// Requests are given what they had in the step before until views took as long as without it in so many steps in a
    /// row; 0 for never.
    pub in_vain: u64,
    /// For how many steps they are not, then. The next time it is twice as many.
    pub rest: u64,
    /// A step is like another if of a hundred large requests so many are the same in both.
    pub alike: u64,
    /// A step that is the same as the one before is laid out, if no more of what it has to lie in than one byte in so many
    /// is missing; 0 for never.
    pub lost: u64,
    /// And all that may have taken so many times what views may take ([`Options::time_share`]) of the run so far, beyond
    /// what views took without it: no longer is anything tried then.
    pub trials: u64,
    /// Idle places of a plan are lent that it does not want within so many requests, or within a 64th of them.
    pub ahead: u64,
    /// A plan is given up once one byte in so many more is held than the bound says.
    pub strain: u64,
}

impl Options {
    /// The weights of a lake in which tensors come and go within a budget: their steps are laid out page by page, and
    /// until then views are made in all of them, so that pages are larger, and half as many of them in views are as many
    /// bytes (`bench/results/lake.md`, "Smaller pages").
    pub fn swapping() -> Options {
        Options { page_max: 16 << 20, view_pages_max: 1 << 16, ..Options::default() }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            slack: 300,
            slack_min: 4 << 20,
            slack_knee: 44 << 20,
            pages: 4096,
            request_pages: 32,
            page_max: 8 << 20,
            near: 8,
            view_pages_max: 1 << 17,
            stale: 1,
            patched: 128,
            time_share: 333,
            stall_max_us: 150,
            time_free_ms: 1500,
            bought: 10,
            bought_in_ms: 100,
            room: 8,
            in_vain: 4,
            rest: 16,
            alike: 90,
            lost: 50,
            trials: 16,
            ahead: 4096,
            strain: 50,
        }
    }
}

/// What is looked for.
#[derive(Clone, Copy, Debug)]
struct Search {
    /// Bytes after rounding.
    size: u64,
    home: Home,
}

/// The lake. See the [module](self).
#[derive(Debug)]
pub struct Lake {
    options: Options,
    heap: Heap,
    segments: Segments,
    /// The other streams of blocks that are `shared`.
    uses: FxHashMap<BlockId, Vec<StreamId>>,
    pending: PendingFrees,
    /// Blocks freed during a capture; they get their events after it.
    deferred: Vec<BlockId>,
    limbo: Limbo,
    views: Views,
    repeats: Repeats,
    stains: Stains,
    order: Order,
    pace: Pace,
    /// Bytes of pages held.
    held: u64,
    /// Bytes of blocks given and not yet reusable.
    in_use: u64,
    /// The most that was ever so.
    most_in_use: u64,
    /// The plan that is followed.
    followed: Option<Box<Followed>>,
    /// The plan that is followed from the next request on, the first.
    first_plan: Option<Arc<Plan>>,
    following: Following,
    /// Plans that were dropped because more was held with them than without.
    given_up: u64,
    /// Bytes of which pages are multiples: the device's granularity, once it was asked for memory.
    granule: u64,
    /// The device maps a handle at several addresses, once it was asked for memory.
    maps_twice: bool,
    /// Serves the private pools. Its default pool stays empty.
    beside: Beside,
}

impl Lake {
    /// A lake that holds nothing. `pools` serves the requests of private pools; it holds nothing either.
    /// Its limit is that of both together, and its settings for rounding are the lake's.
    pub fn new(options: Options, pools: Caching) -> Lake {
        Lake {
            options,
            heap: Heap::default(),
            segments: Segments::default(),
            uses: FxHashMap::default(),
            pending: PendingFrees::default(),
            deferred: Vec::new(),
            limbo: Limbo::default(),
            views: Views::default(),
            repeats: Repeats::new(&options),
            stains: Stains::default(),
            order: Order::default(),
            pace: Pace::new(&options),
            held: 0,
            in_use: 0,
            most_in_use: 0,
            followed: None,
            first_plan: None,
            following: Following::default(),
            given_up: 0,
            granule: 2 << 20,
            maps_twice: true,
            beside: Beside::new(pools),
        }
    }

    /// A lake with the usual weights, which serves private pools as `config` says, but for the order of
    /// streams: that is Girih's own.
    pub fn of(config: Config) -> Lake {
        Lake::weighed(Options::default(), config)
    }

    /// The same with other weights.
    pub fn weighed(options: Options, mut config: Config) -> Lake {
        config.own_order = true;
        Lake::new(options, Caching::new(config))
    }

    /// True while a graph is captured.
    pub(crate) fn is_capturing(&self) -> bool {
        self.beside.is_capturing()
    }

    /// Makes a block that is on no shelf one of a program that asked for `requested` bytes.
    #[inline(always)]
    fn give(&mut self, env: &mut Env<'_>, id: BlockId, request: &Request) -> Granted {
        let Request { size: requested, stream, pool } = *request;
        let block = &mut self.heap.blocks[id];
        block.allocated = true;
        (block.requested, block.user) = (requested, stream);
        let (address, size, is_small) = (block.address, block.size, block.is_small());
        self.in_use += size;
        if self.in_use > self.most_in_use {
            self.most_in_use = self.in_use;
        }
        let split = self.beside.inner().config().max_split_size;
        let stats = &mut self.beside.stats;
        stats.count_allocation(is_small, size, requested);
        if size >= split {
            stats.oversize_allocations.increase(1);
        }
        env.log(Action::Alloc, address, requested, stream, pool);
        Granted { block: id, address, size }
    }

    /// Blocks in use that are not smaller than the limit of splitting. It means nothing to the lake, and is
    /// counted as PyTorch does.
    fn count_oversize(&self) -> u64 {
        let limit = self.beside.inner().config().max_split_size;
        let blocks = self.heap.blocks.values();
        blocks.filter(|block| block.allocated && block.size >= limit).count() as u64
    }

    /// A block of a private pool.
    #[inline(never)]
    fn serve_pool(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        if !self.is_capturing() {
            let _ = self.complete_frees(env);
        }
        beside::allocate(self, env, request, Lake::give_way).map(pooled)
    }

    /// A block of the default pool for a request.
    #[inline(always)]
    fn serve(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        let is_capturing = self.is_capturing();
        if !is_capturing {
            // What is refused here is asked again at the next request.
            let _ = self.complete_frees(env);
            let _ = Wrapper::process_events(&mut self.beside, env);
            self.order.settle(env.device, &mut self.limbo, request.stream);
        }
        if request.size >= MAX_REQUEST {
            return Err(self.beside.out_of_memory(env, request.size, request.size));
        }
        let divisions = &self.beside.inner().config().roundup_power2_divisions;
        let size = round_size(request.size, divisions);
        if self.first_plan.is_some() {
            self.begin_plan(env);
        }
        if self.followed.is_some()
            && let Some(block) = self.take_place(env, &request, size)
        {
            return Ok(self.give(env, block, &request));
        }
        self.serve_unplanned(env, request, size)
    }

    /// Of how many holes that fit a request is given the lowest. What is no larger than a page keeps all of it from
    /// views; so such requests lie side by side, and what is free above them is whole.
    #[inline]
    fn near(&self, home: Home, size: u64) -> u64 {
        if home.is_small || size > self.options.page_max { 1 } else { self.options.near }
    }

    /// A block of `size` bytes that is no place of a plan.
    #[inline(never)]
    fn serve_unplanned(
        &mut self,
        env: &mut Env<'_>,
        request: Request,
        size: u64,
    ) -> Result<Granted, AllocError> {
        let home = self.heap.home(request.stream, size <= SMALL_SIZE);
        let search = Search { size, home };
        if self.repeats.is_on()
            && !home.is_small
            && let Some(block) = self.take_repeated(env, &search)
        {
            self.note_given(&search, block);
            return Ok(self.give(env, block, &request));
        }
        match self.heap.fit(home, size, self.near(home, size)) {
            Some((id, place)) if self.serves(env, &search, id) => {
                let block = self.heap.take(id, place, size);
                if self.repeats.is_watching() && !home.is_small {
                    self.note_given(&search, block);
                }
                Ok(self.give(env, block, &request))
            }
            _ => self.serve_more(env, &search, request),
        }
    }
}

impl Wrapper for Lake {
    type Inner = Beside;

    fn inner(&self) -> &Beside {
        &self.beside
    }

    fn inner_mut(&mut self) -> &mut Beside {
        &mut self.beside
    }

    fn name(&self) -> &'static str {
        "stitch"
    }

    fn mark(&mut self, env: &mut Env<'_>, mark: &Mark) -> Result<(), AllocError> {
        self.note_mark(mark.kind);
        self.note_time(env, mark.time_us);
        if mark.kind == MarkKind::Step {
            self.views.turn(self.options.stale);
            self.turn_repeats();
        }
        Wrapper::mark(&mut self.beside, env, mark)
    }

    /// Always part of its caller, with all that a place of a plan takes: [`Auto`](crate::auto::Auto) mostly does
    /// nothing more. A pair takes 3 % less time so.
    #[inline(always)]
    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        if request.pool == PoolId::DEFAULT {
            return self.serve(env, request);
        }
        self.serve_pool(env, request)
    }

    fn has_room(&self, request: &Request) -> bool {
        if request.pool != PoolId::DEFAULT {
            return Wrapper::has_room(&self.beside, request);
        }
        if request.size >= MAX_REQUEST {
            return false;
        }
        let size = round_size(request.size, &self.beside.inner().config().roundup_power2_divisions);
        let home = self.heap.known_home(request.stream, size <= SMALL_SIZE);
        home.is_some_and(|home| {
            self.heap.fit(home, size, 1).is_some() || self.could_stitch(&Search { size, home })
        })
    }

    fn releasable(&self) -> u64 {
        self.releasable_bytes() + Wrapper::releasable(&self.beside)
    }

    #[inline]
    fn free(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), AllocError> {
        match in_pool(id) {
            None => self.free_own(env, id),
            Some(own) => Wrapper::free(&mut self.beside, env, own).map_err(unknown(id)),
        }
    }

    fn record_stream(
        &mut self,
        env: &mut Env<'_>,
        id: BlockId,
        stream: StreamId,
    ) -> Result<(), AllocError> {
        if let Some(own) = in_pool(id) {
            let recorded = Wrapper::record_stream(&mut self.beside, env, own, stream);
            return recorded.map_err(unknown(id));
        }
        let block = self.heap.blocks.allocated(id).ok_or(AllocError::UnknownBlock(id))?;
        if stream != block.user {
            self.add_use(id, stream);
        }
        Ok(())
    }

    fn process_events(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        if self.is_capturing() {
            return Ok(());
        }
        self.complete_frees(env)?;
        Wrapper::process_events(&mut self.beside, env)
    }

    fn empty_cache(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        self.limbo.settle(env.device)?;
        if !self.is_capturing() {
            self.wait_for_frees(env)?;
        }
        self.release_free(env)?;
        Wrapper::empty_cache(&mut self.beside, env)?;
        self.order.forget_fences(env.device, &mut self.limbo);
        Ok(())
    }

    fn empty_pool(&mut self, env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError> {
        if pool == PoolId::DEFAULT {
            return Wrapper::empty_cache(self, env);
        }
        Wrapper::empty_pool(&mut self.beside, env, pool)
    }

    fn configure(&mut self, env: &mut Env<'_>, config: &Config) -> Result<(), AllocError> {
        let before = self.count_oversize();
        let result = Wrapper::configure(&mut self.beside, env, config);
        let after = self.count_oversize();
        let counter = &mut self.beside.stats.oversize_allocations;
        counter.increase(after.saturating_sub(before));
        counter.decrease(before.saturating_sub(after));
        result
    }

    fn restore(
        &mut self,
        env: &mut Env<'_>,
        checkpoint: &Checkpoint,
    ) -> Result<Restored, AllocError> {
        let mut restored = Wrapper::restore(&mut self.beside, env, checkpoint)?;
        for (id, _) in &mut restored.freed {
            id.0 |= POOLED;
        }
        for granted in &mut restored.allocated {
            *granted = pooled(*granted);
        }
        Ok(restored)
    }

    fn visit(&self, visitor: &mut dyn FnMut(SegmentView, &[BlockView])) {
        self.visit_all(visitor);
    }

    fn check(&self) -> Result<(), String> {
        self.check_all()
    }
}

#[cfg(test)]
mod tests;
