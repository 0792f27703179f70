//! Bytes on the GPU at each operator, in blocks: bytes are added over a range, and the last operator that has more than
//! so many is asked for.

/// Operators of a block. A tree took twice as long: ranges are of some hundred operators.
const BLOCK: usize = 32;

/// Blocks of operators. Both operations are O(n / 32 + 32), where n are the operators of the range.
pub(crate) struct Room {
    /// Of each operator, without what is added to its block.
    bytes: Vec<i64>,
    /// The most of each block, what is added to it included.
    most: Vec<i64>,
    added: Vec<i64>,
}

impl Room {
    pub(crate) fn new(bytes: Vec<i64>) -> Room {
        let most: Vec<i64> = bytes.chunks(BLOCK).map(most_of).collect();
        Room { added: vec![0; most.len()], bytes, most }
    }

    /// Adds bytes over operators `from..to`.
    pub(crate) fn add(&mut self, from: u32, to: u32, bytes: i64) {
        let (mut from, to) = (from as usize, to as usize);
        while from < to {
            let block = from / BLOCK;
            let end = ((block + 1) * BLOCK).min(self.bytes.len());
            if from == block * BLOCK && end <= to {
                self.added[block] += bytes;
                self.most[block] += bytes;
            } else {
                self.bytes[from..end.min(to)].iter_mut().for_each(|own| *own += bytes);
                let own = most_of(&self.bytes[block * BLOCK..end]);
                self.most[block] = own + self.added[block];
            }
            from = end;
        }
    }

    /// The last operator of `from..end` that has more than `bytes`.
    pub(crate) fn last_above(&self, from: u32, end: u32, bytes: i64) -> Option<u32> {
        let (from, mut end) = (from as usize, end as usize);
        while from < end {
            let block = (end - 1) / BLOCK;
            let begin = (block * BLOCK).max(from);
            if self.most[block] > bytes {
                let above = bytes - self.added[block];
                let found = self.bytes[begin..end].iter().rposition(|&own| own > above);
                if let Some(at) = found {
                    return Some((begin + at) as u32);
                }
            }
            end = begin;
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
    fn blocks_say_what_a_list_says() {
        let mut rng = Rng::new(7);
        for length in (1..40).chain([63, 64, 65, 100, 200]) {
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
