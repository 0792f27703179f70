//! Blocks of the lake, one cache line each, and the shelves on which the free ones lie.
//!
//! ```text
//!  give:   |        free: id f        |        shelve:  | free | used u | free |
//!       -> | used: new id |  free: f  |              -> |     free: u          |
//! ```
//!
//! A request takes the low end under a new id; what remains keeps the old one.

use girih_trace::StreamId;
use rustc_hash::FxHashMap;

use super::cells::Span;
use super::views::Part;
use super::window::Window;
use crate::caching::rounding::SMALL_SIZE;
use crate::chain::{NIL, Slab, linked};
use crate::device::Address;
use crate::free_set::{Cursor, Entry, FreeSet};
use crate::order::Stamp;
use crate::policy::BlockId;

/// The segment of a block that is a view ([`super::views`]): its bytes are lent by others.
pub(super) const STITCHED: u32 = u32::MAX;

/// Whose blocks lie together: those of a stream, and of small or of large requests. Index of a shelf.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Home {
    pub(super) shelf: u32,
    pub(super) stream: StreamId,
    pub(super) is_small: bool,
}

/// A run of bytes of a segment: in use, free, or unmapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) address: Address,
    pub(super) size: u64,
    /// Bytes requested; of a free block the stamp of its last free ([`Block::freed`]).
    pub(super) requested: u64,
    pub(super) prev: BlockId,
    pub(super) next: BlockId,
    pub(super) home: Home,
    /// Index of its segment, or [`STITCHED`].
    pub(super) segment: u32,
    /// Of a stitched block, the place of its view.
    pub(super) view: u32,
    /// Of a block that is not free, the stream that asked for it.
    pub(super) user: StreamId,
    /// Events that must be done before the block is free.
    pub(super) events: u16,
    /// Part of a view that is in use.
    pub(super) lent: bool,
    /// In use by the program.
    pub(super) allocated: bool,
    /// Backed by pages.
    pub(super) mapped: bool,
    /// Other streams were recorded on it.
    pub(super) shared: bool,
    /// Idle or held bytes of a plan's window, which keeps the books of them ([`super::window`]).
    pub(super) window: bool,
    /// A block in its place in the window. It tiles nothing: `prev` and `next` are its cells.
    pub(super) planned: bool,
    /// Of such a block: its bytes are another stream's next.
    pub(super) fence: bool,
    /// False for a vacant place of the slab.
    pub(super) exists: bool,
}

impl Block {
    /// A mapped block without neighbours, neither in use nor on a shelf.
    pub(super) fn new(address: Address, size: u64, home: Home, segment: u32) -> Block {
        Block {
            address,
            size,
            requested: 0,
            prev: NIL,
            next: NIL,
            home,
            segment,
            view: 0,
            user: home.stream,
            events: 0,
            lent: false,
            allocated: false,
            mapped: true,
            shared: false,
            window: false,
            planned: false,
            fence: false,
            exists: true,
        }
    }

    /// True if it counts as a small one: a request for more would have been rounded to more.
    pub(super) fn is_small(&self) -> bool {
        self.size <= SMALL_SIZE
    }

    pub(super) fn end(&self) -> Address {
        self.address + self.size
    }

    /// Its bytes.
    pub(super) fn part(&self) -> Part {
        Part { address: self.address, size: self.size }
    }

    /// True if the byte at an address is one of it.
    #[inline]
    pub(super) fn is_over(&self, address: Address) -> bool {
        self.address <= address && address < self.end()
    }

    /// Of a free block: the last free of any of its bytes. 0 if nobody has used them.
    pub(super) fn freed(&self) -> Stamp {
        self.requested
    }

    /// True if it is a view: no part of a segment.
    pub(super) fn is_stitched(&self) -> bool {
        self.segment == STITCHED
    }

    /// True if nobody uses it or may still use it. It may be unmapped.
    pub(super) fn is_free(&self) -> bool {
        !self.allocated && self.events == 0 && !self.shared && !self.lent && !self.window
    }

    /// True if the program uses it, or somebody may still do so after the program has freed it.
    pub(super) fn is_alive(&self) -> bool {
        !self.is_free() && !self.lent && !self.window
    }

    /// A block in use, in a place of a window.
    pub(super) fn in_place(address: Address, size: u64, span: Span, of: &Window) -> Block {
        Block {
            planned: true,
            prev: BlockId(span.first),
            next: BlockId(span.end),
            ..Block::new(address, size, of.home, of.segment)
        }
    }

    /// The cells of a block in its place.
    pub(super) fn span(&self) -> Span {
        Span { first: self.prev.0, end: self.next.0 }
    }

    /// True if a plan's window keeps the books of it.
    pub(super) fn is_apart(&self) -> bool {
        self.window || self.planned
    }

    /// Its key on its shelf.
    fn entry(&self, id: BlockId) -> Entry {
        Entry { size: self.size, registration: 0, address: self.address, block: id }
    }
}

linked!(Block);

/// The blocks of all segments, and the free ones by size.
#[derive(Debug, Default)]
pub(super) struct Heap {
    pub(super) blocks: Slab<Block>,
    /// Of each home, its unmapped blocks and its free mapped ones.
    shelves: Vec<(Home, [FreeSet; 2])>,
    /// Their places.
    places: FxHashMap<(StreamId, bool), u32>,
    /// The homes that were asked for last, of large and of small requests.
    recent: [Option<Home>; 2],
}

impl Heap {
    /// The home of blocks of a stream.
    #[inline]
    pub(super) fn home(&mut self, stream: StreamId, is_small: bool) -> Home {
        match self.recent[usize::from(is_small)] {
            Some(home) if home.stream == stream => home,
            _ => self.find_home(stream, is_small),
        }
    }

    fn find_home(&mut self, stream: StreamId, is_small: bool) -> Home {
        let home = self.known_home(stream, is_small).unwrap_or_else(|| {
            let shelf = self.shelves.len() as u32;
            let home = Home { shelf, stream, is_small };
            self.shelves.push((home, Default::default()));
            self.places.insert((stream, is_small), shelf);
            home
        });
        self.recent[usize::from(is_small)] = Some(home);
        home
    }

    /// The home of blocks of a stream, if there ever were any.
    pub(super) fn known_home(&self, stream: StreamId, is_small: bool) -> Option<Home> {
        let place = self.places.get(&(stream, is_small))?;
        Some(self.shelves[*place as usize].0)
    }

    /// The free block of a home that serves `size` bytes: one of just as many, or else the one with the lowest address
    /// of the `near` smallest that have them.
    #[inline]
    pub(super) fn fit(&self, home: Home, size: u64, near: u64) -> Option<(BlockId, Cursor)> {
        let shelf = self.shelf(home, true);
        let cursor = shelf.lower_bound(size);
        let smallest = shelf.get(cursor)?;
        if near <= 1 || smallest.size == size {
            return Some((smallest.block, cursor));
        }
        let few = shelf.iter_from(cursor).take(near as usize);
        let lowest = few.min_by_key(|(_, entry)| entry.address);
        lowest.map(|(place, entry)| (entry.block, place))
    }

    /// The free blocks of a home that have `size` bytes, the smallest first.
    pub(super) fn fitting(&self, home: Home, size: u64) -> impl Iterator<Item = BlockId> {
        let shelf = self.shelf(home, true);
        shelf.iter_from(shelf.lower_bound(size)).map(|(_, entry)| entry.block)
    }

    /// Every free block, be it the mapped ones or those that are not.
    pub(super) fn free_blocks(&self, mapped: bool) -> impl Iterator<Item = BlockId> {
        let shelves = self.shelves.iter().map(move |(_, shelves)| &shelves[usize::from(mapped)]);
        shelves.flat_map(FreeSet::iter).map(|entry| entry.block)
    }

    /// The unmapped blocks of a home.
    pub(super) fn unmapped_of(&self, home: Home) -> impl Iterator<Item = BlockId> {
        self.shelf(home, false).iter().map(|entry| entry.block)
    }

    /// Takes the first `size` bytes of a free block off its shelf, where it is at `place`.
    #[inline]
    pub(super) fn take(&mut self, id: BlockId, place: Cursor, size: u64) -> BlockId {
        let home = self.blocks[id].home;
        if self.blocks[id].size == size {
            self.shelf_mut(home, true).remove_at(place);
            return id;
        }
        let head = self.cut(id, size);
        let entry = self.blocks[id].entry(id);
        self.shelf_mut(home, true).replace(place, entry);
        head
    }

    /// The same of a block that is on no shelf: what remains is on it afterwards.
    pub(super) fn take_low_end(&mut self, id: BlockId, size: u64) -> BlockId {
        if self.blocks[id].size == size {
            return id;
        }
        let head = self.cut(id, size);
        self.insert_free(id);
        head
    }

    /// Takes a part of a free or unmapped block off its shelf; what remains on both sides stays there.
    pub(super) fn carve(&mut self, id: BlockId, part: Part) -> BlockId {
        self.remove_free(id);
        let (id, rest) = self.isolate(id, part);
        rest.into_iter().flatten().for_each(|rest| self.insert_free(rest));
        id
    }

    /// Cuts a part out of a block that is on no shelf; with it, what remains before and behind.
    pub(super) fn isolate(&mut self, id: BlockId, part: Part) -> (BlockId, [Option<BlockId>; 2]) {
        let before = part.address - self.blocks[id].address;
        let before = (before > 0).then(|| self.cut(id, before));
        match self.blocks[id].size == part.size {
            true => (id, [before, None]),
            false => (self.cut(id, part.size), [before, Some(id)]),
        }
    }

    /// Makes a block of the first `size` bytes of another, which keeps the rest. The new one is on no
    /// shelf.
    #[inline]
    pub(super) fn cut(&mut self, id: BlockId, size: u64) -> BlockId {
        let whole = &mut self.blocks[id];
        let prev = whole.prev;
        let head = Block { size, next: NIL, prev: NIL, ..*whole };
        whole.address += size;
        whole.size -= size;
        let head = self.blocks.insert(head);
        self.blocks.link(prev, head, id);
        head
    }

    /// Puts a block that became free on its shelf, together with its free neighbours that are mapped if it is, and
    /// unmapped if it is not.
    #[inline]
    pub(super) fn shelve(&mut self, id: BlockId) {
        let Block { home, prev, next, mapped, .. } = self.blocks[id];
        let mut replaced = None;
        for neighbour in [prev, next] {
            if neighbour == NIL {
                continue;
            }
            let block = &self.blocks[neighbour];
            if block.mapped != mapped || !block.is_free() {
                continue;
            }
            let entry = block.entry(neighbour);
            if let Some(other) = replaced.replace(entry) {
                self.shelf_mut(home, mapped).remove(&other);
            }
            self.absorb(id, neighbour);
        }
        let entry = self.blocks[id].entry(id);
        let shelf = self.shelf_mut(home, mapped);
        match replaced.and_then(|other| shelf.find(&other)) {
            Some(place) => shelf.replace(place, entry),
            None => shelf.insert(entry),
        }
    }

    /// Adds the bytes of a neighbour, which goes, to `kept`.
    pub(super) fn absorb(&mut self, kept: BlockId, neighbour: BlockId) {
        let Block { address, size, requested, .. } = self.blocks[neighbour];
        self.blocks.unlink(neighbour);
        self.blocks.remove(neighbour);
        let block = &mut self.blocks[kept];
        block.address = block.address.min(address);
        block.size += size;
        // The later of the two frees.
        block.requested = block.requested.max(requested);
    }

    /// Puts a block on its shelf.
    pub(super) fn insert_free(&mut self, id: BlockId) {
        let entry = self.blocks[id].entry(id);
        let Block { home, mapped, .. } = self.blocks[id];
        self.shelf_mut(home, mapped).insert(entry);
    }

    /// Takes a block off its shelf.
    pub(super) fn remove_free(&mut self, id: BlockId) {
        let entry = self.blocks[id].entry(id);
        let Block { home, mapped, .. } = self.blocks[id];
        let found = self.shelf_mut(home, mapped).remove(&entry);
        debug_assert!(found, "{entry:?} is not on its shelf");
    }

    #[inline]
    fn shelf(&self, home: Home, mapped: bool) -> &FreeSet {
        &self.shelves[home.shelf as usize].1[usize::from(mapped)]
    }

    #[inline]
    fn shelf_mut(&mut self, home: Home, mapped: bool) -> &mut FreeSet {
        &mut self.shelves[home.shelf as usize].1[usize::from(mapped)]
    }

    /// The block behind another, if there is one.
    pub(super) fn next(&self, id: BlockId) -> Option<BlockId> {
        Some(self.blocks[id].next).filter(|&next| next != NIL)
    }

    /// A block and those behind it in its segment.
    pub(super) fn chain(&self, first: BlockId) -> impl Iterator<Item = BlockId> {
        std::iter::successors(Some(first), |&id| self.next(id))
    }

    /// The blocks of which `is_it` is true, by address.
    pub(super) fn sorted(&self, is_it: impl Fn(&Block) -> bool) -> Vec<BlockId> {
        let found = self.blocks.iter().filter(|(_, block)| is_it(block));
        let mut found: Vec<BlockId> = found.map(|(id, _)| id).collect();
        found.sort_unstable_by_key(|&id| self.blocks[id].address);
        found
    }

    /// The free blocks are on their shelves, and nothing else is. For the walk that checks everything.
    pub(super) fn check_shelves(&self) -> Result<(), String> {
        let mut expected = 0;
        for (id, block) in self.blocks.iter().filter(|(_, block)| block.is_free()) {
            expected += 1;
            let shelf = self.shelf(block.home, block.mapped);
            if shelf.find(&block.entry(id)).is_none() {
                return Err(format!("{id:?} is free but on no shelf: {block:?}"));
            }
        }
        let shelves = self.shelves.iter().flat_map(|(_, shelves)| shelves);
        let count: usize = shelves.map(FreeSet::len).sum();
        if count != expected {
            return Err(format!("{count} blocks are on shelves, {expected} are free"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_one_cache_line() {
        assert!(size_of::<Block>() <= 64, "{}", size_of::<Block>());
    }
}
