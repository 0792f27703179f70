//! Bringing a private pool back to a checkpoint, as graph trees do.

use std::collections::BTreeMap;

use arbitrary::Unstructured;
use girih_plan::Plan;
use girih_runtime::caching::{Caching, Config};
use girih_runtime::direct::Direct;
use girih_runtime::sim::SimDevice;
use girih_runtime::suite;
use girih_runtime::{
    Address, AllocError, BlockId, Device, Env, Granted, Policy, Request, Restored,
};
use girih_trace::{BlockState, Event, PoolId, StreamId};

const MIB: u64 = 1 << 20;
const POOL: PoolId = PoolId(1);

fn caching(text: &str) -> Caching {
    Caching::new(Config::parse(text).expect("the settings are right"))
}

/// A policy at work, with what the program holds.
struct Machine {
    policy: Box<dyn Policy>,
    device: SimDevice,
    log: Vec<Event>,
    /// The blocks in use, with their bytes and their pool.
    live: BTreeMap<BlockId, (Address, u64, PoolId)>,
}

impl Machine {
    fn new(policy: Box<dyn Policy>, bytes: u64) -> Machine {
        let (device, log) = (SimDevice::new(bytes), Vec::new());
        let mut machine = Machine { policy, device, log, live: BTreeMap::new() };
        machine.policy.create_pool(POOL);
        machine
    }

    fn with<T>(&mut self, call: impl FnOnce(&mut dyn Policy, &mut Env<'_>) -> T) -> T {
        let mut env = Env::new(&mut self.device, &mut self.log);
        let result = call(self.policy.as_mut(), &mut env);
        self.policy.check().expect("a sound policy");
        result
    }

    fn alloc(&mut self, size: u64, stream: StreamId, pool: PoolId) -> Option<Granted> {
        let request = Request { size, stream, pool };
        let granted = self.with(|policy, env| policy.allocate(env, request)).ok()?;
        self.live.insert(granted.block, (granted.address, granted.size, pool));
        Some(granted)
    }

    fn free(&mut self, block: BlockId) {
        self.with(|policy, env| policy.free(env, block)).expect("a block in use");
        self.live.remove(&block);
    }

    fn step(&mut self, u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        let stream = StreamId(u.int_in_range(0..=1)?);
        let picked = |machine: &Machine, u: &mut Unstructured<'_>| -> arbitrary::Result<_> {
            let ids: Vec<BlockId> = machine.live.keys().copied().collect();
            if ids.is_empty() { Ok(None) } else { u.choose(&ids).map(|id| Some(*id)) }
        };
        match u.int_in_range(0..=9)? {
            0..=4 => {
                let pool = PoolId(u.int_in_range(0..=1)?);
                let size = 1 << u.int_in_range(1..=25)?;
                self.alloc(size + u.int_in_range(0..=2000)?, stream, pool);
            }
            5..=7 => {
                if let Some(id) = picked(self, u)? {
                    self.free(id);
                }
            }
            8 => {
                if let Some(id) = picked(self, u)? {
                    self.with(|policy, env| policy.record_stream(env, id, StreamId(2)))
                        .expect("a block in use");
                }
            }
            _ => self.with(|policy, env| policy.empty_cache(env)).expect("nothing fails"),
        }
        Ok(())
    }

    /// The blocks in use of the pool, as the policy shows them.
    fn shown(&self) -> BTreeMap<Address, u64> {
        let mut shown = BTreeMap::new();
        self.policy.visit(&mut |segment, blocks| {
            if segment.pool == POOL {
                let live = blocks.iter().filter(|block| block.state == BlockState::Allocated);
                shown.extend(live.map(|block| (block.address, block.size)));
            }
        });
        shown
    }

    /// The blocks in use of the pool, as the program knows them.
    fn known(&self) -> BTreeMap<Address, u64> {
        let own = self.live.values().filter(|(.., pool)| *pool == POOL);
        own.map(|&(address, size, _)| (address, size)).collect()
    }

    fn take_in(&mut self, restored: &Restored) {
        for (id, address) in &restored.freed {
            let known = self.live.remove(id);
            assert_eq!(known.map(|(at, ..)| at), Some(*address), "what is freed was in use");
        }
        for granted in &restored.allocated {
            let Granted { block, address, size } = *granted;
            let before = self.live.insert(block, (address, size, POOL));
            assert_eq!(before, None, "an id is given once");
        }
    }

    /// Frees everything; the device must have everything back.
    fn finish(mut self) {
        while let Some(id) = self.live.keys().next().copied() {
            self.free(id);
        }
        self.with(|policy, env| policy.release_pool(env, POOL)).expect("a pool");
        self.with(|policy, env| policy.empty_cache(env)).expect("nothing fails");
        assert_eq!(self.policy.stats().reserved_bytes.all().current, 0);
        assert_eq!(self.policy.stats().allocation.all().current, 0);
    }
}

/// The policies that keep private pools.
fn policies() -> Vec<(&'static str, Box<dyn Policy>)> {
    let empty = Plan { sequences: Vec::new(), ..suite::reckless_plan(1) };
    vec![
        ("native", Box::new(caching(""))),
        ("expandable", Box::new(caching("expandable_segments:True"))),
        ("limited splits", Box::new(caching("max_split_size_mb:21"))),
        ("direct", Box::new(Direct::new(caching("")))),
        ("planned", suite::planned(suite::reckless_plan(7))),
        ("planned without places", suite::planned(empty)),
    ]
}

#[test]
fn a_restored_pool_has_exactly_the_blocks_of_its_checkpoint() {
    arbtest::arbtest(|u| {
        let mut policies = policies();
        let which = u.int_in_range(0..=policies.len() - 1)?;
        let (name, policy) = policies.swap_remove(which);
        let mut machine = Machine::new(policy, 1 << 30);
        for _ in 0..u.int_in_range(0..=40)? {
            machine.step(u)?;
        }
        let checkpoint = machine.policy.checkpoint(POOL).expect("a pool");
        let expected = machine.known();
        for _ in 0..u.int_in_range(0..=40)? {
            machine.step(u)?;
        }
        let before = machine.shown();
        match machine.with(|policy, env| policy.restore(env, &checkpoint)) {
            Ok(restored) => {
                machine.take_in(&restored);
                assert_eq!(machine.shown(), expected, "{name}");
                assert_eq!(machine.known(), expected, "{name}");
            }
            // The pool has a user all along, so its memory is never given back.
            Err(error) => panic!("{name}: {error}; {before:?}"),
        }
        machine.finish();
        Ok(())
    })
    .size_min(200)
    .size_max(2000)
    .budget_ms(4_000);
}

#[test]
fn a_checkpoint_of_memory_that_went_back_is_refused_and_nothing_changes() {
    for (name, policy) in policies() {
        let mut machine = Machine::new(policy, 1 << 30);
        let block = machine.alloc(40 * MIB, StreamId(0), POOL).expect("memory");
        let checkpoint = machine.policy.checkpoint(POOL).expect("a pool");
        machine.free(block.block);
        machine.with(|policy, env| policy.release_pool(env, POOL)).expect("a pool");
        machine.with(|policy, env| policy.empty_pool(env, POOL)).expect("nothing fails");
        machine.policy.create_pool(POOL);
        let other = machine.alloc(3 * MIB, StreamId(0), POOL).expect("memory");
        let (before, stats) = (machine.shown(), machine.policy.stats().clone());
        let refused = machine.with(|policy, env| policy.restore(env, &checkpoint));
        assert!(matches!(refused, Err(AllocError::Unsupported { .. })), "{name}: {refused:?}");
        assert_eq!((machine.shown(), machine.policy.stats()), (before, &stats), "{name}");
        machine.free(other.block);
        machine.finish();
    }
}

#[test]
fn in_a_capture_a_pool_whose_blocks_other_streams_use_is_not_restored() {
    for (name, policy) in policies() {
        let mut machine = Machine::new(policy, 1 << 30);
        let block = machine.alloc(4 * MIB, StreamId(0), POOL).expect("memory").block;
        let checkpoint = machine.policy.checkpoint(POOL).expect("a pool");
        machine.with(|policy, env| policy.record_stream(env, block, StreamId(1))).expect("in use");
        machine.policy.begin_pool(POOL, true);
        let refused = machine.with(|policy, env| policy.restore(env, &checkpoint));
        assert!(matches!(refused, Err(AllocError::Unsupported { .. })), "{name}: {refused:?}");
        machine.policy.end_pool(POOL, true);
        machine.with(|policy, env| policy.release_pool(env, POOL)).expect("a pool");
        let restored = machine.with(|policy, env| policy.restore(env, &checkpoint)).expect(name);
        machine.take_in(&restored);
        machine.finish();
    }
}

#[test]
fn there_is_no_checkpoint_of_the_default_pool_or_of_one_that_does_not_exist() {
    for (name, policy) in policies() {
        for pool in [PoolId::DEFAULT, PoolId(9)] {
            let refused = policy.checkpoint(pool);
            assert!(matches!(refused, Err(AllocError::Unsupported { .. })), "{name}: {refused:?}");
        }
    }
}

#[test]
fn a_pool_has_its_makers_and_its_scopes_as_users() {
    for (name, policy) in policies() {
        let mut machine = Machine::new(policy, 1 << 30);
        machine.policy.begin_pool(POOL, false);
        assert_eq!(machine.policy.pool_users(POOL), 2, "{name}");
        machine.policy.end_pool(POOL, false);
        machine.with(|policy, env| policy.release_pool(env, POOL)).expect("a pool");
        assert_eq!(machine.policy.pool_users(POOL), 1, "{name}");
        assert_eq!(machine.policy.pool_users(PoolId(9)), 0, "{name}");
        let free = machine.device.memory_info().free;
        let block = machine.alloc(4 * MIB, StreamId(0), POOL).expect("memory").block;
        machine.free(block);
        machine.with(|policy, env| policy.empty_pool(env, POOL)).expect("nothing fails");
        assert!(machine.device.memory_info().free < free, "{name}: a pool in use keeps its memory");
        machine.finish();
    }
}
