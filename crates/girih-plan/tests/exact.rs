//! The exact solver: never wrong, and optimal wherever optimality can be tried out.

use std::fs::File;
use std::io::BufReader;
use std::ops::ControlFlow;
use std::path::Path;

use crate::common::AnyProblem;
use crate::common::jigsaw::Jigsaw;
use arbitrary::Arbitrary;
use flate2::read::GzDecoder;
use girih_plan::bound::max_load;
use girih_plan::check::{check, check_pairs};
use girih_plan::csv::read;
use girih_plan::exact::{Outcome, Search, improve};
use girih_plan::portfolio::schedule;
use girih_plan::{Budget, Buffer, Problem, Solution};

/// Every buffer above the one before it.
fn stacked(problem: &Problem) -> Solution {
    let mut height = 0;
    let mut offsets = Vec::new();
    for buffer in &problem.buffers {
        offsets.push(height);
        height += buffer.size.next_multiple_of(problem.alignment);
    }
    Solution { offsets, height, planner: "stacked" }
}

/// The best of the greedy planners.
fn greedy(problem: &Problem) -> Solution {
    let solutions = schedule().take(20).map(|planner| planner.plan(problem).expect("valid"));
    solutions.min_by_key(|solution| solution.height).expect("twenty")
}

fn search(problem: &Problem, start: Solution, search: Search) -> Outcome {
    improve(problem, start, search, |_| ControlFlow::Continue(())).expect("valid")
}

/// The optimum, which the solver must prove, starting from the worst.
fn proven(problem: &Problem) -> u64 {
    let outcome = search(problem, stacked(problem), Search { nodes: 4096, enough: 0 });
    check_pairs(problem, &outcome.solution).unwrap_or_else(|e| panic!("{e}: {problem:?}"));
    assert!(outcome.is_proven(), "not proven in {} nodes: {problem:?}", outcome.nodes);
    assert_eq!(outcome.bound, outcome.solution.height, "{problem:?}");
    outcome.bound
}

/// The lowest height there is: each buffer in turn falls to the lowest place free, in every order.
/// Some order yields the optimum: that of the offsets of an optimal solution.
fn tried(problem: &Problem, laid: &mut Vec<(usize, u64)>, best: &mut u64) {
    let buffers = &problem.buffers;
    let height = laid.iter().map(|&(b, at)| at + buffers[b].size).max().unwrap_or(0);
    if height >= *best {
        return;
    }
    if laid.len() == buffers.len() {
        *best = height;
    }
    for next in 0..buffers.len() {
        if laid.iter().all(|&(b, _)| b != next) {
            let Buffer { size, .. } = buffers[next];
            let free = |at: u64| {
                !laid.iter().any(|&(b, other)| {
                    at < other + buffers[b].size && other < at + size && meet(problem, next, b)
                })
            };
            let at = (0..).find(|&at| free(at)).expect("above everything there is room");
            laid.push((next, at));
            tried(problem, laid, best);
            laid.pop();
        }
    }
}

fn meet(problem: &Problem, a: usize, b: usize) -> bool {
    let [a, b] = [a, b].map(|index| &problem.buffers[index]);
    (0..8).any(|tick| a.is_alive(tick, problem.period) && b.is_alive(tick, problem.period))
}

fn optimum(problem: &Problem) -> u64 {
    let mut best = u64::MAX;
    tried(problem, &mut Vec::new(), &mut best);
    best
}

/// Every problem of `count` buffers of these sizes within `ticks`, but for their order.
fn all_problems(
    (count, ticks, ring): (usize, u32, bool),
    sizes: &[u64],
    mut visit: impl FnMut(&Problem),
) {
    let mut kinds = Vec::new();
    for lower in 0..ticks {
        let last = if ring { lower + ticks } else { ticks };
        for upper in lower + 1..=last {
            kinds.extend(sizes.iter().map(|&size| Buffer { lower, upper, size }));
        }
    }
    let period = if ring { ticks } else { 0 };
    let mut problem = Problem { buffers: Vec::new(), period, alignment: 1 };
    let mut chosen = vec![0; count];
    loop {
        problem.buffers.clear();
        problem.buffers.extend(chosen.iter().map(|&kind: &usize| kinds[kind]));
        visit(&problem);
        let Some(at) = chosen.iter().rposition(|kind| kind + 1 < kinds.len()) else { return };
        let kind = chosen[at] + 1;
        chosen[at..].fill(kind);
    }
}

#[test]
fn the_optimum_of_every_tiny_line_is_proven() {
    for (count, sizes) in [(1, &[1, 2, 3]), (2, &[1, 2, 3]), (3, &[2, 3, 5]), (4, &[1, 2, 3])] {
        all_problems((count, 5, false), sizes, |problem| {
            assert_eq!(proven(problem), optimum(problem), "{problem:?}");
        });
    }
}

#[test]
fn the_optimum_of_every_tiny_ring_is_proven() {
    for (count, ticks, sizes) in [(2, 5, &[1, 2, 3][..]), (3, 5, &[2, 3, 5]), (4, 4, &[1, 2, 3])] {
        all_problems((count, ticks, true), sizes, |problem| {
            assert_eq!(proven(problem), optimum(problem), "{problem:?}");
        });
    }
}

/// Whether no turn of the ring makes the list of the buffers a smaller one.
fn is_least_turn(problem: &Problem) -> bool {
    let period = problem.period;
    let list = |turn: u32| {
        let turned = problem.buffers.iter().map(|buffer| {
            ((buffer.lower + turn) % period, buffer.upper - buffer.lower, buffer.size)
        });
        let mut list: Vec<_> = turned.collect();
        list.sort_unstable();
        list
    };
    let own = list(0);
    (1..period).all(|turn| own <= list(turn))
}

#[test]
fn the_optimum_of_every_ring_of_four_buffers_and_five_ticks_is_proven() {
    // Of the five turns of a ring one is tried. Where it begins changes no optimum.
    let mut tried = 0;
    all_problems((4, 5, true), &[1, 2, 3], |problem| {
        if is_least_turn(problem) {
            assert_eq!(proven(problem), optimum(problem), "{problem:?}");
            tried += 1;
        }
    });
    assert!(tried > 280_000, "{tried} of 1,426,425 problems, about a fifth");
}

/// A seeded source of numbers, for tests that count how often something holds.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % end
    }
}

#[test]
fn the_optimum_of_crowded_small_problems_is_proven_also_where_it_is_above_the_load() {
    let (mut chance, mut above) = (Chance(4), 0);
    for round in 0..400 {
        let period = round % 2 * 7;
        let buffer = |_| {
            let (lower, life) = (chance.below(7) as u32, 1 + chance.below(4) as u32);
            let upper = if period > 0 { lower + life } else { (lower + life).min(7) };
            Buffer { lower, upper, size: 1 + chance.below(6) }
        };
        let problem = Problem { buffers: (0..7).map(buffer).collect(), period, alignment: 1 };
        let best = optimum(&problem);
        assert_eq!(proven(&problem), best, "{problem:?}");
        above += u32::from(best > max_load(&problem).expect("valid").bytes);
    }
    assert!(above >= 8, "{above} of 400 say little about refutation");
}

#[test]
fn every_solution_passes_the_checker_and_no_bound_is_above_a_solution() {
    arbtest::arbtest(|u| {
        let AnyProblem(problem) = AnyProblem::arbitrary(u)?;
        let load = max_load(&problem).expect("valid").bytes;
        let known = greedy(&problem).height;
        let outcome = search(&problem, stacked(&problem), Search { nodes: 2000, enough: 0 });
        check(&problem, &outcome.solution).unwrap_or_else(|e| panic!("{e}: {problem:?}"));
        check_pairs(&problem, &outcome.solution).expect("both checkers agree");
        assert!(load <= outcome.bound, "{problem:?}");
        assert!(outcome.bound <= known.min(outcome.solution.height), "{problem:?}");
        assert!(outcome.nodes <= 2000);
        Ok(())
    });
}

#[test]
fn searching_twice_gives_the_same_and_more_nodes_are_never_worse() {
    arbtest::arbtest(|u| {
        let AnyProblem(problem) = AnyProblem::arbitrary(u)?;
        let start = stacked(&problem);
        let (mut height, mut bound) = (start.height, 0);
        for nodes in [0, 1, 30, 1000] {
            let outcome = search(&problem, start.clone(), Search { nodes, enough: 0 });
            assert_eq!(outcome, search(&problem, start.clone(), Search { nodes, enough: 0 }));
            assert!(outcome.nodes <= nodes && outcome.solution.height <= height);
            assert!(outcome.bound >= bound);
            (height, bound) = (outcome.solution.height, outcome.bound);
        }
        Ok(())
    });
}

#[test]
fn a_start_at_the_bound_or_low_enough_is_kept_without_a_search() {
    let b = |lower, upper, size| Buffer { lower, upper, size };
    let problem =
        Problem { buffers: vec![b(0, 2, 4), b(1, 3, 4), b(2, 4, 4)], period: 0, alignment: 4 };
    let best = Solution { offsets: vec![0, 4, 0], height: 8, planner: "mine" };
    let outcome = search(&problem, best.clone(), Search { nodes: 100, enough: 0 });
    assert_eq!((&outcome.solution, outcome.bound, outcome.nodes), (&best, 8, 0));
    let outcome = search(&problem, stacked(&problem), Search { nodes: 100, enough: 12 });
    assert_eq!((outcome.solution.height, outcome.nodes), (12, 0));
    let outcome = search(&problem, stacked(&problem), Search { nodes: 100, enough: 8 });
    assert_eq!((outcome.solution.height, outcome.is_proven()), (8, true));
}

#[test]
fn what_is_always_alive_and_what_is_nothing_have_their_places() {
    let b = |lower, upper, size| Buffer { lower, upper, size };
    let buffers = vec![b(0, 9, 5), b(0, 2, 6), b(2, 9, 7), b(4, 4 + 9, 9), b(3, 5, 0), b(1, 3, 2)];
    let problem = Problem { buffers, period: 9, alignment: 4 };
    assert!(problem.validate().is_ok());
    let outcome = search(&problem, stacked(&problem), Search { nodes: 100, enough: 0 });
    check(&problem, &outcome.solution).expect("right");
    assert_eq!((outcome.solution.height, outcome.is_proven()), (32, true));
    for buffers in [vec![], vec![b(3, 4, 0)], vec![b(0, 9, 3)]] {
        let problem = Problem { buffers, period: 9, alignment: 1 };
        assert_eq!(proven(&problem), max_load(&problem).expect("valid").bytes);
    }
}

#[test]
fn what_has_no_meaning_is_refused() {
    let buffers = vec![Buffer { lower: 4, upper: 4, size: 1 }];
    let problem = Problem { buffers, period: 0, alignment: 1 };
    let start = Solution { offsets: vec![0], height: 1, planner: "none" };
    let going = |_| ControlFlow::Continue(());
    assert!(improve(&problem, start, Search { nodes: 1, enough: 0 }, going).is_err());
}

/// Problems of 40 pieces whose optimum is 1000, and that are not easily put together.
const SMALL: Jigsaw = Jigsaw {
    pieces: 40,
    ticks: 24,
    height: 1000,
    pinwheels: 10,
    upright: 50,
    shrunk: 0,
    alignment: 1,
};

#[test]
fn a_jigsaw_is_put_together_without_a_gap() {
    let mut solved = 0;
    for seed in 0..100 {
        let problem = SMALL.problem(seed);
        let outcome = search(&problem, stacked(&problem), Search { nodes: 10_000, enough: 0 });
        check(&problem, &outcome.solution).expect("right");
        assert!(outcome.bound <= 1000, "a layout of 1000 was refuted: {problem:?}");
        solved += u32::from(outcome.solution.height == 1000);
    }
    assert!(solved >= 90, "{solved} of 100");
}

#[test]
fn a_jigsaw_of_any_kind_has_its_height_as_load_and_is_never_refuted() {
    arbtest::arbtest(|u| {
        let shape = Jigsaw {
            pieces: u.int_in_range(1..=30)?,
            ticks: u.int_in_range(1..=40)?,
            height: u.int_in_range(1..=200)?,
            pinwheels: u.int_in_range(0..=100)?,
            upright: u.int_in_range(0..=100)?,
            shrunk: u.int_in_range(0..=100)?,
            alignment: *u.choose(&[1, 512])?,
        };
        let problem = shape.problem(u.arbitrary()?);
        let height = shape.height * shape.alignment;
        assert_eq!(max_load(&problem).expect("valid").bytes, height, "{shape:?}");
        let outcome = search(&problem, stacked(&problem), Search { nodes: 3000, enough: 0 });
        check(&problem, &outcome.solution).expect("right");
        assert_eq!(outcome.bound, height, "{shape:?}");
        Ok(())
    });
}

/// Something that is not solved at once: a jigsaw of 400 pieces.
fn hard() -> Problem {
    let shape = Jigsaw { pieces: 400, ticks: 300, height: 1 << 20, shrunk: 50, ..SMALL };
    shape.problem(6)
}

#[test]
fn the_search_ends_when_progress_says_so_and_tells_the_truth_until_then() {
    let problem = hard();
    let start = greedy(&problem);
    let (height, mut told) = (start.height, Vec::new());
    let outcome = improve(&problem, start, Search { nodes: u64::MAX, enough: 0 }, |progress| {
        told.push(progress);
        if told.len() == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .expect("valid");
    check(&problem, &outcome.solution).expect("right");
    assert_eq!(told.len(), 3);
    assert_eq!(outcome.nodes, told[2].nodes);
    assert_eq!((outcome.solution.height, outcome.bound), (told[2].height, told[2].bound));
    assert!(told[0].height <= height);
    for pair in told.windows(2) {
        assert!(pair[0].nodes < pair[1].nodes);
        assert!(pair[0].height >= pair[1].height && pair[0].bound <= pair[1].bound);
    }
    assert!(told.iter().all(|p| p.bound <= p.target && p.target < p.height));
}

#[test]
fn what_is_too_large_to_be_searched_is_left_as_it_is() {
    let b = |lower| Buffer { lower, upper: lower + 2, size: u64::from(1 + lower % 7) };
    let problem = Problem { buffers: (0..40_000).map(b).collect(), period: 0, alignment: 1 };
    let start = stacked(&problem);
    let outcome = search(&problem, start.clone(), Search { nodes: 1000, enough: 0 });
    assert_eq!((outcome.solution, outcome.nodes), (start, 0));
    assert_eq!(outcome.bound, max_load(&problem).expect("valid").bytes);
}

/// The public problems of minimalloc; none if the data is not there.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn minimalloc() -> Vec<(String, Problem)> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/dsa"));
    let Ok(entries) = folder.read_dir() else {
        eprintln!("skipped: {} is not there", folder.display());
        return Vec::new();
    };
    let mut problems = Vec::new();
    for entry in entries {
        let path = entry.expect("a readable folder").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if name.starts_with("minimalloc_") && name.ends_with(".csv.gz") {
            let file = BufReader::new(GzDecoder::new(File::open(&path).expect("readable")));
            problems.push((name, read(file).expect("a table").problem));
        }
    }
    problems.sort_by(|a, b| a.0.cmp(&b.0));
    problems
}

#[test]
fn the_problems_of_minimalloc_are_solved_within_their_capacity_in_half_a_second() {
    const CAPACITY: u64 = 1 << 20;
    for (name, problem) in minimalloc() {
        let nodes = Budget::interactive(problem.buffers.len()).nodes;
        let settings = Search { nodes, enough: CAPACITY };
        let outcome = search(&problem, greedy(&problem), settings);
        check(&problem, &outcome.solution).expect("right");
        let height = outcome.solution.height;
        assert!(height <= CAPACITY, "{name}: {height} after {} nodes", outcome.nodes);
    }
}
