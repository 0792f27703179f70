//! What is free of the address line at one moment, for planners that walk through time.
//!
//! ```text
//!  [ gap )####[ gap )##########[ the last gap, without end
//! ```
//!
//! A sorted vector: a few hundred gaps are searched and shifted faster than any tree is walked.

/// Which gap a buffer goes to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fit {
    /// The lowest that is large enough.
    First,
    /// The smallest that is large enough, the lowest of equals; the endless one only if no other.
    Best,
}

/// Free ranges of units, by address. No two touch; the last one is endless.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    gaps: Vec<(u64, u64)>,
}

impl Gaps {
    /// Forgets everything: all units from `floor` on are free.
    pub(crate) fn reset(&mut self, floor: u64) {
        self.gaps.clear();
        self.gaps.push((floor, u64::MAX));
    }

    /// Takes `size` units at or above `floor`, at the bottom of the gap that `fit` prefers, and
    /// returns where they begin.
    pub(crate) fn take(&mut self, size: u64, floor: u64, fit: Fit) -> u64 {
        let from = if floor == 0 { 0 } else { self.gaps.partition_point(|gap| gap.1 <= floor) };
        let room = |&(start, end): &(u64, u64)| end.saturating_sub(start.max(floor));
        let candidates = self.gaps.iter().enumerate().skip(from).map(|(at, gap)| (room(gap), at));
        let mut large_enough = candidates.filter(|(room, _)| *room >= size);
        let chosen = match fit {
            Fit::First => large_enough.next(),
            Fit::Best => large_enough.min(),
        };
        let (_, at) = chosen.expect("the last gap is endless");
        let (start, end) = self.gaps[at];
        let offset = start.max(floor);
        let (below, above) = ((start, offset), (offset + size, end));
        match (below.0 < below.1, above.0 < above.1) {
            (false, false) => drop(self.gaps.remove(at)),
            (false, true) => self.gaps[at] = above,
            (true, false) => self.gaps[at] = below,
            (true, true) => {
                self.gaps[at] = below;
                self.gaps.insert(at + 1, above);
            }
        }
        offset
    }

    /// Gives `size` units at `offset` back, which must be taken.
    pub(crate) fn give(&mut self, offset: u64, size: u64) {
        let end = offset + size;
        let at = self.gaps.partition_point(|gap| gap.0 < offset);
        let joins_above = self.gaps[at].0 == end;
        let joins_below = at > 0 && self.gaps[at - 1].1 == offset;
        match (joins_below, joins_above) {
            (true, true) => {
                self.gaps[at - 1].1 = self.gaps[at].1;
                self.gaps.remove(at);
            }
            (true, false) => self.gaps[at - 1].1 = end,
            (false, true) => self.gaps[at].0 = offset,
            (false, false) => self.gaps.insert(at, (offset, end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gaps at 0..10, 20..24, and from 30 on.
    fn three_gaps() -> Gaps {
        Gaps { gaps: vec![(0, 10), (20, 24), (30, u64::MAX)] }
    }

    #[test]
    fn first_fit_takes_the_lowest_gap_and_best_fit_the_smallest() {
        assert_eq!(three_gaps().take(3, 0, Fit::First), 0);
        assert_eq!(three_gaps().take(3, 0, Fit::Best), 20);
        assert_eq!(three_gaps().take(12, 0, Fit::Best), 30);
    }

    #[test]
    fn nothing_is_taken_below_the_floor_and_what_lies_there_stays_free() {
        let mut gaps = three_gaps();
        assert_eq!(gaps.take(4, 5, Fit::First), 5);
        assert_eq!(gaps.gaps, [(0, 5), (9, 10), (20, 24), (30, u64::MAX)]);
        assert_eq!(gaps.take(3, 22, Fit::First), 30);
    }

    #[test]
    fn a_freed_range_joins_the_gaps_that_it_touches() {
        let mut gaps = three_gaps();
        gaps.give(12, 2);
        assert_eq!(gaps.gaps, [(0, 10), (12, 14), (20, 24), (30, u64::MAX)]);
        gaps.give(10, 2);
        gaps.give(24, 6);
        assert_eq!(gaps.gaps, [(0, 14), (20, u64::MAX)]);
        gaps.give(14, 6);
        assert_eq!(gaps.gaps, [(0, u64::MAX)]);
    }
}
