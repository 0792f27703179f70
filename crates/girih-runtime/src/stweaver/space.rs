//! What is free of the pool: the paper's *A_a*, with who used it last.
//!
//! ```text
//!  bytes of the pool    |  used  |  free, of stream 1  |  used  |  free, never used |
//!  reusable             |          ------------|            |---------|
//!  equation 6                    |-------------|            .   |-----|            the best fit is the smaller one
//! ```
//!
//! Free ranges that touch are one. If different streams used its parts, whoever takes any of it waits for all of them.

use std::collections::BTreeMap;

use girih_trace::StreamId;

use crate::order::Stamp;

/// The last use of free bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Use {
    /// None if there were several: everybody waits.
    pub(super) stream: Option<StreamId>,
    /// 0 if nobody has used them.
    pub(super) freed: Stamp,
}

impl Use {
    const NONE: Use = Use { stream: None, freed: 0 };

    /// Of bytes with this use and bytes with that one.
    fn and(self, other: Use) -> Use {
        if self.freed == 0 {
            return other;
        }
        if other.freed == 0 {
            return self;
        }
        let stream = self.stream.filter(|_| self.stream == other.stream);
        Use { stream, freed: self.freed.max(other.freed) }
    }
}

/// The free ranges of a pool: end and last use by start.
#[derive(Debug)]
pub(super) struct FreeSpace {
    ranges: BTreeMap<u64, (u64, Use)>,
}

impl FreeSpace {
    /// All of a pool.
    pub(super) fn of(size: u64) -> FreeSpace {
        FreeSpace { ranges: BTreeMap::from([(0, (size, Use::NONE))]) }
    }

    /// The free ranges, ascending.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ranges.iter().map(|(&start, &(end, _))| (start, end))
    }

    /// The range that holds all of these bytes.
    fn around(&self, offset: u64, size: u64) -> Option<(u64, u64, Use)> {
        let (&start, &(end, last)) = self.ranges.range(..=offset).next_back()?;
        let is_inside = offset.checked_add(size).is_some_and(|to| to <= end);
        is_inside.then_some((start, end, last))
    }

    /// Whether all of these bytes are free.
    pub(super) fn is_free(&self, offset: u64, size: u64) -> bool {
        self.around(offset, size).is_some()
    }

    /// The last use of bytes that are free.
    pub(super) fn last_use(&self, offset: u64, size: u64) -> Use {
        self.around(offset, size).map_or(Use::NONE, |(.., last)| last)
    }

    /// Takes bytes that are free.
    pub(super) fn take(&mut self, offset: u64, size: u64) {
        let Some((start, end, last)) = self.around(offset, size) else { return };
        self.ranges.remove(&start);
        if start < offset {
            self.ranges.insert(start, (offset, last));
        }
        if offset + size < end {
            self.ranges.insert(offset + size, (end, last));
        }
    }

    /// Gives bytes back that `stream` had, with the free `freed`.
    pub(super) fn give_back(&mut self, offset: u64, size: u64, stream: StreamId, freed: Stamp) {
        let (mut start, mut end) = (offset, offset + size);
        let mut last = Use { stream: Some(stream), freed };
        if let Some((&before, &(its_end, its_last))) = self.ranges.range(..start).next_back()
            && its_end == start
        {
            self.ranges.remove(&before);
            (start, last) = (before, last.and(its_last));
        }
        if let Some((its_end, its_last)) = self.ranges.remove(&end) {
            (end, last) = (its_end, last.and(its_last));
        }
        self.ranges.insert(start, (end, last));
    }

    /// Where so many bytes fit best: the start of the smallest free range that has room, the lowest of equals.
    pub(super) fn best_fit(&self, size: u64) -> Option<u64> {
        best(self.ranges(), size)
    }

    /// The same within ranges that ascend: equation 6.
    pub(super) fn best_fit_within(&self, within: &[(u64, u64)], size: u64) -> Option<u64> {
        let mut free = self.ranges().peekable();
        let mut common = Vec::new();
        for &(from, to) in within {
            while free.next_if(|&(_, end)| end <= from).is_some() {}
            while let Some(&(start, end)) = free.peek()
                && start < to
            {
                common.push((start.max(from), end.min(to)));
                if end > to {
                    break; // The next range may have a part of it, too.
                }
                free.next();
            }
        }
        best(common.into_iter(), size)
    }
}

/// The start of the smallest range with room for `size` bytes.
fn best(ranges: impl Iterator<Item = (u64, u64)>, size: u64) -> Option<u64> {
    let fitting = ranges.filter(|(start, end)| end - start >= size);
    fitting.map(|(start, end)| (end - start, start)).min().map(|(_, start)| start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_fit_within_is_that_of_every_byte_asked_alone() {
        arbtest::arbtest(|u| {
            let mut space = FreeSpace::of(64);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for freed in 1..=u.int_in_range(1..=24)? {
                if u.ratio(2, 3)? {
                    let (offset, size) = (u.int_in_range(0..=63)?, u.int_in_range(1..=12)?);
                    let meets = |&(at, long): &(u64, u64)| offset < at + long && at < offset + size;
                    let is_free = offset + size <= 64 && !taken.iter().any(meets);
                    assert_eq!(space.is_free(offset, size), is_free);
                    if is_free {
                        space.take(offset, size);
                        taken.push((offset, size));
                    }
                } else if !taken.is_empty() {
                    let (offset, size) = taken.swap_remove(u.choose_index(taken.len())?);
                    space.give_back(offset, size, StreamId(u.int_in_range(0..=1)?), freed);
                }
            }
            let mut within = Vec::new();
            let mut from = 0;
            while from < 64 && within.len() < 5 {
                let start = from + u.int_in_range(0..=9)?;
                let end = start + u.int_in_range(1..=20)?;
                within.push((start, end));
                from = end + 1;
            }
            let size = u.int_in_range(1..=10)?;
            let is_common = |byte: u64| {
                space.is_free(byte, 1) && within.iter().any(|&(a, b)| a <= byte && byte < b)
            };
            let mut runs: Vec<(u64, u64)> = Vec::new();
            for byte in (0..64).filter(|&byte| is_common(byte)) {
                // Two ranges do not join where only one of them is reusable, or where nothing is between them.
                let is_new = runs.last().is_none_or(|run| run.1 != byte);
                if is_new {
                    runs.push((byte, byte + 1));
                } else if let Some(run) = runs.last_mut() {
                    run.1 += 1;
                }
            }
            assert_eq!(space.best_fit_within(&within, size), best(runs.into_iter(), size));
            Ok(())
        });
    }

    #[test]
    fn what_several_streams_used_counts_as_used_by_all_and_the_last() {
        let mut space = FreeSpace::of(30);
        space.take(0, 10);
        space.take(10, 10);
        space.give_back(0, 10, StreamId(1), 4);
        assert_eq!(space.last_use(0, 10), Use { stream: Some(StreamId(1)), freed: 4 });
        space.give_back(10, 10, StreamId(2), 3);
        assert_eq!(space.last_use(25, 5), Use { stream: None, freed: 4 });
        assert_eq!(space.ranges().collect::<Vec<_>>(), [(0, 30)]);
    }
}
