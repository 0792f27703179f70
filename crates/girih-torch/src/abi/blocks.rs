//! Life and blocks: the functions that a training run calls a million times.

use std::ffi::c_void;

use super::error::guard;
use super::types::{Pool, Status};
use crate::error::Outcome;
use crate::heaps;

/// The process has `device_count` devices. Idempotent.
#[unsafe(no_mangle)]
pub extern "C" fn girih_init(device_count: i32) -> Status {
    guard(|| heaps::init(device_count))
}

/// True once [`girih_init`] was called.
#[unsafe(no_mangle)]
pub extern "C" fn girih_is_initialized() -> bool {
    heaps::is_initialized()
}

/// Gives `size` bytes for work on `stream` of `device`. A size of 0 gives null.
///
/// # Safety
/// `address` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_alloc(
    device: i32,
    size: u64,
    stream: u64,
    pool: Pool,
    address: *mut *mut c_void,
) -> Status {
    let mut given = 0;
    let status = guard(|| {
        if size > 0 {
            given = heaps::allocate(device, size, stream, pool.into())?;
        }
        Ok(())
    });
    // SAFETY: the caller says that it can be written to.
    unsafe { address.write(given as *mut c_void) };
    status
}

/// Takes a block back by its first address. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn girih_free(address: *mut c_void) -> Status {
    if address.is_null() {
        return Status::Ok;
    }
    guard(|| heaps::free(address as u64))
}

/// The block is used by `stream`, of `device`, too.
#[unsafe(no_mangle)]
pub extern "C" fn girih_record_stream(address: *mut c_void, device: i32, stream: u64) -> Status {
    guard(|| heaps::record_stream(address as u64, device, stream))
}

/// There is a stream of this handle now which the program may destroy.
#[unsafe(no_mangle)]
pub extern "C" fn girih_see_stream(device: i32, stream: u64) -> Status {
    guard(|| heaps::heap(device)?.see_stream(stream))
}

/// The first address and the bytes of the segment that `address` lies in.
///
/// # Safety
/// `base` and `size` are null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_base(
    address: *const c_void,
    base: *mut *mut c_void,
    size: *mut u64,
) -> Status {
    give(
        || heaps::segment_of(address as u64),
        |(found, bytes)| {
            // SAFETY: the caller says that both are null or can be written to.
            unsafe {
                put(base, found as *mut c_void);
                put(size, bytes);
            }
        },
    )
}

/// The device of a live block.
///
/// # Safety
/// `device` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_device_of(address: *const c_void, device: *mut i32) -> Status {
    give(
        || heaps::device_of(address as u64),
        // SAFETY: the caller says that it is null or can be written to.
        |found| unsafe { put(device, found) },
    )
}

/// Whether a request would be served of what the heap holds; false if that cannot be told.
///
/// # Safety
/// `has_room` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_has_room(
    device: i32,
    size: u64,
    stream: u64,
    pool: Pool,
    has_room: *mut bool,
) -> Status {
    give(
        || heaps::heap(device)?.has_room(size, stream, pool.into()),
        // SAFETY: the caller says that it is null or can be written to.
        |found| unsafe { put(has_room, found) },
    )
}

/// Runs `body` under the guard, and `use_it` on what it gives.
pub(super) fn give<T>(body: impl FnOnce() -> Outcome<T>, use_it: impl FnOnce(T)) -> Status {
    guard(|| body().map(use_it))
}

/// Writes through a pointer that may be null.
///
/// # Safety
/// `place` is null or can be written to.
pub(super) unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: not null, so it can be written to.
        unsafe { place.write(value) };
    }
}
