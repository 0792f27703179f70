//! Recordings of an allocator that caches nothing: they replay as a program that never empties its cache.

use girih_runtime::caching::{Caching, Config};
use girih_runtime::direct::Direct;
use girih_runtime::replay::{Options, Replayed, replay};
use girih_runtime::sim::SimDevice;
use girih_runtime::{BlockId, Env, Policy, Request};
use girih_trace::{Action, Event, Lifetimes, PoolId, StreamId, Trace};

const MIB: u64 = 1 << 20;
const DEVICE: u64 = 1 << 40;

/// A program under a policy, and what the policy says of it.
struct Program<P> {
    policy: P,
    device: SimDevice,
    log: Vec<Event>,
}

impl<P: Policy> Program<P> {
    fn new(policy: P) -> Program<P> {
        Program { policy, device: SimDevice::new(DEVICE), log: Vec::new() }
    }

    fn allocate(&mut self, size: u64) -> BlockId {
        let request = Request { size, stream: StreamId(0), pool: PoolId::DEFAULT };
        let mut env = Env::new(&mut self.device, &mut self.log);
        self.policy.allocate(&mut env, request).expect("memory is plenty").block
    }

    fn free(&mut self, block: BlockId) {
        let mut env = Env::new(&mut self.device, &mut self.log);
        self.policy.free(&mut env, block).expect("it is in use");
    }

    fn empty_cache(&mut self) {
        let mut env = Env::new(&mut self.device, &mut self.log);
        self.policy.empty_cache(&mut env).expect("nothing fails");
    }

    /// A step that fragments a cache: what is freed first is too small for what comes next.
    fn step(&mut self) {
        let first = self.allocate(30 * MIB + 512);
        let small = self.allocate(513);
        self.free(first);
        let second = self.allocate(40 * MIB);
        self.free(second);
        let third = self.allocate(50 * MIB);
        self.free(third);
        self.free(small);
    }

    fn trace(self) -> Trace {
        Trace { events: self.log, streams: vec![0], pools: vec![(0, 0)], ..Trace::default() }
    }
}

/// Under the caching allocator: its replay, the most it reserved, what it gave back.
fn replayed(trace: &Trace) -> (Replayed, u64, u64) {
    let lives = Lifetimes::of(trace);
    let (mut policy, mut device) = (Caching::new(Config::default()), SimDevice::new(DEVICE));
    let options = Options { check_policy: true, ..Options::default() };
    let found = replay(trace, &lives, &mut policy, &mut device, options).expect("nothing fails");
    let stats = policy.stats();
    (found, stats.reserved_bytes.all().peak, stats.num_device_free)
}

#[test]
fn a_recording_without_a_cache_replays_as_the_program_would_run_with_one() {
    let mut plain = Program::new(Direct::new(Caching::new(Config::default())));
    let mut cached = Program::new(Caching::new(Config::default()));
    for _ in 0..3 {
        plain.step();
        cached.step();
    }
    let wanted = cached.policy.stats().reserved_bytes.all().peak;
    let gave_back = |event: &&Event| event.action == Action::SegmentFree;
    assert_eq!(plain.log.iter().filter(gave_back).count(), 12, "each block by itself");
    // Fragmented: of 51 MiB in use at most, rounded up, 124 are held.
    assert_eq!(wanted, (32 + 2 + 40 + 50) * MIB);
    let (found, reserved, freed) = replayed(&plain.trace());
    assert_eq!(found.requests, 12);
    assert_eq!((reserved, freed), (wanted, 0));
}

#[test]
fn what_a_cache_gave_back_is_given_back_again() {
    let mut cached = Program::new(Caching::new(Config::default()));
    cached.step();
    cached.empty_cache();
    cached.step();
    let (_, reserved, freed) = replayed(&cached.trace());
    assert_eq!((reserved, freed), ((32 + 2 + 40 + 50) * MIB, 4));
}
