//! More memory than there is.

use std::cell::Cell;

use girih_runtime::{Device, DeviceError};

use super::device_of;
use crate::driver::types::CuResult;
use crate::fake::{self, MIB, UNIT};
use crate::phantom::Phantom;

const GIB: u64 = 1 << 30;

/// Two gigabytes that say they are 512.
fn phantom() -> Phantom {
    Phantom::new(device_of(2 * GIB), 512 * GIB).expect("there is room")
}

#[test]
fn far_more_is_given_than_there_is() {
    let mut phantom = phantom();
    let addresses: Vec<_> = (0..4).map(|_| phantom.alloc(100 * GIB).expect("room")).collect();
    for &address in &addresses {
        assert!(fake::usable(0, address, 100 * GIB));
    }
    assert_eq!(phantom.memory_info().free, 112 * GIB);
    let full = DeviceError::OutOfMemory { requested: 113 * GIB, free: 112 * GIB };
    assert_eq!(phantom.alloc(113 * GIB), Err(full.clone()));
    assert_eq!(phantom.create(113 * GIB), Err(full));
    assert_eq!(phantom.device_mut().memory_info().free, 2 * GIB - GIB - 64 * MIB - UNIT);
    for address in addresses {
        phantom.free(address).expect("it was allocated");
    }
    assert_eq!(phantom.memory_info().free, 512 * GIB);
}

#[test]
fn some_memory_is_solid_and_a_part_of_it_is_left_to_small_allocations() {
    // 64 MiB and a unit back what is not solid.
    let device = device_of(64 * MIB + UNIT + 256 * MIB);
    let mut phantom = Phantom::new(device, 64 * GIB).expect("room").with_solid(256 * MIB);
    let free = |phantom: &mut Phantom| phantom.device_mut().memory_info().free;
    let begun = free(&mut phantom);
    let large: Vec<_> = (0..10).map(|_| phantom.alloc(64 * MIB).expect("room")).collect();
    let taken = begun - free(&mut phantom);
    assert_eq!(taken, 192 * MIB, "three are solid, and the others are not");
    let small: Vec<_> = (0..100).map(|_| phantom.alloc(2 * MIB).expect("room")).collect();
    assert_eq!(free(&mut phantom), begun - 256 * MIB, "the rest is small ones'");
    assert_eq!(phantom.memory_info().free, 64 * GIB - 840 * MIB);
    for address in large.into_iter().chain(small) {
        assert!(fake::usable(0, address, MIB));
        phantom.free(address).expect("it was allocated");
    }
    assert_eq!(free(&mut phantom), begun - 256 * MIB, "it is kept");
    phantom.trim().expect("nothing fails");
    assert_eq!((free(&mut phantom), phantom.memory_info().free), (begun, 64 * GIB));
}

/// Where many share a layer what it keeps is small, and there is much of it.
#[test]
fn indices_have_bytes_of_their_own_whatever_small_ones_are_kept() {
    let device = device_of(64 * MIB + UNIT + 256 * MIB);
    let mut phantom = Phantom::new(device, 64 * GIB).expect("room").with_solid(256 * MIB);
    let free = |phantom: &mut Phantom| phantom.device_mut().memory_info().free;
    let begun = free(&mut phantom);
    (0..100).for_each(|_| _ = phantom.alloc(8 * MIB).expect("room"));
    assert_eq!(begun - free(&mut phantom), 240 * MIB);
    // Many of them lie in a unit.
    (0..300).for_each(|_| _ = phantom.alloc(32 << 10).expect("room"));
    (0..20_000).for_each(|_| _ = phantom.alloc(8).expect("room"));
    let taken = begun - free(&mut phantom);
    assert!(taken > 249 * MIB && taken <= 256 * MIB, "{taken}");
}

#[test]
fn a_workspace_has_bytes_of_its_own_whatever_is_solid() {
    thread_local! {
        static ASKS: Cell<bool> = const { Cell::new(false) };
    }
    let device = device_of(256 * MIB);
    let phantom = Phantom::new(device, 64 * GIB).expect("room").with_solid(64 * MIB);
    let mut phantom = phantom.with_workspaces(|| ASKS.get());
    let free = |phantom: &mut Phantom| phantom.device_mut().memory_info().free;
    let begun = free(&mut phantom);
    // All that is solid is used up, the part of small ones too.
    let large = phantom.alloc(48 * MIB).expect("room");
    let small: Vec<_> = (0..16).map(|_| phantom.alloc(MIB).expect("room")).collect();
    let tensor = phantom.alloc(32 * MIB).expect("room");
    let taken = begun - free(&mut phantom);
    assert!(taken <= 64 * MIB, "{taken}: a tensor shares its bytes");
    ASKS.set(true);
    let workspace = phantom.alloc(32 * MIB).expect("room");
    assert_eq!(begun - free(&mut phantom), taken + 32 * MIB);
    // What kernels would wait in for ever is rather refused.
    let before = (fake::picture(), phantom.memory_info());
    let refused = phantom.alloc(GIB);
    assert!(matches!(refused, Err(DeviceError::OutOfMemory { .. })), "{refused:?}");
    assert_eq!((fake::picture(), phantom.memory_info()), before);
    ASKS.set(false);
    for address in small.into_iter().chain([large, tensor, workspace]) {
        phantom.free(address).expect("it was allocated");
    }
    phantom.trim().expect("nothing fails");
    assert_eq!(free(&mut phantom), begun);
}

#[test]
fn what_the_device_has_not_is_not_solid() {
    // More is to be solid than there is.
    let mut phantom = Phantom::new(device_of(130 * MIB), GIB).expect("room").with_solid(GIB);
    let given: Vec<_> = (0..10).map(|_| phantom.alloc(60 * MIB).expect("room")).collect();
    given.into_iter().for_each(|address| phantom.free(address).expect("it was allocated"));
    assert_eq!(phantom.memory_info().free, GIB);
}

#[test]
fn large_ranges_take_few_calls() {
    let mut phantom = phantom();
    let before = phantom.device().calls();
    phantom.alloc(100 * GIB + 65 * MIB + 512).expect("room");
    let after = phantom.device().calls();
    assert_eq!(after.map - before.map, 100 + 1 + 1);
    assert_eq!(after.set_access - before.set_access, 1);
}

#[test]
fn handles_of_any_size_are_mapped_and_unmapped() {
    let mut phantom = phantom();
    let size = 3 * GIB + 130 * MIB;
    let handle = phantom.create(size).expect("room");
    let base = phantom.reserve(8 * GIB).expect("there are addresses");
    phantom.map(base, handle).expect("nothing is there");
    phantom.set_access(base, size).expect("it is mapped");
    assert!(fake::usable(0, base, size));
    assert!(matches!(phantom.map(base + GIB, handle), Err(DeviceError::Misuse { .. })));
    assert!(matches!(phantom.unmap(base, GIB), Err(DeviceError::Misuse { .. })));
    assert!(matches!(phantom.release(handle), Err(DeviceError::Misuse { .. })));
    phantom.unmap(base, size).expect("it is mapped");
    phantom.release(handle).expect("it is mapped nowhere");
    phantom.unreserve(base, 8 * GIB).expect("nothing is mapped");
}

#[test]
fn a_small_device_has_a_phantom_too() {
    let phantom = Phantom::new(device_of(4 * MIB), GIB);
    let mut phantom = phantom.expect("one unit is enough");
    let address = phantom.alloc(64 * MIB).expect("room");
    assert!(fake::usable(0, address, 64 * MIB));
    assert!(Phantom::new(device_of(MIB), GIB).is_err(), "not even one unit");
}

#[test]
fn a_call_that_fails_leaves_no_trace() {
    let size = 2 * GIB + 64 * MIB;
    for call in 1..200 {
        let mut phantom = phantom();
        let before = (fake::picture(), phantom.memory_info());
        fake::fail(call, CuResult(999));
        let result = phantom.alloc(size);
        let came = fake::fault_came();
        if let Ok(address) = result {
            assert!(!came, "call {call} failed, and nobody noticed");
            phantom.free(address).expect("it was allocated");
            phantom.trim().expect("nothing fails any more");
            assert_eq!((fake::picture(), phantom.memory_info()), before);
            return;
        }
        assert!(came, "{result:?}");
        assert_eq!((fake::picture(), phantom.memory_info()), before, "call {call}");
    }
    panic!("it never succeeds");
}

/// A step of a training run: the same sizes in the same order, and all of them freed.
fn step(phantom: &mut Phantom, sizes: &[u64]) {
    let given: Vec<_> = sizes.iter().map(|&size| phantom.alloc(size).expect("room")).collect();
    for address in given.into_iter().rev() {
        assert!(fake::usable(0, address, 512));
        phantom.free(address).expect("it was allocated");
    }
}

#[test]
fn what_was_freed_serves_again_without_the_driver() {
    let sizes: Vec<u64> = (0..200).map(|at| MIB << (at % 8)).collect();
    for solid in [0, 256 * MIB] {
        let mut phantom = phantom().with_solid(solid);
        (0..3).for_each(|_| step(&mut phantom, &sizes));
        let before = phantom.device().calls();
        (0..3).for_each(|_| step(&mut phantom, &sizes));
        let after = phantom.device().calls();
        let mapped =
            |calls: &crate::Calls| (calls.map, calls.unmap, calls.set_access, calls.reserve);
        assert_eq!(mapped(&after), mapped(&before), "{solid} solid");
        assert_eq!((after.alloc, after.free), (before.alloc, before.free), "{solid} solid");
    }
}

#[test]
fn freed_solid_bytes_are_waited_for_before_they_serve_again_and_once_for_all() {
    let mut phantom = phantom().with_solid(256 * MIB);
    let sizes = [2 * MIB; 16];
    let waits: Vec<u64> = (0..17)
        .map(|_| {
            let before = phantom.device().calls().synchronize;
            step(&mut phantom, &sizes);
            phantom.device().calls().synchronize - before
        })
        .collect();
    // Eight steps have bytes that nobody had, all of which then serve for eight more.
    let once = |at: usize| u64::from(at == 8 || at == 16);
    assert_eq!(waits, Vec::from_iter((0..17).map(once)));
}

#[test]
fn small_allocations_of_another_size_get_the_solid_bytes_of_freed_ones() {
    let mut phantom = phantom().with_solid(64 * MIB);
    // Four are left to tiny ones.
    step(&mut phantom, &[4 * MIB; 16]);
    let free = phantom.device_mut().memory_info().free;
    let before = phantom.device().calls();
    let address = phantom.alloc(6 * MIB).expect("room");
    let after = phantom.device().calls();
    assert_eq!((after.free - before.free, after.map), (15, before.map), "they were in the way");
    assert_eq!(phantom.device_mut().memory_info().free, free + 60 * MIB - 6 * MIB);
    phantom.free(address).expect("it was allocated");
}

#[test]
fn what_the_device_would_not_take_back_is_waited_for_before_it_serves_again() {
    let mut phantom = phantom().with_solid(64 * MIB);
    step(&mut phantom, &[4 * MIB; 16]);
    fake::fail(2, CuResult(999));
    assert!(phantom.trim().is_err() && fake::fault_came());
    let before = phantom.device().calls().synchronize;
    // What was given back is had anew first, and then what is left.
    let given: Vec<_> = (0..16).map(|_| phantom.alloc(4 * MIB).expect("room")).collect();
    assert_eq!(phantom.device().calls().synchronize - before, 1);
    given.into_iter().for_each(|address| phantom.free(address).expect("it was allocated"));
}

#[test]
fn trimming_that_fails_keeps_what_is_left_and_is_done_the_next_time() {
    for call in 1..50 {
        let mut phantom = phantom().with_solid(8 * MIB);
        let before = fake::picture();
        step(&mut phantom, &[2 * MIB, 4 * MIB, 32 * MIB, 32 * MIB]);
        fake::fail(call, CuResult(999));
        let trimmed = phantom.trim();
        if !fake::fault_came() {
            trimmed.expect("nothing fails");
            assert_eq!(fake::picture(), before);
            return;
        }
        // Addresses may stay reserved, which is no error.
        phantom.trim().expect("nothing fails any more");
        assert_eq!(phantom.memory_info().free, 512 * GIB);
        step(&mut phantom, &[2 * MIB, 32 * MIB]);
    }
    panic!("it never succeeds");
}
