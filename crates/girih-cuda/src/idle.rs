//! What was freed, kept for the next request of its size.

use girih_runtime::Address;
use rustc_hash::FxHashMap;

/// Ranges and their bytes that are kept, at most: the tensors of a step of the largest models by far, and 4 MiB of the
/// driver's tables.
const RANGES_MAX: usize = 1 << 16;
const BYTES_MAX: u64 = 1 << 40;

/// Freed ranges by their size.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    by_size: FxHashMap<u64, Vec<Address>>,
    ranges: usize,
    bytes: u64,
}

impl Idle {
    /// True if it is kept; false if there are too many.
    pub(crate) fn keep(&mut self, size: u64, address: Address) -> bool {
        if self.ranges >= RANGES_MAX || size > BYTES_MAX.saturating_sub(self.bytes) {
            return false;
        }
        self.by_size.entry(size).or_default().push(address);
        self.ranges += 1;
        self.bytes += size;
        true
    }

    pub(crate) fn has(&self, size: u64) -> bool {
        self.by_size.contains_key(&size)
    }

    /// The one of that size that was freed last.
    pub(crate) fn take(&mut self, size: u64) -> Option<Address> {
        let of_size = self.by_size.get_mut(&size)?;
        let address = of_size.pop()?;
        if of_size.is_empty() {
            self.by_size.remove(&size);
        }
        self.ranges -= 1;
        self.bytes -= size;
        Some(address)
    }

    /// The sizes of those that are kept, and how many there are of each.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = (u64, u64)> {
        self.by_size.iter().map(|(size, of_size)| (*size, of_size.len() as u64))
    }

    /// Any one of at least so many bytes, with its size: what [`Idle::take`] gives for that size next.
    pub(crate) fn any(&self, least: u64) -> Option<(u64, Address)> {
        let (&size, of_size) = self.by_size.iter().find(|(size, _)| **size >= least)?;
        Some((size, *of_size.last()?))
    }

    /// Takes all of another's, beyond the bounds if need be.
    pub(crate) fn append(&mut self, other: &mut Idle) {
        for (size, mut addresses) in other.by_size.drain() {
            self.by_size.entry(size).or_default().append(&mut addresses);
        }
        self.ranges += std::mem::take(&mut other.ranges);
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_much_is_freed_few_ranges_and_bytes_are_kept() {
        let mut idle = Idle::default();
        let kept = (0..2 * RANGES_MAX as u64).filter(|&at| idle.keep(1 + at % 7, at)).count();
        assert_eq!(kept, RANGES_MAX);
        assert!(idle.by_size.values().map(Vec::len).sum::<usize>() == kept);
        let mut large = Idle::default();
        let kept = (0..100).filter(|&at| large.keep(BYTES_MAX / 8, at)).count();
        assert_eq!((kept, large.bytes), (8, BYTES_MAX));
        idle.append(&mut large);
        assert!(!idle.keep(1, 1), "of two, no more than of both");
        let mut all = 0;
        while let Some((size, address)) = idle.any(0) {
            assert_eq!(idle.take(size), Some(address));
            all += 1;
        }
        assert_eq!((all, idle.ranges, idle.bytes), (RANGES_MAX + 8, 0, 0));
        assert!(idle.by_size.is_empty());
    }

    #[test]
    fn what_is_taken_has_the_size_that_was_asked_for() {
        let mut idle = Idle::default();
        assert!(idle.keep(2, 20) && idle.keep(4, 40) && idle.keep(2, 21));
        assert!(idle.has(4) && !idle.has(3));
        assert_eq!([2, 2, 2].map(|size| idle.take(size)), [Some(21), Some(20), None]);
        assert!(!idle.has(2));
        assert_eq!((idle.any(5), idle.any(0)), (None, Some((4, 40))));
    }
}
