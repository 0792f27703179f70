//! The memory that the heaps hold.

use super::blocks::{give, put};
use super::error::guard;
use super::types::{Pool, Status};
use crate::heaps;

/// Gives back what is free and whole, on all devices.
#[unsafe(no_mangle)]
pub extern "C" fn girih_empty_cache(pool: Pool) -> Status {
    guard(|| heaps::each(|heap| heap.empty_cache(pool.into())))
}

/// Limits what the heap of a device may hold to a share of it.
#[unsafe(no_mangle)]
pub extern "C" fn girih_set_memory_fraction(device: i32, fraction: f64) -> Status {
    guard(|| heaps::set_memory_fraction(device, fraction))
}

/// The share of a device that its heap may hold.
///
/// # Safety
/// `fraction` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_memory_fraction(device: i32, fraction: *mut f64) -> Status {
    // SAFETY: the caller says that it is null or can be written to.
    give(|| heaps::memory_fraction(device), |found| unsafe { put(fraction, found) })
}

/// The largest block that is free or that the device could give at this moment.
///
/// # Safety
/// `size` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_largest_free(device: i32, size: *mut u64) -> Status {
    // SAFETY: the caller says that it is null or can be written to.
    give(|| heaps::heap(device)?.largest_free(), |found| unsafe { put(size, found) })
}

/// `peer` may access the memory of `device`, present and future.
#[unsafe(no_mangle)]
pub extern "C" fn girih_enable_peer(device: i32, peer: i32) -> Status {
    guard(|| heaps::heap(device)?.enable_peer(peer))
}
