//! The states S1 to S5, split, stitch, `StitchFree`, and streams.

use girih_runtime::gmlake::{Config, Gmlake, LimitOf};
use girih_runtime::sim::{Call, LiveObjects};
use girih_runtime::{AllocError, Policy, PoolOptions, Request};
use girih_trace::{PoolId, StreamId};

use crate::lake::world::{GIB, MIB, World, eager};

#[test]
fn an_inactive_block_of_the_exact_size_is_given_without_a_call_of_the_device() {
    let mut world = World::new(GIB);
    let first = world.alloc(64 * MIB);
    world.free(first);
    let before = world.device.calls();
    let again = world.alloc(63 * MIB + 1);
    assert_eq!((again.address, again.size), (first.address, 64 * MIB));
    assert_eq!(world.device.calls(), before, "S1 calls nothing");
}

#[test]
fn a_larger_block_is_split_and_its_rest_serves_another_request() {
    let mut world = World::new(GIB);
    let whole = world.alloc(64 * MIB);
    world.free(whole);
    let before = world.device.calls();
    let first = world.alloc(40 * MIB);
    let second = world.alloc(24 * MIB);
    assert_eq!((first.address, first.size), (whole.address, 40 * MIB));
    assert_eq!((second.address, second.size), (whole.address + 40 * MIB, 24 * MIB));
    assert_eq!((world.device.calls(), world.reserved()), (before, 64 * MIB));
}

#[test]
fn of_several_larger_blocks_the_smallest_is_split() {
    let mut world = World::new(GIB);
    let blocks = [90 * MIB, 50 * MIB, 70 * MIB].map(|size| world.alloc(size));
    blocks.into_iter().for_each(|block| world.free(block));
    assert_eq!(world.alloc(40 * MIB).address, blocks[1].address);
}

#[test]
fn the_halves_of_a_split_serve_their_former_size_again_when_both_are_idle() {
    let mut world = World::new(GIB);
    let whole = world.alloc(64 * MIB);
    world.free(whole);
    let halves = [40 * MIB, 24 * MIB].map(|size| world.alloc(size));
    halves.into_iter().for_each(|half| world.free(half));
    let again = world.alloc(64 * MIB);
    assert_eq!(again.address, whole.address, "S2 stitches the two halves");
    assert_eq!(world.reserved(), 64 * MIB);
}

#[test]
fn stitching_serves_a_request_that_no_single_block_fits() {
    let mut world = World::new(GIB);
    world.scattered(&[30 * MIB, 20 * MIB, 10 * MIB]);
    let (before, maps) = (world.reserved(), world.calls(Call::Map));
    let stitched = world.alloc(60 * MIB);
    assert_eq!(stitched.size, 60 * MIB);
    assert_eq!(world.reserved(), before, "S3 takes no memory");
    assert_eq!(world.calls(Call::Map) - maps, 30, "each handle is mapped once more");
}

#[test]
fn the_largest_blocks_are_stitched_and_the_last_is_split() {
    let mut world = World::new(GIB);
    let blocks = [30 * MIB, 20 * MIB, 12 * MIB].map(|size| world.alloc(size));
    blocks.into_iter().for_each(|block| world.free(block));
    world.alloc(40 * MIB);
    // What is left: the smallest, which was not touched, and the end of the second.
    assert_eq!(world.alloc(12 * MIB).address, blocks[2].address);
    assert_eq!(world.alloc(10 * MIB).address, blocks[1].address + 10 * MIB);
    assert_eq!(world.reserved(), 62 * MIB);
}

#[test]
fn what_is_missing_is_taken_from_the_device_and_stitched_to_what_is_free() {
    let mut world = World::new(GIB);
    let small = world.alloc(30 * MIB);
    world.free(small);
    let large = world.alloc(100 * MIB);
    assert_eq!(large.size, 100 * MIB);
    assert_eq!(world.reserved(), 100 * MIB, "S4 grows by the deficit");
}

#[test]
fn without_growth_by_the_deficit_the_whole_request_is_taken_anew() {
    let mut world = World::with(GIB, Config { grows_by_deficit: false, ..eager() });
    let small = world.alloc(30 * MIB);
    world.free(small);
    world.alloc(100 * MIB);
    assert_eq!(world.reserved(), 130 * MIB);
}

#[test]
fn when_the_device_has_no_more_the_request_is_refused_and_says_what_was_needed() {
    let mut world = World::new(64 * MIB);
    let held = world.alloc(40 * MIB);
    let error = world.try_alloc(0, 32 * MIB).unwrap_err();
    let AllocError::OutOfMemory { requested, allocated, reserved, .. } = error else {
        panic!("S5 is an error of memory: {error}")
    };
    assert_eq!((requested, allocated, reserved), (32 * MIB, 40 * MIB, 40 * MIB));
    world.free(held);
    world.alloc(64 * MIB);
}

#[test]
fn a_stitched_block_is_reused_when_all_its_parts_are_idle() {
    let mut world = World::new(GIB);
    world.scattered(&[30 * MIB, 20 * MIB]);
    let stitched = world.alloc(50 * MIB);
    world.free(stitched);
    let before = world.device.calls();
    let again = world.alloc(50 * MIB);
    assert_eq!(again.address, stitched.address);
    assert_eq!(world.device.calls(), before, "S1 calls nothing");
}

#[test]
fn a_stitched_block_is_not_reused_while_a_part_is_in_use() {
    let mut world = World::new(GIB);
    world.scattered(&[30 * MIB, 20 * MIB]);
    let stitched = world.alloc(50 * MIB);
    world.free(stitched);
    let part = world.alloc(20 * MIB);
    let other = world.alloc(50 * MIB);
    assert_ne!(other.address, stitched.address);
    world.free(part);
    world.free(other);
    assert_eq!(world.alloc(50 * MIB).address, stitched.address);
}

#[test]
fn a_stitched_block_serves_no_other_size_than_its_own() {
    let mut world = World::new(GIB);
    world.scattered(&[30 * MIB, 20 * MIB]);
    let stitched = world.alloc(50 * MIB);
    world.free(stitched);
    let smaller = world.alloc(48 * MIB);
    assert_ne!(smaller.address, stitched.address);
    assert_eq!(smaller.size, 48 * MIB);
}

#[test]
fn below_the_limit_nothing_is_split() {
    let mut world = World::with(GIB, Config { fragmentation_limit: 64 * MIB, ..eager() });
    let blocks = [62 * MIB, 64 * MIB].map(|size| world.alloc(size));
    world.free(blocks[0]);
    assert_eq!(world.alloc(20 * MIB).size, 62 * MIB, "given whole");
    world.free(blocks[1]);
    assert_eq!(world.alloc(20 * MIB).size, 20 * MIB, "split");
}

#[test]
fn below_the_limit_nothing_is_stitched() {
    let mut world = World::with(GIB, Config { fragmentation_limit: 64 * MIB, ..eager() });
    let between = world.scattered(&[62 * MIB, 62 * MIB]).len() as u64 * 2 * MIB;
    world.alloc(124 * MIB);
    assert_eq!(world.reserved(), between + 248 * MIB);
}

#[test]
fn with_the_limit_on_requests_blocks_of_any_size_are_stitched_for_large_ones() {
    let limit_of = LimitOf::Requests;
    let limits = Config { fragmentation_limit: 64 * MIB, limit_of, ..eager() };
    let mut world = World::with(GIB, limits);
    let between = world.scattered(&[40 * MIB, 40 * MIB]).len() as u64 * 2 * MIB;
    let small = world.alloc(62 * MIB);
    assert_eq!(world.reserved(), between + 142 * MIB, "not stitched: it is below the limit");
    world.alloc(80 * MIB);
    assert_eq!(world.reserved(), between + 142 * MIB);
    world.free(small);
}

#[test]
fn a_request_of_a_mebibyte_is_served_by_the_splitter_and_a_larger_one_is_not() {
    let mut world = World::new(GIB);
    let small = world.alloc(MIB);
    assert_eq!((small.size, world.reserved()), (MIB, 2 * MIB));
    assert_eq!((world.calls(Call::Alloc), world.calls(Call::Create)), (1, 0));
    let large = world.alloc(MIB + 1);
    assert_eq!((large.size, world.reserved()), (2 * MIB, 4 * MIB));
    assert_eq!((world.calls(Call::Alloc), world.calls(Call::Create)), (1, 1));
}

/// Three stitched blocks over the same two blocks, the first given again last.
fn three_stitches(world: &mut World<Gmlake>) -> [u64; 3] {
    world.scattered(&[40 * MIB, 40 * MIB]);
    let sizes = [80 * MIB, 60 * MIB, 70 * MIB];
    let addresses = sizes.map(|size| {
        let block = world.alloc(size);
        world.free(block);
        block.address
    });
    let block = world.alloc(sizes[0]);
    world.free(block);
    assert_eq!(block.address, addresses[0]);
    addresses
}

#[test]
fn stitched_blocks_are_given_up_by_least_recent_use() {
    // 80, 60 and 70 MiB, and the halves of two splits together: 40 and 20 MiB. For 76 MiB more, two
    // have to go: the halves that were together first, and the 60 MiB.
    let mut world = World::with(GIB, Config { stitched_limit: 300 * MIB, ..eager() });
    let [first, second, third] = three_stitches(&mut world);
    assert_eq!(world.lake.stitched(), (5, 270 * MIB));
    let block = world.alloc(76 * MIB);
    world.free(block);
    world.process_events();
    let before = world.device.calls();
    for (size, kept) in [(80 * MIB, first), (70 * MIB, third)] {
        let block = world.alloc(size);
        assert_eq!(block.address, kept);
        world.free(block);
    }
    assert_eq!(world.device.calls(), before);
    assert_ne!(world.alloc(60 * MIB).address, second);
    assert!(world.device.calls() > before, "it is stitched anew");
}

#[test]
fn what_is_given_up_is_unmapped_when_its_stream_has_come_past() {
    let mut world = World::with(GIB, Config { stitched_limit: 100 * MIB, ..eager() });
    world.scattered(&[40 * MIB, 40 * MIB]);
    world.device.hold(StreamId(0));
    let block = world.alloc(80 * MIB);
    world.free(block);
    let block = world.alloc(60 * MIB);
    world.free(block);
    world.process_events();
    let unmapped = (world.calls(Call::Unmap), world.refused());
    assert_eq!(unmapped, (0, 0), "work may still use the addresses");
    world.device.resume(StreamId(0));
    world.process_events();
    assert_eq!(world.calls(Call::Unmap), 1);
}

#[test]
fn a_stitched_block_in_use_is_not_given_up() {
    let mut world = World::with(GIB, Config { stitched_limit: 2 * MIB, ..eager() });
    world.scattered(&[40 * MIB, 40 * MIB]);
    let used = world.alloc(80 * MIB);
    world.scattered(&[50 * MIB, 50 * MIB]);
    let other = world.alloc(100 * MIB);
    world.free(other);
    world.free(used);
    assert_eq!(world.alloc(80 * MIB).address, used.address);
}

#[test]
fn a_block_of_one_stream_serves_no_other() {
    let mut world = World::new(GIB);
    let block = world.alloc_on(0, 64 * MIB);
    world.free(block);
    assert_ne!(world.alloc_on(1, 64 * MIB).address, block.address);
    assert_eq!(world.reserved(), 128 * MIB);
}

#[test]
fn a_block_that_another_stream_used_waits_for_it() {
    let mut world = World::new(GIB);
    let block = world.alloc(64 * MIB);
    world.record_stream(block, 1);
    world.device.hold(StreamId(1));
    world.free_used(block, &[0, 1]);
    let other = world.alloc(64 * MIB);
    assert_ne!(other.address, block.address);
    world.device.resume(StreamId(1));
    assert_eq!(world.alloc(64 * MIB).address, block.address);
}

#[test]
fn a_part_that_another_stream_uses_keeps_every_stitched_block_over_it_from_being_given() {
    let mut world = World::new(GIB);
    world.scattered(&[30 * MIB, 20 * MIB]);
    let stitched = world.alloc(50 * MIB);
    world.free(stitched);
    let part = world.alloc(20 * MIB);
    world.record_stream(part, 1);
    world.device.hold(StreamId(1));
    world.free_used(part, &[0, 1]);
    let other = world.alloc(50 * MIB);
    assert_ne!(other.address, stitched.address);
    world.free(other);
    world.device.resume(StreamId(1));
    assert_eq!(world.alloc(50 * MIB).address, stitched.address);
}

#[test]
fn a_block_freed_in_a_capture_gets_its_event_after_it() {
    let mut world = World::new(GIB);
    let (pool, block) = (PoolId(1), world.alloc(64 * MIB));
    world.record_stream(block, 1);
    world.lake.begin_pool(pool, true);
    world.free_used(block, &[0, 1]);
    assert_eq!(world.calls(Call::RecordEvent), 0);
    let request = Request { size: 64 * MIB, stream: StreamId(0), pool: PoolId::DEFAULT };
    assert!(!world.lake.has_room(&request));
    world.lake.end_pool(pool, true);
    world.process_events();
    assert_eq!(world.calls(Call::RecordEvent), 1);
    assert!(world.lake.has_room(&request));
}

#[test]
fn what_is_free_of_a_split_block_goes_back_without_the_rest() {
    let mut world = World::new(GIB);
    let whole = world.alloc(64 * MIB);
    world.free(whole);
    let half = world.alloc(40 * MIB);
    world.empty_cache();
    assert_eq!((world.reserved(), world.device.live().handles), (40 * MIB, 20));
    world.free(half);
    world.empty_cache();
    assert_eq!(world.device.live(), LiveObjects::default());
}

#[test]
fn small_requests_and_pools_get_the_memory_that_is_idle_before_they_fail() {
    let mut world = World::new(64 * MIB);
    for (pool, size) in [(PoolId::DEFAULT, 4096), (PoolId(1), 20 * MIB)] {
        let all = world.alloc(64 * MIB);
        world.free(all);
        let other = world.try_alloc_in(pool, 0, size).unwrap();
        world.free(other);
        assert_eq!(world.lake.stats().num_ooms, 0);
    }
}

#[test]
fn a_pool_that_lends_serves_what_the_device_cannot() {
    let mut world = World::new(64 * MIB);
    let pool = PoolId(1);
    world.lake.create_pool(pool);
    world.lake.set_pool_options(pool, PoolOptions { use_on_oom: true, ..PoolOptions::default() });
    let lent = world.try_alloc_in(pool, 0, 40 * MIB).unwrap();
    world.free(lent);
    assert_eq!(world.alloc(40 * MIB).address, lent.address);
}

#[test]
fn one_limit_holds_for_all_parts_together() {
    let mut world = World::new(100 * MIB);
    world.lake.set_limit(Some(50 * MIB));
    world.alloc(MIB);
    world.alloc(40 * MIB);
    assert!(world.try_alloc(0, 10 * MIB).is_err());
    assert!(world.try_alloc_in(PoolId(1), 0, 10 * MIB).is_err());
    world.alloc(8 * MIB);
    assert_eq!(world.reserved(), 50 * MIB);
}

#[test]
fn a_periodic_program_calls_the_device_no_more_after_some_iterations() {
    let mut world = World::new(4 * GIB);
    let sizes: Vec<u64> = (1..40).map(|k| (k * 37 % 64 + 1) * 2 * MIB).collect();
    let mut calls = Vec::new();
    for _ in 0..6 {
        let mut live = Vec::new();
        for (index, &size) in sizes.iter().enumerate() {
            live.push(world.alloc(size));
            if index % 3 == 2 {
                let block = live.swap_remove(index % live.len());
                world.free(block);
            }
        }
        live.into_iter().for_each(|block| world.free(block));
        calls.push(world.device.calls());
    }
    assert_eq!(calls[4], calls[5], "calls after each iteration: {calls:?}");
}
