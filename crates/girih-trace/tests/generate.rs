//! The generators: what they make is valid, and the same for the same seed.

use std::collections::BTreeMap;

use girih_trace::generate::{Change, ChangeKind, Rng, Training, recording, training};
use girih_trace::{Action, MarkKind, Trace};

/// Every live block by its address; panics if two share a byte or what is not live is freed.
fn replay(trace: &Trace) -> BTreeMap<u64, u64> {
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    for event in &trace.events {
        let (start, end) = (event.address, event.address + event.size);
        match event.action {
            Action::Alloc => {
                let before = live.range(..end).next_back();
                assert!(before.is_none_or(|(_, &other)| other <= start), "{event:?}");
                live.insert(start, end);
            }
            Action::FreeRequested => assert_eq!(live.get(&start), Some(&end), "{event:?}"),
            Action::FreeCompleted => assert_eq!(live.remove(&start), Some(end), "{event:?}"),
            _ => {}
        }
    }
    live
}

/// The sizes that each step asked for, in order.
fn steps(trace: &Trace) -> Vec<Vec<u64>> {
    let at = |kind| trace.marks.iter().filter(move |mark| mark.kind == kind);
    at(MarkKind::Step)
        .zip(at(MarkKind::StepEnd))
        .map(|(start, end)| {
            let events = &trace.events[start.before as usize..end.before as usize];
            let allocs = events.iter().filter(|event| event.action == Action::Alloc);
            allocs.map(|event| event.size).collect()
        })
        .collect()
}

#[test]
fn random_recordings_are_valid_whatever_the_seed() {
    for seed in 0..300 {
        for trace in recording(&mut Rng::new(seed), 500).traces {
            replay(&trace);
            assert!(trace.marks.is_sorted_by_key(|mark| mark.before));
            assert!(trace.events.len() <= 500);
        }
    }
}

#[test]
fn one_seed_makes_one_trace() {
    let params = Training { jitter: 100, ..Training::default() };
    assert_eq!(training(&params, 7), training(&params, 7));
    assert_ne!(training(&params, 7).events, training(&params, 8).events);
    assert_eq!(recording(&mut Rng::new(7), 500), recording(&mut Rng::new(7), 500));
}

#[test]
fn a_step_leaves_no_more_than_the_one_before() {
    for recompute in [false, true] {
        for stage in 0..2 {
            let params = Training { recompute, stage, evaluate_every: 2, ..Training::default() };
            let trace = training(&params, 1);
            let model = params.layers as usize * 4;
            // Weights, main gradients, three states of the optimizer, two workspaces.
            assert_eq!(replay(&trace).len(), 5 * model + 2);
        }
    }
}

#[test]
fn steps_after_the_first_ask_for_the_same() {
    let steps = steps(&training(&Training::default(), 1));
    assert_eq!(steps.len(), 4);
    assert!(steps[0].len() > steps[1].len());
    assert_eq!(steps[1], steps[2]);
    assert_eq!(steps[2], steps[3]);
}

#[test]
fn a_change_is_one_request_in_one_step() {
    let changed = |kind| {
        let change = Some(Change { step: 2, request: 10, kind });
        steps(&training(&Training { change, ..Training::default() }, 1))
    };
    let plain = steps(&training(&Training::default(), 1));
    let extra = changed(ChangeKind::Extra(12_345));
    assert_eq!((&extra[1], &extra[3]), (&plain[1], &plain[3]));
    assert_eq!(extra[2].len(), plain[2].len() + 1);
    assert_eq!(extra[2][10], 12_345);
    let missing = changed(ChangeKind::Missing);
    assert_eq!(missing[2].len(), plain[2].len() - 1);
    assert_eq!(missing[2][10..], plain[2][11..]);
}

#[test]
fn recompute_lowers_the_peak_and_asks_for_more() {
    let peak = |trace: &Trace| {
        let (mut live, mut peak) = (0, 0);
        for event in &trace.events {
            match event.action {
                Action::Alloc => live += event.size,
                Action::FreeCompleted => live -= event.size,
                _ => {}
            }
            peak = peak.max(live);
        }
        peak
    };
    let plain = training(&Training::default(), 1);
    let recompute = training(&Training { recompute: true, ..Training::default() }, 1);
    assert!(peak(&recompute) < peak(&plain));
    assert!(recompute.events.len() > plain.events.len());
}
