//! Growing: new pages of the device, in the segments of a home.
//!
//! A home has one segment, which reserves 9/8 of the device's bytes, beside the window of a plan. A request for which
//! more has to be mapped takes the run of free and unmapped blocks that lacks the fewest bytes.
//!
//! A page is a certain part of what was in use when it was made: so a run of a few GiB is cut finely, and one
//! that fills the card has no more pages. For a large request pages are larger: what is large once is so
//! again, and its views are of fewer pages then. The last of several is smaller: no more is mapped than is asked for.

use super::block::{Block, Home};
use super::pages::Segment;
use super::views::Part;
use super::{Lake, Search};
use crate::chain::NIL;
use crate::device::{Address, DeviceError};
use crate::policy::{BlockId, Env};

/// What is free before the unmapped and may be part of what a request is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Joins {
    /// Nothing: new pages alone.
    Nothing,
    /// What needs no wait.
    Clean,
    /// All.
    Any,
}

/// Where new pages could be mapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    /// Bytes to be mapped.
    pub(super) missing: u64,
    /// The block with which the run begins; none is a new segment.
    pub(super) start: Option<BlockId>,
}

impl Lake {
    /// Bytes that the device maps at a time, at least.
    pub(crate) fn granule(&self) -> u64 {
        self.granule
    }

    /// The segment that an address lies in, with its index.
    ///
    /// # Panics
    /// If there is none: the address is of a block, which lies in a segment.
    pub(super) fn segment_at(&self, address: Address) -> (u32, &Segment) {
        self.segments.over(address).expect("the bytes of a block lie in a segment")
    }

    /// The block of a segment over an address: the one that is noted there, as far as it still is, or from one near
    /// by that is known, step by step.
    #[inline]
    pub(super) fn tile_over(&self, address: Address) -> BlockId {
        let (place, segment) = self.segment_at(address);
        let noted = segment.noted(address).get();
        match self.heap.blocks.get(noted) {
            Some(block) if block.segment == place && !block.planned && block.is_over(address) => {
                noted
            }
            _ => self.search_tile(place, segment, address),
        }
    }

    #[cold]
    fn search_tile(&self, place: u32, segment: &Segment, address: Address) -> BlockId {
        let is_tile = |block: &Block| block.segment == place && !block.planned;
        let near = segment.near(address);
        let known = near.iter().filter_map(|note| {
            let block = self.heap.blocks.get(note.get()).filter(|block| is_tile(block))?;
            Some((block.address.abs_diff(address), note.get()))
        });
        let nearest = known.min().map(|(_, id)| id);
        let any = || self.heap.blocks.iter().find(|(_, block)| is_tile(block)).map(|(id, _)| id);
        let mut at = nearest.or_else(any).expect("a segment has a block");
        while self.heap.blocks[at].address > address {
            at = self.heap.blocks[at].prev;
        }
        while self.heap.blocks[at].end() <= address {
            at = self.heap.blocks[at].next;
        }
        [near[0], near[3]].into_iter().for_each(|note| note.set(at));
        at
    }

    /// The segment of a block that is no view.
    pub(super) fn segment_of(&self, block: &Block) -> &Segment {
        self.segments.get(block.segment).expect("a segment lives as its blocks do")
    }

    /// Bytes of the new pages of a home where `bytes` are missing.
    fn page(&self, is_small: bool, bytes: u64) -> u64 {
        if is_small {
            return self.granule;
        }
        self.page_of(self.most_in_use).max(self.whole_page(bytes / self.options.request_pages))
    }

    /// Bytes of new pages where `in_use` bytes are in use.
    pub(super) fn page_of(&self, in_use: u64) -> u64 {
        self.whole_page(in_use / self.options.pages)
    }

    /// The page of at least so many bytes, or the largest.
    fn whole_page(&self, bytes: u64) -> u64 {
        let granules = bytes.div_ceil(self.granule).max(1).next_power_of_two();
        granules.saturating_mul(self.granule).min(self.options.page_max.max(self.granule))
    }

    /// The way to grow that maps the fewest bytes, outside of the window of a plan.
    pub(super) fn choose_growth(&self, search: &Search, joins: Joins) -> Growth {
        let unmapped = self.heap.unmapped_of(search.home);
        let unmapped = unmapped.filter(|&id| !self.segment_of(&self.heap.blocks[id]).stays);
        let runs = unmapped.filter_map(|id| Some((self.run_from(search, id, joins)?, id)));
        let best = runs.min_by_key(|&(run, id)| (run.missing, self.heap.blocks[id].address));
        let missing = search.size.next_multiple_of(self.granule);
        best.map_or(Growth { missing, start: None }, |(run, _)| run)
    }

    /// The run of free and unmapped blocks that an unmapped one is in, if it is long enough.
    fn run_from(&self, search: &Search, id: BlockId, joins: Joins) -> Option<Growth> {
        let Block { prev, size: unmapped, .. } = self.heap.blocks[id];
        if joins == Joins::Nothing && unmapped < search.size {
            return None;
        }
        let has_hole = joins != Joins::Nothing && prev != NIL && self.heap.blocks[prev].is_free();
        let start = if has_hole { prev } else { id };
        let missing = self.missing_in(start, search.size)?;
        let may_wait = joins != Joins::Clean && !self.is_capturing();
        let is_usable = may_wait || self.latest_use(search, start) == 0;
        is_usable.then_some(Growth { missing, start: Some(start) })
    }

    /// Bytes to be mapped for the run of free and unmapped blocks from `start` on; none if it is too short.
    fn missing_in(&self, start: BlockId, size: u64) -> Option<u64> {
        let (mut left, mut missing) = (size, 0);
        for block in self.heap.chain(start).map(|id| &self.heap.blocks[id]) {
            if !block.is_free() {
                return None;
            }
            let part = block.size.min(left);
            missing += if block.mapped { 0 } else { part.next_multiple_of(self.granule) };
            left -= part;
            if left == 0 {
                return Some(missing);
            }
        }
        None
    }

    /// Pages to be mapped for `growth`, about.
    pub(super) fn count_pages(&self, search: &Search, growth: Growth) -> u64 {
        growth.missing.div_ceil(self.page(search.home.is_small, growth.missing))
    }

    /// Maps the pages of `growth`. Returns the free block that has become of the run; none if the device
    /// has too little memory or no addresses.
    pub(super) fn grow(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        growth: Growth,
    ) -> Result<Option<BlockId>, DeviceError> {
        let mut at = growth.start;
        if at.is_none() {
            at = self.reserve_segment(env, search)?;
        }
        // What is not mapped of the run. What was mapped when the device refuses stays, free.
        while let Some(id) = at {
            let block = &self.heap.blocks[id];
            let has = if block.mapped { block.size } else { 0 };
            if has >= search.size {
                break;
            }
            let next = if block.mapped { self.heap.next(id) } else { at };
            let Some(next) = next else { return Ok(None) };
            let part = self.heap.blocks[next].part().first(search.size - has);
            at = self.map_part(env, next, part)?;
        }
        Ok(at)
    }

    /// Reserves addresses for a home, 9/8 of the device. None if they cannot be had, or if the request is larger
    /// than the device: there would be no pages for them, and a driver may refuse such a size as none at all.
    fn reserve_segment(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
    ) -> Result<Option<BlockId>, DeviceError> {
        let total = env.device.memory_info().total;
        let most = total.saturating_add(total / 8);
        let least = search.size.next_multiple_of(self.granule);
        // 0 if the driver does not say.
        if total > 0 && least > total {
            return Ok(None);
        }
        let most = most.checked_next_multiple_of(self.granule).unwrap_or(total).max(least);
        // Where addresses are short, those of the request may be left.
        for size in [most, least] {
            match env.device.reserve(size) {
                Ok(base) => return Ok(Some(self.insert_segment(search.home, base, size))),
                Err(DeviceError::OutOfMemory { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Makes a segment of addresses: an unmapped block.
    pub(super) fn insert_segment(&mut self, home: Home, base: Address, size: u64) -> BlockId {
        let place = self.segments.insert(Segment::new(base, size, self.granule));
        let block = Block::new(base, size, home, place);
        let id = self.heap.blocks.insert(Block { mapped: false, ..block });
        self.heap.insert_free(id);
        id
    }

    /// Maps a part of an unmapped block, or a little more. It becomes a free block, together with its free
    /// neighbours; the rest stays unmapped. None if the device has too little memory: then
    /// nothing is mapped.
    pub(super) fn map_part(
        &mut self,
        env: &mut Env<'_>,
        id: BlockId,
        part: Part,
    ) -> Result<Option<BlockId>, DeviceError> {
        let block = self.heap.blocks[id];
        let page = self.page(block.home.is_small, part.size);
        let mapped = Part { size: part.size.next_multiple_of(self.granule), ..part };
        let Some(segment) = self.segments.get_mut(block.segment) else { return Ok(None) };
        let (device, limbo) = (&mut *env.device, &mut self.limbo);
        if let Err(error) = segment.map(device, limbo, mapped, page) {
            self.drop_if_unmapped(env, id);
            let is_short = matches!(error, DeviceError::OutOfMemory { .. });
            return if is_short { Ok(None) } else { Err(error) };
        }
        Ok(Some(self.become_mapped(env, id, mapped)))
    }

    /// Gives the reservation back if the block is all of it, unmapped. The block may be gone.
    pub(super) fn drop_if_unmapped(&mut self, env: &mut Env<'_>, id: BlockId) {
        let Some(&block) = self.heap.blocks.get(id) else { return };
        let is_part = block.prev != NIL || block.next != NIL || block.planned;
        if block.mapped || is_part || block.is_stitched() || self.segment_of(&block).stays {
            return;
        }
        self.heap.remove_free(id);
        self.heap.blocks.remove(id);
        if let Some(segment) = self.segments.remove(block.segment) {
            self.limbo.unreserve(env.device, segment.base, segment.size);
        }
    }
}
