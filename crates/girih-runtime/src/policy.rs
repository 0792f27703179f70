//! What decides where a block goes.

use girih_trace::{Action, BlockState, Event, Mark, PoolId, StreamId};
use thiserror::Error;

use crate::caching::Config;
use crate::device::{Address, Device, DeviceError};
use crate::stats::{Counters, Stats};

/// A block that a policy gave and that was not freed yet. Ids are reused after the block is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockId(pub u32);

/// What a program asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Bytes asked for, before any rounding. Not 0: a request for nothing never reaches a policy.
    pub size: u64,
    /// The stream that is current.
    pub stream: StreamId,
    /// The pool whose scope is current; [`PoolId::DEFAULT`] outside every scope.
    pub pool: PoolId,
}

/// What a request was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Granted {
    /// To free it by.
    pub block: BlockId,
    /// Address of its first byte.
    pub address: Address,
    /// Bytes granted: at least those requested.
    pub size: u64,
}

/// Why a request got nothing.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AllocError {
    /// Nothing that is free can serve it, and the device or the limit gives no more. The program
    /// may free something and ask again.
    #[error(
        "out of memory: {requested} bytes asked for, {segment} more needed from the device; \
         allocated {allocated}, reserved {reserved}, limit {limit}, device free {device_free} bytes"
    )]
    OutOfMemory {
        /// Bytes asked for.
        requested: u64,
        /// Bytes that the policy would have had to take from the device.
        segment: u64,
        /// Bytes allocated at that moment.
        allocated: u64,
        /// Bytes reserved at that moment.
        reserved: u64,
        /// Bytes that the policy may hold; [`u64::MAX`] if only the device sets a limit.
        limit: u64,
        /// Bytes that the device had free.
        device_free: u64,
        /// True if it was refused before anything was given back for it
        /// (`throw_on_cudamalloc_oom`).
        is_rejection: bool,
    },
    /// The device refused a call for another reason than memory. The policy is as it was before
    /// the operation.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The request needs a segment of so many bytes, which the caller takes from the device: see
    /// [`Caching::leave_segments`](crate::caching::Caching::leave_segments). Nothing else gives this.
    #[error("the request needs {0} bytes of the device, which the caller has to take")]
    SegmentLeft(u64),
    /// The block is not in use: it was freed already, or never given.
    #[error("block {} is not in use; it was freed already, or never given", .0.0)]
    UnknownBlock(BlockId),
    /// What was asked for cannot be done here. Nothing has changed.
    #[error("{operation} cannot be done: {reason}")]
    Unsupported {
        /// What was asked for.
        operation: &'static str,
        /// Why not, and what to do.
        reason: String,
    },
}

impl AllocError {
    /// The error of a request for `requested` bytes, for which `segment` more could not be had from the
    /// device. `stats` and `limit` are those of all parts of the policy.
    pub(crate) fn out_of_memory(
        env: &mut Env<'_>,
        stats: &Stats,
        limit: Option<u64>,
        requested: u64,
        segment: u64,
    ) -> AllocError {
        AllocError::OutOfMemory {
            requested,
            segment,
            allocated: stats.allocated_bytes.all().current,
            reserved: stats.reserved_bytes.all().current,
            limit: limit.unwrap_or(u64::MAX),
            device_free: env.device.memory_info().free,
            is_rejection: false,
        }
    }

    /// True if there is too little memory: it may help to free some and to ask again.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, AllocError::OutOfMemory { .. })
    }

    /// The same error, of a request that was refused before anything was given back for it.
    pub(crate) fn into_rejection(mut self) -> AllocError {
        if let AllocError::OutOfMemory { is_rejection, .. } = &mut self {
            *is_rejection = true;
        }
        self
    }

    /// The error of a part of a policy, with what all parts hold and may hold.
    pub(crate) fn in_all(mut self, stats: &Stats, all: Option<u64>) -> AllocError {
        if let AllocError::OutOfMemory { allocated, reserved, limit, .. } = &mut self {
            *allocated = stats.allocated_bytes.all().current;
            *reserved = stats.reserved_bytes.all().current;
            *limit = all.unwrap_or(u64::MAX);
        }
        self
    }
}

/// How a private pool behaves (`torch.cuda.MemPool`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolOptions {
    /// Blocks of the pool are never split (`no_split`).
    pub no_split: bool,
    /// The pool's free blocks serve the default pool when the device has no more (`use_on_oom`).
    pub use_on_oom: bool,
    /// The pool takes its memory in allocations of the device, never in pages: each of its segments is
    /// one piece of physical memory, which can be named by one handle. No graph is captured in it, so
    /// what is free in it goes back when the cache is emptied, though it has users.
    pub one_handle: bool,
    /// The pool's memory comes from an allocator of its own (`torch.cuda.MemPool(allocator)`): in
    /// allocations, never in pages. Whoever drives the policy sees to it that [`Device::alloc`] asks
    /// that allocator during requests of the pool.
    pub own_source: bool,
}

/// The blocks of a private pool at one moment, to be brought back later (`PrivatePoolState`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// The pool.
    pub pool: PoolId,
    /// Its segments and mapped runs by address, each with the blocks that tile it.
    pub segments: Vec<(SegmentView, Vec<BlockView>)>,
}

impl Checkpoint {
    /// The blocks in use, by address, each with its segment.
    pub fn live(&self) -> impl Iterator<Item = (&SegmentView, &BlockView)> {
        self.segments.iter().flat_map(|(segment, blocks)| {
            let live = blocks.iter().filter(|block| block.state == BlockState::Allocated);
            live.map(move |block| (segment, block))
        })
    }
}

/// What became of the blocks of a pool that was brought back to a checkpoint (`CheckpointDelta`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Restored {
    /// Every block that was in use before: it is freed. By address.
    pub freed: Vec<(BlockId, Address)>,
    /// Every block of the checkpoint: it is in use, under a new id. By address.
    pub allocated: Vec<Granted>,
}

/// Receives the events of a policy, in order: together they are the trace of the run.
pub trait Log {
    /// Takes one event.
    fn record(&mut self, event: Event);

    /// False if it keeps no events of blocks: then they need not be handed to it. Asked once for each
    /// operation.
    fn listens(&self) -> bool {
        true
    }
}

/// A log that keeps nothing.
impl Log for () {
    fn record(&mut self, _event: Event) {}

    fn listens(&self) -> bool {
        false
    }
}

impl Log for Vec<Event> {
    fn record(&mut self, event: Event) {
        self.push(event);
    }
}

/// What a policy works in: the device, and the log of what it does.
pub struct Env<'a> {
    /// Gives and takes memory.
    pub device: &'a mut dyn Device,
    /// Receives what happened.
    pub log: &'a mut dyn Log,
    /// What [`Log::listens`] says. Mostly nobody listens: then a pair of an allocation and a free makes
    /// no call through the table of the log, of three.
    pub listens: bool,
    /// False if whoever asks can make room otherwise, should a request be refused: then it is refused rather than that
    /// the host waits for the device, and all that is free goes back, before it is tried once more.
    pub may_wait: bool,
}

impl<'a> Env<'a> {
    /// A device, and a log that is asked whether it listens.
    #[inline]
    pub fn new(device: &'a mut dyn Device, log: &'a mut impl Log) -> Env<'a> {
        Env { listens: log.listens(), device, log, may_wait: true }
    }

    /// Logs an event. Time and stack are the recorder's to fill in.
    #[inline]
    pub fn log(
        &mut self,
        action: Action,
        address: Address,
        size: u64,
        stream: StreamId,
        pool: PoolId,
    ) {
        let is_of_a_block =
            matches!(action, Action::Alloc | Action::FreeRequested | Action::FreeCompleted);
        if is_of_a_block && !self.listens {
            return;
        }
        self.log.record(Event::of(action, address, size, stream, pool));
    }
}

/// A segment or a mapped run of addresses that a policy holds, for those who look at its layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentView {
    /// Address of its first byte.
    pub address: Address,
    /// Bytes.
    pub size: u64,
    /// The stream whose requests it serves.
    pub stream: StreamId,
    /// The pool that it belongs to.
    pub pool: PoolId,
    /// True if it serves requests of at most 1 MiB.
    pub is_small: bool,
    /// What its memory is.
    pub backing: Backing,
}

/// What the memory of a [`SegmentView`] is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Backing {
    /// One allocation of the device. It goes back whole or not at all.
    Allocation,
    /// A mapped run of an expandable segment. It goes back page by page.
    Expandable {
        /// Bytes of a page.
        page: u64,
    },
    /// Pages of several expandable segments, which lend them as long as it is in use.
    Stitched,
}

/// A block of a segment. The blocks of a segment tile it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockView {
    /// Address of its first byte.
    pub address: Address,
    /// Bytes granted, or free.
    pub size: u64,
    /// Bytes requested; 0 for a free block.
    pub requested: u64,
    /// Of a free block in pages, the bytes that could go back alone: whole pages.
    pub whole: u64,
    /// Whether it is in use.
    pub state: BlockState,
}

/// What decides where a block goes.
///
/// Every method leaves the policy consistent when it fails: [`Policy::check`] passes, no block is
/// lost, and the operation can be tried again.
///
/// No method has a body here: what a policy does not think of is an error of the compiler. A policy
/// around another one thinks of what it changes alone, as a [`Wrapper`](crate::wrapper::Wrapper).
pub trait Policy: Send {
    /// The name by which the command line and the tables know it.
    fn name(&self) -> &'static str;

    /// Finds a place for `request`. Logs what it does, in the order in which PyTorch would.
    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError>;

    /// True if the request could be served now from what is held. A policy that cannot tell says
    /// false.
    fn has_room(&self, request: &Request) -> bool;

    /// Bytes that [`Policy::empty_cache`] would give back to the device if no block waited for
    /// another stream. A policy that cannot tell says 0.
    fn releasable(&self) -> u64;

    /// Takes a block back. Its bytes may be given again at once to a request of its own stream; if
    /// other streams were recorded on it, only after their events.
    fn free(&mut self, env: &mut Env<'_>, block: BlockId) -> Result<(), AllocError>;

    /// Says that `stream` uses the block too, which was allocated for another
    /// (`Tensor.record_stream`).
    fn record_stream(
        &mut self,
        env: &mut Env<'_>,
        block: BlockId,
        stream: StreamId,
    ) -> Result<(), AllocError>;

    /// Completes the frees whose events are done. Every allocation does this too.
    fn process_events(&mut self, env: &mut Env<'_>) -> Result<(), AllocError>;

    /// Gives back to the device whatever is free and whole (`torch.cuda.empty_cache`).
    fn empty_cache(&mut self, env: &mut Env<'_>) -> Result<(), AllocError>;

    /// A mark of the program: a step, a phase, a module. Most policies have no use for it.
    fn mark(&mut self, env: &mut Env<'_>, mark: &Mark) -> Result<(), AllocError>;

    /// Makes a private pool with one user, or adds a user to it (`createOrIncrefPool`). A request
    /// for a pool that does not exist makes it too.
    fn create_pool(&mut self, pool: PoolId);

    /// Sets how a private pool behaves (`setUseOnOOM`, `setNoSplit`). A pool that does not exist
    /// stays so.
    fn set_pool_options(&mut self, pool: PoolId, options: PoolOptions);

    /// The users of a private pool: `MemPool` objects, open scopes, graphs (`getPoolUseCount`). 0
    /// if it does not exist.
    fn pool_users(&self, pool: PoolId) -> u32;

    /// False if a private pool does not exist, or not any more: it has no users and holds nothing. Its id
    /// may then be another pool's.
    fn has_pool(&self, pool: PoolId) -> bool;

    /// Bytes held of the device for a private pool, since there is one of that id
    /// (`reserved_bytes_by_private_pools`, torch 2.13 and later). None if it never held any.
    fn reserved_of_pool(&self, pool: PoolId) -> Option<Counters>;

    /// Opens a scope of a private pool, which gets one more user: the caller releases the pool
    /// once for it, sooner or later (`beginAllocateToPool`). With `captures` a graph capture begins
    /// with it: until the scope is closed no event is recorded and none is asked.
    fn begin_pool(&mut self, pool: PoolId, captures: bool);

    /// Closes the newest scope of a private pool that was opened with the same `captures`
    /// (`endAllocateToPool`). The pool keeps its users.
    fn end_pool(&mut self, pool: PoolId, captures: bool);

    /// A user of a private pool is done with it; what is free in a pool without users may go back
    /// to the device (`releasePool`).
    fn release_pool(&mut self, env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError>;

    /// Gives back what is free and whole of one private pool, if it has no users: graphs may be
    /// replayed over the memory of others (`emptyCache` with a pool). For the default pool this is
    /// [`Policy::empty_cache`].
    fn empty_pool(&mut self, env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError>;

    /// Limits what is held to so many bytes; None for as many as there are (`setMemoryFraction`, whose
    /// share of the device [`TieOrder::limit_of`](crate::caching::TieOrder::limit_of) makes bytes).
    /// Nothing that is held already is given back.
    fn set_limit(&mut self, limit: Option<u64>);

    /// Bytes that may be held of a device of `total` bytes; None without a limit. Until a limit is set it
    /// is that of the settings.
    fn limit(&self, total: u64) -> Option<u64>;

    /// Bytes from which on a block is not split; [`u64::MAX`] without a limit
    /// (`max_split_size_mb`).
    fn max_split_size(&self) -> u64;

    /// Changes the settings of the caching allocator inside between two operations
    /// (`_accelerator_setAllocatorSettings`). The memory limit, the order of equal blocks and what
    /// PyTorch has no setting for stay as they are, and so does memory that is held. A policy
    /// without a caching allocator ignores it.
    ///
    /// # Errors
    /// What the device refused on the way; the settings hold all the same.
    fn configure(&mut self, env: &mut Env<'_>, config: &Config) -> Result<(), AllocError>;

    /// What a private pool holds now (`getCheckpointState`).
    ///
    /// # Errors
    /// [`AllocError::Unsupported`] if there is no such private pool.
    fn checkpoint(&self, pool: PoolId) -> Result<Checkpoint, AllocError>;

    /// Frees every live block of a private pool and allocates those of the checkpoint, each at its
    /// address (`setCheckpointPoolState`). Segments that the checkpoint does not know stay, free.
    /// Waits for streams that still use blocks of the pool.
    ///
    /// # Errors
    /// [`AllocError::Unsupported`] if memory of the checkpoint is not held any more, or if a
    /// stream uses the pool's blocks while a capture is under way. Nothing has changed then.
    fn restore(
        &mut self,
        env: &mut Env<'_>,
        checkpoint: &Checkpoint,
    ) -> Result<Restored, AllocError>;

    /// Sets the peak of every counter to its present value (`resetPeakStats`).
    fn reset_peak_stats(&mut self);

    /// Allocated, active, reserved and the other counters, exactly as PyTorch counts them.
    fn stats(&self) -> &Stats;

    /// Shows every segment with its blocks, both by ascending address.
    fn visit(&self, visitor: &mut dyn FnMut(SegmentView, &[BlockView]));

    /// Walks everything and compares it: blocks tile their segments, free ones are in the free
    /// sets, neighbours that could be merged are, counters agree. Returns what is wrong. Linear;
    /// for tests and for debug builds after each operation.
    fn check(&self) -> Result<(), String>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caching::Caching;
    use crate::sim::SimDevice;

    /// Keeps everything that it is told, and says that it does not listen.
    #[derive(Default)]
    struct Deaf(Vec<Action>);

    impl Log for Deaf {
        fn record(&mut self, event: Event) {
            self.0.push(event.action);
        }

        fn listens(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_log_that_does_not_listen_is_told_of_segments_alone() {
        let (mut device, mut deaf) = (SimDevice::new(1 << 30), Deaf::default());
        let mut policy = Caching::new(Config::default());
        let mut env = Env::new(&mut device, &mut deaf);
        let request = Request { size: 4096, stream: StreamId(0), pool: PoolId::DEFAULT };
        let granted = policy.allocate(&mut env, request).unwrap();
        policy.free(&mut env, granted.block).unwrap();
        policy.empty_cache(&mut env).unwrap();
        assert_eq!(deaf.0, [Action::SegmentAlloc, Action::SegmentFree]);
    }
}
