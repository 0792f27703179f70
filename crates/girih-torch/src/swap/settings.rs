//! How much may be where.

use std::path::Path;

use super::machine;

/// What a user asked for. Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapSettings {
    /// On the GPU, all that the heap holds; without it nothing goes but what would end in out of memory.
    pub gpu_budget: Option<u64>,
    /// On the host, pinned; without it, this process's share of a half of what the machine has available, within the
    /// limits of its groups of control.
    pub host_budget: Option<u64>,
    /// Nothing goes whatever happens.
    pub is_off: bool,
    /// Processes of the job on this machine.
    pub local_ranks: u64,
}

/// Bytes that may be in use where so many may be held: the lake holds half a percent more than was in use at most, and
/// the ends of pages.
pub(super) fn room(held: u64) -> u64 {
    held.saturating_sub(held / 100 + (32 << 20))
}

/// A half of the memory that the machine has available now, shared among so many processes. Bytes.
pub(super) fn host_of_the_machine(ranks: u64) -> u64 {
    machine::available(Path::new("/")) / 2 / ranks.max(1)
}
