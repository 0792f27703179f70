//! The trace of one device, and the recording that holds one trace for each device.

use crate::event::{Action, Event, PoolId, StackId, StreamId};
use crate::mark::{Mark, Recorded};
use crate::uses::Uses;

/// Everything that one file held: a trace for each device that has events, in device order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Recording {
    /// The traces, by ascending [`Trace::device`]. A device without events and without segments
    /// has none.
    pub traces: Vec<Trace>,
}

/// An ordered list of events of one device, with the tables that its small ids index.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Trace {
    /// The device's ordinal in the recorded process.
    pub device: u32,
    /// What happened, in order.
    pub events: Vec<Event>,
    /// The driver's handle of each stream, indexed by [`StreamId`]. 0 is the default stream.
    pub streams: Vec<u64>,
    /// PyTorch's id of each pool, indexed by [`PoolId`]; the first is `(0, 0)`.
    pub pools: Vec<(u64, u64)>,
    /// Marks in order of [`Mark::before`].
    pub marks: Vec<Mark>,
    /// The operators and the blocks that they used. Empty where they were not recorded, as by PyTorch.
    pub uses: Uses,
    /// The segments at the end of the recording, by address. Empty if the file had none, which
    /// does not mean that the process had none.
    pub segments: Vec<Segment>,
    /// Call stacks, innermost frame first, as indices into `frames`. Indexed by [`StackId`].
    pub stacks: Vec<Vec<u32>>,
    /// The distinct frames, each as `file:line name`.
    pub frames: Vec<String>,
    /// The allocator's settings, where the file had them.
    pub settings: Settings,
    /// Where the trace came from, and what is known to be missing.
    pub origin: Origin,
    /// What the process reported of itself.
    pub recorded: Recorded,
}

/// The allocator settings that a snapshot keeps (`allocator_settings`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// `PYTORCH_CUDA_ALLOC_CONF` as the user wrote it.
    pub conf: String,
    /// True if the recorded process used expandable segments.
    pub expandable_segments: bool,
}

/// What a reader learnt about the file itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Origin {
    /// Which kind of file it was: `snapshot`, `trace`, or what made it (`replay of NAME`).
    pub kind: String,
    /// Sentences for the user about what the file lacks (events dropped, entries unknown). Empty
    /// if nothing was noticed.
    pub warnings: Vec<String>,
    /// True if there are signs that the oldest events were overwritten or were never recorded:
    /// frees or annotations of blocks that no event allocated, or allocations in memory that no
    /// event took from the device.
    pub truncated: bool,
}

impl Trace {
    /// The most bytes that the segment events add up to. What was held before the first event is not known
    /// here.
    pub(crate) fn most_taken(&self) -> u64 {
        let (mut now, mut most) = (0_i128, 0);
        for event in &self.events {
            match event.action {
                Action::SegmentAlloc | Action::SegmentMap => now += i128::from(event.size),
                Action::SegmentFree | Action::SegmentUnmap => now -= i128::from(event.size),
                _ => {}
            }
            most = most.max(now);
        }
        u64::try_from(most).unwrap_or(u64::MAX)
    }
}

/// A segment at the end of the recording.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Device address of its first byte.
    pub address: u64,
    /// Bytes that are mapped.
    pub size: u64,
    /// The stream whose requests it serves.
    pub stream: StreamId,
    /// The pool that it belongs to.
    pub pool: PoolId,
    /// True for the pool of requests of at most 1 MiB.
    pub is_small: bool,
    /// True if it is a mapped run of an expandable segment.
    pub is_expandable: bool,
    /// Its blocks, by address; together they tile it.
    pub blocks: Vec<Block>,
}

/// A block of a [`Segment`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// Device address of its first byte.
    pub address: u64,
    /// Bytes granted.
    pub size: u64,
    /// Bytes requested. Stale for an inactive block.
    pub requested: u64,
    /// Whether it is in use.
    pub state: BlockState,
    /// The stack that allocated it, where stacks were recorded.
    pub stack: StackId,
}

/// The state of a [`Block`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum BlockState {
    /// In use (`active_allocated`).
    Allocated = 0,
    /// Let go of, but a stream may still use it (`active_pending_free`).
    PendingFree = 1,
    /// Free (`inactive`).
    Inactive = 2,
}
