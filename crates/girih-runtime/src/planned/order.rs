//! Order across streams: what was freed on one stream and is given to another waits for it.
//!
//! On one stream, order is free. Where the plan lets a stream use bytes that another one has used,
//! the later one must wait, on the device. The events for that are recorded when the earlier block
//! is freed, on every stream that the program has used: a program tells the allocator which stream
//! a block belongs to, and orders other uses of it against that stream in its own time, so only
//! what all streams had to do at that moment is sure to include the last use.
//!
//! ```text
//!  stream 1    [ a ............ ) free: events e0 e1 e2
//!  stream 2                                wait e0, e1   [ b over the bytes of a ...
//! ```
//!
//! The plan says which blocks come before one of another stream, so that all others cost nothing.
//! Where a block was given off the plan, the events are recorded when they are needed: later than
//! they could be, and right all the same.

use std::collections::BTreeMap;

use girih_plan::{Place, Plan, Role, granted};
use girih_trace::StreamId;

use crate::device::{Device, DeviceError, StreamEvent};
use crate::pending::Limbo;

/// What was freed and by whom, for each byte of the arena that was used before.
#[derive(Default)]
pub(super) struct Order {
    /// Offset to what was freed there. Ranges are disjoint.
    freed: BTreeMap<u64, Freed>,
    fences: Vec<Fence>,
    idle_fences: Vec<u32>,
    /// Streams that blocks were allocated for.
    streams: Vec<StreamId>,
    /// Other streams that were recorded on blocks. They get no bytes, but fences include them.
    users: Vec<StreamId>,
    /// Frees so far.
    clock: u64,
    /// For each stream, the frees that it has waited for: all up to this one.
    waited: Vec<(StreamId, u64)>,
    /// Waits put on the device.
    pub(super) waits: u64,
}

#[derive(Clone, Copy)]
struct Freed {
    end: u64,
    stream: StreamId,
    at: u64,
    fence: u32,
}

/// No fence: the events are still to be recorded.
const UNFENCED: u32 = u32::MAX;

/// Events of all streams at one moment. Shared by the pieces of a range that was freed then.
struct Fence {
    events: Vec<(StreamId, StreamEvent)>,
    users: u32,
}

impl Order {
    /// Notes that `stream` uses blocks of others.
    pub(super) fn see_user(&mut self, stream: StreamId) {
        if !self.users.contains(&stream) {
            self.users.push(stream);
        }
    }

    /// Notes that blocks are allocated for `stream`. With the second stream, the whole arena of `bytes`
    /// counts as used by the first: until then nobody has kept a record.
    pub(super) fn see(&mut self, stream: StreamId, bytes: u64) {
        if self.streams.contains(&stream) {
            return;
        }
        if let [first] = self.streams[..] {
            self.clock += 1;
            let freed = Freed { end: bytes, stream: first, at: self.clock, fence: UNFENCED };
            self.freed.insert(0, freed);
        }
        self.streams.push(stream);
    }

    /// True if the program has used one stream at most: then all order is free.
    pub(super) fn is_trivial(&self) -> bool {
        self.streams.len() <= 1
    }

    /// A block of `stream` at `[offset, end)` is freed. With `fence`, the events are recorded now;
    /// if the device refuses, they are recorded when they are needed.
    pub(super) fn free(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        (offset, end): (u64, u64),
        stream: StreamId,
        fence: bool,
    ) {
        if self.is_trivial() {
            return;
        }
        let recorded = fence.then(|| self.record(device, limbo).ok()).flatten();
        let fence = recorded.unwrap_or(UNFENCED);
        self.forget(device, limbo, (offset, end));
        self.clock += 1;
        self.freed.insert(offset, Freed { end, stream, at: self.clock, fence });
    }

    /// `stream` is about to use `[offset, end)`: makes it wait for whoever used these bytes on
    /// another stream. Forgets them, since from now on they are `stream`'s.
    pub(super) fn take(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        (offset, end): (u64, u64),
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        if self.is_trivial() {
            return Ok(());
        }
        // First wait for all, then forget: an error leaves every range in place.
        let mut next = self.first_over(offset);
        while let Some((&start, &freed)) = self.freed.range(next..end).next() {
            next = start + 1;
            if freed.stream != stream && freed.at > self.waited_by(stream) {
                self.wait(device, limbo, start, freed, stream)?;
            }
        }
        self.forget(device, limbo, (offset, end));
        Ok(())
    }

    /// Takes `[offset, end)` out of what was freed.
    fn forget(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        (offset, end): (u64, u64),
    ) {
        let mut at = self.first_over(offset);
        while let Some((&start, &freed)) = self.freed.range(at..end).next() {
            at = start + 1;
            self.freed.remove(&start);
            let left = start < offset;
            let right = freed.end > end;
            if left {
                self.freed.insert(start, Freed { end: offset, ..freed });
            }
            if right {
                self.freed.insert(end, freed);
            }
            let pieces = u32::from(left) + u32::from(right);
            self.keep(device, limbo, freed.fence, pieces);
        }
    }

    /// Where the range that holds the byte at `offset` begins; `offset` if none does.
    fn first_over(&self, offset: u64) -> u64 {
        let first = self.freed.range(..=offset).next_back().filter(|(_, f)| f.end > offset);
        first.map_or(offset, |(&start, _)| start)
    }

    /// Forgets everything: the host has waited for all streams.
    pub(super) fn clear(&mut self, device: &mut dyn Device, limbo: &mut Limbo) {
        self.freed.clear();
        for (_, event) in self.fences.drain(..).flat_map(|fence| fence.events) {
            limbo.destroy_event(device, event);
        }
        self.idle_fences.clear();
    }

    /// All streams of the program, as far as they are known.
    pub(super) fn streams(&self) -> impl Iterator<Item = StreamId> {
        let others = self.users.iter().filter(|user| !self.streams.contains(user));
        self.streams.iter().chain(others).copied()
    }

    fn waited_by(&self, stream: StreamId) -> u64 {
        self.waited.iter().find(|(other, _)| *other == stream).map_or(0, |&(_, at)| at)
    }

    fn wait(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        start: u64,
        freed: Freed,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        let fence = match freed.fence {
            UNFENCED => self.record(device, limbo)?,
            fence => fence,
        };
        if freed.fence == UNFENCED {
            self.freed.insert(start, Freed { fence, ..freed });
        }
        let others = |&&(other, _): &&(StreamId, StreamEvent)| other != stream;
        for &(_, event) in self.fences[fence as usize].events.iter().filter(others) {
            device.wait_event(stream, event)?;
            self.waits += 1;
        }
        // A fence that was just recorded covers every free so far.
        let at = if freed.fence == UNFENCED { self.clock } else { freed.at };
        match self.waited.iter_mut().find(|(other, _)| *other == stream) {
            Some((_, waited)) => *waited = (*waited).max(at),
            None => self.waited.push((stream, at)),
        }
        Ok(())
    }

    fn record(&mut self, device: &mut dyn Device, limbo: &mut Limbo) -> Result<u32, DeviceError> {
        let mut events = Vec::with_capacity(self.streams.len() + self.users.len());
        for stream in self.streams() {
            match device.record_event(stream) {
                Ok(event) => events.push((stream, event)),
                Err(error) => {
                    for (_, event) in events {
                        limbo.destroy_event(device, event);
                    }
                    return Err(error);
                }
            }
        }
        let fence = Fence { events, users: 1 };
        Ok(match self.idle_fences.pop() {
            Some(index) => {
                self.fences[index as usize] = fence;
                index
            }
            None => {
                self.fences.push(fence);
                self.fences.len() as u32 - 1
            }
        })
    }

    /// One user of the fence has become `pieces` users.
    fn keep(&mut self, device: &mut dyn Device, limbo: &mut Limbo, fence: u32, pieces: u32) {
        if fence == UNFENCED {
            return;
        }
        let entry = &mut self.fences[fence as usize];
        entry.users = entry.users - 1 + pieces;
        if entry.users == 0 {
            self.idle_fences.push(fence);
            for (_, event) in std::mem::take(&mut entry.events) {
                limbo.destroy_event(device, event);
            }
        }
    }
}

/// For each entry of the plan, over all sequences in order: whether the bytes of its block are
/// next used by another stream, so that events are recorded when it is freed.
pub(super) fn fenced_entries(plan: &Plan) -> Vec<bool> {
    let count = plan.sequences.iter().map(|sequence| sequence.entries.len()).sum();
    let mut fenced = vec![false; count];
    let entries = plan.sequences.iter().flat_map(|sequence| &sequence.entries);
    let mut streams = entries.filter(|e| matches!(e.place, Place::Arena(_))).map(|e| e.stream);
    let first = streams.next();
    if streams.all(|stream| Some(stream) == first) {
        return fenced;
    }
    let mut start = 0;
    for sequence in &plan.sequences {
        // On a ring the last users come before the first ones: twice round finds them.
        let rounds = if sequence.role == Role::Steady { 2 } else { 1 };
        let mut users: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
        for _ in 0..rounds {
            for (index, entry) in sequence.entries.iter().enumerate() {
                let Place::Arena(offset) = entry.place else { continue };
                let end = offset + granted(entry.size_max);
                for last in replace(&mut users, offset, end, index) {
                    fenced[start + last] |= sequence.entries[last].stream != entry.stream;
                }
            }
        }
        start += sequence.entries.len();
    }
    fenced
}

/// Makes `user` the last user of `[offset, end)`, and returns those who were.
fn replace(
    users: &mut BTreeMap<u64, (u64, usize)>,
    offset: u64,
    end: u64,
    user: usize,
) -> Vec<usize> {
    let first = users.range(..=offset).next_back().filter(|(_, other)| other.0 > offset);
    let mut at = first.map_or(offset, |(&start, _)| start);
    let mut gone = Vec::new();
    while let Some((&start, &(to, last))) = users.range(at..end).next() {
        at = start + 1;
        users.remove(&start);
        if start < offset {
            users.insert(start, (offset, last));
        }
        if to > end {
            users.insert(end, (to, last));
        }
        gone.push(last);
    }
    users.insert(offset, (end, user));
    gone
}
