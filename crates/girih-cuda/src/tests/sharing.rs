//! Memory of other processes. The other process is this one: the fake knows no other.

use std::io::Write;

use girih_runtime::{Address, Device, DeviceError, Handle};

use super::{device_of, open};
use crate::device::CudaDevice;
use crate::driver::types::CuResult;
use crate::fake::{self, MIB, UNIT};
use crate::ipc::{Closing, IpcError, MESSAGE_BYTES_MAX};

/// Maps `count` handles of `units` units each, side by side.
fn mapped(device: &mut CudaDevice, count: u64, units: u64) -> (Address, Vec<Handle>) {
    let size = units * UNIT;
    let base = device.reserve(count * size).expect("there are addresses");
    let handles: Vec<_> = (0..count).map(|_| device.create(size).expect("room")).collect();
    for (&handle, index) in handles.iter().zip(0..) {
        device.map(base + index * size, handle).expect("nothing is there");
    }
    device.set_access(base, count * size).expect("it is mapped");
    (base, handles)
}

/// True where Linux has no way to take a descriptor over; says so.
fn skips<T>(result: &Result<T, IpcError>) -> bool {
    match result {
        Err(error @ IpcError::Process { .. }) => {
            let _ = writeln!(std::io::stderr(), "SKIPPED: {error}");
            true
        }
        _ => false,
    }
}

#[test]
fn an_allocation_is_shared_whole() {
    let mut device = device_of(64 * MIB);
    let address = device.alloc(5 * MIB).expect("there is room");
    let exported = device.export(address + MIB, 2 * MIB).expect("it can be shared");
    assert_eq!((exported.offset, exported.size), (MIB, 5 * MIB));
    assert!(exported.bytes.len() <= MESSAGE_BYTES_MAX);
    let mut other = open(1);
    let imported = other.import(&exported.bytes).expect("it is there");
    assert_eq!(imported.size, 5 * MIB);
    fake::arrange(|state| assert_eq!(state.opened[&imported.address], address));
    other.close(imported.address).expect("it is open");
    fake::arrange(|state| assert!(state.opened.is_empty()));
}

#[test]
fn what_is_opened_twice_is_one_and_is_closed_twice() {
    let mut device = device_of(64 * MIB);
    let address = device.alloc(UNIT).expect("there is room");
    let bytes = device.export(address, UNIT).expect("it can be shared").bytes;
    let mut other = open(1);
    let first = other.import(&bytes).expect("it is there");
    assert_eq!(other.import(&bytes), Ok(first));
    other.close(first.address).expect("it is open twice");
    fake::arrange(|state| assert_eq!(state.opened.len(), 1));
    other.close(first.address).expect("it is open once");
    let closed = other.close(first.address);
    assert_eq!(closed, Err(IpcError::Unknown { address: first.address, size: 0 }));
}

#[test]
fn what_is_opened_again_while_the_device_is_waited_for_stays() {
    let mut device = device_of(64 * MIB);
    let address = device.alloc(UNIT).expect("there is room");
    let bytes = device.export(address, UNIT).expect("it can be shared").bytes;
    let mut other = open(1);
    let opened = other.import(&bytes).expect("it is there").address;
    assert_eq!(other.begin_close(opened), Ok(Closing::Last(1)));
    assert!(matches!(other.begin_close(opened), Err(IpcError::Unknown { .. })), "it was closed");
    // Opened and closed again: only the second wait covers what was done in between.
    assert_eq!(other.import(&bytes).map(|again| again.address), Ok(opened));
    assert_eq!(other.begin_close(opened), Ok(Closing::Last(2)));
    other.finish_close(opened, 1).expect("nothing is done");
    fake::arrange(|state| assert_eq!(state.opened.len(), 1));
    other.waiter().synchronize().expect("the device works");
    other.finish_close(opened, 2).expect("it is unmapped");
    fake::arrange(|state| assert!(state.opened.is_empty()));
}

#[test]
fn memory_at_the_same_address_later_is_other_memory() {
    let mut device = device_of(64 * MIB);
    let address = device.alloc(UNIT).expect("there is room");
    let first = device.export(address, UNIT).expect("it can be shared").bytes;
    assert_eq!(device.export(address + 512, 512).expect("it can be shared").bytes, first);
    device.free(address).expect("it was allocated");
    fake::arrange(|state| state.back_to(address));
    assert_eq!(device.alloc(UNIT), Ok(address));
    assert_ne!(device.export(address, UNIT).expect("it can be shared").bytes, first);
}

#[test]
fn a_block_in_several_handles_is_shared_with_all_of_them_and_no_others() {
    let mut device = device_of(1 << 30);
    let (base, _) = mapped(&mut device, 100, 2);
    for (start, size, handles) in [(0, 512, 1), (UNIT, UNIT, 1), (UNIT, UNIT + 1, 2), (0, 120, 1)] {
        let exported = device.export(base + start, size).expect("it can be shared");
        assert_eq!((exported.offset, exported.size), (start, handles * 2 * UNIT));
    }
    let all = device.export(base + 5 * UNIT, 190 * UNIT).expect("it can be shared");
    assert_eq!((all.offset, all.size), (UNIT, 192 * UNIT));
    let mut other = open(1);
    let imported = other.import(&all.bytes);
    if skips(&imported) {
        return;
    }
    let imported = imported.expect("it is there");
    assert_eq!(imported.size, 192 * UNIT);
    assert!(fake::usable(1, imported.address, 192 * UNIT));
    fake::arrange(|state| {
        // The same physical memory in the same order, one place further.
        for index in 0..96 {
            let place = |base: u64, index: u64| state.mappings[&(base + index * 2 * UNIT)].memory;
            assert_eq!(place(imported.address, index), place(base, index + 2));
        }
    });
    let used = device.memory_info().free;
    other.close(imported.address).expect("it is open");
    assert!(!fake::usable(1, imported.address, UNIT));
    assert_eq!(device.memory_info().free, used, "it is still the exporter's");
}

#[test]
fn exporting_twice_opens_no_second_descriptor() {
    let mut device = device_of(1 << 30);
    let (base, handles) = mapped(&mut device, 4, 1);
    let first = device.export(base, 3 * UNIT).expect("it can be shared");
    fake::calls();
    assert_eq!(device.export(base, 3 * UNIT).as_ref(), Ok(&first));
    assert_eq!(fake::calls(), Vec::<&str>::new());
    device.export(base + 2 * UNIT, 2 * UNIT).expect("it can be shared");
    assert_eq!(fake::calls(), ["cuMemExportToShareableHandle"], "one handle is new");

    device.unmap(base, 4 * UNIT).expect("it is mapped");
    assert_eq!(device.sharing.open(), [4, 2]);
    device.release(handles[0]).expect("it is mapped nowhere");
    assert_eq!(device.sharing.open(), [3, 1], "what stands for a handle goes with it");
    device.map(base, handles[1]).expect("nothing is there");
    let again = device.export(base, UNIT).expect("it can be shared");
    assert_ne!(again.bytes, first.bytes);
}

#[test]
fn descriptors_are_left_to_the_program_and_a_refusal_keeps_none() {
    let mut device = device_of(1 << 30);
    let (base, _) = mapped(&mut device, 100, 1);
    device.export(base, UNIT).expect("the limit is far away");
    device.sharing.allowed = Some(64);
    let error = device.export(base, 100 * UNIT).expect_err("100 are too many").to_string();
    assert!(error.contains("64 open") && error.contains("ulimit -Hn"), "{error}");
    assert_eq!(device.sharing.open(), [1, 1], "those that were opened for it are closed");
    device.sharing.allowed = Some(1 << 20);
    device.export(base, 100 * UNIT).expect("there is room again");
    assert_eq!(device.sharing.open(), [100, 2]);
}

#[test]
fn what_is_not_memory_of_the_device_is_not_shared() {
    let mut device = device_of(64 * MIB);
    let allocation = device.alloc(MIB).expect("there is room");
    let (base, _) = mapped(&mut device, 2, 1);
    for (address, size) in
        [(allocation, MIB + 1), (allocation + MIB, 1), (base, 3 * UNIT), (base - 1, 1), (1, 1)]
    {
        let result = device.export(address, size);
        assert_eq!(result, Err(IpcError::Unknown { address, size }));
    }
}

#[test]
fn memory_without_descriptors_is_an_error_that_says_what_to_do() {
    let mut device = device_of(64 * MIB);
    fake::arrange(|state| state.without_sharing = true);
    let (base, _) = mapped(&mut device, 1, 1);
    let error = device.export(base, 512).expect_err("it cannot be shared").to_string();
    assert!(error.contains("use a mode without virtual memory"), "{error}");
}

#[test]
fn a_failure_while_importing_leaves_nothing_open() {
    for call in 1..200 {
        let mut device = device_of(1 << 30);
        let (base, _) = mapped(&mut device, 3, 1);
        let exported = device.export(base, 3 * UNIT).expect("it can be shared");
        let mut other = open(1);
        let before = fake::picture();
        fake::fail(call, CuResult(999));
        let result = other.import(&exported.bytes);
        let came = fake::fault_came();
        if skips(&result) {
            return;
        }
        match result {
            Ok(imported) => {
                other.close(imported.address).expect("it is open");
                if !came {
                    assert!(call > 8, "an import takes several calls");
                    assert_eq!(fake::picture(), before);
                    return;
                }
            }
            Err(error) => {
                assert!(matches!(error, IpcError::Device(DeviceError::Driver { .. })), "{error}");
                assert_eq!(fake::picture(), before, "call {call}");
                assert!(other.import(&exported.bytes).is_ok(), "it can be tried again");
            }
        }
    }
    panic!("it never succeeds");
}
