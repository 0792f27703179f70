//! Copies between a GPU and memory of the host: what a [`Device`](crate::Device) can do besides, for whoever swaps.
//!
//! A *lane* is a stream of its own on which copies of one direction run one after another. Its order against the
//! program's streams is made of the same events as theirs; nothing here waits on the host.

use std::sync::Arc;

use girih_trace::StreamId;

use crate::device::{Address, DeviceError};

/// An address of the host.
pub type HostAddress = u64;

/// A point in the work of a stream at which the time is taken (`CUevent` with timing).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TimeStamp(pub u64);

/// What is behind a part of reserved addresses of the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostBacking {
    /// Pinned memory: copies of it run beside the program.
    Pinned,
    /// Memory that the driver did not pin, for this reason. Copies of it are right, and whoever queues one may wait
    /// for it.
    Pageable(DeviceError),
}

/// Memory of the host for copies: a range of addresses that is pinned part by part. To be called by any thread, while
/// others use the device.
///
/// ```text
///  reserve  |..............................................|     addresses alone
///  pin      |== part ==|== part ==|== part ==|.............|     from here on copies may use them
///  release                                                       nothing is left
/// ```
pub trait HostMemory: Send + Sync {
    /// Takes addresses for so many bytes, at a multiple of a page. There is no memory behind them yet.
    ///
    /// # Errors
    /// If the system has no such range.
    fn reserve(&self, size: u64) -> Result<HostAddress, DeviceError>;

    /// Finds the pages of a part of a reserved range, and pins them (`cuMemHostRegister`): `size` bytes, whole pages,
    /// none of which is pinned yet. It takes tenths of a second for each GiB, up to a whole one.
    ///
    /// # Errors
    /// If the host has no memory for it: the part is as it was.
    fn pin(&self, address: HostAddress, size: u64) -> Result<HostBacking, DeviceError>;

    /// Gives a reserved range back, once the copies are over that were queued. It was reserved at this address.
    fn release(&self, address: HostAddress);
}

/// A GPU that copies.
pub trait Copies {
    /// A new stream for copies, by the driver's handle; it waits for no other stream by itself. It lives as long as
    /// the device.
    fn open_lane(&mut self) -> Result<u64, DeviceError>;

    /// Queues a copy of `size` bytes to memory of the host, which may consist of several pinned parts side by side.
    fn copy_out(
        &mut self,
        lane: StreamId,
        from: Address,
        to: HostAddress,
        size: u64,
    ) -> Result<(), DeviceError>;

    /// Queues a copy of `size` bytes from such memory.
    fn copy_in(
        &mut self,
        lane: StreamId,
        from: HostAddress,
        to: Address,
        size: u64,
    ) -> Result<(), DeviceError>;

    /// What takes memory of the host.
    fn host_memory(&mut self) -> Arc<dyn HostMemory>;

    /// Takes the time at the present end of a stream's work.
    fn take_time(&mut self, stream: StreamId) -> Result<TimeStamp, DeviceError>;

    /// Microseconds from one point to another; none while the work before the later one is not done.
    fn time_between(&mut self, from: TimeStamp, to: TimeStamp) -> Result<Option<f64>, DeviceError>;

    /// Gives a point back.
    fn forget_time(&mut self, stamp: TimeStamp);
}
