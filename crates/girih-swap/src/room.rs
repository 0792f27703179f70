//! Bytes on the GPU at each operator, as a tree: bytes are added over a range, and the last operator that has more than so
//! many is asked for.
//!
//! ```text
//!  level 2   |               most of all               |
//!  level 1   |   most of 32   |   most of 32   |  ...  |
//!  level 0   | | | | operators| | | | | | | | || | | | |
//! ```
//!
//! Ranges are of some hundred operators mostly: two blocks that are walked and a few that are not.

/// Each node but those of the operators has so many below it, and a logarithm.
const BLOCK: usize = 1 << BLOCK_LOG;
const BLOCK_LOG: usize = 5;

/// A tree whose nodes have 32 nodes below them. Both operations are O(32 log n).
pub(crate) struct Room {
    /// From the operators up to the level of one block.
    levels: Vec<Level>,
}

/// The nodes of a level.
struct Level {
    /// The most of each, what is added to it included, without what is added above it.
    most: Vec<i64>,
    /// What is added to all that is below each.
    added: Vec<i64>,
}

impl Room {
    pub(crate) fn new(bytes: Vec<i64>) -> Room {
        // Nothing is added to all that is below an operator: it has nothing below it.
        let mut levels = vec![Level { most: bytes, added: Vec::new() }];
        while let Some(below) = levels.last()
            && below.most.len() > BLOCK
        {
            let most: Vec<i64> = below.most.chunks(BLOCK).map(most_of).collect();
            levels.push(Level { added: vec![0; most.len()], most });
        }
        Room { levels }
    }

    /// Adds bytes over operators `from..to`.
    pub(crate) fn add(&mut self, from: u32, to: u32, bytes: i64) {
        let (mut from, mut to) = (from as usize, to as usize);
        if from >= to {
            return;
        }
        let ends = [from, to - 1];
        for level in 0..self.levels.len() {
            if level > 0 {
                // What is only partly within the range contains one of its ends.
                let [first, last] = ends.map(|end| end >> (BLOCK_LOG * level));
                self.count(level, first);
                if last > first {
                    self.count(level, last);
                }
            }
            if from >= to {
                continue;
            }
            let is_last = level + 1 == self.levels.len();
            // Whole blocks are left to the next level.
            let (first, last) = (from.next_multiple_of(BLOCK), to / BLOCK * BLOCK);
            let is_within = is_last || first >= last;
            let own = &mut self.levels[level];
            let (left, right) =
                if is_within { (from..to, to..to) } else { (from..first, last..to) };
            for range in [left, right] {
                own.most[range.clone()].iter_mut().for_each(|own| *own += bytes);
                if level > 0 {
                    own.added[range].iter_mut().for_each(|own| *own += bytes);
                }
            }
            (from, to) = if is_within { (0, 0) } else { (first / BLOCK, last / BLOCK) };
        }
    }

    /// Counts the most of a node anew.
    fn count(&mut self, level: usize, node: usize) {
        let below = &self.levels[level - 1].most;
        let end = ((node + 1) * BLOCK).min(below.len());
        let most = most_of(&below[node * BLOCK..end]);
        let own = &mut self.levels[level];
        own.most[node] = most + own.added[node];
    }

    /// The last operator of `from..end` that has more than `bytes`.
    pub(crate) fn last_above(&self, from: u32, end: u32, bytes: i64) -> Option<u32> {
        let (from, end) = (from as usize, end as usize);
        if from >= end {
            return None;
        }
        let top = self.levels.len() - 1;
        self.last_of(top, 0..self.levels[top].most.len(), from..end, bytes).map(|op| op as u32)
    }

    /// Likewise, of the operators below some nodes that lie side by side.
    fn last_of(
        &self,
        level: usize,
        nodes: std::ops::Range<usize>,
        ops: std::ops::Range<usize>,
        bytes: i64,
    ) -> Option<usize> {
        let own = &self.levels[level];
        let shift = BLOCK_LOG * level;
        let begin = nodes.start.max(ops.start >> shift);
        let mut end = nodes.end.min(((ops.end - 1) >> shift) + 1);
        while begin < end {
            let above = own.most[begin..end].iter().rposition(|&most| most > bytes)?;
            let node = begin + above;
            if level == 0 {
                return Some(node);
            }
            let below = node * BLOCK..((node + 1) * BLOCK).min(self.levels[level - 1].most.len());
            let found = self.last_of(level - 1, below, ops.clone(), bytes - own.added[node]);
            if found.is_some() {
                return found;
            }
            end = node;
        }
        None
    }
}

fn most_of(bytes: &[i64]) -> i64 {
    // Four at a time, none of which waits for another.
    let mut most = [i64::MIN; 4];
    let mut fours = bytes.chunks_exact(4);
    for four in &mut fours {
        most.iter_mut().zip(four).for_each(|(most, &own)| *most = own.max(*most));
    }
    fours.remainder().iter().chain(&most).copied().fold(i64::MIN, i64::max)
}

#[cfg(test)]
mod tests {
    use girih_trace::generate::{Chance, Rng};

    use super::*;

    #[test]
    fn a_tree_says_what_a_list_says() {
        let mut rng = Rng::new(7);
        for length in (1..40).chain([63, 64, 65, 100, 200, 1023, 1024, 1025, 3000, 33_000]) {
            let mut list: Vec<i64> = (0..length).map(|_| rng.below(9) as i64).collect();
            let mut room = Room::new(list.clone());
            for _ in 0..50 {
                let from = rng.below(length) as u32;
                let to = from + rng.below(length - u64::from(from) + 1) as u32;
                let bytes = rng.below(9) as i64 - 4;
                room.add(from, to, bytes);
                list[from as usize..to as usize].iter_mut().for_each(|it| *it += bytes);
                let (end, above) = (rng.below(length + 1) as u32, rng.below(12) as i64 - 2);
                let from = rng.below(length + 1) as u32;
                let wanted = (from..end).rev().find(|&op| list[op as usize] > above);
                assert_eq!(room.last_above(from, end, above), wanted);
            }
        }
    }
}
