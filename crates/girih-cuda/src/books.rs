//! What is allocated, reserved, created and mapped on a device.
//!
//! The driver knows it too, but answers a wrong address with an error of no name, or with a crash.
//! The books check each call before it is made, in the time of a few tree steps, and take it down
//! once it is done; a call that failed leaves no trace in them.
//!
//! ```text
//!  allocations    [=======]   [===]
//!  reservations                       [-----------------------------]
//!  mappings                           [  handle 1  |h 2|   handle 1 ]   a handle maps whole,
//!                                                                       and as often as one likes
//! ```

use std::collections::BTreeMap;

use girih_runtime::{Address, DeviceError, Handle};
use rustc_hash::FxHashMap;

/// Memory of `cuMemAlloc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Allocation {
    pub(crate) size: u64,
    /// Counts the allocations of the device: tells this one from an earlier at its address.
    pub(crate) serial: u64,
}

/// Physical memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Physical {
    pub(crate) size: u64,
    /// Places where it is mapped.
    mappings: u32,
    /// A file descriptor can be made of it.
    pub(crate) shareable: bool,
}

/// A handle at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    pub(crate) size: u64,
    pub(crate) handle: Handle,
    /// Access was given since it was mapped.
    pub(crate) accessible: bool,
}

/// The books of a device.
#[derive(Debug)]
pub(crate) struct Books {
    granularity: u64,
    allocations: BTreeMap<Address, Allocation>,
    reservations: BTreeMap<Address, u64>,
    handles: FxHashMap<Handle, Physical>,
    mappings: BTreeMap<Address, Mapping>,
    /// Allocations ever made.
    serial: u64,
}

/// The error of a call that breaks a rule.
pub(crate) fn misuse<T>(call: &'static str, reason: String) -> Result<T, DeviceError> {
    Err(DeviceError::Misuse { call, reason })
}

/// The entry that begins last, of those that begin at or before `address`.
fn at_or_before<T>(map: &BTreeMap<Address, T>, address: Address) -> Option<(Address, &T)> {
    map.range(..=address).next_back().map(|(start, entry)| (*start, entry))
}

impl Books {
    /// Empty books.
    pub(crate) fn new(granularity: u64) -> Books {
        Books {
            granularity,
            allocations: BTreeMap::new(),
            reservations: BTreeMap::new(),
            handles: FxHashMap::default(),
            mappings: BTreeMap::new(),
            serial: 0,
        }
    }

    /// Checks the size of what is to be taken.
    pub(crate) fn check_size(
        &self,
        call: &'static str,
        size: u64,
        granular: bool,
    ) -> Result<(), DeviceError> {
        let unit = if granular { self.granularity } else { 1 };
        if size == 0 || !size.is_multiple_of(unit) {
            return misuse(call, format!("{size} bytes are not a positive multiple of {unit}"));
        }
        Ok(())
    }

    pub(crate) fn add_allocation(&mut self, address: Address, size: u64) {
        self.serial += 1;
        self.allocations.insert(address, Allocation { size, serial: self.serial });
    }

    /// The bytes of the allocation at `address`.
    pub(crate) fn check_free(&self, address: Address) -> Result<u64, DeviceError> {
        match self.allocations.get(&address) {
            Some(allocation) => Ok(allocation.size),
            None => misuse("free", format!("no allocation begins at {address:#x}")),
        }
    }

    pub(crate) fn remove_allocation(&mut self, address: Address) {
        self.allocations.remove(&address);
    }

    /// The allocation that `address` lies in.
    pub(crate) fn allocation_at(&self, address: Address) -> Option<(Address, Allocation)> {
        let (start, allocation) = at_or_before(&self.allocations, address)?;
        (address - start < allocation.size).then_some((start, *allocation))
    }

    pub(crate) fn add_reservation(&mut self, address: Address, size: u64) {
        self.reservations.insert(address, size);
    }

    pub(crate) fn check_unreserve(&self, address: Address, size: u64) -> Result<(), DeviceError> {
        if self.reservations.get(&address) != Some(&size) {
            let reason = format!("{size} bytes at {address:#x} are not one whole reservation");
            return misuse("unreserve", reason);
        }
        match self.mappings.range(address..address + size).next() {
            Some((mapped, _)) => misuse("unreserve", format!("{mapped:#x} in it is still mapped")),
            None => Ok(()),
        }
    }

    pub(crate) fn remove_reservation(&mut self, address: Address) {
        self.reservations.remove(&address);
    }

    /// The end of the reservation that `address` lies in.
    pub(crate) fn reservation_end(&self, address: Address) -> Option<Address> {
        let (start, size) = at_or_before(&self.reservations, address)?;
        (address - start < *size).then_some(start + size)
    }

    pub(crate) fn add_handle(&mut self, handle: Handle, size: u64, shareable: bool) {
        self.handles.insert(handle, Physical { size, mappings: 0, shareable });
    }

    /// What is known of a handle.
    pub(crate) fn physical(
        &self,
        call: &'static str,
        handle: Handle,
    ) -> Result<Physical, DeviceError> {
        match self.handles.get(&handle) {
            Some(physical) => Ok(*physical),
            None => misuse(call, format!("there is no handle {:#x}", handle.0)),
        }
    }

    /// The bytes of a handle that is mapped nowhere.
    pub(crate) fn check_release(&self, handle: Handle) -> Result<u64, DeviceError> {
        let physical = self.physical("release", handle)?;
        if physical.mappings > 0 {
            let (number, places) = (handle.0, physical.mappings);
            return misuse("release", format!("handle {number:#x} is mapped in {places} places"));
        }
        Ok(physical.size)
    }

    pub(crate) fn remove_handle(&mut self, handle: Handle) {
        self.handles.remove(&handle);
    }

    /// The bytes of the handle, which can be mapped at `address`.
    pub(crate) fn check_map(&self, address: Address, handle: Handle) -> Result<u64, DeviceError> {
        let size = self.physical("map", handle)?.size;
        if !address.is_multiple_of(self.granularity) {
            let unit = self.granularity;
            return misuse("map", format!("{address:#x} is not a multiple of {unit}"));
        }
        let end = address.saturating_add(size);
        if self.reservation_end(address).is_none_or(|reserved| end > reserved) {
            return misuse("map", format!("{address:#x}..{end:#x} is not within a reservation"));
        }
        match self.mappings.range(..end).next_back() {
            Some((start, mapping)) if start + mapping.size > address => {
                misuse("map", format!("{start:#x} in {address:#x}..{end:#x} is mapped already"))
            }
            _ => Ok(size),
        }
    }

    pub(crate) fn add_mapping(&mut self, address: Address, handle: Handle) {
        if let Some(physical) = self.handles.get_mut(&handle) {
            physical.mappings += 1;
            let size = physical.size;
            self.mappings.insert(address, Mapping { size, handle, accessible: false });
        }
    }

    /// Checks that `size` bytes at `address`, in one reservation, are tiled by whole mapped handles.
    pub(crate) fn check_mapped(
        &self,
        call: &'static str,
        address: Address,
        size: u64,
    ) -> Result<(), DeviceError> {
        let Some(end) = address.checked_add(size) else {
            return misuse(call, format!("{size} bytes at {address:#x} leave the address space"));
        };
        let mut at = address;
        for (start, mapping) in self.mappings.range(address..end) {
            if *start != at {
                break;
            }
            at += mapping.size;
        }
        let reserved = self.reservation_end(address).unwrap_or(address);
        if at == end && address < end && end <= reserved {
            return Ok(());
        }
        let at = at.min(reserved);
        let reason = format!(
            "{address:#x}..{end:#x} is not made of whole mapped handles of one reservation; it fits \
             up to {at:#x}"
        );
        misuse(call, reason)
    }

    /// Takes down that the mappings of a range are accessible.
    pub(crate) fn set_accessible(&mut self, address: Address, size: u64) {
        for (_, mapping) in self.mappings.range_mut(address..address + size) {
            mapping.accessible = true;
        }
    }

    /// Takes the mappings of a range out.
    pub(crate) fn remove_mappings(&mut self, address: Address, size: u64) {
        let end = address + size;
        while let Some((&start, &Mapping { handle, .. })) = self.mappings.range(address..end).next()
        {
            self.mappings.remove(&start);
            if let Some(physical) = self.handles.get_mut(&handle) {
                physical.mappings -= 1;
            }
        }
    }

    /// The mappings that hold `size` bytes at `address`, with the address of the first; nothing if
    /// there is a gap.
    pub(crate) fn mappings_of(
        &self,
        address: Address,
        size: u64,
    ) -> Option<(Address, Vec<Mapping>)> {
        let end = address.checked_add(size)?;
        let (first, _) = at_or_before(&self.mappings, address)?;
        let (mut found, mut at) = (Vec::new(), first);
        for (start, mapping) in self.mappings.range(first..end) {
            if *start != at {
                return None;
            }
            at += mapping.size;
            found.push(*mapping);
        }
        (at >= end && size > 0).then_some((first, found))
    }

    /// The accessible runs, each within one reservation: address and bytes.
    pub(crate) fn accessible_runs(&self) -> Vec<(Address, u64)> {
        let mut runs: Vec<(Address, u64)> = Vec::new();
        let mut reservation_end = 0;
        for (&start, mapping) in self.mappings.iter().filter(|(_, mapping)| mapping.accessible) {
            match runs.last_mut() {
                Some((first, size)) if *first + *size == start && start < reservation_end => {
                    *size += mapping.size;
                }
                _ => {
                    runs.push((start, mapping.size));
                    reservation_end = self.reservation_end(start).unwrap_or(0);
                }
            }
        }
        runs
    }

    /// Allocations, reservations, handles and mappings: how many there are.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> [usize; 4] {
        let (handles, mappings) = (self.handles.len(), self.mappings.len());
        [self.allocations.len(), self.reservations.len(), handles, mappings]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 2 << 20;
    const BASE: Address = 0x10_0000_0000;

    /// A reservation of eight units; handles 1 and 2 of one unit and 3 of two.
    fn books() -> Books {
        let mut books = Books::new(UNIT);
        books.add_reservation(BASE, 8 * UNIT);
        for (handle, units) in [(1, 1), (2, 1), (3, 2)] {
            books.add_handle(Handle(handle), units * UNIT, true);
        }
        books
    }

    #[track_caller]
    fn assert_misuse<T: std::fmt::Debug>(result: Result<T, DeviceError>, part: &str) {
        match result {
            Err(DeviceError::Misuse { reason, .. }) => assert!(reason.contains(part), "{reason}"),
            other => panic!("{other:?} is no misuse"),
        }
    }

    #[test]
    fn nothing_is_mapped_twice_at_one_place() {
        let mut books = books();
        books.add_mapping(BASE + UNIT, Handle(3));
        assert_misuse(books.check_map(BASE + UNIT, Handle(1)), "mapped already");
        assert_misuse(books.check_map(BASE + 2 * UNIT, Handle(1)), "mapped already");
        assert_misuse(books.check_map(BASE, Handle(3)), "mapped already");
        assert_eq!(books.check_map(BASE, Handle(1)), Ok(UNIT));
        assert_eq!(books.check_map(BASE + 3 * UNIT, Handle(3)), Ok(2 * UNIT), "an alias");
    }

    #[test]
    fn a_mapping_stays_within_a_reservation() {
        let books = books();
        assert_eq!(books.check_map(BASE + 6 * UNIT, Handle(3)), Ok(2 * UNIT));
        assert_misuse(books.check_map(BASE + 7 * UNIT, Handle(3)), "not within a reservation");
        assert_misuse(books.check_map(BASE - UNIT, Handle(1)), "not within a reservation");
        assert_misuse(books.check_map(BASE + 4096, Handle(1)), "not a multiple");
        assert_misuse(books.check_map(BASE, Handle(9)), "no handle 0x9");
    }

    #[test]
    fn only_whole_handles_are_unmapped() {
        let mut books = books();
        books.add_mapping(BASE, Handle(1));
        books.add_mapping(BASE + UNIT, Handle(3));
        assert_eq!(books.check_mapped("unmap", BASE, 3 * UNIT), Ok(()));
        assert_eq!(books.check_mapped("unmap", BASE + UNIT, 2 * UNIT), Ok(()));
        for (units, count) in [(0, 2), (1, 1), (2, 1), (0, 4), (0, 0)] {
            let (address, size) = (BASE + units * UNIT, count * UNIT);
            assert_misuse(books.check_mapped("unmap", address, size), "whole mapped handles");
        }
        assert_misuse(books.check_mapped("unmap", u64::MAX, UNIT), "address space");
    }

    #[test]
    fn a_handle_is_released_only_when_it_is_mapped_nowhere() {
        let mut books = books();
        books.add_mapping(BASE, Handle(1));
        books.add_mapping(BASE + UNIT, Handle(1));
        assert_misuse(books.check_release(Handle(1)), "mapped in 2 places");
        books.remove_mappings(BASE, 2 * UNIT);
        assert_eq!(books.check_release(Handle(1)), Ok(UNIT));
    }

    #[test]
    fn a_reservation_goes_back_whole_and_empty() {
        let mut books = books();
        assert_misuse(books.check_unreserve(BASE, UNIT), "one whole reservation");
        books.add_mapping(BASE + 7 * UNIT, Handle(1));
        assert_misuse(books.check_unreserve(BASE, 8 * UNIT), "still mapped");
        books.remove_mappings(BASE + 7 * UNIT, UNIT);
        assert_eq!(books.check_unreserve(BASE, 8 * UNIT), Ok(()));
    }

    #[test]
    fn the_mappings_of_a_block_reach_from_the_handle_it_begins_in_to_the_one_it_ends_in() {
        let mut books = books();
        books.add_mapping(BASE, Handle(1));
        books.add_mapping(BASE + UNIT, Handle(3));
        books.add_mapping(BASE + 4 * UNIT, Handle(2));
        let handles = |address, size| {
            let (first, found) = books.mappings_of(address, size)?;
            Some((first, found.iter().map(|mapping| mapping.handle.0).collect::<Vec<_>>()))
        };
        assert_eq!(handles(BASE + 512, 512), Some((BASE, vec![1])));
        assert_eq!(handles(BASE + 512, UNIT), Some((BASE, vec![1, 3])));
        assert_eq!(handles(BASE + 2 * UNIT, UNIT), Some((BASE + UNIT, vec![3])));
        assert_eq!(handles(BASE + 2 * UNIT, 2 * UNIT), None, "there is a gap");
        assert_eq!(handles(BASE + 6 * UNIT, 512), None, "nothing is there");
        assert_eq!(handles(BASE - UNIT, 512), None);
        assert_eq!(handles(BASE, 0), None);
    }

    #[test]
    fn runs_and_calls_end_with_their_reservation() {
        let mut books = books();
        books.add_reservation(BASE + 8 * UNIT, 2 * UNIT);
        for unit in [5, 6, 7, 8, 9] {
            books.add_mapping(BASE + unit * UNIT, Handle(1));
        }
        assert_eq!(books.accessible_runs(), []);
        books.set_accessible(BASE + 5 * UNIT, 4 * UNIT);
        let runs = [(BASE + 5 * UNIT, 3 * UNIT), (BASE + 8 * UNIT, UNIT)];
        assert_eq!(books.accessible_runs(), runs);
        let across = books.check_mapped("unmap", BASE + 7 * UNIT, 2 * UNIT);
        assert_misuse(across, "fits up to 0x1001000000");
    }
}
