//! Rooms: experts' tensors, whose sizes are chance and whose total is not.

use girih_plan::{Budget, Place, Plan, file, granted, profile, solve, verify};
use girih_trace::generate::{Training, training};
use girih_trace::{Iterations, Lifetimes, Trace};

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

fn plan_of(trace: &Trace) -> Plan {
    let lives = Lifetimes::of(trace);
    let iterations = Iterations::of(trace, &lives);
    profile::plan(trace, &lives, &iterations, |problem| solve(problem, Budget::attempts(3)))
        .unwrap()
}

/// The most bytes alive at once in a steady iteration, without what stays for ever.
fn most_alive(trace: &Trace) -> u64 {
    let lives = Lifetimes::of(trace);
    let iterations = Iterations::of(trace, &lives);
    let steady = &iterations.list[2..iterations.list.len() - 1];
    let peak = |ticks: std::ops::Range<u32>| {
        let own = lives.requests.iter().filter(|request| request.death.0 < u32::MAX);
        let mut changes: Vec<(u32, i64)> = own
            .flat_map(|it| {
                let size = granted(it.size) as i64;
                [(it.birth.0, size), (it.death.0, -size)]
            })
            .filter(|(tick, _)| *tick < ticks.end)
            .collect();
        changes.sort_unstable();
        let alive = changes.iter().scan(0, |alive, (tick, change)| {
            *alive += change;
            Some((*tick, *alive))
        });
        alive.filter(|(tick, _)| ticks.contains(tick)).map(|(_, alive)| alive).max().unwrap_or(0)
    };
    steady.iter().map(|iteration| peak(iteration.ticks.clone())).max().unwrap_or(0) as u64
}

#[test]
fn experts_together_need_little_more_than_the_most_that_was_alive() {
    let trace = experts(1);
    let plan = plan_of(&trace);
    verify(&plan).unwrap();
    assert!(!plan.rooms.is_empty());
    let entries = &plan.steady().expect("steps that repeat").entries;
    let in_rooms = entries.iter().filter(|entry| matches!(entry.place, Place::Room(_))).count();
    // Four layers, two stages, four microbatches, two tensors for each of eight experts.
    assert_eq!(in_rooms, 4 * 4 * 2 * 8);
    let alive = most_alive(&trace);
    // A place for each would need about an eighth more.
    assert!(plan.arena_bytes < alive + alive / 32, "{} for {alive}", plan.arena_bytes);
}

#[test]
fn rooms_survive_the_plan_file() {
    let plan = plan_of(&experts(2));
    let mut bytes = Vec::new();
    file::write(&plan, &mut bytes).unwrap();
    assert_eq!(file::read(&bytes[..]).unwrap(), plan);
}

#[test]
fn a_run_without_experts_has_no_rooms() {
    let params = Training { jitter: 200, steps: 6, ..Training::default() };
    // All that differs in size differs together: a room would save nothing.
    let plan = plan_of(&training(&params, 1));
    verify(&plan).unwrap();
    assert!(plan.rooms.is_empty(), "{:?}", plan.rooms);
}

#[test]
fn rooms_that_a_file_claims_are_checked() {
    let plan = plan_of(&experts(1));
    let damage = |change: &dyn Fn(&mut Plan)| {
        let mut damaged = plan.clone();
        change(&mut damaged);
        verify(&damaged).unwrap_err().to_string()
    };
    let lost = damage(&|plan| plan.rooms.clear());
    assert!(lost.contains("there is no room"), "{lost}");
    let outside = damage(&|plan| plan.rooms[0].offset = plan.arena_bytes);
    assert!(outside.contains("is none in an arena"), "{outside}");
    let small = damage(&|plan| plan.rooms[0].bytes = 512);
    assert!(small.contains("leave a region of 512 bytes"), "{small}");
    let many = damage(&|plan| {
        plan.arena_bytes = 1 << 41;
        plan.rooms[0].bytes = 1 << 40;
    });
    assert!(many.contains("too many"), "{many}");
    let overlap = damage(&|plan| plan.rooms[0].offset = plan.rooms[1].offset);
    assert!(overlap.contains("sequence"), "{overlap}");
}
