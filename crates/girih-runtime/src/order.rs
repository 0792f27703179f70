//! The order of streams: what was freed on one stream and is given to another waits for it.
//!
//! On one stream, order is free. Bytes that pass from one stream to another must wait, on the device,
//! for *every* stream of the program that may still use them: a program says which stream a block belongs
//! to, and orders other uses of it against that stream in its own time, be it after the free. Such a stream
//! need not be known here: it may only run kernels, or be gone by now with work that still runs.
//!
//! So nothing is asked of streams one by one. A *fence* is an event of the whole device
//! ([`Device::record_fence`]): all that every stream was given to do up to then. Frees are counted, and each
//! carries its number, its *stamp*; a fence covers all frees that came before it.
//!
//! ```text
//!  frees      1   2       3 4             5         6
//!  fences           ▲ ≤2       ▲ ≤4
//!  a stream is given bytes that another had, freed as 3: it waits for the fence that covers 4.
//!  Freed as 5: no fence covers that; one is recorded now, and covers 6.
//! ```
//!
//! Whoever has waited has waited for everything up to the fence: the next bytes cost it nothing. A wait is
//! for the earliest fence that will do, so that it is over soon; [`Order::want`] asks for one at the next
//! operation, one for all that is freed together.
//!
//! Who used which bytes last is kept where the bytes are: by cells in the window of a plan, by blocks and
//! stains in the segments. This module knows stamps alone.

use std::collections::VecDeque;

use girih_trace::StreamId;

use crate::device::{Device, DeviceError, StreamEvent};
use crate::pending::Limbo;

/// The number of a free, counted from 1. 0 is no free: bytes that nobody has used.
pub(crate) type Stamp = u64;

/// Whether the time of a wait counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counts {
    /// It is measured, and [`Device::take_stalls`] tells of it.
    Yes,
    /// It is not: it would be made whatever it takes.
    No,
}

/// Fences that are kept. Of more the oldest goes: those who would have waited for it wait for the next.
const FENCES_MAX: usize = 256;

/// An event of the whole device.
#[derive(Clone, Copy, Debug)]
struct Fence {
    /// It covers all frees up to this one.
    covers: Stamp,
    event: StreamEvent,
}

/// Who waits for whom. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// Frees so far.
    frees: Stamp,
    /// In the order of recording.
    fences: VecDeque<Fence>,
    /// For each stream the frees that it has waited for: all up to this one. Sorted.
    waited: Vec<(StreamId, Stamp)>,
    /// The host has waited for all frees up to this one.
    done: Stamp,
    /// A fence is wanted that covers this free; 0 if none is.
    wanted: Stamp,
    /// Waits put on the device.
    waits: u64,
}

impl Order {
    /// Counts a free. Its stamp.
    #[inline]
    pub(crate) fn free(&mut self) -> Stamp {
        self.frees += 1;
        self.frees
    }

    /// Waits put on the device so far.
    pub(crate) fn waits(&self) -> u64 {
        self.waits
    }

    /// A fence that covers all frees so far is recorded with the next [`Order::settle`]: their bytes
    /// will soon be another stream's.
    #[inline]
    pub(crate) fn want(&mut self) {
        self.wanted = self.frees;
    }

    /// Records the fence that is wanted, if one is. `stream` is the one that is current. A refusal only
    /// means that the fence will be recorded when it is needed.
    #[inline]
    pub(crate) fn settle(&mut self, device: &mut dyn Device, limbo: &mut Limbo, stream: StreamId) {
        if self.wanted > self.done {
            self.record_wanted(device, limbo, stream);
        }
    }

    #[cold]
    fn record_wanted(&mut self, device: &mut dyn Device, limbo: &mut Limbo, stream: StreamId) {
        let is_covered = self.fences.back().is_some_and(|fence| fence.covers >= self.wanted);
        let free = is_covered || !device.is_capturing(stream).unwrap_or(true);
        if free && (is_covered || self.record(device, limbo).is_ok()) {
            self.wanted = 0;
        }
    }

    /// True if `reader` would have to wait before it uses bytes that another stream had and that were
    /// freed as `freed`.
    #[inline]
    pub(crate) fn must_wait(&self, freed: Stamp, reader: StreamId) -> bool {
        freed > self.done && freed > self.waited_by(reader)
    }

    /// Makes `reader` wait, on the device, for all that any stream used bytes for that were freed up to
    /// `freed`, in a wait that counts or not ([`Device::take_stalls`]). False if that cannot be now: a graph is being
    /// captured, which may not wait for what lies outside of it.
    pub(crate) fn wait(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        freed: Stamp,
        reader: StreamId,
        counts: Counts,
    ) -> Result<bool, DeviceError> {
        if !self.must_wait(freed, reader) {
            return Ok(true);
        }
        if device.is_capturing(reader)? {
            return Ok(false);
        }
        let Some(fence) = self.fence_over(device, limbo, freed)? else { return Ok(false) };
        match counts {
            Counts::Yes => device.wait_measured(reader, fence.event)?,
            Counts::No => device.wait_event(reader, fence.event)?,
        }
        self.waits += 1;
        match self.waited.binary_search_by_key(&reader, |entry| entry.0) {
            Ok(at) => self.waited[at].1 = self.waited[at].1.max(fence.covers),
            Err(at) => self.waited.insert(at, (reader, fence.covers)),
        }
        Ok(true)
    }

    /// Waits on the host until everything is done that used bytes freed up to `freed`. False if that
    /// cannot be now: a graph is being captured.
    pub(crate) fn synchronize(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        freed: Stamp,
    ) -> Result<bool, DeviceError> {
        self.learn(device, limbo, freed, |device, event| {
            device.synchronize_event(event).map(|()| true)
        })
    }

    /// True if everything is done that used bytes freed up to `freed`. Does not wait. A fence for it is
    /// recorded if there is none; while a graph is captured the answer is no.
    pub(crate) fn is_done(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        freed: Stamp,
    ) -> Result<bool, DeviceError> {
        self.learn(device, limbo, freed, |device, event| device.query_event(event))
    }

    /// Asks whether everything is done that used bytes freed up to `freed`: `ask` is asked of the fence
    /// that covers them. If so, the host knows it from then on.
    fn learn(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        freed: Stamp,
        ask: impl FnOnce(&mut dyn Device, StreamEvent) -> Result<bool, DeviceError>,
    ) -> Result<bool, DeviceError> {
        if freed <= self.done {
            return Ok(true);
        }
        let Some(fence) = self.fence_over(device, limbo, freed)? else { return Ok(false) };
        let is_done = ask(device, fence.event)?;
        if is_done {
            self.advance(device, limbo, fence.covers);
        }
        Ok(is_done)
    }

    /// All frees so far.
    pub(crate) fn latest(&self) -> Stamp {
        self.frees
    }

    /// The host knows that everything is done that used bytes freed up to this one.
    pub(crate) fn done(&self) -> Stamp {
        self.done
    }

    /// Lets go of the events: they are recorded anew when they are needed. So a policy that gives
    /// everything back has nothing of the device.
    pub(crate) fn forget_fences(&mut self, device: &mut dyn Device, limbo: &mut Limbo) {
        for fence in self.fences.drain(..) {
            limbo.destroy_event(device, fence.event);
        }
    }

    /// The earliest fence that covers a free, recorded now if there is none. None while a graph is
    /// captured, if it would have to be recorded.
    fn fence_over(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        freed: Stamp,
    ) -> Result<Option<Fence>, DeviceError> {
        let earliest = self.fences.partition_point(|fence| fence.covers < freed);
        if let Some(&fence) = self.fences.get(earliest) {
            return Ok(Some(fence));
        }
        match self.record(device, limbo) {
            Err(DeviceError::Capturing { .. }) => Ok(None),
            recorded => recorded.map(Some),
        }
    }

    /// All that was freed up to `done` is over: its fences serve nobody any more.
    fn advance(&mut self, device: &mut dyn Device, limbo: &mut Limbo, done: Stamp) {
        self.done = self.done.max(done);
        while self.fences.front().is_some_and(|first| first.covers <= self.done) {
            let Some(first) = self.fences.pop_front() else { break };
            limbo.destroy_event(device, first.event);
        }
    }

    fn waited_by(&self, stream: StreamId) -> Stamp {
        let place = self.waited.binary_search_by_key(&stream, |entry| entry.0);
        place.map_or(0, |at| self.waited[at].1)
    }

    /// Records a fence that covers all frees so far.
    fn record(&mut self, device: &mut dyn Device, limbo: &mut Limbo) -> Result<Fence, DeviceError> {
        let fence = Fence { covers: self.frees, event: device.record_fence(&[])? };
        if self.fences.len() == FENCES_MAX
            && let Some(oldest) = self.fences.pop_front()
        {
            limbo.destroy_event(device, oldest.event);
        }
        self.fences.push_back(fence);
        Ok(fence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Call, SimDevice};

    const COMPUTE: StreamId = StreamId(0);
    const COPY: StreamId = StreamId(1);

    struct World {
        order: Order,
        limbo: Limbo,
        device: SimDevice,
    }

    impl World {
        fn new() -> World {
            let device = SimDevice::new(1 << 30);
            World { order: Order::default(), limbo: Limbo::default(), device }
        }

        fn wait(&mut self, freed: Stamp, reader: StreamId) -> bool {
            self.order.wait(&mut self.device, &mut self.limbo, freed, reader, Counts::Yes).unwrap()
        }

        fn settle(&mut self) {
            self.order.settle(&mut self.device, &mut self.limbo, COMPUTE);
        }

        fn calls(&self, call: Call) -> u64 {
            self.device.totals().of(call).calls
        }
    }

    #[test]
    fn a_stream_waits_once_for_all_that_was_freed_before() {
        let mut world = World::new();
        let frees: Vec<Stamp> = (0..5).map(|_| world.order.free()).collect();
        assert!(world.order.must_wait(frees[0], COPY));
        for &freed in &frees {
            assert!(world.wait(freed, COPY));
        }
        assert_eq!((world.calls(Call::RecordFence), world.calls(Call::WaitEvent)), (1, 1));
        assert!(!world.order.must_wait(frees[4], COPY) && world.order.must_wait(frees[4], COMPUTE));
        let later = world.order.free();
        assert!(world.order.must_wait(later, COPY));
    }

    #[test]
    fn one_fence_is_recorded_for_all_that_is_freed_together() {
        let mut world = World::new();
        for _ in 0..100 {
            world.order.free();
            world.order.want();
        }
        world.settle();
        world.settle();
        assert_eq!(world.calls(Call::RecordFence), 1);
    }

    #[test]
    fn the_earliest_fence_that_covers_a_free_is_waited_for() {
        let mut world = World::new();
        let early = world.order.free();
        world.order.want();
        world.settle();
        let late = world.order.free();
        world.order.want();
        world.settle();
        assert!(world.wait(early, COPY));
        assert!(world.order.must_wait(late, COPY), "it has waited for the first fence alone");
        assert_eq!(world.calls(Call::RecordFence), 2);
    }

    #[test]
    fn what_the_host_has_waited_for_needs_no_wait() {
        let mut world = World::new();
        let freed = world.order.free();
        let World { order, limbo, device } = &mut world;
        assert_eq!(order.synchronize(device, limbo, freed), Ok(true));
        assert!(!order.must_wait(freed, COPY));
        assert_eq!(order.synchronize(device, limbo, freed), Ok(true));
        assert_eq!(world.calls(Call::SynchronizeEvent), 1);
        assert_eq!(world.device.live().events, 0);
    }

    #[test]
    fn fences_are_few_however_long_the_run() {
        let mut world = World::new();
        for round in 0..10_000 {
            let freed = world.order.free();
            assert!(world.wait(freed, StreamId(round % 5)));
        }
        assert!(world.device.live().events <= FENCES_MAX);
        assert_eq!(world.order.waited.len(), 5);
    }

    #[test]
    fn nothing_waits_and_nothing_is_recorded_in_a_capture() {
        let mut world = World::new();
        let freed = world.order.free();
        world.order.want();
        world.device.begin_capture(COPY);
        world.order.settle(&mut world.device, &mut world.limbo, COPY);
        assert!(!world.wait(freed, COPY) && !world.wait(freed, COMPUTE));
        let World { order, limbo, device } = &mut world;
        assert_eq!(order.synchronize(device, limbo, freed), Ok(false));
        device.end_capture(COPY);
        world.settle();
        assert!(world.wait(freed, COPY));
        assert_eq!(world.calls(Call::RecordFence), 1);
    }
}
