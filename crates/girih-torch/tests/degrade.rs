//! Devices without virtual memory: every mode gives memory all the same, and says once what it lost.

mod common;

use common::*;
use girih_torch::{Heap, Settings, control, heaps};
use girih_trace::MarkKind;
use serde_json::Value;

const DEFAULT_POOL: (u64, u64) = (0, 0);
const PRIVATE: (u64, u64) = (0, 1);

fn heap(mode: &str, more: &str) -> Heap {
    let json = format!(
        r#"{{"mode": "{mode}", "plan": "/nowhere/at.all" {more},
             "sim": {{"capacity": {}, "virtual_memory": false}}}}"#,
        1000 * MIB
    );
    Heap::new(0, &Settings::parse(&json).unwrap()).unwrap()
}

fn report(heap: &Heap) -> Value {
    serde_json::from_str(&control::report_of(heap).unwrap()).unwrap()
}

#[test]
fn every_mode_gives_memory_without_mapping_any() {
    for (mode, served) in [
        ("auto", "native"),
        ("plan", "native"),
        ("stitch", "native"),
        ("expandable", "native"),
        ("gmlake", "native"),
        ("native", "native"),
        ("profile", "profile"),
        ("phantom", "profile"),
    ] {
        let heap = heap(mode, "");
        for step in 0..4 {
            heap.mark(MarkKind::Step, &step.to_string()).unwrap();
            let large = heap.allocate(300 * MIB, 7, DEFAULT_POOL).unwrap();
            let small = heap.allocate(512, 0, DEFAULT_POOL).unwrap();
            heap.begin_pool(PRIVATE, true).unwrap();
            let private = heap.allocate(30 * MIB, 7, PRIVATE).unwrap();
            heap.end_pool(PRIVATE, true).unwrap();
            for address in [large, small, private] {
                assert!(heap.free(address).unwrap(), "{mode}");
            }
            heap.release_pool(PRIVATE).unwrap();
        }
        let refused = heap.allocate(2000 * MIB, 0, DEFAULT_POOL).unwrap_err().to_string();
        assert!(refused.contains("out of memory"), "{mode}: {refused}");
        heap.check().unwrap();
        heap.empty_cache(DEFAULT_POOL).unwrap();
        assert_eq!(heap.stats().unwrap().reserved_bytes[0].current, 0, "{mode}");

        let seen = report(&heap);
        assert_eq!(seen["mode"], served, "{mode}: {seen}");
        let calls = seen["calls"].as_object().unwrap();
        for call in ["reserve", "create", "map"] {
            assert!(!calls.contains_key(call), "{mode}: {calls:?}");
        }
        let warnings = seen["warnings"].as_array().unwrap();
        assert_eq!(warnings.len(), usize::from(mode != served), "{mode}: {warnings:?}");
    }
}

#[test]
fn expandable_segments_that_were_asked_for_are_not_taken_and_this_is_said() {
    let heap = heap("native", r#", "conf": "expandable_segments:True""#);
    let address = heap.allocate(40 * MIB, 0, DEFAULT_POOL).unwrap();
    assert!(heap.free(address).unwrap());
    let warning = report(&heap)["warnings"][0].to_string();
    assert!(warning.contains("expandable_segments:True has no effect"), "{warning}");
}

#[test]
fn a_kept_plan_is_neither_followed_nor_thrown_away() {
    let folder = tempfile::tempdir().unwrap();
    let file = control::plan_file(&folder.path().to_string_lossy(), "llama");
    let file = file.replace("{device}", "0");
    std::fs::write(&file, "made on a GPU that can map").unwrap();
    let more = format!(r#", "plan_dir": "{}", "key": "llama""#, folder.path().display());
    let heap = heap("auto", &more);
    let address = heap.allocate(40 * MIB, 0, DEFAULT_POOL).unwrap();
    assert!(heap.free(address).unwrap());
    let warnings = report(&heap)["warnings"].to_string();
    assert!(!warnings.contains("kept plan"), "{warnings}");
    assert!(std::fs::exists(&file).unwrap());
}

#[test]
fn a_process_with_several_such_gpus_is_told_once() {
    // `set_up` has no word for the device; the settings are chosen here.
    let sim = r#"{"capacity": 1073741824, "virtual_memory": false}"#;
    control::configure(&format!(r#"{{"mode": "auto", "sim": {sim}}}"#)).unwrap();
    heaps::init(4).unwrap();
    for device in 0..2 {
        assert_eq!(free(alloc(device, MIB, 0)), girih_torch::abi::Status::Ok);
    }
    let told = control::take_warnings();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("the mode `auto` is not possible, and `native` serves"), "{told:?}");
    // A GPU that is first used later has nothing new to say.
    assert_eq!(free(alloc(2, MIB, 0)), girih_torch::abi::Status::Ok);
    assert_eq!(control::take_warnings(), Vec::<String>::new());
}
