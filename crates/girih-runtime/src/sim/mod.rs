//! A GPU without a GPU: a [`Device`] that keeps the books and knows the rules.
//!
//! [`SimDevice`] gives deterministic addresses, counts every call and what it would have cost, can
//! be told which call fails, and refuses every misuse that the driver would punish with an error or
//! with a fault. Work on its streams is done at once, unless a stream is held ([`SimDevice::hold`]);
//! then a test or a replay decides when it is done.
//!
//! ```text
//!  0x10_0000_0000 ─┬─ alloc: |seg|seg| |seg|  ...  grows up, never reused
//!  0x4000_0000_0000┼─ reserve: [ mapped | mapped |          ][ mapped |     ]  grows up
//!                  └─ a script replaces both by the addresses that a recording saw
//! ```
//!
//! `memory` holds what is where, [`order`] who may use it when, [`cost`] what a call takes,
//! [`fault`] which call is made to fail.

pub mod cost;
pub mod fault;
mod graph;
mod memory;
pub mod order;

use girih_trace::StreamId;

pub use self::cost::{Call, CallTotals};
pub use self::fault::{Fault, FaultKind};
use self::memory::Memory;
use self::order::Order;
use crate::device::{
    Address, CapturedEnds, Device, DeviceError, GraphNode, Handle, MemoryInfo, Prices, StreamEvent,
};

/// A simulated GPU.
#[derive(Debug)]
pub struct SimDevice {
    memory: Memory,
    order: Order,
    totals: CallTotals,
    faults: fault::Faults,
    /// Nanoseconds of a stall.
    stall_ns: u64,
    /// Stalls that nobody was told of.
    stalls: u64,
    /// Calls cost so many times what the list says.
    dearness: u64,
}

impl SimDevice {
    /// The granularity of every NVIDIA GPU so far: 2 MiB.
    pub const GRANULARITY: u64 = 2 << 20;

    /// A device of `total` bytes with a granularity of 2 MiB.
    pub fn new(total: u64) -> SimDevice {
        SimDevice::with_granularity(total, SimDevice::GRANULARITY)
    }

    /// A device of `total` bytes with another granularity.
    ///
    /// # Panics
    /// If `granularity` is not a power of two of at least 512.
    pub fn with_granularity(total: u64, granularity: u64) -> SimDevice {
        assert!(granularity.is_power_of_two() && granularity >= 512, "granularity {granularity}");
        SimDevice {
            memory: Memory::new(total, granularity),
            order: Order::default(),
            totals: CallTotals::default(),
            faults: fault::Faults::default(),
            stall_ns: cost::STALL_NS,
            stalls: 0,
            dearness: 1,
        }
    }

    /// A stream stands still for so many nanoseconds in each wait that is measured from now on, instead of
    /// [`cost::STALL_NS`].
    pub fn set_stall(&mut self, nanoseconds: u64) {
        self.stall_ns = nanoseconds;
    }

    /// Tells of so many times the prices of the list from now on ([`Device::prices`]), as a driver does that takes
    /// longer. The totals stay those of the list.
    pub fn set_dearness(&mut self, times: u64) {
        self.dearness = times;
    }

    /// A handle can be mapped at one address at a time from now on: see [`Device::maps_twice`].
    pub fn map_once(&mut self) {
        self.memory.maps_twice = false;
    }

    /// Gives the k-th successful [`Device::alloc`] the k-th of these addresses. Where that address
    /// is taken or misaligned, and when the list has run out, the device finds one of its own.
    pub fn script_allocs(&mut self, addresses: impl IntoIterator<Item = Address>) {
        self.memory.scripted_allocs.extend(addresses);
    }

    /// The same for [`Device::reserve`].
    pub fn script_reserves(&mut self, addresses: impl IntoIterator<Item = Address>) {
        self.memory.scripted_reserves.extend(addresses);
    }

    /// Turns the order checker on: from now on [`SimDevice::acquire`] and [`SimDevice::release`]
    /// are checked, and memory that is in use or may still be cannot be taken away.
    pub fn check_order(&mut self) {
        self.order.check = true;
    }

    /// Keeps the work of `stream` from being done: events recorded on it from now on are not done
    /// before [`SimDevice::complete`] or [`SimDevice::resume`], or until the host waits for them.
    pub fn hold(&mut self, stream: StreamId) {
        self.order.hold(stream);
    }

    /// Does the work of `stream` up to `event`, and so every earlier event of it too. Unknown
    /// events are ignored: they may be destroyed by now.
    pub fn complete(&mut self, event: StreamEvent) {
        self.order.complete(event);
    }

    /// Does all work of `stream`, and does work at once again.
    pub fn resume(&mut self, stream: StreamId) {
        self.order.resume(stream);
    }

    /// `stream` belongs to another device, which uses memory of this one: no fence covers it but one that
    /// is recorded for a user of that device.
    pub fn set_foreign(&mut self, stream: StreamId) {
        self.order.set_foreign(stream);
    }

    /// A graph is captured from `stream` from now on: no event may be recorded on it, it may wait for none,
    /// and there are no fences, until [`SimDevice::end_capture`]. So it is from streams that are ordered after
    /// it by [`SimDevice::order`].
    pub fn begin_capture(&mut self, stream: StreamId) {
        self.order.set_capturing(stream, true);
    }

    /// The capture from `stream` is over, and from all streams that joined it.
    pub fn end_capture(&mut self, stream: StreamId) {
        self.order.set_capturing(stream, false);
    }

    /// Later work of `after` comes after the present work of `before`, as the program wants it: no call of
    /// an allocator.
    pub fn order(&mut self, before: StreamId, after: StreamId) {
        self.order.order(before, after);
    }

    /// The host waits for all work, as the program wants it.
    pub fn finish_all(&mut self) {
        self.order.finish_all();
    }

    /// The program destroys `stream`, whose work goes on. From now on it is a misuse to name it, as a
    /// driver crashes that is given such a handle.
    pub fn destroy_stream(&mut self, stream: StreamId) {
        self.order.destroy_stream(stream);
    }

    /// Adds a fault. Several may wait at the same time.
    pub fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Fallible calls made so far, failed ones included.
    pub fn calls(&self) -> u64 {
        self.faults.calls()
    }

    /// Calls that succeeded and their cost, by kind.
    pub fn totals(&self) -> &CallTotals {
        &self.totals
    }

    /// Segments, handles, reservations and events that were not given back.
    pub fn live(&self) -> LiveObjects {
        LiveObjects {
            allocations: self.memory.allocation_count(),
            handles: self.memory.handle_count(),
            reservations: self.memory.reservation_count(),
            events: self.order.event_count(),
        }
    }

    /// Says that work of `stream` begins to use `size` bytes at `address`: a block was given.
    ///
    /// # Errors
    /// [`DeviceError::Misuse`] if a byte is not mapped and accessible, or, with the order checker
    /// on, if a byte is in use by another block or if nothing orders this use after the last one:
    /// same stream, an event that `stream` waited for, or a wait of the host.
    pub fn acquire(
        &mut self,
        address: Address,
        size: u64,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        let pieces = self.memory.pieces("acquire", address, size)?;
        self.order.acquire(address, size, &pieces, stream)
    }

    /// Says that the block is let go of: no work submitted from now on uses it. `streams` are all
    /// that used it, the stream of its allocation first. Call it before the policy frees the block.
    ///
    /// # Errors
    /// [`DeviceError::Misuse`] if the bytes are not mapped, or, with the order checker on, if they
    /// were not acquired.
    pub fn release(
        &mut self,
        address: Address,
        size: u64,
        streams: &[StreamId],
    ) -> Result<(), DeviceError> {
        let pieces = self.memory.pieces("release", address, size)?;
        self.order.release(address, size, &pieces, streams)
    }

    /// Counts a call and lets it fail if a fault asks for it.
    fn enter(&mut self, call: Call, size: u64) -> Result<(), DeviceError> {
        let free = self.memory.free_bytes();
        self.faults.enter(call, size, free)
    }
}

/// What a device holds that was not given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LiveObjects {
    /// Allocations of [`Device::alloc`].
    pub allocations: usize,
    /// Handles of [`Device::create`].
    pub handles: usize,
    /// Reservations of [`Device::reserve`].
    pub reservations: usize,
    /// Events of [`Device::record_event`].
    pub events: usize,
}

impl Device for SimDevice {
    fn memory_info(&mut self) -> MemoryInfo {
        MemoryInfo { free: self.memory.free_bytes(), total: self.memory.total() }
    }

    fn granularity(&self) -> u64 {
        self.memory.granularity()
    }

    fn maps_twice(&self) -> bool {
        self.memory.maps_twice
    }

    fn prices(&self) -> Prices {
        let nanoseconds = |microseconds: f64| (1e3 * microseconds) as u64 * self.dearness;
        let page = |call: Call| nanoseconds(call.microseconds(self.granularity()));
        let mapped_again_ns = page(Call::Map) + page(Call::SetAccess);
        Prices {
            new_page_ns: page(Call::Create) + mapped_again_ns,
            mapped_again_ns,
            spent_ns: nanoseconds(self.totals.sum().microseconds),
        }
    }

    fn alloc(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.enter(Call::Alloc, size)?;
        let address = self.memory.alloc(size)?;
        self.totals.add(Call::Alloc, size, 1);
        Ok(address)
    }

    fn free(&mut self, address: Address) -> Result<(), DeviceError> {
        self.enter(Call::Free, 0)?;
        let size = self.memory.allocation_size(address)?;
        self.order.finish_all();
        self.order.forget("free", address, size, &[(address, size)])?;
        self.memory.free(address);
        self.totals.add(Call::Free, size, 1);
        Ok(())
    }

    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.enter(Call::Reserve, size)?;
        let address = self.memory.reserve(size)?;
        self.totals.add(Call::Reserve, size, 1);
        Ok(address)
    }

    fn unreserve(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.enter(Call::Unreserve, size)?;
        self.memory.unreserve(address, size)?;
        self.totals.add(Call::Unreserve, size, 1);
        Ok(())
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        self.enter(Call::Create, size)?;
        let handle = self.memory.create(size)?;
        self.totals.add(Call::Create, size, 1);
        Ok(handle)
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        self.enter(Call::Release, 0)?;
        let (physical, size) = self.memory.release(handle)?;
        self.order.forget_physical(physical, size);
        self.totals.add(Call::Release, size, 1);
        Ok(())
    }

    fn map(&mut self, address: Address, handle: Handle) -> Result<(), DeviceError> {
        self.enter(Call::Map, 0)?;
        let size = self.memory.map(address, handle)?;
        self.totals.add(Call::Map, size, 1);
        Ok(())
    }

    fn set_access(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.enter(Call::SetAccess, size)?;
        let handles = self.memory.set_access(address, size)?;
        self.totals.add(Call::SetAccess, size, handles);
        Ok(())
    }

    fn unmap(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.enter(Call::Unmap, size)?;
        let first = self.memory.check_unmap(address, size)?;
        self.order.forget("unmap", address, size, &[])?;
        let handles = self.memory.unmap(first, address, size);
        self.totals.add(Call::Unmap, size, handles);
        Ok(())
    }

    fn record_event(&mut self, stream: StreamId) -> Result<StreamEvent, DeviceError> {
        self.enter(Call::RecordEvent, 0)?;
        let event = self.order.record(stream)?;
        self.totals.add(Call::RecordEvent, 0, 1);
        Ok(event)
    }

    fn record_fence(&mut self, users: &[StreamId]) -> Result<StreamEvent, DeviceError> {
        self.enter(Call::RecordFence, 0)?;
        let event = self.order.record_fence(users)?;
        self.totals.add(Call::RecordFence, 0, 1);
        Ok(event)
    }

    /// Asks the device's books and no driver: it is no call that could fail.
    fn is_capturing(&mut self, stream: StreamId) -> Result<bool, DeviceError> {
        self.order.is_capturing(stream)
    }

    fn captured_ends(&mut self, stream: StreamId) -> Result<Option<CapturedEnds>, DeviceError> {
        self.enter(Call::CapturedEnds, 0)?;
        let ends = self.order.captured_ends(stream)?;
        self.totals.add(Call::CapturedEnds, 0, 1);
        Ok(ends)
    }

    fn graph_dependencies(&mut self, node: GraphNode) -> Result<Vec<GraphNode>, DeviceError> {
        self.enter(Call::GraphDependencies, 0)?;
        let nodes = self.order.graph.dependencies(node)?;
        self.totals.add(Call::GraphDependencies, 0, 1);
        Ok(nodes)
    }

    fn query_event(&mut self, event: StreamEvent) -> Result<bool, DeviceError> {
        self.enter(Call::QueryEvent, 0)?;
        let done = self.order.query(event)?;
        self.totals.add(Call::QueryEvent, 0, 1);
        Ok(done)
    }

    fn wait_event(&mut self, stream: StreamId, event: StreamEvent) -> Result<(), DeviceError> {
        self.enter(Call::WaitEvent, 0)?;
        self.order.wait(stream, event)?;
        self.totals.add(Call::WaitEvent, 0, 1);
        Ok(())
    }

    /// Each wait takes what the list says, whatever the streams do.
    fn wait_measured(&mut self, stream: StreamId, event: StreamEvent) -> Result<(), DeviceError> {
        self.wait_event(stream, event)?;
        self.stalls += 1;
        Ok(())
    }

    fn take_stalls(&mut self, most: u64) -> u64 {
        std::mem::take(&mut self.stalls).saturating_mul(self.stall_ns.min(most))
    }

    fn synchronize_event(&mut self, event: StreamEvent) -> Result<(), DeviceError> {
        self.enter(Call::SynchronizeEvent, 0)?;
        self.order.synchronize(event)?;
        self.totals.add(Call::SynchronizeEvent, 0, 1);
        Ok(())
    }

    fn destroy_event(&mut self, event: StreamEvent) -> Result<(), DeviceError> {
        self.enter(Call::DestroyEvent, 0)?;
        self.order.destroy(event)?;
        self.totals.add(Call::DestroyEvent, 0, 1);
        Ok(())
    }

    fn synchronize_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.enter(Call::SynchronizeStream, 0)?;
        self.order.synchronize_stream(stream)?;
        self.totals.add(Call::SynchronizeStream, 0, 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
