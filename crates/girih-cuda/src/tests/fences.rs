//! Fences: events of all streams, known or not, there or gone.

use girih_runtime::{Device, DeviceError};
use girih_trace::StreamId;

use super::device_of;
use crate::device::CudaDevice;
use crate::fake::{self, MIB};
use crate::streams::StreamHandle;

fn old_device() -> CudaDevice {
    fake::reset(64 * MIB);
    CudaDevice::open(fake::old_driver(), 0).expect("the fake has devices")
}

#[test]
fn a_fence_covers_a_stream_that_nobody_has_named() {
    let mut device = device_of(64 * MIB);
    device.add_stream(0x7f00);
    fake::hold(0xabc0);
    let fence = device.record_fence(&[]).expect("an event");
    assert_eq!(device.query_event(fence), Ok(false));
    fake::resume(0xabc0);
    assert_eq!(device.query_event(fence), Ok(true));
    device.destroy_event(fence).expect("it is in use");
    assert_eq!(device.events_in_use(), 0);
}

#[test]
fn a_fence_has_to_wait_while_a_graph_is_captured_and_does_not_spoil_it() {
    let mut device = device_of(64 * MIB);
    device.add_stream(0x7f00);
    fake::capture(true);
    assert_eq!(device.record_fence(&[]), Err(DeviceError::Capturing { call: "record_fence" }));
    assert!(fake::capture(false), "the capture was spoiled");
    device.record_fence(&[]).expect("no graph is captured now");
}

#[test]
fn a_capture_that_nobody_has_told_of_is_disturbed_once_at_most() {
    let mut device = device_of(64 * MIB);
    device.add_stream(0x7f00);
    fake::arrange(|state| state.hides_capture = true);
    fake::capture(true);
    assert_eq!(device.record_fence(&[]), Err(DeviceError::Capturing { call: "record_fence" }));
    assert!(!fake::capture(true), "the driver spoils it");
    let fence = device.record_fence(&[]).expect("events of streams are allowed");
    assert!(fake::capture(false), "another capture was spoiled");
    device.destroy_event(fence).expect("it is in use");
}

#[test]
fn without_events_of_a_context_a_fence_is_an_event_on_each_known_stream() {
    let mut device = old_device();
    let streams = [0, 0x7f00, 0x7f80].map(|handle| device.add_stream(handle));
    fake::hold(0x7f80);
    let fence = device.record_fence(&[]).expect("events");
    assert_eq!((device.events_in_use(), device.query_event(fence)), (3, Ok(false)));
    fake::calls();
    device.wait_event(streams[0], fence).expect("a wait");
    assert_eq!(fake::calls(), ["cuStreamWaitEvent"; 3]);
    fake::resume(0x7f80);
    assert_eq!(device.query_event(fence), Ok(true));
    device.destroy_event(fence).expect("it is in use");
    assert_eq!(device.events_in_use(), 0);
}

#[test]
fn without_events_of_a_context_no_stream_is_named_that_may_be_gone() {
    let mut device = old_device();
    device.add_stream(0);
    let stream = StreamHandle { device: 0, handle: 0x9990, is_transient: true };
    device.set_stream(StreamId(1), stream);
    fake::hold(0x9990);
    fake::calls();
    let fence = device.record_fence(&[]).expect("an event");
    let calls = fake::calls();
    assert!(calls.contains(&"cuCtxSynchronize"), "the host waits for it instead: {calls:?}");
    assert_eq!(calls.iter().filter(|call| **call == "cuEventRecord").count(), 1);
    assert_eq!(device.query_event(fence), Ok(true));
}

#[test]
fn an_event_on_a_stream_of_another_device_is_made_in_its_context() {
    let mut device = device_of(64 * MIB);
    let own = device.add_stream(0);
    let stream = StreamHandle { device: 1, handle: 0, is_transient: false };
    device.set_stream(StreamId(1), stream);
    let events = [own, StreamId(1)].map(|stream| device.record_event(stream).expect("an event"));
    fake::arrange(|state| assert_eq!(state.retained.get(&1), Some(&1)));
    for event in events {
        device.destroy_event(event).expect("it is in use");
    }
    // Each is used again where it belongs.
    fake::calls();
    device.record_event(StreamId(1)).expect("an event");
    device.record_event(own).expect("an event");
    assert!(!fake::calls().contains(&"cuEventCreate"));
    drop(device);
    fake::arrange(|state| assert!(state.retained.values().all(|&count| count == 0)));
}

#[test]
fn a_fence_for_a_user_of_another_device_covers_that_device_too() {
    for make in [|| device_of(64 * MIB), old_device] {
        let mut device = make();
        device.add_stream(0);
        let foreign = StreamHandle { device: 1, handle: 0x7f80, is_transient: false };
        device.set_stream(StreamId(1), foreign);
        fake::hold(0x7f80);
        let marks = |calls: &[&str]| {
            let is_mark = |call: &&&str| ["cuCtxRecordEvent", "cuEventRecord"].contains(*call);
            calls.iter().filter(is_mark).count()
        };
        fake::calls();
        let own = device.record_fence(&[StreamId(0)]).expect("an event");
        assert_eq!(marks(&fake::calls()), 1);
        let fence = device.record_fence(&[StreamId(0), StreamId(1)]).expect("two, as one");
        assert_eq!(marks(&fake::calls()), 2);
        assert_eq!(device.query_event(fence), Ok(false));
        fake::resume(0x7f80);
        assert_eq!(device.query_event(fence), Ok(true));
        for event in [own, fence] {
            device.destroy_event(event).expect("it is in use");
        }
        assert_eq!(device.events_in_use(), 0);
        fake::capture_from(0x7f80, true);
        let refused = device.record_fence(&[StreamId(1)]);
        assert_eq!(refused, Err(DeviceError::Capturing { call: "record_fence" }));
        fake::capture_from(0x7f80, false);
        assert_eq!(device.events_in_use(), 0, "nothing is left of what was refused");
    }
}

#[test]
fn a_stream_of_the_same_handle_is_told_from_the_one_before() {
    let device = device_of(64 * MIB);
    let is_now = |number| fake::arrange(|state| state.identities = [(0x7f00, number)].into());
    is_now(14);
    assert_eq!(device.stream_identity(0x7f00), Some(14));
    is_now(15);
    assert_eq!(device.stream_identity(0x7f00), Some(15));
    assert_eq!(old_device().stream_identity(0x7f00), None);
}
