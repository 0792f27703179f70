//! What is tried for a request that no hole of its home fits.
//!
//! Pages can be mapped twice. A *view* is a range of addresses of its own under which pages of several
//! holes lie side by side; its bytes are lent by their segments as long as the program holds it
//! (`lending`), and its addresses stay when they have gone back (`views`), so that the same request is
//! served without a call of the device in the next iteration.
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
//! Views come after holes: where they come first, what they take away from later requests makes ever
//! new views.
//!
//! GMLake stitches too (seed 001). It takes blocks of handles, so that each request is rounded up to
//! them; here bytes are lent, and what is left of a page serves others.

use std::cmp::Reverse;

use girih_trace::StreamId;

use super::growth::{Growth, Joins};
use super::views::Part;
use super::{Lake, Search, pooled};
use crate::device::{Address, DeviceError, Prices};
use crate::policy::{AllocError, BlockId, Env, Granted, Request};
use crate::wrapper::Wrapper;

/// A free block that could lend.
#[derive(Clone, Copy)]
pub(super) struct Hole {
    pub(super) block: BlockId,
    /// Its stream is not that of the request.
    pub(super) is_foreign: bool,
    /// Its bytes.
    pub(super) all: Part,
    /// Its bytes up to the last end of a page in it, from its first byte on.
    up_to_page: Part,
    /// Its bytes from the first beginning of a page in it on.
    from_page: Part,
    /// Bytes of the whole pages in it.
    whole: u64,
}

/// By which holes come one after another: those of the request's stream first, the largest first.
pub(super) fn in_order(hole: &Hole) -> (bool, Reverse<u64>, Address) {
    (hole.is_foreign, Reverse(hole.whole), hole.all.address)
}

/// Parts of holes for `missing` bytes, in the order of a view, and the bytes that they lack. `holes` are
/// taken in their order.
pub(super) fn collect(holes: &[Hole], mut missing: u64) -> (Vec<Part>, u64) {
    let (mut parts, mut first) = (Vec::new(), None);
    // One hole gives all from its first byte on, and not from a page on.
    let gains = holes.iter().map(|hole| (hole.up_to_page.size - hole.whole).min(missing));
    let most = gains.enumerate().max_by_key(|&(_, gain)| gain);
    if let Some((at, 1..)) = most
        && (1..missing).contains(&holes[at].up_to_page.size)
    {
        let part = holes[at].up_to_page;
        missing -= part.size;
        parts.push(part);
        first = Some(at);
    }
    for (at, &Hole { from_page, whole, .. }) in holes.iter().enumerate() {
        if missing == 0 {
            break;
        }
        // What is enough ends the view; of the others, all their whole pages.
        let size = if from_page.size >= missing { missing } else { whole };
        if size > 0 && first != Some(at) {
            parts.push(Part { address: from_page.address, size });
            missing -= size;
        }
    }
    (parts, missing)
}

impl Lake {
    /// The way of a request that no free block of its home serves.
    #[cold]
    #[inline(never)]
    pub(super) fn serve_more(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        request: Request,
    ) -> Result<Granted, AllocError> {
        // What is refused again stays owed, and nothing is mapped over it.
        let _ = self.limbo.settle(env.device);
        (self.granule, self.maps_twice) = (env.device.granularity(), env.device.maps_twice());
        if let Some(block) = self.take(env, search)? {
            if self.repeats.is_watching() && !search.home.is_small {
                self.note_given(search, block);
            }
            let granted = self.give(env, block, &request);
            self.take_back_places();
            return Ok(granted);
        }
        let after = self.beside.stats.reserved_bytes.all().current.saturating_add(search.size);
        if self.beside.inner().config().throw_on_cudamalloc_oom
            && after > env.device.memory_info().total
        {
            self.beside.stats.num_oom_rejections += 1;
            let error = self.beside.out_of_memory(env, request.size, search.size);
            return Err(error.into_rejection());
        }
        if let Some(lent) = self.beside.borrow(env, request)? {
            return Ok(pooled(lent));
        }
        if self.gives_way(env)?
            && let Some(block) = self.take(env, search)?
        {
            return Ok(self.give(env, block, &request));
        }
        Err(self.beside.refuse(env, request, search.size))
    }

    /// Gives back what is free, for a request that is refused otherwise. False if that is no use: a view is made of all
    /// that is free, wherever it lies; so only pools beside may have more, or those whom the host waits for.
    fn gives_way(&mut self, env: &mut Env<'_>) -> Result<bool, AllocError> {
        if self.is_capturing() {
            return Ok(false);
        }
        if env.may_wait {
            Wrapper::empty_cache(self, env)?;
        } else if Wrapper::releasable(&self.beside) > 0 {
            Wrapper::empty_cache(&mut self.beside, env)?;
        } else {
            return Ok(false);
        }
        self.beside.stats.num_alloc_retries += 1;
        Ok(true)
    }

    /// A block for a request that no hole of its home fits, on no shelf. None if the device or the limit has
    /// too little.
    ///
    /// # Errors
    /// What the device refuses of new pages. What it refuses of a view, or of the waits for its bytes,
    /// costs the view: new pages are mapped then.
    fn take(&mut self, env: &mut Env<'_>, search: &Search) -> Result<Option<BlockId>, DeviceError> {
        let may_stitch = self.may_stitch(env, search);
        let is_in_debt = self.pace.is_in_debt() && !self.is_capturing();
        if is_in_debt && let Ok(Some(taken)) = self.take_held(env, search, may_stitch, true) {
            return Ok(Some(taken));
        }
        if may_stitch && let Ok(Some(taken)) = self.take_held(env, search, may_stitch, false) {
            return Ok(Some(taken));
        }
        let growth = self.choose_growth(search, Joins::Any);
        if let Some(block) = self.grow_within(env, search, growth, u64::MAX)? {
            return Ok(Some(block));
        }
        if self.lend_all_places()
            && let Some(block) = self.take_hole(env, search, false)?
        {
            return Ok(Some(block));
        }
        self.take_elsewhere(env, search)
    }

    /// A part of one hole of another home, where no view was made and nothing more can be had: so the last small request
    /// is served by a hole among large ones. None in a capture, or if none is large enough.
    fn take_elsewhere(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
    ) -> Result<Option<BlockId>, DeviceError> {
        if self.is_capturing() {
            return Ok(None);
        }
        let (parts, missing) = self.gather(search);
        let is_one = missing == 0 && parts.len() == 1;
        if is_one { self.stitch_parts(env, search, parts) } else { Ok(None) }
    }

    /// True if a request may be given a view. A graph would have its addresses for ever, be it one that nobody has told
    /// of.
    pub(super) fn may_stitch(&self, env: &mut Env<'_>, search: &Search) -> bool {
        !search.home.is_small
            && self.maps_twice
            && !self.is_capturing()
            && !env.device.is_capturing(search.home.stream).unwrap_or(true)
    }

    /// The smallest hole of the request's home that fits, and that `is_clean` if it must be: needs no wait. None if
    /// there is none, or if it cannot be had now, in a capture.
    fn take_hole(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        is_clean: bool,
    ) -> Result<Option<BlockId>, DeviceError> {
        let fitting = self.heap.fitting(search.home, search.size);
        let found = { fitting }.find(|&id| !is_clean || self.latest_use(search, id) == 0);
        let Some(id) = found else { return Ok(None) };
        self.take_off_shelf(env, search, id)
    }

    /// Grows, if no more than `allowed` bytes are held then, and not more than the limit.
    pub(super) fn grow_within(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        growth: Growth,
        allowed: u64,
    ) -> Result<Option<BlockId>, DeviceError> {
        let after = self.held.saturating_add(growth.missing);
        if after > allowed || !self.beside.allows(env, growth.missing) {
            return Ok(None);
        }
        let Some(block) = self.grow(env, search, growth)? else { return Ok(None) };
        self.take_off_shelf(env, search, block)
    }

    /// Takes the first bytes of a free block for a request, whose stream waits for those that used them
    /// last. None if it cannot, in a capture.
    fn take_off_shelf(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        id: BlockId,
    ) -> Result<Option<BlockId>, DeviceError> {
        let latest = self.latest_use(search, id);
        if !self.wait_for(env, latest, search.home.stream)? {
            return Ok(None);
        }
        self.heap.remove_free(id);
        Ok(Some(self.heap.take_low_end(id, search.size)))
    }

    /// A block of what is held, or of new pages within the bound. In debt, one for which nobody waits, of new pages
    /// as far as the debt buys them; where it buys none, the hole of its home that fits, after a wait.
    fn take_held(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        may_stitch: bool,
        is_in_debt: bool,
    ) -> Result<Option<BlockId>, DeviceError> {
        if is_in_debt && let Some(block) = self.take_hole(env, search, true)? {
            return Ok(Some(block));
        }
        if may_stitch
            && let Some((view, latest)) = self.find_view(search)
            && (latest == 0 || !is_in_debt)
            && self.wait_for(env, latest, search.home.stream)?
        {
            return Ok(Some(self.use_view(search, view)));
        }
        let growth = self.choose_growth(search, if is_in_debt { Joins::Clean } else { Joins::Any });
        // What is free is asked of the device, and beside copies that takes 50 us: not where the limit is reached anyway.
        let allowed = if is_in_debt && self.beside.allows(env, growth.missing) {
            self.allowed_in_debt(env, search)
        } else {
            self.allowed(search)
        };
        if (is_in_debt || !self.stitching_is_cheaper(search, growth, env.device.prices()))
            && let Some(block) = self.grow_within(env, search, growth, allowed)?
        {
            return Ok(Some(block));
        }
        if may_stitch
            && self.lend_places(search.size)
            && let Some(block) = self.take_hole(env, search, is_in_debt)?
        {
            return Ok(Some(block));
        }
        if is_in_debt {
            // One that was passed over.
            return self.take_hole(env, search, false);
        }
        self.lend_all_places();
        self.stitch(env, search)
    }

    /// True if what is held is enough for a view, and to map that takes less time than to grow.
    pub(super) fn stitching_is_cheaper(
        &self,
        search: &Search,
        growth: Growth,
        prices: Prices,
    ) -> bool {
        let (parts, missing) = self.gather(search);
        let new = self.count_pages(search, growth).saturating_mul(prices.new_page_ns);
        let mapped = if parts.len() > 1 { self.pages_under(&parts).0.len() as u64 } else { 0 };
        missing == 0 && mapped.saturating_mul(prices.mapped_again_ns) < new
    }

    /// True if what is held is enough for a view.
    pub(super) fn could_stitch(&self, search: &Search) -> bool {
        let may_stitch = !search.home.is_small && self.maps_twice && !self.is_capturing();
        may_stitch && (self.find_view(search).is_some() || self.gather(search).1 == 0)
    }

    /// Bytes that may be held before holes are stitched.
    pub(super) fn allowed(&self, search: &Search) -> u64 {
        self.with_slack(self.most_in_use.max(self.in_use.saturating_add(search.size)))
    }

    /// Bytes that may be held where so many were in use.
    pub(super) fn with_slack(&self, most: u64) -> u64 {
        let whole = self.whole_slack(most);
        let mean = (u128::from(whole) * u128::from(self.options.slack_knee)).isqrt() as u64;
        most.saturating_add(whole.min(mean))
    }

    /// Bytes that may be held beyond so many for the places of a plan, and for all else where that is little. A
    /// place that lacks pages is a view in every step.
    pub(super) fn whole_slack(&self, most: u64) -> u64 {
        (most / self.options.slack).max(self.options.slack_min)
    }

    /// Makes a view of holes, and of new pages for what they lack. None if the device or the limit
    /// has too little.
    fn stitch(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
    ) -> Result<Option<BlockId>, DeviceError> {
        loop {
            let (parts, missing) = self.gather(search);
            if missing == 0 {
                return self.stitch_parts(env, search, parts);
            }
            let lacking = Search { size: missing, ..*search };
            // Whatever is free is had already: new pages alone.
            let growth = self.choose_growth(&lacking, Joins::Nothing);
            if !self.beside.allows(env, growth.missing) {
                return Ok(None);
            }
            self.give_up_if_strained(search, growth.missing);
            let Some(block) = self.grow(env, &lacking, growth)? else { return Ok(None) };
            if parts.is_empty() {
                return self.take_off_shelf(env, search, block);
            }
        }
    }

    /// A view of parts, or, of one alone, the bytes where they are.
    pub(super) fn stitch_parts(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        parts: Vec<Part>,
    ) -> Result<Option<BlockId>, DeviceError> {
        let reader = search.home.stream;
        let latest_of = |lake: &Lake, parts: &[Part]| lake.latest_use_of_parts(parts, reader);
        let Some(latest) = latest_of(self, &parts) else { return Ok(None) };
        if let [part] = parts[..] {
            let is_done = self.wait_for(env, latest, search.home.stream)?;
            return Ok(if is_done { self.lend_alone(&part) } else { None });
        }
        let patch = self.find_patch(env, search, &parts).filter(|patch| {
            // Its bytes are others, and are not waited for if those of a new view are not.
            latest_of(self, &patch.parts).is_some_and(|of_patch| of_patch <= latest)
        });
        if !self.wait_for(env, latest, search.home.stream)? {
            return Ok(None);
        }
        let view = match patch {
            Some(patch) => self.patch_view(env, search, patch)?,
            None => self.map_view(env, search, parts)?,
        };
        Ok(Some(self.use_view(search, view)))
    }

    /// Parts of holes for a request, in the order of a view, and the bytes that they lack. Those of its
    /// own stream if they are enough, which need no wait; or one hole of another, one that needs no wait
    /// before all others; or of all.
    fn gather(&self, search: &Search) -> (Vec<Part>, u64) {
        let holes = self.holes(search);
        let own = holes.partition_point(|hole| !hole.is_foreign);
        let (parts, missing) = collect(&holes[..own], search.size);
        if missing == 0 || own == holes.len() {
            return (parts, missing);
        }
        let enough = holes[own..].iter().filter(|hole| hole.all.size >= search.size);
        let first = |hole: &Hole| hole.all.first(search.size);
        let must_wait =
            |hole: &Hole| self.latest_use_of(first(hole), hole.block, search.home.stream) > 0;
        let best = enough.min_by_key(|hole| (must_wait(hole), hole.all.size, hole.all.address));
        match best {
            Some(hole) => (vec![first(hole)], 0),
            None => collect(&holes, search.size),
        }
    }

    /// The free blocks that could lend: of small requests' segments too, of which whole pages count.
    pub(super) fn holes(&self, search: &Search) -> Vec<Hole> {
        let free = self.heap.free_blocks(true);
        let holes = free.filter_map(|id| self.hole(id, search.home.stream));
        let mut holes: Vec<Hole> = holes.collect();
        holes.sort_unstable_by_key(in_order);
        holes
    }

    /// What a free block could lend; none if no page begins or ends in it.
    fn hole(&self, id: BlockId, reader: StreamId) -> Option<Hole> {
        self.hole_within(id, self.heap.blocks[id].part(), reader)
    }

    /// What a part of a free block could lend.
    pub(super) fn hole_within(&self, id: BlockId, all: Part, reader: StreamId) -> Option<Hole> {
        let block = &self.heap.blocks[id];
        let whole = self.segment_of(block).whole_pages(all)?;
        Some(Hole {
            block: id,
            is_foreign: block.home.stream != reader,
            all,
            up_to_page: Part::between(all.address, whole.end()),
            from_page: Part::between(whole.address, all.end()),
            whole: whole.size,
        })
    }
}
