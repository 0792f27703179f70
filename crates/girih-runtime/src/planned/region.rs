//! A region: a range of addresses of known length, backed chunk by chunk, in which blocks lie where
//! the plan says.
//!
//! ```text
//!  reserved   |------------------------------------------------------|
//!  chunks     |  mapped   |  mapped   |           |           |      |
//!  blocks      aaaa bbbb   cc      ddddd          .                  .
//! ```
//!
//! A chunk is one handle, mapped when the first block comes to lie in it. It is as long as a page of the
//! fallback, so that each can take what the other has given; the last is only as long as it must be.
//! [`Region::take`] gives bytes only if no live block holds any of them: this is the
//! guard that makes a wrong plan cost memory and never correctness.

use super::cells::{Cells, Span};
use crate::device::{Address, Device, DeviceError, Handle};
use crate::pending::Limbo;

/// The sizes of pages, in bytes.
const PAGES: [u64; 5] = [2 << 20, 4 << 20, 8 << 20, 16 << 20, 32 << 20];
/// A region has so many chunks at least, if there are pages as small as that: fewer handles, faster
/// mapping (cost is per handle).
const CHUNKS: u64 = 64;

/// The length of the chunks of a region of `size` bytes.
fn chunk_for(size: u64, granularity: u64) -> u64 {
    let pages = PAGES.into_iter().filter(|page| page.is_multiple_of(granularity));
    pages
        .filter(|page| page * CHUNKS <= size)
        .max()
        .unwrap_or(PAGES[0].next_multiple_of(granularity))
}

/// A range of addresses, its handles, and which bytes live blocks hold.
pub(super) struct Region {
    /// Address of the first byte; 0 until something is mapped.
    base: Address,
    /// Bytes that the plan needs, in whole pages.
    size: u64,
    chunk: u64,
    handles: Vec<Option<Handle>>,
    mapped: u64,
    /// What live blocks hold. A cell begins at each place of the plan, and at each chunk.
    cells: Cells,
}

impl Region {
    /// A region for `bytes`, with nothing mapped. `offsets` are those at which blocks will begin;
    /// one that begins elsewhere may be refused though its bytes are free.
    pub(super) fn new(
        bytes: u64,
        granularity: u64,
        offsets: impl IntoIterator<Item = u64>,
    ) -> Region {
        let size = bytes.next_multiple_of(granularity);
        let chunk = chunk_for(size, granularity);
        let handles = vec![None; size.div_ceil(chunk) as usize];
        let chunks = (0..handles.len() as u64).map(|k| k * chunk);
        let cells = Cells::new(offsets.into_iter().chain(chunks));
        Region { base: 0, size, chunk, handles, mapped: 0, cells }
    }

    /// Bytes that are mapped.
    pub(super) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// The address of an offset. Valid once something is mapped.
    pub(super) fn address(&self, offset: u64) -> Address {
        self.base + offset
    }

    /// The cells under `[offset, offset + size)`: what [`Region::take`] and [`Region::give`] take.
    pub(super) fn span(&self, offset: u64, size: u64) -> Span {
        self.cells.span(offset, offset + size)
    }

    /// Number of cells.
    pub(super) fn cell_count(&self) -> usize {
        self.cells.count()
    }

    /// Holds cells for a block. False, and nothing held, if a live block has any of them.
    #[inline]
    pub(super) fn take(&mut self, span: Span) -> bool {
        self.cells.take(span)
    }

    /// Lets go of the cells of a block.
    #[inline]
    pub(super) fn give(&mut self, span: Span) {
        self.cells.give(span);
    }

    /// The highest place for `size` bytes that are mapped and that neither a block nor `avoided`
    /// has: its offset and its cells, which are then to be taken.
    pub(super) fn idle_place(&self, size: u64, avoided: &[Span]) -> Option<(u64, Span)> {
        for run in self.cells.free_runs(avoided) {
            let (start, mut end) = (self.cells.start(run.first), self.end_of(run));
            while end >= start + size {
                let offset = self.cells.start(self.cells.span(end - size, end).first);
                match self.last_unmapped(offset, size) {
                    None => return Some((offset, self.cells.span(offset, offset + size))),
                    Some(chunk) => end = self.bounds(chunk).0,
                }
            }
        }
        None
    }

    /// Where the last of these cells ends.
    fn end_of(&self, cells: Span) -> u64 {
        self.cells.start(cells.end).min(self.size)
    }

    /// The last chunk under `[offset, offset + size)` that is not mapped.
    fn last_unmapped(&self, offset: u64, size: u64) -> Option<usize> {
        if self.mapped == self.size {
            return None;
        }
        self.chunks(offset, size).rev().find(|&chunk| self.handles[chunk].is_none())
    }

    /// True if the chunks under `[offset, offset + size)` are mapped.
    #[inline]
    pub(super) fn is_mapped(&self, offset: u64, size: u64) -> bool {
        self.mapped == self.size || self.chunks(offset, size).all(|k| self.handles[k].is_some())
    }

    /// Bytes of the chunks under `[offset, offset + size)` that are not mapped.
    pub(super) fn missing(&self, offset: u64, size: u64) -> u64 {
        let missing = self.chunks(offset, size).filter(|&chunk| self.handles[chunk].is_none());
        missing.map(|chunk| self.bounds(chunk)).map(|(start, end)| end - start).sum()
    }

    /// Maps what is not mapped yet under `[offset, offset + size)` and tells `mapped` of each
    /// chunk's address and bytes. On an error everything is as before.
    pub(super) fn map(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        (offset, size): (u64, u64),
        mut mapped: impl FnMut(Address, u64),
    ) -> Result<(), DeviceError> {
        // A chunk whose unmapping is still owed cannot be mapped again.
        limbo.settle(device)?;
        let reserved_now = self.base == 0;
        if reserved_now {
            self.base = device.reserve(self.size)?;
        }
        let missing: Vec<usize> =
            self.chunks(offset, size).filter(|&k| self.handles[k].is_none()).collect();
        for (done, &chunk) in missing.iter().enumerate() {
            if let Err(error) = self.map_chunk(device, limbo, chunk) {
                for &chunk in &missing[..done] {
                    self.unmap_chunk(device, limbo, chunk);
                }
                if reserved_now {
                    limbo.unreserve(device, self.base, self.size);
                    self.base = 0;
                }
                return Err(error);
            }
        }
        for chunk in missing {
            let (start, end) = self.bounds(chunk);
            mapped(self.base + start, end - start);
        }
        Ok(())
    }

    /// Unmaps every chunk in which no block lives, and gives the addresses back if nothing is
    /// left. The caller has made sure that no stream uses them. Tells `unmapped` of each.
    pub(super) fn trim(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        mut unmapped: impl FnMut(Address, u64),
    ) {
        for chunk in self.idle_chunks().collect::<Vec<usize>>() {
            let (start, end) = self.bounds(chunk);
            self.unmap_chunk(device, limbo, chunk);
            unmapped(self.base + start, end - start);
        }
        if self.mapped == 0 && self.base != 0 {
            limbo.unreserve(device, self.base, self.size);
            self.base = 0;
        }
    }

    /// True if no block lives in the region.
    pub(super) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// True if [`Region::trim`] would unmap something.
    pub(super) fn has_idle_chunks(&self) -> bool {
        self.idle_chunks().next().is_some()
    }

    /// Bytes that [`Region::trim`] would unmap.
    pub(super) fn idle(&self) -> u64 {
        self.idle_chunks().map(|chunk| self.bounds(chunk)).map(|(start, end)| end - start).sum()
    }

    fn idle_chunks(&self) -> impl Iterator<Item = usize> {
        (0..self.handles.len()).filter(|&k| self.handles[k].is_some() && !self.is_used(k))
    }

    /// True if a block lives in the chunk.
    fn is_used(&self, chunk: usize) -> bool {
        let (start, end) = self.bounds(chunk);
        self.cells.is_held(self.cells.span(start, end))
    }

    /// The mapped runs, as `(address, bytes)`, by address.
    pub(super) fn mapped_runs(&self) -> Vec<(Address, u64)> {
        let mut runs: Vec<(Address, u64)> = Vec::new();
        for chunk in (0..self.handles.len()).filter(|&k| self.handles[k].is_some()) {
            let (start, end) = self.bounds(chunk);
            match runs.last_mut() {
                Some((address, bytes)) if *address + *bytes == self.base + start => {
                    *bytes += end - start;
                }
                _ => runs.push((self.base + start, end - start)),
            }
        }
        runs
    }

    /// Compares the region with the blocks that live in it, as `(offset, end)` in any order: what is
    /// wrong, if anything is.
    pub(super) fn check(&self, mut live: Vec<(u64, u64)>) -> Result<(), String> {
        live.sort_unstable();
        let mut last = 0;
        for &(offset, end) in &live {
            if offset < last || end > self.size {
                return Err(format!("block [{offset}, {end}) overlaps or leaves its region"));
            }
            if !self.is_mapped(offset, end - offset) {
                return Err(format!("block [{offset}, {end}) lies on unmapped pages"));
            }
            last = end;
        }
        if !self.cells.are_held_by(live.iter().map(|&(offset, end)| self.cells.span(offset, end))) {
            return Err("the cells that are held are not those of the live blocks".to_owned());
        }
        let mapped: u64 = self.mapped_runs().iter().map(|&(_, bytes)| bytes).sum();
        if mapped != self.mapped {
            return Err(format!("{} bytes counted as mapped, {mapped} are", self.mapped));
        }
        Ok(())
    }

    fn chunks(&self, offset: u64, size: u64) -> std::ops::Range<usize> {
        (offset / self.chunk) as usize..(offset + size).div_ceil(self.chunk) as usize
    }

    fn bounds(&self, chunk: usize) -> (u64, u64) {
        let start = chunk as u64 * self.chunk;
        (start, (start + self.chunk).min(self.size))
    }

    fn map_chunk(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        chunk: usize,
    ) -> Result<(), DeviceError> {
        let (start, end) = self.bounds(chunk);
        let address = self.base + start;
        let handle = device.create(end - start)?;
        if let Err(error) = device.map(address, handle) {
            limbo.release(device, handle);
            return Err(error);
        }
        if let Err(error) = device.set_access(address, end - start) {
            limbo.unmap(device, address, end - start);
            limbo.release(device, handle);
            return Err(error);
        }
        self.handles[chunk] = Some(handle);
        self.mapped += end - start;
        Ok(())
    }

    fn unmap_chunk(&mut self, device: &mut dyn Device, limbo: &mut Limbo, chunk: usize) {
        let (start, end) = self.bounds(chunk);
        if let Some(handle) = self.handles[chunk].take() {
            limbo.unmap(device, self.base + start, end - start);
            limbo.release(device, handle);
            self.mapped -= end - start;
        }
    }
}
