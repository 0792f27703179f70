//! Idle pages move, and only when they should.

use super::*;
use crate::policy::Backing;

fn config(moves_pages: bool) -> Config {
    Config { expandable_segments: true, moves_pages, ..Config::default() }
}

fn moving(bytes: u64) -> Machine {
    Machine::of(config(true), bytes)
}

/// Blocks of 40 MiB, every second one free again: holes that nothing larger fits.
fn holes(machine: &mut Machine, count: usize) -> Vec<Granted> {
    let blocks: Vec<Granted> = (0..2 * count).map(|_| machine.alloc(40 * MIB)).collect();
    let (free, kept): (Vec<_>, Vec<_>) =
        blocks.into_iter().enumerate().partition(|(at, _)| at % 2 == 0);
    machine.free_all(free.into_iter().map(|(_, block)| block));
    kept.into_iter().map(|(_, block)| block).collect()
}

fn reserved(machine: &Machine) -> u64 {
    machine.policy.stats().reserved_bytes.all.current
}

/// MiB of a page of each run, and how many pages it has.
fn pages(machine: &Machine) -> Vec<(u64, u64)> {
    let mut pages = Vec::new();
    machine.policy.visit(&mut |segment, _| {
        let Backing::Expandable { page } = segment.backing else { unreachable!() };
        pages.push((page / MIB, segment.size / page));
    });
    pages
}

#[test]
fn what_lies_in_holes_serves_a_request_that_fits_none_of_them() {
    let mut machine = moving(64 * GIB);
    holes(&mut machine, 20);
    assert_eq!(reserved(&machine), 1600 * MIB);
    let large = machine.alloc(800 * MIB);
    assert_eq!(reserved(&machine), 1616 * MIB, "16 MiB are not worth a move");
    machine.free(large);
    let again = machine.alloc(800 * MIB);
    assert_eq!((again.address, reserved(&machine)), (large.address, 1616 * MIB), "it is there now");
    assert_eq!(machine.policy.stats().num_alloc_retries, 0);
}

#[test]
fn a_run_that_holds_little_more_than_it_uses_never_moves_a_page() {
    let mut machine = moving(64 * GIB);
    for _ in 0..50 {
        machine.alloc(100 * MIB);
    }
    let hole = machine.alloc(20 * MIB);
    machine.alloc(MIB * 2);
    machine.free(hole);
    machine.events();
    machine.alloc(30 * MIB);
    let mapped = machine.events().into_iter().filter(|(action, _)| *action != Action::Alloc);
    assert_eq!(mapped.collect::<Vec<_>>(), [(Action::SegmentMap, 30 * MIB)]);
}

#[test]
fn pages_are_as_small_as_their_number_allows() {
    let alone = [(3, (2, 2)), (128, (2, 64)), (129, (4, 33)), (512, (8, 64)), (513, (16, 33))];
    for (size, expected) in alone {
        let mut machine = moving(64 * GIB);
        machine.alloc(size * MIB);
        assert_eq!(pages(&machine), [expected], "{size} MiB");
    }
    let mut machine = moving(64 * GIB);
    for _ in 0..40 * 1024 / 128 {
        machine.alloc(128 * MIB);
    }
    assert_eq!(pages(&machine), [(2, 1536), (4, 1536), (8, 1536), (16, 1216)]);
    assert_eq!(reserved(&machine), 40 * GIB);
}

#[test]
fn a_hole_that_lacks_a_few_pages_is_better_than_new_ones() {
    let mut machine = moving(64 * GIB);
    let kept = machine.alloc(100 * MIB);
    let free = machine.alloc(90 * MIB);
    machine.free(free);
    // The free block lies at the end of its segment, and grows.
    let grown = machine.alloc(150 * MIB);
    assert_eq!((grown.address, reserved(&machine)), (free.address, 250 * MIB));
    machine.free_all([kept, grown]);
}

#[test]
fn under_a_limit_pages_move_before_a_retry_gives_back_everything() {
    let config = Config { memory_fraction: 0.5, ..config(true) };
    let mut machine = Machine::of(config, 3200 * MIB);
    let kept = holes(&mut machine, 20);
    // The limit is met.
    let large = machine.alloc(800 * MIB);
    assert_eq!(reserved(&machine), 1600 * MIB);
    let stats = machine.policy.stats();
    assert_eq!((stats.num_alloc_retries, stats.num_ooms), (0, 0));
    assert!(machine.ask(20 * MIB, MAIN, 0).is_err(), "nothing is idle any more");
    machine.free_all(kept.into_iter().chain([large]));
    machine.empty_cache();
    assert_eq!(reserved(&machine), 0);
}

#[test]
fn what_moves_is_not_counted_twice_against_the_limit() {
    let config = Config { memory_fraction: 0.5, ..config(true) };
    let mut machine = Machine::of(config, 3200 * MIB);
    let kept = holes(&mut machine, 18);
    assert_eq!(reserved(&machine), 1440 * MIB);
    // 720 MiB are idle and 160 may still be taken: together too little.
    assert!(machine.ask(900 * MIB, MAIN, 0).is_err());
    assert!(reserved(&machine) <= 1600 * MIB);
    let large = machine.alloc(880 * MIB);
    assert_eq!(reserved(&machine), 1600 * MIB);
    machine.free_all(kept.into_iter().chain([large]));
}

#[test]
fn pages_of_another_stream_move_after_it_was_waited_for() {
    let mut machine = moving(64 * GIB);
    let side = machine.ask(2000 * MIB, SIDE, 0).unwrap();
    machine.free(side);
    machine.alloc(1800 * MIB);
    assert!(reserved(&machine) <= 2032 * MIB, "{} MiB", reserved(&machine) / MIB);
    let calls = machine.device.totals().of(crate::sim::Call::SynchronizeStream).calls;
    assert_eq!(calls, 1);
}

#[test]
fn during_a_capture_and_in_private_pools_nothing_moves() {
    let mut machine = moving(64 * GIB);
    holes(&mut machine, 20);
    machine.policy.create_pool(PoolId(1));
    machine.ask(800 * MIB, MAIN, 1).unwrap();
    assert_eq!(reserved(&machine), 2400 * MIB);
    machine.policy.begin_pool(PoolId(1), true);
    machine.alloc(800 * MIB);
    assert_eq!(reserved(&machine), 3200 * MIB);
    machine.policy.end_pool(PoolId(1), true);
}

#[test]
fn what_lies_behind_the_place_moves_too() {
    let mut machine = moving(64 * GIB);
    let [first, second, third] = [1600, 4800, 3200].map(|size| machine.alloc(size * MIB));
    // A hole without pages, in front of one with pages.
    machine.free(second);
    machine.empty_cache();
    let fourth = machine.alloc(6400 * MIB);
    machine.free(third);
    assert_eq!(reserved(&machine), 11_200 * MIB);
    let fifth = machine.alloc(4000 * MIB);
    assert_eq!((fifth.address, reserved(&machine)), (second.address, 12_112 * MIB));
    machine.free_all([first, fourth, fifth]);
    machine.empty_cache();
    assert_eq!(reserved(&machine), 0);
}
