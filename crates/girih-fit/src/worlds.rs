//! Worlds: jobs of which recordings at several numbers of GPUs were made, one or more ranks of each.
//!
//! What a rank holds goes down as there are more of them, in ways that depend on what is sharded and on how the layers
//! divide, so nothing is built between the recorded worlds. In each of them the worst rank decides.

use crate::subject::Outcome;

/// Ranks of one world under one allocator.
#[derive(Clone, PartialEq, Debug)]
pub struct World {
    /// GPUs of the job.
    pub gpus: u64,
    /// Of the ranks that were recorded, the worst, by its position among them.
    pub worst: usize,
    /// What came of it.
    pub outcome: Outcome,
}

impl World {
    /// The world of these ranks; none without any. A rank that does not fit is worse than one that does, and then the
    /// one that reserves more.
    pub fn of(gpus: u64, ranks: Vec<Outcome>) -> Option<World> {
        let badness = |outcome: &Outcome| (!outcome.fits(), outcome.reserved);
        // Of several that are as bad, the first.
        let worst = (ranks.into_iter().enumerate().rev()).max_by_key(|(_, rank)| badness(rank));
        worst.map(|(worst, outcome)| World { gpus, worst, outcome })
    }
}

/// The fewest GPUs at which a job fits, of the worlds that were recorded.
pub fn fewest(worlds: &[World]) -> Option<&World> {
    worlds.iter().filter(|world| world.outcome.fits()).min_by_key(|world| world.gpus)
}

#[cfg(test)]
mod tests {
    use girih_runtime::AllocError;
    use girih_runtime::replay::Stop;
    use girih_trace::Tick;

    use super::*;

    fn rank(reserved: u64, fits: bool) -> Outcome {
        let error = AllocError::OutOfMemory {
            segment: 1,
            allocated: 0,
            reserved,
            limit: u64::MAX,
            device_free: 0,
            requested: 1,
            is_rejection: false,
        };
        let stop = Stop { tick: Tick(0), request: 0, size: 1, error };
        let stop = (!fits).then_some(stop);
        Outcome { reserved, spare: fits.then(|| 100 - reserved), retries: 0, stop }
    }

    #[test]
    fn the_worst_rank_decides() {
        let world = World::of(8, vec![rank(50, true), rank(80, true), rank(80, true)]);
        assert_eq!(world.map(|world| (world.worst, world.outcome.spare)), Some((1, Some(20))));
        // One that was refused memory may have reserved little by then.
        let world = World::of(8, vec![rank(90, true), rank(10, false)]);
        assert_eq!(world.map(|world| (world.worst, world.outcome.fits())), Some((1, false)));
        assert_eq!(World::of(8, Vec::new()), None);
    }

    #[test]
    fn the_smallest_world_that_fits_is_taken_whatever_the_larger_ones_do() {
        let world = |gpus, fits| World { gpus, worst: 0, outcome: rank(10, fits) };
        let worlds = [world(32, false), world(16, true), world(8, true), world(4, false)];
        assert_eq!(fewest(&worlds).map(|world| world.gpus), Some(8));
        assert_eq!(fewest(&worlds[3..]), None);
    }
}
