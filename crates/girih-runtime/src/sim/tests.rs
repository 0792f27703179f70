//! The rules of the device: what it refuses, and what its order checker sees.

use super::*;

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId(0);
const SIDE: StreamId = StreamId(1);

fn device() -> SimDevice {
    let mut device = SimDevice::new(64 * MIB);
    device.check_order();
    device
}

#[track_caller]
fn misuse<T: std::fmt::Debug>(result: Result<T, DeviceError>) {
    let error = result.expect_err("the device refuses");
    assert!(matches!(error, DeviceError::Misuse { .. }), "{error}");
}

/// A device with 4 pages reserved and one handle of a page.
fn with_page() -> (SimDevice, Address, Handle) {
    let mut device = device();
    let base = device.reserve(8 * MIB).unwrap();
    let handle = device.create(2 * MIB).unwrap();
    (device, base, handle)
}

#[test]
fn allocations_are_aligned_disjoint_and_bounded_by_the_capacity() {
    let mut device = device();
    let [a, b] = [1000, 30 * MIB].map(|size| device.alloc(size).unwrap());
    assert!(a.is_multiple_of(512) && b.is_multiple_of(2 * MIB) && b >= a + 1024);
    let free = 34 * MIB - 1024;
    assert_eq!(device.memory_info(), MemoryInfo { free, total: 64 * MIB });
    let error = device.alloc(40 * MIB).unwrap_err();
    assert_eq!(error, DeviceError::OutOfMemory { requested: 40 * MIB, free });
    device.free(a).unwrap();
    misuse(device.free(a));
    misuse(device.free(b + 512));
}

#[test]
fn a_script_gives_the_addresses_unless_they_collide() {
    let mut device = device();
    device.script_allocs([0x5000_0000, 0x5000_0200, 0x6000_0000]);
    assert_eq!(device.alloc(MIB).unwrap(), 0x5000_0000);
    assert_ne!(device.alloc(MIB).unwrap(), 0x5000_0200);
    assert!(device.alloc(100 * MIB).is_err());
    assert_eq!(device.alloc(MIB).unwrap(), 0x6000_0000, "a failed call takes no address");
    device.script_reserves([0x4000_0000, 0x5000_0000]);
    assert_eq!(device.reserve(2 * MIB).unwrap(), 0x4000_0000);
    let own = device.reserve(2 * MIB).unwrap();
    assert!(own != 0x5000_0000 && own.is_multiple_of(2 * MIB));
}

#[test]
fn memory_is_mapped_once_made_accessible_and_unmapped_whole() {
    let (mut device, base, handle) = with_page();
    misuse(device.map(base + MIB, handle));
    misuse(device.map(base + 8 * MIB, handle));
    misuse(device.set_access(base, 2 * MIB));
    device.map(base, handle).unwrap();
    misuse(device.map(base, handle));
    misuse(device.acquire(base, 512, MAIN));
    device.set_access(base, 2 * MIB).unwrap();
    misuse(device.set_access(base, 4 * MIB));
    misuse(device.acquire(base, 3 * MIB, MAIN));
    misuse(device.unmap(base, MIB));
    misuse(device.unmap(base, 4 * MIB));
    misuse(Device::release(&mut device, handle));
    misuse(device.unreserve(base, 8 * MIB));
    device.unmap(base, 2 * MIB).unwrap();
    misuse(device.unreserve(base, 2 * MIB));
    device.unreserve(base, 8 * MIB).unwrap();
    misuse(device.unreserve(base, 8 * MIB));
    Device::release(&mut device, handle).unwrap();
    misuse(Device::release(&mut device, handle));
    misuse(device.create(MIB));
    misuse(device.reserve(0));
    assert_eq!(device.live(), LiveObjects::default());
}

#[test]
fn one_handle_may_be_mapped_twice_and_is_still_one_memory() {
    let (mut device, base, handle) = with_page();
    for at in [base, base + 4 * MIB] {
        device.map(at, handle).unwrap();
        device.set_access(at, 2 * MIB).unwrap();
    }
    assert_eq!(device.memory_info().free, 62 * MIB);
    device.acquire(base, 1024, MAIN).unwrap();
    misuse(device.acquire(base + 4 * MIB + 512, 512, MAIN));
    device.acquire(base + 4 * MIB + 1024, 512, MAIN).unwrap();
}

#[test]
fn freed_memory_is_used_again_by_its_stream_at_once_by_another_after_an_event() {
    let mut device = device();
    let at = device.alloc(MIB).unwrap();
    device.acquire(at, 1024, MAIN).unwrap();
    misuse(device.acquire(at + 512, 1024, MAIN));
    device.hold(MAIN);
    SimDevice::release(&mut device, at, 1024, &[MAIN]).unwrap();
    misuse(device.acquire(at, 512, SIDE));
    let event = device.record_event(MAIN).unwrap();
    assert!(!device.query_event(event).unwrap());
    misuse(device.acquire(at, 512, SIDE));
    device.acquire(at, 512, MAIN).unwrap();
    device.wait_event(SIDE, event).unwrap();
    device.acquire(at + 512, 512, SIDE).unwrap();
}

#[test]
fn what_one_stream_waited_for_another_learns_through_it() {
    let mut device = device();
    let third = StreamId(2);
    let at = device.alloc(MIB).unwrap();
    device.acquire(at, 512, MAIN).unwrap();
    SimDevice::release(&mut device, at, 512, &[MAIN]).unwrap();
    let first = device.record_event(MAIN).unwrap();
    device.wait_event(SIDE, first).unwrap();
    let second = device.record_event(SIDE).unwrap();
    misuse(device.acquire(at, 512, third));
    device.wait_event(third, second).unwrap();
    device.acquire(at, 512, third).unwrap();
}

#[test]
fn an_event_is_done_when_it_is_told_or_when_the_host_waits() {
    let mut device = device();
    device.hold(SIDE);
    let [a, b, c] = [0; 3].map(|_| device.record_event(SIDE).unwrap());
    device.complete(b);
    assert_eq!([a, b, c].map(|event| device.query_event(event).unwrap()), [true, true, false]);
    device.synchronize_event(c).unwrap();
    assert!(device.query_event(c).unwrap());
    device.destroy_event(c).unwrap();
    misuse(device.query_event(c));
    misuse(device.destroy_event(c));
    misuse(device.wait_event(MAIN, c));
    misuse(device.synchronize_event(c));
}

#[test]
fn memory_in_use_or_under_work_is_not_taken_away() {
    let (mut device, base, handle) = with_page();
    device.map(base, handle).unwrap();
    device.set_access(base, 2 * MIB).unwrap();
    device.acquire(base, 512, MAIN).unwrap();
    misuse(device.unmap(base, 2 * MIB));
    SimDevice::release(&mut device, base, 512, &[MAIN]).unwrap();
    misuse(device.unmap(base, 2 * MIB));
    device.synchronize_stream(MAIN).unwrap();
    device.unmap(base, 2 * MIB).unwrap();

    let at = device.alloc(MIB).unwrap();
    device.acquire(at, 512, MAIN).unwrap();
    misuse(device.free(at));
    SimDevice::release(&mut device, at, 512, &[MAIN, SIDE]).unwrap();
    device.free(at).unwrap();
}

#[test]
fn a_fault_fails_its_call_once_and_a_kind_for_ever() {
    let mut device = device();
    device.inject(Fault::nth(2));
    let at = device.alloc(MIB).unwrap();
    assert_eq!(device.free(at), Err(DeviceError::Injected { call: 2, name: "free" }));
    device.free(at).unwrap();
    device.inject(Fault { kind: FaultKind::Every(Call::Alloc), out_of_memory: true });
    for _ in 0..2 {
        assert!(matches!(device.alloc(MIB), Err(DeviceError::OutOfMemory { .. })));
    }
    assert_eq!((device.calls(), device.totals().of(Call::Alloc).calls), (5, 1));
}

#[test]
fn a_page_has_the_price_of_the_calls_that_make_it() {
    let mut device = device();
    let base = device.reserve(4 * MIB).unwrap();
    let before = device.totals().clone();
    let handle = device.create(2 * MIB).unwrap();
    let made = device.totals().since(&before).sum().microseconds;
    device.map(base, handle).unwrap();
    device.set_access(base, 2 * MIB).unwrap();
    let all = device.totals().since(&before).sum().microseconds;
    let prices = device.prices();
    assert_eq!(prices.new_page_ns, (all * 1e3).round() as u64);
    assert_eq!(prices.mapped_again_ns, ((all - made) * 1e3).round() as u64);
}

#[test]
fn calls_are_counted_with_their_cost_by_handle() {
    let mut device = device();
    let base = device.reserve(8 * MIB).unwrap();
    for at in [base, base + 2 * MIB] {
        let handle = device.create(2 * MIB).unwrap();
        device.map(at, handle).unwrap();
    }
    device.set_access(base, 4 * MIB).unwrap();
    device.unmap(base, 4 * MIB).unwrap();
    let access = device.totals().of(Call::SetAccess);
    assert_eq!((access.calls, access.microseconds), (1, 55.0));
    assert_eq!(device.totals().of(Call::Unmap).microseconds, 33.4);
    assert_eq!(device.totals().sum().calls, 7);
}

/// A step for each of the others each time would be ten thousand million: this test would not end.
#[test]
fn what_is_unmapped_page_by_page_costs_a_step_a_page() {
    const PAGES: u64 = 100_000;
    let page = SimDevice::GRANULARITY;
    let mut device = SimDevice::new(PAGES * page);
    let base = device.reserve(PAGES * page).unwrap();
    let handles: Vec<_> = (0..PAGES).map(|_| device.create(page).unwrap()).collect();
    for (index, &handle) in (0..).zip(&handles) {
        device.map(base + index * page, handle).unwrap();
    }
    for (index, handle) in (0..).zip(handles) {
        device.unmap(base + index * page, page).unwrap();
        Device::release(&mut device, handle).unwrap();
    }
    device.unreserve(base, PAGES * page).unwrap();
    assert_eq!(device.live().handles, 0);
}
