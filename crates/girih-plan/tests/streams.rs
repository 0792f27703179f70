//! Distance between streams on a recorded run: FSDP2 over two GPUs, which gathers the weights of
//! the next layer and scatters the gradients of the last one beside the computation.

use std::fs::{self, File};

use girih_plan::{Budget, Entry, Place, Solution, granted, profile, solve, verify};
use girih_trace::compress::Limits;
use girih_trace::{Iterations, Lifetimes, Trace, marks, open};

fn recording() -> (Trace, Lifetimes, Iterations) {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../corpus");
    let snapshot = File::open(format!("{corpus}/fsdp2_R_r0.pickle.gz")).expect("readable");
    let recording = open::detect_and_read(snapshot, Limits::default()).expect("a snapshot");
    let mut traces = recording.traces;
    traces.sort_by_key(|trace| trace.events.len());
    let mut trace = traces.pop().expect("a trace");
    let beside = fs::read(format!("{corpus}/fsdp2_R_r0.marks.json.gz")).expect("readable");
    marks::apply(&mut trace, &beside).expect("marks");
    let lives = Lifetimes::of(&trace);
    let iterations = Iterations::of(&trace, &lives);
    (trace, lives, iterations)
}

/// For each entry with an offset, the fewest requests that lie between its block and one of another
/// stream in the same bytes, before or after; those that have none are left out.
fn distances(entries: &[Entry], offsets: &[u64]) -> Vec<u32> {
    let count = entries.len() as u32;
    let placed: Vec<_> =
        (0u32..).zip(entries).filter(|(_, entry)| entry.until > 0).zip(offsets).collect();
    let distance = |&((index, entry), &at): &((u32, &Entry), &u64)| {
        let others = placed.iter().filter(|((_, other), other_at)| {
            let share = at < **other_at + granted(other.size_max)
                && **other_at < at + granted(entry.size_max);
            other.stream != entry.stream && share
        });
        let gaps = others.map(|&((other_index, other), _)| {
            let after = (other_index + 2 * count - entry.until) % count;
            let before = (index + 2 * count - other.until) % count;
            after.min(before)
        });
        gaps.min()
    };
    placed.iter().filter_map(distance).collect()
}

#[test]
fn streams_are_kept_apart_without_a_byte_more() {
    let (trace, lives, iterations) = recording();
    let mut solved = Solution::default();
    let plan = profile::plan(&trace, &lives, &iterations, |problem| {
        let outcome = solve(problem, Budget::interactive(problem.buffers.len()))?;
        solved = outcome.solution.clone();
        Ok(outcome)
    })
    .unwrap();
    verify(&plan).unwrap();
    assert!(plan.proven, "a gap of {}", plan.gap());
    assert_eq!(plan.arena_bytes, solved.height);

    let entries = &plan.steady().expect("a steady iteration").entries;
    let offsets = entries.iter().filter_map(|entry| match entry.place {
        Place::Arena(offset) => Some(offset),
        _ => None,
    });
    let offsets: Vec<u64> = offsets.collect();
    // A layer makes 53 requests in the forward pass and 124 in the backward pass.
    let near = |offsets: &[u64]| {
        distances(entries, offsets).into_iter().filter(|distance| *distance < 53).count()
    };
    let (before, after) = (near(&solved.offsets), near(&offsets));
    assert!(before > 300, "{before}");
    assert!(after < 10, "{after}");
}
