//! How long planning takes: the whole portfolio at its default budget, and each planner alone, on
//! one stage of a 1F1B pipeline of 16,000 and of 96,000 buffers and on the public problems.

#[path = "../tests/common/pipeline.rs"]
mod pipeline;

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use flate2::read::GzDecoder;
use girih_plan::bound::max_load;
use girih_plan::check::check;
use girih_plan::csv::read;
use girih_plan::portfolio::schedule;
use girih_plan::{Budget, Problem, solve};
use pipeline::Pipeline;

/// The problems by name. The public ones are left out where their files are not.
fn problems() -> Vec<(String, Problem)> {
    let small = Pipeline { microbatches: 70, layers: 11, ahead: 7, ring: true, jitter: 0 };
    let large = Pipeline { microbatches: 280, layers: 16, ahead: 15, ring: true, jitter: 0 };
    let uneven = 1 << 21;
    let mut problems = vec![
        ("1f1b_16k".to_owned(), small.problem()),
        ("1f1b_16k_uneven".to_owned(), Pipeline { jitter: uneven, ..small }.problem()),
        ("1f1b_96k".to_owned(), large.problem()),
        ("1f1b_96k_uneven".to_owned(), Pipeline { jitter: uneven, ..large }.problem()),
    ];
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/dsa"));
    for name in ["somas_resnet50", "somas_bert_base", "somas_pangu_2.6B", "iopddl_S_1"] {
        if let Ok(file) = File::open(folder.join(format!("{name}.csv.gz"))) {
            let table = read(BufReader::new(GzDecoder::new(file))).expect("a table");
            problems.push((name.to_owned(), table.problem));
        }
    }
    problems
}

fn benches(criterion: &mut Criterion) {
    let problems = problems();
    let mut group = criterion.benchmark_group("portfolio");
    group.sample_size(10);
    for (name, problem) in &problems {
        let budget = Budget::interactive(problem.buffers.len());
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| solve(problem, budget));
        });
    }
    group.finish();

    let (_, problem) = &problems[0];
    let mut group = criterion.benchmark_group("alone_1f1b_16k");
    group.sample_size(10);
    for planner in schedule().take(12) {
        group.bench_function(planner.to_string(), |b| b.iter(|| planner.plan(problem)));
    }
    group.bench_function("bound", |b| b.iter(|| max_load(problem)));
    let solution = solve(problem, Budget::attempts(1)).expect("valid").solution;
    group.bench_function("check", |b| b.iter(|| check(problem, &solution)));
    group.finish();
}

criterion_group!(planners, benches);
criterion_main!(planners);
