//! Pools in one handle: whatever the policy does elsewhere, their memory comes in allocations of the
//! device.

use girih_runtime::caching::{Caching, Config, PoolOptions, TieOrder};
use girih_runtime::lake::Lake;
use girih_runtime::sim::{Call, LiveObjects, SimDevice};
use girih_runtime::suite;
use girih_runtime::{AllocError, Backing, Env, Granted, Policy, Request};
use girih_trace::{PoolId, StreamId};

const MIB: u64 = 1 << 20;
const PLAIN: PoolId = PoolId(1);
const WHOLE: PoolId = PoolId(2);

/// A policy on a device, with a plain pool and one in one handle.
struct Machine {
    policy: Box<dyn Policy>,
    device: SimDevice,
}

impl Machine {
    fn new(policy: Box<dyn Policy>, bytes: u64) -> Machine {
        let mut device = SimDevice::new(bytes);
        device.check_order();
        let mut machine = Machine { policy, device };
        machine.policy.create_pool(PLAIN);
        machine.policy.create_pool(WHOLE);
        let options = PoolOptions { one_handle: true, ..PoolOptions::default() };
        machine.policy.set_pool_options(WHOLE, options);
        machine
    }

    fn with<T>(&mut self, call: impl FnOnce(&mut dyn Policy, &mut Env<'_>) -> T) -> T {
        let mut env =
            Env { device: &mut self.device, log: &mut (), listens: false, may_wait: true };
        let result = call(&mut *self.policy, &mut env);
        self.policy.check().expect("a sound policy");
        result
    }

    fn ask(&mut self, size: u64, pool: PoolId) -> Result<Granted, AllocError> {
        let request = Request { size, stream: StreamId(0), pool };
        self.with(|policy, env| policy.allocate(env, request))
    }

    fn alloc(&mut self, size: u64, pool: PoolId) -> Granted {
        self.ask(size, pool).expect("there is room")
    }

    fn free(&mut self, granted: Granted) {
        self.with(|policy, env| policy.free(env, granted.block)).expect("it is in use");
    }

    fn empty_cache(&mut self) {
        self.with(|policy, env| policy.empty_cache(env)).expect("no fault");
    }

    /// What the segments of a pool are made of.
    fn backings(&self, pool: PoolId) -> Vec<Backing> {
        let mut found = Vec::new();
        self.policy.visit(&mut |segment, _| {
            if segment.pool == pool {
                found.push(segment.backing);
            }
        });
        found
    }

    fn calls(&self, call: Call) -> u64 {
        self.device.totals().of(call).calls
    }

    fn reserved(&self) -> u64 {
        self.policy.stats().reserved_bytes.all().current
    }
}

fn caching(settings: &str) -> Box<dyn Policy> {
    Box::new(Caching::new(Config::parse(settings).expect("the settings are right")))
}

/// PyTorch's expandable segments, or the lake.
fn expandable(is_lake: bool, tie_order: TieOrder) -> Box<dyn Policy> {
    let config = Config { expandable_segments: true, tie_order, ..Config::default() };
    if is_lake { Box::new(Lake::of(config)) } else { Box::new(Caching::new(config)) }
}

/// Every policy there is, with one that follows a plan and has guests.
fn policies() -> Vec<Box<dyn Policy>> {
    let mut all = suite::every_policy(1);
    all.extend([suite::planned(suite::reckless_plan(3)), suite::with_idle_places(2)]);
    all
}

#[test]
fn a_pool_in_one_handle_takes_allocations_of_the_device_under_every_policy() {
    for policy in policies() {
        let mut machine = Machine::new(policy, 8 << 30);
        let name = machine.policy.name();
        let before: Vec<Granted> =
            [1000, 30 * MIB, 50 * MIB].map(|size| machine.alloc(size, PoolId::DEFAULT)).into();
        let (created, allocated) = (machine.calls(Call::Create), machine.calls(Call::Alloc));
        let mut whole: Vec<Granted> =
            [100, 3 * MIB, 15 * MIB, 700 * MIB].map(|size| machine.alloc(size, WHOLE)).into();
        assert_eq!(machine.calls(Call::Create), created, "{name} took pages");
        assert_eq!(machine.calls(Call::Alloc), allocated + 3, "{name}: 2, 20 and 700 MiB");
        assert_eq!(machine.backings(WHOLE), [Backing::Allocation; 3], "{name}");
        whole.drain(..).chain(before).for_each(|granted| machine.free(granted));
    }
}

#[test]
fn everything_outside_of_the_pool_is_as_it_was() {
    for policy in [expandable(false, TieOrder::Address), expandable(true, TieOrder::Segment)] {
        let mut machine = Machine::new(policy, 8 << 30);
        let whole = machine.alloc(40 * MIB, WHOLE);
        let created = machine.calls(Call::Create);
        let after = [PoolId::DEFAULT, PLAIN].map(|pool| machine.alloc(40 * MIB, pool));
        assert!(machine.calls(Call::Create) > created);
        for pool in [PoolId::DEFAULT, PLAIN] {
            let backings = machine.backings(pool);
            let pages = |backing: &Backing| matches!(backing, Backing::Expandable { .. });
            assert!(!backings.is_empty() && backings.iter().all(pages), "{backings:?}");
        }
        after.into_iter().chain([whole]).for_each(|granted| machine.free(granted));
    }
}

#[test]
fn pages_that_a_pool_has_from_before_serve_it_no_more() {
    let mut machine = Machine::new(expandable(false, TieOrder::Address), 8 << 30);
    let pages = machine.alloc(40 * MIB, PLAIN);
    machine.free(pages);
    let request = Request { size: 40 * MIB, stream: StreamId(0), pool: PLAIN };
    assert!(machine.policy.has_room(&request));
    let options = PoolOptions { one_handle: true, ..PoolOptions::default() };
    machine.policy.set_pool_options(PLAIN, options);
    assert!(!machine.policy.has_room(&request));
    let whole = machine.alloc(40 * MIB, PLAIN);
    assert_eq!(machine.calls(Call::Alloc), 1);
    machine.free(whole);
    assert!(machine.policy.has_room(&request));
    machine.policy.set_pool_options(PLAIN, PoolOptions::default());
    let pages = machine.alloc(60 * MIB, PLAIN);
    assert_eq!(machine.calls(Call::Alloc), 1, "the option can be taken back");
    machine.free(pages);
}

#[test]
fn what_is_free_in_the_pool_goes_back_though_it_has_users_and_a_plain_pool_keeps_it() {
    for policy in policies() {
        let mut machine = Machine::new(policy, 8 << 30);
        let name = machine.policy.name();
        let [plain, whole, kept] = [(PLAIN, 40), (WHOLE, 50), (WHOLE, 60)]
            .map(|(pool, mib)| machine.alloc(mib * MIB, pool));
        machine.free(plain);
        machine.free(whole);
        machine.policy.begin_pool(WHOLE, false);
        assert_eq!(machine.policy.releasable(), 50 * MIB, "{name}");
        machine.empty_cache();
        assert_eq!(machine.policy.pool_users(WHOLE), 2, "{name}");
        assert_eq!(machine.reserved(), 100 * MIB, "{name}");
        machine.free(kept);
        machine.policy.end_pool(WHOLE, false);
        machine.with(|policy, env| policy.empty_pool(env, WHOLE)).expect("no fault");
        assert_eq!(machine.reserved(), 40 * MIB, "{name}");
        for pool in [PLAIN, WHOLE, WHOLE] {
            machine.with(|policy, env| policy.release_pool(env, pool)).expect("no fault");
        }
        machine.empty_cache();
        assert_eq!(machine.device.live(), LiveObjects::default(), "{name}");
    }
}

#[test]
fn the_pool_gets_what_is_cached_elsewhere_and_gives_what_is_cached_in_it() {
    let orders = [TieOrder::Address, TieOrder::Registration, TieOrder::Segment];
    for policy in orders.map(|order| expandable(true, order)) {
        let mut machine = Machine::new(policy, 1000 * MIB);
        let cached = machine.alloc(800 * MIB, PoolId::DEFAULT);
        machine.free(cached);
        machine.policy.begin_pool(WHOLE, false);
        let whole = machine.alloc(700 * MIB, WHOLE);
        machine.policy.end_pool(WHOLE, false);
        machine.free(whole);
        let again = machine.alloc(800 * MIB, PoolId::DEFAULT);
        machine.free(again);
    }
}

#[test]
fn a_scope_of_the_pool_is_no_capture_and_one_of_another_pool_is() {
    let mut machine = Machine::new(caching(""), 8 << 30);
    let request = |machine: &mut Machine| {
        let block = machine.alloc(40 * MIB, PoolId::DEFAULT);
        let id = block.block;
        machine.with(|policy, env| policy.record_stream(env, id, StreamId(1))).expect("in use");
        machine.free(block);
        machine.device.live().events
    };
    machine.policy.begin_pool(WHOLE, false);
    assert_eq!(request(&mut machine), 1, "the free has its event at once");
    machine.policy.end_pool(WHOLE, false);
    machine.empty_cache();
    machine.policy.begin_pool(PLAIN, false);
    assert_eq!(request(&mut machine), 0, "the free waits for the end of the capture");
    machine.policy.end_pool(PLAIN, false);
    // The option may change while a scope is open: what was counted is counted off.
    machine.policy.begin_pool(WHOLE, false);
    machine.policy.set_pool_options(WHOLE, PoolOptions::default());
    machine.policy.end_pool(WHOLE, false);
    machine.policy.begin_pool(WHOLE, false);
    machine.policy.end_pool(WHOLE, false);
    machine.empty_cache();
    assert_eq!(request(&mut machine), 1);
}
