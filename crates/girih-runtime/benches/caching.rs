//! What an allocation costs when nothing is asked of the device.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use girih_runtime::caching::{Caching, Config};
use girih_runtime::lake::Lake;
use girih_runtime::sim::SimDevice;
use girih_runtime::{BlockId, Env, Policy, Request};
use girih_trace::{PoolId, StreamId};

const GIB: u64 = 1 << 30;

struct Machine {
    device: SimDevice,
    policy: Box<dyn Policy>,
}

impl Machine {
    fn new(text: &str) -> Machine {
        Machine::of(Config::parse(text).expect("the settings are right"))
    }

    fn of(config: Config) -> Machine {
        Machine::with(Box::new(Caching::new(config)))
    }

    fn with(policy: Box<dyn Policy>) -> Machine {
        Machine { device: SimDevice::new(256 * GIB), policy }
    }

    fn alloc(&mut self, size: u64) -> BlockId {
        let request = Request { size, stream: StreamId(0), pool: PoolId::DEFAULT };
        let mut env =
            Env { device: &mut self.device, log: &mut (), listens: false, may_wait: true };
        self.policy.allocate(&mut env, request).expect("there is memory").block
    }

    fn free(&mut self, block: BlockId) {
        let mut env =
            Env { device: &mut self.device, log: &mut (), listens: false, may_wait: true };
        self.policy.free(&mut env, block).expect("the block is in use");
    }
}

/// Sizes without pattern, as training has them: from 512 bytes to 64 MiB, evenly by magnitude.
fn sizes(count: usize) -> Vec<u64> {
    let mut state = 1_u64;
    let next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = state >> 33;
        let magnitude = 9 + random % 17;
        (1 << magnitude) + (random >> 5) % (1 << magnitude)
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// An allocator with `live` blocks in use and as many holes between them.
fn fragmented(text: &str, live: usize) -> (Machine, Vec<BlockId>) {
    let mut machine = Machine::new(text);
    let blocks: Vec<BlockId> =
        sizes(2 * live).into_iter().map(|size| machine.alloc(size)).collect();
    let (kept, dropped): (Vec<_>, Vec<_>) =
        blocks.into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
    for (_, block) in dropped {
        machine.free(block);
    }
    (machine, kept.into_iter().map(|(_, block)| block).collect())
}

fn pairs(c: &mut Criterion) {
    for (name, text) in [("native", ""), ("expandable", "expandable_segments:True")] {
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Elements(3));
        let mut machine = Machine::new(text);
        let block = machine.alloc(5 << 20);
        machine.free(block);
        group.bench_function("cached pair", |bencher| {
            bencher.iter(|| {
                let block = machine.alloc(black_box(3 << 20));
                machine.free(block);
            });
        });
        let (mut machine, _blocks) = fragmented(text, 1000);
        group.bench_function("cached pair among 1000 holes", |bencher| {
            bencher.iter(|| {
                let block = machine.alloc(black_box(3 << 20));
                machine.free(block);
            });
        });
    }
}

/// A request that one hole serves, and requests that are served by a view of several.
fn views(c: &mut Criterion) {
    const HOLE: u64 = 40 << 20;
    let mut group = c.benchmark_group("stitch");
    for parts in [1, 2, 5, 20, 100] {
        let mut machine = Machine::with(Box::new(Lake::of(Config::default())));
        let blocks: Vec<BlockId> = (0..2 * parts).map(|_| machine.alloc(HOLE)).collect();
        blocks.into_iter().step_by(2).for_each(|block| machine.free(block));
        let size = parts * HOLE - (2 << 20);
        let block = machine.alloc(size);
        machine.free(block);
        assert_eq!(machine.policy.stats().num_stitches, u64::from(parts > 1));
        group.bench_function(format!("cached pair over {parts} holes"), |bencher| {
            bencher.iter(|| {
                let block = machine.alloc(black_box(size));
                machine.free(block);
            });
        });
    }
}

fn mix(c: &mut Criterion) {
    const OPS: usize = 10_000;
    for (name, text) in [("native", ""), ("expandable", "expandable_segments:True")] {
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Elements(3 * OPS as u64));
        let sizes = sizes(OPS);
        group.bench_function("random mix of 10000 pairs", |bencher| {
            bencher.iter_batched(
                || fragmented(text, 500),
                |(mut machine, mut blocks)| {
                    for (index, &size) in sizes.iter().enumerate() {
                        let place = (index * 7919) % blocks.len();
                        machine.free(blocks[place]);
                        blocks[place] = machine.alloc(size);
                    }
                },
                BatchSize::LargeInput,
            );
        });
    }
}

criterion_group!(benches, pairs, views, mix);
criterion_main!(benches);
