//! The eleven invariants that GMLake's published code breaks, one test each for every policy that
//! stitches.

use std::collections::BTreeMap;

use girih_runtime::gmlake::Gmlake;
use girih_runtime::lake::Lake;
use girih_runtime::sim::{Call, Fault, LiveObjects};
use girih_runtime::{AllocError, Policy, Stats};
use girih_trace::{BlockState, PoolId, StreamId};

use super::kinds::{Stitcher, of_large_pages};
use super::program::{Kind, Program, Seen};
use super::world::{GIB, MIB, World};

/// Makes a test of each function for each policy.
macro_rules! for_each_policy {
    ($($name:ident)*) => {
        mod gmlake {
            $(#[test] fn $name() { super::$name::<super::Gmlake>(); })*
        }
        mod stitch {
            $(#[test] fn $name() { super::$name::<super::Lake>(); })*
        }
    };
}

for_each_policy! {
    no_handle_is_held_by_two_blocks_of_the_program
    every_byte_of_a_block_is_mapped_from_its_allocation_to_its_free
    held_and_inactive_and_waiting_bytes_are_all_that_were_created_and_all_go_back
    an_operation_whose_call_fails_leaves_everything_as_it_was
    nothing_is_unmapped_or_released_while_a_stream_may_still_use_it
    memory_changes_streams_after_an_event_only_and_on_its_own_stream_for_nothing
    memory_is_not_given_by_a_new_address_while_another_stream_may_use_it_by_the_old_one
    the_memory_of_a_private_pool_is_never_stitched_into_other_blocks
    a_request_that_fails_does_not_make_a_smaller_one_fail
    every_counter_comes_back_to_zero
    a_block_reads_what_its_owner_wrote_whatever_address_its_memory_had_before
}

fn no_handle_is_held_by_two_blocks_of_the_program<P: Stitcher>() {
    // The device and the shadow compare what is used in physical space, so two ways to one handle
    // are seen.
    for seed in 0..20 {
        let mut world = World::of(16 * GIB, P::busy());
        let seen = Program::run(&mut world, Kind::PLAIN, seed, |_, _| ());
        assert!(seen.stitches > 0, "seed {seed} never stitched");
        assert_eq!(world.refused(), 0, "seed {seed}");
    }
}

fn every_byte_of_a_block_is_mapped_from_its_allocation_to_its_free<P: Stitcher>() {
    for seed in 20..30 {
        let mut world = World::of(GIB / 2, P::busy());
        Program::run(&mut world, Kind::PLAIN, seed, |world, live| {
            for held in live {
                let block = &held.block;
                assert!(world.is_mapped(block), "seed {seed}: {block:?} has lost memory");
            }
        });
    }
}

/// Bytes of the blocks that a policy shows: of the program, waiting for streams, and idle.
fn shown(policy: &impl Policy) -> [u64; 3] {
    let mut bytes = [0; 3];
    policy.visit(&mut |_, blocks| {
        for block in blocks {
            bytes[match block.state {
                BlockState::Allocated => 0,
                BlockState::PendingFree => 1,
                BlockState::Inactive => 2,
            }] += block.size;
        }
    });
    bytes
}

fn held_and_inactive_and_waiting_bytes_are_all_that_were_created_and_all_go_back<P: Stitcher>() {
    for (seed, kind) in (30..40).map(|seed| (seed, Kind::PLAIN)).chain([
        (40, Kind::FULL),
        (41, Kind::FULL),
        (42, Kind::FULL),
    ]) {
        let mut world = World::of(GIB / 2, P::busy());
        Program::run(&mut world, kind, seed, |world, live| {
            let created = world.shadow.held();
            let given: u64 = live.iter().map(|held| held.block.size).sum();
            let [allocated, pending, idle] = shown(&world.lake);
            assert_eq!(world.reserved(), created);
            assert_eq!((allocated, pending + idle), (given, created - given));
            let releasable = world.lake.releasable();
            assert!(kind.does_all || P::may_release(releasable, created, given), "seed {seed}");
        });
        world.empty_cache();
        assert_eq!(world.device.live(), LiveObjects::default(), "seed {seed}");
    }
}

/// Prepares a world for an operation, which returns whether it succeeded.
type Scene<P> = (&'static str, fn(&mut World<P>), fn(&mut World<P>) -> bool);

fn scenes<P: Stitcher>() -> [Scene<P>; 4] {
    [
        ("growing", |_| (), |world| world.try_alloc(0, 20 * MIB).is_ok()),
        (
            "stitching",
            |world| scattered_beyond_slack(world),
            |world| world.try_alloc(0, 52 * MIB).is_ok(),
        ),
        (
            "growing and stitching",
            |world| scattered_beyond_slack(world),
            |world| world.try_alloc(0, 64 * MIB).is_ok(),
        ),
        (
            "a free that waits for two streams",
            |world| {
                let block = world.alloc(8 * MIB);
                (1..3).for_each(|stream| world.record_stream(block, stream));
                world.let_go(block, &[0, 1, 2]);
            },
            |world| {
                let block = world.first_block();
                world.run(|lake, env| lake.free(env, block)).is_ok()
            },
        ),
    ]
}

/// Two holes of 28 and 26 MiB: enough that nothing more is held before they are stitched.
fn scattered_beyond_slack<P: Stitcher>(world: &mut World<P>) {
    world.scattered(&[28 * MIB, 26 * MIB]);
}

/// What is held, as a text to compare.
fn layout<P: Stitcher>(world: &World<P>) -> String {
    let mut segments = Vec::new();
    world.lake.visit(&mut |segment, blocks| segments.push(format!("{segment:?} {blocks:?}")));
    format!("{segments:#?} {}", P::views(&world.lake))
}

fn an_operation_whose_call_fails_leaves_everything_as_it_was<P: Stitcher>() {
    for (name, prepare, operate) in scenes::<P>() {
        let mut world = World::of(GIB, P::eager());
        prepare(&mut world);
        let before = world.device.calls();
        assert!(operate(&mut world), "{name}: nothing is wrong yet");
        assert_eq!(P::stitches(&world) > 0, name.contains("stitching"), "{name}");
        let calls = world.device.calls() - before;
        for call in 1..=calls {
            let mut world = World::of(GIB, P::eager());
            prepare(&mut world);
            let (layout_before, live) = (layout(&world), world.device.live());
            world.device.inject(Fault::nth(before + call));
            if operate(&mut world) {
                assert!(P::DEGRADES, "{name}: call {call} of {calls} is not told of");
                world.lake.check().unwrap();
                continue;
            }
            if P::GROWS_APART && name == "growing and stitching" && world.device.live() != live {
                // The new pages have come, and are idle.
                assert_eq!(shown(&world.lake)[2], world.reserved() - 4 * MIB);
                assert_eq!(world.shadow.held(), world.reserved());
            } else {
                assert_eq!(layout(&world), layout_before, "{name}: call {call} of {calls}");
                assert_eq!(world.device.live(), live, "{name}: call {call} of {calls}");
            }
            assert!(operate(&mut world), "{name}: cannot be tried again after call {call}");
        }
    }
}

fn nothing_is_unmapped_or_released_while_a_stream_may_still_use_it<P: Stitcher>() {
    let mut world = World::of(GIB, P::eager());
    let between = world.scattered(&[30 * MIB, 20 * MIB]);
    let stitched = world.alloc(50 * MIB);
    assert!(P::stitches(&world) > 0);
    between.into_iter().for_each(|block| world.free(block));
    let single = world.alloc_on(1, 40 * MIB);
    world.record_stream(stitched, 2);
    (0..3).for_each(|stream| world.device.hold(StreamId(stream)));
    world.free_used(stitched, &[0, 2]);
    world.free_used(single, &[1]);
    world.empty_cache();
    // The device refuses to unmap what was not waited for, and it would be owed.
    assert_eq!(world.refused(), 0);
    assert_eq!(world.device.live(), LiveObjects::default());
}

fn memory_changes_streams_after_an_event_only_and_on_its_own_stream_for_nothing<P: Stitcher>() {
    let mut world = World::of(GIB, P::eager());
    let block = world.alloc(64 * MIB);
    world.device.hold(StreamId(0));
    world.free(block);
    let before = world.device.calls();
    let again = world.alloc(64 * MIB);
    assert_eq!((again.address, world.device.calls()), (block.address, before));
    world.record_stream(again, 1);
    world.device.hold(StreamId(1));
    world.free_used(again, &[0, 1]);
    world.process_events();
    assert_eq!(world.lake.releasable(), 0, "stream 1 may still use it");
    world.device.resume(StreamId(1));
    world.process_events();
    assert_eq!(world.lake.releasable(), 64 * MIB);
}

fn memory_is_not_given_by_a_new_address_while_another_stream_may_use_it_by_the_old_one<
    P: Stitcher,
>() {
    let mut world = World::of(GIB, P::eager());
    let parts = [30 * MIB, 20 * MIB].map(|size| world.alloc(size));
    parts.into_iter().for_each(|part| world.record_stream(part, 1));
    world.device.hold(StreamId(1));
    parts.into_iter().for_each(|part| world.free_used(part, &[0, 1]));
    let maps = world.calls(Call::Map);
    let other = world.alloc(50 * MIB);
    assert_eq!(world.reserved(), 100 * MIB, "nothing is stitched of what is in use");
    assert_eq!(world.calls(Call::Map) - maps, 25);
    world.free(other);
    world.device.resume(StreamId(1));
    world.alloc(100 * MIB);
    assert_eq!(world.reserved(), 100 * MIB, "now it is");
}

fn the_memory_of_a_private_pool_is_never_stitched_into_other_blocks<P: Stitcher>() {
    let mut world = World::of(GIB, P::eager());
    let pool = PoolId(1);
    world.lake.begin_pool(pool, true);
    let captured = world.try_alloc_in(pool, 0, 64 * MIB).unwrap();
    world.free(captured);
    world.lake.end_pool(pool, true);
    world.alloc(64 * MIB);
    world.alloc(128 * MIB);
    let held = world.reserved();
    assert!((256 * MIB..288 * MIB).contains(&held), "{held}");
    world.lake.begin_pool(pool, false);
    let again = world.try_alloc_in(pool, 0, 64 * MIB).unwrap();
    assert_eq!(again.address, captured.address, "the pool has kept its memory");
}

fn a_request_that_fails_does_not_make_a_smaller_one_fail<P: Stitcher>() {
    for stream in [0, 1] {
        let mut world = World::of(64 * MIB, P::eager());
        let held = world.alloc(30 * MIB);
        let free = world.alloc(20 * MIB);
        world.free(free);
        for _ in 0..3 {
            assert!(matches!(
                world.try_alloc(stream, 40 * MIB),
                Err(AllocError::OutOfMemory { .. })
            ));
            let smaller = world.alloc_on(stream, 34 * MIB);
            world.free_used(smaller, &[stream]);
        }
        world.free(held);
    }
}

fn every_counter_comes_back_to_zero<P: Stitcher>() {
    for (seed, kind) in (40..50).flat_map(|seed| [(seed, Kind::PLAIN), (seed, Kind::FULL)]) {
        // Small enough that requests fail.
        let mut world = World::of(200 * MIB, P::busy());
        Program::run(&mut world, kind, seed, |_, _| ());
        world.empty_cache();
        assert!(world.lake.stats().num_ooms > 0, "seed {seed} has not run out of memory");
        assert_eq!(P::views(&world.lake), P::views(&P::busy()));
        let Stats { segment, active, allocated_bytes, reserved_bytes, requested_bytes, .. } =
            world.lake.stats();
        for counters in [segment, active, allocated_bytes, reserved_bytes, requested_bytes] {
            assert_eq!(counters.all().current, 0, "seed {seed}");
            assert_eq!(counters.all().freed(), counters.all().allocated, "seed {seed}");
        }
    }
}

fn a_block_reads_what_its_owner_wrote_whatever_address_its_memory_had_before<P: Stitcher>() {
    // The simulated half of the canary: a shadow stands for the memory. Little memory makes it go
    // back and come again.
    let mut all = Seen::default();
    for seed in 50..60 {
        for kind in [Kind::PLAIN, Kind::FULL] {
            let mut world = World::of(400 * MIB, P::busy());
            let seen = Program::run(&mut world, kind, seed, |world, _| world.shadow.read_all());
            assert!(seen.stitches > 0, "seed {seed} has stitched nothing");
            all += seen;
        }
    }
    assert!(all.captures > 20 && all.refused > 100, "{all:?}");
}

#[test]
fn stitching_in_random_programs_waits_for_streams_and_gives_views_up_in_both_ways() {
    let mut all = Seen::default();
    for seed in 60..75 {
        let mut world = World::of(GIB, Lake::busy());
        all += Program::run(&mut world, Kind::FULL, seed, |world, _| world.shadow.read_all());
        world.empty_cache();
        assert_eq!(world.device.live(), LiveObjects::default(), "seed {seed}");
    }
    assert!(all.stitches > 100 && all.waits > 100, "{all:?}");
    assert!(all.retired > GIB && all.dropped > GIB && all.captures > 20, "{all:?}");
}

#[test]
fn views_lie_over_pages_of_every_size() {
    let mut sizes = BTreeMap::<u64, u64>::new();
    for (seed, scale) in [(70, 64), (71, 64), (72, 8), (73, 8)] {
        let kind = Kind { scale, ..Kind::FULL };
        let mut world = World::of(48 * GIB, of_large_pages());
        Program::run(&mut world, kind, seed, |world, _| world.shadow.read_all());
        for (size, count) in world.shadow.mapped_again {
            *sizes.entry(size / MIB).or_default() += count;
        }
    }
    assert!([2, 4, 8, 16].iter().all(|size| sizes.get(size) > Some(&50)), "{sizes:?}");
}
