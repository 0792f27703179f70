//! How much of the device a policy may hold: bytes.
//!
//! A program says it as a share of the device, and so do the settings (`per_process_memory_fraction`). The
//! program's share is made bytes where it comes in, for there the device is at hand. That of the settings
//! is kept as it is until the policy sees its device.

use crate::caching::{Config, TieOrder};
use crate::device::Device;

/// What a policy may hold.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Limit {
    /// A share of the device, as the settings say, made bytes as in a release.
    Share(f64, TieOrder),
    /// So many bytes; None for as many as there are.
    Bytes(Option<u64>),
}

impl Limit {
    /// That of the settings.
    pub(crate) fn of_settings(config: &Config) -> Limit {
        Limit::Share(config.memory_fraction, config.tie_order)
    }

    /// Bytes that may be held of a device of `total` bytes; None without a limit.
    pub(crate) fn of_total(self, total: u64) -> Option<u64> {
        match self {
            Limit::Share(fraction, order) => order.limit_of(fraction, total),
            Limit::Bytes(limit) => limit,
        }
    }

    /// The same of a device, which is asked only if it matters.
    pub(crate) fn on(self, device: &mut dyn Device) -> Option<u64> {
        match self {
            Limit::Share(..) if self.is_set() => self.of_total(device.memory_info().total),
            Limit::Share(..) => None,
            Limit::Bytes(limit) => limit,
        }
    }

    /// True if there is a limit.
    #[inline]
    pub(crate) fn is_set(self) -> bool {
        match self {
            Limit::Share(fraction, _) => fraction < 1.0,
            Limit::Bytes(limit) => limit.is_some(),
        }
    }
}
