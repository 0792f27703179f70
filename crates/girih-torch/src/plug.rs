//! The functions for `torch.cuda.memory.CUDAPluggableAllocator`, where the C++ class cannot be
//! compiled. They have the signatures that it looks up by name.
//!
//! | name | for |
//! |:--|:--|
//! | `girih_plug_alloc` | `alloc_fn_name` |
//! | `girih_plug_free` | `free_fn_name` |
//! | `girih_plug_init` | `set_init_fn` |
//! | `girih_plug_reset` | `set_reset_fn` |
//! | `girih_plug_fraction` | `set_memory_fraction_fn` |
//! | `girih_plug_base` | `set_base_alloc_fn` |
//! | `girih_plug_record_stream` | `set_record_stream_fn` |
//!
//! The hooks of private pools take C++ objects and are not here: a graph capture allocates from the
//! default pool. A request that fails gives null, which PyTorch does not turn into an
//! `OutOfMemoryError` by itself; [`girih_last_error`](crate::abi::girih_last_error) has the story.

#![expect(unsafe_code, reason = "a C interface has names of its own and takes pointers")]

use std::ffi::c_void;

use crate::abi::{Pool, blocks, memory};
use crate::heaps;

/// Gives `size` bytes for work on `stream` of `device`; null if there are none.
#[unsafe(no_mangle)]
pub extern "C" fn girih_plug_alloc(size: usize, device: i32, stream: *mut c_void) -> *mut c_void {
    let mut address = std::ptr::null_mut();
    let (size, stream) = (size as u64, stream as u64);
    // SAFETY: `address` can be written to.
    unsafe { blocks::girih_alloc(device, size, stream, Pool::default(), &raw mut address) };
    address
}

/// Takes a block back.
#[unsafe(no_mangle)]
pub extern "C" fn girih_plug_free(
    address: *mut c_void,
    _size: usize,
    _device: i32,
    _stream: *mut c_void,
) {
    blocks::girih_free(address);
}

/// The process has `device_count` devices.
#[unsafe(no_mangle)]
pub extern "C" fn girih_plug_init(device_count: i32) {
    blocks::girih_init(device_count);
}

/// Gives back what is free and whole.
#[unsafe(no_mangle)]
pub extern "C" fn girih_plug_reset() {
    memory::girih_empty_cache(Pool::default());
}

/// Limits what the heap of a device may hold to a share of it.
#[unsafe(no_mangle)]
pub extern "C" fn girih_plug_fraction(fraction: f64, device: i32) {
    memory::girih_set_memory_fraction(device, fraction);
}

/// The first address of the segment that `address` lies in, and in `size` its bytes; `address`
/// itself if it is of no heap.
///
/// # Safety
/// `size` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_plug_base(address: *mut c_void, size: *mut usize) -> *mut c_void {
    let (mut base, mut bytes) = (address, 0);
    // SAFETY: both can be written to.
    unsafe { blocks::girih_base(address, &raw mut base, &raw mut bytes) };
    if !size.is_null() {
        // SAFETY: the caller says that it can be written to.
        unsafe { size.write(bytes as usize) };
    }
    base
}

/// The block is used by `stream` too. A pointer that is not Girih's is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn girih_plug_record_stream(address: *mut c_void, stream: *mut c_void) {
    // It names no device: the block's.
    if let Ok(device) = heaps::device_of(address as u64) {
        blocks::girih_record_stream(address, device, stream as u64);
    }
}
