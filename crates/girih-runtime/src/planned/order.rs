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

use super::cells::Span;
use crate::device::{Device, DeviceError, StreamEvent};
use crate::pending::Limbo;

/// What was freed last in each cell of the arena, and by whom.
///
/// A cell of which only a part is used again counts as used whole. Nothing is lost by that: who
/// used the part came after whoever had used the rest, and so does who comes after him.
#[derive(Default)]
pub(super) struct Order {
    /// What was freed in each cell. Empty until there is a second stream.
    freed: Vec<Freed>,
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
    /// Which free it was, counted from 1; 0 if nothing is known of the cell.
    at: u64,
    fence: u32,
    stream: StreamId,
}

/// A cell that is in use, or that nobody has used.
const UNUSED: Freed = Freed { at: 0, fence: UNFENCED, stream: StreamId(0) };

/// No fence: the events are still to be recorded.
const UNFENCED: u32 = u32::MAX;

/// Events of all streams at one moment. Shared by the cells that were freed then.
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

    /// Notes that blocks are allocated for `stream`. With the second stream, all `cells` of the arena
    /// count as used by the first: until then nobody has kept a record.
    #[inline]
    pub(super) fn see(&mut self, stream: StreamId, cells: usize) {
        if !self.streams.contains(&stream) {
            self.add_stream(stream, cells);
        }
    }

    #[cold]
    fn add_stream(&mut self, stream: StreamId, cells: usize) {
        if let [first] = self.streams[..] {
            self.clock += 1;
            self.freed = vec![Freed { at: self.clock, fence: UNFENCED, stream: first }; cells];
        }
        self.streams.push(stream);
    }

    /// True if the program has used one stream at most: then all order is free.
    pub(super) fn is_trivial(&self) -> bool {
        self.streams.len() <= 1
    }

    /// A block of `stream` in the cells of `span` is freed. With `fence`, the events are recorded
    /// now; if the device refuses, they are recorded when they are needed.
    #[inline]
    pub(super) fn free(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        span: Span,
        stream: StreamId,
        fence: bool,
    ) {
        if self.is_trivial() {
            return;
        }
        let fence = if fence { self.record(device, limbo, span).ok() } else { None };
        let fence = fence.unwrap_or(UNFENCED);
        self.clock += 1;
        self.set(device, limbo, span, Freed { at: self.clock, fence, stream });
    }

    /// `stream` is about to use the cells of `span`: makes it wait for whoever used them on another
    /// stream. Forgets that, since from now on they are `stream`'s.
    #[inline]
    pub(super) fn take(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        span: Span,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        if self.is_trivial() {
            return Ok(());
        }
        // First wait for all, then forget: an error leaves every cell as it was.
        let mut waited = self.waited_by(stream);
        for cell in span.range() {
            let freed = self.freed[cell];
            if freed.at > waited && freed.stream != stream {
                self.wait(device, limbo, cell, freed, stream)?;
                waited = self.waited_by(stream);
            }
        }
        self.set(device, limbo, span, UNUSED);
        Ok(())
    }

    /// Puts `freed` in the place of what was known of the cells.
    fn set(&mut self, device: &mut dyn Device, limbo: &mut Limbo, span: Span, freed: Freed) {
        for cell in span.range() {
            let fence = std::mem::replace(&mut self.freed[cell], freed).fence;
            if fence != UNFENCED {
                self.drop_fence(device, limbo, fence);
            }
        }
    }

    /// Forgets everything: the host has waited for all streams.
    pub(super) fn clear(&mut self, device: &mut dyn Device, limbo: &mut Limbo) {
        self.freed.fill(UNUSED);
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
        cell: usize,
        freed: Freed,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        let fence = match freed.fence {
            UNFENCED => {
                let span = Span { first: cell as u32, end: cell as u32 + 1 };
                self.record(device, limbo, span)?
            }
            fence => fence,
        };
        self.freed[cell].fence = fence;
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

    /// Records an event on every stream, as a fence that the cells of `span` share.
    fn record(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        span: Span,
    ) -> Result<u32, DeviceError> {
        let index = self.idle_fences.pop().unwrap_or_else(|| {
            self.fences.push(Fence { events: Vec::new(), users: 0 });
            self.fences.len() as u32 - 1
        });
        // The list keeps its memory while the fence is idle.
        let mut events = std::mem::take(&mut self.fences[index as usize].events);
        let result = self.streams().try_for_each(|stream| {
            events.push((stream, device.record_event(stream)?));
            Ok(())
        });
        if result.is_err() {
            self.idle_fences.push(index);
            events.drain(..).for_each(|(_, event)| limbo.destroy_event(device, event));
        }
        self.fences[index as usize] = Fence { events, users: span.end - span.first };
        result.map(|()| index)
    }

    /// One cell less uses the fence. After the last its events are destroyed.
    fn drop_fence(&mut self, device: &mut dyn Device, limbo: &mut Limbo, fence: u32) {
        let entry = &mut self.fences[fence as usize];
        entry.users -= 1;
        if entry.users == 0 {
            self.idle_fences.push(fence);
            entry.events.drain(..).for_each(|(_, event)| limbo.destroy_event(device, event));
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
