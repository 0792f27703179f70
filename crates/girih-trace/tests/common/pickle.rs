//! A writer of pickles, for tests alone: Python's objects, encoded as Python would or as it could.

use std::collections::HashMap;
use std::rc::Rc;

use girih_trace::{Action, Block, BlockState, Recording, Segment, StackId, Trace};

use super::{pool, stream};

/// A Python object.
#[derive(Clone, Debug)]
pub enum Py {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(String),
    Tuple(Vec<Py>),
    List(Vec<Py>),
    Dict(Vec<(Py, Py)>),
    /// One object at several places: encoded once, then fetched by its number from the memo.
    Shared(usize, Rc<Py>),
}

impl From<&str> for Py {
    fn from(text: &str) -> Py {
        Py::Str(text.to_owned())
    }
}

/// A dict with these keys.
pub fn dict<const N: usize>(items: [(&str, Py); N]) -> Py {
    Py::Dict(items.into_iter().map(|(key, value)| (Py::from(key), value)).collect())
}

pub fn int(value: u64) -> Py {
    Py::Int(i128::from(value))
}

/// How to encode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    /// 2 to 5.
    pub protocol: u8,
    /// Whether strings and containers are memoized; without, everything is written in full.
    pub memo: bool,
    /// Items that one APPENDS or SETITEMS takes; 1 for APPEND and SETITEM.
    pub batch: usize,
    /// Whether the keys of dicts come in the opposite order.
    pub reversed: bool,
}

impl Style {
    /// As Python writes.
    pub fn python(protocol: u8) -> Style {
        Style { protocol, memo: true, batch: 1000, reversed: false }
    }
}

/// Encodes an object.
pub fn encode(object: &Py, style: Style) -> Vec<u8> {
    let mut encoder = Encoder {
        style,
        bytes: vec![0x80, style.protocol],
        memo_count: 0,
        texts: HashMap::new(),
        shared: HashMap::new(),
    };
    encoder.object(object);
    encoder.bytes.push(b'.');
    encoder.bytes
}

struct Encoder {
    style: Style,
    bytes: Vec<u8>,
    memo_count: u32,
    texts: HashMap<String, u32>,
    shared: HashMap<usize, u32>,
}

impl Encoder {
    fn object(&mut self, object: &Py) {
        match object {
            Py::None => self.bytes.push(b'N'),
            Py::Bool(value) => self.bytes.push(if *value { 0x88 } else { 0x89 }),
            Py::Int(value) => self.int(*value),
            Py::Float(value) => {
                self.bytes.push(b'G');
                self.bytes.extend(value.to_be_bytes());
            }
            Py::Str(text) => self.text(text),
            Py::Tuple(items) => self.tuple(items),
            Py::List(items) => {
                self.bytes.push(b']');
                self.memoize();
                self.batches(items, b'a', b'e', Encoder::object);
            }
            Py::Dict(items) => {
                self.bytes.push(b'}');
                self.memoize();
                let mut items = items.clone();
                if self.style.reversed {
                    items.reverse();
                }
                self.batches(&items, b's', b'u', |encoder, (key, value)| {
                    encoder.object(key);
                    encoder.object(value);
                });
            }
            Py::Shared(number, object) => match self.shared.get(number) {
                Some(&slot) => self.get(slot),
                None => {
                    let slot = self.memo_count;
                    self.object(object);
                    if self.style.memo {
                        self.shared.insert(*number, slot);
                    }
                }
            },
        }
    }

    fn batches<T>(&mut self, items: &[T], one: u8, many: u8, put: impl Fn(&mut Self, &T)) {
        for batch in items.chunks(self.style.batch) {
            match batch {
                [item] => {
                    put(self, item);
                    self.bytes.push(one);
                }
                _ => {
                    self.bytes.push(b'(');
                    batch.iter().for_each(|item| put(self, item));
                    self.bytes.push(many);
                }
            }
        }
    }

    fn tuple(&mut self, items: &[Py]) {
        if items.len() > 3 {
            self.bytes.push(b'(');
        }
        items.iter().for_each(|item| self.object(item));
        self.bytes.push(match items.len() {
            0 => b')',
            count @ 1..=3 => 0x84 + count as u8,
            _ => b't',
        });
        if !items.is_empty() {
            self.memoize();
        }
    }

    fn int(&mut self, value: i128) {
        if let Ok(value) = u8::try_from(value) {
            self.bytes.extend([b'K', value]);
        } else if let Ok(value) = u16::try_from(value) {
            self.bytes.push(b'M');
            self.bytes.extend(value.to_le_bytes());
        } else if let Ok(value) = i32::try_from(value) {
            self.bytes.push(b'J');
            self.bytes.extend(value.to_le_bytes());
        } else {
            let bytes = value.to_le_bytes();
            let sign = if value < 0 { 0xff } else { 0 };
            let mut count = 16;
            while count > 1 && bytes[count - 1] == sign && (bytes[count - 2] ^ sign) & 0x80 == 0 {
                count -= 1;
            }
            self.bytes.extend([0x8a, count as u8]);
            self.bytes.extend(&bytes[..count]);
        }
    }

    fn text(&mut self, text: &str) {
        if let Some(&slot) = self.texts.get(text) {
            return self.get(slot);
        }
        match u8::try_from(text.len()) {
            Ok(length) if self.style.protocol >= 4 => self.bytes.extend([0x8c, length]),
            _ => {
                self.bytes.push(b'X');
                self.bytes.extend((text.len() as u32).to_le_bytes());
            }
        }
        self.bytes.extend(text.as_bytes());
        if self.style.memo {
            self.texts.insert(text.to_owned(), self.memo_count);
        }
        self.memoize();
    }

    fn memoize(&mut self) {
        if !self.style.memo {
            return;
        }
        match (self.style.protocol, u8::try_from(self.memo_count)) {
            (4.., _) => self.bytes.push(0x94),
            (_, Ok(slot)) => self.bytes.extend([b'q', slot]),
            _ => {
                self.bytes.push(b'r');
                self.bytes.extend(self.memo_count.to_le_bytes());
            }
        }
        self.memo_count += 1;
    }

    fn get(&mut self, slot: u32) {
        match u8::try_from(slot) {
            Ok(slot) => self.bytes.extend([b'h', slot]),
            Err(_) => {
                self.bytes.push(b'j');
                self.bytes.extend(slot.to_le_bytes());
            }
        }
    }
}

/// The snapshot that PyTorch would have written of a recording, but for its marks.
pub fn snapshot_of(recording: &Recording) -> Py {
    let devices = recording.traces.last().map_or(0, |trace| trace.device as usize + 1);
    let mut traces = vec![Py::List(Vec::new()); devices];
    let mut segments = Vec::new();
    let mut settings = Vec::new();
    for trace in &recording.traces {
        traces[trace.device as usize] = Py::List(entries(trace));
        segments.extend(trace.segments.iter().map(|segment| segment_of(trace, segment)));
        settings = vec![
            (Py::from("PYTORCH_CUDA_ALLOC_CONF"), Py::from(&*trace.settings.conf)),
            (Py::from("max_split_size"), Py::Int(-1)),
            (Py::from("garbage_collection_threshold"), Py::Float(0.5)),
            (Py::from("expandable_segments"), Py::Bool(trace.settings.expandable_segments)),
            (Py::from("roundup_power2_divisions"), dict([("1", int(0))])),
        ];
    }
    dict([
        ("segments", Py::List(segments)),
        ("device_traces", Py::List(traces)),
        ("allocator_settings", Py::Dict(settings)),
        ("external_annotations", Py::List(Vec::new())),
        ("host_traces", Py::None),
    ])
}

fn entries(trace: &Trace) -> Vec<Py> {
    let entry = |event: &girih_trace::Event| {
        let address = if event.action == Action::Oom { "device_free" } else { "addr" };
        let mut items = vec![
            (Py::from("action"), Py::from(event.action.name())),
            (Py::from(address), int(event.address)),
            (Py::from("size"), int(event.size)),
            (Py::from("stream"), int(stream(trace, event.stream))),
            (Py::from("time_us"), Py::Int(i128::from(event.time_us))),
            (Py::from("compile_context"), Py::from("N/A")),
            (Py::from("user_metadata"), Py::from("")),
        ];
        let (first, second) = pool(trace, event.pool);
        if (first, second) != (0, 0) || event.size.is_multiple_of(3) {
            items.push((Py::from("pool_id"), Py::Tuple(vec![int(first), int(second)])));
        }
        if event.stack.is_some() || event.size.is_multiple_of(5) {
            items.push((Py::from("frames"), frames(trace, event.stack)));
        }
        Py::Dict(items)
    };
    trace.events.iter().map(entry).collect()
}

/// One list for each stack, and one dict for each frame, shared wherever they occur.
fn frames(trace: &Trace, stack: StackId) -> Py {
    if !stack.is_some() {
        return Py::List(Vec::new());
    }
    let base = (trace.device as usize + 1) << 20;
    let frame = |&index: &u32| {
        let (file, rest) = trace.frames[index as usize].split_once(':').expect("file:line name");
        let (line, name) = rest.split_once(' ').expect("file:line name");
        let line = line.parse().expect("a line number");
        let frame = dict([
            ("name", Py::from(name)),
            ("filename", Py::from(file)),
            ("line", int(line)),
            ("fx_node_op", Py::None),
        ]);
        Py::Shared(2 * (base + index as usize), Rc::new(frame))
    };
    let list = trace.stacks[stack.0 as usize].iter().map(frame).collect();
    Py::Shared(2 * (base + stack.0 as usize) + 1, Rc::new(Py::List(list)))
}

fn segment_of(trace: &Trace, segment: &Segment) -> Py {
    let (first, second) = pool(trace, segment.pool);
    dict([
        ("device", int(u64::from(trace.device))),
        ("address", int(segment.address)),
        ("total_size", int(segment.size)),
        ("allocated_size", int(0)),
        ("stream", int(stream(trace, segment.stream))),
        ("segment_type", Py::from(if segment.is_small { "small" } else { "large" })),
        ("segment_pool_id", Py::Tuple(vec![int(first), int(second)])),
        ("is_expandable", Py::Bool(segment.is_expandable)),
        ("frames", Py::List(Vec::new())),
        ("blocks", Py::List(segment.blocks.iter().map(|it| block_of(trace, it)).collect())),
    ])
}

fn block_of(trace: &Trace, block: &Block) -> Py {
    let state = match block.state {
        BlockState::Allocated => "active_allocated",
        BlockState::PendingFree => "active_pending_free",
        BlockState::Inactive => "inactive",
    };
    dict([
        ("address", int(block.address)),
        ("size", int(block.size)),
        ("requested_size", int(block.requested)),
        ("state", Py::from(state)),
        ("frames", frames(trace, block.stack)),
    ])
}
