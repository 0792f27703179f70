//! Events a second of a whole replay: a recorded run where there is one, and a generated one.
//!
//! This is what `girih replay` reports: the policy, the simulated device, and the reading of the
//! trace. Making the plan is not part of it.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use girih_plan::{Budget, Plan, profile, solve};
use girih_runtime::simulate::{Allocator, Setup, simulate};
use girih_trace::compress::Limits;
use girih_trace::generate::{Training, training};
use girih_trace::{Iterations, Lifetimes, Trace, open};

/// Where recorded runs lie.
const RECORDINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces");

/// The largest recorded run, with its name; none if there is no folder of them.
fn recorded() -> Option<(String, Trace)> {
    let folder = fs::read_dir(RECORDINGS).ok()?;
    let paths = folder.filter_map(|entry| Some(entry.ok()?.path()));
    let snapshots = paths.filter(|path| path.to_string_lossy().ends_with(".pickle.gz"));
    let largest: PathBuf =
        snapshots.max_by_key(|path| fs::metadata(path).map_or(0, |metadata| metadata.len()))?;
    let file = File::open(&largest).expect("the recording opens");
    let recording = open::detect_and_read(file, Limits::default()).expect("it is a recording");
    let trace = recording.traces.into_iter().max_by_key(|trace| trace.events.len())?;
    let name = largest.file_name()?.to_string_lossy().into_owned();
    Some((name.trim_end_matches(".pickle.gz").to_owned(), trace))
}

fn plan(trace: &Trace, lives: &Lifetimes) -> Plan {
    let iterations = Iterations::of(trace, lives);
    profile::plan(trace, lives, &iterations, |problem| {
        let budget = Budget::interactive(problem.buffers.len());
        solve(problem, budget)
    })
    .expect("a problem made from a recording has a meaning")
}

fn replay(c: &mut Criterion) {
    let generated = ("generated".to_owned(), training(&Training::default(), 1));
    for (name, trace) in recorded().into_iter().chain([generated]) {
        let lives = Lifetimes::of(&trace);
        let setup = Setup { plan: Some(Arc::new(plan(&trace, &lives))), ..Setup::default() };
        let mut group = c.benchmark_group(format!("replay of {name}"));
        group.throughput(Throughput::Elements(trace.events.len() as u64));
        group.sample_size(10);
        for allocator in [Allocator::Native, Allocator::Expandable, Allocator::Planned] {
            group.bench_function(allocator.name(), |bencher| {
                bencher.iter(|| simulate(&trace, &lives, allocator, &setup).expect("it runs"));
            });
        }
    }
}

criterion_group!(benches, replay);
criterion_main!(benches);
