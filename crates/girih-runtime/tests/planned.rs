//! `planned` under everything that can go wrong: plans that are wrong, calls that fail, requests
//! that come in between or stay away.

use std::sync::Arc;

use arbitrary::Arbitrary;
use girih_plan::{Budget, Plan, profile, solve, verify};
use girih_runtime::caching::Config;
use girih_runtime::replay::{Options, Replayed, replay};
use girih_runtime::sim::SimDevice;
use girih_runtime::suite::{self, Scenario};
use girih_runtime::{Following, Lake, Policy};
use girih_trace::generate::{Training, training};
use girih_trace::{Action, Event, Iterations, Lifetimes, PoolId, StackId, StreamId, Tick, Trace};

use crate::corpus::recording;

const MIB: u64 = 1 << 20;

#[test]
fn following_a_reckless_plan_passes_the_suite() {
    let mut seed = 0;
    suite::check_policy(24, &mut |_| {
        seed += 1;
        suite::planned(suite::reckless_plan(seed))
    });
}

#[test]
fn following_a_plan_without_places_passes_the_suite() {
    let mut plan = suite::reckless_plan(1);
    plan.sequences.clear();
    suite::check_policy(8, &mut |_| suite::planned(plan.clone()));
}

#[test]
fn every_device_call_may_fail_whatever_the_plan() {
    arbtest::arbtest(|u| {
        let seed = u.arbitrary()?;
        let scenario = Scenario::arbitrary(u)?;
        suite::run_with_faults(&scenario, &mut |_| suite::planned(suite::reckless_plan(seed)));
        Ok(())
    })
    .size_min(200)
    .size_max(1000)
    .budget_ms(4_000);
}

#[test]
fn idle_places_that_are_lent_pass_the_suite() {
    let mut seed = 0;
    suite::check_policy(24, &mut |_| {
        seed += 1;
        suite::with_idle_places(seed)
    });
}

#[test]
fn every_device_call_may_fail_while_idle_places_are_lent() {
    arbtest::arbtest(|u| {
        let seed = u.arbitrary()?;
        let scenario = Scenario::arbitrary(u)?;
        suite::run_with_faults(&scenario, &mut |_| suite::with_idle_places(seed));
        Ok(())
    })
    .size_min(200)
    .size_max(1000)
    .budget_ms(4_000);
}

#[test]
fn changing_reckless_plans_in_the_middle_passes_the_suite() {
    let mut seed = 0;
    suite::check_policy(24, &mut |_| {
        seed += 1;
        suite::dropping_its_plan(seed)
    });
}

#[test]
fn every_device_call_may_fail_while_plans_change() {
    arbtest::arbtest(|u| {
        let seed = u.int_in_range(0..=1000)?;
        let scenario = Scenario::arbitrary(u)?;
        suite::run_with_faults(&scenario, &mut |_| suite::dropping_its_plan(seed));
        Ok(())
    })
    .size_min(200)
    .size_max(1000)
    .budget_ms(4_000);
}

fn plan_of(trace: &Trace) -> (Arc<Plan>, Iterations) {
    let lives = Lifetimes::of(trace);
    let iterations = Iterations::of(trace, &lives);
    let plan = profile::plan(trace, &lives, &iterations, |problem| {
        solve(problem, Budget::interactive(problem.buffers.len()))
    })
    .expect("a problem of a trace");
    verify(&plan).expect("a plan of the planners is right");
    (Arc::new(plan), iterations)
}

/// Replays, and lets the device check the order of every use.
fn follow(trace: &Trace, plan: &Arc<Plan>) -> (Lake, Replayed) {
    run(trace, plan, Options { check_order: true, ..Options::default() })
}

fn run(trace: &Trace, plan: &Arc<Plan>, options: Options<'_>) -> (Lake, Replayed) {
    let lives = Lifetimes::of(trace);
    let expandable = Config::parse("expandable_segments:True").expect("the settings are right");
    let mut policy = Lake::of(expandable).with_plan(Arc::clone(plan));
    let mut device = SimDevice::new(1 << 45);
    let replayed = replay(trace, &lives, &mut policy, &mut device, options).expect("a replay");
    policy.check().expect("a sound policy");
    (policy, replayed)
}

fn efficiency(policy: &Lake) -> f64 {
    let stats = policy.stats();
    stats.allocated_bytes.all().peak as f64 / stats.reserved_bytes.all().peak as f64
}

#[test]
fn a_dense_run_is_followed_from_its_first_request() {
    let trace = recording("megatron_gpt2-R_r3");
    let (plan, _) = plan_of(&trace);
    let (policy, replayed) = follow(&trace, &plan);
    assert!(efficiency(&policy) >= 0.99, "{}", efficiency(&policy));
    assert_eq!(replayed.failed, 0);
    let Following { hits, misses, waits, .. } = policy.following();
    assert!(misses * 1000 <= hits, "{hits} hits, {misses} misses");
    assert_eq!(waits, 0, "one stream never waits for itself");
}

#[test]
fn three_streams_share_an_arena_and_no_byte_is_used_too_early() {
    let trace = recording("fsdp2_R_r0");
    let (plan, _) = plan_of(&trace);
    // `follow` checks the order of every use on the device.
    let (policy, _) = follow(&trace, &plan);
    assert!(efficiency(&policy) >= 0.95, "{}", efficiency(&policy));
    assert!(policy.following().waits > 0, "streams that share must wait");
}

/// A run with experts, whose tokens go where chance will have it.
fn experts(seed: u64) -> Trace {
    let params = Training {
        hidden: 512,
        sequence: 4096,
        microbatch: 4,
        experts: 8,
        steps: 6,
        ..Training::default()
    };
    training(&params, seed)
}

#[test]
fn experts_find_room_whatever_is_routed_to_them() {
    let [trace, other] = [experts(1), experts(2)];
    let (plan, _) = plan_of(&trace);
    let (policy, _) = follow(&trace, &plan);
    assert!(efficiency(&policy) >= 0.985, "{}", efficiency(&policy));
    assert_eq!(policy.following().misses, 0, "{:?}", policy.following());
    // No size is the same in the other run.
    let (policy, _) = follow(&other, &plan);
    let Following { hit_bytes, miss_bytes, .. } = policy.following();
    // Its peak is another, and no more is held than that needs: what goes beyond finds no place.
    assert!(miss_bytes * 10 <= hit_bytes, "{:?}", policy.following());
    assert!(efficiency(&policy) >= 0.98, "{}", efficiency(&policy));

    let lives = Lifetimes::of(&trace);
    let iterations = Iterations::of(&trace, &lives);
    let alone = profile::plan_without_rooms(&trace, &lives, &iterations, |problem| {
        solve(problem, Budget::interactive(problem.buffers.len()))
    })
    .expect("a problem of a trace");
    assert!(plan.arena_bytes < alone.arena_bytes, "rooms save nothing");
    let (policy, _) = follow(&other, &Arc::new(alone));
    assert!(policy.following().miss_bytes > 2 * miss_bytes, "{:?}", policy.following());
}

#[test]
fn a_plan_of_another_run_costs_memory_and_nothing_else() {
    let trace = recording("fsdp2_R_r0");
    let (plan, _) = plan_of(&recording("megatron_gpt2-R_r3"));
    let (policy, replayed) = follow(&trace, &plan);
    assert_eq!(replayed.failed, 0);
    let Following { hits, misses, .. } = policy.following();
    assert!(misses > hits, "{hits} hits, {misses} misses");
}

#[test]
fn in_the_steady_state_no_call_reaches_the_device() {
    let trace = recording("megatron_gpt2-R_r3");
    let (plan, iterations) = plan_of(&trace);
    let (first, last) = iterations.steady.expect("a steady run");
    let calls = |iteration: usize| {
        let end = Tick(iterations.list[iteration].ticks.end - 1);
        let (policy, _) = run(&trace, &plan, Options { until: Some(end), ..Options::default() });
        policy.stats().num_device_alloc + policy.stats().num_device_free
    };
    assert_eq!(calls(first), calls(last), "pages are mapped once");
}

/// Hits up to each of these ticks, and the most bytes held.
fn hits(trace: &Trace, plan: &Arc<Plan>, ends: [u32; 2]) -> ([u64; 2], u64) {
    let mut held = 0;
    let hits = ends.map(|end| {
        let until = Some(Tick(end - 1));
        let lake = run(trace, plan, Options { until, ..Options::default() }).0;
        held = lake.stats().reserved_bytes.all().peak;
        lake.following().hits
    });
    (hits, held)
}

/// A trace with `events` put in before the event at `at`; marks move along.
fn with_events(trace: &Trace, at: usize, events: &[Event]) -> Trace {
    let mut changed = trace.clone();
    changed.events.splice(at..at, events.iter().copied());
    for mark in changed.marks.iter_mut().filter(|mark| mark.before as usize > at) {
        mark.before += events.len() as u32;
    }
    changed
}

/// A trace without the events of a request.
fn without_request(trace: &Trace, request: u32) -> Trace {
    let lives = Lifetimes::of(trace);
    let mut changed = trace.clone();
    let gone = |index: usize| lives.request_of[index] == request;
    changed.events =
        (0..trace.events.len()).filter(|&k| !gone(k)).map(|k| trace.events[k]).collect();
    for mark in &mut changed.marks {
        let before = (0..mark.before as usize).filter(|&k| gone(k)).count();
        mark.before -= before as u32;
    }
    changed
}

/// A request that comes and goes where nobody expects it.
fn odd_request(size: u64) -> [Event; 3] {
    [Action::Alloc, Action::FreeRequested, Action::FreeCompleted].map(|action| Event {
        address: 1 << 60,
        size,
        time_us: 0,
        stack: StackId::NONE,
        stream: StreamId(0),
        pool: PoolId::DEFAULT,
        action,
    })
}

/// Holds a changed run against the run as it was: in the iteration of the change, which ends at the
/// first of the two moments, hits may differ by so many, afterwards not at all; and next to nothing more
/// is held.
fn assert_found_again(was: ([u64; 2], u64), is: ([u64; 2], u64), most: u64, what: &str) {
    let ((was, held), (is, held_now)) = (was, is);
    let in_it = was[0].abs_diff(is[0]);
    assert!(in_it <= most, "{what}: {in_it} hits differ in the iteration");
    let (after_was, after_is) = (was[1] - was[0], is[1] - is[0]);
    assert_eq!(after_is, after_was, "{what}: hits differ after the iteration");
    assert!(held_now <= held + held / 200, "{what}: {held_now} bytes are held, {held} before");
}

#[test]
fn one_request_too_many_or_too_few_changes_its_iteration_alone_and_takes_no_memory() {
    for name in ["megatron_gpt2-R_r3", "fsdp2_R_r0"] {
        let trace = recording(name);
        let lives = Lifetimes::of(&trace);
        let (plan, iterations) = plan_of(&trace);
        let (first, last) = iterations.steady.expect("a steady run");
        let step = &iterations.list[first];
        let count = step.requests.len() as u64;
        let ends = [step.ticks.end, iterations.list[last].ticks.end];
        let was = hits(&trace, &plan, ends);
        // Places all over the iteration, sizes that are common in it and sizes that are not.
        for k in 0..5 {
            let request = step.requests.start + step.requests.len() as u32 * k / 5 + 7 * k;
            let own = lives.requests[request as usize];
            for size in [333, own.size, 64 * MIB + 1] {
                let changed = with_events(&trace, own.birth.index(), &odd_request(size));
                let is = hits(&changed, &plan, ends.map(|end| end + 3));
                let what = format!("{name}: {size} bytes too many");
                assert_found_again(was, is, count / 100, &what);
            }
            let changed = without_request(&trace, request);
            let gone = |end: u32| {
                let owners = &lives.request_of[..end as usize];
                owners.iter().filter(|&&owner| owner == request).count() as u32
            };
            let is = hits(&changed, &plan, ends.map(|end| end - gone(end)));
            // The two requests that come before it is clear what is left out take places of others, which take
            // others' again: the plan leaves none over, and no more is held.
            let what = format!("{name}: without request {request}");
            assert_found_again(was, is, count / 5, &what);
        }
    }
}
