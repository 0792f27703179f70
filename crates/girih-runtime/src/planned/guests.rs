//! Guests: requests that have no place take space of the arena that is idle.
//!
//! The arena is mapped for the peak of an iteration, and most of the time much of it is idle. A
//! request off the plan that would make the fallback grow by more than is let pass
//! ([`growth`](super::growth)) is put there instead, where the plan wants nothing for as long as
//! possible, and there as high as it fits: most of what comes and goes lies low.
//!
//! ```text
//!  top     |  idle                    ccccc     c comes soon: not here
//!          |  idle | guest |                    <- the highest idle run that is long enough
//!          | bbb | idle |
//!  bottom  | aaaaaaaaaaa | idle |
//!                  now       entries to come ─►
//! ```
//!
//! A guest costs no call of the device. If it is still there when its bytes are wanted, the block
//! that they were kept for is a guest elsewhere, or the fallback's: a guest is a miss that moved.
//! What stays for longer than an iteration would be in the way each time. So there are no guests
//! before an iteration has gone by, in which programs make what they keep; and none while others
//! have stayed on. Before a request fails these rules do not hold: see
//! [`last_resort`](super::last_resort).

use super::block::{Home, Spot};
use super::cells::Span;
use super::{Planned, SMALL};
use crate::policy::{AllocError, Env, Granted, Request};

/// Guests that outlive their iteration may have this share of the arena, one byte in so many; with
/// more no others are let in.
const STAYING: u64 = 64;

/// A guest is put where the plan wants nothing for so many entries to come, or else for so many.
const AHEAD: [usize; 2] = [4096, 512];
/// The same where nothing else is left but an error: anywhere, if need be.
const AHEAD_AT_LAST: [usize; 3] = [AHEAD[0], AHEAD[1], 0];

/// Who is there off the plan.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Guests {
    /// Bytes of the arena that they have.
    bytes: u64,
    /// Iterations that have begun under this plan.
    iterations: u32,
    /// New ones are let in.
    are_welcome: bool,
}

impl Guests {
    /// Guests of a plan that is taken up as its first (`false`) or a later iteration begins.
    pub(super) fn of_plan(has_run: bool) -> Guests {
        Guests { iterations: u32::from(has_run), ..Guests::default() }
    }

    /// A guest of `size` bytes has left.
    #[inline]
    pub(super) fn leave(&mut self, size: u64) {
        self.bytes -= size;
    }

    /// An iteration begins in an arena of so many bytes.
    pub(super) fn begin_iteration(&mut self, arena: u64) {
        self.are_welcome = self.iterations > 0 && self.bytes <= arena / STAYING;
        self.iterations = self.iterations.saturating_add(1);
    }
}

impl Planned {
    /// Idle space of the arena for a request that has no place. None if there is none that is
    /// mapped, or if the fallback has free memory for it or may grow.
    pub(super) fn take_idle(
        &mut self,
        env: &mut Env<'_>,
        request: &Request,
    ) -> Result<Option<Granted>, AllocError> {
        let after = self.held_by_parts() + request.size;
        if !self.guests.are_welcome || request.size <= SMALL {
            return Ok(None);
        }
        self.note_use(request.size);
        if self.growth.is_free(after, request.size) || self.fallback.has_room(request) {
            return Ok(None);
        }
        self.lodge(env, request, &AHEAD)
    }

    /// Idle space of the arena for a request that nothing else can serve, welcome or not.
    pub(super) fn take_idle_at_last(
        &mut self,
        env: &mut Env<'_>,
        request: &Request,
    ) -> Result<Option<Granted>, AllocError> {
        self.lodge(env, request, &AHEAD_AT_LAST)
    }

    fn lodge(
        &mut self,
        env: &mut Env<'_>,
        request: &Request,
        ahead: &[usize],
    ) -> Result<Option<Granted>, AllocError> {
        let size = girih_plan::granted(request.size);
        let Some((offset, span)) = self.idle_place(size, ahead) else { return Ok(None) };
        let spot = Spot { offset, span, fence: false, is_guest: true };
        let granted = self.settle(env, Home::Arena(spot), spot, request)?;
        if let Some(Granted { size, .. }) = granted {
            self.guests.bytes += size;
            self.following.guests += 1;
            self.following.guest_bytes += request.size;
        }
        Ok(granted)
    }

    /// A place in the arena that is idle for now, and which the plan does not want for one of these
    /// numbers of entries to come, the first that is possible.
    fn idle_place(&self, size: u64, counts: &[usize]) -> Option<(u64, Span)> {
        let places = self.follower.ahead().map(|entry| self.layout.places[entry.0 as usize].home);
        let in_arena = |home| if let Home::Arena(spot) = home { Some(spot.span) } else { None };
        let ahead: Vec<Option<Span>> = places.map(in_arena).take(AHEAD[0]).collect();
        counts.iter().find_map(|&count| {
            let soon = ahead.iter().take(count).copied().flatten();
            self.layout.arena.idle_place(size, &soon.collect::<Vec<Span>>())
        })
    }
}
