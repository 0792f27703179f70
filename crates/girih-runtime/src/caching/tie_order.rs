//! What changed with the releases of PyTorch: which of several equal blocks is taken, and two smaller rules.

/// Which of several free blocks of one size is taken: it changed with the releases of PyTorch, and
/// two smaller rules changed with it ([`TieOrder::limit_of`], [`TieOrder::pool_scope_captures`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TieOrder {
    /// Up to 2.11: the lowest address.
    #[default]
    Address,
    /// 2.12: the lowest registration number, which every new block gets, split heads included.
    Registration,
    /// From 2.13 on: the oldest segment, then the lowest address. Parts of a segment have its
    /// number.
    Segment,
}

impl TieOrder {
    /// The order of a release, from its version (`2.11.0+cu130`); none if that is no version.
    pub fn of_torch(version: &str) -> Option<TieOrder> {
        let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
        match (numbers.next()??, numbers.next()??) {
            (..=1, _) | (2, ..=11) => Some(TieOrder::Address),
            (2, 12) => Some(TieOrder::Registration),
            _ => Some(TieOrder::Segment),
        }
    }

    /// Bytes that may be held if it is a share of a device of `total` bytes (`setMemoryFraction`): truncated
    /// up to 2.12, rounded to the nearest from then on. None for all of the device, which is no limit.
    pub fn limit_of(self, fraction: f64, total: u64) -> Option<u64> {
        (fraction < 1.0).then(|| {
            let limit = fraction * total as f64;
            if self == TieOrder::Segment { limit.round() as u64 } else { limit as u64 }
        })
    }

    /// True if an open pool scope counts as a graph capture: events are not polled, and an
    /// allocation that fails does not release cached memory.
    pub fn pool_scope_captures(self) -> bool {
        self != TieOrder::Segment
    }
}
