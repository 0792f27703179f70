//! A plan is followed by nobody if the run that it was made of holds more with it than without.

use std::sync::Arc;

use girih_plan::{Budget, Place, Plan, Sequence, profile, solve, verify};
use girih_runtime::simulate::trial::tried;
use girih_runtime::simulate::{Allocator, Setup, Simulation, simulate};
use girih_trace::generate::recording as small;
use girih_trace::generate::{Buckets, Rng, Training, buckets, training};
use girih_trace::{Iterations, Lifetimes, Trace};

/// Recordings of the corpus: with experts, with lengths that vary, with segments that come and go.
const RECORDINGS: [&str; 3] = ["moe_R", "gpt2m_R_vary", "mlp_stacks"];
const SHAPE: Buckets =
    Buckets { kinds: 3, steps: 24, layers: 6, weights: 4 << 20, activations: 48 << 20 };

fn plan_of(trace: &Trace) -> Plan {
    let lives = Lifetimes::of(trace);
    let iterations = Iterations::of(trace, &lives);
    let solved = |problem: &_| solve(problem, Budget::attempts(50));
    profile::plan(trace, &lives, &iterations, solved).expect("a plan")
}

fn tried_in(plan: Plan, trace: &Trace) -> Plan {
    tried(plan, trace, &Lifetimes::of(trace), &Setup::default())
}

fn run(trace: &Trace, allocator: Allocator, plan: &Arc<Plan>) -> Simulation {
    let (plan, kept) = (Some(Arc::clone(plan)), Some(Arc::clone(plan)));
    let setup = Setup { plan, kept, ..Setup::default() };
    simulate(trace, &Lifetimes::of(trace), allocator, &setup).expect("a simulation")
}

fn reserved(simulation: &Simulation) -> u64 {
    simulation.stats.reserved_bytes.all().peak
}

/// The same plan with each place so many times as far from the beginning: most of every page lies idle.
fn spread(plan: &Plan, times: u64) -> Plan {
    let mut plan = plan.clone();
    for entry in plan.sequences.iter_mut().flat_map(|sequence| &mut sequence.entries) {
        entry.place = match entry.place {
            Place::Arena(offset) => Place::Arena(times * offset),
            other => other,
        };
    }
    plan.rooms.iter_mut().for_each(|room| room.offset *= times);
    let end = |sequence: &Sequence| {
        plan.tenancies(sequence).iter().map(|it| it.offset + it.size).max().unwrap_or(0)
    };
    let arena_bytes = plan.sequences.iter().map(end).max().unwrap_or(0);
    let peak = plan.steady().map_or(0, end);
    Plan { arena_bytes, peak, in_use: times * plan.in_use, ..plan }
}

#[test]
fn a_plan_that_was_tried_holds_no_more_than_none_in_its_own_run() {
    let mut traces = vec![buckets(&SHAPE, 1), training(&Training::default(), 1)];
    traces.extend((0..40).map(|seed| small(&mut Rng::new(seed), 400).traces.remove(0)));
    traces.extend(RECORDINGS.map(crate::corpus::recording));
    let mut helpful = 0;
    for (number, trace) in traces.iter().enumerate() {
        let plan = Arc::new(tried_in(plan_of(trace), trace));
        helpful += usize::from(plan.trial.is_some_and(|trial| trial.with < trial.without));
        let held =
            [Allocator::Planned, Allocator::Stitch].map(|of| reserved(&run(trace, of, &plan)));
        assert!(held[0] <= held[1], "trace {number}: {held:?}, {:?}", plan.trial);
    }
    assert!(helpful >= 5, "{helpful} of {} plans hold less than none", traces.len());
}

#[test]
fn nobody_follows_a_plan_that_does_not_help() {
    let trace = buckets(&SHAPE, 1);
    let good = plan_of(&trace);
    let bad = spread(&good, 2);
    verify(&bad).expect("wasteful, but right");
    let bad = tried_in(bad, &trace);
    let trial = bad.trial.expect("it was tried");
    assert!(trial.with > trial.without && !bad.helps() && !bad.is_reliable(), "{trial:?}");
    let untried = Arc::new(Plan { trial: None, ..bad.clone() });
    assert_eq!(reserved(&run(&trace, Allocator::Planned, &untried)), trial.with);
    let bad = Arc::new(bad);
    let stitch = run(&trace, Allocator::Stitch, &bad);
    let planned = run(&trace, Allocator::Planned, &bad);
    assert_eq!((reserved(&planned), &planned.calls), (trial.without, &stitch.calls));
    assert_eq!(planned.following.expect("it says").hits, 0);
    let [first, again] = [Allocator::Auto, Allocator::Again].map(|of| run(&trace, of, &bad));
    assert_eq!(reserved(&first), reserved(&again));
    let good = tried_in(good, &trace);
    assert!(
        good.helps() && reserved(&run(&trace, Allocator::Planned, &Arc::new(good))) < trial.with
    );
}
