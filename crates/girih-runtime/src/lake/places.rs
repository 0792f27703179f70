//! The places of a plan: what is kept of each of its entries, as bytes of a window.
//!
//! ```text
//!  plan      persistent region | arena
//!  window    | what stays      | what comes and goes                |
//! ```

use girih_plan::{Place, Plan, ROOM_GRAIN, Room, granted, granted_in_room};

use super::cells::{Cells, Span};
use super::last_uses::fenced_entries;

/// What is kept of an entry of the plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserved {
    /// Where it begins in the window.
    pub(super) offset: u64,
    /// The most bytes that a block may have here, rounded; 0 for an entry without a place.
    pub(super) bytes: u64,
    /// The cells of a block of so many bytes.
    pub(super) span: Span,
    /// The room that it is in, with others; [`ALONE`] if it has a place of its own.
    room: u32,
    /// It is the first of its room.
    opens: bool,
    /// The bytes are another stream's next.
    pub(super) fence: bool,
}

/// Cuts of all places whose sizes vary. With a mark, two bits and a last use for each cell: 2 MiB.
const CUTS_MAX: u64 = 1 << 16;
/// No room.
const ALONE: u32 = u32::MAX;

/// A room of the plan, and how far it is filled. Bytes from the start of the window.
#[derive(Clone, Copy, Debug)]
struct Filling {
    start: u64,
    end: u64,
    /// Where the next request goes, if there is still room for it.
    next: u64,
}

/// The places of all entries of a plan in order, and its rooms.
#[derive(Debug)]
pub(super) struct Places {
    places: Vec<Reserved>,
    rooms: Vec<Filling>,
}

/// Where a request goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) offset: u64,
    pub(super) span: Span,
    pub(super) fence: bool,
    room: u32,
}

/// The bytes at which pages begin in ranges; of larger pages, if there would be too many.
fn cuts(ranges: impl Iterator<Item = (u64, u64)> + Clone, page: u64) -> Vec<u64> {
    let count = |page: u64| {
        let counts = ranges.clone().map(|(start, end)| end.div_ceil(page) - start.div_ceil(page));
        counts.fold(0, u64::saturating_add)
    };
    let pages = std::iter::successors(Some(page), |page| page.checked_mul(2));
    let Some(page) = pages.into_iter().find(|&page| count(page) <= CUTS_MAX) else {
        return Vec::new();
    };
    let of_range = |(start, end): (u64, u64)| {
        (start.div_ceil(page)..end.div_ceil(page)).map(move |index| index * page)
    };
    ranges.flat_map(of_range).collect()
}

impl Places {
    /// The places of a plan that has passed [`girih_plan::verify()`], and the cells of their window. Where sizes
    /// vary a place is cut into cells of a `page` beyond its least size: a block that is smaller than the place holds
    /// no page that it does not touch.
    pub(super) fn of(plan: &Plan, page: u64) -> (Places, Cells) {
        let stays = plan.persistent_bytes;
        let entries = || plan.sequences.iter().flat_map(|sequence| &sequence.entries);
        let rooms = plan.rooms.iter().map(|&Room { offset, bytes }| {
            let start = stays + offset;
            Filling { start, end: start + bytes, next: start }
        });
        let rooms: Vec<Filling> = rooms.collect();
        let place = |place| match place {
            Place::Arena(offset) => Some((stays + offset, ALONE)),
            Place::Room(number) => Some((rooms[number as usize].start, number)),
            Place::Persistent(offset) => Some((offset, ALONE)),
            Place::Outside => None,
        };
        // Of what has a place of its own: where a block begins, and where the smallest and the largest end.
        let alone = entries().filter_map(|entry| {
            let (start, _) = place(entry.place).filter(|&(_, room)| room == ALONE)?;
            Some((start, start + granted(entry.size_min), start + granted(entry.size_max)))
        });
        // A cell more costs next to nothing, and what lies behind a block is free without it.
        let bounds = alone.clone().flat_map(|(start, _, most)| [start, most]);
        let ends = alone.map(|(_, least, most)| (least, most));
        let varying = ends.filter(|(least, most)| least < most);
        let cuts = cuts(varying, page);
        // What lies in a room begins on its grain.
        let grains =
            rooms.iter().flat_map(|room| (room.start..room.end).step_by(ROOM_GRAIN as usize));
        let cells = Cells::new(stays + plan.arena_bytes, bounds.chain(cuts).chain(grains));
        let spans: Vec<Option<Span>> = entries()
            .map(|entry| {
                let (offset, room) = place(entry.place)?;
                let end = match rooms.get(room as usize) {
                    Some(room) => room.end,
                    None => offset + granted(entry.size_max),
                };
                Some(cells.span(offset, end))
            })
            .collect();
        let fenced = fenced_entries(plan, cells.count(), &spans);
        let mut opened = vec![usize::MAX; plan.rooms.len()];
        let numbered = plan.sequences.iter().enumerate();
        let numbers = numbered.flat_map(|(number, s)| s.entries.iter().map(move |_| number));
        let places = entries().zip(numbers).zip(spans.iter().zip(fenced));
        let places = places.map(|((entry, sequence), (span, fence))| {
            let Some(((offset, room), span)) = place(entry.place).zip(*span) else {
                let span = Span { first: 0, end: 1 };
                return Reserved { offset: 0, bytes: 0, span, room: ALONE, opens: false, fence };
            };
            let opens = room != ALONE
                && std::mem::replace(&mut opened[room as usize], sequence) != sequence;
            Reserved { offset, bytes: granted(entry.size_max), span, room, opens, fence }
        });
        (Places { places: places.collect(), rooms }, cells)
    }

    /// What is kept of an entry.
    #[inline]
    pub(super) fn get(&self, entry: super::EntryId) -> &Reserved {
        &self.places[entry.0 as usize]
    }

    /// The place of an entry if a block of `size` bytes takes all of it and shares it with no other: no room
    /// to fill, no cells to look for.
    #[inline]
    pub(super) fn whole(&self, entry: super::EntryId, size: u64) -> Option<&Reserved> {
        Some(self.get(entry)).filter(|place| size == place.bytes && place.room == ALONE)
    }

    /// Where a block of `size` bytes goes that is asked for as an entry; none if it has no place, or one that
    /// is too small.
    #[inline]
    pub(super) fn spot(&mut self, entry: super::EntryId, size: u64, cells: &Cells) -> Option<Spot> {
        let Reserved { offset, bytes, span, room, opens, fence } = self.places[entry.0 as usize];
        if size > bytes {
            return None;
        }
        if room != ALONE {
            return self.spot_in_room(room, opens, size, fence, cells);
        }
        let span = if size == bytes { span } else { cells.span(offset, offset + size) };
        Some(Spot { offset, span, fence, room })
    }

    /// In a room, right behind the block before, or back at the start.
    fn spot_in_room(
        &mut self,
        room: u32,
        opens: bool,
        size: u64,
        fence: bool,
        cells: &Cells,
    ) -> Option<Spot> {
        let filling = &mut self.rooms[room as usize];
        if opens {
            filling.next = filling.start;
        }
        let fits = |&offset: &u64| offset.saturating_add(size) <= filling.end;
        let offset = [filling.next, filling.start].into_iter().find(fits)?;
        Some(Spot { offset, span: cells.span(offset, offset + size), fence, room })
    }

    /// A block of `size` bytes lies there.
    #[inline]
    pub(super) fn note(&mut self, spot: &Spot, size: u64) {
        if let Some(filling) = self.rooms.get_mut(spot.room as usize) {
            filling.next = spot.offset + granted_in_room(size);
        }
    }
}
