//! Copies to the host and back.

use girih_runtime::{Copies, Device, DeviceError, HostAddress};
use girih_trace::StreamId;

use super::device_of;
use crate::fake;

const MIB: u64 = 1 << 20;

#[test]
fn what_went_out_comes_back_as_it_was() {
    let mut device = device_of(64 * MIB);
    let handle = device.open_lane().unwrap();
    let lane = device.add_stream(handle);
    let from = device.alloc(2 * MIB).unwrap();
    let bytes: Vec<u8> = (0..MIB).map(|at| (at % 251) as u8).collect();
    fake::arrange(|state| drop(state.contents.insert(from, bytes.clone())));
    let host = device.pinner()(2 * MIB).unwrap();
    device.copy_out(lane, from, host + MIB, MIB).unwrap();
    let to = device.alloc(2 * MIB).unwrap();
    device.copy_in(lane, host + MIB, to, MIB).unwrap();
    fake::arrange(|state| assert_eq!(state.contents[&to], bytes));
    assert_eq!((device.calls().copy_out, device.calls().copy_in), (1, 1));
}

#[test]
fn a_copy_outside_of_pinned_memory_is_refused_before_the_driver_is_asked() {
    let mut device = device_of(64 * MIB);
    let handle = device.open_lane().unwrap();
    let lane = device.add_stream(handle);
    let from = device.alloc(2 * MIB).unwrap();
    let host = device.pinner()(MIB).unwrap();
    for (at, size) in [(host, MIB + 1), (host - 1, 8), (host + MIB, 1), (HostAddress::MAX, 8)] {
        let out = device.copy_out(lane, from, at, size);
        assert!(matches!(out, Err(DeviceError::Misuse { .. })), "{at:#x}: {out:?}");
        assert!(device.copy_in(lane, at, from, size).is_err());
    }
    assert_eq!((device.calls().copy_out, device.calls().copy_in), (0, 0));
}

#[test]
fn the_time_between_two_points_is_known_once_both_are_done() {
    let mut device = device_of(64 * MIB);
    let stream = device.add_stream(7);
    let first = device.take_time(stream).unwrap();
    fake::hold(7);
    let second = device.take_time(stream).unwrap();
    assert_eq!(device.time_between(first, second).unwrap(), None);
    device.synchronize_stream(stream).unwrap();
    assert_eq!(device.time_between(first, second).unwrap(), Some(500.0));
    device.forget_time(first);
    assert!(device.time_between(first, second).is_err(), "it was given back");
    let third = device.take_time(StreamId(stream.0)).unwrap();
    assert_eq!(device.calls().event_create, 2, "{third:?} is the first one's event again");
}
