//! The eleven invariants that the published code breaks, one test each.

use girih_runtime::caching::{Caching, Config as Splitter};
use girih_runtime::gmlake::{Config, Gmlake};
use girih_runtime::sim::{Call, Fault, LiveObjects};
use girih_runtime::{AllocError, Env, Granted, Policy, Request, Stats};
use girih_trace::{PoolId, StreamId};

use super::shadow::Shadow;
use super::world::{GIB, MIB, World, eager};

/// Numbers without pattern, from a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        let (factor, step) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);
        self.0 = self.0.wrapping_mul(factor).wrapping_add(step);
        (self.0 >> 33) % bound
    }

    /// Mostly sizes that come again, as in training.
    fn size(&mut self) -> u64 {
        let size = if self.below(4) == 0 { self.below(40) } else { 6 * self.below(8) };
        (size + 1) * 2 * MIB
    }
}

/// A program of two streams that allocates and frees at random, now and then empties the cache, and
/// frees everything at the end. Requests that fail for memory are left out.
fn random_program(
    world: &mut World,
    seed: u64,
    mut after_each: impl FnMut(&mut World, &[Granted]),
) {
    let mut chance = Chance(seed);
    let mut live: Vec<(Granted, u16)> = Vec::new();
    for _ in 0..400 {
        match chance.below(20) {
            0 => world.empty_cache(),
            kind if kind < 9 && !live.is_empty() => {
                let place = chance.below(live.len() as u64) as usize;
                let (block, stream) = live.swap_remove(place);
                world.free_used(block, &[stream]);
            }
            kind => {
                let stream = u16::from(kind == 19);
                if let Ok(block) = world.try_alloc(stream, chance.size()) {
                    live.push((block, stream));
                }
            }
        }
        let blocks: Vec<Granted> = live.iter().map(|(block, _)| *block).collect();
        after_each(world, &blocks);
    }
    for (block, stream) in live {
        world.free_used(block, &[stream]);
    }
}

/// Settings that stitch often and give stitched blocks up often.
fn busy() -> Config {
    Config { stitched_limit: 300 * MIB, ..eager() }
}

/// What is held, as a text to compare.
fn layout(lake: &Gmlake) -> String {
    let mut segments = Vec::new();
    lake.visit(&mut |segment, blocks| segments.push(format!("{segment:?} {blocks:?}")));
    format!("{segments:#?} {:?}", lake.stitched())
}

#[test]
fn no_handle_is_held_by_two_blocks_of_the_program() {
    // The device compares what is used in physical space, so two ways to one handle are seen.
    for seed in 0..20 {
        let mut world = World::with(16 * GIB, busy());
        random_program(&mut world, seed, |_, _| ());
        assert!(world.calls(Call::Map) > world.calls(Call::Create), "seed {seed} never stitched");
        assert_eq!(world.refused(), 0, "seed {seed}");
    }
}

#[test]
fn every_byte_of_a_block_is_mapped_from_its_allocation_to_its_free() {
    for seed in 20..30 {
        let mut world = World::with(GIB / 2, busy());
        random_program(&mut world, seed, |world, live| {
            for block in live {
                assert!(world.is_mapped(block), "seed {seed}: {block:?} has lost memory");
            }
        });
    }
}

#[test]
fn held_and_inactive_and_waiting_handles_are_all_that_were_created_and_all_go_back() {
    for seed in 30..40 {
        let mut world = World::with(GIB / 2, busy());
        random_program(&mut world, seed, |world, live| {
            let created = world.device.live().handles as u64 * 2 * MIB;
            let given: u64 = live.iter().map(|block| block.size).sum();
            assert_eq!(world.reserved(), created);
            assert_eq!(world.lake.releasable(), created - given);
        });
        world.empty_cache();
        assert_eq!(world.device.live(), LiveObjects::default(), "seed {seed}");
    }
}

/// Prepares a world for an operation, which returns whether it succeeded.
type Scene = (&'static str, fn(&mut World), fn(&mut World) -> bool);

const SCENES: [Scene; 4] = [
    ("growing", |_| (), |world| world.try_alloc(0, 20 * MIB).is_ok()),
    (
        "stitching",
        |world| drop(world.scattered(&[8 * MIB, 6 * MIB])),
        |world| world.try_alloc(0, 12 * MIB).is_ok(),
    ),
    (
        "growing and stitching",
        |world| drop(world.scattered(&[8 * MIB, 6 * MIB])),
        |world| world.try_alloc(0, 24 * MIB).is_ok(),
    ),
    (
        "a free that waits for two streams",
        |world| {
            let block = world.alloc(8 * MIB);
            (1..3).for_each(|stream| world.record_stream(block, stream));
            world.device.release(block.address, 8 * MIB, &[0, 1, 2].map(StreamId)).unwrap();
        },
        |world| {
            let block = world.first_block();
            world.run(|lake, env| lake.free(env, block)).is_ok()
        },
    ),
];

#[test]
fn an_operation_whose_call_fails_leaves_everything_as_it_was() {
    for (name, prepare, operate) in SCENES {
        let mut world = World::new(GIB);
        prepare(&mut world);
        let before = world.device.calls();
        assert!(operate(&mut world), "{name}: nothing is wrong yet");
        let calls = world.device.calls() - before;
        for call in 1..=calls {
            let mut world = World::new(GIB);
            prepare(&mut world);
            let (layout_before, live) = (layout(&world.lake), world.device.live());
            world.device.inject(Fault::nth(before + call));
            assert!(!operate(&mut world), "{name}: call {call} of {calls} is not told of");
            assert_eq!(layout(&world.lake), layout_before, "{name}: call {call} of {calls}");
            assert_eq!(world.device.live(), live, "{name}: call {call} of {calls}");
            assert!(operate(&mut world), "{name}: cannot be tried again after call {call}");
        }
    }
}

#[test]
fn nothing_is_unmapped_or_released_while_a_stream_may_still_use_it() {
    let mut world = World::new(GIB);
    world.scattered(&[30 * MIB, 20 * MIB]).into_iter().for_each(|block| world.free(block));
    let stitched = world.alloc(50 * MIB);
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

#[test]
fn memory_changes_streams_after_an_event_only_and_on_its_own_stream_for_nothing() {
    let mut world = World::new(GIB);
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

#[test]
fn memory_is_not_given_by_a_new_address_while_another_stream_may_use_it_by_the_old_one() {
    let mut world = World::new(GIB);
    let parts = [30 * MIB, 20 * MIB].map(|size| world.alloc(size));
    parts.into_iter().for_each(|part| world.record_stream(part, 1));
    world.device.hold(StreamId(1));
    parts.into_iter().for_each(|part| world.free_used(part, &[0, 1]));
    let maps = world.calls(Call::Map);
    let other = world.alloc(50 * MIB);
    assert_eq!(world.reserved(), 100 * MIB, "nothing is stitched of what is in use");
    world.free(other);
    world.device.resume(StreamId(1));
    world.alloc(100 * MIB);
    assert_eq!(world.reserved(), 100 * MIB, "now it is");
    assert_eq!(world.calls(Call::Map) - maps, 25 + 50);
}

#[test]
fn the_memory_of_a_private_pool_is_never_stitched_into_other_blocks() {
    let mut world = World::new(GIB);
    let pool = PoolId(1);
    world.lake.begin_pool(pool, true);
    let captured = world.try_alloc_in(pool, 0, 64 * MIB).unwrap();
    world.free(captured);
    world.lake.end_pool(pool, true);
    world.alloc(64 * MIB);
    world.alloc(128 * MIB);
    assert_eq!(world.reserved(), 256 * MIB);
    world.lake.begin_pool(pool, false);
    let again = world.try_alloc_in(pool, 0, 64 * MIB).unwrap();
    assert_eq!(again.address, captured.address, "the pool has kept its memory");
}

#[test]
fn a_request_that_fails_does_not_make_a_smaller_one_fail() {
    for stream in [0, 1] {
        let mut world = World::new(64 * MIB);
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

#[test]
fn every_counter_comes_back_to_zero() {
    for seed in 40..50 {
        // Small enough that requests fail.
        let mut world = World::with(200 * MIB, busy());
        random_program(&mut world, seed, |_, _| ());
        world.empty_cache();
        assert!(world.lake.stats().num_ooms > 0, "seed {seed} has not run out of memory");
        assert_eq!(world.lake.stitched(), (0, 0));
        let Stats { segment, active, allocated_bytes, reserved_bytes, requested_bytes, .. } =
            world.lake.stats();
        for counters in [segment, active, allocated_bytes, reserved_bytes, requested_bytes] {
            assert_eq!(counters.all.current, 0, "seed {seed}");
            assert_eq!(counters.all.freed(), counters.all.allocated, "seed {seed}");
        }
    }
}

#[test]
fn a_block_reads_what_its_owner_wrote_whatever_address_its_memory_had_before() {
    // The simulated half of the canary: a shadow of every page stands for the memory. Little memory
    // makes it go back and come again.
    for seed in 50..60 {
        let mut shadow = Shadow::new(400 * MIB);
        let mut lake = Gmlake::new(busy(), Caching::new(Splitter::default()));
        let mut chance = Chance(seed);
        let mut live: Vec<(Granted, u64)> = Vec::new();
        for tag in 0..500 {
            let mut env = Env { device: &mut shadow, log: &mut () };
            match chance.below(20) {
                0 => lake.empty_cache(&mut env).unwrap(),
                kind if kind < 10 && !live.is_empty() => {
                    let place = chance.below(live.len() as u64) as usize;
                    let (block, written) = live.swap_remove(place);
                    lake.free(&mut env, block.block).unwrap();
                    let read = shadow.read(block.address, block.size);
                    assert!(read.iter().all(|&tag| tag == written), "seed {seed}: {block:?}");
                }
                _ => {
                    let (size, pool) = (chance.size(), PoolId::DEFAULT);
                    let request = Request { size, stream: StreamId(0), pool };
                    if let Ok(block) = lake.allocate(&mut env, request) {
                        shadow.write(block.address, block.size, tag);
                        live.push((block, tag));
                    }
                }
            }
        }
        assert!(lake.stitched().0 > 0, "seed {seed} has stitched nothing");
    }
}
