//! Copies to the host and back.

use girih_runtime::{Copies, Device, DeviceError, HostAddress, HostBacking};
use girih_trace::StreamId;

use super::device_of;
use crate::device::CudaDevice;
use crate::driver::types::CuResult;
use crate::fake;

const MIB: u64 = 1 << 20;

/// A range of so many bytes, all of it pinned at once.
fn pinned(device: &mut CudaDevice, size: u64) -> HostAddress {
    let memory = device.host_memory();
    let host = memory.reserve(size).unwrap();
    assert_eq!(memory.pin(host, size).unwrap(), HostBacking::Pinned);
    host
}

#[test]
fn what_went_out_comes_back_as_it_was() {
    let mut device = device_of(64 * MIB);
    let handle = device.open_lane().unwrap();
    let lane = device.add_stream(handle);
    let from = device.alloc(2 * MIB).unwrap();
    let bytes: Vec<u8> = (0..MIB).map(|at| (at % 251) as u8).collect();
    fake::arrange(|state| drop(state.contents.insert(from, bytes.clone())));
    let host = pinned(&mut device, 2 * MIB);
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
    let host = pinned(&mut device, MIB);
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

#[test]
fn a_copy_over_parts_that_were_pinned_apart_is_cut_at_their_borders() {
    let mut device = device_of(64 * MIB);
    let handle = device.open_lane().unwrap();
    let lane = device.add_stream(handle);
    let memory = device.host_memory();
    let host = memory.reserve(4 * MIB).unwrap();
    for part in [2, 0, 1] {
        assert_eq!(memory.pin(host + part * MIB, MIB).unwrap(), HostBacking::Pinned);
    }
    let gpu = device.alloc(4 * MIB).unwrap();
    device.copy_out(lane, gpu, host, MIB).unwrap();
    assert_eq!(device.calls().copy_out, 1, "a border is no part of it");
    device.copy_out(lane, gpu, host + MIB / 2, 2 * MIB).unwrap();
    assert_eq!(device.calls().copy_out, 4);
    device.copy_in(lane, host, gpu, 3 * MIB).unwrap();
    assert_eq!(device.calls().copy_in, 3);
    let beyond = device.copy_out(lane, gpu, host, 3 * MIB + 1);
    assert!(matches!(beyond, Err(DeviceError::Misuse { .. })), "{beyond:?}");
}

#[test]
fn a_part_that_is_refused_stays_pageable_and_all_is_given_back_in_the_end() {
    let mut device = device_of(64 * MIB);
    let handle = device.open_lane().unwrap();
    let lane = device.add_stream(handle);
    let memory = device.host_memory();
    let host = memory.reserve(3 * MIB).unwrap();
    memory.pin(host, MIB).unwrap();
    for call in 1.. {
        let other = memory.reserve(MIB).unwrap();
        fake::fail(call, CuResult::OUT_OF_MEMORY);
        let backing = memory.pin(other, MIB).unwrap();
        let came = fake::fault_came();
        memory.release(other);
        fake::arrange(|state| assert_eq!(state.pinned.len(), 1));
        if !came {
            assert_eq!(backing, HostBacking::Pinned);
            break;
        }
        // But for the calls that only put the context back.
        assert!(call > 3 || backing != HostBacking::Pinned, "call {call}");
    }
    fake::fail(1, CuResult::OUT_OF_MEMORY);
    let refused = memory.pin(host + MIB, MIB).unwrap();
    assert!(matches!(refused, HostBacking::Pageable(_)), "{refused:?}");
    memory.pin(host + 2 * MIB, MIB).unwrap();
    for (at, size) in [(host, MIB), (host + 3 * MIB, 4096), (host - 4096, 4096), (host, 0)] {
        assert!(memory.pin(at, size).is_err(), "{at:#x}");
    }
    let gpu = device.alloc(4 * MIB).unwrap();
    device.copy_out(lane, gpu, host, 3 * MIB).unwrap();
    device.copy_in(lane, host, gpu, 3 * MIB).unwrap();
    fake::arrange(|state| assert_eq!(state.pinned.len(), 2));
    memory.release(host);
    fake::arrange(|state| assert!(state.pinned.is_empty()));
    assert!(device.copy_out(lane, gpu, host, MIB).is_err(), "it is gone");
    memory.release(host);
}

#[test]
fn a_piece_of_a_copy_that_is_refused_leaves_none_under_way() {
    let mut device = device_of(64 * MIB);
    let handle = device.open_lane().unwrap();
    let lane = device.add_stream(handle);
    let memory = device.host_memory();
    let host = memory.reserve(2 * MIB).unwrap();
    memory.pin(host, MIB).unwrap();
    memory.pin(host + MIB, MIB).unwrap();
    let gpu = device.alloc(2 * MIB).unwrap();
    for call in 1.. {
        fake::calls();
        fake::fail(call, CuResult::OUT_OF_MEMORY);
        let copied = device.copy_out(lane, gpu, host, 2 * MIB);
        if !fake::fault_came() {
            copied.unwrap();
            assert!(call > 2, "both pieces were refused in turn");
            break;
        }
        assert!(copied.is_err(), "call {call}");
        let calls = fake::calls();
        let pieces = calls.iter().filter(|name| **name == "cuMemcpyDtoHAsync").count();
        let waits = calls.iter().filter(|name| **name == "cuStreamSynchronize").count();
        assert_eq!(waits, usize::from(pieces == 2), "call {call}: {calls:?}");
    }
}
