//! The solid part of a phantom: allocations with bytes of their own, while they last.
//!
//! ```text
//!  large ones while this lasts ............ | small ones alone | tiny ones alone |
//! ```
//!
//! Indices are small, and garbage in them is a kernel that fails; of a large tensor it does not matter. So what small ones
//! need is taken from large ones that were freed, and those have that much less from then on: in each step of a
//! training run the same would be given and taken back otherwise.

use girih_runtime::{Address, DeviceError};
use rustc_hash::FxHashMap;

use crate::idle::Idle;
use crate::phantom::Backing;

/// Bytes of the largest allocation of a class. Ids of a batch are tiny mostly. Tables of routing, positions and states of
/// random numbers are small: two million indices. What a layer leaves for the backward pass is large, but where many share a
/// layer.
const LARGEST: [u64; 3] = [2 << 20, 16 << 20, u64::MAX];
const TINY: usize = 0;
const LARGE: usize = 2;

/// One part of all in so many is left to those of smaller classes.
const LEFT: [Option<u64>; 3] = [None, Some(16), Some(4)];

/// Bytes that the driver gives at least.
const LEAST: u64 = 512;

fn class_of(size: u64) -> usize {
    LARGEST.iter().position(|largest| size <= *largest).unwrap_or(LARGE)
}

/// See the [module](self).
pub(crate) struct Solid {
    /// Bytes that there may be.
    most: u64,
    /// By class: bytes that there are, freed ones too, and that there may be.
    used: [u64; 3],
    limits: [u64; 3],
    given: FxHashMap<Address, u64>,
    /// Freed ones: those that kernels may still use, and those that none does.
    freed: Idle,
    idle: Idle,
}

impl Solid {
    /// So many bytes at most, but for what [`Solid::own`] gives beyond them.
    pub(crate) fn of(most: u64) -> Solid {
        Solid {
            most,
            used: [0; 3],
            limits: [u64::MAX; 3],
            given: FxHashMap::default(),
            freed: Idle::default(),
            idle: Idle::default(),
        }
    }

    /// An allocation of a size; none where there are too few bytes, or the device refuses.
    pub(crate) fn take<D: Backing>(&mut self, device: &mut D, size: u64) -> Option<Address> {
        let backed = backing(size, device.granularity())?;
        if let Some(address) = self.idle.take(backed) {
            return Some(self.give(address, backed));
        }
        // To wait for the device is what takes long, above all where others record beside this one: so what there is
        // is used up first, and then all that was freed serves again.
        if !has_room(backed, self.most, self.used, self.limits) {
            if let Some(address) = self.again(device, backed) {
                return Some(self.give(address, backed));
            }
            // Freed ones of other sizes are in the way, but for those of smaller classes, which have their part.
            let class = class_of(backed);
            let least = class.checked_sub(1).map_or(0, |smaller| LARGEST[smaller] + 1);
            let is_enough = has_room(backed, self.most, self.used_without(least), self.limits);
            if class == LARGE || !is_enough {
                return None;
            }
            self.let_go(device, least).ok()?;
            let larger = class + 1..;
            self.limits[larger.clone()].copy_from_slice(&self.used[larger]);
        }
        // What the device refuses, the phantom gives.
        self.own(device, size).ok()
    }

    /// Bytes by class that there were without freed ones of at least so many bytes each.
    fn used_without(&self, least: u64) -> [u64; 3] {
        let mut used = self.used;
        let freed = self.idle.sizes().chain(self.freed.sizes());
        freed.filter(|(size, _)| *size >= least).for_each(|(size, count)| {
            used[class_of(size)] -= size * count;
        });
        used
    }

    /// An allocation of the device's, whatever there may be.
    ///
    /// # Errors
    /// Those of [`Device::alloc`](girih_runtime::Device::alloc).
    pub(crate) fn own<D: Backing>(
        &mut self,
        device: &mut D,
        size: u64,
    ) -> Result<Address, DeviceError> {
        let backed = backing(size, device.granularity()).unwrap_or(size);
        let address = device.alloc(backed)?;
        self.used[class_of(backed)] += backed;
        Ok(self.give(address, backed))
    }

    fn give(&mut self, address: Address, backed: u64) -> Address {
        self.given.insert(address, backed);
        address
    }

    /// A freed one of that size, once no kernel uses it any more.
    fn again<D: Backing>(&mut self, device: &mut D, backed: u64) -> Option<Address> {
        // Who captures cannot wait, and gets what is not solid.
        if !self.freed.has(backed) || device.finish().is_err() {
            return None;
        }
        self.idle.append(&mut self.freed);
        self.idle.take(backed)
    }

    /// Takes one back. False if it is none of these.
    ///
    /// # Errors
    /// Those of [`Device::free`](girih_runtime::Device::free), where too many are kept: it is still given then.
    pub(crate) fn free<D: Backing>(
        &mut self,
        device: &mut D,
        address: Address,
    ) -> Result<bool, DeviceError> {
        let Some(&backed) = self.given.get(&address) else { return Ok(false) };
        if !self.freed.keep(backed, address) {
            device.free(address)?;
            self.used[class_of(backed)] -= backed;
        }
        self.given.remove(&address);
        Ok(true)
    }

    /// Gives the device what was freed, of at least so many bytes each.
    ///
    /// # Errors
    /// Those of [`Device::free`](girih_runtime::Device::free): what it refuses to take back stays.
    pub(crate) fn let_go<D: Backing>(
        &mut self,
        device: &mut D,
        least: u64,
    ) -> Result<(), DeviceError> {
        // Those that kernels may still use stay apart: the device may refuse after some.
        for list in [&mut self.idle, &mut self.freed] {
            while let Some((backed, address)) = list.any(least) {
                device.free(address)?;
                list.take(backed);
                self.used[class_of(backed)] -= backed;
            }
        }
        Ok(())
    }
}

/// True if so many bytes fit beside those that are used, within what there may be.
fn has_room(backed: u64, most: u64, used: [u64; 3], limits: [u64; 3]) -> bool {
    let class = class_of(backed);
    let left = LEFT[class].map_or(0, |part| most / part);
    let fits = |used: u64, most: u64| most.checked_sub(used).is_some_and(|rest| backed <= rest);
    fits(used.iter().sum(), most - left) && fits(used[class], limits[class])
}

/// Bytes of an allocation: all of a unit, for whoever gets it next. The driver puts many tiny ones into a unit, and a layer
/// keeps ten; those are rounded to powers of two for the same reason.
fn backing(size: u64, granularity: u64) -> Option<u64> {
    match size {
        size if size <= LARGEST[TINY] => Some(size.next_power_of_two().max(LEAST)),
        size => size.checked_next_multiple_of(granularity),
    }
}
