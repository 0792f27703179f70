//! The window of a plan: a range of addresses of a segment in which places are given.
//!
//! A plan's places are bytes of a segment like all others. What makes them quick is that the window keeps
//! its own books of them, a bit for each cell, as long as the plan alone uses them. Each cell is one of three:
//!
//! ```text
//!            given a place          cede                     others use it
//!  held  ◄──────────────── idle ──────────────► ceded ◄─────────────────────► in use, lent, unmapped
//!        ────────────────►      ◄──────────────
//!             freed                 claim: free there
//!
//!  segment   | used | free |  window: held idle held  | free | used |   window   |  unmapped
//!  cells            | ceded| ....... the plan's ..... |  ceded      | ... the .. |  ceded
//! ```
//!
//! What is ceded are blocks of the segment, free or not, which serve whoever asks: best fit, views, other
//! streams. A place some of whose cells are ceded is *claimed* when the plan wants it: if all its bytes are free they
//! become the window's, and what is not mapped is mapped, within the bound. If not, the request goes
//! on to the next in turn, and nothing has changed.
//!
//! So a plan begins with a window of which everything is ceded, a segment that nothing is mapped in, and is dropped by
//! ceding everything, which touches no page and waits for nobody.

use super::block::{Block, Home};
use super::cells::{Bits, Cells, Span};
use super::last_uses::{LastUses, Use};
use super::views::Part;
use super::{Lake, Search};
use crate::chain::NIL;
use crate::device::{Address, DeviceError};
use crate::policy::{BlockId, Env};

/// The window of a plan. See the [module](self).
#[derive(Debug)]
pub(super) struct Window {
    /// Whose segment it lies in.
    pub(super) home: Home,
    /// Index of the segment.
    pub(super) segment: u32,
    /// Its first byte.
    pub(super) base: Address,
    pub(super) cells: Cells,
    /// Cells that cannot be given now: those of live blocks of the plan, and the ceded ones.
    pub(super) held: Bits,
    /// Cells whose bytes are blocks of the segment.
    pub(super) ceded: Bits,
    pub(super) last_uses: LastUses,
    /// Bytes of new pages, as far as the bound allows.
    pub(super) page: u64,
    /// Bytes that may be held for the sake of places, whatever was in use by now.
    pub(super) foreseen: u64,
}

impl Window {
    /// The bytes of a run of cells.
    fn part(&self, span: Span) -> Part {
        let [start, end] = [span.first, span.end].map(|cell| self.base + self.cells.start(cell));
        Part::between(start, end)
    }

    /// The bytes that are idle, run by run.
    pub(super) fn idle(&self) -> impl Iterator<Item = Part> {
        self.held.runs(self.cells.all(), false).map(|run| self.part(run))
    }

    /// The idle runs of at least `size` bytes that no cell of `avoided` is in: the shortest first.
    fn idle_runs(&self, size: u64, avoided: impl Iterator<Item = Span>) -> Option<Span> {
        let mut held = self.held.clone();
        avoided.for_each(|span| held.fill(span, true));
        let runs = held.runs(self.cells.all(), false).map(|run| (self.part(run).size, run));
        let fitting = runs.filter(|&(bytes, _)| bytes >= size);
        fitting.min_by_key(|&(bytes, run)| (bytes, run.first)).map(|(_, run)| run)
    }
}

impl Lake {
    /// The blocks of the segment over a run of cells.
    fn tiles(&self, window: &Window, span: Span) -> impl Iterator<Item = &Block> {
        let part = window.part(span);
        let ids = self.heap.chain(self.tile_over(part.address));
        let blocks = ids.map(|id| &self.heap.blocks[id]);
        blocks.take_while(move |block| block.address < part.end())
    }

    /// Makes the ceded cells of a place the window's again. False if some of its bytes are in use, or lack pages
    /// that may not be mapped: then nothing has changed, but for pages that were mapped already.
    pub(super) fn claim(
        &mut self,
        env: &mut Env<'_>,
        window: &mut Window,
        span: Span,
        size: u64,
    ) -> Result<bool, DeviceError> {
        let runs: Vec<Span> = window.ceded.runs(span, true).collect();
        let ceded: u32 = runs.iter().map(|run| run.end - run.first).sum();
        let held: u32 = window.held.runs(span, true).map(|run| run.end - run.first).sum();
        if held > ceded {
            return Ok(false);
        }
        let mut is_mapped = true;
        for &run in &runs {
            for block in self.tiles(window, run) {
                if !block.is_free() {
                    return Ok(false);
                }
                is_mapped &= block.mapped;
            }
        }
        if !is_mapped {
            if self.is_capturing() {
                return Ok(false);
            }
            self.granule = env.device.granularity();
            let search = Search { size, home: window.home };
            for &run in &runs {
                if !self.map_cells(env, window, run, &search)? {
                    return Ok(false);
                }
            }
        }
        for run in runs {
            self.reclaim(window, run);
        }
        Ok(true)
    }

    /// Maps what is missing under a run of cells whose bytes are free: all of the pages that it touches if the
    /// bound allows, else no more than it needs. False if that is too much as well.
    fn map_cells(
        &mut self,
        env: &mut Env<'_>,
        window: &Window,
        span: Span,
        search: &Search,
    ) -> Result<bool, DeviceError> {
        let whole = window.part(span);
        let allowed = self.allowed(search).max(window.foreseen);
        let mut at = whole.address;
        while at < whole.end() {
            let id = self.tile_over(at);
            let block = self.heap.blocks[id];
            if block.mapped {
                at = block.end();
                continue;
            }
            let lacking = block.part().both(&whole);
            let base = self.segment_of(&block).base;
            let aligned = |unit: u64| {
                let down = (lacking.address - base) / unit * unit;
                let up = (lacking.end() - base).next_multiple_of(unit);
                Part::between(base + down, base + up).both(&block.part())
            };
            let [wide, needed] = [window.page, self.granule].map(aligned);
            let fits = |part: &Part| self.held + part.size <= allowed;
            let Some(part) = [wide, needed].into_iter().find(fits) else { return Ok(false) };
            if !self.beside.allows(env, part.size) || self.map_part(env, id, part)?.is_none() {
                return Ok(false);
            }
            at = part.end();
        }
        Ok(true)
    }

    /// Makes cells whose bytes are free and mapped the window's.
    fn reclaim(&mut self, window: &mut Window, span: Span) {
        let part = window.part(span);
        let id = self.tile_over(part.address);
        let (freed, is_stained) = self.cleaned(part, id);
        let mut id = self.heap.carve(id, part);
        self.heap.blocks[id].window = true;
        for neighbour in [self.heap.blocks[id].prev, self.heap.blocks[id].next] {
            if neighbour != NIL && self.heap.blocks[neighbour].window {
                self.heap.absorb(neighbour, id);
                id = neighbour;
            }
        }
        window.held.fill(span, false);
        window.ceded.fill(span, false);
        let stream = (!is_stained).then_some(window.home.stream);
        let (cells, latest) = (window.cells.count(), self.order.latest());
        window.last_uses.set(span, Use { stream, freed }, cells, latest);
    }

    /// Cedes a run of idle cells.
    fn cede(&mut self, window: &mut Window, span: Span) {
        let part = window.part(span);
        let (id, _) = self.heap.isolate(self.tile_over(part.address), part);
        self.settle_uses(window, id);
        self.heap.blocks[id].window = false;
        self.heap.shelve(id);
        window.held.fill(span, true);
        window.ceded.fill(span, true);
    }

    /// Tells a block of cells that are ceded, and the stains, who used its bytes last.
    fn settle_uses(&mut self, window: &Window, id: BlockId) {
        let (own, all) = (window.home.stream, self.heap.blocks[id].part());
        let span = window.cells.span(all.address - window.base, all.end() - window.base);
        let Some(uses) = window.last_uses.of_cells(span) else {
            self.heap.blocks[id].requested = self.order.latest();
            return;
        };
        let (mut latest, mut first) = (0, span.first);
        for run in uses.chunk_by(|a, b| a == b) {
            let end = first + run.len() as u32;
            let Use { stream, freed } = run[0];
            latest = freed.max(latest);
            // Where their own stream has waited, the stamp of the block tells others enough.
            if stream != Some(own) && self.order.must_wait(freed, own) {
                let part = window.part(Span { first, end }).both(&all);
                self.stain(part, own, stream, freed);
            }
            first = end;
        }
        self.heap.blocks[id].requested = latest;
    }

    /// Cedes all that is idle. False if nothing is.
    pub(super) fn cede_all(&mut self, window: &mut Window) -> bool {
        let idle: Vec<Span> = window.held.runs(window.cells.all(), false).collect();
        for &run in &idle {
            self.cede(window, run);
        }
        !idle.is_empty()
    }

    /// Cedes idle cells for a request: of the shortest run that is long enough and in which none of the spans
    /// `soon` begins. False if there is none.
    pub(super) fn cede_for(
        &mut self,
        window: &mut Window,
        size: u64,
        soon: impl Iterator<Item = Span>,
    ) -> bool {
        let Some(run) = window.idle_runs(size, soon) else { return false };
        let offset = window.cells.start(run.first);
        let span = window.cells.span(offset, offset + size);
        self.cede(window, span);
        true
    }

    /// Claims all ceded cells whose bytes are free and mapped.
    pub(super) fn gather_in(&mut self, window: &mut Window) {
        let runs: Vec<Span> = window.ceded.runs(window.cells.all(), true).collect();
        let mut free = Vec::new();
        for run in runs {
            for block in self.tiles(window, run).filter(|block| block.mapped && block.is_free()) {
                let part = block.part().both(&window.part(run));
                free.extend(
                    window.cells.within(part.address - window.base, part.end() - window.base),
                );
            }
        }
        for span in free {
            self.reclaim(window, span);
        }
    }

    /// Cedes everything: what was idle is free, and what was held are blocks of the segment like others.
    pub(super) fn cede_held(&mut self, mut window: Window) {
        self.cede_all(&mut window);
        for id in self.heap.sorted(|block| block.planned) {
            let block = self.heap.blocks[id];
            // The cells of the block, and of those its own bytes.
            let tile = self.tile_over(block.address);
            let (tile, _) = self.heap.isolate(tile, window.part(block.span()));
            let (tile, rest) = self.heap.isolate(tile, block.part());
            for free in rest.into_iter().flatten() {
                self.heap.blocks[free].window = false;
                self.settle_uses(&window, free);
                self.heap.shelve(free);
            }
            let Block { prev, next, .. } = self.heap.blocks[tile];
            self.heap.blocks.remove(tile);
            self.heap.blocks[id].planned = false;
            self.heap.blocks.link(prev, id, next);
        }
    }

    /// The window's books and the segment's agree. For the walk that checks everything.
    pub(super) fn check_window(&self, window: &Window) -> Result<(), String> {
        let mut given = Bits::new(&window.cells, false);
        for (id, block) in self.heap.blocks.iter().filter(|(_, block)| block.planned) {
            let is_inside = window.part(block.span()).both(&block.part()) == block.part();
            if !given.take(block.span()) || !is_inside {
                return Err(format!(
                    "{id:?} holds cells of another, or not all of its own: {block:?}"
                ));
            }
        }
        let all = window.cells.all();
        for run in window.ceded.runs(all, true) {
            if !given.take(run) {
                return Err(format!("cells of {run:?} are held and ceded"));
            }
        }
        if given != window.held {
            return Err("the cells that are held are not those of the blocks".to_owned());
        }
        let expected: Vec<Part> =
            window.ceded.runs(all, false).map(|run| window.part(run)).collect();
        let tiles = self.heap.sorted(|block| block.window).into_iter();
        let tiles: Vec<Part> = tiles.map(|id| self.heap.blocks[id].part()).collect();
        if tiles != expected {
            return Err(format!("the window has {tiles:?}, not {expected:?}"));
        }
        Ok(())
    }
}
