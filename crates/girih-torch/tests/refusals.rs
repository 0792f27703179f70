//! Requests that get nothing, and what is told of them: to the observers of torch's classes, and in the
//! counters of torch 2.12 and 2.13.

mod common;

use common::*;
use girih_torch::abi::{Pool, Status, memory, pools, view};

const POOL: Pool = Pool { first: 0, second: 3 };

/// torch 2.13, which may refuse a request before anything is given back for it.
fn rejecting() {
    set_up("native", 1 << 30, r#", "conf": "throw_on_cudamalloc_oom:True", "torch": "2.13.0""#);
}

#[test]
fn a_request_beyond_the_device_is_a_rejection_and_no_failure() {
    rejecting();
    let held = alloc(0, 700 * MIB, 0);
    assert_eq!(free(held), Status::Ok);
    // What is cached would be enough, and stays: nothing is tried for a rejected request.
    assert_eq!(try_alloc(0, 900 * MIB - 5, 0, DEFAULT), Err(Status::OutOfMemory));
    let oom = last_oom();
    assert!(oom.is_rejection, "{oom:?}");
    assert_eq!((oom.needed, oom.requested), (900 * MIB, 900 * MIB - 5));
    assert_eq!((oom.reserved, oom.limit, oom.device_total), (700 * MIB, 1 << 30, 1 << 30));
    let seen = stats(0);
    assert_eq!((seen.num_oom_rejections, seen.num_ooms, seen.num_alloc_retries), (1, 0, 0));
    assert_eq!(seen.reserved_bytes[0].current as u64, 700 * MIB);
    assert_eq!(view::girih_reset_accumulated_stats(0), Status::Ok);
    assert_eq!(stats(0).num_oom_rejections, 0);
}

#[test]
fn a_request_beyond_the_share_fails_with_the_share_as_its_limit() {
    rejecting();
    assert_eq!(memory::girih_set_memory_fraction(1, 0.5), Status::Ok);
    assert_eq!(try_alloc(1, 600 * MIB - 5, 0, DEFAULT), Err(Status::OutOfMemory));
    let oom = last_oom();
    assert!(!oom.is_rejection, "{oom:?}");
    assert_eq!((oom.needed, oom.limit), (600 * MIB, 512 * MIB));
    let seen = stats(1);
    assert_eq!((seen.num_oom_rejections, seen.num_ooms), (0, 1));
}

#[test]
fn bytes_of_each_private_pool_are_counted_also_after_it_has_gone() {
    rejecting();
    assert_eq!(reserved_of_pools(2), []);
    let outside = alloc(2, 30 * MIB, 0);
    assert_eq!(reserved_of_pools(2), [], "the default pool is no private one");
    assert_eq!(pools::girih_pool_create(2, POOL), Status::Ok);
    let small = try_alloc(2, 1000, 0, POOL).unwrap();
    let large = try_alloc(2, 30 * MIB, 0, POOL).unwrap();
    let bytes = |peak: u64, allocated: u64, now: u64| {
        let [(pool, reserved)] = reserved_of_pools(2)[..] else { panic!("one pool") };
        assert_eq!(pool, POOL);
        assert_eq!(reserved[0].current, reserved[1].current + reserved[2].current);
        let all = reserved[0];
        assert_eq!(
            [all.peak, all.allocated, all.current],
            [peak, allocated, now].map(|n| n as i64)
        );
        assert_eq!(all.freed, all.allocated - all.current);
    };
    bytes(32 * MIB, 32 * MIB, 32 * MIB);
    for address in [small, large, outside] {
        assert_eq!(free(address), Status::Ok);
    }
    bytes(32 * MIB, 32 * MIB, 32 * MIB);
    assert_eq!(pools::girih_pool_release(2, POOL), Status::Ok);
    assert_eq!(memory::girih_empty_cache(POOL), Status::Ok);
    bytes(32 * MIB, 32 * MIB, 0);
    assert_eq!(view::girih_reset_peak_stats(2), Status::Ok);
    assert_eq!(view::girih_reset_accumulated_stats(2), Status::Ok);
    bytes(0, 0, 0);
}

#[test]
fn whether_there_is_room_is_told_without_taking_it() {
    rejecting();
    assert!(!has_room(3, MIB, 0, DEFAULT), "nothing is held");
    let address = alloc(3, 30 * MIB, 0);
    assert!(!has_room(3, 30 * MIB, 0, DEFAULT));
    assert_eq!(free(address), Status::Ok);
    for _ in 0..2 {
        assert!(has_room(3, 30 * MIB, 0, DEFAULT));
        assert!(!has_room(3, 30 * MIB, 0, POOL), "it is of another pool");
        assert!(!has_room(3, 30 * MIB, 9, DEFAULT), "it is of another stream");
    }
    assert_eq!(stats(3).allocation[0].allocated, 1);
}
