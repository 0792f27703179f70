//! Pools in one handle, through heaps of every mode and through the C interface.

mod common;

use common::*;
use girih_torch::abi::{Pool, Status, memory, pools};
use girih_torch::{Heap, Settings};
use serde_json::Value;

const WHOLE: (u64, u64) = (0, 9);
const OUTSIDE: (u64, u64) = (0, 0);
/// Every mode on a device without a GPU. `plan` learns, for its file is not there.
const MODES: [&str; 8] =
    ["native", "expandable", "stitch", "gmlake", "profile", "phantom", "plan", "auto"];

fn heap(mode: &str, torch: &str) -> Heap {
    let json = format!(
        r#"{{"mode": "{mode}", "torch": "{torch}", "plan": "/nowhere/at.all",
             "sim": {{"capacity": {}}}}}"#,
        1000 * MIB
    );
    Heap::new(0, &Settings::parse(&json).unwrap()).unwrap()
}

/// Whether each segment of a pool is made of pages.
fn segments(heap: &Heap, pool: (u64, u64)) -> Vec<bool> {
    let mut found = Vec::new();
    heap.visit(&mut |segment, _| {
        if (segment.pool.first, segment.pool.second) == pool {
            found.push(segment.is_expandable);
        }
    })
    .unwrap();
    found
}

fn in_one_handle(heap: &Heap) {
    heap.create_pool(WHOLE).unwrap();
    heap.keep_in_one_handle(WHOLE).unwrap();
}

#[test]
fn in_every_mode_a_request_of_the_pool_gets_memory_in_one_piece() {
    for mode in MODES {
        let heap = heap(mode, "2.11.0");
        in_one_handle(&heap);
        let outside = heap.allocate(40 * MIB, 7, OUTSIDE).unwrap();
        heap.begin_pool(WHOLE, true).unwrap();
        let inside = heap.allocate(100 * MIB, 7, WHOLE).unwrap();
        heap.end_pool(WHOLE, true).unwrap();
        assert_eq!(segments(&heap, WHOLE), [false], "{mode}");
        assert_eq!(heap.segment_of(inside).unwrap(), Some((inside, 100 * MIB)), "{mode}");
        assert!(heap.free(inside).unwrap() && heap.free(outside).unwrap());
        heap.check().unwrap();
        heap.empty_cache(OUTSIDE).unwrap();
        assert_eq!(heap.stats().unwrap().reserved_bytes[0].current, 0, "{mode}");
    }
}

#[test]
fn inside_the_scope_a_request_gets_what_is_cached_as_outside_of_it() {
    for torch in ["2.6.0", "2.11.0", "2.12.0", "2.13.0"] {
        // Up to 2.12 the shim takes every scope for a capture; from 2.13 on it knows captures.
        let captures = torch < "2.13";
        for mode in MODES {
            let heap = heap(mode, torch);
            in_one_handle(&heap);
            let cached = heap.allocate(800 * MIB, 7, OUTSIDE).unwrap();
            assert!(heap.free(cached).unwrap());
            heap.begin_pool(WHOLE, captures).unwrap();
            let inside = heap.allocate(700 * MIB, 7, WHOLE).unwrap();
            assert!(heap.free(inside).unwrap());
            heap.end_pool(WHOLE, captures).unwrap();
            let again = heap.allocate(800 * MIB, 7, OUTSIDE).unwrap();
            assert!(heap.free(again).unwrap());
            heap.check().unwrap();
        }
    }
}

#[test]
fn a_capture_from_2_13_on_is_one_whatever_the_pool() {
    let heap = heap("native", "2.13.0");
    in_one_handle(&heap);
    let cached = heap.allocate(800 * MIB, 7, OUTSIDE).unwrap();
    assert!(heap.free(cached).unwrap());
    heap.begin_pool(WHOLE, true).unwrap();
    assert!(heap.allocate(700 * MIB, 7, WHOLE).is_err(), "nothing goes back during a capture");
    heap.end_pool(WHOLE, true).unwrap();
    let inside = heap.allocate(700 * MIB, 7, WHOLE).unwrap();
    assert!(heap.free(inside).unwrap());
}

#[test]
fn through_the_c_interface_it_is_chosen_before_the_first_request() {
    set_up("stitch", 1 << 30, "");
    let pool = Pool { first: 0, second: 4 };
    assert_eq!(pools::girih_pool_create(3, pool), Status::Ok);
    assert_eq!(pools::girih_pool_one_handle(3, pool), Status::Ok);
    assert_eq!(pools::girih_pool_begin(3, pool, true), Status::Ok);
    assert_eq!(pools::girih_pool_one_handle(3, pool), Status::Unsupported);
    assert!(last_error().contains("before its first request"), "{}", last_error());
    let inside = try_alloc(3, 30 * MIB, 0, pool).unwrap();
    assert_eq!(pools::girih_pool_end(3, pool, true), Status::Ok);
    assert_eq!(pools::girih_pool_release(3, pool), Status::Ok);
    assert_eq!(pools::girih_pool_one_handle(3, pool), Status::Unsupported);
    assert!(layout(3).iter().all(|(segment, _)| !segment.is_expandable));
    let outside = alloc(3, 30 * MIB, 0);
    assert!(layout(3).iter().any(|(segment, _)| segment.is_expandable));
    free(inside);
    free(outside);
    assert_eq!(memory::girih_empty_cache(DEFAULT), Status::Ok);
    assert_eq!((stats(3).reserved_bytes[0].current, pool_users(3, pool)), (0, 1));
    let report = girih_torch::control::report(Some(3)).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["calls"]["alloc"], 1, "{report}");
}
