//! What a plan is worth on what it was not made of: the rest of a run after its first half, and a second launch.

use std::sync::Arc;

use girih_plan::Plan;
use girih_runtime::auto;
use girih_runtime::simulate::{Allocator, Setup, Simulation, launch, simulate};
use girih_trace::parts::first_part;
use girih_trace::{Iterations, Lifetimes, Tick, Trace};

/// Recordings whose iterations are alike in sizes.
const STEADY: [&str; 4] = ["fsdp2_R_r0", "llama2b_R", "megatron_gpt2-R_r3", "megatron_gpt2-V-R_r0"];
/// Those whose plans hold some MiB more than none in their own runs: nobody follows them.
const UNHELPFUL: [&str; 2] = ["llama2b_N", "moe_R"];
/// Recordings whose iterations are not.
const VARIED: [&str; 3] = ["gpt2m_R_vary", "llama2b_vary", "moe_vary"];
/// The least efficiency where iterations repeat.
const LEAST: f64 = 0.995;

fn reserved(simulation: &Simulation) -> u64 {
    simulation.stats.reserved_bytes.all().peak
}

fn peaks(simulation: &Simulation) -> (u64, u64) {
    (simulation.stats.allocated_bytes.all().peak, reserved(simulation))
}

/// The share of the bytes that were given their place.
fn hit_share(simulation: &Simulation) -> f64 {
    let following = simulation.following.expect("it follows a plan");
    following.hit_bytes as f64 / (following.hit_bytes + following.miss_bytes) as f64
}

fn run(trace: &Trace, allocator: Allocator, setup: &Setup) -> Simulation {
    let simulation = simulate(trace, &Lifetimes::of(trace), allocator, setup);
    let simulation = simulation.expect("a simulation");
    assert_eq!(simulation.replayed.failed, 0);
    simulation
}

/// The rest of a run after the first half of its iterations, without a plan and with that of the first half.
struct Halves {
    plan: Arc<Plan>,
    stitch: Simulation,
    learnt: Simulation,
}

impl Halves {
    fn of(trace: &Trace) -> Halves {
        let lives = Lifetimes::of(trace);
        let list = Iterations::of(trace, &lives).list;
        let cut = Tick(list[list.len() / 2].ticks.start);
        let (first, first_lives) = first_part(trace, &lives, cut);
        let plan = Arc::new(auto::learn(&first, &first_lives));
        let setup = Setup { rest: Some(cut), plan: Some(Arc::clone(&plan)), ..Setup::default() };
        let [stitch, learnt] =
            [Allocator::Stitch, Allocator::Planned].map(|of| run(trace, of, &setup));
        Halves { plan, stitch, learnt }
    }
}

#[test]
fn a_plan_of_the_first_half_serves_a_rest_that_is_like_it() {
    for name in STEADY {
        // Of three or four steps, a half is too little to see that they are alike.
        let halves = Halves::of(&crate::common::repeated(&crate::corpus::recording(name), 6));
        assert!(halves.plan.is_reliable(), "{name}");
        let (learnt, stitch) = (&halves.learnt, &halves.stitch);
        assert!(learnt.efficiency() >= LEAST, "{name}: {:.4}", learnt.efficiency());
        assert!(reserved(learnt) <= reserved(stitch), "{name}: {:?}", peaks(learnt));
        assert!(hit_share(learnt) >= 0.98, "{name}: {:.4}", hit_share(learnt));
    }
}

#[test]
fn a_plan_of_the_first_half_of_what_was_recorded_holds_no_more_than_none() {
    for name in STEADY.into_iter().chain(VARIED).chain(UNHELPFUL) {
        let halves = Halves::of(&crate::corpus::recording(name));
        let held = [&halves.learnt, &halves.stitch].map(reserved);
        assert!(held[0] <= held[1], "{name}: {held:?}");
        if !STEADY.contains(&name) {
            assert!(!halves.plan.is_reliable(), "{name}: the rest differs");
        }
    }
}

#[test]
fn a_second_launch_is_at_least_what_the_first_was_and_better_where_steps_are_alike() {
    for name in STEADY.into_iter().chain(VARIED).chain(UNHELPFUL) {
        let trace = crate::corpus::recording(name);
        let lives = Lifetimes::of(&trace);
        let iterations = Iterations::of(&trace, &lives);
        let kept = launch::first(&trace, &lives, &iterations, &Setup::default());
        let kept = kept.expect("a first launch").expect("a plan that fits");
        assert_eq!(kept.is_reliable(), STEADY.contains(&name), "{name}");
        let setup = Setup { kept: Some(kept), ..Setup::default() };
        let [first, second] = [Allocator::Auto, Allocator::Again].map(|of| run(&trace, of, &setup));
        let held = [&second, &first].map(reserved);
        assert!(held[0] <= held[1], "{name}: {held:?}");
        if !STEADY.contains(&name) {
            assert_eq!(second.calls, first.calls, "{name}: it is another first launch");
        } else {
            assert!(second.efficiency() >= LEAST, "{name}: {:.4}", second.efficiency());
            // Much of what only the first step asks for has no place.
            assert!(hit_share(&second) >= 0.95, "{name}: {:.4}", hit_share(&second));
        }
    }
}

#[test]
fn a_program_that_ends_before_its_steps_are_known_leaves_nothing() {
    let trace = crate::corpus::recording("fsdp2_R_r0");
    let lives = Lifetimes::of(&trace);
    let iterations = Iterations::of(&trace, &lives);
    let (short, short_lives) = first_part(&trace, &lives, Tick(iterations.list[2].ticks.start));
    let short_iterations = Iterations::of(&short, &short_lives);
    let kept = launch::first(&short, &short_lives, &short_iterations, &Setup::default());
    assert!(kept.expect("a first launch").is_none());
    let setup = Setup::default();
    let [first, second] = [Allocator::Auto, Allocator::Again].map(|of| run(&trace, of, &setup));
    assert_eq!((first.stats, first.calls), (second.stats, second.calls));
}

/// What is counted up to a cut and from there on is, together, what is counted of the whole.
#[test]
fn the_first_part_and_the_rest_are_the_whole() {
    for name in ["megatron_gpt2-R_r3", "fsdp2_R_r0", "mlp_stacks"] {
        let trace = crate::common::repeated(&crate::corpus::recording(name), 4);
        let lives = Lifetimes::of(&trace);
        let iterations = Iterations::of(&trace, &lives);
        let plan = launch::first(&trace, &lives, &iterations, &Setup::default());
        let plan = plan.expect("a first launch").or(Some(Arc::default()));
        // STWeaver plans the run that it is given: a part of it has another plan.
        let same = Allocator::ALL.into_iter().filter(|&it| it != Allocator::Stweaver);
        for allocator in same {
            let setup = Setup { plan: plan.clone(), kept: plan.clone(), ..Setup::default() };
            let whole = run(&trace, allocator, &setup);
            for cut in [1, iterations.list.len() - 2] {
                let cut = Tick(iterations.list[cut].ticks.start);
                let (first, first_lives) = first_part(&trace, &lives, cut);
                let first = simulate(&first, &first_lives, allocator, &setup).expect("a replay");
                let rest = run(&trace, allocator, &Setup { rest: Some(cut), ..setup.clone() });
                let (a, b) = (peaks(&first), peaks(&rest));
                let both = (a.0.max(b.0), a.1.max(b.1));
                assert_eq!(both, peaks(&whole), "{name}, {allocator:?}, {cut:?}");
                let hits = |of: &Simulation| of.following.map_or(0, |following| following.hits);
                let sum = hits(&first) + hits(&rest);
                assert_eq!(sum, hits(&whole), "{name}, {allocator:?}, {cut:?}");
                assert_eq!(rest.calls, whole.calls, "calls are of the whole run");
            }
        }
    }
}

#[test]
fn what_is_held_where_the_rest_begins_counts_for_it() {
    let trace = crate::corpus::recording("megatron_gpt2-R_r3");
    let end = Tick(trace.events.len() as u32 - 1);
    let setup = Setup { rest: Some(end), ..Setup::default() };
    let rest = run(&trace, Allocator::Stitch, &setup);
    let held = rest.stats.reserved_bytes.all();
    assert!(held.peak > 0 && held.peak == held.current, "{held:?}");
    // From the first event on the rest is the whole.
    let [all, whole] = [Some(Tick(0)), None]
        .map(|rest| run(&trace, Allocator::Stitch, &Setup { rest, ..Setup::default() }));
    assert_eq!((all.stats, all.replayed), (whole.stats, whole.replayed));
}
