//! Writing a trace file.

use std::io::Write;

use super::column::{encode, encode_differences, encode_text};
use super::error::FileError;
use super::events::split;
use super::header::{ColumnHeader, Header, TraceHeader};
use super::{MAGIC, MAX_HEADER, MAX_NAMES, VERSION, VERSION_WITHOUT_USES};
use crate::compress::Limits;
use crate::event::{PoolId, StackId, StreamId};
use crate::trace::{Recording, Segment, Trace};
use crate::uses::Uses;

/// Writes what is read within `limits`, or nothing.
pub(super) fn write(
    recording: &Recording,
    output: impl Write,
    limits: Limits,
) -> Result<(), FileError> {
    for (index, trace) in recording.traces.iter().enumerate() {
        if let Some(what) = dangling(trace) {
            return Err(FileError::Dangling { trace: index, what });
        }
        let names: usize = trace.marks.iter().map(|mark| mark.name.len()).sum();
        if names > MAX_NAMES {
            return Err(FileError::Names(names));
        }
    }
    write_any(recording, output, limits)
}

/// Writes a recording without a look at what it refers to.
pub(super) fn write_any(
    recording: &Recording,
    mut output: impl Write,
    limits: Limits,
) -> Result<(), FileError> {
    let mut traces = Vec::new();
    let mut bodies = Vec::new();
    let mut ballast = Ballast { limits, consumed: 0, produced: 0 };
    for trace in &recording.traces {
        let mut columns = Columns::of(trace)?;
        for (header, body) in columns.headers.iter_mut().zip(&mut columns.bodies) {
            ballast.put(header, body);
        }
        traces.push(TraceHeader::new(trace, columns.headers));
        bodies.extend(columns.bodies);
    }
    let header = serde_json::to_vec(&Header { traces })?;
    if header.len() > MAX_HEADER {
        return Err(FileError::HeaderLength(header.len()));
    }
    let mut crc = flate2::Crc::new();
    crc.update(&header);
    output.write_all(&MAGIC)?;
    let has_uses = recording.traces.iter().any(|trace| !trace.uses.is_empty());
    let version = if has_uses { VERSION } else { VERSION_WITHOUT_USES };
    output.write_all(&version.to_le_bytes())?;
    output.write_all(&(header.len() as u32).to_le_bytes())?;
    output.write_all(&crc.sum().to_le_bytes())?;
    output.write_all(&header)?;
    for body in bodies {
        output.write_all(&body)?;
    }
    output.flush()?;
    Ok(())
}

/// What a trace refers to and does not have, if there is such a thing: no reader would take it.
fn dangling(trace: &Trace) -> Option<&'static str> {
    let Trace { events, marks, segments, uses, streams, pools, stacks, frames, .. } = trace;
    let stream = |id: StreamId| usize::from(id.0) < streams.len();
    let pool = |id: PoolId| usize::from(id.0) < pools.len();
    let stack = |id: StackId| !id.is_some() || (id.0 as usize) < stacks.len();
    let blocks = || segments.iter().flat_map(|segment| &segment.blocks);
    let befores = || marks.iter().map(|mark| mark.before);
    let operators = || uses.operators.iter();
    let users = || uses.uses.iter().map(|it| it.operator);
    let is_event = |before: u32| before as usize <= events.len();
    let has_streams = events.iter().all(|it| stream(it.stream))
        && segments.iter().all(|it| stream(it.stream))
        && operators().all(|it| stream(it.stream));
    let has_pools =
        events.iter().all(|it| pool(it.pool)) && segments.iter().all(|it| pool(it.pool));
    let has_stacks = events.iter().all(|it| stack(it.stack)) && blocks().all(|it| stack(it.stack));
    let has_frames = stacks.iter().flatten().all(|&frame| (frame as usize) < frames.len());
    let has_events = befores().all(is_event) && operators().all(|it| is_event(it.before));
    let has_names = operators().all(|it| (it.name as usize) < uses.names.len());
    let has_operators = users().all(|it| (it as usize) < uses.operators.len());
    let is_in_order =
        befores().is_sorted() && operators().map(|it| it.before).is_sorted() && users().is_sorted();
    let all = [
        (has_streams, "stream"),
        (has_pools, "pool"),
        (has_stacks, "stack"),
        (has_frames, "frame"),
        (has_events, "event"),
        (has_names, "name"),
        (has_operators, "operator"),
        (is_in_order, "place in order"),
    ];
    all.into_iter().find_map(|(has, what)| (!has).then_some(what))
}

/// Keeps the columns within the limits of a reader. One that repeats itself for long enough is
/// compressed to less than a reader believes; it gets a skippable frame of zstd behind its own, so
/// that a file pays a byte for each [`Limits::max_expansion`] that it stands for. A reader needs no
/// other rule for honest files than for bombs.
struct Ballast {
    limits: Limits,
    consumed: u64,
    produced: u64,
}

impl Ballast {
    /// The next column of the file.
    fn put(&mut self, header: &mut ColumnHeader, body: &mut Vec<u8>) {
        self.consumed += header.bytes;
        self.produced = self.produced.saturating_add(header.decompressed());
        let lacking = self.limits.least(self.produced).saturating_sub(self.consumed);
        if lacking == 0 {
            return;
        }
        let before = body.len();
        push_skippable(body, lacking);
        header.bytes = body.len() as u64;
        self.consumed += (body.len() - before) as u64;
    }
}

/// Appends skippable frames (RFC 8878, section 3.1.2) of at least `bytes` bytes in all. What is in
/// them cannot be compressed, so that a file may be compressed once more and is still believed.
fn push_skippable(body: &mut Vec<u8>, bytes: u64) {
    const MAGIC: u32 = 0x184d_2a50;
    let mut left = bytes;
    while left > 0 {
        let length = u32::try_from(left).unwrap_or(u32::MAX);
        body.extend(MAGIC.to_le_bytes());
        body.extend(length.to_le_bytes());
        body.extend(noise().take(length as usize));
        left -= u64::from(length);
    }
}

/// Bytes without a pattern, always the same: those of SplitMix64 (Steele and others, OOPSLA 2014).
fn noise() -> impl Iterator<Item = u8> {
    (1u64..).flat_map(|at| {
        let mut word = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31).to_le_bytes()
    })
}

/// The columns of one trace.
#[derive(Default)]
struct Columns {
    headers: Vec<ColumnHeader>,
    bodies: Vec<Vec<u8>>,
}

impl Columns {
    fn of(trace: &Trace) -> Result<Columns, FileError> {
        let mut columns = Columns::default();
        columns.put_tables(trace)?;
        columns.put_events(trace);
        columns.put_marks(trace)?;
        columns.put_segments(&trace.segments);
        if !trace.uses.is_empty() {
            columns.put_uses(&trace.uses)?;
        }
        Ok(columns)
    }

    fn put_tables(&mut self, trace: &Trace) -> Result<(), FileError> {
        self.put("streams", trace.streams.iter().copied());
        self.put("pools", trace.pools.iter().flat_map(|&(first, second)| [first, second]));
        self.put_text("frames", &trace.frames)?;
        self.put("stacks.length", trace.stacks.iter().map(|stack| stack.len() as u64));
        self.put("stacks.frame", trace.stacks.iter().flatten().map(|&frame| u64::from(frame)));
        Ok(())
    }

    fn put_events(&mut self, trace: &Trace) {
        let events = &trace.events;
        let (repeats, owns) = split(events);
        self.put("action", events.iter().map(|event| event.action as u64));
        self.put_differences("time_us", events.iter().map(|event| event.time_us as u64));
        self.put("stack", events.iter().map(|event| stack_code(event.stack)));
        self.put("repeats", repeats.into_iter());
        self.put_table("own.address", owns.iter().map(|own| own.address));
        self.put_table("own.size", owns.iter().map(|own| own.size));
        self.put("own.stream", owns.iter().map(|own| u64::from(own.stream.0)));
        self.put("own.pool", owns.iter().map(|own| u64::from(own.pool.0)));
    }

    fn put_marks(&mut self, trace: &Trace) -> Result<(), FileError> {
        let marks = &trace.marks;
        self.put_differences("mark.before", marks.iter().map(|mark| u64::from(mark.before)));
        self.put_differences("mark.time_us", marks.iter().map(|mark| mark.time_us as u64));
        self.put("mark.kind", marks.iter().map(|mark| mark.kind as u64));
        let mut names: Vec<&str> = marks.iter().map(|mark| mark.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let index = |name: &str| names.binary_search(&name).expect("it is one of them") as u64;
        self.put("mark.name", marks.iter().map(|mark| index(&mark.name)));
        self.put_text("names", &names)
    }

    fn put_segments(&mut self, segments: &[Segment]) {
        let blocks = || segments.iter().flat_map(|segment| &segment.blocks);
        let flags = |it: &Segment| u64::from(it.is_small) | u64::from(it.is_expandable) << 1;
        self.put_differences("segment.address", segments.iter().map(|it| it.address));
        self.put("segment.size", segments.iter().map(|it| it.size));
        self.put("segment.stream", segments.iter().map(|it| u64::from(it.stream.0)));
        self.put("segment.pool", segments.iter().map(|it| u64::from(it.pool.0)));
        self.put("segment.flags", segments.iter().map(flags));
        self.put("segment.blocks", segments.iter().map(|it| it.blocks.len() as u64));
        self.put_differences("block.address", blocks().map(|it| it.address));
        self.put("block.size", blocks().map(|it| it.size));
        self.put("block.requested", blocks().map(|it| it.requested));
        self.put("block.state", blocks().map(|it| it.state as u64));
        self.put("block.stack", blocks().map(|it| stack_code(it.stack)));
    }

    fn put_uses(&mut self, uses: &Uses) -> Result<(), FileError> {
        let Uses { operators, names, uses } = uses;
        self.put_text("operator.names", names)?;
        self.put("operator.name", operators.iter().map(|it| u64::from(it.name)));
        self.put_differences("operator.before", operators.iter().map(|it| u64::from(it.before)));
        self.put_differences("operator.time_us", operators.iter().map(|it| it.time_us as u64));
        self.put("operator.duration_us", operators.iter().map(|it| u64::from(it.duration_us)));
        self.put("operator.stream", operators.iter().map(|it| u64::from(it.stream.0)));
        self.put_differences("use.operator", uses.iter().map(|it| u64::from(it.operator)));
        self.put_table("use.address", uses.iter().map(|it| it.address));
        Ok(())
    }

    fn put(&mut self, name: &str, values: impl Iterator<Item = u64>) {
        self.push(encode(name, &values.collect::<Vec<_>>()));
    }

    fn put_differences(&mut self, name: &str, values: impl Iterator<Item = u64>) {
        self.push(encode_differences(name, &values.collect::<Vec<_>>()));
    }

    /// Values of which there are few different ones: these, ascending, and for each value which.
    fn put_table(&mut self, name: &str, values: impl Iterator<Item = u64>) {
        let values: Vec<u64> = values.collect();
        let mut table = values.clone();
        table.sort_unstable();
        table.dedup();
        let code = |value: u64| table.binary_search(&value).expect("it is one of them") as u64;
        let codes: Vec<u64> = values.into_iter().map(code).collect();
        self.push(encode(name, &codes));
        self.push(encode_differences(&format!("{name}.table"), &table));
    }

    fn put_text<S: serde::Serialize>(&mut self, name: &str, text: &[S]) -> Result<(), FileError> {
        self.push(encode_text(name, &serde_json::to_vec(text)?));
        Ok(())
    }

    fn push(&mut self, (header, body): (ColumnHeader, Vec<u8>)) {
        self.headers.push(header);
        self.bodies.push(body);
    }
}

/// A stack plus one, so that 0 is none.
fn stack_code(stack: StackId) -> u64 {
    u64::from(stack.0.wrapping_add(1))
}
