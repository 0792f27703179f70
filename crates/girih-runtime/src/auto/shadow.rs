//! A shadow: goes along a plan while the run goes on without it, and sees whether it would fit.

use girih_plan::{Place, Plan, granted};
use girih_trace::MarkKind;

use crate::lake::Follower;
use crate::policy::Request;

/// Goes along a plan that is not followed.
#[derive(Debug)]
pub(super) struct Shadow {
    follower: Follower,
    /// The most bytes that each entry has a place for; 0 for one without a place.
    room: Vec<u64>,
    /// Bytes that would have had their place.
    found: u64,
    /// Bytes that would have had none.
    missed: u64,
    /// It has been there since the iteration began.
    is_whole: bool,
}

impl Shadow {
    /// A shadow that begins where the steady iteration of the plan does.
    pub(super) fn new(plan: &Plan) -> Shadow {
        let entries = plan.sequences.iter().flat_map(|sequence| &sequence.entries);
        let room = entries.map(|entry| match entry.place {
            Place::Outside => 0,
            _ => granted(entry.size_max),
        });
        let mut follower = Follower::new(plan);
        follower.join();
        Shadow { follower, room: room.collect(), found: 0, missed: 0, is_whole: false }
    }

    /// A request of the default pool.
    #[inline]
    pub(super) fn see(&mut self, request: &Request) {
        let entry = self.follower.follow(request.size, request.stream);
        let room = entry.map_or(0, |entry| self.room[entry.0 as usize]);
        *(if request.size <= room { &mut self.found } else { &mut self.missed }) += request.size;
    }

    /// A mark of the program.
    pub(super) fn mark(&mut self, kind: MarkKind) {
        self.follower.mark(kind);
    }

    /// An iteration has ended, and the next begins: the bytes that would have had their place, and those that
    /// would not. None if it has seen a part of it alone.
    pub(super) fn end_iteration(&mut self) -> Option<(u64, u64)> {
        let seen = (std::mem::take(&mut self.found), std::mem::take(&mut self.missed));
        std::mem::replace(&mut self.is_whole, true).then_some(seen)
    }
}
