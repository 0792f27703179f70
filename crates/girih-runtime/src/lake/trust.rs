//! How far a plan is trusted with what it foresees.
//!
//! Places are laid out for the peak. Early in a run, when little was ever in use, they are sparse, and pages for them all
//! are more than the bound allows, though no more than the run will need. So pages may be mapped for a place up to what
//! the plan foresees, as long as the run is what the plan says:
//!
//! ```text
//!  bytes │                  ╭── in their places, as the plan says
//!        │           ╭──────╯╭─ and as it is: trusted where it is at least 7/8 of that
//!        │    ╭──────╯───────╯
//!        │────╯──────────── ─ ─ ─ ─  a plan of which the large blocks never come: not trusted
//!        └───────────────────────────► requests
//! ```
//!
//! That is over when the peak must have come: after twice as many requests as the plan has. Up to then no more is held
//! than three times what was ever in use. And what a file says of itself is not taken for it: what is foreseen is no more
//! than what its own entries have in their places at once, and a thirty-second.

use girih_plan::{Entry, Place, Plan, Role, Sequence, granted};

use super::EntryId;
use super::follow::Following;

/// Bytes may lack one in so many in their places before the plan is not trusted.
const LACKING: u64 = 8;
/// And requests for which it has nothing may have one byte in so many.
const ASTRAY: u64 = 8;
/// Places may be larger than what is in them at once by one byte in so many.
const LOOSE: u64 = 32;
/// So many times what was in use so far may be held for places at most.
const SPARSE: u64 = 3;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Trust {
    /// By entry: the bytes that are in their places once its block is.
    placed: Vec<u64>,
    /// Bytes that may be held for the sake of places.
    foreseen: u64,
    /// How well plans were followed before.
    before: Following,
}

/// Bytes that an entry has in the window; 0 if it has no place.
fn bytes_of(entry: &Entry) -> u64 {
    if entry.place == Place::Outside { 0 } else { granted(entry.size_max) }
}

/// Bytes in their places at each entry of a sequence, beside `stays` that always are. With `is_round`, also what the round
/// before has left.
fn placed_in(sequence: &Sequence, stays: u64, is_round: bool) -> Vec<u64> {
    let count = sequence.entries.len();
    // What comes and what goes with each entry.
    let mut changes = vec![(0u64, 0u64); count + 1];
    for (at, entry) in sequence.entries.iter().enumerate() {
        let (bytes, until) = (bytes_of(entry), entry.until as usize);
        changes[at].0 = changes[at].0.saturating_add(bytes);
        if matches!(entry.place, Place::Persistent(_)) {
            continue;
        }
        let end = until.clamp(at, count);
        changes[end].1 = changes[end].1.saturating_add(bytes);
        if is_round && until > count {
            changes[0].0 = changes[0].0.saturating_add(bytes);
            let end = (until - count).min(count);
            changes[end].1 = changes[end].1.saturating_add(bytes);
        }
    }
    let placed = changes[..count].iter().scan(stays, |placed, &(more, less)| {
        *placed = placed.saturating_add(more).saturating_sub(less);
        Some(*placed)
    });
    placed.collect()
}

impl Trust {
    /// What a plan is trusted with from now on, which says that its places are worth so many bytes.
    pub(super) fn of(plan: &Plan, says: u64, before: Following) -> Trust {
        let stays = plan.sequences.iter().flat_map(|sequence| &sequence.entries);
        let stays = stays.filter(|entry| matches!(entry.place, Place::Persistent(_)));
        let stays = stays.map(bytes_of).fold(0, u64::saturating_add);
        let (mut placed, mut most) = (Vec::new(), 0);
        for sequence in &plan.sequences {
            let stays = if sequence.role == Role::Opening { 0 } else { stays };
            placed.extend(placed_in(sequence, stays, false));
            let whole = placed_in(sequence, stays, sequence.role == Role::Steady);
            most = whole.into_iter().fold(most, u64::max);
        }
        Trust { placed, foreseen: says.min(most.saturating_add(most / LOOSE)), before }
    }

    /// Bytes that may be held for the sake of places, beyond what may be held anyway: where so many are in theirs with the
    /// block of an entry, and so many were in use at most.
    pub(super) fn foreseen(
        &self,
        entry: Option<EntryId>,
        (placed, most): (u64, u64),
        now: Following,
    ) -> u64 {
        let says = entry.and_then(|entry| self.placed.get(entry.0 as usize)).copied();
        let seen = now.since(self.before);
        let all = seen.hit_bytes.saturating_add(seen.miss_bytes);
        let is_followed = seen.miss_bytes - seen.refused_bytes <= all / ASTRAY;
        let is_so = says.is_some_and(|says| placed >= says - says / LACKING);
        let is_early = seen.hits + seen.misses <= 2 * self.placed.len() as u64;
        if is_early && is_followed && is_so {
            self.foreseen.min(most.saturating_mul(SPARSE))
        } else {
            0
        }
    }
}
