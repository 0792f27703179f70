//! How the exact solver does on tight problems: how soon it is at a capacity that is known to be enough.
//!
//! `tight [FOLDER] [NODES] [SEEDS]` prints a row for each file `NAME.CAPACITY.csv.gz` of the folder and for each shape of
//! generated problems (`tests/common/jigsaw.rs`), and for each file once more in SEEDS (10) other orders, half of
//! them backwards in time, for a search that needs luck does not have it ten times: buffers, how far greedy planners stay above the capacity, the nodes and seconds until
//! a solution keeps to it, or how far above it the search remains after NODES nodes (a million). Of a shape with
//! several seeds the row has how many were solved, and the sum of the rest.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]
#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::fs::{self, File};
use std::io::BufReader;
use std::ops::ControlFlow;
use std::time::Instant;

use flate2::read::GzDecoder;
use girih_plan::check::check;
use girih_plan::csv::read;
use girih_plan::exact::{Search, improve};
use girih_plan::{Budget, Buffer, Problem, solve};
use girih_trace::generate::{Chance, Rng};

#[path = "../tests/common/jigsaw.rs"]
mod jigsaw;
use jigsaw::Jigsaw;

fn main() {
    let mut args = std::env::args().skip(1);
    let folder = args.next().unwrap_or_else(|| "../shared/dsa".to_owned());
    let nodes = args.next().map_or(1_000_000, |it| it.parse().expect("nodes: a number"));
    let seeds = args.next().map_or(10, |it| it.parse().expect("seeds: a number"));
    println!("{:<28} buffers  greedy  solved   nodes  seconds  worst s   above", "problem");
    for (name, capacity, problem) in files(&folder) {
        row(&name, &[(capacity, problem.clone())], nodes);
        let others: Vec<_> = (1..=seeds).map(|seed| (capacity, another(&problem, seed))).collect();
        row(&format!("{name}, shuffled"), &others, nodes);
    }
    for (name, shape) in shapes() {
        let capacity = shape.height * shape.alignment;
        let problems: Vec<_> = (0..seeds).map(|seed| (capacity, shape.problem(seed))).collect();
        row(name, &problems, nodes);
    }
}

fn shapes() -> Vec<(&'static str, Jigsaw)> {
    let base = Jigsaw {
        pieces: 200,
        ticks: 1024,
        height: 2048,
        pinwheels: 10,
        upright: 50,
        shrunk: 50,
        alignment: 512,
    };
    vec![
        ("guillotine, 150", Jigsaw { pieces: 150, pinwheels: 0, ..base }),
        ("pinwheels, 150", Jigsaw { pieces: 150, pinwheels: 30, ..base }),
        ("200", base),
        ("200, nothing shrunk", Jigsaw { shrunk: 0, ..base }),
        ("200, all shrunk", Jigsaw { shrunk: 100, ..base }),
        ("200, long lives", Jigsaw { upright: 35, ..base }),
        ("200, long, all shrunk", Jigsaw { upright: 35, shrunk: 100, ..base }),
        ("200, short lives", Jigsaw { upright: 65, ..base }),
        ("400", Jigsaw { pieces: 400, ..base }),
        ("400, all shrunk", Jigsaw { pieces: 400, shrunk: 100, ..base }),
    ]
}

fn files(folder: &str) -> Vec<(String, u64, Problem)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let parts = name.strip_suffix(".csv.gz").and_then(|it| it.split_once('.'));
        let Some((stem, Ok(capacity))) = parts.map(|(stem, it)| (stem, it.parse())) else {
            continue;
        };
        let file = BufReader::new(GzDecoder::new(File::open(&path).expect("readable")));
        files.push((stem.to_owned(), capacity, read(file).expect("a table").problem));
    }
    files
}

/// The same problem in another order, and backwards in time for every other seed.
fn another(problem: &Problem, seed: u64) -> Problem {
    let mut chance = Rng::new(seed);
    let mut buffers = problem.buffers.clone();
    for end in (1..buffers.len()).rev() {
        buffers.swap(end, chance.below(end as u64 + 1) as usize);
    }
    let end = buffers.iter().map(|buffer| buffer.upper).max().unwrap_or(0);
    if seed % 2 == 1 {
        for Buffer { lower, upper, .. } in &mut buffers {
            (*lower, *upper) = (end - *upper, end - *lower);
        }
    }
    Problem { buffers, ..problem.clone() }
}

/// Solves problems of a kind and prints their row.
fn row(name: &str, problems: &[(u64, Problem)], limit: u64) {
    if problems.is_empty() {
        return;
    }
    let (mut greedy, mut solved, mut nodes, mut seconds, mut worst, mut above) =
        (0.0, 0, 0, 0.0, 0.0_f64, 0.0);
    let buffers: usize = problems.iter().map(|it| it.1.buffers.len()).sum();
    for (capacity, problem) in problems {
        let budget = Budget { nodes: 0, ..Budget::interactive(problem.buffers.len()) };
        let first = solve(problem, budget).expect("valid").solution;
        let part = |height: u64| height as f64 / *capacity as f64 - 1.0;
        greedy += part(first.height).max(0.0);
        let start = Instant::now();
        let search = Search { nodes: limit, enough: *capacity };
        let outcome =
            improve(problem, first, search, |_| ControlFlow::Continue(())).expect("valid");
        let took = start.elapsed().as_secs_f64();
        check(problem, &outcome.solution).expect("right");
        nodes += outcome.nodes;
        seconds += took;
        worst = worst.max(took);
        let is_solved = outcome.solution.height <= *capacity;
        solved += u32::from(is_solved);
        above += if is_solved { 0.0 } else { part(outcome.solution.height) };
    }
    let count = problems.len() as f64;
    println!(
        "{name:<28} {:>7} {:>6.2}% {solved:>3}/{:<3} {:>7.0} {:>8.3} {worst:>8.3} {:>6.2}%",
        buffers / problems.len(),
        greedy / count * 100.0,
        problems.len(),
        nodes as f64 / count,
        seconds / count,
        above / count * 100.0
    );
}
