//! What every policy must do, whatever it decides.
//!
//! A [`Scenario`] is a device and a sequence of operations, made from bytes: property tests and the
//! fuzz target share this one generator. Each scenario draws its own mix of operations (swarm
//! testing): one frees nothing, another holds every stream, a third uses private pools.
//!
//! The harness runs it on the simulated device with the order checker on, and after each operation
//! asks: do blocks overlap, are they aligned and large enough, is memory used before the work on it
//! is done, do the policy's own books agree? At the end everything is freed, and the device must
//! have all of its memory back.
//!
//! A policy joins in a few lines:
//!
//! ```
//! use girih_runtime::{direct::Direct, suite};
//!
//! suite::check_policy(16, &mut || Box::new(Direct::new()));
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use girih_plan::{Entry, Place, Plan, Role, Sequence};
use girih_trace::{Action, Event, Mark, MarkKind, PoolId, StreamId};

use crate::auto::{Auto, Planning};
use crate::caching::{Caching, Config};
use crate::device::{Address, DeviceError};
use crate::hooked::{Hooked, Moment};
use crate::planned::Planned;
use crate::policy::{AllocError, BlockId, Env, Granted, Policy, Request};
use crate::sim::{Fault, LiveObjects, SimDevice};

/// Makes a fresh policy that holds nothing.
pub type Make<'a> = &'a mut dyn FnMut() -> Box<dyn Policy>;

/// Most operations of a scenario.
const MAX_OPS: usize = 160;
/// Most calls that [`run_with_faults`] lets fail, one at a time.
const MAX_FAULTS: u64 = 400;

/// One operation. `pick` chooses among the blocks in use, modulo their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Allocates `size` bytes.
    Alloc {
        /// Bytes.
        size: u64,
        /// The current stream.
        stream: StreamId,
        /// The pool whose scope is current.
        pool: PoolId,
    },
    /// Frees a block.
    Free {
        /// Which.
        pick: u16,
    },
    /// Lets another stream use a block.
    RecordStream {
        /// Which block.
        pick: u16,
        /// The stream.
        stream: StreamId,
    },
    /// Keeps a stream's work from being done.
    Hold(StreamId),
    /// Does a stream's work.
    Resume(StreamId),
    /// [`Policy::process_events`].
    ProcessEvents,
    /// [`Policy::empty_cache`].
    EmptyCache,
    /// A step begins: [`Policy::mark`].
    Step,
}

/// A device and what a program does on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scenario {
    /// Bytes of the device.
    pub device_bytes: u64,
    /// The operations.
    pub ops: Vec<Op>,
}

impl<'a> Arbitrary<'a> for Scenario {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Scenario> {
        let device_bytes = *u.choose(&[24, 48, 160, 1024, 16384])? << 20;
        // How often each kind of operation comes; several never do.
        let mut weights = [8, 6, 1, 1, 1, 1, 1, 1];
        for weight in &mut weights[1..] {
            *weight *= u.int_in_range(0..=2)?;
        }
        let streams = u.int_in_range(1..=3)?;
        let pools = u.int_in_range(0..=2)?;
        let largest = u.int_in_range(10..=28)?;
        let mut ops = Vec::new();
        while ops.len() < MAX_OPS && !u.is_empty() {
            ops.push(arbitrary_op(u, &weights, streams, pools, largest)?);
        }
        Ok(Scenario { device_bytes, ops })
    }
}

fn arbitrary_op(
    u: &mut Unstructured<'_>,
    weights: &[u32; 8],
    streams: u16,
    pools: u16,
    largest: u32,
) -> Result<Op> {
    let mut ticket = u.int_in_range(0..=weights.iter().sum::<u32>() - 1)?;
    let kind = weights.iter().position(|&weight| {
        let mine = ticket < weight;
        ticket = ticket.saturating_sub(weight);
        mine
    });
    let stream = StreamId(u.int_in_range(0..=streams - 1)?);
    Ok(match kind {
        Some(1) => Op::Free { pick: u.arbitrary()? },
        Some(2) => Op::RecordStream { pick: u.arbitrary()?, stream },
        Some(3) => Op::Hold(stream),
        Some(4) => Op::Resume(stream),
        Some(5) => Op::ProcessEvents,
        Some(6) => Op::EmptyCache,
        Some(7) => Op::Step,
        _ => {
            let pool = PoolId(u.int_in_range(0..=pools)?);
            Op::Alloc { size: arbitrary_size(u, largest)?, stream, pool }
        }
    })
}

/// A size up to about `2^largest`: a boundary of PyTorch's rules, a power of two and its
/// neighbours, or anything.
fn arbitrary_size(u: &mut Unstructured<'_>, largest: u32) -> Result<u64> {
    const MIB: u64 = 1 << 20;
    let limit = 1 << largest;
    let size = match u.int_in_range(0..=2)? {
        0 => *u.choose(&[1, 512, 513, MIB, MIB + 1, 2 * MIB, 10 * MIB - 1, 10 * MIB, 20 * MIB])?,
        1 => (1 << u.int_in_range(1..=largest)?) + u.int_in_range(0..=2)? - 1,
        _ => u.int_in_range(1..=limit)?,
    };
    Ok(size.min(limit))
}

/// Expandable segments.
fn expandable() -> Box<dyn Policy> {
    let expandable = Config::parse("expandable_segments:True").expect("the settings are right");
    Box::new(Caching::new(expandable))
}

/// A policy that follows `plan`, with expandable segments as its fallback.
pub fn planned(plan: Plan) -> Box<dyn Policy> {
    Box::new(Planned::new(Arc::new(plan), expandable(), SimDevice::GRANULARITY))
}

/// A policy that begins without a plan and takes up another [`reckless_plan`], and now and then
/// none, at every step.
pub fn changing_plans(seed: u64) -> Box<dyn Policy> {
    let mut next = seed;
    let planned = Planned::empty(expandable(), SimDevice::GRANULARITY);
    Box::new(Hooked::new(planned, move |planned: &mut Planned, env: &mut Env<'_>, moment| {
        if moment == Moment::Mark {
            next += 1;
            if next.is_multiple_of(4) {
                planned.unfollow(env)?;
            } else {
                planned.follow(env, Arc::new(reckless_plan(next)))?;
            }
        }
        Ok(())
    }))
}

/// A policy that learns its plan, at once.
pub fn auto() -> Box<dyn Policy> {
    let mut auto = Auto::new(expandable(), SimDevice::GRANULARITY);
    auto.set_planning(Planning::AtOnce);
    Box::new(auto)
}

/// A plan that is wrong in every way that a plan can be: it takes any request, and its places
/// overlap while they are alive. Nothing but the guard stands between it and the program.
pub fn reckless_plan(seed: u64) -> Plan {
    const MIB: u64 = 1 << 20;
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let entries = (0..60).map(|index| {
        let size_max = 512 << next(15);
        let place = match next(5) {
            0 => Place::Outside,
            1 => Place::Persistent(next(32 * MIB / 512) * 512),
            _ => Place::Arena(next(32 * MIB / 512) * 512),
        };
        let stream = StreamId(next(3) as u16);
        Entry { size_min: 1, size_max, stream, place, until: index + 1 }
    });
    let sequence =
        Sequence { role: Role::Steady, entries: entries.collect(), boundaries: Vec::new() };
    Plan {
        arena_bytes: 64 * MIB,
        persistent_bytes: 64 * MIB,
        lower_bound: 0,
        peak: 64 * MIB,
        proven: false,
        planner: "chance".to_owned(),
        requests: 60,
        iterations: 2,
        rounds: 1,
        sequences: vec![sequence],
    }
}

/// Runs everything of this file on `scenarios` scenarios from fixed seeds. Linear in them; 16 take
/// about a second.
///
/// # Panics
/// On the first rule that is broken, with the operation.
pub fn check_policy(scenarios: u64, make: Make<'_>) {
    for seed in 0..scenarios {
        let bytes = noise(seed);
        let scenario = Scenario::arbitrary(&mut Unstructured::new(&bytes));
        let scenario = scenario.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        run(&scenario, make);
        if seed % 4 == 0 {
            run_with_faults(&scenario, make);
        }
    }
    recovers_from_exhaustion(make);
    refuses_what_is_not_in_use(make);
}

/// Runs a scenario.
///
/// # Panics
/// On the first rule that is broken, with the operation.
pub fn run(scenario: &Scenario, make: Make<'_>) {
    Harness::new(scenario, make()).run(scenario);
}

/// Runs a scenario again and again, each time with another device call that fails, from the first
/// to the last (at most 400 of them, evenly spread).
///
/// # Panics
/// On the first rule that is broken, with the call that failed and the operation.
pub fn run_with_faults(scenario: &Scenario, make: Make<'_>) {
    let mut harness = Harness::new(scenario, make());
    harness.run(scenario);
    let calls = harness.device.calls();
    let step = calls.div_ceil(MAX_FAULTS).max(1);
    for call in (1..=calls).step_by(step as usize) {
        run_with_fault(scenario, call, make());
    }
}

/// Runs a scenario in which the device call of number `call`, from 1, fails.
///
/// # Panics
/// On the first rule that is broken, with the operation.
pub fn run_with_fault(scenario: &Scenario, call: u64, policy: Box<dyn Policy>) {
    let mut harness = Harness::new(scenario, policy);
    harness.device.inject(Fault::nth(call));
    harness.fault = Some(call);
    harness.run(scenario);
}

/// Fills a small device until it has no more, frees everything, and asks for half of it at once.
///
/// # Panics
/// If the policy gives more than there is, fails otherwise than for memory, or does not recover.
pub fn recovers_from_exhaustion(make: Make<'_>) {
    let scenario = Scenario { device_bytes: 64 << 20, ops: Vec::new() };
    let mut harness = Harness::new(&scenario, make());
    for round in 0..3 {
        let size = 3 << (19 + round);
        let mut given = 0;
        while harness.alloc(size, StreamId(0), PoolId::DEFAULT) {
            given += size;
            assert!(given <= scenario.device_bytes, "more was given than there is");
        }
        assert!(given > 0, "nothing of {size} bytes was given by an empty device");
        while !harness.live.is_empty() {
            harness.free(0);
        }
        let half = harness.alloc(scenario.device_bytes / 2, StreamId(0), PoolId::DEFAULT);
        assert!(half, "half of the device cannot be had though all of it is free");
        harness.free(0);
    }
    harness.finish();
}

/// Frees a block twice, and one that never was.
///
/// # Panics
/// If the policy does not refuse with [`AllocError::UnknownBlock`].
pub fn refuses_what_is_not_in_use(make: Make<'_>) {
    let scenario = Scenario { device_bytes: 64 << 20, ops: Vec::new() };
    let mut harness = Harness::new(&scenario, make());
    assert!(harness.alloc(4096, StreamId(0), PoolId::DEFAULT));
    let block = harness.live[0].granted.block;
    harness.free(0);
    let Harness { device, policy, log, .. } = &mut harness;
    let mut env = Env { device, log };
    for id in [block, BlockId(u32::MAX), BlockId(7_777)] {
        assert_eq!(policy.free(&mut env, id), Err(AllocError::UnknownBlock(id)));
        let recorded = policy.record_stream(&mut env, id, StreamId(1));
        assert_eq!(recorded, Err(AllocError::UnknownBlock(id)));
    }
    harness.finish();
}

/// Bytes without pattern, from a seed (SplitMix64).
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).to_le_bytes()
    };
    std::iter::repeat_with(next).take(320).flatten().collect()
}

/// A block that the program holds.
#[derive(Clone, Debug)]
struct Live {
    granted: Granted,
    /// Every stream that uses it, its own first.
    streams: Vec<StreamId>,
}

/// A policy at work, and what is known of it.
struct Harness {
    device: SimDevice,
    policy: Box<dyn Policy>,
    log: Vec<Event>,
    live: Vec<Live>,
    /// Ends of the blocks in use, by address.
    occupied: BTreeMap<Address, Address>,
    pools: BTreeSet<PoolId>,
    /// The device call that is to fail.
    fault: Option<u64>,
    /// What is being done, for messages.
    op: String,
}

impl Harness {
    fn new(scenario: &Scenario, policy: Box<dyn Policy>) -> Harness {
        let mut device = SimDevice::new(scenario.device_bytes);
        device.check_order();
        Harness {
            device,
            policy,
            log: Vec::new(),
            live: Vec::new(),
            occupied: BTreeMap::new(),
            pools: BTreeSet::new(),
            fault: None,
            op: String::new(),
        }
    }

    fn run(&mut self, scenario: &Scenario) {
        for (index, op) in scenario.ops.iter().enumerate() {
            self.op = format!("operation {index}, {op:?}");
            self.step(*op);
            self.check();
        }
        self.finish();
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Alloc { size, stream, pool } => {
                self.alloc(size, stream, pool);
            }
            Op::Free { pick } if !self.live.is_empty() => {
                self.free(usize::from(pick) % self.live.len());
            }
            Op::RecordStream { pick, stream } if !self.live.is_empty() => {
                let place = usize::from(pick) % self.live.len();
                let block = self.live[place].granted.block;
                let recorded = self.call(|policy, env| policy.record_stream(env, block, stream));
                if recorded.is_some() && !self.live[place].streams.contains(&stream) {
                    self.live[place].streams.push(stream);
                }
            }
            Op::Hold(stream) => self.device.hold(stream),
            Op::Resume(stream) => self.device.resume(stream),
            Op::ProcessEvents => drop(self.call(|policy, env| policy.process_events(env))),
            Op::EmptyCache => drop(self.call(|policy, env| policy.empty_cache(env))),
            Op::Step => {
                let mark =
                    Mark { before: 0, time_us: 0, kind: MarkKind::Step, name: String::new() };
                self.call(|policy, env| policy.mark(env, &mark));
            }
            Op::Free { .. } | Op::RecordStream { .. } => {}
        }
    }

    /// Calls the policy. None if it failed as it may: for memory, or by the fault.
    fn call<T>(
        &mut self,
        operation: impl FnOnce(&mut dyn Policy, &mut Env<'_>) -> Result<T, AllocError>,
    ) -> Option<T> {
        let mut env = Env { device: &mut self.device, log: &mut self.log };
        match operation(self.policy.as_mut(), &mut env) {
            Ok(value) => Some(value),
            Err(AllocError::OutOfMemory { .. }) => None,
            Err(AllocError::Device(DeviceError::Injected { call, .. }))
                if self.fault == Some(call) =>
            {
                None
            }
            Err(error) => self.fail(&error.to_string()),
        }
    }

    /// Allocates, and checks what was given. False if nothing was.
    fn alloc(&mut self, size: u64, stream: StreamId, pool: PoolId) -> bool {
        self.pools.insert(pool);
        let request = Request { size, stream, pool };
        let Some(granted) = self.call(|policy, env| policy.allocate(env, request)) else {
            return false;
        };
        let (start, end) = (granted.address, granted.address + granted.size);
        if granted.size < size || !start.is_multiple_of(512) {
            self.fail(&format!("{granted:?} does not serve {size} bytes"));
        }
        let before = self.occupied.range(..end).next_back();
        if let Some((other, _)) = before.filter(|(_, other_end)| **other_end > start) {
            self.fail(&format!("{granted:?} overlaps the block at {other:#x}"));
        }
        if self.live.iter().any(|live| live.granted.block == granted.block) {
            self.fail(&format!("{granted:?} has the id of a block in use"));
        }
        if let Err(error) = self.device.acquire(start, granted.size, stream) {
            self.fail(&error.to_string());
        }
        self.occupied.insert(start, end);
        self.live.push(Live { granted, streams: vec![stream] });
        true
    }

    /// Frees a block; if the policy fails by the fault it must be able to do so again.
    fn free(&mut self, place: usize) {
        let Live { granted, streams } = self.live.swap_remove(place);
        if let Err(error) = self.device.release(granted.address, granted.size, &streams) {
            self.fail(&error.to_string());
        }
        self.occupied.remove(&granted.address);
        let id = granted.block;
        if self.call(|policy, env| policy.free(env, id)).is_none() {
            if let Err(error) = self.policy.check() {
                self.fail(&error);
            }
            if self.call(|policy, env| policy.free(env, id)).is_none() {
                self.fail("a free that failed cannot be tried again");
            }
        }
    }

    /// What must hold after every operation.
    fn check(&self) {
        if let Err(error) = self.policy.check() {
            self.fail(&error);
        }
        let allocated = self.policy.stats().allocated_bytes.all.current;
        let given: u64 = self.live.iter().map(|live| live.granted.size).sum();
        if allocated != given {
            self.fail(&format!("{allocated} bytes allocated, {given} given"));
        }
        let reserved = self.policy.stats().reserved_bytes.all.current;
        let mut visible = 0;
        let mut last = 0;
        self.policy.visit(&mut |segment, blocks| {
            visible += segment.size;
            let tiled: u64 = blocks.iter().map(|block| block.size).sum();
            let ordered = segment.address >= last && blocks[0].address == segment.address;
            if tiled != segment.size || !ordered {
                self.fail(&format!("blocks do not tile {segment:?}, or it is out of order"));
            }
            last = segment.address + segment.size;
        });
        if visible != reserved {
            self.fail(&format!("{reserved} bytes reserved, {visible} visible"));
        }
    }

    /// Frees everything, and checks that the device has everything back.
    fn finish(&mut self) {
        for stream in 0..8 {
            self.device.resume(StreamId(stream));
        }
        self.op = "freeing everything at the end".into();
        while !self.live.is_empty() {
            self.free(0);
        }
        for pool in std::mem::take(&mut self.pools) {
            self.call(|policy, env| policy.release_pool(env, pool));
        }
        // A fault may fall into the first two: the calls that are owed are made by the next.
        for _ in 0..3 {
            self.call(|policy, env| policy.process_events(env));
            self.call(|policy, env| policy.empty_cache(env));
        }
        self.check();
        let live = self.device.live();
        if live != LiveObjects::default() {
            self.fail(&format!("the device does not have back {live:?}"));
        }
        let stats = self.policy.stats();
        for (name, counters) in [
            ("allocation", stats.allocation),
            ("segment", stats.segment),
            ("active", stats.active),
            ("inactive_split", stats.inactive_split),
            ("allocated_bytes", stats.allocated_bytes),
            ("reserved_bytes", stats.reserved_bytes),
            ("active_bytes", stats.active_bytes),
            ("inactive_split_bytes", stats.inactive_split_bytes),
            ("requested_bytes", stats.requested_bytes),
        ] {
            let present = [counters.all.current, counters.small.current, counters.large.current];
            if present != [0; 3] {
                self.fail(&format!("{name} is {present:?} when everything is freed"));
            }
        }
        self.check_log();
    }

    /// The log must balance: what was given was freed, what was taken was given back.
    fn check_log(&self) {
        let bytes = |action| -> u64 {
            let events = self.log.iter().filter(|event| event.action == action);
            events.map(|event| event.size).sum()
        };
        let (given, asked) = (bytes(Action::Alloc), bytes(Action::FreeRequested));
        let freed = bytes(Action::FreeCompleted);
        if given != asked || given != freed {
            self.fail(&format!("the log: {given} bytes given, {asked} let go, {freed} freed"));
        }
        let taken = bytes(Action::SegmentAlloc) + bytes(Action::SegmentMap);
        let back = bytes(Action::SegmentFree) + bytes(Action::SegmentUnmap);
        if taken != back {
            self.fail(&format!("the log: {taken} bytes taken from the device, {back} given back"));
        }
    }

    fn fail(&self, what: &str) -> ! {
        let fault = self.fault.map_or(String::new(), |call| format!(", call {call} made to fail"));
        panic!("{}{fault}: {}: {what}", self.policy.name(), self.op);
    }
}
