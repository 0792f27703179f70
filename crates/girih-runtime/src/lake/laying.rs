//! Laying a step out, and giving its requests what they have in it.

use girih_trace::StreamId;
use rustc_hash::FxHashMap;

use super::layout::{Ground, Layout, Ring, Run};
use super::views::Part;
use super::{Lake, Search};
use crate::policy::{BlockId, Env};

/// Requests may come so many too many or too few in a step that is the one that is laid out.
const ASIDE: u32 = 16;

/// Requests of a step times pages at most. To lay a step out is to look at all of these for each of those, up to nine times,
/// while a request waits for it: a second for four million.
const LOOKS_MAX: usize = 1 << 24;

/// Steps that were to be laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layings {
    /// So many were.
    pub laid_out: u64,
    /// And so many were not: too much of them had no place.
    pub refused: u64,
    /// Bytes of the last of all these steps that had no place; 0 too if there was too much to remember.
    pub without_place: u64,
    /// The last that was laid out is what requests are given places in now.
    pub stands: bool,
}

impl Lake {
    /// Steps that were to be laid out, since the run began.
    pub fn layings(&self) -> Layings {
        Layings { stands: self.repeats.layout.is_some(), ..self.repeats.layings }
    }

    /// A step has begun. If the one before is to be laid out it is cut, at the request where most has room; where too much
    /// has none, it stays as it is.
    pub(super) fn cut_step(&mut self) {
        let Some(mut ring) = self.repeats.ring.take() else { return };
        let free = self.free_of_stream(ring.stream).map(|id| self.heap.blocks[id].size);
        let bytes = free.sum::<u64>() + ring.alive();
        let without = ring.cut_for(bytes);
        if without <= bytes / self.options.lost {
            self.repeats.ring = Some(ring);
        } else {
            self.repeats.refuse(without);
        }
    }

    /// Lays the step out whose cut is reached, if one is to be.
    pub(super) fn begin_layout(&mut self) {
        let count = self.repeats.count();
        if let Some(ring) = self.repeats.ring.take_if(|ring| ring.cut <= count) {
            self.lay_out(&ring);
        }
    }

    /// A block for a large request by the layout, on no shelf. None if it is for the search.
    pub(super) fn take_laid(&mut self, env: &mut Env<'_>, search: &Search) -> Option<BlockId> {
        let count = self.repeats.count();
        let number = self.repeats.next_laid(search)?;
        if !self.may_stitch(env, search) {
            return None;
        }
        let layout = self.repeats.layout.as_ref()?;
        let (place, reader) = (layout.place(number), search.home.stream);
        // What it was laid out on may have gone back, and other pages come there.
        if self.can_be_shown(place) && self.latest_use_of_parts(place, reader).is_some() {
            let parts = place.to_vec();
            return self.take_parts(env, search, parts);
        }
        // What does not come about where it did is of another step, of which the layout says nothing.
        if number.abs_diff(count) > ASIDE {
            return None;
        }
        let mut free = Vec::new();
        for id in self.free_of_stream(reader) {
            self.runs_of(self.heap.blocks[id].part(), &mut free);
        }
        let parts = layout.find(search.size, number, &free)?;
        let taken = self.take_parts(env, search, parts.clone())?;
        if number == count
            && self.repeats.is_steady()
            && let Some(mut layout) = self.repeats.layout.take()
        {
            layout.settle(number, parts, |parts| self.runs_of_all(parts));
            self.repeats.layout = Some(layout);
        }
        Some(taken)
    }

    /// Lays out the step whose cut is reached.
    fn lay_out(&mut self, ring: &Ring) {
        let lies = self.repeats.lying(ring);
        let mut runs = Vec::new();
        for id in self.free_of_stream(ring.stream) {
            self.runs_of(self.heap.blocks[id].part(), &mut runs);
        }
        lies.iter().flatten().for_each(|part| self.runs_of(*part, &mut runs));
        if ring.items.len().saturating_mul(runs.len()) > LOOKS_MAX {
            return self.repeats.refuse(0);
        }
        let most = runs.iter().map(|run| run.part.size).sum::<u64>() / self.options.lost;
        let mut views: FxHashMap<u64, Vec<Vec<Part>>> = FxHashMap::default();
        for view in self.views.views.iter().flatten() {
            views.entry(view.size).or_default().push(view.parts.clone());
        }
        let ground = Ground { runs, lies, views };
        let alike = self.repeats.alike_before();
        let runs_of = |parts: &[Part]| self.runs_of_all(parts);
        match Layout::new(ring, alike, ground, most, runs_of) {
            Ok(layout) => {
                self.repeats.layings.laid_out += 1;
                self.repeats.layings.without_place = layout.without;
                self.repeats.layout = Some(layout);
            }
            Err(without) => self.repeats.refuse(without),
        }
    }

    /// A block of these parts and no others, by the view over them, if there is one that is idle.
    fn take_parts(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        parts: Vec<Part>,
    ) -> Option<BlockId> {
        let latest = self.latest_use_of_parts(&parts, search.home.stream)?;
        if !self.comes_after(env, latest, search.home.stream) {
            return None;
        }
        if let [part] = parts[..] {
            return self.lend_alone(&part);
        }
        let is_over_them = |&place: &u32| {
            let view = self.views.get(place);
            view.parts == parts && view.lent.is_empty()
        };
        let known = self.views.of_size(search.size).find(is_over_them);
        let view = match known {
            Some(place) => place,
            // What the device refuses of it the search asks for in its own way.
            None => self.map_view(env, search, parts).ok()?,
        };
        Some(self.use_view(search, view))
    }

    /// True if a view can show the parts side by side: their pages are there, each but the first begins where a page begins, and
    /// each but the last ends where one ends. False of none.
    pub(super) fn can_be_shown(&self, parts: &[Part]) -> bool {
        let page_over = |address| {
            let (_, segment) = self.segments.over(address)?;
            segment.pages(Part { address, size: 1 }).next()
        };
        let begins =
            |part: &Part| page_over(part.address).is_some_and(|page| page.address == part.address);
        let ends = |part: &Part| {
            page_over(part.end() - 1).is_some_and(|page| page.part().end() == part.end())
        };
        let meet = |pair: &[Part]| ends(&pair[0]) && begins(&pair[1]);
        let is_there =
            |part: &Part| page_over(part.address).is_some() && page_over(part.end() - 1).is_some();
        !parts.is_empty() && parts.iter().all(is_there) && parts.windows(2).all(meet)
    }

    /// The free blocks of large requests of a stream.
    fn free_of_stream(&self, stream: StreamId) -> impl Iterator<Item = BlockId> {
        self.heap.free_blocks(true).filter(move |&id| {
            let home = self.heap.blocks[id].home;
            home.stream == stream && !home.is_small
        })
    }

    /// The pages of a part, and what of each is of it. Nothing of a segment that is gone.
    fn runs_of(&self, part: Part, runs: &mut Vec<Run>) {
        let segment = self.segments.over(part.address);
        let pages = segment.into_iter().flat_map(|(_, segment)| segment.pages(part));
        runs.extend(pages.map(|page| Run { page: page.part(), part: page.part().both(&part) }));
    }

    fn runs_of_all(&self, parts: &[Part]) -> Vec<Run> {
        let mut runs = Vec::new();
        parts.iter().for_each(|part| self.runs_of(*part, &mut runs));
        runs
    }
}
