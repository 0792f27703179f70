//! DeepSpeed's ZeRO-3: weights that are gathered on one stream and used on another, whose frees wait for events. Streams
//! wait for each other for longer than they may, so that time is owed.

use girih_runtime::simulate::{Allocator, Setup, Simulation, launch, simulate};
use girih_trace::{Iterations, Lifetimes, Trace};

/// The recordings, with the least efficiency of `stitch`, of a second launch, and the most that all calls of the device take
/// in a whole run of `stitch`, in milliseconds.
const RECORDINGS: [(&str, f64, f64, f64); 4] = [
    ("zero3/llama13b_LR", 0.941, 0.993, 1200.0),
    ("zero3/opt13b_LR", 0.967, 0.996, 900.0),
    ("zero3/opt1b_LR", 0.977, 0.977, 800.0),
    ("zero3/opt1b_N", 0.998, 0.999, 650.0),
];

fn run(trace: &Trace, allocator: Allocator, setup: &Setup) -> Simulation {
    let simulation = simulate(trace, &Lifetimes::of(trace), allocator, setup);
    let simulation = simulation.expect("a simulation");
    assert_eq!(simulation.replayed.failed, 0);
    simulation
}

#[test]
fn streams_that_wait_for_each_other_buy_little_and_a_plan_takes_nothing_away() {
    for (name, least, least_again, most) in RECORDINGS {
        let trace = crate::corpus::recording(name);
        let lives = Lifetimes::of(&trace);
        let iterations = Iterations::of(&trace, &lives);
        let kept = launch::first(&trace, &lives, &iterations, &Setup::default());
        let setup = Setup { kept: kept.expect("a first launch"), ..Setup::default() };
        let [native, stitch, again] = [Allocator::Native, Allocator::Stitch, Allocator::Again]
            .map(|of| run(&trace, of, &setup));
        assert!(stitch.efficiency() >= least, "{name}: {:.4}", stitch.efficiency());
        assert!(stitch.efficiency() > native.efficiency() + 0.05, "{name}");
        assert!(again.efficiency() >= least_again, "{name}: {:.4}", again.efficiency());
        let held = [&again, &stitch].map(|of| of.stats.reserved_bytes.all().peak);
        assert!(held[0] <= held[1], "{name}: {held:?}");
        let taken = stitch.calls.sum().microseconds / 1000.0;
        assert!(taken <= most, "{name}: {taken:.0} ms");
    }
}
