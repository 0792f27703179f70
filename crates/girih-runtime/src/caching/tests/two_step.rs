//! Requests whose segment the caller takes, held against the same requests in one step.

use super::*;
use crate::sim::{Call, Fault, FaultKind};

const DEEP: &str =
    "max_split_size_mb:64,garbage_collection_threshold:0.5,per_process_memory_fraction:0.75";

impl Machine {
    /// A request in two steps, if it needs two. The segment that it took.
    fn ask_twice(
        &mut self,
        size: u64,
        stream: StreamId,
        pool: u16,
    ) -> (Result<Granted, AllocError>, Option<u64>) {
        let request = Request { size, stream, pool: PoolId(pool) };
        match self.ask(size, stream, pool) {
            Err(AllocError::SegmentLeft(segment)) => {
                let taken = self.device.alloc(segment).ok().map(|address| (address, segment));
                (self.with(|policy, env| policy.go_on(env, request, taken)), Some(segment))
            }
            answer => (answer, None),
        }
    }
}

/// Random numbers, from a seed.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn two_steps_come_to_what_one_comes_to() {
    for text in ["", DEEP, "expandable_segments:True"] {
        let (mut one, mut two) = (Machine::new(text, 512 * MIB), Machine::new(text, 512 * MIB));
        two.policy.leave_segments(true);
        let (mut live, mut state, mut left, mut refused) = (Vec::new(), 7, 0, 0);
        for round in 0..3000 {
            let size = 1 << (9 + random(&mut state) % 18);
            let size = size + random(&mut state) % size;
            let (stream, pool) = (StreamId((round % 2) as u16), u16::from(round % 5 == 0));
            let plain = one.ask(size, stream, pool);
            let (answer, segment) = two.ask_twice(size, stream, pool);
            left += u32::from(segment.is_some());
            assert_eq!(answer, plain, "round {round}");
            match plain {
                Ok(granted) => live.push(granted),
                Err(_) => refused += 1,
            }
            while live.len() > 8 || (refused % 3 == 1 && live.len() > 2) {
                let granted = live.swap_remove(random(&mut state) as usize % live.len());
                one.free(granted);
                two.free(granted);
            }
        }
        assert_eq!(left > 0, !text.starts_with("expandable"), "pages are not left to the caller");
        assert!(refused > 0 || text.starts_with("expandable"), "the device was never full: {text}");
        assert_eq!(one.log, two.log);
        assert_eq!(one.policy.stats(), two.policy.stats());
        assert_eq!(one.layout(), two.layout());
        assert_eq!(one.device.live(), two.device.live());
    }
}

#[test]
fn what_was_freed_meanwhile_serves_and_the_segment_is_cached() {
    let mut machine = Machine::new("", GIB);
    let held = machine.alloc(20 * MIB);
    machine.policy.leave_segments(true);
    let request = Request { size: 20 * MIB, stream: MAIN, pool: PoolId::DEFAULT };
    assert_eq!(machine.ask(20 * MIB, MAIN, 0), Err(AllocError::SegmentLeft(20 * MIB)));
    machine.free(held);
    let address = machine.device.alloc(20 * MIB).unwrap();
    let taken = Some((address, 20 * MIB));
    let granted = machine.with(|policy, env| policy.go_on(env, request, taken)).unwrap();
    assert_eq!(granted.address, held.address);
    let next = machine.alloc(20 * MIB);
    assert_eq!(next.address, address);
    assert_eq!((machine.reserved(), machine.policy.stats().num_device_alloc), (40 * MIB, 2));
}

#[test]
fn a_segment_that_does_not_serve_any_more_goes_back_before_anything_else() {
    let of = |change: fn(&mut Machine)| {
        let mut machine = Machine::new("", GIB);
        machine.policy.leave_segments(true);
        let request = Request { size: 2_200_000, stream: MAIN, pool: PoolId::DEFAULT };
        assert_eq!(machine.ask(request.size, MAIN, 0), Err(AllocError::SegmentLeft(20 * MIB)));
        change(&mut machine);
        let taken = Some((machine.device.alloc(20 * MIB).unwrap(), 20 * MIB));
        (machine.with(|policy, env| policy.go_on(env, request, taken)), machine)
    };
    // Another thread has taken what the limit leaves.
    let (answer, machine) = of(|machine| {
        machine.policy.set_limit(Some(GIB / 2));
        assert!(machine.ask_twice(500 * MIB, MAIN, 0).0.is_ok());
    });
    assert!(matches!(answer, Err(AllocError::OutOfMemory { .. })), "{answer:?}");
    assert_eq!((machine.device.live().allocations, machine.reserved()), (1, 500 * MIB));
    // The device refuses to take it back: it is cached, and nothing is lost.
    let (answer, mut machine) = of(|machine| {
        machine.policy.set_limit(Some(0));
        machine.device.inject(Fault { kind: FaultKind::Next(Call::Free), out_of_memory: false });
    });
    assert!(matches!(answer, Err(AllocError::Device(_))), "{answer:?}");
    assert_eq!((machine.device.live().allocations, machine.reserved()), (1, 20 * MIB));
    machine.empty_cache();
    assert_eq!((machine.device.live().allocations, machine.reserved()), (0, 0));
}

#[test]
fn what_had_to_be_given_back_for_is_taken_by_the_policy() {
    let mut machine = Machine::new("", 64 * MIB);
    let first = machine.alloc(40 * MIB);
    machine.free(first);
    machine.policy.leave_segments(true);
    let (answer, segment) = machine.ask_twice(50 * MIB, MAIN, 0);
    assert_eq!((answer.map(|granted| granted.size), segment), (Ok(50 * MIB), Some(50 * MIB)));
    let stats = machine.policy.stats();
    assert_eq!((stats.num_alloc_retries, stats.num_device_alloc, stats.num_ooms), (1, 2, 0));
}
