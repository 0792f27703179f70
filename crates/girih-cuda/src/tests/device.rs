//! What each call does, how many driver calls it makes, and which misuse is refused.

use std::time::Duration;

use girih_runtime::{Device, DeviceError, Handle, Prices, StreamEvent};
use girih_trace::StreamId;

use super::{device_of, open};
use crate::device::{CudaDevice, OpenError};
use crate::driver::types::CuResult;
use crate::fake::{self, MIB, UNIT};

#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "the results are made for it")]
fn assert_misuse<T: std::fmt::Debug>(result: Result<T, DeviceError>) {
    assert!(matches!(result, Err(DeviceError::Misuse { .. })), "{result:?} is no misuse");
}

#[test]
fn a_device_that_is_not_there_is_an_error_that_says_how_many_there_are() {
    fake::reset(UNIT);
    let error = CudaDevice::open(fake::driver(), 3).err();
    assert_eq!(error, Some(OpenError::NoSuchDevice { ordinal: 3, count: 3 }));
}

#[test]
fn a_device_may_go_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<CudaDevice>();
    is_send::<crate::Phantom>();
}

#[test]
fn an_allocation_that_is_made_beside_the_device_is_its_own_once_it_is_told() {
    let mut device = device_of(64 * MIB);
    let address = device.begin_alloc(UNIT).expect("a size").make().expect("there is room");
    assert_misuse(device.free(address));
    device.finish_alloc(address, UNIT);
    device.free(address).expect("it was allocated");
    let refused = device.begin_alloc(66 * MIB).expect("a size").make();
    let (requested, free) = (66 * MIB, 64 * MIB);
    assert_eq!(refused, Err(DeviceError::OutOfMemory { requested, free }));
    assert_misuse(device.begin_alloc(0).map(|_| ()));
    assert_eq!(device.calls().alloc, 2);
    assert!(fake::is_empty());
}

#[test]
fn a_device_says_what_it_is() {
    let device = device_of(64 * MIB);
    let properties = device.properties();
    assert_eq!((properties.name.as_str(), properties.total), ("Fake GPU", 64 * MIB));
    assert_eq!(properties.capability, (9, 1));
    assert!(properties.virtual_memory);
    assert_eq!(device.granularity(), UNIT);
    assert_eq!(properties.uuid, Some([1; 16]));
    assert_ne!(open(1).properties().uuid, properties.uuid);
}

#[test]
fn the_parts_of_a_partitioned_card_have_numbers_of_their_own_where_the_driver_tells_them_apart() {
    let uuids = |driver| {
        fake::reset(64 * MIB);
        fake::arrange(|state| state.is_partitioned = true);
        [0, 1].map(|ordinal| CudaDevice::open(driver, ordinal).unwrap().properties().uuid.unwrap())
    };
    let [first, second] = uuids(fake::driver());
    assert_ne!(first, second);
    let [first, second] = uuids(fake::old_driver());
    assert_eq!(first, second, "CUDA 11.3 and earlier have nothing to tell them apart by");
}

#[test]
fn a_device_without_virtual_memory_says_so_and_allocates() {
    let says: fn(&mut fake::State) = |state| state.without_virtual_memory = true;
    let refuses: fn(&mut fake::State) = |state| state.refuses_virtual_memory = true;
    for arrange in [says, refuses] {
        fake::reset(64 * MIB);
        fake::arrange(arrange);
        let mut device = open(0);
        assert!(!device.properties().virtual_memory);
        let address = device.alloc(40 * MIB).expect("whole allocations work");
        assert!(fake::usable(0, address, 40 * MIB));
        for refused in [device.reserve(UNIT).map(|_| ()), device.create(UNIT).map(|_| ())] {
            let error = refused.expect_err("there is nothing to map");
            assert!(matches!(error, DeviceError::Driver { .. }), "{error}");
        }
        device.free(address).expect("it was allocated");
        assert!(fake::is_empty());
    }
}

#[test]
fn a_device_that_is_dropped_holds_no_context_and_no_event() {
    let mut device = device_of(64 * MIB);
    let stream = device.add_stream(0);
    device.record_event(stream).expect("an event");
    device.enable_peer(1).expect("a peer");
    drop(device);
    fake::arrange(|state| {
        assert!(state.retained.is_empty(), "{:?}", state.retained);
        assert!(state.events.is_empty(), "{:?}", state.events);
    });
}

#[test]
fn memory_is_allocated_and_freed() {
    let mut device = device_of(64 * MIB);
    let address = device.alloc(5 * MIB).expect("there is room");
    assert!(fake::usable(0, address, 5 * MIB));
    assert_eq!(device.memory_info().free, 59 * MIB);
    assert_misuse(device.free(address + 512));
    device.free(address).expect("it was allocated");
    assert_misuse(device.free(address));
    assert_misuse(device.alloc(0));
    assert!(fake::is_empty());
}

#[test]
fn too_much_is_out_of_memory_with_what_is_free() {
    let mut device = device_of(64 * MIB);
    let full = DeviceError::OutOfMemory { requested: 66 * MIB, free: 64 * MIB };
    assert_eq!(device.alloc(66 * MIB), Err(full.clone()));
    assert_eq!(device.create(66 * MIB), Err(full));
}

#[test]
fn page_tables_without_room_are_out_of_memory_too() {
    let mut device = device_of(64 * MIB);
    let handle = device.create(UNIT).expect("there is room");
    let base = device.reserve(UNIT).expect("there are addresses");
    for (call, code) in [("map", CuResult::OUT_OF_MEMORY), ("map", CuResult(999))] {
        // After: the current context, its push, the capture mode.
        fake::fail(4, code);
        let result = device.map(base, handle);
        assert!(fake::fault_came(), "{call}");
        let is_memory = matches!(result, Err(DeviceError::OutOfMemory { .. }));
        assert_eq!(is_memory, code == CuResult::OUT_OF_MEMORY, "{result:?}");
    }
}

#[test]
fn addresses_that_are_short_are_out_of_memory_too() {
    let mut device = device_of(64 * MIB);
    for (code, is_short) in [(CuResult::OUT_OF_MEMORY, true), (CuResult::INVALID_VALUE, false)] {
        fake::fail(4, code);
        let result = device.reserve(UNIT);
        assert!(fake::fault_came());
        assert_eq!(matches!(result, Err(DeviceError::OutOfMemory { .. })), is_short, "{result:?}");
    }
    assert!(fake::is_empty());
}

#[test]
fn memory_is_created_mapped_unmapped_and_released() {
    let mut device = device_of(64 * MIB);
    let base = device.reserve(8 * UNIT).expect("there are addresses");
    let handles = [1, 2].map(|units| device.create(units * UNIT).expect("there is room"));
    device.map(base, handles[0]).expect("nothing is there");
    device.map(base + UNIT, handles[1]).expect("nothing is there");
    device.map(base + 4 * UNIT, handles[1]).expect("an alias");
    assert!(!fake::usable(0, base, UNIT), "no access was given");
    device.set_access(base, 3 * UNIT).expect("it is mapped");
    assert!(fake::usable(0, base, 3 * UNIT));
    assert!(!fake::usable(0, base + 4 * UNIT, UNIT));

    assert_misuse(device.map(base, handles[0]));
    assert_misuse(device.map(base + 7 * UNIT, handles[1]));
    assert_misuse(device.map(base + 3 * UNIT, Handle(77)));
    assert_misuse(device.set_access(base, 4 * UNIT));
    assert_misuse(device.unmap(base + UNIT, UNIT));
    assert_misuse(device.release(handles[1]));
    assert_misuse(device.unreserve(base, 8 * UNIT));
    assert_misuse(device.create(UNIT + 512));
    assert_misuse(device.reserve(512));

    device.unmap(base, 3 * UNIT).expect("three units are mapped");
    device.unmap(base + 4 * UNIT, 2 * UNIT).expect("the alias is mapped");
    for handle in handles {
        device.release(handle).expect("it is mapped nowhere");
        assert_misuse(device.release(handle));
    }
    device.unreserve(base, 8 * UNIT).expect("nothing is mapped");
    assert!(fake::is_empty());
    assert_eq!(device.books.counts(), [0; 4]);
}

#[test]
fn the_device_times_its_calls_for_memory() {
    let mut device = device_of(64 * MIB);
    assert_eq!((device.memory_time(), device.prices()), (Duration::ZERO, Prices::H200));
    let base = device.reserve(2 * UNIT).expect("there are addresses");
    for at in [base, base + UNIT] {
        let handle = device.create(UNIT).expect("there is room");
        device.map(at, handle).expect("nothing is there");
    }
    device.set_access(base, 2 * UNIT).expect("it is mapped");
    let (time, prices) = (device.memory_time(), device.prices());
    assert!(time > Duration::ZERO);
    // Nothing of a driver that is not there takes as long as an H200's.
    assert_ne!(prices, Prices::H200);
    assert!(prices.new_page_ns > prices.mapped_again_ns && prices.mapped_again_ns > 0);
    assert!(2 * u128::from(prices.new_page_ns) <= time.as_nanos());
    assert_eq!(u128::from(prices.spent_ns), time.as_nanos());
    device.memory_info();
    assert_eq!(device.memory_time(), time);
}

#[test]
fn misuse_never_reaches_the_driver() {
    let mut device = device_of(64 * MIB);
    fake::calls();
    assert_misuse(device.free(4096));
    assert_misuse(device.unmap(UNIT, UNIT));
    assert_misuse(device.query_event(StreamEvent(0)));
    assert_misuse(device.record_event(StreamId(0)));
    assert_misuse(device.synchronize_stream(StreamId(5)));
    assert_eq!(fake::calls(), Vec::<&str>::new());
}

#[test]
fn memory_is_created_with_what_the_device_can_do() {
    for (rdma, sharing, creations) in [(true, true, 1), (false, true, 2), (false, false, 3)] {
        let mut device = device_of(64 * MIB);
        fake::arrange(|state| (state.without_rdma, state.without_sharing) = (!rdma, !sharing));
        let first = device.create(UNIT).expect("some kind of memory can be had");
        fake::arrange(|state| {
            let memory = &state.memories[&first.0];
            assert_eq!((memory.rdma, memory.shareable), (rdma, sharing));
        });
        assert_eq!(device.calls().create, creations, "it tries with less and less");
        device.create(UNIT).expect("there is room");
        assert_eq!(device.calls().create, creations + 1, "it remembers what works");
    }
}

#[test]
fn a_failure_that_has_other_reasons_keeps_the_features() {
    let mut device = device_of(64 * MIB);
    fake::fail(4, CuResult::INVALID_VALUE);
    device.create(UNIT).expect("the second try works");
    assert!(fake::fault_came());
    let mut device = device_of(64 * MIB);
    fake::fail(4, CuResult(999));
    assert!(matches!(device.create(UNIT), Err(DeviceError::Driver { .. })));
    let handle = device.create(UNIT).expect("there is room");
    fake::arrange(|state| assert!(state.memories[&handle.0].rdma));
}

#[test]
fn events_are_made_once_and_used_again() {
    let mut device = device_of(64 * MIB);
    let stream = device.add_stream(0x7f00);
    fake::calls();
    let first = device.record_event(stream).expect("an event");
    let second = device.record_event(stream).expect("an event");
    assert_ne!(first, second);
    assert_eq!(fake::calls(), ["cuEventCreate", "cuEventRecord", "cuEventCreate", "cuEventRecord"]);
    for _ in 0..100 {
        device.destroy_event(first).ok();
        let event = device.record_event(stream).expect("an event");
        device.destroy_event(event).expect("it is in use");
    }
    assert!(fake::calls().iter().all(|call| *call == "cuEventRecord"));
    assert_eq!(device.calls().event_create, 2);
    assert_eq!(device.events_in_use(), 1);
}

#[test]
fn an_event_that_was_given_back_is_not_taken_for_its_successor() {
    let mut device = device_of(64 * MIB);
    let stream = device.add_stream(0);
    let old = device.record_event(stream).expect("an event");
    device.destroy_event(old).expect("it is in use");
    let new = device.record_event(stream).expect("an event");
    assert_misuse(device.query_event(old));
    assert_misuse(device.destroy_event(old));
    assert_misuse(device.wait_event(stream, old));
    assert_eq!(device.query_event(new), Ok(true));
}

#[test]
fn an_event_is_done_when_the_work_before_it_is() {
    let mut device = device_of(64 * MIB);
    let (busy, idle) = (device.add_stream(0x100), device.add_stream(0x200));
    fake::hold(0x100);
    let later = device.record_event(busy).expect("an event");
    let done = device.record_event(idle).expect("an event");
    assert_eq!(device.query_event(later), Ok(false));
    assert_eq!(device.query_event(done), Ok(true));
    device.wait_event(idle, later).expect("a wait on the device");
    fake::resume(0x100);
    assert_eq!(device.query_event(later), Ok(true));
    device.synchronize_event(later).expect("it is done");
    device.synchronize_stream(idle).expect("it is done");
    let calls = device.calls();
    assert_eq!((calls.event_query, calls.stream_wait, calls.synchronize), (3, 1, 2));
}

#[test]
fn streams_are_known_by_their_handles() {
    let mut device = device_of(64 * MIB);
    let ids = [0, 0x7f00, 0, 0x7f00].map(|handle| device.add_stream(handle));
    assert_eq!(ids.map(|id| id.0), [0, 1, 0, 1]);
    assert_eq!(device.stream_handle(ids[1]), Some(0x7f00));
    assert_eq!(device.stream_handle(StreamId(2)), None);
    assert_eq!([0, 1].map(|id| device.stream_handle(StreamId(id))), [Some(0), Some(0x7f00)]);
}

#[test]
fn the_counters_say_what_was_called() {
    let mut device = device_of(64 * MIB);
    assert_eq!(device.calls().total(), 0);
    let address = device.alloc(UNIT).expect("there is room");
    device.free(address).expect("it was allocated");
    let base = device.reserve(UNIT).expect("there are addresses");
    let handle = device.create(UNIT).expect("there is room");
    device.map(base, handle).expect("nothing is there");
    device.set_access(base, UNIT).expect("it is mapped");
    device.unmap(base, UNIT).expect("it is mapped");
    device.release(handle).expect("it is mapped nowhere");
    device.unreserve(base, UNIT).expect("nothing is mapped");
    assert_eq!((device.calls().memory(), device.calls().order()), (9, 0));
}

#[test]
fn a_peer_may_use_what_is_mapped_now_and_what_will_be() {
    let mut device = device_of(64 * MIB);
    let base = device.reserve(8 * UNIT).expect("there are addresses");
    let handle = device.create(UNIT).expect("there is room");
    for unit in [0, 1, 4, 6] {
        device.map(base + unit * UNIT, handle).expect("nothing is there");
    }
    device.set_access(base, 2 * UNIT).expect("it is mapped");
    device.set_access(base + 4 * UNIT, UNIT).expect("it is mapped");
    device.enable_peer(1).expect("it is connected");
    assert!(fake::usable(1, base, 2 * UNIT));
    assert!(fake::usable(1, base + 4 * UNIT, UNIT));
    assert!(!fake::usable(1, base + 6 * UNIT, UNIT), "nobody has access to it yet");
    device.set_access(base + 6 * UNIT, UNIT).expect("it is mapped");
    assert!(fake::usable(1, base + 6 * UNIT, UNIT));
    fake::arrange(|state| assert!(state.peers.contains(&(2, 1)), "allocations are open"));
}

#[test]
fn a_peer_is_enabled_once() {
    let mut device = device_of(64 * MIB);
    device.enable_peer(1).expect("it is connected");
    let before = fake::picture();
    device.enable_peer(1).expect("it is enabled");
    device.enable_peer(0).expect("a device reaches itself");
    assert_eq!(fake::picture(), before);
}

#[test]
fn a_peer_that_somebody_else_enabled_is_enabled() {
    let mut device = device_of(64 * MIB);
    fake::arrange(|state| {
        state.peers.insert((2, 1));
    });
    device.enable_peer(1).expect("it is connected");
    let base = device.reserve(UNIT).expect("there are addresses");
    let handle = device.create(UNIT).expect("there is room");
    device.map(base, handle).expect("nothing is there");
    device.set_access(base, UNIT).expect("it is mapped");
    assert!(fake::usable(1, base, UNIT));
}

#[test]
fn a_peer_that_is_not_connected_is_an_error_that_says_so() {
    let mut device = device_of(64 * MIB);
    let before = fake::picture();
    let error = device.enable_peer(2).expect_err("it is not connected").to_string();
    assert!(error.contains("device 2 cannot reach the memory of device 0"), "{error}");
    assert!(device.enable_peer(9).is_err(), "there is no such device");
    assert_eq!(fake::picture(), before);
}

#[test]
fn devices_do_not_disturb_each_other() {
    let mut first = device_of(64 * MIB);
    let mut second = open(1);
    let addresses = [first.alloc(UNIT), second.alloc(UNIT)].map(|given| given.expect("room"));
    assert_misuse(first.free(addresses[1]));
    second.free(addresses[1]).expect("it is of the second");
    first.free(addresses[0]).expect("it is of the first");
    fake::arrange(|state| assert!(state.contexts.is_empty(), "{:?}", state.contexts));
}
