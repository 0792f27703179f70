//! What the tests of the C interface share: settings, and calls as a C program makes them.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![expect(unsafe_code, reason = "it calls a C interface")]

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::Once;

use girih_torch::abi::{self, Oom, Pool, Stat, Stats, Status, blocks, memory, pools, view};
use girih_torch::control;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const DEFAULT: Pool = Pool { first: 0, second: 0 };

/// Chooses the settings of this test program, once: a simulated device of `capacity` bytes in the
/// place of each of 64 GPUs. Each test uses a device of its own.
pub(crate) fn set_up(mode: &str, capacity: u64, more: &str) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let options = format!(r#"{{"mode": "{mode}", "sim": {{"capacity": {capacity}}} {more}}}"#);
        control::configure(&options).expect("the settings are right");
        assert_eq!(blocks::girih_init(64), Status::Ok);
    });
}

pub(crate) fn try_alloc(device: i32, size: u64, stream: u64, pool: Pool) -> Result<u64, Status> {
    let mut address = std::ptr::dangling_mut();
    // SAFETY: `address` can be written to.
    let status = unsafe { blocks::girih_alloc(device, size, stream, pool, &raw mut address) };
    match status {
        Status::Ok => Ok(address as u64),
        status => {
            assert!(address.is_null(), "a failed request gives null");
            Err(status)
        }
    }
}

pub(crate) fn alloc(device: i32, size: u64, stream: u64) -> u64 {
    try_alloc(device, size, stream, DEFAULT).unwrap_or_else(|status| {
        panic!("{size} bytes: {status:?}: {}", last_error());
    })
}

pub(crate) fn free(address: u64) -> Status {
    blocks::girih_free(address as *mut c_void)
}

pub(crate) fn last_error() -> String {
    // SAFETY: it is never null and ends with a zero.
    unsafe { CStr::from_ptr(abi::girih_last_error()) }.to_string_lossy().into_owned()
}

pub(crate) fn last_oom() -> Oom {
    let mut oom = Oom::default();
    // SAFETY: `oom` can be written to.
    unsafe { abi::girih_last_oom(&raw mut oom) };
    oom
}

pub(crate) fn stats(device: i32) -> Stats {
    let mut stats = Stats::default();
    // SAFETY: `stats` can be written to.
    assert_eq!(unsafe { view::girih_get_stats(device, &raw mut stats) }, Status::Ok);
    stats
}

pub(crate) fn base(address: u64) -> Result<(u64, u64), Status> {
    let (mut base, mut size) = (null_mut(), 0);
    // SAFETY: both can be written to.
    match unsafe { blocks::girih_base(address as *const c_void, &raw mut base, &raw mut size) } {
        Status::Ok => Ok((base as u64, size)),
        status => Err(status),
    }
}

pub(crate) fn device_of(address: u64) -> Result<i32, Status> {
    let mut device = -1;
    // SAFETY: `device` can be written to.
    match unsafe { blocks::girih_device_of(address as *const c_void, &raw mut device) } {
        Status::Ok => Ok(device),
        status => Err(status),
    }
}

pub(crate) fn memory_fraction(device: i32) -> f64 {
    let mut fraction = -1.0;
    // SAFETY: `fraction` can be written to.
    assert_eq!(unsafe { memory::girih_memory_fraction(device, &raw mut fraction) }, Status::Ok);
    fraction
}

pub(crate) fn largest_free(device: i32) -> u64 {
    let mut size = 0;
    // SAFETY: `size` can be written to.
    assert_eq!(unsafe { memory::girih_largest_free(device, &raw mut size) }, Status::Ok);
    size
}

pub(crate) fn pool_users(device: i32, pool: Pool) -> i32 {
    let mut users = -1;
    // SAFETY: `users` can be written to.
    assert_eq!(unsafe { pools::girih_pool_use_count(device, pool, &raw mut users) }, Status::Ok);
    users
}

/// Each segment with its blocks.
pub(crate) fn layout(device: i32) -> Vec<(abi::Segment, Vec<abi::Block>)> {
    unsafe extern "C" fn collect(
        user: *mut c_void,
        segment: *const abi::Segment,
        blocks: *const abi::Block,
        count: usize,
    ) {
        // SAFETY: `user` is the vector below; the others live while this runs.
        unsafe {
            let all = &mut *user.cast::<Vec<(abi::Segment, Vec<abi::Block>)>>();
            all.push((*segment, std::slice::from_raw_parts(blocks, count).to_vec()));
        }
    }
    let mut all: Vec<(abi::Segment, Vec<abi::Block>)> = Vec::new();
    let user = (&raw mut all).cast();
    // SAFETY: `collect` can be called with `user` until this returns.
    assert_eq!(unsafe { view::girih_visit(device, Some(collect), user) }, Status::Ok);
    all
}

/// What each private pool holds or held: both size classes, small requests, large requests.
pub(crate) fn reserved_of_pools(device: i32) -> Vec<(Pool, [Stat; 3])> {
    unsafe extern "C" fn collect(user: *mut c_void, pool: Pool, reserved: *const Stat) {
        // SAFETY: `user` is the vector below, and there are three counters while this runs.
        unsafe {
            let all = &mut *user.cast::<Vec<(Pool, [Stat; 3])>>();
            all.push((pool, [*reserved, *reserved.add(1), *reserved.add(2)]));
        }
    }
    let mut all: Vec<(Pool, [Stat; 3])> = Vec::new();
    let user = (&raw mut all).cast();
    // SAFETY: `collect` can be called with `user` until this returns.
    assert_eq!(unsafe { view::girih_visit_pools(device, Some(collect), user) }, Status::Ok);
    all
}

/// Whether a request would be served of what the heap holds.
pub(crate) fn has_room(device: i32, size: u64, stream: u64, pool: Pool) -> bool {
    let mut found = false;
    // SAFETY: `found` can be written to.
    let status = unsafe { blocks::girih_has_room(device, size, stream, pool, &raw mut found) };
    assert_eq!(status, Status::Ok);
    found
}
