//! The free blocks of one home, ordered by size.
//!
//! Best fit asks for the first block of at least some size; ties fall by registration number, then
//! by address. The set is a list of sorted chunks, a B-tree of two levels: a search looks into one
//! chunk, an insertion moves part of one chunk. Chunks are kept when they become empty, so that a
//! set that has grown takes no memory from the host.
//!
//! ```text
//!  chunks:  [ 512 512 1024 2048 ]  [ 4096 4096 20M ]  [ 64M 1G ]
//!                                            ▲ lower_bound(5000)
//! ```

use crate::device::Address;
use crate::policy::BlockId;

/// Most entries of a chunk. 64 entries are 24 cache lines; moving half of them costs less than one
/// miss to memory.
const CHUNK: usize = 64;

/// A free block with its key. The order is that of the fields.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Entry {
    pub(crate) size: u64,
    /// 0 where addresses alone decide; see [`TieOrder`](crate::caching::TieOrder).
    pub(crate) registration: u32,
    pub(crate) address: Address,
    pub(crate) block: BlockId,
}

impl Entry {
    /// True if it comes before `other`. Without short cuts, so that a binary search compiles to
    /// conditional moves: which half is taken is no processor's guess.
    #[inline]
    fn is_before(&self, other: &Entry) -> bool {
        let by_address = (self.registration == other.registration) & (self.address < other.address);
        let by_tie = (self.registration < other.registration) | by_address;
        (self.size < other.size) | ((self.size == other.size) & by_tie)
    }
}

/// A place in a [`FreeSet`]: valid until the set changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Cursor {
    chunk: usize,
    at: usize,
}

/// An ordered set of free blocks.
#[derive(Debug, Default)]
pub(crate) struct FreeSet {
    /// Sorted; none of them is empty.
    chunks: Vec<Vec<Entry>>,
    /// Empty chunks that were in use once.
    spare: Vec<Vec<Entry>>,
    /// Where an entry was put last. A program often frees what it was given last: then what that was cut
    /// from is still there, and need not be sought.
    latest: Cursor,
}

impl FreeSet {
    /// The first entry of at least `size` bytes.
    #[inline]
    pub(crate) fn lower_bound(&self, size: u64) -> Cursor {
        self.seek(|entry| entry.size < size)
    }

    /// The entry at a cursor; none at the end.
    #[inline]
    pub(crate) fn get(&self, cursor: Cursor) -> Option<&Entry> {
        self.chunks.get(cursor.chunk).map(|chunk| &chunk[cursor.at])
    }

    /// The place after `cursor`, which is not the end.
    pub(crate) fn next(&self, cursor: Cursor) -> Cursor {
        if cursor.at + 1 < self.chunks[cursor.chunk].len() {
            Cursor { at: cursor.at + 1, ..cursor }
        } else {
            Cursor { chunk: cursor.chunk + 1, at: 0 }
        }
    }

    /// The place before `cursor`; none before the first.
    pub(crate) fn prev(&self, cursor: Cursor) -> Option<Cursor> {
        if cursor.at > 0 {
            return Some(Cursor { at: cursor.at - 1, ..cursor });
        }
        let chunk = cursor.chunk.checked_sub(1)?;
        Some(Cursor { chunk, at: self.chunks[chunk].len() - 1 })
    }

    /// Adds an entry, which is not in the set.
    pub(crate) fn insert(&mut self, entry: Entry) {
        let mut place = self.seek(|other| other.is_before(&entry));
        if place.chunk == self.chunks.len() {
            // Beyond everything: append to the last chunk.
            match self.chunks.last() {
                Some(last) => place = Cursor { chunk: place.chunk - 1, at: last.len() },
                None => {
                    let chunk = self.fresh_chunk();
                    self.chunks.push(chunk);
                }
            }
        }
        if self.chunks[place.chunk].len() == CHUNK {
            let mut upper = self.fresh_chunk();
            let lower = &mut self.chunks[place.chunk];
            upper.extend(lower.drain(CHUNK / 2..));
            self.chunks.insert(place.chunk + 1, upper);
            if place.at > CHUNK / 2 {
                place = Cursor { chunk: place.chunk + 1, at: place.at - CHUNK / 2 };
            }
        }
        self.chunks[place.chunk].insert(place.at, entry);
        self.latest = place;
    }

    /// Removes the entry at a cursor and returns its block.
    pub(crate) fn remove_at(&mut self, cursor: Cursor) -> BlockId {
        let chunk = &mut self.chunks[cursor.chunk];
        let entry = chunk.remove(cursor.at);
        if chunk.is_empty() {
            let empty = self.chunks.remove(cursor.chunk);
            self.spare.push(empty);
        }
        entry.block
    }

    /// Puts `entry` in the place of another one, which goes. The chunk is kept if the order allows:
    /// then one run of entries moves by one place.
    #[inline]
    pub(crate) fn replace(&mut self, cursor: Cursor, entry: Entry) {
        let Cursor { chunk: place, at } = cursor;
        let is_last = place + 1 == self.chunks.len();
        let chunk = self.chunks[place].as_mut_slice();
        // Mostly the order of the entries beside it allows the new one where the old one is.
        let is_behind = match at.checked_sub(1) {
            Some(before) => !entry.is_before(&chunk[before]),
            None => place == 0,
        };
        let is_ahead = match chunk.get(at + 1) {
            Some(behind) => !behind.is_before(&entry),
            None => is_last,
        };
        if is_behind && is_ahead {
            chunk[at] = entry;
            self.latest = cursor;
            return;
        }
        self.replace_elsewhere(cursor, entry);
    }

    /// The same where the new entry has not the place of the old one.
    #[inline(never)]
    fn replace_elsewhere(&mut self, cursor: Cursor, entry: Entry) {
        let Cursor { chunk: place, at } = cursor;
        let is_last = place + 1 == self.chunks.len();
        let chunk = self.chunks[place].as_mut_slice();
        let stays = (place == 0 || !entry.is_before(&chunk[0]))
            && (is_last || !chunk[chunk.len() - 1].is_before(&entry));
        if !stays {
            self.remove_at(cursor);
            self.insert(entry);
            return;
        }
        let to = if entry.is_before(&chunk[at]) {
            let to = chunk[..at].partition_point(|other| other.is_before(&entry));
            chunk.copy_within(to..at, to + 1);
            to
        } else {
            let to = at + chunk[at + 1..].partition_point(|other| other.is_before(&entry));
            chunk.copy_within(at + 1..=to, at);
            to
        };
        chunk[to] = entry;
        self.latest = Cursor { at: to, ..cursor };
    }

    /// Where an entry is, if it is in the set.
    #[inline]
    pub(crate) fn find(&self, entry: &Entry) -> Option<Cursor> {
        let latest = self.latest;
        let there = self.chunks.get(latest.chunk).and_then(|chunk| chunk.get(latest.at));
        if there == Some(entry) {
            return Some(latest);
        }
        self.seek_entry(entry)
    }

    #[inline(never)]
    fn seek_entry(&self, entry: &Entry) -> Option<Cursor> {
        let place = self.seek(|other| other.is_before(entry));
        self.get(place).is_some_and(|other| other.block == entry.block).then_some(place)
    }

    /// Removes an entry. Returns false if it was not in the set.
    pub(crate) fn remove(&mut self, entry: &Entry) -> bool {
        let found = self.find(entry);
        if let Some(place) = found {
            self.remove_at(place);
        }
        found.is_some()
    }

    /// Every entry in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.chunks.iter().flatten()
    }

    /// The entries from a cursor on, in order, with their places.
    #[inline]
    pub(crate) fn iter_from(&self, first: Cursor) -> impl Iterator<Item = (Cursor, &Entry)> {
        let mut at = first;
        std::iter::from_fn(move || {
            let place = at;
            let entry = self.get(place)?;
            at = self.next(place);
            Some((place, entry))
        })
    }

    /// Number of entries. Linear in the chunks.
    pub(crate) fn len(&self) -> usize {
        self.chunks.iter().map(Vec::len).sum()
    }

    /// The first entry for which `below` is false; `below` is true for a prefix.
    #[inline]
    fn seek(&self, below: impl Fn(&Entry) -> bool) -> Cursor {
        let chunk = match self.chunks.as_slice() {
            [_] => 0,
            chunks => chunks.partition_point(|chunk| chunk.last().is_some_and(&below)),
        };
        let Some(entries) = self.chunks.get(chunk) else {
            return Cursor { chunk, at: 0 };
        };
        let at = entries.partition_point(below);
        if at == entries.len() { Cursor { chunk: chunk + 1, at: 0 } } else { Cursor { chunk, at } }
    }

    fn fresh_chunk(&mut self) -> Vec<Entry> {
        self.spare.pop().unwrap_or_else(|| Vec::with_capacity(CHUNK))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn it_holds_what_an_ordered_set_of_the_library_holds() {
        arbtest::arbtest(|u| {
            let (mut set, mut model) = (FreeSet::default(), BTreeSet::new());
            let sizes = u.int_in_range(1..=300)?;
            for number in 0..600 {
                let size = u.int_in_range(0..=sizes)?;
                if u.ratio(2, 3)? {
                    let registration = u.int_in_range(0..=3)?;
                    let address = number;
                    let block = BlockId(number as u32);
                    let entry = Entry { size, registration, address, block };
                    set.insert(entry);
                    model.insert(entry);
                }
                let cursor = set.lower_bound(size);
                let found = set.get(cursor).and_then(|entry| set.find(entry));
                assert_eq!(found, set.get(cursor).map(|_| cursor));
                let expected = model.iter().find(|entry| entry.size >= size).copied();
                assert_eq!(set.get(cursor).copied(), expected);
                assert!(set.iter_from(cursor).all(|(at, entry)| set.get(at) == Some(entry)));
                let from = set.iter_from(cursor).map(|(_, entry)| entry);
                assert!(from.eq(model.iter().filter(|entry| entry.size >= size)));
                if let Some(entry) = expected {
                    let before = model.range(..entry).next_back().copied();
                    assert_eq!(set.prev(cursor).and_then(|at| set.get(at)).copied(), before);
                    match u.int_in_range(0..=2)? {
                        0 => {
                            assert!(set.remove(&entry) && !set.remove(&entry));
                            model.remove(&entry);
                        }
                        1 => {
                            let moved = Entry { size: u.int_in_range(0..=sizes)?, ..entry };
                            set.replace(cursor, moved);
                            model.remove(&entry);
                            model.insert(moved);
                        }
                        _ => {}
                    }
                }
                if u.is_empty() {
                    break;
                }
            }
            assert!(set.iter().eq(model.iter()) && set.len() == model.len());
            Ok(())
        });
    }
}
