//! Plans of several kinds of iterations, judged on a run in which the kinds come in another order.

use std::sync::Arc;

use girih_plan::{Budget, Plan, Role, profile, solve, verify};
use girih_runtime::simulate::{Allocator, Setup, Simulation, launch, simulate};
use girih_trace::generate::{Buckets, buckets};
use girih_trace::{Iterations, Lifetimes, MarkKind, Tick, Trace};

/// Runs in buckets of several shapes: deeper, lighter and heavier models. Of seven kinds of 20 layers whose gradients
/// are as large as their activations only four bytes in five have their places: what does not fit below the ring's
/// height is in the way of the rest.
const SHAPES: [Buckets; 3] = [
    Buckets { kinds: 4, steps: 40, layers: 12, weights: 8 << 20, activations: 56 << 20 },
    Buckets { kinds: 2, steps: 24, layers: 6, weights: 3 << 20, activations: 90 << 20 },
    Buckets { kinds: 3, steps: 30, layers: 4, weights: 64 << 20, activations: 40 << 20 },
];

fn plan_of(trace: &Trace) -> Plan {
    let lives = Lifetimes::of(trace);
    let iterations = Iterations::of(trace, &lives);
    let solved = |problem: &_| solve(problem, Budget::attempts(200));
    let plan = profile::plan(trace, &lives, &iterations, solved).expect("a plan");
    verify(&plan).expect("a right plan");
    plan
}

/// Where the steps of a trace begin.
fn starts(trace: &Trace) -> Vec<Tick> {
    trace.marks.iter().filter(|it| it.kind == MarkKind::Step).map(|it| Tick(it.before)).collect()
}

fn run(trace: &Trace, allocator: Allocator, setup: &Setup) -> Simulation {
    let simulation =
        simulate(trace, &Lifetimes::of(trace), allocator, setup).expect("a simulation");
    assert_eq!(simulation.replayed.failed, 0);
    simulation
}

#[test]
fn a_plan_has_each_kind_once_for_each_round_in_the_same_arena() {
    for shape in &SHAPES {
        let plan = plan_of(&buckets(shape, 1));
        let is_variant = |role: &Role| matches!(role, Role::Variant(_));
        let variants = plan.sequences.iter().filter(|it| is_variant(&it.role)).count() as u32;
        assert_eq!(variants, (shape.kinds - 1) * plan.rounds, "{shape:?}");
        assert!(plan.is_reliable(), "{shape:?}: {} in use {}", plan.arena_bytes, plan.in_use);
    }
}

#[test]
fn a_plan_of_one_order_serves_another() {
    for shape in &SHAPES {
        let plan = Some(Arc::new(plan_of(&buckets(shape, 1))));
        for seed in 2..6 {
            let other = buckets(shape, seed);
            let setup =
                Setup { plan: plan.clone(), iterations: starts(&other).into(), ..Setup::default() };
            let planned = run(&other, Allocator::Planned, &setup);
            let stitch = run(&other, Allocator::Stitch, &setup);
            let following = planned.following.expect("it follows");
            let all = following.hit_bytes + following.miss_bytes;
            // A step's first requests tell its kind, and have no place yet.
            assert!(following.hit_bytes * 100 >= all * 97, "{shape:?} {seed}: {following:?}");
            let [held, free] = [&planned, &stitch].map(|it| it.stats.reserved_bytes.all().peak);
            assert!(held <= free, "{shape:?} {seed}: {held} held, {free} without a plan");
            let late = &planned.iterations[4..];
            let cost: f64 = late.iter().map(|calls| calls.sum().microseconds).sum();
            assert!(cost < 1_000.0 * late.len() as f64, "{shape:?} {seed}: {cost} us of calls");
        }
    }
}

#[test]
fn a_second_launch_begins_with_all_kinds() {
    for shape in &SHAPES {
        // Long enough to see all kinds, and that their plan fits.
        let trace = buckets(&Buckets { steps: 4 * shape.steps, ..*shape }, 1);
        let lives = Lifetimes::of(&trace);
        let iterations = Iterations::of(&trace, &lives);
        let kept = launch::first(&trace, &lives, &iterations, &Setup::default());
        let kept = kept.expect("a first launch").expect("a plan that fits");
        let kinds = kept.sequences.iter().filter(|it| it.role == Role::Variant(0)).count() as u32;
        assert!(kinds > 0, "{shape:?}");
        let setup = Setup { kept: Some(kept), ..Setup::default() };
        let other = buckets(shape, 9);
        let [again, stitch] =
            [Allocator::Again, Allocator::Stitch].map(|of| run(&other, of, &setup));
        let held = [&again, &stitch].map(|it| it.stats.reserved_bytes.all().peak);
        assert!(held[0] <= held[1], "{shape:?}: {held:?}");
    }
}
