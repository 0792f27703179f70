//! `auto`: learns, follows in the next launch, learns again, and is never worse than what it began as.

use std::sync::Arc;

use girih_plan::{Plan, Role};
use girih_runtime::auto::Planning;
use girih_runtime::caching::Config;
use girih_runtime::replay::{Options, replay};
use girih_runtime::sim::SimDevice;
use girih_runtime::simulate::{Allocator, Setup, simulate};
use girih_runtime::suite;
use girih_runtime::{Auto, BlockId, Env, Lake, Policy, Request};
use girih_trace::{Event, Lifetimes, Mark, MarkKind, PoolId, StreamId, Trace};

/// A recording of the corpus whose steady iteration goes on for longer.
fn recording(name: &str, times: usize) -> Trace {
    crate::common::repeated(&crate::corpus::recording(name), times)
}

/// The most that is held.
fn reserved(trace: &Trace, allocator: Allocator) -> u64 {
    let setup = Setup { check_order: true, ..Setup::default() };
    let simulation = simulate(trace, &Lifetimes::of(trace), allocator, &setup);
    simulation.expect("a simulation").stats.reserved_bytes.all().peak
}

/// Runs a trace under `auto`.
fn launch(trace: &Trace, lake: Lake, planning: Planning) -> Auto {
    let mut auto = Auto::new(lake);
    auto.set_planning(planning);
    let options = Options { check_order: true, ..Options::default() };
    let mut device = SimDevice::new(1 << 45);
    let replayed = replay(trace, &Lifetimes::of(trace), &mut auto, &mut device, options);
    assert_eq!(replayed.expect("the trace is right").failed, 0);
    auto
}

fn lake() -> Lake {
    Lake::of(Config::parse("expandable_segments:True").expect("the settings are right"))
}

/// A first launch holds no more than stitching and expandable segments do, and leaves a plan with which
/// the second has next to nothing idle.
fn assert_learns(trace: &Trace, planning: Planning, least: f64) {
    let mut first = launch(trace, lake(), planning);
    let held = first.stats().reserved_bytes.all().peak;
    let [stitch, expandable] =
        [Allocator::Stitch, Allocator::Expandable].map(|a| reserved(trace, a));
    assert!(held * 400 <= stitch * 401, "{held} bytes are held, by stitching {stitch}");
    assert!(held <= expandable, "{held} bytes are held, in expandable segments {expandable}");
    let plan = first.take_proven().expect("a plan that fits");
    let second = launch(trace, lake().with_plan(plan), planning);
    assert_eq!(second.given_up(), 0);
    let following = second.lake().following();
    let bytes = following.hit_bytes + following.miss_bytes;
    assert!((following.miss_bytes - following.refused_bytes) * 250 <= bytes, "{following:?}");
    assert!(following.miss_bytes * 50 <= bytes, "{following:?}");
    let stats = second.stats();
    let peaks = [stats.allocated_bytes.all().peak, stats.reserved_bytes.all().peak];
    assert!(peaks[1] <= stitch, "{} bytes are held, by stitching {stitch}", peaks[1]);
    let efficiency = peaks[0] as f64 / peaks[1] as f64;
    assert!(efficiency >= least, "{efficiency:.4} of what was held was in use");
}

#[test]
fn a_dense_run_is_learnt_from_its_first_steps() {
    let trace = recording("megatron_gpt2-R_r3", 6);
    assert_learns(&trace, Planning::AtOnce, 0.999);
    assert_learns(&trace, Planning::NextIteration, 0.999);
}

#[test]
fn gradients_that_are_carried_into_the_next_step_are_not_counted_twice() {
    // They live where a step begins, on pages that are free soon after.
    for name in ["llama2b_N", "llama2b_R", "moe_R"] {
        assert_learns(&recording(name, 8), Planning::NextIteration, 0.99);
    }
}

#[test]
fn the_small_first_stage_of_a_pipeline_is_learnt() {
    // Many microbatches in few GiB: what lies in pages that are partly used weighs most here.
    assert_learns(&recording("megatron_gpt2-V-R_r0", 3), Planning::NextIteration, 0.99);
}

#[test]
fn a_run_on_three_streams_is_learnt() {
    let trace = recording("fsdp2_R_r0", 6);
    assert_learns(&trace, Planning::AtOnce, 0.999);
    assert_learns(&trace, Planning::NextIteration, 0.999);
}

#[test]
fn without_marks_the_iterations_are_found_in_the_sequence() {
    let mut trace = recording("fsdp2_R_r0", 16);
    trace.marks.clear();
    assert_learns(&trace, Planning::AtOnce, 0.99);
}

/// `auto` on a device, driven by hand.
struct Machine {
    policy: Auto,
    device: SimDevice,
    log: Vec<Event>,
}

impl Machine {
    fn new(make: impl FnOnce(Lake) -> Auto) -> Machine {
        let config = Config::parse("expandable_segments:True").expect("the settings are right");
        let policy = make(Lake::of(config));
        Machine { policy, device: SimDevice::new(1 << 40), log: Vec::new() }
    }

    fn with<T>(&mut self, call: impl FnOnce(&mut Auto, &mut Env<'_>) -> T) -> T {
        let mut env = Env::new(&mut self.device, &mut self.log);
        let result = call(&mut self.policy, &mut env);
        self.policy.check().expect("a sound policy");
        result
    }

    fn alloc(&mut self, size: u64) -> BlockId {
        let request = Request { size, stream: StreamId(0), pool: PoolId::DEFAULT };
        self.with(|policy, env| policy.allocate(env, request)).expect("memory").block
    }

    fn free(&mut self, block: BlockId) {
        self.with(|policy, env| policy.free(env, block)).expect("a block in use");
    }

    /// A step of a model of 40 layers: forward, then backward.
    fn step(&mut self, length: u64) {
        self.mark_step();
        self.microbatch(length);
    }

    fn mark_step(&mut self) {
        let mark = Mark { before: 0, time_us: 0, kind: MarkKind::Step, name: String::new() };
        self.with(|policy, env| policy.mark(env, &mark)).expect("no fault");
    }

    /// Something large that came before the training and leaves a cache behind.
    fn warm_up(&mut self) {
        let block = self.alloc(1 << 30);
        self.free(block);
    }

    fn microbatch(&mut self, length: u64) {
        let activations: Vec<BlockId> =
            (0..40).map(|layer| self.alloc((layer + 1) * length)).collect();
        for block in activations.into_iter().rev() {
            let gradient = self.alloc(3 * length);
            self.free(block);
            self.free(gradient);
        }
    }

    /// Plans what is to be planned, and offers it. True if there was anything.
    fn plan(&mut self) -> bool {
        let Some(job) = self.policy.take_job() else { return false };
        self.policy.offer(Arc::new(job.run()));
        true
    }

    fn hit_share(&mut self, step: impl FnOnce(&mut Machine)) -> f64 {
        let before = self.policy.lake().following();
        step(self);
        let after = self.policy.lake().following();
        let hit = (after.hit_bytes - before.hit_bytes) as f64;
        hit / (hit + (after.miss_bytes - before.miss_bytes) as f64)
    }
}

const LENGTH: u64 = 1 << 16;
const SHORT: u64 = LENGTH / 32;

fn new_auto(lake: Lake) -> Auto {
    Auto::new(lake)
}

/// The next launch of a run, which begins with the plan that this one has kept.
fn relaunched(first: &mut Machine) -> Machine {
    let plan = first.policy.take_proven().expect("a plan that fits");
    Machine::new(|lake: Lake| Auto::new(lake.with_plan(plan)))
}

#[test]
fn the_owner_is_asked_once_and_the_plan_is_for_the_next_launch() {
    let mut machine = Machine::new(new_auto);
    let mut asked = 0;
    for _ in 0..8 {
        machine.step(SHORT);
        asked += usize::from(machine.plan());
    }
    assert_eq!(asked, 1);
    assert!(machine.policy.take_job().is_none());
    let following = machine.policy.lake().following();
    assert_eq!((machine.policy.lake().plan(), following.hits + following.misses), (None, 0));
    let mut second = relaunched(&mut machine);
    assert!(second.hit_share(|machine| machine.step(SHORT)) > 0.999);
    assert!(second.hit_share(|machine| machine.step(SHORT)) > 0.999);
    assert!(second.policy.take_job().is_none());
}

#[test]
fn a_longer_step_is_learnt_and_shorter_ones_fit_then() {
    let mut machine = Machine::new(new_auto);
    for _ in 0..8 {
        machine.step(SHORT);
        machine.plan();
    }
    let mut machine = relaunched(&mut machine);
    machine.step(SHORT);
    assert!(machine.hit_share(|machine| machine.step(2 * SHORT)) < 0.1);
    let mut kept = None;
    for turn in 0..14 {
        machine.step(if turn % 3 == 0 { 2 * SHORT } else { SHORT });
        machine.plan();
        kept = machine.policy.take_proven().or(kept);
    }
    let plan = kept.expect("a plan that fits");
    let mut second = Machine::new(|lake: Lake| Auto::new(lake.with_plan(plan)));
    second.step(SHORT);
    for length in [2 * SHORT, SHORT, SHORT + 512] {
        let share = second.hit_share(|machine| machine.step(length));
        assert!(share > 0.98, "{length}: {share}");
    }
}

#[test]
fn lengths_that_always_vary_are_planned_a_few_times_in_a_hundred_steps() {
    let mut machine = Machine::new(new_auto);
    machine.warm_up();
    let (mut plans, mut state, mut kept) = (0, 12345u64, None);
    for _ in 0..100 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        machine.step(LENGTH + (state >> 48) * 16);
        plans += usize::from(machine.plan());
        kept = machine.policy.take_proven().or(kept);
    }
    assert!((2..=10).contains(&plans), "{plans} plans");
    // Whether it helps is another question: it has room for what varies.
    let plan = Plan { trial: None, ..(*kept.expect("a plan that fits")).clone() };
    let mut second = Machine::new(|lake: Lake| Auto::new(lake.with_plan(Arc::new(plan))));
    second.step(LENGTH);
    let share = second.hit_share(|machine| machine.step(LENGTH + 300_000));
    assert!(share > 0.9, "{share}");
}

#[test]
fn what_was_planned_before_the_first_mark_is_not_followed_after_it() {
    let mut machine = Machine::new(new_auto);
    // One long first step of microbatches, in which no mark comes.
    let mut job = None;
    for _ in 0..200 {
        machine.microbatch(LENGTH);
        job = job.or_else(|| machine.policy.take_job());
    }
    let plan = job.expect("it repeats").run();
    assert!(plan.steady().is_some());
    machine.step(LENGTH);
    machine.policy.offer(Arc::new(plan));
    machine.step(LENGTH);
    machine.step(LENGTH);
    assert!(machine.policy.take_proven().is_none());
}

#[test]
fn a_plan_that_the_next_step_does_not_fit_is_laid_aside_and_not_kept() {
    let mut machine = Machine::new(new_auto);
    machine.warm_up();
    for length in [LENGTH, LENGTH + 4096, LENGTH + 8192, LENGTH + 512] {
        machine.step(length);
    }
    assert!(machine.plan(), "steps that are alike in number make a plan");
    for _ in 0..3 {
        machine.step(40 * LENGTH);
    }
    assert!(machine.policy.take_proven().is_none());
}

#[test]
fn a_plan_is_worth_keeping_once_steps_have_fitted_it() {
    let mut machine = Machine::new(new_auto);
    machine.warm_up();
    let mut kept = None;
    for turn in 0..12 {
        machine.step(LENGTH + turn % 2 * 512);
        machine.plan();
        kept = kept.or(machine.policy.take_proven().map(|_| turn));
    }
    assert!(kept.is_some_and(|turn| turn >= 3), "{kept:?}");
}

#[test]
fn an_evaluation_between_steps_does_not_cost_the_plan() {
    let mut machine = Machine::new(new_auto);
    for _ in 0..8 {
        machine.step(SHORT);
        machine.plan();
    }
    let mut machine = relaunched(&mut machine);
    machine.step(SHORT);
    for turn in 0..8 {
        // It has no place in the plan, and takes what is idle in it.
        machine.mark_step();
        let blocks: Vec<BlockId> = (0..40).map(|_| machine.alloc(40 << 20)).collect();
        blocks.into_iter().for_each(|block| machine.free(block));
        for _ in 0..2 {
            let share = machine.hit_share(|machine| machine.step(SHORT));
            assert!(share > 0.999, "{share} in turn {turn}");
        }
    }
    assert_eq!(machine.policy.given_up(), 0);
}

#[test]
fn what_the_step_before_still_holds_is_no_reason_to_hold_more() {
    let mut machine = Machine::new(new_auto);
    let mut gradients: Vec<BlockId> = Vec::new();
    for _ in 0..10 {
        machine.mark_step();
        gradients.drain(..).for_each(|block| machine.free(block));
        // What comes second does not fit where the first was.
        for activation in [100, 120] {
            let activation = machine.alloc(activation << 20);
            gradients.push(machine.alloc(60 << 20));
            machine.free(activation);
        }
        machine.plan();
    }
    let stats = machine.policy.stats();
    assert!(stats.reserved_bytes.all().current <= 260 << 20, "{:?}", stats.reserved_bytes.all());
    assert!(stats.reserved_bytes.all().peak <= 260 << 20, "{:?}", stats.reserved_bytes.all());
}

#[test]
fn a_plan_from_an_earlier_run_is_followed_from_the_first_step() {
    let mut first = Machine::new(new_auto);
    (0..4).for_each(|_| first.step(LENGTH));
    let plan = Arc::new(first.policy.take_job().expect("a plan is wanted").run());
    assert!(plan.steady().is_some());
    let with_plan = |lake: Lake| Auto::new(lake.with_plan(Arc::clone(&plan)));
    let mut second = Machine::new(with_plan);
    assert!(second.hit_share(|machine| (0..4).for_each(|_| machine.step(LENGTH))) > 0.999);
    assert!(second.policy.take_job().is_none());
}

#[test]
fn without_marks_a_plan_from_an_earlier_run_is_judged_by_its_iterations_and_not_by_requests() {
    let mut first = Machine::new(new_auto);
    (0..4).for_each(|_| first.step(LENGTH));
    let plan = Arc::new(first.policy.take_job().expect("a plan is wanted").run());
    let mut second = Machine::new(|lake: Lake| Auto::new(lake.with_plan(plan)));
    for _ in 0..80 {
        // Each has no place in the plan, next to nothing beside an iteration.
        for odd in 1..=4 {
            let block = second.alloc(odd * 512);
            second.free(block);
        }
        second.microbatch(LENGTH);
    }
    assert_eq!(second.policy.given_up(), 0);
    assert!(second.hit_share(|machine| machine.microbatch(LENGTH)) > 0.999);
    assert!(second.policy.take_job().is_none());
}

#[test]
fn a_plan_of_another_run_is_dropped_and_another_is_kept() {
    let mut plan = suite::reckless_plan(3);
    for entry in plan.sequences.iter_mut().flat_map(|sequence| &mut sequence.entries) {
        // Sizes that never come.
        (entry.size_min, entry.size_max) = (77_777, 77_777);
    }
    plan.sequences[0].role = Role::Opening;
    let plan = Arc::new(plan);
    let mut machine = Machine::new(|lake: Lake| Auto::new(lake.with_plan(plan)));
    for _ in 0..30 {
        machine.step(SHORT);
        machine.plan();
    }
    assert_eq!(machine.policy.given_up(), 1);
    let mut second = relaunched(&mut machine);
    assert!(second.hit_share(|machine| machine.step(SHORT)) > 0.999);
}

#[test]
fn a_plan_in_which_nothing_repeats_is_left_alone() {
    let mut machine = Machine::new(new_auto);
    for step in 0..12 {
        // Every step is another program.
        for block in
            (0..60).map(|k| machine.alloc(512 * (1 + (k * k + 31 * step) % 97))).collect::<Vec<_>>()
        {
            machine.free(block);
        }
        let mark = Mark { before: 0, time_us: 0, kind: MarkKind::Step, name: String::new() };
        machine.with(|policy, env| policy.mark(env, &mark)).expect("no fault");
        if let Some(job) = machine.policy.take_job() {
            machine.policy.offer(Arc::new(Plan { sequences: Vec::new(), ..job.run() }));
        }
    }
    assert!(machine.policy.take_proven().is_none());
}

#[test]
fn learning_passes_the_suite() {
    suite::check_policy(16, &mut |_| suite::auto());
}
