//! Any sequence of operations, on any policy, with any device call failing: see
//! `girih_runtime::suite`.
#![no_main]

use girih_runtime::Policy;
use girih_runtime::caching::{Caching, Config, TieOrder};
use girih_runtime::direct::Direct;
use girih_runtime::gmlake::{self, Gmlake};
use girih_runtime::lake::{self, Lake};
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

/// What else there is beside the settings.
const OTHERS: usize = 8;

/// The lake around `pools`, under which views are given up often.
fn lake(pools: Config) -> Box<dyn Policy> {
    let options = lake::Options { view_pages_max: 24, ..lake::Options::default() };
    Box::new(Lake::new(options, Caching::new(Config { own_order: true, ..pools })))
}

/// GMLake around `small`, with settings under which it stitches, and gives up, often.
fn gmlake(small: Caching) -> Box<dyn Policy> {
    let config = gmlake::Config {
        fragmentation_limit: 2 << 20,
        stitched_limit: 64 << 20,
        ..gmlake::Config::default()
    };
    Box::new(Gmlake::new(config, small))
}

/// True for PyTorch's allocators and GMLake.
fn trusts(number: u8) -> bool {
    let kind = usize::from(number) % (SETTINGS.len() + OTHERS);
    !matches!(kind.checked_sub(SETTINGS.len()), Some(1..=5 | 7))
}

/// The policy that a number stands for.
fn policy(number: u8) -> Box<dyn Policy> {
    let kinds = SETTINGS.len() + OTHERS;
    let (kind, variant) = (usize::from(number) % kinds, usize::from(number) / kinds);
    let tie_order = ORDERS[variant % ORDERS.len()];
    let config = |text| {
        let config = Config::parse(text).expect("the settings are right");
        Config { tie_order, ..config }
    };
    let Some(other) = kind.checked_sub(SETTINGS.len()) else {
        return Box::new(Caching::new(config(SETTINGS[kind])));
    };
    let varied = config(SETTINGS[variant % SETTINGS.len()]);
    match other {
        0 => Box::new(Direct::new(Caching::new(varied))),
        1 => suite::planned(suite::reckless_plan(u64::from(number))),
        2 => suite::changing_plans(u64::from(number)),
        3 => suite::with_idle_places(u64::from(number)),
        4 => {
            let text = "large_segment_size_mb:12,per_process_memory_fraction:0.6";
            lake(config(text))
        }
        5 => lake(varied),
        6 => gmlake(Caching::new(varied)),
        _ => suite::auto(),
    }
}

fuzz_target!(|input: (u8, u16, Scenario)| {
    let (number, fault, scenario) = input;
    // PyTorch's allocators and GMLake trust the program; Girih's do not.
    let scenario = if trusts(number) { scenario.trusted() } else { scenario };
    let mut make = |_| policy(number);
    if fault == 0 {
        suite::run(&scenario, &mut make);
    } else {
        suite::run_with_fault(&scenario, u64::from(fault), &mut make);
    }
});
