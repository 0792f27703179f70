//! PyTorch memory snapshots, as `torch.cuda.memory._dump_snapshot` and `_snapshot` write them.
//!
//! A snapshot is a pickled dict: one list of entries for each device (`device_traces`), the
//! segments as they were at the end, the allocator's settings, and annotations. Every torch from
//! 2.1 on is read, in pickle protocols 0 to 5, plain, gzipped or in zstd.
//!
//! ```text
//!  file ─► decompress ─► pickle machine ─► records of entries ┐   device 0 ─► Trace
//!                            │                                ├─► device 1 ─► Trace
//!                            └─► dicts of segments, frames    ┘   ...
//! ```
//!
//! The file is taken for hostile. Nothing in it is executed ([`crate::pickle`]), decompression has
//! a limit ([`Limits`]), and what is shared by reference is not unfolded beyond the file's size.
//! What is missing or unknown is tolerated and counted in [`Origin::warnings`]; what is wrong is an
//! error that says where.
//!
//! [`Origin::warnings`]: crate::Origin::warnings

mod annotations;
mod device;
mod entry;
mod error;
mod gaps;
mod ids;
mod pools;
mod segments;
mod stacks;
mod view;
mod words;

use std::io::Read;

use self::annotations::read_annotations;
use self::device::DeviceBuilder;
use self::entry::Entry;
pub use self::error::ReadError;
use self::segments::read_segment;
use self::view::{Fields, Place, View};
use crate::compress::{Compressed, Input, Limits};
use crate::pickle::{self, Value};
use crate::trace::{Recording, Settings};

/// Devices that one process may have; PyTorch itself stops at 128.
const MAX_DEVICES: u64 = 1024;

/// How to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadOptions {
    /// How much a compressed file may grow.
    pub limits: Limits,
}

/// Reads a snapshot. Compression is recognised by its first bytes.
///
/// # Errors
/// If the source fails, if it is no snapshot, or a damaged one; see [`ReadError`].
///
/// ```
/// # use girih_trace::snapshot::{self, ReadOptions};
/// // {"segments": [], "device_traces": []} in protocol 2
/// let pickle = b"\x80\x02}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces]u.";
/// let recording = snapshot::read(&pickle[..], &ReadOptions::default())?;
/// assert!(recording.traces.is_empty());
/// # Ok::<(), snapshot::ReadError>(())
/// ```
pub fn read(input: impl Read, options: &ReadOptions) -> Result<Recording, ReadError> {
    read_decompressed(Input::new(input, options.limits)?)
}

/// Reads a snapshot that is in memory, with the default options.
///
/// # Errors
/// As [`read`].
pub fn read_slice(bytes: &[u8]) -> Result<Recording, ReadError> {
    read(bytes, &ReadOptions::default())
}

/// Reads a snapshot from the bytes of the pickle itself.
pub(crate) fn read_decompressed(input: impl Compressed) -> Result<Recording, ReadError> {
    let mut loaded = pickle::load::<_, Entry>(input)?;
    let records = std::mem::take(&mut loaded.heap.records);
    let view = View::new(&loaded);
    let root = match view.dict(loaded.root)? {
        Some(root) => root,
        None => return Err(not_a_snapshot(loaded.root.type_name())),
    };
    let traces = root.get(words::DEVICE_TRACES);
    let segments = root.get(words::SEGMENTS);
    if traces.is_none() && segments.is_none() {
        return Err(not_a_snapshot("a dict without `device_traces` and `segments`"));
    }
    let mut devices = read_traces(&view, traces, records)?;
    read_segments(&view, segments, &mut devices)?;
    if devices.iter().all(DeviceBuilder::is_empty) {
        devices.iter().try_for_each(DeviceBuilder::refuse_unknown)?;
    }
    let annotations = read_annotations(&view, root.get(words::EXTERNAL_ANNOTATIONS))?;
    let settings = read_settings(&view, root)?;
    let traces = devices
        .into_iter()
        .filter(|device| !device.is_empty())
        .map(|device| device.finish(&view, &annotations, settings.clone()))
        .collect::<Result<_, _>>()?;
    Ok(Recording { traces })
}

fn not_a_snapshot(found: &str) -> ReadError {
    ReadError::NotASnapshot { found: found.to_owned() }
}

/// Reads the list of lists of entries: one list for each device, by its ordinal.
fn read_traces(
    view: &View<'_>,
    traces: Option<Value>,
    mut records: Vec<Entry>,
) -> Result<Vec<DeviceBuilder>, ReadError> {
    let mut lists = Vec::new();
    for (index, &list) in view.items(traces)?.unwrap_or_default().iter().enumerate() {
        let place = || format!("device {index}");
        if index as u64 >= MAX_DEVICES {
            return Err(place.error(format!("there are more than {MAX_DEVICES} devices")));
        }
        let wrong = || place.error(format!("is {}, wanted a list", list.type_name()));
        lists.push(view.items(Some(list))?.ok_or_else(wrong)?);
    }
    let is_single = lists.iter().filter(|list| !list.is_empty()).count() == 1;
    let mut devices = Vec::new();
    for (index, items) in lists.into_iter().enumerate() {
        let mut device = DeviceBuilder::new(index);
        // Most files have the entries of one device, each once, and nothing else with an `action`.
        let in_list = items.iter().map(|&item| view.record(item));
        if is_single && !items.is_empty() && in_list.eq((0..records.len()).map(Some)) {
            device.take_records(view, std::mem::take(&mut records))?;
        } else {
            device.add_entries(view, &records, items)?;
        }
        devices.push(device);
    }
    Ok(devices)
}

/// Reads the segments and gives each to its device.
fn read_segments(
    view: &View<'_>,
    segments: Option<Value>,
    devices: &mut Vec<DeviceBuilder>,
) -> Result<(), ReadError> {
    for (index, &item) in view.items(segments)?.unwrap_or_default().iter().enumerate() {
        let place = || format!("segment {index}");
        let Some(fields) = view.dict(item)? else {
            return Err(place.error(format!("is {}, wanted a dict", item.type_name())));
        };
        let device = fields.number_or(words::DEVICE, Some(0), &place)?;
        if device >= MAX_DEVICES {
            return Err(place.error(format!("`device` {device} is not below {MAX_DEVICES}")));
        }
        let device = device as usize;
        while devices.len() <= device {
            devices.push(DeviceBuilder::new(devices.len()));
        }
        let segment = read_segment(view, &mut devices[device], fields, &place)?;
        devices[device].add_segment(segment);
    }
    Ok(())
}

/// Reads `allocator_settings`; what is not there keeps its default.
fn read_settings(view: &View<'_>, root: Fields<'_>) -> Result<Settings, ReadError> {
    let fields = match root.get(words::ALLOCATOR_SETTINGS) {
        Some(value) => view.dict(value)?,
        None => None,
    };
    let Some(fields) = fields else { return Ok(Settings::default()) };
    let conf = fields.get(words::CONF).or_else(|| fields.get(words::CONF_NEW));
    Ok(Settings {
        conf: view.as_text(conf).unwrap_or_default().to_owned(),
        expandable_segments: fields.get(words::EXPANDABLE_SEGMENTS) == Some(Value::TRUE),
    })
}
