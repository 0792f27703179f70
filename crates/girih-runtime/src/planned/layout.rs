//! A plan laid out: its two regions, and what is kept of each of its entries.

use std::sync::Arc;

use girih_plan::{Place, Plan, ROOM_GRAIN, Room, granted, granted_in_room};
use girih_trace::StreamId;

use super::block::{Home, Spot};
use super::cells::Span;
use super::last_uses::fenced_entries;
use super::region::Region;

/// The plan that is followed.
pub(super) struct Layout {
    pub(super) plan: Arc<Plan>,
    /// The places of all entries of the plan in order, by [`EntryId`](super::EntryId).
    pub(super) places: Vec<Reserved>,
    pub(super) arena: Region,
    pub(super) persistent: Region,
    pub(super) users: Users,
    /// The rooms, by their numbers in the plan.
    pub(super) rooms: Vec<Filling>,
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
    /// The room that it is in, with others.
    pub(super) room: Option<u32>,
    /// It is the first of its room.
    pub(super) opens: bool,
}

/// A room of the plan, and how far it is filled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filling {
    room: Room,
    /// Where the next request goes, if there is still room for it. Bytes from the start of the arena.
    next: u64,
}

impl Filling {
    /// Where a request of `size` bytes goes: behind the last one, or back at the start. None if the
    /// room is not large enough for it.
    pub(super) fn place(&self, size: u64) -> Option<u64> {
        let end = self.room.offset + self.room.bytes;
        let fits = |&offset: &u64| offset.saturating_add(size) <= end;
        [self.next, self.room.offset].into_iter().find(fits)
    }

    /// A request of `size` bytes lies at `offset`.
    pub(super) fn note(&mut self, offset: u64, size: u64) {
        self.next = offset + granted_in_room(size);
    }

    /// The room is used anew from its start.
    pub(super) fn restart(&mut self) {
        self.next = self.room.offset;
    }
}

impl Layout {
    /// Lays a plan out; nothing is mapped yet.
    pub(super) fn new(plan: Arc<Plan>, granularity: u64) -> Layout {
        let entries = || plan.sequences.iter().flat_map(|sequence| &sequence.entries);
        let offsets = |of: fn(Place) -> Option<u64>| entries().filter_map(move |e| of(e.place));
        // What lies in a room begins on its grain.
        let grains = plan
            .rooms
            .iter()
            .flat_map(|room| (room.offset..room.offset + room.bytes).step_by(ROOM_GRAIN as usize));
        let in_arena = |place| if let Place::Arena(offset) = place { Some(offset) } else { None };
        let in_persistent =
            |place| if let Place::Persistent(offset) = place { Some(offset) } else { None };
        let arena = Region::new(plan.arena_bytes, granularity, offsets(in_arena).chain(grains));
        let persistent = Region::new(plan.persistent_bytes, granularity, offsets(in_persistent));
        let spans: Vec<Option<Span>> = entries()
            .map(|e| match e.place {
                Place::Arena(offset) => Some(arena.span(offset, granted(e.size_max))),
                Place::Room(number) => {
                    let Room { offset, bytes } = plan.rooms[number as usize];
                    Some(arena.span(offset, bytes))
                }
                Place::Persistent(_) | Place::Outside => None,
            })
            .collect();
        let fenced = fenced_entries(&plan, arena.cell_count(), &spans);
        let mut opened = vec![usize::MAX; plan.rooms.len()];
        let sequences = plan.sequences.iter().enumerate();
        let numbers = sequences.flat_map(|(number, s)| s.entries.iter().map(move |_| number));
        let places = entries().zip(numbers).zip(spans).zip(fenced).map(
            |(((entry, sequence), span), fence)| {
                let home = match (entry.place, span) {
                    (Place::Arena(offset), Some(span)) => {
                        Home::Arena(Spot { offset, span, fence, is_guest: false })
                    }
                    (Place::Room(number), Some(span)) => {
                        let offset = plan.rooms[number as usize].offset;
                        Home::Arena(Spot { offset, span, fence, is_guest: false })
                    }
                    (Place::Persistent(offset), _) => {
                        let span = persistent.span(offset, granted(entry.size_max));
                        Home::Persistent(Spot { offset, span, fence, is_guest: false })
                    }
                    _ => Home::Vacant,
                };
                let room = if let Place::Room(number) = entry.place { Some(number) } else { None };
                let opens = room.is_some_and(|number| {
                    std::mem::replace(&mut opened[number as usize], sequence) != sequence
                });
                Reserved { home, size_max: entry.size_max, room, opens }
            },
        );
        let users = Users(vec![None; persistent.cell_count()]);
        let places = places.collect();
        let rooms = plan.rooms.iter().map(|&room| Filling { room, next: room.offset }).collect();
        Layout { places, arena, persistent, users, rooms, plan }
    }

    /// The region of the blocks that stay, or the arena.
    #[inline]
    pub(super) fn region(&mut self, stays: bool) -> &mut Region {
        if stays { &mut self.persistent } else { &mut self.arena }
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
        rooms: Vec::new(),
        sequences: Vec::new(),
    }
}
