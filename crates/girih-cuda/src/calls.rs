//! How often the driver was called.

/// Calls of the driver that a device made, by kind, failed ones included. What a thread asks about
/// its own context and capture mode is not counted: it costs a few nanoseconds and never waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Calls {
    /// `cuMemAlloc`.
    pub alloc: u64,
    /// `cuMemFree`.
    pub free: u64,
    /// `cuMemAddressReserve`.
    pub reserve: u64,
    /// `cuMemAddressFree`.
    pub unreserve: u64,
    /// `cuMemCreate`.
    pub create: u64,
    /// `cuMemRelease`.
    pub release: u64,
    /// `cuMemMap`.
    pub map: u64,
    /// `cuMemUnmap`.
    pub unmap: u64,
    /// `cuMemSetAccess`.
    pub set_access: u64,
    /// `cuMemGetInfo`.
    pub memory_info: u64,
    /// `cuEventCreate`.
    pub event_create: u64,
    /// `cuEventRecord` and `cuCtxRecordEvent`.
    pub event_record: u64,
    /// `cuEventQuery`.
    pub event_query: u64,
    /// `cuStreamWaitEvent`.
    pub stream_wait: u64,
    /// `cuStreamWaitValue32`.
    pub value_wait: u64,
    /// `cuEventSynchronize`, `cuStreamSynchronize` and `cuCtxSynchronize`.
    pub synchronize: u64,
    /// `cuMemcpyDtoHAsync`.
    pub copy_out: u64,
    /// `cuMemcpyHtoDAsync`.
    pub copy_in: u64,
}

impl Calls {
    /// All calls together.
    pub fn total(&self) -> u64 {
        self.memory() + self.order() + self.copy_out + self.copy_in
    }

    /// Calls that give, take or look at memory.
    pub fn memory(&self) -> u64 {
        let whole = self.alloc + self.free + self.create + self.release;
        let mapped = self.reserve + self.unreserve + self.map + self.unmap + self.set_access;
        whole + mapped + self.memory_info
    }

    /// Calls about events and streams.
    pub fn order(&self) -> u64 {
        let events = self.event_create + self.event_record + self.event_query;
        events + self.stream_wait + self.value_wait + self.synchronize
    }
}
