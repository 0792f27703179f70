//! Views: ranges of addresses under which the bytes of several holes lie side by side.
//!
//! A view is made once and used again and again. While the program holds it its bytes are lent
//! (`lending`); while it is idle they serve others, and it can be used again as soon as all of them
//! are free, or its first ones, for a request that is smaller. Nothing tells it so: it looks.
//!
//! Each page that is mapped once more costs the driver memory, and addresses are plenty but not without
//! end. So there is a budget of both ([`Options::view_pages_max`](super::Options), [`ADDRESSES_MAX`], or what
//! the device has if that is less), and those views go that were not used for longest. A kernel may still
//! run that uses them; they are unmapped when an event on their stream is done. As long as none can go, no
//! view is made, and a request that needs one is given new pages. A page that goes back to the device takes
//! the views over it with it, or cuts one in use short.

use std::collections::{BTreeMap, VecDeque};

use super::block::Block;
use super::{Lake, Search};
use crate::chain::NIL;
use crate::device::{Address, DeviceError, Handle};
use crate::order::Stamp;
use crate::policy::{BlockId, Env};

/// Bytes of addresses that all views together may have: a quarter of the 128 TiB of a process on x86. An
/// expandable segment reserves 9/8 of the device, 159 GiB of an H200.
const ADDRESSES_MAX: u64 = 32 << 40;

/// Bytes of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) address: Address,
    pub(super) size: u64,
}

impl Part {
    /// The first byte behind it.
    pub(super) fn end(&self) -> Address {
        self.address + self.size
    }

    /// Its first bytes, up to so many.
    #[inline]
    pub(super) fn first(&self, bytes: u64) -> Part {
        Part { size: self.size.min(bytes), ..*self }
    }

    pub(super) fn overlaps(&self, other: &Part) -> bool {
        self.common(other) > 0
    }

    /// Bytes of both.
    pub(super) fn common(&self, other: &Part) -> u64 {
        let end = (self.address + self.size).min(other.address + other.size);
        end.saturating_sub(self.address.max(other.address))
    }

    /// The bytes of both.
    pub(super) fn both(&self, other: &Part) -> Part {
        Part { address: self.address.max(other.address), size: self.common(other) }
    }

    /// What is left without another, before and after it.
    pub(super) fn without(&self, other: &Part) -> impl Iterator<Item = Part> + use<> {
        let (end, other_end) = (self.address + self.size, other.address + other.size);
        let before = (self.address, other.address.min(end));
        let after = (other_end.max(self.address), end);
        let left = [before, after].into_iter().filter(|(start, end)| start < end);
        left.map(|(start, end)| Part { address: start, size: end - start })
    }
}

/// A range of addresses over parts of segments.
#[derive(Debug)]
pub(super) struct View {
    /// Its reservation.
    reserved: Part,
    /// Bytes of it that are mapped, from the first on: all, but if it was cut short.
    mapped: u64,
    /// Where its bytes begin in it.
    pub(super) address: Address,
    /// Bytes of all parts.
    pub(super) size: u64,
    /// In the order of its addresses.
    pub(super) parts: Vec<Part>,
    /// Pages that are mapped in it.
    pages: u64,
    /// When its last use was let go of; 0 before the first.
    pub(super) freed: Stamp,
    /// When it was taken into use last.
    pub(super) used: u64,
    /// A block for each part. Of the first `lent` parts it is the lent one; of the others, one in which
    /// the part lay when it had come back, which may be gone since.
    pub(super) lenders: Vec<BlockId>,
    /// Parts that are lent: none while it is idle, and not all for a request that is smaller.
    pub(super) lent: usize,
}

impl View {
    pub(super) fn is_idle(&self) -> bool {
        self.lent == 0
    }

    /// True if it shows bytes of a part.
    fn is_over(&self, part: &Part) -> bool {
        self.parts.iter().any(|own| own.overlaps(part))
    }

    /// Its first `size` bytes: parts, of which the last may be cut short.
    #[inline]
    pub(super) fn prefix(&self, size: u64) -> impl Iterator<Item = Part> {
        let parts = self.parts.iter().scan(size, |left, part| {
            let part = part.first(*left);
            *left -= part.size;
            (part.size > 0).then_some(part)
        });
        parts.fuse()
    }
}

/// All views.
#[derive(Debug, Default)]
pub(super) struct Views {
    /// Vacant places are `None`.
    pub(super) views: Vec<Option<View>>,
    /// The places of those of a size.
    by_size: BTreeMap<u64, Vec<u32>>,
    /// Pages that are mapped in all of them.
    pages: u64,
    /// Bytes of their reservations, those of the retired ones among them.
    addresses: u64,
    /// Counts uses.
    clock: u64,
    /// Those that go as soon as nobody uses them any more.
    retired: VecDeque<View>,
}

impl Views {
    /// The places of the views that may serve a request of a size: those of exactly that size; where
    /// there is none, those of up to `wider` times as much. Lengths that vary come with ever new sizes, and find
    /// a wider view; sizes that repeat would only be in the way of each other there.
    pub(super) fn for_size(&self, size: u64, wider: u64) -> impl Iterator<Item = u32> {
        let exact = self.by_size.get(&size);
        let most = size.saturating_mul(wider.max(1));
        let wider = || self.by_size.range(size..=most);
        let wider = exact.is_none().then(wider).into_iter().flatten();
        exact.into_iter().chain(wider.map(|(_, places)| places)).flatten().copied()
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
        let view = self.get_mut(place);
        view.used = clock;
        view
    }

    fn insert(&mut self, view: View) -> u32 {
        let place = self.views.iter().position(Option::is_none).unwrap_or(self.views.len());
        if place == self.views.len() {
            self.views.push(None);
        }
        self.put(place, view);
        place as u32
    }

    /// Puts a view in a vacant place.
    fn put(&mut self, place: usize, view: View) {
        self.pages += view.pages;
        self.by_size.entry(view.size).or_default().push(place as u32);
        self.views[place] = Some(view);
    }

    fn remove(&mut self, place: usize) -> Option<View> {
        let view = self.views[place].take()?;
        self.pages -= view.pages;
        if let Some(places) = self.by_size.get_mut(&view.size) {
            places.retain(|&other| other as usize != place);
            if places.is_empty() {
                self.by_size.remove(&view.size);
            }
        }
        Some(view)
    }

    /// The idle view that was not used for longest.
    fn least_recent(&self) -> Option<usize> {
        let views = self.views.iter().enumerate();
        let idle = views.filter_map(|(place, view)| Some((place, view.as_ref()?)));
        let idle = idle.filter(|(_, view)| view.is_idle());
        idle.min_by_key(|(_, view)| view.used).map(|(place, _)| place)
    }
}

impl Lake {
    /// Maps the pages of `parts` side by side.
    ///
    /// # Errors
    /// What the device refuses, or [`DeviceError::OutOfMemory`] where the budgets are spent: of pages,
    /// because views that were let go wait for their streams; of addresses, because all are in use.
    pub(super) fn map_view(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        parts: Vec<Part>,
    ) -> Result<u32, DeviceError> {
        let (handles, offset) = self.pages_under(&parts);
        let size = handles.iter().map(|(_, page)| page).sum();
        self.retire_views(size)?;
        let base = match env.device.reserve(size) {
            Err(DeviceError::OutOfMemory { requested, free }) => {
                // There are fewer addresses than was thought. The next view may find more.
                self.retire_least_recent();
                return Err(DeviceError::OutOfMemory { requested, free });
            }
            base => base?,
        };
        self.views.addresses += size;
        let mut mapped = 0;
        let mut map = || {
            for &(handle, page) in &handles {
                env.device.map(base + mapped, handle)?;
                mapped += page;
            }
            env.device.set_access(base, size)
        };
        if let Err(error) = map() {
            if mapped > 0 {
                self.limbo.unmap(env.device, base, mapped);
            }
            self.limbo.unreserve(env.device, base, size);
            self.views.addresses -= size;
            return Err(error);
        }
        self.beside.stats.num_stitches += 1;
        // It will be unmapped too, which takes half as long.
        let each = env.device.prices().mapped_again_ns;
        self.pace.map((each + each / 2).saturating_mul(handles.len() as u64));
        Ok(self.views.insert(View {
            reserved: Part { address: base, size },
            mapped: size,
            address: base + offset,
            size: search.size,
            lenders: vec![NIL; parts.len()],
            parts,
            pages: handles.len() as u64,
            freed: 0,
            used: 0,
            lent: 0,
        }))
    }

    /// The pages on which parts lie, in order, with their bytes; and how far into the first of them
    /// the first part begins.
    pub(super) fn pages_under(&self, parts: &[Part]) -> (Vec<(Handle, u64)>, u64) {
        let (mut handles, mut offset) = (Vec::new(), None);
        for part in parts {
            let segment = self.segment_at(part.address);
            for page in segment.pages(part.address, part.size) {
                offset.get_or_insert_with(|| part.address - page.address);
                handles.push((page.handle, page.size));
            }
        }
        (handles, offset.unwrap_or(0))
    }

    /// The last free of a view over a part, be it of other bytes of it.
    pub(super) fn latest_use_of_views_over(&self, part: Part) -> Stamp {
        let views = self.views.views.iter().flatten().chain(&self.views.retired);
        views.filter(|view| view.is_over(&part)).map(|view| view.freed).max().unwrap_or(0)
    }

    /// Takes the views over `pages`, which nobody uses, and their addresses away; one whose first bytes
    /// are in use is cut short behind them. The device has no work left that uses them: whoever used
    /// the pages and the views last was waited for ([`Lake::synchronize_users`]).
    pub(super) fn drop_views_over(&mut self, env: &mut Env<'_>, pages: Part) {
        let over = |view: &View| view.is_over(&pages);
        for place in 0..self.views.views.len() {
            if self.views.views[place].as_ref().is_some_and(over)
                && let Some(view) = self.views.remove(place)
            {
                if view.is_idle() {
                    self.unmap_view(env, &view);
                } else {
                    let short = self.cut_short(env, view);
                    self.views.put(place, short);
                }
            }
        }
        for _ in 0..self.views.retired.len() {
            let Some(view) = self.views.retired.pop_front() else { break };
            if over(&view) {
                self.unmap_view(env, &view);
            } else {
                self.views.retired.push_back(view);
            }
        }
    }

    fn unmap_view(&mut self, env: &mut Env<'_>, view: &View) {
        let Part { address, size } = view.reserved;
        self.limbo.unmap(env.device, address, view.mapped);
        self.limbo.unreserve(env.device, address, size);
        self.views.addresses -= size;
    }

    /// Makes a view in use one of the bytes alone that it is lent.
    fn cut_short(&mut self, env: &mut Env<'_>, mut view: View) -> View {
        let lent = view.lenders[..view.lent].iter().map(|&id| self.heap.blocks[id]);
        view.parts = lent.map(|Block { address, size, .. }| Part { address, size }).collect();
        view.lenders.truncate(view.lent);
        view.size = view.parts.iter().map(|part| part.size).sum();
        let (handles, _) = self.pages_under(&view.parts);
        let mapped = handles.iter().map(|(_, page)| page).sum();
        let end = view.reserved.address + mapped;
        self.limbo.unmap(env.device, end, view.mapped - mapped);
        (view.mapped, view.pages) = (mapped, handles.len() as u64);
        view
    }

    /// Lets the views that were not used for longest go, as long as there are too many mappings, or too few
    /// addresses for `size` bytes more. Their pages and addresses come back once nobody uses them.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] if too much has not come back yet.
    fn retire_views(&mut self, size: u64) -> Result<(), DeviceError> {
        let pages_max = self.options.view_pages_max;
        loop {
            let leaving: u64 = self.views.retired.iter().map(|view| view.reserved.size).sum();
            let addresses = (self.views.addresses - leaving).saturating_add(size);
            let is_beyond = self.views.pages > pages_max || addresses > ADDRESSES_MAX;
            if !is_beyond || !self.retire_least_recent() {
                break;
            }
        }
        let retired: u64 = self.views.retired.iter().map(|view| view.pages).sum();
        let addresses = self.views.addresses.saturating_add(size);
        if retired > pages_max || addresses > ADDRESSES_MAX {
            return Err(DeviceError::OutOfMemory { requested: size, free: 0 });
        }
        Ok(())
    }

    /// Lets the view go that was not used for longest. False if all are in use.
    fn retire_least_recent(&mut self) -> bool {
        let Some(place) = self.views.least_recent() else { return false };
        let view = self.views.remove(place);
        self.views.retired.extend(view);
        true
    }

    /// Unmaps the views that were let go, in order, up to the first that is still in use.
    pub(super) fn unmap_retired_views(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        while let Some(freed) = self.views.retired.front().map(|view| view.freed) {
            if self.is_capturing() || !self.order.is_done(env.device, &mut self.limbo, freed)? {
                break;
            }
            self.stains.forget(&self.order);
            let Some(view) = self.views.retired.pop_front() else { break };
            self.unmap_view(env, &view);
        }
        Ok(())
    }

    /// Every view in use has its bytes lent, no idle one has, and the pages are counted. For the walk
    /// that checks everything.
    pub(super) fn check_views(&self) -> Result<(), String> {
        let views: Vec<&View> = self.views.views.iter().flatten().collect();
        let pages: u64 = views.iter().map(|view| view.pages).sum();
        let retired = self.views.retired.iter().map(|view| view.reserved.size);
        let addresses: u64 = views.iter().map(|view| view.reserved.size).chain(retired).sum();
        if addresses != self.views.addresses {
            return Err(format!("{addresses} bytes of addresses, not {}", self.views.addresses));
        }
        if pages != self.views.pages {
            return Err(format!("{pages} pages are mapped in views, not {}", self.views.pages));
        }
        for view in &views {
            let lent = view.lenders[..view.lent].iter().map(|&id| &self.heap.blocks[id]);
            let lent: Vec<Part> = lent
                .filter(|block| block.lent)
                .map(|block| Part { address: block.address, size: block.size })
                .collect();
            let bytes = lent.iter().map(|part| part.size).sum();
            if lent.len() != view.lent
                || !view.prefix(bytes).eq(lent.iter().copied())
                || view.size != view.parts.iter().map(|part| part.size).sum::<u64>()
                || self.pages_under(&view.parts).0.len() as u64 != view.pages
            {
                return Err(format!("{view:?} is lent {lent:?}"));
            }
        }
        let lent = self.heap.blocks.iter().filter(|(_, block)| block.lent).count();
        let held: usize = views.iter().map(|view| view.lent).sum();
        let stitched = self.heap.blocks.iter().filter(|(_, block)| block.is_stitched()).count();
        let in_use = views.iter().filter(|view| !view.is_idle()).count();
        if (lent, stitched) != (held, in_use) {
            let (found, expected) = ((lent, stitched), (held, in_use));
            return Err(format!("{found:?} blocks are lent and stitched, not {expected:?}"));
        }
        Ok(())
    }
}
