//! One column: an array of integers as compressed bytes, and back.
//!
//! The integers take the narrowest type that holds them all. Their bytes are stored in planes,
//! first the lowest byte of each, then the next: the high bytes are nearly all alike and
//! compress to nothing.
//!
//! ```text
//!  0x0102 0x0103 0x0104   ->   02 03 04 │ 01 01 01
//! ```

use super::header::{ColumnHeader, ColumnType};

/// zstd's level. Higher ones gain a few percent and take several times as long.
const LEVEL: i32 = 9;
/// Elements that are decoded together: they stay in the innermost cache.
pub(super) const BLOCK: usize = 1024;

/// Compresses a column of values as they are.
pub(super) fn encode(name: &str, values: &[u64]) -> (ColumnHeader, Vec<u8>) {
    let largest = values.iter().copied().max().unwrap_or(0);
    let kind = match largest {
        0..=0xff => ColumnType::U1,
        0x100..=0xffff => ColumnType::U2,
        0x1_0000..=0xffff_ffff => ColumnType::U4,
        _ => ColumnType::U8,
    };
    pack(name, kind, None, values)
}

/// Compresses a column of values by their differences, modulo 2^64.
pub(super) fn encode_differences(name: &str, values: &[u64]) -> (ColumnHeader, Vec<u8>) {
    let first = values.first().copied().unwrap_or(0);
    let mut last = first;
    let differences: Vec<u64> = values
        .iter()
        .map(|&value| value.wrapping_sub(std::mem::replace(&mut last, value)))
        .collect();
    let fits = |bits: u32| {
        let half = 1 << (bits - 1);
        differences.iter().all(|&it| (-half..half).contains(&(it as i64)))
    };
    let kind = match () {
        () if fits(8) => ColumnType::I1,
        () if fits(16) => ColumnType::I2,
        () if fits(32) => ColumnType::I4,
        () => ColumnType::I8,
    };
    pack(name, kind, Some(first), &differences)
}

/// Compresses text.
pub(super) fn encode_text(name: &str, text: &[u8]) -> (ColumnHeader, Vec<u8>) {
    compress(name, ColumnType::Json, None, text.len(), text)
}

fn pack(
    name: &str,
    kind: ColumnType,
    first: Option<u64>,
    values: &[u64],
) -> (ColumnHeader, Vec<u8>) {
    let plane = |byte: usize| values.iter().map(move |value| value.to_le_bytes()[byte]);
    let planes: Vec<u8> = (0..kind.width()).flat_map(plane).collect();
    compress(name, kind, first, values.len(), &planes)
}

fn compress(
    name: &str,
    kind: ColumnType,
    first: Option<u64>,
    count: usize,
    bytes: &[u8],
) -> (ColumnHeader, Vec<u8>) {
    let mut compressor = zstd::bulk::Compressor::new(LEVEL).expect("the level is one of zstd's");
    compressor.include_checksum(true).expect("every zstd has checksums");
    let body = compressor.compress(bytes).expect("the buffer is as large as zstd asks for");
    let (count, length) = (count as u64, body.len() as u64);
    (ColumnHeader { name: name.to_owned(), kind, count, bytes: length, first }, body)
}

/// A column that was read: still in planes.
pub(super) struct Column {
    planes: Vec<u8>,
    count: usize,
    kind: ColumnType,
    /// The value before the first difference of the next block.
    first: Option<u64>,
}

impl Column {
    /// `planes` has as many bytes as `header` says.
    pub(super) fn new(header: &ColumnHeader, planes: Vec<u8>) -> Self {
        let count = planes.len() / header.kind.width();
        Column { planes, count, kind: header.kind, first: header.first }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The bytes of a column of text.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.planes
    }

    /// All values.
    pub(super) fn values(&self) -> Vec<u64> {
        let mut values = vec![0; self.count];
        let mut reader = self.blocks();
        for block in values.chunks_mut(BLOCK) {
            reader.read(block);
        }
        values
    }

    /// The values, a block at a time.
    pub(super) fn blocks(&self) -> Blocks<'_> {
        Blocks { column: self, at: 0, last: self.first.unwrap_or(0) }
    }
}

/// Reads the values of a column in order.
pub(super) struct Blocks<'a> {
    column: &'a Column,
    at: usize,
    last: u64,
}

impl Blocks<'_> {
    /// Reads the next values: as many as there are, up to `block.len()`. Returns how many.
    pub(super) fn read(&mut self, block: &mut [u64]) -> usize {
        let Column { count, kind, first, .. } = self.column;
        let length = block.len().min(count - self.at);
        let block = &mut block[..length];
        match kind.width() {
            1 => self.gather::<1>(block),
            2 => self.gather::<2>(block),
            4 => self.gather::<4>(block),
            _ => self.gather::<8>(block),
        }
        self.at += length;
        if kind.is_signed() {
            let unused = 64 - 8 * kind.width() as u32;
            block.iter_mut().for_each(|value| {
                *value = ((*value << unused) as i64 >> unused) as u64;
            });
        }
        if first.is_some() {
            for value in block {
                self.last = self.last.wrapping_add(*value);
                *value = self.last;
            }
        }
        length
    }

    /// Puts the bytes of each value together.
    fn gather<const WIDTH: usize>(&self, block: &mut [u64]) {
        let Column { planes, count, .. } = self.column;
        let plane = |byte: usize| &planes[byte * count + self.at..][..block.len()];
        let planes: [&[u8]; WIDTH] = std::array::from_fn(plane);
        for (at, value) in block.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            for (byte, plane) in bytes.iter_mut().zip(planes) {
                *byte = plane[at];
            }
            *value = u64::from_le_bytes(bytes);
        }
    }
}

/// Reads the values of a column in order, one at a time.
pub(super) struct Cursor<'a> {
    blocks: Blocks<'a>,
    block: [u64; BLOCK],
    at: usize,
    end: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(column: &'a Column) -> Self {
        Cursor { blocks: column.blocks(), block: [0; BLOCK], at: 0, end: 0 }
    }
}

impl Iterator for Cursor<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        if self.at == self.end {
            self.at = 0;
            self.end = self.blocks.read(&mut self.block);
        }
        let value = self.block[..self.end].get(self.at).copied();
        self.at += usize::from(value.is_some());
        value
    }
}
