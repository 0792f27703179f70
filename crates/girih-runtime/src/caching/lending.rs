//! What a view's bytes are while the program holds it: lent blocks of their segments.
//!
//! ```text
//!  segment:   |  used  |     free      | used |        |  used  | f |  lent  | f | used |
//!                       └──────┘ a part of the view
//! ```
//!
//! They stay their stream's: when they have come back they merge with what is free beside them. Whoever
//! used them last is remembered (`users`).

use std::cmp::Reverse;

use super::Caching;
use super::block::{Block, Home, STITCHED, Slab};
use super::pool::Pools;
use super::search::Search;
use super::views::Part;
use crate::device::{Address, DeviceError};
use crate::policy::{BlockId, Env};

impl Caching {
    /// A view of exactly this size whose bytes are all free: best one that needs the fewest waits for
    /// other streams, then the one that was used last.
    pub(super) fn find_view(&self, search: &Search) -> Option<u32> {
        let places = self.views.of_size(search.size);
        if places.is_empty() {
            return None;
        }
        let free = self.free_by_address();
        let idle = places.iter().filter_map(|&place| {
            let view = self.views.get(place);
            let mut waits = 0;
            for part in &view.parts {
                let (_, id) = free.lender(&self.blocks, part)?;
                let (own, reader) = (self.blocks[id].home.stream, search.home.stream);
                if own != reader || !self.stains.is_empty() {
                    waits += self.stains.users(*part, own, reader).len();
                }
            }
            view.is_idle().then_some((waits, Reverse(view.used), place))
        });
        idle.min().map(|(_, _, place)| place)
    }

    /// Lends a view its bytes and makes a block of it, in no free set. Its bytes are all free.
    pub(super) fn use_view(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        place: u32,
    ) -> Result<BlockId, DeviceError> {
        let reader = search.home.stream;
        let mut free = self.free_by_address();
        let parts = self.views.get(place).parts.clone();
        for &part in &parts {
            let (_, id) = free.lender(&self.blocks, &part).expect("the bytes of a view are free");
            self.wait_for_last_users(env, part, self.blocks[id].home.stream, reader)?;
        }
        let lent = parts.iter().map(|part| self.lend(&mut free, part)).collect();
        let view = self.views.use_now(place);
        (view.lent, view.stream) = (lent, reader);
        let block = Block::new(view.address, view.size, search.home);
        Ok(self.blocks.insert(Block { segment: STITCHED, born: place, ..block }))
    }

    /// Takes the bytes of a view back that the program has let go of. The block is gone afterwards.
    pub(super) fn return_view(&mut self, id: BlockId) {
        let Block { home: Home { stream, .. }, born: place, .. } = self.blocks[id];
        self.blocks.remove(id);
        let lent = std::mem::take(&mut self.views.use_now(place).lent);
        for id in lent {
            let block = &mut self.blocks[id];
            block.lent = false;
            let Block { address, size, home, prev, next, .. } = *block;
            self.stain(Part { address, size }, home.stream, stream);
            self.shelve(id, [prev, next]);
        }
    }

    /// Makes a lent block of bytes that are free.
    fn lend(&mut self, free: &mut ByAddress, part: &Part) -> BlockId {
        let (at, id) = free.lender(&self.blocks, part).expect("what is lent is free");
        free.0.remove(at);
        self.remove_free(id);
        let before = part.address - self.blocks[id].address;
        let after = self.blocks[id].size - before - part.size;
        let mut left = Vec::new();
        if before > 0 {
            left.push(self.cut_low_end(id, before));
        }
        let lent = if after > 0 { self.cut_low_end(id, part.size) } else { id };
        if after > 0 {
            left.push(id);
        }
        self.blocks[lent].lent = true;
        for &rest in &left {
            self.insert_free(rest);
        }
        let left = left.into_iter().map(|id| (self.blocks[id].address, id));
        free.0.splice(at..at, left);
        lent
    }

    /// The free blocks that may lend.
    fn free_by_address(&self) -> ByAddress {
        let free = [Pools::LARGE, Pools::SMALL].into_iter();
        let free = free.flat_map(|pool| self.pools.free_blocks(pool));
        let free = free.filter(|&id| self.blocks[id].is_expandable());
        let mut free: Vec<_> = free.map(|id| (self.blocks[id].address, id)).collect();
        free.sort_unstable();
        ByAddress(free)
    }
}

/// Free blocks by address.
struct ByAddress(Vec<(Address, BlockId)>);

impl ByAddress {
    /// The block that has all of a part, and its place in the list.
    fn lender(&self, blocks: &Slab, part: &Part) -> Option<(usize, BlockId)> {
        let at = self.0.partition_point(|&(address, _)| address <= part.address).checked_sub(1)?;
        let (address, id) = self.0[at];
        (address + blocks[id].size >= part.address + part.size).then_some((at, id))
    }
}
