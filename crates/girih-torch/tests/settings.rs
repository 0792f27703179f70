//! Settings that a program changes while it runs, through the C interface: heaps that there are and
//! heaps that come later follow them.

#![expect(unsafe_code, reason = "it calls a C interface")]

mod common;

use std::ffi::CString;

use common::{MIB, alloc, free, last_error, set_up, stats};
use girih_torch::abi::{Status, settings};
use girih_torch::control;

fn change(text: &str) -> Status {
    let text = CString::new(text).unwrap();
    // SAFETY: it ends with a zero.
    unsafe { settings::girih_change_settings(text.as_ptr()) }
}

/// Bytes of the block that a request gets.
fn granted(device: i32, size: u64) -> i64 {
    let before = stats(device).allocated_bytes[0].current;
    let address = alloc(device, size, 0);
    let bytes = stats(device).allocated_bytes[0].current - before;
    assert_eq!(free(address), Status::Ok);
    bytes
}

#[test]
fn heaps_that_there_are_and_heaps_that_come_follow_what_a_program_sets() {
    let conf = r#", "conf": "max_split_size_mb:30,per_process_memory_fraction:0.5""#;
    set_up("native", 256 * MIB, conf);
    assert_eq!(granted(0, 5_000_000), 5_000_192);
    assert_eq!(stats(0).max_split_size, 30 << 20);

    let text = "roundup_power2_divisions:4,per_process_memory_fraction:1.0,of_a_later_release:1";
    assert_eq!(change(text), Status::Ok, "{}", last_error());
    for device in [0, 1] {
        assert_eq!(granted(device, 5_000_000), 5_242_880, "device {device}");
        assert_eq!(stats(device).max_split_size, -1, "device {device}");
        // The share of the device is chosen once, as in PyTorch.
        let refused = common::try_alloc(device, 140 * MIB, 0, common::DEFAULT);
        assert_eq!(refused, Err(Status::OutOfMemory), "device {device}");
    }
    let warnings = control::take_warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("of_a_later_release"), "{warnings:?}");

    // Both ways, and what was taken in one way is given back in the other.
    let plain = alloc(0, 40 * MIB, 0);
    let segments = stats(0).segment[0].current;
    assert_eq!(change("expandable_segments:True"), Status::Ok);
    let paged = [alloc(0, 40 * MIB, 0), alloc(2, 40 * MIB, 0)];
    assert_eq!((stats(0).segment[0].current, stats(2).segment[0].current), (segments, 0));
    assert_eq!(change("expandable_segments:False"), Status::Ok);
    for address in paged.into_iter().chain([plain]) {
        assert_eq!(free(address), Status::Ok, "{}", last_error());
    }
    alloc(2, 40 * MIB, 0);
    assert_eq!(stats(2).segment[0].current, 1);
}
