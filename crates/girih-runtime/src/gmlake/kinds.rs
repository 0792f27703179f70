//! The kinds of block: primitive and stitched, and the ranges of addresses under them.
//!
//! ```text
//!  physical handles, 2 MiB each      h1 h2 h3 h4 h5 h6      h7 h8
//!                                     |  |  |  |  |  |       |  |
//!  range A, range B                  [a1 a2 a3 a4 a5 a6]    [b1 b2]     one mapping of each handle
//!  primitive blocks                  [  p1 ][    p2    ]    [ p3  ]     tile the ranges
//!
//!  stitched block s1 = p1 + p3       [s1 s2 s3 s4]   a range of its own, the same handles again
//!  stitched block s2 = p1 + p2       where p1 and p2 are: they lie side by side
//! ```
//!
//! Each handle belongs to one primitive block, and a primitive block is held by one block of the
//! program at most. So no byte is given twice, however many stitched blocks lead to it.

use girih_trace::StreamId;

use crate::device::{Address, Handle};
use crate::policy::BlockId;
use crate::slab::id;

/// Bytes of a physical handle (the paper's uniform chunk).
pub const HANDLE: u64 = 2 << 20;

id! {
    /// A [`Range`].
    RangeId
}
id! {
    /// A [`Primitive`] block.
    PrimitiveId
}
id! {
    /// A [`Stitched`] block.
    StitchId
}

/// Addresses that were reserved at once, with the memory that was created for them.
#[derive(Debug)]
pub(super) struct Range {
    pub(super) address: Address,
    /// The handle of each 2 MiB; none where it went back to the device.
    pub(super) handles: Vec<Option<Handle>>,
    /// Handles that are there.
    pub(super) held: usize,
}

impl Range {
    pub(super) fn new(address: Address, handles: Vec<Handle>) -> Range {
        Range { address, held: handles.len(), handles: handles.into_iter().map(Some).collect() }
    }

    pub(super) fn size(&self) -> u64 {
        self.handles.len() as u64 * HANDLE
    }

    /// The places of `size` bytes at `address`.
    pub(super) fn slots(&self, address: Address, size: u64) -> std::ops::Range<usize> {
        let first = ((address - self.address) / HANDLE) as usize;
        first..first + (size / HANDLE) as usize
    }
}

/// A primitive block (`pBlock`): a run of handles that nothing else owns.
#[derive(Debug)]
pub(super) struct Primitive {
    pub(super) range: RangeId,
    pub(super) address: Address,
    pub(super) size: u64,
    pub(super) stream: StreamId,
    /// The block of the program that holds it, alone or as a part of a stitched one. It is active
    /// then, and inactive otherwise.
    pub(super) owner: Option<BlockId>,
    /// The stitched blocks that it is a part of.
    pub(super) stitches: Vec<StitchId>,
}

/// A stitched block (`sBlock`): further addresses of the handles of its parts.
#[derive(Debug)]
pub(super) struct Stitched {
    pub(super) address: Address,
    pub(super) size: u64,
    pub(super) stream: StreamId,
    /// In the order of the addresses.
    pub(super) parts: Vec<PrimitiveId>,
    /// Parts that are active. The stitched block is inactive at 0 only.
    pub(super) busy: usize,
    /// When it was freed the last time, or stitched. While the program holds it, it is in no order.
    pub(super) used: u64,
    /// True if its addresses are a mapping of its own, false if they are those of its parts.
    pub(super) is_mapped: bool,
}

/// What a block of the program lies in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Primitive(PrimitiveId),
    Stitched(StitchId),
}
