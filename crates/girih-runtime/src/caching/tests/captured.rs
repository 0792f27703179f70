//! `graph_capture_record_stream_reuse`: when a block that another stream used is free within its capture.
//! The simulated device has the graphs, and its order checker sees every use.

use super::*;
use crate::sim::{Call, Fault, FaultKind};

const KEY: &str = "graph_capture_record_stream_reuse:True";
const POOL: u16 = 1;
const SIZE: u64 = 4 * MIB;

impl Machine {
    /// A machine in whose pool a graph is captured, from both streams or from the first alone.
    fn capturing(text: &str, forks: bool) -> Machine {
        let mut machine = Machine::new(text, GIB);
        machine.device.begin_capture(MAIN);
        machine.policy.begin_pool(PoolId(POOL), true);
        if forks {
            machine.join(MAIN, SIDE);
        }
        machine
    }

    /// A block of the pool whose use by a stream begins.
    fn take(&mut self, stream: StreamId) -> Granted {
        let granted = self.ask(SIZE, stream, POOL).unwrap();
        self.device.acquire(granted.address, granted.size, stream).unwrap();
        granted
    }

    /// Both streams use the block, and the program frees it.
    fn drop_shared(&mut self, granted: Granted, own: StreamId, other: StreamId) {
        self.record(granted, other);
        self.device.release(granted.address, granted.size, &[own, other]).unwrap();
        self.free(granted);
    }

    fn join(&mut self, before: StreamId, after: StreamId) {
        self.device.order(before, after);
    }

    fn end(&mut self) {
        self.device.end_capture(MAIN);
        self.policy.end_pool(PoolId(POOL), true);
    }

    /// A request outside of the pool, which looks after what waits.
    fn look_after_frees(&mut self) {
        let granted = self.alloc(512);
        self.free(granted);
    }
}

#[test]
fn a_block_is_used_again_once_the_side_stream_was_joined_and_not_before() {
    for text in [KEY, "", "graph_capture_record_stream_reuse:True,expandable_segments:True"] {
        let mut machine = Machine::capturing(text, true);
        let first = machine.take(MAIN);
        machine.drop_shared(first, MAIN, SIDE);
        let second = machine.take(MAIN);
        assert_ne!(second.address, first.address, "the side stream may still use it");
        machine.join(SIDE, MAIN);
        let third = machine.take(MAIN);
        assert_eq!(third.address == first.address, !text.is_empty(), "{text}");
        machine.end();
        assert_eq!(machine.policy.check(), Ok(()));
        if text.is_empty() {
            assert_eq!(machine.device.totals().of(Call::CapturedEnds).calls, 0);
        }
    }
}

#[test]
fn a_join_of_earlier_work_is_not_enough_and_one_through_a_third_stream_is() {
    let third = StreamId(2);
    let mut machine = Machine::capturing(KEY, true);
    let first = machine.take(MAIN);
    machine.join(SIDE, MAIN);
    machine.drop_shared(first, MAIN, SIDE);
    assert_ne!(machine.take(MAIN).address, first.address);
    machine.join(SIDE, third);
    let other = machine.take(third);
    machine.device.release(other.address, other.size, &[third]).unwrap();
    machine.free(other);
    assert_ne!(machine.take(MAIN).address, first.address);
    machine.join(third, MAIN);
    assert_eq!(machine.take(MAIN).address, first.address);
}

#[test]
fn a_block_serves_its_own_stream_alone() {
    let mut machine = Machine::capturing(KEY, true);
    let first = machine.take(SIDE);
    machine.drop_shared(first, SIDE, MAIN);
    machine.join(SIDE, MAIN);
    assert_ne!(machine.take(MAIN).address, first.address, "it is of the side stream");
    machine.join(MAIN, SIDE);
    assert_eq!(machine.take(SIDE).address, first.address);
}

#[test]
fn a_stream_outside_of_the_capture_keeps_the_block_until_its_end() {
    // The side stream is captured by nobody, or into another graph.
    for captures in [false, true] {
        let mut machine = Machine::capturing(KEY, false);
        if captures {
            machine.device.begin_capture(SIDE);
        }
        let first = machine.take(MAIN);
        machine.drop_shared(first, MAIN, SIDE);
        assert_ne!(machine.take(MAIN).address, first.address);
        machine.device.end_capture(SIDE);
        machine.end();
    }
    // It is a part of the capture, and used the block before.
    let mut machine = Machine::new(KEY, GIB);
    let first = machine.take(MAIN);
    machine.record(first, SIDE);
    machine.device.hold(SIDE);
    machine.device.begin_capture(MAIN);
    machine.policy.begin_pool(PoolId(POOL), true);
    machine.join(MAIN, SIDE);
    machine.drop_shared(first, MAIN, SIDE);
    machine.join(SIDE, MAIN);
    assert_ne!(machine.take(MAIN).address, first.address);
    machine.end();
    machine.look_after_frees();
    assert_ne!(machine.take(MAIN).address, first.address, "its work is not done");
    machine.device.resume(SIDE);
    machine.look_after_frees();
    assert_eq!(machine.take(MAIN).address, first.address);
}

#[test]
fn nothing_of_a_graph_is_known_in_the_next() {
    let mut machine = Machine::capturing(KEY, true);
    let first = machine.take(MAIN);
    machine.drop_shared(first, MAIN, SIDE);
    machine.join(SIDE, MAIN);
    machine.end();
    machine.device.begin_capture(MAIN);
    machine.policy.begin_pool(PoolId(POOL), true);
    assert_ne!(machine.take(MAIN).address, first.address, "no request came in between");
    machine.end();
    machine.look_after_frees();
    assert_eq!(machine.take(MAIN).address, first.address, "its streams were all captured");
}

#[test]
fn what_cannot_be_told_now_is_told_later_and_nothing_is_lost() {
    let on = |call: Call| Fault { kind: FaultKind::Next(call), out_of_memory: false };
    // When a use is told of, or the block is freed: then it waits for the end.
    for is_freed in [false, true] {
        let mut machine = Machine::capturing(KEY, true);
        let first = machine.take(MAIN);
        if !is_freed {
            machine.device.inject(on(Call::CapturedEnds));
        }
        machine.record(first, SIDE);
        machine.device.release(first.address, first.size, &[MAIN, SIDE]).unwrap();
        if is_freed {
            machine.device.inject(on(Call::CapturedEnds));
        }
        machine.free(first);
        machine.join(SIDE, MAIN);
        assert_ne!(machine.take(MAIN).address, first.address);
        machine.end();
        machine.look_after_frees();
        assert_eq!(machine.take(MAIN).address, first.address);
    }
    // When it is asked for, also in the middle of a walk: then the next request has it.
    for (call, walked) in
        [(Call::CapturedEnds, 0), (Call::GraphDependencies, 0), (Call::GraphDependencies, 2)]
    {
        let mut machine = Machine::capturing(KEY, true);
        let first = machine.take(MAIN);
        machine.drop_shared(first, MAIN, SIDE);
        for _ in 0..walked {
            assert_ne!(machine.take(MAIN).address, first.address);
            let work = machine.take(MAIN);
            machine.device.release(work.address, work.size, &[MAIN]).unwrap();
            machine.free(work);
        }
        machine.join(SIDE, MAIN);
        machine.device.inject(on(call));
        assert_ne!(machine.take(MAIN).address, first.address, "{call:?}");
        assert_eq!(machine.take(MAIN).address, first.address, "{call:?}");
    }
}
