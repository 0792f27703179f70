//! One pool of pages: what the plan, the fallback and others pass to each other through it, and what is
//! tried before a request fails.

use std::sync::Arc;

use girih_plan::{Entry, Place, Plan, Role, Sequence};
use girih_runtime::caching::{Caching, Config};
use girih_runtime::lake::Lake;
use girih_runtime::sim::{Call, Fault, LiveObjects, SimDevice};
use girih_runtime::waste::{Viewpoint, waste};
use girih_runtime::{
    AllocError, BlockId, Env, Following, Granted, Planned, Policy, Request, suite,
};
use girih_trace::{Mark, MarkKind, PoolId, StreamId};

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

fn expandable() -> Box<dyn Policy> {
    Box::new(Caching::new(Config { expandable_segments: true, ..Config::default() }))
}

fn stitched() -> Box<dyn Policy> {
    Box::new(Lake::of(Config { expandable_segments: true, ..Config::default() }))
}

/// A steady iteration of blocks of so many bytes, one after the other; those that stay are in the
/// persistent region.
fn plan_of(arena: &[u64], stays: &[u64]) -> Arc<Plan> {
    let mut entries = Vec::new();
    let mut lay = |sizes: &[u64], place: fn(u64) -> Place| {
        sizes.iter().fold(0, |offset, &size| {
            let until = entries.len() as u32 + 1;
            let place = place(offset);
            entries.push(Entry {
                size_min: size,
                size_max: size,
                stream: StreamId(0),
                place,
                until,
            });
            offset + size
        })
    };
    let (arena_bytes, persistent_bytes) = (lay(arena, Place::Arena), lay(stays, Place::Persistent));
    let sequence = Sequence { role: Role::Steady, entries, boundaries: Vec::new() };
    let sequences = vec![sequence];
    let peak = arena_bytes + persistent_bytes;
    let rooms = Vec::new();
    Arc::new(Plan {
        arena_bytes,
        persistent_bytes,
        peak,
        rooms,
        sequences,
        ..suite::reckless_plan(1)
    })
}

fn plan(arena: &[u64]) -> Arc<Plan> {
    plan_of(arena, &[])
}

struct Machine {
    policy: Planned,
    device: SimDevice,
}

impl Machine {
    /// On a device of so many bytes, with nothing to follow.
    fn new(fallback: Box<dyn Policy>, bytes: u64) -> Machine {
        let policy = Planned::empty(fallback, SimDevice::GRANULARITY);
        let mut device = SimDevice::new(bytes);
        device.check_order();
        Machine { policy, device }
    }

    fn following(fallback: Box<dyn Policy>, bytes: u64, plan: &Arc<Plan>) -> Machine {
        let mut machine = Machine::new(fallback, bytes);
        machine.follow(plan).expect("no fault");
        machine
    }

    fn with<T>(&mut self, call: impl FnOnce(&mut Planned, &mut Env<'_>) -> T) -> T {
        let mut env = Env { device: &mut self.device, log: &mut () };
        let result = call(&mut self.policy, &mut env);
        self.policy.check().expect("a sound policy");
        result
    }

    fn follow(&mut self, plan: &Arc<Plan>) -> Result<bool, AllocError> {
        self.with(|policy, env| policy.follow(env, Arc::clone(plan)))
    }

    fn ask(&mut self, size: u64) -> Result<Granted, AllocError> {
        let request = Request { size, stream: StreamId(0), pool: PoolId::DEFAULT };
        self.with(|policy, env| policy.allocate(env, request))
    }

    fn alloc(&mut self, size: u64) -> BlockId {
        self.ask(size).expect("memory").block
    }

    fn free(&mut self, block: BlockId) {
        self.with(|policy, env| policy.free(env, block)).expect("a block in use");
    }

    /// Frees a block that another stream uses, whose work goes on.
    fn free_later(&mut self, block: BlockId) {
        self.device.hold(StreamId(1));
        self.with(|policy, env| policy.record_stream(env, block, StreamId(1))).expect("in use");
        self.free(block);
    }

    fn step(&mut self) -> Result<(), AllocError> {
        let mark = Mark { before: 0, time_us: 0, kind: MarkKind::Step, name: String::new() };
        self.with(|policy, env| policy.mark(env, &mark))
    }

    /// Allocates so many bytes each, and frees all.
    fn run(&mut self, sizes: &[u64]) {
        let blocks: Vec<BlockId> = sizes.iter().map(|&size| self.alloc(size)).collect();
        blocks.into_iter().for_each(|block| self.free(block));
    }

    fn calls(&self, call: Call) -> u64 {
        self.device.totals().of(call).calls
    }

    /// Handles that were created and released so far.
    fn traffic(&self) -> [u64; 2] {
        [self.calls(Call::Create), self.calls(Call::Release)]
    }

    fn reserved(&self) -> u64 {
        self.policy.stats().reserved_bytes.all.current
    }
}

/// An arena of 256 MiB has chunks of 4 MiB, and so have requests of 66 to 128 MiB in the fallback.
const STEP: [u64; 2] = [128 * MIB, 128 * MIB];
const EVALUATION: [u64; 2] = [120 * MIB, 100 * MIB];

#[test]
fn the_pages_of_an_idle_plan_serve_an_evaluation_and_come_back_without_being_made_anew() {
    let mut machine = Machine::following(stitched(), 1 << 30, &plan(&STEP));
    let mut round = |rounds: u64| {
        for _ in 0..rounds {
            machine.step().expect("no fault");
            machine.run(&STEP);
            machine.run(&EVALUATION);
            // Two steps by themselves: a plan that is in the way at every step is dropped.
            for _ in 0..2 {
                machine.step().expect("no fault");
                machine.run(&STEP);
            }
        }
        (machine.traffic(), machine.calls(Call::Map), machine.policy.following().hits)
    };
    let (before, maps, hits) = round(2);
    let (after, maps_after, hits_after) = round(6);
    assert_eq!(after, before, "handles are neither created nor released");
    assert!(maps_after > maps + 6 * 55, "pages go to and fro: {maps} to {maps_after}");
    assert_eq!(hits_after - hits, 6 * 3 * 2, "every place is there again");
    assert!(machine.reserved() <= 260 * MIB, "{}", machine.reserved());
    assert!(machine.policy.is_following());
}

#[test]
fn what_is_cached_when_a_plan_comes_is_mapped_into_its_arena() {
    let mut machine = Machine::new(stitched(), 1 << 30);
    machine.run(&STEP);
    let created = machine.calls(Call::Create);
    assert_eq!(machine.policy.unmapped(), 0, "without a plan nothing is kept");
    machine.follow(&plan(&STEP)).expect("no fault");
    assert_eq!((machine.policy.unmapped(), machine.reserved()), (256 * MIB, 256 * MIB));
    machine.run(&STEP);
    assert_eq!((machine.policy.unmapped(), machine.reserved()), (0, 256 * MIB));
    assert_eq!(machine.traffic(), [created, 0]);
    // And from one arena to the next.
    machine.follow(&plan(&[200 * MIB, 56 * MIB])).expect("no fault");
    machine.run(&[200 * MIB, 56 * MIB]);
    assert_eq!(machine.traffic(), [created, 0]);
}

#[test]
fn what_nobody_takes_for_an_iteration_goes_to_the_device() {
    let mut machine = Machine::following(stitched(), 1 << 30, &plan(&STEP));
    machine.run(&STEP);
    // All of the arena makes way, and a part of it is taken.
    machine.run(&[120 * MIB]);
    assert_eq!((machine.policy.unmapped(), machine.reserved()), (136 * MIB, 256 * MIB));
    machine.step().expect("no fault");
    assert_eq!(machine.policy.unmapped(), 136 * MIB, "the next iteration may want it");
    machine.step().expect("no fault");
    assert_eq!((machine.policy.unmapped(), machine.reserved()), (0, 120 * MIB));
}

#[test]
fn a_plan_keeps_no_more_pages_than_its_arena_is_long() {
    let mut machine = Machine::new(stitched(), 1 << 30);
    machine.run(&STEP);
    machine.follow(&plan(&[64 * MIB])).expect("no fault");
    assert_eq!((machine.policy.unmapped(), machine.reserved()), (64 * MIB, 64 * MIB));
}

#[test]
fn without_a_plan_a_page_goes_to_the_device() {
    let mut machine = Machine::following(stitched(), 1 << 30, &plan(&STEP));
    machine.run(&STEP);
    machine.run(&EVALUATION);
    machine.with(Planned::unfollow).expect("no fault");
    assert_eq!((machine.reserved(), machine.policy.unmapped()), (0, 0));
    assert_eq!(machine.device.live().handles, 0);
}

#[test]
fn to_empty_the_cache_empties_the_pool() {
    let mut machine = Machine::new(stitched(), 1 << 30);
    machine.run(&STEP);
    machine.follow(&plan(&STEP)).expect("no fault");
    assert!(machine.policy.unmapped() > 0);
    assert_eq!(machine.policy.releasable(), 256 * MIB);
    let rounded = &|size| size;
    let (stream, pool) = (StreamId(0), PoolId::DEFAULT);
    let waste = waste(&machine.policy, Viewpoint { stream, pool, is_small: false, rounded });
    assert_eq!(
        (waste.cached_whole, waste.total()),
        (256 * MIB, 256 * MIB),
        "every byte has a cause"
    );
    machine.with(Policy::empty_cache).expect("no fault");
    assert_eq!((machine.reserved(), machine.device.live().handles), (0, 0));
}

#[test]
fn the_limit_counts_what_is_in_the_pool_and_lets_it_be_used() {
    let mut machine = Machine::new(stitched(), 512 * MIB);
    machine.run(&STEP);
    machine.follow(&plan(&STEP)).expect("no fault");
    machine.policy.set_memory_fraction(0.5);
    // All that may be held lies in the pool.
    let block = machine.alloc(220 * MIB);
    assert_eq!(machine.reserved(), 256 * MIB);
    machine.ask(64 * MIB).expect_err("36 MiB are left");
    machine.free(block);
    // The limit falls: what is in the pool goes back before anything is taken.
    machine.with(Policy::empty_cache).expect("no fault");
    machine.run(&STEP);
    machine.follow(&plan(&[256 * MIB])).expect("no fault");
    machine.policy.set_memory_fraction(0.25);
    machine.alloc(100 * MIB);
    assert!(machine.reserved() <= 128 * MIB, "{}", machine.reserved());
}

// What is tried before an error. Each device is exactly full.

#[test]
fn step_2_frees_of_the_arena_that_wait_for_another_stream_are_waited_for() {
    // Too little for it to go back before the fallback grows.
    let mut machine = Machine::following(expandable(), 20 * MIB, &plan(&[16 * MIB]));
    let block = machine.alloc(16 * MIB);
    machine.free_later(block);
    machine.alloc(12 * MIB);
    assert_eq!((machine.reserved(), machine.policy.stats().num_ooms), (20 * MIB, 0));
    assert_eq!(machine.policy.stats().num_alloc_retries, 2, "one of them the fallback's own");
}

#[test]
fn step_3_chunks_in_which_no_block_lives_serve_others() {
    // In the arena, in the persistent region, and in a region of an earlier plan.
    let stays = plan_of(&[], &[16 * MIB, 2 * MIB]);
    let goes = plan(&[16 * MIB, 2 * MIB]);
    for (plan, is_retired) in [(&goes, false), (&stays, false), (&goes, true)] {
        let mut machine = Machine::following(expandable(), 22 * MIB, plan);
        let [idle, live] = [16 * MIB, 2 * MIB].map(|size| machine.alloc(size));
        if is_retired {
            machine.follow(&self::plan(&[4 * MIB])).expect("no fault");
        }
        machine.free(idle);
        assert_eq!(machine.reserved(), 18 * MIB);
        let block = machine.alloc(12 * MIB);
        assert_eq!(machine.reserved(), 22 * MIB);
        machine.free(block);
        machine.free(live);
    }
}

#[test]
fn step_4_the_place_of_a_request_is_tried_again_when_everything_has_made_way() {
    let mut machine = Machine::following(expandable(), 32 * MIB, &plan(&[10 * MIB, 2 * MIB]));
    let [idle, _live] = [10 * MIB, 2 * MIB].map(|size| machine.alloc(size));
    machine.alloc(15 * MIB);
    machine.follow(&plan(&[10 * MIB, 3 * MIB])).expect("no fault");
    machine.free(idle);
    // A page of the fallback has 20 MiB. Nothing is as large, but the place needs 10.
    let hits = machine.policy.following().hits;
    machine.alloc(10 * MIB);
    assert_eq!(machine.policy.following().hits, hits + 1);
    assert_eq!(machine.reserved(), 32 * MIB);
}

#[test]
fn step_6_idle_bytes_between_blocks_take_a_guest_who_is_not_welcome() {
    let sizes = [MIB, MIB];
    let mut machine = Machine::following(expandable(), 2 * MIB, &plan(&sizes));
    let [idle, live] = sizes.map(|size| machine.alloc(size));
    machine.free(idle);
    // Small, and where the plan is about to put something: nothing else is left.
    let guest = machine.alloc(700 * KIB);
    let Following { hits, misses, guests, .. } = machine.policy.following();
    assert_eq!((hits, misses, guests), (2, 1, 1));
    assert_eq!(machine.policy.stats().num_ooms, 0);
    // A private pool gets nothing that others may have afterwards.
    machine.free(guest);
    let private = Request { size: 700 * KIB, stream: StreamId(0), pool: PoolId(1) };
    machine.with(|policy, env| policy.allocate(env, private)).expect_err("the device is full");
    machine.free(live);
}

#[test]
fn a_request_that_is_served_at_last_has_not_failed() {
    let sizes = [1536 * KIB, 1536 * KIB, 2 * MIB];
    let plan = plan_of(&sizes[..2], &sizes[2..]);
    let mut machine = Machine::following(expandable(), 6 * MIB, &plan);
    let [idle, _live, stayed] = sizes.map(|size| machine.alloc(size));
    machine.free(idle);
    machine.free(stayed);
    // The fallback wants 20 MiB, and is asked again for the 2 MiB that have become free.
    machine.alloc(1400 * KIB);
    assert_eq!(machine.policy.following().guests, 1);
    let stats = machine.policy.stats();
    assert_eq!((stats.num_ooms, stats.num_alloc_retries), (0, 3));
}

#[test]
fn at_last_the_request_fails_once_and_the_device_has_every_free_page() {
    let mut machine = Machine::following(stitched(), 256 * MIB, &plan(&STEP));
    let block = machine.alloc(128 * MIB);
    machine.free(block);
    let live = machine.alloc(100 * MIB);
    let error = machine.ask(200 * MIB).expect_err("156 MiB are left");
    assert!(matches!(error, AllocError::OutOfMemory { reserved, .. } if reserved <= 102 * MIB));
    assert_eq!((machine.policy.unmapped(), machine.policy.stats().num_ooms), (0, 1));
    machine.free(live);
}

#[test]
fn a_device_that_is_full_during_a_capture_is_not_waited_for() {
    let mut machine = Machine::following(expandable(), 20 * MIB, &plan(&[16 * MIB]));
    let block = machine.alloc(16 * MIB);
    machine.free_later(block);
    machine.policy.begin_pool(PoolId(1), true);
    let waits = |machine: &Machine| {
        [Call::SynchronizeEvent, Call::SynchronizeStream, Call::QueryEvent]
            .map(|call| machine.calls(call))
    };
    let before = waits(&machine);
    machine.ask(12 * MIB).expect_err("nothing can be waited for");
    assert_eq!(waits(&machine), before);
    machine.policy.end_pool(PoolId(1), true);
    machine.alloc(12 * MIB);
}

/// Does something that may fail once by the fault; if it does, nothing has changed, and it is done
/// again.
fn again<T>(
    machine: &mut Machine,
    call: impl Fn(&mut Machine) -> Result<T, AllocError>,
) -> Result<T, AllocError> {
    let present = |machine: &Machine| {
        let stats = machine.policy.stats();
        let of = [stats.allocation, stats.allocated_bytes, stats.requested_bytes];
        (of.map(|counters| counters.all.current), machine.policy.following())
    };
    let ([blocks, bytes, _], before) = present(machine);
    match call(machine) {
        Err(AllocError::Device(_)) => {
            let ([blocks_after, bytes_after, _], after) = present(machine);
            assert_eq!((blocks_after, bytes_after), (blocks, bytes));
            assert_eq!((after.hits, after.misses), (before.hits, before.misses));
            call(machine)
        }
        result => result,
    }
}

/// A plan, evaluations, requests that fail, another plan and none.
fn program(machine: &mut Machine) {
    let (first, second) = (plan(&STEP), plan_of(&[200 * MIB, 20 * MIB], &[24 * MIB]));
    let run = |machine: &mut Machine, sizes: &[u64]| {
        // What a fault has displaced may be in the way of a large block.
        let blocks: Vec<_> =
            sizes.iter().map(|&size| again(machine, |machine| machine.ask(size))).collect();
        for block in blocks.into_iter().flatten() {
            let free =
                |machine: &mut Machine| machine.with(|policy, env| policy.free(env, block.block));
            again(machine, free).expect("a block in use");
        }
    };
    run(machine, &STEP);
    for plan in [first, second] {
        again(machine, |machine| machine.follow(&plan)).expect("one fault alone");
        assert!(Arc::ptr_eq(machine.policy.plan(), &plan));
        for _ in 0..2 {
            again(machine, Machine::step).expect("one fault alone");
            run(machine, &STEP);
            run(machine, &EVALUATION);
            run(machine, &[200 * MIB, 20 * MIB, 24 * MIB]);
            run(machine, &[30 * MIB, 300 * MIB]);
            if let Ok(block) = again(machine, |machine| machine.ask(128 * MIB)) {
                machine.device.hold(StreamId(1));
                let block = block.block;
                let recorded = |machine: &mut Machine| {
                    machine.with(|policy, env| policy.record_stream(env, block, StreamId(1)))
                };
                again(machine, recorded).expect("a block in use");
                let free =
                    |machine: &mut Machine| machine.with(|policy, env| policy.free(env, block));
                again(machine, free).expect("a block in use");
            }
            run(machine, &[240 * MIB]);
            machine.device.resume(StreamId(1));
        }
    }
    again(machine, |machine| machine.with(Planned::unfollow)).expect("one fault alone");
    run(machine, &EVALUATION);
}

#[test]
fn every_device_call_may_fail_while_pages_go_to_and_fro() {
    let new = || Machine::new(stitched(), 276 * MIB);
    let mut machine = new();
    program(&mut machine);
    let calls = machine.device.calls();
    assert!(machine.policy.stats().num_ooms >= 4 && machine.policy.following().hits > 0);
    let step = (calls / 800).max(1);
    for call in (1..=calls).step_by(step as usize) {
        let mut machine = new();
        machine.device.inject(Fault::nth(call));
        program(&mut machine);
        for _ in 0..3 {
            // The fault may come as late as here.
            let _ = machine.with(Policy::empty_cache);
        }
        assert_eq!(machine.device.live(), LiveObjects::default(), "call {call} failed");
        let stats = machine.policy.stats();
        for counters in [stats.reserved_bytes, stats.active_bytes, stats.allocated_bytes] {
            assert_eq!(counters.all.current, 0, "call {call} failed: {counters:?}");
            assert_eq!((counters.small.current, counters.large.current), (0, 0));
        }
    }
}
