//! `planned`: follows a plan.
//!
//! ```text
//!  request ─► follower ─► a place in the arena ───────► free now? ─► given      hit
//!                       ├ a place among what stays ───► free now? ─► given      hit
//!                       └ none, or not free ──────────► the fallback policy     miss
//! ```
//!
//! What lives across iterations is stacked in a region of its own, so that nothing that comes and
//! goes is ever pinned by it. The arena holds the iteration. Everything else is the fallback's: the
//! odd request, evaluation that nobody planned, private pools of graphs. Pages are mapped when the
//! first block comes to lie on them; before anything new is mapped, what the fallback holds free is
//! given back, so that what model building left behind is not paid for twice.
//!
//! A plan is a hint. A place is given only if no live block has any of its bytes, and a stream gets
//! bytes of another only after it (`order`).

mod cells;
mod follower;
mod order;
mod region;
mod view;

pub use follower::{EntryId, Follower};

use std::sync::Arc;

use girih_plan::{Place, Plan, granted};
use girih_trace::{Action, BlockState, Mark, PoolId, StreamId};

use self::cells::Span;
use self::order::{Order, fenced_entries};
use self::region::Region;
use crate::device::{Address, DeviceError};
use crate::pending::{Limbo, PendingFrees};
use crate::policy::{AllocError, BlockId, BlockView, Env, Granted, Policy, Request, SegmentView};
use crate::stats::Stats;

/// Requests of at most this many bytes count as small, as in PyTorch (`kSmallSize`).
const SMALL: u64 = 1 << 20;

/// How well the plan was followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Following {
    /// Requests that were given their place.
    pub hits: u64,
    /// Bytes requested by them.
    pub hit_bytes: u64,
    /// Requests that the fallback served.
    pub misses: u64,
    /// Bytes requested by them.
    pub miss_bytes: u64,
    /// The most bytes that the fallback held of the device.
    pub fallback_reserved_peak: u64,
    /// Waits of one stream for another that were put on the device.
    pub waits: u64,
}

/// The policy that follows a plan. See the [module](self).
pub struct Planned {
    plan: Arc<Plan>,
    /// The places of all entries of the plan in order, by [`EntryId`].
    places: Vec<Reserved>,
    follower: Follower,
    arena: Region,
    persistent: Region,
    fallback: Box<dyn Policy>,
    order: Order,
    blocks: Vec<Block>,
    vacant: Vec<u32>,
    /// Frees of blocks of the regions that wait for other streams.
    pending: PendingFrees,
    /// Device calls that are owed.
    limbo: Limbo,
    stats: Stats,
    following: Following,
}

/// A block that was given.
#[derive(Debug)]
struct Block {
    home: Home,
    address: Address,
    size: u64,
    requested: u64,
    stream: StreamId,
    pool: PoolId,
    /// Other streams that use it. Not kept for blocks of the fallback, which keeps them itself.
    users: Vec<StreamId>,
    /// Events that its free waits for.
    events: u32,
    state: BlockState,
}

/// Where a block lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Home {
    Vacant,
    Arena(Spot),
    Persistent(Spot),
    Fallback(BlockId),
}

/// Where in its region a block lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Spot {
    offset: u64,
    /// The cells that it holds.
    span: Span,
    /// Events are recorded when it is freed.
    fence: bool,
}

/// What the plan keeps for an entry.
#[derive(Clone, Copy, Debug)]
struct Reserved {
    /// Vacant for an entry that has no place.
    home: Home,
    /// The most bytes that may be requested.
    size_max: u64,
}

impl Planned {
    /// A policy that follows `plan` from its first entry and serves from `fallback` what has no
    /// place. `granularity` is the device's.
    ///
    /// The plan must have passed [`girih_plan::verify()`]: places that leave their region would
    /// otherwise be found out only when they are asked for.
    pub fn new(plan: Arc<Plan>, fallback: Box<dyn Policy>, granularity: u64) -> Planned {
        let entries = || plan.sequences.iter().flat_map(|sequence| &sequence.entries);
        let offsets = |of: fn(Place) -> Option<u64>| entries().filter_map(move |e| of(e.place));
        let in_arena = |place| if let Place::Arena(offset) = place { Some(offset) } else { None };
        let in_persistent =
            |place| if let Place::Persistent(offset) = place { Some(offset) } else { None };
        let arena = Region::new(plan.arena_bytes, granularity, offsets(in_arena));
        let persistent = Region::new(plan.persistent_bytes, granularity, offsets(in_persistent));
        let spans: Vec<Option<Span>> = entries()
            .map(|e| in_arena(e.place).map(|offset| arena.span(offset, granted(e.size_max))))
            .collect();
        let fenced = fenced_entries(&plan, arena.cell_count(), &spans);
        let places = entries().zip(spans).zip(fenced).map(|((entry, span), fence)| {
            let home = match (entry.place, span) {
                (Place::Arena(offset), Some(span)) => Home::Arena(Spot { offset, span, fence }),
                (Place::Persistent(offset), _) => {
                    let span = persistent.span(offset, granted(entry.size_max));
                    Home::Persistent(Spot { offset, span, fence })
                }
                _ => Home::Vacant,
            };
            Reserved { home, size_max: entry.size_max }
        });
        Planned {
            places: places.collect(),
            follower: Follower::new(&plan),
            arena,
            persistent,
            fallback,
            order: Order::default(),
            blocks: Vec::new(),
            vacant: Vec::new(),
            pending: PendingFrees::default(),
            limbo: Limbo::default(),
            stats: Stats::default(),
            following: Following::default(),
            plan,
        }
    }

    /// The plan that is followed.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How well the plan was followed so far.
    pub fn following(&self) -> Following {
        Following { waits: self.order.waits, ..self.following }
    }

    /// The place that `entry` has for a block of `size` bytes, held and mapped; None if something
    /// is in the way, be it a live block or a device that is full.
    fn take_place(
        &mut self,
        env: &mut Env<'_>,
        entry: EntryId,
        request: Request,
    ) -> Result<Option<Granted>, AllocError> {
        let Reserved { mut home, size_max } = self.places[entry.0 as usize];
        if request.size > size_max {
            return Ok(None);
        }
        let size = granted(request.size);
        let (region, spot) = match &mut home {
            Home::Arena(spot) => (&mut self.arena, spot),
            Home::Persistent(spot) => (&mut self.persistent, spot),
            Home::Vacant | Home::Fallback(_) => return Ok(None),
        };
        if size != granted(size_max) {
            spot.span = region.span(spot.offset, size);
        }
        if !region.take(spot.span) {
            return Ok(None);
        }
        let spot = *spot;
        let ready = self.make_ready(env, home, spot, size, request.stream);
        let region = self.region(home);
        if !matches!(ready, Ok(true)) {
            region.give(spot.span);
            return ready.map(|_| None);
        }
        let address = region.address(spot.offset);
        let block = self.add(home, address, size, request);
        Ok(Some(Granted { block, address, size }))
    }

    /// Maps the bytes of a place and orders them after whoever used them. False if the device has
    /// too little memory.
    fn make_ready(
        &mut self,
        env: &mut Env<'_>,
        home: Home,
        spot: Spot,
        size: u64,
        stream: StreamId,
    ) -> Result<bool, AllocError> {
        if !self.region(home).is_mapped(spot.offset, size) {
            self.empty_fallback(env)?;
            match self.map(env, home, (spot.offset, size)) {
                Ok(()) => {}
                Err(DeviceError::OutOfMemory { .. }) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        if matches!(home, Home::Arena(_)) {
            self.order.take(env.device, &mut self.limbo, spot.span, stream)?;
        }
        Ok(true)
    }

    fn map(&mut self, env: &mut Env<'_>, home: Home, bytes: (u64, u64)) -> Result<(), DeviceError> {
        let region = match home {
            Home::Persistent(_) => &mut self.persistent,
            _ => &mut self.arena,
        };
        let (log, before) = (&mut *env.log, region.mapped());
        let mut calls = 0;
        let mut note = |address, bytes| {
            calls += 1;
            log.record(segment_event(Action::SegmentMap, address, bytes));
        };
        let result = region.map(env.device, &mut self.limbo, bytes, &mut note);
        self.stats.num_device_alloc += calls;
        let grown = region.mapped() - before;
        self.stats.reserved_bytes.increase(false, grown);
        result
    }

    /// Gives back what the fallback holds free, if it holds anything free.
    fn empty_fallback(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        let stats = self.fallback.stats();
        if stats.reserved_bytes.all.current == stats.active_bytes.all.current {
            return Ok(());
        }
        self.with_fallback(|fallback| fallback.empty_cache(env))
    }

    /// Unmaps the chunks that no block uses. Waits for all streams first.
    fn trim(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        if !self.arena.has_idle_chunks() && !self.persistent.has_idle_chunks() {
            return Ok(self.limbo.settle(env.device)?);
        }
        for stream in self.order.streams() {
            env.device.synchronize_stream(stream)?;
        }
        self.order.clear(env.device, &mut self.limbo);
        for region in [&mut self.arena, &mut self.persistent] {
            let (log, before) = (&mut *env.log, region.mapped());
            let mut calls = 0;
            let note = |address, bytes| {
                calls += 1;
                log.record(segment_event(Action::SegmentUnmap, address, bytes));
            };
            region.trim(env.device, &mut self.limbo, note);
            self.stats.num_device_free += calls;
            self.stats.reserved_bytes.decrease(false, before - region.mapped());
        }
        Ok(self.limbo.settle(env.device)?)
    }

    /// Serves a request from the fallback.
    fn fall_back(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        let mut result = self.with_fallback(|fallback| fallback.allocate(env, request));
        if matches!(result, Err(AllocError::OutOfMemory { .. })) {
            // Before giving up: pages that the plan does not use at this moment.
            let before = self.arena.mapped() + self.persistent.mapped();
            self.trim(env)?;
            if self.arena.mapped() + self.persistent.mapped() < before {
                self.stats.num_ooms = self.stats.num_ooms.saturating_sub(1);
                self.stats.num_alloc_retries += 1;
                result = self.with_fallback(|fallback| fallback.allocate(env, request));
            }
        }
        let granted = result.map_err(|error| self.in_all(error))?;
        let home = Home::Fallback(granted.block);
        let block = self.add(home, granted.address, granted.size, request);
        Ok(Granted { block, ..granted })
    }

    /// An error of the fallback, with what all of the policy held.
    fn in_all(&self, mut error: AllocError) -> AllocError {
        if let AllocError::OutOfMemory { allocated, reserved, .. } = &mut error {
            *allocated = self.stats.allocated_bytes.all.current;
            *reserved = self.stats.reserved_bytes.all.current;
        }
        error
    }

    /// Runs an operation of the fallback and takes what it did to the device into the statistics.
    fn with_fallback<T>(&mut self, operation: impl FnOnce(&mut dyn Policy) -> T) -> T {
        let before = self.fallback.stats().clone();
        let result = operation(&mut *self.fallback);
        let after = self.fallback.stats();
        self.stats.add_change(&before, after);
        let reserved = after.reserved_bytes.all.current;
        let peak = &mut self.following.fallback_reserved_peak;
        *peak = reserved.max(*peak);
        result
    }

    fn region(&mut self, home: Home) -> &mut Region {
        match home {
            Home::Persistent(_) => &mut self.persistent,
            _ => &mut self.arena,
        }
    }

    fn add(&mut self, home: Home, address: Address, size: u64, request: Request) -> BlockId {
        let block = Block {
            home,
            address,
            size,
            requested: request.size,
            stream: request.stream,
            pool: request.pool,
            users: Vec::new(),
            events: 0,
            state: BlockState::Allocated,
        };
        if !matches!(home, Home::Fallback(_)) {
            let is_small = request.size <= SMALL;
            self.stats.allocation.increase(is_small, 1);
            self.stats.active.increase(is_small, 1);
            self.stats.allocated_bytes.increase(is_small, size);
            self.stats.active_bytes.increase(is_small, size);
            self.stats.requested_bytes.increase(is_small, request.size);
        }
        match self.vacant.pop() {
            Some(index) => {
                self.blocks[index as usize] = block;
                BlockId(index)
            }
            None => {
                self.blocks.push(block);
                BlockId(self.blocks.len() as u32 - 1)
            }
        }
    }

    /// Makes the bytes of a freed block of a region free. The block is gone afterwards.
    fn complete(&mut self, env: &mut Env<'_>, index: u32) {
        let Block { home, address, size, requested, stream, pool, .. } =
            self.blocks[index as usize];
        match home {
            Home::Arena(Spot { span, fence, .. }) => {
                self.order.free(env.device, &mut self.limbo, span, stream, fence);
                self.arena.give(span);
            }
            Home::Persistent(spot) => self.persistent.give(spot.span),
            Home::Fallback(_) | Home::Vacant => unreachable!("a block of a region completes once"),
        }
        env.log(Action::FreeCompleted, address, requested, stream, pool);
        let is_small = requested <= SMALL;
        self.stats.active.decrease(is_small, 1);
        self.stats.active_bytes.decrease(is_small, size);
        self.stats.requested_bytes.decrease(is_small, requested);
        self.remove(index);
    }

    /// The index of a block that was given and not freed.
    fn in_use(&self, block: BlockId) -> Result<u32, AllocError> {
        let known = self.blocks.get(block.0 as usize);
        let in_use = |b: &&Block| b.home != Home::Vacant && b.state == BlockState::Allocated;
        known.filter(in_use).map(|_| block.0).ok_or(AllocError::UnknownBlock(block))
    }

    fn remove(&mut self, index: u32) {
        let block = &mut self.blocks[index as usize];
        block.home = Home::Vacant;
        block.users = Vec::new();
        self.vacant.push(index);
    }

    /// Notes one more event of `index` as done; completes the free after the last.
    fn event_done(&mut self, env: &mut Env<'_>, index: u32) {
        let block = &mut self.blocks[index as usize];
        block.events -= 1;
        if block.events == 0 {
            self.complete(env, index);
        }
    }
}

impl Policy for Planned {
    fn name(&self) -> &'static str {
        "planned"
    }

    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        if self.stats.active.all.current > self.stats.allocation.all.current {
            self.process_events(env)?;
        }
        self.order.see(request.stream, self.arena.cell_count());
        if request.pool == PoolId::DEFAULT
            && let Some(entry) = self.follower.follow(request.size, request.stream)
            && let Some(granted) = self.take_place(env, entry, request)?
        {
            self.following.hits += 1;
            self.following.hit_bytes += request.size;
            let Request { size, stream, pool } = request;
            env.log(Action::Alloc, granted.address, size, stream, pool);
            return Ok(granted);
        }
        let granted = self.fall_back(env, request)?;
        self.following.misses += 1;
        self.following.miss_bytes += request.size;
        Ok(granted)
    }

    fn free(&mut self, env: &mut Env<'_>, block: BlockId) -> Result<(), AllocError> {
        let index = self.in_use(block)?;
        let Block { home, address, size, requested, stream, pool, .. } =
            self.blocks[index as usize];
        if let Home::Fallback(inner) = home {
            self.with_fallback(|fallback| fallback.free(env, inner))?;
            self.remove(index);
            return Ok(());
        }
        let users = &self.blocks[index as usize].users;
        let events = self.pending.record(env.device, &mut self.limbo, block, users)?;
        env.log(Action::FreeRequested, address, requested, stream, pool);
        if events == 0 {
            self.complete(env, index);
        } else {
            let block = &mut self.blocks[index as usize];
            (block.events, block.state) = (events, BlockState::PendingFree);
        }
        let is_small = requested <= SMALL;
        self.stats.allocation.decrease(is_small, 1);
        self.stats.allocated_bytes.decrease(is_small, size);
        Ok(())
    }

    fn record_stream(
        &mut self,
        env: &mut Env<'_>,
        block: BlockId,
        stream: StreamId,
    ) -> Result<(), AllocError> {
        let index = self.in_use(block)?;
        self.order.see_user(stream);
        let block = &mut self.blocks[index as usize];
        if let Home::Fallback(inner) = block.home {
            return self.with_fallback(|fallback| fallback.record_stream(env, inner, stream));
        }
        if stream != block.stream && !block.users.contains(&stream) {
            block.users.push(stream);
        }
        Ok(())
    }

    fn process_events(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        let mut cursor = 0;
        while let Some(block) = self.pending.next_done(env.device, &mut self.limbo, &mut cursor)? {
            self.event_done(env, block.0);
        }
        let stats = self.fallback.stats();
        if stats.active.all.current == stats.allocation.all.current {
            return Ok(()); // No block waits there.
        }
        self.with_fallback(|fallback| fallback.process_events(env))
    }

    fn empty_cache(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        while let Some(block) = self.pending.wait_next(env.device, &mut self.limbo)? {
            self.event_done(env, block.0);
        }
        self.with_fallback(|fallback| fallback.empty_cache(env))?;
        self.trim(env)
    }

    fn mark(&mut self, env: &mut Env<'_>, mark: &Mark) -> Result<(), AllocError> {
        self.follower.mark(mark.kind);
        self.fallback.mark(env, mark)
    }

    fn release_pool(&mut self, env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError> {
        self.with_fallback(|fallback| fallback.release_pool(env, pool))
    }

    fn stats(&self) -> &Stats {
        &self.stats
    }

    fn visit(&self, visitor: &mut dyn FnMut(SegmentView, &[BlockView])) {
        for (segment, blocks) in self.views() {
            visitor(segment, &blocks);
        }
    }

    fn check(&self) -> Result<(), String> {
        let (mut in_arena, mut in_persistent) = (Vec::new(), Vec::new());
        for block in &self.blocks {
            match block.home {
                Home::Arena(spot) => in_arena.push((spot.offset, spot.offset + block.size)),
                Home::Persistent(spot) => {
                    in_persistent.push((spot.offset, spot.offset + block.size));
                }
                Home::Vacant | Home::Fallback(_) => {}
            }
        }
        self.arena.check(in_arena).map_err(|fault| format!("arena: {fault}"))?;
        self.persistent
            .check(in_persistent)
            .map_err(|fault| format!("persistent region: {fault}"))?;
        self.fallback.check().map_err(|fault| format!("fallback: {fault}"))?;
        let fallback = self.fallback.stats();
        let mut active = fallback.active_bytes.all.current;
        let mut allocated = fallback.allocated_bytes.all.current;
        let ours = |block: &&Block| !matches!(block.home, Home::Vacant | Home::Fallback(_));
        for block in self.blocks.iter().filter(ours) {
            active += block.size;
            allocated += if block.state == BlockState::Allocated { block.size } else { 0 };
        }
        let reserved =
            self.arena.mapped() + self.persistent.mapped() + fallback.reserved_bytes.all.current;
        let counted = &self.stats;
        for (name, counter, sum) in [
            ("active", counted.active_bytes, active),
            ("allocated", counted.allocated_bytes, allocated),
            ("reserved", counted.reserved_bytes, reserved),
        ] {
            if counter.all.current != sum {
                return Err(format!("{name}: counted {} bytes, found {sum}", counter.all.current));
            }
        }
        Ok(())
    }
}

/// An event of pages that no stream owns.
fn segment_event(action: Action, address: Address, size: u64) -> girih_trace::Event {
    girih_trace::Event {
        address,
        size,
        time_us: 0,
        stack: girih_trace::StackId::NONE,
        stream: StreamId(0),
        pool: PoolId::DEFAULT,
        action,
    }
}
