//! Addresses without the emptiness between them.
//!
//! Segments lie far apart. Laid end to end in the order of their addresses, all that was ever held or
//! given is one line that can be drawn; the page turns an offset on it back into an address.
//!
//! ```text
//!  addresses   ....|=====|..............|==|=======|.....
//!  lanes           |  0  |              |     1    |
//!  offsets         0     5              5          15
//! ```

use crate::column::Column;

/// Runs of addresses, by address; those that touch are one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lanes {
    /// The first address, the bytes, and the offset of each.
    list: Vec<(u64, u64, u64)>,
}

impl Lanes {
    /// Joins ranges, each an address and bytes.
    pub fn of(mut ranges: Vec<(u64, u64)>) -> Lanes {
        ranges.sort_unstable();
        ranges.dedup();
        let mut list: Vec<(u64, u64, u64)> = Vec::new();
        for (address, bytes) in ranges {
            let end = address.saturating_add(bytes);
            match list.last_mut() {
                Some((first, size, _)) if *first + *size >= address => {
                    *size = (*size).max(end - *first);
                }
                _ => list.push((address, end - address, 0)),
            }
        }
        let mut offset = 0_u64;
        for lane in &mut list {
            lane.2 = offset;
            offset = offset.saturating_add(lane.1);
        }
        Lanes { list }
    }

    /// The offset of an address. One that lies in no lane is given that of the lane before.
    pub fn offset(&self, address: u64) -> u64 {
        let after = self.list.partition_point(|&(first, _, _)| first <= address);
        match after.checked_sub(1).map(|at| self.list[at]) {
            Some((first, bytes, offset)) => offset.saturating_add((address - first).min(bytes)),
            None => 0,
        }
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.list.last().map_or(0, |&(_, bytes, offset)| offset.saturating_add(bytes))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn write(&self, column: &mut Column) {
        column.push(self.list.len() as u64);
        for &(first, bytes, _) in &self.list {
            // An address may have more bits than a page can count.
            column.push(first >> 32);
            column.push(first & 0xffff_ffff);
            column.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_or_overlap_are_one_and_gaps_have_no_width() {
        let lanes = Lanes::of(vec![(100, 10), (50, 20), (70, 5), (60, 30), (110, 1)]);
        assert_eq!((lanes.count(), lanes.bytes()), (2, 51));
        assert_eq!([50, 89, 100, 110].map(|address| lanes.offset(address)), [0, 39, 40, 50]);
        assert_eq!((lanes.offset(3), Lanes::default().offset(3)), (0, 0));
        let last = Lanes::of(vec![(u64::MAX - 1, 9)]);
        assert_eq!((last.bytes(), last.offset(u64::MAX)), (1, 1));
    }
}
