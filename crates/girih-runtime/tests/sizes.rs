//! Recordings of sizes that no GPU has: a replay ends, in bounded memory.

use std::sync::Arc;

use girih_plan::Plan;
use girih_runtime::simulate::{Allocator, Setup, SimulateError, simulate};
use girih_trace::bounds::HELD_MAX;
use girih_trace::{Action, Event, Lifetimes, PoolId, StackId, StreamId, Trace};

fn event(action: Action, address: u64, size: u64) -> Event {
    let (stream, pool, stack) = (StreamId(0), PoolId::DEFAULT, StackId::NONE);
    Event { address, size, time_us: 0, stack, stream, pool, action }
}

fn trace(events: Vec<Event>) -> Trace {
    Trace { events, streams: vec![0], pools: vec![(0, 0)], ..Trace::default() }
}

fn run(trace: &Trace, allocator: Allocator) -> Result<(), SimulateError> {
    let lives = Lifetimes::of(trace);
    simulate(trace, &lives, allocator, &Setup::default()).map(|_| ())
}

#[test]
fn more_than_a_device_holds_is_an_error_and_no_replay() {
    let trace = trace(vec![event(Action::Alloc, 1 << 50, HELD_MAX + 512)]);
    for allocator in Allocator::ALL {
        let refused = run(&trace, allocator);
        assert!(matches!(refused, Err(SimulateError::Bounds(_))), "{allocator:?}: {refused:?}");
    }
}

/// Two TiB that come, go, and are given back to the device again and again.
#[test]
fn a_replay_that_never_stops_mapping_is_given_up_with_the_event() {
    let mut events = Vec::new();
    for _ in 0..1000 {
        events.push(event(Action::Alloc, 1 << 50, HELD_MAX / 2));
        events.push(event(Action::FreeRequested, 1 << 50, HELD_MAX / 2));
        events.push(event(Action::FreeCompleted, 1 << 50, HELD_MAX / 2));
        events.push(event(Action::SegmentFree, 1 << 50, HELD_MAX / 2));
    }
    let refused = run(&trace(events), Allocator::Gmlake).unwrap_err().to_string();
    assert!(refused.contains(": gmlake has called the device "), "{refused}");
    assert!(refused.contains(" times by event "), "{refused}");
}

/// Each small request splits the one large block that is left; what keeps the halves together spans all
/// that is left each time.
#[test]
fn gmlake_keeps_no_more_stitched_blocks_than_it_may_however_often_it_splits() {
    const MIB: u64 = 1 << 20;
    let whole = 64 << 30;
    let mut events = vec![
        event(Action::Alloc, 1 << 50, whole),
        event(Action::FreeRequested, 1 << 50, whole),
        event(Action::FreeCompleted, 1 << 50, whole),
    ];
    events.extend((0..20_000).map(|k| event(Action::Alloc, k << 30, 2 * MIB)));
    let trace = trace(events);
    let lives = Lifetimes::of(&trace);
    let mut setup = Setup { plan: None::<Arc<Plan>>, ..Setup::default() };
    setup.gmlake.fragmentation_limit = 2 * MIB;
    let simulation = simulate(&trace, &lives, Allocator::Gmlake, &setup).expect("it ends");
    assert_eq!(simulation.replayed.failed, 0);
    assert_eq!(simulation.stats.reserved_bytes.all().peak, whole);
}
