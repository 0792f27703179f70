//! Any sequence of operations, on any policy, with any device call failing: see
//! `girih_runtime::suite`.
#![no_main]

use girih_runtime::Policy;
use girih_runtime::caching::{Caching, Config, TieOrder};
use girih_runtime::direct::Direct;
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

/// The policy that a number stands for.
fn policy(number: u8) -> Box<dyn Policy> {
    let kind = usize::from(number) % (SETTINGS.len() + 6);
    let tie_order = ORDERS[usize::from(number) / 12 % ORDERS.len()];
    let caching = |text| {
        let config = Config::parse(text).expect("the settings are right");
        Caching::new(Config { tie_order, ..config })
    };
    let Some(text) = SETTINGS.get(kind) else {
        return match kind - SETTINGS.len() {
            0 => {
                let text = SETTINGS[usize::from(number) / 12 % SETTINGS.len()];
                Box::new(Direct::new(caching(text)))
            }
            1 => suite::planned(suite::reckless_plan(u64::from(number))),
            2 => suite::changing_plans(u64::from(number)),
            3 => suite::with_guests(u64::from(number)),
            4 => {
                let text = "large_segment_size_mb:12,per_process_memory_fraction:0.6";
                let config = Config::parse(text).expect("the settings are right");
                let config = Config { tie_order, expandable_segments: true, ..config };
                Box::new(Caching::new(Config { moves_pages: true, ..config }))
            }
            _ => suite::auto(),
        };
    };
    Box::new(caching(text))
}

fuzz_target!(|input: (u8, u16, Scenario)| {
    let (number, fault, scenario) = input;
    if fault == 0 {
        suite::run(&scenario, &mut || policy(number));
    } else {
        suite::run_with_fault(&scenario, u64::from(fault), policy(number));
    }
});
