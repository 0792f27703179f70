//! The types that both sides of the C interface share, field by field as in the header.

use std::ffi::c_void;

use girih_runtime::caching::rounding::ROUNDUP_BUCKETS;
use girih_runtime::{Counter, Counters};

use crate::error::HeapError;
use crate::settings;

/// `girih_status`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// Nothing that is free serves the request and the device gives no more.
    OutOfMemory = 1,
    /// The pointer is of no live block of any heap, or the device or pool does not exist.
    Unknown = 2,
    /// The driver refused a call for another reason than memory.
    Driver = 3,
    /// What was asked for cannot be done with this kind of memory.
    Unsupported = 4,
    /// A panic inside Girih. The heap refuses all further work.
    Bug = 5,
}

impl From<&HeapError> for Status {
    fn from(error: &HeapError) -> Status {
        match error {
            HeapError::OutOfMemory(_) => Status::OutOfMemory,
            HeapError::Unknown(_) => Status::Unknown,
            HeapError::Driver(_) => Status::Driver,
            HeapError::Unsupported(_) => Status::Unsupported,
            HeapError::Bug(_) | HeapError::SegmentLeft(_) => Status::Bug,
        }
    }
}

/// `girih_pool`: PyTorch's `MempoolId_t`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pool {
    /// The first number.
    pub first: u64,
    /// The second number.
    pub second: u64,
}

impl From<Pool> for (u64, u64) {
    fn from(pool: Pool) -> (u64, u64) {
        (pool.first, pool.second)
    }
}

/// `girih_oom`: what is known of a failed request. Bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Oom {
    /// The device.
    pub device: i32,
    /// Refused before anything was given back for it.
    pub is_rejection: bool,
    /// Asked for.
    pub requested: u64,
    /// What the heap would have had to take from the device.
    pub needed: u64,
    /// In use by the program.
    pub allocated: u64,
    /// Held by the heap.
    pub reserved: u64,
    /// What the heap may hold.
    pub limit: u64,
    /// Free on the device.
    pub device_free: u64,
    /// Of the device.
    pub device_total: u64,
}

/// `girih_settings`: those of the caching allocator that a snapshot shows.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Settings {
    /// Bytes from which on a block is not split; the largest number without a limit.
    pub max_split_size: u64,
    /// 0 is off.
    pub garbage_collection_threshold: f64,
    /// By power of two from 1 MiB on; 0 is off.
    pub roundup_power2_divisions: [u32; ROUNDUP_BUCKETS],
    /// Segments are expandable, or stitched.
    pub expandable_segments: bool,
    /// Segments are taken from the device without the lock of a heap.
    pub release_lock_on_malloc: bool,
    /// What other streams used within a capture is used again within it, where the driver tells of graphs.
    pub graph_capture_record_stream_reuse: bool,
}

impl From<&settings::Settings> for Settings {
    fn from(settings: &settings::Settings) -> Settings {
        let config = &settings.config;
        Settings {
            max_split_size: config.max_split_size,
            garbage_collection_threshold: config.garbage_collection_threshold,
            roundup_power2_divisions: config.roundup_power2_divisions,
            expandable_segments: config.expandable_segments,
            release_lock_on_malloc: settings.mode.takes_segments_unlocked(config),
            graph_capture_record_stream_reuse: config.graph_capture_record_stream_reuse,
        }
    }
}

/// `girih_stat`: one counter.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stat {
    /// The present value.
    pub current: i64,
    /// The highest value since the last reset.
    pub peak: i64,
    /// The sum of all increases since the last reset.
    pub allocated: i64,
    /// The sum of all decreases since the last reset.
    pub freed: i64,
}

impl Stat {
    /// A counter, with what came and went before `baseline` left out.
    fn of(counter: &Counter, baseline: &Counter) -> Stat {
        Stat {
            current: counter.current as i64,
            peak: counter.peak as i64,
            allocated: (counter.allocated - baseline.allocated) as i64,
            freed: (counter.freed() - baseline.freed()) as i64,
        }
    }

    /// The counters of both pools, of small and of large requests.
    pub(crate) fn all_of(counters: &Counters, baseline: &Counters) -> [Stat; 3] {
        [
            Stat::of(&counters.all(), &baseline.all()),
            Stat::of(&counters.small, &baseline.small),
            Stat::of(&counters.large, &baseline.large),
        ]
    }
}

/// `girih_stats`: the fields of PyTorch's `DeviceStats`. Arrays: both pools, small, large.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Blocks in use by the program.
    pub allocation: [Stat; 3],
    /// Segments taken whole from the device.
    pub segment: [Stat; 3],
    /// Blocks not yet reusable.
    pub active: [Stat; 3],
    /// Free blocks that cannot be given back alone.
    pub inactive_split: [Stat; 3],
    /// Bytes of `allocation`.
    pub allocated_bytes: [Stat; 3],
    /// Bytes held of the device.
    pub reserved_bytes: [Stat; 3],
    /// Bytes of `active`.
    pub active_bytes: [Stat; 3],
    /// Bytes of `inactive_split`.
    pub inactive_split_bytes: [Stat; 3],
    /// Bytes asked for, of the active blocks.
    pub requested_bytes: [Stat; 3],
    /// Blocks of at least `max_split_size`.
    pub oversize_allocations: Stat,
    /// Segments of at least `max_split_size`.
    pub oversize_segments: Stat,
    /// Requests that were tried again after cached memory was given back.
    pub num_alloc_retries: i64,
    /// Requests that failed.
    pub num_ooms: i64,
    /// Times that all recorded streams were waited for.
    pub num_sync_all_streams: i64,
    /// Calls that took memory from the device.
    pub num_device_alloc: i64,
    /// Calls that gave memory back.
    pub num_device_free: i64,
    /// Requests that were refused before anything was given back for them.
    pub num_oom_rejections: i64,
    /// Bytes from which on blocks are not split; -1 without a limit.
    pub max_split_size: i64,
}

impl Stats {
    /// The counters of a policy. What came and went before `baseline` is left out, and of the
    /// counts those that PyTorch resets with it.
    pub(crate) fn of(
        now: &girih_runtime::Stats,
        baseline: &girih_runtime::Stats,
        max_split_size: u64,
    ) -> Stats {
        let three = Stat::all_of;
        let since = |now: u64, before: u64| now.saturating_sub(before) as i64;
        Stats {
            allocation: three(&now.allocation, &baseline.allocation),
            segment: three(&now.segment, &baseline.segment),
            active: three(&now.active, &baseline.active),
            inactive_split: three(&now.inactive_split, &baseline.inactive_split),
            allocated_bytes: three(&now.allocated_bytes, &baseline.allocated_bytes),
            reserved_bytes: three(&now.reserved_bytes, &baseline.reserved_bytes),
            active_bytes: three(&now.active_bytes, &baseline.active_bytes),
            inactive_split_bytes: three(&now.inactive_split_bytes, &baseline.inactive_split_bytes),
            requested_bytes: three(&now.requested_bytes, &baseline.requested_bytes),
            oversize_allocations: Stat::of(
                &now.oversize_allocations,
                &baseline.oversize_allocations,
            ),
            oversize_segments: Stat::of(&now.oversize_segments, &baseline.oversize_segments),
            num_alloc_retries: since(now.num_alloc_retries, baseline.num_alloc_retries),
            num_ooms: since(now.num_ooms, baseline.num_ooms),
            num_sync_all_streams: since(now.num_sync_all_streams, baseline.num_sync_all_streams),
            num_device_alloc: since(now.num_device_alloc, baseline.num_device_alloc),
            num_device_free: since(now.num_device_free, baseline.num_device_free),
            num_oom_rejections: since(now.num_oom_rejections, baseline.num_oom_rejections),
            max_split_size: max_split_size as i64,
        }
    }
}

/// `girih_event`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Event {
    /// Of the block or segment; for an out-of-memory event the device's free bytes.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// The driver's handle of the stream.
    pub stream: u64,
    /// The pool.
    pub pool: Pool,
    /// The device.
    pub device: i32,
    /// The code of the action (`girih_action`), which is that of [`girih_trace::Action`].
    pub action: i32,
}

/// `girih_segment`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Of its first byte.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// The driver's handle of the stream.
    pub stream: u64,
    /// The pool.
    pub pool: Pool,
    /// The device.
    pub device: i32,
    /// How many had come before it, in this process on this device (`registration_counter`).
    pub registration: u32,
    /// True if it serves requests of more than 1 MiB.
    pub is_large: bool,
    /// True if it is mapped page by page.
    pub is_expandable: bool,
}

/// `girih_block`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Of its first byte.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes asked for; 0 for a free block.
    pub requested: u64,
    /// In use by the program.
    pub allocated: bool,
    /// In use by the program, or freed and still in use by a stream.
    pub active: bool,
}

/// `girih_visitor`.
pub type Visitor = unsafe extern "C" fn(
    user: *mut c_void,
    segment: *const Segment,
    blocks: *const Block,
    block_count: usize,
);

/// `girih_pool_visitor`.
pub type PoolVisitor = unsafe extern "C" fn(user: *mut c_void, pool: Pool, reserved: *const Stat);
