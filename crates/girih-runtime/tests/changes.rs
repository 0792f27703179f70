//! `planned` with plans that come and go, under a limit, and during graph captures.

use std::sync::Arc;

use girih_plan::{Entry, Place, Plan, Role, Sequence};
use girih_runtime::caching::{Caching, Config};
use girih_runtime::sim::{Call, SimDevice};
use girih_runtime::suite;
use girih_runtime::{AllocError, BlockId, Env, Granted, Planned, Policy, Request};
use girih_trace::{Event, Mark, MarkKind, PoolId, StreamId};

const MIB: u64 = 1 << 20;
const POOL: PoolId = PoolId(1);

fn expandable(more: &str) -> Box<dyn Policy> {
    let text = format!("expandable_segments:True{more}");
    Box::new(Caching::new(Config::parse(&text).expect("the settings are right")))
}

/// A steady iteration of blocks of so many MiB, one after the other in the arena.
fn plan(sizes: &[u64]) -> Arc<Plan> {
    let mut offset = 0;
    let entries: Vec<Entry> = (1..)
        .zip(sizes)
        .map(|(until, &mib)| {
            let size = mib * MIB;
            let place = Place::Arena(offset);
            offset += size;
            Entry { size_min: size, size_max: size, stream: StreamId(0), place, until }
        })
        .collect();
    let sequence = Sequence { role: Role::Steady, entries, boundaries: Vec::new() };
    let reckless = suite::reckless_plan(1);
    Arc::new(Plan {
        arena_bytes: offset,
        peak: offset,
        lower_bound: sizes.iter().max().map_or(0, |&mib| mib * MIB),
        proven: sizes.len() < 2,
        persistent_bytes: 0,
        sequences: vec![sequence],
        ..reckless
    })
}

/// Blocks of so many MiB, and then so many small ones that those are long in coming again. A step
/// begins with the first.
fn long_plan(sizes: &[u64]) -> Arc<Plan> {
    let mut plan = Plan::clone(&plan(&[sizes, &[1; 600]].concat()));
    plan.sequences[0].boundaries.push((0, MarkKind::Step));
    Arc::new(plan)
}

struct Machine {
    policy: Planned,
    device: SimDevice,
    log: Vec<Event>,
}

impl Machine {
    fn new(policy: Planned, bytes: u64) -> Machine {
        Machine { policy, device: SimDevice::new(bytes), log: Vec::new() }
    }

    fn empty(bytes: u64) -> Machine {
        Machine::new(Planned::empty(expandable(""), SimDevice::GRANULARITY), bytes)
    }

    fn with<T>(&mut self, call: impl FnOnce(&mut Planned, &mut Env<'_>) -> T) -> T {
        let mut env = Env { device: &mut self.device, log: &mut self.log };
        let result = call(&mut self.policy, &mut env);
        self.policy.check().expect("a sound policy");
        result
    }

    fn ask(&mut self, size: u64, stream: u16, pool: PoolId) -> Result<Granted, AllocError> {
        let request = Request { size, stream: StreamId(stream), pool };
        self.with(|policy, env| policy.allocate(env, request))
    }

    fn alloc(&mut self, size: u64) -> Granted {
        self.ask(size, 0, PoolId::DEFAULT).expect("memory")
    }

    fn free(&mut self, block: BlockId) {
        self.with(|policy, env| policy.free(env, block)).expect("a block in use");
    }

    fn follow(&mut self, plan: &Arc<Plan>) -> bool {
        self.with(|policy, env| policy.follow(env, Arc::clone(plan))).expect("no fault")
    }

    fn step(&mut self) {
        let mark = Mark { before: 0, time_us: 0, kind: MarkKind::Step, name: String::new() };
        self.with(|policy, env| policy.mark(env, &mark)).expect("no fault");
    }

    fn reserved(&self) -> u64 {
        self.policy.stats().reserved_bytes.all.current
    }
}

#[test]
fn blocks_of_an_old_plan_stay_where_they_are_and_their_region_goes_with_the_last() {
    let mut machine = Machine::empty(1 << 30);
    assert!(machine.follow(&plan(&[64, 64])));
    let old: Vec<Granted> = (0..2).map(|_| machine.alloc(64 * MIB)).collect();
    assert_eq!(machine.policy.following().hits, 2);
    assert!(machine.follow(&plan(&[32])));
    let new = machine.alloc(32 * MIB);
    assert!(
        old.iter()
            .all(|old| new.address + new.size <= old.address
                || old.address + old.size <= new.address)
    );
    assert_eq!(machine.reserved(), 160 * MIB);
    machine.free(old[0].block);
    machine.free(old[1].block);
    machine.free(new.block);
    let again = machine.alloc(32 * MIB);
    assert_eq!((again.address, machine.reserved()), (new.address, 32 * MIB));
}

#[test]
fn a_new_plan_does_not_come_on_top_of_what_is_cached() {
    let mut machine = Machine::empty(1 << 30);
    let cached = machine.alloc(200 * MIB);
    let stays = machine.alloc(20 * MIB);
    machine.free(cached.block);
    assert_eq!(machine.reserved(), 220 * MIB);
    machine.follow(&plan(&[180]));
    // As much of what was cached as the arena is long waits for it in the pool; the rest has gone back.
    assert_eq!((machine.reserved(), machine.policy.unmapped()), (200 * MIB, 180 * MIB));
    machine.alloc(180 * MIB);
    assert_eq!((machine.reserved(), machine.policy.unmapped()), (200 * MIB, 0));
    assert_eq!(machine.policy.stats().reserved_bytes.all.peak, 220 * MIB);
    machine.free(stays.block);
}

#[test]
fn what_the_plan_leaves_idle_goes_back_before_the_fallback_grows() {
    let mut machine = Machine::empty(1 << 30);
    machine.follow(&plan(&[200]));
    let planned = machine.alloc(200 * MIB);
    machine.free(planned.block);
    assert_eq!(machine.reserved(), 200 * MIB);
    machine.alloc(180 * MIB);
    assert_eq!(machine.policy.stats().reserved_bytes.all.peak, 200 * MIB);
}

#[test]
fn a_request_off_the_plan_is_a_guest_in_idle_space_and_no_call_reaches_the_device() {
    let mut machine = Machine::empty(1 << 30);
    machine.follow(&long_plan(&[200]));
    let planned = machine.alloc(200 * MIB);
    machine.free(planned.block);
    let calls = machine.device.calls();
    let guest = machine.alloc(60 * MIB);
    // 140 MiB up there would be room for it; the last chunk of 8 MiB below begins 4 MiB lower.
    assert_eq!(guest.address, planned.address + 136 * MIB, "as high as it fits");
    machine.step();
    // Its bytes are held: the block that they were kept for goes elsewhere.
    let displaced = machine.ask(200 * MIB, 0, PoolId::DEFAULT).expect("memory");
    assert!(
        displaced.address + displaced.size <= guest.address || guest.address < displaced.address
    );
    machine.free(displaced.block);
    machine.free(guest.block);
    assert_eq!(machine.policy.following().guests, 1);
    assert_eq!(machine.policy.following().guest_bytes, 60 * MIB);
    assert!(machine.device.calls() > calls, "the displaced block had to be mapped");
}

#[test]
fn guests_come_and_go_without_a_call_and_beside_each_other() {
    let mut machine = Machine::empty(1 << 30);
    machine.follow(&long_plan(&[200, 300]));
    for size in [200, 300] {
        let planned = machine.alloc(size * MIB);
        machine.free(planned.block);
    }
    let calls = machine.device.calls();
    for _ in 0..10 {
        let guests: Vec<Granted> = [50, 70, 90].map(|size| machine.alloc(size * MIB)).into();
        guests.into_iter().for_each(|guest| machine.free(guest.block));
    }
    assert_eq!((machine.device.calls(), machine.policy.following().guests), (calls, 30));
}

#[test]
fn a_guest_is_not_put_where_the_plan_is_about_to_put_something() {
    let mut machine = Machine::empty(1 << 30);
    machine.follow(&long_plan(&[200, 300]));
    for size in [200, 300] {
        let planned = machine.alloc(size * MIB);
        machine.free(planned.block);
    }
    machine.step();
    let first = machine.alloc(200 * MIB);
    machine.free(first.block);
    // The place of the second block is the highest, and is wanted next.
    let guest = machine.alloc(60 * MIB);
    let place = first.address..=first.address + first.size - guest.size;
    assert!(place.contains(&guest.address), "where the first block was");
    let hits = machine.policy.following().hits;
    let second = machine.alloc(300 * MIB);
    assert_eq!(machine.policy.following().hits, hits + 1, "nothing is in its way");
    machine.free(second.block);
    machine.free(guest.block);
}

#[test]
fn while_a_guest_stays_on_no_other_is_let_in() {
    let mut machine = Machine::empty(1 << 30);
    machine.follow(&long_plan(&[200]));
    let planned = machine.alloc(200 * MIB);
    machine.free(planned.block);
    let stays = machine.alloc(60 * MIB);
    machine.step();
    let other = machine.alloc(50 * MIB);
    assert_eq!(machine.policy.following().guests, 1);
    machine.free(other.block);
    machine.free(stays.block);
    machine.step();
    let planned = machine.alloc(200 * MIB);
    machine.free(planned.block);
    let larger = machine.alloc(90 * MIB);
    assert_eq!(machine.policy.following().guests, 2);
    machine.free(larger.block);
}

#[test]
fn what_one_stream_has_used_of_the_persistent_region_goes_to_no_other() {
    // An unsound plan: two places among what stays are the same bytes.
    let mut unsound = Plan::clone(&plan(&[4, 4]));
    unsound.persistent_bytes = 4 * MIB;
    for (entry, stream) in unsound.sequences[0].entries.iter_mut().zip([0, 1]) {
        (entry.place, entry.stream) = (Place::Persistent(0), StreamId(stream));
    }
    let planned = Planned::new(Arc::new(unsound), expandable(""), SimDevice::GRANULARITY);
    let mut machine = Machine::new(planned, 1 << 30);
    machine.device.check_order();
    for round in 0..3 {
        for stream in [0, 1] {
            let block = machine.ask(4 * MIB, stream, PoolId::DEFAULT).expect("memory");
            machine.free(block.block);
        }
        assert_eq!(machine.policy.following().hits, round + 1, "those of the first stream");
    }
}

#[test]
fn a_plan_with_which_nothing_is_found_is_dropped() {
    let plan = plan(&[3, 5, 7]);
    let fallback = expandable("");
    let planned = Planned::new(plan, fallback, SimDevice::GRANULARITY);
    let mut machine = Machine::new(planned, 1 << 30);
    for k in 0..2_000 {
        let block = machine.alloc(4096 + k * 512);
        machine.free(block.block);
    }
    assert!(!machine.policy.is_following());
    assert!(machine.policy.following().misses < 2_000);
}

#[test]
fn the_limit_bounds_the_regions_and_the_fallback_together() {
    arbtest::arbtest(|u| {
        let seed = u.int_in_range(0..=100)?;
        let plan = Arc::new(suite::reckless_plan(seed));
        let fallback = expandable(",per_process_memory_fraction:0.5");
        let planned = Planned::new(plan, fallback, SimDevice::GRANULARITY);
        assert_eq!(planned.memory_fraction(), 0.5);
        let mut machine = Machine::new(planned, 128 * MIB);
        let mut live = Vec::new();
        while !u.is_empty() {
            if u.ratio(1, 3)? && !live.is_empty() {
                let at = u.choose_index(live.len())?;
                machine.free(live.swap_remove(at));
            } else {
                let size = 512 << u.int_in_range(0..=15)?;
                let stream = u.int_in_range(0..=2)?;
                match machine.ask(size, stream, PoolId::DEFAULT) {
                    Ok(granted) => live.push(granted.block),
                    Err(AllocError::OutOfMemory { limit, .. }) => assert_eq!(limit, 64 * MIB),
                    Err(error) => panic!("{error}"),
                }
            }
            // As in PyTorch, the limit is looked at before pages are filled up.
            assert!(machine.reserved() < 84 * MIB, "{}", machine.reserved());
        }
        Ok(())
    })
    .size_min(200)
    .size_max(2000)
    .budget_ms(2_000);
}

#[test]
fn while_a_graph_is_captured_no_event_is_recorded_or_asked_for() {
    arbtest::arbtest(|u| {
        let plan = Arc::new(suite::reckless_plan(u.int_in_range(0..=100)?));
        let planned = Planned::new(plan, expandable(""), SimDevice::GRANULARITY);
        let mut machine = Machine::new(planned, 1 << 30);
        machine.device.check_order();
        let (mut live, mut captures) = (Vec::<BlockId>::new(), false);
        let events = |machine: &Machine| {
            let of = |call| machine.device.totals().of(call).calls;
            of(Call::RecordEvent) + of(Call::QueryEvent) + of(Call::SynchronizeEvent)
        };
        while !u.is_empty() {
            let before = events(&machine);
            let op = u.int_in_range(0..=9)?;
            match op {
                0 if captures => machine.policy.end_pool(POOL, true),
                0 => machine.policy.begin_pool(POOL, true),
                1..=5 => {
                    let pool = if captures && u.ratio(1, 2)? { POOL } else { PoolId::DEFAULT };
                    let size = 512 << u.int_in_range(0..=15)?;
                    let stream = u.int_in_range(0..=2)?;
                    live.push(machine.ask(size, stream, pool).expect("memory").block);
                }
                6 if !live.is_empty() => {
                    let block = *u.choose(&live)?;
                    let stream = StreamId(u.int_in_range(0..=3)?);
                    machine.with(|p, env| p.record_stream(env, block, stream)).expect("in use");
                }
                7 => machine.with(Policy::empty_cache).expect("no fault"),
                _ if !live.is_empty() => {
                    let at = u.choose_index(live.len())?;
                    machine.free(live.swap_remove(at));
                }
                _ => machine.with(Policy::process_events).expect("no fault"),
            }
            captures ^= op == 0;
            if captures && op != 0 {
                assert_eq!(events(&machine), before, "operation {op}");
                assert!(!machine.follow(&plan_of_nothing()), "a plan waits for the capture's end");
            }
        }
        if captures {
            machine.policy.end_pool(POOL, true);
        }
        live.into_iter().for_each(|block| machine.free(block));
        while machine.policy.pool_users(POOL) > 0 {
            machine.with(|p, env| p.release_pool(env, POOL)).expect("a pool");
        }
        machine.with(Policy::empty_cache).expect("no fault");
        assert_eq!(machine.reserved(), 0);
        Ok(())
    })
    .size_min(200)
    .size_max(2000)
    .budget_ms(3_000);
}

fn plan_of_nothing() -> Arc<Plan> {
    plan(&[])
}

#[test]
fn a_model_made_in_32_bits_and_turned_to_16_leaves_no_more_behind_than_it_needs() {
    // What a program does before its first step, and its plan: the copies in 16 bits stay, those in
    // 32 bits are the fallback's. The arena of the steps that follow is idle as yet.
    const TENSORS: u64 = 40;
    let entry = |mib: u64, place, until| {
        let size = mib * MIB;
        Entry { size_min: size, size_max: size, stream: StreamId(0), place, until }
    };
    let tensors = TENSORS as u32;
    let wide = (0..tensors).map(|k| entry(20, Place::Outside, tensors + k + 1));
    let narrow = (0..TENSORS).map(|k| entry(10, Place::Persistent(10 * k * MIB), 2 * tensors));
    let mut plan = Plan::clone(&plan(&[300]));
    let opening = Sequence {
        role: Role::Opening,
        entries: wide.chain(narrow).collect(),
        boundaries: Vec::new(),
    };
    plan.sequences.insert(0, opening);
    plan.persistent_bytes = 10 * TENSORS * MIB;
    assert_eq!(plan.opening_peak(), (20 * TENSORS + 10) * MIB);
    girih_plan::verify(&plan).expect("a sound plan");

    let planned = Planned::new(Arc::new(plan), expandable(""), SimDevice::GRANULARITY);
    let mut machine = Machine::new(planned, 1 << 32);
    let wide: Vec<Granted> = (0..TENSORS).map(|_| machine.alloc(20 * MIB)).collect();
    for block in wide {
        machine.alloc(10 * MIB);
        machine.free(block.block);
    }
    let stats = machine.policy.stats().reserved_bytes.all;
    assert!(stats.peak <= (20 * TENSORS + 50) * MIB, "{} MiB at most", stats.peak / MIB);
    machine.step();
    let stats = machine.policy.stats().reserved_bytes.all;
    assert_eq!(stats.current, 10 * TENSORS * MIB, "what was left behind has gone back");
    let block = machine.alloc(300 * MIB);
    machine.free(block.block);
    assert_eq!(machine.policy.following().hits, TENSORS + 1);
}
