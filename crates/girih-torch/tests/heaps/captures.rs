//! `graph_capture_record_stream_reuse` in a heap, in every mode that has the pools of graphs.

use crate::seen::Seen;

const MIB: u64 = 1 << 20;
const POOL: (u64, u64) = (7, 0);
const SIDE: u64 = 0x7f10;

/// Whether a block that a side stream used serves again within the capture, behind the join.
fn serves_again(mode: &str, conf: &str) -> bool {
    let settings = format!(r#"{{"mode": "{mode}", "conf": "{conf}"}}"#);
    let (seen, heap) = Seen::with_heap(1 << 30, &settings);
    heap.begin_pool(POOL, true).unwrap();
    let first = heap.allocate(4 * MIB, 0, POOL).unwrap();
    // The heap hears of the side stream.
    let other = heap.allocate(512, SIDE, POOL).unwrap();
    assert!(heap.free(other).unwrap());
    let (main, side) = (seen.id(0, 0), seen.id(0, SIDE));
    seen.device().begin_capture(main);
    seen.device().order(main, side);
    assert!(heap.record_stream(first, 0, SIDE).unwrap());
    seen.device().acquire(first, 4 * MIB, main).unwrap();
    seen.device().release(first, 4 * MIB, &[main, side]).unwrap();
    assert!(heap.free(first).unwrap());
    let second = heap.allocate(4 * MIB, 0, POOL).unwrap();
    assert_ne!(second, first, "{mode}: the side stream may still use it");
    seen.device().order(side, main);
    let third = heap.allocate(4 * MIB, 0, POOL).unwrap();
    seen.device().acquire(third, 4 * MIB, main).unwrap();
    seen.device().end_capture(main);
    heap.end_pool(POOL, true).unwrap();
    heap.check().unwrap();
    third == first
}

#[test]
fn a_block_of_a_graph_serves_again_behind_the_join_if_the_user_wants_it() {
    for mode in ["native", "expandable", "stitch", "gmlake", "profile", "auto"] {
        assert!(serves_again(mode, "graph_capture_record_stream_reuse:True"), "{mode}");
        assert!(!serves_again(mode, ""), "{mode}");
    }
}
