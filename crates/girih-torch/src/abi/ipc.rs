//! Memory of other processes, and for them.

use std::ffi::c_void;
use std::slice;

use super::blocks::put;
use super::error::guard;
use super::types::Status;
use crate::device::Exported;
use crate::error::{bug, unknown};
use crate::heaps;

/// `GIRIH_IPC_BYTES`: the most that a description of memory takes.
pub const IPC_BYTES: usize = 128;

/// Describes the memory that `address` lies in for another process of this machine.
///
/// # Safety
/// `handle` has room for [`IPC_BYTES`]; `handle_bytes` and `offset` are null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_ipc_export(
    address: *mut c_void,
    handle: *mut u8,
    handle_bytes: *mut usize,
    offset: *mut u64,
) -> Status {
    guard(|| {
        let address = address as u64;
        let (_, heap) = heaps::heap_around(address)?;
        let Exported { bytes, offset: inside } = heap.export(address)?;
        if bytes.len() > IPC_BYTES {
            return Err(bug(format!("{} bytes describe memory", bytes.len())));
        }
        // SAFETY: the caller says that there is room, and that the others can be written to.
        unsafe {
            handle.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            put(handle_bytes, bytes.len());
            put(offset, inside);
        }
        Ok(())
    })
}

/// Maps memory of another process.
///
/// # Safety
/// `handle` has `handle_bytes` bytes; `address` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_ipc_open(
    device: i32,
    handle: *const u8,
    handle_bytes: usize,
    address: *mut *mut c_void,
) -> Status {
    guard(|| {
        if handle.is_null() || handle_bytes > IPC_BYTES {
            return Err(unknown(format!("{handle_bytes} bytes are no handle of Girih's")));
        }
        // SAFETY: the caller says that it has so many bytes.
        let description = unsafe { slice::from_raw_parts(handle, handle_bytes) };
        let opened = heaps::heap(device)?.import(description)?;
        // SAFETY: the caller says that it can be written to.
        unsafe { put(address, opened as *mut c_void) };
        Ok(())
    })
}

/// Unmaps memory of another process, once for each opening.
#[unsafe(no_mangle)]
pub extern "C" fn girih_ipc_close(address: *mut c_void) -> Status {
    guard(|| heaps::find(address as u64, |heap| heap.close(address as u64)))
}
