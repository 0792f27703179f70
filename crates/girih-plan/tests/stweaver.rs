//! STWeaver's planner, whole: right on everything, the same every time, and as good as its paper
//! says where the phases are known.

use crate::common::pipeline::Pipeline;
use crate::common::{AnyProblem, recorded};
use arbitrary::Arbitrary;
use girih_plan::bound::max_load;
use girih_plan::check::{check, check_pairs};
use girih_plan::stweaver::{
    Bubbles, DynamicLayers, PhaseSpan, Steps, StweaverError, Synthesis, Timeline, plan,
    plan_as_released, plan_by_size, plan_in_steps,
};
use girih_plan::{Budget, Buffer, Problem, ProblemError, Solution, profile, solve, verify};
use girih_trace::generate::{Training, training};
use girih_trace::{Iterations, Lifetimes, Trace};

/// The problem that the profile makes of a recording, with the phases of its buffers.
fn problem_of(trace: &Trace) -> (Problem, Vec<PhaseSpan>) {
    let lives = Lifetimes::of(trace);
    let iterations = Iterations::of(trace, &lives);
    let mut seen = None;
    let plan = profile::plan(trace, &lives, &iterations, |problem| {
        seen = Some(problem.clone());
        solve(problem, Budget::interactive(problem.buffers.len()))
    })
    .expect("valid");
    let problem = seen.expect("the planner is asked once");
    let spans = Timeline::of(&plan, trace, &lives, &iterations).spans(&problem);
    (problem, spans)
}

const BUBBLES: [Bubbles; 2] = [Bubbles::Closed, Bubbles::Open];

/// Plans, checks, and says how far above the bound the plan is, as a part of the bound.
fn gap(problem: &Problem, spans: &[PhaseSpan]) -> (f64, Steps) {
    let (solution, steps) = plan_in_steps(problem, spans, Bubbles::Closed).expect("valid");
    (gap_of(problem, &solution), steps)
}

fn gap_of(problem: &Problem, solution: &Solution) -> f64 {
    check(problem, solution).expect("right");
    let bound = max_load(problem).expect("valid").bytes;
    (solution.height - bound) as f64 / bound as f64
}

#[test]
fn every_plan_passes_the_checker_whatever_the_phases_are() {
    arbtest::arbtest(|u| {
        let AnyProblem(problem) = AnyProblem::arbitrary(u)?;
        let mut spans = Vec::new();
        for _ in &problem.buffers {
            let (birth, death) = (u.int_in_range(0..=3)?, u.int_in_range(0..=4)?);
            spans.push(PhaseSpan { birth, death });
        }
        let bubbles = *u.choose(&BUBBLES)?;
        let solution = plan(&problem, &spans, bubbles).expect("valid");
        check(&problem, &solution).unwrap_or_else(|e| panic!("{e}: {problem:?} {spans:?}"));
        check_pairs(&problem, &solution).expect("both checkers agree");
        assert_eq!(solution.height % problem.alignment, 0);
        assert_eq!(solution.planner, "stweaver");
        assert_eq!(plan(&problem, &spans, bubbles), Ok(solution.clone()), "the same every time");
        let best = plan_as_released(&problem, &spans).expect("valid");
        check(&problem, &best).expect("right");
        assert!(best.height <= solution.height, "{problem:?} {spans:?}");
        Ok(())
    });
}

#[test]
fn every_plan_passes_the_checker_where_phases_follow_time() {
    arbtest::arbtest(|u| {
        let AnyProblem(problem) = AnyProblem::arbitrary(u)?;
        let mut starts: Vec<u32> = (0..u.int_in_range(0..=4)?)
            .map(|_| u.int_in_range(0..=40))
            .collect::<Result<_, _>>()?;
        starts.sort_unstable();
        let spans = Timeline::new(&starts).spans(&problem);
        let bubbles = *u.choose(&BUBBLES)?;
        let (solution, steps) = plan_in_steps(&problem, &spans, bubbles).expect("valid");
        check(&problem, &solution).unwrap_or_else(|e| panic!("{e}: {problem:?} {spans:?}"));
        assert!(steps.fused * 2 <= steps.groups && steps.fused <= steps.tried);
        assert!(steps.inserted + steps.layers <= steps.requests);
        Ok(())
    });
}

#[test]
fn a_single_phase_leaves_the_second_step_alone() {
    arbtest::arbtest(|u| {
        let AnyProblem(problem) = AnyProblem::arbitrary(u)?;
        let spans = vec![PhaseSpan { birth: 7, death: 7 }; problem.buffers.len()];
        let by_size = plan_by_size(&problem).expect("valid");
        check(&problem, &by_size).expect("right");
        for bubbles in BUBBLES {
            assert_eq!(plan(&problem, &spans, bubbles).as_ref(), Ok(&by_size));
        }
        Ok(())
    });
}

#[test]
fn an_iteration_by_hand_is_planned_as_the_paper_draws_it() {
    // Phases: forward [0, 4), backward [4, 8), optimizer [8, 10). Two activations go in the reverse
    // of their order, and leave room for two gradients that the optimizer takes up; a transient of
    // the forward and one of the optimizer, when the gradients are gone.
    let b = |lower, upper, size| Buffer { lower, upper, size };
    let buffers = vec![b(0, 7, 4), b(1, 5, 4), b(5, 9, 4), b(7, 9, 4), b(2, 3, 2), b(9, 10, 2)];
    let problem = Problem { buffers, period: 0, alignment: 1 };
    let spans = Timeline::new(&[0, 4, 8]).spans(&problem);
    assert_eq!(
        (spans[1], spans[2]),
        (PhaseSpan { birth: 1, death: 2 }, PhaseSpan { birth: 2, death: 3 })
    );
    let (solution, steps) = plan_in_steps(&problem, &spans, Bubbles::Closed).expect("valid");
    // One rectangle for both groups: the gradient of tick 7 where the activation of tick 0 was.
    assert_eq!((steps.groups, steps.tried, steps.fused), (2, 1, 1));
    assert_eq!(solution.offsets[..4], [0, 4, 4, 0]);
    // The first transient has a layer above it, the second what it leaves idle.
    assert_eq!((solution.offsets[4], solution.offsets[5], solution.height), (8, 0, 10));
    assert_eq!((steps.requests, steps.sizes, steps.layers, steps.inserted), (3, 2, 2, 1));
}

#[test]
fn what_has_no_meaning_is_named() {
    let problem =
        Problem { buffers: vec![Buffer { lower: 0, upper: 1, size: 1 }], period: 0, alignment: 1 };
    let missing = plan(&problem, &[], Bubbles::Closed).expect_err("no phases");
    assert_eq!(missing, StweaverError::Phases { buffers: 1, phases: 0 });
    assert!(missing.to_string().contains("there are 0 for 1 buffers"));
    let nonsense = Problem { alignment: 0, ..problem };
    let error = plan(&nonsense, &[PhaseSpan::default()], Bubbles::Open).expect_err("no alignment");
    assert_eq!(error, StweaverError::Problem(ProblemError::Alignment));
}

#[test]
fn the_largest_times_and_sizes_are_planned() {
    let b = |lower, upper, size| Buffer { lower, upper, size };
    let half = u64::MAX / 2;
    let buffers = vec![b(0, u32::MAX, 1), b(u32::MAX - 1, u32::MAX, half), b(5, 6, half)];
    for period in [0, u32::MAX] {
        let problem = Problem { buffers: buffers.clone(), period, alignment: 1 };
        for starts in [&[][..], &[6], &[6, u32::MAX - 1]] {
            let spans = Timeline::new(starts).spans(&problem);
            for bubbles in BUBBLES {
                let solution = plan(&problem, &spans, bubbles).expect("valid");
                check(&problem, &solution).expect("right");
                assert_eq!(solution.height, half + 1);
            }
        }
    }
}

#[test]
fn the_schedule_of_a_pipeline_is_planned_by_size_within_a_hundredth() {
    for ring in [false, true] {
        let pipeline = Pipeline { microbatches: 24, layers: 4, ahead: 3, ring, jitter: 0 };
        let problem = pipeline.problem();
        let gap = gap_of(&problem, &plan_by_size(&problem).expect("valid"));
        assert!(gap < 0.01, "gap {gap}");
    }
}

#[test]
fn generated_training_has_the_phases_of_its_marks() {
    for (stages, recompute, evaluate_every) in [(1, false, 0), (4, false, 0), (2, true, 2)] {
        let shape = Training { stages, recompute, evaluate_every, steps: 5, ..Training::default() };
        let (problem, spans) = problem_of(&training(&shape, 7));
        let (gap, steps) = gap(&problem, &spans);
        // What the forward of each microbatch leaves to its backward is one group at least.
        assert!(steps.groups >= shape.microbatches as usize, "{steps:?}");
        assert!(gap < 0.5, "{shape:?}: gap {gap}");
    }
}

#[test]
fn where_no_pass_is_marked_the_iteration_is_one_phase() {
    let mut trace = training(&Training::default(), 7);
    trace.marks.clear();
    let (problem, spans) = problem_of(&trace);
    assert!(spans.iter().all(|span| *span == PhaseSpan::default()));
    let (_, steps) = gap(&problem, &spans);
    assert_eq!(steps.groups, 0);
}

#[test]
fn what_a_group_leaves_idle_serves_others_where_bubbles_are_open() {
    // Two of a group, of which the second is gone early, and a transient that comes then.
    let b = |lower, upper, size| Buffer { lower, upper, size };
    let buffers = vec![b(0, 9, 4), b(1, 5, 4), b(6, 8, 4)];
    let problem = Problem { buffers, period: 0, alignment: 1 };
    let spans = [(0, 1), (0, 1), (1, 1)].map(|(birth, death)| PhaseSpan { birth, death });
    let height = |bubbles| plan(&problem, &spans, bubbles).expect("valid").height;
    assert_eq!((height(Bubbles::Closed), height(Bubbles::Open)), (12, 8));
    assert_eq!(plan_as_released(&problem, &spans).expect("valid").height, 8);
}

#[test]
fn the_static_plan_of_a_run_with_experts_is_verified_and_its_spaces_lie_in_its_arena() {
    let Some(trace) = recorded("megatron_qwenmoe-R_r0") else { return };
    let lives = Lifetimes::of(&trace);
    let layers = DynamicLayers::of(&trace, &lives);
    let synthesis = Synthesis::of(&trace, &lives, &layers).expect("valid");
    verify(&synthesis.plan).expect("right");
    // A run of each of 12 layers forward, computed again, and back, in 8 microbatches.
    assert_eq!(synthesis.steady.len(), 3 * 12 * 8);
    assert!(!synthesis.opening.is_empty());
    for space in &synthesis.spaces {
        let mut end = 0;
        for &(from, to) in space {
            assert!(end <= from && from < to, "{space:?}");
            end = to;
        }
        assert!(end <= synthesis.plan.arena_bytes);
    }
    let runs = synthesis.opening.iter().chain(&synthesis.steady);
    assert!(runs.flat_map(|run| &run.requests).all(|&it| (it as usize) < synthesis.spaces.len()));
}

#[test]
fn recorded_runs_are_planned_within_what_was_measured() {
    // By groups, with open bubbles, and by size alone.
    let measured = [("fsdp2_R_r0", 0.084, 0.0001, 0.0), ("megatron_gpt2-R_r3", 0.017, 0.006, 0.0)];
    for (name, by_groups, by_open, by_size) in measured {
        let Some(trace) = recorded(name) else { continue };
        let (problem, spans) = problem_of(&trace);
        let (with_groups, steps) = gap(&problem, &spans);
        assert!(steps.groups > 0 && with_groups <= by_groups, "{name}: {with_groups} {steps:?}");
        let open = plan(&problem, &spans, Bubbles::Open).expect("valid");
        let open = gap_of(&problem, &open);
        assert!(open <= by_open, "{name}: {open}");
        let alone = gap_of(&problem, &plan_by_size(&problem).expect("valid"));
        assert!(alone <= by_size, "{name}: {alone}");
    }
}
