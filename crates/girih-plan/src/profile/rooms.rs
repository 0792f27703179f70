//! Rooms: what differs in size from iteration to iteration and is alive together shares bytes.
//!
//! Which tokens go to which expert changes with every step; how many there are does not. The
//! envelope of each expert's tensors has room for the most that each ever got, and that adds up to
//! more than they ever had together:
//!
//! ```text
//!  step 1     a(9) b(4) c(5)     18               places of their own    9 + 8 + 7 = 24
//!  step 2     a(5) b(8) c(4)     17          ->   a room for all         18
//!  step 3     a(4) b(5) c(7)     16
//! ```
//!
//! So requests that are born in one short time and die in one short time, those of a layer, form a
//! group (the HomoLayer groups of STWeaver, section 5.2, without needing to know the layers), and a
//! group gets a room as large as its largest total. The follower of the plan puts each request right
//! behind the one before: nothing is searched, and nothing is left in between.

use girih_trace::StreamId;

use super::steady::Steady;
use super::{NO_PLACE, Profile};
use crate::plan::{Entry, Place, granted, granted_in_room};

/// Requests below this do not join a group: the grain of a room would cost them too much. Bytes.
const MEMBER_MIN: u64 = 1 << 20;
/// A room stands from its first birth to its last death. What its members' births and deaths lie
/// apart is one part in so many of the shortest life at most. As that is less than a life, all
/// members are alive at once: each total counts.
const APART: u32 = 2;
/// A room must save one byte in so many of what its members' own places would take.
const WORTH: u64 = 64;
/// A member may be larger than it ever was, by one part in so many.
const LARGER: u64 = 2;
/// So many groups are open at once; of more, the oldest is closed. Each request looks at all of
/// them, so this bounds the time.
const GROUPS_OPEN: usize = 64;

/// A room that has no offset yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draft {
    pub(super) bytes: u64,
    /// The ring's entries between which it stands, as in [`Entry::until`].
    pub(super) lower: u32,
    pub(super) upper: u32,
    pub(super) stream: StreamId,
}

/// Entries that are born and die together.
struct Group {
    stream: StreamId,
    births: (u32, u32),
    deaths: (u32, u32),
    shortest: u32,
    members: Vec<u32>,
}

impl Group {
    fn of(index: u32, entry: &Entry) -> Group {
        Group {
            stream: entry.stream,
            births: (index, index),
            deaths: (entry.until, entry.until),
            shortest: entry.until - index,
            members: vec![index],
        }
    }

    /// True if an entry has joined.
    fn join(&mut self, index: u32, entry: &Entry) -> bool {
        let deaths = (self.deaths.0.min(entry.until), self.deaths.1.max(entry.until));
        let shortest = self.shortest.min(entry.until - index);
        let apart = (index - self.births.0) + (deaths.1 - deaths.0);
        if self.stream != entry.stream || apart > shortest / APART {
            return false;
        }
        self.births.1 = index;
        (self.deaths, self.shortest) = (deaths, shortest);
        self.members.push(index);
        true
    }

    /// True if what is born at `index` or later may still join.
    fn is_open(&self, index: u32) -> bool {
        index - self.births.0 <= self.shortest / APART
    }
}

impl Profile<'_> {
    /// Puts entries of the ring into rooms where that saves memory: their place is then the room's
    /// number. Gives the rooms.
    pub(super) fn rooms(&self, steady: Steady, ring: &mut [Entry]) -> Vec<Draft> {
        let groups = groups(ring);
        if groups.is_empty() {
            return Vec::new();
        }
        let mut room_of = vec![None; ring.len()];
        for (number, group) in groups.iter().enumerate() {
            group.members.iter().for_each(|&member| room_of[member as usize] = Some(number));
        }
        let totals = self.totals(steady, &room_of, groups.len());
        let mut rooms = Vec::new();
        for (group, bytes) in groups.into_iter().zip(totals) {
            let own: u64 = group.members.iter().map(|&m| granted(ring[m as usize].size_max)).sum();
            if bytes > own - own / WORTH {
                continue;
            }
            for &member in &group.members {
                let entry = &mut ring[member as usize];
                entry.place = Place::Room(rooms.len() as u32);
                // One that is larger than ever is welcome if the others leave it the room.
                entry.size_max = entry.size_max.saturating_add(entry.size_max / LARGER).min(bytes);
            }
            let (lower, upper, stream) = (group.births.0, group.deaths.1, group.stream);
            rooms.push(Draft { bytes, lower, upper, stream });
        }
        rooms
    }

    /// The most bytes that the members of each group had together in an iteration. The first step's
    /// count, for it uses the rooms too.
    fn totals(&self, steady: Steady, room_of: &[Option<usize>], groups: usize) -> Vec<u64> {
        let mut most = vec![0; groups];
        for (number, iteration) in self.iterations.list[..=steady.last].iter().enumerate() {
            if number >= steady.first && !self.is_member[number] {
                continue;
            }
            let mut totals = vec![0; groups];
            for index in iteration.requests.clone() {
                let place = self.place_of[index as usize];
                let size = self.lives.requests[index as usize].size;
                if place == NO_PLACE {
                    continue;
                }
                // In a second round stands what is in the first.
                for place in (place as usize..room_of.len()).step_by(steady.places as usize) {
                    if let Some(room) = room_of[place] {
                        totals[room] += granted_in_room(size);
                    }
                }
            }
            for (most, total) in most.iter_mut().zip(totals) {
                *most = total.max(*most);
            }
        }
        most
    }
}

/// The groups of a ring that have more than one member.
fn groups(ring: &[Entry]) -> Vec<Group> {
    let (mut open, mut closed) = (Vec::<Group>::new(), Vec::new());
    let differs = |entry: &Entry| entry.size_min < entry.size_max && entry.size_max >= MEMBER_MIN;
    let differing = (0..).zip(ring).filter(|(_, entry)| entry.until > 0 && differs(entry));
    for (index, entry) in differing {
        closed.extend(open.extract_if(.., |group| !group.is_open(index)));
        if open.iter_mut().rev().any(|group| group.join(index, entry)) {
            continue;
        }
        if open.len() == GROUPS_OPEN {
            closed.push(open.remove(0));
        }
        open.push(Group::of(index, entry));
    }
    closed.extend(open);
    // On a ring a room stands once round at most.
    let fits = |group: &Group| (group.deaths.1 - group.births.0) as usize <= ring.len();
    closed.retain(|group| group.members.len() > 1 && fits(group));
    closed
}
