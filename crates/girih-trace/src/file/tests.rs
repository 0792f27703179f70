//! The writer and the limits of the reader: what is written within limits is read within them, and
//! what is not is refused before it takes memory.

use std::io::Write;

use arbitrary::Unstructured;
use arbtest::arbtest;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;
use crate::event::{Action, Event, PoolId, StackId, StreamId};
use crate::generate::{Bytes, Rng, Training, recording, training};
use crate::trace::Trace;
use crate::uses::{Operator, Use, Uses};

/// A recording whose events come again and again.
fn repeating(u: &mut Unstructured<'_>) -> arbitrary::Result<Recording> {
    let length = u.int_in_range(0..=200)?;
    let mut once = recording(&mut Bytes::new(u.bytes(length)?), 60);
    let times = u.int_in_range(1..=400)?;
    for trace in &mut once.traces {
        trace.events = trace.events.repeat(times);
    }
    Ok(once)
}

fn limits(u: &mut Unstructured<'_>) -> arbitrary::Result<Limits> {
    let max_expansion = u.int_in_range(1..=1000)?;
    Ok(Limits { max_expansion, floor_bytes: u.int_in_range(0..=1 << 16)? })
}

fn written(recording: &Recording, limits: Limits) -> Vec<u8> {
    let mut bytes = Vec::new();
    write::write(recording, &mut bytes, limits).expect("it is whole");
    bytes
}

fn sample() -> Recording {
    Recording { traces: vec![training(&Training::default(), 1)] }
}

/// Bytes of all columns of a file once they are decompressed, and of their bodies.
fn sizes(file: &[u8]) -> (u64, u64) {
    let length = u32::from_le_bytes(file[12..16].try_into().expect("four bytes")) as usize;
    let header: header::Header = serde_json::from_slice(&file[20..20 + length]).expect("JSON");
    let columns = || header.traces.iter().flat_map(|trace| &trace.columns);
    (columns().map(header::ColumnHeader::decompressed).sum(), columns().map(|it| it.bytes).sum())
}

/// No ballast, whatever is repeated.
const ANY: Limits = Limits { max_expansion: u64::MAX, floor_bytes: u64::MAX };

#[test]
fn what_is_written_within_limits_is_read_within_them() {
    arbtest(|u| {
        let (recording, limits) = (repeating(u)?, limits(u)?);
        let file = written(&recording, limits);
        assert!(read(&file[..], limits).expect("the reader believes it") == recording);
        // Whoever has more patience reads it too.
        assert!(read(&file[..], Limits::default()).expect("likewise") == recording);
        // And it has no more than it needs: a frame more than a byte for each byte's worth.
        let ((produced, own), plain) = (sizes(&file), written(&recording, ANY));
        let columns = 64 * recording.traces.len() as u64;
        assert!(own <= sizes(&plain).1 + limits.least(produced) + 8 * columns);
        Ok(())
    })
    .budget_ms(1500);
}

#[test]
fn what_stands_for_more_than_the_limits_is_refused_and_nothing_else_is() {
    arbtest(|u| {
        let (recording, limits) = (repeating(u)?, limits(u)?);
        let file = written(&recording, ANY);
        let (produced, consumed) = sizes(&file);
        match read(&file[..], limits) {
            Ok(found) => {
                assert!(found == recording);
                assert!(produced <= limits.allowance(consumed), "{produced} of {consumed}");
            }
            // It is looked at column by column: the first ones may be too much for themselves.
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("more than the limits allow"), "{text}");
                assert!(produced > limits.floor_bytes, "{text}");
            }
        }
        Ok(())
    })
    .budget_ms(1500);
}

#[test]
fn a_file_that_is_compressed_once_more_stands_for_no_more_than_any_other() {
    arbtest(|u| {
        let (recording, limits) = (repeating(u)?, limits(u)?);
        let inner = written(&recording, if u.arbitrary()? { limits } else { ANY });
        let outer = if u.arbitrary()? {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            encoder.write_all(&inner).expect("it is memory");
            encoder.finish().expect("likewise")
        } else {
            zstd::encode_all(&inner[..], 9).expect("it is memory")
        };
        if let Ok(found) = read(&outer[..], limits) {
            assert!(found == recording);
            let produced = sizes(&inner).0;
            assert!(produced <= limits.allowance(outer.len() as u64), "{produced}");
        }
        Ok(())
    })
    .budget_ms(1500);
}

/// As many events as a long run has, each step like the one before it: they compress to a
/// thousandth of what a reader believes without ballast.
#[test]
fn ten_million_events_that_repeat_themselves_are_read_back() {
    let (stream, pool) = (StreamId(0), PoolId::DEFAULT);
    let step: Vec<Event> = (0..1000u64)
        .flat_map(|at| {
            let event = |action| Event::of(action, 1 << 40 | at << 21, 2 << 20, stream, pool);
            [Action::Alloc, Action::FreeRequested, Action::FreeCompleted].map(event)
        })
        .collect();
    let mut events = step.repeat(3334);
    // A clock that jumps once takes all times to four bytes.
    for (at, event) in events.iter_mut().enumerate() {
        event.time_us = at as i64 + if at > 5_000_000 { 1 << 20 } else { 0 };
    }
    let trace = Trace { events, streams: vec![0], pools: vec![(0, 0)], ..Trace::default() };
    let recording = Recording { traces: vec![trace] };
    let mut file = Vec::new();
    write(&recording, &mut file).expect("it is whole");
    let (produced, consumed) = sizes(&file);
    assert!(produced > Limits::default().floor_bytes, "{produced}");
    assert!(file.len() < 400 << 10, "{} bytes for {produced}", file.len());
    let plain = written(&recording, ANY);
    assert!(read(&plain[..], Limits::default()).is_err(), "{consumed}: it needs its ballast");
    assert!(read(&file[..], Limits::default()).expect("it is believed") == recording);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&file).expect("it is memory");
    let once_more = encoder.finish().expect("likewise");
    let ballast = consumed - sizes(&plain).1;
    assert!(ballast > 10 << 10 && once_more.len() as u64 >= ballast, "it cannot be compressed");
}

/// What the reader says of a recording that no honest writer writes.
fn read_any(recording: &Recording) -> String {
    let mut bytes = Vec::new();
    write::write_any(recording, &mut bytes, ANY).expect("it is not looked at");
    let error = write(recording, Vec::new()).unwrap_err();
    assert!(matches!(error, FileError::Dangling { trace: 0, .. }), "{error}");
    read(&bytes[..], Limits::default()).unwrap_err().to_string()
}

#[test]
fn indices_into_nothing_are_caught() {
    let mut recording = sample();
    recording.traces[0].events[5].stack = StackId(7);
    let message = read_any(&recording);
    assert!(message.contains("column `stack`: element 5 is 8, it must be below 1"), "{message}");
    let mut recording = sample();
    recording.traces[0].streams.clear();
    let message = read_any(&recording);
    assert!(message.contains("column `own.stream`"), "{message}");
    let mut recording = sample();
    recording.traces[0].marks[0].before = u32::MAX;
    let message = read_any(&recording);
    assert!(message.contains("column `mark.before`"), "{message}");
}

#[test]
fn uses_that_point_at_nothing_are_caught() {
    let mut recording = recording(&mut Rng::new(3), 40);
    let trace = &mut recording.traces[0];
    trace.uses = Uses { names: vec!["mm".to_owned()], ..Uses::default() };
    let (before, stream) = (0, trace.events[0].stream);
    let of = |name| Operator { name, before, time_us: 0, duration_us: 7, stream };
    trace.uses.operators = vec![of(1)];
    let refused = |recording: &Recording| read_any(recording);
    assert!(refused(&recording).contains("column `operator.name`: element 0 is 1"));
    recording.traces[0].uses.operators = vec![of(0), Operator { before: 9_999, ..of(0) }];
    assert!(refused(&recording).contains("column `operator.before`: element 1 is 9999"));
    recording.traces[0].uses.operators = vec![Operator { before: 3, ..of(0) }, of(0)];
    assert!(refused(&recording).contains("column `operator.before`: is not in order"));
    recording.traces[0].uses.operators = vec![of(0)];
    recording.traces[0].uses.operators.truncate(1);
    recording.traces[0].uses.uses = vec![Use { operator: 1, address: 5 }];
    assert!(refused(&recording).contains("column `use.operator`: element 0 is 1"));
}
