//! Public planning problems: valid plans, and as good as planners.md promises.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use girih_plan::check::check;
use girih_plan::csv::read;
use girih_plan::{Budget, Outcome, solve};

/// The files whose names begin with `prefix`, by name; none if the data is not there.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn files(prefix: &str) -> Vec<PathBuf> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/dsa"));
    let Ok(entries) = folder.read_dir() else {
        eprintln!("skipped: {} is not there", folder.display());
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.expect("a readable folder").path());
    let begins = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(prefix) && name.ends_with(".csv.gz")
    };
    let mut paths: Vec<_> = paths.filter(begins).collect();
    paths.sort();
    paths
}

fn plan(path: &Path) -> Outcome {
    let file = File::open(path).expect("readable");
    let table = read(BufReader::new(GzDecoder::new(file))).expect("a table");
    let budget = Budget::interactive(table.problem.buffers.len());
    let outcome = solve(&table.problem, budget).expect("valid");
    check(&table.problem, &outcome.solution).expect("right");
    outcome
}

#[test]
fn the_graphs_of_mindspore_are_planned_at_the_bound() {
    for path in files("somas_") {
        let outcome = plan(&path);
        assert!(outcome.is_proven(), "{}: gap {}", path.display(), outcome.gap());
    }
}

#[test]
fn the_contest_problem_is_planned_within_four_tenths_of_a_percent() {
    for path in files("iopddl_") {
        let gap = plan(&path).gap();
        assert!(gap < 0.004, "{}: gap {gap}", path.display());
    }
}

#[test]
fn the_problems_of_minimalloc_are_planned_rightly_if_not_yet_tightly() {
    for path in files("minimalloc_") {
        let gap = plan(&path).gap();
        assert!(gap < 0.20, "{}: gap {gap}", path.display());
    }
}
