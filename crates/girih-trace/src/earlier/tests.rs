//! What is rebuilt of small traces, drawn by hand.

use super::*;
use crate::event::{Action, Event, StackId};
use crate::trace::{Block, BlockState, Segment};

const MIB: u64 = 1 << 20;

fn event(action: Action, address: u64, size: u64) -> Event {
    let (stream, pool, stack) = (StreamId(0), PoolId::DEFAULT, StackId::NONE);
    Event { action, address, size, time_us: 0, stack, stream, pool }
}

/// A trace of events with sizes and addresses in MiB, that began late.
fn late(events: &[(Action, u64, u64)]) -> Trace {
    let events = events.iter().map(|&(action, at, size)| event(action, at * MIB, size * MIB));
    let mut trace = Trace { events: events.collect(), ..Trace::default() };
    trace.origin.truncated = true;
    trace
}

/// A segment of blocks, each with its MiB and whether it is in use.
fn segment(at: u64, blocks: &[(u64, bool)]) -> Segment {
    let mut next = at * MIB;
    let mut block = |&(size, live): &(u64, bool)| {
        let state = if live { BlockState::Allocated } else { BlockState::Inactive };
        let (address, size) = (next, size * MIB);
        next += size;
        Block { address, size, requested: size, state, stack: StackId::NONE }
    };
    let blocks: Vec<Block> = blocks.iter().map(&mut block).collect();
    Segment {
        address: at * MIB,
        size: next - at * MIB,
        stream: StreamId(0),
        pool: PoolId::DEFAULT,
        is_small: false,
        is_expandable: false,
        blocks,
    }
}

/// The segments that were held, in MiB: address, size, and the blocks with their ends.
type Held = Vec<(u64, u64, Vec<(u64, Option<u64>)>)>;

fn held(trace: &Trace) -> Held {
    let earlier = Earlier::of(trace, &Lifetimes::of(trace)).unwrap();
    let block = |block: &EarlierBlock| (block.address / MIB, block.end.map(|end| end / MIB));
    let segment = |segment: &EarlierSegment| {
        let blocks = segment.blocks.iter().map(block).collect();
        (segment.address / MIB, segment.size / MIB, blocks)
    };
    earlier.segments.iter().map(segment).collect()
}

use Action::{
    Alloc, FreeCompleted, FreeRequested, SegmentAlloc, SegmentFree, SegmentMap, SegmentUnmap,
};

#[test]
fn undone_events_leave_what_was_held_before_them() {
    let mut trace = late(&[
        (FreeRequested, 100, 4),
        (FreeCompleted, 100, 4),
        (SegmentFree, 300, 20),
        (SegmentAlloc, 200, 20),
        (Alloc, 200, 5),
    ]);
    trace.segments = vec![
        segment(100, &[(4, false), (6, true), (10, false)]),
        segment(200, &[(5, true), (15, false)]),
    ];
    let at_100 = (100, 20, vec![(100, None), (104, Some(110))]);
    assert_eq!(held(&trace), [at_100, (300, 20, vec![])]);
}

#[test]
fn the_first_block_behind_another_tells_where_that_ended() {
    let mut trace = late(&[(Alloc, 105, 3), (FreeRequested, 100, 4), (FreeCompleted, 100, 4)]);
    trace.segments = vec![segment(100, &[(5, false), (3, true), (12, false)])];
    assert_eq!(held(&trace), [(100, 20, vec![(100, Some(105))])]);
}

#[test]
fn a_free_that_was_asked_for_before_the_first_event_is_pending() {
    let mut trace = late(&[(FreeCompleted, 100, 4), (Alloc, 100, 4)]);
    trace.segments = vec![segment(100, &[(4, true), (16, false)])];
    let lives = Lifetimes::of(&trace);
    let earlier = Earlier::of(&trace, &lives).unwrap();
    let block = earlier.segments[0].blocks[0];
    assert!(block.is_pending);
    assert_eq!(block.request, Some(0), "the older of the two requests at its address");
}

#[test]
fn pages_that_were_mapped_and_unmapped_are_undone_and_show_where_a_reservation_begins() {
    let mut trace = late(&[
        (SegmentUnmap, 160, 20),
        (SegmentMap, 100, 20),
        (Alloc, 100, 20),
        (SegmentMap, 200, 20),
        (Alloc, 200, 15),
    ]);
    let run = |at, blocks: &[(u64, bool)]| Segment { is_expandable: true, ..segment(at, blocks) };
    trace.segments = vec![run(100, &[(20, true)]), run(180, &[(20, true), (15, true), (5, false)])];
    let earlier = Earlier::of(&trace, &Lifetimes::of(&trace)).unwrap();
    assert_eq!(held(&trace), [(160, 40, vec![(180, Some(200))])]);
    assert_eq!(earlier.segments[0].base, 100 * MIB);
}

#[test]
fn segments_that_contradict_the_events_are_refused_with_the_event() {
    for events in [
        vec![(Alloc, 300, 4)],
        vec![(FreeRequested, 101, 4)],
        vec![(SegmentAlloc, 100, 30), (Alloc, 100, 20)],
        vec![(SegmentFree, 110, 20)],
        vec![(FreeCompleted, 500, 4)],
    ] {
        let mut trace = late(&events);
        trace.segments = vec![segment(100, &[(20, true)])];
        let error = Earlier::of(&trace, &Lifetimes::of(&trace)).unwrap_err();
        assert_eq!(error.event, 0, "{error}");
        assert!(error.to_string().contains("record again"), "{error}");
    }
}

#[test]
fn a_recording_that_began_with_nothing_held_nothing() {
    let mut trace = late(&[(SegmentAlloc, 100, 20), (Alloc, 100, 20)]);
    trace.origin.truncated = false;
    assert!(held(&trace).is_empty());
    trace.segments = vec![segment(100, &[(20, true)])];
    assert!(held(&trace).is_empty());
}

#[test]
fn touched_memory_that_no_event_took_was_held() {
    let trace = late(&[(Alloc, 100, 30), (SegmentAlloc, 200, 40), (Alloc, 200, 40)]);
    assert_eq!(held(&trace), [(100, 30, vec![])]);
    // What lies between touched addresses was in use, and what an event frees was too.
    let trace = late(&[
        (Alloc, 100, 10),
        (Alloc, 120, 10),
        (FreeRequested, 130, 4),
        (FreeCompleted, 130, 4),
    ]);
    assert_eq!(held(&trace), [(100, 10, vec![]), (120, 14, vec![(130, None)])]);
    let trace = late(&[(Alloc, 101, 8), (Alloc, 111, 8)]);
    let hole = (100, 20, vec![(100, Some(101)), (109, Some(111))]);
    assert_eq!(held(&trace), [hole], "at the end 1 MiB may be a remainder");
}

#[test]
fn a_segment_that_goes_back_shows_its_extent() {
    let free = [(FreeRequested, 100, 12), (FreeCompleted, 100, 12)];
    let mut events = vec![(Alloc, 100, 12)];
    events.extend(free);
    events.extend([(SegmentFree, 100, 40), (SegmentAlloc, 100, 60), (Alloc, 100, 60)]);
    assert_eq!(held(&late(&events)), [(100, 40, vec![])]);
}

#[test]
fn a_block_that_begins_behind_free_memory_begins_a_segment() {
    let gone = |at, size| [(Alloc, at, size), (FreeRequested, at, size), (FreeCompleted, at, size)];
    let trace = late(&[gone(100, 20), gone(120, 30)].concat());
    assert_eq!(held(&trace), [(100, 20, vec![]), (120, 30, vec![])]);
}

#[test]
fn a_choice_that_was_not_the_best_fit_shows_a_border() {
    let gone = |at, size| [(Alloc, at, size), (FreeRequested, at, size), (FreeCompleted, at, size)];
    // 32 MiB are given at 100 although 200..264 is smaller than 100..196: so 100..132 is a segment.
    let trace =
        late(&[&gone(100, 32)[..], &[(Alloc, 100, 32), (Alloc, 132, 64)], &gone(200, 64)].concat());
    let borders = [(100, 32, vec![]), (132, 64, vec![]), (200, 64, vec![])];
    assert_eq!(held(&trace), borders);
    // A segment is taken for 90 MiB although 100..196 would do: so that is two.
    let trace =
        late(&[(SegmentAlloc, 500, 90), (Alloc, 500, 90), (Alloc, 100, 32), (Alloc, 132, 64)]);
    assert_eq!(held(&trace), [(100, 32, vec![]), (132, 64, vec![])]);
}

#[test]
fn the_reported_peaks_tell_of_what_nothing_touched() {
    let mut trace = late(&[(Alloc, 100, 30), (SegmentAlloc, 200, 40), (Alloc, 200, 40)]);
    trace.recorded.allocated_peak = Some(570 * MIB);
    let earlier = |trace: &Trace| Earlier::of(trace, &Lifetimes::of(trace)).unwrap();
    let alone = earlier(&trace);
    assert_eq!(
        (alone.reserved(), alone.requested(), alone.untouched),
        (530 * MIB, 500 * MIB, 500 * MIB)
    );
    trace.recorded.reserved_peak = Some(580 * MIB);
    let both = earlier(&trace);
    assert_eq!(
        (both.reserved(), both.requested(), both.untouched),
        (540 * MIB, 500 * MIB, 510 * MIB)
    );
    let untouched = both.segments.last().unwrap();
    assert!(untouched.address >= 240 * MIB, "above all that is known");
    let mut at = untouched.address;
    let ends = untouched.blocks.iter().map(|block| (block.address, block.end.unwrap()));
    for (start, end) in ends.chain([(untouched.address + untouched.size, u64::MAX)]) {
        assert!(start >= at && start - at <= MIB, "no free memory that a large request fits");
        at = end;
    }
}
