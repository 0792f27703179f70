//! What is where on the simulated device: allocations, reservations, handles and mappings.
//!
//! Every allocation and every handle has a place in *physical* space. A device address leads there:
//! an allocation is its own physical memory, a mapped address is an offset into its handle. Two
//! mappings of one handle are two ways to the same bytes, so what must not overlap is compared in
//! physical space.

use std::collections::{BTreeMap, VecDeque};

use rustc_hash::FxHashMap;

use crate::device::{Address, DeviceError, Handle};

/// Alignment of every allocation, and the unit in which the device hands memory out.
const ALIGNMENT: u64 = 512;
const FIRST_ALLOCATION: Address = 0x10_0000_0000;
const FIRST_RESERVATION: Address = 0x4000_0000_0000;
/// No address of an allocation is as high, so that handles and allocations share physical space.
const FIRST_PHYSICAL: u64 = 1 << 63;

/// A range of device addresses in use.
#[derive(Debug)]
enum Range {
    Allocation { size: u64 },
    Reservation { size: u64, mappings: BTreeMap<Address, Mapping> },
}

impl Range {
    fn size(&self) -> u64 {
        match self {
            Range::Allocation { size } | Range::Reservation { size, .. } => *size,
        }
    }
}

/// A handle at an address.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    handle: Handle,
    physical: u64,
    size: u64,
    accessible: bool,
}

#[derive(Debug)]
struct HandleState {
    physical: u64,
    size: u64,
    mappings: u32,
}

#[derive(Debug)]
pub(super) struct Memory {
    total: u64,
    used: u64,
    granularity: u64,
    /// A handle can be mapped at several addresses.
    pub(super) maps_twice: bool,
    ranges: BTreeMap<Address, Range>,
    handles: FxHashMap<Handle, HandleState>,
    next_allocation: Address,
    next_reservation: Address,
    next_physical: u64,
    next_handle: u64,
    pub(super) scripted_allocs: VecDeque<Address>,
    pub(super) scripted_reserves: VecDeque<Address>,
}

fn misuse<T>(call: &'static str, reason: String) -> Result<T, DeviceError> {
    Err(DeviceError::Misuse { call, reason })
}

impl Memory {
    pub(super) fn new(total: u64, granularity: u64) -> Memory {
        Memory {
            total,
            used: 0,
            granularity,
            maps_twice: true,
            ranges: BTreeMap::new(),
            handles: FxHashMap::default(),
            next_allocation: FIRST_ALLOCATION,
            next_reservation: FIRST_RESERVATION,
            next_physical: FIRST_PHYSICAL,
            next_handle: 1,
            scripted_allocs: VecDeque::new(),
            scripted_reserves: VecDeque::new(),
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.total - self.used
    }

    pub(super) fn granularity(&self) -> u64 {
        self.granularity
    }

    pub(super) fn allocation_count(&self) -> usize {
        self.ranges.values().filter(|range| matches!(range, Range::Allocation { .. })).count()
    }

    pub(super) fn reservation_count(&self) -> usize {
        self.ranges.len() - self.allocation_count()
    }

    pub(super) fn handle_count(&self) -> usize {
        self.handles.len()
    }

    pub(super) fn alloc(&mut self, size: u64) -> Result<Address, DeviceError> {
        if size == 0 {
            return misuse("alloc", "0 bytes asked for; ask for at least one".into());
        }
        let out_of_memory = DeviceError::OutOfMemory { requested: size, free: self.free_bytes() };
        let taken = size.checked_next_multiple_of(ALIGNMENT).ok_or(out_of_memory.clone())?;
        if taken > self.free_bytes() {
            return Err(out_of_memory);
        }
        let scripted = self.scripted_allocs.pop_front();
        let address = match scripted.filter(|&at| self.is_vacant(at, taken, ALIGNMENT)) {
            Some(address) => address,
            None => {
                let alignment = if size >= self.granularity { self.granularity } else { ALIGNMENT };
                let from = self.next_allocation.next_multiple_of(alignment);
                let Some(address) = self.vacant_from(from, taken, alignment) else {
                    return Err(out_of_memory);
                };
                self.next_allocation = address + taken;
                address
            }
        };
        self.used += taken;
        self.ranges.insert(address, Range::Allocation { size: taken });
        Ok(address)
    }

    /// Bytes of the allocation at `address`.
    pub(super) fn allocation_size(&self, address: Address) -> Result<u64, DeviceError> {
        match self.ranges.get(&address) {
            Some(Range::Allocation { size }) => Ok(*size),
            Some(_) => misuse("free", format!("{address:#x} is a reservation; unreserve it")),
            None => misuse("free", format!("nothing was allocated at {address:#x}")),
        }
    }

    /// Frees what [`Memory::allocation_size`] found.
    pub(super) fn free(&mut self, address: Address) {
        if let Some(range) = self.ranges.remove(&address) {
            self.used -= range.size();
        }
    }

    pub(super) fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        if size == 0 || !size.is_multiple_of(self.granularity) {
            let unit = self.granularity;
            return misuse("reserve", format!("{size} bytes are no positive multiple of {unit}"));
        }
        let scripted = self.scripted_reserves.pop_front();
        let address = match scripted.filter(|&at| self.is_vacant(at, size, self.granularity)) {
            Some(address) => address,
            None => {
                let found = self.vacant_from(self.next_reservation, size, self.granularity);
                let Some(address) = found else {
                    let free = self.free_bytes();
                    return Err(DeviceError::OutOfMemory { requested: size, free });
                };
                self.next_reservation = address + size;
                address
            }
        };
        self.ranges.insert(address, Range::Reservation { size, mappings: BTreeMap::new() });
        Ok(address)
    }

    pub(super) fn unreserve(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        match self.ranges.get(&address) {
            Some(Range::Reservation { size: whole, mappings }) => {
                if *whole != size {
                    let reason = format!("{size} of the {whole} bytes at {address:#x}");
                    return misuse("unreserve", reason);
                }
                if let Some(mapped) = mappings.keys().next() {
                    return misuse("unreserve", format!("a handle is still mapped at {mapped:#x}"));
                }
            }
            _ => return misuse("unreserve", format!("nothing was reserved at {address:#x}")),
        }
        self.ranges.remove(&address);
        Ok(())
    }

    pub(super) fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        if size == 0 || !size.is_multiple_of(self.granularity) {
            let unit = self.granularity;
            return misuse("create", format!("{size} bytes are no positive multiple of {unit}"));
        }
        if size > self.free_bytes() {
            let free = self.free_bytes();
            return Err(DeviceError::OutOfMemory { requested: size, free });
        }
        let handle = Handle(self.next_handle);
        self.next_handle += 1;
        self.handles
            .insert(handle, HandleState { physical: self.next_physical, size, mappings: 0 });
        self.next_physical += size;
        self.used += size;
        Ok(handle)
    }

    /// Releases a handle; returns its place in physical space.
    pub(super) fn release(&mut self, handle: Handle) -> Result<(u64, u64), DeviceError> {
        let Some(state) = self.handles.get(&handle) else {
            return misuse("release", format!("{handle:?} does not exist"));
        };
        if state.mappings > 0 {
            let count = state.mappings;
            return misuse("release", format!("{handle:?} is still mapped {count} times"));
        }
        let place = (state.physical, state.size);
        self.handles.remove(&handle);
        self.used -= place.1;
        Ok(place)
    }

    /// Maps a handle; returns its bytes.
    pub(super) fn map(&mut self, address: Address, handle: Handle) -> Result<u64, DeviceError> {
        let unit = self.granularity;
        let Some(state) = self.handles.get_mut(&handle) else {
            return misuse("map", format!("{handle:?} does not exist"));
        };
        let (size, physical) = (state.size, state.physical);
        if state.mappings > 0 && !self.maps_twice {
            return misuse("map", format!("{handle:?} is mapped already"));
        }
        let end = address.saturating_add(size);
        let Some((base, mappings)) = reservation(&mut self.ranges, address, end) else {
            return misuse("map", format!("{address:#x}..{end:#x} is not within a reservation"));
        };
        if !(address - base).is_multiple_of(unit) {
            return misuse("map", format!("{address:#x} is not aligned to {unit} bytes"));
        }
        if let Some((at, other)) = mappings.range(..end).next_back()
            && at + other.size > address
        {
            return misuse("map", format!("{address:#x} meets what is mapped at {at:#x}"));
        }
        mappings.insert(address, Mapping { handle, physical, size, accessible: false });
        state.mappings += 1;
        Ok(size)
    }

    /// Makes a mapped range accessible; returns the number of handles in it.
    pub(super) fn set_access(&mut self, address: Address, size: u64) -> Result<u64, DeviceError> {
        let end = address.saturating_add(size);
        let Some((_, mappings)) = reservation(&mut self.ranges, address, end) else {
            let reason = format!("{address:#x}..{end:#x} is not within a reservation");
            return misuse("set_access", reason);
        };
        whole_handles("set_access", mappings, address, end)?;
        let mut handles = 0;
        for (_, mapping) in mappings.range_mut(address..end) {
            mapping.accessible = true;
            handles += 1;
        }
        Ok(handles)
    }

    /// Checks that an unmap is lawful; returns the base of its reservation for [`Memory::unmap`].
    pub(super) fn check_unmap(&mut self, at: Address, size: u64) -> Result<Address, DeviceError> {
        let end = at.saturating_add(size);
        let Some((base, mappings)) = reservation(&mut self.ranges, at, end) else {
            return misuse("unmap", format!("{at:#x}..{end:#x} is not within a reservation"));
        };
        whole_handles("unmap", mappings, at, end)?;
        Ok(base)
    }

    /// Unmaps what [`Memory::check_unmap`] passed; returns the number of handles.
    pub(super) fn unmap(&mut self, base: Address, address: Address, size: u64) -> u64 {
        let Some(Range::Reservation { mappings, .. }) = self.ranges.get_mut(&base) else {
            return 0;
        };
        // One by one: to cut the map in two and join it again would cost a step for each other mapping.
        let mut count = 0;
        for (_, mapping) in mappings.extract_if(address..address + size, |_, _| true) {
            if let Some(state) = self.handles.get_mut(&mapping.handle) {
                state.mappings -= 1;
            }
            count += 1;
        }
        count
    }

    /// The physical ranges (start, bytes) behind `size` bytes at `address`, all accessible.
    pub(super) fn pieces(
        &self,
        call: &'static str,
        address: Address,
        size: u64,
    ) -> Result<Vec<(u64, u64)>, DeviceError> {
        let end = address.saturating_add(size);
        let found = self.ranges.range(..=address).next_back();
        let Some((base, range)) = found.filter(|(base, range)| end <= *base + range.size()) else {
            return misuse(call, format!("{address:#x}..{end:#x} belongs to nothing"));
        };
        let mappings = match range {
            Range::Allocation { .. } => return Ok(vec![(address, size)]),
            Range::Reservation { mappings, .. } => mappings,
        };
        let first = mappings.range(..=address).next_back().map_or(*base, |(at, _)| *at);
        let (mut pieces, mut at) = (Vec::new(), address);
        for (start, mapping) in mappings.range(first..end) {
            let stop = (start + mapping.size).min(end);
            if *start > at || stop <= at || !mapping.accessible {
                break;
            }
            pieces.push((mapping.physical + (at - start), stop - at));
            at = stop;
        }
        if at < end {
            return misuse(call, format!("{at:#x} is not mapped and accessible"));
        }
        Ok(pieces)
    }

    /// True if `size` bytes at `address` collide with nothing.
    fn is_vacant(&self, address: Address, size: u64, alignment: u64) -> bool {
        address != 0
            && address.is_multiple_of(alignment)
            && address.checked_add(size).is_some_and(|end| {
                end <= FIRST_PHYSICAL
                    && self
                        .ranges
                        .range(..end)
                        .next_back()
                        .is_none_or(|(at, range)| at + range.size() <= address)
            })
    }

    /// The first vacant place at or after `from`. What lies in the way is skipped.
    fn vacant_from(&self, from: Address, size: u64, alignment: u64) -> Option<Address> {
        let mut address = from.checked_next_multiple_of(alignment)?;
        loop {
            let end = address.checked_add(size).filter(|end| *end <= FIRST_PHYSICAL)?;
            match self.ranges.range(..end).next_back() {
                Some((at, range)) if at + range.size() > address => {
                    address = (at + range.size()).checked_next_multiple_of(alignment)?;
                }
                _ => return Some(address),
            }
        }
    }
}

/// The reservation that holds all of `address..end`, and its mappings.
fn reservation(
    ranges: &mut BTreeMap<Address, Range>,
    address: Address,
    end: Address,
) -> Option<(Address, &mut BTreeMap<Address, Mapping>)> {
    match ranges.range_mut(..=address).next_back() {
        Some((base, Range::Reservation { size, mappings })) if end <= base + *size => {
            Some((*base, mappings))
        }
        _ => None,
    }
}

/// Checks that `address..end` is tiled by whole mapped handles.
fn whole_handles(
    call: &'static str,
    mappings: &BTreeMap<Address, Mapping>,
    address: Address,
    end: Address,
) -> Result<(), DeviceError> {
    let mut at = address;
    for (start, mapping) in mappings.range(address..end) {
        if *start != at {
            break;
        }
        at += mapping.size;
    }
    if at == end && address < end {
        return Ok(());
    }
    let reason =
        format!("{address:#x}..{end:#x} is not made of whole mapped handles (see {at:#x})");
    misuse(call, reason)
}
