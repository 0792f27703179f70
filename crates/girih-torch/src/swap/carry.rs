//! The calls that a record's change of state takes, made one after another.
//!
//! What must come before what, as events:
//!
//! ```text
//!  copy out    after what was done when nobody but autograd had the tensor any more, on all streams that had it; after
//!              the copies in from its place on the host
//!  free        the bytes' stream waits for the end of the copy out
//!  copy in     after what the bytes' stream has done by now, which is after its own copy out
//!  use         the user's stream, and the bytes' own, wait for the end of the copy in
//! ```

use girih_runtime::{AllocError, Copies, DeviceError, HostAddress, Request, StreamEvent};
use girih_swap::record::{Call, Refusal, Wish};
use girih_trace::{PoolId, StreamId};

use super::Swap;
use super::host::NoSlot;
use super::table::{Entry, RecordId};
use super::waits::Way;
use crate::device::HeapDevice;
use crate::error::{HeapError, bug};
use crate::heap::State;

/// Why a wish was not met. The record is where it was, or in the nearest whole state.
#[derive(Debug)]
pub(crate) enum Fail {
    /// The host has no place.
    Host(NoSlot),
    /// The GPU has no bytes.
    Gpu(AllocError),
    /// Another refusal.
    Other(Box<HeapError>),
}

impl From<DeviceError> for Fail {
    fn from(error: DeviceError) -> Fail {
        Fail::Other(error.into())
    }
}

impl From<Box<HeapError>> for Fail {
    fn from(error: Box<HeapError>) -> Fail {
        Fail::Other(error)
    }
}

impl From<Fail> for Box<HeapError> {
    fn from(fail: Fail) -> Box<HeapError> {
        match fail {
            Fail::Host(NoSlot::Refused(error)) => error.into(),
            Fail::Host(NoSlot::Budget) => {
                Box::new(HeapError::Unknown("the host's budget for swapping is used up".into()))
            }
            Fail::Gpu(error) => error.into(),
            Fail::Other(error) => error,
        }
    }
}

/// The device as one that copies. A heap swaps only where there is one.
fn copies(device: &mut dyn HeapDevice) -> Result<&mut dyn Copies, Fail> {
    device.copies().ok_or_else(|| Fail::Other(bug("the device does not copy any more")))
}

/// Replaces an event, and gives the old one back.
fn replace(
    device: &mut dyn HeapDevice,
    place: &mut Option<StreamEvent>,
    event: Option<StreamEvent>,
) -> Result<(), DeviceError> {
    match std::mem::replace(place, event) {
        Some(old) => device.destroy_event(old),
        None => Ok(()),
    }
}

/// Notes when those who have had a record's tensor are done with its bytes: once their streams have done what they are
/// given by now. So its own stream, which waits for the copy out before it has the bytes, waits for all of them.
pub(super) fn mark_ready(
    device: &mut dyn HeapDevice,
    entry: &mut Entry,
) -> Result<(), DeviceError> {
    for &stream in entry.earlier.iter().chain([&entry.last_on]) {
        match device.record_event(stream) {
            Ok(event) => entry.ready.push(event),
            Err(error) => {
                for event in entry.ready.drain(..) {
                    // A refusal costs an event.
                    let _ = device.destroy_event(event);
                }
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Queues the copies of a record, one for each part of its place on the host. If one is refused, those before are
/// waited for: their bytes are given to others after this.
fn copy_parts(
    device: &mut dyn HeapDevice,
    lane: StreamId,
    entry: &Entry,
    copy: impl Fn(&mut dyn Copies, u64, HostAddress, u64) -> Result<(), DeviceError>,
) -> Result<(), Fail> {
    let slot = entry.slot.as_ref();
    let slot = slot.ok_or_else(|| Fail::Other(bug("a tensor has no place on the host")))?;
    for (from, host, bytes) in slot.pieces(entry.size) {
        if let Err(error) = copy(copies(device)?, entry.address + from, host, bytes) {
            if from > 0 {
                device.synchronize_stream(lane)?;
            }
            return Err(error.into());
        }
    }
    Ok(())
}

/// The end of a copy that was queued. If the device refuses to mark it, the copy is waited for: its bytes are given
/// to others after this.
fn end_of(device: &mut dyn HeapDevice, lane: StreamId) -> Result<StreamEvent, DeviceError> {
    let end = device.record_event(lane);
    if end.is_err() {
        device.synchronize_stream(lane)?;
    }
    end
}

impl Swap {
    /// Carries out a wish for a record, whose bytes no stream but their own waits for. A record that is gone has none.
    pub(super) fn carry(
        &mut self,
        state: &mut State,
        id: RecordId,
        wish: Wish,
    ) -> Result<(), Fail> {
        let Some(entry) = self.table.get(id) else { return Ok(()) };
        let own = entry.stream;
        self.carry_for(state, id, wish, own)
    }

    /// As [`Swap::carry`]; `user` is the stream that is about to use the record.
    pub(super) fn carry_for(
        &mut self,
        state: &mut State,
        id: RecordId,
        wish: Wish,
        user: StreamId,
    ) -> Result<(), Fail> {
        let Some(entry) = self.table.get_mut(id) else { return Ok(()) };
        let before = entry.record.state();
        let carried = self.carry_calls(state, id, wish, user);
        if carried.is_err()
            && let Some(entry) = self.table.get_mut(id)
        {
            for call in entry.record.failed() {
                self.undo(state, id, *call);
            }
        }
        self.table.note_state(id, before);
        carried
    }

    fn carry_calls(
        &mut self,
        state: &mut State,
        id: RecordId,
        wish: Wish,
        user: StreamId,
    ) -> Result<(), Fail> {
        while let Some(entry) = self.table.get_mut(id) {
            let next = entry.record.next(wish).map_err(|refusal: Refusal| {
                Fail::Other(bug(format!("a saved tensor cannot {wish:?}: {refusal}")))
            })?;
            let Some(call) = next else { break };
            self.make(state, id, call, wish, user)?;
            if let Some(entry) = self.table.get_mut(id) {
                entry.record.made();
            }
        }
        Ok(())
    }

    fn make(
        &mut self,
        state: &mut State,
        id: RecordId,
        call: Call,
        wish: Wish,
        user: StreamId,
    ) -> Result<(), Fail> {
        let (out, inward) = (self.out, self.inward);
        let Some(entry) = self.table.get_mut(id) else { return Ok(()) };
        let device = &mut *state.device;
        match call {
            Call::TakeHost => {
                entry.slot = Some(self.host.take(entry.size).map_err(Fail::Host)?);
                self.host.pin_ahead();
                self.tell_refusal(state);
            }
            Call::CopyOut => {
                if entry.ready.is_empty() {
                    mark_ready(device, entry)?;
                }
                for &ready in &entry.ready {
                    device.wait_event(out, ready)?;
                }
                let begun = self.links.begin(device, out);
                let queued = copy_parts(device, out, entry, |copies, at, host, bytes| {
                    copies.copy_out(out, at, host, bytes)
                });
                let bytes = queued.is_ok().then_some(entry.size);
                self.links.end(device, (out, Way::Out), bytes, begun);
                queued?;
                let end = end_of(device, out)?;
                replace(device, &mut entry.out, Some(end))?;
                self.counts.copies_out += 1;
                self.counts.bytes_out += entry.size;
                self.counts.states_out += if entry.is_state() { entry.size } else { 0 };
            }
            Call::AwaitOut => {
                if let Some(end) = entry.out {
                    let stream = entry.stream;
                    self.wait_for_copy(state, id, Way::Out, stream, end)?;
                }
            }
            Call::FreeGpu if wish == Wish::Drop => entry.address = 0,
            Call::FreeGpu => {
                let (storage, address) = (entry.storage, entry.address);
                // The storage has it until the heap has taken it back: a refusal changes nothing.
                state.let_go(address)?;
                self.streams.remove(&address);
                let taken = self.storages.take(storage);
                debug_assert_eq!(taken, address, "the storage had other bytes");
                if let Some(entry) = self.table.get_mut(id) {
                    entry.address = 0;
                    entry.forget_streams();
                }
            }
            Call::TakeGpu => {
                let (size, stream, storage) = (entry.size, entry.stream, entry.storage);
                let request = Request { size, stream, pool: PoolId::DEFAULT };
                let address = self.take(state, request).map_err(|error| match error {
                    error if error.is_out_of_memory() => Fail::Gpu(error),
                    error => Fail::Other(error.into()),
                })?;
                self.streams.insert(address, stream);
                self.storages.give(storage, address);
                if let Some(entry) = self.table.get_mut(id) {
                    entry.address = address;
                }
            }
            Call::CopyIn => {
                let now = device.record_event(entry.stream)?;
                let waited = device.wait_event(inward, now);
                device.destroy_event(now)?;
                waited?;
                let begun = self.links.begin(device, inward);
                let queued = copy_parts(device, inward, entry, |copies, at, host, bytes| {
                    copies.copy_in(inward, host, at, bytes)
                });
                let bytes = queued.is_ok().then_some(entry.size);
                self.links.end(device, (inward, Way::In), bytes, begun);
                queued?;
                let end = end_of(device, inward)?;
                replace(device, &mut entry.back, Some(end))?;
                self.counts.copies_in += 1;
                self.counts.bytes_in += entry.size;
                self.counts.states_in += if entry.is_state() { entry.size } else { 0 };
            }
            Call::AwaitIn => {
                if let Some(end) = entry.back {
                    let home = entry.stream;
                    self.wait_for_copy(state, id, Way::In, user, end)?;
                    let device = &mut *state.device;
                    if user != home {
                        device.wait_event(home, end)?;
                    }
                    // Whatever is copied to the place on the host later comes after what was read from it.
                    device.wait_event(out, end)?;
                    let Some(entry) = self.table.get_mut(id) else { return Ok(()) };
                    replace(device, &mut entry.back, None)?;
                }
            }
            Call::FreeHost => {
                if let Some(slot) = entry.slot.take() {
                    self.host.give_back(&slot);
                }
            }
        }
        Ok(())
    }

    /// Says once that the system pins no more.
    pub(super) fn tell_refusal(&mut self, state: &mut State) {
        if let Some(refusal) = self.host.take_refusal() {
            state.warn(format!("device {}: {refusal}", state.ordinal));
        }
    }

    /// Gives back what a wish had taken that failed later. What cannot be given back now stays the storage's, which
    /// frees it with its end.
    fn undo(&mut self, state: &mut State, id: RecordId, call: Call) {
        let Some(entry) = self.table.get_mut(id) else { return };
        match call {
            Call::FreeHost => {
                if let Some(slot) = entry.slot.take() {
                    self.host.give_back(&slot);
                }
            }
            Call::FreeGpu => {
                let (storage, address) = (entry.storage, entry.address);
                entry.address = 0;
                self.storages.take(storage);
                self.streams.remove(&address);
                let _ = state.let_go(address);
            }
            _ => {}
        }
    }
}
