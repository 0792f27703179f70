//! Cells: which bytes of a region are held.
//!
//! A plan names every byte at which a block may begin. Those bytes cut the region into cells, and
//! one bit for each cell says whether a live block holds any of it:
//!
//! ```text
//!  cells    |  0  | 1 |    2    |   3   |    4    |
//!  blocks    aaaaaaaaa           bbbb      .            a holds 0 and 1, b holds 3
//! ```
//!
//! Blocks that hold different cells share no byte, wherever they begin: this is the guard. Nor is a
//! place refused without need. A block that touches a cell and begins on the first byte of one has
//! the touched cell's first byte; so two such blocks that share a cell share that byte. To ask, to
//! hold and to let go cost a few words of bits.

/// The cells of a region.
#[derive(Debug)]
pub(super) struct Cells {
    /// The first byte of each cell, ascending; the first is 0.
    starts: Vec<u64>,
    /// A bit for each cell: held.
    held: Vec<u64>,
}

/// A run of cells, `[first, end)`, not empty: those that a block touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) first: u32,
    pub(super) end: u32,
}

impl Span {
    /// The cells as indices.
    pub(super) fn range(self) -> std::ops::Range<usize> {
        self.first as usize..self.end as usize
    }

    /// The first word that holds bits of the cells, with the mask of these bits, and the last one if it
    /// is another. Of the words in between they have all bits.
    #[inline]
    fn ends(self) -> ((usize, u64), Option<(usize, u64)>) {
        let (first, last) = (self.first as usize, self.end as usize - 1);
        let (low, high) = (u64::MAX << (first % 64), u64::MAX >> (63 - last % 64));
        match (first / 64, last / 64) {
            (word, end) if word == end => ((word, low & high), None),
            (word, end) => ((word, low), Some((end, high))),
        }
    }

    /// The words that hold the bits of the cells, each with the mask of these bits.
    fn words(self) -> impl Iterator<Item = (usize, u64)> + Clone {
        let (first, last) = (self.first as usize, self.end as usize - 1);
        let (low, high) = (u64::MAX << (first % 64), u64::MAX >> (63 - last % 64));
        (first / 64..=last / 64).map(move |word| {
            let from = if word == first / 64 { low } else { u64::MAX };
            let to = if word == last / 64 { high } else { u64::MAX };
            (word, from & to)
        })
    }
}

impl Cells {
    /// Cells that begin at `starts`, in any order and however often, and at byte 0. None is held.
    pub(super) fn new(starts: impl IntoIterator<Item = u64>) -> Cells {
        let mut starts: Vec<u64> = std::iter::once(0).chain(starts).collect();
        starts.sort_unstable();
        starts.dedup();
        let held = vec![0; starts.len().div_ceil(64)];
        Cells { starts, held }
    }

    /// Number of cells.
    pub(super) fn count(&self) -> usize {
        self.starts.len()
    }

    /// The cells that `[offset, end)` touches; of an empty range, the one that it lies in.
    pub(super) fn span(&self, offset: u64, end: u64) -> Span {
        let first = self.starts.partition_point(|&start| start <= offset) - 1;
        // Most blocks touch few cells: look near by, then twice as far, and so on.
        let (mut near, mut far) = (first + 1, first + 8);
        while far < self.starts.len() && self.starts[far] < end {
            (near, far) = (far, 2 * far - first);
        }
        let behind = &self.starts[near..far.min(self.starts.len())];
        let end = near + behind.partition_point(|&start| start < end);
        Span { first: first as u32, end: end as u32 }
    }

    /// True if a block holds any cell of the span.
    #[inline]
    pub(super) fn is_held(&self, span: Span) -> bool {
        let (low, high) = span.ends();
        let is_held = |(word, mask): (usize, u64)| self.held[word] & mask != 0;
        is_held(low)
            || high.is_some_and(|high| {
                is_held(high) || self.held[low.0 + 1..high.0].iter().any(|&word| word != 0)
            })
    }

    /// Holds the cells of the span. False, and nothing held, if one of them is.
    #[inline]
    pub(super) fn take(&mut self, span: Span) -> bool {
        let ends = span.ends();
        if let (low, None) = ends {
            // Most blocks touch few cells.
            let word = &mut self.held[low.0];
            let is_free = *word & low.1 == 0;
            *word |= if is_free { low.1 } else { 0 };
            return is_free;
        }
        if self.is_held(span) {
            return false;
        }
        self.fill(span, true);
        true
    }

    /// Sets the bits of all cells of the span, or clears them.
    fn fill(&mut self, span: Span, held: bool) {
        let set =
            |word: &mut u64, mask: u64| *word = if held { *word | mask } else { *word & !mask };
        let (low, high) = span.ends();
        set(&mut self.held[low.0], low.1);
        if let Some(high) = high {
            self.held[low.0 + 1..high.0].fill(if held { u64::MAX } else { 0 });
            set(&mut self.held[high.0], high.1);
        }
    }

    /// Lets go of the cells of the span.
    #[inline]
    pub(super) fn give(&mut self, span: Span) {
        debug_assert!(
            span.words().all(|(word, mask)| self.held[word] & mask == mask),
            "cells that were not held are given back"
        );
        match span.ends() {
            ((word, mask), None) => self.held[word] &= !mask,
            _ => self.fill(span, false),
        }
    }

    /// The runs of cells that neither a block nor `avoided` has, from the highest down.
    pub(super) fn free_runs(&self, avoided: &[Span]) -> impl Iterator<Item = Span> {
        let mut held = self.held.clone();
        for (word, mask) in avoided.iter().flat_map(|span| span.words()) {
            held[word] |= mask;
        }
        let mut below = self.count() as u32;
        std::iter::from_fn(move || {
            let end = last_before(&held, below, |held| !held)? + 1;
            below = last_before(&held, end, |held| held).map_or(0, |held| held + 1);
            Some(Span { first: below, end })
        })
    }

    /// The first byte of a cell; of the cell after the last, `u64::MAX`.
    pub(super) fn start(&self, cell: u32) -> u64 {
        self.starts.get(cell as usize).copied().unwrap_or(u64::MAX)
    }

    /// True if no cell is held.
    pub(super) fn is_empty(&self) -> bool {
        self.held.iter().all(|&word| word == 0)
    }

    /// True if exactly the cells of `spans` are held, each by one of them.
    pub(super) fn are_held_by(&self, spans: impl IntoIterator<Item = Span>) -> bool {
        let mut cells = Cells { starts: Vec::new(), held: vec![0; self.held.len()] };
        spans.into_iter().all(|span| cells.take(span)) && cells.held == self.held
    }
}

/// The last cell before `below` whose word, as `choose` sees it, has its bit set.
fn last_before(held: &[u64], below: u32, choose: impl Fn(u64) -> u64) -> Option<u32> {
    let below = below as usize;
    let mut mask = (1u64 << (below % 64)) - 1;
    for word in (0..=below / 64).rev() {
        let bits = held.get(word).map_or(0, |&held| choose(held)) & mask;
        if bits != 0 {
            return Some(word as u32 * 64 + 63 - bits.leading_zeros());
        }
        mask = u64::MAX;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The plain way: live blocks by offset, each with its end.
    fn is_free(live: &BTreeMap<u64, u64>, offset: u64, end: u64) -> bool {
        live.range(..end).next_back().is_none_or(|(_, &other)| other <= offset)
    }

    #[test]
    fn blocks_on_first_bytes_of_cells_get_exactly_what_no_live_block_holds() {
        arbtest::arbtest(|u| {
            let starts: Vec<u64> = (0..u.int_in_range(1..=300)?)
                .map(|_| u.int_in_range(0..=500))
                .collect::<Result<_, _>>()?;
            let mut cells = Cells::new(starts.iter().copied());
            let mut live: BTreeMap<u64, u64> = BTreeMap::new();
            while !u.is_empty() {
                let offset = *u.choose(&starts)?;
                if u.ratio(1, 3)? {
                    if let Some(end) = live.remove(&offset) {
                        cells.give(cells.span(offset, end));
                    }
                    continue;
                }
                let longest = if u.ratio(1, 4)? { 400 } else { 20 };
                let end = offset + u.int_in_range(1..=longest)?;
                let free = is_free(&live, offset, end);
                assert_eq!(
                    cells.take(cells.span(offset, end)),
                    free,
                    "{offset}..{end} in {live:?}"
                );
                if free {
                    live.insert(offset, end);
                }
            }
            let spans: Vec<Span> = live.iter().map(|(&at, &end)| cells.span(at, end)).collect();
            assert!(cells.are_held_by(spans));
            Ok(())
        });
    }

    #[test]
    fn blocks_that_begin_anywhere_never_share_a_byte() {
        arbtest::arbtest(|u| {
            let starts: Vec<u64> = (0..u.int_in_range(0..=100)?)
                .map(|_| u.int_in_range(0..=500))
                .collect::<Result<_, _>>()?;
            let mut cells = Cells::new(starts);
            let mut live: BTreeMap<u64, u64> = BTreeMap::new();
            while !u.is_empty() {
                let offset = u.int_in_range(0..=500)?;
                let end = offset + u.int_in_range(1..=60)?;
                if cells.take(cells.span(offset, end)) {
                    assert!(is_free(&live, offset, end), "{offset}..{end} in {live:?}");
                    live.insert(offset, end);
                }
            }
            Ok(())
        });
    }

    #[test]
    fn the_free_runs_are_found_from_the_highest_down() {
        arbtest::arbtest(|u| {
            let count: u32 = u.int_in_range(1..=200)?;
            let mut cells = Cells::new((0..u64::from(count)).map(|k| 10 * k));
            let mut held = vec![false; count as usize];
            let mut avoided = Vec::new();
            for cell in 0..count {
                let span = Span { first: cell, end: cell + 1 };
                if u.ratio(1, 3)? {
                    assert!(cells.take(span));
                    held[cell as usize] = true;
                }
                if u.ratio(1, 9)? {
                    avoided.push(span);
                    held[cell as usize] = true;
                }
            }
            let mut found = vec![true; count as usize];
            let mut below = count;
            for run in cells.free_runs(&avoided) {
                assert!(run.first < run.end && run.end <= below, "{run:?} below {below}");
                found[run.range()].fill(false);
                below = run.first;
            }
            assert_eq!(found, held);
            Ok(())
        });
    }

    #[test]
    fn a_span_of_many_words_is_taken_whole_and_given_whole() {
        let mut cells = Cells::new(0..1000);
        let long = cells.span(10, 900);
        assert!(cells.take(long) && !cells.take(long));
        assert!(cells.take(cells.span(0, 10)) && cells.take(cells.span(900, 1000)));
        cells.give(long);
        assert!(!cells.is_held(long) && cells.take(cells.span(10, 11)));
    }
}
