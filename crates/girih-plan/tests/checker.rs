//! The checker refuses what is wrong, says which law was broken, and agrees with its definition.

use crate::common::{AnyProblem, planners};
use arbitrary::{Arbitrary, Unstructured};
use girih_plan::check::{Violation, check, check_pairs};
use girih_plan::{Buffer, Problem, Solution};

const fn b(lower: u32, upper: u32, size: u64) -> Buffer {
    Buffer { lower, upper, size }
}

/// Asks both checkers, which must agree on right and wrong; returns what the fast one says.
fn ask(problem: &Problem, offsets: &[u64], height: u64) -> Result<(), Violation> {
    let solution = Solution { offsets: offsets.to_vec(), height, planner: "test" };
    let (fast, slow) = (check(problem, &solution), check_pairs(problem, &solution));
    assert_eq!(fast.is_ok(), slow.is_ok(), "{fast:?} {slow:?} {problem:?} {offsets:?}");
    for verdict in [&fast, &slow] {
        let Err(Violation::Overlap { first, second, bytes, tick }) = verdict else { continue };
        for index in [*first, *second] {
            let buffer = &problem.buffers[index];
            assert!(buffer.is_alive(*tick, problem.period));
            assert!(offsets[index] <= bytes.0 && bytes.1 <= offsets[index] + buffer.size);
        }
        assert!(first < second && bytes.0 < bytes.1);
    }
    fast
}

fn line(buffers: &[Buffer]) -> Problem {
    Problem { buffers: buffers.to_vec(), period: 0, alignment: 1 }
}

#[test]
fn two_buffers_may_touch_in_time_and_in_address() {
    let problem = line(&[b(0, 4, 8), b(4, 8, 8), b(0, 8, 8)]);
    assert_eq!(ask(&problem, &[0, 0, 8], 16), Ok(()));
}

#[test]
fn an_overlap_names_both_buffers_the_bytes_and_the_tick() {
    let problem = line(&[b(0, 4, 8), b(3, 8, 8)]);
    assert_eq!(
        ask(&problem, &[0, 6], 14),
        Err(Violation::Overlap { first: 0, second: 1, bytes: (6, 8), tick: 3 })
    );
}

#[test]
fn a_buffer_within_another_is_an_overlap() {
    let problem = line(&[b(0, 4, 100), b(1, 2, 1), b(1, 2, 1)]);
    assert_eq!(
        ask(&problem, &[0, 200, 50], 201),
        Err(Violation::Overlap { first: 0, second: 2, bytes: (50, 51), tick: 1 })
    );
}

#[test]
fn both_parts_of_a_buffer_that_wraps_count() {
    let ring = |other| Problem { buffers: vec![b(7, 12, 4), other], period: 10, alignment: 1 };
    assert_eq!(ask(&ring(b(2, 7, 4)), &[0, 0], 4), Ok(()));
    let at = |tick| Err(Violation::Overlap { first: 0, second: 1, bytes: (0, 4), tick });
    assert_eq!(ask(&ring(b(1, 3, 4)), &[0, 0], 4), at(1));
    assert_eq!(ask(&ring(b(6, 8, 4)), &[0, 0], 4), at(7));
    assert_eq!(ask(&ring(b(9, 11, 4)), &[0, 0], 4), at(0));
}

#[test]
fn a_buffer_above_the_height_is_refused_also_past_the_last_byte() {
    let problem = line(&[b(0, 1, 8)]);
    let above = |offset, height| Violation::AboveHeight { buffer: 0, offset, size: 8, height };
    assert_eq!(ask(&problem, &[1], 8), Err(above(1, 8)));
    assert_eq!(ask(&problem, &[u64::MAX], u64::MAX), Err(above(u64::MAX, u64::MAX)));
}

#[test]
fn a_misaligned_offset_is_refused() {
    let problem = Problem { buffers: vec![b(0, 1, 8)], period: 0, alignment: 512 };
    let misaligned = Violation::Misaligned { buffer: 0, offset: 513, alignment: 512 };
    assert_eq!(ask(&problem, &[513], 4096), Err(misaligned));
}

#[test]
fn one_offset_for_each_buffer() {
    let problem = line(&[b(0, 1, 8), b(1, 2, 8)]);
    assert_eq!(ask(&problem, &[0], 8), Err(Violation::Count { buffers: 2, offsets: 1 }));
    assert_eq!(ask(&problem, &[0, 0, 0], 8), Err(Violation::Count { buffers: 2, offsets: 3 }));
}

#[test]
fn a_buffer_of_nothing_may_lie_anywhere() {
    let problem = Problem { buffers: vec![b(0, 2, 8), b(0, 2, 0)], period: 0, alignment: 8 };
    assert_eq!(ask(&problem, &[0, 3], 8), Ok(()));
    assert_eq!(ask(&problem, &[0, u64::MAX], 8), Ok(()));
}

#[test]
fn a_problem_without_meaning_has_no_solution() {
    assert!(matches!(ask(&line(&[b(2, 2, 1)]), &[0], 1), Err(Violation::Problem(_))));
}

/// A valid solution of any problem with a load.
fn solved(u: &mut Unstructured<'_>) -> arbitrary::Result<(Problem, Solution)> {
    let AnyProblem(problem) = AnyProblem::arbitrary(u)?;
    let planner = *u.choose(&planners())?;
    let solution = planner.plan(&problem).expect("valid");
    Ok((problem, solution))
}

#[test]
fn the_two_checkers_agree_on_any_offsets() {
    arbtest::arbtest(|u| {
        let (problem, mut solution) = solved(u)?;
        for _ in 0..u.int_in_range(0..=3)? {
            if let Some(offset) = solution.offsets.get_mut(u.int_in_range(0..=39)?) {
                *offset = u.int_in_range(0..=20)? * problem.alignment;
            }
        }
        let _ = ask(&problem, &solution.offsets, solution.height);
        Ok(())
    });
}

#[test]
fn a_buffer_moved_onto_a_contemporary_is_always_refused() {
    arbtest::arbtest(|u| {
        let (problem, solution) = solved(u)?;
        let buffers = &problem.buffers;
        let meet = |a: &Buffer, b: &Buffer| {
            (0..40).any(|t| a.is_alive(t, problem.period) && b.is_alive(t, problem.period))
        };
        for one in 0..buffers.len() {
            for other in 0..buffers.len() {
                let both = buffers[one].size > 0 && buffers[other].size > 0;
                if one != other && both && meet(&buffers[one], &buffers[other]) {
                    let mut offsets = solution.offsets.clone();
                    offsets[one] = offsets[other];
                    let verdict = ask(&problem, &offsets, u64::MAX);
                    assert!(matches!(verdict, Err(Violation::Overlap { .. })), "{verdict:?}");
                }
            }
        }
        Ok(())
    });
}

#[test]
fn an_arena_a_unit_lower_than_the_solution_is_always_refused() {
    arbtest::arbtest(|u| {
        let (problem, solution) = solved(u)?;
        if solution.height > 0 {
            let lower = solution.height - problem.alignment;
            let verdict = ask(&problem, &solution.offsets, lower);
            assert!(matches!(verdict, Err(Violation::AboveHeight { .. })), "{verdict:?}");
        }
        Ok(())
    });
}
