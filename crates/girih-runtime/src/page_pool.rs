//! One pool of physical pages, from which every part of a policy takes them and to which it gives
//! them back.
//!
//! A page is a handle of the device. In the pool it is mapped nowhere: it has no address, and whoever
//! takes it next maps it where it is wanted. [`Pooled`] is a [`Device`] in front of another, so a
//! part need not know that there is a pool:
//!
//! ```text
//!                     release ─►  2 MiB | h h h
//!  fallback ─┐                    4 MiB | h          ─► give back what is too much ─► device
//!  arena    ─┼─► Pooled ◄──────► 32 MiB | h h
//!  the rest ─┘        create ◄─   of the size: no call of the device
//!                             ◄─   of none: as many bytes go back as are created, a trade
//! ```
//!
//! What is held of the device does not grow as long as the pool has anything. Where it has pages of
//! other sizes alone, as many of their bytes go back first as are created then; what went back too
//! much, because a page goes back whole, is remembered and created without going back again.
//!
//! Nothing waits here: whoever releases a page has made sure that no stream uses it any more, as with
//! any device.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::device::{Address, Device, DeviceError, Handle, MemoryInfo};

/// Handles that are mapped nowhere, by size.
#[derive(Debug, Default)]
pub(crate) struct PagePool {
    /// What is released stays here. Otherwise it goes to the device, and the pool stays as it is.
    keeps: bool,
    /// The size of each handle that was created through the pool and not given back.
    sizes: FxHashMap<Handle, u64>,
    shelves: BTreeMap<u64, Shelf>,
    /// Bytes on all shelves.
    bytes: u64,
    /// Bytes that went back to the device in trades, and for which nothing was created yet.
    traded: u64,
}

/// The handles of one size, those that were released last at the end.
#[derive(Debug, Default)]
struct Shelf {
    handles: Vec<Handle>,
    /// The fewest there were since [`PagePool::age`].
    fewest: usize,
}

impl PagePool {
    /// Bytes in the pool.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Says whether what is released from now on stays in the pool.
    pub(crate) fn keep(&mut self, keeps: bool) {
        self.keeps = keeps;
    }

    /// A device that takes from the pool and gives to it, in front of `device`.
    pub(crate) fn before<'a>(&'a mut self, device: &'a mut dyn Device) -> Pooled<'a> {
        Pooled { device, pool: self }
    }

    /// Gives everything back to the device. Stops at the first handle that is refused; it stays.
    pub(crate) fn drain(&mut self, device: &mut dyn Device) -> Result<(), DeviceError> {
        while let Some(&size) = self.shelves.keys().next() {
            self.give_back(device, size)?;
        }
        self.traded = 0;
        Ok(())
    }

    /// Gives back what nobody took since the last time: an iteration has gone by without it. Stops
    /// at the first handle that is refused; it stays.
    pub(crate) fn age(&mut self, device: &mut dyn Device) -> Result<(), DeviceError> {
        let idle: Vec<(u64, usize)> =
            self.shelves.iter().map(|(&size, shelf)| (size, shelf.fewest)).collect();
        for (size, count) in idle {
            for _ in 0..count {
                self.give_back(device, size)?;
            }
        }
        self.traded = 0;
        self.shelves.values_mut().for_each(|shelf| shelf.fewest = shelf.handles.len());
        Ok(())
    }

    /// Gives back what is more than `most` bytes, as far as whole pages can: with few calls. Stops at
    /// the first handle that is refused; it stays.
    pub(crate) fn shrink(&mut self, device: &mut dyn Device, most: u64) -> Result<(), DeviceError> {
        while let Some(excess) = self.bytes.checked_sub(most)
            && let Some((&size, _)) = self.shelves.range(..=excess).next_back()
        {
            self.give_back(device, size)?;
        }
        Ok(())
    }

    /// What is wrong, if anything is.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut bytes = 0;
        for (&size, shelf) in &self.shelves {
            bytes += size * shelf.handles.len() as u64;
            if shelf.handles.is_empty() || shelf.fewest > shelf.handles.len() {
                return Err(format!("the shelf of {size} bytes: {shelf:?}"));
            }
            if shelf.handles.iter().any(|handle| self.sizes.get(handle) != Some(&size)) {
                return Err(format!("a handle on the shelf of {size} bytes has another size"));
            }
        }
        if bytes != self.bytes {
            return Err(format!("{} bytes counted in the pool, {bytes} are", self.bytes));
        }
        Ok(())
    }

    /// Takes a handle of exactly `size` bytes.
    fn take(&mut self, size: u64) -> Option<Handle> {
        let handle = *self.shelves.get(&size)?.handles.last()?;
        self.remove(size);
        Some(handle)
    }

    /// Puts a handle on its shelf. False if the pool does not keep it.
    fn put(&mut self, handle: Handle) -> bool {
        let Some(&size) = self.sizes.get(&handle).filter(|_| self.keeps) else { return false };
        self.shelves.entry(size).or_default().handles.push(handle);
        self.bytes += size;
        true
    }

    /// Takes the last handle off a shelf that has one.
    fn remove(&mut self, size: u64) {
        let Some(shelf) = self.shelves.get_mut(&size) else { return };
        shelf.handles.pop();
        shelf.fewest = shelf.fewest.min(shelf.handles.len());
        if shelf.handles.is_empty() {
            self.shelves.remove(&size);
        }
        self.bytes -= size;
    }

    /// Gives a handle of a shelf that has one back to the device. On an error it stays.
    fn give_back(&mut self, device: &mut dyn Device, size: u64) -> Result<(), DeviceError> {
        let Some(handle) = self.shelves.get(&size).and_then(|shelf| shelf.handles.last()).copied()
        else {
            return Ok(());
        };
        device.release(handle)?;
        self.remove(size);
        self.sizes.remove(&handle);
        Ok(())
    }

    /// Gives back as many bytes as are about to be taken from the device, or all: with few calls, and
    /// not much more than that.
    fn make_room(&mut self, device: &mut dyn Device, size: u64) -> Result<(), DeviceError> {
        while self.traded < size {
            let missing = size - self.traded;
            let enough = self.shelves.range(missing..).next();
            let Some((&page, _)) = enough.or_else(|| self.shelves.last_key_value()) else { break };
            self.give_back(device, page)?;
            self.traded += page;
        }
        Ok(())
    }
}

/// A device whose handles come from a pool and go into it. See the [module](self).
pub(crate) struct Pooled<'a> {
    device: &'a mut dyn Device,
    pool: &'a mut PagePool,
}

impl Pooled<'_> {
    /// Takes `size` bytes from the device by `call`, for which room is made in the pool first. If the
    /// device has too little even so, the pool gives everything back, and the call is made again.
    fn take<T>(
        &mut self,
        size: u64,
        mut call: impl FnMut(&mut dyn Device) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        self.pool.make_room(self.device, size)?;
        let taken = match call(self.device) {
            Err(DeviceError::OutOfMemory { .. }) if self.pool.bytes > 0 => {
                self.pool.drain(self.device)?;
                call(self.device)?
            }
            result => result?,
        };
        self.pool.traded = self.pool.traded.saturating_sub(size);
        Ok(taken)
    }
}

impl Device for Pooled<'_> {
    crate::streams_of!(device);
    crate::calls_of!(device {
        fn free(address: Address) -> ();
        fn reserve(size: u64) -> Address;
        fn unreserve(address: Address, size: u64) -> ();
        fn map(address: Address, handle: Handle) -> ();
        fn set_access(address: Address, size: u64) -> ();
        fn unmap(address: Address, size: u64) -> ();
    });

    fn memory_info(&mut self) -> MemoryInfo {
        let info = self.device.memory_info();
        MemoryInfo { free: info.free + self.pool.bytes, ..info }
    }

    fn granularity(&self) -> u64 {
        self.device.granularity()
    }

    fn alloc(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.take(size, |device| device.alloc(size))
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        if let Some(handle) = self.pool.take(size) {
            return Ok(handle);
        }
        let handle = self.take(size, |device| device.create(size))?;
        self.pool.sizes.insert(handle, size);
        Ok(handle)
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        if !self.pool.put(handle) {
            self.device.release(handle)?;
            self.pool.sizes.remove(&handle);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Call, Fault, FaultKind, LiveObjects, SimDevice};

    const MIB: u64 = 1 << 20;

    struct Bench {
        device: SimDevice,
        pool: PagePool,
    }

    impl Bench {
        fn new(mib: u64) -> Bench {
            let mut pool = PagePool::default();
            pool.keep(true);
            Bench { device: SimDevice::new(mib * MIB), pool }
        }

        fn with<T>(&mut self, call: impl FnOnce(&mut Pooled<'_>) -> T) -> T {
            let result = call(&mut self.pool.before(&mut self.device));
            self.pool.check().expect("a sound pool");
            result
        }

        fn create(&mut self, mib: u64) -> Result<Handle, DeviceError> {
            self.with(|device| device.create(mib * MIB))
        }

        fn release(&mut self, handle: Handle) {
            self.with(|device| device.release(handle)).expect("a release into the pool");
        }

        /// Puts pages of so many MiB into the pool.
        fn fill(&mut self, sizes: &[u64]) {
            let handles: Vec<Handle> = sizes.iter().map(|&mib| self.create(mib).unwrap()).collect();
            handles.into_iter().for_each(|handle| self.release(handle));
        }

        fn calls(&self, call: Call) -> u64 {
            self.device.totals().of(call).calls
        }

        /// MiB that the device has given and not got back.
        fn held(&mut self) -> u64 {
            let info = Device::memory_info(&mut self.device);
            (info.total - info.free) / MIB
        }

        fn refuse(&mut self, call: Call) {
            self.device.inject(Fault { kind: FaultKind::Next(call), out_of_memory: false });
        }
    }

    #[test]
    fn a_page_of_the_size_is_taken_again_without_a_call() {
        let mut bench = Bench::new(1024);
        bench.fill(&[32, 4]);
        let calls = bench.device.calls();
        let again = [bench.create(4), bench.create(32)];
        assert!(again.iter().all(Result::is_ok));
        assert_eq!((bench.device.calls(), bench.pool.bytes()), (calls, 0));
    }

    #[test]
    fn what_is_in_the_pool_counts_as_free() {
        let mut bench = Bench::new(64);
        bench.fill(&[32]);
        assert_eq!(bench.with(|device| device.memory_info()).free, 64 * MIB);
        assert_eq!(bench.held(), 32);
    }

    #[test]
    fn a_pool_that_keeps_nothing_releases_and_keeps_no_size() {
        let mut bench = Bench::new(64);
        bench.pool.keep(false);
        bench.fill(&[32]);
        assert_eq!((bench.held(), bench.pool.bytes(), bench.pool.sizes.len()), (0, 0, 0));
    }

    #[test]
    fn what_was_created_before_the_pool_kept_anything_is_known_by_its_size() {
        let mut bench = Bench::new(64);
        bench.pool.keep(false);
        let early = bench.create(8).unwrap();
        bench.pool.keep(true);
        bench.release(early);
        assert_eq!((bench.pool.bytes(), bench.create(8)), (8 * MIB, Ok(early)));
    }

    #[test]
    fn pages_of_other_sizes_are_traded_with_as_few_calls_as_can_be() {
        let mut bench = Bench::new(1024);
        bench.fill(&[2, 2, 8, 32]);
        // The smallest that is enough, and not the largest.
        bench.create(4).unwrap();
        assert_eq!((bench.calls(Call::Release), bench.held()), (1, 40));
        // What that was too much is enough for another, and nothing goes back for it.
        bench.create(4).unwrap();
        assert_eq!((bench.calls(Call::Release), bench.held()), (1, 44));
        // Nothing is enough: the largest first.
        bench.create(34).unwrap();
        assert_eq!((bench.calls(Call::Release), bench.held()), (3, 44));
    }

    #[test]
    fn no_more_is_held_as_long_as_the_pool_has_anything() {
        arbtest::arbtest(|u| {
            let mut bench = Bench::new(1 << 20);
            let (mut live, mut segments) = (Vec::new(), Vec::new());
            let mut most = 0;
            while !u.is_empty() {
                let mib = 2 << u.int_in_range(0..=5)?;
                let had = bench.pool.bytes() / MIB;
                match u.int_in_range(0..=6)? {
                    0..3 => live.push(bench.create(mib).unwrap()),
                    3 => segments.push(bench.with(|device| device.alloc(mib * MIB)).unwrap()),
                    _ if !live.is_empty() => {
                        let at = u.choose_index(live.len())?;
                        bench.release(live.swap_remove(at));
                    }
                    _ => {}
                }
                let held = bench.held();
                assert!(held <= most || had < mib, "{held} MiB after {most}, {had} in the pool");
                most = most.max(held);
            }
            Ok(())
        })
        .size_min(100)
        .size_max(2000)
        .budget_ms(500);
    }

    #[test]
    fn a_segment_makes_room_in_the_pool_too() {
        let mut bench = Bench::new(32);
        bench.fill(&[8, 8, 8, 8]);
        bench.with(|device| device.alloc(24 * MIB)).expect("three pages go back for it");
        assert_eq!((bench.held(), bench.pool.bytes()), (32, 8 * MIB));
    }

    #[test]
    fn a_device_that_is_full_after_all_gets_the_whole_pool() {
        let mut bench = Bench::new(64);
        bench.fill(&[32, 32]);
        bench.create(2).unwrap();
        // Another process takes what the trade has left over.
        Device::alloc(&mut bench.device, 30 * MIB).unwrap();
        bench.create(4).expect("the other page goes back");
        assert_eq!((bench.pool.bytes(), bench.held()), (0, 36));
        let error = bench.create(32).unwrap_err();
        assert!(matches!(error, DeviceError::OutOfMemory { .. }), "{error}");
    }

    #[test]
    fn only_what_nobody_took_for_a_whole_iteration_goes_back() {
        let mut bench = Bench::new(1024);
        bench.fill(&[4, 4, 4, 32]);
        bench.pool.age(&mut bench.device).unwrap();
        assert_eq!(bench.held(), 44, "it came in this iteration");
        bench.fill(&[4, 4]);
        bench.pool.age(&mut bench.device).unwrap();
        assert_eq!(bench.held(), 8, "two of 4 MiB were used");
        bench.pool.check().unwrap();
    }

    #[test]
    fn a_pool_shrinks_to_what_is_wanted_and_not_below() {
        let mut bench = Bench::new(1024);
        bench.fill(&[2, 4, 32, 32]);
        bench.pool.shrink(&mut bench.device, 32 * MIB).unwrap();
        assert_eq!((bench.held(), bench.calls(Call::Release)), (32, 3));
        bench.pool.shrink(&mut bench.device, 31 * MIB).unwrap();
        assert_eq!(bench.held(), 32, "a page goes back whole or not at all");
    }

    #[test]
    fn a_release_that_is_refused_leaves_the_page_in_the_pool() {
        let mut bench = Bench::new(1024);
        bench.fill(&[8, 8]);
        bench.refuse(Call::Release);
        assert!(bench.create(4).is_err());
        bench.refuse(Call::Release);
        assert!(bench.pool.drain(&mut bench.device).is_err());
        bench.pool.check().unwrap();
        assert_eq!((bench.pool.bytes(), bench.held()), (16 * MIB, 16));
        bench.create(4).unwrap();
        assert_eq!((bench.pool.bytes(), bench.held()), (8 * MIB, 12));
    }

    /// Trades, a segment, an iteration and the end; what fails is tried again.
    fn program(bench: &mut Bench) {
        fn again<T>(mut call: impl FnMut() -> Result<T, DeviceError>) -> T {
            call().or_else(|_| call()).expect("one fault alone")
        }
        let handles: Vec<Handle> =
            [8, 8, 32, 2].iter().map(|&mib| again(|| bench.create(mib))).collect();
        handles.into_iter().for_each(|handle| bench.release(handle));
        let traded = again(|| bench.create(4));
        let segment = again(|| bench.with(|device| device.alloc(24 * MIB)));
        again(|| bench.with(|device| device.free(segment)));
        bench.release(traded);
        again(|| bench.pool.age(&mut bench.device));
        again(|| bench.pool.shrink(&mut bench.device, 4 * MIB));
        again(|| bench.pool.drain(&mut bench.device));
    }

    #[test]
    fn every_call_may_fail_and_nothing_is_lost() {
        let mut bench = Bench::new(64);
        program(&mut bench);
        for call in 1..=bench.device.calls() {
            let mut bench = Bench::new(64);
            bench.device.inject(Fault::nth(call));
            program(&mut bench);
            assert_eq!(bench.device.live(), LiveObjects::default(), "call {call} failed");
            assert_eq!((bench.pool.bytes(), bench.pool.sizes.len()), (0, 0), "call {call} failed");
        }
    }
}
