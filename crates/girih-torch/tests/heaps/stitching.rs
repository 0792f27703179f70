//! Two threads under the mode `stitch`: no byte is used by two blocks, or too early, though it has
//! several addresses.

use std::thread;

use girih_runtime::Address;
use girih_runtime::sim::{Call, LiveObjects};
use girih_torch::Heap;
use girih_trace::StreamId;

use crate::seen::Seen;

const MIB: u64 = 1 << 20;
const ROUNDS: u64 = 1500;

/// Random numbers below a bound, from a seed.
fn below(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % bound
}

/// One thread: allocates and frees on a stream of its own. What it gets is used at once.
fn run(thread: u16, heap: &Heap, device: &Seen) {
    let stream = StreamId(thread);
    let mut state = u64::from(thread) + 1;
    let mut held: Vec<(Address, u64)> = Vec::new();
    let free = |(address, size): (Address, u64)| {
        device.device().release(address, size, &[stream]).unwrap();
        assert!(heap.free(address).unwrap());
    };
    for _ in 0..ROUNDS {
        if held.len() > 20 || (below(&mut state, 20) < 9 && !held.is_empty()) {
            free(held.swap_remove(below(&mut state, held.len() as u64) as usize));
            continue;
        }
        let size = (1 + below(&mut state, 60 * MIB)).next_multiple_of(512);
        let address = heap.allocate(size, u64::from(thread), (0, 0)).unwrap();
        device.device().acquire(address, size, stream).unwrap();
        held.push((address, size));
    }
    held.into_iter().for_each(free);
}

#[test]
fn two_threads_share_no_byte_though_bytes_have_several_addresses() {
    let (device, heap) = Seen::with_heap(64 << 30, r#"{"mode": "stitch"}"#);
    // The streams are known in their order.
    for stream in 0..2 {
        let address = heap.allocate(512, stream, (0, 0)).unwrap();
        assert!(heap.free(address).unwrap());
    }
    thread::scope(|scope| {
        for thread in 0..2 {
            let (heap, device) = (&heap, &device);
            scope.spawn(move || run(thread, heap, device));
        }
    });
    heap.check().unwrap();
    let calls = |call| device.device().totals().of(call).calls;
    assert!(calls(Call::Map) > calls(Call::Create) + 1000, "nothing was stitched");
    assert!(calls(Call::WaitEvent) > 0);
    heap.empty_cache((0, 0)).unwrap();
    assert_eq!(device.device().live(), LiveObjects::default());
}
