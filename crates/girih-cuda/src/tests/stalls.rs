//! How long streams stand still in waits.

use girih_runtime::Device;
use girih_trace::StreamId;

use super::device_of;
use crate::device::CudaDevice;
use crate::driver::types::CuResult;
use crate::fake::{self, MIB};

/// What the fake says of any two times: half a millisecond.
const STALL: u64 = 500_000;

/// A device with two streams, and a wait of the second for all.
fn with_wait() -> (CudaDevice, [StreamId; 2]) {
    let mut device = device_of(64 * MIB);
    let streams = [0x7f00, 0x7f80].map(|handle| device.add_stream(handle));
    wait(&mut device, streams[1]);
    (device, streams)
}

fn wait(device: &mut CudaDevice, stream: StreamId) {
    let fence = device.record_fence(&[]).expect("an event");
    device.wait_measured(stream, fence).expect("a wait");
    device.destroy_event(fence).expect("it is in use");
}

#[test]
fn a_wait_is_told_of_once_it_is_over_and_once() {
    let (mut device, streams) = with_wait();
    assert_eq!((device.take_stalls(u64::MAX), device.take_stalls(u64::MAX)), (STALL, 0));
    fake::hold(0x7f80);
    wait(&mut device, streams[1]);
    wait(&mut device, streams[1]);
    fake::calls();
    assert_eq!(device.take_stalls(u64::MAX), 0, "the streams are at it still");
    let calls = fake::calls();
    let waits = ["cuEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize"];
    assert!(!calls.iter().any(|call| waits.contains(call)), "the host waits: {calls:?}");
    device.synchronize_stream(streams[1]).expect("no fault");
    assert_eq!(device.take_stalls(u64::MAX), 2 * STALL);
    wait(&mut device, streams[0]);
    assert_eq!(device.take_stalls(1000), 1000, "a wait counts for the most");
}

#[test]
fn times_are_taken_around_the_wait_and_their_events_used_again() {
    let (mut device, streams) = with_wait();
    device.take_stalls(u64::MAX);
    let made = device.calls().event_create;
    fake::calls();
    wait(&mut device, streams[1]);
    let calls = fake::calls();
    let is_order = |call: &&&str| ["cuEventRecord", "cuStreamWaitEvent"].contains(*call);
    let order: Vec<_> = calls.iter().filter(is_order).copied().collect();
    assert_eq!(order, ["cuEventRecord", "cuStreamWaitEvent", "cuEventRecord"]);
    device.take_stalls(u64::MAX);
    (0..100).for_each(|_| {
        wait(&mut device, streams[1]);
        device.take_stalls(u64::MAX);
    });
    assert_eq!(device.calls().event_create, made, "none is made anew");
}

#[test]
fn events_are_bounded_however_many_waits_nobody_asks_about_and_all_of_them_count() {
    let (mut device, streams) = with_wait();
    fake::hold(0x7f80);
    (1..1000).for_each(|_| wait(&mut device, streams[1]));
    assert!(device.calls().event_create <= 2 * 160 + 1, "{}", device.calls().event_create);
    fake::resume(0x7f80);
    device.synchronize_stream(streams[1]).expect("no fault");
    // The fake's events remember who was held when they were recorded.
    fake::arrange(|state| state.events.values_mut().for_each(std::collections::BTreeSet::clear));
    assert_eq!(device.take_stalls(u64::MAX), 1000 * STALL);
}

#[test]
fn whatever_fails_of_taking_the_time_the_wait_is_made_and_nothing_is_left() {
    let (mut device, streams) = with_wait();
    device.take_stalls(u64::MAX);
    fake::calls();
    wait(&mut device, streams[1]);
    device.take_stalls(u64::MAX);
    let calls = fake::calls();
    let records = calls.iter().filter(|call| **call == "cuEventRecord").count();
    assert_eq!(records, 2, "{calls:?}");
    for call in 1..=calls.len() {
        let (mut device, streams) = with_wait();
        device.take_stalls(u64::MAX);
        let fence = device.record_fence(&[]).expect("an event");
        fake::calls();
        fake::fail(call, CuResult(999));
        let waited = device.wait_measured(streams[1], fence);
        let made = fake::calls();
        if made.get(call - 1) == Some(&"cuEventRecord") {
            assert!(waited.is_ok() && made.contains(&"cuStreamWaitEvent"), "call {call}: {made:?}");
        }
        device.take_stalls(u64::MAX);
        device.destroy_event(fence).expect("it is in use");
        assert_eq!(device.events_in_use(), 0, "call {call}");
        assert_eq!(device.copies.timers.given(), 0, "call {call}: a time is kept");
    }
}

#[test]
fn a_graph_that_is_captured_is_not_disturbed() {
    let (mut device, _) = with_wait();
    fake::capture(true);
    assert_eq!(device.take_stalls(u64::MAX), STALL);
    assert!(fake::capture(false), "the capture was spoiled");
}
