//! The pools of events that do not say theirs.
//!
//! Before torch 2.12 the entries of the history have no `pool_id`; the segments of the snapshot do. So what happened
//! within a segment, from its beginning to the end of the recording, is of the segment's pool:
//!
//! ```text
//!  events     ... alloc   segment_alloc  alloc  free  alloc ...  | snapshot
//!  address         a           a           a     a      a        | segment a: pool (1, 0)
//!  pool            ?  ◄── looked at backwards, the segment's ─────┘
//! ```
//!
//! Of what was given back before the end nothing is known: it stays in the default pool.

use std::collections::BTreeMap;

use crate::event::{Action, Event, PoolId};
use crate::trace::Segment;

/// Gives events the pools of the segments that they lie in, if no event has one of its own.
pub(super) fn infer(events: &mut [Event], segments: &[Segment]) {
    let private = segments.iter().filter(|segment| segment.pool != PoolId::DEFAULT);
    let mut held: BTreeMap<u64, (u64, PoolId)> =
        private.map(|segment| (segment.address, (segment.size, segment.pool))).collect();
    if held.is_empty() || events.iter().any(|event| event.pool != PoolId::DEFAULT) {
        return;
    }
    for event in events.iter_mut().rev() {
        if matches!(event.action, Action::Annotate | Action::Oom) {
            continue;
        }
        let around = held.range(..=event.address).next_back();
        let Some((&start, &(size, pool))) = around else { continue };
        let end = start.saturating_add(size);
        if event.address >= end {
            continue;
        }
        event.pool = pool;
        // Before this there was no such memory.
        if matches!(event.action, Action::SegmentAlloc | Action::SegmentMap) {
            held.remove(&start);
            let after = event.address.saturating_add(event.size);
            let rest = [(start, event.address), (after, end)];
            for (from, to) in rest.into_iter().filter(|(from, to)| from < to) {
                held.insert(from, (to - from, pool));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::StreamId;

    fn event(action: Action, address: u64, size: u64) -> Event {
        Event::of(action, address, size, StreamId(0), PoolId::DEFAULT)
    }

    fn segment(address: u64, size: u64, pool: u16) -> Segment {
        let (stream, pool) = (StreamId(0), PoolId(pool));
        let (is_small, is_expandable, blocks) = (false, false, Vec::new());
        Segment { address, size, stream, pool, is_small, is_expandable, blocks }
    }

    #[test]
    fn what_happens_in_a_segment_that_is_left_is_of_its_pool() {
        let mut events = vec![
            event(Action::SegmentAlloc, 4096, 4096),
            event(Action::Alloc, 4096, 512),
            event(Action::FreeCompleted, 4096, 512),
            event(Action::SegmentFree, 4096, 4096),
            event(Action::SegmentAlloc, 4096, 2048),
            event(Action::Alloc, 4608, 512),
            event(Action::Alloc, 8192, 512),
        ];
        infer(&mut events, &[segment(4096, 2048, 1), segment(8192, 2048, 0)]);
        let pools: Vec<u16> = events.iter().map(|event| event.pool.0).collect();
        assert_eq!(pools, [0, 0, 0, 0, 1, 1, 0], "the first segment at 4096 was another");
    }

    #[test]
    fn a_run_that_was_mapped_piece_by_piece_is_of_one_pool_and_what_events_say_counts() {
        let mut events = vec![
            event(Action::Alloc, 4096, 512),
            event(Action::SegmentMap, 4096, 2048),
            event(Action::Alloc, 4096, 512),
            event(Action::SegmentMap, 6144, 2048),
            event(Action::Alloc, 6144, 512),
        ];
        let mut said = events.clone();
        infer(&mut events, &[segment(4096, 4096, 3)]);
        let pools: Vec<u16> = events.iter().map(|event| event.pool.0).collect();
        assert_eq!(pools, [0, 3, 3, 3, 3]);
        said[0].pool = PoolId(2);
        let before = said.clone();
        infer(&mut said, &[segment(4096, 4096, 3)]);
        assert_eq!(said, before);
    }
}
