//! Contexts and graph captures of the calling thread.

use girih_runtime::Device;

use super::device_of;
use crate::fake::{self, MIB, UNIT};

#[test]
fn a_thread_keeps_the_context_that_it_has() {
    let mut device = device_of(64 * MIB);
    for present in [vec![], vec![2], vec![1]] {
        fake::arrange(|state| state.contexts = present.clone());
        let address = device.alloc(UNIT).expect("there is room");
        device.free(address).expect("it was allocated");
        fake::arrange(|state| assert_eq!(state.contexts, present));
    }
}

#[test]
fn nothing_is_pushed_where_our_context_is_current() {
    let mut device = device_of(64 * MIB);
    fake::arrange(|state| state.contexts = vec![1]);
    // The first call asks for the context; a push would be the second and would fail.
    fake::arrange(|state| state.refuses_push = true);
    device.memory_info();
    device.alloc(UNIT).expect("no push is needed");
}

#[test]
fn no_call_spoils_a_capture() {
    let mut device = device_of(64 * MIB);
    let stream = device.add_stream(0x7f00);
    fake::capture(true);
    let base = device.reserve(UNIT).expect("there are addresses");
    let handle = device.create(UNIT).expect("there is room");
    device.map(base, handle).expect("nothing is there");
    device.set_access(base, UNIT).expect("it is mapped");
    device.unmap(base, UNIT).expect("it is mapped");
    device.release(handle).expect("it is mapped nowhere");
    device.unreserve(base, UNIT).expect("nothing is mapped");
    let address = device.alloc(UNIT).expect("there is room");
    device.export(address, 512).expect("it can be shared");
    device.free(address).expect("it was allocated");
    let event = device.record_event(stream).expect("an event");
    device.query_event(event).expect("an answer");
    device.wait_event(stream, event).expect("a wait");
    device.synchronize_event(event).expect("a wait");
    device.destroy_event(event).expect("it is in use");
    assert_eq!(device.is_capturing(stream), Ok(true));
    assert!(fake::capture(false), "the capture was spoiled");
    assert_eq!(device.is_capturing(stream), Ok(false));
}
