//! Holes are stitched, and only when they should be.

use girih_trace::{Action, Event, StreamId};

use super::*;
use crate::policy::{Backing, Policy};
use crate::sim::{Call, Fault, FaultKind, LiveObjects, SimDevice};
use crate::stats::Stats;

mod given_up;
mod patching;
mod refused;
mod repeats;
mod share;
mod waits;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const MAIN: StreamId = StreamId(0);
const SIDE: StreamId = StreamId(1);

/// A lake on a device, with its log.
struct Machine {
    device: SimDevice,
    lake: Lake,
    log: Vec<Event>,
}

fn config() -> Config {
    Config { expandable_segments: true, own_order: true, ..Config::default() }
}

impl Lake {
    /// What may be held for a request; None if there is no debt.
    fn may_hold_in_debt(&self, env: &mut Env<'_>, search: &Search) -> Option<u64> {
        self.pace.is_in_debt().then(|| self.allowed_in_debt(env, search))
    }
}

fn stitching(bytes: u64) -> Machine {
    Machine::of(Options::default(), config(), bytes)
}

impl Machine {
    fn of(options: Options, config: Config, bytes: u64) -> Machine {
        let mut device = SimDevice::new(bytes);
        device.check_order();
        Machine { device, lake: Lake::new(options, Caching::new(config)), log: Vec::new() }
    }

    fn with<T>(&mut self, call: impl FnOnce(&mut dyn Policy, &mut Env<'_>) -> T) -> T {
        let mut env = Env::new(&mut self.device, &mut self.log);
        let result = call(&mut self.lake, &mut env);
        Policy::check(&self.lake).unwrap();
        result
    }

    fn ask(&mut self, size: u64, stream: StreamId, pool: u16) -> Result<Granted, AllocError> {
        let request = Request { size, stream, pool: PoolId(pool) };
        self.with(|lake, env| lake.allocate(env, request))
    }

    fn alloc(&mut self, size: u64) -> Granted {
        self.ask(size, MAIN, 0).unwrap()
    }

    fn free(&mut self, granted: Granted) {
        self.with(|lake, env| lake.free(env, granted.block)).unwrap();
    }

    fn free_all(&mut self, blocks: impl IntoIterator<Item = Granted>) {
        blocks.into_iter().for_each(|block| self.free(block));
    }

    fn empty_cache(&mut self) {
        self.with(|lake, env| lake.empty_cache(env)).unwrap();
    }

    /// The events since the last call, as action and size.
    fn events(&mut self) -> Vec<(Action, u64)> {
        self.log.drain(..).map(|event| (event.action, event.size)).collect()
    }

    fn stats(&self) -> &Stats {
        Policy::stats(&self.lake)
    }

    fn reserved(&self) -> u64 {
        self.stats().reserved_bytes.all().current
    }

    /// A block that its stream uses.
    fn used(&mut self, size: u64, stream: StreamId) -> Granted {
        let granted = self.ask(size, stream, 0).unwrap();
        self.device.acquire(granted.address, granted.size, stream).unwrap();
        granted
    }

    /// Frees a block that its stream has used.
    fn free_used(&mut self, granted: Granted, stream: StreamId) {
        self.device.release(granted.address, granted.size, &[stream]).unwrap();
        self.free(granted);
    }

    fn calls(&self, call: Call) -> u64 {
        self.device.totals().of(call).calls
    }
}

/// Blocks of 40 MiB, every second one free again: holes that nothing larger fits.
fn holes(machine: &mut Machine, count: usize) -> Vec<Granted> {
    let blocks: Vec<Granted> = (0..2 * count).map(|_| machine.used(40 * MIB, MAIN)).collect();
    let (free, kept): (Vec<_>, Vec<_>) =
        blocks.into_iter().enumerate().partition(|(at, _)| at % 2 == 0);
    free.into_iter().for_each(|(_, block)| machine.free_used(block, MAIN));
    kept.into_iter().map(|(_, block)| block).collect()
}

#[test]
fn what_lies_in_holes_serves_a_request_that_fits_none_of_them() {
    let mut machine = stitching(64 * GIB);
    holes(&mut machine, 20);
    assert_eq!(machine.reserved(), 1600 * MIB);
    let large = machine.used(800 * MIB, MAIN);
    assert_eq!(machine.reserved(), 1600 * MIB);
    machine.free_used(large, MAIN);
    let calls = machine.device.calls();
    let again = machine.used(800 * MIB, MAIN);
    assert_eq!((again.address, machine.device.calls()), (large.address, calls), "it is there now");
    assert_eq!(machine.stats().num_alloc_retries, 0);
    assert_eq!(machine.stats().num_stitches, 1);
}

#[test]
fn a_device_that_maps_a_handle_once_is_grown_instead() {
    let mut machine = stitching(64 * GIB);
    machine.device.map_once();
    holes(&mut machine, 20);
    let held = machine.reserved();
    machine.used(800 * MIB, MAIN);
    assert_eq!(machine.reserved(), held + 800 * MIB);
    assert_eq!(machine.stats().num_stitches, 0);
}

#[test]
fn what_is_lent_is_shown_where_it_is_used() {
    let mut machine = stitching(64 * GIB);
    holes(&mut machine, 2);
    let view = machine.alloc(70 * MIB);
    let (mut sizes, mut stitched) = (0, Vec::new());
    machine.lake.visit_all(&mut |segment, blocks| {
        sizes += segment.size;
        assert_eq!(segment.size, blocks.iter().map(|block| block.size).sum::<u64>());
        if segment.backing == Backing::Stitched {
            stitched.push((segment.address, segment.size));
        }
    });
    assert_eq!((sizes, stitched), (machine.reserved(), vec![(view.address, view.size)]));
}

/// Two holes in pages of 2 MiB, from 3 to 36 MiB and from 39 to 70, between blocks in use.
fn two_holes(machine: &mut Machine) {
    let blocks = [3, 33, 3, 31, 2].map(|size| machine.used(size * MIB, MAIN));
    machine.free_used(blocks[1], MAIN);
    machine.free_used(blocks[3], MAIN);
}

#[test]
fn a_view_begins_and_ends_within_a_page() {
    let mut machine = stitching(64 * GIB);
    two_holes(&mut machine);
    // From 39 to 70 and from 4 to 36.
    let view = machine.used(63 * MIB, MAIN);
    assert_eq!((view.address % (2 * MIB), machine.reserved()), (MIB, 72 * MIB));
    machine.free_used(view, MAIN);
    // One byte more than lies in whole pages and at their ends.
    machine.used(63 * MIB + 1, MAIN);
    assert_eq!(machine.reserved(), 74 * MIB);
}

#[test]
fn what_a_view_leaves_of_a_page_serves_others() {
    let mut machine = stitching(64 * GIB);
    two_holes(&mut machine);
    let view = machine.used(63 * MIB - 3 * MIB / 2, MAIN);
    let rest = machine.used(3 * MIB / 2, MAIN);
    assert_eq!(machine.reserved(), 72 * MIB);
    machine.free_used(view, MAIN);
    machine.free_used(rest, MAIN);
    assert_eq!(Policy::releasable(&machine.lake), (32 + 30) * MIB);
}

#[test]
fn what_is_less_than_a_page_is_given_the_lowest_of_the_tightest_holes() {
    // A hole of each size, with something between them, from the lowest address on. How many are looked at is 8.
    let addresses = |sizes: &[u64], asked: u64| {
        let mut machine = stitching(64 * GIB);
        let pairs = sizes.iter().map(|&size| {
            let hole = machine.used(size * MIB, MAIN);
            machine.used(2 * MIB, MAIN);
            hole
        });
        let holes: Vec<_> = pairs.collect();
        holes.iter().for_each(|&hole| machine.free_used(hole, MAIN));
        let given = machine.used(asked * MIB, MAIN).address;
        holes.iter().position(|hole| hole.address == given)
    };
    assert_eq!(addresses(&[40, 6, 8], 5), Some(0), "the lowest, though others are tighter");
    assert_eq!(addresses(&[40, 6, 5, 8], 5), Some(2), "one of just its size");
    assert_eq!(addresses(&[40, 20, 24], 17), Some(1), "larger than a page: the tightest");
    let nine = [40, 14, 13, 12, 11, 10, 9, 8, 7];
    assert_eq!(addresses(&nine, 5), Some(1), "the largest is not among the eight");
}

#[test]
fn a_run_that_holds_little_more_than_it_uses_makes_no_view() {
    let mut machine = stitching(64 * GIB);
    for _ in 0..100 {
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

/// MiB of the pages of the segment of large requests, each size once, with its count.
fn pages(machine: &Machine) -> Vec<(u64, usize)> {
    let mut sizes = std::collections::BTreeMap::new();
    for block in machine.lake.heap.blocks.iter().map(|(_, block)| *block) {
        if block.mapped && !block.is_stitched() && !block.home.is_small {
            let segment = machine.lake.segment_of(&block);
            for page in segment.pages(block.part()) {
                sizes.insert(page.address, page.size / MIB);
            }
        }
    }
    let mut counts = std::collections::BTreeMap::new();
    sizes.into_values().for_each(|size| *counts.entry(size).or_insert(0) += 1);
    counts.into_iter().collect()
}

#[test]
fn pages_grow_with_what_is_in_use_and_nothing_is_mapped_that_is_not_asked_for() {
    let mut machine = stitching(64 * GIB);
    machine.alloc(3 * MIB);
    assert_eq!((pages(&machine), machine.reserved()), (vec![(2, 2)], 4 * MIB));
    for _ in 0..10 * 1024 / 64 {
        machine.alloc(64 * MIB);
    }
    let in_use = 10 * GIB + 4 * MIB;
    assert_eq!(machine.reserved(), in_use);
    let found = pages(&machine);
    let count: usize = found.iter().map(|(_, count)| count).sum();
    assert!(found.iter().map(|(size, _)| *size).eq([2, 4]), "{found:?}");
    assert!(count as u64 <= 2 * Options::default().pages, "{found:?}");
    // The last page of several is no larger than it must be.
    machine.alloc(71 * MIB);
    assert_eq!(machine.reserved(), in_use + 70 * MIB, "one was left at the end");
}

#[test]
fn a_request_larger_than_the_device_is_refused_without_asking_for_addresses_or_pages() {
    let mut machine = stitching(64 * GIB);
    for size in [65 * GIB, 800_000_000 * GIB] {
        let refused = machine.ask(size, MAIN, 0);
        assert!(matches!(refused, Err(AllocError::OutOfMemory { .. })), "{refused:?}");
    }
    assert_eq!((machine.calls(Call::Reserve), machine.calls(Call::Create)), (0, 0));
    machine.alloc(60 * GIB);
}

#[test]
fn a_hole_that_lacks_a_few_pages_is_better_than_new_ones() {
    let mut machine = stitching(64 * GIB);
    let kept = machine.alloc(100 * MIB);
    let free = machine.alloc(90 * MIB);
    machine.free(free);
    // The free block lies at the end of its segment, and grows.
    let grown = machine.alloc(150 * MIB);
    assert_eq!((grown.address, machine.reserved()), (free.address, 250 * MIB));
    machine.free_all([kept, grown]);
}

#[test]
fn under_a_limit_holes_are_stitched_before_a_retry_gives_back_everything() {
    let config = Config { memory_fraction: 0.5, ..config() };
    let mut machine = Machine::of(Options::default(), config, 3200 * MIB);
    let kept = holes(&mut machine, 20);
    // The limit is met.
    let large = machine.alloc(800 * MIB);
    assert_eq!(machine.reserved(), 1600 * MIB);
    let stats = machine.stats();
    assert_eq!((stats.num_alloc_retries, stats.num_ooms), (0, 0));
    assert!(machine.ask(20 * MIB, MAIN, 0).is_err(), "nothing is idle any more");
    machine.free(large);
    kept.into_iter().for_each(|block| machine.free_used(block, MAIN));
    machine.empty_cache();
    assert_eq!(machine.reserved(), 0);
}

#[test]
fn a_request_that_the_device_has_no_room_for_is_rejected_only_if_holes_do_not_serve_it() {
    let config = Config { throw_on_cudamalloc_oom: true, ..config() };
    let mut machine = Machine::of(Options::default(), config, 1600 * MIB);
    holes(&mut machine, 20);
    assert!(machine.ask(900 * MIB, MAIN, 0).is_err());
    machine.used(800 * MIB, MAIN);
    let stats = machine.stats();
    assert_eq!((stats.num_oom_rejections, stats.num_alloc_retries), (1, 0));
}

#[test]
fn what_is_stitched_is_not_counted_twice_against_the_limit() {
    let config = Config { memory_fraction: 0.5, ..config() };
    let mut machine = Machine::of(Options::default(), config, 3200 * MIB);
    let kept = holes(&mut machine, 18);
    assert_eq!(machine.reserved(), 1440 * MIB);
    // 720 MiB are idle and 160 may still be taken: together too little.
    assert!(machine.ask(900 * MIB, MAIN, 0).is_err());
    assert!(machine.reserved() <= 1600 * MIB);
    let large = machine.alloc(880 * MIB);
    assert_eq!(machine.reserved(), 1600 * MIB);
    machine.free_all(kept.into_iter().chain([large]));
}

#[test]
fn bytes_of_another_stream_are_used_after_a_wait_on_the_device() {
    let mut machine = stitching(64 * GIB);
    let side = machine.used(2000 * MIB, SIDE);
    machine.free_used(side, SIDE);
    let main = machine.used(1800 * MIB, MAIN);
    assert_eq!(machine.reserved(), 2000 * MIB);
    let waits = |machine: &Machine| {
        (machine.calls(Call::WaitEvent), machine.calls(Call::SynchronizeStream))
    };
    assert_eq!(waits(&machine), (1, 0));
    machine.free_used(main, MAIN);
    let again = machine.used(1800 * MIB, MAIN);
    assert_eq!((again.address, waits(&machine)), (main.address, (1, 0)), "it has used them last");
    machine.free_used(again, MAIN);
    // They are the other stream's still, which waits in turn, and once.
    let parts = [900, 900].map(|size| machine.used(size * MIB, SIDE));
    assert_eq!(waits(&machine), (2, 0));
    parts.into_iter().for_each(|part| machine.free_used(part, SIDE));
    machine.used(1800 * MIB, MAIN);
    assert_eq!(waits(&machine), (3, 0));
}

#[test]
fn no_other_stream_is_waited_for_where_own_holes_are_enough() {
    let mut machine = stitching(64 * GIB);
    // From 1 to 61 MiB: the largest part that begins within a page.
    let side = [1, 60, 1].map(|size| machine.used(size * MIB + MIB / 2, SIDE));
    holes(&mut machine, 20);
    machine.free_used(side[1], SIDE);
    let view = machine.used(800 * MIB, MAIN);
    assert_eq!(machine.calls(Call::WaitEvent), 0);
    machine.free_used(view, MAIN);
    machine.used(820 * MIB, MAIN);
    assert_eq!(machine.calls(Call::WaitEvent), 1, "they are not");
}

#[test]
fn one_hole_of_another_stream_is_better_than_many() {
    let mut machine = stitching(64 * GIB);
    let side = machine.used(912 * MIB, SIDE);
    holes(&mut machine, 20);
    machine.free_used(side, SIDE);
    let maps = machine.calls(Call::Map);
    let found = machine.used(840 * MIB, MAIN);
    assert_eq!((found.address, machine.calls(Call::Map)), (side.address, maps), "where it lies");
    assert_eq!((machine.reserved(), machine.calls(Call::WaitEvent)), (2512 * MIB, 1));
}

#[test]
fn a_capture_is_not_given_bytes_that_another_stream_used_last() {
    let mut machine = stitching(64 * GIB);
    let side = machine.used(2000 * MIB, SIDE);
    machine.free_used(side, SIDE);
    let main = machine.used(1800 * MIB, MAIN);
    machine.free_used(main, MAIN);
    Policy::begin_pool(&mut machine.lake, PoolId(1), true);
    let waits = machine.calls(Call::WaitEvent);
    for size in [100, 2000] {
        machine.used(size * MIB, SIDE);
    }
    assert_eq!(machine.calls(Call::WaitEvent), waits);
    Policy::end_pool(&mut machine.lake, PoolId(1), true);
}

#[test]
fn during_a_capture_and_in_private_pools_nothing_is_stitched() {
    let mut machine = stitching(64 * GIB);
    holes(&mut machine, 20);
    Policy::create_pool(&mut machine.lake, PoolId(1));
    machine.ask(800 * MIB, MAIN, 1).unwrap();
    assert_eq!(machine.reserved(), 2400 * MIB);
    Policy::begin_pool(&mut machine.lake, PoolId(1), true);
    machine.alloc(800 * MIB);
    assert_eq!(machine.reserved(), 3200 * MIB);
    Policy::end_pool(&mut machine.lake, PoolId(1), true);
}

#[test]
fn views_go_with_the_pages_that_they_show() {
    let mut machine = stitching(64 * GIB);
    let mut kept = holes(&mut machine, 20);
    let view = machine.used(800 * MIB, MAIN);
    machine.empty_cache();
    assert_eq!(machine.reserved(), 1600 * MIB, "all of it is in use");
    machine.free_used(view, MAIN);
    machine.empty_cache();
    assert_eq!((machine.reserved(), machine.device.live().handles), (800 * MIB, 400));
    kept.drain(..).for_each(|block| machine.free_used(block, MAIN));
    machine.empty_cache();
    assert_eq!(machine.device.live(), LiveObjects::default());
}

#[test]
fn beyond_the_budget_the_least_recently_used_view_goes_and_not_before_its_stream_is_done() {
    let mut machine =
        Machine::of(Options { view_pages_max: 850, ..Options::default() }, config(), 64 * GIB);
    holes(&mut machine, 20);
    // Pages of 2 MiB: 400 for each view.
    let addresses = [788, 792, 796].map(|size| {
        let view = machine.used(size * MIB, MAIN);
        machine.device.hold(MAIN);
        machine.free_used(view, MAIN);
        view.address
    });
    assert_eq!(machine.stats().num_stitches, 3);
    let reservations = machine.device.live().reservations;
    let fourth = machine.used(800 * MIB, MAIN);
    assert_eq!(machine.device.live().reservations, reservations + 1, "a kernel may still use it");
    machine.free_used(fourth, MAIN);
    machine.device.resume(MAIN);
    let fifth = machine.used(802 * MIB, MAIN);
    machine.free_used(fifth, MAIN);
    let again = machine.used(796 * MIB, MAIN);
    assert_eq!(again.address, addresses[2]);
    machine.free_used(again, MAIN);
    assert_eq!(machine.device.live().reservations, reservations, "the first has gone");
    assert!(machine.device.acquire(addresses[0], MIB, MAIN).is_err(), "nothing is there");
}

#[test]
fn a_view_whose_calls_fail_costs_new_pages_and_neither_the_request_nor_anything_later() {
    let prepared = || {
        let mut machine = stitching(64 * GIB);
        let side = machine.used(400 * MIB, SIDE);
        holes(&mut machine, 20);
        machine.free_used(side, SIDE);
        machine
    };
    // What is held while the request is, and what is left of the device's objects after it.
    let serve = |machine: &mut Machine| {
        let view = machine.used(1200 * MIB, MAIN);
        let held = machine.reserved();
        machine.free_used(view, MAIN);
        let again = machine.used(1200 * MIB, MAIN);
        assert_eq!(machine.reserved(), held, "the second time nothing is needed");
        machine.free_used(again, MAIN);
        machine.empty_cache();
        (held, machine.device.live())
    };
    let mut machine = prepared();
    let before = machine.device.calls();
    let view = machine.used(1200 * MIB, MAIN);
    let calls = machine.device.calls() - before;
    assert!(calls > 200, "{calls} calls");
    machine.free_used(view, MAIN);
    let (held, left) = serve(&mut machine);
    assert_eq!(held, 2000 * MIB);
    for call in 1..=calls {
        for out_of_memory in [false, true] {
            let mut machine = prepared();
            let kind = FaultKind::Nth(before + call);
            machine.device.inject(Fault { kind, out_of_memory });
            let (held, now) = serve(&mut machine);
            let what = format!("call {call} of {calls}, out of memory: {out_of_memory}");
            assert!((2000 * MIB..=3200 * MIB).contains(&held), "{what}: {held} bytes held");
            assert_eq!(now, left, "{what}");
        }
    }
}

#[test]
fn where_no_addresses_are_left_a_request_is_given_new_pages_in_what_is_reserved() {
    let mut machine = stitching(64 * GIB);
    holes(&mut machine, 20);
    let view = machine.used(788 * MIB, MAIN);
    machine.free_used(view, MAIN);
    let (held, reservations) = (machine.reserved(), machine.device.live().reservations);
    let kind = FaultKind::Every(Call::Reserve);
    machine.device.inject(Fault { kind, out_of_memory: true });
    // The view that is there is too small, and neither a new one can be had nor a segment of other pages.
    let pages = machine.used(796 * MIB, MAIN);
    assert_eq!(machine.stats().num_stitches, 1);
    assert!(machine.reserved() > held && machine.reserved() <= held + 796 * MIB);
    machine.free_used(pages, MAIN);
    // The view was let go, for its addresses.
    let again = machine.used(1500 * MIB, MAIN);
    machine.free_used(again, MAIN);
    assert_eq!(machine.device.live().reservations, reservations - 1);
}

#[test]
fn pages_whose_unmapping_is_owed_are_not_mapped_over() {
    let mut machine = stitching(64 * GIB);
    machine.used(10 * MIB, MAIN);
    let before = machine.device.calls();
    // 15 handles are created, the second cannot be mapped, and the first cannot be unmapped.
    for (call, out_of_memory) in [(17, true), (18, false)] {
        let kind = FaultKind::Nth(before + call);
        machine.device.inject(Fault { kind, out_of_memory });
    }
    // It is tried again in the same place.
    machine.used(30 * MIB, MAIN);
    assert_eq!((machine.reserved(), machine.device.live().handles), (40 * MIB, 20));
    assert_eq!(machine.device.calls() - machine.device.totals().sum().calls, 2);
}

#[test]
fn a_page_is_told_to_go_back_alone() {
    let mut machine = stitching(64 * GIB);
    two_holes(&mut machine);
    let mut whole = Vec::new();
    machine.lake.visit_all(&mut |_, blocks| {
        whole.extend(blocks.iter().map(|block| block.whole / MIB).filter(|&whole| whole > 0));
    });
    assert_eq!(whole, [32, 30]);
    assert_eq!(Policy::releasable(&machine.lake), 62 * MIB);
}

#[test]
fn blocks_are_counted_as_oversize_by_the_limit_of_the_moment() {
    let mut machine = stitching(64 * GIB);
    let blocks = [30, 50, 70].map(|size| machine.alloc(size * MIB));
    let count = |machine: &Machine| machine.stats().oversize_allocations.current;
    for (limit, expected) in [(u64::MAX, 0), (40 * MIB, 2), (60 * MIB, 1)] {
        let limited = Config { max_split_size: limit, ..config() };
        machine.with(|lake, env| lake.configure(env, &limited)).unwrap();
        assert_eq!(count(&machine), expected, "{limit}");
    }
    machine.free_all(blocks);
    assert_eq!(count(&machine), 0);
}

#[test]
fn new_pages_for_what_holes_lack_are_as_many_as_they_lack() {
    let mut machine = stitching(64 * GIB);
    let kept = holes(&mut machine, 20);
    let held = machine.reserved();
    machine.used(1000 * MIB, MAIN);
    assert_eq!(machine.reserved(), held + 200 * MIB);
    kept.into_iter().for_each(|block| machine.free_used(block, MAIN));
}
