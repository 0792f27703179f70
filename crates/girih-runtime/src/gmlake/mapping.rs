//! The device calls under `Alloc` and `Stitch`: addresses, memory, and the mapping between them.
//!
//! Each function does all of its calls or undoes those that it made; what the device refuses to
//! take back at once is owed to it ([`Limbo`]).

use super::kinds::{HANDLE, Range};
use crate::device::{Address, Device, DeviceError, Handle};
use crate::pending::Limbo;

/// Reserves `size` bytes of addresses and creates and maps memory for all of them.
pub(super) fn create_range(
    device: &mut dyn Device,
    limbo: &mut Limbo,
    size: u64,
) -> Result<Range, DeviceError> {
    let count = (size / HANDLE) as usize;
    let mut handles = Vec::with_capacity(count);
    for _ in 0..count {
        match device.create(HANDLE) {
            Ok(handle) => handles.push(handle),
            Err(error) => return Err(undo(device, limbo, &handles, error)),
        }
    }
    match map_handles(device, limbo, &handles) {
        Ok(address) => Ok(Range::new(address, handles)),
        Err(error) => Err(undo(device, limbo, &handles, error)),
    }
}

/// Undoes [`create_range`]: nobody has used the memory yet.
pub(super) fn drop_range(device: &mut dyn Device, limbo: &mut Limbo, range: &Range) {
    limbo.unmap(device, range.address, range.size());
    range.handles.iter().flatten().for_each(|&handle| limbo.release(device, handle));
    limbo.unreserve(device, range.address, range.size());
}

/// Reserves addresses for the handles and maps them there, in order. The handles may be mapped
/// elsewhere too.
pub(super) fn map_handles(
    device: &mut dyn Device,
    limbo: &mut Limbo,
    handles: &[Handle],
) -> Result<Address, DeviceError> {
    let size = handles.len() as u64 * HANDLE;
    let address = device.reserve(size)?;
    let mut mapped = 0;
    let mut result = Ok(());
    for &handle in handles {
        result = device.map(address + mapped, handle);
        if result.is_err() {
            break;
        }
        mapped += HANDLE;
    }
    // One call for all: the price is by the handle in any case.
    match result.and_then(|()| device.set_access(address, size)) {
        Ok(()) => Ok(address),
        Err(error) => {
            if mapped > 0 {
                limbo.unmap(device, address, mapped);
            }
            limbo.unreserve(device, address, size);
            Err(error)
        }
    }
}

fn undo(
    device: &mut dyn Device,
    limbo: &mut Limbo,
    handles: &[Handle],
    error: DeviceError,
) -> DeviceError {
    handles.iter().for_each(|&handle| limbo.release(device, handle));
    error
}
