//! Sequences of operators that are known, and where in them a step is.
//!
//! ```text
//!  sequence A   a b c d e f g h
//!  sequence B   a b c x y z
//!  a step       a b c d e | x y z ...        lost at x; at z the hash of the window is B's: B is followed
//! ```
//!
//! A change of the program (a validation, a skipped optimizer, another branch) so changes the sequence, in the middle
//! of a step if need be; nothing starts over. Sizes have no part in keys: a step of another length is followed along
//! the same sequence.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use rustc_hash::FxHashMap;

/// Operators of a window.
pub const WINDOW: usize = 16;
/// Sequences that are kept; the one that was of use the longest ago goes first.
pub const SEQUENCES_MAX: usize = 8;
/// The base of the rolling hash; any odd number does.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Sequence {
    keys: Vec<u64>,
    /// The hash of all of it.
    hash: u64,
    used: u64,
}

/// The sequences that are known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sequences {
    list: Vec<Sequence>,
    /// Where each window of operators ends, by its hash: sequence and operator.
    windows: FxHashMap<u64, Vec<(u32, u32)>>,
    /// The one that was of use last.
    last: usize,
    clock: u64,
}

fn hash(keys: &[u64]) -> u64 {
    keys.iter().fold(0, |hash, &key| roll(hash, key, 0))
}

/// The hash with one more key, and without one that was `WINDOW` ago.
fn roll(hash: u64, key: u64, gone: u64) -> u64 {
    let power = BASE.wrapping_pow(WINDOW as u32);
    hash.wrapping_mul(BASE).wrapping_add(key).wrapping_sub(gone.wrapping_mul(power))
}

impl Sequences {
    /// Keeps a sequence. Its number: the same if it is known; else a new one, or that of the one that was of use the
    /// longest ago, which is forgotten.
    pub fn learn(&mut self, keys: &[u64]) -> usize {
        self.clock += 1;
        let (hash, used) = (hash(keys), self.clock);
        if let Some(known) = self.list.iter().position(|other| other.hash == hash) {
            self.list[known].used = used;
            self.last = known;
            return known;
        }
        let sequence = Sequence { keys: keys.to_vec(), hash, used };
        let number = if self.list.len() < SEQUENCES_MAX {
            self.list.push(sequence);
            self.list.len() - 1
        } else {
            let oldest = (0..self.list.len()).min_by_key(|&at| self.list[at].used).unwrap_or(0);
            self.list[oldest] = sequence;
            oldest
        };
        self.last = number;
        self.index();
        number
    }

    /// The number of exactly this sequence.
    pub fn find(&self, keys: &[u64]) -> Option<usize> {
        let hash = hash(keys);
        self.list.iter().position(|other| other.hash == hash)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// The keys of a sequence.
    pub fn keys(&self, number: usize) -> &[u64] {
        &self.list[number].keys
    }

    /// A step ended along a sequence.
    pub fn note_use(&mut self, number: usize) {
        self.clock += 1;
        self.list[number].used = self.clock;
        self.last = number;
    }

    /// A step begins: along the sequence that was of use last, as long as it does what that did.
    pub fn begin(&self) -> Cursor {
        Cursor {
            place: (!self.list.is_empty()).then_some((self.last, None)),
            window: VecDeque::with_capacity(WINDOW),
            hash: 0,
            changes: 0,
            lost: 0,
        }
    }

    fn index(&mut self) {
        self.windows.clear();
        for (number, sequence) in (0u32..).zip(&self.list) {
            let mut hash = 0;
            for (at, &key) in sequence.keys.iter().enumerate() {
                let gone = at.checked_sub(WINDOW).map_or(0, |at| sequence.keys[at]);
                hash = roll(hash, key, gone);
                if at + 1 >= WINDOW {
                    self.windows.entry(hash).or_default().push((number, at as u32));
                }
            }
        }
    }
}

/// Where a step is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// The sequence, and the operator of it that ran last; none before its first.
    place: Option<(usize, Option<u32>)>,
    window: VecDeque<u64>,
    hash: u64,
    changes: u32,
    lost: u32,
}

impl Cursor {
    /// The sequence, and the operator of it that ran last, if the step was not lost since; else where it was lost.
    pub fn place(&self) -> Option<(usize, Option<u32>)> {
        self.place
    }

    /// How often another sequence, or another place of one, was taken up.
    pub fn changes(&self) -> u32 {
        self.changes
    }

    /// Operators at which no sequence was known.
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// Goes one operator further. The sequence, and the operators of it that are over with it: one, or all up to where
    /// the step is found again. None while it is lost.
    pub fn advance(
        &mut self,
        sequences: &Sequences,
        key: u64,
    ) -> Option<(usize, RangeInclusive<u32>)> {
        let gone = match self.window.len() == WINDOW {
            true => self.window.pop_front().unwrap_or(0),
            false => 0,
        };
        self.window.push_back(key);
        self.hash = roll(self.hash, key, gone);
        if let Some((number, at)) = self.place {
            let next = at.map_or(0, |at| at + 1);
            if sequences.list[number].keys.get(next as usize) == Some(&key) {
                self.place = Some((number, Some(next)));
                return Some((number, next..=next));
            }
        }
        let found = self.find(sequences)?;
        self.changes += 1;
        self.place = Some((found.0, Some(found.1)));
        Some((found.0, 0..=found.1))
    }

    /// Where the last operators are: in the sequence that was followed, the nearest that is further on; else in the one
    /// that was of use last. Where the step is lost, the place that is known stays: it may come back to it.
    fn find(&mut self, sequences: &Sequences) -> Option<(usize, u32)> {
        let places = sequences.windows.get(&self.hash);
        let places = places.filter(|_| self.window.len() == WINDOW);
        let Some(places) = places else {
            self.lost += 1;
            return None;
        };
        let current = self.place.map(|(number, at)| (number as u32, at.unwrap_or(0)));
        let order = |&(number, at): &(u32, u32)| match current {
            Some((own, from)) if own == number && at > from => (0, u64::from(at - from)),
            Some((own, from)) if own == number => (2, u64::from(from - at)),
            _ => (1, u64::MAX - sequences.list[number as usize].used),
        };
        places.iter().min_by_key(|place| order(place)).map(|&(number, at)| (number as usize, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a step of these keys was at each, as sequence and operator.
    fn walk(sequences: &Sequences, keys: &[u64]) -> Vec<Option<(usize, u32)>> {
        let mut cursor = sequences.begin();
        let mut at = |&key| cursor.advance(sequences, key).map(|(of, over)| (of, *over.end()));
        keys.iter().map(&mut at).collect()
    }

    #[test]
    fn a_step_that_does_something_else_is_found_in_the_sequence_that_does_it() {
        let mut sequences = Sequences::default();
        let (train, validate): (Vec<u64>, Vec<u64>) = ((0..100).collect(), (500..560).collect());
        assert_eq!(sequences.learn(&validate), 0);
        assert_eq!(sequences.learn(&train), 1);
        assert_eq!(sequences.learn(&train), 1, "it is known");
        let along: Vec<_> = (0..100).map(|at| Some((1, at))).collect();
        assert_eq!(walk(&sequences, &train), along);
        let changed: Vec<u64> = train[..30].iter().chain(&validate[..40]).copied().collect();
        let seen = walk(&sequences, &changed);
        assert_eq!(seen[29], Some((1, 29)));
        assert!(seen[30..45].iter().all(Option::is_none), "the window is of both");
        assert_eq!(seen[45], Some((0, 15)));
        assert_eq!(seen[69], Some((0, 39)));
    }

    #[test]
    fn a_step_that_leaves_something_out_is_found_further_on() {
        let mut sequences = Sequences::default();
        let keys: Vec<u64> = (0..100).map(|at| at % 7 + at / 10).collect();
        sequences.learn(&keys);
        let skipped: Vec<u64> = keys[..40].iter().chain(&keys[50..]).copied().collect();
        let seen = walk(&sequences, &skipped);
        assert_eq!(seen[39], Some((0, 39)));
        assert_eq!(seen.last(), Some(&Some((0, 99))));
    }

    #[test]
    fn the_one_that_was_of_use_the_longest_ago_is_forgotten() {
        let mut sequences = Sequences::default();
        let keys = |number: u64| -> Vec<u64> { (number * 1000..number * 1000 + 50).collect() };
        for number in 0..SEQUENCES_MAX as u64 {
            sequences.learn(&keys(number));
        }
        sequences.note_use(0);
        assert_eq!(sequences.learn(&keys(99)), 1);
        assert_eq!(sequences.count(), SEQUENCES_MAX);
        assert_eq!((sequences.find(&keys(0)), sequences.find(&keys(1))), (Some(0), None));
    }
}
