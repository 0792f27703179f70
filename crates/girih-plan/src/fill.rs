//! Filling: buffers that have a place keep it, the others go where there is room left.
//!
//! A thin layer over the segment tree of the first-fit planners, for callers who decide place by
//! place: [`Fill::take`] asks for one offset, [`Fill::first_fit`] for any below a limit.

use crate::instance::Instance;
use crate::occupancy::Occupancy;
use crate::plan::ALIGNMENT;
use crate::problem::{Buffer, Problem};

/// A layout of buffers on a line, while it is being filled.
pub(crate) struct Fill {
    instance: Instance,
    occupancy: Occupancy,
}

impl Fill {
    /// Makes ready for `buffers`, which are sorted by birth and have a size above 0. Nothing is
    /// placed yet.
    pub(crate) fn new(mut buffers: Vec<Buffer>) -> Fill {
        // The planners set aside what is always alive. Here places are given, so nothing may be:
        // two ticks after all others, each with a buffer of its own, see to that, also where there
        // are no others.
        let end = buffers.iter().map(|buffer| buffer.upper).max().unwrap_or(0);
        for lower in [end, end + 1] {
            buffers.push(Buffer { lower, upper: lower + 1, size: ALIGNMENT });
        }
        let count = buffers.len();
        let problem = Problem { buffers, period: 0, alignment: ALIGNMENT };
        let instance = Instance::new(&problem).expect("lives and sizes come from a trace");
        assert_eq!(instance.items.len(), count, "every buffer is an item, in its order");
        let mut occupancy = Occupancy::default();
        occupancy.reset(&instance);
        Fill { instance, occupancy }
    }

    /// Places buffer `index` at `offset` bytes, if nothing is in its way.
    pub(crate) fn take(&mut self, index: usize, offset: u64) -> bool {
        let (item, offset) = (self.instance.items[index], offset / ALIGNMENT);
        let free = self.occupancy.is_free(&self.instance, &item, offset);
        if free {
            self.occupancy.enter(&self.instance, &item, offset);
        }
        free
    }

    /// Places buffer `index` at the lowest offset at which nothing is in its way. None if it would
    /// end above `limit` bytes.
    pub(crate) fn first_fit(&mut self, index: usize, limit: u64) -> Option<u64> {
        let item = self.instance.items[index];
        // The tree refuses what reaches its limit.
        let limit = (limit / ALIGNMENT).saturating_add(1);
        let offset = self.occupancy.first_fit(&self.instance, &item, limit)?;
        self.occupancy.enter(&self.instance, &item, offset);
        Some(offset * ALIGNMENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(lower: u32, upper: u32, units: u64) -> Buffer {
        Buffer { lower, upper, size: units * ALIGNMENT }
    }

    #[test]
    fn there_may_be_nothing_to_fill() {
        Fill::new(Vec::new());
    }

    #[test]
    fn a_place_is_taken_only_if_it_is_free_for_the_whole_life() {
        let mut fill = Fill::new(vec![buffer(0, 4, 2), buffer(1, 2, 1), buffer(4, 5, 2)]);
        assert!(fill.take(0, 0));
        assert!(!fill.take(1, ALIGNMENT));
        assert!(fill.take(1, 2 * ALIGNMENT));
        assert!(fill.take(2, 0));
    }

    #[test]
    fn what_is_always_alive_keeps_the_place_it_was_given() {
        let mut fill = Fill::new(vec![buffer(0, 2, 1), buffer(0, 2, 1)]);
        assert!(fill.take(0, 7 * ALIGNMENT));
        assert_eq!(fill.first_fit(1, u64::MAX), Some(0));
    }

    #[test]
    fn first_fit_stays_at_or_below_the_limit() {
        let mut fill = Fill::new(vec![buffer(0, 4, 2), buffer(1, 2, 3), buffer(2, 3, 3)]);
        assert!(fill.take(0, 0));
        assert_eq!(fill.first_fit(1, 4 * ALIGNMENT), None);
        assert_eq!(fill.first_fit(2, 5 * ALIGNMENT), Some(2 * ALIGNMENT));
    }
}
