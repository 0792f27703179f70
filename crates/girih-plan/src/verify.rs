//! Verification of a whole plan, before it is written and after it is read.
//!
//! Each sequence is a planning problem of its own, in the same arena: the steady one on a ring, the
//! others on a line. [`mod@check`] is the judge; this file only turns a plan into the
//! problems that the judge takes, and looks after what lies outside them: the persistent region,
//! ranges, indices, interludes beside the ring (`joint`), and what the plan says of itself (`claims`).

use girih_trace::bounds::HELD_MAX;
use rustc_hash::FxHashMap;
use thiserror::Error;

use crate::check::{self, Violation};
use crate::claims;
use crate::joint;
use crate::plan::{
    ALIGNMENT, Entry, Place, Plan, ROOM_GRAIN, Role, Room, Sequence, Tenancy, granted,
};
use crate::problem::{Buffer, Problem, Solution};

/// What is wrong with a plan.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PlanError {
    /// Two requests of a sequence that are alive together share bytes, or one leaves the arena.
    #[error("sequence {sequence}: {violation}")]
    Overlap {
        /// Index of the sequence.
        sequence: usize,
        /// The law that was broken; its buffers are the arena entries of the sequence in order, then
        /// its rooms.
        violation: Violation,
    },
    /// An entry contradicts itself.
    #[error("sequence {sequence}, entry {entry}: {reason}")]
    Entry {
        /// Index of the sequence.
        sequence: usize,
        /// Index of the entry.
        entry: usize,
        /// What is wrong.
        reason: String,
    },
    /// Two places of the persistent region overlap.
    #[error(
        "two persistent places overlap: {size} bytes at offset {offset}, but the one before \
         ends at {end}"
    )]
    Persistent {
        /// Offset of the second.
        offset: u64,
        /// Bytes of the second.
        size: u64,
        /// Where the first ends.
        end: u64,
    },
    /// An interlude has a place in bytes that the ring holds while it goes on.
    #[error("the ring and its interludes do not fit together: {0}")]
    Interlude(
        /// The law that was broken; its buffers are the arena entries of the steady sequence, then
        /// those of the interludes, in order.
        Violation,
    ),
    /// What the plan says of its peak, its bound or its proof is not so.
    #[error("the plan is not what it says: {reason}")]
    Claim {
        /// What is wrong.
        reason: String,
    },
    /// The order of the sequences or a boundary is not one that a follower can use.
    #[error("sequence {sequence}: {reason}")]
    Sequence {
        /// Index of the sequence.
        sequence: usize,
        /// What is wrong.
        reason: String,
    },
}

/// All rooms together have so many grains at most: 512 GiB. A follower keeps something for each.
const GRAINS_MAX: u64 = 1 << 24;

/// Both regions together have so many bytes at most. A follower keeps something for each page.
const BYTES_MAX: u64 = HELD_MAX;

/// Verifies a plan. `O(n log n)` in its entries.
pub fn verify(plan: &Plan) -> Result<(), PlanError> {
    if plan.sequences.iter().filter(|sequence| sequence.role == Role::Steady).count() > 1 {
        let reason = "a plan has one steady iteration at most".to_owned();
        return Err(PlanError::Sequence { sequence: 0, reason });
    }
    let reached = plan.arena_bytes.saturating_add(plan.persistent_bytes);
    if reached > BYTES_MAX {
        let reason =
            format!("{reached} bytes are more than the {BYTES_MAX} that a device may hold");
        return Err(PlanError::Claim { reason });
    }
    let rooms: u64 = plan.rooms.iter().fold(0, |sum, room| room.bytes.saturating_add(sum));
    let reason = plan.rooms.iter().find_map(|room| room_fault(plan, room)).or_else(|| {
        (rooms / ROOM_GRAIN > GRAINS_MAX).then(|| format!("{rooms} bytes of rooms are too many"))
    });
    if let Some(reason) = reason {
        return Err(PlanError::Claim { reason });
    }
    let steady_entries = plan.steady().map(|steady| steady.entries.len());
    for (index, sequence) in plan.sequences.iter().enumerate() {
        if let Some(reason) = sequence_fault(plan, sequence, index, steady_entries) {
            return Err(PlanError::Sequence { sequence: index, reason });
        }
        for (number, entry) in sequence.entries.iter().enumerate() {
            if let Some(reason) = entry_fault(plan, sequence, number, entry) {
                return Err(PlanError::Entry { sequence: index, entry: number, reason });
            }
        }
        let (problem, solution) = problem_of(plan, sequence);
        check::check(&problem, &solution)
            .map_err(|violation| PlanError::Overlap { sequence: index, violation })?;
    }
    joint::check_together(plan).map_err(PlanError::Interlude)?;
    verify_persistent(plan)?;
    if let Some(reason) = idle_end(plan) {
        return Err(PlanError::Claim { reason });
    }
    claims::fault(plan).map_or(Ok(()), |reason| Err(PlanError::Claim { reason }))
}

fn sequence_fault(
    plan: &Plan,
    sequence: &Sequence,
    index: usize,
    steady: Option<usize>,
) -> Option<String> {
    let count = sequence.entries.len();
    if sequence.role == Role::Opening && index != 0 {
        return Some("the opening must come first".to_owned());
    }
    if sequence.role == Role::Steady && count == 0 {
        return Some("the steady iteration is empty".to_owned());
    }
    if let Role::Interlude(at) = sequence.role
        && steady.is_none_or(|entries| at as usize > entries)
    {
        return Some(format!("an interlude before entry {at}, which does not exist"));
    }
    if let Role::Variant(round) = sequence.role
        && (steady.is_none() || round >= plan.rounds || count == 0)
    {
        return Some(format!("a variant of round {round}, which does not exist"));
    }
    let out_of_order = sequence.boundaries.windows(2).any(|pair| pair[0].0 > pair[1].0);
    let outside = sequence.boundaries.iter().any(|&(entry, _)| entry as usize > count);
    (out_of_order || outside).then(|| "its boundaries are out of order or range".to_owned())
}

fn room_fault(plan: &Plan, &Room { offset, bytes }: &Room) -> Option<String> {
    let end = offset.checked_add(bytes);
    let is_inside = end.is_some_and(|end| end <= plan.arena_bytes);
    let is_aligned = offset.is_multiple_of(ALIGNMENT) && bytes.is_multiple_of(ALIGNMENT);
    (bytes == 0 || !is_inside || !is_aligned).then(|| {
        let arena = plan.arena_bytes;
        format!("a room of {bytes} bytes at offset {offset} is none in an arena of {arena}")
    })
}

fn entry_fault(plan: &Plan, sequence: &Sequence, index: usize, entry: &Entry) -> Option<String> {
    let (min, max) = (entry.size_min, entry.size_max);
    if min > max || max == 0 || max > 1 << 60 {
        return Some(format!("sizes from {min} to {max} bytes"));
    }
    let (offset, end, room) = match entry.place {
        Place::Outside => return None,
        Place::Arena(offset) => (offset, offset.checked_add(granted(max)), plan.arena_bytes),
        Place::Room(number) => {
            let Some(room) = plan.rooms.get(number as usize) else {
                return Some(format!("there is no room {number}"));
            };
            (0, Some(granted(max)), room.bytes)
        }
        Place::Persistent(offset) => {
            (offset, offset.checked_add(granted(max)), plan.persistent_bytes)
        }
    };
    if offset % ALIGNMENT != 0 {
        return Some(format!("offset {offset} is no multiple of {ALIGNMENT}"));
    }
    if end.is_none_or(|end| end > room) {
        return Some(format!("{max} bytes at offset {offset} leave a region of {room} bytes"));
    }
    let count = sequence.entries.len() as u64;
    let limit = if sequence.role == Role::Steady { index as u64 + count } else { count };
    let until = u64::from(entry.until);
    if !matches!(entry.place, Place::Persistent(_)) && (until <= index as u64 || until > limit) {
        return Some(format!("it lives until entry {until}, which is out of range"));
    }
    None
}

/// The arena entries of a sequence, and its rooms, as a problem, with the plan's offsets as its
/// solution.
pub fn problem_of(plan: &Plan, sequence: &Sequence) -> (Problem, Solution) {
    let period = if sequence.role == Role::Steady { sequence.entries.len() as u32 } else { 0 };
    let mut problem = Problem { buffers: Vec::new(), period, alignment: ALIGNMENT };
    let mut solution =
        Solution { offsets: Vec::new(), height: plan.arena_bytes, planner: "plan file" };
    for Tenancy { lower, upper, offset, size } in plan.tenancies(sequence) {
        problem.buffers.push(Buffer { lower, upper, size });
        solution.offsets.push(offset);
    }
    (problem, solution)
}

/// A region that is longer than what is placed in it: what reserves, maps and counts it would be led
/// to do so for nothing.
fn idle_end(plan: &Plan) -> Option<String> {
    let (mut arena, mut persistent) = (0, 0);
    for entry in plan.sequences.iter().flat_map(|sequence| &sequence.entries) {
        match entry.place {
            Place::Arena(offset) => arena = arena.max(offset + granted(entry.size_max)),
            Place::Room(number) => {
                let Room { offset, bytes } = plan.rooms[number as usize];
                arena = arena.max(offset + bytes);
            }
            Place::Persistent(offset) => {
                persistent = persistent.max(offset + granted(entry.size_max));
            }
            Place::Outside => {}
        }
    }
    let regions = [
        ("arena", plan.arena_bytes, arena),
        ("persistent region", plan.persistent_bytes, persistent),
    ];
    let idle = regions.into_iter().find(|&(_, bytes, end)| bytes > end);
    idle.map(|(name, bytes, end)| {
        format!("its {name} has {bytes} bytes, but its places end at {end}")
    })
}

/// Places of the persistent region do not overlap. The same place may come again: in another sequence or round, and
/// in the opening once the entry that had it is gone.
fn verify_persistent(plan: &Plan) -> Result<(), PlanError> {
    let mut places = Vec::new();
    for sequence in &plan.sequences {
        let rounds = if sequence.role == Role::Steady { plan.rounds.max(1) as usize } else { 1 };
        for round in sequence.entries.chunks(sequence.entries.len().div_ceil(rounds).max(1)) {
            // Until when each place is taken.
            let mut taken = FxHashMap::default();
            for (index, entry) in (0..).zip(round) {
                let Place::Persistent(offset) = entry.place else { continue };
                let until = if sequence.role == Role::Opening { entry.until } else { u32::MAX };
                let size = granted(entry.size_max);
                if taken.insert(offset, until).is_some_and(|until| until > index) {
                    return Err(PlanError::Persistent { offset, size, end: offset + size });
                }
                places.push((offset, size));
            }
        }
    }
    places.sort_unstable();
    places.dedup();
    let mut end = 0;
    for (offset, size) in places {
        if offset < end {
            return Err(PlanError::Persistent { offset, size, end });
        }
        end = offset + size;
    }
    Ok(())
}
