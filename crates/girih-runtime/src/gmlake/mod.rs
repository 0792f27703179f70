//! GMLake: memory that is free in pieces is stitched together by mapping it again.
//!
//! A block of addresses can lead to any physical memory, and physical memory can be mapped at
//! several addresses. So free blocks that lie apart serve one large request: their handles are
//! mapped a second time, side by side.
//!
//! ```text
//!  request ─┬─ at most 1 MiB, or of a private pool ─► the splitter: a caching policy
//!           └─ larger ─► best fit ─┬─ S1 exact ─────────────────────────────┐
//!                                  ├─ S2 single ───────► split ─────────────┤
//!                                  ├─ S3 multiple ─────► stitch ────────────┼─► give
//!                                  ├─ S4 insufficient ─► grow, then stitch ─┘
//!                                  └─ S5 the device has no more ─► give all back, once ─► error
//! ```
//!
//! This is the allocator of the paper *GMLake: Efficient and Transparent GPU Memory Defragmentation
//! for Large-scale DNN Training with Virtual Memory Stitching* (ASPLOS 2024), sections 3 and 4, as
//! a baseline. A training step asks for the same sizes again and again: after some iterations each
//! finds its block in S1, and the device is not called any more.
//!
//! Where the paper leaves a choice:
//! - Sizes, the limit and its default are those of the published code ([`Config`]), requests are
//!   rounded to 2 MiB. The paper's S4 grows by the deficit; the published code does so with
//!   `reAlloc=1` only ([`Config::grows_by_deficit`]). The fragmentation limit applies to blocks
//!   ([`LimitOf`]).
//! - A split needs no call of the device: both halves keep their addresses, and the stitched block
//!   of both has the former ones. Primitive blocks are never merged; the former size stays in reach
//!   as that stitched block.
//! - S1 takes a primitive block before a stitched one. A stitched block serves its own size alone,
//!   as in the paper; the published code gives it out by prefix too (`reuseLimit`).
//! - Memory is stitched within one stream, as in the published code.
//! - Before S5 what is free goes back to the device and the request is tried once more, as in the
//!   published code.
//!
//! Where the published code loses memory, gives it twice or unmaps what is in use, this does not:
//! device calls come first and are undone if one fails (`mapping`), and nothing is unmapped before
//! the streams that used it have come past (`stitch_free`).
//!
//! Beside the stitched memory a caching policy serves requests of at most 1 MiB, and private pools
//! with their checkpoints (`beside`). Small requests would waste handles of 2 MiB, so PyTorch's
//! splitter packs them, as the paper says. The memory of private pools must stay at its addresses
//! for as long as a graph may be replayed over it, so nothing there is stitched.

mod best_fit;
mod config;
mod frees;
mod grants;
mod kinds;
mod mapping;
mod pools;
mod serve;
mod stitch_free;
mod view;

use girih_trace::{PoolId, StreamId};

pub use self::config::{Config, LimitOf};
use self::grants::Grants;
pub use self::kinds::HANDLE;
use self::pools::{Pools, rounded};
use self::stitch_free::Retired;
use crate::beside::{self, Beside, is_own};
use crate::caching::Caching;
use crate::caching::rounding::MAX_REQUEST;
use crate::pending::{Limbo, PendingFrees};
use crate::policy::{AllocError, BlockId, BlockView, Env, Granted, Request, SegmentView};
use crate::returning::Returning;
use crate::wrapper::Wrapper;

/// Requests of up to 1 MiB are small.
const SMALL_SIZE: u64 = 1 << 20;

/// True if the splitter, which is the caching policy, serves the request.
fn is_for_splitter(request: &Request) -> bool {
    request.pool != PoolId::DEFAULT || request.size <= SMALL_SIZE
}

/// The policy that stitches. See the [module](self).
#[derive(Debug)]
pub struct Gmlake {
    config: Config,
    pools: Pools,
    grants: Grants,
    pending: PendingFrees,
    /// Blocks freed during a capture; they get their events after it.
    deferred: Vec<BlockId>,
    retired: Retired,
    limbo: Limbo,
    /// The splitter: it serves small requests and private pools.
    beside: Beside,
}

impl Gmlake {
    /// A policy that holds nothing. `splitter` serves small requests and private pools; it holds
    /// nothing either. Its memory fraction is the limit of all parts together.
    pub fn new(config: Config, splitter: Caching) -> Gmlake {
        Gmlake {
            config,
            pools: Pools::default(),
            grants: Grants::default(),
            pending: PendingFrees::default(),
            deferred: Vec::new(),
            retired: Retired::default(),
            limbo: Limbo::default(),
            beside: Beside::new(splitter),
        }
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Stitched blocks that there are, given or not, and their bytes.
    pub fn stitched(&self) -> (usize, u64) {
        (self.pools.stitches.iter().count(), self.pools.stitched_bytes)
    }

    /// Completes frees, and unmaps what was retired. Not during a capture.
    fn complete_own(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        if !self.beside.is_capturing() {
            self.complete_frees(env)?;
            self.retired.reap(env.device, &mut self.limbo, false)?;
        }
        Ok(())
    }
}

impl Wrapper for Gmlake {
    type Inner = Beside;

    fn inner(&self) -> &Beside {
        &self.beside
    }

    fn inner_mut(&mut self) -> &mut Beside {
        &mut self.beside
    }

    fn name(&self) -> &'static str {
        "gmlake"
    }

    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        self.complete_own(env)?;
        if is_for_splitter(&request) {
            return beside::allocate(self, env, request, |lake, env| {
                let has_more = lake.has_waiting() || lake.pools.idle_bytes > 0;
                if has_more {
                    lake.wait_for_frees(env)?;
                    lake.release_idle(env)?;
                }
                Ok(has_more)
            });
        }
        if request.size >= MAX_REQUEST {
            return Err(self.beside.out_of_memory(env, request.size, request.size));
        }
        let (stream, size) = (request.stream, rounded(request.size));
        let mut place = self.find(env, stream, size)?;
        if place.is_none() {
            if let Some(lent) = self.beside.borrow(env, request)? {
                return Ok(lent);
            }
            if beside::make_room(self, env)? {
                place = self.find(env, stream, size)?;
            }
        }
        match place {
            Some(place) => Ok(self.give(env, request, place)),
            None => Err(self.beside.refuse(env, request, size)),
        }
    }

    fn has_room(&self, request: &Request) -> bool {
        if is_for_splitter(request) || request.size >= MAX_REQUEST {
            return self.beside.has_room(request);
        }
        self.pools.has_room(request.stream, rounded(request.size), &self.config)
    }

    fn releasable(&self) -> u64 {
        let own = if self.beside.is_capturing() { 0 } else { self.pools.idle_bytes };
        own + self.beside.releasable()
    }

    fn free(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<(), AllocError> {
        if is_own(id) {
            return self.free_own(env, id);
        }
        self.beside.free(env, id)
    }

    fn record_stream(
        &mut self,
        env: &mut Env<'_>,
        id: BlockId,
        stream: StreamId,
    ) -> Result<(), AllocError> {
        if !is_own(id) {
            return self.beside.record_stream(env, id, stream);
        }
        let grant = self.grants.in_use(id).ok_or(AllocError::UnknownBlock(id))?;
        if stream != grant.stream && !grant.users.contains(&stream) {
            grant.users.push(stream);
        }
        Ok(())
    }

    fn process_events(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        self.complete_own(env)?;
        self.beside.process_events(env)
    }

    fn empty_cache(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        self.limbo.settle(env.device)?;
        if !self.beside.is_capturing() {
            self.wait_for_frees(env)?;
        }
        self.release_idle(env)?;
        self.beside.empty_cache(env)
    }

    fn empty_pool(&mut self, env: &mut Env<'_>, pool: PoolId) -> Result<(), AllocError> {
        if pool == PoolId::DEFAULT {
            return self.empty_cache(env);
        }
        self.beside.empty_pool(env, pool)
    }

    fn visit(&self, visitor: &mut dyn FnMut(SegmentView, &[BlockView])) {
        for (segment, blocks) in self.views() {
            visitor(segment, &blocks);
        }
    }

    fn check(&self) -> Result<(), String> {
        self.check_all()
    }
}
