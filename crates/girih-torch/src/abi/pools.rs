//! Private pools and their checkpoints.

use std::ffi::c_void;

use super::blocks::{give, put};
use super::error::guard;
use super::types::{Pool, Status};
use crate::error::unknown;
use crate::heap::HeapCheckpoint;
use crate::heaps;
use crate::sources::{Source, SourceAlloc, SourceFree};

/// Makes a pool, or adds a user to it.
#[unsafe(no_mangle)]
pub extern "C" fn girih_pool_create(device: i32, pool: Pool) -> Status {
    guard(|| heaps::heap(device)?.create_pool(pool.into()))
}

/// A user of a pool is done with it.
#[unsafe(no_mangle)]
pub extern "C" fn girih_pool_release(device: i32, pool: Pool) -> Status {
    guard(|| heaps::heap(device)?.release_pool(pool.into()))
}

/// The users of a pool.
///
/// # Safety
/// `count` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_pool_use_count(device: i32, pool: Pool, count: *mut i32) -> Status {
    give(
        || heaps::heap(device)?.pool_users(pool.into()),
        // SAFETY: the caller says that it is null or can be written to.
        |users| unsafe { put(count, users as i32) },
    )
}

/// Whether the free blocks of a pool serve the default pool when the device has no more.
#[unsafe(no_mangle)]
pub extern "C" fn girih_pool_use_on_oom(device: i32, pool: Pool, use_on_oom: bool) -> Status {
    guard(|| {
        let heap = heaps::heap(device)?;
        heap.set_pool_options(pool.into(), |options| options.use_on_oom = use_on_oom)
    })
}

/// Blocks of the pool are never split.
#[unsafe(no_mangle)]
pub extern "C" fn girih_pool_no_split(device: i32, pool: Pool) -> Status {
    guard(|| {
        let heap = heaps::heap(device)?;
        heap.set_pool_options(pool.into(), |options| options.no_split = true)
    })
}

/// The pool takes its memory in allocations of the device, each of which has one handle.
#[unsafe(no_mangle)]
pub extern "C" fn girih_pool_one_handle(device: i32, pool: Pool) -> Status {
    guard(|| heaps::heap(device)?.keep_in_one_handle(pool.into()))
}

/// The pool takes its memory from an allocator of its own, in place of the device.
///
/// # Safety
/// Both functions can be called with `user` on any thread until the process ends; they do not unwind,
/// and do not call this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_pool_source(
    device: i32,
    pool: Pool,
    alloc: Option<SourceAlloc>,
    free: Option<SourceFree>,
    user: *mut c_void,
) -> Status {
    guard(|| {
        let both = alloc.zip(free);
        let (alloc, free) = both.ok_or_else(|| unknown("there is no allocator at null"))?;
        // SAFETY: the caller says so.
        let source = unsafe { Source::new(alloc, free, user) };
        heaps::heap(device)?.set_pool_source(pool.into(), source)
    })
}

/// Opens a scope of a pool.
#[unsafe(no_mangle)]
pub extern "C" fn girih_pool_begin(device: i32, pool: Pool, captures: bool) -> Status {
    guard(|| heaps::heap(device)?.begin_pool(pool.into(), captures))
}

/// Closes a scope of a pool.
#[unsafe(no_mangle)]
pub extern "C" fn girih_pool_end(device: i32, pool: Pool, captures: bool) -> Status {
    guard(|| heaps::heap(device)?.end_pool(pool.into(), captures))
}

/// Notes the blocks of a pool.
///
/// # Safety
/// `checkpoint` can be written to. What it is given goes to [`girih_checkpoint_drop`] once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_checkpoint_take(
    device: i32,
    pool: Pool,
    checkpoint: *mut *mut HeapCheckpoint,
) -> Status {
    give(
        || heaps::heap(device)?.checkpoint(pool.into()),
        // SAFETY: the caller says that it can be written to.
        |taken| unsafe { put(checkpoint, Box::into_raw(Box::new(taken))) },
    )
}

/// Forgets a checkpoint. Null is ignored.
///
/// # Safety
/// It is null, or came from [`girih_checkpoint_take`] and was not dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_checkpoint_drop(checkpoint: *mut HeapCheckpoint) {
    if !checkpoint.is_null() {
        // SAFETY: `girih_checkpoint_take` made it of a box, and nobody has it any more.
        drop(unsafe { Box::from_raw(checkpoint) });
    }
}

/// What is told of an address.
pub type Told = unsafe extern "C" fn(user: *mut c_void, address: *mut c_void);

/// Brings a pool back to a checkpoint. `freed` and `allocated` are told after it is done and
/// without the heap's lock.
///
/// # Safety
/// `checkpoint` came from [`girih_checkpoint_take`] and was not dropped. `freed` and `allocated`
/// are null or can be called with `user`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_checkpoint_restore(
    device: i32,
    checkpoint: *const HeapCheckpoint,
    freed: Option<Told>,
    allocated: Option<Told>,
    user: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: null, or a checkpoint that lives.
        let checkpoint = unsafe { checkpoint.as_ref() };
        let checkpoint = checkpoint.ok_or_else(|| unknown("there is no checkpoint at null"))?;
        let (gone, come) = heaps::heap(device)?.restore(checkpoint)?;
        for (tell, addresses) in [(freed, gone), (allocated, come)] {
            let Some(tell) = tell else { continue };
            for address in addresses {
                // SAFETY: the caller says that it can be called with `user`.
                unsafe { tell(user, address as *mut c_void) };
            }
        }
        Ok(())
    })
}
