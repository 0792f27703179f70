//! What is read of recordings, one line for each, and of generated runs in one line: for ablations of the constants by
//! which recordings are read. Two builds that print the same read the same.
//!
//! ```sh
//! cargo run --release -p girih-tokens --example recordings -- corpus/*.girih
//! ```

#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};

use girih_swap::Budgets;
use girih_tokens::Method;
use girih_tokens::problem::Problem;
use girih_tokens::recording::{Recorded, RecordingError, read};
use girih_trace::compress::Limits;
use girih_trace::generate::{Bytes, Chance, Training, recording, training};
use girih_trace::{Iterations, Lifetimes, Trace, open};

/// Strings of bytes that generated runs are made of.
const GENERATED: u64 = 2_000;

fn of(trace: &Trace) -> Result<Recorded, RecordingError> {
    let lives = Lifetimes::of(trace);
    read(trace, &lives, &Iterations::of(trace, &lives), None)
}

/// The step that is decided with half of what the layers keep on the GPU: its milliseconds, or that it does not fit.
fn step(problem: &Problem, method: Method) -> String {
    let gpu = problem.static_bytes + problem.skeletal_bytes() / 2;
    match method.answer(problem, &Budgets { gpu, host: None }) {
        Ok(answer) if answer.fits => format!("{:.2}", answer.outcome.step_us / 1e3),
        Ok(_) => "no".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn line(read: &Result<Recorded, RecordingError>) -> String {
    let problem = match read {
        Ok(recorded) => &recorded.problem,
        Err(error) => return format!("refused: {error}"),
    };
    let kinds: usize = problem.layers.iter().map(|layer| layer.kinds.len()).sum();
    let again: f64 = problem
        .layers
        .iter()
        .flat_map(|layer| &layer.kinds)
        .filter_map(|kind| kind.remake_us)
        .sum();
    format!(
        "{} layers, {kinds} kinds, {:.1} MiB kept, {:.2} ms again, step {} ms, recomputed {} ms",
        problem.layers.len(),
        problem.skeletal_bytes() as f64 / f64::from(1 << 20),
        again / 1e3,
        step(problem, Method::Girih),
        step(problem, Method::Recompute),
    )
}

/// As the fuzz target's: any program, and a training run.
fn generated(seed: u64) -> Vec<Trace> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let bytes: Vec<u8> = (0..256)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect();
    let mut chance = Bytes::new(&bytes);
    let params = Training {
        layers: 1 + chance.below(12) as u32,
        stages: 1 + chance.below(2) as u32,
        stage: 0,
        microbatches: 1 + chance.below(3) as u32,
        recompute: chance.below(2) == 1,
        jitter: chance.below(101),
        operators: chance.below(2) == 1,
        ..Training::default()
    };
    let run = training(&params, chance.next_u64());
    let mut traces = recording(&mut chance, 300).traces;
    traces.push(run);
    traces
}

fn main() -> Result<(), Box<dyn Error>> {
    for path in std::env::args().skip(1) {
        let recording = open::detect_and_read(File::open(&path)?, Limits::default())?;
        let trace = recording.traces.into_iter().max_by_key(|trace| trace.events.len());
        let said = trace.map_or_else(|| "empty".to_owned(), |trace| line(&of(&trace)));
        let name = path.rsplit('/').next().unwrap_or(&path);
        println!("{name}: {said}");
    }
    let mut digest = DefaultHasher::new();
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for trace in (0..GENERATED).flat_map(generated) {
        let said = line(&of(&trace));
        *counts.entry(if said.starts_with("refused") { "refused" } else { "read" }).or_default() +=
            1;
        if !said.starts_with("refused") {
            println!("generated {}: {said}", counts["read"]);
        }
        said.hash(&mut digest);
    }
    println!("generated, all: {counts:?}, {:016x}", digest.finish());
    Ok(())
}
