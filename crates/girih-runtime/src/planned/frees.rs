//! The way of a freed block of the regions: at once, or when the events of other streams are done.
//!
//! ```text
//!  free ─┬─ no other stream used it ──────────────────► its bytes are free
//!        ├─ others did ─► pending, an event for each ─► its bytes are free
//!        └─ during a capture ─► deferred until its end ─► pending
//! ```

use girih_trace::{Action, StreamId};

use super::block::{Block, Home, Spot};
use super::{Planned, SMALL};
use crate::policy::{AllocError, BlockId, Env, Policy};

impl Planned {
    /// Makes the bytes of a freed block free. The block is gone afterwards.
    #[inline(always)] // Most blocks are complete at once: their free is one piece.
    pub(super) fn complete(&mut self, env: &mut Env<'_>, id: BlockId) {
        let Block { home, address, size, requested, stream, pool, .. } = *self.blocks.at(id);
        let freed = self.order.free();
        match home {
            Home::Arena(Spot { span, fence, is_guest, .. }) => {
                self.last_uses.free(span, stream, freed);
                if fence && !self.last_uses.is_trivial() {
                    self.order.want();
                }
                self.layout.arena.give(span);
                if is_guest {
                    self.guests.leave(size);
                }
            }
            Home::Persistent(spot) => self.layout.persistent.give(spot.span),
            Home::Retired(_, spot) => {
                let region = self.region(home);
                region.give(spot.span);
                self.retired_is_idle |= region.is_empty();
            }
            Home::Vacant => unreachable!("a block of a region completes once"),
        }
        env.log(Action::FreeCompleted, address, requested, stream, pool);
        let is_small = requested <= SMALL;
        self.stats.active.decrease(is_small, 1);
        self.stats.active_bytes.decrease(is_small, size);
        self.stats.requested_bytes.decrease(is_small, requested);
        self.blocks.remove(id);
    }

    /// Notes one more event of a block as done; completes the free after the last.
    pub(super) fn event_done(&mut self, env: &mut Env<'_>, id: BlockId) {
        let block = self.blocks.at(id);
        block.events -= 1;
        if block.events == 0 {
            self.complete(env, id);
        }
    }

    /// Completes the frees of the regions' blocks whose events are done. Not during a capture.
    pub(super) fn process_own_events(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        self.end_deferral(env)?;
        let mut cursor = 0;
        while let Some(id) = self.pending.next_done(env.device, &mut self.limbo, &mut cursor)? {
            self.event_done(env, id);
        }
        Ok(())
    }

    /// Waits for the events of the regions' blocks and completes their frees. During a capture nothing
    /// can be waited for, and nothing is done.
    pub(super) fn wait_for_own_frees(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        if self.captures > 0 {
            return Ok(());
        }
        self.end_deferral(env)?;
        while let Some(id) = self.pending.wait_next(env.device, &mut self.limbo)? {
            self.event_done(env, id);
        }
        Ok(())
    }

    /// Gives the blocks that were freed during a capture their events. A capture that nobody has told of
    /// may still be under way; its blocks stay.
    pub(super) fn end_deferral(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        let mut staying = 0;
        while let Some(&id) = self.deferred.get(staying) {
            // The streams may be gone by now: none is named.
            let block = self.blocks.at(id);
            if !self.pending.record_fence(env.device, id, &block.users)? {
                staying += 1;
                continue;
            }
            block.events = 1;
            self.deferred.remove(staying);
        }
        Ok(())
    }

    /// What is due before a request once there are regions: frees that other streams held up, and
    /// regions whose last block is gone.
    #[inline]
    pub(super) fn catch_up(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        if self.captures > 0 {
            return Ok(());
        }
        if self.stats.active.all.current > self.stats.allocation.all.current {
            self.process_events(env)?;
        }
        if !self.retired_is_idle {
            return Ok(());
        }
        // Nobody has asked for their pages: these go to the device.
        self.pool.keep(false);
        let reclaimed = self.reclaim(env);
        self.pool.keep(self.is_following);
        reclaimed
    }
}

/// True if a graph is being captured from one of the streams, begun by whomever: no event may be recorded
/// there.
pub(super) fn is_captured(env: &mut Env<'_>, streams: &[StreamId]) -> Result<bool, AllocError> {
    for &stream in streams {
        if env.device.is_capturing(stream)? {
            return Ok(true);
        }
    }
    Ok(false)
}
