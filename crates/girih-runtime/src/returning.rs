//! The way of a block back, for policies whose blocks are free again as soon as nobody uses them.
//!
//! ```text
//!  free ─┬─ nobody else uses it ──────────────────────────────► complete
//!        ├─ other streams do ─► pending, until their events are done ─┘
//!        └─ and a graph is captured ─► deferred, until the capture ends ─► pending
//! ```
//!
//! On its own stream a block is reused at once: work there is done in order. During a capture no
//! event is recorded and none is asked.

use crate::device::DeviceError;
use crate::pending::{Limbo, PendingFrees};
use crate::policy::{BlockId, Env};

/// A policy with such blocks. All blocks that are named are alive.
pub(crate) trait Returning {
    /// Whether a graph is being captured.
    fn is_capturing(&self) -> bool;

    /// The events that blocks wait for, and the calls that are owed.
    fn pending(&mut self) -> (&mut PendingFrees, &mut Limbo);

    /// Blocks freed during a capture; they get their events after it.
    fn deferred(&mut self) -> &mut Vec<BlockId>;

    /// Whether other streams use a block.
    fn has_users(&self, id: BlockId) -> bool;

    /// Records an event on each stream that uses a block, and counts them. On an error there is none.
    fn record_events(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), DeviceError>;

    /// The events that a block still waits for.
    fn events(&mut self, id: BlockId) -> &mut u32;

    /// Counts that the program let a block go.
    fn let_go(&mut self, env: &mut Env<'_>, id: BlockId);

    /// Makes the bytes of a block free. The block is gone afterwards.
    fn complete(&mut self, env: &mut Env<'_>, id: BlockId);

    /// Takes a block back that is in use.
    fn take_back(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), DeviceError> {
        if !self.has_users(id) {
            self.let_go(env, id);
            self.complete(env, id);
        } else if self.is_capturing() {
            self.let_go(env, id);
            self.deferred().push(id);
        } else {
            self.record_events(env, id)?;
            self.let_go(env, id);
        }
        Ok(())
    }

    /// Completes the frees whose events are done. Not during a capture.
    fn complete_frees(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        self.end_deferral(env)?;
        let mut cursor = 0;
        loop {
            let (pending, limbo) = self.pending();
            let Some(id) = pending.next_done(env.device, limbo, &mut cursor)? else { break };
            self.count_event(env, id);
        }
        Ok(())
    }

    /// Waits for every event and completes every free. Not during a capture.
    fn wait_for_frees(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        self.end_deferral(env)?;
        loop {
            let (pending, limbo) = self.pending();
            let Some(id) = pending.wait_next(env.device, limbo)? else { break };
            self.count_event(env, id);
        }
        Ok(())
    }

    /// True if a block was freed whose bytes are not free yet.
    fn has_waiting(&mut self) -> bool {
        !(self.pending().0.is_empty() && self.deferred().is_empty())
    }

    /// Gives the blocks that were freed during a capture their events.
    fn end_deferral(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        while let Some(&id) = self.deferred().last() {
            self.record_events(env, id)?;
            self.deferred().pop();
        }
        Ok(())
    }

    /// Counts that an event of a block is done.
    fn count_event(&mut self, env: &mut Env<'_>, id: BlockId) {
        let events = self.events(id);
        *events -= 1;
        if *events == 0 {
            self.complete(env, id);
        }
    }
}
