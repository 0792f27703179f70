//! Views: ranges of addresses under which the bytes of several holes lie side by side.
//!
//! A view is made once and used again and again. While the program holds it its bytes are lent
//! (`lending`); while it is idle they serve others, and it can be used again as soon as all of them
//! are free. Nothing tells it so: it looks.
//!
//! Each page that is mapped once more costs the driver memory. So there is a budget
//! ([`Options::view_pages_max`](super::Options)), and those views go that were not used for longest. As long as a
//! kernel may still run that uses the next one it stays; where views have twice as many pages no more are made, and a
//! request that needs one is given new pages. A page that goes back to the device takes the views over it with it.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};

use rustc_hash::FxHashMap;

use super::block::Block;
use super::pages::Page;
use super::{Lake, Search};
use crate::device::{Address, DeviceError};
use crate::order::Stamp;
use crate::policy::{BlockId, Env};

/// Bytes of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) address: Address,
    pub(super) size: u64,
}

impl Part {
    /// The bytes from one address to another; none where that is not behind it.
    pub(super) fn between(start: Address, end: Address) -> Part {
        Part { address: start, size: end.saturating_sub(start) }
    }

    /// The first byte behind it.
    pub(super) fn end(&self) -> Address {
        self.address + self.size
    }

    /// Its first bytes, up to so many.
    pub(super) fn first(&self, bytes: u64) -> Part {
        Part { size: self.size.min(bytes), ..*self }
    }

    pub(super) fn overlaps(&self, other: &Part) -> bool {
        self.common(other) > 0
    }

    /// Bytes of both.
    pub(super) fn common(&self, other: &Part) -> u64 {
        self.both(other).size
    }

    /// The bytes of both.
    pub(super) fn both(&self, other: &Part) -> Part {
        Part::between(self.address.max(other.address), self.end().min(other.end()))
    }

    /// What is left without others, which are [side by side](side_by_side).
    pub(super) fn without_any(&self, others: &[Part]) -> Vec<Part> {
        let (mut at, mut left) = (self.address, Vec::new());
        let first = others.partition_point(|other| other.end() <= at);
        for other in others[first..].iter().take_while(|other| other.address < self.end()) {
            if at < other.address {
                left.push(Part::between(at, other.address));
            }
            at = at.max(other.end());
        }
        if at < self.end() {
            left.push(Part::between(at, self.end()));
        }
        left
    }

    /// What is left without another, before and after it.
    pub(super) fn without(&self, other: &Part) -> impl Iterator<Item = Part> + use<> {
        let before = Part::between(self.address, other.address.min(self.end()));
        let after = Part::between(other.end().max(self.address), self.end());
        [before, after].into_iter().filter(|left| left.size > 0)
    }
}

/// The same bytes as parts that do not overlap, in order of address.
pub(super) fn side_by_side(mut parts: Vec<Part>) -> Vec<Part> {
    parts.sort_unstable_by_key(|part| part.address);
    parts.dedup_by(|next, part| {
        let meets = next.address <= part.end();
        if meets {
            part.size = part.size.max(next.end() - part.address);
        }
        meets
    });
    parts
}

/// A range of addresses over parts of segments.
#[derive(Debug)]
pub(super) struct View {
    /// Its reservation, somewhat larger than what was mapped first.
    pub(super) reserved: Part,
    /// Where its bytes begin in it.
    pub(super) address: Address,
    /// Bytes of all parts.
    pub(super) size: u64,
    /// In the order of its addresses.
    pub(super) parts: Vec<Part>,
    /// The pages that are mapped in it, from the beginning of its reservation on. The last may be behind its bytes.
    pub(super) slots: Vec<Page>,
    /// When its last use was let go of; 0 before the first.
    pub(super) freed: Stamp,
    /// When it was taken into use last.
    pub(super) used: u64,
    /// The blocks that are lent to it, one for each part; none while it is idle.
    pub(super) lent: Vec<BlockId>,
    /// The places of those of its size that were used next after it and next before it; [`NONE`] without one.
    pub(super) newer: u32,
    pub(super) older: u32,
}

/// No place.
const NONE: u32 = u32::MAX;

impl View {
    /// Bytes that are mapped in its reservation.
    pub(super) fn mapped(&self) -> u64 {
        self.slots.iter().map(|page| page.size).sum()
    }

    /// Pages under its bytes.
    fn in_use(&self) -> usize {
        let end = self.address + self.size - self.reserved.address;
        let ends = self.slots.iter().scan(0, |at, page| {
            *at += page.size;
            Some(*at)
        });
        ends.take_while(|&at| at < end).count() + 1
    }
}

/// All views.
#[derive(Debug, Default)]
pub(super) struct Views {
    /// Vacant places are `None`.
    pub(super) views: Vec<Option<View>>,
    vacant: BTreeSet<u32>,
    /// Of each size, the place of the one that was used last.
    newest: FxHashMap<u64, u32>,
    /// Pages that are mapped in all of them, and that were mapped since the run began.
    pages: u64,
    mapped: u64,
    /// Counts uses.
    clock: u64,
    /// What it was when the last steps began.
    steps: VecDeque<u64>,
}

impl Views {
    /// The places of the views of a size, from the one that was used last on.
    pub(super) fn of_size(&self, size: u64) -> impl Iterator<Item = u32> {
        let older = |&place: &u32| Some(self.get(place).older).filter(|&older| older != NONE);
        std::iter::successors(self.newest.get(&size).copied(), older)
    }

    /// The view at a place.
    pub(super) fn get(&self, place: u32) -> &View {
        self.views[place as usize].as_ref().expect("a view that is known by its place")
    }

    /// The view at a place.
    pub(super) fn get_mut(&mut self, place: u32) -> &mut View {
        self.views[place as usize].as_mut().expect("a view that is known by its place")
    }

    /// The view at a place, which is used now.
    pub(super) fn use_now(&mut self, place: u32) -> &mut View {
        self.clock += 1;
        let clock = self.clock;
        if self.get(place).newer != NONE {
            self.unlink(place);
            self.link(place);
        }
        let view = self.get_mut(place);
        view.used = clock;
        view
    }

    /// Puts a view before all others of its size.
    fn link(&mut self, place: u32) {
        let size = self.get(place).size;
        let older = self.newest.insert(size, place).unwrap_or(NONE);
        if older != NONE {
            self.get_mut(older).newer = place;
        }
        let view = self.get_mut(place);
        (view.newer, view.older) = (NONE, older);
    }

    fn unlink(&mut self, place: u32) {
        let &View { newer, older, size, .. } = self.get(place);
        if older != NONE {
            self.get_mut(older).newer = newer;
        }
        if newer != NONE {
            self.get_mut(newer).older = older;
        } else if older != NONE {
            self.newest.insert(size, older);
        } else {
            self.newest.remove(&size);
        }
    }

    /// Pages that are mapped in all of them.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Pages that were mapped in views since the run began.
    pub(super) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// So many pages are mapped in a view.
    pub(super) fn note_mapped(&mut self, pages: usize) {
        self.mapped += pages as u64;
    }

    /// A step begins, and the views of so many count.
    pub(super) fn turn(&mut self, steps: u64) {
        self.steps.push_back(self.clock);
        while self.steps.len() as u64 > steps.max(1) {
            self.steps.pop_front();
        }
    }

    /// The idle views that were not used in the last `steps` steps, this one among them; none if there were fewer.
    pub(super) fn stale(&self, steps: u64) -> Option<Vec<u32>> {
        let since = *self.steps.front().filter(|_| self.steps.len() as u64 == steps.max(1))?;
        let views = (0..).zip(&self.views).filter_map(|(at, view)| Some((at, view.as_ref()?)));
        let stale = views.filter(|(_, view)| view.used <= since && view.lent.is_empty());
        Some(stale.map(|(place, _)| place).collect())
    }

    fn insert(&mut self, view: View) -> u32 {
        let place = self.vacant.first().copied().unwrap_or(self.views.len() as u32);
        if place as usize == self.views.len() {
            self.views.push(None);
        }
        self.put(place, view);
        place
    }

    /// A view for a vacant place.
    pub(super) fn put(&mut self, place: u32, view: View) {
        self.vacant.remove(&place);
        self.pages += view.slots.len() as u64;
        self.views[place as usize] = Some(view);
        self.link(place);
    }

    /// Makes a place vacant.
    pub(super) fn remove(&mut self, place: u32) -> Option<View> {
        self.views.get(place as usize)?.as_ref()?;
        self.unlink(place);
        let view = self.views[place as usize].take()?;
        self.pages -= view.slots.len() as u64;
        self.vacant.insert(place);
        Some(view)
    }

    /// Each view is in the list of its size, in order of use, and every other place is vacant.
    fn check_lists(&self) -> Result<(), String> {
        let mut listed = 0;
        for &size in self.newest.keys() {
            let places: Vec<u32> = self.of_size(size).take(self.views.len()).collect();
            let is_in_order = places.is_sorted_by_key(|&place| Reverse(self.get(place).used));
            if !is_in_order || places.iter().any(|&place| self.get(place).size != size) {
                return Err(format!("views of {size} bytes are not in order of use: {places:?}"));
            }
            listed += places.len();
        }
        let vacant = self.views.iter().filter(|view| view.is_none()).count();
        if (listed + vacant, vacant) != (self.views.len(), self.vacant.len()) {
            return Err(format!("{listed} views are listed, {} places vacant", self.vacant.len()));
        }
        Ok(())
    }

    /// The idle view that was not used for longest.
    fn least_recent(&self) -> Option<u32> {
        let views = (0..).zip(&self.views);
        let idle = views.filter_map(|(place, view)| Some((place, view.as_ref()?)));
        let idle = idle.filter(|(_, view)| view.lent.is_empty());
        idle.min_by_key(|(_, view)| view.used).map(|(place, _)| place)
    }
}

/// Bytes of addresses for a view that begins with so many: up to a quarter more, for what it becomes later.
fn with_room(bytes: u64) -> u64 {
    bytes.next_multiple_of((bytes / 4).next_power_of_two())
}

impl Lake {
    /// Maps the pages of `parts` side by side. The time that the device takes for it, and for the views that go, is
    /// the account's.
    ///
    /// # Errors
    /// What the device refuses, or [`DeviceError::OutOfMemory`] where the budget is spent, and kernels may still use
    /// the view that would go.
    pub(super) fn map_view(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        parts: Vec<Part>,
    ) -> Result<u32, DeviceError> {
        self.on_account(env, |lake, env| lake.make_view(env, search, parts))
    }

    /// Makes calls of the device for views: the time that they take is the account's.
    pub(super) fn on_account<T>(
        &mut self,
        env: &mut Env<'_>,
        calls: impl FnOnce(&mut Lake, &mut Env<'_>) -> T,
    ) -> T {
        let before = env.device.prices().spent_ns;
        let result = calls(self, env);
        self.pace.map(env.device.prices().spent_ns.saturating_sub(before));
        result
    }

    fn make_view(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        parts: Vec<Part>,
    ) -> Result<u32, DeviceError> {
        let (slots, offset) = self.pages_under(&parts);
        let size: u64 = slots.iter().map(|page| page.size).sum();
        self.make_room(env, size)?;
        let reserved = with_room(size);
        let base = match env.device.reserve(reserved) {
            Err(DeviceError::OutOfMemory { requested, free }) => {
                // There are fewer addresses than was thought. The next view may find more.
                self.drop_least_recent(env)?;
                return Err(DeviceError::OutOfMemory { requested, free });
            }
            base => base?,
        };
        let mut mapped = 0;
        let mut map = || {
            for page in &slots {
                env.device.map(base + mapped, page.handle)?;
                mapped += page.size;
            }
            env.device.set_access(base, size)
        };
        if let Err(error) = map() {
            if mapped > 0 {
                self.limbo.unmap(env.device, base, mapped);
            }
            self.limbo.unreserve(env.device, base, reserved);
            return Err(error);
        }
        self.beside.stats.num_stitches += 1;
        self.views.note_mapped(slots.len());
        Ok(self.views.insert(View {
            reserved: Part { address: base, size: reserved },
            address: base + offset,
            size: search.size,
            parts,
            slots,
            freed: 0,
            used: 0,
            lent: Vec::new(),
            newer: NONE,
            older: NONE,
        }))
    }

    /// The pages on which parts lie, in order; and how far into the first of them the first part begins.
    pub(super) fn pages_under(&self, parts: &[Part]) -> (Vec<Page>, u64) {
        let (mut pages, mut offset) = (Vec::new(), None);
        for part in parts {
            let (_, segment) = self.segment_at(part.address);
            for page in segment.pages(*part) {
                offset.get_or_insert_with(|| part.address - page.address);
                pages.push(page);
            }
        }
        (pages, offset.unwrap_or(0))
    }

    /// Takes the views over `pages`, which nobody uses, and their addresses away. The device has no work left that
    /// uses them: whoever used the pages and the views last was waited for ([`Lake::synchronize_users`]).
    pub(super) fn drop_views_over(&mut self, env: &mut Env<'_>, pages: Part) {
        let is_over = |view: &View| view.parts.iter().any(|part| part.overlaps(&pages));
        for place in 0..self.views.views.len() as u32 {
            if self.views.views[place as usize].as_ref().is_some_and(is_over) {
                self.drop_view(env, place);
            }
            self.trim_view(env, place, pages);
        }
    }

    /// Unmaps what a view keeps behind its bytes, from the first of `pages` in it on. Nobody uses that, be the view in
    /// use or not.
    fn trim_view(&mut self, env: &mut Env<'_>, place: u32, pages: Part) {
        let Some(view) = &mut self.views.views[place as usize] else { return };
        let behind = view.slots.iter().skip(view.in_use());
        let Some(at) = { behind }.position(|page| page.part().overlaps(&pages)) else { return };
        let all = view.mapped();
        let gone = view.slots.drain(view.in_use() + at..).map(|page| (1, page.size));
        let (count, bytes) = gone.fold((0, 0), |sum, page| (sum.0 + page.0, sum.1 + page.1));
        self.views.pages -= count;
        self.limbo.unmap(env.device, view.reserved.address + all - bytes, bytes);
    }

    fn drop_view(&mut self, env: &mut Env<'_>, place: u32) {
        if let Some(view) = self.views.remove(place) {
            debug_assert!(view.lent.is_empty(), "the bytes of a view in use are not free");
            let Part { address, size } = view.reserved;
            self.limbo.unmap(env.device, address, view.mapped());
            self.limbo.unreserve(env.device, address, size);
        }
    }

    /// Lets the views that were not used for longest go, as long as there are too many mappings.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] if kernels may still use too much of it.
    fn make_room(&mut self, env: &mut Env<'_>, size: u64) -> Result<(), DeviceError> {
        let most = self.options.view_pages_max;
        while self.views.pages > most && self.drop_least_recent(env)? {}
        if self.views.pages > most.saturating_mul(2) {
            return Err(DeviceError::OutOfMemory { requested: size, free: 0 });
        }
        Ok(())
    }

    /// Lets the view go that was not used for longest. False if all are in use, or a kernel may still use that one.
    fn drop_least_recent(&mut self, env: &mut Env<'_>) -> Result<bool, DeviceError> {
        let Some(place) = self.views.least_recent() else { return Ok(false) };
        let freed = self.views.get(place).freed;
        let is_done = self.order.is_done(env.device, &mut self.limbo, freed)?;
        if is_done {
            self.stains.forget(&self.order);
            self.drop_view(env, place);
        }
        Ok(is_done)
    }

    /// True if a page is still one of a segment.
    fn is_mapped(&self, page: &Page) -> bool {
        let over = self.segments.over(page.address);
        over.is_some_and(|(_, segment)| segment.pages(page.part()).eq([*page]))
    }

    /// Every view in use has its bytes lent, no idle one has, and the pages are counted. For the walk
    /// that checks everything.
    pub(super) fn check_views(&self) -> Result<(), String> {
        let views: Vec<&View> = self.views.views.iter().flatten().collect();
        let pages: u64 = views.iter().map(|view| view.slots.len() as u64).sum();
        if pages != self.views.pages {
            return Err(format!("{pages} pages are mapped in views, not {}", self.views.pages));
        }
        self.views.check_lists()?;
        let mut expected = (0, 0);
        for view in &views {
            let lent = view.lent.iter().map(|&id| &self.heap.blocks[id]);
            let mut lent_parts = view.parts.iter().zip(lent);
            let is_lent = |(part, block): (&Part, &Block)| block.lent && block.part() == *part;
            let (under, offset) = self.pages_under(&view.parts);
            let bytes: u64 = view.parts.iter().map(|part| part.size).sum();
            let faults = [
                (view.size != bytes, "not of its parts' size"),
                (view.address != view.reserved.address + offset, "begins elsewhere"),
                (view.mapped() > view.reserved.size, "larger than its reservation"),
                (view.slots[..view.in_use()] != under, "of other pages than its parts"),
                (!view.slots.iter().all(|page| self.is_mapped(page)), "of pages that are gone"),
                (!lent_parts.all(is_lent), "not lent its bytes"),
                (![0, view.parts.len()].contains(&view.lent.len()), "lent a part of its bytes"),
            ];
            if let Some((_, fault)) = faults.into_iter().find(|(is_fault, _)| *is_fault) {
                return Err(format!("a view is {fault}: {view:?}"));
            }
            expected.0 += view.lent.len();
            expected.1 += usize::from(!view.lent.is_empty());
        }
        let count = |is_it: fn(&&Block) -> bool| self.heap.blocks.values().filter(is_it).count();
        let found = (count(|block| block.lent), count(|block| block.is_stitched()));
        if found != expected {
            return Err(format!("{found:?} blocks are lent and stitched, not {expected:?}"));
        }
        Ok(())
    }
}
