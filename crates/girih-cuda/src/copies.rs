//! Copies of a [`CudaDevice`] to memory of the host and back: see [`host`](crate::host) for that memory.

use std::sync::Arc;

use girih_runtime::{
    Address, Copies, Device, DeviceError, HostAddress, HostMemory, StreamEvent, TimeStamp,
};
use girih_trace::StreamId;

use crate::books::misuse;
use crate::context::Scope;
use crate::device::CudaDevice;
use crate::driver::types::CuStream;
use crate::driver::{Driver, Failure};
use crate::events::EventPool;
use crate::gate::{Closed, Gate};
use crate::host::{HostBooks, Pinnable};
use crate::near::processors;

/// What a device needs for copies.
#[derive(Default)]
pub(crate) struct CopyBooks {
    /// Memory of the host.
    host: Arc<HostBooks>,
    /// What copies to the host wait for.
    gate: Gates,
    /// Events that take the time.
    pub(crate) timers: EventPool,
}

/// The gate of a device.
#[derive(Default)]
enum Gates {
    /// Nothing was copied to the host yet.
    #[default]
    Unknown,
    Has(Gate),
    /// The driver, or this machine, cannot.
    Lacks,
}

impl CopyBooks {
    /// Keeps copies to the host from beginning until what this gives is dropped.
    pub(crate) fn close_gate(&self) -> Option<Closed<'_>> {
        match &self.gate {
            Gates::Has(gate) => gate.close(),
            Gates::Unknown | Gates::Lacks => None,
        }
    }
}

/// A copy of the driver, of so many bytes from the beginning of the whole one on, of which there are so many.
type CopyCall<'a> = &'a dyn Fn(&'static Driver, u64, usize, CuStream) -> Result<(), Failure>;

impl CudaDevice {
    /// Makes what comes next on a lane wait for the gate. False where there is none, or none any more.
    fn guard(&mut self, stream: CuStream) -> bool {
        let Gates::Has(gate) = &self.copies.gate else { return false };
        self.calls.value_wait += 1;
        let is_guarded = gate.guard(self.driver, stream).is_ok();
        if !is_guarded {
            self.copies.gate = Gates::Lacks;
        }
        is_guarded
    }

    /// Makes a copy in as many pieces as the host's memory has under it, in smaller ones behind the gate where it is to
    /// the host. If one is refused, those before are waited for: the caller gives the bytes to others then. How many
    /// copies were made.
    fn copy_pieces(
        &mut self,
        call: &'static str,
        lane: StreamId,
        host: HostAddress,
        size: u64,
        is_out: bool,
        copy: CopyCall<'_>,
    ) -> Result<u64, DeviceError> {
        let Some(mut pieces) = self.copies.host.cut(host, size) else {
            return misuse(call, format!("{size} bytes at {host:#x} of the host are not pinned"));
        };
        let (stream, context) = self.stream(call, lane)?;
        if is_out && matches!(self.copies.gate, Gates::Unknown) {
            let gate = Gate::new(self.driver, self.context);
            self.copies.gate = gate.map_or(Gates::Lacks, Gates::Has);
        }
        let scope = self.checked(Scope::enter(self.driver, context))?;
        let mut is_guarded = is_out && matches!(self.copies.gate, Gates::Has(_));
        if is_guarded {
            pieces = Gate::cut(&pieces);
        }
        let mut at = 0;
        for piece in &pieces {
            is_guarded = is_guarded && self.guard(stream);
            if let Err(failure) = copy(self.driver, at, *piece as usize, stream) {
                drop(scope);
                if at > 0 {
                    self.synchronize_stream(lane)?;
                }
                return Err(self.driver.error(failure));
            }
            at += piece;
        }
        Ok(pieces.len() as u64)
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
        self.calls.copy_out +=
            self.copy_pieces("copy_out", lane, to, size, true, &|driver, at, bytes, stream| {
                driver.copy_out(from + at, to + at, bytes, stream)
            })?;
        Ok(())
    }

    fn copy_in(
        &mut self,
        lane: StreamId,
        from: HostAddress,
        to: Address,
        size: u64,
    ) -> Result<(), DeviceError> {
        self.calls.copy_in +=
            self.copy_pieces("copy_in", lane, from, size, false, &|driver, at, bytes, stream| {
                driver.copy_in(from + at, to + at, bytes, stream)
            })?;
        Ok(())
    }

    fn host_memory(&mut self) -> Arc<dyn HostMemory> {
        let (driver, context) = (self.driver, self.context);
        let (books, near) = (Arc::clone(&self.copies.host), processors(driver, self.device));
        Arc::new(Pinnable { driver, context, books, near })
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
        // A graph that is captured meanwhile does not see it.
        let _scope = self.enter_relaxed()?;
        self.calls.event_query += 1;
        let elapsed = self.checked(self.driver.elapsed(from, to))?;
        Ok(elapsed.map(|milliseconds| f64::from(milliseconds) * 1e3))
    }

    fn forget_time(&mut self, stamp: TimeStamp) {
        self.copies.timers.take_back(StreamEvent(stamp.0));
    }
}
