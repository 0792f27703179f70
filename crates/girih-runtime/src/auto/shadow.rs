//! A shadow: goes along a plan while the run goes on without it, and sees whether it would fit.

use girih_plan::Plan;
use girih_trace::MarkKind;

use crate::lake::Rehearsal;
use crate::policy::{BlockId, Request};

/// Goes along a plan that is not followed.
#[derive(Debug)]
pub(super) struct Shadow {
    rehearsal: Rehearsal,
    /// Bytes that would have had their place.
    found: u64,
    /// Bytes that would have had none, or one that is taken.
    missed: u64,
    /// It has been there since the iteration began.
    is_whole: bool,
}

impl Shadow {
    /// A shadow that begins where the steady iteration of the plan does. `granule` is the device's, in bytes.
    pub(super) fn new(plan: &Plan, granule: u64) -> Shadow {
        let rehearsal = Rehearsal::new(plan, granule);
        Shadow { rehearsal, found: 0, missed: 0, is_whole: false }
    }

    /// A request of the default pool, which `block` serves.
    #[inline]
    pub(super) fn see(&mut self, request: &Request, block: BlockId) {
        let is_found = self.rehearsal.allocate(request, block);
        *(if is_found { &mut self.found } else { &mut self.missed }) += request.size;
    }

    /// A block is freed.
    #[inline]
    pub(super) fn free(&mut self, block: BlockId) {
        self.rehearsal.free(block);
    }

    /// A mark of the program.
    pub(super) fn mark(&mut self, kind: MarkKind) {
        self.rehearsal.mark(kind);
    }

    /// An iteration has ended, and the next begins: the bytes that would have had their place, and those that
    /// would not. None if it has seen a part of it alone.
    pub(super) fn end_iteration(&mut self) -> Option<(u64, u64)> {
        let seen = (std::mem::take(&mut self.found), std::mem::take(&mut self.missed));
        std::mem::replace(&mut self.is_whole, true).then_some(seen)
    }
}
