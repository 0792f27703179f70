//! What the tests share.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(unreachable_pub, reason = "the tests are crates of their own")]

pub mod check;
pub mod pickle;

use std::path::PathBuf;

use arbitrary::Unstructured;
use girih_trace::generate::{Bytes, recording};
use girih_trace::{Action, Event, PoolId, Recording, StackId, StreamId, Trace};

/// The folder of shared recordings and problems, or none, with a word about it.
#[expect(clippy::print_stderr, reason = "a test that skips must say so")]
pub fn shared(folder: &str) -> Option<PathBuf> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared");
    let path = PathBuf::from(path).join(folder);
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("skipped: {} is not there", path.display());
    None
}

/// An arbitrary recording from arbtest's bytes.
pub fn arbitrary_recording(u: &mut Unstructured<'_>) -> arbitrary::Result<Recording> {
    let length = u.arbitrary_len::<u8>()?;
    let bytes = u.bytes(length)?;
    Ok(recording(&mut Bytes::new(bytes), 300))
}

/// An event with its ids resolved, so that traces can be compared that number things differently.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolved {
    pub action: Action,
    pub address: u64,
    pub size: u64,
    pub time_us: i64,
    pub stream: u64,
    pub pool: (u64, u64),
    pub stack: Vec<String>,
}

/// Every event of a trace, resolved.
pub fn resolve(trace: &Trace) -> Vec<Resolved> {
    let resolved = |event: &Event| Resolved {
        action: event.action,
        address: event.address,
        size: event.size,
        time_us: event.time_us,
        stream: stream(trace, event.stream),
        pool: pool(trace, event.pool),
        stack: stack(trace, event.stack),
    };
    trace.events.iter().map(resolved).collect()
}

pub fn stream(trace: &Trace, id: StreamId) -> u64 {
    trace.streams[usize::from(id.0)]
}

pub fn pool(trace: &Trace, id: PoolId) -> (u64, u64) {
    trace.pools[usize::from(id.0)]
}

/// The frames of a stack; none if there is no stack.
pub fn stack(trace: &Trace, id: StackId) -> Vec<String> {
    if !id.is_some() {
        return Vec::new();
    }
    let frame = |&frame: &u32| trace.frames[frame as usize].clone();
    trace.stacks[id.0 as usize].iter().map(frame).collect()
}
