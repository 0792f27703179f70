//! One test for each rule of the policy.

use arbitrary::Unstructured;
use girih_trace::{Action, BlockState, Event, PoolId, StreamId};

use super::Direct;
use crate::caching::{Caching, Config, TieOrder};
use crate::device::{Address, Device};
use crate::policy::{AllocError, Env, Granted, Policy, PoolOptions, Request};
use crate::sim::{Call, LiveObjects, SimDevice};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const MAIN: StreamId = StreamId(0);
const SIDE: StreamId = StreamId(1);
const NONE: PoolId = PoolId::DEFAULT;
const POOL: PoolId = PoolId(1);

/// A policy on a device, with its log.
struct Machine {
    device: SimDevice,
    policy: Direct,
    log: Vec<Event>,
}

impl Machine {
    fn new(text: &str, bytes: u64) -> Machine {
        Machine::of(Config::parse(text).unwrap(), bytes)
    }

    fn of(config: Config, bytes: u64) -> Machine {
        let mut device = SimDevice::new(bytes);
        device.check_order();
        Machine { device, policy: Direct::new(Caching::new(config)), log: Vec::new() }
    }

    fn with<T>(&mut self, call: impl FnOnce(&mut Direct, &mut Env<'_>) -> T) -> T {
        let mut env = Env::new(&mut self.device, &mut self.log);
        let result = call(&mut self.policy, &mut env);
        self.policy.check().unwrap();
        result
    }

    fn ask(&mut self, size: u64, pool: PoolId) -> Result<Granted, AllocError> {
        self.with(|policy, env| policy.allocate(env, Request { size, stream: MAIN, pool }))
    }

    fn alloc(&mut self, size: u64, pool: PoolId) -> Granted {
        self.ask(size, pool).unwrap()
    }

    fn free(&mut self, granted: Granted) {
        self.with(|policy, env| policy.free(env, granted.block)).unwrap();
    }

    fn record(&mut self, granted: Granted, stream: StreamId) {
        self.with(|policy, env| policy.record_stream(env, granted.block, stream)).unwrap();
    }

    fn release_pool(&mut self) {
        self.with(|policy, env| policy.release_pool(env, POOL)).unwrap();
    }

    fn empty_cache(&mut self) {
        self.with(Policy::empty_cache).unwrap();
    }

    fn reserved(&self) -> u64 {
        self.policy.stats().reserved_bytes.all().current
    }

    /// Calls of the device by which events are recorded or asked for, or something waits, or memory
    /// of the device goes back.
    fn calls_that_a_capture_forbids(&self) -> u64 {
        let kinds = [
            Call::Free,
            Call::RecordEvent,
            Call::QueryEvent,
            Call::SynchronizeEvent,
            Call::SynchronizeStream,
        ];
        kinds.map(|kind| self.device.totals().of(kind).calls).iter().sum()
    }
}

/// The limit that an error names.
fn limit_of(refused: Result<Granted, AllocError>) -> u64 {
    match refused {
        Err(AllocError::OutOfMemory { limit, .. }) => limit,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_block_is_an_allocation_that_goes_back_when_it_is_freed() {
    let mut machine = Machine::new("", GIB);
    let block = machine.alloc(1000, NONE);
    assert_eq!((block.size, machine.reserved()), (1024, 1024));
    machine.free(block);
    assert_eq!((machine.reserved(), machine.device.live()), (0, LiveObjects::default()));
    let actions: Vec<Action> = machine.log.iter().map(|event| event.action).collect();
    let taken = [Action::SegmentAlloc, Action::Alloc];
    let back = [Action::FreeRequested, Action::FreeCompleted, Action::SegmentFree];
    assert_eq!(actions, [&taken[..], &back[..]].concat());
}

#[test]
fn no_more_is_held_than_the_limit_allows() {
    let mut machine = Machine::new("", 100 * MIB);
    machine.policy.set_limit(Some(50 * MIB));
    let block = machine.alloc(40 * MIB, NONE);
    assert_eq!(limit_of(machine.ask(10 * MIB + 1, NONE)), 50 * MIB);
    assert_eq!(machine.policy.stats().num_ooms, 1);
    assert_eq!(machine.log.last().map(|event| event.action), Some(Action::Oom));
    machine.alloc(10 * MIB, NONE);
    machine.free(block);
    machine.policy.set_limit(None);
    assert_eq!(limit_of(machine.ask(100 * MIB, NONE)), u64::MAX);
    machine.alloc(90 * MIB, NONE);
}

#[test]
fn the_limit_of_the_settings_counts_from_the_first_request() {
    let mut machine = Machine::new("per_process_memory_fraction:0.25", 100 * MIB);
    assert_eq!(machine.policy.limit(100 * MIB), Some(25 * MIB));
    assert_eq!(limit_of(machine.ask(26 * MIB, NONE)), 25 * MIB);
}

#[test]
fn the_limit_is_truncated_until_2_12_and_rounded_later() {
    // 2/3 of 90 MiB is 60 MiB less a fraction of a byte.
    let machine = |tie_order| {
        let config = Config { memory_fraction: 2.0 / 3.0 - 1e-9, tie_order, ..Config::default() };
        Machine::of(config, 90 * MIB)
    };
    for pool in [NONE, POOL] {
        assert!(machine(TieOrder::Address).ask(60 * MIB, pool).is_err());
        assert!(machine(TieOrder::Segment).ask(60 * MIB, pool).is_ok());
    }
}

#[test]
fn pools_and_single_allocations_have_one_limit() {
    let mut machine = Machine::new("", 200 * MIB);
    machine.policy.set_limit(Some(100 * MIB));
    let single = machine.alloc(60 * MIB, NONE);
    assert_eq!(limit_of(machine.ask(42 * MIB, POOL)), 100 * MIB);
    let private = machine.alloc(40 * MIB, POOL);
    assert_eq!(limit_of(machine.ask(512, NONE)), 100 * MIB);
    machine.free(single);
    machine.alloc(60 * MIB, POOL);
    machine.free(private);
    assert_eq!(limit_of(machine.ask(512, NONE)), 100 * MIB, "the pool keeps what it has");
}

#[test]
fn before_a_request_is_refused_streams_are_waited_for() {
    for (total, limit) in [(100, None), (200, Some(100 * MIB))] {
        for pool in [NONE, POOL] {
            let mut machine = Machine::new("", total * MIB);
            machine.policy.set_limit(limit);
            let block = machine.alloc(60 * MIB, NONE);
            machine.record(block, SIDE);
            machine.device.hold(SIDE);
            machine.free(block);
            assert_eq!(machine.reserved(), 60 * MIB);
            machine.alloc(80 * MIB, pool);
            let stats = machine.policy.stats();
            assert_eq!((stats.num_ooms, stats.reserved_bytes.all().current), (0, 80 * MIB));
            assert!(stats.num_alloc_retries > 0);
        }
    }
}

#[test]
fn without_anything_to_give_back_a_request_is_not_tried_twice() {
    let mut machine = Machine::new("", 100 * MIB);
    machine.alloc(60 * MIB, NONE);
    let calls = machine.device.calls();
    assert!(machine.ask(60 * MIB, NONE).is_err());
    assert_eq!(machine.device.calls(), calls + 1);
    assert_eq!(machine.policy.stats().num_alloc_retries, 0);
}

#[test]
fn what_a_private_pool_freed_stays_until_the_pool_has_no_users() {
    let mut machine = Machine::new("", GIB);
    machine.policy.create_pool(POOL);
    let private = machine.alloc(40 * MIB, POOL);
    machine.free(private);
    machine.empty_cache();
    assert_eq!((machine.reserved(), machine.device.live().allocations), (40 * MIB, 1));
    assert_eq!(machine.alloc(40 * MIB, POOL).address, private.address);
    machine.free(private);
    machine.release_pool();
    machine.empty_cache();
    assert_eq!((machine.reserved(), machine.device.live()), (0, LiveObjects::default()));
}

#[test]
fn a_pool_without_users_makes_room_before_a_request_is_refused() {
    let mut machine = Machine::new("", 100 * MIB);
    machine.policy.create_pool(POOL);
    let private = machine.alloc(60 * MIB, POOL);
    machine.free(private);
    assert!(machine.ask(60 * MIB, NONE).is_err());
    machine.release_pool();
    machine.alloc(60 * MIB, NONE);
    assert_eq!(machine.reserved(), 60 * MIB);
}

#[test]
fn a_private_pool_is_brought_back_to_its_checkpoint() {
    let mut machine = Machine::new("", GIB);
    machine.policy.create_pool(POOL);
    let outside = machine.alloc(3 * MIB, NONE);
    let recorded = machine.alloc(3 * MIB, POOL);
    let checkpoint = machine.policy.checkpoint(POOL).unwrap();
    machine.free(recorded);
    let later = machine.alloc(5 * MIB, POOL);
    let restored = machine.with(|policy, env| policy.restore(env, &checkpoint)).unwrap();
    assert_eq!(restored.freed, [(later.block, later.address)]);
    let addresses: Vec<Address> = restored.allocated.iter().map(|block| block.address).collect();
    assert_eq!(addresses, [recorded.address]);
    assert_eq!(machine.policy.stats().allocated_bytes.all().current, 6 * MIB);
    machine.free(outside);
    machine.free(restored.allocated[0]);
}

#[test]
fn in_a_capture_nothing_goes_back_and_no_event_is_recorded_or_asked() {
    let mut machine = Machine::new("", GIB);
    let [plain, shared, waiting] = [20, 30, 40].map(|mib| machine.alloc(mib * MIB, NONE));
    machine.record(shared, SIDE);
    machine.record(waiting, SIDE);
    machine.device.hold(SIDE);
    machine.free(waiting);
    machine.policy.begin_pool(POOL, true);
    let before = machine.calls_that_a_capture_forbids();
    let captured = machine.alloc(10 * MIB, POOL);
    machine.record(captured, SIDE);
    for block in [plain, shared, captured] {
        machine.free(block);
    }
    let outside = machine.alloc(512, NONE);
    machine.free(outside);
    machine.with(Policy::process_events).unwrap();
    machine.empty_cache();
    assert!(machine.ask(GIB, NONE).is_err());
    assert_eq!(machine.calls_that_a_capture_forbids(), before);
    assert_eq!(machine.reserved(), 100 * MIB + 512);
    assert_eq!(machine.policy.stats().allocation.all().current, 0);
    machine.policy.end_pool(POOL, true);
    machine.with(Policy::process_events).unwrap();
    // Only the side stream, and the pool of the graph, hold anything yet.
    assert_eq!(machine.reserved(), 80 * MIB);
    machine.device.resume(SIDE);
    machine.with(Policy::process_events).unwrap();
    assert_eq!(machine.reserved(), 10 * MIB);
    machine.release_pool();
    machine.empty_cache();
    assert_eq!(machine.device.live(), LiveObjects::default());
}

#[test]
fn in_a_capture_a_refused_request_takes_nothing_from_pools_without_users() {
    let mut machine = Machine::new("", 100 * MIB);
    let unused = machine.alloc(60 * MIB, PoolId(2));
    machine.free(unused);
    machine.with(|policy, env| policy.release_pool(env, PoolId(2))).unwrap();
    machine.policy.begin_pool(POOL, true);
    assert!(machine.ask(60 * MIB, NONE).is_err());
    assert_eq!(machine.calls_that_a_capture_forbids(), 0);
    machine.policy.end_pool(POOL, true);
    assert!(machine.ask(60 * MIB, NONE).is_ok());
}

#[test]
fn a_pool_may_lend_when_memory_runs_out() {
    let mut machine = Machine::new("", 100 * MIB);
    let options = PoolOptions { use_on_oom: true, no_split: true, ..PoolOptions::default() };
    machine.policy.create_pool(POOL);
    machine.policy.set_pool_options(POOL, options);
    let private = machine.alloc(60 * MIB, POOL);
    machine.free(private);
    let single = machine.alloc(30 * MIB, NONE);
    assert_ne!(single.address, private.address, "the device has room");
    let lent = machine.alloc(50 * MIB, NONE);
    assert_eq!((lent.address, lent.size), (private.address, 60 * MIB));
    machine.free(lent);
    machine.policy.set_pool_options(POOL, PoolOptions { use_on_oom: false, ..options });
    assert!(machine.ask(50 * MIB, NONE).is_err());
}

#[test]
fn single_allocations_and_pools_are_seen_together_by_address() {
    let mut machine = Machine::new("", GIB);
    let blocks = [NONE, POOL, NONE, POOL].map(|pool| machine.alloc(30 * MIB, pool));
    let mut seen = Vec::new();
    machine.policy.visit(&mut |segment, blocks| {
        assert!(blocks.iter().all(|block| block.state == BlockState::Allocated));
        seen.push((segment.address, segment.pool));
    });
    let mut given: Vec<_> =
        blocks.iter().map(|block| block.address).zip([NONE, POOL, NONE, POOL]).collect();
    given.sort_unstable();
    assert_eq!(seen, given);
}

#[test]
fn a_request_larger_than_any_device_never_reaches_it() {
    let mut machine = Machine::new("", GIB);
    for pool in [NONE, POOL] {
        assert!(machine.ask(u64::MAX, pool).is_err());
    }
    assert_eq!((machine.device.calls(), machine.log.len()), (0, 0));
}

/// One operation of a program that captures graphs and changes its limit.
fn step(
    machine: &mut Machine,
    live: &mut Vec<Granted>,
    captures: &mut bool,
    u: &mut Unstructured<'_>,
) -> arbitrary::Result<()> {
    let place = |live: &[Granted], u: &mut Unstructured<'_>| u.choose_index(live.len());
    match u.int_in_range(0..=11)? {
        0..=4 => {
            let pool = PoolId(u.int_in_range(0..=2)?);
            let total = machine.device.memory_info().total;
            let (limit, before) = (machine.policy.limit(total), machine.reserved());
            let size = u.int_in_range(1..=24 * MIB)?;
            live.extend(machine.ask(size, pool));
            let allowed = before.max(limit.unwrap_or(total));
            assert!(machine.reserved() <= allowed, "{} of {allowed}", machine.reserved());
        }
        5 | 6 if !live.is_empty() => {
            let at = place(live, u)?;
            machine.free(live.swap_remove(at));
        }
        7 if !live.is_empty() => {
            let at = place(live, u)?;
            machine.record(live[at], SIDE);
        }
        8 => {
            *captures = !*captures;
            if *captures {
                machine.policy.begin_pool(POOL, true);
            } else {
                machine.policy.end_pool(POOL, true);
                machine.release_pool();
            }
        }
        9 if !*captures => machine.empty_cache(),
        10 => {
            let total = machine.device.memory_info().total;
            machine.policy.set_limit(*u.choose(&[
                Some(total / 10 * 3),
                Some(total / 10 * 6),
                None,
            ])?);
        }
        11 => machine.device.hold(SIDE),
        _ => machine.with(Policy::process_events).unwrap(),
    }
    Ok(())
}

#[test]
fn captures_and_limits_in_any_order_lose_nothing() {
    arbtest::arbtest(|u| {
        let orders = [TieOrder::Address, TieOrder::Segment];
        let config = Config { tie_order: *u.choose(&orders)?, ..Config::default() };
        let mut machine = Machine::of(config, 128 * MIB);
        let (mut live, mut captures) = (Vec::new(), false);
        for pool in [POOL, PoolId(2)] {
            machine.policy.create_pool(pool);
        }
        for _ in 0..u.int_in_range(0..=60)? {
            let (was_captured, before) = (captures, machine.calls_that_a_capture_forbids());
            step(&mut machine, &mut live, &mut captures, u)?;
            let made = machine.calls_that_a_capture_forbids() - before;
            assert!(!(was_captured && captures) || made == 0, "{made} calls in a capture");
        }
        if captures {
            machine.policy.end_pool(POOL, true);
            machine.release_pool();
        }
        live.into_iter().for_each(|block| machine.free(block));
        for pool in [POOL, PoolId(2)] {
            machine.with(|policy, env| policy.release_pool(env, pool)).unwrap();
        }
        machine.empty_cache();
        assert_eq!((machine.reserved(), machine.device.live()), (0, LiveObjects::default()));
        Ok(())
    })
    .size_min(200)
    .size_max(1500)
    .budget_ms(1_500);
}
