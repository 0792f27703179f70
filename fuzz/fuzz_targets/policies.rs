//! Any sequence of operations, on any policy, with any device call failing: see
//! `girih_runtime::suite`.
#![no_main]

use girih_runtime::Policy;
use girih_runtime::caching::{Config, TieOrder};
use girih_runtime::registry::{Allocator, Property};
use girih_runtime::suite::{self, Scenario};
use libfuzzer_sys::fuzz_target;

/// Settings that take different ways through the code.
const SETTINGS: [&str; 6] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:21,per_process_memory_fraction:0.7",
    "max_split_size_mb:64,max_non_split_rounding_mb:64",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.8",
    "roundup_power2_divisions:4,large_segment_size_mb:12,expandable_segments:True",
];

const ORDERS: [TieOrder; 3] = [TieOrder::Address, TieOrder::Registration, TieOrder::Segment];

/// Makes a policy by a seed.
type Make = fn(u64) -> Box<dyn Policy>;

/// Policies that follow plans in ways of their own, and whether they trust the program.
const OTHERS: [(Make, bool); 3] =
    [(suite::dropping_its_plan, false), (suite::with_idle_places, false), (suite::woven, true)];

/// The policy that a number stands for, and whether it trusts the program.
fn policy(number: u16) -> (Box<dyn Policy>, bool) {
    let kinds = Allocator::ALL.len() + OTHERS.len();
    let (kind, variant) = (usize::from(number) % kinds, usize::from(number) / kinds);
    if let Some(other) = kind.checked_sub(Allocator::ALL.len()) {
        let (make, is_trusting) = OTHERS[other];
        return (make(variant as u64), is_trusting);
    }
    let config = Config::parse(SETTINGS[variant % SETTINGS.len()]).expect("the settings are right");
    let tie_order = ORDERS[variant / SETTINGS.len() % ORDERS.len()];
    let allocator = Allocator::ALL[kind];
    let policy = allocator.policy(&Config { tie_order, ..config }, &suite::eager(variant as u64));
    (policy.expect("it has a plan"), allocator.is(Property::Trusting))
}

fuzz_target!(|input: (u16, u16, Scenario)| {
    let (number, fault, scenario) = input;
    // PyTorch's allocators and GMLake trust the program; Girih's do not.
    let scenario = if policy(number).1 { scenario.trusted() } else { scenario };
    let mut make = |_| policy(number).0;
    if fault == 0 {
        suite::run(&scenario, &mut make);
    } else {
        suite::run_with_fault(&scenario, u64::from(fault), &mut make);
    }
});
