//! What must hold of every file, whatever is in it. The fuzz targets, `examples/fuzz_readers.rs` and the
//! test in `main.rs` call the same functions.
#![allow(dead_code, reason = "each fuzz target calls one of them")]

#[path = "../../../girih-trace/tests/common/check.rs"]
#[allow(unreachable_pub, reason = "the tests of another crate share it")]
mod readers;

use std::sync::Arc;

use girih_plan::{Budget, Plan, check, csv, file, profile, solve, verify, waits};
use girih_runtime::simulate::{Allocator, Setup, SimulateError, simulate, waste_at_peak};
use girih_trace::bounds::check_held;
use girih_trace::compress::Limits;
use girih_trace::{
    Action, Event, Iterations, Lifetimes, Phases, PoolId, StackId, Statistics, StreamId, Trace,
    marks, open,
};

/// A snapshot or a trace file: it is read or refused. One that the door lets in is understood, planned
/// and replayed under every allocator.
pub(crate) fn recording(bytes: &[u8]) {
    readers::snapshot(bytes);
    readers::trace_file(bytes);
    let limits = Limits { max_expansion: 100, floor_bytes: 1 << 20 };
    let Ok(recording) = open::detect_and_read(bytes, limits) else { return };
    recording.traces.iter().for_each(understood);
}

fn understood(trace: &Trace) {
    let lives = Lifetimes::of(trace);
    if check_held(&lives).is_err() {
        return;
    }
    let iterations = Iterations::of(trace, &lives);
    let _ = iterations.notes(trace);
    let phases = Phases::of(trace, &lives, &iterations);
    let _ = Statistics::of(trace, &lives, &iterations, &phases);
    let plan =
        profile::plan(trace, &lives, &iterations, |problem| solve(problem, Budget::attempts(2)));
    let plan = plan.ok().filter(|plan| {
        // Held at once is bounded; with what lies between blocks a plan may still be too long for a file.
        let fits = plan.arena_bytes.saturating_add(plan.persistent_bytes) <= 1 << 42;
        assert!(!fits || verify(plan).is_ok(), "{:?}", verify(plan));
        fits
    });
    let Some(plan) = plan else { return };
    let plan = Arc::new(plan);
    // One allocator on one device: each has its time.
    let peak = lives.peak(|size| size).0;
    let choice = trace.events.iter().fold(peak, |sum, event| sum.rotate_left(7) ^ event.size) >> 3;
    let allocator = Allocator::ALL[(choice % Allocator::ALL.len() as u64) as usize];
    let capacity = (choice >> 8 & 1 == 0).then(|| peak.max(1 << 21));
    let setup = Setup { capacity, plan: Some(plan), ..Setup::default() };
    match simulate(trace, &lives, allocator, &setup) {
        Ok(simulation) => {
            let waste = waste_at_peak(trace, &lives, &simulation, &setup);
            assert!(waste.is_ok(), "{waste:?}");
        }
        // It says so, and that is all.
        Err(SimulateError::Overworked { .. } | SimulateError::Bounds(_)) => {}
        Err(error) => panic!("{}: {error}", allocator.name()),
    }
}

/// A plan file: what is read is right, can be written, and can be followed by any run.
pub(crate) fn plan(bytes: &[u8]) {
    let Ok(plan) = file::read(bytes) else { return };
    followed(&plan);
}

/// A plan from anywhere, right or wrong: one that is verified can be followed by any run.
pub(crate) fn followed(plan: &Plan) {
    if verify(plan).is_err() {
        return;
    }
    let mut written = Vec::new();
    file::write(plan, &mut written).expect("what is verified can be written");
    let again = file::read(&written[..]).expect("what was written can be read");
    // A mark of an unknown kind has no name of its own in the file.
    assert_eq!(again.fingerprint(), plan.fingerprint());
    let _ = (waits(plan), plan.gap(), plan.carried_bytes(), plan.opening_peak());
    let trace = small_trace(plan);
    let lives = Lifetimes::of(&trace);
    let setup = Setup { plan: Some(Arc::new(plan.clone())), ..Setup::default() };
    match simulate(&trace, &lives, Allocator::Planned, &setup) {
        Ok(_) | Err(SimulateError::Overworked { .. } | SimulateError::Bounds(_)) => {}
        Err(error) => panic!("{error}"),
    }
}

/// A run that asks for what the steady iteration of a plan has first, and lets go of it.
fn small_trace(plan: &Plan) -> Trace {
    let mut trace = Trace { streams: vec![0], pools: vec![(0, 0)], ..Trace::default() };
    let entries = plan.sequences.iter().flat_map(|sequence| &sequence.entries);
    for (index, entry) in entries.take(16).enumerate() {
        let event = |action| Event {
            address: (index as u64 + 1) << 50,
            size: entry.size_max.min(1 << 38),
            time_us: index as i64,
            stack: StackId::NONE,
            stream: StreamId(0),
            pool: PoolId::DEFAULT,
            action,
        };
        trace.events.push(event(Action::Alloc));
        if index % 3 == 0 {
            trace.events.extend([event(Action::FreeRequested), event(Action::FreeCompleted)]);
        }
    }
    trace
}

/// A marks file: it is refused, or its marks stand in a trace.
pub(crate) fn marks(bytes: &[u8]) {
    let Ok(read) = marks::read(bytes) else { return };
    let mut trace = girih_trace::generate::training(&Default::default(), 3);
    trace.origin.truncated = true;
    let _ = (read.is_of_another_time(&trace), read.doubts(&trace));
    read.apply(&mut trace);
    assert!(trace.marks.is_sorted_by_key(|mark| mark.before));
    let lives = Lifetimes::of(&trace);
    if check_held(&lives).is_ok() {
        let iterations = Iterations::of(&trace, &lives);
        let _ = (iterations.notes(&trace), Phases::of(&trace, &lives, &iterations));
    }
}

/// A planning problem: it is refused, or it is solved, and the checker passes the solution.
pub(crate) fn csv(bytes: &[u8]) {
    let Ok(table) = csv::read(bytes) else { return };
    let _ = table.solution();
    if let Ok(outcome) = solve(&table.problem, Budget::attempts(3).with_nodes(500)) {
        let checked = check::check(&table.problem, &outcome.solution);
        assert!(checked.is_ok(), "{checked:?}");
        table.write(Vec::new(), Some(&outcome.solution)).expect("memory takes it all");
    }
}
