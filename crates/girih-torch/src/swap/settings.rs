//! How much may be where.

use std::fs;

/// What a user asked for. Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapSettings {
    /// On the GPU, all that the heap holds; without it nothing goes but what would end in out of memory.
    pub gpu_budget: Option<u64>,
    /// On the host, pinned; without it, this process's share of a half of what the machine has available.
    pub host_budget: Option<u64>,
    /// Nothing goes whatever happens.
    pub is_off: bool,
    /// Processes of the job on this machine.
    pub local_ranks: u64,
}

/// Bytes that may be in use where so many may be held: the lake holds half a percent more than was in use at most, and
/// the ends of pages.
pub(super) fn room(gpu_budget: u64) -> u64 {
    gpu_budget.saturating_sub(gpu_budget / 100 + (32 << 20))
}

/// A half of the memory that the machine has available now, shared among so many processes. Bytes.
pub(super) fn host_of_the_machine(ranks: u64) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text.lines().find_map(|line| {
        let kib = line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?;
        kib.trim().parse::<u64>().ok()
    });
    available.unwrap_or(0) * 1024 / 2 / ranks.max(1)
}
