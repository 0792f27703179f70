//! Bytes that another stream than their own has used last.
//!
//! A free block belongs to the stream of its segment, which used it last and needs no event to use it
//! again. A view takes bytes of any stream. When they come back they are *stained* by the stream that
//! used them: whoever is given them next waits, on the device, and so does another stream that is given
//! what is not stained.
//!
//! ```text
//!  segment of stream 1:   |   free    |  free, stained by 2  | free |
//!  a block for 1:                  |________________________|            1 waits
//!  a view for 3:              |__________|                               3 waits
//!  a view for 2:                            |______________|             nobody waits
//! ```
//!
//! Whoever waits does so for every stream of the program: see [`order`](crate::order). How far it must have
//! waited says the stamp of the free that came last: of stained bytes the stain's, of others the block's.
//! The block's is never the smaller: so a stain may be forgotten where its own stream has waited.
//!
//! There are [`STAINS_MAX`] stains at most. With one more, all are *blurred*: whatever was free then counts as used by
//! others, for each stream until it has waited.

use std::collections::BTreeMap;

use girih_trace::StreamId;

use super::block::Block;
use super::views::Part;
use super::{Lake, Search};
use crate::device::{Address, DeviceError};
use crate::order::{Counts, Order, Stamp};
use crate::policy::{BlockId, Env};

/// Stains that are told apart.
const STAINS_MAX: usize = 4096;

/// Bytes that were used last by another stream than their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stain {
    part: Part,
    /// The stream of their segment.
    own: StreamId,
    /// The stream that used them last; none if there were several.
    user: Option<StreamId>,
    /// When it let go of them.
    freed: Stamp,
}

/// All stains, by address, none over another.
#[derive(Debug, Default)]
pub(super) struct Stains {
    stains: BTreeMap<Address, Stain>,
    /// What was freed up to this free is blurred.
    blurred: Stamp,
}

impl Stains {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.stains.is_empty() && self.blurred == 0
    }

    /// Those over a part.
    fn over(&self, part: Part) -> impl Iterator<Item = &Stain> {
        let before = self.stains.range(..part.address).next_back();
        let inside = self.stains.range(part.address..part.end());
        let touching = before.into_iter().chain(inside).map(|(_, stain)| stain);
        touching.filter(move |stain| stain.part.overlaps(&part))
    }

    /// The last free that `reader` must come after before it uses a part of the block `of`; 0 if it may use
    /// it at once.
    fn latest(&self, part: Part, of: &Block, reader: StreamId) -> Stamp {
        let own = of.home.stream;
        let (mut latest, mut clean) = (0, part.size);
        for stain in self.over(part) {
            clean -= stain.part.common(&part);
            if stain.user != Some(reader) {
                latest = latest.max(stain.freed);
            }
        }
        if own != reader && clean > 0 {
            return latest.max(of.freed());
        }
        latest.max(of.freed().min(self.blurred))
    }

    /// Bytes of `own` have been used by `user`, which let go of them with the free `freed`.
    fn set(&mut self, part: Part, own: StreamId, user: Option<StreamId>, freed: Stamp) {
        let over: Vec<Stain> = self.over(part).copied().collect();
        for old in over {
            self.stains.remove(&old.part.address);
            for part in old.part.without(&part) {
                self.stains.insert(part.address, Stain { part, ..old });
            }
        }
        if user != Some(own) {
            self.stains.insert(part.address, Stain { part, own, user, freed });
        }
    }

    /// Tells the stains no longer apart: whatever was freed up to `latest` counts as used by others.
    #[cold]
    fn blur(&mut self, latest: Stamp) {
        self.stains.clear();
        self.blurred = latest;
    }

    /// Forgets what the bytes' own streams have waited for.
    pub(super) fn forget(&mut self, order: &Order) {
        self.stains.retain(|_, stain| order.must_wait(stain.freed, stain.own));
        if self.blurred <= order.done() {
            self.blurred = 0;
        }
    }

    /// No two are of the same bytes, each is of another stream, and they are not too many. For the walk
    /// that checks everything.
    fn check(&self) -> Result<(), String> {
        let ends = self.stains.values().map(|stain| stain.part.end());
        let apart = ends.zip(self.stains.keys().skip(1)).all(|(end, &next)| end <= next);
        let foreign = self.stains.iter().all(|(&address, stain)| {
            stain.user != Some(stain.own) && stain.part.size > 0 && stain.part.address == address
        });
        let is_bounded = self.stains.len() <= STAINS_MAX;
        if apart && foreign && is_bounded { Ok(()) } else { Err(format!("{self:?} make no sense")) }
    }
}

impl Lake {
    /// True if a free block serves a request at once, or after a wait that may be made now.
    #[inline]
    pub(super) fn serves(&mut self, env: &mut Env<'_>, search: &Search, id: BlockId) -> bool {
        if self.stains.is_empty() {
            return true;
        }
        let latest = self.latest_use(search, id);
        let may_wait = latest == 0 || !self.pace.is_in_debt();
        may_wait && self.wait_for(env, latest, search.home.stream).unwrap_or(false)
    }

    /// The last free that a request must come after before it has the first bytes of a block; 0 if it has.
    pub(super) fn latest_use(&self, search: &Search, id: BlockId) -> Stamp {
        let part = Part { address: self.heap.blocks[id].address, size: search.size };
        self.latest_use_of(part, id, search.home.stream)
    }

    /// The last free that `reader` must come after before it has a part of a block; 0 if it has come after it.
    #[inline]
    pub(super) fn latest_use_of(&self, part: Part, of: BlockId, reader: StreamId) -> Stamp {
        let block = &self.heap.blocks[of];
        if block.home.stream == reader && self.stains.is_empty() {
            return 0;
        }
        let latest = self.stains.latest(part, block, reader);
        if self.order.must_wait(latest, reader) { latest } else { 0 }
    }

    /// Lets `reader` wait, on the device, for all who may use bytes that were freed up to `latest`. False
    /// during a capture.
    pub(super) fn wait_for(
        &mut self,
        env: &mut Env<'_>,
        latest: Stamp,
        reader: StreamId,
    ) -> Result<bool, DeviceError> {
        self.wait_counted(env, latest, reader, Counts::Yes)
    }

    /// The same, in a wait that counts or not.
    pub(super) fn wait_counted(
        &mut self,
        env: &mut Env<'_>,
        latest: Stamp,
        reader: StreamId,
        counts: Counts,
    ) -> Result<bool, DeviceError> {
        if !self.order.must_wait(latest, reader) {
            return Ok(true);
        }
        let (device, limbo) = (&mut *env.device, &mut self.limbo);
        if self.beside.is_capturing() || !self.order.wait(device, limbo, latest, reader, counts)? {
            return Ok(false);
        }
        self.stains.forget(&self.order);
        Ok(true)
    }

    /// Bytes of a block come back from `user`, or from several, who let go of them with the free `freed`.
    pub(super) fn stain(
        &mut self,
        part: Part,
        own: StreamId,
        user: Option<StreamId>,
        freed: Stamp,
    ) {
        if user == Some(own) && self.stains.stains.is_empty() {
            return;
        }
        self.stains.set(part, own, user, freed);
        if self.stains.stains.len() > STAINS_MAX {
            self.stains.blur(self.order.latest());
        }
    }

    /// Forgets the stains of a part of a free block, which keeps its own books from now on: its last free,
    /// and whether others than its own stream have used it.
    pub(super) fn cleaned(&mut self, part: Part, id: BlockId) -> (Stamp, bool) {
        let block = &self.heap.blocks[id];
        let (own, freed) = (block.home.stream, block.freed());
        let is_stained =
            freed.min(self.stains.blurred) > 0 || self.stains.over(part).next().is_some();
        if is_stained {
            self.stains.set(part, own, Some(own), freed);
        }
        (freed, is_stained)
    }

    /// Waits on the host until nobody uses a free block any more, nor the views over it, whose uses were uses of its
    /// bytes. False if that cannot be now: a graph is being captured.
    pub(super) fn synchronize_users(
        &mut self,
        env: &mut Env<'_>,
        id: BlockId,
    ) -> Result<bool, DeviceError> {
        let latest = self.heap.blocks[id].freed();
        if latest > self.order.done() && self.is_capturing() {
            return Ok(false);
        }
        let is_done = self.order.synchronize(env.device, &mut self.limbo, latest)?;
        self.stains.forget(&self.order);
        Ok(is_done)
    }

    /// Every stain is of bytes that their stream's segment has mapped and that are not in use by it.
    pub(super) fn check_stains(&self) -> Result<(), String> {
        self.stains.check()?;
        let is_tile = |block: &Block| block.mapped && !block.is_stitched() && !block.is_apart();
        let is_lent =
            |block: &Block| block.lent || (!block.is_free() && block.user != block.home.stream);
        let is_free = |block: &Block| is_tile(block) && (is_lent(block) || !block.allocated);
        let free: Vec<&Block> = self.heap.blocks.values().filter(|block| is_free(block)).collect();
        for stain in self.stains.stains.values() {
            let (mut bytes, mut is_covered) = (0, true);
            let own = free.iter().filter(|block| block.home.stream == stain.own);
            for block in own.filter(|block| block.part().overlaps(&stain.part)) {
                bytes += block.part().common(&stain.part);
                is_covered &= is_lent(block) || block.freed() >= stain.freed;
            }
            if bytes != stain.part.size || !is_covered {
                return Err(format!("{stain:?} is of bytes that are not free, or freed before"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::Home;
    use super::*;

    const OWN: StreamId = StreamId(0);
    const USER: StreamId = StreamId(1);
    const READER: StreamId = StreamId(2);

    fn block(freed: Stamp) -> Block {
        let home = Home { shelf: 0, stream: OWN, is_small: false };
        Block { requested: freed, ..Block::new(4096, 4096, home, 0) }
    }

    fn part(address: Address, size: u64) -> Part {
        Part { address, size }
    }

    #[test]
    fn who_must_wait_depends_on_who_used_which_bytes_last() {
        let mut stains = Stains::default();
        stains.set(part(5120, 1024), OWN, Some(USER), 7);
        let of = block(9);
        assert_eq!(stains.latest(part(4096, 1024), &of, OWN), 0, "its own, not stained");
        assert_eq!(stains.latest(part(4096, 2048), &of, OWN), 7);
        assert_eq!(stains.latest(part(5120, 1024), &of, USER), 0, "the user itself");
        assert_eq!(stains.latest(part(5120, 1024), &of, READER), 7);
        assert_eq!(stains.latest(part(4096, 4096), &of, READER), 9);
        assert_eq!(stains.latest(part(4096, 4096), &of, USER), 9, "the owner used the rest");
    }

    #[test]
    fn what_the_owner_uses_again_is_stained_no_more() {
        let mut stains = Stains::default();
        stains.set(part(4096, 4096), OWN, Some(USER), 3);
        stains.set(part(5120, 512), OWN, Some(OWN), 4);
        assert_eq!(stains.stains.len(), 2);
        assert_eq!(stains.latest(part(5120, 512), &block(4), OWN), 0);
        assert_eq!(stains.latest(part(5632, 512), &block(4), OWN), 3);
    }

    #[test]
    fn stains_that_are_blurred_make_everybody_wait() {
        let mut stains = Stains::default();
        stains.set(part(5120, 1024), OWN, Some(USER), 7);
        stains.blur(8);
        assert!(stains.stains.is_empty() && !stains.is_empty());
        assert_eq!(stains.latest(part(4096, 512), &block(7), OWN), 7);
        assert_eq!(stains.latest(part(4096, 512), &block(9), OWN), 8, "freed by its owner since");
        assert_eq!(stains.latest(part(4096, 512), &block(9), READER), 9);
    }
}
