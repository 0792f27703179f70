//! What a view's bytes are while the program holds it: lent blocks of their segments.
//!
//! ```text
//!  segment:   |  used  |     free      | used |        |  used  | f |  lent  | f | used |
//!                       └──────┘ a part of the view
//! ```
//!
//! They stay their stream's: when they have come back they merge with what is free beside them. Whoever
//! used them last is remembered (`users`).

use girih_trace::StreamId;

use super::block::{Block, STITCHED};
use super::views::Part;
use super::{Lake, Search};
use crate::order::Stamp;
use crate::policy::BlockId;

/// How many views of a size are looked at for a request, those first that were used last. To make another takes the
/// driver as long as to look at so many.
const LOOKED_AT: usize = 1024;

impl Lake {
    /// A view of the request's size whose bytes are all free, with the last free that the request must come after: one
    /// that needs no wait before all others, then the one that was used last.
    ///
    /// Always part of its caller: a pair that a view serves takes a tenth less time so.
    #[inline(always)]
    pub(super) fn find_view(&self, search: &Search) -> Option<(u32, Stamp)> {
        let mut after_wait = None;
        for place in self.views.of_size(search.size).take(LOOKED_AT) {
            let parts = &self.views.get(place).parts;
            match self.latest_use_of_parts(parts, search.home.stream) {
                Some(0) => return Some((place, 0)),
                Some(latest) => after_wait = after_wait.or(Some((place, latest))),
                None => {}
            }
        }
        after_wait
    }

    /// The last free that `reader` must come after before it has the parts; 0 if it has. None if some of the
    /// bytes are in use.
    pub(super) fn latest_use_of_parts(&self, parts: &[Part], reader: StreamId) -> Option<Stamp> {
        parts.iter().try_fold(0, |latest: Stamp, part| {
            Some(latest.max(self.latest_use_of(*part, self.lender(part)?, reader)))
        })
    }

    /// The free block that has all of a part, if one has.
    fn lender(&self, part: &Part) -> Option<BlockId> {
        let id = self.tile_over(part.address);
        let block = &self.heap.blocks[id];
        (block.mapped && block.is_free() && part.end() <= block.end()).then_some(id)
    }

    /// Lends a view its bytes, and makes a block of it, in no free set. They are all free, and the request has come
    /// after their last use.
    pub(super) fn use_view(&mut self, search: &Search, place: u32) -> BlockId {
        let view = self.views.use_now(place);
        let block = Block::new(view.address, search.size, search.home, STITCHED);
        // It is empty, and has the room that it had the last time.
        let mut blocks = std::mem::take(&mut view.lent);
        for at in 0..self.views.get(place).parts.len() {
            let part = self.views.get(place).parts[at];
            let lent = self.lend_alone(&part).expect("the bytes of the view are free");
            self.heap.blocks[lent].lent = true;
            blocks.push(lent);
            // It is looked for there as a free one, when it has come back.
            self.segment_of(&self.heap.blocks[lent]).noted(part.address).set(lent);
        }
        self.views.get_mut(place).lent = blocks;
        self.heap.blocks.insert(Block { view: place, ..block })
    }

    /// Takes the bytes of a view back that the program has let go of. The block is gone afterwards.
    pub(super) fn return_view(&mut self, id: BlockId) {
        let Block { home: reader, view: place, .. } = self.heap.blocks[id];
        let freed = self.heap.blocks[id].freed();
        self.heap.blocks.remove(id);
        let view = self.views.use_now(place);
        view.freed = freed;
        let mut blocks = std::mem::take(&mut view.lent);
        for id in blocks.drain(..) {
            let block = &mut self.heap.blocks[id];
            (block.lent, block.requested) = (false, freed);
            let (part, own) = (block.part(), block.home.stream);
            if own != reader.stream {
                self.order.want();
            }
            self.stain(part, own, Some(reader.stream), freed);
            self.heap.shelve(id);
        }
        self.views.get_mut(place).lent = blocks;
    }

    /// A block of one part where it lies, on no shelf: it needs no view.
    pub(super) fn lend_alone(&mut self, part: &Part) -> Option<BlockId> {
        let id = self.lender(part)?;
        Some(self.heap.carve(id, *part))
    }
}
