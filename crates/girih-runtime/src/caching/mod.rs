//! PyTorch's caching allocator, exactly.
//!
//! [`Caching`] decides as `CUDACachingAllocator.cpp` does, to the byte and in the same order, so
//! that a replay says what a run did. Requests of at most 1 MiB come from segments of 2 MiB, larger
//! ones from segments of 20 MiB or of their own size; best fit within a stream, split, merge with
//! free neighbours, give nothing back unless asked or out of memory.
//!
//! ```text
//!  allocate ─► round ─► best fit in the pool of the stream ──found──► split ─► give
//!                            │ none                                    ▲
//!                            ▼                                         │
//!          collect garbage, take a segment from the device ──taken─────┤
//!                            │ refused                                 │
//!                            ▼                                         │
//!          release large cached blocks, try again ─────────────────────┤
//!          wait for events, release everything, try again ─────────────┘
//! ```
//!
//! With `expandable_segments` the device gives no segments but pages: each pool and stream has a
//! reservation larger than the device, and blocks at its end grow by mapping
//! ([`Config::expandable_segments`]).
//!
//! One file for each part: [`config`] the settings, [`rounding`] the sizes, `block` the blocks, `pool` who
//! owns them, `search` finding and splitting, `segments` taking memory, `two_step` requests whose segment the
//! caller takes, `expandable` pages, `reclaim` giving back, `events` streams and captures, `captured` frees
//! within them, `checkpoint` bringing a pool back, `view` looking at it.

mod adopt;
mod block;
mod captured;
mod checkpoint;
pub mod config;
mod events;
mod expandable;
mod pool;
mod reclaim;
mod reconfigure;
pub mod rounding;
mod search;
mod segments;
mod tie_order;
mod two_step;
mod view;

use girih_trace::{Action, Mark, PoolId, StreamId};
use rustc_hash::FxHashMap;

pub use self::adopt::{Adopted, AdoptedBlock};
use self::block::{Home, Slab};
use self::captured::CaptureReuse;
pub use self::config::{Config, ConfigError, TieOrder};
use self::events::StreamUse;
use self::expandable::Segment;
use self::pool::{Pools, Rank};
use self::search::{Found, Search};
use self::two_step::Taken;
use crate::limit::Limit;
use crate::order::Order;
use crate::pending::{Limbo, PendingFrees};
pub use crate::policy::PoolOptions;
use crate::policy::{
    AllocError, BlockId, BlockView, Checkpoint, Env, Granted, Policy, Request, Restored,
    SegmentView,
};
use crate::stats::{Counters, Stats};

/// PyTorch's caching allocator for one device.
#[derive(Debug)]
pub struct Caching {
    config: Config,
    /// What may be held: at first what the settings say.
    limit: Limit,
    blocks: Slab,
    pools: Pools,
    /// Expandable segments; vacant places are `None`.
    segments: Vec<Option<Segment>>,
    /// The other streams of blocks that are `shared`.
    uses: FxHashMap<BlockId, Vec<StreamUse>>,
    pending: PendingFrees,
    /// Blocks freed during a capture; they get their events after it.
    deferred: Vec<BlockId>,
    reuse: CaptureReuse,
    limbo: Limbo,
    /// Open pool scopes, the newest last.
    scopes: Vec<Scope>,
    /// Open scopes that count as captures.
    captures: usize,
    /// The driver's handles of the streams, by which PyTorch orders them.
    stream_handles: Vec<u64>,
    last_registration: u32,
    /// Bytes of which pages are multiples: the device's, once it was asked for memory.
    granularity: u64,
    stats: Stats,
    order: Order,
    /// The caller takes segments from the device; see `two_step`.
    leaves_segments: bool,
    /// The segment that it has taken for the request under way.
    taken: Option<Taken>,
}

/// An open scope of a pool.
#[derive(Clone, Copy, Debug)]
struct Scope {
    pool: PoolId,
    /// A capture came with it.
    captures: bool,
    /// It counts as a capture.
    counts: bool,
}

impl Caching {
    /// An allocator that holds nothing.
    pub fn new(config: Config) -> Caching {
        Caching {
            limit: Limit::of_settings(&config),
            config,
            blocks: Slab::default(),
            pools: Pools::default(),
            segments: Vec::new(),
            uses: FxHashMap::default(),
            pending: PendingFrees::default(),
            deferred: Vec::new(),
            reuse: CaptureReuse::default(),
            limbo: Limbo::default(),
            scopes: Vec::new(),
            captures: 0,
            stream_handles: Vec::new(),
            last_registration: 0,
            granularity: 1,
            stats: Stats::default(),
            order: Order::default(),
            leaves_segments: false,
            taken: None,
        }
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What may be held, as far as it is known without the device.
    pub(crate) fn own_limit(&self) -> Limit {
        self.limit
    }

    /// Turns expandable segments on or off between two operations, as a program may at run time.
    /// While they are off, what is free in them serves nobody.
    pub fn set_expandable(&mut self, expandable: bool) {
        self.config.expandable_segments = expandable;
    }

    /// Says which driver handle each stream has, indexed by [`StreamId`]. PyTorch walks streams in
    /// the order of their handles when it gives memory back; without handles they are walked in the
    /// order of their ids. To be called before the first request.
    pub fn set_stream_handles(&mut self, handles: Vec<u64>) {
        self.stream_handles = handles;
    }

    /// Where blocks of a pool and stream belong.
    fn home(&mut self, pool: u32, stream: StreamId) -> Home {
        let handles = &self.stream_handles;
        self.pools.home(pool, || rank(handles, stream), stream)
    }

    /// True while a graph capture is under way, as far as the releases of PyTorch can tell.
    fn is_capturing(&self) -> bool {
        self.captures > 0
    }

    /// True if every scope of the pool counts as a capture, as in the releases of PyTorch that cannot
    /// tell. In a pool in one handle no graph is captured.
    fn scopes_capture(&self, pool: PoolId) -> bool {
        let place = self.pools.find(pool);
        let one_handle = place.is_some_and(|place| self.pools.owners[place].options.one_handle);
        self.config.tie_order.pool_scope_captures() && !self.config.own_order && !one_handle
    }

    /// What is looked for by a request of `size` rounded bytes.
    fn search(&self, size: u64, home: Home) -> Search {
        let PoolOptions { one_handle, own_source, .. } = self.pools.owner(home.pool).options;
        let expandable = self.config.expandable_segments && !one_handle && !own_source;
        Search { size, home, expandable }
    }

    /// The number of a new block or segment (`registration_counter`). 0 where addresses decide.
    fn register(&mut self) -> u32 {
        if self.config.tie_order == TieOrder::Address {
            return 0;
        }
        self.last_registration += 1;
        self.last_registration
    }

    /// The number of a part that is cut off a block which has `whole`.
    fn register_part(&mut self, whole: u32) -> u32 {
        match self.config.tie_order {
            TieOrder::Registration => self.register(),
            TieOrder::Address | TieOrder::Segment => whole,
        }
    }
}

/// Where a stream stands among the others.
fn rank(handles: &[u64], stream: StreamId) -> Rank {
    let handle = handles.get(usize::from(stream.0)).copied();
    (handle.unwrap_or(u64::from(stream.0)), stream)
}

impl Policy for Caching {
    fn name(&self) -> &'static str {
        match self.config {
            Config { expandable_segments: true, .. } => "expandable",
            _ => "native",
        }
    }

    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        let capture = self.is_capturing()
            || (request.pool != PoolId::DEFAULT && self.scopes_capture(request.pool));
        if !capture {
            self.complete_frees(env)?;
            self.order.settle(env.device, &mut self.limbo, request.stream);
        } else if self.config.graph_capture_record_stream_reuse {
            self.complete_captured(env, request.stream);
        }
        if request.size >= rounding::MAX_REQUEST {
            return Err(self.out_of_memory(env, request.size, request.size));
        }
        let size = rounding::round_size(request.size, &self.config.roundup_power2_divisions);
        let owner = self.pools.find_or_insert(request.pool);
        let pool = 2 * owner as u32 + u32::from(size > rounding::SMALL_SIZE);
        let home = self.home(pool, request.stream);
        let search = self.search(size, home);
        let found = match self.find_best_fit(&search) {
            Some(found) => found,
            None => {
                let block = self.take_from_device(env, &search, capture, request.size)?;
                Found { block, place: None }
            }
        };
        Ok(self.give(env, &search, found, request.size))
    }

    fn has_room(&self, request: &Request) -> bool {
        let Some(owner) = self.pools.find(request.pool) else { return false };
        if request.size >= rounding::MAX_REQUEST {
            return false;
        }
        let size = rounding::round_size(request.size, &self.config.roundup_power2_divisions);
        let pool = 2 * owner as u32 + u32::from(size > rounding::SMALL_SIZE);
        let home = self.pools.known_home(pool, rank(&self.stream_handles, request.stream));
        home.is_some_and(|home| self.look_for(&self.search(size, home)).is_some())
    }

    fn releasable(&self) -> u64 {
        self.cached_bytes()
    }

    fn free(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), AllocError> {
        let block = self.blocks.allocated(id).ok_or(AllocError::UnknownBlock(id))?;
        let (address, size, requested, home) =
            (block.address, block.size, block.requested, block.home);
        let shared = block.shared;
        let deferred = shared && (self.is_capturing() || self.is_captured(env, id)?);
        if shared && !deferred {
            self.record_events(env.device, id)?;
        }
        self.blocks[id].allocated = false;
        let (pool, is_small) = (self.pools.owner(home.pool).id, home.is_small());
        self.stats.count_free(is_small, size);
        env.log(Action::FreeRequested, address, requested, home.stream, pool);
        if size >= self.config.max_split_size {
            self.stats.oversize_allocations.decrease(1);
        }
        if deferred {
            self.mark_captured(env.device, id);
            self.deferred.push(id);
        } else if !shared {
            self.complete_free(env, id);
        }
        Ok(())
    }

    fn record_stream(
        &mut self,
        env: &mut Env<'_>,
        id: BlockId,
        stream: StreamId,
    ) -> Result<(), AllocError> {
        let block = *self.blocks.allocated(id).ok_or(AllocError::UnknownBlock(id))?;
        if stream != block.home.stream {
            let graph = self.capture_of(env.device, stream);
            self.add_use(id, stream, graph);
        }
        Ok(())
    }

    fn process_events(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        if self.is_capturing() {
            return Ok(());
        }
        Ok(self.complete_frees(env)?)
    }

    fn empty_cache(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        self.limbo.settle(env.device)?;
        self.release_cached_blocks(env, self.is_capturing())?;
        self.order.forget_fences(env.device, &mut self.limbo);
        Ok(())
    }

    fn mark(&mut self, _env: &mut Env<'_>, _mark: &Mark) -> Result<(), AllocError> {
        Ok(())
    }

    fn create_pool(&mut self, pool: PoolId) {
        self.pools.add_user(pool);
    }

    fn set_pool_options(&mut self, pool: PoolId, options: PoolOptions) {
        if pool != PoolId::DEFAULT
            && let Some(place) = self.pools.find(pool)
        {
            self.pools.owners[place].options = options;
        }
    }

    fn pool_users(&self, pool: PoolId) -> u32 {
        let place = self.pools.find(pool).filter(|_| pool != PoolId::DEFAULT);
        place.map_or(0, |place| self.pools.owners[place].users)
    }

    fn has_pool(&self, pool: PoolId) -> bool {
        self.pools.find(pool).is_some()
    }

    fn begin_pool(&mut self, pool: PoolId, captures: bool) {
        self.pools.add_user(pool);
        let counts = captures || self.scopes_capture(pool);
        self.scopes.push(Scope { pool, captures, counts });
        self.captures += usize::from(counts);
    }

    fn end_pool(&mut self, pool: PoolId, captures: bool) {
        let is_it = |scope: &Scope| (scope.pool, scope.captures) == (pool, captures);
        if let Some(place) = self.scopes.iter().rposition(is_it) {
            self.captures -= usize::from(self.scopes.remove(place).counts);
        }
        if self.captures == 0 {
            self.reuse.forget();
        }
    }

    fn release_pool(&mut self, _env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError> {
        if pool != PoolId::DEFAULT
            && let Some(place) = self.pools.find(pool)
        {
            let owner = &mut self.pools.owners[place];
            owner.users = owner.users.saturating_sub(1);
            if owner.users == 0 && self.holds_nothing(place) {
                self.pools.remove(place);
            }
        }
        Ok(())
    }

    fn empty_pool(&mut self, env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError> {
        if pool == PoolId::DEFAULT {
            return self.empty_cache(env);
        }
        self.limbo.settle(env.device)?;
        Ok(self.release_private_pool(env, pool)?)
    }

    fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = Limit::Bytes(limit);
    }

    fn limit(&self, total: u64) -> Option<u64> {
        self.limit.of_total(total)
    }

    fn configure(&mut self, _env: &mut Env<'_>, config: &Config) -> Result<(), AllocError> {
        self.reconfigure(config);
        Ok(())
    }

    fn max_split_size(&self) -> u64 {
        self.config.max_split_size
    }

    fn checkpoint(&self, pool: PoolId) -> Result<Checkpoint, AllocError> {
        self.take_checkpoint(pool)
    }

    fn restore(
        &mut self,
        env: &mut Env<'_>,
        checkpoint: &Checkpoint,
    ) -> Result<Restored, AllocError> {
        self.restore_checkpoint(env, checkpoint)
    }

    fn reserved_of_pool(&self, pool: PoolId) -> Option<Counters> {
        self.pools.reserved(pool)
    }

    fn reset_peak_stats(&mut self) {
        self.stats.reset_peaks();
        self.pools.reset_peaks();
    }

    fn stats(&self) -> &Stats {
        &self.stats
    }

    fn visit(&self, visitor: &mut dyn FnMut(SegmentView, &[BlockView])) {
        self.visit_segments(visitor);
    }

    fn check(&self) -> Result<(), String> {
        self.check_all()
    }
}

#[cfg(test)]
mod tests;
