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
    #[error("cannot read the marks: {0}")]
    Io(#[from] io::Error),
    /// It is not JSON, or not of the expected shape; the message has the line and the column.
    #[error("the marks are not as expected: {0}")]
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

/// Adds the marks of a marks file to `trace`, and sets what the process reported of itself.
///
/// A mark stands before the first event that is not earlier. Marks that the trace had before stay,
/// and come first where both stand before the same event. Applying a file twice doubles its marks.
///
/// # Errors
/// If `bytes` cannot be decompressed or are not the JSON of a marks file. The trace is then
/// unchanged.
pub fn apply(trace: &mut Trace, bytes: &[u8]) -> Result<(), MarksError> {
    let mut text = Vec::new();
    Input::new(bytes, Limits::default())?.read_to_end(&mut text)?;
    let file: MarksFile = serde_json::from_slice(&text)?;
    let mut marks: Vec<Mark> = file.marks.into_iter().map(Mark::from).collect();
    place_by_time(&mut marks, &trace.events);
    trace.marks.extend(marks);
    trace.marks.sort_by_key(|mark| mark.before);
    trace.recorded = Recorded {
        allocated_peak: file.recorded.alloc_peak.or(trace.recorded.allocated_peak),
        reserved_peak: file.recorded.reserved_peak.or(trace.recorded.reserved_peak),
    };
    Ok(())
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
    use crate::event::{Action, PoolId, StackId, StreamId};

    fn trace(times: &[i64]) -> Trace {
        let event = |&time_us| Event {
            address: 0,
            size: 1,
            time_us,
            stack: StackId::NONE,
            stream: StreamId(0),
            pool: PoolId::DEFAULT,
            action: Action::Alloc,
        };
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
}
