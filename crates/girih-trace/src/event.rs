//! Events and the ids they carry.
//!
//! An [`Event`] is what PyTorch calls a trace entry (`TraceEntry` of `CUDACachingAllocator.h`),
//! with its strings and pairs replaced by small indices into tables of the [`Trace`].
//!
//! [`Trace`]: crate::Trace

use std::fmt;

/// A position in the event list of a trace. Lifetimes are half-open, `[birth, death)`, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Tick(pub u32);

impl Tick {
    /// Later than every tick of a trace: the death of a block that is never freed.
    pub const NEVER: Tick = Tick(u32::MAX);

    /// The tick as an index into the events.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A stream of the device, as an index into [`Trace::streams`](crate::Trace::streams), which has
/// the driver's own handle. Streams are numbered in the order in which they appear.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct StreamId(pub u16);

/// A memory pool, as an index into [`Trace::pools`](crate::Trace::pools). Index 0 is always the
/// default pool, `(0, 0)`; the others are private pools of CUDA graphs and of `MemPool`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PoolId(pub u16);

impl PoolId {
    /// The pool that serves every request outside a graph capture or a `use_mem_pool` block.
    pub const DEFAULT: PoolId = PoolId(0);
}

/// A call stack, as an index into [`Trace::stacks`](crate::Trace::stacks).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StackId(pub u32);

impl StackId {
    /// No stack was recorded for this event.
    pub const NONE: StackId = StackId(u32::MAX);

    /// True if a stack was recorded.
    pub fn is_some(self) -> bool {
        self != StackId::NONE
    }
}

impl Default for StackId {
    fn default() -> Self {
        StackId::NONE
    }
}

/// What happened. The names are PyTorch's; `size` says what [`Event::size`] means for each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Action {
    /// A block was given. size: bytes requested, before rounding.
    Alloc = 0,
    /// The program let go of a block. size: bytes requested.
    FreeRequested = 1,
    /// The block can be reused: its streams are done with it. size: bytes requested.
    FreeCompleted = 2,
    /// The allocator took a segment with `cudaMalloc`. size: bytes of the segment.
    SegmentAlloc = 3,
    /// The allocator gave a segment back with `cudaFree`. size: bytes of the segment.
    SegmentFree = 4,
    /// The allocator mapped pages into an expandable segment. size: bytes mapped.
    SegmentMap = 5,
    /// The allocator unmapped pages of an expandable segment. size: bytes unmapped.
    SegmentUnmap = 6,
    /// A request failed. size: bytes after rounding; [`Event::address`] holds the device's free
    /// bytes, as the recorder gives them.
    Oom = 7,
    /// A snapshot was taken. size: active bytes.
    Snapshot = 8,
    /// A live block was annotated (torch 2.14 and later). size: bytes requested.
    Annotate = 9,
}

impl Action {
    /// Every action, in the order of their codes.
    pub const ALL: [Action; 10] = [
        Action::Alloc,
        Action::FreeRequested,
        Action::FreeCompleted,
        Action::SegmentAlloc,
        Action::SegmentFree,
        Action::SegmentMap,
        Action::SegmentUnmap,
        Action::Oom,
        Action::Snapshot,
        Action::Annotate,
    ];

    /// The name that PyTorch writes into a snapshot.
    pub fn name(self) -> &'static str {
        match self {
            Action::Alloc => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
            Action::SegmentAlloc => "segment_alloc",
            Action::SegmentFree => "segment_free",
            Action::SegmentMap => "segment_map",
            Action::SegmentUnmap => "segment_unmap",
            Action::Oom => "oom",
            Action::Snapshot => "snapshot",
            Action::Annotate => "annotate",
        }
    }

    /// The action of that name, if there is one.
    pub fn from_name(name: &str) -> Option<Action> {
        Action::ALL.into_iter().find(|action| action.name() == name)
    }

    /// True for the four actions that change what the allocator holds of the device.
    pub fn is_segment(self) -> bool {
        matches!(
            self,
            Action::SegmentAlloc | Action::SegmentFree | Action::SegmentMap | Action::SegmentUnmap
        )
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One entry of a trace. 40 bytes, so that a million of them stay cheap to hold and to walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Device address of the block or segment; for [`Action::Oom`] the device's free bytes.
    pub address: u64,
    /// Bytes; what they count depends on the action.
    pub size: u64,
    /// Microseconds of the recorder's clock; 0 where it kept none.
    pub time_us: i64,
    /// The call stack that led here, if stacks were recorded.
    pub stack: StackId,
    /// The stream that the block belongs to.
    pub stream: StreamId,
    /// The pool that the block belongs to.
    pub pool: PoolId,
    /// What happened.
    pub action: Action,
}

impl Event {
    /// An event without time and stack, which are a recorder's to fill in.
    #[inline]
    pub fn of(action: Action, address: u64, size: u64, stream: StreamId, pool: PoolId) -> Event {
        Event { address, size, time_us: 0, stack: StackId::NONE, stream, pool, action }
    }
}
