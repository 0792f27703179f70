//! Temporaries of the opening: what is asked for while a model is built and is gone before the first steady iteration,
//! such as weights in another precision, and finds no place below the height of the arena.
//!
//! ```text
//!                model building             steady iteration
//!  what stays    |  ttttt   wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww      weights
//!                |  ttttttttttttt   ssssssssssssssssssssssss      states of the optimizer
//!  arena         |  ttttttttt   |--|  |-----|   |--|  |---|       t: temporaries
//! ```
//!
//! The paper says nothing of them. The published program lays them one after the other over what states and activations
//! will have, and ends where they need more than those. Here they go by first fit, the largest first, and the pool is
//! as large as they need: what the planner is served with best.

use crate::fill::Fill;
use crate::plan::{Entry, Place, Plan, Role, granted};
use crate::problem::Buffer;

/// Entries of the opening by their index, each with where it begins, in bytes from the start of the pool: below lies the
/// arena of `plan`, then what stays.
pub(super) fn lay(plan: &Plan) -> Vec<(u32, u64)> {
    let Some(opening) = plan.sequences.iter().find(|it| it.role == Role::Opening) else {
        return Vec::new();
    };
    let count = opening.entries.len() as u32;
    // What lives on into the steady iteration is in its way, and is no temporary.
    let is_temporary = |entry: &Entry| entry.place == Place::Outside && entry.until < count;
    if !opening.entries.iter().any(is_temporary) {
        return Vec::new();
    }
    let buffers = (0..).zip(&opening.entries).map(|(lower, entry)| {
        let stays = matches!(entry.place, Place::Persistent(_));
        let upper = if stays { count } else { entry.until.clamp(lower + 1, count) };
        Buffer { lower, upper, size: granted(entry.size_max) }
    });
    let mut fill = Fill::new(buffers.collect());
    let mut temporaries = Vec::new();
    for (index, entry) in opening.entries.iter().enumerate() {
        match entry.place {
            Place::Arena(offset) => _ = fill.take(index, offset),
            // Two in one place come one after the other: the first keeps it.
            Place::Persistent(offset) => _ = fill.take(index, plan.arena_bytes + offset),
            Place::Outside if is_temporary(entry) => temporaries.push(index),
            Place::Outside | Place::Room(_) => {}
        }
    }
    temporaries.sort_by_key(|&index| (u64::MAX - opening.entries[index].size_max, index));
    let laid = temporaries.into_iter();
    laid.filter_map(|index| Some((index as u32, fill.first_fit(index, u64::MAX)?))).collect()
}

#[cfg(test)]
mod tests {
    use girih_trace::StreamId;

    use super::*;
    use crate::plan::{ALIGNMENT, Sequence};
    use crate::stweaver::Synthesis;

    fn entry(units: u64, place: Place, until: u32) -> Entry {
        let size = units * ALIGNMENT;
        Entry { size_min: size, size_max: size, stream: StreamId(0), place, until }
    }

    /// An arena of 2 units below what stays, of `stays` units.
    fn plan(entries: Vec<Entry>, stays: u64) -> Plan {
        let opening = Sequence { role: Role::Opening, boundaries: Vec::new(), entries };
        Plan {
            arena_bytes: 2 * ALIGNMENT,
            persistent_bytes: stays * ALIGNMENT,
            sequences: vec![opening],
            ..Plan::default()
        }
    }

    #[test]
    fn temporaries_lie_over_what_comes_later_and_raise_the_pool_where_that_is_too_little() {
        let (arena, stays) =
            (|at| Place::Arena(at * ALIGNMENT), |at| Place::Persistent(at * ALIGNMENT));
        let opening = |units| {
            plan(
                vec![
                    entry(units, Place::Outside, 3),
                    entry(1, stays(0), 0),
                    entry(1, Place::Outside, 3),
                    entry(5, stays(1), 0),
                    entry(2, arena(0), 6),
                    entry(1, Place::Outside, 6),
                ],
                6,
            )
        };
        // Of 2 units: in the arena; the one of 1 unit over the second that stays, which is not there yet.
        let laid = |units| {
            let plan = opening(units);
            let temporaries = lay(&plan);
            Synthesis { plan, temporaries, ..Synthesis::default() }
        };
        let small = laid(2);
        assert_eq!(small.temporaries, [(0, 0), (2, 3 * ALIGNMENT)], "the last one lives on");
        assert_eq!(small.pool_bytes(), 8 * ALIGNMENT);
        // Of 7 units there is no room below what stays first: it lies above, and so high is the pool.
        let large = laid(7);
        assert_eq!(large.temporaries, [(0, 3 * ALIGNMENT), (2, 0)]);
        assert_eq!(large.pool_bytes(), 10 * ALIGNMENT);
    }

    #[test]
    fn without_an_opening_or_temporaries_nothing_is_laid() {
        assert_eq!(lay(&Plan::default()), []);
        assert_eq!(lay(&plan(vec![entry(1, Place::Persistent(0), 0)], 3)), []);
    }
}
