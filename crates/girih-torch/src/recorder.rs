//! The recorder: keeps the events and marks of a heap, with their time, and makes a trace of them.
//!
//! It holds 40 bytes an event in memory, and its name more for a mark, up to a limit in bytes, and keeps
//! the oldest: a plan needs the beginning of a run. What came after the limit is counted, and the trace
//! says so. To save the trace takes as much again for as long as it takes.

use std::time::{Instant, SystemTime};

use girih_trace::{Event, Mark, MarkKind, Origin, Settings, Trace};

/// Events that lie side by side: nothing is copied as the recording grows.
const CHUNK: usize = 1 << 16;

/// Keeps what happens. See the [module](self).
pub(crate) struct Recorder {
    started: Instant,
    /// The time of `started` in microseconds since 1970.
    epoch_us: i64,
    /// All but the last are full.
    chunks: Vec<Vec<Event>>,
    events: usize,
    marks: Vec<Mark>,
    /// Bytes that may still be taken.
    room: u64,
    /// Something came after the limit: so many events.
    is_over: bool,
    lost: u64,
}

impl Recorder {
    /// A recorder whose clock begins now, and which takes so many bytes at most.
    #[expect(clippy::disallowed_methods, reason = "recording is where the time of events is read")]
    pub(crate) fn new(bytes: u64) -> Recorder {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Recorder {
            started: Instant::now(),
            epoch_us: now.map_or(0, |since| since.as_micros() as i64),
            chunks: Vec::new(),
            events: 0,
            marks: Vec::new(),
            room: bytes,
            is_over: false,
            lost: 0,
        }
    }

    /// Microseconds since 1970, never going back.
    fn now_us(&self) -> i64 {
        self.epoch_us + self.started.elapsed().as_micros() as i64
    }

    /// Takes bytes of the room. False if there are too few, now and from then on: a recording has no holes.
    fn take(&mut self, bytes: usize) -> bool {
        match self.room.checked_sub(bytes as u64) {
            Some(left) if !self.is_over => {
                self.room = left;
                true
            }
            _ => {
                self.is_over = true;
                false
            }
        }
    }

    /// Keeps an event.
    pub(crate) fn record(&mut self, event: Event) {
        if !self.take(size_of::<Event>()) {
            self.lost += 1;
            return;
        }
        if self.events.is_multiple_of(CHUNK) {
            // Of a small limit no more than is left.
            let left = self.room / size_of::<Event>() as u64 + 1;
            self.chunks.push(Vec::with_capacity(CHUNK.min(left as usize)));
        }
        let time_us = self.now_us();
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(Event { time_us, ..event });
            self.events += 1;
        }
    }

    /// Keeps a mark before the next event.
    pub(crate) fn mark(&mut self, kind: MarkKind, name: &str) {
        // The list of marks has twice as many places as there are marks at most.
        if self.take(2 * size_of::<Mark>() + name.len()) {
            let (before, time_us) = (self.events as u32, self.now_us());
            self.marks.push(Mark { before, time_us, kind, name: name.to_owned() });
        }
    }

    /// Events that were kept.
    pub(crate) fn len(&self) -> usize {
        self.events
    }

    /// What was kept, as the trace of `device`. The tables and the segments are the heap's to fill
    /// in.
    pub(crate) fn trace(&self, device: u32) -> Trace {
        let mut warnings = Vec::new();
        if self.is_over {
            warnings.push(format!(
                "the recording ends after {} events; {} more came; the setting record_bytes gives it more \
                 memory",
                self.events, self.lost
            ));
        }
        let mut events = Vec::with_capacity(self.events);
        self.chunks.iter().for_each(|chunk| events.extend_from_slice(chunk));
        Trace {
            device,
            events,
            marks: self.marks.clone(),
            settings: Settings::default(),
            origin: Origin { kind: "trace".to_owned(), warnings, truncated: false },
            ..Trace::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use girih_trace::{Action, PoolId, StackId, StreamId};

    use super::*;

    fn event(address: u64) -> Event {
        Event {
            address,
            size: 512,
            time_us: 0,
            stack: StackId::NONE,
            stream: StreamId(0),
            pool: PoolId::DEFAULT,
            action: Action::Alloc,
        }
    }

    #[test]
    fn events_have_their_time_and_marks_their_place() {
        let mut recorder = Recorder::new(1000);
        recorder.record(event(512));
        recorder.mark(MarkKind::Step, "7");
        recorder.record(event(1024));
        let trace = recorder.trace(3);
        assert_eq!((trace.device, trace.events.len()), (3, 2));
        assert_eq!((trace.marks[0].before, trace.marks[0].name.as_str()), (1, "7"));
        let times = [trace.events[0].time_us, trace.marks[0].time_us, trace.events[1].time_us];
        assert!(times.is_sorted() && times[0] > 1_600_000_000_000_000, "{times:?}");
    }

    #[test]
    fn a_recording_that_is_full_keeps_its_beginning_and_says_so() {
        let mut recorder = Recorder::new(100);
        (1..=5).for_each(|k| recorder.record(event(512 * k)));
        recorder.mark(MarkKind::Step, "");
        let trace = recorder.trace(0);
        assert_eq!((trace.events.len(), trace.marks.len()), (2, 0));
        assert!(trace.origin.warnings[0].contains("3 more came"));
    }

    #[test]
    fn marks_and_their_names_count_and_a_recording_has_no_holes() {
        let mut recorder = Recorder::new(10_000);
        let name = "n".repeat(1000);
        for k in 1..=100 {
            recorder.mark(MarkKind::Other, &name);
            recorder.record(event(512 * k));
        }
        let trace = recorder.trace(0);
        let kept = trace.marks.len();
        assert!((8..10).contains(&kept), "{kept} marks");
        assert!(trace.events.len() <= kept, "what came after a mark that was lost is lost too");
        assert!(trace.origin.warnings[0].contains("record_bytes"), "{:?}", trace.origin.warnings);
    }

    #[test]
    fn a_long_recording_is_whole_and_in_order() {
        let mut recorder = Recorder::new(u64::MAX);
        (1..=200_000).for_each(|k| recorder.record(event(512 * k)));
        let trace = recorder.trace(0);
        assert!(trace.events.iter().zip(1..).all(|(event, k)| event.address == 512 * k));
        assert_eq!((trace.events.len(), recorder.len()), (200_000, 200_000));
        assert!(trace.origin.warnings.is_empty());
    }
}
