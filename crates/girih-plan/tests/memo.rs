//! Memo's planner, whole: right on everything, as low as can be where its rectangles cost nothing,
//! and as high as they make it where they do.

use std::ops::{ControlFlow, Range};

use crate::common::pipeline::Pipeline;
use crate::common::{AnyProblem, recorded};
use arbitrary::Arbitrary;
use girih_plan::bound::max_load;
use girih_plan::check::{check, check_pairs};
use girih_plan::exact::{self, Search};
use girih_plan::memo::{Layers, Outcome, SEARCHED_MAX, Settings, plan, plan_with};
use girih_plan::portfolio::schedule;
use girih_plan::{
    Budget, Buffer, Plan, Problem, ProblemError, Role, Sequence, Solution, profile, solve,
};
use girih_trace::generate::{Training, training};
use girih_trace::{Iterations, Lifetimes, Mark, MarkKind, Trace};

/// Plans with a budget that is enough for what is small, and checks.
fn planned(problem: &Problem, layers: &Layers) -> Outcome {
    let outcome = plan(problem, layers, Settings::searching(50_000)).expect("valid");
    check(problem, &outcome.solution).unwrap_or_else(|e| panic!("{e}: {problem:?} {layers:?}"));
    outcome
}

/// The optimum, proven by the exact search alone.
fn optimum(problem: &Problem) -> u64 {
    let start = schedule().next().expect("a planner").plan(problem).expect("valid");
    let goal = Search { nodes: 1_000_000, enough: 0 };
    let outcome =
        exact::improve(problem, start, goal, |_| ControlFlow::Continue(())).expect("valid");
    assert!(outcome.is_proven(), "{problem:?}");
    outcome.bound
}

fn line(buffers: Vec<Buffer>) -> Problem {
    Problem { buffers, period: 0, alignment: 1 }
}

/// `count` layers of `ticks` each, one after another, all of the same buffers; what they keep lives
/// until after the last one.
fn layered(count: u32, ticks: u32, transient: &[(u32, u32, u64)], kept: (u32, u64)) -> Problem {
    let mut buffers = Vec::new();
    for start in (0..count).map(|layer| layer * ticks) {
        let inner = transient.iter().map(|&(lower, upper, size)| (lower, start + upper, size));
        for (lower, upper, size) in inner.chain([(kept.0, count * ticks + 1, kept.1)]) {
            buffers.push(Buffer { lower: start + lower, upper, size });
        }
    }
    line(buffers)
}

fn layers(count: u32, ticks: u32) -> Layers {
    Layers::new((0..count).map(|layer| layer * ticks..(layer + 1) * ticks))
}

#[test]
fn every_plan_passes_the_checker_whatever_the_layers_are() {
    arbtest::arbtest(|u| {
        let AnyProblem(problem) = AnyProblem::arbitrary(u)?;
        let mut passes = Vec::new();
        for _ in 0..u.int_in_range(0..=6)? {
            let start = u.int_in_range(0..=45)?;
            passes.push(start..start + u.int_in_range(0..=20)?);
        }
        let layers = Layers::new(passes);
        let nodes = u.int_in_range(0..=2000)?;
        let outcome = plan(&problem, &layers, Settings::searching(nodes)).expect("valid");
        let solution = &outcome.solution;
        check(&problem, solution).unwrap_or_else(|e| panic!("{e}: {problem:?} {layers:?}"));
        check_pairs(&problem, solution).expect("both checkers agree");
        assert_eq!(solution.planner, "memo");
        assert_eq!(solution.height % problem.alignment, 0);
        let load = max_load(&problem).expect("valid").bytes;
        assert!(load <= outcome.least && outcome.least <= solution.height);
        assert!(outcome.nodes() <= nodes);
        assert!(outcome.passes <= layers.passes().len());
        assert!(outcome.first.problems <= outcome.passes);
        assert_eq!((outcome.second.problems, outcome.second.greedy), (1, 0));
        let again = plan(&problem, &layers, Settings::searching(nodes));
        assert_eq!(again, Ok(outcome), "the same every time");
        Ok(())
    });
}

#[test]
fn every_plan_passes_the_checker_where_the_layers_are_looked_for() {
    arbtest::arbtest(|u| {
        // A few buffers that come several times, and a few that do not.
        let AnyProblem(Problem { mut buffers, alignment, .. }) = AnyProblem::arbitrary(u)?;
        let ticks = buffers.iter().map(|buffer| buffer.upper).max().unwrap_or(0);
        let once = buffers.len();
        for copy in 1..u.int_in_range(1..=5)? {
            for index in 0..once {
                let Buffer { lower, upper, size } = buffers[index];
                let (lower, upper) = (lower + copy * ticks, upper + copy * ticks);
                buffers.push(Buffer { lower, upper, size });
            }
        }
        let problem = Problem { buffers, period: 0, alignment };
        let layers = Layers::repeated(&problem);
        let outcome = planned(&problem, &layers);
        assert!(outcome.solution.height >= outcome.least);
        Ok(())
    });
}

#[test]
fn where_the_rectangles_leave_nothing_idle_two_levels_are_as_low_as_one() {
    // What is kept is there from the first tick of a layer on, so that nothing could use what the
    // layer leaves idle later.
    let transient = [(0, 2, 4), (1, 4, 3), (2, 5, 2), (3, 5, 2)];
    let problem = layered(3, 5, &transient, (0, 6));
    let outcome = planned(&problem, &layers(3, 5));
    assert_eq!(outcome.solution.height, optimum(&problem));
    assert!(outcome.is_proven());
    assert_eq!((outcome.passes, outcome.inner), (3, 12));
    assert_eq!((outcome.first.problems, outcome.first.proven), (1, 1), "layers are alike");
    assert_eq!((outcome.first.largest, outcome.second.largest), (4, 6));
}

#[test]
fn what_a_rectangle_leaves_idle_is_lost() {
    // Of four bytes a layer needs two from its third tick on, when the two that it keeps are born.
    let problem = layered(2, 5, &[(0, 2, 4), (2, 4, 1), (3, 5, 1)], (3, 2));
    assert_eq!(optimum(&problem), 6);
    let outcome = planned(&problem, &layers(2, 5));
    // The second rectangle, and what both layers keep.
    assert_eq!(outcome.solution.height, 4 + 2 + 2);
    assert_eq!((outcome.first.proven, outcome.second.proven), (1, 1), "each level is exact");
    assert!(!outcome.is_proven(), "and yet the whole is not");
    assert_eq!(outcome.least, 6);
}

#[test]
fn a_layer_whose_height_is_above_its_load_is_solved_exactly() {
    let inner = crowded();
    let best = optimum(&line(inner.clone()));
    assert!(best > max_load(&line(inner.clone())).expect("valid").bytes);
    let ticks = inner.iter().map(|buffer| buffer.upper).max().expect("five");
    let transient: Vec<_> = inner.iter().map(|b| (b.lower, b.upper, b.size)).collect();
    let problem = layered(4, ticks, &transient, (0, 1));
    let outcome = planned(&problem, &layers(4, ticks));
    assert_eq!(outcome.solution.height, best + 4);
    assert_eq!((outcome.first.problems, outcome.first.proven), (1, 1));
    assert!(outcome.first.nodes > 0 && outcome.second.nodes == 0);
    // Without nodes the start is what remains, and nothing is said of it.
    let greedy = plan(&problem, &layers(4, ticks), Settings::searching(0)).expect("valid");
    check(&problem, &greedy.solution).expect("right");
    assert_eq!((greedy.first.proven, greedy.nodes()), (0, 0));
}

/// Eight buffers in ten ticks, the next of a seeded walk.
fn any_crowded(seed: &mut u64) -> Problem {
    let mut below = |end: u64| {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (*seed >> 33) % end
    };
    let buffer = |_| {
        let lower = below(7) as u32;
        Buffer { lower, upper: lower + 1 + below(4) as u32, size: 1 + below(6) }
    };
    line((0..8).map(buffer).collect())
}

/// The first of them whose optimum is above its load.
fn crowded() -> Vec<Buffer> {
    let mut seed = 4;
    loop {
        let problem = any_crowded(&mut seed);
        if optimum(&problem) > max_load(&problem).expect("valid").bytes {
            return problem.buffers;
        }
    }
}

#[test]
fn layers_that_are_not_alike_are_kinds_of_their_own() {
    let mut problem = layered(3, 5, &[(0, 2, 4), (1, 4, 3)], (0, 1));
    problem.buffers[3].size = 9;
    let outcome = planned(&problem, &layers(3, 5));
    assert_eq!((outcome.passes, outcome.first.problems, outcome.first.proven), (3, 2, 2));
}

#[test]
fn without_layers_there_is_one_level_and_its_proof_is_one_of_the_whole() {
    let problem = line(crowded());
    for layers in [Layers::default(), Layers::repeated(&problem)] {
        let outcome = planned(&problem, &layers);
        assert_eq!((outcome.passes, outcome.first.problems), (0, 0));
        assert_eq!(outcome.solution.height, optimum(&problem));
        assert!(outcome.is_proven() && outcome.nodes() > 0);
    }
    // One layer is planned as one, whether or not that is of use.
    let all = planned(&problem, &layers(1, 100));
    assert_eq!((all.passes, all.inner, all.second.largest), (1, problem.buffers.len(), 1));
    assert_eq!(all.solution.height, optimum(&problem));
}

#[test]
fn what_is_nothing_has_its_place() {
    let b = |lower, upper, size| Buffer { lower, upper, size };
    for (buffers, height) in [
        (vec![], 0),
        (vec![b(1, 2, 0), b(1, 3, 0), b(0, 9, 0)], 0),
        (vec![b(0, 9, 3), b(1, 2, 0), b(1, 3, 2), b(1, 2, 2)], 7),
    ] {
        for period in [0, 9] {
            let problem = Problem { buffers: buffers.clone(), period, alignment: 1 };
            for layers in [Layers::default(), layers(3, 3), layers(1, 9), layers(9, 1)] {
                let outcome = planned(&problem, &layers);
                assert_eq!((outcome.solution.height, outcome.is_proven()), (height, true));
            }
        }
    }
}

#[test]
fn what_crosses_the_end_of_a_ring_is_in_no_layer() {
    let b = |lower, upper, size| Buffer { lower, upper, size };
    let buffers = vec![b(8, 12, 2), b(7, 9, 1), b(7, 8, 1), b(0, 3, 2), b(3, 4, 5)];
    let problem = Problem { buffers, period: 10, alignment: 1 };
    let outcome = planned(&problem, &Layers::new(std::iter::once(6..20)));
    assert_eq!((outcome.passes, outcome.inner), (1, 2));
    assert_eq!(outcome.solution.height, 5);
}

#[test]
fn what_has_no_meaning_is_refused() {
    let buffers = vec![Buffer { lower: 4, upper: 4, size: 1 }; 12];
    let problem = line(buffers);
    let layers = Layers::repeated(&problem);
    let refused = plan(&problem, &layers, Settings::searching(10));
    assert_eq!(refused, Err(ProblemError::Empty { buffer: 0, lower: 4, upper: 4 }));
    let problem = Problem { alignment: 0, ..line(Vec::new()) };
    assert!(plan(&problem, &layers, Settings::searching(10)).is_err());
}

#[test]
fn the_largest_times_and_sizes_are_planned() {
    let b = |lower, upper, size| Buffer { lower, upper, size };
    let (half, last) = (u64::MAX / 2, u32::MAX);
    let buffers = vec![b(0, last, 1), b(last - 1, last, half), b(5, 6, half), b(5, 7, 0)];
    for period in [0, last] {
        let problem = Problem { buffers: buffers.clone(), period, alignment: 1 };
        for layers in [Layers::repeated(&problem), Layers::new([0..9, 9..last])] {
            assert_eq!(planned(&problem, &layers).solution.height, half + 1);
        }
    }
}

#[test]
fn what_is_too_large_for_the_search_is_left_to_greedy_planners_and_said_so() {
    let buffer = |index: u32| Buffer {
        lower: index * 7 % 1500,
        upper: index * 7 % 1500 + 3 + index * 31 % 37,
        size: u64::from(100 + index * 53 % 211),
    };
    let problem = line((0..SEARCHED_MAX as u32 + 1).map(buffer).collect());
    let outcome = planned(&problem, &Layers::default());
    assert_eq!((outcome.second.proven, outcome.second.greedy, outcome.nodes()), (0, 1, 0));
    assert!(!outcome.is_proven());
    // One buffer less, and it is searched.
    let problem = line(problem.buffers[1..].to_vec());
    let outcome = plan(&problem, &Layers::default(), Settings::searching(3)).expect("valid");
    assert_eq!((outcome.second.greedy, outcome.nodes()), (0, 3));
}

/// Something that is not solved at once, in less than 200 ticks.
fn hard() -> Vec<Buffer> {
    let buffer = |k: u32| Buffer {
        lower: k * 7 % 150,
        upper: k * 7 % 150 + 3 + k * 31 % 37,
        size: u64::from(100 + k * 53 % 211),
    };
    (0..300).map(buffer).collect()
}

/// The same so many ticks later.
fn later(buffers: &[Buffer], ticks: u32) -> impl Iterator<Item = Buffer> {
    buffers.iter().map(move |b| Buffer { lower: b.lower + ticks, upper: b.upper + ticks, ..*b })
}

#[test]
fn kinds_share_half_of_the_nodes_and_the_second_level_has_what_is_left() {
    // Two layers that are not alike, and something larger that is in none.
    let mut other = hard();
    other[0].size += 1;
    let larger: Vec<Buffer> = hard().iter().map(|b| Buffer { size: 2 * b.size, ..*b }).collect();
    let buffers = hard().into_iter().chain(later(&other, 200)).chain(later(&larger, 400));
    let problem = line(buffers.collect());
    let layers = Layers::new([0..200, 200..400]);
    let outcome = plan(&problem, &layers, Settings::searching(2000)).expect("valid");
    check(&problem, &outcome.solution).expect("right");
    assert_eq!((outcome.first.problems, outcome.first.proven, outcome.first.nodes), (2, 0, 1000));
    assert_eq!((outcome.second.proven, outcome.second.nodes), (0, 1000));
}

#[test]
fn progress_ends_one_problem_after_the_other() {
    let problem = line(hard().into_iter().chain(later(&hard(), 200)).collect());
    let layers = Layers::new([0..200, 200..400]);
    let mut told = Vec::new();
    let endless = Settings::searching(u64::MAX);
    let outcome = plan_with(&problem, &layers, endless, |progress| {
        told.push(progress);
        if progress.nodes > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let outcome = outcome.expect("valid");
    check(&problem, &outcome.solution).expect("right");
    assert_eq!((outcome.passes, outcome.first.problems), (2, 1), "the same twice");
    assert!(told.iter().any(|p| p.level == 1 && p.nodes > 0 && (p.number, p.of) == (1, 1)));
    assert!(told.iter().any(|p| p.level == 2));
    assert!(told.iter().all(|p| p.bound <= p.height));
}

/// The problem that the profile makes of a recording, and the plan that says how.
fn problem_of(trace: &Trace) -> (Problem, Plan, Lifetimes, Iterations) {
    let lives = Lifetimes::of(trace);
    let iterations = Iterations::of(trace, &lives);
    let mut seen = None;
    let plan = profile::plan(trace, &lives, &iterations, |problem| {
        seen = Some(problem.clone());
        solve(problem, Budget::interactive(problem.buffers.len()))
    })
    .expect("valid");
    (seen.expect("the planner is asked once"), plan, lives, iterations)
}

/// How far a solution is above the bound, as a part of the bound.
fn gap(problem: &Problem, solution: &Solution) -> f64 {
    let bound = max_load(problem).expect("valid").bytes;
    (solution.height - bound) as f64 / bound as f64
}

#[test]
fn the_layers_of_generated_training_are_found_in_its_sizes() {
    for (stages, recompute, evaluate_every) in [(1, false, 0), (4, false, 0), (2, true, 2)] {
        let shape = Training { stages, recompute, evaluate_every, steps: 5, ..Training::default() };
        let (problem, ..) = problem_of(&training(&shape, 7));
        let layers = Layers::repeated(&problem);
        // Forward and backward of each layer of each microbatch, but for what is cut off at the ends
        // of each pass.
        let passes = shape.microbatches as usize * (shape.layers as usize - 1) * 2;
        assert!(layers.passes().len() >= passes, "{shape:?}: {layers:?}");
        let outcome = planned(&problem, &layers);
        assert!(outcome.first.problems <= 8, "{:?}", outcome.first);
        assert_eq!(outcome.first.proven, outcome.first.problems);
        let gap = gap(&problem, &outcome.solution);
        assert!(gap < 0.25, "{shape:?}: gap {gap}");
    }
}

#[test]
fn the_layers_of_a_pipeline_are_found_in_its_sizes_on_a_line_and_on_a_ring() {
    for ring in [false, true] {
        let pipeline = Pipeline { microbatches: 24, layers: 4, ahead: 3, ring, jitter: 0 };
        let problem = pipeline.problem();
        let outcome = planned(&problem, &Layers::repeated(&problem));
        assert!(outcome.passes >= 24 * 3, "{}", outcome.passes);
        assert!(gap(&problem, &outcome.solution) < 0.05);
    }
}

/// Generated training with marks of its layers. A free is two events: a forward has 11, the last of
/// which is left out, and a backward 28.
fn marked_training(shape: &Training) -> Trace {
    let mut trace = training(shape, 7);
    let mut marks = Vec::new();
    for mark in std::mem::take(&mut trace.marks) {
        let begun = mark.clone();
        marks.push(mark);
        let module = |before, kind, layer| Mark {
            before,
            kind,
            name: format!("decoder.layers.{layer}"),
            ..begun.clone()
        };
        for layer in 0..shape.layers {
            match begun.kind {
                MarkKind::ForwardStep => {
                    let start = begun.before + 1 + 11 * layer;
                    marks.push(module(start, MarkKind::ForwardIn, layer));
                    marks.push(Mark {
                        name: format!("decoder.layers.{layer}.mlp"),
                        ..module(start + 5, MarkKind::ForwardIn, layer)
                    });
                    marks.push(module(start + 10, MarkKind::ForwardOut, layer));
                }
                MarkKind::BackwardStep => {
                    let start = begun.before + 3 + 28 * layer;
                    let layer = shape.layers - 1 - layer;
                    marks.push(module(start, MarkKind::BackwardIn, layer));
                }
                _ => {}
            }
        }
    }
    trace.marks = marks;
    trace
}

#[test]
fn the_layers_of_a_recording_are_where_its_modules_are_marked() {
    let shape = Training { stages: 2, evaluate_every: 2, steps: 5, ..Training::default() };
    let trace = marked_training(&shape);
    let (problem, plan, lives, iterations) = problem_of(&trace);
    let layers = Layers::marked(&plan, &trace, &lives, &iterations);
    let lengths = |length: u32| {
        let of_length = |pass: &&Range<u32>| pass.len() == length as usize;
        layers.passes().iter().filter(of_length).count()
    };
    // Eight requests forward and four backward, for each layer of each microbatch.
    let each = (shape.microbatches * shape.layers * plan.rounds) as usize;
    assert_eq!((lengths(8), lengths(4)), (each, each), "{layers:?}");
    assert_eq!(layers.passes().len(), 2 * each);
    let outcome = planned(&problem, &layers);
    assert!(outcome.passes > 0 && outcome.first.problems <= 4, "{:?}", outcome.first);
    // What comes in between moves those after it.
    let mut longer = plan.clone();
    let (at, entry) = (layers.passes()[5].start, longer.steady().expect("steps").entries[0]);
    let between = longer.sequences.iter().filter(|sequence| sequence.role == Role::Interlude(0));
    let shift: usize = between.map(|sequence| sequence.entries.len()).sum();
    longer.sequences.push(Sequence {
        role: Role::Interlude(at - shift as u32),
        entries: vec![entry; 3],
        boundaries: Vec::new(),
    });
    let moved = Layers::marked(&longer, &trace, &lives, &iterations);
    assert_eq!(moved.passes()[..5], layers.passes()[..5]);
    for (moved, pass) in moved.passes().iter().zip(layers.passes()).skip(5) {
        assert_eq!(*moved, pass.start + 3..pass.end + 3);
    }
    // What repeats beside them, in the optimizer, leaves them as they are.
    let more = layers.clone().or_repeated(&problem);
    assert!(layers.passes().iter().all(|pass| more.passes().contains(pass)));
    planned(&problem, &more);
}

#[test]
fn where_two_iterations_go_round_the_ring_both_have_their_layers() {
    let trace = marked_training(&Training { steps: 5, ..Training::default() });
    let (_, mut plan, lives, iterations) = problem_of(&trace);
    plan.rounds = 1;
    let once = Layers::marked(&plan, &trace, &lives, &iterations);
    plan.rounds = 2;
    let twice = Layers::marked(&plan, &trace, &lives, &iterations);
    let places = iterations.list[2].requests.len() as u32;
    let again = once.passes().iter().map(|pass| pass.start + places..pass.end + places);
    let both: Vec<Range<u32>> = once.passes().iter().cloned().chain(again).collect();
    assert!(!once.passes().is_empty());
    assert_eq!(twice.passes(), both);
}

#[test]
fn recorded_runs_are_planned_within_what_was_measured() {
    for (name, measured) in [("fsdp2_R_r0", 0.0), ("megatron_gpt2-R_r3", 0.001)] {
        let Some(trace) = recorded(name) else { continue };
        let (problem, plan, lives, iterations) = problem_of(&trace);
        let layers = Layers::marked(&plan, &trace, &lives, &iterations).or_repeated(&problem);
        let outcome = planned(&problem, &layers);
        let gap = gap(&problem, &outcome.solution);
        assert!(gap <= measured, "{name}: {gap}");
        let Outcome { passes, inner, first, .. } = outcome;
        assert!(passes > 0 && first.proven == first.problems, "{name}: {passes} {first:?}");
        assert!(inner * 2 > problem.buffers.len(), "{name}: {inner} in layers");
    }
}

/// The levels solved by HiGHS instead of our own search.
#[cfg(feature = "highs")]
mod program {
    use super::*;
    use girih_plan::memo::{PAIRS_MAX, Solver};

    /// The start is a single greedy plan, so that something is left to the program.
    fn within(seconds: f64) -> Settings {
        Settings { attempts: 1, solver: Solver::Program { seconds } }
    }

    #[test]
    fn it_finds_the_optimum_where_a_greedy_plan_is_above_the_bound() {
        let (mut seed, mut asked) = (11, 0);
        // Of a thousand such problems, a few.
        for round in 0..20_000 {
            if asked == 25 {
                break;
            }
            let Problem { buffers, .. } = any_crowded(&mut seed);
            let problem = Problem { buffers, period: round % 2 * 11, alignment: 1 };
            let greedy = schedule().next().expect("a planner").plan(&problem).expect("valid");
            if greedy.height == max_load(&problem).expect("valid").bytes {
                continue;
            }
            asked += 1;
            let outcome = plan(&problem, &Layers::default(), within(60.0)).expect("valid");
            check(&problem, &outcome.solution).expect("right");
            assert_eq!(outcome.solution.height, optimum(&problem), "{problem:?}");
            assert_eq!((outcome.second.proven, outcome.second.greedy), (1, 0), "{problem:?}");
        }
        assert_eq!(asked, 25, "fewer say little about the program");
    }

    #[test]
    fn both_levels_are_solved_by_it() {
        let inner = crowded();
        let ticks = inner.iter().map(|buffer| buffer.upper).max().expect("eight");
        let transient: Vec<_> = inner.iter().map(|b| (b.lower, b.upper, b.size)).collect();
        let problem = layered(4, ticks, &transient, (0, 1));
        let searched = planned(&problem, &layers(4, ticks));
        let outcome = plan(&problem, &layers(4, ticks), within(60.0)).expect("valid");
        check(&problem, &outcome.solution).expect("right");
        assert_eq!(outcome.solution.height, searched.solution.height);
        assert_eq!((outcome.passes, outcome.first.problems, outcome.first.proven), (4, 1, 1));
    }

    #[test]
    fn without_time_the_start_remains() {
        let problem = line(crowded());
        let outcome = plan(&problem, &Layers::default(), within(0.0)).expect("valid");
        check(&problem, &outcome.solution).expect("right");
        assert_eq!(Some(outcome.solution.height), outcome.attempts[0].height);
        assert!(!outcome.is_proven());
    }

    #[test]
    fn what_has_too_many_pairs_is_left_to_greedy_planners() {
        // All of them overlap at tick 40, and those that do not begin there leave no plan at the load.
        let mut buffers: Vec<Buffer> = (0..210u32)
            .map(|k| Buffer {
                lower: k % 40,
                upper: 41 + k * 7 % 40,
                size: u64::from(50 + k * 31 % 77),
            })
            .collect();
        buffers.extend(crowded().iter().map(|b| Buffer { size: b.size << 20, ..*b }));
        assert!(210 * 209 / 2 > PAIRS_MAX);
        let problem = line(buffers);
        let outcome = plan(&problem, &Layers::default(), within(60.0)).expect("valid");
        check(&problem, &outcome.solution).expect("right");
        assert_eq!((outcome.second.greedy, outcome.nodes()), (1, 0));
    }
}
