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
//!
//! Small pages leave little behind, and every page costs the same to map, however small. So there is
//! a segment for each of several page sizes, and of the smallest only a certain number of pages: a
//! run of a few GiB is cut finely, and one that fills the card has not many more pages than if all
//! were large.

use std::cmp::Reverse;

use super::Caching;
use super::block::Block;
use super::pool::Pools;
use super::search::Search;
use crate::device::{DeviceError, Handle};
use crate::policy::{BlockId, Env};

/// So much more may be held than was ever in use, one byte in so many, before pages move.
pub(crate) const SLACK: u64 = 100;
/// And so many bytes at least.
const SLACK_MIN: u64 = 16 << 20;
/// The sizes of pages, in bytes.
const PAGES: [u64; 4] = [2 << 20, 4 << 20, 8 << 20, LARGEST_PAGE];
/// The size of which there may be any number of pages.
const LARGEST_PAGE: u64 = 16 << 20;
/// So many smaller pages are mapped for one request at most.
const REQUEST_PAGES_MAX: u64 = 64;
/// So many pages of a smaller size are mapped in a segment at most.
const SEGMENT_PAGES_MAX: u64 = 1536;

/// True if `missing` pages may be mapped for one request in a segment that has `mapped`.
fn may_map(page: u64, missing: u64, mapped: u64) -> bool {
    page == LARGEST_PAGE || (missing <= REQUEST_PAGES_MAX && mapped + missing <= SEGMENT_PAGES_MAX)
}

/// Where a request could be placed.
#[derive(Clone, Copy)]
struct Choice {
    /// Bytes to be mapped for it.
    missing: u64,
    /// Bytes of a page there.
    page: u64,
    /// The block with which the run begins; none is a new segment.
    start: Option<BlockId>,
}

impl Caching {
    /// True if idle pages may move for a request: a large one outside private pools, and no capture
    /// under way, during which nothing can be waited for.
    pub(super) fn may_move(&self, search: &Search) -> bool {
        self.config.moves_pages
            && search.expandable
            && search.home.pool == Pools::LARGE
            && !self.is_capturing()
    }

    /// The block from which a run of free and unmapped blocks has the fewest bytes to map; among equal
    /// ones, in the smallest pages. It may be a new segment's. None if that cannot be reserved.
    pub(super) fn find_least_to_map(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
    ) -> Result<Option<BlockId>, DeviceError> {
        let mut choices = Vec::new();
        let mut unreserved = PAGES.to_vec();
        for start in self.runs(search) {
            let Some(segment) = self.segment(start) else { continue };
            let page = segment.page;
            unreserved.retain(|&other| other != page);
            let missing = self.run_from(start, search.size, page).1;
            if may_map(page, missing, segment.mapped) {
                choices.push(Choice { missing: missing * page, page, start: Some(start) });
            }
        }
        for page in unreserved {
            let missing = search.size.div_ceil(page);
            if may_map(page, missing, 0) {
                choices.push(Choice { missing: missing * page, page, start: None });
            }
        }
        match choices.into_iter().min_by_key(|choice| (choice.missing, choice.page)) {
            Some(Choice { start: None, page, .. }) => self.reserve_segment(env, search, page),
            least => Ok(least.and_then(|choice| choice.start)),
        }
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
        let Some(page) = self.segment(candidate).map(|segment| segment.page) else {
            return Ok(None);
        };
        let in_use = self.stats.active_bytes.all;
        let most = in_use.peak.max(in_use.current.saturating_add(search.size));
        self.most_in_use = self.most_in_use.max(most);
        let slack = (self.most_in_use / SLACK).max(SLACK_MIN);
        let limit = self.limit(env).unwrap_or(u64::MAX);
        let allowed = self.most_in_use.saturating_add(slack).min(limit);

        let (run, missing) = self.run_from(candidate, search.size, page);
        let missing = missing * page;
        let over = (self.held() + missing).saturating_sub(allowed);
        let Block { mapped, address, home, .. } = self.blocks[candidate];
        if over > 0 {
            self.unmap_idle(env, search, &run, over.min(missing), page, moved)?;
        }
        if self.held() + missing > limit {
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

    /// Unmaps idle pages outside the run until they have `wanted` bytes together: of the stream's own
    /// blocks first, then of others, and where most of them lie together first. Those of `page` bytes
    /// go to `moved`, others back to the device.
    fn unmap_idle(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        run: &[BlockId],
        wanted: u64,
        page: u64,
        moved: &mut Vec<Handle>,
    ) -> Result<(), DeviceError> {
        let has_pages = |&id: &BlockId| self.bytes_of_whole_pages(&self.blocks[id]) > 0;
        let free = self.pools.free_blocks(Pools::LARGE);
        let mut idle: Vec<BlockId> =
            free.filter(|id| !run.contains(id)).filter(has_pages).collect();
        idle.sort_by_key(|&id| {
            let block = &self.blocks[id];
            (block.home.stream != search.home.stream, Reverse(block.size), block.address)
        });
        let (mut waited_for, mut left) = (None, wanted);
        for id in idle {
            if left == 0 {
                break;
            }
            let block = self.blocks[id];
            let Some(segment) = self.segment(id) else { continue };
            let own = segment.page;
            let pages = segment.pages_inside(&block);
            let first = pages.start.max(pages.end.saturating_sub(left.div_ceil(own)));
            if waited_for != Some(block.home.stream) {
                env.device.synchronize_stream(block.home.stream)?;
                waited_for = Some(block.home.stream);
            }
            left = left.saturating_sub((pages.end - first) * own);
            let mut handles = Vec::new();
            self.unmap_pages(env, id, first..pages.end, &mut handles)?;
            if own == page {
                moved.append(&mut handles);
            }
            for handle in handles {
                self.limbo.release(env.device, handle);
            }
            if run.first().is_none_or(|&start| self.blocks[start].segment != block.segment) {
                self.drop_if_unmapped(env, id);
            }
        }
        Ok(())
    }
}
