//! What changed with the releases of PyTorch: which of several equal blocks is taken, and two smaller rules.

/// Which of several free blocks of one size is taken: it changed with the releases of PyTorch, and
/// two smaller rules changed with it ([`TieOrder::rounds_limit`], [`TieOrder::pool_scope_captures`]).
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

    /// True if the memory limit is rounded to the nearest byte, not truncated.
    pub fn rounds_limit(self) -> bool {
        self == TieOrder::Segment
    }

    /// True if an open pool scope counts as a graph capture: events are not polled, and an
    /// allocation that fails does not release cached memory.
    pub fn pool_scope_captures(self) -> bool {
        self != TieOrder::Segment
    }
}
