//! The plan: where the requests of a run go, place by place.
//!
//! A run has a beginning that comes once and a steady iteration that comes again and again; now and
//! then something else comes between two iterations (evaluation, a checkpoint):
//!
//! ```text
//!   opening                    steady         steady         interlude   steady
//!   model building, step 0     step 1         step 2         eval        step 3
//! ```
//!
//! An iteration may be of another kind than the steady one, in its place: a *variant*.
//!
//! Each of these is a [`Sequence`] of [`Entry`]s in the order of the requests. An entry's place is
//! an offset in the arena, which all sequences share, an offset in the persistent region, where
//! what lives across iterations is stacked, or [`Place::Outside`]: the fallback serves it. A plan is
//! a hint: who follows it gives a place only if it is free.

use girih_trace::{MarkKind, StreamId};

/// Every offset and every granted size is a multiple of this, as in PyTorch (`kMinBlockSize`).
pub const ALIGNMENT: u64 = 512;

/// The places of a tight plan differ from what was in use by one byte in so many at most.
const TIGHT: u64 = 100;

/// Iterations differ in sizes if one byte in so many is asked for in some and not in others.
const VARIES: u64 = 512;

/// Bytes that a request of `size` bytes takes in the arena and in the persistent region. Of a size that
/// nobody has, the last multiple of [`ALIGNMENT`].
pub fn granted(size: u64) -> u64 {
    rounded_up(size, ALIGNMENT)
}

/// `size`, at least 1, rounded up to a multiple of `unit`, a power of two; the last there is at most.
fn rounded_up(size: u64, unit: u64) -> u64 {
    size.max(1).checked_next_multiple_of(unit).unwrap_or(u64::MAX - (unit - 1))
}

/// Requests in a room begin on a multiple of this from its start, and take a multiple of it.
pub const ROOM_GRAIN: u64 = 32 << 10;

/// Bytes that a request of `size` bytes takes in a room.
pub fn granted_in_room(size: u64) -> u64 {
    rounded_up(size, ROOM_GRAIN)
}

/// A part of the arena for requests that are alive together and whose sizes differ from iteration
/// to iteration, such as those of a layer's experts. One is larger where another is smaller, and all
/// of them together need less than the largest of each. So none has a place of its own: each is put
/// right behind the one before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Room {
    /// Bytes from the start of the arena.
    pub offset: u64,
    /// Bytes that all requests together may take.
    pub bytes: u64,
}

/// What holds bytes of the arena in a sequence, from before one entry to before another: an entry
/// with a place of its own, or a room from its first entry on until its last one is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tenancy {
    /// The first entry.
    pub lower: u32,
    /// The entry before which it ends; on the ring it may lie beyond the last ([`Entry::until`]).
    pub upper: u32,
    /// Bytes from the start of the arena.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// Where a request goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// Bytes from the start of the arena.
    Arena(u64),
    /// Somewhere in a room, by its index in [`Plan::rooms`].
    Room(u32),
    /// Bytes from the start of the persistent region.
    Persistent(u64),
    /// Nowhere in the plan: the fallback policy serves it.
    Outside,
}

/// One request of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The fewest bytes that were requested here in the iterations that the plan was made from.
    pub size_min: u64,
    /// The most bytes that were requested here; the place has room for this many.
    pub size_max: u64,
    /// The stream.
    pub stream: StreamId,
    /// Where it goes.
    pub place: Place,
    /// The entry of the sequence before which the block is gone: it lives in `[index, until)`. On
    /// the steady ring it may exceed the number of entries, and then goes on into the next round.
    /// Meaningful for a place in the arena, and in the opening also for one outside.
    pub until: u32,
}

/// What part of a run a sequence is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// From the first request to the beginning of the first steady iteration. Comes once.
    Opening,
    /// The steady iteration. After its last entry comes its first.
    Steady,
    /// What may come between two entries of the steady iteration. Afterwards the steady iteration
    /// goes on at the entry of this index.
    Interlude(u32),
    /// An iteration of another kind, in the place of this round of the steady sequence ([`Plan::rounds`]),
    /// counted from 0. Afterwards the next round comes, or another such iteration in its place.
    Variant(u32),
}

/// Requests in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sequence {
    /// What part of a run it is.
    pub role: Role,
    /// The requests.
    pub entries: Vec<Entry>,
    /// Marks that stand before the entry of an index, in order: what brings a follower in step
    /// whatever it missed.
    pub boundaries: Vec<(u32, MarkKind)>,
}

/// What a run held at most, in a replay with a plan that was made of it and in one without. Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trial {
    /// With the plan.
    pub with: u64,
    /// With stitching alone.
    pub without: u64,
}

/// A plan for one device of a run. The default one is of nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Bytes of the persistent region.
    pub persistent_bytes: u64,
    /// Bytes of the arena that the steady iteration needs at least, whatever the planner: the most
    /// that is alive at once.
    pub lower_bound: u64,
    /// The most bytes that were in use at once in the trace, rounded as they are granted; 0 if that is not
    /// known. No more is trusted to be needed, whatever the places add up to.
    pub in_use: u64,
    /// Bytes of the arena that the steady iteration takes.
    pub peak: u64,
    /// True if no plan of the steady iteration can be lower.
    pub proven: bool,
    /// The planner whose solution this is.
    pub planner: String,
    /// Requests in the trace that the plan was made from.
    pub requests: u64,
    /// Iterations that the plan was made from.
    pub iterations: u32,
    /// Iterations in one round of the steady sequence: 2 where a block is replaced by that of the
    /// next iteration while it is still alive, so that two places take turns.
    pub rounds: u32,
    /// Parts of the arena that several entries share.
    pub rooms: Vec<Room>,
    /// What it gave in the run that it was made of; None if it was not tried.
    pub trial: Option<Trial>,
    /// The sequences: an opening if the trace had one, then the steady one if there is one, then
    /// the interludes.
    pub sequences: Vec<Sequence>,
}

impl Plan {
    /// The steady iteration, if the trace had any.
    pub fn steady(&self) -> Option<&Sequence> {
        self.sequences.iter().find(|sequence| sequence.role == Role::Steady)
    }

    /// What holds bytes of the arena in a sequence: first its entries, then its rooms, each in order
    /// of index. Rooms must exist.
    pub fn tenancies(&self, sequence: &Sequence) -> Vec<Tenancy> {
        let mut rooms: Vec<Option<Tenancy>> = vec![None; self.rooms.len()];
        let mut all = Vec::with_capacity(sequence.entries.len());
        for (index, entry) in (0..).zip(&sequence.entries) {
            let (lower, upper) = (index, entry.until);
            match entry.place {
                Place::Arena(offset) => {
                    all.push(Tenancy { lower, upper, offset, size: granted(entry.size_max) });
                }
                Place::Room(number) => {
                    let Room { offset, bytes: size } = self.rooms[number as usize];
                    let new = Tenancy { lower, upper, offset, size };
                    let room = rooms[number as usize].get_or_insert(new);
                    room.upper = room.upper.max(upper);
                }
                Place::Persistent(_) | Place::Outside => {}
            }
        }
        all.extend(rooms.into_iter().flatten());
        all
    }

    /// True if its places are what was in use at once where it was made, to one byte in 100: it neither needs more
    /// nor leaves much to others.
    pub fn is_tight(&self) -> bool {
        let places = self.arena_bytes.saturating_add(self.persistent_bytes);
        places.abs_diff(self.in_use) <= self.in_use / TIGHT
    }

    /// True if the iterations that it was made of differ in sizes, by more than one byte in 512: the next may
    /// be another.
    pub fn varies(&self) -> bool {
        let entries = self.steady().into_iter().flat_map(|sequence| &sequence.entries);
        let (least, most) = entries.fold((0u64, 0u64), |(least, most), entry| {
            (least.saturating_add(entry.size_min), most.saturating_add(entry.size_max))
        });
        most.saturating_sub(least) > most / VARIES
    }

    /// True if it has iterations of several kinds.
    pub fn has_kinds(&self) -> bool {
        self.sequences.iter().any(|sequence| matches!(sequence.role, Role::Variant(_)))
    }

    /// True unless the run that it was made of holds more with it than without. Nobody follows one that does not help.
    pub fn helps(&self) -> bool {
        self.trial.is_none_or(|trial| trial.with <= trial.without)
    }

    /// True if `auto` follows it: one of iterations that differ is no help where the next differ from those, and one of
    /// a part of what is in use is in the way of the rest.
    pub fn is_reliable(&self) -> bool {
        self.is_tight() && !self.varies() && self.helps()
    }

    /// Requests of one steady iteration; of the opening where nothing repeats.
    pub fn iteration_requests(&self) -> usize {
        let entries = self.steady().or(self.sequences.first()).map_or(0, |s| s.entries.len());
        entries / self.rounds.max(1) as usize
    }

    /// The most bytes of the arena that an iteration may take over from the one before: what lives
    /// until the last request of the steady sequence or beyond. What is gone before the first request
    /// of the next round counts too, for a plan knows requests alone.
    pub fn carried_bytes(&self) -> u64 {
        let Some(steady) = self.steady() else { return 0 };
        let tenancies = self.tenancies(steady);
        let carried = tenancies.iter().filter(|it| it.upper as usize >= steady.entries.len());
        carried.map(|it| it.size).fold(0, u64::saturating_add)
    }

    /// The most bytes requested and alive at once in the opening, wherever they are; 0 without one.
    /// That is more than the regions together where a program makes more than it keeps: a model that
    /// is made in 32 bits and turned to 16.
    pub fn opening_peak(&self) -> u64 {
        let opening = self.sequences.iter().find(|sequence| sequence.role == Role::Opening);
        let entries = opening.map_or(&[][..], |sequence| &sequence.entries);
        let mut gone = vec![0u64; entries.len() + 1];
        let (mut live, mut peak) = (0u64, 0);
        for (index, entry) in entries.iter().enumerate() {
            live = live.saturating_sub(gone[index]).saturating_add(entry.size_max);
            peak = live.max(peak);
            let until = (entry.until as usize).clamp(index + 1, entries.len());
            if !matches!(entry.place, Place::Persistent(_)) {
                gone[until] = gone[until].saturating_add(entry.size_max);
            }
        }
        peak
    }

    /// How far the peak is above the bound, as a fraction of the bound. 0 for an empty plan.
    pub fn gap(&self) -> f64 {
        if self.lower_bound == 0 {
            return 0.0;
        }
        (self.peak - self.lower_bound) as f64 / self.lower_bound as f64
    }

    /// What the plan was made from, as a number: two traces of the same model, batch and settings
    /// give the same, others do not. A hash of the sizes, streams and lives of the steady
    /// iteration (FNV-1a, so that it stays the same from release to release).
    pub fn fingerprint(&self) -> u64 {
        let entries = self.steady().or(self.sequences.first()).map_or(&[][..], |s| &s.entries);
        let words = entries
            .iter()
            .flat_map(|e| [e.size_min, e.size_max, u64::from(e.stream.0), u64::from(e.until)]);
        words.flat_map(u64::to_le_bytes).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}
