//! The marks file that stands beside a recording.
//!
//! It is JSON, gzipped or not: `marks` has what the training script noted on the clock of the
//! events, `recorded` what the process reported of itself at its end. Fields that are not known
//! are ignored.
//!
//! ```text
//! {"recorded": {"alloc_peak": 50867147264, "reserved_peak": 59972255744},
//!  "marks": [{"time_us": 1795224603281539, "kind": "step", "name": "0"}, ..]}
//! ```

use std::collections::HashSet;
use std::io::{self, Read};

use serde::Deserialize;
use thiserror::Error;

use crate::compress::{Input, Limits};
use crate::event::Event;
use crate::mark::{Mark, MarkKind, Recorded};
use crate::trace::Trace;

/// Why a marks file could not be applied.
#[derive(Debug, Error)]
pub enum MarksError {
    /// It could not be read or decompressed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is not JSON, or not of the expected shape; the message has the line and the column.
    #[error("write the marks again, they are not as expected: {0}")]
    Json(#[from] serde_json::Error),
}

#[derive(Deserialize)]
struct MarksFile {
    #[serde(default)]
    recorded: RecordedFields,
    #[serde(default)]
    marks: Vec<MarkFields>,
}

#[derive(Default, Deserialize)]
struct RecordedFields {
    alloc_peak: Option<u64>,
    reserved_peak: Option<u64>,
}

#[derive(Deserialize)]
struct MarkFields {
    time_us: i64,
    kind: String,
    #[serde(default)]
    name: String,
}

/// What a marks file holds, before it is known where its marks stand.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Marks {
    /// What the process reported of itself.
    pub recorded: Recorded,
    /// The marks, in the order of the file; where they stand is not set.
    marks: Vec<Mark>,
}

/// Reads a marks file.
///
/// # Errors
/// If `bytes` cannot be decompressed or are not the JSON of a marks file.
pub fn read(bytes: &[u8]) -> Result<Marks, MarksError> {
    let mut text = Vec::new();
    Input::new(bytes, Limits::default())?.read_to_end(&mut text)?;
    let file: MarksFile = serde_json::from_slice(&text)?;
    let RecordedFields { alloc_peak, reserved_peak } = file.recorded;
    Ok(Marks {
        recorded: Recorded { allocated_peak: alloc_peak, reserved_peak },
        marks: file.marks.into_iter().map(Mark::from).collect(),
    })
}

/// Adds the marks of a marks file to `trace`: [`read`], and then [`Marks::apply`].
///
/// # Errors
/// Those of [`read`]. The trace is then unchanged.
pub fn apply(trace: &mut Trace, bytes: &[u8]) -> Result<(), MarksError> {
    read(bytes)?.apply(trace);
    Ok(())
}

impl Marks {
    /// Adds the marks to `trace`, and sets what the process reported of itself.
    ///
    /// A mark stands before the first event that is not earlier. Marks that the trace had before stay,
    /// and come first where both stand before the same event. One that the trace has already, with the
    /// same time, kind and name, is not added again: a trace file has the marks of its snapshot in it,
    /// and may stand beside the same marks file.
    pub fn apply(mut self, trace: &mut Trace) {
        let known: HashSet<_> = trace.marks.iter().map(what_it_says).collect();
        self.marks.retain(|mark| !known.contains(&what_it_says(mark)));
        place_by_time(&mut self.marks, &trace.events);
        trace.marks.extend(self.marks);
        trace.marks.sort_by_key(|mark| mark.before);
        let Recorded { allocated_peak, reserved_peak } = self.recorded;
        trace.recorded = Recorded {
            allocated_peak: allocated_peak.or(trace.recorded.allocated_peak),
            reserved_peak: reserved_peak.or(trace.recorded.reserved_peak),
        };
    }

    /// True if there is nothing in it: no mark, and no peak.
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty() && self.recorded == Recorded::default()
    }

    /// Why these are certainly marks of another recording than `trace`: no mark lies in its time. None
    /// if one does, or if there is nothing to compare.
    pub fn is_of_another_time(&self, trace: &Trace) -> Option<String> {
        let range = |times: &mut dyn Iterator<Item = i64>| {
            times.filter(|&time| time != 0).fold(None, |range: Option<(i64, i64)>, time| {
                let (first, last) = range.unwrap_or((time, time));
                Some((first.min(time), last.max(time)))
            })
        };
        let events = range(&mut trace.events.iter().map(|event| event.time_us))?;
        let marks = range(&mut self.marks.iter().map(|mark| mark.time_us))?;
        (marks.1 < events.0 || events.1 < marks.0).then(|| {
            format!(
                "its marks are from {} to {} us on the clock, the events from {} to {}",
                marks.0, marks.1, events.0, events.1
            )
        })
    }

    /// What makes it doubtful that these are marks of `trace`: the process reports that it held less at
    /// most than the trace shows that it did.
    pub fn doubts(&self, trace: &Trace) -> Vec<String> {
        let Recorded { reserved_peak, .. } = self.recorded;
        let shown = trace.most_taken();
        let reported = reserved_peak.filter(|&reported| reported < shown);
        let doubt = |reported| {
            format!(
                "it says that {reported} bytes were reserved at most, the recording shows {shown}"
            )
        };
        reported.map(doubt).into_iter().collect()
    }
}

impl From<MarkFields> for Mark {
    fn from(fields: MarkFields) -> Mark {
        let MarkFields { time_us, kind, name } = fields;
        let known = MarkKind::from_name(&kind);
        // A kind that is not known keeps its name, so that nothing is lost.
        let name = match known {
            MarkKind::Other if kind != "other" && name.is_empty() => kind,
            MarkKind::Other if kind != "other" => format!("{kind} {name}"),
            _ => name,
        };
        Mark { before: 0, time_us, kind: known, name }
    }
}

/// What tells a mark from another one.
fn what_it_says(mark: &Mark) -> (i64, MarkKind, &str) {
    (mark.time_us, mark.kind, &mark.name)
}

/// Sorts marks by time, those of one time in their order, and sets [`Mark::before`] of each to the
/// first event that is not earlier. One walk over both, right even where the clock of the events
/// steps back.
pub(crate) fn place_by_time(marks: &mut [Mark], events: &[Event]) {
    marks.sort_by_key(|mark| mark.time_us);
    let mut before = 0;
    for mark in marks {
        while events.get(before).is_some_and(|event| event.time_us < mark.time_us) {
            before += 1;
        }
        mark.before = before as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Action, PoolId, StreamId};

    fn trace(times: &[i64]) -> Trace {
        let first = Event::of(Action::Alloc, 0, 1, StreamId(0), PoolId::DEFAULT);
        let event = |&time_us| Event { time_us, ..first };
        Trace { events: times.iter().map(event).collect(), ..Trace::default() }
    }

    fn places(trace: &Trace) -> Vec<(u32, &str)> {
        trace.marks.iter().map(|mark| (mark.before, mark.name.as_str())).collect()
    }

    #[test]
    fn a_mark_stands_before_the_first_event_that_is_not_earlier() {
        let mut trace = trace(&[10, 20, 20, 30]);
        let json = br#"{"marks": [
            {"time_us": 20, "kind": "forward", "name": "b"},
            {"time_us": 5, "kind": "step", "name": "a"},
            {"time_us": 20, "kind": "fwd_in", "name": "c"},
            {"time_us": 31, "kind": "step_end", "name": "d", "unknown": 1}]}"#;
        apply(&mut trace, json).unwrap();
        assert_eq!(places(&trace), [(0, "a"), (1, "b"), (1, "c"), (4, "d")]);
        assert_eq!(trace.marks[3].kind, MarkKind::StepEnd);
    }

    #[test]
    fn marks_that_were_there_stay_and_come_first() {
        let mut trace = trace(&[10, 20]);
        trace.marks.push(Mark {
            before: 1,
            time_us: 15,
            kind: MarkKind::Other,
            name: "old".to_owned(),
        });
        apply(&mut trace, br#"{"marks": [{"time_us": 12, "kind": "step", "name": "new"}]}"#)
            .unwrap();
        assert_eq!(places(&trace), [(1, "old"), (1, "new")]);
    }

    #[test]
    fn marks_that_the_trace_has_already_are_not_added_again() {
        let mut trace = trace(&[10, 20]);
        let json = br#"{"marks": [{"time_us": 12, "kind": "step", "name": "0"},
            {"time_us": 12, "kind": "step", "name": "0"}, {"time_us": 15, "kind": "loss"}]}"#;
        apply(&mut trace, json).unwrap();
        let once = trace.marks.clone();
        assert_eq!(once.len(), 3, "a file may say the same twice");
        apply(&mut trace, json).unwrap();
        assert_eq!(trace.marks, once);
        apply(&mut trace, br#"{"marks": [{"time_us": 12, "kind": "step", "name": "1"}]}"#).unwrap();
        assert_eq!(trace.marks.len(), 4, "another name is another mark");
    }

    #[test]
    fn an_unknown_kind_keeps_its_name() {
        let mut trace = trace(&[]);
        apply(&mut trace, br#"{"marks": [{"time_us": 1, "kind": "loss", "name": "3"}]}"#).unwrap();
        assert_eq!((trace.marks[0].kind, &*trace.marks[0].name), (MarkKind::Other, "loss 3"));
    }

    #[test]
    fn what_the_process_reported_is_kept_and_bytes_that_are_not_json_leave_all_as_it_was() {
        let mut trace = trace(&[1]);
        apply(&mut trace, br#"{"recorded": {"alloc_peak": 7, "reserved_peak": 9, "x": []}}"#)
            .unwrap();
        let recorded = trace.recorded.clone();
        assert_eq!((recorded.allocated_peak, recorded.reserved_peak), (Some(7), Some(9)));
        let error = apply(&mut trace, b"{\"marks\":\n [{\"time_us\": true}]}").unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
        assert_eq!(trace.recorded, recorded);
    }

    #[test]
    fn marks_of_another_time_and_of_a_smaller_run_are_told() {
        let mut trace = trace(&[10, 20]);
        trace.events[0] = Event { action: Action::SegmentAlloc, size: 4096, ..trace.events[0] };
        let of = |json: &str| read(json.as_bytes()).unwrap();
        let late = of(r#"{"marks": [{"time_us": 21, "kind": "step"}]}"#);
        let reason = late.is_of_another_time(&trace).unwrap();
        assert!(
            reason.contains("from 21 to 21 us") && reason.contains("from 10 to 20"),
            "{reason}"
        );
        let around =
            r#"{"marks": [{"time_us": 5, "kind": "step"}, {"time_us": 30, "kind": "step"}]}"#;
        assert_eq!(of(around).is_of_another_time(&trace), None);
        assert_eq!(of("{}").is_of_another_time(&trace), None);
        let smaller = of(r#"{"recorded": {"reserved_peak": 4095}}"#);
        assert!(smaller.doubts(&trace)[0].contains("4095 bytes"), "{:?}", smaller.doubts(&trace));
        let same = of(r#"{"recorded": {"reserved_peak": 4096}}"#);
        assert!(same.doubts(&trace).is_empty());
    }
}
