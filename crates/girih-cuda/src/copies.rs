//! Copies of a [`CudaDevice`] to and from pinned memory of the host.
//!
//! The memory is taken from the system, touched, and pinned then (`cuMemHostRegister`): the driver's own way
//! (`cuMemHostAlloc`) keeps other calls waiting while the system finds the pages. It is exact, where torch's pinned
//! memory is a power of two, and never given back: somebody may still copy when the process ends.
//!
//! The driver does not check addresses of the host, so the books here do: a copy outside of pinned memory is misuse.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use girih_runtime::{Address, Copies, DeviceError, HostAddress, Pinner, StreamEvent, TimeStamp};
use girih_trace::StreamId;

use crate::books::misuse;
use crate::context::Scope;
use crate::device::CudaDevice;
use crate::driver::Driver;
use crate::driver::types::CuContext;
use crate::events::EventPool;

/// Bytes of a page of the host.
const PAGE: usize = 4096;

/// What a device needs for copies.
#[derive(Default)]
pub(crate) struct CopyBooks {
    /// Pinned memory: first address and bytes.
    pinned: Arc<Mutex<BTreeMap<HostAddress, u64>>>,
    /// Events that take the time.
    pub(crate) timers: EventPool,
}

impl CopyBooks {
    /// True if all of these bytes are pinned.
    fn holds(&self, address: HostAddress, size: u64) -> bool {
        let pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let before = pinned.range(..=address).next_back();
        before.is_some_and(|(&start, &bytes)| {
            let end = address.checked_add(size);
            end.is_some_and(|end| end <= start + bytes)
        })
    }
}

/// Takes memory of the host and pins it.
fn pin(driver: &'static Driver, context: CuContext, size: u64) -> Result<HostAddress, DeviceError> {
    let refused =
        |reason: &str| DeviceError::Driver { call: "cuMemHostRegister", reason: reason.to_owned() };
    let size = usize::try_from(size).map_err(|_| refused("more than can be addressed"))?;
    let mut memory: Vec<u8> = Vec::new();
    let with_room = size.checked_add(PAGE).ok_or_else(|| refused("more than can be addressed"))?;
    memory.try_reserve_exact(with_room).map_err(|_| refused("the host has too little memory"))?;
    memory.resize(with_room, 0);
    let before = memory.as_ptr().align_offset(PAGE);
    let whole = &mut memory.leak()[before..before + size];
    let address = whole.as_ptr() as HostAddress;
    let pinned = Scope::relaxed(driver, context).and_then(|_scope| driver.register(whole));
    pinned.map_err(|failure| driver.error(failure))?;
    Ok(address)
}

impl CudaDevice {
    fn check_host(
        &self,
        call: &'static str,
        host: HostAddress,
        size: u64,
    ) -> Result<(), DeviceError> {
        if self.copies.holds(host, size) {
            return Ok(());
        }
        misuse(call, format!("{size} bytes at {host:#x} of the host are not pinned"))
    }
}

impl Copies for CudaDevice {
    fn open_lane(&mut self) -> Result<u64, DeviceError> {
        let _scope = self.enter_relaxed()?;
        let stream = self.driver.create_stream();
        Ok(self.checked(stream)?.0 as u64)
    }

    fn copy_out(
        &mut self,
        lane: StreamId,
        from: Address,
        to: HostAddress,
        size: u64,
    ) -> Result<(), DeviceError> {
        self.check_host("copy_out", to, size)?;
        let (stream, context) = self.stream("copy_out", lane)?;
        let _scope = self.checked(Scope::enter(self.driver, context))?;
        self.calls.copy_out += 1;
        self.checked(self.driver.copy_out(from, to, size as usize, stream))
    }

    fn copy_in(
        &mut self,
        lane: StreamId,
        from: HostAddress,
        to: Address,
        size: u64,
    ) -> Result<(), DeviceError> {
        self.check_host("copy_in", from, size)?;
        let (stream, context) = self.stream("copy_in", lane)?;
        let _scope = self.checked(Scope::enter(self.driver, context))?;
        self.calls.copy_in += 1;
        self.checked(self.driver.copy_in(from, to, size as usize, stream))
    }

    fn pinner(&mut self) -> Pinner {
        let (driver, context) = (self.driver, self.context);
        let pinned = Arc::clone(&self.copies.pinned);
        Arc::new(move |size| {
            let address = pin(driver, context, size)?;
            let mut pinned = pinned.lock().unwrap_or_else(PoisonError::into_inner);
            pinned.insert(address, size);
            Ok(address)
        })
    }

    fn take_time(&mut self, stream: StreamId) -> Result<TimeStamp, DeviceError> {
        let (stream, context) = self.stream("take_time", stream)?;
        let _scope = self.checked(Scope::enter(self.driver, context))?;
        let (slot, event) = match self.copies.timers.vacant(context) {
            Some(vacant) => vacant,
            None => {
                self.calls.event_create += 1;
                let event = self.checked(self.driver.create_timer())?;
                (self.copies.timers.add(context, event), event)
            }
        };
        self.calls.event_record += 1;
        self.checked(self.driver.record_event(event, stream))?;
        Ok(TimeStamp(self.copies.timers.give(slot).0))
    }

    fn time_between(&mut self, from: TimeStamp, to: TimeStamp) -> Result<Option<f64>, DeviceError> {
        let timers = &self.copies.timers;
        let ends = timers.get(StreamEvent(from.0)).zip(timers.get(StreamEvent(to.0)));
        let Some((from, to)) = ends else {
            return misuse("time_between", "a point that is not in use".to_owned());
        };
        let _scope = self.enter()?;
        self.calls.event_query += 1;
        let elapsed = self.checked(self.driver.elapsed(from, to))?;
        Ok(elapsed.map(|milliseconds| f64::from(milliseconds) * 1e3))
    }

    fn forget_time(&mut self, stamp: TimeStamp) {
        self.copies.timers.take_back(StreamEvent(stamp.0));
    }
}
