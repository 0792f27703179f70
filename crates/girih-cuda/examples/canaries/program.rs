//! A program at random: it takes blocks, writes a word of its own to all of each, reads it on this
//! stream and that, and lets go.

use std::fmt;
use std::ops::Range;

use girih_runtime::suite;
use girih_runtime::{Address, AllocError, Env, Granted, Policy, PoolOptions, Request};
use girih_trace::{Mark, MarkKind, PoolId, StreamId};

use crate::card::{Card, Stream};
use crate::watched::Watched;

const MIB: u64 = 1 << 20;
/// Blocks that are held at most.
const BLOCKS_MAX: usize = 120;
/// The private pool whose memory is in one handle.
const WHOLE: PoolId = PoolId(2);
/// Bytes that are read at the ends of a piece when all of memory is looked at.
const SAMPLE: u64 = 512;
/// Operations between two looks at what was read, if the ring is not full before.
const LOOK_EVERY: u64 = 200;
/// Wrong ranges that are shown.
const SHOWN_MAX: u64 = 20;

/// What has been done and seen.
#[derive(Default)]
pub(crate) struct Counts {
    operations: u64,
    blocks: u64,
    out_of_memory: u64,
    recorded: u64,
    stitches: u64,
    /// Bytes that were read and compared.
    checked: u64,
    /// Pieces that were read under another address than the block's.
    aliases: u64,
    /// Ranges that did not hold what their owner wrote.
    pub(crate) wrong: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations, {} blocks, {} refused, {} used by a second stream, {} stitches, \
             {} MiB of canaries read, {} pieces read under another address, {} wrong",
            self.operations,
            self.blocks,
            self.out_of_memory,
            self.recorded,
            self.stitches,
            self.checked / MIB,
            self.aliases,
            self.wrong
        )
    }
}

/// A block that the program holds.
struct Block {
    granted: Granted,
    /// What was written to it.
    word: u32,
    stream: Stream,
    /// Other streams that use it.
    users: Vec<Stream>,
}

/// Words that were read, and what they must be.
struct Read {
    place: Range<usize>,
    word: u32,
    address: Address,
}

/// A policy at work on the card.
pub(crate) struct Program {
    policy: Box<dyn Policy>,
    device: Watched,
    card: Card,
    ids: Vec<StreamId>,
    live: Vec<Block>,
    reads: Vec<Read>,
    word: u32,
    chance: u64,
    pub(crate) counts: Counts,
}

impl Program {
    /// A program whose policy may hold so many bytes.
    pub(crate) fn new(
        mut policy: Box<dyn Policy>,
        mut device: Watched,
        card: Card,
        bytes: u64,
        seed: u64,
    ) -> Program {
        let ids = card.handles().map(|handle| device.device.add_stream(handle)).collect();
        policy.set_limit(Some(bytes));
        policy.create_pool(WHOLE);
        policy.set_pool_options(WHOLE, PoolOptions { one_handle: true, ..PoolOptions::default() });
        let counts = Counts::default();
        let (live, reads, word) = (Vec::new(), Vec::new(), 0);
        Program { policy, device, card, ids, live, reads, word, chance: seed, counts }
    }

    /// A number below a bound.
    fn below(&mut self, bound: u64) -> u64 {
        let (factor, step) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);
        self.chance = self.chance.wrapping_mul(factor).wrapping_add(step);
        (self.chance >> 33) % bound
    }

    /// Bytes of a request: most of them come again.
    fn size(&mut self) -> u64 {
        match self.below(10) {
            0..2 => 1 + self.below(MIB),
            2..4 => 1 + self.below(24 * MIB),
            4 => 1 + self.below(160 * MIB),
            _ => {
                let at = self.below(10);
                (at + 1) * 4 * MIB + at * 77 * 512
            }
        }
    }

    fn stream(&mut self) -> Stream {
        self.below(self.ids.len() as u64) as Stream
    }

    /// Calls the policy. None if there was too little memory.
    fn call<T>(
        &mut self,
        operation: impl FnOnce(&mut dyn Policy, &mut Env<'_>) -> Result<T, AllocError>,
    ) -> Result<Option<T>, String> {
        let mut env =
            Env { device: &mut self.device, log: &mut (), listens: false, may_wait: true };
        match operation(&mut *self.policy, &mut env) {
            Ok(value) => Ok(Some(value)),
            Err(AllocError::OutOfMemory { .. }) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// So many operations, and the end.
    pub(crate) fn run(&mut self, operations: u64) -> Result<(), String> {
        for index in 0..operations {
            self.counts.operations += 1;
            match self.below(200) {
                0..104 if self.live.len() < BLOCKS_MAX => self.take()?,
                0..178 => self.let_go()?,
                178..190 => self.share()?,
                190..195 => _ = self.call(|policy, env| policy.process_events(env))?,
                195 if index % 7 == 0 => _ = self.call(|policy, env| policy.empty_cache(env))?,
                196 => self.look_everywhere()?,
                _ => self.step()?,
            }
            if index % LOOK_EVERY == 0 {
                self.look()?;
                self.policy.check()?;
            }
        }
        self.finish()
    }

    fn step(&mut self) -> Result<(), String> {
        let mark = Mark { before: 0, time_us: 0, kind: MarkKind::Step, name: String::new() };
        self.call(|policy, env| policy.mark(env, &mark)).map(drop)
    }

    /// Takes a block and writes to it. After a stitch all that is held is looked at.
    fn take(&mut self) -> Result<(), String> {
        let (size, stream) = (self.size(), self.stream());
        let pool = PoolId(self.below(40).saturating_sub(37) as u16);
        let stitches = self.policy.stats().num_stitches;
        let request = Request { size, stream: self.ids[stream], pool };
        let Some(granted) = self.call(|policy, env| policy.allocate(env, request))? else {
            self.counts.out_of_memory += 1;
            return self.let_go();
        };
        self.word += 1;
        self.card.fill(stream, granted.address, granted.size, self.word)?;
        if self.below(4) == 0 {
            // What comes on this stream next comes late.
            self.card.delay(stream)?;
        }
        self.live.push(Block { granted, word: self.word, stream, users: Vec::new() });
        self.counts.blocks += 1;
        let made = self.policy.stats().num_stitches - stitches;
        self.counts.stitches += made;
        if made > 0 { self.look_everywhere() } else { Ok(()) }
    }

    /// Lets another stream read a block, from now until it is freed.
    fn share(&mut self) -> Result<(), String> {
        if self.live.is_empty() || self.ids.len() == 1 {
            return Ok(());
        }
        let (at, stream) = (self.below(self.live.len() as u64) as usize, self.stream());
        let Block { granted, word, stream: own, .. } = self.live[at];
        if stream == own || self.live[at].users.contains(&stream) {
            return Ok(());
        }
        self.card.follow(stream, own)?;
        let id = self.ids[stream];
        self.call(|policy, env| policy.record_stream(env, granted.block, id))?;
        self.live[at].users.push(stream);
        self.counts.recorded += 1;
        self.read(stream, granted.address, granted.size, word)
    }

    /// Frees a block, after a last look at it on every stream that uses it. Nothing is waited for.
    fn let_go(&mut self) -> Result<(), String> {
        if self.live.is_empty() {
            return Ok(());
        }
        let at = self.below(self.live.len() as u64) as usize;
        let is_late = self.below(3) == 0;
        let Block { granted, word, stream, users } = self.live.swap_remove(at);
        if self.below(16) == 0 {
            self.look_under_all_addresses(granted, word)?;
        }
        for stream in users.into_iter().chain([stream]) {
            if is_late {
                self.card.delay(stream)?;
            }
            self.read(stream, granted.address, granted.size, word)?;
        }
        self.call(|policy, env| policy.free(env, granted.block)).map(drop)
    }

    /// Reads a range on a stream, to be compared later.
    fn read(
        &mut self,
        stream: Stream,
        address: Address,
        size: u64,
        word: u32,
    ) -> Result<(), String> {
        let place = match self.card.read(stream, address, size)? {
            Some(place) => place,
            None => {
                self.look()?;
                let place = self.card.read(stream, address, size)?;
                place.ok_or_else(|| format!("a block of {size} bytes is larger than the ring"))?
            }
        };
        self.reads.push(Read { place, word, address });
        Ok(())
    }

    /// Waits for the card, and compares what was read.
    fn look(&mut self) -> Result<(), String> {
        self.card.wait()?;
        for Read { place, word, address } in self.reads.drain(..) {
            let words = self.card.words(place);
            self.counts.checked += 4 * words.len() as u64;
            if let Some(at) = words.iter().position(|&found| found != word) {
                self.counts.wrong += 1;
                if self.counts.wrong <= SHOWN_MAX {
                    let (found, at) = (words[at], address + 4 * at as u64);
                    println!("  WRONG at {at:#x}: {found}, and {word} was written");
                }
            }
        }
        self.card.empty_ring();
        Ok(())
    }

    /// Looks at the ends of every piece of every block, under every address that it has.
    fn look_everywhere(&mut self) -> Result<(), String> {
        let blocks: Vec<(Granted, u32)> =
            self.live.iter().map(|block| (block.granted, block.word)).collect();
        self.card.wait()?;
        for (granted, word) in blocks {
            self.read_views(granted, word)?;
        }
        self.look()
    }

    /// The same of one block.
    fn look_under_all_addresses(&mut self, granted: Granted, word: u32) -> Result<(), String> {
        self.card.wait()?;
        self.read_views(granted, word)?;
        self.look()
    }

    /// Reads the ends of every piece of a block whose stream has been waited for. The policy knows
    /// nothing of this: it must be looked at before the policy is called again.
    fn read_views(&mut self, granted: Granted, word: u32) -> Result<(), String> {
        let own = granted.address..granted.address + granted.size;
        for (address, size) in self.device.views(granted.address, granted.size) {
            self.counts.aliases += u64::from(!own.contains(&address));
            let sample = size.min(SAMPLE);
            self.read(0, address, sample, word)?;
            self.read(0, address + size - sample, sample, word)?;
        }
        Ok(())
    }

    /// Lets go of everything: the device must have all of it back.
    fn finish(&mut self) -> Result<(), String> {
        while !self.live.is_empty() {
            self.let_go()?;
        }
        self.look()?;
        for pool in [PoolId(1), WHOLE] {
            self.call(|policy, env| policy.release_pool(env, pool))?;
        }
        self.call(|policy, env| policy.empty_cache(env))?;
        // What was left to be done later is done by the next call.
        self.call(|policy, env| policy.process_events(env))?;
        self.call(|policy, env| policy.empty_cache(env))?;
        self.policy.check()?;
        let stats = self.policy.stats();
        let left = [stats.allocated_bytes, stats.active_bytes, stats.reserved_bytes];
        if left.iter().any(|bytes| bytes.all().current != 0) {
            return Err(format!("the counters are not back at nothing: {left:?}"));
        }
        match self.device.left() {
            (0, 0) => Ok(()),
            (handles, mappings) => {
                Err(format!("{handles} handles and {mappings} mappings did not go back"))
            }
        }
    }
}

/// The policies of these names, or all.
pub(crate) fn policies(names: &str, seed: u64) -> Vec<Box<dyn Policy>> {
    let mut all = suite::every_policy(seed);
    all.retain(|policy| names == "all" || names.split(',').any(|name| name == policy.name()));
    all
}
