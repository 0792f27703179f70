//! Idle pages move, and only when they should.

use super::*;

const PAGE: u64 = 20 * MIB;

fn config(moves_pages: bool) -> Config {
    Config { expandable_segments: true, moves_pages, ..Config::default() }
}

fn moving(bytes: u64) -> Machine {
    Machine::of(config(true), bytes)
}

/// Blocks of two pages, every second one free again: holes that nothing larger fits.
fn holes(machine: &mut Machine, count: usize) -> Vec<Granted> {
    let blocks: Vec<Granted> = (0..2 * count).map(|_| machine.alloc(2 * PAGE)).collect();
    let (free, kept): (Vec<_>, Vec<_>) =
        blocks.into_iter().enumerate().partition(|(at, _)| at % 2 == 0);
    machine.free_all(free.into_iter().map(|(_, block)| block));
    kept.into_iter().map(|(_, block)| block).collect()
}

fn reserved(machine: &Machine) -> u64 {
    machine.policy.stats().reserved_bytes.all.current
}

#[test]
fn what_lies_in_holes_serves_a_request_that_fits_none_of_them() {
    let mut machine = moving(64 * GIB);
    holes(&mut machine, 20);
    assert_eq!(reserved(&machine), 80 * PAGE);
    let large = machine.alloc(40 * PAGE);
    assert_eq!(reserved(&machine), 80 * PAGE + 4 * PAGE, "four pages are not worth a move");
    machine.free(large);
    let again = machine.alloc(40 * PAGE);
    assert_eq!((again.address, reserved(&machine)), (large.address, 84 * PAGE), "it is there now");
    assert_eq!(machine.policy.stats().num_alloc_retries, 0);
}

#[test]
fn a_run_that_holds_little_more_than_it_uses_never_moves_a_page() {
    for moves_pages in [false, true] {
        let mut machine = Machine::of(config(moves_pages), 64 * GIB);
        // One hole of two pages in a hundred.
        let blocks: Vec<Granted> = (0..50).map(|_| machine.alloc(2 * PAGE)).collect();
        machine.free(blocks[7]);
        machine.events();
        machine.alloc(3 * PAGE);
        let mapped = machine.events().into_iter().filter(|(action, _)| *action != Action::Alloc);
        assert_eq!(mapped.collect::<Vec<_>>(), [(Action::SegmentMap, 3 * PAGE)]);
    }
}

#[test]
fn under_a_limit_pages_move_before_a_retry_gives_back_everything() {
    let config = Config { memory_fraction: 0.5, ..config(true) };
    let mut machine = Machine::of(config, 160 * PAGE);
    let kept = holes(&mut machine, 20);
    // The limit is met.
    let large = machine.alloc(40 * PAGE);
    assert_eq!(reserved(&machine), 80 * PAGE);
    let stats = machine.policy.stats();
    assert_eq!((stats.num_alloc_retries, stats.num_ooms), (0, 0));
    assert!(machine.ask(PAGE, MAIN, 0).is_err(), "nothing is idle any more");
    machine.free_all(kept.into_iter().chain([large]));
    machine.empty_cache();
    assert_eq!(reserved(&machine), 0);
}

#[test]
fn pages_of_another_stream_move_after_it_was_waited_for() {
    let mut machine = moving(64 * GIB);
    let side = machine.ask(100 * PAGE, SIDE, 0).unwrap();
    machine.free(side);
    machine.alloc(90 * PAGE);
    assert!(reserved(&machine) <= 105 * PAGE, "{} pages", reserved(&machine) / PAGE);
    let calls = machine.device.totals().of(crate::sim::Call::SynchronizeStream).calls;
    assert_eq!(calls, 1);
}

#[test]
fn during_a_capture_and_in_private_pools_nothing_moves() {
    let mut machine = moving(64 * GIB);
    holes(&mut machine, 20);
    machine.policy.create_pool(PoolId(1));
    machine.ask(40 * PAGE, MAIN, 1).unwrap();
    assert_eq!(reserved(&machine), 120 * PAGE);
    machine.policy.begin_pool(PoolId(1), true);
    machine.alloc(40 * PAGE);
    assert_eq!(reserved(&machine), 160 * PAGE);
    machine.policy.end_pool(PoolId(1), true);
}

#[test]
fn what_lies_behind_the_place_moves_too() {
    let mut machine = moving(64 * GIB);
    let first = machine.alloc(10 * PAGE);
    let second = machine.alloc(30 * PAGE);
    let third = machine.alloc(20 * PAGE);
    // A hole without pages, in front of one with pages.
    machine.free(second);
    machine.empty_cache();
    let fourth = machine.alloc(40 * PAGE);
    machine.free(third);
    assert_eq!(reserved(&machine), 70 * PAGE);
    let fifth = machine.alloc(25 * PAGE);
    assert_eq!((fifth.address, reserved(&machine)), (second.address, 79 * PAGE));
    machine.free_all([first, fourth, fifth]);
    machine.empty_cache();
    assert_eq!(reserved(&machine), 0);
}
