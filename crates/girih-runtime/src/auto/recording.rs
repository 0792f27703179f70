//! A recording as it is handed out to be planned.

use std::ops::Range;
use std::sync::Arc;

use girih_trace::{Action, Event, Mark, Origin, Trace};
use rustc_hash::FxHashSet;

/// What a recorder had at one moment. It shares the events with the recorder, which goes on.
#[derive(Debug)]
pub(super) struct Recording {
    /// The events, in order.
    pub(super) parts: Vec<Arc<Vec<Event>>>,
    /// Where seams are, as indices of events.
    pub(super) seams: Vec<Range<usize>>,
    pub(super) marks: Vec<Mark>,
    /// It does not reach back to the first request.
    pub(super) is_late: bool,
}

impl Recording {
    /// The trace of it: a pass over all events.
    pub(super) fn into_trace(self) -> Trace {
        let events = self.events();
        let streams = events.iter().map(|event| event.stream.0).max().unwrap_or(0);
        Trace {
            events,
            marks: self.marks,
            streams: (0..=u64::from(streams)).collect(),
            pools: vec![(0, 0)],
            origin: Origin {
                kind: "recording".to_owned(),
                warnings: Vec::new(),
                truncated: self.is_late,
            },
            ..Trace::default()
        }
    }

    /// The events, without blocks that a seam allocates and nothing frees: an iteration that seems
    /// to leave something behind would pass for a first one.
    fn events(&self) -> Vec<Event> {
        let mut events = Vec::with_capacity(self.parts.iter().map(|part| part.len()).sum());
        self.parts.iter().for_each(|part| events.extend_from_slice(part));
        let mut freed = FxHashSet::default();
        let mut seams = self.seams.iter().rev().peekable();
        for (index, event) in events.iter_mut().enumerate().rev() {
            while seams.next_if(|seam| index < seam.start).is_some() {}
            let in_seam = seams.peek().is_some_and(|seam| seam.contains(&index));
            match event.action {
                Action::FreeCompleted => drop(freed.insert(event.address)),
                Action::Alloc if !freed.remove(&event.address) && in_seam => {
                    event.action = Action::Snapshot;
                }
                _ => {}
            }
        }
        events
    }
}
