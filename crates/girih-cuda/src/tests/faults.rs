//! Whichever driver call fails, the device is as it was before the operation, and the operation can
//! be made again.

use std::fmt::Debug;

use girih_runtime::{Address, Device, DeviceError, Handle, StreamEvent};
use girih_trace::StreamId;

use super::device_of;
use crate::device::CudaDevice;
use crate::driver::types::CuResult;
use crate::fake::{self, MIB, UNIT};

/// A device on which everything can be done.
struct Scene {
    device: CudaDevice,
    allocation: Address,
    /// Eight units: 0 to 2 and 6 are mapped and accessible, 4 is only mapped. A peer is let into two
    /// runs, of which the second may be refused when the first is open.
    base: Address,
    /// Of one unit and of two. Both are mapped.
    mapped: [Handle; 2],
    spare: Handle,
    empty: Address,
    stream: StreamId,
    event: StreamEvent,
}

fn scene() -> Scene {
    let mut device = device_of(256 * MIB);
    let allocation = device.alloc(UNIT).expect("there is room");
    let base = device.reserve(8 * UNIT).expect("there are addresses");
    let mapped = [1, 2].map(|units| device.create(units * UNIT).expect("there is room"));
    device.map(base, mapped[0]).expect("nothing is there");
    device.map(base + UNIT, mapped[1]).expect("nothing is there");
    device.set_access(base, 3 * UNIT).expect("it is mapped");
    device.map(base + 6 * UNIT, mapped[0]).expect("nothing is there");
    device.set_access(base + 6 * UNIT, UNIT).expect("it is mapped");
    device.map(base + 4 * UNIT, mapped[0]).expect("nothing is there");
    let spare = device.create(UNIT).expect("there is room");
    let empty = device.reserve(UNIT).expect("there are addresses");
    let stream = device.add_stream(0x7f00);
    let event = device.record_event(stream).expect("an event");
    Scene { device, allocation, base, mapped, spare, empty, stream, event }
}

/// Everything that a caller could tell apart.
fn picture(scene: &Scene) -> String {
    let device = &scene.device;
    let (events, peers) = (device.events_in_use(), device.access.len());
    format!("{} {:?} {events} {peers}", fake::picture(), device.books)
}

/// Lets each driver call of an operation fail in turn. After the last the operation succeeds.
#[track_caller]
fn every_failure_leaves_no_trace<T: Debug, E: Debug>(
    name: &str,
    operation: impl Fn(&mut Scene) -> Result<T, E>,
) {
    let mut failures = 0;
    for call in 1..100 {
        let mut scene = scene();
        let before = picture(&scene);
        fake::fail(call, CuResult(999));
        let result = operation(&mut scene);
        if !fake::fault_came() {
            result.expect(name);
            assert!(failures > 0, "{name} makes no driver call that can fail");
            return;
        }
        if result.is_err() {
            failures += 1;
            assert_eq!(picture(&scene), before, "{name}, call {call}");
            operation(&mut scene).expect("it can be made again");
        }
    }
    panic!("{name} never succeeds");
}

#[test]
fn a_call_that_fails_leaves_no_trace() {
    every_failure_leaves_no_trace("alloc", |scene| scene.device.alloc(UNIT));
    every_failure_leaves_no_trace("begin_alloc", |scene| {
        let address = scene.device.begin_alloc(UNIT)?.make()?;
        scene.device.finish_alloc(address, UNIT);
        Ok::<_, DeviceError>(address)
    });
    every_failure_leaves_no_trace("free", |scene| scene.device.free(scene.allocation));
    every_failure_leaves_no_trace("reserve", |scene| scene.device.reserve(UNIT));
    every_failure_leaves_no_trace("unreserve", |scene| scene.device.unreserve(scene.empty, UNIT));
    every_failure_leaves_no_trace("create", |scene| scene.device.create(UNIT));
    every_failure_leaves_no_trace("release", |scene| scene.device.release(scene.spare));
    every_failure_leaves_no_trace("map", |scene| {
        scene.device.map(scene.base + 5 * UNIT, scene.mapped[0])
    });
    every_failure_leaves_no_trace("set_access", |scene| {
        scene.device.set_access(scene.base + 4 * UNIT, UNIT)
    });
    every_failure_leaves_no_trace("unmap", |scene| scene.device.unmap(scene.base, 3 * UNIT));
}

#[test]
fn a_call_about_order_that_fails_leaves_no_trace() {
    every_failure_leaves_no_trace("record_event", |scene| scene.device.record_event(scene.stream));
    every_failure_leaves_no_trace("query_event", |scene| scene.device.query_event(scene.event));
    every_failure_leaves_no_trace("wait_event", |scene| {
        scene.device.wait_event(scene.stream, scene.event)
    });
    every_failure_leaves_no_trace("synchronize_event", |scene| {
        scene.device.synchronize_event(scene.event)
    });
    every_failure_leaves_no_trace("synchronize_stream", |scene| {
        scene.device.synchronize_stream(scene.stream)
    });
}

#[test]
fn a_peer_that_cannot_be_enabled_is_not_enabled_a_bit() {
    every_failure_leaves_no_trace("enable_peer", |scene| scene.device.enable_peer(1));
}

#[test]
fn a_device_that_cannot_be_opened_holds_nothing() {
    for call in 1..100 {
        fake::reset(64 * MIB);
        let before = fake::picture();
        fake::fail(call, CuResult(999));
        let opened = CudaDevice::open(fake::driver(), 0);
        if !fake::fault_came() {
            assert!(opened.is_ok());
            assert!(call > 3, "opening takes several calls");
            return;
        }
        if opened.is_err() {
            assert_eq!(fake::picture(), before, "call {call}");
        }
    }
    panic!("it cannot be opened at all");
}
