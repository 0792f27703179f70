//! Which large requests go soon, told by what became of the last one that came after the same sizes.
//!
//! What a layer's backward pass needs and what the layer needs no more after a few operators come in turns, layer by
//! layer. Where both take the first hole, a tensor that stays lies where one was that went, and leaves the rest of it: less
//! than a page, so that no view can have it, for as long as the tensor stays.
//!
//! ```text
//!  one end:   | stays | went  | stays |went| stays |  free     |
//!  two ends:  | stays | stays | stays |  free     | goes | goes |
//! ```
//!
//! So what is thought to go soon lies at the high end of a hole that is high up, and all else at the low end of a low
//! one. A request is thought to go soon if the last few that came after the same sizes did, one after the other. Nothing
//! is known of one whose sizes came for the first time, or whose like is alive yet: it stays.
//!
//! Maas et al. (ASPLOS 2020) tell lifetimes from stacks, by a network that is trained before. Here the last few sizes
//! are known, and the layer before is what is learnt from.

use crate::policy::BlockId;

/// Sequences of sizes that are remembered: 64 KiB.
const SLOTS: usize = 1 << 12;
/// No slot.
const NONE: u32 = u32::MAX;
/// Multiplies a hash; the fractional part of the golden ratio.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// What became of the last request that came after certain sizes.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// A hash of 16 bits of each of the last four sizes, its own among them.
    sizes: u64,
    /// Its number.
    birth: u32,
    /// How many before it, one after the other, went soon.
    times: u16,
    /// It went soon too.
    was_young: bool,
}

/// A request whose block is not known yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    slot: u32,
    birth: u32,
    /// It is thought to go soon.
    pub(super) is_young: bool,
}

/// The request that a block was given.
#[derive(Clone, Copy, Debug)]
struct Born {
    slot: u32,
    birth: u32,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Lives {
    /// A request goes soon that is freed before so many others have come; 0 to tell of none.
    span: u32,
    /// And is thought to go soon once so many like it have, one after the other; at least 1.
    times: u16,
    /// Of the last four sizes, the last one lowest.
    sizes: u64,
    /// Requests so far.
    count: u32,
    slots: Vec<Slot>,
    /// By the ids of their blocks, those that are alive; of others what was there before.
    born: Vec<Born>,
}

impl Lives {
    /// A request goes soon that is freed before `span` others have come, and is thought to once `times` like it have.
    pub(super) fn new(span: u64, times: u64) -> Lives {
        let span = u32::try_from(span).unwrap_or(u32::MAX);
        let times = u16::try_from(times.max(1)).unwrap_or(u16::MAX);
        Lives { span, times, sizes: 0, count: 0, slots: Vec::new(), born: Vec::new() }
    }

    /// Nothing is told any more.
    pub(super) fn stop(&mut self) {
        *self = Lives::new(0, 1);
    }

    /// A request of `size` bytes, rounded, comes. None if nothing is told.
    #[inline]
    pub(super) fn ask(&mut self, size: u64) -> Option<Asked> {
        if self.span == 0 {
            return None;
        }
        if self.slots.is_empty() {
            self.slots = vec![Slot::default(); SLOTS];
        }
        self.sizes = self.sizes << 16 | size.wrapping_mul(SPREAD) >> 48;
        self.count = self.count.wrapping_add(1);
        // The highest bits depend on all of them.
        let index = (self.sizes.wrapping_mul(SPREAD) >> 32) as usize / (1 << 20);
        let slot = &mut self.slots[index];
        let is_known = slot.sizes == self.sizes && slot.was_young;
        let times = if is_known { slot.times.saturating_add(1) } else { 0 };
        *slot = Slot { sizes: self.sizes, birth: self.count, times, was_young: false };
        let is_young = times >= self.times;
        Some(Asked { slot: index as u32, birth: self.count, is_young })
    }

    /// A request was given a block, which is told of when it is [freed](Lives::free) if it was asked for here.
    #[inline]
    pub(super) fn give(&mut self, id: BlockId, asked: Option<Asked>) {
        if self.span == 0 {
            return;
        }
        let born = asked
            .map_or(Born { slot: NONE, birth: 0 }, |it| Born { slot: it.slot, birth: it.birth });
        let place = id.0 as usize;
        if place >= self.born.len() {
            self.born.resize(place + 1, Born { slot: NONE, birth: 0 });
        }
        self.born[place] = born;
    }

    /// A block is freed that was [given](Lives::give).
    #[inline]
    pub(super) fn free(&mut self, id: BlockId) {
        let Some(&Born { slot, birth }) = self.born.get(id.0 as usize) else { return };
        // None, or others have come since after the same sizes.
        if let Some(slot) = self.slots.get_mut(slot as usize).filter(|slot| slot.birth == birth) {
            slot.was_young = self.count.wrapping_sub(birth) <= self.span;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: u32 = 8;

    /// Requests of these sizes, of which those at `young` are freed once all have come; which of them were thought to go.
    fn layer(lives: &mut Lives, sizes: &[u64], young: &[usize]) -> Vec<bool> {
        let each = sizes.iter().enumerate().map(|(at, &size)| {
            let asked = lives.ask(size << 20);
            lives.give(BlockId(at as u32), asked);
            asked.is_some_and(|asked| asked.is_young)
        });
        let told = each.collect();
        young.iter().for_each(|&at| lives.free(BlockId(at as u32)));
        told
    }

    #[test]
    fn what_went_soon_in_the_layer_before_goes_soon() {
        let mut lives = Lives::new(SPAN.into(), 1);
        let sizes = [8, 4, 8, 2, 16];
        let young = [1, 2, 3];
        assert_eq!(layer(&mut lives, &sizes, &young), [false; 5], "nothing is known");
        // The first four come after others than in the layers to come.
        layer(&mut lives, &sizes, &young);
        for _ in 0..3 {
            // Two of 8: one stays, the other goes.
            assert_eq!(layer(&mut lives, &sizes, &young), [false, true, true, true, false]);
        }
    }

    #[test]
    fn once_is_not_enough_where_more_is_asked_for() {
        let mut lives = Lives::new(SPAN.into(), 3);
        let told = |lives: &mut Lives| layer(lives, &[8, 4], &[1])[1];
        let first: Vec<bool> = (0..6).map(|_| told(&mut lives)).collect();
        // The first comes after others than in the layers to come.
        assert_eq!(first, [false, false, false, false, true, true]);
        layer(&mut lives, &[8, 4], &[]);
        assert!(!told(&mut lives), "the last one stayed");
    }

    #[test]
    fn what_is_alive_or_was_freed_late_is_thought_to_stay() {
        let mut lives = Lives::new(SPAN.into(), 1);
        let sizes = [8, 4, 2];
        for _ in 0..3 {
            assert_eq!(layer(&mut lives, &sizes, &[]), [false; 3]);
        }
        let old = lives.ask(1);
        lives.give(BlockId(9), old);
        for size in 0..=u64::from(SPAN) {
            let _ = lives.ask(size << 30);
        }
        lives.free(BlockId(9));
        let slot = old.expect("it is on").slot as usize;
        assert!(!lives.slots[slot].was_young);
    }

    #[test]
    fn a_block_of_a_request_that_was_not_asked_for_here_tells_nothing() {
        let mut lives = Lives::new(SPAN.into(), 1);
        let asked = lives.ask(1);
        lives.give(BlockId(0), asked);
        lives.give(BlockId(0), None);
        lives.free(BlockId(0));
        assert!(lives.slots.iter().all(|slot| !slot.was_young));
        lives.free(BlockId(1));
    }

    #[test]
    fn however_long_it_runs_it_holds_64_kib_and_eight_bytes_a_block() {
        assert_eq!(size_of::<Slot>() * SLOTS, 64 << 10);
        let mut lives = Lives::new(SPAN.into(), 1);
        for size in 0..100_000 {
            let asked = lives.ask(size << 9);
            lives.give(BlockId(size as u32 % 50), asked);
            lives.free(BlockId(size as u32 % 50));
        }
        assert_eq!((lives.slots.capacity(), lives.born.len()), (SLOTS, 50));
        assert_eq!(size_of::<Born>(), 8);
    }

    #[test]
    fn a_span_of_nothing_turns_it_off() {
        let mut lives = Lives::new(0, 1);
        assert!(lives.ask(1 << 20).is_none());
        lives.give(BlockId(5), None);
        lives.free(BlockId(5));
        assert_eq!((lives.slots.capacity(), lives.born.capacity()), (0, 0));
    }
}
