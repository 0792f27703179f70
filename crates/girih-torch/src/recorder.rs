//! The recorder: keeps the events and marks of a heap, with their time, and makes a trace of them.
//!
//! It holds 40 bytes an event in memory, up to a limit, and keeps the oldest: a plan needs the
//! beginning of a run. What came after the limit is counted, and the trace says so.

use std::time::{Instant, SystemTime};

use girih_trace::{Event, Mark, MarkKind, Origin, Settings, Trace};

/// Events that are kept at most: 2 GB.
const MOST: usize = 50_000_000;

/// Keeps what happens. See the [module](self).
pub(crate) struct Recorder {
    started: Instant,
    /// The time of `started` in microseconds since 1970.
    epoch_us: i64,
    events: Vec<Event>,
    marks: Vec<Mark>,
    most: usize,
    /// Events that came after the limit.
    lost: u64,
}

impl Recorder {
    /// A recorder whose clock begins now.
    pub(crate) fn new() -> Recorder {
        Recorder::with_limit(MOST)
    }

    #[expect(clippy::disallowed_methods, reason = "recording is where the time of events is read")]
    fn with_limit(most: usize) -> Recorder {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Recorder {
            started: Instant::now(),
            epoch_us: now.map_or(0, |since| since.as_micros() as i64),
            events: Vec::new(),
            marks: Vec::new(),
            most,
            lost: 0,
        }
    }

    /// Microseconds since 1970, never going back.
    fn now_us(&self) -> i64 {
        self.epoch_us + self.started.elapsed().as_micros() as i64
    }

    /// Keeps an event.
    pub(crate) fn record(&mut self, event: Event) {
        if self.events.len() == self.most {
            self.lost += 1;
            return;
        }
        let time_us = self.now_us();
        self.events.push(Event { time_us, ..event });
    }

    /// Keeps a mark before the next event. Returns it as the policy is told of it.
    pub(crate) fn mark(&mut self, kind: MarkKind, name: &str) {
        if self.lost == 0 {
            let (before, time_us) = (self.events.len() as u32, self.now_us());
            self.marks.push(Mark { before, time_us, kind, name: name.to_owned() });
        }
    }

    /// Events that were kept.
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// What was kept, as the trace of `device`. The tables and the segments are the heap's to fill
    /// in.
    pub(crate) fn trace(&self, device: u32) -> Trace {
        let mut warnings = Vec::new();
        if self.lost > 0 {
            warnings.push(format!(
                "the recording ends after {} events; {} more came",
                self.events.len(),
                self.lost
            ));
        }
        Trace {
            device,
            events: self.events.clone(),
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
        let mut recorder = Recorder::new();
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
        let mut recorder = Recorder::with_limit(2);
        (1..=5).for_each(|k| recorder.record(event(512 * k)));
        recorder.mark(MarkKind::Step, "");
        let trace = recorder.trace(0);
        assert_eq!((trace.events.len(), trace.marks.len()), (2, 0));
        assert!(trace.origin.warnings[0].contains("3 more came"));
    }
}
