//! Many threads on one device: no two live blocks share a byte, and nothing is lost.

mod common;

use std::collections::BTreeMap;
use std::sync::{Mutex, mpsc};
use std::thread;

use common::*;
use girih_torch::abi::Status;
use girih_torch::{control, heaps};

const THREADS: u64 = 8;
const ROUNDS: u64 = 4000;

/// A block, with the canary that its owner wrote into it.
#[derive(Clone, Copy)]
struct Held {
    address: u64,
    size: u64,
    canary: u64,
}

/// What each byte holds, as the memory of a GPU would: the block that wrote it last, by address.
#[derive(Default)]
struct Shadow(Mutex<BTreeMap<u64, Held>>);

impl Shadow {
    fn write(&self, held: Held) {
        let mut blocks = self.0.lock().unwrap();
        let before = blocks.range(..held.address + held.size).next_back();
        if let Some((_, other)) = before {
            let end = other.address + other.size;
            assert!(end <= held.address, "{:#x} lies in a live block", held.address);
        }
        blocks.insert(held.address, held);
    }

    /// Checks the canary and forgets the block, before it is freed.
    fn take(&self, held: Held) {
        let found = self.0.lock().unwrap().remove(&held.address);
        assert_eq!(found.map(|found| found.canary), Some(held.canary), "a canary is gone");
    }
}

/// Random numbers, from a seed.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// One thread: allocates on a stream of its own, frees some blocks itself and hands others on.
fn run(thread: u64, device: i32, shadow: &Shadow, next: &mpsc::Sender<Held>) -> Vec<Held> {
    let mut state = thread + 1;
    let mut mine: Vec<Held> = Vec::new();
    for round in 0..ROUNDS {
        let size = 1 << (9 + random(&mut state) % 14);
        let size = size + random(&mut state) % size;
        let canary = thread << 32 | round;
        let held = Held { address: alloc(device, size, thread % 3), size, canary };
        shadow.write(held);
        if random(&mut state).is_multiple_of(8) {
            let other = random(&mut state) % 3;
            let address = held.address as *mut std::ffi::c_void;
            let status = girih_torch::abi::blocks::girih_record_stream(address, 0, other);
            assert_eq!(status, Status::Ok);
        }
        mine.push(held);
        if mine.len() > 20 {
            let held = mine.swap_remove(random(&mut state) as usize % mine.len());
            if random(&mut state).is_multiple_of(3) {
                next.send(held).unwrap();
            } else {
                shadow.take(held);
                assert_eq!(free(held.address), Status::Ok);
            }
        }
    }
    mine
}

fn stress(mode: &str, device: i32) {
    set_up(mode, 16 << 30, "");
    let shadow = Shadow::default();
    let (send, receive) = mpsc::channel::<Held>();
    thread::scope(|scope| {
        let shadow = &shadow;
        // One thread frees what others allocated.
        scope.spawn(move || {
            for held in receive {
                shadow.take(held);
                assert_eq!(free(held.address), Status::Ok);
            }
        });
        for thread in 0..THREADS {
            let send = send.clone();
            scope.spawn(move || {
                for held in run(thread, device, shadow, &send) {
                    shadow.take(held);
                    assert_eq!(free(held.address), Status::Ok);
                }
            });
        }
        // One thread looks on, as a monitor would.
        scope.spawn(move || {
            for _ in 0..50 {
                let seen = layout(device);
                assert!(seen.iter().all(|(segment, blocks)| {
                    blocks.iter().map(|block| block.size).sum::<u64>() == segment.size
                }));
                control::mark("step", "").unwrap();
            }
        });
        drop(send);
    });
    assert!(shadow.0.lock().unwrap().is_empty());
    assert_eq!(stats(device).allocation[0].current, 0);
    assert_eq!(stats(device).allocation[0].allocated, (THREADS * ROUNDS) as i64);
    heaps::heap(device).unwrap().check().unwrap();
}

#[test]
fn eight_threads_on_one_device_share_no_byte() {
    stress("auto", 0);
}
