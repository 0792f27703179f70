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

/// Takes so many bytes of the host, pinned, so that copies of them run beside the program (`cuMemHostRegister`).
/// They stay until the process ends. To be called by any thread, while others use the device: it takes about a
/// second for each GiB, most of it to find the pages.
pub type Pinner = Arc<dyn Fn(u64) -> Result<HostAddress, DeviceError> + Send + Sync>;

/// A GPU that copies.
pub trait Copies {
    /// A new stream for copies, by the driver's handle; it waits for no other stream by itself. It lives as long as
    /// the device.
    fn open_lane(&mut self) -> Result<u64, DeviceError>;

    /// Queues a copy of `size` bytes to pinned memory of the host.
    fn copy_out(
        &mut self,
        lane: StreamId,
        from: Address,
        to: HostAddress,
        size: u64,
    ) -> Result<(), DeviceError>;

    /// Queues a copy of `size` bytes from pinned memory of the host.
    fn copy_in(
        &mut self,
        lane: StreamId,
        from: HostAddress,
        to: Address,
        size: u64,
    ) -> Result<(), DeviceError>;

    /// What takes pinned memory of the host.
    fn pinner(&mut self) -> Pinner;

    /// Takes the time at the present end of a stream's work.
    fn take_time(&mut self, stream: StreamId) -> Result<TimeStamp, DeviceError>;

    /// Microseconds from one point to another; none while the work before the later one is not done.
    fn time_between(&mut self, from: TimeStamp, to: TimeStamp) -> Result<Option<f64>, DeviceError>;

    /// Gives a point back.
    fn forget_time(&mut self, stamp: TimeStamp);
}
