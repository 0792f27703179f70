//! What a view's bytes are while the program holds it: lent blocks of their segments.
//!
//! ```text
//!  segment:   |  used  |     free      | used |        |  used  | f |  lent  | f | used |
//!                       └──────┘ a part of the view
//! ```
//!
//! They stay their stream's: when they have come back they merge with what is free beside them. Whoever
//! used them last is remembered (`users`).
//!
//! A request that is smaller than the view is lent its first bytes alone; the others go on serving
//! whom they may.

use std::cmp::Reverse;

use girih_trace::StreamId;

use super::block::{Block, STITCHED};
use super::views::Part;
use super::{Lake, Search};
use crate::chain::NIL;
use crate::device::Address;
use crate::order::Stamp;
use crate::policy::BlockId;

/// Whether a block can lend a part.
enum Lender {
    /// All of it is free there.
    Free(BlockId),
    /// Some of it is in use.
    InUse,
    /// The block has nothing to do with it.
    Elsewhere,
}

impl Lake {
    /// A view whose first bytes serve the request and are all free, with the last free that the request
    /// must come after: a view that needs no wait, then the smallest, then the one that was used last.
    ///
    /// Always part of its caller: a pair that a view serves takes a tenth less time so.
    #[inline(always)]
    pub(super) fn find_view(&self, search: &Search) -> Option<(u32, Stamp)> {
        let mut free = ByAddress::default();
        let fitting = self.views.for_size(search.size, self.options.wider).filter_map(|place| {
            let latest = self.latest_use_of_view(search, place, &mut free)?;
            Some((place, latest))
        });
        fitting.min_by_key(|(place, latest)| {
            let view = self.views.get(*place);
            (*latest > 0, view.size, Reverse(view.used))
        })
    }

    /// The last free that the request must come after before a view's first bytes serve it; 0 if it has.
    /// None if some of the bytes are in use.
    fn latest_use_of_view(
        &self,
        search: &Search,
        place: u32,
        free: &mut ByAddress,
    ) -> Option<Stamp> {
        let (view, mut latest) = (self.views.get(place), 0);
        if !view.is_idle() {
            return None;
        }
        for (at, part) in view.prefix(search.size).enumerate() {
            let lender = self.lender(view.lenders[at], &part, free)?;
            latest = latest.max(self.latest_use_of(part, lender, search.home.stream));
        }
        Some(latest)
    }

    /// The same of parts of free blocks.
    pub(super) fn latest_use_of_parts(&self, parts: &[Part], reader: StreamId) -> Stamp {
        let mut free = ByAddress::default();
        let latest = parts.iter().map(|part| {
            let lender = self.lender(NIL, part, &mut free);
            self.latest_use_of(*part, lender.expect("what is gathered is free"), reader)
        });
        latest.max().unwrap_or(0)
    }

    /// Lends a view the bytes of a request, its first, and makes a block of it, in no free set. They are all
    /// free, and the request has come after their last use.
    pub(super) fn use_view(&mut self, search: &Search, place: u32) -> BlockId {
        let mut free = ByAddress::default();
        let (mut count, mut left) = (0, search.size);
        while left > 0 {
            let part = self.views.get(place).parts[count].first(left);
            let id = self.lender_now(place, count, &part, &mut free);
            let lent = self.lend(id.expect("the bytes of the view are free"), &part);
            self.views.get_mut(place).lenders[count] = lent;
            count += 1;
            left -= part.size;
        }
        self.views.use_now(place).lent = count;
        let view = self.views.get(place);
        let block = Block::new(view.address, search.size, search.home, STITCHED);
        self.heap.blocks.insert(Block { view: place, ..block })
    }

    /// Takes the bytes of a view back that the program has let go of. The block is gone afterwards.
    pub(super) fn return_view(&mut self, id: BlockId) {
        let Block { home, view: place, .. } = self.heap.blocks[id];
        let stream = home.stream;
        let freed = self.heap.blocks[id].freed();
        self.heap.blocks.remove(id);
        let view = self.views.use_now(place);
        view.freed = freed;
        let lent = std::mem::take(&mut view.lent);
        let foreign = |&id: &BlockId| self.heap.blocks[id].home.stream != stream;
        if self.views.get(place).lenders[..lent].iter().any(foreign) {
            self.order.want();
        }
        for at in 0..lent {
            let id = self.views.get(place).lenders[at];
            let block = &mut self.heap.blocks[id];
            (block.lent, block.requested) = (false, freed);
            let Block { address, size, home, .. } = *block;
            self.stain(Part { address, size }, home.stream, Some(stream), freed);
            self.heap.shelve(id);
        }
    }

    /// The free block that has all of a part, if one has. Often it is still the one to which the part
    /// came `back`; if not, `free` is filled and tells.
    fn lender(&self, back: BlockId, part: &Part, free: &mut ByAddress) -> Option<BlockId> {
        match self.look_at(back, part) {
            Lender::Free(id) => Some(id),
            Lender::InUse => None,
            Lender::Elsewhere => {
                let id = free.before(self, part.address)?;
                matches!(self.look_at(id, part), Lender::Free(_)).then_some(id)
            }
        }
    }

    /// The same while a view is lent its parts one after the other. What earlier ones have left of a block
    /// lies beside them; what `free` was filled with tells of all other blocks.
    fn lender_now(
        &self,
        place: u32,
        at: usize,
        part: &Part,
        free: &mut ByAddress,
    ) -> Option<BlockId> {
        let lenders = &self.views.get(place).lenders;
        let is_it = |&id: &BlockId| matches!(self.look_at(id, part), Lender::Free(_));
        if is_it(&lenders[at]) {
            return Some(lenders[at]);
        }
        let beside = lenders[..at]
            .iter()
            .flat_map(|&id| [self.heap.blocks[id].prev, self.heap.blocks[id].next]);
        let found = beside.filter(|&id| id != NIL).find(is_it);
        found.or_else(|| free.before(self, part.address).filter(is_it))
    }

    /// Whether a block, if there still is one of this id, can lend a part.
    fn look_at(&self, id: BlockId, part: &Part) -> Lender {
        let Some(block) = self.heap.blocks.get(id).filter(|block| !block.is_stitched()) else {
            return Lender::Elsewhere;
        };
        let all = Part { address: block.address, size: block.size };
        match all.common(part) {
            0 => Lender::Elsewhere,
            _ if !block.is_free() => Lender::InUse,
            common if common == part.size => Lender::Free(id),
            _ => Lender::InUse,
        }
    }

    /// A block of one part where it lies, on no shelf: it needs no view.
    pub(super) fn lend_alone(&mut self, part: &Part) -> Option<BlockId> {
        let id = self.lender(NIL, part, &mut ByAddress::default())?;
        Some(self.heap.carve(id, part.address, part.size))
    }

    /// Makes a lent block of free bytes of a block.
    fn lend(&mut self, id: BlockId, part: &Part) -> BlockId {
        let lent = self.heap.carve(id, part.address, part.size);
        self.heap.blocks[lent].lent = true;
        lent
    }

    /// The free blocks that may lend, by address.
    fn free_by_address(&self) -> Vec<(Address, BlockId)> {
        let free = self.heap.free_blocks();
        let mut free: Vec<_> = free.map(|id| (self.heap.blocks[id].address, id)).collect();
        free.sort_unstable();
        free
    }
}

/// The free blocks that may lend, by address, once somebody asks.
#[derive(Default)]
struct ByAddress(Option<Vec<(Address, BlockId)>>);

impl ByAddress {
    /// The last that begins at or before an address.
    fn before(&mut self, lake: &Lake, address: Address) -> Option<BlockId> {
        let free = self.0.get_or_insert_with(|| lake.free_by_address());
        let at = free.partition_point(|&(start, _)| start <= address).checked_sub(1)?;
        Some(free[at].1)
    }
}
