//! The two directions between GPU and host.

/// Bandwidths, in bytes a microsecond (a thousandth of a GB/s, decimal).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Links {
    /// From the GPU to the host while nothing comes in.
    pub outward: f64,
    /// From the host to the GPU while nothing goes out.
    pub inward: f64,
    /// Both together while both are busy; shared in proportion.
    pub both: f64,
}

impl Default for Links {
    /// What one H200 with pinned memory was measured to do: 55 GB/s alone, 101 together.
    fn default() -> Links {
        Links::of_gigabytes(55.0, 55.0, 101.0)
    }
}

impl Links {
    /// True if both together are at least the faster one and at most the sum: all else is no pair of links.
    pub fn are_possible(outward: f64, inward: f64, both: f64) -> bool {
        (outward.max(inward)..=outward + inward).contains(&both)
    }

    /// Bandwidths given in GB/s (10^9 bytes a second). Both together are at most the sum.
    pub fn of_gigabytes(outward: f64, inward: f64, both: f64) -> Links {
        let both = both.min(outward + inward);
        Links { outward: outward * 1e3, inward: inward * 1e3, both: both * 1e3 }
    }

    /// The rates of both directions, by whether they are busy.
    pub fn rates(&self, goes_out: bool, comes_in: bool) -> (f64, f64) {
        let share = match goes_out && comes_in {
            true => self.both / (self.outward + self.inward),
            false => 1.0,
        };
        (self.outward * share, self.inward * share)
    }

    /// Microseconds to go out and to come back, alone.
    pub fn round_trip_us(&self, bytes: u64) -> f64 {
        bytes as f64 / self.outward + bytes as f64 / self.inward
    }
}
