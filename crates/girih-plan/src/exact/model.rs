//! The instance as the search sees it: who is alive where, and who meets whom, as rows of bits.
//!
//! ```text
//!  items         0 1 2 3 4 5        One bit an item: a row for each section says who is alive in
//!  section 0     1 1 0 1 0 0        it, a row for each item says whom it meets. The row of what is
//!  section 1     0 1 1 1 0 0        not placed yet, laid over one of them, leaves those that still
//!  unplaced      1 0 1 1 1 1        matter, 64 at a time.
//! ```
//!
//! Sizes are divided by what divides them all. Every offset of a canonical solution is a sum of
//! sizes, so that heights in between are none, and the capacity moves in whole steps.

use crate::instance::Instance;

/// No item, no frame, no section.
pub(super) const NONE: u32 = u32::MAX;

/// What does not change during a search.
pub(super) struct Model {
    /// Number of sections; on a ring the last is followed by the first.
    pub(super) sections: u32,
    /// Units of the instance in a step, in which all sizes are counted here.
    pub(super) step: u64,
    /// Size of each item in steps.
    pub(super) sizes: Vec<u64>,
    /// Life of each item as ranges of sections; the second is empty if the item does not wrap.
    pub(super) lives: Vec<[(u32, u32); 2]>,
    /// For each item the one before it of the same size and life, which is to lie below it.
    pub(super) twins: Vec<u32>,
    /// A random number for each item, of which those of sets are made.
    pub(super) keys: Vec<u64>,
    /// 64-bit words in a row.
    pub(super) words: usize,
    alive: Vec<u64>,
    meets: Vec<u64>,
}

impl Model {
    /// Bytes that the rows may take. About 16,000 items with as many sections need as much.
    const MAX_BYTES: usize = 64 << 20;

    /// The model of `instance`; `None` if its rows would take too much memory.
    pub(super) fn new(instance: &Instance) -> Option<Model> {
        let items = &instance.items;
        let (count, sections) = (items.len(), instance.sections as usize);
        let words = count.div_ceil(64);
        if (count + sections).checked_mul(words)? > Model::MAX_BYTES / 8 {
            return None;
        }
        let step = items.iter().fold(0, |step, item| divisor(step, item.size)).max(1);
        let lives: Vec<_> = items.iter().map(|item| instance.pieces(item)).collect();
        let alive = alive(&lives, sections, words);
        Some(Model {
            sections: instance.sections,
            step,
            sizes: items.iter().map(|item| item.size / step).collect(),
            twins: twins(instance),
            keys: (0..count as u64).map(mix).collect(),
            words,
            meets: meets(&lives, &alive, words),
            lives,
            alive,
        })
    }

    /// The row of the items alive in `section`.
    pub(super) fn alive(&self, section: u32) -> &[u64] {
        let from = section as usize * self.words;
        &self.alive[from..from + self.words]
    }

    /// The row of the items that `item` meets, without itself.
    pub(super) fn meets(&self, item: usize) -> &[u64] {
        &self.meets[item * self.words..(item + 1) * self.words]
    }

    /// The sections in which `item` lives.
    pub(super) fn life(&self, item: usize) -> impl Iterator<Item = u32> + use<> {
        let [(from, to), (again, end)] = self.lives[item];
        (from..to).chain(again..end)
    }
}

/// The row of each section.
fn alive(lives: &[[(u32, u32); 2]], sections: usize, words: usize) -> Vec<u64> {
    let mut alive = vec![0; sections * words];
    for (item, pieces) in lives.iter().enumerate() {
        for section in pieces.iter().flat_map(|&(from, to)| from..to) {
            alive[section as usize * words + item / 64] |= 1 << (item % 64);
        }
    }
    alive
}

/// The row of each item: those of its sections together. The items born within its life are all
/// in the rows of its sections, so that the first of each piece and the births would do; rows are
/// short, and this is done once.
fn meets(lives: &[[(u32, u32); 2]], alive: &[u64], words: usize) -> Vec<u64> {
    let mut meets = vec![0; lives.len() * words];
    for (item, pieces) in lives.iter().enumerate() {
        let row = &mut meets[item * words..(item + 1) * words];
        for section in pieces.iter().flat_map(|&(from, to)| from as usize..to as usize) {
            let others = &alive[section * words..(section + 1) * words];
            row.iter_mut().zip(others).for_each(|(mine, others)| *mine |= others);
        }
        row[item / 64] &= !(1 << (item % 64));
    }
    meets
}

/// For each item the one before it that is equal.
fn twins(instance: &Instance) -> Vec<u32> {
    let items = &instance.items;
    let kind = |item: u32| {
        let item = items[item as usize];
        (item.lower, item.upper, item.size)
    };
    let mut by_kind: Vec<u32> = (0..items.len() as u32).collect();
    by_kind.sort_by_key(|&item| (kind(item), item));
    let mut twins = vec![NONE; items.len()];
    for pair in by_kind.windows(2).filter(|pair| kind(pair[0]) == kind(pair[1])) {
        twins[pair[1] as usize] = pair[0];
    }
    twins
}

/// The greatest common divisor; that of 0 and `b` is `b`.
fn divisor(a: u64, b: u64) -> u64 {
    if a == 0 { b } else { divisor(b % a, a) }
}

/// A hash of 64 bits to 64 bits (the finalizer of SplitMix64).
pub(super) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The items that are in both rows, ascending.
pub(super) fn in_both<'a>(one: &'a [u64], other: &'a [u64]) -> Both<'a> {
    Both { rows: one.iter().zip(other), bits: 0, base: 0usize.wrapping_sub(64) }
}

/// See [`in_both`].
pub(super) struct Both<'a> {
    rows: std::iter::Zip<std::slice::Iter<'a, u64>, std::slice::Iter<'a, u64>>,
    bits: u64,
    base: usize,
}

impl Iterator for Both<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        while self.bits == 0 {
            let (one, other) = self.rows.next()?;
            self.bits = one & other;
            self.base = self.base.wrapping_add(64);
        }
        let bit = self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        Some(self.base.wrapping_add(bit))
    }
}
