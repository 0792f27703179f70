//! Frees that wait for events, and device calls that must be made up for.
//!
//! A block that other streams used is free only when the events recorded on them are done
//! (`insert_events`, `process_events` of `CUDACachingAllocator.cpp`). Each stream has a queue in the
//! order of recording; a stream whose first event is not done is not looked at further.
//!
//! A policy that gives something back and is refused must not forget it: [`Limbo`] keeps such calls
//! and makes them again.

use std::collections::VecDeque;

use girih_trace::StreamId;

use crate::device::{Address, Device, DeviceError, Handle, StreamEvent};
use crate::policy::BlockId;

/// The queue of events of the whole device: no stream has this id.
const ALL: StreamId = StreamId(u16::MAX);

/// Blocks that wait for events, by stream in the order of the events.
#[derive(Debug, Default)]
pub(crate) struct PendingFrees {
    queues: Vec<(StreamId, VecDeque<(StreamEvent, BlockId)>)>,
    waiting: usize,
    /// Events of a call that is under way.
    scratch: Vec<StreamEvent>,
}

impl PendingFrees {
    /// True if no block waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// The blocks that wait, one entry for each event.
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockId> {
        self.queues.iter().flat_map(|(_, queue)| queue.iter().map(|(_, block)| *block))
    }

    /// Records an event on each stream, for `block`. Returns the number of events. On an error no
    /// event is left.
    pub(crate) fn record(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        block: BlockId,
        streams: &[StreamId],
    ) -> Result<u32, DeviceError> {
        self.scratch.clear();
        for &stream in streams {
            match device.record_event(stream) {
                Ok(event) => self.scratch.push(event),
                Err(error) => {
                    for event in self.scratch.drain(..) {
                        limbo.destroy_event(device, event);
                    }
                    return Err(error);
                }
            }
        }
        let events = std::mem::take(&mut self.scratch);
        for (&stream, &event) in streams.iter().zip(&events) {
            self.push(stream, event, block);
        }
        self.scratch = events;
        Ok(streams.len() as u32)
    }

    /// Records an event of the whole device for `block`, and of the devices of all that used it. False
    /// while a graph is captured.
    pub(crate) fn record_fence(
        &mut self,
        device: &mut dyn Device,
        block: BlockId,
        users: &[StreamId],
    ) -> Result<bool, DeviceError> {
        let event = match device.record_fence(users) {
            Err(DeviceError::Capturing { .. }) => return Ok(false),
            event => event?,
        };
        self.push(ALL, event, block);
        Ok(true)
    }

    fn push(&mut self, stream: StreamId, event: StreamEvent, block: BlockId) {
        let place = self.queues.binary_search_by_key(&stream, |queue| queue.0);
        let place = place.unwrap_or_else(|place| {
            self.queues.insert(place, (stream, VecDeque::new()));
            place
        });
        self.queues[place].1.push_back((event, block));
        self.waiting += 1;
    }

    /// Takes the next event that is done off its queue and returns its block. `cursor` begins at 0
    /// and is this function's to move.
    pub(crate) fn next_done(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        cursor: &mut usize,
    ) -> Result<Option<BlockId>, DeviceError> {
        while let Some((_, queue)) = self.queues.get(*cursor) {
            let ready = match queue.front() {
                Some((event, _)) => device.query_event(*event)?,
                None => false,
            };
            if ready {
                return Ok(self.pop(device, limbo, *cursor));
            }
            *cursor += 1;
        }
        Ok(None)
    }

    /// Waits for the next event and returns its block; nothing if none waits.
    pub(crate) fn wait_next(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
    ) -> Result<Option<BlockId>, DeviceError> {
        for place in 0..self.queues.len() {
            if let Some((event, _)) = self.queues[place].1.front() {
                device.synchronize_event(*event)?;
                return Ok(self.pop(device, limbo, place));
            }
        }
        Ok(None)
    }

    fn pop(&mut self, device: &mut dyn Device, limbo: &mut Limbo, at: usize) -> Option<BlockId> {
        let (event, block) = self.queues[at].1.pop_front()?;
        self.waiting -= 1;
        limbo.destroy_event(device, event);
        Some(block)
    }
}

/// A device call that was refused and must still be made.
#[derive(Clone, Copy, Debug)]
enum Debt {
    Unmap(Address, u64),
    Release(Handle),
    Unreserve(Address, u64),
    DestroyEvent(StreamEvent),
}

/// The device calls that are owed, in order: a handle can be released only once it is unmapped.
#[derive(Debug, Default)]
pub(crate) struct Limbo(VecDeque<Debt>);

impl Limbo {
    /// Makes the calls that are owed. Stops at the first that is refused again.
    pub(crate) fn settle(&mut self, device: &mut dyn Device) -> Result<(), DeviceError> {
        while let Some(&debt) = self.0.front() {
            Limbo::call(device, debt)?;
            self.0.pop_front();
        }
        Ok(())
    }

    /// Unmaps, now or later.
    pub(crate) fn unmap(&mut self, device: &mut dyn Device, address: Address, size: u64) {
        self.make(device, Debt::Unmap(address, size));
    }

    /// Releases, now or later.
    pub(crate) fn release(&mut self, device: &mut dyn Device, handle: Handle) {
        self.make(device, Debt::Release(handle));
    }

    /// Gives a reservation back, now or later.
    pub(crate) fn unreserve(&mut self, device: &mut dyn Device, address: Address, size: u64) {
        self.make(device, Debt::Unreserve(address, size));
    }

    /// Destroys an event, now or later.
    pub(crate) fn destroy_event(&mut self, device: &mut dyn Device, event: StreamEvent) {
        self.make(device, Debt::DestroyEvent(event));
    }

    /// Makes a call unless an earlier one is owed or it is refused; then it is owed.
    fn make(&mut self, device: &mut dyn Device, debt: Debt) {
        let free_of_order = matches!(debt, Debt::DestroyEvent(_));
        if (!free_of_order && !self.0.is_empty()) || Limbo::call(device, debt).is_err() {
            self.0.push_back(debt);
        }
    }

    fn call(device: &mut dyn Device, debt: Debt) -> Result<(), DeviceError> {
        match debt {
            Debt::Unmap(address, size) => device.unmap(address, size),
            Debt::Release(handle) => device.release(handle),
            Debt::Unreserve(address, size) => device.unreserve(address, size),
            Debt::DestroyEvent(event) => device.destroy_event(event),
        }
    }
}
