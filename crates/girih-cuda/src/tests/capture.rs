//! Contexts and graph captures of the calling thread.

use girih_runtime::{Device, GraphNode};

use super::device_of;
use crate::device::CudaDevice;
use crate::driver::types::CuResult;
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
    let begun = device.begin_alloc(UNIT).expect("a size");
    let address = begun.make().expect("there is room");
    device.finish_alloc(address, UNIT);
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

#[test]
fn the_graph_of_a_capture_is_told_while_it_is_captured() {
    let mut device = device_of(64 * MIB);
    let [main, side] = [0x7f00, 0x7f10].map(|handle| device.add_stream(handle));
    assert_eq!(device.captured_ends(main), Ok(None));
    let first = fake::captured_work(0x7f00, 9);
    fake::join_captured(0x7f00, 0x7f10);
    let on_side = fake::captured_work(0x7f10, 9);
    let on_main = fake::captured_work(0x7f00, 9);
    fake::join_captured(0x7f10, 0x7f00);
    let ends = device.captured_ends(main).expect("an answer").expect("it is captured");
    assert_eq!((ends.capture, ends.nodes), (9, vec![GraphNode(on_main), GraphNode(on_side)]));
    assert_eq!(device.captured_ends(side).unwrap().unwrap().nodes, [GraphNode(on_side)]);
    assert_eq!(device.graph_dependencies(GraphNode(on_side)), Ok(vec![GraphNode(first)]));
    assert_eq!(device.graph_dependencies(GraphNode(first)), Ok(vec![]));
    // Work that may begin before the work in front of it has ended proves nothing.
    fake::arrange(|state| state.has_other_edges = true);
    assert!(device.captured_ends(main).is_err());
    assert!(device.graph_dependencies(GraphNode(first)).is_err());
}

#[test]
fn every_question_about_a_graph_may_be_refused() {
    let mut device = device_of(64 * MIB);
    let main = device.add_stream(0x7f00);
    let [_, last] = [(); 2].map(|()| GraphNode(fake::captured_work(0x7f00, 1)));
    let before = fake::picture();
    for call in 1.. {
        fake::fail(call, CuResult(999));
        let answers = (device.captured_ends(main), device.graph_dependencies(last));
        if !fake::fault_came() {
            assert!(call > 3, "the driver is asked");
            assert_eq!(answers.1.map(|nodes| nodes.len()), Ok(1));
            return;
        }
        assert_eq!(fake::picture(), before, "call {call}");
    }
}

#[test]
fn an_older_driver_does_not_tell_of_graphs() {
    fake::reset(64 * MIB);
    let mut device = CudaDevice::open(fake::old_driver(), 0).expect("the fake has it");
    let main = device.add_stream(0x7f00);
    fake::captured_work(0x7f00, 1);
    assert!(!device.tells_of_captures() && device_of(MIB * 64).tells_of_captures());
    assert_eq!(device.captured_ends(main), Ok(None));
}
