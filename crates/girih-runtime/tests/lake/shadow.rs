//! A shadow of the memory of a device: what is mapped where, who holds which bytes, and who wrote
//! them last.
//!
//! It answers what no count can: whether a block reads what its owner wrote, at the address that
//! the owner was given, whatever other addresses show its bytes too. It is exact to the byte.

use std::collections::{BTreeMap, BTreeSet};

use girih_runtime::{Address, DeviceError, Handle};

/// A handle, by its number, or an allocation, by its address: no number is as high.
type Memory = u64;

/// Bytes of a memory: where they begin and end in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) memory: Memory,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// A block of the program.
#[derive(Clone, Copy, Debug)]
struct Owned {
    size: u64,
    /// What its owner wrote to every byte.
    tag: u64,
}

/// Disjoint pieces with a tag each.
#[derive(Default)]
struct Tags(BTreeMap<(Memory, u64), (u64, u64)>);

impl Tags {
    /// The pieces that touch another, each with its tag.
    fn over(&self, piece: Piece) -> impl Iterator<Item = (Piece, u64)> {
        let Piece { memory, start, end } = piece;
        let before = self.0.range((memory, 0)..(memory, start)).next_back();
        let before = before.filter(move |(_, (stop, _))| *stop > start);
        let pieces = before.into_iter().chain(self.0.range((memory, start)..(memory, end)));
        pieces.map(move |(&(_, start), &(end, tag))| (Piece { memory, start, end }, tag))
    }

    /// Makes the pieces end where one begins, and begin where it ends, and removes those inside.
    fn remove(&mut self, piece: Piece) {
        let over: Vec<(Piece, u64)> = self.over(piece).collect();
        for (Piece { memory, start, end }, tag) in over {
            self.0.remove(&(memory, start));
            if start < piece.start {
                self.0.insert((memory, start), (piece.start, tag));
            }
            if end > piece.end {
                self.0.insert((memory, piece.end), (end, tag));
            }
        }
    }

    fn set(&mut self, piece: Piece, tag: u64) {
        self.remove(piece);
        self.0.insert((piece.memory, piece.start), (piece.end, tag));
    }

    /// True if every byte of a piece has this tag.
    fn are(&self, piece: Piece, tag: u64) -> bool {
        let common = |other: Piece| other.end.min(piece.end) - other.start.max(piece.start);
        let equal = self.over(piece).filter(|(_, other)| *other == tag);
        equal.map(|(other, _)| common(other)).sum::<u64>() == piece.end - piece.start
    }
}

/// What lies where, and whose it is.
#[derive(Default)]
pub(crate) struct Shadow {
    /// Bytes of every handle and allocation.
    sizes: BTreeMap<Memory, u64>,
    /// What is at an address.
    mapped: BTreeMap<Address, Memory>,
    /// Which block wrote bytes last.
    written: Tags,
    /// Which block has them.
    owned: Tags,
    /// The blocks of the program.
    blocks: BTreeMap<Address, Owned>,
    last_tag: u64,
    /// How many handles were mapped that had been mapped before, by size.
    pub(crate) mapped_again: BTreeMap<u64, u64>,
    ever_mapped: BTreeSet<Memory>,
    /// Bytes that were unmapped so far.
    pub(crate) unmapped: u64,
    /// Calls that broke a rule of the device.
    pub(crate) misuses: Vec<DeviceError>,
}

impl Shadow {
    /// The memory behind a range of addresses, in order.
    ///
    /// # Panics
    /// If a byte has none.
    pub(crate) fn pieces(&self, address: Address, size: u64) -> Vec<Piece> {
        let (mut pieces, mut at, end) = (Vec::new(), address, address + size);
        while at < end {
            let found = self.mapped.range(..=at).next_back();
            let (&base, &memory) = found.expect("there is something before it");
            let stop = (base + self.sizes[&memory]).min(end);
            assert!(stop > at, "there is no memory at {at:#x} of the block at {address:#x}");
            pieces.push(Piece { memory, start: at - base, end: stop - base });
            at = stop;
        }
        pieces
    }

    /// A block was given: its owner writes every byte.
    ///
    /// # Panics
    /// If another block has a byte of it.
    pub(crate) fn give(&mut self, address: Address, size: u64) {
        self.last_tag += 1;
        let tag = self.last_tag;
        for piece in self.pieces(address, size) {
            if let Some((other, owner)) = self.owned.over(piece).next() {
                panic!("{piece:?} is given to {tag}, and {owner} has {other:?}");
            }
            self.owned.set(piece, tag);
            self.written.set(piece, tag);
        }
        self.blocks.insert(address, Owned { size, tag });
    }

    /// A block is let go of. False if it is not known.
    ///
    /// # Panics
    /// If its owner does not read what it wrote.
    pub(crate) fn take(&mut self, address: Address) -> bool {
        self.read(address);
        let Some(Owned { size, .. }) = self.blocks.remove(&address) else { return false };
        self.pieces(address, size).into_iter().for_each(|piece| self.owned.remove(piece));
        true
    }

    /// The owner of a block reads every byte of it.
    ///
    /// # Panics
    /// If one is not what it wrote.
    fn read(&self, address: Address) {
        let Some(&Owned { size, tag }) = self.blocks.get(&address) else { return };
        for piece in self.pieces(address, size) {
            assert!(self.owned.are(piece, tag), "the block at {address:#x} has lost {piece:?}");
            assert!(
                self.written.are(piece, tag),
                "{piece:?} of the block at {address:#x} was overwritten"
            );
        }
    }

    /// Every owner reads every byte.
    ///
    /// # Panics
    /// If one is not what its owner wrote.
    pub(crate) fn read_all(&self) {
        self.blocks.keys().for_each(|&address| self.read(address));
    }

    pub(crate) fn create(&mut self, handle: Handle, size: u64) {
        self.sizes.insert(handle.0, size);
    }

    pub(crate) fn release(&mut self, handle: Handle) {
        self.forget(handle.0);
    }

    pub(crate) fn alloc(&mut self, address: Address, size: u64) {
        self.sizes.insert(address, size);
        self.mapped.insert(address, address);
    }

    pub(crate) fn free(&mut self, address: Address) {
        self.mapped.remove(&address);
        self.forget(address);
    }

    pub(crate) fn map(&mut self, address: Address, handle: Handle) {
        self.mapped.insert(address, handle.0);
        if !self.ever_mapped.insert(handle.0) {
            *self.mapped_again.entry(self.sizes[&handle.0]).or_default() += 1;
        }
    }

    pub(crate) fn unmap(&mut self, address: Address, size: u64) {
        self.unmapped += size;
        let mut from_there = self.mapped.split_off(&address);
        self.mapped.append(&mut from_there.split_off(&(address + size)));
        let before = self.blocks.range(..address + size).next_back();
        let over = before.filter(|(at, block)| *at + block.size > address);
        assert!(over.is_none(), "{address:#x} is unmapped under the block at {over:?}");
    }

    /// Memory goes back to the device.
    fn forget(&mut self, memory: Memory) {
        let size = self.sizes.remove(&memory).expect("it was taken");
        let all = Piece { memory, start: 0, end: size };
        let owned = self.owned.over(all).next();
        assert!(owned.is_none(), "the device has {owned:?} back, which is in use");
        self.written.remove(all);
    }

    /// Bytes of all handles and allocations.
    pub(crate) fn held(&self) -> u64 {
        self.sizes.values().sum()
    }
}
