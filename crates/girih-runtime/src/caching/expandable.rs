//! Expandable segments: reservations larger than the device, whose blocks grow by mapping pages
//! (`ExpandableSegment`, `try_allocate_expandable_block`, `map_block`, `unmap_block`).
//!
//! ```text
//!  reservation, 9/8 of the device:
//!  |  page  |  page  |  page  |  page  |  page  |  page  |  page  | ...
//!  | used | used | free       |    unmapped     | used   | unmapped ...
//!  grow:              ╰────────► maps one more page, and merges it in
//!  shrink:         ╰── gives back the pages that lie wholly inside the free block
//! ```
//!
//! There is one reservation for each pool and stream, unless it is full. Its pages are handles of
//! 2 MiB for small requests, of the large segment size (20 MiB) for large ones.

use std::ops::Range;

use girih_trace::Action;

use super::Caching;
use super::block::Block;
use super::rounding::SMALL_SEGMENT;
use super::search::Search;
use crate::chain::NIL;
use crate::device::{Address, Device, DeviceError, Handle};
use crate::pending::Limbo;
use crate::policy::{BlockId, Env};

/// A reservation and the handles mapped into it.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) base: Address,
    size: u64,
    pub(super) page: u64,
    /// The handle of each page, up to the last that was ever mapped.
    handles: Vec<Option<Handle>>,
    /// How many pages are mapped.
    pub(super) mapped: u64,
}

impl Segment {
    /// Maps `count` new pages from page `first` on, none of which is mapped. On an error nothing is
    /// mapped, and the handles have gone back to the device.
    fn map(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        first: usize,
        count: usize,
    ) -> Result<(), DeviceError> {
        if self.handles.len() < first + count {
            self.handles.resize(first + count, None);
        }
        let start = self.base + first as u64 * self.page;
        let mut mapped = 0;
        // What was mapped here before may be owed to the device still.
        let result = limbo
            .settle(device)
            .and_then(|()| {
                for handle in &mut self.handles[first..first + count] {
                    *handle = Some(device.create(self.page)?);
                }
                Ok(())
            })
            .and_then(|()| {
                for handle in self.handles[first..first + count].iter().flatten() {
                    device.map(start + mapped, *handle)?;
                    mapped += self.page;
                }
                device.set_access(start, mapped)
            });
        self.mapped += count as u64;
        if result.is_err() {
            if mapped > 0 {
                limbo.unmap(device, start, mapped);
            }
            self.release(device, limbo, first, count);
        }
        result
    }

    /// The pages that lie wholly inside a block; an empty or reversed range if there is none.
    fn pages_inside(&self, block: &Block) -> Range<u64> {
        let first = (block.address - self.base).div_ceil(self.page);
        first..(block.address + block.size - self.base) / self.page
    }

    /// True if so many pages are mapped, and each has its handle. For the walk that checks everything.
    pub(super) fn counts(&self, pages: u64) -> bool {
        self.mapped == pages && self.handles.iter().flatten().count() as u64 == pages
    }

    /// Gives back the handles of pages that are not mapped any more.
    fn release(&mut self, device: &mut dyn Device, limbo: &mut Limbo, first: usize, count: usize) {
        self.mapped -= count as u64;
        for handle in &mut self.handles[first..first + count] {
            if let Some(handle) = handle.take() {
                limbo.release(device, handle);
            }
        }
    }
}

impl Caching {
    /// Makes a block of at least the bytes looked for by mapping pages. Returns none if the device
    /// has too little; what was mapped by then stays, free.
    pub(super) fn take_expandable(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
    ) -> Result<Option<BlockId>, DeviceError> {
        let Some(candidate) = self.find_expandable(env, search)? else { return Ok(None) };
        let Some(block) = self.map_run(env, candidate, search.size)? else { return Ok(None) };
        self.remove_free(block);
        Ok(Some(block))
    }

    /// Maps what is not mapped of the run that begins with a block, up to `size` bytes. The block
    /// that has become of it is free. None if the device has too little.
    fn map_run(
        &mut self,
        env: &mut Env<'_>,
        mut candidate: BlockId,
        size: u64,
    ) -> Result<Option<BlockId>, DeviceError> {
        if !self.blocks[candidate].mapped {
            let size = self.blocks[candidate].size.min(size);
            if !self.map_block(env, candidate, size)? {
                return Ok(None);
            }
        }
        while self.blocks[candidate].size < size {
            let next = self.blocks[candidate].next;
            let missing = size - self.blocks[candidate].size;
            let size = self.blocks[next].size.min(missing);
            if !self.map_block(env, next, size)? {
                return Ok(None);
            }
            candidate = next;
        }
        Ok(Some(candidate))
    }

    /// The first block, by address, from which a run of free and unmapped blocks is long enough. If
    /// there is none, an unmapped one over a new reservation. None if that cannot be had.
    fn find_expandable(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
    ) -> Result<Option<BlockId>, DeviceError> {
        let first = self.runs(search).next();
        match first {
            Some(start) => Ok(Some(start)),
            None => self.reserve_segment(env, search, self.page(search.home.is_small())),
        }
    }

    /// The unmapped blocks of the pool and stream looked for, by address.
    fn unmapped(&self, search: &Search) -> impl Iterator<Item = BlockId> {
        let stream = search.home.stream;
        let unmapped = self.pools.get(search.home.pool).unmapped.range((stream, 0, BlockId(0))..);
        unmapped.take_while(move |&&(at, _, _)| at == stream).map(|&(_, _, id)| id)
    }

    /// The blocks, by address, from which a run of free and unmapped blocks is long enough.
    fn runs<'a>(&'a self, search: &'a Search) -> impl Iterator<Item = BlockId> + 'a {
        let starts = self.unmapped(search).map(|id| {
            let prev = self.blocks[id].prev;
            if prev != NIL && self.blocks[prev].is_free() { prev } else { id }
        });
        starts.filter(|&start| self.run_reaches(start, search.size))
    }

    /// True if the free and unmapped blocks from `start` on have `size` bytes together.
    fn run_reaches(&self, start: BlockId, size: u64) -> bool {
        let (mut bytes, mut at) = (0, start);
        while at != NIL && bytes < size && self.blocks[at].is_free() {
            bytes += self.blocks[at].size;
            at = self.blocks[at].next;
        }
        bytes >= size
    }

    /// The expandable segment that a block belongs to.
    pub(super) fn segment(&self, id: BlockId) -> Option<&Segment> {
        self.segments.get(self.blocks[id].segment as usize).and_then(Option::as_ref)
    }

    /// Bytes of a page of an expandable segment.
    pub(super) fn page(&self, is_small: bool) -> u64 {
        let large = self.config.expandable_page_size.unwrap_or(self.config.large_segment_size);
        // PyTorch takes no notice of the granularity, which is 2 MiB on every GPU so far.
        (if is_small { SMALL_SEGMENT } else { large }).next_multiple_of(self.granularity)
    }

    /// Reserves addresses for a pool and stream, 9/8 of the device or what the settings say, to be
    /// mapped in pages of `page` bytes. None if that is less than what is looked for.
    pub(super) fn reserve_segment(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        page: u64,
    ) -> Result<Option<BlockId>, DeviceError> {
        let total = env.device.memory_info().total;
        let most = total.saturating_add(total / 8);
        let wanted = self.config.expandable_reserve;
        let wanted = wanted.map_or(most, |reserve| reserve.bytes(total).min(most));
        let size = wanted.checked_next_multiple_of(page).unwrap_or(total);
        if size < search.size {
            return Ok(None);
        }
        let base = match env.device.reserve(size) {
            Ok(base) => base,
            Err(DeviceError::OutOfMemory { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let segment = Some(Segment { base, size, page, handles: Vec::new(), mapped: 0 });
        let place = self.segments.iter().position(Option::is_none).unwrap_or(self.segments.len());
        if place == self.segments.len() {
            self.segments.push(segment);
        } else {
            self.segments[place] = segment;
        }
        let registration = self.register();
        let block = Block::new(base, size, search.home);
        let segment = place as u32;
        let id = self.blocks.insert(Block { mapped: false, segment, registration, ..block });
        self.insert_unmapped(id);
        Ok(Some(id))
    }

    /// Maps the first `size` bytes of an unmapped block, rounded up to pages. The block becomes a free one,
    /// together with its free neighbours; the rest stays unmapped. False if the device has too little memory:
    /// then nothing is mapped.
    pub(super) fn map_block(
        &mut self,
        env: &mut Env<'_>,
        id: BlockId,
        size: u64,
    ) -> Result<bool, DeviceError> {
        let block = self.blocks[id];
        let Some(segment) = &mut self.segments[block.segment as usize] else {
            return Ok(false);
        };
        let first = ((block.address - segment.base) / segment.page) as usize;
        let count = size.div_ceil(segment.page);
        let mapped = count * segment.page;
        match segment.map(env.device, &mut self.limbo, first, count as usize) {
            Ok(()) => {}
            Err(error) => {
                self.drop_if_unmapped(env, id);
                let out_of_memory = matches!(error, DeviceError::OutOfMemory { .. });
                return if out_of_memory { Ok(false) } else { Err(error) };
            }
        }
        self.remove_unmapped(id);
        self.blocks[id].mapped = true;
        if mapped < block.size {
            self.blocks[id].size = mapped;
            let registration = self.register_part(block.registration);
            let rest = self.blocks.insert(Block {
                address: block.address + mapped,
                size: block.size - mapped,
                registration,
                ..block
            });
            self.blocks.link(id, rest, block.next);
            self.insert_unmapped(rest);
        }
        self.merge(id, self.blocks[id].prev);
        self.merge(id, self.blocks[id].next);
        self.insert_free(id);
        let is_small = block.home.is_small();
        self.stats.reserved_bytes.increase(is_small, mapped);
        self.pools.count_taken(block.home, mapped);
        self.stats.num_device_alloc += 1;
        let owner = self.pools.owner(block.home.pool).id;
        env.log(Action::SegmentMap, block.address, mapped, block.home.stream, owner);
        Ok(true)
    }

    /// Bytes of the pages that lie wholly inside a block of an expandable segment.
    pub(super) fn bytes_of_whole_pages(&self, block: &Block) -> u64 {
        let segment = self.segments.get(block.segment as usize).and_then(Option::as_ref);
        segment.map_or(0, |segment| {
            let Range { start, end } = segment.pages_inside(block);
            end.saturating_sub(start) * segment.page
        })
    }

    /// Gives back the pages that lie wholly inside a free block. What is left of it on both sides
    /// stays free. Waits first for those who may still use them; where that cannot be, in a capture, the pages
    /// stay.
    pub(super) fn unmap_block(
        &mut self,
        env: &mut Env<'_>,
        id: BlockId,
    ) -> Result<(), DeviceError> {
        let block = self.blocks[id];
        let Some(segment) = &self.segments[block.segment as usize] else { return Ok(()) };
        let pages = segment.pages_inside(&block);
        if pages.is_empty() {
            return Ok(());
        }
        if !self.synchronize_users(env, id)? {
            return Ok(());
        }
        let mut handles = Vec::new();
        self.unmap_pages(env, id, pages, &mut handles)?;
        for handle in handles {
            self.limbo.release(env.device, handle);
        }
        self.drop_if_unmapped(env, id);
        Ok(())
    }

    /// Waits on the host until nobody uses a free block any more. False if that cannot be now: a graph is
    /// being captured.
    fn synchronize_users(&mut self, env: &mut Env<'_>, id: BlockId) -> Result<bool, DeviceError> {
        let block = self.blocks[id];
        if !self.config.own_order {
            // As PyTorch does.
            env.device.synchronize_stream(block.home.stream)?;
            return Ok(true);
        }
        if block.freed() > self.order.done() && self.is_capturing() {
            return Ok(false);
        }
        self.order.synchronize(env.device, &mut self.limbo, block.freed())
    }

    /// Unmaps pages of a free block, at least one, all wholly inside it, and hands out their handles.
    /// What is left of the block on both sides stays free. Its stream must have been waited for. On
    /// an error nothing has changed.
    fn unmap_pages(
        &mut self,
        env: &mut Env<'_>,
        id: BlockId,
        pages: Range<u64>,
        handles: &mut Vec<Handle>,
    ) -> Result<(), DeviceError> {
        let block = self.blocks[id];
        let Some(segment) = &self.segments[block.segment as usize] else { return Ok(()) };
        let Range { start: first, end } = pages;
        let (address, size) = (segment.base + first * segment.page, (end - first) * segment.page);
        env.device.unmap(address, size)?;
        let Some(segment) = &mut self.segments[block.segment as usize] else { return Ok(()) };
        segment.mapped -= end - first;
        handles.extend(
            segment.handles[first as usize..end as usize].iter_mut().filter_map(Option::take),
        );

        self.remove_free(id);
        let before = address - block.address;
        let after = block.size - before - size;
        if before > 0 {
            self.insert_fragment(&block, block.address, before, block.prev, id);
        }
        if after > 0 {
            self.insert_fragment(&block, address + size, after, id, block.next);
        }
        self.blocks[id] = Block { address, size, mapped: false, ..self.blocks[id] };
        self.merge(id, self.blocks[id].prev);
        self.merge(id, self.blocks[id].next);
        self.insert_unmapped(id);

        let is_small = block.home.is_small();
        self.stats.reserved_bytes.decrease(is_small, size);
        self.pools.count_given_back(block.home, size);
        self.stats.num_device_free += 1;
        let owner = self.pools.owner(block.home.pool).id;
        env.log(Action::SegmentUnmap, address, size, block.home.stream, owner);
        Ok(())
    }

    /// Makes a free block of a part that is left of `whole`, between two blocks.
    pub(super) fn insert_fragment(
        &mut self,
        whole: &Block,
        address: Address,
        size: u64,
        left: BlockId,
        right: BlockId,
    ) -> BlockId {
        let registration = self.register_part(whole.registration);
        let fragment = Block::new(address, size, whole.home);
        let (segment, requested) = (whole.segment, whole.freed());
        let id = self.blocks.insert(Block { segment, requested, registration, ..fragment });
        self.blocks.link(left, id, right);
        self.insert_free(id);
        id
    }

    /// Gives the reservation back if the block is all of it, unmapped. The block may be gone.
    fn drop_if_unmapped(&mut self, env: &mut Env<'_>, id: BlockId) {
        let block = self.blocks[id];
        if !block.exists || block.is_split() || block.mapped {
            return;
        }
        self.remove_unmapped(id);
        self.blocks.remove(id);
        if let Some(segment) = self.segments[block.segment as usize].take() {
            debug_assert_eq!(segment.size, block.size);
            self.limbo.unreserve(env.device, segment.base, segment.size);
        }
    }
}
