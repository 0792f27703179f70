//! Programs that allocate and free at random.

use std::ops::AddAssign;

use girih_runtime::sim::Call;
use girih_runtime::{Device, Granted, Policy};
use girih_trace::{PoolId, StreamId};

use super::kinds::Stitcher;
use super::world::World;

/// Numbers without pattern, from a seed.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let (factor, step) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);
        self.0 = self.0.wrapping_mul(factor).wrapping_add(step);
        (self.0 >> 33) % bound
    }
}

/// A block that a program holds, and the streams that use it, its own first.
pub(crate) struct Held {
    pub(crate) block: Granted,
    pub(crate) streams: Vec<u16>,
}

/// What a program does.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) operations: u64,
    pub(crate) streams: u64,
    /// How many times as large as elsewhere the requests are.
    pub(crate) scale: u64,
    /// True for one that does whatever a program may: it lets streams use the blocks of others,
    /// holds streams back, captures graphs, has private pools, and limits its memory.
    pub(crate) does_all: bool,
}

impl Kind {
    /// Allocates and frees on two streams, and empties the cache now and then.
    pub(crate) const PLAIN: Kind = Kind { operations: 400, streams: 2, scale: 1, does_all: false };
    /// Does everything on three streams.
    pub(crate) const FULL: Kind = Kind { operations: 400, streams: 3, scale: 1, does_all: true };
}

/// What was seen while programs ran.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Seen {
    pub(crate) stitches: u64,
    /// Waits of a stream for another, on the device.
    pub(crate) waits: u64,
    /// Bytes of views that were given up for others.
    pub(crate) retired: u64,
    /// Bytes of views that went with their pages.
    pub(crate) dropped: u64,
    /// Requests that failed for memory.
    pub(crate) refused: u64,
    pub(crate) captures: u64,
}

impl AddAssign for Seen {
    fn add_assign(&mut self, other: Seen) {
        self.stitches += other.stitches;
        self.waits += other.waits;
        self.retired += other.retired;
        self.dropped += other.dropped;
        self.refused += other.refused;
        self.captures += other.captures;
    }
}

/// A program at work.
pub(crate) struct Program<'a, P: Policy> {
    pub(crate) world: &'a mut World<P>,
    kind: Kind,
    chance: Chance,
    pub(crate) live: Vec<Held>,
    /// The private pool whose scope is open.
    scope: Option<PoolId>,
    pub(crate) seen: Seen,
}

/// Private pools, from 1 on.
const POOLS: u64 = 2;

impl<'a, P: Stitcher> Program<'a, P> {
    pub(crate) fn new(world: &'a mut World<P>, kind: Kind, seed: u64) -> Program<'a, P> {
        let seen = Seen::default();
        Program { world, kind, chance: Chance(seed), live: Vec::new(), scope: None, seen }
    }

    /// Runs a whole program, and frees everything at the end. Requests that fail for memory are left
    /// out.
    pub(crate) fn run(
        world: &'a mut World<P>,
        kind: Kind,
        seed: u64,
        mut after_each: impl FnMut(&mut World<P>, &[Held]),
    ) -> Seen {
        let mut program = Program::new(world, kind, seed);
        for _ in 0..kind.operations {
            program.step();
            after_each(program.world, &program.live);
        }
        program.finish()
    }

    /// One operation.
    pub(crate) fn step(&mut self) {
        let views = self.world.views_unmapped();
        let retries = self.world.lake.stats().num_alloc_retries;
        let ticket = self.chance.below(20);
        match ticket {
            0 if self.chance.below(2) == 0 => self.empty_cache(),
            1..3 if self.kind.does_all => self.do_something_rare(),
            _ if ticket < 9 && !self.live.is_empty() => {
                let place = self.chance.below(self.live.len() as u64) as usize;
                self.free(place);
            }
            _ => {
                // Most requests are of one stream.
                let side = self.chance.below(4) == 0;
                let stream = if side { self.chance.below(self.kind.streams) } else { 0 };
                let pool = if stream == 0 { self.scope } else { None };
                self.alloc(pool.unwrap_or(PoolId::DEFAULT), stream as u16);
            }
        }
        let views = self.world.views_unmapped().saturating_sub(views);
        if ticket == 0 || self.world.lake.stats().num_alloc_retries > retries {
            self.seen.dropped += views;
        } else {
            self.seen.retired += views;
        }
    }

    fn do_something_rare(&mut self) {
        let stream = self.chance.below(self.kind.streams) as u16;
        let captures = self.scope.is_some();
        match self.chance.below(16) {
            0..4 if !captures && !self.live.is_empty() => self.record_stream(stream),
            0..7 => self.world.device.hold(StreamId(stream)),
            7..10 => self.world.device.resume(StreamId(stream)),
            10 => drop(self.world.attempt(Policy::process_events)),
            11..13 => self.turn_capture(),
            13 => {
                let pool = PoolId(1 + self.chance.below(POOLS) as u16);
                self.alloc(pool, stream);
            }
            14 => {
                let pool = PoolId(1 + self.chance.below(POOLS) as u16);
                if self.scope != Some(pool) {
                    self.world.attempt(|lake, env| lake.release_pool(env, pool));
                }
            }
            _ => {
                let tenths = [10, 9, 7][self.chance.below(3) as usize];
                let limit = self.world.device.memory_info().total / 10 * tenths;
                self.world.lake.set_limit((tenths < 10).then_some(limit));
            }
        }
    }

    /// Begins to capture a graph into a private pool, or ends it.
    fn turn_capture(&mut self) {
        match self.scope.take() {
            Some(pool) => self.world.lake.end_pool(pool, true),
            None => {
                let pool = PoolId(1 + self.chance.below(POOLS) as u16);
                self.world.lake.begin_pool(pool, true);
                self.scope = Some(pool);
                self.seen.captures += 1;
            }
        }
    }

    fn empty_cache(&mut self) {
        // It waits for streams, which no capture allows.
        if self.scope.is_none() {
            self.world.attempt(Policy::empty_cache);
        }
    }

    fn alloc(&mut self, pool: PoolId, stream: u16) {
        let size = P::size(&mut self.chance) * self.kind.scale;
        let total = self.world.device.memory_info().total;
        let most = self.world.reserved().max(self.world.lake.limit(total).unwrap_or(total));
        let block = self.world.attempt_alloc(pool, stream, size);
        // Large pages of private pools and of captures may reach beyond it, as PyTorch's do.
        if self.scope.is_none() && pool == PoolId::DEFAULT {
            assert!(self.world.reserved() <= most, "{} of {most}", self.world.reserved());
        }
        let Some(block) = block else {
            self.seen.refused += 1;
            return;
        };
        self.live.push(Held { block, streams: vec![stream] });
    }

    fn record_stream(&mut self, stream: u16) {
        let place = self.chance.below(self.live.len() as u64) as usize;
        let Held { block, streams } = &mut self.live[place];
        let (id, user) = (block.block, StreamId(stream));
        let recorded = self.world.attempt(|lake, env| lake.record_stream(env, id, user));
        if recorded.is_some() && !streams.contains(&stream) {
            streams.push(stream);
        }
    }

    /// Frees a block. What fails by a fault is done again.
    fn free(&mut self, place: usize) {
        let Held { block, streams } = self.live.swap_remove(place);
        self.world.let_go(block, &streams);
        let mut tries = 0;
        while self.world.attempt(|lake, env| lake.free(env, block.block)).is_none() {
            tries += 1;
            assert!(tries < 20, "{block:?} cannot be freed");
        }
    }

    /// Ends the capture, frees everything, and gives the pools up.
    pub(crate) fn finish(mut self) -> Seen {
        if self.scope.is_some() {
            self.turn_capture();
        }
        (0..self.kind.streams).for_each(|at| self.world.device.resume(StreamId(at as u16)));
        while !self.live.is_empty() {
            self.free(0);
        }
        for pool in (1..=POOLS).map(|pool| PoolId(pool as u16)) {
            while self.world.lake.pool_users(pool) > 0 {
                self.world.attempt(|lake, env| lake.release_pool(env, pool));
            }
        }
        self.seen.stitches = P::stitches(self.world);
        self.seen.waits = self.world.calls(Call::WaitEvent);
        self.seen
    }
}
