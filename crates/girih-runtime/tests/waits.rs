//! The waits that a plan lists, against those that are made when it is followed.

use std::sync::Arc;

use crate::common::repeated;

use girih_plan::{Budget, Entry, Place, Plan, Sequence, profile, solve, waits};
use girih_runtime::simulate::{Allocator, Setup, simulate};
use girih_trace::{Iterations, Lifetimes, StreamId, Tick, Trace};

/// The recording of FSDP2 over two GPUs, which has three streams.
fn recording() -> Trace {
    crate::corpus::recording("fsdp2_R_r0")
}

/// The waits that are put on the device while a run is followed.
fn waits_made(trace: &Trace, plan: &Arc<Plan>) -> u64 {
    let setup = Setup { plan: Some(plan.clone()), ..Setup::default() };
    let lives = Lifetimes::of(trace);
    let simulation = simulate(trace, &lives, Allocator::Planned, &setup).expect("followed");
    simulation.following.expect("a plan was followed").waits
}

#[test]
fn the_waits_of_a_steady_iteration_are_those_that_its_plan_lists() {
    let trace = recording();
    let lives = Lifetimes::of(&trace);
    let iterations = Iterations::of(&trace, &lives);
    let plan = profile::plan(&trace, &lives, &iterations, |problem| {
        solve(problem, Budget::interactive(problem.buffers.len()))
    });
    let plan = Arc::new(plan.expect("valid"));
    let made = |times| waits_made(&repeated(&trace, times), &plan);
    let of_an_iteration = made(4) - made(3);
    let listed = waits(&with_frees(&plan, &lives, &iterations)).len() as u64;
    assert!(listed > 0);
    assert_eq!(of_an_iteration, listed);

    // A plan does not know in which order blocks are freed between two requests, which makes a wait
    // more or less: 47 instead of 48 here.
    let by_birth = waits(&plan).len() as u64;
    assert!(by_birth.abs_diff(listed) * 10 <= listed, "{by_birth} of {listed}");
}

/// The plan with an entry of no place for each free of its model iteration, so that it knows in
/// which order blocks are freed between two requests.
fn with_frees(plan: &Plan, lives: &Lifetimes, iterations: &Iterations) -> Plan {
    let (_, last) = iterations.steady.expect("steady iterations");
    let model = &iterations.list[last - 1];
    let steady = plan.steady().expect("a steady sequence");
    assert_eq!(model.requests.len(), steady.entries.len(), "an entry for each request");
    let (start, ticks) = (model.ticks.start, model.ticks.len() as u32);
    let nothing =
        Entry { size_min: 0, size_max: 0, stream: StreamId(0), place: Place::Outside, until: 0 };
    let mut entries: Vec<Entry> = (1..=ticks).map(|until| Entry { until, ..nothing }).collect();
    for (request, entry) in model.requests.clone().zip(&steady.entries) {
        let life = &lives.requests[request as usize];
        let until = if life.death == Tick::NEVER { ticks } else { life.death.0 - start };
        entries[(life.birth.0 - start) as usize] = Entry { until, ..*entry };
    }
    let steady = Sequence { entries, boundaries: Vec::new(), ..*steady };
    Plan { sequences: vec![steady], ..plan.clone() }
}
