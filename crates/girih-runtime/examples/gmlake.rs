//! GMLake on recorded runs, with its fragmentation limit at 512, 128, 64 and 2 MiB.
//!
//!     cargo run --release -p girih-runtime --example gmlake -- FILE.girih ...
//!
//! *Requested*: peak requested by peak reserved. *Allocated*: peak allocated by peak reserved, in
//! which what a block has beyond its request counts as used. *Maps*: handles that were mapped.
//! *Seconds*: what all calls of the device would have cost on an H200.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::error::Error;
use std::fs::File;

use girih_runtime::gmlake::{Config, LimitOf};
use girih_runtime::sim::Call;
use girih_runtime::simulate::{Allocator, Setup, Simulation, simulate};
use girih_trace::compress::Limits;
use girih_trace::{Lifetimes, open};

const GIB: f64 = (1u64 << 30) as f64;

fn main() -> Result<(), Box<dyn Error>> {
    for path in std::env::args().skip(1) {
        let mut recording = open::detect_and_read(File::open(&path)?, Limits::default())?;
        recording.traces.sort_by_key(|trace| trace.events.len());
        let trace = recording.traces.pop().ok_or("there is no trace in it")?;
        let lives = Lifetimes::of(&trace);
        println!("{path}");
        println!(
            "| allocator | limit | of | requested | allocated | reserved GiB | maps | seconds |"
        );
        println!("|:--|--:|:--|--:|--:|--:|--:|--:|");
        for allocator in [Allocator::Native, Allocator::Expandable] {
            let simulation = simulate(&trace, &lives, allocator, &Setup::default())?;
            row(&simulation, "", "");
        }
        for limit_of in [LimitOf::Blocks, LimitOf::Requests] {
            for limit in [512, 128, 64, 2] {
                let gmlake =
                    Config { fragmentation_limit: limit << 20, limit_of, ..Config::default() };
                let setup = Setup { gmlake, ..Setup::default() };
                let simulation = simulate(&trace, &lives, Allocator::Gmlake, &setup)?;
                row(&simulation, &format!("{limit} MiB"), &format!("{limit_of:?}"));
            }
        }
        println!();
    }
    Ok(())
}

fn row(simulation: &Simulation, limit: &str, limit_of: &str) {
    let stats = &simulation.stats;
    let reserved = stats.reserved_bytes.all().peak as f64;
    let requested = stats.requested_bytes.all().peak as f64 / reserved;
    let (name, efficiency) = (simulation.allocator.name(), simulation.efficiency());
    let maps = simulation.calls.of(Call::Map).calls;
    let seconds = simulation.calls.sum().microseconds / 1e6;
    println!(
        "| {name} | {limit} | {limit_of} | {requested:.4} | {efficiency:.4} | {:.3} | {maps} \
         | {seconds:.1} |",
        reserved / GIB
    );
}
