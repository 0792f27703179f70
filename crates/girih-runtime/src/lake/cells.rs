//! Cells: which bytes of a window are held.
//!
//! A plan names every byte at which a block may begin or end. Those bytes cut the window into cells, and
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

/// The cells of a window: where each begins.
#[derive(Debug)]
pub(super) struct Cells {
    /// The first byte of each cell, ascending; the first is 0.
    starts: Vec<u64>,
    /// The first byte behind the last.
    end: u64,
}

/// A bit for each cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bits(Vec<u64>);

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
}

impl Cells {
    /// Cells of `[0, end)` that begin at `starts`, in any order and however often, and at byte 0. Starts
    /// beyond the end count for nothing.
    pub(super) fn new(end: u64, starts: impl IntoIterator<Item = u64>) -> Cells {
        let inside = starts.into_iter().filter(|&start| start < end);
        let mut starts: Vec<u64> = std::iter::once(0).chain(inside).collect();
        starts.sort_unstable();
        starts.dedup();
        Cells { starts, end }
    }

    /// Number of cells.
    pub(super) fn count(&self) -> usize {
        self.starts.len()
    }

    /// Bytes of all cells.
    pub(super) fn bytes(&self) -> u64 {
        self.end
    }

    /// All cells.
    pub(super) fn all(&self) -> Span {
        Span { first: 0, end: self.starts.len() as u32 }
    }

    /// The cells that `[offset, end)` touches, as far as there are cells; of an empty range, the one that it
    /// lies in.
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

    /// The cells that lie wholly in `[offset, end)`; none if there is none.
    pub(super) fn within(&self, offset: u64, end: u64) -> Option<Span> {
        let first = self.starts.partition_point(|&start| start < offset);
        let last = match end >= self.end {
            true => self.starts.len(),
            false => self.starts.partition_point(|&start| start <= end) - 1,
        };
        (first < last).then_some(Span { first: first as u32, end: last as u32 })
    }

    /// The first byte of a cell; of the cell after the last, the end.
    pub(super) fn start(&self, cell: u32) -> u64 {
        self.starts.get(cell as usize).copied().unwrap_or(self.end)
    }
}

impl Bits {
    /// As many bits as there are cells, all `set` or none.
    pub(super) fn new(cells: &Cells, set: bool) -> Bits {
        let mut bits = Bits(vec![0; cells.count().div_ceil(64)]);
        if set {
            bits.fill(cells.all(), true);
        }
        bits
    }

    /// True if any bit of the span is set.
    #[inline]
    pub(super) fn is_any(&self, span: Span) -> bool {
        let (low, high) = span.ends();
        let is_any = |(word, mask): (usize, u64)| self.0[word] & mask != 0;
        is_any(low)
            || high.is_some_and(|high| {
                is_any(high) || self.0[low.0 + 1..high.0].iter().any(|&word| word != 0)
            })
    }

    /// Sets the bits of the span. False, and nothing is set, if one of them is.
    #[inline]
    pub(super) fn take(&mut self, span: Span) -> bool {
        let (low, high) = span.ends();
        if high.is_some() {
            return self.take_words(span);
        }
        // Most blocks touch few cells.
        let word = &mut self.0[low.0];
        let is_free = *word & low.1 == 0;
        *word |= if is_free { low.1 } else { 0 };
        is_free
    }

    /// The same of cells whose bits lie in several words.
    #[inline(never)]
    fn take_words(&mut self, span: Span) -> bool {
        if self.is_any(span) {
            return false;
        }
        self.fill(span, true);
        true
    }

    /// Sets the bits of all cells of the span, or clears them.
    #[inline]
    pub(super) fn fill(&mut self, span: Span, set: bool) {
        let fill =
            |word: &mut u64, mask: u64| *word = if set { *word | mask } else { *word & !mask };
        let (low, high) = span.ends();
        fill(&mut self.0[low.0], low.1);
        if let Some(high) = high {
            fill(&mut self.0[high.0], high.1);
            // Mostly there is nothing in between, and a call to fill it would cost more than all of this.
            if low.0 + 1 < high.0 {
                self.0[low.0 + 1..high.0].fill(if set { u64::MAX } else { 0 });
            }
        }
    }

    /// The longest runs of cells within a span whose bits are `set`, or are not, in order.
    pub(super) fn runs(&self, within: Span, set: bool) -> impl Iterator<Item = Span> {
        let mut at = within.first;
        std::iter::from_fn(move || {
            let first = self.next(at, within.end, set)?;
            let end = self.next(first, within.end, !set).unwrap_or(within.end);
            at = end;
            Some(Span { first, end })
        })
    }

    /// The first cell in `[at, end)` whose bit is `set`, or is not.
    fn next(&self, at: u32, end: u32, set: bool) -> Option<u32> {
        if at >= end {
            return None;
        }
        let mut mask = u64::MAX << (at % 64);
        for word in at / 64..=(end - 1) / 64 {
            let bits = self.0[word as usize] ^ if set { 0 } else { u64::MAX };
            if bits & mask != 0 {
                let found = word * 64 + (bits & mask).trailing_zeros();
                return (found < end).then_some(found);
            }
            mask = u64::MAX;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The plain way: live blocks by offset, each with its end.
    fn is_free(live: &BTreeMap<u64, u64>, offset: u64, end: u64) -> bool {
        live.range(..end).next_back().is_none_or(|(_, &other)| other <= offset)
    }

    /// Cells up to a byte, of which none is held.
    fn cells(end: u64, starts: impl IntoIterator<Item = u64>) -> (Cells, Bits) {
        let cells = Cells::new(end, starts);
        let held = Bits::new(&cells, false);
        (cells, held)
    }

    #[test]
    fn blocks_on_first_bytes_of_cells_get_exactly_what_no_live_block_holds() {
        arbtest::arbtest(|u| {
            let starts: Vec<u64> = (0..u.int_in_range(1..=300)?)
                .map(|_| u.int_in_range(0..=500))
                .collect::<Result<_, _>>()?;
            let (cells, mut held) = cells(1000, starts.iter().copied());
            let mut live: BTreeMap<u64, u64> = BTreeMap::new();
            while !u.is_empty() {
                let offset = *u.choose(&starts)?;
                if u.ratio(1, 3)? {
                    if let Some(end) = live.remove(&offset) {
                        held.fill(cells.span(offset, end), false);
                    }
                    continue;
                }
                let longest = if u.ratio(1, 4)? { 400 } else { 20 };
                let end = offset + u.int_in_range(1..=longest)?;
                let free = is_free(&live, offset, end);
                let span = cells.span(offset, end);
                assert_eq!(held.take(span), free, "{offset}..{end} in {live:?}");
                if free {
                    live.insert(offset, end);
                }
            }
            let mut expected = Bits::new(&cells, false);
            for (&offset, &end) in &live {
                assert!(expected.take(cells.span(offset, end)));
            }
            assert_eq!(held, expected);
            Ok(())
        });
    }

    #[test]
    fn blocks_that_begin_anywhere_never_share_a_byte() {
        arbtest::arbtest(|u| {
            let starts: Vec<u64> = (0..u.int_in_range(0..=100)?)
                .map(|_| u.int_in_range(0..=500))
                .collect::<Result<_, _>>()?;
            let (cells, mut held) = cells(600, starts);
            let mut live: BTreeMap<u64, u64> = BTreeMap::new();
            while !u.is_empty() {
                let offset = u.int_in_range(0..=500)?;
                let end = offset + u.int_in_range(1..=60)?;
                if held.take(cells.span(offset, end)) {
                    assert!(is_free(&live, offset, end), "{offset}..{end} in {live:?}");
                    live.insert(offset, end);
                }
            }
            Ok(())
        });
    }

    #[test]
    fn runs_are_those_of_equal_bits_within_a_span() {
        arbtest::arbtest(|u| {
            let count: u32 = u.int_in_range(1..=200)?;
            let (cells, mut held) =
                cells(10 * u64::from(count), (0..u64::from(count)).map(|k| 10 * k));
            let mut expected = vec![false; count as usize];
            for cell in 0..count {
                if u.ratio(1, 3)? {
                    assert!(held.take(Span { first: cell, end: cell + 1 }));
                    expected[cell as usize] = true;
                }
            }
            let first = u.int_in_range(0..=count - 1)?;
            let within = Span { first, end: u.int_in_range(first + 1..=count)? };
            for set in [false, true] {
                let mut found = vec![!set; count as usize];
                let mut before = within.first;
                for run in held.runs(within, set) {
                    assert!(before <= run.first && run.first < run.end && run.end <= within.end);
                    found[run.range()].fill(set);
                    before = run.end + 1;
                }
                assert_eq!(found[within.range()], expected[within.range()]);
            }
            let span = cells.span(10 * u64::from(within.first), 10 * u64::from(within.end));
            assert_eq!(span, within);
            Ok(())
        });
    }

    #[test]
    fn cells_within_bytes_are_those_that_begin_and_end_there() {
        let (cells, _) = cells(100, [10, 30, 60]);
        let within = |from, to| cells.within(from, to).map(|span| (span.first, span.end));
        assert_eq!(within(0, 100), Some((0, 4)));
        assert_eq!(within(1, 100), Some((1, 4)));
        assert_eq!(within(10, 60), Some((1, 3)));
        assert_eq!(within(10, 59), Some((1, 2)));
        assert_eq!(within(11, 59), None);
        assert_eq!(within(60, 99), None);
    }

    #[test]
    fn a_span_of_many_words_is_taken_whole_and_given_whole() {
        let (cells, mut held) = cells(1000, 0..1000);
        let long = cells.span(10, 900);
        assert!(held.take(long) && !held.take(long));
        assert!(held.take(cells.span(0, 10)) && held.take(cells.span(900, 1000)));
        held.fill(long, false);
        assert!(!held.is_any(long) && held.take(cells.span(10, 11)));
    }
}
