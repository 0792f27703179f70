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

use girih_plan::{Plan, Role};
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
    /// For each cell the free that came last, as an index; [`NONE`] if there was none. A cell that
    /// is taken keeps it until it is freed again. Empty until there is a second stream.
    last: Vec<u32>,
    frees: Vec<Freed>,
    /// Places of `frees` that are vacant.
    vacant: Vec<u32>,
    /// Streams that blocks were allocated for.
    streams: Vec<StreamId>,
    /// Other streams that were recorded on blocks. They get no bytes, but are waited for too.
    users: Vec<StreamId>,
    /// Frees so far.
    clock: u64,
    /// For each stream, the frees that it has waited for: all up to this one.
    waited: Vec<(StreamId, u64)>,
    /// Waits put on the device.
    pub(super) waits: u64,
}

/// A free that later uses of its cells come after.
struct Freed {
    stream: StreamId,
    /// Which free it was, counted from 1.
    at: u64,
    /// Cells of which it is the last free. The free is forgotten with the last of them.
    cells: u32,
    /// The events of all streams, then or later; empty if they are still to be recorded.
    fence: Vec<(StreamId, StreamEvent)>,
}

/// No free.
const NONE: u32 = u32::MAX;

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
            let fence = Vec::new();
            self.frees.push(Freed { stream: first, at: self.clock, cells: cells as u32, fence });
            self.last = vec![0; cells];
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
        self.clock += 1;
        let free = self.vacant.pop().unwrap_or_else(|| {
            self.frees.push(Freed { stream, at: 0, cells: 0, fence: Vec::new() });
            self.frees.len() as u32 - 1
        });
        let freed = &mut self.frees[free as usize];
        (freed.stream, freed.at, freed.cells) = (stream, self.clock, span.end - span.first);
        if fence {
            // A refusal leaves the fence empty.
            let _ = self.record(device, limbo, free);
        }
        self.set(device, limbo, span, free);
    }

    /// `stream` is about to use the cells of `span`: makes it wait for whoever used them on another
    /// stream.
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
        let mut waited = self.waited_by(stream);
        let mut seen = NONE;
        for cell in span.range() {
            let free = self.last[cell];
            if free == seen || free == NONE {
                continue;
            }
            seen = free;
            let freed = &self.frees[free as usize];
            if freed.at > waited && freed.stream != stream {
                self.wait(device, limbo, free, stream)?;
                waited = self.waited_by(stream);
            }
        }
        Ok(())
    }

    /// True if [`Order::take`] would have to wait.
    pub(super) fn must_wait(&self, span: Span, stream: StreamId) -> bool {
        let waited = self.waited_by(stream);
        self.last.get(span.range()).unwrap_or_default().iter().any(|&free| {
            let freed = self.frees.get(free as usize);
            freed.is_some_and(|freed| freed.at > waited && freed.stream != stream)
        })
    }

    /// Begins anew for an arena of so many `cells`, of which none was used: the host has waited for
    /// all streams. The streams stay known.
    pub(super) fn restart(&mut self, device: &mut dyn Device, limbo: &mut Limbo, cells: usize) {
        self.clear(device, limbo);
        self.last.clear();
        if !self.is_trivial() {
            self.last.resize(cells, NONE);
        }
    }

    /// Makes `free` the last free of the cells. What was the last one of none is forgotten.
    fn set(&mut self, device: &mut dyn Device, limbo: &mut Limbo, span: Span, free: u32) {
        for run in self.last[span.range()].chunk_by_mut(|a, b| a == b) {
            let before = run[0];
            run.fill(free);
            let Some(freed) = self.frees.get_mut(before as usize) else { continue };
            freed.cells -= run.len() as u32;
            if freed.cells == 0 {
                self.vacant.push(before);
                freed.fence.drain(..).for_each(|(_, event)| limbo.destroy_event(device, event));
            }
        }
    }

    /// Forgets everything: the host has waited for all streams.
    pub(super) fn clear(&mut self, device: &mut dyn Device, limbo: &mut Limbo) {
        self.last.fill(NONE);
        self.vacant.clear();
        for (_, event) in self.frees.drain(..).flat_map(|freed| freed.fence) {
            limbo.destroy_event(device, event);
        }
    }

    /// All streams of the program, as far as they are known.
    pub(super) fn streams(&self) -> impl Iterator<Item = StreamId> {
        let others = self.users.iter().filter(|user| !self.streams.contains(user));
        self.streams.iter().chain(others).copied()
    }

    fn waited_by(&self, stream: StreamId) -> u64 {
        self.waited.iter().find(|(other, _)| *other == stream).map_or(0, |&(_, at)| at)
    }

    /// Makes `stream` wait for a free of another stream.
    fn wait(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        free: u32,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        let mut at = self.frees[free as usize].at;
        if self.frees[free as usize].fence.is_empty() {
            self.record(device, limbo, free)?;
            at = self.clock; // Events of this moment cover every free so far.
        }
        let fence = &self.frees[free as usize].fence;
        for &(_, event) in fence.iter().filter(|(other, _)| *other != stream) {
            device.wait_event(stream, event)?;
            self.waits += 1;
        }
        match self.waited.iter_mut().find(|(other, _)| *other == stream) {
            Some((_, waited)) => *waited = (*waited).max(at),
            None => self.waited.push((stream, at)),
        }
        Ok(())
    }

    /// Records an event on every stream, as the fence of a free. On an error none is left.
    fn record(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        free: u32,
    ) -> Result<(), DeviceError> {
        // Taken out and put back, so that the list keeps its memory.
        let mut fence = std::mem::take(&mut self.frees[free as usize].fence);
        let result = self.streams().try_for_each(|stream| {
            fence.push((stream, device.record_event(stream)?));
            Ok(())
        });
        if result.is_err() {
            fence.drain(..).for_each(|(_, event)| limbo.destroy_event(device, event));
        }
        self.frees[free as usize].fence = fence;
        result
    }
}

/// For each entry of the plan, over all sequences in order: whether one of its cells is next used
/// by another stream, so that events are recorded when its block is freed. `spans` are the cells of
/// the entries in the arena, of which there are `cells`.
pub(super) fn fenced_entries(plan: &Plan, cells: usize, spans: &[Option<Span>]) -> Vec<bool> {
    let mut fenced = vec![false; spans.len()];
    let entries = plan.sequences.iter().flat_map(|sequence| &sequence.entries);
    let mut streams = entries.zip(spans).filter(|(_, span)| span.is_some()).map(|(e, _)| e.stream);
    let first = streams.next();
    if streams.all(|stream| Some(stream) == first) {
        return fenced;
    }
    let mut start = 0;
    for sequence in &plan.sequences {
        // On a ring the last users come before the first ones: twice round finds them.
        let rounds = if sequence.role == Role::Steady { 2 } else { 1 };
        let spans = &spans[start..start + sequence.entries.len()];
        let mut users = vec![NONE; cells];
        for _ in 0..rounds {
            for (index, (entry, span)) in sequence.entries.iter().zip(spans).enumerate() {
                let Some(span) = span else { continue };
                for run in users[span.range()].chunk_by_mut(|a, b| a == b) {
                    if let Some(last) = sequence.entries.get(run[0] as usize) {
                        fenced[start + run[0] as usize] |= last.stream != entry.stream;
                    }
                    run.fill(index as u32);
                }
            }
        }
        start += sequence.entries.len();
    }
    fenced
}
