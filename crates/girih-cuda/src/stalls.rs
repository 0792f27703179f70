//! How long streams stand still in waits: two events that take the time, around the wait.
//!
//! ```text
//!  stream   work ─┬─ wait for a fence ─┬─ work
//!                 └ first time         └ second time        the difference is asked for later, when both are known
//! ```
//!
//! Nobody waits for a time. There are [`UNDER_WAY_MAX`] waits under way at most whose time is taken; what goes beyond
//! counts as the mean of those that were measured.

use std::collections::VecDeque;

use girih_runtime::{Copies as _, Device as _, DeviceError, StreamEvent, TimeStamp};
use girih_trace::StreamId;

use crate::device::CudaDevice;

/// Waits whose time is taken at once: the 70 of a step of FSDP2, and those of the next, by which the host may be ahead.
const UNDER_WAY_MAX: usize = 160;

/// The waits of a device.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    /// The times before and after, in the order of the waits.
    under_way: VecDeque<(TimeStamp, TimeStamp)>,
    /// Waits whose time was not taken, and that nobody was told of.
    unmeasured: u64,
    /// Measured waits so far, and their nanoseconds as they were told.
    measured: u64,
    told: u64,
}

impl Stalls {
    /// What waits of `nanoseconds` count for, and those that were not measured.
    fn tell(&mut self, nanoseconds: &[u64], most: u64) -> u64 {
        let told = nanoseconds.iter().map(|&stall| stall.min(most)).fold(0, u64::saturating_add);
        self.measured += nanoseconds.len() as u64;
        self.told = self.told.saturating_add(told);
        let Some(mean) = self.told.checked_div(self.measured) else { return told };
        told.saturating_add(std::mem::take(&mut self.unmeasured).saturating_mul(mean))
    }
}

impl CudaDevice {
    /// [`wait_measured`](girih_runtime::Device::wait_measured). That a time cannot be taken is no reason not to wait.
    pub(crate) fn waits_timed(
        &mut self,
        stream: StreamId,
        event: StreamEvent,
    ) -> Result<(), DeviceError> {
        let is_full = self.stalls.under_way.len() >= UNDER_WAY_MAX;
        let before = if is_full { None } else { self.take_time(stream).ok() };
        let waited = self.wait_event(stream, event);
        let after = before.filter(|_| waited.is_ok()).and_then(|_| self.take_time(stream).ok());
        match before.zip(after) {
            Some(times) => self.stalls.under_way.push_back(times),
            None => {
                before.into_iter().for_each(|time| self.forget_time(time));
                self.stalls.unmeasured += u64::from(waited.is_ok());
            }
        }
        waited
    }

    /// [`take_stalls`](girih_runtime::Device::take_stalls). Asks of the waits in their order, up to the first that is
    /// not over.
    pub(crate) fn stalls_told(&mut self, most: u64) -> u64 {
        if self.stalls.under_way.is_empty() && self.stalls.unmeasured == 0 {
            return 0;
        }
        let mut over = Vec::new();
        while let Some(&(before, after)) = self.stalls.under_way.front() {
            match self.time_between(before, after) {
                Ok(None) => break,
                // A cast keeps it in range, and makes nothing of what is less than nothing.
                Ok(Some(microseconds)) => over.push((microseconds * 1e3) as u64),
                Err(_) => self.stalls.unmeasured += 1,
            }
            self.stalls.under_way.pop_front();
            [before, after].into_iter().for_each(|time| self.forget_time(time));
        }
        self.stalls.tell(&over, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_counts_as_the_mean_of_what_was() {
        let mut stalls = Stalls { unmeasured: 3, ..Stalls::default() };
        assert_eq!(stalls.tell(&[], 100), 0, "nothing is known yet, and they are not forgotten");
        assert_eq!(stalls.tell(&[10, 30], 100), 40 + 3 * 20);
        assert_eq!(stalls.tell(&[10, 900], 100), 110, "a long one counts for the most");
        stalls.unmeasured = 2;
        assert_eq!(stalls.tell(&[], 100), 2 * ((40 + 110) / 4));
        assert_eq!(stalls.tell(&[u64::MAX, u64::MAX], u64::MAX), u64::MAX);
    }
}
