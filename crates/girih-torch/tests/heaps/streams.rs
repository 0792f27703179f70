//! The order of streams: no byte comes to a stream too early, whatever the program does with its streams.

use girih_runtime::sim::Call;
use girih_runtime::{Address, Device};
use girih_torch::Heap;
use girih_trace::StreamId;

use crate::seen::Seen;

const MIB: u64 = 1 << 20;
const DEFAULT: (u64, u64) = (0, 0);
/// A stream that only runs kernels: the heap never hears of it.
const UNHEARD: StreamId = StreamId(60_000);

/// Forty blocks of 40 MiB of stream 0, every other of which is freed while `reader`, which came after
/// stream 0, reads it: the program lets stream 0 come after that before it asks for more.
fn holes(seen: &Seen, heap: &Heap, reader: StreamId) -> Vec<Address> {
    let own = seen.id(0, 0);
    let blocks: Vec<Address> =
        (0..40).map(|_| heap.allocate(40 * MIB, 0, DEFAULT).unwrap()).collect();
    for &block in &blocks {
        seen.device().acquire(block, 40 * MIB, own).unwrap();
    }
    for &block in blocks.iter().step_by(2) {
        let event = seen.device().record_event(own).unwrap();
        seen.device().wait_event(reader, event).unwrap();
        seen.device().release(block, 40 * MIB, &[own, reader]).unwrap();
        assert!(heap.free(block).unwrap());
    }
    blocks
}

/// A heap that has met the streams 0, 1 and 2.
fn heap(mode: &str) -> (Seen, Heap) {
    let (seen, heap) = Seen::with_heap(64 << 30, &format!(r#"{{"mode": "{mode}"}}"#));
    for stream in 0..3 {
        let block = heap.allocate(512, stream, DEFAULT).unwrap();
        assert!(heap.free(block).unwrap());
    }
    (seen, heap)
}

/// Waits that were put on the device so far.
fn waits(seen: &Seen) -> u64 {
    seen.device().totals().of(Call::WaitEvent).calls
}

#[test]
fn stitched_bytes_wait_for_a_stream_that_reads_them_after_their_free() {
    for mode in ["stitch", "auto"] {
        for reader in [StreamId(1), UNHEARD] {
            let (seen, heap) = heap(mode);
            holes(&seen, &heap, reader);
            // What only the holes of stream 0 can serve without growing.
            let (size, before) = (400 * MIB, waits(&seen));
            let block = heap.allocate(size, 2, DEFAULT).unwrap();
            seen.device().acquire(block, size, seen.id(0, 2)).unwrap();
            assert_eq!(waits(&seen) - before, 1, "{mode}: one wait for all streams");
        }
    }
}

#[test]
fn a_stream_that_is_gone_is_named_no_more_and_its_work_is_waited_for() {
    let (seen, heap) = heap("stitch");
    let gone = seen.id(0, 1);
    let blocks = holes(&seen, &heap, gone);
    seen.device().destroy_stream(gone);
    let block = heap.allocate(400 * MIB, 2, DEFAULT).unwrap();
    seen.device().acquire(block, 400 * MIB, seen.id(0, 2)).unwrap();
    seen.device().release(block, 400 * MIB, &[seen.id(0, 2)]).unwrap();
    assert!(heap.free(block).unwrap());
    for &block in blocks.iter().skip(1).step_by(2) {
        seen.device().release(block, 40 * MIB, &[seen.id(0, 0)]).unwrap();
        assert!(heap.free(block).unwrap());
    }
    heap.empty_cache(DEFAULT).unwrap();
    heap.check().unwrap();
}

#[test]
fn a_stream_that_has_the_handle_of_one_that_is_gone_waits_for_its_work() {
    let (seen, heap) = heap("native");
    let handle = 0x9990;
    let get = |number| {
        seen.set_identity(handle, number);
        heap.see_stream(handle).unwrap();
        let block = heap.allocate(4 * MIB, handle, DEFAULT).unwrap();
        seen.device().acquire(block, 4 * MIB, seen.id(0, handle)).unwrap();
        seen.device().release(block, 4 * MIB, &[seen.id(0, handle)]).unwrap();
        assert!(heap.free(block).unwrap());
        waits(&seen)
    };
    assert_eq!([get(14), get(14)], [0, 0], "the same stream");
    assert_eq!([get(15), get(15)], [1, 1], "another, once");
}

#[test]
fn streams_of_two_devices_with_one_handle_are_two() {
    let (seen, heap) = heap("native");
    let block = heap.allocate(4 * MIB, 0, DEFAULT).unwrap();
    // The default stream of device 1, whose handle is that of the block's own stream.
    assert!(heap.record_stream(block, 1, 0).unwrap());
    let other = seen.id(1, 0);
    assert_ne!(other, seen.id(0, 0));
    seen.device().hold(other);
    assert!(heap.free(block).unwrap());
    let next = heap.allocate(4 * MIB, 0, DEFAULT).unwrap();
    assert_ne!(next, block, "the other device may still use it");
    seen.device().resume(other);
    heap.empty_cache(DEFAULT).unwrap();
    heap.check().unwrap();
}

#[test]
fn a_block_that_a_capturing_stream_uses_is_free_after_the_capture_whoever_began_it() {
    for mode in ["native", "expandable", "stitch", "auto"] {
        let (seen, heap) = heap(mode);
        let block = heap.allocate(4 * MIB, 0, DEFAULT).unwrap();
        assert!(heap.record_stream(block, 0, 1).unwrap());
        // Nobody tells the heap.
        let capturing = seen.id(0, 1);
        seen.device().begin_capture(capturing);
        assert!(heap.free(block).unwrap());
        let other = heap.allocate(4 * MIB, 0, DEFAULT).unwrap();
        assert_ne!(other, block, "{mode}: the capture may use it");
        seen.device().end_capture(capturing);
        let next = heap.allocate(4 * MIB, 0, DEFAULT).unwrap();
        assert_eq!(next, block, "{mode}: nobody uses it any more");
    }
}

#[test]
fn a_stream_that_captures_is_given_new_pages_and_no_other_stream_s_bytes() {
    let (seen, heap) = heap("stitch");
    holes(&seen, &heap, StreamId(1));
    let capturing = seen.id(0, 2);
    seen.device().begin_capture(capturing);
    let before = waits(&seen);
    let block = heap.allocate(400 * MIB, 2, DEFAULT).unwrap();
    assert_eq!(waits(&seen), before);
    seen.device().end_capture(capturing);
    seen.device().acquire(block, 400 * MIB, capturing).unwrap();
}

#[test]
fn a_use_that_one_thread_records_while_another_captures_is_waited_for() {
    for mode in ["expandable", "stitch", "auto"] {
        let (seen, heap) = heap(mode);
        let (own, capturing, side) = (seen.id(0, 0), seen.id(0, 1), seen.id(0, 2));
        let block = heap.allocate(4 * MIB, 0, DEFAULT).unwrap();
        seen.device().acquire(block, 4 * MIB, own).unwrap();
        heap.begin_pool((1, 0), true).unwrap();
        seen.device().begin_capture(capturing);
        // The other thread: its work is a part of no graph.
        assert!(heap.record_stream(block, 0, 2).unwrap());
        seen.device().hold(side);
        seen.device().release(block, 4 * MIB, &[own, side]).unwrap();
        assert!(heap.free(block).unwrap());
        seen.device().end_capture(capturing);
        heap.end_pool((1, 0), true).unwrap();
        let next = heap.allocate(4 * MIB, 0, DEFAULT).unwrap();
        assert_ne!(next, block, "{mode}: the other stream still uses it");
        seen.device().acquire(next, 4 * MIB, own).unwrap();
        seen.device().resume(side);
        heap.empty_cache(DEFAULT).unwrap();
        heap.check().unwrap();
    }
}

#[test]
fn a_use_recorded_in_the_scope_of_a_pool_counts() {
    // In releases of torch that take every scope for a capture.
    let (seen, heap) = Seen::with_heap(1 << 30, r#"{"mode": "stitch", "torch": "2.11.0"}"#);
    let pool = (0, 1);
    heap.create_pool(pool).unwrap();
    heap.begin_pool(pool, false).unwrap();
    let block = heap.allocate(4 * MIB, 0, pool).unwrap();
    seen.device().acquire(block, 4 * MIB, seen.id(0, 0)).unwrap();
    assert!(heap.record_stream(block, 0, 7).unwrap());
    let side = seen.id(0, 7);
    seen.device().hold(side);
    seen.device().release(block, 4 * MIB, &[seen.id(0, 0), side]).unwrap();
    assert!(heap.free(block).unwrap());
    heap.end_pool(pool, false).unwrap();
    let next = heap.allocate(4 * MIB, 0, pool).unwrap();
    seen.device().acquire(next, 4 * MIB, seen.id(0, 0)).unwrap();
}
