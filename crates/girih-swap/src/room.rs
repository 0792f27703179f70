//! Bytes on the GPU at each operator, as a tree: bytes are added over a range, and the most of a range is asked.

/// A tree over operators. Both operations are O(log n).
pub(crate) struct Room {
    leaves: usize,
    /// The most of each node, without what is added to those above it.
    most: Vec<i64>,
    added: Vec<i64>,
}

impl Room {
    pub(crate) fn new(bytes: &[i64]) -> Room {
        let leaves = bytes.len().next_power_of_two().max(1);
        let mut most = vec![i64::MIN / 2; 2 * leaves];
        most[leaves..leaves + bytes.len()].copy_from_slice(bytes);
        for node in (1..leaves).rev() {
            most[node] = most[2 * node].max(most[2 * node + 1]);
        }
        Room { leaves, most, added: vec![0; 2 * leaves] }
    }

    /// Adds bytes over operators `from..to`.
    pub(crate) fn add(&mut self, from: u32, to: u32, bytes: i64) {
        if from < to {
            self.add_below(1, 0, self.leaves, (from as usize, to as usize), bytes);
        }
    }

    fn add_below(&mut self, node: usize, start: usize, width: usize, to: (usize, usize), by: i64) {
        if to.1 <= start || start + width <= to.0 {
            return;
        }
        if to.0 <= start && start + width <= to.1 {
            self.most[node] += by;
            self.added[node] += by;
            return;
        }
        let half = width / 2;
        self.add_below(2 * node, start, half, to, by);
        self.add_below(2 * node + 1, start + half, half, to, by);
        self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]) + self.added[node];
    }

    /// The last operator below `end` that has more than `bytes`.
    pub(crate) fn last_above(&self, end: u32, bytes: i64) -> Option<u32> {
        self.last_below(1, 0, self.leaves, end as usize, bytes).map(|op| op as u32)
    }

    fn last_below(
        &self,
        node: usize,
        start: usize,
        width: usize,
        end: usize,
        above: i64,
    ) -> Option<usize> {
        if start >= end || self.most[node] <= above {
            return None;
        }
        if width == 1 {
            return Some(start);
        }
        let (half, above) = (width / 2, above - self.added[node]);
        self.last_below(2 * node + 1, start + half, half, end, above)
            .or_else(|| self.last_below(2 * node, start, half, end, above))
    }
}

#[cfg(test)]
mod tests {
    use girih_trace::generate::{Chance, Rng};

    use super::*;

    #[test]
    fn the_tree_says_what_a_list_says() {
        let mut rng = Rng::new(7);
        for length in 1..40 {
            let mut list: Vec<i64> = (0..length).map(|_| rng.below(9) as i64).collect();
            let mut room = Room::new(&list);
            for _ in 0..50 {
                let from = rng.below(length) as u32;
                let to = from + rng.below(length - u64::from(from) + 1) as u32;
                let bytes = rng.below(9) as i64 - 4;
                room.add(from, to, bytes);
                list[from as usize..to as usize].iter_mut().for_each(|it| *it += bytes);
                let (end, above) = (rng.below(length + 1) as u32, rng.below(12) as i64 - 2);
                let wanted = (0..end).rev().find(|&op| list[op as usize] > above);
                assert_eq!(room.last_above(end, above), wanted);
            }
        }
    }
}
