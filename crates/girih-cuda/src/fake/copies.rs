//! Copies of the fake driver, which are done at once, and its clock, which never goes on.
#![expect(unsafe_code, reason = "memory of the host is read and written, as the driver does")]

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use super::State;
use super::functions::{INVALID, INVALID_HANDLE, call, check, memory_call, put};
use crate::driver::types::{CuEvent, CuResult, CuStream, WAIT_UNTIL_EQUAL};

pub(super) extern "C" fn host_register(host: *mut c_void, size: usize, _: c_uint) -> CuResult {
    memory_call("cuMemHostRegister", |state| {
        let start = host as usize;
        check(start.is_multiple_of(4096) && size > 0, INVALID)?;
        let before = state.pinned.range(..start + size).next_back();
        check(before.is_none_or(|(&at, &bytes)| at + bytes <= start), INVALID)?;
        state.pinned.insert(start, size);
        Ok(())
    })
}

pub(super) extern "C" fn host_unregister(host: *mut c_void) -> CuResult {
    memory_call("cuMemHostUnregister", |state| {
        check(state.pinned.remove(&(host as usize)).is_some(), INVALID)
    })
}

/// Refuses what does not lie within one registration or wholly outside of all, and what is no memory of the device.
fn check_copy(state: &State, host: usize, device: u64, size: usize) -> Result<(), CuResult> {
    state.current()?;
    let pinned = state.pinned.range(..=host).next_back();
    let is_within = pinned.is_some_and(|(&at, &bytes)| host + size <= at + bytes);
    let meets = |(&at, &bytes): (&usize, &usize)| host < at + bytes;
    let is_outside = !state.pinned.range(..host + size).next_back().is_some_and(meets);
    check(is_within || is_outside, INVALID)?;
    let end = device + size as u64;
    let allocated = state.allocations.range(..=device).next_back();
    let mapped = state.mappings.range(..=device).next_back();
    let holds = allocated.is_some_and(|(&at, &bytes)| end <= at + bytes)
        || mapped.is_some_and(|(&at, mapped)| device < at + mapped.size);
    check(holds, INVALID)
}

pub(super) extern "C" fn copy_out(
    to: *mut c_void,
    from: u64,
    size: usize,
    stream: CuStream,
) -> CuResult {
    call("cuMemcpyDtoHAsync", |state| {
        state.names(stream.0);
        check_copy(state, to as usize, from, size)?;
        let bytes = state.contents_from(from, size);
        // SAFETY: the range is memory that the test has reserved: the books of the device know it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), size) };
        Ok(())
    })
}

pub(super) extern "C" fn copy_in(
    to: u64,
    from: *const c_void,
    size: usize,
    stream: CuStream,
) -> CuResult {
    call("cuMemcpyHtoDAsync", |state| {
        state.names(stream.0);
        check_copy(state, from as usize, to, size)?;
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), size) };
        state.contents.insert(to, bytes.to_vec());
        Ok(())
    })
}

pub(super) extern "C" fn host_address(
    out: *mut u64,
    host: *mut c_void,
    _flags: c_uint,
) -> CuResult {
    call("cuMemHostGetDevicePointer", |state| {
        check(state.pinned.contains_key(&(host as usize)), INVALID)?;
        put(out, host as u64);
        Ok(())
    })
}

/// The word at an address that a stream was told to wait for.
pub(super) fn word(address: u64) -> u32 {
    // SAFETY: it is pinned memory of the process, which stays, aligned as a page, and is an atomic word wherever it is used.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }.load(Ordering::SeqCst)
}

/// Work is done at once, so what is waited for must be there already.
pub(super) extern "C" fn stream_wait_value(
    stream: CuStream,
    address: u64,
    value: u32,
    flags: c_uint,
) -> CuResult {
    call("cuStreamWaitValue32", |state| {
        state.current()?;
        state.names(stream.0);
        check(state.pinned.contains_key(&(address as usize)), INVALID)?;
        check(flags == WAIT_UNTIL_EQUAL && word(address) == value, INVALID)?;
        state.gates.insert(address);
        Ok(())
    })
}

pub(super) extern "C" fn stream_create(out: *mut CuStream, _flags: c_uint) -> CuResult {
    call("cuStreamCreate", |state| {
        state.current()?;
        put(out, CuStream(state.fresh(1) as usize));
        Ok(())
    })
}

pub(super) extern "C" fn event_elapsed(out: *mut f32, from: CuEvent, to: CuEvent) -> CuResult {
    call("cuEventElapsedTime", |state| {
        state.forbidden_in_capture()?;
        let of = |event: CuEvent| state.events.get(&event.0).ok_or(INVALID_HANDLE);
        check(of(from)?.is_empty() && of(to)?.is_empty(), CuResult::NOT_READY)?;
        put(out, 0.5);
        Ok(())
    })
}
