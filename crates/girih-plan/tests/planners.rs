//! The planners: right on everything, and as good as can be on what can be tried out whole.

use crate::common::pipeline::Pipeline;
use crate::common::{AnyProblem, planners};
use arbitrary::Arbitrary;
use girih_plan::bound::max_load;
use girih_plan::check::{check, check_pairs};
use girih_plan::portfolio::{schedule, solve_with};
use girih_plan::{Budget, Buffer, Direction, Fit, Order, Planner, Problem, ProblemError, solve};
use girih_trace::generate::{Training, training};
use girih_trace::{Lifetime, Lifetimes, Tick};
use std::ops::ControlFlow;

/// The lowest height there is, by trial of every order.
///
/// Some order yields it: take an optimal layout by offset and let each buffer in turn fall to the
/// lowest place free; none can come to lie higher than it was.
fn optimum(problem: &Problem) -> u64 {
    let alive = |b: &Buffer, tick| b.is_alive(tick, problem.period);
    let meet = |a: &Buffer, b: &Buffer| (0..8).any(|tick| alive(a, tick) && alive(b, tick));
    place(problem, &meet, &mut Vec::new())
}

/// The lowest height that the buffers not yet `laid` can bring about.
fn place(
    problem: &Problem,
    meet: &dyn Fn(&Buffer, &Buffer) -> bool,
    laid: &mut Vec<(usize, u64)>,
) -> u64 {
    let buffers = &problem.buffers;
    if laid.len() == buffers.len() {
        return laid.iter().map(|(b, at)| at + buffers[*b].size).max().unwrap_or(0);
    }
    let mut best = u64::MAX;
    for next in 0..buffers.len() {
        if laid.iter().any(|(b, _)| *b == next) {
            continue;
        }
        let fits = |at: u64| {
            laid.iter().all(|&(b, other)| {
                let apart = at + buffers[next].size <= other || other + buffers[b].size <= at;
                apart || !meet(&buffers[next], &buffers[b])
            })
        };
        let at = (0..).find(|at| fits(*at)).expect("above everything there is room");
        laid.push((next, at));
        best = best.min(place(problem, meet, laid));
        laid.pop();
    }
    best
}

/// Every problem of `count` of the buffers that live within `ticks` and have 1 to 3 bytes, but for
/// the order of the buffers.
fn all_problems(count: usize, ticks: u32, ring: bool, mut visit: impl FnMut(&Problem)) {
    let mut kinds = Vec::new();
    for lower in 0..ticks {
        let last = if ring { lower + ticks } else { ticks };
        for upper in lower + 1..=last {
            kinds.extend((1..=3).map(|size| Buffer { lower, upper, size }));
        }
    }
    let period = if ring { ticks } else { 0 };
    let mut problem = Problem { buffers: Vec::new(), period, alignment: 1 };
    let mut chosen = vec![0; count];
    loop {
        problem.buffers.clear();
        problem.buffers.extend(chosen.iter().map(|kind| kinds[*kind]));
        visit(&problem);
        let Some(at) = chosen.iter().rposition(|kind| kind + 1 < kinds.len()) else { return };
        let kind = chosen[at] + 1;
        chosen[at..].fill(kind);
    }
}

#[test]
fn every_planner_is_right_and_between_bound_and_sum_on_all_tiny_problems() {
    for (count, ticks, ring) in
        [(1, 5, false), (2, 5, false), (3, 5, false), (1, 5, true), (2, 5, true), (3, 4, true)]
    {
        all_problems(count, ticks, ring, |problem| {
            let best = optimum(problem);
            let bound = max_load(problem).expect("valid").bytes;
            let sum: u64 = problem.buffers.iter().map(|b| b.size).sum();
            assert!(bound <= best, "bound {bound}, optimum {best}: {problem:?}");
            for planner in planners() {
                let solution = planner.plan(problem).expect("valid");
                check_pairs(problem, &solution)
                    .unwrap_or_else(|e| panic!("{planner}: {e}: {problem:?}"));
                let height = solution.height;
                assert!((best..=sum).contains(&height), "{planner}: {height}, {best}: {problem:?}");
            }
        });
    }
}

#[test]
fn the_portfolio_finds_the_optimum_of_nearly_all_tiny_problems() {
    for (ticks, ring) in [(5, false), (4, true)] {
        let (mut problems, mut missed) = (0, 0);
        all_problems(4, ticks, ring, |problem| {
            let outcome = solve(problem, Budget::attempts(30)).expect("valid");
            check_pairs(problem, &outcome.solution).expect("valid");
            let best = if outcome.is_proven() { outcome.bound.bytes } else { optimum(problem) };
            assert!(outcome.bound.bytes <= best && best <= outcome.solution.height);
            problems += 1;
            missed += u32::from(outcome.solution.height > best);
        });
        assert!(missed * 1000 <= problems, "{missed} of {problems} missed");
    }
}

#[test]
fn a_proven_height_is_the_optimum() {
    all_problems(3, 4, true, |problem| {
        let outcome = solve(problem, Budget::attempts(4)).expect("valid");
        if outcome.is_proven() {
            assert_eq!(outcome.solution.height, optimum(problem), "{problem:?}");
        }
    });
}

#[test]
fn every_planner_passes_the_checker_on_any_problem() {
    arbtest::arbtest(|u| {
        let AnyProblem(problem) = AnyProblem::arbitrary(u)?;
        let bound = max_load(&problem).expect("valid");
        for planner in planners() {
            let solution = planner.plan(&problem).expect("valid");
            check(&problem, &solution).unwrap_or_else(|e| panic!("{planner}: {e}: {problem:?}"));
            check_pairs(&problem, &solution).expect("both checkers agree");
            assert!(solution.height >= bound.bytes, "{planner} is below the bound: {problem:?}");
            assert_eq!(solution.height % problem.alignment, 0);
        }
        Ok(())
    });
}

#[test]
fn the_bound_is_the_largest_load_of_any_tick_and_its_certificate_adds_up() {
    arbtest::arbtest(|u| {
        let AnyProblem(problem) = AnyProblem::arbitrary(u)?;
        let load = |tick| {
            let live = problem.buffers.iter().filter(|b| b.is_alive(tick, problem.period));
            live.map(|b| b.size.next_multiple_of(problem.alignment)).sum::<u64>()
        };
        let bound = max_load(&problem).expect("valid");
        let largest = (0..40).map(load).max().expect("ticks");
        assert_eq!(bound.bytes, largest);
        assert_eq!(load(bound.tick), largest);
        let size = |index: &u32| problem.buffers[*index as usize].size;
        let sum: u64 = bound.live.iter().map(|i| size(i).next_multiple_of(problem.alignment)).sum();
        assert_eq!(sum, largest);
        Ok(())
    });
}

#[test]
fn a_walk_from_the_peak_is_right_and_leaves_no_gap_at_the_peak_of_a_line() {
    arbtest::arbtest(|u| {
        let AnyProblem(problem) = AnyProblem::arbitrary(u)?;
        let bound = max_load(&problem).expect("valid");
        for fit in [Fit::First, Fit::Best] {
            let planner = Planner::Sweep(fit, Direction::FromPeak);
            let solution = planner.plan(&problem).expect("valid");
            check(&problem, &solution).unwrap_or_else(|e| panic!("{planner}: {e}: {problem:?}"));
            let end = |&b: &u32| {
                let (at, size) = (solution.offsets[b as usize], problem.buffers[b as usize].size);
                if size > 0 { (at + size).next_multiple_of(problem.alignment) } else { 0 }
            };
            let top = bound.live.iter().map(end).max().unwrap_or(0);
            assert!(problem.period > 0 || top == bound.bytes, "{top} {bound:?} {problem:?}");
        }
        Ok(())
    });
}

/// A step of a stage in which the length of every microbatch is another.
fn lengths_vary() -> Problem {
    let run = Training {
        layers: 8,
        hidden: 512,
        microbatches: 24,
        stages: 4,
        jitter: 512,
        steps: 1,
        ..Training::default()
    };
    let trace = training(&run, 1);
    let period = trace.events.len() as u32;
    let lives = Lifetimes::of(&trace);
    let buffer = |life: &Lifetime| {
        let upper = if life.death == Tick::NEVER { period } else { life.death.0 };
        Buffer { lower: life.birth.0, upper, size: life.size }
    };
    Problem { buffers: lives.born().iter().map(buffer).collect(), period: 0, alignment: 512 }
}

#[test]
fn lengths_that_vary_from_microbatch_to_microbatch_are_planned_at_the_bound_from_the_peak() {
    let problem = lengths_vary();
    let bound = max_load(&problem).expect("valid").bytes;
    let height = |direction| {
        let sweep = (Fit::First, direction);
        let planner = Planner::TwoPhase { long_log2: 4, sweep, order: Order::Area };
        planner.plan(&problem).expect("valid").height
    };
    assert_eq!(height(Direction::FromPeak), bound);
    for other in [Direction::Forward, Direction::Reversed] {
        assert!(height(other) > bound, "{other} is as good");
    }
}

#[test]
fn solving_twice_gives_the_same_and_never_worse_than_any_attempt() {
    arbtest::arbtest(|u| {
        let AnyProblem(problem) = AnyProblem::arbitrary(u)?;
        let budget = Budget::attempts(30);
        let outcome = solve(&problem, budget).expect("valid");
        assert_eq!(outcome, solve(&problem, budget).expect("valid"));
        let lowest = outcome.attempts.iter().filter_map(|attempt| attempt.height).min();
        assert_eq!(lowest, Some(outcome.solution.height));
        let others = outcome.attempts.iter().filter(|attempt| attempt.planner != Planner::Folded);
        for (attempt, planner) in others.zip(schedule()) {
            assert_eq!(attempt.planner, planner);
            let alone = planner.plan(&problem).expect("valid").height;
            assert!(attempt.height.is_none_or(|height| height == alone));
            assert!(alone >= outcome.solution.height, "{planner} was better but given up");
        }
        Ok(())
    });
}

#[test]
fn threads_share_the_work_and_change_nothing() {
    let jitter = 1 << 21;
    let uneven = Pipeline { microbatches: 20, layers: 5, ahead: 3, ring: true, jitter }.problem();
    let even = Pipeline { microbatches: 8, layers: 5, ahead: 3, ring: false, jitter: 0 }.problem();
    let outcome = solve(&even, Budget::attempts(40)).expect("valid");
    assert!(outcome.is_proven() && outcome.attempts.len() == 2, "the rest of the batch is in vain");
    for problem in [uneven, even] {
        // With 3 and 11 the last batch has one attempt, and nothing for the other threads.
        for attempts in [3, 11, 40] {
            let budget = Budget::attempts(attempts);
            let alone = solve(&problem, budget).expect("valid");
            for threads in [2, 3, 16] {
                let shared = solve(&problem, budget.on_threads(threads)).expect("valid");
                assert_eq!(shared, alone, "{threads} threads, {attempts} attempts");
            }
        }
    }
}

#[test]
fn a_ring_that_is_turned_has_the_same_bound() {
    arbtest::arbtest(|u| {
        let AnyProblem(mut problem) = AnyProblem::arbitrary(u)?;
        let before = max_load(&problem).expect("valid").bytes;
        if problem.period > 0 {
            let turn = u.int_in_range(0..=problem.period - 1)?;
            for buffer in &mut problem.buffers {
                let life = buffer.upper - buffer.lower;
                buffer.lower = (buffer.lower + turn) % problem.period;
                buffer.upper = buffer.lower + life;
            }
            assert_eq!(max_load(&problem).expect("valid").bytes, before);
        }
        Ok(())
    });
}

#[test]
fn buffers_that_are_always_alive_lie_at_the_bottom() {
    let b = |lower, upper, size| Buffer { lower, upper, size };
    let buffers = vec![b(0, 2, 8), b(0, 9, 16), b(3, 9, 8), b(0, 9, 4)];
    for period in [0, 9] {
        let problem = Problem { buffers: buffers.clone(), period, alignment: 4 };
        let solution = solve(&problem, Budget::attempts(1)).expect("valid").solution;
        assert_eq!(solution.offsets, [20, 0, 20, 16]);
        assert_eq!(solution.height, 28);
    }
}

#[test]
fn a_buffer_that_wraps_keeps_others_off_in_both_its_parts() {
    let b = |lower, upper, size| Buffer { lower, upper, size };
    let buffers = vec![b(8, 12, 1), b(1, 3, 1), b(2, 8, 1), b(6, 9, 1)];
    let problem = Problem { buffers, period: 10, alignment: 1 };
    let outcome = solve(&problem, Budget::attempts(10)).expect("valid");
    check(&problem, &outcome.solution).expect("valid");
    assert_eq!((outcome.bound.bytes, outcome.is_proven()), (2, true));
}

#[test]
fn the_search_ends_when_progress_says_so() {
    let b = |lower, upper, size| Buffer { lower, upper, size };
    // Five buffers whose load is 5 and whose optimum is higher, so that no proof ends the search.
    let buffers = vec![b(0, 2, 2), b(1, 4, 1), b(3, 6, 2), b(0, 3, 1), b(2, 5, 2), b(5, 7, 3)];
    let problem = Problem { buffers, period: 7, alignment: 1 };
    let mut told = Vec::new();
    let outcome = solve_with(&problem, Budget::attempts(50), |progress| {
        told.push(progress);
        if progress.done == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .expect("valid");
    assert!(told.len() == 3 || outcome.is_proven());
    assert_eq!(told.len(), outcome.attempts.len());
    check(&problem, &outcome.solution).expect("valid");
}

#[test]
fn nothing_to_place_needs_no_arena() {
    for buffers in [vec![], vec![Buffer { lower: 3, upper: 4, size: 0 }]] {
        for period in [0, 5] {
            let problem = Problem { buffers: buffers.clone(), period, alignment: 1 };
            let outcome = solve(&problem, Budget::attempts(0)).expect("valid");
            assert_eq!((outcome.solution.height, outcome.is_proven()), (0, true));
        }
    }
}

#[test]
fn what_has_no_meaning_is_named() {
    let problem = |lower, upper, size, period, alignment| Problem {
        buffers: vec![Buffer { lower: 0, upper: 1, size: 1 }, Buffer { lower, upper, size }],
        period,
        alignment,
    };
    let error = |problem: Problem| problem.validate().expect_err("no meaning");
    assert_eq!(error(problem(0, 1, 1, 0, 0)), ProblemError::Alignment);
    assert_eq!(
        error(problem(4, 4, 1, 0, 1)),
        ProblemError::Empty { buffer: 1, lower: 4, upper: 4 }
    );
    assert_eq!(
        error(problem(9, 10, 1, 9, 1)),
        ProblemError::OutsideRing { buffer: 1, lower: 9, period: 9 }
    );
    assert_eq!(
        error(problem(2, 12, 1, 9, 1)),
        ProblemError::LapsItself { buffer: 1, lower: 2, upper: 12, period: 9 }
    );
    assert_eq!(error(problem(0, 1, u64::MAX, 0, 1)), ProblemError::TooLarge { buffer: 1 });
    assert_eq!(error(problem(0, 1, u64::MAX - 5, 0, 512)), ProblemError::TooLarge { buffer: 1 });
    assert!(problem(2, 11, 1, 9, 1).validate().is_ok(), "a whole round is allowed");
    assert!(solve(&problem(4, 4, 1, 0, 1), Budget::attempts(1)).is_err());
    assert!(max_load(&problem(4, 4, 1, 0, 1)).is_err());
}

#[test]
fn the_largest_times_and_sizes_are_planned() {
    let b = |lower, upper, size| Buffer { lower, upper, size };
    let half = u64::MAX / 2;
    let buffers = vec![b(0, u32::MAX, 1), b(u32::MAX - 1, u32::MAX, half), b(5, 6, half)];
    for planner in planners() {
        let problem = Problem { buffers: buffers.clone(), period: u32::MAX, alignment: 1 };
        let solution = planner.plan(&problem).expect("valid");
        check(&problem, &solution).expect("valid");
        assert_eq!(solution.height, half + 1);
    }
}

#[test]
fn the_schedule_of_a_pipeline_is_planned_at_the_bound() {
    for ring in [false, true] {
        let pipeline = crate::common::pipeline::Pipeline {
            microbatches: 24,
            layers: 4,
            ahead: 3,
            ring,
            jitter: 0,
        };
        let problem = pipeline.problem();
        let outcome = solve(&problem, Budget::interactive(problem.buffers.len())).expect("valid");
        check(&problem, &outcome.solution).expect("valid");
        assert!(outcome.is_proven(), "gap {}", outcome.gap());
    }
}

#[test]
fn the_exact_search_closes_what_gap_the_planners_leave_in_tiny_problems() {
    all_problems(4, 5, false, |problem| {
        let budget = Budget::attempts(1).with_nodes(100_000);
        let outcome = solve(problem, budget).expect("valid");
        assert!(outcome.is_proven(), "{problem:?}");
        assert!(outcome.bound.bytes <= outcome.least);
        check_pairs(problem, &outcome.solution).expect("valid");
        if outcome.nodes > 0 {
            assert_eq!(outcome.solution.height, optimum(problem), "{problem:?}");
        }
    });
}
