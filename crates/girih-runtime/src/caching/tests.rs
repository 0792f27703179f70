//! One test for each rule of the allocator.

use girih_trace::{Action, BlockState, Event, PoolId, StreamId};

mod captured;
mod settings;
mod two_step;

use super::*;
use crate::device::Device;
use crate::policy::AllocError;
use crate::sim::SimDevice;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const MAIN: StreamId = StreamId(0);
const SIDE: StreamId = StreamId(1);

/// An allocator on a device, with its log.
struct Machine {
    device: SimDevice,
    policy: Caching,
    log: Vec<Event>,
}

impl Machine {
    fn new(text: &str, bytes: u64) -> Machine {
        Machine::of(Config::parse(text).unwrap(), bytes)
    }

    fn of(config: Config, bytes: u64) -> Machine {
        let mut device = SimDevice::new(bytes);
        device.check_order();
        Machine { device, policy: Caching::new(config), log: Vec::new() }
    }

    fn ask(&mut self, size: u64, stream: StreamId, pool: u16) -> Result<Granted, AllocError> {
        let request = Request { size, stream, pool: PoolId(pool) };
        let mut env = Env::new(&mut self.device, &mut self.log);
        let result = self.policy.allocate(&mut env, request);
        self.policy.check().unwrap();
        result
    }

    fn alloc(&mut self, size: u64) -> Granted {
        self.ask(size, MAIN, 0).unwrap()
    }

    fn with<T>(&mut self, call: impl FnOnce(&mut Caching, &mut Env<'_>) -> T) -> T {
        let mut env = Env::new(&mut self.device, &mut self.log);
        let result = call(&mut self.policy, &mut env);
        self.policy.check().unwrap();
        result
    }

    fn free(&mut self, granted: Granted) {
        self.with(|policy, env| policy.free(env, granted.block)).unwrap();
    }

    fn free_all(&mut self, blocks: impl IntoIterator<Item = Granted>) {
        blocks.into_iter().for_each(|block| self.free(block));
    }

    fn record(&mut self, granted: Granted, stream: StreamId) {
        self.with(|policy, env| policy.record_stream(env, granted.block, stream)).unwrap();
    }

    fn empty_cache(&mut self) {
        self.with(Policy::empty_cache).unwrap();
    }

    /// The events since the last call, as action and size.
    fn events(&mut self) -> Vec<(Action, u64)> {
        self.log.drain(..).map(|event| (event.action, event.size)).collect()
    }

    /// Sizes of all blocks by address; free ones in negative, segments apart.
    fn layout(&self) -> Vec<Vec<i64>> {
        let mut layout = Vec::new();
        self.policy.visit(&mut |_, blocks| {
            layout.push(
                blocks
                    .iter()
                    .map(|block| match block.state {
                        BlockState::Inactive => -(block.size as i64),
                        _ => block.size as i64,
                    })
                    .collect(),
            );
        });
        layout
    }

    fn reserved(&self) -> u64 {
        self.policy.stats().reserved_bytes.all().current
    }
}

#[test]
fn a_small_request_takes_the_low_end_of_a_2_mib_segment() {
    let mut machine = Machine::new("", GIB);
    let granted = machine.alloc(1000);
    assert_eq!((granted.size, machine.layout()), (1024, vec![vec![1024, 1024 - 2 * MIB as i64]]));
    assert_eq!(machine.events(), [(Action::SegmentAlloc, 2 * MIB), (Action::Alloc, 1000)]);
    assert_eq!(machine.policy.stats().inactive_split.all().current, 1);
}

#[test]
fn a_split_block_merges_back_when_its_neighbour_is_freed() {
    let mut machine = Machine::new("", GIB);
    let [a, b, c] = [512, 1024, 2048].map(|size| machine.alloc(size));
    machine.free(b);
    assert_eq!(machine.layout(), [[512, -1024, 2048, 3584 - 2 * MIB as i64]]);
    machine.free(a);
    machine.free(c);
    assert_eq!(machine.layout(), [[-2 * MIB as i64]]);
    assert_eq!(machine.policy.stats().inactive_split_bytes.all().current, 0);
}

#[test]
fn a_large_remainder_of_at_most_1_mib_stays_in_the_block() {
    let mut machine = Machine::new("", GIB);
    assert_eq!(machine.alloc(19 * MIB).size, 20 * MIB);
    assert_eq!(machine.alloc(19 * MIB - 512).size, 19 * MIB - 512);
}

#[test]
fn the_log_is_in_the_order_of_pytorch() {
    let mut machine = Machine::new("", GIB);
    let granted = machine.alloc(3 * MIB);
    machine.free(granted);
    machine.empty_cache();
    let expected = [
        (Action::SegmentAlloc, 20 * MIB),
        (Action::Alloc, 3 * MIB),
        (Action::FreeRequested, 3 * MIB),
        (Action::FreeCompleted, 3 * MIB),
        (Action::SegmentFree, 20 * MIB),
    ];
    assert_eq!(machine.events(), expected);
    assert_eq!(machine.device.live(), crate::sim::LiveObjects::default());
}

#[test]
fn best_fit_takes_the_smallest_block_that_is_large_enough() {
    let mut machine = Machine::new("", GIB);
    let blocks = [40, 20, 30].map(|mib| machine.alloc(mib * MIB));
    machine.free_all(blocks);
    assert_eq!(machine.alloc(21 * MIB).address, blocks[2].address);
}

#[test]
fn streams_do_not_share_blocks() {
    let mut machine = Machine::new("", GIB);
    let block = machine.alloc(20 * MIB);
    machine.free(block);
    let other = machine.ask(20 * MIB, SIDE, 0).unwrap();
    assert_ne!(other.address, block.address);
}

/// Three equal free segments, the oldest at the highest address: which is taken?
fn tie_of_segments(tie_order: TieOrder) -> usize {
    let mut machine = Machine::of(Config { tie_order, ..Config::default() }, GIB);
    machine.device.script_allocs([3 * GIB, 2 * GIB, GIB]);
    let blocks = [0; 3].map(|_| machine.alloc(20 * MIB));
    machine.free_all(blocks);
    let taken = machine.alloc(20 * MIB).address;
    blocks.iter().position(|block| block.address == taken).unwrap()
}

#[test]
fn equal_blocks_fall_to_the_lowest_address_or_to_the_oldest() {
    assert_eq!(tie_of_segments(TieOrder::Address), 2);
    assert_eq!(tie_of_segments(TieOrder::Registration), 0);
    assert_eq!(tie_of_segments(TieOrder::Segment), 0);
}

/// Two equal free parts of one segment: the head, and the remainder behind. Which is taken?
fn tie_of_parts(tie_order: TieOrder) -> u64 {
    let mut machine = Machine::of(Config { tie_order, ..Config::default() }, GIB);
    let [head, _, _] = [6, 2, 6].map(|mib| machine.alloc(mib * MIB));
    machine.free(head);
    assert_eq!(machine.layout(), [[-6, 2, 6, -6].map(|mib| mib * MIB as i64)]);
    (machine.alloc(6 * MIB).address - head.address) / MIB
}

#[test]
fn equal_parts_of_a_segment_fall_to_the_lowest_address_but_in_2_12_to_the_remainder() {
    assert_eq!(tie_of_parts(TieOrder::Address), 0);
    assert_eq!(tie_of_parts(TieOrder::Registration), 14);
    assert_eq!(tie_of_parts(TieOrder::Segment), 0);
}

#[test]
fn a_block_of_two_streams_is_free_when_the_event_of_the_other_is_done() {
    let mut machine = Machine::new("", GIB);
    let block = machine.alloc(20 * MIB);
    machine.record(block, SIDE);
    machine.record(block, MAIN);
    machine.device.hold(SIDE);
    machine.free(block);
    assert_eq!(machine.policy.stats().allocated_bytes.all().current, 0);
    assert_eq!(machine.policy.stats().active_bytes.all().current, 20 * MIB);
    assert_ne!(machine.alloc(20 * MIB).address, block.address);
    machine.device.resume(SIDE);
    assert_eq!(machine.alloc(20 * MIB).address, block.address);
    assert_eq!(machine.device.live().events, 0);
}

#[test]
fn after_waiting_for_events_the_pool_is_not_searched_again() {
    // pytorch#189504: the block fits once its event is done, but it is part of a split segment.
    let mut machine = Machine::new("", 20 * MIB);
    let block = machine.alloc(8 * MIB);
    let _rest = machine.alloc(11 * MIB);
    machine.record(block, SIDE);
    machine.device.hold(SIDE);
    machine.free(block);
    let refused = machine.ask(8 * MIB, MAIN, 0);
    assert!(matches!(refused, Err(AllocError::OutOfMemory { segment, .. }) if segment == 20 * MIB));
    assert_eq!(machine.alloc(8 * MIB).address, block.address);
    let stats = machine.policy.stats();
    assert_eq!((stats.num_ooms, stats.num_alloc_retries, stats.num_sync_all_streams), (1, 1, 1));
}

#[test]
fn out_of_memory_logs_the_free_bytes_and_the_rounded_size() {
    let mut machine = Machine::new("", 64 * MIB);
    assert!(machine.ask(100 * MIB + 1, MAIN, 0).is_err());
    let event = machine.log[0];
    let expected = (Action::Oom, 64 * MIB, 100 * MIB + 512);
    assert_eq!((event.action, event.address, event.size), expected);
    assert!(machine.ask(u64::MAX, MAIN, 0).is_err());
    assert_eq!(machine.log.len(), 1, "an impossible request never reaches the allocator");
}

#[test]
fn cached_segments_are_given_back_before_a_second_try() {
    let mut machine = Machine::new("", 64 * MIB);
    let [a, _b] = [40, 20].map(|mib| machine.alloc(mib * MIB));
    machine.free(a);
    machine.events();
    machine.alloc(42 * MIB);
    let expected = [
        (Action::SegmentFree, 40 * MIB),
        (Action::SegmentAlloc, 42 * MIB),
        (Action::Alloc, 42 * MIB),
    ];
    assert_eq!(machine.events(), expected);
    assert_eq!(machine.policy.stats().num_alloc_retries, 1);
}

#[test]
fn an_oversize_block_serves_no_small_request_and_is_not_split() {
    let mut machine = Machine::new("max_split_size_mb:64", GIB);
    let large = machine.alloc(100 * MIB);
    machine.free(large);
    assert_ne!(machine.alloc(30 * MIB).address, large.address);
    let again = machine.alloc(90 * MIB);
    assert_eq!((again.address, again.size), (large.address, 100 * MIB));
    assert_eq!(machine.policy.stats().oversize_allocations.current, 1);
}

#[test]
fn an_oversize_block_must_not_be_much_larger_than_the_request() {
    let taken = |text: &str, mib: u64| {
        let mut machine = Machine::new(text, GIB);
        let large = machine.alloc(100 * MIB);
        machine.free(large);
        machine.alloc(mib * MIB).address == large.address
    };
    assert!(!taken("max_split_size_mb:64", 80), "100 is not below 80 + 20");
    assert!(taken("max_split_size_mb:64", 81));
    assert!(taken("max_split_size_mb:64,max_non_split_rounding_mb:48", 64));
}

#[test]
fn oversize_blocks_are_given_back_before_anything_else() {
    let mut machine = Machine::new("max_split_size_mb:64", 400 * MIB);
    let blocks = [100, 120, 20].map(|mib| machine.alloc(mib * MIB));
    machine.free_all(blocks);
    machine.events();
    machine.alloc(200 * MIB);
    let given_back = [(Action::SegmentFree, 120 * MIB), (Action::SegmentFree, 100 * MIB)];
    assert_eq!(machine.events()[..2], given_back);
    assert_eq!(machine.policy.stats().num_alloc_retries, 0);
}

#[test]
fn garbage_collection_gives_back_the_blocks_that_were_not_used_for_long() {
    let text = "garbage_collection_threshold:0.5,per_process_memory_fraction:0.5";
    let mut machine = Machine::new(text, GIB);
    let old = machine.ask(100 * MIB, SIDE, 0).unwrap();
    let young = machine.alloc(150 * MIB);
    machine.free(old);
    for _ in 0..4 {
        let reused = machine.alloc(30 * MIB);
        machine.free(reused);
    }
    machine.free(young);
    machine.events();
    // 280 MiB are held, more than half of 512 MiB. Only the block of the other stream is old.
    machine.alloc(200 * MIB);
    let freed: Vec<_> =
        machine.events().into_iter().filter(|event| event.0 == Action::SegmentFree).collect();
    assert_eq!(freed, [(Action::SegmentFree, 100 * MIB)]);
}

#[test]
fn the_limit_is_a_share_of_the_device_truncated_until_2_12_and_rounded_later() {
    // 2/3 of 90 MiB is 60 MiB less a fraction of a byte.
    let machine = |tie_order| {
        let config = Config { memory_fraction: 2.0 / 3.0 - 1e-9, tie_order, ..Config::default() };
        Machine::of(config, 90 * MIB)
    };
    assert!(machine(TieOrder::Address).ask(60 * MIB, MAIN, 0).is_err());
    assert!(machine(TieOrder::Segment).ask(60 * MIB, MAIN, 0).is_ok());
}

#[test]
fn a_rejected_request_is_no_out_of_memory_event() {
    let mut machine = Machine::new("throw_on_cudamalloc_oom:True", 64 * MIB);
    assert!(machine.ask(100 * MIB, MAIN, 0).is_err());
    let stats = machine.policy.stats();
    assert_eq!((stats.num_oom_rejections, stats.num_ooms), (1, 0));
    assert_eq!(machine.events(), []);
}

#[test]
fn memory_goes_back_in_the_order_of_the_driver_handles_of_streams() {
    let mut machine = Machine::new("", GIB);
    machine.policy.set_stream_handles(vec![0, 900, 200]);
    let blocks = [2, 1, 0].map(|stream| {
        machine.ask((u64::from(stream) + 10) * 2 * MIB, StreamId(stream), 0).unwrap()
    });
    machine.free_all(blocks);
    machine.events();
    machine.empty_cache();
    let expected = [20, 24, 22].map(|mib| (Action::SegmentFree, mib * MIB));
    assert_eq!(machine.events(), expected);
}

#[test]
fn private_pools_never_lend() {
    let mut machine = Machine::new("", GIB);
    let private = machine.ask(20 * MIB, MAIN, 1).unwrap();
    machine.free(private);
    assert_ne!(machine.alloc(20 * MIB).address, private.address);
    assert_eq!(machine.ask(20 * MIB, MAIN, 1).unwrap().address, private.address);
}

#[test]
fn a_private_pool_keeps_its_memory_until_it_is_released() {
    let mut machine = Machine::new("", GIB);
    let private = machine.ask(20 * MIB, MAIN, 1).unwrap();
    machine.free(private);
    machine.empty_cache();
    assert_eq!(machine.reserved(), 20 * MIB);
    machine.with(|policy, env| policy.release_pool(env, PoolId(1))).unwrap();
    assert_eq!(machine.reserved(), 20 * MIB);
    machine.empty_cache();
    assert_eq!(machine.reserved(), 0);
}

#[test]
fn a_pool_with_two_users_is_released_by_the_second() {
    let mut machine = Machine::new("", GIB);
    machine.policy.create_pool(PoolId(1));
    machine.policy.create_pool(PoolId(1));
    let private = machine.ask(20 * MIB, MAIN, 1).unwrap();
    machine.free(private);
    for left in [20 * MIB, 0] {
        machine.with(|policy, env| policy.release_pool(env, PoolId(1))).unwrap();
        machine.empty_cache();
        assert_eq!(machine.reserved(), left);
    }
}

#[test]
fn a_pool_may_lend_when_memory_runs_out_and_may_refuse_to_split() {
    let mut machine = Machine::new("", 64 * MIB);
    let options = PoolOptions { use_on_oom: true, no_split: true, ..PoolOptions::default() };
    machine.policy.create_pool(PoolId(1));
    machine.policy.set_pool_options(PoolId(1), options);
    let private = machine.ask(60 * MIB, MAIN, 1).unwrap();
    machine.free(private);
    let lent = machine.alloc(30 * MIB);
    assert_eq!((lent.address, lent.size), (private.address, 60 * MIB));
}

#[test]
fn inside_a_pool_scope_nothing_is_released_for_a_second_try_until_2_12() {
    let tried = |tie_order| {
        let mut machine = Machine::of(Config { tie_order, ..Config::default() }, 64 * MIB);
        let cached = machine.alloc(40 * MIB);
        machine.free(cached);
        machine.ask(60 * MIB, MAIN, 1).is_ok()
    };
    assert!(!tried(TieOrder::Address) && !tried(TieOrder::Registration));
    assert!(tried(TieOrder::Segment));
}

#[test]
fn a_block_freed_in_a_capture_waits_for_its_end_and_for_streams_recorded_outside() {
    let mut machine = Machine::new("", GIB);
    let [inside, outside] = [20, 30].map(|mib| machine.alloc(mib * MIB));
    machine.record(outside, SIDE);
    machine.policy.begin_pool(PoolId(1), true);
    machine.record(inside, SIDE);
    machine.device.hold(SIDE);
    machine.free(inside);
    machine.free(outside);
    machine.alloc(512);
    assert_eq!(machine.policy.stats().active_bytes.all().current, 50 * MIB + 512);
    assert_eq!(machine.device.live().events, 0);
    machine.policy.end_pool(PoolId(1), true);
    machine.alloc(512);
    assert_eq!(machine.policy.stats().active_bytes.all().current, 30 * MIB + 1024);
    assert_eq!(machine.device.live().events, 1);
}

#[test]
fn an_expandable_segment_grows_by_pages_behind_its_last_block() {
    let mut machine = Machine::new("expandable_segments:True", GIB);
    let a = machine.alloc(30 * MIB);
    assert_eq!(machine.events()[0], (Action::SegmentMap, 40 * MIB));
    let b = machine.alloc(25 * MIB);
    assert_eq!(machine.events()[0], (Action::SegmentMap, 20 * MIB));
    assert_eq!(b.address, a.address + 30 * MIB);
    assert_eq!(machine.layout(), [[30, 25, -5].map(|mib| mib * MIB as i64)]);
    assert_eq!(machine.policy.stats().segment.all().current, 0);
}

#[test]
fn only_whole_pages_inside_a_free_block_are_unmapped() {
    let mut machine = Machine::new("expandable_segments:True", GIB);
    let [_a, b, _c] = [10, 50, 10].map(|mib| machine.alloc(mib * MIB));
    machine.free(b);
    machine.events();
    machine.empty_cache();
    assert_eq!(machine.events(), [(Action::SegmentUnmap, 40 * MIB)]);
    let mib = MIB as i64;
    assert_eq!(machine.layout(), [vec![10 * mib, -10 * mib], vec![10 * mib, -10 * mib]]);
    // The hole is filled again before the segment grows at its end.
    assert_eq!(machine.alloc(50 * MIB).address, b.address);
    assert_eq!(machine.events()[0], (Action::SegmentMap, 40 * MIB));
}

#[test]
fn an_empty_expandable_segment_gives_its_addresses_back() {
    let mut machine = Machine::new("expandable_segments:True", GIB);
    let blocks = [512, 30 * MIB].map(|size| machine.alloc(size));
    assert_eq!(machine.device.live().reservations, 2);
    machine.free_all(blocks);
    machine.empty_cache();
    assert_eq!(machine.device.live(), crate::sim::LiveObjects::default());
}

#[test]
fn best_fit_counts_what_an_expandable_block_could_grow_to() {
    let mut machine = Machine::new("expandable_segments:True", GIB);
    let blocks = [20, 10, 40, 10, 10].map(|mib| machine.alloc(mib * MIB));
    machine.free(blocks[2]);
    machine.free(blocks[4]);
    // Free: 40 MiB in the middle, 10 MiB at the end which could grow without end.
    assert_eq!(machine.alloc(9 * MIB).address, blocks[2].address);
}

#[test]
fn a_failed_mapping_leaves_what_was_mapped_before_as_free_blocks() {
    let mut machine = Machine::new("expandable_segments:True", 100 * MIB);
    let [_a, b, _c] = [20, 20, 20].map(|mib| machine.alloc(mib * MIB));
    machine.free(b);
    assert!(machine.ask(90 * MIB, MAIN, 0).is_err());
    assert_eq!(machine.policy.stats().num_ooms, 1);
    assert_eq!(machine.alloc(20 * MIB).address, b.address);
}

#[test]
fn expandable_segments_that_are_off_serve_nobody() {
    let mut machine = Machine::new("expandable_segments:True", GIB);
    let old = machine.alloc(20 * MIB);
    machine.free(old);
    machine.policy.set_expandable(false);
    assert_ne!(machine.alloc(20 * MIB).address, old.address);
    machine.policy.set_expandable(true);
    assert_eq!(machine.alloc(20 * MIB).address, old.address);
}

#[test]
fn the_steady_path_asks_nothing_of_the_device() {
    let mut machine = Machine::new("", GIB);
    let first = machine.alloc(5 * MIB);
    machine.free(first);
    let calls = machine.device.calls();
    for size in 1..100 {
        let block = machine.alloc(size * 50_000);
        machine.free(block);
    }
    assert!(machine.device.calls() <= calls + 1, "one segment for small requests, then none");
}
