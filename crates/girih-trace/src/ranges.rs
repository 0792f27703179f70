//! Runs of addresses: disjoint, half-open, joined where they touch.

use std::collections::BTreeMap;

/// A set of addresses, kept as runs from start to end.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ranges {
    runs: BTreeMap<u64, u64>,
}

impl Ranges {
    /// The runs, by address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.runs.iter().map(|(&start, &end)| (start, end))
    }

    /// The run that holds an address.
    pub(crate) fn run_at(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, &end) = self.runs.range(..=address).next_back()?;
        (address < end).then_some((start, end))
    }

    /// True if the address is in the set.
    pub(crate) fn contains(&self, address: u64) -> bool {
        self.run_at(address).is_some()
    }

    /// True if `start..end` lies in one run.
    pub(crate) fn covers(&self, start: u64, end: u64) -> bool {
        self.runs.range(..=start).next_back().is_some_and(|(_, &last)| end <= last)
    }

    /// True if any address of `start..end` is in the set.
    pub(crate) fn meets(&self, start: u64, end: u64) -> bool {
        self.runs.range(..end).next_back().is_some_and(|(_, &last)| last > start)
    }

    /// Adds `start..end` and joins it with the runs that it touches.
    pub(crate) fn insert(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        while let Some((&run, &run_end)) = self.runs.range(..=end).next_back() {
            if run_end < start {
                break;
            }
            self.runs.remove(&run);
            start = start.min(run);
            end = end.max(run_end);
        }
        self.runs.insert(start, end);
    }

    /// Removes `start..end`.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        while let Some((&run, &run_end)) = self.runs.range(..end).next_back() {
            if run_end <= start {
                break;
            }
            self.runs.remove(&run);
            if run_end > end {
                self.runs.insert(end, run_end);
            }
            if run < start {
                self.runs.insert(run, start);
            }
        }
    }

    /// The parts of `start..end` that are in the set, by address.
    pub(crate) fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let first = self.run_at(start).map_or(start, |(first, _)| first);
        let parts = self.runs.range(first..end.max(first));
        parts.map(move |(&run, &last)| (run.max(start), last.min(end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_when_they_touch_and_part_when_a_middle_goes() {
        let mut ranges = Ranges::default();
        for (start, end) in [(10, 20), (30, 40), (20, 30), (50, 50)] {
            ranges.insert(start, end);
        }
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(10, 40)]);
        ranges.remove(15, 20);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(10, 15), (20, 40)]);
        assert_eq!(ranges.within(12, 25).collect::<Vec<_>>(), [(12, 15), (20, 25)]);
        assert!(ranges.contains(14) && !ranges.contains(15) && !ranges.contains(40));
        assert!(ranges.covers(20, 40) && !ranges.covers(14, 21) && !ranges.covers(39, 41));
        assert!(ranges.meets(14, 16) && !ranges.meets(15, 20) && !ranges.meets(40, 90));
    }
}
