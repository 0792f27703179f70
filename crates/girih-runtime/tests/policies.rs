//! The conformance suite on every policy of the registry, with every setting.

use arbitrary::{Arbitrary, Unstructured};
use girih_runtime::Policy;
use girih_runtime::caching::{Caching, Config, TieOrder};
use girih_runtime::direct::Direct;
use girih_runtime::gmlake::{self, Gmlake, LimitOf};
use girih_runtime::lake::{self, Lake};
use girih_runtime::registry::{Allocator, Property};
use girih_runtime::suite::{self, Scenario};

fn caching(text: &str, tie_order: TieOrder) -> Box<dyn Policy> {
    let config = Config::parse(text).expect("the settings are right");
    Box::new(Caching::new(Config { tie_order, ..config }))
}

/// Settings that take different ways through the code.
const SETTINGS: [&str; 7] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:21",
    "max_split_size_mb:64,max_non_split_rounding_mb:64,per_process_memory_fraction:0.7",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.8",
    "roundup_power2_divisions:4,large_segment_size_mb:12",
    "expandable_segments:True,per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True",
];

/// The lake around the settings, with few pages for views, so that many are given up.
fn lake(text: &str, tie_order: TieOrder) -> Box<dyn Policy> {
    let config = Config::parse(text).expect("the settings are right");
    let config = Config { tie_order, own_order: true, ..config };
    let options = lake::Options { view_pages_max: 256, ..lake::Options::default() };
    Box::new(Lake::new(options, Caching::new(config)))
}

fn direct(text: &str, tie_order: TieOrder) -> Box<dyn Policy> {
    let config = Config::parse(text).expect("the settings are right");
    Box::new(Direct::new(Caching::new(Config { tie_order, ..config })))
}

#[test]
fn every_allocator_of_the_registry_passes_the_suite() {
    for allocator in Allocator::ALL {
        let check = match allocator.is(Property::Trusting) {
            true => suite::check_trusting_policy,
            false => suite::check_policy,
        };
        let setup = suite::eager(3);
        let make = || allocator.policy(&Config::default(), &setup).expect("it has a plan");
        check(8, &mut |_| make());
    }
}

#[test]
fn the_direct_policy_passes_the_suite() {
    suite::check_policy(24, &mut |_| direct("", TieOrder::Address));
}

#[test]
fn the_native_allocator_passes_the_suite() {
    suite::check_policy(24, &mut |_| caching("", TieOrder::Address));
}

#[test]
fn expandable_segments_pass_the_suite() {
    suite::check_trusting_policy(24, &mut |_| {
        caching("expandable_segments:True", TieOrder::Address)
    });
    let own = Config { expandable_segments: true, own_order: true, ..Config::default() };
    suite::check_policy(24, &mut |_| Box::new(Caching::new(own.clone())));
}

#[test]
fn the_lake_passes_the_suite() {
    let pools = "expandable_segments:True";
    suite::check_policy(24, &mut |_| lake(pools, TieOrder::Address));
    // Under a limit many move.
    let tight = "expandable_segments:True,per_process_memory_fraction:0.6";
    suite::check_policy(24, &mut |_| lake(tight, TieOrder::Address));
    suite::check_policy(8, &mut |_| lake("", TieOrder::Address));
}

/// GMLake with settings that make it stitch often.
fn stitching(limit_of: LimitOf, stitched_limit: u64) -> Box<dyn Policy> {
    let config = gmlake::Config {
        fragmentation_limit: 2 << 20,
        limit_of,
        stitched_limit,
        ..gmlake::Config::default()
    };
    Box::new(Gmlake::new(config, Caching::new(Config::default())))
}

#[test]
fn gmlake_passes_the_suite() {
    suite::check_trusting_policy(24, &mut |_| stitching(LimitOf::Blocks, u64::MAX));
}

#[test]
fn gmlake_passes_the_suite_when_it_gives_up_stitched_blocks() {
    suite::check_trusting_policy(24, &mut |_| stitching(LimitOf::Blocks, 64 << 20));
}

#[test]
fn gmlake_passes_the_suite_with_every_limit() {
    let splitter = || {
        let text = "per_process_memory_fraction:0.7";
        Caching::new(Config::parse(text).expect("the settings are right"))
    };
    for fragmentation_limit in [16 << 20, 512 << 20] {
        for (limit_of, grows_by_deficit) in [(LimitOf::Blocks, false), (LimitOf::Requests, true)] {
            let config = gmlake::Config {
                fragmentation_limit,
                limit_of,
                grows_by_deficit,
                ..gmlake::Config::default()
            };
            suite::check_trusting_policy(12, &mut |_| {
                Box::new(Gmlake::new(config.clone(), splitter()))
            });
        }
    }
}

#[test]
fn stweaver_passes_the_suite_with_a_plan_that_is_wrong() {
    for seed in 0..4 {
        suite::check_trusting_policy(12, &mut |_| suite::woven(seed));
    }
}

/// An allocator, settings, a release.
fn any(u: &mut Unstructured<'_>) -> arbitrary::Result<(Allocator, Config)> {
    let text = *u.choose(&SETTINGS)?;
    let orders = [TieOrder::Address, TieOrder::Registration, TieOrder::Segment];
    let tie_order = *u.choose(&orders)?;
    let config = Config::parse(text).expect("the settings are right");
    Ok((*u.choose(&Allocator::ALL)?, Config { tie_order, ..config }))
}

/// The scenario, as the allocator trusts it to be.
fn as_trusted(scenario: Scenario, allocator: Allocator) -> Scenario {
    if allocator.is(Property::Trusting) { scenario.trusted() } else { scenario }
}

#[test]
fn every_setting_and_every_release_passes_random_scenarios() {
    arbtest::arbtest(|u| {
        let (allocator, config) = any(u)?;
        let setup = suite::eager(u.arbitrary::<u8>()?.into());
        let scenario = as_trusted(Scenario::arbitrary(u)?, allocator);
        suite::run(&scenario, &mut |_| allocator.policy(&config, &setup).expect("it has a plan"));
        Ok(())
    })
    .size_min(200)
    .size_max(3000)
    .budget_ms(4_000);
}

#[test]
fn every_setting_survives_the_failure_of_each_call() {
    arbtest::arbtest(|u| {
        let (allocator, config) = any(u)?;
        let setup = suite::eager(u.arbitrary::<u8>()?.into());
        let scenario = as_trusted(Scenario::arbitrary(u)?, allocator);
        let mut make = |_| allocator.policy(&config, &setup).expect("it has a plan");
        suite::run_with_faults(&scenario, &mut make);
        Ok(())
    })
    .size_min(200)
    .size_max(1000)
    .budget_ms(4_000);
}
