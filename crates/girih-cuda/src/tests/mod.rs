//! The device on a driver that is played by functions of our own.

mod capture;
mod copies;
mod device;
mod faults;
mod fences;
mod phantom;
mod policies;
mod sharing;
mod stalls;

use crate::device::CudaDevice;
use crate::fake;

/// A device of the fake driver with `total` bytes. The fake begins anew.
fn device_of(total: u64) -> CudaDevice {
    fake::reset(total);
    open(0)
}

/// Another device of the same fake.
fn open(ordinal: u32) -> CudaDevice {
    CudaDevice::open(fake::driver(), ordinal).expect("the fake has it")
}
