//! Random programs on every policy, on the stable compiler and for as long as it is let: what the fuzz target
//! `policies` does, without coverage.
//!
//! ```sh
//! cargo run --release -p girih-runtime --features suite --example fuzz_policies -- 3600
//! ```
//!
//! The argument is how many seconds; a second one is the seed with which to begin. A seed that breaks a rule is
//! printed with what broke, and the exit status is 1.

#![expect(clippy::print_stdout, reason = "a program that says what it found")]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use girih_runtime::Policy;
use girih_runtime::caching::{Caching, Config};
use girih_runtime::direct::Direct;
use girih_runtime::gmlake::{self, Gmlake};
use girih_runtime::lake::{self, Lake};
use girih_runtime::suite::{self, Scenario};

/// A policy for a seed and a granularity.
type Make = fn(u64, u64) -> Box<dyn Policy>;

fn caching(text: &str) -> Caching {
    let config = Config::parse(text).expect("the settings are right");
    Caching::new(Config { own_order: true, ..config })
}

fn lake(text: &str) -> Box<dyn Policy> {
    let options = lake::Options { view_pages_max: 24, ..lake::Options::default() };
    Box::new(Lake::new(options, caching(text)))
}

/// Those that trust programs as PyTorch's allocator does come first.
const TRUSTING: usize = 4;
const POLICIES: [Make; 11] = [
    |_, _| Box::new(Caching::new(Config::default())),
    |_, _| {
        let config = Config::parse("expandable_segments:True").expect("the settings are right");
        Box::new(Caching::new(config))
    },
    |_, _| Box::new(Direct::new(Caching::new(Config::default()))),
    |_, _| {
        let eager = gmlake::Config { fragmentation_limit: 2 << 20, ..gmlake::Config::default() };
        Box::new(Gmlake::new(eager, Caching::new(Config::default())))
    },
    |_, _| Box::new(caching("expandable_segments:True")),
    |_, _| lake("expandable_segments:True"),
    |_, _| lake("expandable_segments:True,per_process_memory_fraction:0.6"),
    |seed, _| suite::planned(suite::reckless_plan(seed)),
    |seed, _| suite::with_idle_places(seed),
    |seed, _| suite::changing_plans(seed),
    |_, _| suite::auto(),
];

#[expect(clippy::disallowed_methods, reason = "how long it runs is what the user says")]
fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).filter_map(|word| word.parse::<u64>().ok());
    let (seconds, first) = (words.next().unwrap_or(60), words.next().unwrap_or(0));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut broken: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut runs = 0_u64;
    std::panic::set_hook(Box::new(|_| {}));
    for seed in first.. {
        if Instant::now() >= end {
            println!("seeds {first} to {}: {runs} runs, {} rules broken", seed - 1, broken.len());
            break;
        }
        for (number, make) in POLICIES.iter().enumerate() {
            let scenario = Scenario::of_seed(seed);
            let scenario = if number < TRUSTING { scenario.trusted() } else { scenario };
            let fault = seed % 3 == 0;
            let done = catch_unwind(AssertUnwindSafe(|| {
                let mut make = |granularity| make(seed, granularity);
                if fault {
                    suite::run_with_fault(&scenario, 1 + seed / 3 % 600, &mut make);
                } else {
                    suite::run(&scenario, &mut make);
                }
            }));
            runs += 1;
            let Err(panic) = done else { continue };
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "?".to_owned());
            // The rule without its numbers.
            let rule: String =
                text.chars().filter(|letter| !letter.is_ascii_digit()).take(160).collect();
            let count = broken.entry(format!("{number} {rule}")).or_insert((seed, 0));
            count.1 += 1;
            if count.1 == 1 {
                println!("seed {seed}, policy {number}: {text}");
            }
        }
    }
    for (rule, (seed, count)) in &broken {
        println!("{count} times, first with seed {seed}: {rule}");
    }
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
