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

use super::Caching;
use super::block::{Block, Home, NIL, STITCHED};
use super::pool::Pools;
use super::search::Search;
use super::views::Part;
use crate::device::{Address, DeviceError};
use crate::policy::{BlockId, Env};

/// Whether a block can lend a part.
enum Lender {
    /// All of it is free there.
    Free(BlockId),
    /// Some of it is in use.
    InUse,
    /// The block has nothing to do with it.
    Elsewhere,
}

impl Caching {
    /// A view whose first bytes serve the request and are all free: the one that needs the fewest waits
    /// for other streams, then the smallest, then the one that was used last.
    pub(super) fn find_view(&self, search: &Search) -> Option<u32> {
        let (mut free, reader) = (ByAddress::default(), search.home.stream);
        let idle = self.views.for_size(search.size).filter_map(|place| {
            let view = self.views.get(place);
            if !view.is_idle() {
                return None;
            }
            let mut users = Vec::new();
            for (at, part) in view.prefix(search.size).enumerate() {
                let id = self.lender(place, at, &part, &mut free)?;
                self.note_users(&mut users, part, self.blocks[id].home.stream, reader);
            }
            Some((users.len(), view.size, Reverse(view.used), place))
        });
        idle.min().map(|(_, _, _, place)| place)
    }

    /// Lends a view the bytes of a request, its first, and makes a block of it, in no free set. They
    /// are all free.
    pub(super) fn use_view(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        place: u32,
    ) -> Result<BlockId, DeviceError> {
        let reader = search.home.stream;
        let (mut free, mut users) = (ByAddress::default(), Vec::new());
        let (mut count, mut left) = (0, search.size);
        while left > 0 {
            let part = self.views.get(place).parts[count].first(left);
            let id = self.lender(place, count, &part, &mut free);
            let id = id.expect("the bytes of a view are free");
            self.note_users(&mut users, part, self.blocks[id].home.stream, reader);
            self.views.get_mut(place).lenders[count] = id;
            count += 1;
            left -= part.size;
        }
        self.wait_for(env, users, reader)?;
        left = search.size;
        for at in 0..count {
            let part = self.views.get(place).parts[at].first(left);
            let id = self.still_lending(place, at, &part).expect("what is lent is free");
            self.views.get_mut(place).lenders[at] = self.lend(id, &part);
            left -= part.size;
        }
        let view = self.views.use_now(place);
        (view.lent, view.stream) = (count, reader);
        let block = Block::new(view.address, search.size, search.home);
        Ok(self.blocks.insert(Block { segment: STITCHED, born: place, ..block }))
    }

    /// Takes the bytes of a view back that the program has let go of. The block is gone afterwards.
    pub(super) fn return_view(&mut self, id: BlockId) {
        let Block { home: Home { stream, .. }, born: place, .. } = self.blocks[id];
        self.blocks.remove(id);
        let view = self.views.use_now(place);
        for at in 0..std::mem::take(&mut view.lent) {
            let id = self.views.get(place).lenders[at];
            let block = &mut self.blocks[id];
            block.lent = false;
            let Block { address, size, home, prev, next, .. } = *block;
            self.stain(Part { address, size }, home.stream, stream);
            self.shelve(id, [prev, next]);
        }
    }

    /// The free block that has all of a view's part, if one has. Often it is still the one to which
    /// the part came back; if not, `free` is filled and tells.
    fn lender(&self, place: u32, at: usize, part: &Part, free: &mut ByAddress) -> Option<BlockId> {
        match self.look_at(self.views.get(place).lenders[at], part) {
            Lender::Free(id) => Some(id),
            Lender::InUse => None,
            Lender::Elsewhere => {
                let (address, id) = free.before(self, part.address)?;
                (address + self.blocks[id].size >= part.address + part.size).then_some(id)
            }
        }
    }

    /// The same once it was known, and parts before it were lent since: what those have left of the
    /// block lies beside them.
    fn still_lending(&self, place: u32, at: usize, part: &Part) -> Option<BlockId> {
        let lenders = &self.views.get(place).lenders;
        let beside =
            lenders[..at].iter().flat_map(|&id| [self.blocks[id].prev, self.blocks[id].next]);
        let mut all = std::iter::once(lenders[at]).chain(beside).filter(|&id| id != NIL);
        all.find(|&id| matches!(self.look_at(id, part), Lender::Free(_)))
    }

    /// Whether a block, if there still is one of this id, can lend a part.
    fn look_at(&self, id: BlockId, part: &Part) -> Lender {
        let Some(block) = self.blocks.get(id).filter(|block| !block.is_stitched()) else {
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

    /// Makes a lent block of free bytes of a block.
    fn lend(&mut self, id: BlockId, part: &Part) -> BlockId {
        self.remove_free(id);
        let before = part.address - self.blocks[id].address;
        let after = self.blocks[id].size - before - part.size;
        if before > 0 {
            let rest = self.cut_low_end(id, before);
            self.insert_free(rest);
        }
        let lent = if after > 0 { self.cut_low_end(id, part.size) } else { id };
        if after > 0 {
            self.insert_free(id);
        }
        self.blocks[lent].lent = true;
        lent
    }

    /// The free blocks that may lend, by address.
    fn free_by_address(&self) -> Vec<(Address, BlockId)> {
        let free = [Pools::LARGE, Pools::SMALL].into_iter();
        let free = free.flat_map(|pool| self.pools.free_blocks(pool));
        let free = free.filter(|&id| self.blocks[id].is_expandable());
        let mut free: Vec<_> = free.map(|id| (self.blocks[id].address, id)).collect();
        free.sort_unstable();
        free
    }
}

/// The free blocks that may lend, by address, once somebody asks.
#[derive(Default)]
struct ByAddress(Option<Vec<(Address, BlockId)>>);

impl ByAddress {
    /// The last that begins at or before an address.
    fn before(&mut self, caching: &Caching, address: Address) -> Option<(Address, BlockId)> {
        let free = self.0.get_or_insert_with(|| caching.free_by_address());
        let at = free.partition_point(|&(start, _)| start <= address).checked_sub(1)?;
        Some(free[at])
    }
}
