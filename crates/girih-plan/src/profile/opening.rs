//! The opening: what comes before the first steady iteration.
//!
//! ```text
//!          model building        first step        steady iteration
//!  stays   |==========================================================>   persistent region
//!  place              |---------------|   |--------|                      the place's own offset
//!  rest      |--|   |----|      |--|                                      a gap below the arena
//! ```
//!
//! A request that has a place in the steady iteration keeps the place's offset, so that nothing is
//! in the way when the iteration begins. What is there to stay is stacked in the persistent region,
//! in the order of birth. The rest is put into gaps, the largest first, or stays outside.

use rustc_hash::FxHashMap;

use super::steady::Steady;
use super::{NO_PLACE, Profile};
use crate::fill::Fill;
use crate::plan::{Entry, Place, Role, Room, Sequence, granted};
use crate::problem::Buffer;

/// Who has bytes of the arena over the opening and one round of the ring.
#[derive(Clone, Copy)]
enum Tenant {
    /// A request of the opening.
    Own(u32),
    /// A room, by its number, for requests of the opening.
    Room(usize),
    /// An entry or a room of the ring, at its offset.
    Ring(u64),
}

/// A profile, looked at from its opening.
struct Opening<'p> {
    profile: &'p Profile<'p>,
    steady: Steady,
    /// The ring, laid out.
    ring: &'p [Entry],
    rooms: &'p [Room],
    /// Requests of the opening.
    count: u32,
    /// The first request after the first steady iteration.
    next: u32,
}

impl Profile<'_> {
    /// The opening before `ring`, which is laid out in `arena` bytes with `rooms` and in `persistent` bytes of the
    /// persistent region, and the bytes of that with what the opening puts there.
    pub(super) fn opening(
        &self,
        steady: Steady,
        ring: &[Entry],
        rooms: &[Room],
        (arena, persistent): (u64, u64),
    ) -> (Sequence, u64) {
        let first = &self.iterations.list[steady.first];
        let (count, next) = (first.requests.start, first.requests.end);
        let opening = Opening { profile: self, steady, ring, rooms, count, next };
        let (entries, persistent) = opening.entries(arena, persistent);
        let boundaries = self.boundaries(&(0..count), &(0..first.ticks.start));
        (Sequence { role: Role::Opening, entries, boundaries }, persistent)
    }
}

impl Opening<'_> {
    /// An entry for each request, and the bytes of the persistent region.
    fn entries(&self, arena: u64, mut persistent: u64) -> (Vec<Entry>, u64) {
        let (mut fill, places, has_room) = self.fill();
        // Until when places of the ring in the persistent region are taken.
        let mut kept: FxHashMap<u64, u32> = FxHashMap::default();
        let mut homeless = Vec::new();
        let mut entries = Vec::with_capacity(self.count as usize);
        for index in 0..self.count {
            let mut entry = self.outside(index);
            if self.stays(index) {
                entry.place = Place::Persistent(persistent);
                persistent += granted(entry.size_max);
            } else if let Some((place, size_max)) = self.home(index)
                && match place {
                    Place::Arena(offset) => fill.take(places[index as usize], offset),
                    Place::Room(number) => has_room[number as usize],
                    Place::Persistent(offset) => {
                        let taken = kept.entry(offset).or_insert(0);
                        let is_free = *taken <= index;
                        *taken = if is_free { self.end(index) } else { *taken };
                        is_free
                    }
                    Place::Outside => false,
                }
            {
                (entry.size_max, entry.place) = (size_max, place);
            } else {
                homeless.push(index);
            }
            entries.push(entry);
        }
        settle(&mut entries, &homeless, &places, &mut fill, arena);
        (entries, persistent)
    }

    /// The arena over the opening and one round of the ring, with the ring's blocks in it, and the
    /// opening's rooms as far as they are free. With the places of the opening's requests in it, and
    /// which rooms the opening has.
    fn fill(&self) -> (Fill, Vec<usize>, Vec<bool>) {
        let own = (0..self.count).map(|index| {
            let size = self.home(index).map_or(self.size(index), |(_, size_max)| size_max);
            let buffer = Buffer { lower: index, upper: self.upper(index), size: granted(size) };
            (buffer, Tenant::Own(index))
        });
        let rooms = (0..)
            .zip(self.own_rooms())
            .filter_map(|(number, room)| room.map(|buffer: Buffer| (buffer, Tenant::Room(number))));
        let mut tenants: Vec<(Buffer, Tenant)> =
            own.chain(rooms).chain(self.after_opening()).collect();
        tenants.sort_by_key(|(buffer, _)| buffer.lower);
        let mut fill = Fill::new(tenants.iter().map(|&(buffer, _)| buffer).collect());
        let mut places = vec![0; self.count as usize];
        // The ring first: in its way is nobody.
        for (at, &(_, tenant)) in tenants.iter().enumerate() {
            match tenant {
                Tenant::Own(index) => places[index as usize] = at,
                Tenant::Ring(offset) => _ = fill.take(at, offset),
                Tenant::Room(_) => {}
            }
        }
        let mut has_room = vec![false; self.rooms.len()];
        for (at, &(_, tenant)) in tenants.iter().enumerate() {
            if let Tenant::Room(number) = tenant {
                has_room[number] = fill.take(at, self.rooms[number].offset);
            }
        }
        (fill, places, has_room)
    }

    /// The rooms that the opening needs, with the time for which it does.
    fn own_rooms(&self) -> Vec<Option<Buffer>> {
        let mut rooms: Vec<Option<Buffer>> = vec![None; self.rooms.len()];
        // Most plans have none.
        let count = if rooms.is_empty() { 0 } else { self.count };
        for index in 0..count {
            if let Some((Place::Room(number), _)) = self.home(index)
                && !self.stays(index)
            {
                let (lower, upper) = (index, self.upper(index));
                let size = self.rooms[number as usize].bytes;
                let room = rooms[number as usize].get_or_insert(Buffer { lower, upper, size });
                room.upper = room.upper.max(upper);
            }
        }
        rooms
    }

    /// The ring's blocks and rooms as they follow the opening, for one round.
    fn after_opening(&self) -> Vec<(Buffer, Tenant)> {
        let (ring, count) = (self.ring, self.count);
        let end = |index: u32, until: u32| count + until.min(ring.len() as u32).max(index + 1);
        let mut rooms: Vec<Option<Buffer>> = vec![None; self.rooms.len()];
        let mut found = Vec::new();
        for (index, entry) in (0..).zip(ring).filter(|(_, entry)| entry.until > 0) {
            let (lower, upper) = (count + index, end(index, entry.until));
            match entry.place {
                Place::Arena(offset) => {
                    let buffer = Buffer { lower, upper, size: granted(entry.size_max) };
                    found.push((buffer, Tenant::Ring(offset)));
                }
                Place::Room(number) => {
                    let size = self.rooms[number as usize].bytes;
                    let room = rooms[number as usize].get_or_insert(Buffer { lower, upper, size });
                    room.upper = room.upper.max(upper);
                }
                Place::Persistent(_) | Place::Outside => {}
            }
        }
        let rooms = rooms.into_iter().zip(self.rooms);
        found.extend(rooms.filter_map(|(buffer, room)| Some((buffer?, Tenant::Ring(room.offset)))));
        found
    }

    /// An entry without a place.
    fn outside(&self, index: u32) -> Entry {
        let size = self.size(index);
        let stream = self.profile.lives.requests[index as usize].stream;
        let until = self.end(index).min(self.count).max(index + 1);
        Entry { size_min: size, size_max: size, stream, place: Place::Outside, until }
    }

    fn size(&self, index: u32) -> u64 {
        self.profile.lives.requests[index as usize].size
    }

    /// The first request that is born after the block of this one is gone; `u32::MAX` if it stays.
    fn end(&self, index: u32) -> u32 {
        self.profile.end(&self.profile.lives.requests[index as usize]).unwrap_or(u32::MAX)
    }

    /// True for a block that outlives the first steady iteration: it is there to stay.
    fn stays(&self, index: u32) -> bool {
        let end = self.end(index);
        end == u32::MAX || end > self.next
    }

    /// The moment until which a block is in the way, in requests from the beginning: what lives on
    /// into the first steady iteration must not lie where that one needs room.
    fn upper(&self, index: u32) -> u32 {
        let end = self.end(index);
        if end == self.next {
            self.count + self.steady.places
        } else if end > self.count && end < self.next {
            self.count + self.profile.next_place[end as usize].max(1)
        } else {
            end.min(self.count).max(index + 1)
        }
    }

    /// The place of a request on the ring, with the bytes that it has room for. The last iteration of
    /// the opening stands where the last one of the ring does, and is the one that uses its rooms.
    fn home(&self, index: u32) -> Option<(Place, u64)> {
        let place = self.profile.place_of[index as usize];
        if place == NO_PLACE {
            return None;
        }
        let crosses = self.end(index) > self.count;
        let iteration = self.profile.iterations.index_of(index);
        // Before the first iteration only what crosses into it is worth aligning: the rest may lie
        // anywhere.
        if iteration.is_none() && !crosses {
            return None;
        }
        let places = self.steady.places as usize;
        let rounds = self.ring.len() / places;
        let back = iteration.map_or(self.steady.first + 1, |number| self.steady.first - number);
        let round = (rounds - back % rounds) % rounds;
        let entry = &self.ring[round * places + place as usize];
        // A place that does not cross is no home for a block that does.
        let is_home = self.size(index) <= entry.size_max
            && (!crosses || entry.until as usize > (round + 1) * places);
        match entry.place {
            Place::Arena(_) if is_home => Some((entry.place, entry.size_max)),
            Place::Persistent(_) if self.size(index) <= entry.size_max && iteration.is_some() => {
                Some((entry.place, entry.size_max))
            }
            Place::Room(_) if is_home && iteration.is_some() && back == 1 => {
                Some((entry.place, entry.size_max))
            }
            _ => None,
        }
    }
}

/// Places the entries of these indices by first fit, the largest first, as long as they stay at or
/// below `limit` bytes; the others stay outside.
fn settle(entries: &mut [Entry], homeless: &[u32], places: &[usize], fill: &mut Fill, limit: u64) {
    let mut order = homeless.to_vec();
    order.sort_by_key(|&k| (u64::MAX - entries[k as usize].size_max, k));
    for index in order {
        if let Some(offset) = fill.first_fit(places[index as usize], limit) {
            entries[index as usize].place = Place::Arena(offset);
        }
    }
}
