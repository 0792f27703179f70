//! Which live block begins at an address.
//!
//! Every free begins here, so it must cost a few nanoseconds. A table of a power of two of slots,
//! at most half of them in use; a key lies in the slot that its hash names, or in one of the next:
//!
//! ```text
//!  hash(a) = hash(c) = 2    |    |    | a  | c  | b  |    |    |    |     hash(b) = 3
//!  remove a: c moves up     |    |    | c  | b  |    |    |    |    |     so does b
//! ```
//!
//! What is removed leaves no tombstone: those behind it move up. The table never becomes slower by
//! use, and a run that allocates and frees the same addresses again and again never rebuilds it.

use girih_runtime::{Address, BlockId};

/// A key and what it maps to. 16 bytes: four to a cache line.
#[derive(Clone, Copy)]
struct Slot {
    /// 0 for a vacant slot; no block begins there.
    address: Address,
    block: BlockId,
}

const VACANT: Slot = Slot { address: 0, block: BlockId(0) };

/// Slots of a new table.
const FIRST: usize = 1024;

/// An odd number whose product with an address spreads it over the high bits (2^64 by the golden
/// ratio). The low bits of an address are all zero, which does no harm there.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// The live blocks by their first address.
pub(crate) struct Addresses {
    slots: Box<[Slot]>,
    /// Bits of a hash that are not used.
    shift: u32,
    live: usize,
}

/// Where a key lies. Valid until the next change of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place(usize);

impl Addresses {
    /// A table without blocks.
    pub(crate) fn new() -> Addresses {
        Addresses::with_slots(FIRST)
    }

    fn with_slots(slots: usize) -> Addresses {
        let shift = 64 - slots.trailing_zeros();
        Addresses { slots: vec![VACANT; slots].into_boxed_slice(), shift, live: 0 }
    }

    /// Number of live blocks.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    #[inline]
    fn home(&self, address: Address) -> usize {
        (address.wrapping_mul(SPREAD) >> self.shift) as usize
    }

    #[inline]
    fn after(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    /// The block that begins at `address`, and where it lies; none if there is none.
    #[inline]
    pub(crate) fn find(&self, address: Address) -> Option<(Place, BlockId)> {
        let mut at = self.home(address);
        loop {
            let slot = self.slots[at];
            if slot.address == address && address != 0 {
                return Some((Place(at), slot.block));
            }
            if slot.address == 0 {
                return None;
            }
            at = self.after(at);
        }
    }

    /// Adds a block. `address` is not 0 and begins no other live block.
    #[inline]
    pub(crate) fn insert(&mut self, address: Address, block: BlockId) {
        if 2 * (self.live + 1) > self.slots.len() {
            self.grow();
        }
        let mut at = self.home(address);
        while self.slots[at].address != 0 {
            debug_assert_ne!(self.slots[at].address, address, "two blocks at one address");
            at = self.after(at);
        }
        self.slots[at] = Slot { address, block };
        self.live += 1;
    }

    /// Takes a block out, and moves up those that would not be found any more.
    #[inline]
    pub(crate) fn remove(&mut self, place: Place) {
        let mut hole = place.0;
        let mut at = self.after(hole);
        while self.slots[at].address != 0 {
            // A key may move to the hole if the hole lies between its home and where it is.
            let home = self.home(self.slots[at].address);
            let mask = self.slots.len() - 1;
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
            at = self.after(at);
        }
        self.slots[hole] = VACANT;
        self.live -= 1;
    }

    #[cold]
    fn grow(&mut self) {
        let mut larger = Addresses::with_slots(2 * self.slots.len());
        for slot in self.slots.iter().filter(|slot| slot.address != 0) {
            larger.insert(slot.address, slot.block);
        }
        *self = larger;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A stream of numbers without pattern.
    fn numbers() -> impl Iterator<Item = u64> {
        std::iter::successors(Some(1_u64), |state| {
            Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1))
        })
        .map(|state| state >> 33)
    }

    #[test]
    fn it_holds_what_an_ordered_map_holds_whatever_comes_and_goes() {
        let mut table = Addresses::with_slots(8);
        let mut plain: BTreeMap<u64, BlockId> = BTreeMap::new();
        for (step, number) in numbers().take(50_000).enumerate() {
            let address = 512 * (1 + number % 300);
            match table.find(address) {
                Some((place, block)) => {
                    assert_eq!(plain.remove(&address), Some(block));
                    table.remove(place);
                }
                None => {
                    assert!(!plain.contains_key(&address), "{address} was lost at {step}");
                    table.insert(address, BlockId(step as u32));
                    plain.insert(address, BlockId(step as u32));
                }
            }
            assert_eq!(table.len(), plain.len());
        }
        for (&address, &block) in &plain {
            assert_eq!(table.find(address).map(|(_, found)| found), Some(block));
        }
    }

    #[test]
    fn keys_that_wrap_around_the_end_are_found_after_a_removal() {
        let mut table = Addresses::with_slots(8);
        let last = (1..).find(|&address| table.home(address) == 7).unwrap();
        let same = (last + 1..).find(|&address| table.home(address) == 7).unwrap();
        table.insert(last, BlockId(1));
        table.insert(same, BlockId(2));
        let (place, _) = table.find(last).unwrap();
        table.remove(place);
        assert_eq!(table.find(same).map(|(_, block)| block), Some(BlockId(2)));
        assert_eq!(table.find(last), None);
    }

    #[test]
    fn null_is_never_found() {
        assert_eq!(Addresses::new().find(0), None);
    }
}
