//! The memory of the regions: mapped when the first block comes to lie in it, given back when it is
//! idle and somebody needs it.
//!
//! Before anything is mapped, what is held free elsewhere is given back: chunks of retired regions,
//! and the cache of the fallback. So a plan that is taken up in the middle of a run does not come on
//! top of what it replaces. What is given back goes into the pool, and what is mapped comes from there:
//! a page that one part leaves to another costs no call to create it or to release it, and nothing more
//! is held.
//!
//! ```text
//!  fallback ── empty_fallback ─►┐        ┌─ map ──────► arena, persistent region
//!                               │  pool  │
//!  regions ─── trim, reclaim ──►┘   │    └─ make_room ► fallback
//!                                   └─ drain, begin_iteration ► device
//! ```

use girih_trace::{Action, PoolId, StackId, StreamId};

use super::block::{Home, Spot};
use super::growth::CREDIT_MIN;
use super::region::Region;
use super::{Planned, Request};
use crate::device::{Address, DeviceError};
use crate::page_pool::PagePool;
use crate::pending::Limbo;
use crate::policy::{AllocError, Env};
use crate::stats::Stats;

/// A plan is inflated if it needs more than may be held while so much of that, one part in so many,
/// is idle.
const INFLATED: u64 = 32;
/// The fallback grows by this much at least (`kSmallBuffer`).
const SMALL_SEGMENT: u64 = 2 << 20;

impl Planned {
    /// Maps the bytes of a place of the plan and orders them after whoever used them. False if that cannot be:
    /// the device or the limit has too little memory, or a capture is under way.
    #[inline]
    pub(super) fn make_ready(
        &mut self,
        env: &mut Env<'_>,
        home: Home,
        spot: Spot,
        request: &Request,
        size: u64,
    ) -> Result<bool, AllocError> {
        let stays = matches!(home, Home::Persistent(_));
        if !self.layout.region(stays).is_mapped(spot.offset, size)
            && !self.map(env, home, (spot.offset, size))?
        {
            return Ok(false);
        }
        if stays || self.last_uses.is_trivial() {
            return Ok(true);
        }
        let latest = self.last_uses.latest(spot.span, request.stream);
        if !self.order.must_wait(latest, request.stream) {
            return Ok(true);
        }
        let Planned { order, limbo, .. } = self;
        Ok(self.captures == 0 && order.wait(env.device, limbo, latest, request.stream)?)
    }

    /// Maps what is missing under `(offset, size)` of a region. False if the device or the limit
    /// has too little memory, or if a capture is under way.
    #[cold]
    fn map(
        &mut self,
        env: &mut Env<'_>,
        home: Home,
        bytes: (u64, u64),
    ) -> Result<bool, AllocError> {
        if self.captures > 0 {
            return Ok(false);
        }
        let missing = self.region(home).missing(bytes.0, bytes.1);
        // What the arena does not use now it will use later in the iteration. Only while the model is
        // built does it make way, for what is there to stay.
        let makes_way = matches!(home, Home::Persistent(_)) && self.growth.is_opening();
        let idle = |own: &Planned| {
            let regions = if makes_way { own.idle_in_regions() } else { own.idle_in_retired() };
            regions + own.fallback.releasable()
        };
        if self.gives_back_for(missing, true, idle) {
            if makes_way {
                self.trim(env)?;
            } else {
                self.reclaim(env)?;
            }
            self.empty_fallback(env)?;
        }
        let after = self.held_by_parts() + missing;
        if self.is_inflated(after, bytes.1) {
            self.strain.is_suspended = true;
            return Ok(false);
        }
        if self.limit(env).is_some_and(|limit| after > limit) {
            return Ok(false);
        }
        self.respect_limit(env);
        let region = match home {
            Home::Persistent(_) => &mut self.layout.persistent,
            _ => &mut self.layout.arena,
        };
        let (log, before) = (&mut *env.log, region.mapped());
        let mut calls = 0;
        let mut note = |address, bytes| {
            calls += 1;
            log.record(segment_event(Action::SegmentMap, address, bytes));
        };
        let mut device = self.pool.before(env.device);
        let result = region.map(&mut device, &mut self.limbo, bytes, &mut note);
        let mapped = region.mapped() - before;
        self.stats.num_device_alloc += calls;
        self.count_pool();
        self.stats.reserved_bytes.increase(false, mapped);
        self.note_growth();
        match result {
            Ok(()) => Ok(true),
            Err(DeviceError::OutOfMemory { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// True if the plan, not the program, asks for more than it may: the envelope of iterations that
    /// were hard to align can be larger than any of them.
    fn is_inflated(&self, after: u64, size: u64) -> bool {
        let active = self.stats.active_bytes.all.current + size;
        after > self.growth.ceiling && active < self.growth.ceiling - self.growth.ceiling / INFLATED
    }

    /// The fallback is about to take `bytes` or more from the device. Idle chunks go back first, if
    /// the growth is not let pass.
    #[cold]
    pub(super) fn make_room(&mut self, env: &mut Env<'_>, bytes: u64) -> Result<(), AllocError> {
        let bytes = bytes.max(SMALL_SEGMENT);
        if self.gives_back_for(bytes, false, Planned::idle_in_regions) {
            self.trim(env)?;
        }
        Ok(())
    }

    /// True if what is idle (`idle` says how many bytes) must go back before `bytes` are taken, for
    /// the plan or for others.
    fn gives_back_for(
        &mut self,
        bytes: u64,
        for_plan: bool,
        idle: impl FnOnce(&Planned) -> u64,
    ) -> bool {
        let after = self.held_by_parts() + bytes;
        self.note_use(bytes);
        after > self.growth.high && !self.growth.is_foreseen(after, for_plan) && {
            let idle = idle(self);
            self.growth.gives_back(after, bytes, idle)
        }
    }

    /// Bytes held without the pool. It is by these that growth is judged: a page that goes into the
    /// pool and comes out again is no growth, and the pool gives back what others take.
    #[inline]
    pub(super) fn held_by_parts(&self) -> u64 {
        self.stats.reserved_bytes.all.current - self.pooled
    }

    /// Keeps the most that was in use in mind, with `bytes` for the request at hand.
    pub(super) fn note_use(&mut self, bytes: u64) {
        let active = &self.stats.active_bytes.all;
        self.growth.note_use(active.peak.max(active.current.saturating_add(bytes)));
    }

    /// Keeps the most that was held in mind.
    #[inline]
    pub(super) fn note_growth(&mut self) {
        self.growth.note(self.held_by_parts());
    }

    fn has_idle_chunks(&self) -> bool {
        self.layout.arena.has_idle_chunks()
            || self.layout.persistent.has_idle_chunks()
            || self.has_idle_retired()
    }

    /// Bytes of the regions that could go back.
    pub(super) fn idle_in_regions(&self) -> u64 {
        self.layout.arena.idle() + self.layout.persistent.idle() + self.idle_in_retired()
    }

    fn idle_in_retired(&self) -> u64 {
        self.retired.iter().flatten().map(Region::idle).sum()
    }

    fn fallback_is_idle(&self) -> bool {
        let stats = self.fallback.stats();
        stats.reserved_bytes.all.current > stats.active_bytes.all.current
    }

    /// Gives what the fallback holds free to the pool, if it holds anything free.
    fn empty_fallback(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        if !self.fallback_is_idle() {
            return Ok(());
        }
        self.with_fallback(env, |fallback, env| fallback.empty_cache(env))
    }

    /// The model is built, and what that has left behind in the fallback is of no more use.
    #[cold]
    pub(super) fn end_opening(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        if self.fallback.releasable() >= CREDIT_MIN {
            self.with_fallback(env, |fallback, env| fallback.empty_cache(env))?;
        }
        self.drain(env)
    }

    /// Gives all pages of the pool to the device.
    pub(super) fn drain(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        let result = self.pool.drain(env.device);
        self.count_pool();
        Ok(result?)
    }

    /// Makes the calls that are owed. A handle that was to be released goes into the pool.
    pub(super) fn settle_debts(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        let result = self.limbo.settle(&mut self.pool.before(env.device));
        self.count_pool();
        Ok(result?)
    }

    /// Takes what has become of the pool into the statistics. What was taken out of it is to be counted
    /// before it is counted where it went, so that it is never counted twice.
    pub(super) fn count_pool(&mut self) {
        let bytes = self.pool.bytes();
        let reserved = &mut self.stats.reserved_bytes;
        reserved.decrease(false, self.pooled.saturating_sub(bytes));
        reserved.increase(false, bytes.saturating_sub(self.pooled));
        self.pooled = bytes;
    }

    /// Unmaps the chunks of all regions that no block uses; they go into the pool. Waits for all streams
    /// first; during a capture nothing can be waited for, and nothing is done.
    pub(super) fn trim(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        if self.captures == 0 && self.has_idle_chunks() && self.synchronize(env)? {
            for region in [&mut self.layout.arena, &mut self.layout.persistent] {
                unmap_idle(region, env, &mut self.pool, &mut self.limbo, &mut self.stats);
            }
            self.unmap_retired(env);
        }
        self.settle_debts(env)
    }

    /// Unmaps the chunks of retired regions that no block uses. Waits for all streams first.
    pub(super) fn reclaim(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        if self.captures > 0 || !self.has_idle_retired() {
            return Ok(());
        }
        if self.synchronize(env)? {
            self.unmap_retired(env);
        }
        Ok(())
    }

    fn has_idle_retired(&self) -> bool {
        self.retired.iter().flatten().any(Region::has_idle_chunks)
    }

    /// Unmaps idle chunks of retired regions, for which all streams were waited, and forgets the
    /// regions that have nothing left.
    pub(super) fn unmap_retired(&mut self, env: &mut Env<'_>) {
        self.retired_is_idle = false;
        for place in &mut self.retired {
            if let Some(region) = place {
                unmap_idle(region, env, &mut self.pool, &mut self.limbo, &mut self.stats);
                if region.mapped() == 0 {
                    *place = None;
                }
            }
        }
        if self.retired.iter().all(Option::is_none) {
            self.retired.clear();
        }
        self.count_pool();
    }

    /// Waits on the host for all who may use what was freed in the regions. False if that cannot be now: a
    /// graph is captured that nobody has told of.
    pub(super) fn synchronize(&mut self, env: &mut Env<'_>) -> Result<bool, DeviceError> {
        self.order.synchronize_all(env.device, &mut self.limbo)
    }

    /// Bytes of the regions of the present plan that are mapped.
    #[inline]
    pub(super) fn mapped_by_plan(&self) -> u64 {
        self.layout.arena.mapped() + self.layout.persistent.mapped()
    }

    /// Bytes of all regions that are mapped.
    pub(super) fn mapped(&self) -> u64 {
        let retired: u64 = self.retired.iter().flatten().map(Region::mapped).sum();
        self.mapped_by_plan() + retired
    }

    #[inline]
    pub(super) fn region(&mut self, home: Home) -> &mut Region {
        match home {
            Home::Persistent(_) => &mut self.layout.persistent,
            Home::Retired(place, _) => self.retired[place as usize]
                .as_mut()
                .expect("a region lives as long as a block lives in it"),
            _ => &mut self.layout.arena,
        }
    }
}

/// Unmaps the chunks of a region that no block uses. The pool is not counted yet.
fn unmap_idle(
    region: &mut Region,
    env: &mut Env<'_>,
    pool: &mut PagePool,
    limbo: &mut Limbo,
    stats: &mut Stats,
) {
    let (log, before) = (&mut *env.log, region.mapped());
    let mut calls = 0;
    let note = |address, bytes| {
        calls += 1;
        log.record(segment_event(Action::SegmentUnmap, address, bytes));
    };
    region.trim(&mut pool.before(env.device), limbo, note);
    stats.num_device_free += calls;
    stats.reserved_bytes.decrease(false, before - region.mapped());
}

/// An event of pages that no stream owns.
fn segment_event(action: Action, address: Address, size: u64) -> girih_trace::Event {
    girih_trace::Event {
        address,
        size,
        time_us: 0,
        stack: StackId::NONE,
        stream: StreamId(0),
        pool: PoolId::DEFAULT,
        action,
    }
}
