//! Plans in the lake: what following one and dropping it costs, and what it may never cost.

use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use girih_plan::{Entry, Place, Plan, Role, Sequence};
use girih_runtime::caching::Config;
use girih_runtime::sim::{Fault, FaultKind, SimDevice};
use girih_runtime::suite::{self, Scenario};
use girih_runtime::{AllocError, Env, Granted, Lake, Policy, Request};
use girih_trace::{BlockState, Mark, MarkKind, PoolId, StreamId};

const MIB: u64 = 1 << 20;
const PAGE: u64 = SimDevice::GRANULARITY;

/// A steady iteration of blocks of so many MiB, one after the other, of which `in_use` bytes were in use at once.
fn plan(sizes: &[u64], in_use: u64) -> Arc<Plan> {
    let mut offset = 0;
    let entries = (1..).zip(sizes).map(|(until, &mib)| {
        let (size, place) = (mib * MIB, Place::Arena(offset));
        offset += size;
        Entry { size_min: size, size_max: size, stream: StreamId(0), place, until }
    });
    let entries: Vec<Entry> = entries.collect();
    let sequence = Sequence { role: Role::Steady, entries, boundaries: Vec::new() };
    Arc::new(Plan {
        arena_bytes: offset,
        persistent_bytes: 0,
        in_use,
        trial: None,
        rooms: Vec::new(),
        sequences: vec![sequence],
        ..suite::reckless_plan(1)
    })
}

struct Machine {
    lake: Lake,
    device: SimDevice,
}

impl Machine {
    fn new(lake: Lake) -> Machine {
        let mut device = SimDevice::new(64 << 30);
        device.check_order();
        Machine { lake, device }
    }

    fn with<T>(&mut self, call: impl FnOnce(&mut Lake, &mut Env<'_>) -> T) -> T {
        let mut env =
            Env { device: &mut self.device, log: &mut (), listens: false, may_wait: true };
        let result = call(&mut self.lake, &mut env);
        Policy::check(&self.lake).expect("a sound lake");
        result
    }

    fn ask(&mut self, mib: u64, stream: u16) -> Result<Granted, AllocError> {
        let request = Request { size: mib * MIB, stream: StreamId(stream), pool: PoolId::DEFAULT };
        self.with(|lake, env| Policy::allocate(lake, env, request))
    }

    /// A block that its stream uses.
    fn alloc(&mut self, mib: u64) -> Granted {
        self.alloc_on(mib, 0)
    }

    fn alloc_on(&mut self, mib: u64, stream: u16) -> Granted {
        let granted = self.ask(mib, stream).expect("memory");
        self.device.acquire(granted.address, granted.size, StreamId(stream)).expect("in order");
        granted
    }

    fn free(&mut self, granted: Granted) {
        self.free_on(granted, 0);
    }

    fn free_on(&mut self, granted: Granted, stream: u16) {
        let Granted { address, size, block } = granted;
        self.device.release(address, size, &[StreamId(stream)]).expect("in use");
        self.with(|lake, env| Policy::free(lake, env, block)).expect("a block in use");
    }

    fn step(&mut self) {
        let mark = Mark { before: 0, time_us: 0, kind: MarkKind::Step, name: String::new() };
        self.with(|lake, env| Policy::mark(lake, env, &mark)).expect("no fault");
    }

    fn held(&self) -> u64 {
        Policy::stats(&self.lake).reserved_bytes.all().current
    }

    /// Bytes that are free in pages of which nothing is in use.
    fn whole_pages(&self) -> u64 {
        let mut bytes = 0;
        self.lake.visit(&mut |_, blocks| {
            let free = blocks.iter().filter(|block| block.state == BlockState::Inactive);
            bytes += free.map(|block| block.whole).sum::<u64>();
        });
        bytes
    }
}

fn lake() -> Lake {
    Lake::of(Config::default())
}

fn overlap(a: &Granted, b: &Granted) -> bool {
    a.address < b.address + b.size && b.address < a.address + a.size
}

#[test]
fn a_plan_is_followed_again_and_dropped_without_a_call_of_the_device() {
    let mut machine = Machine::new(lake().with_plan(plan(&[40, 30, 20, 10], 100 * MIB)));
    let blocks = [40, 30, 20, 10].map(|mib| machine.alloc(mib));
    let stays = machine.alloc(6);
    for block in blocks {
        machine.free(block);
    }
    let calls = machine.device.calls();
    machine.step();
    let places = [40, 30, 20, 10].map(|mib| machine.alloc(mib));
    assert_eq!((machine.lake.following().hits, machine.device.calls()), (8, calls));
    assert!(places.windows(2).all(|pair| pair[0].address + pair[0].size == pair[1].address));
    machine.with(|lake, _| lake.unfollow());
    assert_eq!(machine.device.calls(), calls);
    // Blocks of a plan that is gone are blocks like others.
    assert!(places.iter().all(|place| !overlap(place, &stays)));
    places.into_iter().for_each(|place| machine.free(place));
    let all = machine.alloc(100);
    assert_eq!((machine.device.calls(), machine.held()), (calls, 106 * MIB));
    machine.free(all);
    machine.free(stays);
}

#[test]
fn a_plan_is_dropped_while_its_blocks_live() {
    let mut machine = Machine::new(lake().with_plan(plan(&[100, 100], 200 * MIB)));
    let first = machine.alloc(100);
    let second = machine.alloc(100);
    machine.free(first);
    machine.with(|lake, _| lake.unfollow());
    let third = machine.alloc(50);
    let fourth = machine.alloc(50);
    assert_eq!(machine.lake.following().hits, 2);
    assert!(!overlap(&second, &third) && !overlap(&second, &fourth) && !overlap(&third, &fourth));
    for block in [second, third, fourth] {
        machine.free(block);
    }
    assert_eq!(machine.held(), 200 * MIB);
}

#[test]
fn a_place_that_is_taken_costs_the_place_alone() {
    // Two places of the same bytes.
    let mut twice = Plan::clone(&plan(&[48, 48], 96 * MIB));
    twice.sequences[0].entries[1].place = Place::Arena(0);
    let mut machine = Machine::new(lake().with_plan(Arc::new(twice)));
    let (first, second) = (machine.alloc(48), machine.alloc(48));
    assert!(!overlap(&first, &second));
    let following = machine.lake.following();
    assert_eq!((following.hits, following.misses), (1, 1));
    assert_eq!((following.refused_bytes, machine.held()), (48 * MIB, 96 * MIB));
    machine.free(first);
    machine.free(second);
}

#[test]
fn idle_places_serve_who_asks_and_come_back_with_the_next_step() {
    let mut machine = Machine::new(lake().with_plan(plan(&[40, 40, 40], 120 * MIB)));
    let blocks = [40, 40, 40].map(|mib| machine.alloc(mib));
    blocks.into_iter().for_each(|block| machine.free(block));
    machine.step();
    let first = machine.alloc(40);
    // No entry of the plan, of another stream, and larger than any place.
    let odd = machine.alloc_on(78, 1);
    assert_eq!(machine.held(), 120 * MIB, "what is idle was lent");
    machine.free_on(odd, 1);
    machine.free(first);
    machine.step();
    let hits = machine.lake.following().hits;
    // The streams are ordered: the device checks it.
    let blocks = [40, 40, 40].map(|mib| machine.alloc(mib));
    assert_eq!(machine.lake.following().hits - hits, 3);
    assert!(machine.lake.following().waits > 0, "bytes that another stream had");
    blocks.into_iter().for_each(|block| machine.free(block));
}

#[test]
fn everything_goes_back_and_the_plan_begins_anew() {
    let mut machine = Machine::new(lake().with_plan(plan(&[40, 30], 70 * MIB)));
    for _ in 0..2 {
        let blocks = [machine.alloc(40), machine.alloc(30)];
        blocks.into_iter().for_each(|block| machine.free(block));
        machine.with(Policy::empty_cache).expect("no fault");
        assert_eq!((machine.held(), machine.device.live().reservations), (0, 0));
        assert!(machine.lake.plan().is_some());
    }
    assert_eq!(machine.lake.following().hits, 4);
}

#[test]
fn a_plan_whose_addresses_are_refused_is_not_followed_and_costs_no_request() {
    let mut machine = Machine::new(lake().with_plan(plan(&[40], 40 * MIB)));
    machine.device.inject(Fault { kind: FaultKind::Nth(1), out_of_memory: false });
    let block = machine.alloc(40);
    assert!(machine.lake.plan().is_none() && machine.lake.following().hits == 0);
    machine.free(block);
}

/// A plan that takes any request and has a place of its own for each, far from all others: 60 GiB for what a few
/// MiB would do.
fn hostile(u: &mut Unstructured<'_>) -> arbitrary::Result<Plan> {
    const PLACES: u64 = 60;
    const APART: u64 = 1 << 30;
    let entries = (0..PLACES).map(|index| {
        let offset = index * APART + 512 * u.int_in_range(0..=4096)?;
        let (place, stream) = (Place::Arena(offset), StreamId(u.int_in_range(0..=2)?));
        Ok(Entry { size_min: 1, size_max: 64 * MIB, stream, place, until: index as u32 + 1 })
    });
    let entries = entries.collect::<arbitrary::Result<_>>()?;
    let sequence = Sequence { role: Role::Steady, entries, boundaries: Vec::new() };
    Ok(Plan {
        arena_bytes: PLACES * APART,
        sequences: vec![sequence],
        ..Plan::clone(&plan(&[], 0))
    })
}

#[test]
fn whatever_the_plan_says_no_more_is_held_than_was_in_use_and_a_little() {
    let mut hits = 0;
    arbtest::arbtest(|u| {
        let hostile = Arc::new(hostile(u)?);
        let mut machine = Machine::new(lake().with_plan(hostile));
        let (mut live, mut in_use, mut most) = (Vec::new(), 0, 0);
        while !u.is_empty() {
            let before = machine.held();
            match u.int_in_range(0..=9)? {
                0 => machine.step(),
                1..=4 if !live.is_empty() => {
                    let at = u.choose_index(live.len())?;
                    let (block, stream): (Granted, u16) = live.swap_remove(at);
                    in_use -= block.size;
                    machine.free_on(block, stream);
                }
                _ if live.len() < 6 => {
                    let (mib, stream) = (u.int_in_range(2..=64)?, u.int_in_range(0..=2)?);
                    let block = machine.alloc_on(mib, stream);
                    in_use += block.size;
                    most = most.max(in_use);
                    live.push((block, stream));
                }
                _ => {}
            }
            let (held, bound) = (machine.held(), most + (most / 300).max(4 * MIB));
            // Beyond the bound the device is asked only where next to no page is left that is free as a whole: what
            // lies at the ends of pages serves nobody who needs whole ones. A view that has got its new pages may find
            // that it needs a few bytes less of other streams than it had counted on.
            let left = machine.whole_pages();
            assert!(
                held <= before || held <= bound || left <= 4 * PAGE,
                "{held} bytes are held, {before} before, {bound} allowed, {left} free in whole pages"
            );
        }
        hits += machine.lake.following().hits;
        Ok(())
    })
    .size_min(500)
    .size_max(2000)
    .budget_ms(3_000);
    assert!(hits > 0, "the plan was followed");
}

#[test]
fn a_plan_goes_at_any_step_of_every_program() {
    arbtest::arbtest(|u| {
        let seed = u.int_in_range(0..=1000)?;
        let scenario = Scenario::arbitrary(u)?;
        suite::run(&scenario, &mut |_| suite::dropping_its_plan(seed));
        Ok(())
    })
    .size_min(200)
    .size_max(2000)
    .budget_ms(2_000);
}
