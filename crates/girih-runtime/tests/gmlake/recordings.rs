//! Recorded runs, replayed through GMLake.

use girih_runtime::gmlake::Config;
use girih_runtime::simulate::{Allocator, Setup, Simulation, simulate};
use girih_trace::{Lifetimes, Trace};

use crate::corpus::recording;
use crate::lake::world::MIB;

fn run(trace: &Trace, allocator: Allocator, fragmentation_limit: u64) -> Simulation {
    let gmlake = Config { fragmentation_limit, ..Config::default() };
    let setup = Setup { gmlake, ..Setup::default() };
    let simulation = simulate(trace, &Lifetimes::of(trace), allocator, &setup).unwrap();
    assert_eq!(simulation.replayed.failed, 0);
    simulation
}

fn peak(simulation: &Simulation) -> u64 {
    simulation.stats.reserved_bytes.all().peak
}

#[test]
fn with_everything_stitched_a_recorded_run_holds_less_than_under_pytorch() {
    for name in ["megatron_gpt2-R_r3", "fsdp2_R_r0", "llama2b_R"] {
        let trace = recording(name);
        let native = run(&trace, Allocator::Native, 0);
        let lake = run(&trace, Allocator::Gmlake, 2 * MIB);
        assert!(peak(&lake) < peak(&native), "{name}: {} {}", peak(&lake), peak(&native));
    }
}

#[test]
fn a_recorded_run_of_three_streams_uses_no_byte_too_early() {
    let trace = recording("fsdp2_R_r0");
    let gmlake = Config { fragmentation_limit: 64 * MIB, ..Config::default() };
    let setup = Setup { gmlake, check_order: true, ..Setup::default() };
    // A byte that is used too early is an error of the device.
    simulate(&trace, &Lifetimes::of(&trace), Allocator::Gmlake, &setup).unwrap();
}

#[test]
fn on_one_stream_stitching_leaves_nothing_but_what_is_rounded() {
    let trace = recording("megatron_gpt2-R_r3");
    let lake = run(&trace, Allocator::Gmlake, 2 * MIB);
    let allocated = lake.stats.allocated_bytes.all().peak;
    assert!(allocated as f64 / peak(&lake) as f64 > 0.999, "{allocated}");
    let requested = lake.stats.requested_bytes.all().peak as f64;
    assert!(requested / peak(&lake) as f64 > 0.995);
}

#[test]
fn the_higher_the_limit_the_more_is_held() {
    let trace = recording("megatron_gpt2-R_r3");
    let peaks = [2, 64, 128, 512].map(|mib| peak(&run(&trace, Allocator::Gmlake, mib * MIB)));
    assert!(peaks.is_sorted(), "{peaks:?}");
}
