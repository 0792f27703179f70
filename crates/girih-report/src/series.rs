//! Bytes over time: requested by live blocks, active, and reserved, after each event.
//!
//! A page draws at most as many columns as a screen has, so a long recording is kept in *buckets* of
//! a power of two of events, each with the least and the most of its events: no peak is lost, however
//! far one looks from.

use girih_plan::granted;
use girih_trace::{Action, Contradiction, Earlier, Lifetimes, Tick, Trace};

use crate::column::Column;

/// Buckets that a page has at most.
pub const BUCKETS_MAX: usize = 1 << 17;

/// The least and the most of each bucket. Bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Band {
    /// The least of each bucket.
    pub low: Vec<u64>,
    /// The most.
    pub high: Vec<u64>,
    /// The most of all, and the first event after which it was so.
    pub peak: (u64, Tick),
}

impl Band {
    fn note(&mut self, index: usize, width: usize, value: u64) {
        if index.is_multiple_of(width) {
            self.low.push(value);
            self.high.push(value);
        } else if let (Some(low), Some(high)) = (self.low.last_mut(), self.high.last_mut()) {
            *low = (*low).min(value);
            *high = (*high).max(value);
        }
        if value > self.peak.0 {
            self.peak = (value, Tick(index as u32));
        }
    }

    fn write(&self, column: &mut Column) {
        let mut last = 0;
        for &low in &self.low {
            column.push_change(last, low);
            last = low;
        }
        for (low, high) in self.low.iter().zip(&self.high) {
            column.push(high - low);
        }
    }
}

/// What was requested, active and reserved over time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Series {
    /// Events.
    pub events: usize,
    /// Events in a bucket, a power of two.
    pub width: usize,
    /// What the live blocks had asked for.
    pub requested: Band,
    /// What they were granted, in blocks of 512 bytes: freed blocks that a stream still holds are
    /// among them.
    pub active: Band,
    /// Held of the device.
    pub reserved: Band,
    /// What was reserved after the event at which the most was first requested.
    pub reserved_at_peak: u64,
    /// The clock at the first event of each bucket, in microseconds from the first of all; never
    /// falls.
    pub times_us: Vec<u64>,
    /// True if the recording tells of less reserved than active somewhere: it lacks segments, and
    /// what was active is taken for reserved there.
    pub is_raised: bool,
}

impl Series {
    /// Adds a recording up. Linear.
    pub fn of(
        trace: &Trace,
        lives: &Lifetimes,
        earlier: &Result<Earlier, Contradiction>,
    ) -> Series {
        let events = trace.events.len();
        let width = events.div_ceil(BUCKETS_MAX).next_power_of_two();
        let mut series = Series { events, width, ..Series::default() };
        let mut change = vec![(0_i64, 0_i64); events + 1];
        for life in &lives.requests {
            let size = i64::try_from(life.size).unwrap_or(i64::MAX);
            let block = i64::try_from(granted(life.size)).unwrap_or(i64::MAX);
            let birth = &mut change[life.birth.index()];
            *birth = (birth.0.saturating_add(size), birth.1.saturating_add(block));
            if life.death != Tick::NEVER {
                let death = &mut change[life.death.index()];
                *death = (death.0.saturating_sub(size), death.1.saturating_sub(block));
            }
        }
        let mut reserved = earlier.as_ref().map_or(0, Earlier::reserved);
        let (mut requested, mut active) = (0_i64, 0_i64);
        let start = trace.events.first().map_or(0, |event| event.time_us);
        let mut time = 0;
        for (index, event) in trace.events.iter().enumerate() {
            let (more, more_active) = change[index];
            requested = requested.saturating_add(more);
            active = active.saturating_add(more_active);
            match event.action {
                Action::SegmentAlloc | Action::SegmentMap => {
                    reserved = reserved.saturating_add(event.size);
                }
                Action::SegmentFree | Action::SegmentUnmap => {
                    reserved = reserved.saturating_sub(event.size);
                }
                _ => {}
            }
            time = time.max(u64::try_from(event.time_us.saturating_sub(start)).unwrap_or(0));
            if index.is_multiple_of(width) {
                series.times_us.push(time);
            }
            let in_use = active.max(0) as u64;
            series.is_raised |= in_use > reserved;
            series.requested.note(index, width, requested.max(0) as u64);
            if series.requested.peak.1 == Tick(index as u32) {
                series.reserved_at_peak = reserved.max(in_use);
            }
            series.active.note(index, width, in_use);
            series.reserved.note(index, width, reserved.max(in_use));
        }
        series
    }

    /// The event that the page begins with: after it the most was requested.
    pub fn peak_at(&self) -> Tick {
        self.requested.peak.1
    }

    pub(crate) fn column(&self) -> Column {
        let mut column = Column::default();
        column.push(self.events as u64);
        column.push(self.width as u64);
        for band in [&self.requested, &self.active, &self.reserved] {
            band.write(&mut column);
        }
        let mut last = 0;
        for &time in &self.times_us {
            column.push(time - last);
            last = time;
        }
        column
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use girih_trace::generate::{Training, training};

    #[test]
    fn the_peaks_are_those_of_the_lifetimes_and_no_bucket_loses_one() {
        let trace = training(&Training::default(), 3);
        let lives = Lifetimes::of(&trace);
        let series = Series::of(&trace, &lives, &Earlier::of(&trace, &lives));
        assert_eq!(series.requested.peak, lives.peak(|size| size));
        assert_eq!(series.active.peak, lives.peak(granted));
        for band in [&series.requested, &series.active, &series.reserved] {
            assert_eq!(band.high.iter().max(), Some(&band.peak.0));
            assert_eq!(band.high.len(), trace.events.len().div_ceil(series.width));
            assert!(band.low.iter().zip(&band.high).all(|(low, high)| low <= high));
        }
    }
}
