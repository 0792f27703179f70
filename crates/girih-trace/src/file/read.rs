//! Reading a trace file. Nothing that it says is believed before it is checked.

use std::collections::HashMap;
use std::io::{self, Read};

use super::column::{BLOCK, Column, Cursor};
use super::error::FileError;
use super::events::{Followed, Source};
use super::header::{ColumnHeader, Header, TraceHeader};
use super::{MAGIC, MAX_HEADER, MAX_NAMES, VERSION};
use crate::compress::{ExpansionError, Input, Limits, fill, read_up_to};
use crate::event::{Action, Event, PoolId, StackId, StreamId};
use crate::mark::{Mark, MarkKind};
use crate::trace::{Block, BlockState, Recording, Segment, Trace};
use crate::uses::{Operator, Use, Uses};

/// What one byte of zstd can stand for at most: a block of 128 KiB takes four.
const ZSTD_EXPANSION: u64 = 32 << 10;

/// Reads what `head` and then `input` give.
pub(super) fn read<R: Read>(
    head: &[u8],
    mut input: Input<R>,
    limits: Limits,
) -> Result<Recording, FileError> {
    let header = read_header(&mut head.chain(&mut input))?;
    let mut bodies = Bodies { input, limits, consumed: 0, produced: 0 };
    let mut recording = Recording::default();
    for (index, header) in header.traces.iter().enumerate() {
        let columns = Columns::read(&mut bodies, index, header)?;
        let mut trace = header.to_trace();
        columns.take_tables(&mut trace)?;
        columns.take_events(&mut trace)?;
        columns.take_marks(&mut trace)?;
        columns.take_segments(&mut trace)?;
        trace.uses = columns.uses(&trace)?;
        recording.traces.push(trace);
    }
    Ok(recording)
}

fn read_header(input: &mut impl Read) -> Result<Header, FileError> {
    let mut start = [0; 20];
    let length = fill(input, &mut start)?;
    if length < MAGIC.len() || !start.starts_with(&MAGIC) {
        return Err(FileError::NotATrace);
    }
    if length < start.len() {
        return Err(FileError::Truncated("its first 20 bytes".to_owned()));
    }
    let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| start[at + byte]));
    let (version, length, checksum) = (number(8), number(12) as usize, number(16));
    if version == 0 || version > VERSION {
        return Err(FileError::Version(version));
    }
    if length > MAX_HEADER {
        return Err(FileError::HeaderLength(length));
    }
    let header = read_up_to(input, length as u64)?;
    if header.len() < length {
        return Err(FileError::Truncated("its header".to_owned()));
    }
    let mut crc = flate2::Crc::new();
    crc.update(&header);
    if crc.sum() != checksum {
        return Err(FileError::HeaderChecksum);
    }
    Ok(serde_json::from_slice(&header)?)
}

/// The bodies of the columns, as they come.
struct Bodies<R: Read> {
    input: Input<R>,
    limits: Limits,
    consumed: u64,
    produced: u64,
}

impl<R: Read> Bodies<R> {
    /// Reads the body of one column. The problem, if there is one, in words.
    fn read(&mut self, header: &ColumnHeader) -> Result<Column, BodyError> {
        let body = read_up_to(&mut self.input, header.bytes)?;
        if (body.len() as u64) < header.bytes {
            return Err(BodyError::Truncated);
        }
        let size = header.decompressed();
        self.consumed += header.bytes;
        self.produced = self.produced.saturating_add(size);
        // Where the file is compressed once more, what one of its bytes stands for is the product of
        // both: what counts is the bytes that there are.
        let consumed = self.consumed.min(self.input.consumed());
        let allowed = self.limits.allowance(consumed);
        if self.produced > allowed && consumed < self.consumed {
            return Err(io::Error::other(ExpansionError { consumed, allowed }).into());
        }
        if size > header.bytes.saturating_mul(ZSTD_EXPANSION) || self.produced > allowed {
            let problem = format!(
                "{} bytes are said to hold {} elements, more than the limits allow",
                header.bytes, header.count
            );
            return Err(BodyError::Problem(problem));
        }
        let planes = zstd::bulk::decompress(&body, size as usize)
            .map_err(|error| BodyError::Problem(format!("is damaged: {error}")))?;
        if planes.len() as u64 != size {
            let problem = format!("has {} bytes, its header says {size}", planes.len());
            return Err(BodyError::Problem(problem));
        }
        Ok(Column::new(header, planes))
    }
}

enum BodyError {
    Io(io::Error),
    Truncated,
    Problem(String),
}

impl From<io::Error> for BodyError {
    fn from(error: io::Error) -> Self {
        BodyError::Io(error)
    }
}

/// The columns of one trace, by name. Those that are not known are left alone.
struct Columns {
    trace: usize,
    columns: HashMap<String, Column>,
}

impl Columns {
    fn read<R: Read>(
        bodies: &mut Bodies<R>,
        trace: usize,
        header: &TraceHeader,
    ) -> Result<Self, FileError> {
        let mut columns = Columns { trace, columns: HashMap::new() };
        for header in &header.columns {
            let name = &header.name;
            let column = bodies.read(header).map_err(|error| match error {
                BodyError::Io(error) => FileError::Io(error),
                BodyError::Truncated => {
                    FileError::Truncated(format!("column `{name}` of trace {trace}"))
                }
                BodyError::Problem(problem) => columns.error(name, problem),
            })?;
            if columns.columns.insert(name.clone(), column).is_some() {
                return Err(columns.error(name, "is there twice".to_owned()));
            }
        }
        Ok(columns)
    }

    fn error(&self, column: &str, problem: String) -> FileError {
        FileError::Column { trace: self.trace, column: column.to_owned(), problem }
    }

    fn get(&self, name: &str) -> Result<&Column, FileError> {
        self.columns.get(name).ok_or_else(|| self.error(name, "is missing".to_owned()))
    }

    /// A column that has as many elements as another.
    fn get_sized(&self, name: &str, count: usize) -> Result<&Column, FileError> {
        let column = self.get(name)?;
        if column.len() == count {
            return Ok(column);
        }
        let found = column.len();
        Err(self.error(name, format!("has {found} elements where {count} are needed")))
    }

    fn values(&self, name: &str, count: usize) -> Result<Vec<u64>, FileError> {
        Ok(self.get_sized(name, count)?.values())
    }

    /// A column of indices into a table of `limit` elements.
    fn indices(&self, name: &str, count: usize, limit: usize) -> Result<Vec<u64>, FileError> {
        let values = self.values(name, count)?;
        self.check(name, 0, &values, limit)?;
        Ok(values)
    }

    /// Makes sure that `values`, from element `start` on, are below `limit`.
    fn check(
        &self,
        name: &str,
        start: usize,
        values: &[u64],
        limit: usize,
    ) -> Result<(), FileError> {
        if values.iter().fold(0, |largest, &value| value.max(largest)) < limit as u64 {
            return Ok(());
        }
        match values.iter().position(|&value| value >= limit as u64) {
            None => Ok(()),
            Some(at) => Err(self.beyond(name, start + at, values[at], limit)),
        }
    }

    fn beyond(&self, name: &str, at: usize, value: u64, limit: usize) -> FileError {
        self.error(name, format!("element {at} is {value}, it must be below {limit}"))
    }

    fn text(&self, name: &str) -> Result<Vec<String>, FileError> {
        let column = self.get(name)?;
        serde_json::from_slice(column.bytes())
            .map_err(|error| self.error(name, format!("is not a list of strings: {error}")))
    }

    fn take_tables(&self, trace: &mut Trace) -> Result<(), FileError> {
        trace.streams = self.get("streams")?.values();
        let pools = self.get("pools")?.values();
        let (pairs, rest) = pools.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(self.error("pools", "has an odd number of elements".to_owned()));
        }
        trace.pools = pairs.iter().map(|&[first, second]| (first, second)).collect();
        trace.frames = self.text("frames")?;
        let lengths = self.get("stacks.length")?.values();
        let frames = self.get("stacks.frame")?;
        let frames = self.indices("stacks.frame", frames.len(), trace.frames.len())?;
        let mut frames = &frames[..];
        for &length in &lengths {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let Some((stack, rest)) = frames.split_at_checked(length) else {
                let problem = "says more frames than `stacks.frame` has".to_owned();
                return Err(self.error("stacks.length", problem));
            };
            trace.stacks.push(stack.iter().map(|&frame| frame as u32).collect());
            frames = rest;
        }
        Ok(())
    }

    fn take_events(&self, trace: &mut Trace) -> Result<(), FileError> {
        let count = self.get("action")?.len();
        if u32::try_from(count).is_err() {
            return Err(self.error("action", format!("{count} events are too many")));
        }
        let mut actions = self.get("action")?.blocks();
        let mut times = self.get_sized("time_us", count)?.blocks();
        let mut stacks = self.get_sized("stack", count)?.blocks();
        let mut repeats = self.get_sized("repeats", count)?.blocks();
        let mut owns = Owns::new(self, trace)?;
        let mut followed = Followed::default();
        let mut block = [[0; BLOCK]; 4];
        trace.events.reserve_exact(count);
        for start in (0..count).step_by(BLOCK) {
            let [action, time, stack, repeat] = &mut block;
            let length = actions.read(action);
            times.read(time);
            stacks.read(stack);
            repeats.read(repeat);
            self.check("action", start, &action[..length], Action::ALL.len())?;
            self.check("stack", start, &stack[..length], trace.stacks.len() + 1)?;
            for at in 0..length {
                let Some(source) = followed.next(start + at, repeat[at]) else {
                    let problem = format!("element {} points before the first event", start + at);
                    return Err(self.error("repeats", problem));
                };
                let like = match source {
                    Source::Own => owns.next()?,
                    Source::Event(earlier) => trace.events[earlier],
                };
                let (time_us, stack) = (time[at] as i64, stack_of(stack[at]));
                let action = Action::ALL[action[at] as usize];
                trace.events.push(Event { time_us, stack, action, ..like });
            }
        }
        owns.finish()
    }

    fn take_marks(&self, trace: &mut Trace) -> Result<(), FileError> {
        let names = self.text("names")?;
        let count = self.get("mark.before")?.len();
        let befores = self.indices("mark.before", count, trace.events.len() + 1)?;
        if !befores.is_sorted() {
            return Err(self.error("mark.before", "is not in order".to_owned()));
        }
        let times = self.values("mark.time_us", count)?;
        let kinds = self.indices("mark.kind", count, MarkKind::NAMES.len())?;
        let name_ids = self.indices("mark.name", count, names.len())?;
        // Many marks may share one long name: the file pays for it once, the trace for each.
        let total: usize = name_ids.iter().map(|&name| names[name as usize].len()).sum();
        if total > MAX_NAMES {
            return Err(FileError::Names(total));
        }
        for at in 0..count {
            trace.marks.push(Mark {
                before: befores[at] as u32,
                time_us: times[at] as i64,
                kind: MarkKind::NAMES[kinds[at] as usize].0,
                name: names[name_ids[at] as usize].clone(),
            });
        }
        Ok(())
    }

    /// The operators and their uses; none in a file that has no such columns.
    fn uses(&self, trace: &Trace) -> Result<Uses, FileError> {
        if !self.columns.contains_key("operator.name") {
            return Ok(Uses::default());
        }
        let names = self.text("operator.names")?;
        let count = self.get("operator.name")?.len();
        if u32::try_from(count).is_err() {
            return Err(self.error("operator.name", format!("{count} operators are too many")));
        }
        let name_ids = self.indices("operator.name", count, names.len())?;
        let befores = self.indices("operator.before", count, trace.events.len() + 1)?;
        let times = self.values("operator.time_us", count)?;
        let durations = self.indices("operator.duration_us", count, 1 << 32)?;
        let streams = self.indices("operator.stream", count, trace.streams.len())?;
        let operator = |at: usize| Operator {
            name: name_ids[at] as u32,
            before: befores[at] as u32,
            time_us: times[at] as i64,
            duration_us: durations[at] as u32,
            stream: StreamId(streams[at] as u16),
        };
        let used = self.get("use.operator")?.len();
        let users = self.indices("use.operator", used, count)?;
        for (name, column) in [("operator.before", &befores), ("use.operator", &users)] {
            if !column.is_sorted() {
                return Err(self.error(name, "is not in order".to_owned()));
            }
        }
        let table = self.get("use.address.table")?.values();
        let addresses = self.indices("use.address", used, table.len())?;
        let use_of = |(operator, address): (u64, u64)| Use {
            operator: operator as u32,
            address: table[address as usize],
        };
        let uses = users.into_iter().zip(addresses).map(use_of).collect();
        Ok(Uses { operators: (0..count).map(operator).collect(), names, uses })
    }

    fn take_segments(&self, trace: &mut Trace) -> Result<(), FileError> {
        let addresses = self.get("segment.address")?.values();
        let count = addresses.len();
        let sizes = self.values("segment.size", count)?;
        let streams = self.indices("segment.stream", count, trace.streams.len())?;
        let pools = self.indices("segment.pool", count, trace.pools.len())?;
        let flags = self.indices("segment.flags", count, 4)?;
        let block_counts = self.values("segment.blocks", count)?;
        let mut blocks = self.blocks(trace)?.into_iter();
        for at in 0..count {
            if block_counts[at] > blocks.len() as u64 {
                let problem = "says more blocks than there are".to_owned();
                return Err(self.error("segment.blocks", problem));
            }
            trace.segments.push(Segment {
                address: addresses[at],
                size: sizes[at],
                stream: StreamId(streams[at] as u16),
                pool: PoolId(pools[at] as u16),
                is_small: flags[at] & 1 != 0,
                is_expandable: flags[at] & 2 != 0,
                blocks: blocks.by_ref().take(block_counts[at] as usize).collect(),
            });
        }
        Ok(())
    }

    fn blocks(&self, trace: &Trace) -> Result<Vec<Block>, FileError> {
        const STATES: [BlockState; 3] =
            [BlockState::Allocated, BlockState::PendingFree, BlockState::Inactive];
        let addresses = self.get("block.address")?.values();
        let count = addresses.len();
        let sizes = self.values("block.size", count)?;
        let requested = self.values("block.requested", count)?;
        let states = self.indices("block.state", count, STATES.len())?;
        let stacks = self.indices("block.stack", count, trace.stacks.len() + 1)?;
        let block = |at: usize| Block {
            address: addresses[at],
            size: sizes[at],
            requested: requested[at],
            state: STATES[states[at] as usize],
            stack: stack_of(stacks[at]),
        };
        Ok((0..count).map(block).collect())
    }
}

/// A column of indices into a table, checked one by one.
struct Indices<'a> {
    columns: &'a Columns,
    name: &'static str,
    limit: usize,
    at: usize,
    cursor: Cursor<'a>,
}

impl<'a> Indices<'a> {
    fn new(
        columns: &'a Columns,
        name: &'static str,
        count: usize,
        limit: usize,
    ) -> Result<Self, FileError> {
        let cursor = Cursor::new(columns.get_sized(name, count)?);
        Ok(Indices { columns, name, limit, at: 0, cursor })
    }

    #[inline]
    fn next(&mut self) -> Result<usize, FileError> {
        let index = self.cursor.next();
        self.at += 1;
        match index {
            Some(index) if index < self.limit as u64 => Ok(index as usize),
            _ => Err(self.failed(index)),
        }
    }

    #[cold]
    fn failed(&self, index: Option<u64>) -> FileError {
        match index {
            Some(index) => self.columns.beyond(self.name, self.at - 1, index, self.limit),
            None => self.columns.error(self.name, "has too few elements".to_owned()),
        }
    }
}

/// The `own.*` columns, a row at a time.
struct Owns<'a> {
    addresses: Indices<'a>,
    address_table: Vec<u64>,
    sizes: Indices<'a>,
    size_table: Vec<u64>,
    streams: Indices<'a>,
    pools: Indices<'a>,
    left: usize,
}

impl<'a> Owns<'a> {
    fn new(columns: &'a Columns, trace: &Trace) -> Result<Self, FileError> {
        let address_table = columns.get("own.address.table")?.values();
        let size_table = columns.get("own.size.table")?.values();
        let left = columns.get("own.address")?.len();
        let indices = |name, limit| Indices::new(columns, name, left, limit);
        Ok(Owns {
            addresses: indices("own.address", address_table.len())?,
            sizes: indices("own.size", size_table.len())?,
            streams: indices("own.stream", trace.streams.len())?,
            pools: indices("own.pool", trace.pools.len())?,
            address_table,
            size_table,
            left,
        })
    }

    /// An event with the values of the next row; its other fields are to be filled in.
    #[inline]
    fn next(&mut self) -> Result<Event, FileError> {
        self.left = self.left.saturating_sub(1);
        Ok(Event {
            address: self.address_table[self.addresses.next()?],
            size: self.size_table[self.sizes.next()?],
            stream: StreamId(self.streams.next()? as u16),
            pool: PoolId(self.pools.next()? as u16),
            time_us: 0,
            stack: StackId::NONE,
            action: Action::Alloc,
        })
    }

    fn finish(self) -> Result<(), FileError> {
        if self.left == 0 {
            return Ok(());
        }
        let problem = format!("has {} rows more than are used", self.left);
        Err(self.addresses.columns.error("own.address", problem))
    }
}

/// The inverse of the writer's code: 0 is none.
fn stack_of(code: u64) -> StackId {
    StackId((code as u32).wrapping_sub(1))
}
