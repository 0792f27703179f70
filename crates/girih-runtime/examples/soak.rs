//! Every policy at work for long, on the simulated device, with calls of it that fail now and then.
//!
//!     cargo run --release -p girih-runtime --example soak -- [OPERATIONS] [SEED]
//!
//! *Operations* are shared out among the policies; a million and the seed 1 without arguments. It
//! panics on the first rule that is broken (see `girih_runtime::suite`).

#![expect(clippy::print_stdout, reason = "a program that prints a table")]
#![expect(clippy::disallowed_methods, reason = "a program that measures")]

use std::error::Error;
use std::time::Instant;

use girih_runtime::suite::{self, Soak};

const GIB: f64 = (1u64 << 30) as f64;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Result<Vec<u64>, _> =
        std::env::args().skip(1).map(|text| text.parse()).collect();
    let (total, seed) = match arguments?.as_slice() {
        [] => (1_000_000, 1),
        [total] => (*total, 1),
        [total, seed] => (*total, *seed),
        _ => return Err("two arguments at most: OPERATIONS SEED".into()),
    };
    let policies = suite::every_policy(seed);
    let operations = total.div_ceil(policies.len() as u64);
    let run =
        Soak { operations, seed, device_bytes: 2 << 30, check_every: 500, fault_every: 5_000 };
    println!(
        "| policy | operations | calls | made to fail | no memory | peak GiB | views | seconds |"
    );
    println!("|:--|--:|--:|--:|--:|--:|--:|--:|");
    for policy in policies {
        let (name, start) = (policy.name(), Instant::now());
        let done = suite::soak(&run, policy);
        println!(
            "| {name} | {operations} | {} | {} | {} | {:.3} | {} | {:.0} |",
            done.calls,
            done.faults,
            done.failed,
            done.peak as f64 / GIB,
            done.stitches,
            start.elapsed().as_secs_f64(),
        );
    }
    Ok(())
}
