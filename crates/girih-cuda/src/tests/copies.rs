//! Copies to the host and back.

use girih_runtime::{Address, Copies, Device, DeviceError, HostAddress, HostBacking};
use girih_trace::StreamId;

use super::device_of;
use crate::device::CudaDevice;
use crate::driver::types::CuResult;
use crate::fake::{self, UNIT};

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
fn pieces_come_back_whole() {
    let (mut device, lane, host, gpu) = copying(40 * MIB);
    let bytes: Vec<u8> = (0..40 * MIB).map(|at| (at % 251) as u8).collect();
    fake::arrange(|state| drop(state.contents.insert(gpu, bytes.clone())));
    device.copy_out(lane, gpu, host, 40 * MIB).unwrap();
    let to = device.alloc(40 * MIB).unwrap();
    device.copy_in(lane, host, to, 40 * MIB).unwrap();
    fake::arrange(|state| assert!(state.contents[&to] == bytes));
    assert_eq!((device.calls().copy_out, device.calls().copy_in), (3, 1));
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
fn times_are_read_while_a_graph_is_captured() {
    let mut device = device_of(64 * MIB);
    let stream = device.add_stream(0x7f00);
    let [first, second] = [(); 2].map(|()| device.take_time(stream).unwrap());
    fake::capture(true);
    assert_eq!(device.time_between(first, second).unwrap(), Some(500.0));
    assert!(fake::capture(false), "the capture was spoiled");
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
    // The gate's page, which stays, is a third.
    let gates = || fake::arrange(|state| assert_eq!(state.gates.len(), 1));
    gates();
    fake::arrange(|state| assert_eq!(state.pinned.len(), 2 + 1));
    memory.release(host);
    gates();
    fake::arrange(|state| assert_eq!(state.pinned.len(), 1));
    assert!(device.copy_out(lane, gpu, host, MIB).is_err(), "it is gone");
    memory.release(host);
}

/// A device that copies, a lane, memory of the host and of the device.
fn copying(size: u64) -> (CudaDevice, StreamId, HostAddress, Address) {
    let mut device = device_of(3 * size);
    let handle = device.open_lane().unwrap();
    let lane = device.add_stream(handle);
    let host = pinned(&mut device, size);
    let gpu = device.alloc(size).unwrap();
    (device, lane, host, gpu)
}

#[test]
fn copies_to_the_host_are_kept_waiting_while_pages_are_made_accessible() {
    let (mut device, lane, host, gpu) = copying(64 * MIB);
    let base = device.reserve(2 * UNIT).unwrap();
    let handle = device.create(UNIT).unwrap();
    device.map(base, handle).unwrap();
    device.set_access(base, UNIT).unwrap();
    device.copy_in(lane, host, gpu, 64 * MIB).unwrap();
    assert_eq!((device.calls().copy_in, device.calls().value_wait), (1, 0));
    fake::arrange(|state| assert!(state.gates.is_empty(), "nothing was copied to the host"));

    fake::calls();
    device.copy_out(lane, gpu, host, 40 * MIB).unwrap();
    let calls = fake::calls();
    let (wait, copy) = ("cuStreamWaitValue32", "cuMemcpyDtoHAsync");
    assert_eq!(calls[calls.len() - 6..], [wait, copy, wait, copy, wait, copy]);
    assert_eq!((device.calls().copy_out, device.calls().value_wait), (3, 3));

    let at_access = || fake::arrange(|state| assert_eq!(state.gates_at_access, [1]));
    device.set_access(base, UNIT).unwrap();
    at_access();
    // The fake refuses a copy behind a gate that is closed.
    device.copy_out(lane, gpu, host, MIB).unwrap();
    // A call that is refused opens it again, too.
    for call in 1.. {
        fake::fail(call, CuResult::OUT_OF_MEMORY);
        let accessible = device.set_access(base, UNIT);
        let came = fake::fault_came();
        device.copy_out(lane, gpu, host, MIB).unwrap();
        if !came {
            accessible.unwrap();
            break;
        }
    }
    at_access();
    assert_eq!(device.calls().value_wait, device.calls().copy_out, "the gate was had all along");
}

#[test]
fn a_copy_goes_without_a_gate_where_there_is_none() {
    // Each call fails in turn: those for its memory, the waits, the copies.
    let mut without = 0;
    for call in 1.. {
        let (mut device, lane, host, gpu) = copying(17 * MIB);
        fake::calls();
        fake::fail(call, CuResult::NOT_SUPPORTED);
        let copied = device.copy_out(lane, gpu, host, 17 * MIB);
        if !fake::fault_came() {
            copied.unwrap();
            break;
        }
        let before = device.calls();
        device.copy_out(lane, gpu, host, 17 * MIB).unwrap();
        let now = device.calls();
        let made = (now.copy_out - before.copy_out, now.value_wait - before.value_wait);
        let has_gate = made == (2, 2);
        assert!(has_gate || made == (1, 0), "call {call}: {made:?}");
        without += u32::from(!has_gate);
        // Once a wait was asked for, its page stays.
        let pinned = 1 + usize::from(has_gate || before.value_wait > 0);
        fake::arrange(|state| assert_eq!(state.pinned.len(), pinned, "call {call}"));
        let base = device.reserve(UNIT).unwrap();
        let handle = device.create(UNIT).unwrap();
        device.map(base, handle).unwrap();
        device.set_access(base, UNIT).unwrap();
        fake::arrange(|state| {
            let closed = state.gates_at_access.iter().filter(|word| **word == 1).count();
            assert_eq!(closed, usize::from(has_gate), "call {call}: {:?}", state.gates_at_access);
        });
    }
    // Memory that cannot be pinned or found, and each of the waits.
    assert!(without >= 5, "{without}");

    fake::reset(64 * MIB);
    let mut device = CudaDevice::open(fake::old_driver(), 0).unwrap();
    let handle = device.open_lane().unwrap();
    let lane = device.add_stream(handle);
    let host = pinned(&mut device, 40 * MIB);
    let gpu = device.alloc(40 * MIB).unwrap();
    device.copy_out(lane, gpu, host, 40 * MIB).unwrap();
    assert_eq!((device.calls().copy_out, device.calls().value_wait), (1, 0));
}

#[test]
fn a_gate_is_had_while_a_graph_is_captured() {
    let (mut device, lane, host, gpu) = copying(MIB);
    fake::capture(true);
    device.copy_out(lane, gpu, host, MIB).unwrap();
    assert_eq!(device.calls().value_wait, 1);
    assert!(fake::capture(false), "it is not spoiled");
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
    device.copy_out(lane, gpu, host, MIB).unwrap();
    let mut lost = 0;
    for call in 1.. {
        fake::calls();
        fake::fail(call, CuResult::OUT_OF_MEMORY);
        let copied = device.copy_out(lane, gpu, host, 2 * MIB);
        if !fake::fault_came() {
            copied.unwrap();
            assert!(call > 2, "both pieces were refused in turn");
            break;
        }
        let calls = fake::calls();
        if copied.is_ok() {
            // The wait was refused, and the copy went without.
            lost += 1;
            continue;
        }
        let pieces = calls.iter().filter(|name| **name == "cuMemcpyDtoHAsync").count();
        let waits = calls.iter().filter(|name| **name == "cuStreamSynchronize").count();
        assert_eq!(waits, usize::from(pieces == 2), "call {call}: {calls:?}");
    }
    assert_eq!(lost, 1, "there is no gate after that");
}
