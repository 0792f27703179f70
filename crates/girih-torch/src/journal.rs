//! The log of a heap: where the events of its policy go, and the small ids that they carry.
//!
//! ```text
//!  policy ─► event with ids ─► journal ─┬─► the recorder, if the run is recorded
//!                                       └─► the sink, if one is set, with handles for ids
//! ```
//!
//! Mostly there is neither, and the events of blocks are not even handed over ([`Log::listens`]). Segments are
//! numbered as they come, whether or not somebody listens.

use std::collections::BTreeMap;

use girih_runtime::{Address, Log};
use girih_trace::{Action, Event, PoolId, StreamId};

use crate::abi::{self, Sink};
use crate::pool_ids::PoolIds;
use crate::recorder::Recorder;
use crate::streams::Streams;

/// See the [module](self).
pub(crate) struct Journal {
    device: i32,
    pub(crate) streams: Streams,
    /// PyTorch's ids of pools.
    pub(crate) pools: PoolIds,
    sink: Option<Sink>,
    recorder: Option<Recorder>,
    /// True if there is a sink or a recorder.
    listens: bool,
    /// Of each segment, or run of pages, that is held, by its address: where it ends, and how many had come
    /// before it.
    registrations: BTreeMap<Address, (Address, u32)>,
    /// How many have come.
    registered: u32,
}

impl Journal {
    /// A journal that nobody listens to but `recorder`, if there is one.
    pub(crate) fn new(device: i32, recorder: Option<Recorder>) -> Journal {
        let listens = recorder.is_some();
        Journal {
            device,
            streams: Streams::new(device as u32),
            pools: PoolIds::new(listens),
            sink: None,
            recorder,
            listens,
            registrations: BTreeMap::new(),
            registered: 0,
        }
    }

    /// The number of the segment that begins at an address, from 0, in the order in which they came
    /// (`registration_counter`): the processes of a run that ask for the same in the same order have the
    /// same numbers. A run of pages has that of its beginning, or of what came before it there.
    pub(crate) fn registration(&self, address: Address) -> u32 {
        self.registrations.range(..=address).next_back().map_or(0, |(_, run)| run.1)
    }

    /// Sends the events to another sink from now on, or to none.
    pub(crate) fn set_sink(&mut self, sink: Option<Sink>) {
        self.sink = sink;
        self.listens = self.sink.is_some() || self.recorder.is_some();
    }

    /// The recorder, if the run is recorded.
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// The recorder, if the run is recorded.
    pub(crate) fn recorder_mut(&mut self) -> Option<&mut Recorder> {
        self.recorder.as_mut()
    }

    /// The driver's handle of a stream.
    pub(crate) fn stream_handle(&self, stream: StreamId) -> u64 {
        self.streams.handle(stream.0)
    }

    /// PyTorch's id of a pool.
    pub(crate) fn pool_pair(&self, pool: PoolId) -> abi::Pool {
        let (first, second) = self.pools.pool(pool.0).unwrap_or((0, 0));
        abi::Pool { first, second }
    }

    /// Numbers a segment that has come, and forgets one that has gone.
    #[cold]
    fn register(&mut self, event: &Event) {
        if matches!(event.action, Action::SegmentFree | Action::SegmentUnmap) {
            self.forget(event.address, event.address.saturating_add(event.size));
        } else {
            let end = event.address.saturating_add(event.size);
            self.registrations.insert(event.address, (end, self.registered));
            self.registered = self.registered.saturating_add(1);
        }
    }

    /// Forgets what lies in a range that goes. Several runs may go as one, and a part of one; what is left
    /// keeps its number.
    fn forget(&mut self, start: Address, end: Address) {
        let first =
            self.registrations.range(..start).next_back().map_or(start, |(&first, _)| first);
        let over = self.registrations.range(first..end).filter(|(_, run)| run.0 > start);
        let over: Vec<(Address, (Address, u32))> = over.map(|(&at, &run)| (at, run)).collect();
        for (address, (run_end, number)) in over {
            self.registrations.remove(&address);
            if address < start {
                self.registrations.insert(address, (start, number));
            }
            if run_end > end {
                self.registrations.insert(end, (run_end, number));
            }
        }
    }

    #[cold]
    fn tell(&mut self, event: Event) {
        if let Some(sink) = &self.sink {
            sink.tell(&abi::Event {
                address: event.address,
                size: event.size,
                stream: self.stream_handle(event.stream),
                pool: self.pool_pair(event.pool),
                device: self.device,
                action: event.action as i32,
            });
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.record(event);
        }
    }
}

impl Log for Journal {
    #[inline]
    fn record(&mut self, event: Event) {
        if is_of_a_segment(event.action) {
            self.register(&event);
        }
        if self.listens {
            self.tell(event);
        }
    }

    #[inline]
    fn listens(&self) -> bool {
        self.listens
    }
}

/// True if memory of the device comes or goes.
#[inline]
fn is_of_a_segment(action: Action) -> bool {
    matches!(
        action,
        Action::SegmentAlloc | Action::SegmentFree | Action::SegmentMap | Action::SegmentUnmap
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_numbered_as_they_come_whatever_their_address() {
        let mut journal = Journal::new(0, None);
        let mut log = |action, address| {
            journal.record(Event::of(action, address, 512, StreamId(0), PoolId::DEFAULT));
        };
        log(Action::SegmentAlloc, 8192);
        log(Action::SegmentMap, 4096);
        log(Action::Alloc, 4096);
        log(Action::SegmentFree, 8192);
        log(Action::SegmentAlloc, 8192);
        let numbers = [4096, 8192, 9216].map(|address| journal.registration(address));
        assert_eq!(numbers, [1, 2, 2]);
    }

    #[test]
    fn runs_that_go_together_or_in_part_leave_no_more_than_what_is_held() {
        let mut journal = Journal::new(0, None);
        let mut log = |action, address, size| {
            journal.record(Event::of(action, address, size, StreamId(0), PoolId::DEFAULT));
        };
        for round in 1..1000 {
            // Two requests map, and one call unmaps both.
            log(Action::SegmentMap, 8192 * round, 2048);
            log(Action::SegmentMap, 8192 * round + 2048, 4096);
            log(Action::SegmentUnmap, 8192 * round, 6144);
        }
        log(Action::SegmentMap, 512, 8192);
        log(Action::SegmentUnmap, 1024, 1024);
        assert_eq!(journal.registrations.len(), 2, "what is left of the last");
        assert_eq!([512, 2048, 8000].map(|address| journal.registration(address)), [1998; 3]);
    }
}
