//! Bytes that another stream than their own has used last.
//!
//! A free block belongs to the stream of its segment, which used it last and needs no event to use it
//! again. A view takes bytes of any stream. When they come back they are *stained* by the stream that
//! used them: whoever is given them next waits for it, on the device, and for their own stream where
//! they are not stained.
//!
//! ```text
//!  segment of stream 1:   |   free    |  free, stained by 2  | free |
//!  a block for 1:                  |________________________|            1 waits for 2
//!  a view for 3:              |__________|                               3 waits for 1 and 2
//! ```
//!
//! A wait covers all that a stream was given to do so far: when the stream of a segment has waited for
//! another, none of its bytes is stained by that one any more.

use girih_trace::StreamId;

use super::Caching;
use super::block::Block;
use super::search::Search;
use super::views::Part;
use crate::device::DeviceError;
use crate::policy::{BlockId, Env};

/// Bytes that were used last by another stream than their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stain {
    part: Part,
    /// The stream of their segment.
    own: StreamId,
    /// The stream that used them last.
    user: StreamId,
}

/// All stains: disjoint, in no order.
#[derive(Debug, Default)]
pub(super) struct Stains(Vec<Stain>);

impl Stains {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The streams but `reader` that used a part last, which is `own`'s. Each once, in order.
    pub(super) fn users(&self, part: Part, own: StreamId, reader: StreamId) -> Vec<StreamId> {
        let over = self.0.iter().filter(|stain| stain.part.overlaps(&part));
        let (mut users, mut clean) = (Vec::new(), part.size);
        for stain in over {
            users.push(stain.user);
            clean -= stain.part.common(&part);
        }
        if clean > 0 {
            users.push(own);
        }
        users.retain(|&user| user != reader);
        users.sort_unstable();
        users.dedup();
        users
    }

    /// Bytes of `own` have been used by `user`.
    fn set(&mut self, part: Part, own: StreamId, user: StreamId) {
        let mut at = 0;
        while at < self.0.len() {
            if !self.0[at].part.overlaps(&part) {
                at += 1;
                continue;
            }
            let old = self.0.swap_remove(at);
            let left = old.part.without(&part).map(|part| Stain { part, ..old });
            self.0.extend(left);
        }
        if user != own {
            self.0.push(Stain { part, own, user });
        }
    }

    /// `own` has waited for `user`.
    fn clear(&mut self, own: StreamId, user: StreamId) {
        self.0.retain(|stain| (stain.own, stain.user) != (own, user));
    }

    /// No two are of the same bytes, and each is of another stream. For the walk that checks everything.
    fn check(&self) -> Result<(), String> {
        let mut parts: Vec<Part> = self.0.iter().map(|stain| stain.part).collect();
        parts.sort_unstable_by_key(|part| part.address);
        let apart = parts.windows(2).all(|pair| !pair[0].overlaps(&pair[1]));
        let foreign = self.0.iter().all(|stain| stain.user != stain.own && stain.part.size > 0);
        if apart && foreign { Ok(()) } else { Err(format!("{self:?} make no sense")) }
    }
}

impl Caching {
    /// Makes a free block ready for a request: its stream waits for those that have used the bytes
    /// last. False during a capture, which may not wait for what lies outside of it.
    #[inline]
    pub(super) fn is_ready(
        &mut self,
        env: &mut Env<'_>,
        search: &Search,
        id: BlockId,
    ) -> Result<bool, DeviceError> {
        if self.stains.is_empty() {
            return Ok(true);
        }
        if self.is_capturing() {
            return Ok(self.is_clean(search, id));
        }
        let Block { address, home, .. } = self.blocks[id];
        let part = Part { address, size: search.size };
        let users = self.stains.users(part, home.stream, search.home.stream);
        self.wait_for(env, users, search.home.stream)?;
        Ok(true)
    }

    /// True if no other stream has used the first bytes of a run of blocks last.
    pub(super) fn is_clean(&self, search: &Search, start: BlockId) -> bool {
        let Block { address, home, .. } = self.blocks[start];
        let part = Part { address, size: search.size };
        self.stains.users(part, home.stream, search.home.stream).is_empty()
    }

    /// Adds the streams but `reader` that used a part of `own` last to `users`, each once.
    #[inline]
    pub(super) fn note_users(
        &self,
        users: &mut Vec<StreamId>,
        part: Part,
        own: StreamId,
        reader: StreamId,
    ) {
        if own != reader || !self.stains.is_empty() {
            for user in self.stains.users(part, own, reader) {
                if !users.contains(&user) {
                    users.push(user);
                }
            }
        }
    }

    /// Lets `reader` wait, on the device, for all that other streams were given to do so far.
    pub(super) fn wait_for(
        &mut self,
        env: &mut Env<'_>,
        users: Vec<StreamId>,
        reader: StreamId,
    ) -> Result<(), DeviceError> {
        for user in users {
            let event = env.device.record_event(user)?;
            let waited = env.device.wait_event(reader, event);
            self.limbo.destroy_event(env.device, event);
            waited?;
            self.stains.clear(reader, user);
        }
        Ok(())
    }

    /// Bytes of `own` come back from `user`.
    pub(super) fn stain(&mut self, part: Part, own: StreamId, user: StreamId) {
        if user != own || !self.stains.is_empty() {
            self.stains.set(part, own, user);
        }
    }

    /// Waits on the host for every stream that used bytes of `own` last, and for those that used a view
    /// over them last, be it other bytes of it: so nobody uses their addresses any more.
    pub(super) fn synchronize_users(
        &mut self,
        env: &mut Env<'_>,
        part: Part,
        own: StreamId,
    ) -> Result<(), DeviceError> {
        env.device.synchronize_stream(own)?;
        let mut users = self.users_of_views_over(part);
        self.note_users(&mut users, part, own, own);
        for user in users.into_iter().filter(|&user| user != own) {
            env.device.synchronize_stream(user)?;
        }
        if !self.stains.is_empty() {
            self.stains.set(part, own, own);
        }
        Ok(())
    }

    /// Every stain is of bytes that their stream's segment has mapped and that are not in use by it.
    pub(super) fn check_stains(&self) -> Result<(), String> {
        self.stains.check()?;
        let free = self.blocks.iter().filter(|(_, block)| block.mapped && !block.is_stitched());
        let free = free.filter(|(_, block)| block.lent || !block.allocated);
        let free: Vec<_> = free.map(|(_, block)| block).collect();
        for Stain { part, own, .. } in &self.stains.0 {
            let of = |block: &&&Block| block.home.stream == *own;
            let over = free
                .iter()
                .filter(of)
                .map(|block| part.common(&Part { address: block.address, size: block.size }));
            if over.sum::<u64>() != part.size {
                return Err(format!("{part:?} of {own:?} is stained and not free"));
            }
        }
        Ok(())
    }
}
