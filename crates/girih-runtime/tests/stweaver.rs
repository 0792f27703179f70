//! STWeaver's allocator: places by number, what becomes of a run that leaves the plan, experts in what it leaves idle.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use girih_plan::stweaver::{DynamicLayers, LayerSpaces, Synthesis};
use girih_plan::{Entry, Place, Plan, Role, Sequence};
use girih_runtime::caching::{Caching, Config};
use girih_runtime::policy::{BlockId, Env, Granted, Policy, Request};
use girih_runtime::replay::{Options as Replay, replay};
use girih_runtime::sim::SimDevice;
use girih_runtime::simulate::{Allocator, Setup, simulate};
use girih_runtime::stweaver::{Options, Stweaver};
use girih_trace::compress::Limits;
use girih_trace::generate::{Training, training};
use girih_trace::{Lifetimes, Mark, MarkKind, PoolId, StreamId, Trace, marks, open};

const MIB: u64 = 1 << 20;

/// A recorded run with its marks, of those that a clone does not have. None, and it says so, where they are missing.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn recorded(name: &str) -> Option<Trace> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces"));
    let Ok(file) = File::open(folder.join(format!("{name}.pickle.gz"))) else {
        eprintln!("skipped: {name} is not in {}", folder.display());
        return None;
    };
    let mut recording = open::detect_and_read(file, Limits::default()).expect("a recording");
    let mut trace = recording.traces.remove(0);
    let json = fs::read(folder.join(format!("{name}.marks.json.gz"))).expect("its marks");
    marks::apply(&mut trace, &json).expect("marks");
    Some(trace)
}

/// Requests of so many MiB, each alive as long as the two numbers say, at an offset in MiB.
fn plan(entries: &[(u64, u32, u64)]) -> Plan {
    let entry = |&(size, until, offset): &(u64, u32, u64)| Entry {
        size_min: size * MIB,
        size_max: size * MIB,
        stream: StreamId(0),
        place: Place::Arena(offset * MIB),
        until,
    };
    let entries = entries.iter().map(entry).collect();
    let steady = Sequence { role: Role::Steady, entries, boundaries: Vec::new() };
    Plan { arena_bytes: 16 * MIB, rounds: 1, sequences: vec![steady], ..Plan::default() }
}

struct World {
    device: SimDevice,
    policy: Stweaver,
}

impl World {
    fn new(synthesis: Synthesis, options: Options) -> World {
        let mut policy = Stweaver::new(options, Caching::new(Config::default()));
        policy.set_plan(Arc::new(synthesis));
        World { device: SimDevice::new(1 << 30), policy }
    }

    fn of(entries: &[(u64, u32, u64)]) -> World {
        World::new(Synthesis { plan: plan(entries), ..Synthesis::default() }, Options::default())
    }

    fn alloc_on(&mut self, mib: u64, stream: u16) -> Granted {
        let mut log = ();
        let mut env = Env::new(&mut self.device, &mut log);
        let request = Request { size: mib * MIB, stream: StreamId(stream), pool: PoolId::DEFAULT };
        let granted = self.policy.allocate(&mut env, request).expect("it fits");
        self.policy.check().expect("consistent");
        granted
    }

    fn alloc(&mut self, mib: u64) -> Granted {
        self.alloc_on(mib, 0)
    }

    fn free(&mut self, block: BlockId) {
        let mut log = ();
        let mut env = Env::new(&mut self.device, &mut log);
        self.policy.free(&mut env, block).expect("in use");
        self.policy.check().expect("consistent");
    }

    fn mark(&mut self, kind: MarkKind) {
        let mut log = ();
        let mut env = Env::new(&mut self.device, &mut log);
        let mark = Mark { before: 0, time_us: 0, kind, name: String::new() };
        self.policy.mark(&mut env, &mark).expect("nothing is asked of the device");
    }

    /// Hits and misses.
    fn counts(&self) -> (u64, u64) {
        let following = self.policy.following();
        (following.hits, following.misses)
    }
}

/// Two requests of 4 and 2 MiB that come and go in turn.
const TWO: [(u64, u32, u64); 2] = [(4, 1, 0), (2, 2, 8)];

#[test]
fn the_nth_request_has_the_nth_place_round_and_round() {
    let mut world = World::of(&TWO);
    let mut places = Vec::new();
    for mib in [4, 2, 4, 2] {
        let granted = world.alloc(mib);
        places.push(granted.address);
        world.free(granted.block);
    }
    assert_eq!((places[0], places[1]), (places[2], places[3]));
    assert_eq!(places[1] - places[0], 8 * MIB);
    assert_eq!(world.counts(), (4, 0));
    assert_eq!(Policy::stats(&world.policy).reserved_bytes.all().peak, 16 * MIB);
}

#[test]
fn one_request_too_many_and_all_that_follow_have_the_places_of_others() {
    let steps = |options: Options| {
        let mut world = World::new(Synthesis { plan: plan(&TWO), ..Synthesis::default() }, options);
        for step in 0..10 {
            world.mark(MarkKind::Step);
            let extra = (step == 0).then_some(1);
            for mib in extra.into_iter().chain([4, 2]) {
                let granted = world.alloc(mib);
                world.free(granted.block);
            }
        }
        world.counts()
    };
    assert_eq!(steps(Options::default()), (0, 21), "as published: nothing finds the way back");
    let resyncs = Options { resyncs: true, ..Options::default() };
    assert_eq!(steps(resyncs), (18, 3), "with a word at each step, a step is lost");
}

#[test]
fn a_place_that_is_taken_is_not_given_whatever_the_plan_says() {
    // Both of the plan's requests are alive together, and overlap.
    let mut world = World::of(&[(4, 2, 0), (4, 2, 2)]);
    let (first, second) = (world.alloc(4), world.alloc(4));
    assert!(
        second.address >= first.address + first.size || second.address + 4 * MIB <= first.address
    );
    assert_eq!(world.counts(), (1, 1));
}

#[test]
fn what_a_stream_used_another_has_only_after_a_wait_on_the_device() {
    let mut world = World::of(&[(4, 1, 0)]);
    let first = world.alloc_on(4, 0);
    world.free(first.block);
    let second = world.alloc_on(4, 1);
    assert_eq!(second.address, first.address);
    assert_eq!(world.policy.following().waits, 1);
}

#[test]
fn a_temporary_of_the_opening_lies_where_it_was_laid_in_a_pool_that_is_as_large_as_it_needs() {
    let mut plan = plan(&TWO);
    let of_steady = &plan.sequences[0].entries;
    let outside = Entry { place: Place::Outside, ..of_steady[0] };
    let entries = vec![of_steady[1], outside, outside];
    plan.sequences.insert(0, Sequence { role: Role::Opening, entries, boundaries: Vec::new() });
    let synthesis = Synthesis { plan, temporaries: vec![(1, 18 * MIB)], ..Synthesis::default() };
    let mut world = World::new(synthesis, Options::default());
    let [first, second, third] = [2, 4, 4].map(|mib| world.alloc(mib));
    assert_eq!(second.address - first.address, 10 * MIB, "18 MiB, and 8 of the first");
    // The third has no place and is not laid: the caching policy serves it beside the pool.
    assert_eq!(world.counts(), (2, 1));
    assert!(Policy::stats(&world.policy).reserved_bytes.all().peak > 22 * MIB);
    [first, second, third].into_iter().for_each(|it| world.free(it.block));
    // And then the steady iteration.
    assert_eq!(world.alloc(4).address + 8 * MIB, first.address);
}

/// One static request of 8 MiB at the bottom, and a dynamic layer that may use what lies above it but for the last MiB.
fn with_a_layer() -> Synthesis {
    Synthesis {
        plan: plan(&[(8, 1, 0)]),
        spaces: vec![vec![(8 * MIB, 15 * MIB)], vec![(8 * MIB, 10 * MIB)]],
        opening: Vec::new(),
        steady: vec![LayerSpaces { requests: vec![0, 1], longest: 1 }],
        ..Synthesis::default()
    }
}

#[test]
fn dynamic_requests_have_the_best_fit_in_what_is_free_of_their_space() {
    let mut world = World::new(with_a_layer(), Options::default());
    let bottom = world.alloc(8);
    world.policy.set_layer(Some(7));
    let first = world.alloc(4);
    assert_eq!(first.address - bottom.address, 8 * MIB);
    // The space of the second is full, though there is room in the pool; and so is that of a third.
    assert!(world.alloc(1).address.abs_diff(bottom.address) >= 16 * MIB);
    world.free(first.block);
    assert_eq!(world.alloc(2).address, first.address);
    assert_eq!(world.counts(), (3, 1));
    // Outside of the layer the plan goes on where it was: one static request had come.
    world.policy.set_layer(None);
    world.free(bottom.block);
    assert_eq!(world.alloc(8).address, bottom.address);
}

#[test]
fn without_reuse_the_caching_policy_serves_what_is_dynamic() {
    let options = Options { reuses: false, ..Options::default() };
    let mut world = World::new(with_a_layer(), options);
    world.alloc(8);
    world.policy.set_layer(Some(0));
    world.alloc(4);
    assert_eq!(world.counts(), (1, 1));
    assert!(world.policy.served().fallback > 0);
}

#[test]
fn in_an_evaluation_whatever_is_free_of_the_pool_is_used_and_the_plan_goes_on_after_it() {
    let mut world = World::of(&TWO);
    let first = world.alloc(4);
    world.mark(MarkKind::Eval);
    let eval = world.alloc(5);
    assert!(eval.address > first.address && eval.address < first.address + 16 * MIB);
    world.free(eval.block);
    world.mark(MarkKind::Step);
    assert_eq!(world.alloc(2).address, first.address + 8 * MIB);
    assert_eq!(world.counts(), (3, 0));
}

#[test]
fn a_pool_that_the_device_has_no_room_for_is_done_without() {
    // The pool is of 16 MiB.
    let mut world = World::of(&[(12, 1, 0)]);
    world.device = SimDevice::new(14 * MIB);
    world.alloc(12);
    assert_eq!(world.counts(), (0, 1));
    assert_eq!(Policy::stats(&world.policy).reserved_bytes.all().peak, 12 * MIB);
}

#[test]
fn a_steady_run_is_served_from_the_plan_to_the_last_byte() {
    let trace = training(&Training { steps: 5, ..Training::default() }, 3);
    let lives = Lifetimes::of(&trace);
    let setup = Setup { check_order: true, ..Setup::default() };
    let simulation = simulate(&trace, &lives, Allocator::Stweaver, &setup).expect("it runs");
    let following = simulation.following.expect("it follows a plan");
    assert!(following.hits > 20 * following.misses, "{following:?}");
    assert!(simulation.efficiency() > 0.95, "{}", simulation.efficiency());
}

#[test]
fn experts_use_what_the_plan_leaves_and_every_use_comes_after_the_last() {
    let Some(trace) = recorded("megatron_qwenmoe_r3") else { return };
    let lives = Lifetimes::of(&trace);
    let layers = DynamicLayers::of(&trace, &lives);
    // A forward and a backward of each of 12 layers, in 8 microbatches and 3 steps.
    assert_eq!(layers.runs().len(), 2 * 12 * 8 * 3);
    let efficiency = |reuses| {
        let stweaver = Options { reuses, ..Options::default() };
        let setup = Setup { stweaver, check_order: true, ..Setup::default() };
        let simulation = simulate(&trace, &lives, Allocator::Stweaver, &setup).expect("it runs");
        simulation.efficiency()
    };
    let (without, with) = (efficiency(false), efficiency(true));
    assert!(without > 0.93 && with > without + 0.02, "{without} {with}");
}

#[test]
fn without_a_plan_it_is_the_caching_allocator() {
    let trace = training(&Training::default(), 3);
    let lives = Lifetimes::of(&trace);
    let peak = |policy: &mut dyn Policy| {
        let mut device = SimDevice::new(1 << 46);
        replay(&trace, &lives, policy, &mut device, Replay::default()).expect("it runs");
        policy.stats().reserved_bytes.all().peak
    };
    let mut bare = Stweaver::new(Options::default(), Caching::new(Config::default()));
    assert_eq!(peak(&mut bare), peak(&mut Caching::new(Config::default())));
}
