//! Iterations, phases and statistics: found from marks, and found as well from the sequence alone.

use std::path::Path;

use girih_trace::compress::Limits;
use girih_trace::generate::{Training, training};
use girih_trace::{Iterations, Lifetimes, PhaseKind, Phases, Scope, Source, Statistics, Trace};
use girih_trace::{marks, open};

fn understand(trace: &Trace) -> (Lifetimes, Iterations, Phases) {
    let lives = Lifetimes::of(trace);
    let iterations = Iterations::of(trace, &lives);
    let phases = Phases::of(trace, &lives, &iterations);
    (lives, iterations, phases)
}

fn without_marks(trace: &Trace) -> Trace {
    Trace { marks: Vec::new(), ..trace.clone() }
}

fn lengths(iterations: &Iterations) -> Vec<usize> {
    iterations.list.iter().map(|iteration| iteration.requests.len()).collect()
}

/// Runs of different kinds, each of several steps.
fn runs() -> Vec<(&'static str, Training)> {
    let base = Training { steps: 6, ..Training::default() };
    vec![
        ("plain", base.clone()),
        ("recompute", Training { recompute: true, ..base.clone() }),
        ("eight microbatches", Training { microbatches: 8, ..base.clone() }),
        ("last of four stages", Training { stages: 4, stage: 3, microbatches: 8, ..base.clone() }),
        ("first of four stages", Training { stages: 4, stage: 0, microbatches: 8, ..base.clone() }),
        ("lengths vary", Training { jitter: 40, ..base.clone() }),
        ("evaluation", Training { evaluate_every: 2, ..base.clone() }),
        ("both", Training { jitter: 40, evaluate_every: 3, steps: 9, ..base }),
    ]
}

#[test]
fn marks_say_where_steps_begin_and_the_first_one_is_different() {
    for (name, params) in runs() {
        let trace = training(&params, 1);
        let (_, iterations, _) = understand(&trace);
        assert_eq!(iterations.source, Source::Marks, "{name}");
        assert_eq!(iterations.list.len(), params.steps as usize, "{name}");
        assert_eq!(iterations.steady, Some((1, params.steps as usize - 1)), "{name}");
    }
}

#[test]
fn the_sequence_alone_repeats_with_the_period_of_the_steps() {
    for (name, params) in runs() {
        let trace = training(&params, 2);
        let (_, marked, _) = understand(&trace);
        let (_, found, _) = understand(&without_marks(&trace));
        assert_eq!(found.source, Source::Sequence, "{name}");
        let (first, last) = found.steady.unwrap_or_else(|| panic!("{name}: nothing is steady"));
        assert!(last - first + 2 >= params.steps as usize - 1, "{name}: steady {first} to {last}");
        // A step is a ring and may be cut anywhere, but what goes round is as long.
        let steps = lengths(&marked);
        let plain = steps[1..].iter().min().expect("steps");
        let middle = lengths(&found)[first..=last].iter().filter(|&len| len == plain).count();
        assert!(middle >= 1, "{name}: {:?} found, {steps:?} marked", lengths(&found));
    }
}

#[test]
fn what_does_not_repeat_has_no_iterations() {
    let params = Training { steps: 1, microbatches: 1, ..Training::default() };
    let trace = without_marks(&training(&params, 3));
    let (_, iterations, _) = understand(&trace);
    assert_eq!(iterations.steady, None);
}

#[test]
fn an_empty_trace_is_understood() {
    let trace = Trace::default();
    let (lives, iterations, phases) = understand(&trace);
    assert_eq!((iterations.source, iterations.steady), (Source::None, None));
    let statistics = Statistics::of(&trace, &lives, &iterations, &phases);
    assert_eq!(statistics, Statistics::default());
}

#[test]
fn microbatches_are_counted_by_marks_and_by_repetition() {
    let params = Training { microbatches: 8, steps: 5, ..Training::default() };
    let trace = training(&params, 4);
    assert_eq!(understand(&trace).2.microbatches, 8);
    let found = understand(&without_marks(&trace)).2.microbatches;
    assert!((7..=8).contains(&found), "{found} found");
}

#[test]
fn phases_cover_the_trace_and_forward_comes_before_backward() {
    let trace = training(&Training { steps: 4, ..Training::default() }, 5);
    for trace in [without_marks(&trace), trace] {
        let (_, _, phases) = understand(&trace);
        let mut at = 0;
        for phase in &phases.list {
            assert_eq!(phase.ticks.start, at);
            at = phase.ticks.end;
        }
        assert_eq!(at as usize, trace.events.len());
        let first = |kind| phases.list.iter().position(|phase| phase.kind == kind);
        assert!(first(PhaseKind::Forward).is_some());
        assert!(first(PhaseKind::Forward) < first(PhaseKind::Backward));
    }
}

#[test]
fn scopes_and_streams_add_up_to_everything() {
    for (name, params) in runs() {
        let trace = training(&params, 6);
        let (lives, iterations, phases) = understand(&trace);
        let statistics = Statistics::of(&trace, &lives, &iterations, &phases);
        let requests: u64 = statistics.scopes.iter().map(|share| share.requests).sum();
        assert_eq!(requests, statistics.all.requests, "{name}");
        let bytes: u64 = statistics.streams.iter().map(|share| share.bytes).sum();
        assert_eq!(bytes, statistics.all.bytes, "{name}");
        assert_eq!(statistics.all.live_peak, lives.peak(|size| size).0, "{name}");
        // Weights and optimizer states stay; a forward's temporary does not leave its phase.
        let of = |scope| statistics.scopes[scope as usize].requests;
        assert!(of(Scope::Persistent) > 0 && of(Scope::Transient) > 0, "{name}");
    }
}

/// A recording of the corpus, with its marks.
fn recording(name: &str) -> Trace {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus");
    let file = std::fs::File::open(folder.join(format!("{name}.pickle.gz"))).expect("the corpus");
    let mut recording = open::detect_and_read(file, Limits::default()).expect("a snapshot");
    let mut trace = recording.traces.remove(0);
    let bytes = std::fs::read(folder.join(format!("{name}.marks.json.gz"))).expect("its marks");
    marks::apply(&mut trace, &bytes).expect("marks");
    trace
}

#[test]
fn real_runs_have_the_same_iterations_with_marks_and_without() {
    for (name, steady, requests) in
        [("megatron_gpt2-R_r3", (1, 2), 8885), ("fsdp2_R_r0", (1, 3), 3220)]
    {
        let trace = recording(name);
        let (_, marked, _) = understand(&trace);
        assert_eq!(marked.steady, Some(steady), "{name}");
        let (_, found, _) = understand(&without_marks(&trace));
        let (first, last) = found.steady.expect("a steady run");
        assert_eq!(last - first, steady.1 - steady.0, "{name}");
        for iterations in [&marked, &found] {
            let (first, last) = iterations.steady.expect("a steady run");
            assert!(lengths(iterations)[first..=last].iter().all(|&len| len == requests), "{name}");
        }
    }
}
