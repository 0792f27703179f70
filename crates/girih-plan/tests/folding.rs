//! Folding: what repeats is planned once, and the plan is right and as low as can be.

use crate::common::pipeline::Pipeline;
use arbitrary::Unstructured;
use girih_plan::bound::max_load;
use girih_plan::check::check;
use girih_plan::portfolio::{schedule, schedule_for, solve_among};
use girih_plan::{Budget, Buffer, Planner, Problem, Solution, solve};
use girih_trace::generate::{Training, training};
use girih_trace::{Lifetimes, MarkKind, Tick};
use std::ops::ControlFlow;

/// The second step of a stage of a pipeline of eight, with what is born in it; four layers.
fn stage(stage: u32, microbatches: u32) -> Problem {
    let run = Training {
        stage,
        microbatches,
        layers: 4,
        hidden: 4096,
        sequence: 4096,
        microbatch: 1,
        stages: 8,
        steps: 2,
        ..Training::default()
    };
    let trace = training(&run, 1);
    let second = trace.marks.iter().filter(|mark| mark.kind == MarkKind::Step).nth(1);
    let start = second.expect("two steps").before;
    let period = trace.events.len() as u32 - start;
    let lives = Lifetimes::of(&trace);
    let born = lives.born().iter().filter(|life| life.birth.0 >= start);
    let buffers = born.map(|life| {
        let end = if life.death == Tick::NEVER { start + period } else { life.death.0 };
        Buffer { lower: life.birth.0 - start, upper: end - start, size: life.size }
    });
    Problem { buffers: buffers.collect(), period, alignment: 512 }
}

/// What folding alone makes of a problem, if enough of it repeats. Checked.
fn folded(problem: &Problem) -> Option<Solution> {
    let solution = Planner::Folded.plan(problem).expect("valid");
    check(problem, &solution).unwrap_or_else(|error| panic!("{error}: {problem:?}"));
    (solution.planner == Planner::Folded.name()).then_some(solution)
}

fn is_at_the_bound(problem: &Problem, solution: &Solution) -> bool {
    solution.height == max_load(problem).expect("valid").bytes
}

#[test]
fn every_stage_of_a_pipeline_is_folded_at_the_bound_where_all_others_miss_it() {
    for number in 0..8 {
        let problem = stage(number, 100);
        let solution = folded(&problem).expect("microbatches repeat");
        assert!(is_at_the_bound(&problem, &solution), "stage {number}");

        let budget = Budget::attempts(20);
        let go_on = |_| ControlFlow::Continue(());
        let others = solve_among(&problem, budget, schedule(), go_on).expect("valid");
        // The last stages have one or two microbatches at a time, which is easy.
        assert_eq!(others.is_proven(), number >= 6, "stage {number}: {}", others.gap());
        let outcome = solve(&problem, budget).expect("valid");
        assert!(outcome.is_proven() && outcome.attempts.len() == 1, "stage {number}");
        assert_eq!(outcome, solve(&problem, budget.on_threads(3)).expect("valid"));
    }
}

#[test]
fn a_pipeline_of_other_sizes_is_folded_on_a_line_and_on_a_ring() {
    for ring in [false, true] {
        for ahead in [1, 3, 7] {
            let problem =
                Pipeline { microbatches: 40, layers: 3, ahead, ring, jitter: 0 }.problem();
            let solution = folded(&problem).expect("microbatches repeat");
            assert!(is_at_the_bound(&problem, &solution), "{ahead} ahead, ring {ring}");
        }
    }
}

#[test]
fn more_microbatches_change_nothing_but_the_length() {
    let heights = [60, 61, 64, 100, 300].map(|microbatches| {
        let solution = folded(&stage(5, microbatches)).expect("microbatches repeat");
        solution.height
    });
    assert!(heights.windows(2).all(|pair| pair[0] == pair[1]), "{heights:?}");
}

#[test]
fn where_nothing_repeats_folding_is_no_attempt() {
    let uneven = Pipeline { microbatches: 40, layers: 5, ahead: 3, ring: true, jitter: 1 << 21 };
    let problem = uneven.problem();
    assert!(folded(&problem).is_none());
    let budget = Budget::attempts(5);
    let with = solve(&problem, budget).expect("valid");
    let planners = schedule_for(problem.buffers.len()).filter(|it| *it != Planner::Folded);
    let without = solve_among(&problem, budget, planners, |_| ControlFlow::Continue(()));
    assert_eq!(with, without.expect("valid"));
    assert_eq!(with.attempts.len(), 5);
}

/// A pattern of a few buffers, repeated, with what may be before it, after it and all the while, and
/// now and then with one buffer that is not as the pattern has it.
fn any_repetition(u: &mut Unstructured<'_>) -> arbitrary::Result<Problem> {
    let step = u.int_in_range(3..=12)?;
    let mut pattern = Vec::new();
    for lower in 0..u.int_in_range(1..=step)? {
        let life = u.int_in_range(1..=4 * step)?;
        pattern.push(Buffer { lower, upper: lower + life, size: u.int_in_range(1..=5)? });
    }
    let (begin, periods) = (u.int_in_range(0..=20)?, u.int_in_range(10..=30)?);
    let end = begin + periods * step;
    let total = end + u.int_in_range(0..=20)?;
    let is_ring = u.arbitrary()?;
    let mut buffers = Vec::new();
    for period in 0..periods {
        for &Buffer { lower, upper, size } in &pattern {
            let (lower, upper) = (begin + period * step + lower, begin + period * step + upper);
            // Microbatches that end with the step, or go on into the next one.
            let upper = if is_ring { upper } else { upper.min(total) };
            buffers.push(Buffer { lower, upper, size });
        }
    }
    for _ in 0..u.int_in_range(0..=6)? {
        let lower = u.int_in_range(0..=total - 1)?;
        let upper = if is_ring { lower + total } else { total };
        let upper = u.int_in_range(lower + 1..=upper)?;
        buffers.push(Buffer { lower, upper, size: u.int_in_range(1..=9)? });
    }
    if u.ratio(1, 2)? {
        let at = u.int_in_range(0..=buffers.len() - 1)?;
        if u.arbitrary()? {
            buffers.remove(at);
        } else {
            let Buffer { lower, upper, .. } = &mut buffers[at];
            let last = if is_ring { *lower + total } else { total };
            *upper = (*upper + u.int_in_range(1..=2 * step)?).min(last);
        }
    }
    buffers.sort_by_key(|buffer| buffer.lower);
    Ok(Problem { buffers, period: if is_ring { total } else { 0 }, alignment: 1 })
}

#[test]
fn whatever_is_folded_is_right_and_folding_takes_no_attempt_from_the_others() {
    let (mut seen, mut solved, mut bound) = (0, 0, 0);
    let budget = Budget::attempts(4);
    // As often as it takes, however slow the machine is.
    for _ in 0..16 {
        if seen > 100 {
            break;
        }
        arbtest::arbtest(|u| {
            let problem = any_repetition(u)?;
            let Some(solution) = folded(&problem) else { return Ok(()) };
            seen += 1;
            bound += u32::from(is_at_the_bound(&problem, &solution));
            let outcome = solve(&problem, budget).expect("valid");
            check(&problem, &outcome.solution).expect("right");
            solved += u32::from(outcome.solution.height <= solution.height);
            let others = outcome.attempts.iter().filter(|it| it.planner != Planner::Folded);
            assert!(outcome.is_proven() || others.count() == 4, "{:?}", outcome.attempts);
            let planners = schedule_for(problem.buffers.len()).filter(|it| *it != Planner::Folded);
            let without = solve_among(&problem, budget, planners, |_| ControlFlow::Continue(()));
            assert!(outcome.solution.height <= without.expect("valid").solution.height);
            assert_eq!(outcome, solve(&problem, budget.on_threads(3)).expect("valid"));
            Ok(())
        })
        .budget_ms(2_000);
    }
    assert!(seen > 100, "{seen} were folded");
    assert_eq!(solved, seen, "all planners together are no worse than one");
    assert!(bound * 4 >= seen, "{bound} of {seen} at the bound");
}
