//! How often a search that halves passes over a larger value that fits, by how many neighbours above a refused value
//! are tried. Generated jobs, each on several capacities; every value is tried to know the truth.
//!
//! `cargo run --release -p girih-fit --example neighbours`
#![expect(clippy::print_stdout, reason = "it is a program")]

use std::collections::BTreeMap;

use girih_fit::Subject;
use girih_runtime::simulate::{Allocator, Setup, SimulateError};
use girih_trace::Lifetimes;
use girih_trace::generate::{Training, training};

/// Values that are tried, from 1.
const VALUES: u64 = 60;
const ALLOCATORS: [Allocator; 4] =
    [Allocator::Native, Allocator::Expandable, Allocator::Stitch, Allocator::Planned];

fn main() -> Result<(), SimulateError> {
    let mut searches = 0_u64;
    let mut missed: BTreeMap<u64, u64> = BTreeMap::new();
    let mut widest = 0;
    for job in 0..24_u64 {
        let params = Training {
            layers: 2 + (job % 3) as u32,
            hidden: 256 + 96 * (job % 5),
            sequence: 200 + 37 * (job % 7),
            stages: 1 + (job % 2) as u32,
            recompute: job % 2 == 0,
            evaluate_every: (job % 3) as u32,
            jitter: if job % 4 == 3 { 60 } else { 0 },
            steps: 3,
            ..Training::default()
        };
        let traces: Vec<_> = (1..=VALUES)
            .map(|microbatch| training(&Training { microbatch, ..params.clone() }, job))
            .collect();
        for allocator in ALLOCATORS {
            // What each value needs, without a limit: whether it fits on a smaller device is nearly that.
            let needs = |setup: Setup| -> Result<Vec<Option<u64>>, SimulateError> {
                let of = |trace: &girih_trace::Trace| {
                    let lives = Lifetimes::of(trace);
                    let subject = Subject::built(trace.clone(), lives, setup.clone());
                    let outcome = subject.under(allocator)?;
                    Ok(outcome.fits().then_some(outcome.reserved))
                };
                traces.iter().map(of).collect()
            };
            let most = needs(Setup::default())?.into_iter().flatten().max().unwrap_or(0);
            for part in [5, 7] {
                let capacity = Some(most / 10 * part);
                let fits = needs(Setup { capacity, ..Setup::default() })?;
                let fits: Vec<bool> = fits.iter().map(Option::is_some).collect();
                searches += 1;
                let truth = fits.iter().rposition(|&it| it).map_or(0, |at| at as u64 + 1);
                let mut row = 0;
                for fits in &fits[..truth as usize] {
                    row = if *fits { 0 } else { row + 1 };
                    widest = widest.max(row);
                }
                for neighbours in [0, 1, 2, 4, 8] {
                    let ask = |value: u64| Ok::<_, ()>(fits[value as usize - 1].then_some(()));
                    let found = girih_fit::search::largest_with(1..=VALUES, neighbours, ask);
                    let found = found.ok().and_then(|it| it.largest).map_or(0, |(value, ())| value);
                    *missed.entry(neighbours).or_default() += u64::from(found < truth);
                }
            }
        }
    }
    println!("{searches} searches; the most refused values in a row below one that fits: {widest}");
    for (neighbours, missed) in missed {
        println!("{neighbours} neighbours: {missed} searches end below the largest");
    }
    Ok(())
}
