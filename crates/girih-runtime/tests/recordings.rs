//! What the allocators that stitch and plan make of every recording of the corpus.

use std::sync::Arc;

use girih_plan::{Budget, profile, solve};
use girih_runtime::lake::Options;
use girih_runtime::simulate::{Allocator, Setup, Simulation, simulate};
use girih_trace::{Iterations, Lifetimes, Trace};

/// The recordings, with the least efficiency of `stitch` over the whole run.
const RECORDINGS: [(&str, f64); 10] = [
    ("fsdp2_R_r0", 0.995),
    ("gpt2m_R_vary", 0.996),
    ("llama2b_N", 0.998),
    ("llama2b_R", 0.996),
    ("llama2b_vary", 0.994),
    ("megatron_gpt2-R_r3", 0.998),
    ("megatron_gpt2-V-R_r0", 0.995),
    ("mlp_stacks", 0.991),
    ("moe_R", 0.997),
    ("moe_vary", 0.996),
];

/// Those of programs whose sizes vary from step to step, likewise.
const KINDS: [(&str, f64); 6] = [
    ("kinds/evaluation", 0.999),
    ("kinds/experts", 0.987),
    ("kinds/gan", 0.995),
    ("kinds/graphs", 0.996),
    ("kinds/turns", 0.983),
    ("kinds/video", 0.995),
];

fn run(trace: &Trace, allocator: Allocator) -> Simulation {
    let lives = Lifetimes::of(trace);
    let plan = (allocator == Allocator::Planned).then(|| {
        let iterations = Iterations::of(trace, &lives);
        let plan = profile::plan(trace, &lives, &iterations, |problem| {
            solve(problem, Budget::interactive(problem.buffers.len()))
        });
        Arc::new(plan.expect("a problem of a trace"))
    });
    let setup = Setup { plan, ..Setup::default() };
    let simulation = simulate(trace, &lives, allocator, &setup).expect("a simulation");
    assert_eq!(simulation.replayed.failed, 0);
    simulation
}

/// The largest page of the lake.
const PAGE: u64 = 16 << 20;

fn reserved(simulation: &Simulation) -> u64 {
    simulation.stats.reserved_bytes.all().peak
}

#[test]
fn stitch_holds_little_more_than_is_in_use_and_no_more_than_other_allocators() {
    for (name, least) in RECORDINGS.into_iter().chain(KINDS) {
        let trace = crate::corpus::recording(name);
        let stitch = run(&trace, Allocator::Stitch);
        assert!(stitch.efficiency() >= least, "{name}: {:.4}", stitch.efficiency());
        for other in [Allocator::Native, Allocator::Expandable, Allocator::Gmlake] {
            let other = run(&trace, other);
            let peaks = [&stitch, &other].map(reserved);
            assert!(peaks[0] <= peaks[1], "{name}, {}: {peaks:?}", other.allocator.name());
        }
    }
}

#[test]
fn a_plan_holds_no_more_than_no_plan_or_than_the_slack_of_its_places_but_for_a_page() {
    for (name, _) in RECORDINGS {
        let trace = crate::corpus::recording(name);
        let [planned, stitch] = [Allocator::Planned, Allocator::Stitch].map(|of| run(&trace, of));
        let peaks = [&planned, &stitch].map(reserved);
        let in_use = stitch.stats.allocated_bytes.all().peak;
        let places = in_use + in_use / Options::default().slack;
        // What misses its place lies at the ends of other pages.
        assert!(peaks[0] <= peaks[1].max(places) + PAGE, "{name}: {peaks:?}");
        // Nobody follows a plan with which the run that it is of holds more.
        let is_helpful = !["llama2b_N", "moe_R"].contains(&name);
        assert_eq!(peaks[0] <= peaks[1], is_helpful, "{name}: {peaks:?}");
    }
}

#[test]
fn auto_holds_at_most_a_fiftieth_more_than_is_in_use_from_its_first_request_on() {
    for (name, _) in RECORDINGS {
        let auto = run(&crate::corpus::recording(name), Allocator::Auto);
        assert!(auto.efficiency() * 1.02 >= 1.0, "{name}: {:.4}", auto.efficiency());
    }
}
