//! A rehearsal: goes along a plan while the run goes on without it, and keeps the books of its window.
//!
//! That a request has a place in the plan does not tell that the place is free when it comes: what an iteration
//! leaves to the next may lie where that one, if it is of another kind, has something else. So a rehearsal
//! takes and gives back the cells of places as a window does, and no memory.

use girih_plan::{Plan, granted};
use girih_trace::MarkKind;
use rustc_hash::FxHashMap;

use super::Follower;
use super::cells::{Bits, Cells, Span};
use super::places::Places;
use crate::policy::{BlockId, Request};

/// A plan that is gone along. See the [module](self).
#[derive(Debug)]
pub(crate) struct Rehearsal {
    follower: Follower,
    places: Places,
    cells: Cells,
    held: Bits,
    /// The cells of each live block that would lie in its place.
    taken: FxHashMap<BlockId, Span>,
    /// Bytes that would have had their place, and those that would have had none, or one that is taken.
    seen: (u64, u64),
    /// It has been there since the iteration began.
    is_whole: bool,
}

impl Rehearsal {
    /// Begins where the steady iteration of `plan` does, with all places free. `granule` is the device's, in bytes.
    pub(crate) fn new(plan: &Plan, granule: u64) -> Rehearsal {
        let (places, cells) = Places::of(plan, granule);
        let mut follower = Follower::new(plan);
        follower.join();
        let held = Bits::new(&cells, false);
        let (taken, seen, is_whole) = (FxHashMap::default(), (0, 0), false);
        Rehearsal { follower, places, cells, held, taken, seen, is_whole }
    }

    /// A request of the default pool, which `block` serves.
    pub(crate) fn allocate(&mut self, request: &Request, block: BlockId) {
        let size = granted(request.size);
        let entry = self.follower.follow(request.size, request.stream);
        let spot = entry.and_then(|entry| self.places.spot(entry, size, &self.cells));
        let Some(spot) = spot.filter(|spot| self.held.take(spot.span)) else {
            self.seen.1 += request.size;
            return;
        };
        self.seen.0 += request.size;
        self.places.note(&spot, size);
        if let Some(old) = self.taken.insert(block, spot.span) {
            // Its free was not seen.
            self.held.fill(old, false);
            self.held.fill(spot.span, true);
        }
    }

    /// A block is freed, whether it lay in a place or not.
    pub(crate) fn free(&mut self, block: BlockId) {
        if let Some(span) = self.taken.remove(&block) {
            self.held.fill(span, false);
        }
    }

    /// A mark of the program.
    pub(crate) fn mark(&mut self, kind: MarkKind) {
        self.follower.mark(kind);
    }

    /// An iteration has ended, and the next begins: the bytes that would have had their place, and those that
    /// would not. None if it has seen a part of it alone.
    pub(crate) fn end_iteration(&mut self) -> Option<(u64, u64)> {
        let seen = std::mem::take(&mut self.seen);
        std::mem::replace(&mut self.is_whole, true).then_some(seen)
    }
}
