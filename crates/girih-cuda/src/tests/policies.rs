//! The policies of the runtime on this device: what they ask is what the driver allows.
//!
//! The scenarios are those of the runtime's own suite. Here the driver's rules are checked: that
//! what was given is accessible, that no block overlaps another, and that everything goes back.

use std::collections::BTreeMap;

use arbitrary::{Arbitrary, Unstructured};
use girih_runtime::caching::{Caching, Config};
use girih_runtime::direct::Direct;
use girih_runtime::suite::{self, Op, Scenario};
use girih_runtime::{Address, AllocError, Device, DeviceError, Env, Granted, Policy, Request};
use girih_trace::{Event, Mark, MarkKind, PoolId, StreamId};

use super::device_of;
use crate::device::CudaDevice;
use crate::driver::types::CuResult;
use crate::fake;
use crate::phantom::Phantom;

/// A policy on a device, and the blocks that it gave.
struct Run<D: Device> {
    device: D,
    policy: Box<dyn Policy>,
    log: Vec<Event>,
    live: Vec<Granted>,
    ends: BTreeMap<Address, Address>,
    /// A driver call was made to fail.
    fault: bool,
}

impl<D: Device> Run<D> {
    fn call<T>(
        &mut self,
        operation: impl FnOnce(&mut dyn Policy, &mut Env<'_>) -> Result<T, AllocError>,
    ) -> Option<T> {
        let mut env = Env { device: &mut self.device, log: &mut self.log };
        match operation(self.policy.as_mut(), &mut env) {
            Ok(value) => Some(value),
            Err(AllocError::OutOfMemory { .. }) => None,
            Err(AllocError::Device(DeviceError::Driver { .. })) if self.fault => None,
            Err(error) => panic!("{}: {error}", self.policy.name()),
        }
    }

    fn allocate(&mut self, size: u64, stream: StreamId, pool: PoolId) {
        let request = Request { size, stream, pool };
        let Some(granted) = self.call(|policy, env| policy.allocate(env, request)) else { return };
        let (start, end) = (granted.address, granted.address + granted.size);
        assert!(granted.size >= size);
        assert!(fake::usable(0, start, granted.size), "{granted:?} is not accessible");
        let before = self.ends.range(..end).next_back();
        assert!(before.is_none_or(|(_, before)| *before <= start), "{granted:?} overlaps");
        self.ends.insert(start, end);
        self.live.push(granted);
    }

    fn free(&mut self, place: usize) {
        let granted = self.live.swap_remove(place);
        self.ends.remove(&granted.address);
        if self.call(|policy, env| policy.free(env, granted.block)).is_none() {
            self.call(|policy, env| policy.free(env, granted.block)).expect("the second try");
        }
    }

    fn step(&mut self, op: Op) {
        let pick = |pick: u16| usize::from(pick) % self.live.len().max(1);
        match op {
            Op::Alloc { size, stream, pool } => self.allocate(size, stream, pool),
            Op::Free { pick: chosen } if !self.live.is_empty() => self.free(pick(chosen)),
            Op::RecordStream { pick: chosen, stream } if !self.live.is_empty() => {
                let block = self.live[pick(chosen)].block;
                self.call(|policy, env| policy.record_stream(env, block, stream));
            }
            Op::Hold(stream) => fake::hold(u64::from(stream.0)),
            Op::Resume(stream) => fake::resume(u64::from(stream.0)),
            Op::ProcessEvents => drop(self.call(|policy, env| policy.process_events(env))),
            Op::EmptyCache => drop(self.call(|policy, env| policy.empty_cache(env))),
            Op::Step => {
                let (kind, name) = (MarkKind::Step, String::new());
                let mark = Mark { before: 0, time_us: 0, kind, name };
                self.call(|policy, env| policy.mark(env, &mark));
            }
            Op::Free { .. } | Op::RecordStream { .. } => {}
        }
        self.policy.check().unwrap_or_else(|error| panic!("{op:?}: {error}"));
    }

    /// Frees everything; the device must have all of it back.
    fn finish(&mut self) {
        for stream in 0..8 {
            fake::resume(stream);
        }
        while !self.live.is_empty() {
            self.free(0);
        }
        for pool in 0..8 {
            self.call(|policy, env| policy.release_pool(env, PoolId(pool)));
        }
        for _ in 0..3 {
            self.call(|policy, env| policy.process_events(env));
            self.call(|policy, env| policy.empty_cache(env));
        }
    }
}

type Make = fn() -> Box<dyn Policy>;

fn caching(settings: &str) -> Box<dyn Policy> {
    Box::new(Caching::new(Config::parse(settings).expect("the settings are right")))
}

const POLICIES: [Make; 4] = [
    || Box::new(Direct::new()),
    || caching(""),
    || caching("expandable_segments:True"),
    || suite::planned(suite::reckless_plan(3)),
];

fn scenario(seed: u64) -> Scenario {
    let mut state = seed;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 56) as u8
    });
    let bytes: Vec<u8> = noise.take(1500).collect();
    Scenario::arbitrary(&mut Unstructured::new(&bytes)).expect("there are bytes enough")
}

/// A device on which stream `n` has the handle `n`.
fn device(scenario: &Scenario) -> CudaDevice {
    let mut device = device_of(scenario.device_bytes);
    for handle in 0..8 {
        device.add_stream(handle);
    }
    device
}

fn run<D: Device>(scenario: &Scenario, device: D, make: Make, fault: bool) -> Run<D> {
    let (log, live, ends) = (Vec::new(), Vec::new(), BTreeMap::new());
    let mut run = Run { device, policy: make(), log, live, ends, fault };
    for op in &scenario.ops {
        run.step(*op);
    }
    run.finish();
    run
}

#[test]
fn every_policy_works_on_the_driver_and_gives_everything_back() {
    for make in POLICIES {
        for seed in 0..12 {
            let scenario = scenario(seed);
            let run = run(&scenario, device(&scenario), make, false);
            assert!(fake::is_empty(), "{}, seed {seed}", run.policy.name());
            assert_eq!(run.device.books.counts(), [0; 4]);
            assert_eq!(run.device.events_in_use(), 0);
        }
    }
}

#[test]
fn every_policy_survives_the_failure_of_any_driver_call() {
    for make in POLICIES {
        let scenario = scenario(5);
        for call in (1..2000).step_by(17) {
            let device = device(&scenario);
            fake::fail(call, CuResult(999));
            let run = run(&scenario, device, make, true);
            assert!(fake::is_empty(), "{}, call {call}", run.policy.name());
            if !fake::fault_came() {
                break;
            }
        }
    }
}

#[test]
fn every_policy_works_on_a_phantom() {
    for make in POLICIES {
        let scenario = scenario(7);
        let phantom = Phantom::new(device(&scenario), 64 << 30).expect("there is room");
        let run = run(&scenario, phantom, make, false);
        let mut phantom = run.device;
        let info = phantom.memory_info();
        assert_eq!(info.free, info.total, "{}", run.policy.name());
    }
}

#[test]
fn a_caching_policy_makes_no_driver_call_in_steady_state() {
    let mut device = device_of(1 << 30);
    let stream = device.add_stream(0);
    let mut policy = caching("expandable_segments:True");
    let mut log = ();
    let mut before = 0;
    for round in 0..4 {
        let mut blocks = Vec::new();
        for size in [512, 4 << 20, 70 << 20, 300 << 20] {
            let request = Request { size, stream, pool: PoolId::DEFAULT };
            let mut env = Env { device: &mut device, log: &mut log };
            blocks.push(policy.allocate(&mut env, request).expect("there is room").block);
        }
        for block in blocks {
            let mut env = Env { device: &mut device, log: &mut log };
            policy.free(&mut env, block).expect("it is in use");
        }
        let calls = device.calls().total();
        assert!(round == 0 || calls == before, "round {round}: {calls}, {before} before");
        before = calls;
    }
    assert!(before > 0);
}
