//! Scenarios: one or two devices and what a program does on them, made from bytes.
//!
//! Each scenario draws its own mix of operations (swarm testing): one frees nothing, another holds
//! every stream, a third uses private pools.

use arbitrary::{Arbitrary, Result, Unstructured};
use girih_trace::{PoolId, StreamId};

use super::streams::NAMES_OF_ONE;

/// Most operations of a scenario.
const MAX_OPS: usize = 160;

/// One operation. `pick` chooses among the blocks in use, modulo their number. A stream belongs to a device:
/// 0 to 2 to the first, 4 to 6 to the second. What names no stream and no block is done to the device whose
/// stream asked for memory last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Allocates `size` bytes.
    Alloc {
        /// Bytes.
        size: u64,
        /// The current stream.
        stream: StreamId,
        /// The pool whose scope is current.
        pool: PoolId,
    },
    /// Frees a block.
    Free {
        /// Which.
        pick: u16,
    },
    /// Another stream of its device uses a block and nobody is told: the program lets the block's stream come after that
    /// before it asks for more on that stream, which may be after the free.
    Borrow {
        /// Which block.
        pick: u16,
        /// The stream.
        stream: StreamId,
    },
    /// The program destroys a stream and makes another.
    DestroyStream(StreamId),
    /// Opens a scope of a private pool. With `captures` a graph is captured from the stream, whose
    /// requests are the pool's until the scope is closed.
    BeginScope {
        /// The pool.
        pool: PoolId,
        /// The stream that captures.
        stream: StreamId,
        /// A capture begins with it.
        captures: bool,
    },
    /// Closes the newest scope.
    EndScope,
    /// A graph is captured that nobody tells the policy of, or that is over.
    RawCapture(StreamId),
    /// [`Policy::release_pool`](crate::Policy::release_pool), if the program has it.
    ReleasePool(PoolId),
    /// [`Policy::empty_pool`](crate::Policy::empty_pool).
    EmptyPool(PoolId),
    /// [`Policy::set_pool_options`](crate::Policy::set_pool_options).
    PoolOptions {
        /// The pool.
        pool: PoolId,
        /// Its blocks are not split.
        no_split: bool,
    },
    /// [`Policy::checkpoint`](crate::Policy::checkpoint).
    Checkpoint(PoolId),
    /// [`Policy::restore`](crate::Policy::restore) of the newest checkpoint.
    Restore,
    /// [`Policy::set_limit`](crate::Policy::set_limit), in tenths of the device; ten are no limit.
    Limit(u8),
    /// Lets another stream use a block, be it of another device.
    RecordStream {
        /// Which block.
        pick: u16,
        /// The stream.
        stream: StreamId,
    },
    /// Keeps a stream's work from being done.
    Hold(StreamId),
    /// Does a stream's work.
    Resume(StreamId),
    /// [`Policy::process_events`](crate::Policy::process_events).
    ProcessEvents,
    /// [`Policy::empty_cache`](crate::Policy::empty_cache).
    EmptyCache,
    /// A step begins: [`Policy::mark`](crate::Policy::mark).
    Step,
}

impl Op {
    /// The same with another stream, if it names one.
    pub(super) fn with_stream(mut self, other: impl Fn(StreamId) -> StreamId) -> Op {
        if let Op::Alloc { stream, .. }
        | Op::Borrow { stream, .. }
        | Op::DestroyStream(stream)
        | Op::BeginScope { stream, .. }
        | Op::RawCapture(stream)
        | Op::RecordStream { stream, .. }
        | Op::Hold(stream)
        | Op::Resume(stream) = &mut self
        {
            *stream = other(*stream);
        }
        self
    }
}

/// One or two devices and what a program does on them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scenario {
    /// How many, from 1 to 2: each with a policy of its own.
    pub devices: usize,
    /// Bytes of each.
    pub device_bytes: u64,
    /// Bytes of which its handles are multiples.
    pub granularity: u64,
    /// A handle can be mapped at several addresses: see [`Device::maps_twice`](crate::Device::maps_twice).
    pub maps_twice: bool,
    /// The program keeps to what PyTorch's allocator trusts that programs do; see [`Scenario::trusted`].
    pub is_trusted: bool,
    /// The operations.
    pub ops: Vec<Op>,
}

impl<'a> Arbitrary<'a> for Scenario {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Scenario> {
        let device_bytes = *u.choose(&[24, 48, 160, 1024, 16384])? << 20;
        let granularity = *u.choose(&[2, 2, 2, 4])? << 20;
        // How often each kind of operation comes; several never do.
        let mut weights = WEIGHTS;
        for weight in &mut weights[1..] {
            *weight *= u.int_in_range(0..=2)?;
        }
        let streams = u.int_in_range(1..=3)?;
        let pools = u.int_in_range(0..=2)?;
        let largest = u.int_in_range(10..=28)?;
        let devices = *u.choose(&[1, 1, 2])?;
        let maps_twice = *u.choose(&[true, true, true, false])?;
        let mut ops = Vec::new();
        while ops.len() < MAX_OPS && !u.is_empty() {
            ops.push(arbitrary_op(u, &weights, (devices, streams), pools, largest)?);
        }
        let (devices, is_trusted) = (devices.into(), false);
        Ok(Scenario { devices, device_bytes, granularity, maps_twice, is_trusted, ops })
    }
}

/// How often each kind of operation comes, in the order of [`arbitrary_op`].
const WEIGHTS: [u32; 19] = [24, 18, 3, 3, 3, 3, 3, 3, 3, 1, 2, 4, 1, 1, 1, 1, 1, 1, 1];

fn arbitrary_op(
    u: &mut Unstructured<'_>,
    weights: &[u32; WEIGHTS.len()],
    (devices, streams): (u16, u16),
    pools: u16,
    largest: u32,
) -> Result<Op> {
    let mut ticket = u.int_in_range(0..=weights.iter().sum::<u32>() - 1)?;
    let kind = weights.iter().position(|&weight| {
        let mine = ticket < weight;
        ticket = ticket.saturating_sub(weight);
        mine
    });
    let place = u.int_in_range(0..=devices * streams - 1)?;
    let stream = StreamId(place / streams * NAMES_OF_ONE + place % streams);
    Ok(match kind {
        Some(1) => Op::Free { pick: u.arbitrary()? },
        Some(2) => Op::RecordStream { pick: u.arbitrary()?, stream },
        Some(3) => Op::Hold(stream),
        Some(4) => Op::Resume(stream),
        Some(5) => Op::ProcessEvents,
        Some(6) => Op::EmptyCache,
        Some(7) => Op::Step,
        Some(8) => Op::Borrow { pick: u.arbitrary()?, stream },
        Some(9) => Op::DestroyStream(stream),
        Some(10) => {
            let pool = PoolId(1 + u.int_in_range(0..=2)?);
            Op::BeginScope { pool, stream, captures: u.arbitrary()? }
        }
        Some(11) => Op::EndScope,
        Some(12) => Op::RawCapture(stream),
        Some(13) => Op::ReleasePool(PoolId(1 + u.int_in_range(0..=2)?)),
        Some(14) => Op::EmptyPool(PoolId(u.int_in_range(0..=3)?)),
        Some(15) => {
            let pool = PoolId(1 + u.int_in_range(0..=2)?);
            Op::PoolOptions { pool, no_split: u.arbitrary()? }
        }
        Some(16) => Op::Checkpoint(PoolId(1 + u.int_in_range(0..=2)?)),
        Some(17) => Op::Restore,
        Some(18) => Op::Limit(u.int_in_range(3..=10)?),
        _ => {
            let pool = PoolId(u.int_in_range(0..=pools)?);
            Op::Alloc { size: arbitrary_size(u, largest)?, stream, pool }
        }
    })
}

/// A size up to about `2^largest`: a boundary of PyTorch's rules, a power of two and its
/// neighbours, or anything.
fn arbitrary_size(u: &mut Unstructured<'_>, largest: u32) -> Result<u64> {
    const MIB: u64 = 1 << 20;
    let limit = 1 << largest;
    let size = match u.int_in_range(0..=2)? {
        0 => *u.choose(&[1, 512, 513, MIB, MIB + 1, 2 * MIB, 10 * MIB - 1, 10 * MIB, 20 * MIB])?,
        1 => (1 << u.int_in_range(1..=largest)?) + u.int_in_range(0..=2)? - 1,
        _ => u.int_in_range(1..=limit)?,
    };
    Ok(size.min(limit))
}

impl Scenario {
    /// The same for a policy that trusts as PyTorch's does: that nobody but a block's stream and those that
    /// were recorded use it, that streams live for ever, that every capture is told of, which one on another
    /// device is not, and no use is recorded in a pool's scope, and that the granularity is 2 MiB.
    pub fn trusted(mut self) -> Scenario {
        (self.granularity, self.is_trusted) = (2 << 20, true);
        self.ops.retain(|op| {
            !matches!(op, Op::Borrow { .. } | Op::DestroyStream(_) | Op::RawCapture(_))
                && (self.devices == 1 || !matches!(op, Op::BeginScope { captures: true, .. }))
        });
        self
    }

    /// The same with all streams of one device.
    pub(super) fn on_one_device(mut self) -> Scenario {
        self.devices = 1;
        for op in &mut self.ops {
            *op = op.with_stream(|stream| StreamId(stream.0 % NAMES_OF_ONE));
        }
        self
    }

    /// A scenario from a seed: always the same.
    pub fn of_seed(seed: u64) -> Scenario {
        let bytes = noise(seed);
        let scenario = Scenario::arbitrary(&mut Unstructured::new(&bytes));
        scenario.unwrap_or_else(|error| panic!("seed {seed}: {error}"))
    }
}

/// Bytes without pattern, from a seed (SplitMix64).
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).to_le_bytes()
    };
    std::iter::repeat_with(next).take(320).flatten().collect()
}
