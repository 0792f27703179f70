//! Statistics and layout.

use std::ffi::c_void;

use girih_runtime::BlockView;
use girih_trace::BlockState;

use super::blocks::{give, put};
use super::error::guard;
use super::types::{Block, Pool, PoolVisitor, Segment, Stat, Stats, Status, Visitor};
use crate::error::{Outcome, unknown};
use crate::heap::Heap;
use crate::heaps;

/// The counters of a device.
///
/// # Safety
/// `stats` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_get_stats(device: i32, stats: *mut Stats) -> Status {
    // SAFETY: the caller says that it is null or can be written to.
    give(|| look(device, Heap::stats), |found| unsafe { put(stats, found) })
}

/// Sets the peak of every counter of a device to its present value.
#[unsafe(no_mangle)]
pub extern "C" fn girih_reset_peak_stats(device: i32) -> Status {
    guard(|| look(device, Heap::reset_peak_stats))
}

/// Counts what comes and goes on a device from 0 again.
#[unsafe(no_mangle)]
pub extern "C" fn girih_reset_accumulated_stats(device: i32) -> Status {
    guard(|| look(device, Heap::reset_accumulated_stats))
}

/// Shows each private pool of a device that holds or held memory, with the bytes of it.
///
/// # Safety
/// `visitor` is null or can be called with `user`; it does not call this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_visit_pools(
    device: i32,
    visitor: Option<PoolVisitor>,
    user: *mut c_void,
) -> Status {
    guard(|| {
        let visitor = visitor.ok_or_else(|| unknown("there is no visitor at null"))?;
        let mut show_pool = |pool: Pool, reserved: [Stat; 3]| {
            // SAFETY: the caller says that it can be called with `user`; the three counters live until
            // it returns.
            unsafe { visitor(user, pool, reserved.as_ptr()) };
        };
        look(device, |heap| heap.visit_pools(&mut show_pool))
    })
}

/// Shows each segment of a device by address, with its blocks.
///
/// # Safety
/// `visitor` is null or can be called with `user`; it does not call this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_visit(
    device: i32,
    visitor: Option<Visitor>,
    user: *mut c_void,
) -> Status {
    guard(|| {
        let visitor = visitor.ok_or_else(|| unknown("there is no visitor at null"))?;
        let mut shown = Vec::new();
        let mut show_segment = |segment: Segment, blocks: &[BlockView]| {
            shown.clear();
            shown.extend(blocks.iter().map(show));
            // SAFETY: the caller says that it can be called with `user`; the segment and the
            // blocks live until it returns.
            unsafe { visitor(user, &raw const segment, shown.as_ptr(), shown.len()) };
        };
        look(device, |heap| heap.visit(&mut show_segment))
    })
}

/// What `see` sees in the heap of a device; nothing if the device was not used.
fn look<T: Default>(device: i32, see: impl FnOnce(&Heap) -> Outcome<T>) -> Outcome<T> {
    heaps::look(device)?.map_or_else(|| Ok(T::default()), see)
}

fn show(block: &BlockView) -> Block {
    Block {
        address: block.address,
        size: block.size,
        requested: if block.state == BlockState::Inactive { 0 } else { block.requested },
        allocated: block.state == BlockState::Allocated,
        active: block.state != BlockState::Inactive,
    }
}
