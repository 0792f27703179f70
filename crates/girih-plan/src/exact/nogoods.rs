//! States that have failed, so that none is searched twice.
//!
//! Two orders of stacking often end in the same floors and tops with the same items left; what was
//! found of one holds for the other. A state is known by 128 bits of hash, its sets of items by 64:
//! a search of a billion nodes has a chance below 10^-9 to mistake one state for another. The
//! table has a fixed size, and a newcomer takes the place of what was there.

/// See the top of the file.
pub(super) struct Nogoods {
    slots: Vec<u128>,
}

impl Nogoods {
    /// Slots at most: 32 MiB.
    const MAX_SLOTS: u64 = 1 << 21;

    /// A table for a search of `nodes` nodes.
    pub(super) fn new(nodes: u64) -> Nogoods {
        let slots = nodes.clamp(1, Nogoods::MAX_SLOTS).next_power_of_two();
        Nogoods { slots: vec![0; slots as usize] }
    }

    fn slot(&self, state: u128) -> usize {
        state as usize & (self.slots.len() - 1)
    }

    /// Notes that `state` has failed.
    pub(super) fn insert(&mut self, state: u128) {
        let slot = self.slot(state);
        self.slots[slot] = state;
    }

    /// Whether `state` has failed, as far as is remembered.
    pub(super) fn contains(&self, state: u128) -> bool {
        self.slots[self.slot(state)] == state
    }
}
