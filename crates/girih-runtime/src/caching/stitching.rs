//! Free memory that lies in holes serves requests that fit none of them
//! ([`Config::stitches`](super::Config)).
//!
//! An expandable segment fragments as any heap does: a request that fits no hole maps new pages at
//! the end. But pages can be mapped twice. A *view* is a range of addresses of its own under which
//! pages of several holes lie side by side; its bytes are lent by their segments as long as the
//! program holds it (`lending`), and its addresses stay when they have gone back (`views`), so that
//! the same request is served without a call of the device in the next iteration.
//!
//! ```text
//!  segments:   | used | a: free | used | b: free  | used |c: free | used |
//!                      ├────────┤       ├──┬──┬──┤        ├──┤              pages
//!  view:              | a       |  b             | c  |
//! ```
//!
//! Its first part may begin anywhere in a page and its last may end anywhere: in between there are
//! whole pages. So what cannot be had is less than a page at the ends of a hole.
//!
//! What is tried, in order, is what keeps a run the same from iteration to iteration:
//!
//! 1. a hole that fits, split as ever;
//! 2. a view of the size whose bytes are all free, or, if there is none of that size, a wider one;
//! 3. new pages, if little more is held then than was ever in use, and if a new view would not take less
//!    time;
//! 4. a new view of what is free;
//! 5. a new view of what is free and of new pages for what that lacks; where nothing is free, new pages
//!    alone.
//!
//! Views come after holes: where they come first, what they take away from later requests makes ever
//! new views.
//!
//! GMLake stitches too (seed 001). It takes blocks of handles, so that each request is rounded up to
//! them; here bytes are lent, and what is left of a page serves others.

use std::cmp::Reverse;

use girih_trace::StreamId;

use super::Caching;
use super::block::Block;
use super::pool::Pools;
use super::search::Search;
use super::views::Part;
use crate::device::DeviceError;
use crate::policy::{BlockId, Env};

/// So much more may be held than was ever in use, one byte in so many, before holes are stitched.
pub(crate) const SLACK: u64 = 200;
/// And so many bytes at least.
const SLACK_MIN: u64 = 4 << 20;
/// Microseconds to map a page once more, and to create and map one, on an H200: as much for a small one
/// as for a large one. Other cards cost more or less, but both alike.
const MAPPED_PAGE_US: u64 = 30;
const NEW_PAGE_US: u64 = 41;
/// The sizes of pages, in bytes. Small ones leave little behind, and every page costs the same to map,
/// however small. So there is a segment for each size, and of the smaller ones only a certain number
/// of pages: a run of a few GiB is cut finely, and one that fills the card has not many more pages
/// than if all were large.
pub(crate) const PAGES: [u64; 5] = [2 << 20, 4 << 20, 8 << 20, 16 << 20, 32 << 20];
/// The largest that a run may have however little it uses.
const LARGE_PAGE: u64 = 16 << 20;
/// A larger one is worth it if so many of them are no more than what is in use.
const LARGE_PAGES_MIN: u64 = 512;
/// So many pages are mapped for one request at most, if there are larger ones.
const REQUEST_PAGES_MAX: u64 = 32;
/// So many pages of a size are mapped in a segment at most, if there are larger ones.
const SEGMENT_PAGES_MAX: u64 = 1536;

/// The sizes of pages for a run that uses so many bytes.
fn pages_for(in_use: u64) -> impl Iterator<Item = u64> {
    PAGES.into_iter().filter(move |&page| page <= LARGE_PAGE || page * LARGE_PAGES_MIN <= in_use)
}

/// Where new pages could be mapped.
#[derive(Clone, Copy)]
struct Growth {
    /// Bytes to be mapped.
    missing: u64,
    /// Bytes of a page there.
    page: u64,
    /// The block with which the run begins; none is a new segment.
    start: Option<BlockId>,
    /// Bytes of the run.
    size: u64,
}

/// A free block that could lend.
#[derive(Clone, Copy)]
struct Hole {
    /// Its stream is not that of the request.
    is_foreign: bool,
    /// Its bytes.
    all: Part,
    /// Its bytes up to the last end of a page in it, from its first byte on.
    up_to_page: Part,
    /// Its bytes from the first beginning of a page in it on.
    from_page: Part,
    /// Bytes of the whole pages in it.
    whole: u64,
}

/// Parts of holes for `missing` bytes, in the order of a view, and the bytes that they lack. `holes` are
/// taken in their order.
fn collect(mut holes: Vec<Hole>, mut missing: u64) -> (Vec<Part>, u64) {
    let mut parts = Vec::new();
    // One hole gives all from its first byte on, and not from a page on.
    let gains = holes.iter().map(|hole| (hole.up_to_page.size - hole.whole).min(missing));
    let most = gains.enumerate().max_by_key(|&(_, gain)| gain);
    if let Some((at, 1..)) = most
        && (1..missing).contains(&holes[at].up_to_page.size)
    {
        let part = holes.remove(at).up_to_page;
        missing -= part.size;
        parts.push(part);
    }
    while missing > 0 && !holes.is_empty() {
        // What is enough ends the view; of the others, all their whole pages.
        let last = (holes[0].from_page.size >= missing).then_some(0);
        let Hole { from_page: Part { address, .. }, whole, .. } = holes.remove(last.unwrap_or(0));
        let size = if last.is_some() { missing } else { whole };
        if size > 0 {
            parts.push(Part { address, size });
            missing -= size;
        }
    }
    (parts, missing)
}

impl Caching {
    /// True if a request may be served by a view: a large one outside private pools, and no capture
    /// under way, which would have the addresses for ever.
    pub(super) fn may_stitch(&self, search: &Search) -> bool {
        self.config.stitches
            && search.expandable
            && search.home.pool == Pools::LARGE
            && !self.is_capturing()
    }

    /// A block for a request that no hole fits, in no free set. None if the device or the limit has too
    /// little.
    ///
    /// # Errors
    /// What the device refuses of new pages. What it refuses of a view, or of the waits for its bytes,
    /// costs the view: new pages are mapped then.
    pub(super) fn take_stitched(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
    ) -> Result<Option<BlockId>, DeviceError> {
        let limit = self.limit(env).unwrap_or(u64::MAX);
        // A graph that nobody has told of would have a view's addresses for ever.
        if !env.device.is_capturing(search.home.stream)?
            && let Ok(taken) = self.take_with_views(env, search, limit)
        {
            return Ok(taken);
        }
        self.grow_for_all(env, search, limit)
    }

    /// New pages for all that a request lacks, though holes would do: where a view is refused, or cannot
    /// wait for those who may still use its bytes.
    #[cold]
    fn grow_for_all(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        limit: u64,
    ) -> Result<Option<BlockId>, DeviceError> {
        if let Some(growth) = self.choose_growth(search, self.runs(search))
            && self.held().saturating_add(growth.missing) <= limit
        {
            match self.grow(env, search, growth) {
                Ok(Some(block)) => return self.take_off_shelf(env, search, block),
                Err(DeviceError::OutOfMemory { .. }) => {}
                refused => return refused,
            }
        }
        self.grow_anywhere(env, search, limit)
    }

    /// Maps new pages in a segment that is there, however large its pages are: where no addresses are left
    /// for another one.
    fn grow_anywhere(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        limit: u64,
    ) -> Result<Option<BlockId>, DeviceError> {
        let Some(start) = self.runs(search).next() else { return Ok(None) };
        let page = self.segment(start).map_or(0, |segment| segment.page);
        let missing = self.pages_to_map(start, search.size, page) * page;
        if self.held().saturating_add(missing) > limit {
            return Ok(None);
        }
        let Some(block) = self.map_run(env, start, search.size)? else { return Ok(None) };
        self.take_off_shelf(env, search, block)
    }

    fn take_with_views(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        limit: u64,
    ) -> Result<Option<BlockId>, DeviceError> {
        // What is refused here is asked again the next time.
        let _ = self.unmap_retired_views(env);
        if let Some((view, latest)) = self.find_view(search)
            && self.wait_for(env, latest, search.home.stream)?
        {
            return Ok(Some(self.use_view(search, view)));
        }
        let allowed = self.allowed(search).min(limit);
        let growth = self.choose_growth(search, self.runs(search));
        let may_grow = |growth: &Growth| self.held() + growth.missing <= allowed;
        if let Some(growth) = growth.filter(may_grow)
            && !self.stitching_is_cheaper(search, growth)
            && let Some(block) = self.grow(env, search, growth)?
        {
            return self.take_off_shelf(env, search, block);
        }
        self.stitch(env, search, limit)
    }

    /// True if what is held is enough for a view, and to map that takes less time than to grow.
    fn stitching_is_cheaper(&self, search: &Search, growth: Growth) -> bool {
        let (parts, missing) = self.gather(search);
        let new = growth.missing / growth.page * NEW_PAGE_US;
        missing == 0 && self.pages_under(&parts).0.len() as u64 * MAPPED_PAGE_US < new
    }

    /// True if what is held is enough for a view.
    pub(super) fn could_stitch(&self, search: &Search) -> bool {
        self.may_stitch(search) && (self.find_view(search).is_some() || self.gather(search).1 == 0)
    }

    /// Bytes that may be held before holes are stitched.
    fn allowed(&mut self, search: &Search) -> u64 {
        let in_use = self.stats.active_bytes.all;
        let most = in_use.peak.max(in_use.current.saturating_add(search.size));
        self.most_in_use = self.most_in_use.max(most);
        self.most_in_use.saturating_add((self.most_in_use / SLACK).max(SLACK_MIN))
    }

    /// Makes a view of holes, and of new pages for what they lack. None if the device or the limit
    /// has too little.
    fn stitch(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        limit: u64,
    ) -> Result<Option<BlockId>, DeviceError> {
        loop {
            let (parts, missing) = self.gather(search);
            if missing == 0 {
                let latest = self.latest_use_of_parts(&parts, search.home.stream);
                if !self.wait_for(env, latest, search.home.stream)? {
                    return self.grow_for_all(env, search, limit);
                }
                let view = self.map_view(env, search, parts)?;
                return Ok(Some(self.use_view(search, view)));
            }
            let lacking = Search { size: missing, ..*search };
            // Whatever is free is had already: new pages alone.
            let starts = self.unmapped(&lacking).filter(|&id| self.blocks[id].size >= missing);
            let Some(growth) = self.choose_growth(&lacking, starts) else { return Ok(None) };
            if self.held().saturating_add(growth.missing) > limit {
                return Ok(None);
            }
            let Some(block) = self.grow(env, &lacking, growth)? else { return Ok(None) };
            if parts.is_empty() {
                return self.take_off_shelf(env, search, block);
            }
        }
    }

    /// Of the runs of free and unmapped blocks that begin at `starts`, the one with the fewest bytes to
    /// map; among equal ones, in the smallest pages. It may be a new segment's.
    fn choose_growth(
        &self,
        search: &Search,
        starts: impl Iterator<Item = BlockId>,
    ) -> Option<Growth> {
        let size = search.size;
        let mut unreserved: Vec<u64> = pages_for(self.most_in_use)
            .filter(|page| page.is_multiple_of(self.granularity))
            .collect();
        let largest = unreserved.last().copied();
        let may_map = |page: u64, missing: u64, mapped: u64| {
            let is_few = missing <= REQUEST_PAGES_MAX && mapped + missing <= SEGMENT_PAGES_MAX;
            is_few || Some(page) >= largest
        };
        let mut choices = Vec::new();
        for start in starts {
            let Some(segment) = self.segment(start) else { continue };
            let page = segment.page;
            unreserved.retain(|&other| other != page);
            let missing = self.pages_to_map(start, size, page);
            if may_map(page, missing, segment.mapped) {
                choices.push(Growth { missing: missing * page, page, start: Some(start), size });
            }
        }
        for page in unreserved {
            let missing = size.div_ceil(page);
            if may_map(page, missing, 0) {
                choices.push(Growth { missing: missing * page, page, start: None, size });
            }
        }
        choices.into_iter().min_by_key(|growth| (growth.missing, growth.page))
    }

    /// Maps the pages of `growth`. Returns the free block that has become of the run; none if the
    /// device has too little memory.
    ///
    /// # Errors
    /// What the device refuses; [`DeviceError::OutOfMemory`] if it has no addresses for a new segment.
    fn grow(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        Growth { page, start, size, .. }: Growth,
    ) -> Result<Option<BlockId>, DeviceError> {
        let start = match start {
            Some(start) => start,
            None => match self.reserve_segment(env, search, page)? {
                Some(start) => start,
                None => return Err(DeviceError::OutOfMemory { requested: size, free: 0 }),
            },
        };
        self.map_run(env, start, size)
    }

    /// Pages to be mapped for `size` bytes of the run that begins with a block.
    fn pages_to_map(&self, start: BlockId, size: u64, page: u64) -> u64 {
        let (mut at, mut bytes, mut missing) = (start, 0, 0);
        while bytes < size {
            let block = &self.blocks[at];
            let part = block.size.min(size - bytes);
            missing += if block.mapped { 0 } else { part.div_ceil(page) };
            bytes += part;
            at = block.next;
        }
        missing
    }

    /// Parts of holes for a request, in the order of a view, and the bytes that they lack. Those of its
    /// own stream if they are enough, which need no wait; or one hole of another; or of all.
    fn gather(&self, search: &Search) -> (Vec<Part>, u64) {
        let holes = self.holes(search);
        let own = holes.partition_point(|hole| !hole.is_foreign);
        let (parts, missing) = collect(holes[..own].to_vec(), search.size);
        if missing == 0 || own == holes.len() {
            return (parts, missing);
        }
        let enough = holes[own..].iter().filter(|hole| hole.all.size >= search.size);
        match enough.min_by_key(|hole| (hole.all.size, hole.all.address)) {
            Some(hole) => (vec![hole.all.first(search.size)], 0),
            None => collect(holes, search.size),
        }
    }

    /// The free blocks that could lend: of small requests' segments too, of which whole pages count.
    fn holes(&self, search: &Search) -> Vec<Hole> {
        let free = [Pools::LARGE, Pools::SMALL].into_iter();
        let free = free.flat_map(|pool| self.pools.free_blocks(pool)).map(|id| &self.blocks[id]);
        let mut holes: Vec<_> = free
            .filter_map(|block| {
                let hole = self.hole(block, search.home.stream)?;
                Some(((hole.is_foreign, Reverse(hole.whole), block.address), hole))
            })
            .collect();
        holes.sort_unstable_by_key(|(key, _)| *key);
        holes.into_iter().map(|(_, hole)| hole).collect()
    }

    /// What a free block could lend; none if no page begins or ends in it.
    fn hole(&self, block: &Block, reader: StreamId) -> Option<Hole> {
        let segment = self.segments.get(block.segment as usize).and_then(Option::as_ref)?;
        let (page, end) = (segment.page, block.address + block.size);
        let pages = segment.pages_inside(block);
        let (first, last) = (segment.base + pages.start * page, segment.base + pages.end * page);
        let up_to_page = Part { address: block.address, size: last.saturating_sub(block.address) };
        let from_page = Part { address: first, size: end.saturating_sub(first) };
        let whole = last.saturating_sub(first);
        let all = Part { address: block.address, size: block.size };
        let is_foreign = block.home.stream != reader;
        let hole = Hole { is_foreign, all, up_to_page, from_page, whole };
        (up_to_page.size + from_page.size > 0).then_some(hole)
    }
}
