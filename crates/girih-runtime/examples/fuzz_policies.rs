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
use girih_runtime::caching::Config;
use girih_runtime::registry::{Allocator, Property};
use girih_runtime::suite::{self, Scenario};

/// Settings of the allocators.
const SETTINGS: [&str; 2] = ["", "per_process_memory_fraction:0.6"];
/// Makes a policy by a seed.
type Make = fn(u64) -> Box<dyn Policy>;

/// Policies that follow plans in ways of their own, by a seed, and whether they trust the program.
const OTHERS: [(Make, bool); 3] =
    [(suite::dropping_its_plan, false), (suite::with_idle_places, false), (suite::woven, true)];

/// An allocator, its settings, and whether the order of streams is Girih's own, which trusts nobody: PyTorch's
/// trusts programs.
type Kind = (Allocator, &'static str, bool);

/// Every allocator with each of the settings; those with pages in both orders.
fn kinds() -> Vec<Kind> {
    let with = |allocator| SETTINGS.map(|text| [(allocator, text, false), (allocator, text, true)]);
    let all = Allocator::ALL.into_iter().flat_map(with).flatten();
    all.filter(|(allocator, _, own_order)| !own_order || allocator.is(Property::Pages)).collect()
}

fn of_kind((allocator, text, own_order): Kind, seed: u64) -> Box<dyn Policy> {
    let config = Config::parse(text).expect("the settings are right");
    let config = Config { own_order, ..config };
    allocator.policy(&config, &suite::eager(seed)).expect("it has a plan")
}

#[expect(clippy::disallowed_methods, reason = "how long it runs is what the user says")]
fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).filter_map(|word| word.parse::<u64>().ok());
    let (seconds, first) = (words.next().unwrap_or(60), words.next().unwrap_or(0));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut broken: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut runs = 0_u64;
    std::panic::set_hook(Box::new(|_| {}));
    let kinds = kinds();
    for seed in first.. {
        if Instant::now() >= end {
            println!("seeds {first} to {}: {runs} runs, {} rules broken", seed - 1, broken.len());
            break;
        }
        for number in 0..kinds.len() + OTHERS.len() {
            let kind = kinds.get(number);
            let is_trusting = match kind {
                Some((allocator, _, own_order)) => allocator.is(Property::Trusting) && !own_order,
                None => OTHERS[number - kinds.len()].1,
            };
            let scenario = Scenario::of_seed(seed);
            let scenario = if is_trusting { scenario.trusted() } else { scenario };
            let fault = seed % 3 == 0;
            let done = catch_unwind(AssertUnwindSafe(|| {
                let mut make = |_| match kind {
                    Some(&kind) => of_kind(kind, seed),
                    None => OTHERS[number - kinds.len()].0(seed),
                };
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
