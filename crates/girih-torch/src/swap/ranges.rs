//! Free ranges of addresses of the host: the smallest that fits is taken, and what lies side by side grows together.
//!
//! Where none is large enough, several are taken, the largest first: so bytes that are free are never too scattered
//! to be used.

use std::collections::{BTreeMap, BTreeSet};

use girih_runtime::HostAddress;

/// Ranges of addresses that one place consists of, at most: each is a copy of its own, a few microseconds of a call.
const PARTS_MAX: usize = 64;

/// A range of the host: its address and bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Part {
    pub(crate) address: HostAddress,
    pub(crate) size: u64,
}

/// Free ranges.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    by_address: BTreeMap<HostAddress, u64>,
    by_size: BTreeSet<(u64, HostAddress)>,
    bytes: u64,
}

impl Ranges {
    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn insert(&mut self, part: Part) {
        self.by_address.insert(part.address, part.size);
        self.by_size.insert((part.size, part.address));
        self.bytes += part.size;
    }

    fn remove(&mut self, part: Part) {
        self.by_address.remove(&part.address);
        self.by_size.remove(&(part.size, part.address));
        self.bytes -= part.size;
    }

    /// A range is free, which was not.
    pub(super) fn add(&mut self, mut part: Part) {
        let after = part.address + part.size;
        if let Some(&size) = self.by_address.get(&after) {
            self.remove(Part { address: after, size });
            part.size += size;
        }
        let before = self.by_address.range(..part.address).next_back();
        if let Some((&address, &size)) = before
            && address + size == part.address
        {
            self.remove(Part { address, size });
            part = Part { address, size: size + part.size };
        }
        self.insert(part);
    }

    /// Takes `size` bytes from the front of a range.
    fn cut(&mut self, from: Part, size: u64) -> Part {
        self.remove(from);
        if from.size > size {
            self.insert(Part { address: from.address + size, size: from.size - size });
        }
        Part { address: from.address, size }
    }

    /// Takes `size` bytes: of one range, the smallest that fits; else of several. None if there are not as many, or
    /// they are in too many pieces.
    pub(super) fn take(&mut self, size: u64) -> Option<Vec<Part>> {
        if let Some(&(whole, address)) = self.by_size.range((size, 0)..).next() {
            return Some(vec![self.cut(Part { address, size: whole }, size)]);
        }
        let largest = self.by_size.iter().rev().take(PARTS_MAX);
        if self.bytes < size || largest.map(|(bytes, _)| bytes).sum::<u64>() < size {
            return None;
        }
        Some(self.take_largest(size))
    }

    /// Takes `size` bytes, or all that there are, the largest ranges first.
    pub(super) fn take_largest(&mut self, size: u64) -> Vec<Part> {
        let (mut parts, mut left) = (Vec::new(), size);
        while left > 0
            && let Some(&(bytes, address)) = self.by_size.last()
        {
            let part = self.cut(Part { address, size: bytes }, left.min(bytes));
            left -= part.size;
            parts.push(part);
        }
        parts
    }

    /// Walks everything.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn check(&self) -> Result<(), String> {
        let sizes: BTreeSet<(u64, HostAddress)> =
            self.by_address.iter().map(|(&address, &size)| (size, address)).collect();
        let mut pairs = self.by_address.iter().zip(self.by_address.iter().skip(1));
        let is_apart = pairs.all(|((at, size), (next, _))| at + size < *next);
        let bytes: u64 = self.by_address.values().sum();
        if sizes == self.by_size && is_apart && bytes == self.bytes {
            return Ok(());
        }
        Err(format!("free ranges of the host: {:?}, counted {}", self.by_address, self.bytes))
    }
}
