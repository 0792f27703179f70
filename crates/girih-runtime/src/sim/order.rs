//! Streams, events, and the proof that nothing is used too early.
//!
//! Work of one stream is done in order; nothing orders two streams but events and the host. The
//! checker keeps a vector clock for each stream and one for the host: how far it is known that
//! every other stream's work is done before what comes next. An event carries the clock of its
//! stream; a wait joins it in. Bytes that were let go remember the last use on every stream, and may
//! be used again only by a stream whose clock, or the host's, has passed those uses.
//!
//! ```text
//!  stream 1:  use x ── record e
//!                            ╲
//!  stream 2:            wait e ── use x again: ordered, since clock(2)[1] >= time of the last use
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use girih_trace::StreamId;
use rustc_hash::FxHashMap;

use super::graph::Graph;
use crate::device::{Address, CapturedEnds, DeviceError, StreamEvent};

/// For each stream the time up to which its work is known to be done. Sparse and sorted.
#[derive(Clone, Debug, Default)]
struct Clock(Vec<(StreamId, u64)>);

impl Clock {
    fn get(&self, stream: StreamId) -> u64 {
        self.0.binary_search_by_key(&stream, |entry| entry.0).map_or(0, |at| self.0[at].1)
    }

    fn raise(&mut self, stream: StreamId, time: u64) {
        match self.0.binary_search_by_key(&stream, |entry| entry.0) {
            Ok(at) => self.0[at].1 = self.0[at].1.max(time),
            Err(at) => self.0.insert(at, (stream, time)),
        }
    }

    fn join(&mut self, other: &Clock) {
        for &(stream, time) in &other.0 {
            self.raise(stream, time);
        }
    }
}

#[derive(Debug, Default)]
struct Stream {
    /// Time of the last work submitted.
    now: u64,
    /// Work up to here is done; all of it while the stream is not held.
    done: u64,
    held: bool,
    /// A graph is being captured from it.
    is_capturing: bool,
    /// The program has destroyed it. Its work goes on; to name it is an error.
    is_gone: bool,
    /// It belongs to another device.
    is_foreign: bool,
    /// What later work of this stream comes after.
    known: Clock,
}

#[derive(Debug)]
struct Event {
    /// The work that it comes after: of each stream up to a time.
    after: Vec<(StreamId, u64)>,
    clock: Clock,
}

/// A use of bytes: by work of a stream up to a time.
type Use = (StreamId, u64);

#[derive(Clone, Debug)]
enum State {
    /// In use by a block.
    Live,
    /// Let go of, after these last uses.
    Released(Arc<[Use]>),
}

/// Disjoint ranges with a state each.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, (u64, State)>);

impl Ranges {
    /// Makes `at` a boundary.
    fn cut(&mut self, at: u64) {
        if let Some((_, (end, state))) = self.0.range_mut(..at).next_back()
            && *end > at
        {
            let tail = (*end, state.clone());
            *end = at;
            self.0.insert(at, tail);
        }
    }

    /// The first of the states that touch `start..end` that `is_wrong` says something of, from the lowest on, with where
    /// it begins.
    fn check<E>(
        &self,
        start: u64,
        end: u64,
        mut is_wrong: impl FnMut(u64, &State) -> Result<(), E>,
    ) -> Result<(), E> {
        // Nearly always it is one range, the same that was set before.
        if let Some((stop, state)) = self.0.get(&start)
            && *stop >= end
        {
            return is_wrong(start, state);
        }
        let before = self.0.range(..start).next_back().filter(|(_, (stop, _))| *stop > start);
        let touching = before.into_iter().chain(self.0.range(start..end));
        { touching }.try_for_each(|(at, (_, state))| is_wrong(*at, state))
    }

    fn remove(&mut self, start: u64, end: u64) {
        self.cut(start);
        self.cut(end);
        while let Some((&at, _)) = self.0.range(start..end).next() {
            self.0.remove(&at);
        }
    }

    fn set(&mut self, start: u64, end: u64, state: State) {
        if let Some((stop, of)) = self.0.get_mut(&start)
            && *stop == end
        {
            *of = state;
            return;
        }
        self.remove(start, end);
        self.0.insert(start, (end, state));
    }
}

/// Streams, events, and who uses what.
#[derive(Debug, Default)]
pub(super) struct Order {
    pub(super) check: bool,
    streams: FxHashMap<StreamId, Stream>,
    events: FxHashMap<StreamEvent, Event>,
    next_event: u64,
    host: Clock,
    /// The graphs that are being captured.
    pub(super) graph: Graph,
    /// By device address: what must not be unmapped.
    virtual_uses: Ranges,
    /// By physical address: what must not be used twice.
    physical_uses: Ranges,
}

impl Order {
    pub(super) fn event_count(&self) -> usize {
        self.events.len()
    }

    pub(super) fn hold(&mut self, stream: StreamId) {
        let stream = self.streams.entry(stream).or_default();
        if !stream.held {
            stream.held = true;
            stream.done = stream.now;
        }
    }

    pub(super) fn resume(&mut self, stream: StreamId) {
        self.streams.entry(stream).or_default().held = false;
    }

    pub(super) fn complete(&mut self, event: StreamEvent) {
        for &(stream, time) in self.events.get(&event).map_or(&[][..], |event| &event.after) {
            let stream = self.streams.entry(stream).or_default();
            stream.done = stream.done.max(time);
        }
    }

    pub(super) fn set_capturing(&mut self, stream: StreamId, is_capturing: bool) {
        let streams = if is_capturing { vec![stream] } else { self.graph.end(stream) };
        if is_capturing {
            self.graph.begin(stream);
        }
        for stream in streams.into_iter().chain([stream]) {
            self.streams.entry(stream).or_default().is_capturing = is_capturing;
        }
    }

    pub(super) fn captured_ends(
        &self,
        stream: StreamId,
    ) -> Result<Option<CapturedEnds>, DeviceError> {
        self.exists("captured_ends", stream)?;
        Ok(self.graph.ends(stream))
    }

    pub(super) fn set_foreign(&mut self, stream: StreamId) {
        self.streams.entry(stream).or_default().is_foreign = true;
    }

    pub(super) fn destroy_stream(&mut self, stream: StreamId) {
        self.streams.entry(stream).or_default().is_gone = true;
    }

    pub(super) fn order(&mut self, before: StreamId, after: StreamId) {
        self.streams.entry(before).or_default();
        let event = self.record_after(|stream, _| stream == before);
        if let Some(Event { clock, .. }) = self.events.remove(&event) {
            self.streams.entry(after).or_default().known.join(&clock);
        }
        if self.graph.join(before, after) {
            self.streams.entry(after).or_default().is_capturing = true;
        }
    }

    pub(super) fn is_capturing(&self, stream: StreamId) -> Result<bool, DeviceError> {
        self.exists("is_capturing", stream)?;
        Ok(self.streams.get(&stream).is_some_and(|stream| stream.is_capturing))
    }

    /// An error for a stream that the program has destroyed: the driver crashes where it is named.
    fn exists(&self, call: &'static str, stream: StreamId) -> Result<(), DeviceError> {
        if self.streams.get(&stream).is_some_and(|stream| stream.is_gone) {
            let reason = format!("stream {} is gone", stream.0);
            return Err(DeviceError::Misuse { call, reason });
        }
        Ok(())
    }

    /// An error for a stream that is gone or from which a graph is captured: the call would become a part
    /// of the graph.
    fn is_outside(&self, call: &'static str, stream: StreamId) -> Result<(), DeviceError> {
        self.exists(call, stream)?;
        if self.streams.get(&stream).is_some_and(|stream| stream.is_capturing) {
            let reason = format!("a graph is captured from stream {}", stream.0);
            return Err(DeviceError::Misuse { call, reason });
        }
        Ok(())
    }

    pub(super) fn record(&mut self, id: StreamId) -> Result<StreamEvent, DeviceError> {
        self.is_outside("record_event", id)?;
        self.streams.entry(id).or_default();
        Ok(self.record_after(|stream, _| stream == id))
    }

    pub(super) fn record_fence(&mut self, users: &[StreamId]) -> Result<StreamEvent, DeviceError> {
        let is_foreign = |id: &StreamId| self.streams.get(id).is_some_and(|user| user.is_foreign);
        let covers_foreign = users.iter().any(is_foreign);
        let mut covered = self.streams.values().filter(|one| covers_foreign || !one.is_foreign);
        if covered.any(|stream| stream.is_capturing) {
            return Err(DeviceError::Capturing { call: "record_fence" });
        }
        Ok(self.record_after(|_, stream| covers_foreign || !stream.is_foreign))
    }

    /// An event after the present work of these streams.
    fn record_after(&mut self, of: impl Fn(StreamId, &Stream) -> bool) -> StreamEvent {
        let (mut after, mut clock) = (Vec::new(), Clock::default());
        if self.check {
            clock.join(&self.host);
        }
        for (&id, stream) in self.streams.iter_mut().filter(|(id, stream)| of(**id, stream)) {
            stream.now += 1;
            after.push((id, stream.now));
            if self.check {
                clock.join(&stream.known);
                clock.raise(id, stream.now);
            }
        }
        self.next_event += 1;
        let event = StreamEvent(self.next_event);
        self.events.insert(event, Event { after, clock });
        event
    }

    pub(super) fn query(&mut self, event: StreamEvent) -> Result<bool, DeviceError> {
        let found = self.find("query_event", event)?;
        let is_done = |&(stream, time): &(StreamId, u64)| {
            let stream = &self.streams[&stream];
            !stream.held || stream.done >= time
        };
        let done = found.after.iter().all(is_done);
        if done && self.check {
            self.host.join(&self.events[&event].clock);
        }
        Ok(done)
    }

    pub(super) fn wait(&mut self, stream: StreamId, event: StreamEvent) -> Result<(), DeviceError> {
        self.is_outside("wait_event", stream)?;
        let clock = self.find("wait_event", event)?.clock.clone();
        self.streams.entry(stream).or_default().known.join(&clock);
        Ok(())
    }

    pub(super) fn synchronize(&mut self, event: StreamEvent) -> Result<(), DeviceError> {
        self.find("synchronize_event", event)?;
        self.complete(event);
        self.host.join(&self.events[&event].clock);
        Ok(())
    }

    pub(super) fn destroy(&mut self, event: StreamEvent) -> Result<(), DeviceError> {
        self.find("destroy_event", event)?;
        self.events.remove(&event);
        Ok(())
    }

    pub(super) fn synchronize_stream(&mut self, id: StreamId) -> Result<(), DeviceError> {
        self.is_outside("synchronize_stream", id)?;
        let stream = self.streams.entry(id).or_default();
        stream.done = stream.now;
        self.host.join(&stream.known);
        self.host.raise(id, stream.now);
        Ok(())
    }

    /// The host waits for all work of the device.
    pub(super) fn finish_all(&mut self) {
        for (id, stream) in &mut self.streams {
            stream.done = stream.now;
            self.host.raise(*id, stream.now);
        }
    }

    pub(super) fn acquire(
        &mut self,
        address: Address,
        size: u64,
        pieces: &[(u64, u64)],
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        if !self.check {
            return Ok(());
        }
        let follows =
            |at, state: &State| self.may_follow("acquire", address, at, state, Some(stream));
        for &(start, bytes) in pieces {
            self.physical_uses.check(start, start + bytes, follows)?;
        }
        self.set(address, size, pieces, &State::Live);
        Ok(())
    }

    pub(super) fn release(
        &mut self,
        address: Address,
        size: u64,
        pieces: &[(u64, u64)],
        streams: &[StreamId],
    ) -> Result<(), DeviceError> {
        if !self.check {
            return Ok(());
        }
        let end = address + size;
        let live = self.virtual_uses.0.get(&address);
        if !matches!(live, Some((stop, State::Live)) if *stop == end) {
            let reason = format!("{address:#x}..{end:#x} is no block in use");
            return Err(DeviceError::Misuse { call: "release", reason });
        }
        let mut uses = Vec::with_capacity(streams.len());
        for &id in streams {
            let stream = self.streams.entry(id).or_default();
            stream.now += 1;
            uses.push((id, stream.now));
            self.graph.add(id);
        }
        self.set(address, size, pieces, &State::Released(uses.into()));
        Ok(())
    }

    /// Checks that no block and no work uses `size` bytes at `address`, and forgets their past:
    /// they are unmapped or freed. `pieces` is their physical memory, if that goes too.
    pub(super) fn forget(
        &mut self,
        call: &'static str,
        address: Address,
        size: u64,
        pieces: &[(u64, u64)],
    ) -> Result<(), DeviceError> {
        if !self.check {
            return Ok(());
        }
        let follows = |at, state: &State| self.may_follow(call, address, at, state, None);
        self.virtual_uses.check(address, address + size, follows)?;
        self.virtual_uses.remove(address, address + size);
        for &(start, bytes) in pieces {
            self.forget_physical(start, bytes);
        }
        Ok(())
    }

    pub(super) fn forget_physical(&mut self, start: u64, size: u64) {
        if self.check {
            self.physical_uses.remove(start, start + size);
        }
    }

    fn set(&mut self, address: Address, size: u64, pieces: &[(u64, u64)], state: &State) {
        self.virtual_uses.set(address, address + size, state.clone());
        for &(start, bytes) in pieces {
            self.physical_uses.set(start, start + bytes, state.clone());
        }
    }

    /// Errors unless what comes next, on `stream` or by the host, comes after all uses of `state`.
    fn may_follow(
        &self,
        call: &'static str,
        address: Address,
        at: u64,
        state: &State,
        stream: Option<StreamId>,
    ) -> Result<(), DeviceError> {
        let State::Released(uses) = state else {
            let reason = format!("{address:#x} overlaps the block in use at {at:#x}");
            return Err(DeviceError::Misuse { call, reason });
        };
        for &(user, time) in uses.iter() {
            let known =
                stream.and_then(|id| self.streams.get(&id)).map_or(0, |s| s.known.get(user));
            if stream != Some(user) && known.max(self.host.get(user)) < time {
                let reason = format!(
                    "{address:#x} was last used by stream {} (at {at:#x}), and nothing waits for it",
                    user.0
                );
                return Err(DeviceError::Misuse { call, reason });
            }
        }
        Ok(())
    }

    fn find(&self, call: &'static str, event: StreamEvent) -> Result<&Event, DeviceError> {
        let reason = || format!("{event:?} does not exist, or was destroyed");
        self.events.get(&event).ok_or_else(|| DeviceError::Misuse { call, reason: reason() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of each of so many bytes, by what it was set with.
    const BYTES: usize = 24;

    fn with(mark: u64) -> State {
        State::Released([(StreamId(0), mark)].into())
    }

    fn mark_of(state: &State) -> u64 {
        let State::Released(uses) = state else { return 0 };
        uses[0].1
    }

    #[test]
    fn ranges_know_of_each_byte_what_it_was_set_with_last() {
        arbtest::arbtest(|u| {
            let (mut ranges, mut bytes) = (Ranges::default(), [0; BYTES]);
            for mark in 1..=u.int_in_range(1..=40)? {
                let start = u.int_in_range(0..=BYTES - 1)?;
                let end = u.int_in_range(start + 1..=BYTES)?;
                let (from, to) = (start as u64, end as u64);
                if u.ratio(1, 4)? {
                    ranges.remove(from, to);
                    bytes[start..end].fill(0);
                } else {
                    ranges.set(from, to, with(mark));
                    bytes[start..end].fill(mark);
                }
                // Those between any two bytes, from the lowest on, each once for each range.
                let start = u.int_in_range(0..=BYTES - 1)?;
                let end = u.int_in_range(start + 1..=BYTES)?;
                let mut seen = Vec::new();
                let note = |_, state: &State| {
                    seen.push(mark_of(state));
                    Ok::<(), ()>(())
                };
                ranges.check(start as u64, end as u64, note).expect("nothing is wrong");
                seen.dedup();
                let mut expected: Vec<u64> = bytes[start..end].to_vec();
                expected.retain(|mark| *mark > 0);
                expected.dedup();
                assert_eq!(seen, expected, "{start}..{end} of {bytes:?}");
            }
            Ok(())
        });
    }
}
