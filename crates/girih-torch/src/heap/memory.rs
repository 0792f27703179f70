//! The memory that a heap holds: giving it back, limits, peers, other processes.

use girih_runtime::caching::Config;
use girih_runtime::{Address, BlockView, SegmentView};

use super::{Heap, State};
use crate::device::{Closing, Exported};
use crate::error::{Outcome, unknown, unsupported};
use crate::oom;

impl Heap {
    /// Gives back what is free and whole: of the default pool and of pools without users if `pool`
    /// is `(0, 0)`, of that pool otherwise (`emptyCache`).
    ///
    /// # Errors
    /// What the driver refused.
    pub fn empty_cache(&self, pool: (u64, u64)) -> Outcome<()> {
        self.with(|state| {
            let Some(pool) = state.journal.pools.find(pool) else { return Ok(()) };
            let (policy, mut env) = state.parts();
            let emptied = policy.empty_pool(&mut env, girih_trace::PoolId(pool));
            state.forget_pools();
            Ok(emptied?)
        })
    }

    /// Limits what the heap may hold to a share of the device (`setMemoryFraction`), which is made bytes here
    /// as the release makes it. A budget of swapping is a limit besides, whatever the share.
    ///
    /// # Errors
    /// If the share is not from 0 to 1.
    pub fn set_memory_fraction(&self, fraction: f64) -> Outcome<()> {
        check_fraction(fraction)?;
        self.with(|state| {
            state.fraction = fraction;
            state.set_limit();
            state.look_at_edge_again();
            Ok(())
        })
    }

    /// The share of the device that the heap may hold (`getMemoryFraction`).
    ///
    /// # Errors
    /// After a panic inside the heap.
    pub fn memory_fraction(&self) -> Outcome<f64> {
        self.with(|state| Ok(state.fraction))
    }

    /// Changes the settings of the caching allocator (`_accelerator_setAllocatorSettings`). The memory
    /// fraction stays, and so do expandable segments where the mode decides on them.
    ///
    /// # Errors
    /// What the driver refused.
    pub(crate) fn configure(&self, config: &Config) -> Outcome<()> {
        self.with(|state| {
            let mut config = config.clone();
            if !state.mode.leaves_segments_to_the_program() {
                config.expandable_segments = state.config.expandable_segments;
            }
            let (policy, mut env) = state.parts();
            policy.configure(&mut env, &config)?;
            let before = std::mem::replace(&mut state.config, config);
            state.look_at_captures(before.graph_capture_record_stream_reuse);
            state.follow_lock_setting();
            Ok(())
        })
    }

    /// The largest block that is free or that the device could give now (`cacheInfo`). Bytes.
    ///
    /// # Errors
    /// After a panic inside the heap.
    pub fn largest_free(&self) -> Outcome<u64> {
        self.with(|state| {
            let info = state.device.memory_info();
            let policy = state.engine.policy();
            let allowed = policy.limit(info.total).unwrap_or(info.total);
            let reserved = policy.stats().reserved_bytes.all().current;
            let obtainable = info.free.min(allowed.saturating_sub(reserved));
            Ok(obtainable.max(oom::largest_free(policy)))
        })
    }

    /// The first address and the bytes of the segment or mapped run that `address` lies in; None
    /// if it lies in no memory of this heap.
    ///
    /// # Errors
    /// After a panic inside the heap.
    pub fn segment_of(&self, address: Address) -> Outcome<Option<(Address, u64)>> {
        self.with(|state| {
            let mut found = None;
            state.engine.policy().visit(&mut |segment: SegmentView, _| {
                if (segment.address..segment.address + segment.size).contains(&address) {
                    found = Some((segment.address, segment.size));
                }
            });
            Ok(found)
        })
    }

    /// Lets `peer` read and write the memory of this device (`enablePeerAccess`).
    ///
    /// # Errors
    /// If the two cannot reach each other.
    pub fn enable_peer(&self, peer: i32) -> Outcome<()> {
        self.with(|state| state.device.enable_peer(peer))
    }

    /// Describes the memory of the block that `address` lies in for another process.
    ///
    /// # Errors
    /// If it is not in a block of this heap, or in memory that cannot leave the process.
    pub fn export(&self, address: Address) -> Outcome<Exported> {
        self.with(|state| {
            let mut size = None;
            state.engine.policy().visit(&mut |_, blocks| {
                let around = |block: &&BlockView| {
                    (block.address..block.address + block.size).contains(&address)
                };
                let block = blocks.iter().find(around);
                size = size.or(block.map(|block| block.address + block.size - address));
            });
            let Some(size) = size else {
                return Err(unknown(format!("{address:#x} is no memory of this heap")));
            };
            state.device.export(address, size)
        })
    }

    /// Maps memory of another process.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn import(&self, description: &[u8]) -> Outcome<Address> {
        self.with(|state| state.device.import(description))
    }

    /// Closes memory of another process. False if it was not mapped through this heap. With the last
    /// opening the device's work is waited for, without the lock, and the memory is unmapped.
    ///
    /// # Errors
    /// What the driver refused; it stays mapped then.
    pub fn close(&self, address: Address) -> Outcome<bool> {
        match self.with(|state| state.device.begin_close(address))? {
            Closing::Unknown => return Ok(false),
            Closing::Shared => {}
            Closing::Last { wait, closing } => {
                wait()?;
                self.with(|state| state.device.finish_close(address, closing))?;
            }
        }
        Ok(true)
    }
}

impl State {
    /// Has the policy hold no more than the share of the device, and no more than the budget of swapping.
    pub(super) fn set_limit(&mut self) {
        let total = self.device.memory_info().total;
        let share = self.config.tie_order.limit_of(self.fraction, total);
        let budget = self.edge.settings().gpu_budget;
        self.engine.policy_mut().set_limit(share.into_iter().chain(budget).min());
    }

    /// What it may hold, as was set. None if it is not limited.
    pub(crate) fn limit(&mut self) -> Option<u64> {
        let total = self.device.memory_info().total;
        self.engine.policy().limit(total)
    }
}

/// # Errors
/// If a share is not from 0 to 1.
pub(crate) fn check_fraction(fraction: f64) -> Outcome<()> {
    if (0.0..=1.0).contains(&fraction) {
        return Ok(());
    }
    Err(unsupported(format!(
        "a memory fraction of {fraction} makes no sense: it must be from 0 to 1"
    )))
}
