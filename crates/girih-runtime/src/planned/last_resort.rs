//! What is tried before a request fails.
//!
//! Memory that is free anywhere serves a request before the program is told that there is none, in
//! this order:
//!
//! 1. The fallback's own: its cache, private pools that lend or have no users, its frees that wait for
//!    other streams, and whatever lies in the pool of pages. What it gives back goes into the pool, and
//!    what it then takes comes from there.
//! 2. Frees of blocks in the regions that wait for other streams are waited for.
//! 3. Chunks in which no block lives go into the pool: those of retired regions, of the arena and of
//!    the persistent region. All streams are waited for first.
//! 4. The request's place in the plan, if it has one, and if that could not be mapped before.
//! 5. The fallback again, if there was anything in 3.
//! 6. Idle bytes between the blocks of the arena, wherever they are: the request is a guest, welcome or
//!    not ([`guests`](super::guests)).
//!
//! Then the pool goes back to the device, and the request fails. During a capture nothing can be waited
//! for: 2 and 3 are left out, and so are places and bytes that must be waited for.
//!
//! A request that has a place comes the same way: if the place cannot be mapped, the fallback is asked,
//! which often has something. Only before an error does everything make way for the place.

use girih_trace::PoolId;

use super::block::{Home, is_own};
use super::{EntryId, Planned};
use crate::policy::{AllocError, BlockId, Env, Granted, Request};

/// How many requests failed, and how many were refused before anything was given back for them.
pub(super) type Refusals = (u64, u64);

impl Planned {
    /// The requests that got nothing so far.
    pub(super) fn refusals(&self) -> Refusals {
        (self.stats.num_ooms, self.stats.num_oom_rejections)
    }

    /// Takes back what a part has counted, of a request that may still be served.
    fn set_refusals(&mut self, refusals: Refusals) {
        (self.stats.num_ooms, self.stats.num_oom_rejections) = refusals;
    }

    /// Steps 2 to 6 for a request that the fallback has refused; see the [module](self). None if nothing
    /// is left but the error. `refusals` are those without this
    /// one.
    #[cold]
    pub(super) fn last_resort(
        &mut self,
        env: &mut Env<'_>,
        request: &Request,
        entry: Option<EntryId>,
        refusals: Refusals,
    ) -> Result<Option<Granted>, AllocError> {
        let failed = self.refusals();
        self.set_refusals(refusals);
        // What the device refuses in one step may not be needed after the next.
        let _ = self.wait_for_own_frees(env);
        let before = self.mapped();
        let _ = self.trim(env);
        if let Ok(Some(granted)) = self.take_place_at_last(env, request, entry) {
            return Ok(Some(granted));
        }
        if self.mapped() < before {
            self.share_limit(env);
            self.stats.num_alloc_retries += 1;
            let again = self.with_fallback(env, |fallback, env| fallback.allocate(env, *request));
            match again {
                Err(AllocError::OutOfMemory { .. }) => self.set_refusals(refusals),
                served => return served.map(Some),
            }
        }
        if request.pool == PoolId::DEFAULT
            && let Ok(Some(granted)) = self.take_idle_at_last(env, request)
        {
            return Ok(Some(granted));
        }
        // What is refused stays in the pool.
        let _ = self.drain(env);
        self.set_refusals(failed);
        Ok(None)
    }

    /// The place of a request once everything has made way for it, also in an iteration in which no
    /// places are given because the plan had asked for more than it may: what it asks for is less now.
    fn take_place_at_last(
        &mut self,
        env: &mut Env<'_>,
        request: &Request,
        entry: Option<EntryId>,
    ) -> Result<Option<Granted>, AllocError> {
        let Some(entry) = entry else { return Ok(None) };
        let was_suspended = std::mem::replace(&mut self.strain.is_suspended, false);
        let granted = self.take_place(env, request, entry);
        self.strain.is_suspended = was_suspended;
        granted
    }

    /// True if the block has the place that the plan keeps for it.
    pub(super) fn is_in_its_place(&mut self, id: BlockId) -> bool {
        is_own(id)
            && match self.blocks.at(id).home {
                Home::Arena(spot) => !spot.is_guest,
                home => matches!(home, Home::Persistent(_)),
            }
    }
}
