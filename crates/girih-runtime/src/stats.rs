//! Counters of an allocator, exactly as PyTorch counts them (`DeviceStats` of
//! `CachingDeviceAllocator.h`).

/// One counter: what is now, what was the most, and what came and went in all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counter {
    /// The present value.
    pub current: u64,
    /// The highest value since the last reset.
    pub peak: u64,
    /// The sum of all increases.
    pub allocated: u64,
}

impl Counter {
    /// The sum of all decreases.
    pub fn freed(&self) -> u64 {
        self.allocated - self.current
    }

    /// Adds `amount`.
    #[inline]
    pub fn increase(&mut self, amount: u64) {
        self.current += amount;
        self.allocated += amount;
        // Rarely so: a jump that is not taken costs less than to write the peak each time.
        if self.current > self.peak {
            cold();
            self.peak = self.current;
        }
    }

    /// Takes `amount` away.
    ///
    /// # Panics
    /// In debug builds, if the counter holds less.
    #[inline]
    pub fn decrease(&mut self, amount: u64) {
        debug_assert!(self.current >= amount, "a counter of {} fell by {amount}", self.current);
        self.current -= amount;
    }

    /// Sets the peak to the present value.
    fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    /// True if nothing has come and gone since the other was the same counter. Peaks may have been reset.
    #[inline]
    fn is_as_in(&self, other: &Counter) -> bool {
        (self.current, self.allocated) == (other.current, other.allocated)
    }

    /// Rises and falls as another counter did from `before` to `after`, which is taken for one
    /// step: what rose and fell again in between leaves no peak.
    fn add_change(&mut self, before: &Counter, after: &Counter) {
        self.current = self.current + after.current - before.current;
        self.allocated += after.allocated - before.allocated;
        self.peak = self.peak.max(self.current);
    }
}

/// Says to the compiler that the way which comes by here is rarely gone.
#[cold]
#[inline(never)]
fn cold() {}

/// A counter kept for both pools and for each: requests of at most 1 MiB, and larger ones.
///
/// What both have together is the sum of the two, but for the most that they ever had: only that is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// The pool of small requests.
    pub small: Counter,
    /// The pool of large requests.
    pub large: Counter,
    /// The highest value of both together since the last reset.
    peak: u64,
}

impl Counters {
    /// Both pools.
    #[inline]
    pub fn all(&self) -> Counter {
        Counter {
            current: self.present(),
            peak: self.peak,
            allocated: self.small.allocated + self.large.allocated,
        }
    }

    /// The present value of both pools.
    #[inline]
    fn present(&self) -> u64 {
        self.small.current + self.large.current
    }

    /// Adds `amount` for the pool that `is_small` names.
    #[inline]
    pub fn increase(&mut self, is_small: bool, amount: u64) {
        self.own(is_small).increase(amount);
        if self.present() > self.peak {
            cold();
            self.peak = self.present();
        }
    }

    /// Takes `amount` away for the pool that `is_small` names.
    #[inline]
    pub fn decrease(&mut self, is_small: bool, amount: u64) {
        self.own(is_small).decrease(amount);
    }

    #[inline]
    fn own(&mut self, is_small: bool) -> &mut Counter {
        if is_small { &mut self.small } else { &mut self.large }
    }

    /// Adds `amount` for the pool that `SMALL` names, and leaves the peaks as they are. Returns a number
    /// whose highest bit says that one of them is too low: so that several can be looked at by one jump. No
    /// counter comes near 2^63.
    #[inline]
    fn add<const SMALL: bool>(&mut self, amount: u64) -> u64 {
        let own = self.own(SMALL);
        own.current += amount;
        own.allocated += amount;
        let below = own.peak.wrapping_sub(own.current);
        below | self.peak.wrapping_sub(self.present())
    }

    /// Rises and falls as other counters did from `before` to `after`, in one step.
    fn add_change(&mut self, before: &Counters, after: &Counters) {
        self.small.add_change(&before.small, &after.small);
        self.large.add_change(&before.large, &after.large);
        self.lift_peaks();
    }

    /// Lifts each peak that is too low to the present value.
    fn lift_peaks(&mut self) {
        for counter in [&mut self.small, &mut self.large] {
            counter.peak = counter.peak.max(counter.current);
        }
        self.peak = self.peak.max(self.present());
    }

    /// Sets each peak to the present value.
    pub(crate) fn reset_peaks(&mut self) {
        self.small.reset_peak();
        self.large.reset_peak();
        self.peak = self.present();
    }
}

/// All counters of one device's allocator.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Blocks given and not yet freed by the program.
    pub allocation: Counters,
    /// Segments taken with `cudaMalloc`.
    pub segment: Counters,
    /// Blocks given and not yet reusable.
    pub active: Counters,
    /// Free blocks that are part of a segment and cannot be given back alone.
    pub inactive_split: Counters,
    /// Bytes of `allocation`.
    pub allocated_bytes: Counters,
    /// Bytes held of the device.
    pub reserved_bytes: Counters,
    /// Bytes of `active`.
    pub active_bytes: Counters,
    /// Bytes of `inactive_split`.
    pub inactive_split_bytes: Counters,
    /// Bytes that the program asked for, of the active blocks.
    pub requested_bytes: Counters,
    /// Requests for which cached memory was given back to the device before a second try.
    pub num_alloc_retries: u64,
    /// Requests that failed.
    pub num_ooms: u64,
    /// Requests that were refused before anything was tried (`throw_on_cudamalloc_oom`, torch 2.12
    /// and later).
    pub num_oom_rejections: u64,
    /// Times that all recorded streams were waited for.
    pub num_sync_all_streams: u64,
    /// Calls that took memory from the device.
    pub num_device_alloc: u64,
    /// Calls that gave memory back.
    pub num_device_free: u64,
    /// Views that were made of free memory in several places, with calls of the device.
    pub num_stitches: u64,
    /// Blocks of at least `max_split_size`.
    pub oversize_allocations: Counter,
    /// Segments of at least `max_split_size`.
    pub oversize_segments: Counter,
}

impl Stats {
    /// Sets the peak of every counter to its present value (`resetPeakStats`).
    pub fn reset_peaks(&mut self) {
        self.each_counters().into_iter().for_each(Counters::reset_peaks);
        self.oversize_allocations.reset_peak();
        self.oversize_segments.reset_peak();
    }

    /// The counters that are kept for both pools and for each, in a fixed order.
    fn each_counters(&mut self) -> [&mut Counters; 9] {
        [
            &mut self.allocation,
            &mut self.segment,
            &mut self.active,
            &mut self.inactive_split,
            &mut self.allocated_bytes,
            &mut self.reserved_bytes,
            &mut self.active_bytes,
            &mut self.inactive_split_bytes,
            &mut self.requested_bytes,
        ]
    }

    /// Counts a block of `size` bytes that is given to a program that asked for `requested`.
    #[inline]
    pub(crate) fn count_allocation(&mut self, is_small: bool, size: u64, requested: u64) {
        if is_small {
            self.count_allocation_of::<true>(size, requested);
        } else {
            self.count_allocation_of::<false>(size, requested);
        }
    }

    /// All is added before the peaks are looked at: so they need one rare way together, not one each.
    #[inline]
    fn count_allocation_of<const SMALL: bool>(&mut self, size: u64, requested: u64) {
        let below = self.allocation.add::<SMALL>(1)
            | self.allocated_bytes.add::<SMALL>(size)
            | self.active.add::<SMALL>(1)
            | self.active_bytes.add::<SMALL>(size)
            | self.requested_bytes.add::<SMALL>(requested);
        if below >> 63 != 0 {
            self.lift_peaks();
        }
    }

    /// Lifts every peak that is too low to the present value.
    #[cold]
    #[inline(never)]
    fn lift_peaks(&mut self) {
        self.each_counters().into_iter().for_each(Counters::lift_peaks);
    }

    /// Counts that the program let a block of `size` bytes go.
    #[inline]
    pub(crate) fn count_free(&mut self, is_small: bool, size: u64) {
        self.allocation.decrease(is_small, 1);
        self.allocated_bytes.decrease(is_small, size);
    }

    /// Counts that a block of `size` bytes is reusable, for which a program had asked for `requested`.
    #[inline]
    pub(crate) fn count_complete(&mut self, is_small: bool, size: u64, requested: u64) {
        self.active.decrease(is_small, 1);
        self.active_bytes.decrease(is_small, size);
        self.requested_bytes.decrease(is_small, requested);
    }

    /// Compares the present values with those of `counted`, which was counted anew. Says which
    /// counter is wrong.
    pub(crate) fn check_present(&self, counted: &Stats) -> Result<(), String> {
        for (name, kept, counted) in [
            ("reserved bytes", self.reserved_bytes, counted.reserved_bytes),
            ("allocations", self.allocation, counted.allocation),
            ("allocated bytes", self.allocated_bytes, counted.allocated_bytes),
            ("active blocks", self.active, counted.active),
            ("active bytes", self.active_bytes, counted.active_bytes),
            ("requested bytes", self.requested_bytes, counted.requested_bytes),
            ("segments", self.segment, counted.segment),
            ("inactive splits", self.inactive_split, counted.inactive_split),
            ("inactive split bytes", self.inactive_split_bytes, counted.inactive_split_bytes),
        ] {
            let present = |of: Counters| [of.all().current, of.small.current, of.large.current];
            if present(kept) != present(counted) {
                let (kept, counted) = (present(kept), present(counted));
                return Err(format!("{name}: {kept:?} kept, {counted:?} counted"));
            }
        }
        Ok(())
    }

    /// Takes in what happened to another allocator from `before` to `after`: a policy that has
    /// another one inside counts for both.
    pub fn add_change(&mut self, before: &Stats, after: &Stats) {
        self.add_news(&mut before.clone(), after);
    }

    /// The same for whoever does it after each operation: `seen` are the counters up to which this was
    /// done before, and are brought up to `now`. An operation changes few of them, and only those cost
    /// anything.
    pub(crate) fn add_news(&mut self, seen: &mut Stats, now: &Stats) {
        let add = |own: &mut Counters, seen: &mut Counters, now: &Counters| {
            if seen.all().is_as_in(&now.all()) {
                return; // No class changes without both.
            }
            own.add_change(seen, now);
            *seen = *now;
        };
        add(&mut self.allocation, &mut seen.allocation, &now.allocation);
        add(&mut self.segment, &mut seen.segment, &now.segment);
        add(&mut self.active, &mut seen.active, &now.active);
        add(&mut self.inactive_split, &mut seen.inactive_split, &now.inactive_split);
        add(&mut self.allocated_bytes, &mut seen.allocated_bytes, &now.allocated_bytes);
        add(&mut self.reserved_bytes, &mut seen.reserved_bytes, &now.reserved_bytes);
        add(&mut self.active_bytes, &mut seen.active_bytes, &now.active_bytes);
        let split = &mut self.inactive_split_bytes;
        add(split, &mut seen.inactive_split_bytes, &now.inactive_split_bytes);
        add(&mut self.requested_bytes, &mut seen.requested_bytes, &now.requested_bytes);
        let add = |own: &mut Counter, seen: &mut Counter, now: &Counter| {
            own.add_change(seen, now);
            *seen = *now;
        };
        let oversize = &mut self.oversize_allocations;
        add(oversize, &mut seen.oversize_allocations, &now.oversize_allocations);
        add(&mut self.oversize_segments, &mut seen.oversize_segments, &now.oversize_segments);
        let add = |own: &mut u64, seen: &mut u64, now: u64| {
            *own += now - *seen;
            *seen = now;
        };
        add(&mut self.num_alloc_retries, &mut seen.num_alloc_retries, now.num_alloc_retries);
        add(&mut self.num_ooms, &mut seen.num_ooms, now.num_ooms);
        add(&mut self.num_oom_rejections, &mut seen.num_oom_rejections, now.num_oom_rejections);
        let syncs = &mut self.num_sync_all_streams;
        add(syncs, &mut seen.num_sync_all_streams, now.num_sync_all_streams);
        add(&mut self.num_device_alloc, &mut seen.num_device_alloc, now.num_device_alloc);
        add(&mut self.num_device_free, &mut seen.num_device_free, now.num_device_free);
        add(&mut self.num_stitches, &mut seen.num_stitches, now.num_stitches);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_of_a_change_is_added() {
        let counts = |count| Stats {
            num_alloc_retries: count,
            num_ooms: 2 * count,
            num_oom_rejections: 3 * count,
            num_sync_all_streams: 4 * count,
            num_device_alloc: 5 * count,
            num_device_free: 6 * count,
            num_stitches: 7 * count,
            ..Stats::default()
        };
        let mut both = counts(7);
        both.add_change(&counts(10), &counts(11));
        assert_eq!(both, counts(8));
    }

    #[test]
    fn the_news_of_each_operation_make_the_counters_of_both() {
        let counters: [fn(&mut Stats) -> &mut Counters; 9] = [
            |stats| &mut stats.allocation,
            |stats| &mut stats.segment,
            |stats| &mut stats.active,
            |stats| &mut stats.inactive_split,
            |stats| &mut stats.allocated_bytes,
            |stats| &mut stats.reserved_bytes,
            |stats| &mut stats.active_bytes,
            |stats| &mut stats.inactive_split_bytes,
            |stats| &mut stats.requested_bytes,
        ];
        arbtest::arbtest(|u| {
            // What happens to `inner` is news to `both`; all that happens is told to `expected`.
            let (mut inner, mut seen) = (Stats::default(), Stats::default());
            let (mut both, mut expected) = (Stats::default(), Stats::default());
            while !u.is_empty() {
                let (counter, is_small) = (*u.choose(&counters)?, u.arbitrary()?);
                let held = counter(&mut inner);
                let held = if is_small { held.small.current } else { held.large.current };
                let amount = u.int_in_range(0..=1000)?;
                match u.int_in_range(0..=9)? {
                    0 => [&mut inner, &mut both, &mut expected]
                        .into_iter()
                        .for_each(Stats::reset_peaks),
                    1..=3 => [&mut both, &mut expected]
                        .into_iter()
                        .for_each(|stats| counter(stats).increase(is_small, amount)),
                    4..=6 => [&mut inner, &mut expected]
                        .into_iter()
                        .for_each(|stats| counter(stats).increase(is_small, amount)),
                    _ => [&mut inner, &mut expected]
                        .into_iter()
                        .for_each(|stats| counter(stats).decrease(is_small, amount.min(held))),
                }
                both.add_news(&mut seen, &inner);
                assert_eq!(both, expected);
            }
            Ok(())
        });
    }

    #[test]
    fn blocks_are_counted_as_by_each_counter_alone() {
        arbtest::arbtest(|u| {
            let (mut counted, mut expected) = (Stats::default(), Stats::default());
            // Those in use, and those that are not reusable yet.
            let (mut live, mut waiting) = (Vec::new(), Vec::new());
            while !u.is_empty() {
                match u.int_in_range(0..=7)? {
                    0 => [&mut counted, &mut expected].into_iter().for_each(Stats::reset_peaks),
                    1..=3 => {
                        let block =
                            (u.arbitrary()?, u.int_in_range(1..=1000)?, u.arbitrary::<u8>()?);
                        let (is_small, size, requested) = (block.0, block.1, block.2.into());
                        counted.count_allocation(is_small, size, requested);
                        expected.allocation.increase(is_small, 1);
                        expected.allocated_bytes.increase(is_small, size);
                        expected.active.increase(is_small, 1);
                        expected.active_bytes.increase(is_small, size);
                        expected.requested_bytes.increase(is_small, requested);
                        live.push((is_small, size, requested));
                    }
                    4 | 5 => {
                        let Some(block) = live.pop() else { continue };
                        counted.count_free(block.0, block.1);
                        expected.allocation.decrease(block.0, 1);
                        expected.allocated_bytes.decrease(block.0, block.1);
                        waiting.push(block);
                    }
                    _ => {
                        let Some((is_small, size, requested)) = waiting.pop() else { continue };
                        counted.count_complete(is_small, size, requested);
                        expected.active.decrease(is_small, 1);
                        expected.active_bytes.decrease(is_small, size);
                        expected.requested_bytes.decrease(is_small, requested);
                    }
                }
                assert_eq!(counted, expected);
            }
            Ok(())
        });
    }

    #[test]
    fn both_pools_have_the_peak_that_they_had_at_one_time() {
        let mut counters = Counters::default();
        counters.increase(true, 10);
        counters.decrease(true, 10);
        counters.increase(false, 4);
        counters.increase(true, 1);
        assert_eq!((counters.small.peak, counters.large.peak), (10, 4));
        assert_eq!(counters.all(), Counter { current: 5, peak: 10, allocated: 15 });
        counters.reset_peaks();
        counters.increase(true, 2);
        assert_eq!(counters.all(), Counter { current: 7, peak: 7, allocated: 17 });
    }

    #[test]
    fn an_operation_may_take_and_give_back_more_than_was_held_before() {
        let before = Counter { current: 10, peak: 10, allocated: 10 };
        let after = Counter { current: 5, peak: 110, allocated: 110 };
        let mut both = Counter { current: 12, peak: 20, allocated: 30 };
        both.add_change(&before, &after);
        assert_eq!(both, Counter { current: 7, peak: 20, allocated: 130 });
        assert_eq!(both.freed(), 123);
    }
}
