//! Idle pages move to where memory is wanted ([`Config::moves_pages`](super::Config)).
//!
//! An expandable segment fragments as any heap does: what is free lies in holes, and a request that
//! fits none of them maps new pages at the end. But the pages of a hole can be had without it. They
//! are unmapped, and mapped again where they are wanted; addresses are plenty, memory is not.
//!
//! ```text
//!  wanted: 3 pages    | used | free           | used | free         | used |   unmapped ...
//!                              ╰─ 2 pages ─╮           ╰─ 1 page ─╮
//!  afterwards         | used | |  unmapped | | used |  | unmapped | | used | given          |
//! ```
//!
//! What stays behind is less than a page at either end of a hole. A move costs driver calls for each
//! page and a wait for the stream that used it, so nothing moves as long as little more is held than
//! was ever in use: then the segment grows, and a run whose holes are few never moves a page.

use std::cmp::Reverse;

use super::Caching;
use super::block::Block;
use super::pool::Pools;
use super::search::Search;
use crate::device::{DeviceError, Handle};
use crate::policy::{BlockId, Env};

/// So much more may be held than was ever in use, one byte in so many, before pages move.
pub(crate) const SLACK: u64 = 100;
/// And so many pages at least.
const SLACK_PAGES: u64 = 4;

impl Caching {
    /// True if idle pages may move for a request: a large one outside private pools, and no capture
    /// under way, during which nothing can be waited for.
    pub(super) fn may_move(&self, search: &Search) -> bool {
        self.config.moves_pages
            && search.expandable
            && search.home.pool == Pools::LARGE
            && !self.is_capturing()
    }

    /// Unmaps idle pages for the run of blocks that begins with `candidate`, as many as would
    /// otherwise be taken beyond what may be held. Returns the block with which the run begins
    /// afterwards; none if the limit has no room for the pages that are still missing.
    pub(super) fn collect_idle_pages(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        candidate: BlockId,
        moved: &mut Vec<Handle>,
    ) -> Result<Option<BlockId>, DeviceError> {
        if !self.may_move(search) {
            return Ok(Some(candidate));
        }
        let page = self.config.large_segment_size;
        let in_use = self.stats.active_bytes.all;
        let most = in_use.peak.max(in_use.current.saturating_add(search.size));
        self.most_in_use = self.most_in_use.max(most);
        let slack = (self.most_in_use / SLACK).max(SLACK_PAGES * page);
        let limit = self.limit(env).unwrap_or(u64::MAX);
        let allowed = self.most_in_use.saturating_add(slack).min(limit);

        let (run, missing) = self.run_from(candidate, search.size, page);
        let over = (self.held() + missing * page).saturating_sub(allowed);
        let wanted = over.div_ceil(page).min(missing);
        let Block { mapped, address, home, .. } = self.blocks[candidate];
        if wanted > 0 {
            self.unmap_idle(env, search, &run, wanted, moved)?;
        }
        let new = missing - moved.len() as u64;
        if self.held() + new * page > limit {
            return Ok(None);
        }
        if mapped {
            return Ok(Some(candidate));
        }
        // What was unmapped behind the run has taken it in.
        let unmapped = &self.pools.get(home.pool).unmapped;
        let mut from = unmapped.range((home.stream, address, BlockId(0))..);
        Ok(from.next().filter(|&&(_, at, _)| at == address).map(|&(_, _, id)| id))
    }

    /// The block from which a run of `size` bytes has the fewest pages to map.
    pub(super) fn least_to_map(&self, starts: &[BlockId], size: u64) -> Option<BlockId> {
        let page = self.config.large_segment_size;
        let missing = |&&start: &&BlockId| self.run_from(start, size, page).1;
        starts.iter().min_by_key(missing).copied()
    }

    /// The blocks of a run of free and unmapped blocks that has `size` bytes, and the pages that are
    /// to be mapped in it.
    fn run_from(&self, candidate: BlockId, size: u64, page: u64) -> (Vec<BlockId>, u64) {
        let mut run = Vec::new();
        let (mut at, mut bytes, mut missing) = (candidate, 0, 0);
        while bytes < size {
            let block = &self.blocks[at];
            let part = block.size.min(size - bytes);
            missing += if block.mapped { 0 } else { part.div_ceil(page) };
            bytes += part;
            run.push(at);
            at = block.next;
        }
        (run, missing)
    }

    /// Unmaps up to `wanted` idle pages outside the run: of the stream's own blocks first, then of
    /// others, and where most of them lie together first.
    fn unmap_idle(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        run: &[BlockId],
        wanted: u64,
        moved: &mut Vec<Handle>,
    ) -> Result<(), DeviceError> {
        let page = self.config.large_segment_size;
        let has_pages = |&id: &BlockId| {
            let block = &self.blocks[id];
            let segment = self.segments.get(block.segment as usize).and_then(Option::as_ref);
            segment.is_some_and(|own| own.page == page && !own.pages_inside(block).is_empty())
        };
        let free = self.pools.free_blocks(Pools::LARGE);
        let mut idle: Vec<BlockId> =
            free.filter(|id| !run.contains(id)).filter(has_pages).collect();
        idle.sort_by_key(|&id| {
            let block = &self.blocks[id];
            (block.home.stream != search.home.stream, Reverse(block.size), block.address)
        });
        let mut waited_for = None;
        for id in idle {
            let left = wanted - moved.len() as u64;
            if left == 0 {
                break;
            }
            let block = self.blocks[id];
            let Some(segment) = &self.segments[block.segment as usize] else { continue };
            let pages = segment.pages_inside(&block);
            let first = pages.start.max(pages.end.saturating_sub(left));
            if waited_for != Some(block.home.stream) {
                env.device.synchronize_stream(block.home.stream)?;
                waited_for = Some(block.home.stream);
            }
            self.unmap_pages(env, id, first..pages.end, moved)?;
            if run.first().is_none_or(|&start| self.blocks[start].segment != block.segment) {
                self.drop_if_unmapped(env, id);
            }
        }
        Ok(())
    }
}
