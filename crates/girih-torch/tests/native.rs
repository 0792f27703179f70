//! The C interface over PyTorch's own algorithm, on simulated devices: one for each test.

#![expect(unsafe_code, reason = "it calls a C interface")]

mod common;

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use common::*;
use girih_torch::abi::{self, Pool, Status, blocks, ipc, memory, pools, view};
use girih_torch::control;
use serde_json::Value;

/// A cache is emptied of all devices at once, those of other tests too.
static CACHES: RwLock<()> = RwLock::new(());

/// The allocator, whose caches stay as long as this is held.
fn native() -> RwLockReadGuard<'static, ()> {
    set_up("native", 1 << 30, "");
    CACHES.read().unwrap_or_else(PoisonError::into_inner)
}

/// The allocator for a test that empties caches.
fn native_alone() -> RwLockWriteGuard<'static, ()> {
    set_up("native", 1 << 30, "");
    CACHES.write().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_request_for_nothing_gives_null_and_freeing_null_is_fine() {
    let _caches = native();
    assert_eq!(try_alloc(0, 0, 0, DEFAULT), Ok(0));
    assert_eq!(free(0), Status::Ok);
    assert!(abi::girih_abi() == abi::ABI && blocks::girih_is_initialized());
}

#[test]
fn a_block_is_found_by_its_address_until_it_is_freed() {
    let _caches = native();
    let address = alloc(1, 3 * MIB, 0);
    assert_eq!(device_of(address), Ok(1));
    assert_eq!(base(address + 12345), Ok((address, 20 * MIB)));
    assert_eq!(free(address), Status::Ok);
    assert_eq!(device_of(address), Err(Status::Unknown));
    assert_eq!(base(address), Ok((address, 20 * MIB)), "its segment is still held");
    assert_eq!(free(address), Status::Unknown);
    assert!(last_error().contains("freed already"), "{}", last_error());
}

#[test]
fn blocks_of_several_devices_are_freed_from_one_thread() {
    let _caches = native();
    let all: Vec<u64> = (0..40).map(|k| alloc(2 + k % 3, MIB, 0)).collect();
    for &address in all.iter().rev() {
        assert_eq!(free(address), Status::Ok);
    }
    for device in 2..5 {
        assert_eq!(stats(device).allocation[0].current, 0);
    }
}

#[test]
fn a_foreign_pointer_is_unknown_and_harms_nothing() {
    let _caches = native();
    let mine = alloc(5, MIB, 0);
    assert_eq!(free(0x1234_5600), Status::Unknown);
    assert_eq!(free(mine + 512), Status::Unknown, "only the first address frees");
    let foreign = 0x1234_5600 as *mut c_void;
    assert_eq!(blocks::girih_record_stream(foreign, 0, 7), Status::Unknown);
    assert_eq!(base(0x1234_5600), Err(Status::Unknown));
    assert_eq!(free(mine), Status::Ok);
}

#[test]
fn a_device_that_does_not_exist_is_named_with_how_many_do() {
    let _caches = native();
    assert_eq!(try_alloc(64, MIB, 0, DEFAULT), Err(Status::Unknown));
    assert!(last_error().contains("no device 64: this process has 64"), "{}", last_error());
    assert_eq!(try_alloc(-1, MIB, 0, DEFAULT), Err(Status::Unknown));
    assert_eq!(blocks::girih_init(65), Status::Unknown);
}

#[test]
fn settings_come_too_late_once_they_were_chosen() {
    let _caches = native();
    assert!(control::configure("{}").unwrap_err().contains("once"));
}

#[test]
fn out_of_memory_says_who_holds_what_and_leaves_the_heap_working() {
    let _caches = native();
    let held: Vec<u64> = (0..40).map(|_| alloc(6, 25 * MIB - 100, 0)).take(39).collect();
    assert_eq!(try_alloc(6, 200 * MIB, 0x77, DEFAULT), Err(Status::OutOfMemory));
    assert!(last_error().starts_with("CUDA out of memory. Tried to allocate 200.00 MiB"));
    let oom = last_oom();
    assert_eq!((oom.device, oom.requested, oom.device_total), (6, 200 * MIB, 1 << 30));
    assert_eq!(oom.reserved, stats(6).reserved_bytes[0].current as u64);
    assert_eq!(stats(6).num_ooms, 1);
    held.into_iter().for_each(|address| assert_eq!(free(address), Status::Ok));
    let address = alloc(6, 200 * MIB, 0x77);
    assert_eq!(free(address), Status::Ok);
}

#[test]
fn statistics_are_those_of_pytorch_and_reset_as_there() {
    let _caches = native_alone();
    let (small, large) = (alloc(7, 1000, 0), alloc(7, 3 * MIB, 0));
    let seen = stats(7);
    assert_eq!(seen.allocation.map(|stat| stat.current), [2, 1, 1]);
    assert_eq!(seen.reserved_bytes[0].current, (22 * MIB) as i64);
    assert_eq!(seen.allocated_bytes[1].current, 1024);
    assert_eq!(seen.requested_bytes[1].current, 1000);
    assert_eq!((seen.max_split_size, seen.num_device_alloc), (-1, 2));
    free(large);
    assert_eq!(memory::girih_empty_cache(DEFAULT), Status::Ok);
    let counts = |of: &abi::Stats| {
        [of.num_sync_all_streams, of.num_device_alloc, of.num_device_free, of.num_ooms]
    };
    assert_eq!(counts(&stats(7)), [1, 2, 1, 0]);
    assert_eq!(view::girih_reset_peak_stats(7), Status::Ok);
    assert_eq!(view::girih_reset_accumulated_stats(7), Status::Ok);
    assert_eq!(counts(&stats(7)), [0; 4]);
    free(small);
    let after = stats(7).allocation[0];
    assert_eq!((after.current, after.peak, after.allocated, after.freed), (0, 1, 0, 1));
}

#[test]
fn the_cache_goes_back_when_it_is_emptied_and_a_fraction_limits_it() {
    let _caches = native_alone();
    free(alloc(8, 100 * MIB, 0));
    assert_eq!(memory::girih_empty_cache(DEFAULT), Status::Ok);
    assert_eq!(stats(8).reserved_bytes[0].current, 0);
    assert_eq!(memory_fraction(8), 1.0);
    assert_eq!(largest_free(8), 1 << 30);
    assert_eq!(memory::girih_set_memory_fraction(8, 0.25), Status::Ok);
    assert_eq!((memory_fraction(8), largest_free(8)), (0.25, 256 * MIB));
    assert_eq!(try_alloc(8, 300 * MIB, 0, DEFAULT), Err(Status::OutOfMemory));
    assert!(last_error().contains("set_per_process_memory_fraction"), "{}", last_error());
    assert_eq!(memory::girih_set_memory_fraction(8, 2.0), Status::Unsupported);
    assert_eq!(memory::girih_enable_peer(8, 9), Status::Ok);
}

#[test]
fn the_layout_tiles_every_segment() {
    let _caches = native();
    let first = alloc(9, 3 * MIB, 5);
    let second = alloc(9, 4 * MIB, 5);
    free(first);
    let seen = layout(9);
    assert_eq!(seen.len(), 1);
    let (segment, tiles) = &seen[0];
    assert_eq!((segment.stream, segment.device, segment.is_large), (5, 9, true));
    assert_eq!(tiles.iter().map(|block| block.size).sum::<u64>(), segment.size);
    let live: Vec<u64> = tiles.iter().filter(|b| b.allocated).map(|b| b.address).collect();
    assert_eq!(live, [second]);
    assert!(tiles.iter().all(|block| block.active || block.requested == 0));
}

#[test]
fn pools_have_users_options_and_memory_of_their_own() {
    let _caches = native_alone();
    let pool = Pool { first: 0, second: 17 };
    assert_eq!(pool_users(10, pool), 0);
    assert_eq!(pools::girih_pool_release(10, pool), Status::Unknown);
    assert_eq!(pools::girih_pool_create(10, pool), Status::Ok);
    assert_eq!(pools::girih_pool_begin(10, pool, false), Status::Ok);
    assert_eq!(pool_users(10, pool), 2);
    assert_eq!(pools::girih_pool_no_split(10, pool), Status::Ok);
    assert_eq!(pools::girih_pool_use_on_oom(10, pool, true), Status::Ok);
    let inside = try_alloc(10, 3 * MIB, 0, pool).unwrap();
    assert_eq!(pools::girih_pool_end(10, pool, false), Status::Ok);
    let outside = alloc(10, 3 * MIB, 0);
    let seen = layout(10);
    let of = |wanted: Pool| seen.iter().filter(move |(segment, _)| segment.pool == wanted);
    assert_eq!((of(pool).count(), of(DEFAULT).count()), (1, 1));
    assert_eq!(of(pool).next().unwrap().1.len(), 1, "a block of this pool is not split");
    free(inside);
    free(outside);
    pools::girih_pool_release(10, pool);
    pools::girih_pool_release(10, pool);
    assert_eq!(memory::girih_empty_cache(pool), Status::Ok);
    assert!(layout(10).iter().all(|(segment, _)| segment.pool == DEFAULT));
}

#[test]
fn a_checkpoint_brings_the_blocks_of_a_pool_back_to_their_addresses() {
    unsafe extern "C" fn note(user: *mut c_void, address: *mut c_void) {
        // SAFETY: `user` is the vector below.
        unsafe { &mut *user.cast::<Vec<u64>>() }.push(address as u64);
    }
    let _caches = native();
    let pool = Pool { first: 3, second: 0 };
    pools::girih_pool_create(11, pool);
    let kept = try_alloc(11, 2 * MIB, 0, pool).unwrap();
    let mut checkpoint = null_mut();
    // SAFETY: `checkpoint` can be written to.
    let taken = unsafe { pools::girih_checkpoint_take(11, pool, &raw mut checkpoint) };
    assert_eq!(taken, Status::Ok, "{}", last_error());
    free(kept);
    let other = try_alloc(11, 5 * MIB, 0, pool).unwrap();
    let mut told: Vec<u64> = Vec::new();
    // SAFETY: the checkpoint lives; `note` can be called with the vector.
    let restored = unsafe {
        let user = (&raw mut told).cast();
        pools::girih_checkpoint_restore(11, checkpoint, Some(note), Some(note), user)
    };
    assert_eq!(restored, Status::Ok, "{}", last_error());
    assert_eq!(told, [other, kept]);
    assert_eq!(device_of(kept), Ok(11));
    assert_eq!(free(kept), Status::Ok);
    // SAFETY: it came from `girih_checkpoint_take` and is dropped once.
    unsafe { pools::girih_checkpoint_drop(checkpoint) };
    // SAFETY: null is allowed.
    let nothing = unsafe { pools::girih_checkpoint_restore(11, null(), None, None, null_mut()) };
    assert_eq!(nothing, Status::Unknown);
}

#[test]
fn memory_of_the_simulated_device_cannot_leave_the_process() {
    let _caches = native();
    let address = alloc(13, MIB, 0) as *mut c_void;
    let (mut handle, mut bytes, mut offset) = ([0; ipc::IPC_BYTES], 0, 0);
    // SAFETY: all can be written to.
    let status = unsafe {
        let (bytes, offset) = (&raw mut bytes, &raw mut offset);
        ipc::girih_ipc_export(address, handle.as_mut_ptr(), bytes, offset)
    };
    assert_eq!(status, Status::Unsupported);
    let mut opened = null_mut();
    // SAFETY: the handle has so many bytes, and `opened` can be written to.
    let status = unsafe { ipc::girih_ipc_open(13, handle.as_ptr(), 4, &raw mut opened) };
    assert_eq!(status, Status::Unsupported);
    assert_eq!(ipc::girih_ipc_close(address), Status::Unknown);
}

#[test]
fn the_report_tells_a_limit_that_refused_from_a_device_that_is_full() {
    let _caches = native();
    let report = || -> Value { serde_json::from_str(&control::report(Some(15)).unwrap()).unwrap() };
    let held = alloc(15, 200 * MIB, 0);
    let fresh = report();
    assert!(fresh["limit"].is_null() && fresh["last_oom"].is_null());
    assert_eq!(memory::girih_set_memory_fraction(15, 0.25), Status::Ok);
    assert_eq!(try_alloc(15, 100 * MIB, 0, DEFAULT), Err(Status::OutOfMemory));
    let limited = report();
    assert_eq!((&limited["ooms"], &limited["ooms_by_limit"]), (&1.into(), &1.into()));
    assert_eq!(limited["limit"], 256 * MIB);
    let last = &limited["last_oom"];
    assert_eq!((&last["requested"], &last["by_limit"]), (&(100 * MIB).into(), &true.into()));
    assert_eq!(
        (&last["reserved"], &last["device_free"]),
        (&(200 * MIB).into(), &(824 * MIB).into())
    );
    assert_eq!(last["text"], last_error());

    assert_eq!(memory::girih_set_memory_fraction(15, 1.0), Status::Ok);
    assert_eq!(try_alloc(15, 900 * MIB, 0, DEFAULT), Err(Status::OutOfMemory));
    let full = report();
    assert_eq!((&full["ooms"], &full["ooms_by_limit"]), (&2.into(), &1.into()));
    assert_eq!((&full["last_oom"]["by_limit"], &full["limit"]), (&false.into(), &Value::Null));
    free(held);
}

#[test]
fn the_report_has_peaks_and_calls() {
    let _caches = native();
    free(alloc(14, 30 * MIB, 0));
    let report: Value = serde_json::from_str(&control::report(Some(14)).unwrap()).unwrap();
    assert_eq!(report["mode"], "native");
    assert_eq!(report["allocated_peak"], 30 * MIB);
    assert_eq!(report["calls"]["alloc"], 1);
    let taken = report["driver_seconds"].as_f64().unwrap();
    assert!(taken > 0.0, "{report}");
    let by_call = report["driver_seconds_by_call"].as_object().unwrap();
    let sum: f64 = by_call.values().map(|seconds| seconds.as_f64().unwrap()).sum();
    assert!((sum - taken).abs() < 1e-9, "{report}");
    assert!(by_call.keys().all(|name| report["calls"][name].as_u64() > Some(0)), "{report}");
    assert_eq!(report["hits"], 0);
    assert!(report["plan"].is_null() && report["recorded_events"].is_null());
    assert!(control::report(Some(63)).unwrap_err().contains("not used"));
    let whole: Value = serde_json::from_str(&control::report(None).unwrap()).unwrap();
    assert!(whole["devices"].as_array().unwrap().iter().any(|one| one["device"] == 14));
    let error = control::save_trace(14, "/nowhere").unwrap_err();
    assert!(error.contains("in the mode `native`") && error.contains("record=True"), "{error}");
}
