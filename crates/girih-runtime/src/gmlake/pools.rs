//! The pools of primitive and of stitched blocks (`pPool`, `sPool`), and how a block becomes active
//! and inactive (`Update`). Nothing here calls the device.
//!
//! A stitched block counts how many of its parts are active. So a change of one block costs a step
//! for each part and each stitched block over it, and none for each handle.

use std::collections::BTreeSet;

use girih_trace::StreamId;

use super::config::STITCHED_MAX;
use super::kinds::{HANDLE, Place, Primitive, PrimitiveId, Range, RangeId, StitchId, Stitched};
use crate::device::{Address, Handle};
use crate::policy::BlockId;
use crate::slab::Slab;

/// An inactive primitive block: by stream, by size, by address.
pub(super) type IdleKey = (StreamId, u64, Address, PrimitiveId);
/// An inactive stitched block: by stream, by size.
pub(super) type StitchKey = (StreamId, u64, StitchId);

/// Every block of both kinds.
#[derive(Debug, Default)]
pub(super) struct Pools {
    pub(super) ranges: Slab<RangeId, Range>,
    pub(super) primitives: Slab<PrimitiveId, Primitive>,
    pub(super) stitches: Slab<StitchId, Stitched>,
    /// The inactive primitive blocks.
    pub(super) idle: BTreeSet<IdleKey>,
    /// The inactive stitched blocks.
    pub(super) idle_stitches: BTreeSet<StitchKey>,
    /// The inactive stitched blocks, the least recently used first.
    pub(super) by_use: BTreeSet<(u64, StitchId)>,
    /// Bytes of `idle`.
    pub(super) idle_bytes: u64,
    /// Bytes of all stitched blocks.
    pub(super) stitched_bytes: u64,
    /// Counts the uses of stitched blocks.
    uses: u64,
}

/// What is left of a primitive block that was removed.
pub(super) struct Removed {
    pub(super) primitive: Primitive,
    pub(super) handles: Vec<Handle>,
    /// The range, address and bytes, if nothing is left of it.
    pub(super) range: Option<(Address, u64)>,
}

impl Pools {
    /// Adds a range as one inactive primitive block.
    pub(super) fn add_range(&mut self, range: Range, stream: StreamId) -> PrimitiveId {
        let (address, size) = (range.address, range.size());
        let range = self.ranges.add(range);
        let (owner, stitches) = (None, Vec::new());
        let id = self.primitives.add(Primitive { range, address, size, stream, owner, stitches });
        self.insert_idle(id);
        id
    }

    /// Where a block of the program begins, and its bytes.
    pub(super) fn extent(&self, place: Place) -> (Address, u64) {
        match place {
            Place::Primitive(id) => (self.primitives[id].address, self.primitives[id].size),
            Place::Stitched(id) => (self.stitches[id].address, self.stitches[id].size),
        }
    }

    /// The handles of the first `size` bytes of a primitive block.
    pub(super) fn handles(&self, id: PrimitiveId, size: u64) -> impl Iterator<Item = Handle> {
        let primitive = &self.primitives[id];
        let range = &self.ranges[primitive.range];
        range.handles[range.slots(primitive.address, size)].iter().flatten().copied()
    }

    /// Makes an inactive block active: `owner` holds it.
    pub(super) fn take(&mut self, place: Place, owner: BlockId) {
        match place {
            Place::Primitive(id) => self.occupy(id, owner),
            Place::Stitched(id) => {
                let parts = std::mem::take(&mut self.stitches[id].parts);
                parts.iter().for_each(|&part| self.occupy(part, owner));
                self.stitches[id].parts = parts;
            }
        }
    }

    /// Makes an active block inactive.
    pub(super) fn give_back(&mut self, place: Place) {
        match place {
            Place::Primitive(id) => self.vacate(id),
            Place::Stitched(id) => {
                self.uses += 1;
                self.stitches[id].used = self.uses;
                let parts = std::mem::take(&mut self.stitches[id].parts);
                parts.iter().for_each(|&part| self.vacate(part));
                self.stitches[id].parts = parts;
            }
        }
    }

    fn occupy(&mut self, id: PrimitiveId, owner: BlockId) {
        self.remove_idle(id);
        let primitive = &mut self.primitives[id];
        primitive.owner = Some(owner);
        for &over in &primitive.stitches {
            let stitch = &mut self.stitches[over];
            stitch.busy += 1;
            if stitch.busy == 1 {
                self.idle_stitches.remove(&(stitch.stream, stitch.size, over));
                self.by_use.remove(&(stitch.used, over));
            }
        }
    }

    fn vacate(&mut self, id: PrimitiveId) {
        self.primitives[id].owner = None;
        self.insert_idle(id);
        for &over in &self.primitives[id].stitches {
            let stitch = &mut self.stitches[over];
            stitch.busy -= 1;
            if stitch.busy == 0 {
                self.idle_stitches.insert((stitch.stream, stitch.size, over));
                self.by_use.insert((stitch.used, over));
            }
        }
    }

    /// Splits an inactive primitive block: it keeps its first `size` bytes, and what follows is a
    /// new one (`Split`). Both together stay in reach as a stitched block of the former size.
    ///
    /// The paper gives both halves new addresses. Here they keep those that they have, so that the
    /// device is not called, and the stitched block of both has the addresses of the former one.
    pub(super) fn split(&mut self, id: PrimitiveId, size: u64) {
        self.remove_idle(id);
        let first = &mut self.primitives[id];
        let (whole, stream) = (first.size, first.stream);
        first.size = size;
        let second = Primitive {
            range: first.range,
            address: first.address + size,
            size: whole - size,
            stream,
            owner: None,
            stitches: first.stitches.clone(),
        };
        let address = first.address;
        let second = self.primitives.add(second);
        for &over in &self.primitives[id].stitches {
            let parts = &mut self.stitches[over].parts;
            let place = parts.iter().rposition(|&part| part == id);
            parts.insert(place.expect("a stitched block has the parts that know it") + 1, second);
        }
        self.insert_idle(id);
        self.insert_idle(second);
        if self.has_room_for_stitch(whole) {
            self.add_stitch(address, vec![id, second], false);
        }
    }

    /// True if a stitched block of `size` bytes more keeps what they cost in bounds ([`STITCHED_MAX`]).
    pub(super) fn has_room_for_stitch(&self, size: u64) -> bool {
        self.stitched_bytes.saturating_add(size) <= STITCHED_MAX
    }

    /// Adds the stitched block of inactive parts, at addresses of its own or at theirs.
    pub(super) fn add_stitch(
        &mut self,
        address: Address,
        parts: Vec<PrimitiveId>,
        is_mapped: bool,
    ) -> StitchId {
        let size = parts.iter().map(|&part| self.primitives[part].size).sum();
        let stream = self.primitives[parts[0]].stream;
        self.uses += 1;
        let used = self.uses;
        let (overs, busy) = (parts.clone(), 0);
        let stitch = Stitched { address, size, stream, parts, busy, used, is_mapped };
        let id = self.stitches.add(stitch);
        for part in overs {
            self.primitives[part].stitches.push(id);
        }
        self.idle_stitches.insert((stream, size, id));
        self.by_use.insert((used, id));
        self.stitched_bytes += size;
        id
    }

    /// Forgets a stitched block that the program does not hold. Its parts stay.
    pub(super) fn remove_stitch(&mut self, id: StitchId) -> Stitched {
        let stitch = self.stitches.remove(id);
        if stitch.busy == 0 {
            self.idle_stitches.remove(&(stitch.stream, stitch.size, id));
            self.by_use.remove(&(stitch.used, id));
        }
        for &part in &stitch.parts {
            let stitches = &mut self.primitives[part].stitches;
            if let Some(place) = stitches.iter().position(|&over| over == id) {
                stitches.swap_remove(place);
            }
        }
        self.stitched_bytes -= stitch.size;
        stitch
    }

    /// Takes an inactive primitive block out of its range. No stitched block is over it any more.
    pub(super) fn remove_primitive(&mut self, id: PrimitiveId) -> Removed {
        self.remove_idle(id);
        let primitive = self.primitives.remove(id);
        let range = &mut self.ranges[primitive.range];
        let slots = range.slots(primitive.address, primitive.size);
        let handles: Vec<Handle> =
            range.handles[slots].iter_mut().filter_map(Option::take).collect();
        range.held -= handles.len();
        let mut gone = None;
        if range.held == 0 {
            let range = self.ranges.remove(primitive.range);
            gone = Some((range.address, range.size()));
        }
        Removed { primitive, handles, range: gone }
    }

    fn key(&self, id: PrimitiveId) -> IdleKey {
        let Primitive { stream, size, address, .. } = self.primitives[id];
        (stream, size, address, id)
    }

    fn insert_idle(&mut self, id: PrimitiveId) {
        let key = self.key(id);
        self.idle_bytes += key.1;
        self.idle.insert(key);
    }

    fn remove_idle(&mut self, id: PrimitiveId) {
        let key = self.key(id);
        self.idle_bytes -= key.1;
        self.idle.remove(&key);
    }
}

/// Bytes of a block for a request of so many.
pub(super) fn rounded(requested: u64) -> u64 {
    requested.next_multiple_of(HANDLE)
}
