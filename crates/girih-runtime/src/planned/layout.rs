//! A plan laid out: its two regions, and what is kept of each of its entries.

use std::sync::Arc;

use girih_plan::{Place, Plan, granted};
use girih_trace::StreamId;

use super::block::{Home, Spot};
use super::cells::Span;
use super::order::fenced_entries;
use super::region::Region;

/// The plan that is followed.
pub(super) struct Layout {
    pub(super) plan: Arc<Plan>,
    /// The places of all entries of the plan in order, by [`EntryId`](super::EntryId).
    pub(super) places: Vec<Reserved>,
    pub(super) arena: Region,
    pub(super) persistent: Region,
    pub(super) users: Users,
}

/// Which stream has used each cell of the persistent region. In a sound plan no two places share one,
/// and places have one stream each; a plan may be unsound, and nobody waits for streams here.
pub(super) struct Users(Vec<Option<StreamId>>);

impl Users {
    /// True if no other stream has used the cells.
    pub(super) fn admit(&self, span: Span, stream: StreamId) -> bool {
        self.0[span.range()].iter().flatten().all(|&user| user == stream)
    }

    /// The stream uses the cells.
    pub(super) fn note(&mut self, span: Span, stream: StreamId) {
        self.0[span.range()].fill(Some(stream));
    }
}

/// What the plan keeps for an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserved {
    /// Vacant for an entry that has no place.
    pub(super) home: Home,
    /// The most bytes that may be requested.
    pub(super) size_max: u64,
}

impl Layout {
    /// Lays a plan out; nothing is mapped yet.
    pub(super) fn new(plan: Arc<Plan>, granularity: u64) -> Layout {
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
                (Place::Arena(offset), Some(span)) => {
                    Home::Arena(Spot { offset, span, fence, is_guest: false })
                }
                (Place::Persistent(offset), _) => {
                    let span = persistent.span(offset, granted(entry.size_max));
                    Home::Persistent(Spot { offset, span, fence, is_guest: false })
                }
                _ => Home::Vacant,
            };
            Reserved { home, size_max: entry.size_max }
        });
        let users = Users(vec![None; persistent.cell_count()]);
        Layout { places: places.collect(), arena, persistent, users, plan }
    }
}

/// A plan of nothing.
pub(crate) fn empty_plan() -> Plan {
    Plan {
        arena_bytes: 0,
        persistent_bytes: 0,
        lower_bound: 0,
        peak: 0,
        proven: true,
        planner: String::new(),
        requests: 0,
        iterations: 0,
        rounds: 1,
        sequences: Vec::new(),
    }
}
