//! Patching: an idle view that nobody used for a while is given other pages.
//!
//! Where sizes vary, a view is hardly ever of use again as it is: another size is asked for, or one of its pages is in
//! use. To map a new one costs the driver some tens of microseconds a page. But most of what is free now was free then:
//! so the view that shares the most bytes with what is free keeps these pages, where they are, and the others alone are
//! mapped anew.
//!
//! ```text
//!  free pages:      7 8 9    13   20 21 22    31 32
//!  the view was:   | 7 | 8 | 9 | 10 | 11 | 20 | 21 |
//!  it becomes:     | 7 | 8 | 9 | 13 | 22 | 20 | 21 | 31 |         three pages are mapped instead of eight
//!                                                        ╰── addresses that it was given when it was made
//! ```
//!
//! What it keeps behind its last byte stays mapped, for a longer request. A view that was used in one of the last
//! [`Options::stale`](super::Options) steps, this one among them, is not patched: it may be what the next one asks for. Nor is one that a
//! kernel may still use. So a program that does not tell its steps has none patched.

use std::collections::BTreeMap;
use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};

use super::pages::Page;
use super::stitching::Hole;
use super::views::{Part, View};
use super::{Lake, Search};
use crate::device::{Address, Device, DeviceError, Handle};
use crate::order::Stamp;
use crate::pending::Limbo;
use crate::policy::{BlockId, Env};

/// Of so many views at most is looked which to patch. A bound on the time alone: 16 and 256 make no difference to the
/// recordings (`bench/results/lake.md`).
const LOOKED_AT: usize = 64;

/// What is free, by pages.
struct Free {
    /// The bytes that are free from the beginning of a page on, with the hole that has them.
    from_start: FxHashMap<Handle, (u64, BlockId)>,
    /// Where the free bytes begin of a page that is free up to its end, with the hole that has them.
    up_to_end: FxHashMap<Handle, (Address, BlockId)>,
    /// The pages that are free as a whole, by their sizes.
    whole: BTreeMap<u64, Vec<Page>>,
    /// Those that are free from their beginning on, but not up to their end.
    begun: Vec<Page>,
}

/// Pages of a view that go, and what comes to their place.
struct Gap {
    /// Bytes of the reservation, where pages are mapped now; nothing behind its last page.
    old: Range<u64>,
    new: Vec<Page>,
}

impl Gap {
    /// Bytes that are mapped in it afterwards.
    fn mapped(&self) -> u64 {
        self.new.iter().map(|page| page.size).sum()
    }
}

/// What a view becomes.
pub(super) struct Patch {
    place: u32,
    /// How far into its reservation its bytes begin.
    offset: u64,
    pub(super) parts: Vec<Part>,
    slots: Vec<Page>,
    gaps: Vec<Gap>,
}

impl Patch {
    /// Pages to be mapped.
    pub(super) fn count(&self) -> usize {
        self.gaps.iter().map(|gap| gap.new.len()).sum()
    }
}

impl Free {
    /// The bytes that a page can keep of a view that is to have those of its reservation from `offset` to `end`, where
    /// the page lies at `at`: all that it is to have, or none.
    fn keeps(&self, page: &Page, at: u64, end: u64) -> u64 {
        let wanted = page.size.min(end.saturating_sub(at));
        let free = self.from_start.get(&page.handle).map_or(0, |&(bytes, _)| bytes);
        if free >= wanted { wanted } else { 0 }
    }

    /// How far into its first page a view begins that keeps it: as far as before, if the rest of the page is free and
    /// not all of it.
    fn offset(&self, view: &View) -> u64 {
        let offset = view.address - view.reserved.address;
        let first = &view.slots[0];
        let rest = self.up_to_end.get(&first.handle);
        let is_kept = rest.is_some_and(|&(address, _)| address <= first.address + offset);
        if is_kept { offset } else { 0 }
    }

    /// Bytes that a view of `size` bytes would keep.
    fn kept(&self, view: &View, size: u64) -> u64 {
        let offset = self.offset(view);
        let (mut at, mut kept, end) = (0, 0, offset + size);
        for page in &view.slots {
            kept += if at == 0 && offset > 0 { page.size } else { self.keeps(page, at, end) };
            at += page.size;
            if at >= end {
                break;
            }
        }
        kept
    }

    /// The parts of holes under the bytes of a view from `offset` to `end`.
    fn parts(&self, slots: &[Page], offset: u64, end: u64) -> Vec<Part> {
        let mut parts: Vec<(Part, BlockId)> = Vec::new();
        let mut at = 0;
        for page in slots {
            let is_first = at == 0 && offset > 0;
            let skipped = if is_first { offset } else { 0 };
            let address = page.address + skipped;
            let size = page.size.min(end - at) - skipped;
            let hole = match is_first {
                true => self.up_to_end[&page.handle].1,
                false => self.from_start[&page.handle].1,
            };
            match parts.last_mut() {
                Some((last, of)) if *of == hole && last.end() == address => last.size += size,
                _ => parts.push((Part { address, size }, hole)),
            }
            at += page.size;
            if at >= end {
                break;
            }
        }
        parts.into_iter().map(|(part, _)| part).collect()
    }

    /// The largest whole page of at most so many bytes that is not kept.
    fn pop(&mut self, kept: &FxHashSet<Handle>, most: u64) -> Option<Page> {
        for pages in self.whole.range_mut(..=most).rev().map(|(_, pages)| pages) {
            while let Some(page) = pages.pop() {
                if !kept.contains(&page.handle) {
                    return Some(page);
                }
            }
        }
        None
    }

    /// Pages of exactly so many bytes.
    fn fill(&mut self, kept: &FxHashSet<Handle>, mut bytes: u64) -> Option<Vec<Page>> {
        let mut pages = Vec::new();
        while bytes > 0 {
            let page = self.pop(kept, bytes)?;
            bytes -= page.size;
            pages.push(page);
        }
        Some(pages)
    }

    /// Pages of so many bytes or more, of the last of which the first bytes alone need be free.
    fn fill_end(&mut self, kept: &FxHashSet<Handle>, mut bytes: u64) -> Option<Vec<Page>> {
        let mut pages = Vec::new();
        while bytes > 0 {
            let begun = self.begun.iter().filter(|page| !kept.contains(&page.handle));
            let free = |page: &Page| self.from_start[&page.handle].0;
            let last = begun.filter(|page| free(page) >= bytes).min_by_key(|page| free(page));
            let last = last.copied();
            let page = match last.or_else(|| self.pop(kept, bytes)) {
                Some(page) => page,
                // Larger than what is missing.
                None => {
                    let larger = self.whole.range_mut(bytes..).flat_map(|(_, pages)| pages);
                    *{ larger }.find(|page| !kept.contains(&page.handle))?
                }
            };
            bytes = if last.is_some() { 0 } else { bytes.saturating_sub(page.size) };
            pages.push(page);
        }
        Some(pages)
    }
}

/// What a view becomes that is to have `size` bytes. None if the free pages do not fit between those that it keeps.
fn patch(view: &View, place: u32, size: u64, free: &mut Free) -> Option<Patch> {
    let offset = free.offset(view);
    let end = offset + size;
    let (mut at, mut kept) = (0, FxHashSet::default());
    let keeps = view.slots.iter().map(|page| {
        let is_first = at == 0 && offset > 0;
        let is_kept = is_first || (free.keeps(page, at, end) > 0 && kept.insert(page.handle));
        at += page.size;
        is_kept
    });
    let keeps: Vec<bool> = keeps.collect();
    let (mut slots, mut gaps) = (Vec::new(), Vec::new());
    let (mut at, mut next) = (0, 0);
    while at < end {
        if keeps.get(next) == Some(&true) {
            at += view.slots[next].size;
            slots.push(view.slots[next]);
            next += 1;
            continue;
        }
        let start = at;
        while at < end && keeps.get(next) == Some(&false) {
            at += view.slots[next].size;
            next += 1;
        }
        let is_last = at >= end || next == keeps.len();
        let (old, new) = if is_last {
            (at, next) = (end, keeps.len());
            (start..view.mapped(), free.fill_end(&kept, end - start)?)
        } else {
            (start..at, free.fill(&kept, at - start)?)
        };
        slots.extend(&new);
        gaps.push(Gap { old, new });
    }
    slots.extend(&view.slots[next..]);
    let parts = free.parts(&slots, offset, end);
    Some(Patch { place, offset, parts, slots, gaps })
}

impl Lake {
    /// How a view is patched for a request that would else be given a new one of `parts`, if that takes the driver less
    /// time. It has bytes of other streams only if `parts` have.
    pub(super) fn find_patch(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        parts: &[Part],
    ) -> Option<Patch> {
        let new = self.pages_under(parts).0.len();
        if (new as u64) < self.options.patched {
            return None;
        }
        let stale = self.views.stale(self.options.stale)?;
        let done = self.ask_how_far(env, &stale);
        let mut free = self.free_pages(search, parts);
        let views = stale.iter().map(|&place| (place, self.views.get(place)));
        let able = views.filter(|(_, view)| {
            view.freed <= done && view.reserved.size >= free.offset(view) + search.size
        });
        let best = able.take(LOOKED_AT).max_by_key(|(_, view)| free.kept(view, search.size));
        let (place, view) = best?;
        let was = view.slots.len() as u64;
        let patch = patch(view, place, search.size, &mut free)?;
        // Smaller pages may be more of them: not beyond the budget of all views.
        let pages = self.views.pages();
        if pages - was + patch.slots.len() as u64 > self.options.view_pages_max.max(pages) {
            return None;
        }
        // To unmap a page takes half the time that it takes to map one.
        (3 * patch.count() < 2 * new).then_some(patch)
    }

    /// Asks the device how far it has come with what used the views: about that which was let go of first of those that
    /// it may still use, and then about the last. Returns the last free that it is done with.
    fn ask_how_far(&mut self, env: &mut Env<'_>, views: &[u32]) -> Stamp {
        let freed = views.iter().map(|&place| self.views.get(place).freed);
        let open: Vec<Stamp> = freed.filter(|&freed| freed > self.order.done()).collect();
        for of in [open.iter().min(), open.iter().max()].into_iter().flatten() {
            if !self.order.is_done(env.device, &mut self.limbo, *of).unwrap_or(false) {
                break;
            }
        }
        self.stains.forget(&self.order);
        self.order.done()
    }

    /// What is free of the streams whose bytes are in `parts`.
    fn free_pages(&self, search: &Search, parts: &[Part]) -> Free {
        let is_foreign = |part: &Part| {
            let block = &self.heap.blocks[self.tile_over(part.address)];
            block.home.stream != search.home.stream
        };
        let may_be_foreign = parts.iter().any(is_foreign);
        let holes = self.holes(search);
        let mut free = Free {
            from_start: FxHashMap::default(),
            up_to_end: FxHashMap::default(),
            whole: BTreeMap::new(),
            begun: Vec::new(),
        };
        // The pages of the largest holes are asked for first, from the lowest on.
        for hole in holes.iter().rev().filter(|hole| may_be_foreign || !hole.is_foreign) {
            self.note_pages(hole, &mut free);
        }
        free
    }

    fn note_pages(&self, hole: &Hole, free: &mut Free) {
        let (_, segment) = self.segment_at(hole.all.address);
        let pages: Vec<Page> = segment.pages(hole.all).collect();
        for page in pages.into_iter().rev() {
            if page.address < hole.all.address {
                free.up_to_end.insert(page.handle, (hole.all.address, hole.block));
                continue;
            }
            let bytes = page.size.min(hole.all.end() - page.address);
            free.from_start.insert(page.handle, (bytes, hole.block));
            if bytes == page.size {
                free.whole.entry(page.size).or_default().push(page);
            } else {
                free.begun.push(page);
            }
        }
    }

    /// Patches a view. What the device takes for it is the account's.
    ///
    /// # Errors
    /// What the device refuses. The view is gone then.
    pub(super) fn patch_view(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        patch: Patch,
    ) -> Result<u32, DeviceError> {
        self.on_account(env, |lake, env| lake.apply(env, search, patch))
    }

    fn apply(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        patch: Patch,
    ) -> Result<u32, DeviceError> {
        let Patch { place, offset, parts, slots, gaps } = patch;
        let view = self.views.remove(place).expect("a view that is known by its place");
        let base = view.reserved.address;
        let all = 0..view.mapped();
        let mut mapped = Vec::from([all]);
        for gap in &gaps {
            if let Err(error) = exchange(env.device, base, gap, &mut mapped) {
                give_up(env.device, &mut self.limbo, view.reserved, &mapped);
                return Err(error);
            }
        }
        self.beside.stats.num_stitches += 1;
        self.views.note_mapped(gaps.iter().map(|gap| gap.new.len()).sum());
        let address = base + offset;
        self.views.put(place, View { address, size: search.size, parts, slots, ..view });
        Ok(place)
    }
}

/// Maps the new pages of a gap in place of the old ones. `mapped` is what is mapped of the reservation, whatever the
/// device has refused.
fn exchange(
    device: &mut dyn Device,
    base: Address,
    gap: &Gap,
    mapped: &mut Vec<Range<u64>>,
) -> Result<(), DeviceError> {
    let Range { start, end } = gap.old;
    if start < end {
        device.unmap(base + start, end - start)?;
        // It is part of the last range: gaps come in the order of their addresses.
        let all = mapped.pop().unwrap_or_default();
        mapped.extend([all.start..start, end..all.end]);
    }
    let rest = mapped.pop().filter(|rest| !rest.is_empty());
    let mut at = start;
    let mut result = Ok(());
    for page in &gap.new {
        result = device.map(base + at, page.handle);
        if result.is_err() {
            break;
        }
        at += page.size;
    }
    mapped.push(start..at);
    mapped.extend(rest);
    result?;
    if gap.new.is_empty() { Ok(()) } else { device.set_access(base + start, gap.mapped()) }
}

/// Gives a reservation back of which some ranges are mapped.
fn give_up(device: &mut dyn Device, limbo: &mut Limbo, reserved: Part, mapped: &[Range<u64>]) {
    for range in mapped.iter().filter(|range| !range.is_empty()) {
        limbo.unmap(device, reserved.address + range.start, range.end - range.start);
    }
    limbo.unreserve(device, reserved.address, reserved.size);
}
