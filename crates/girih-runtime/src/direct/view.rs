//! Looking at what is held: single allocations and private pools, by address; and the walk that
//! checks everything.

use std::collections::BTreeMap;

use girih_trace::BlockState;

use super::{ALIGNMENT, Direct};
use crate::policy::{BlockId, BlockView, Policy, SegmentView};
use crate::simulate::Simulated;
use crate::stats::Stats;
use crate::wrapper::Wrapper;

impl Direct {
    /// Every allocation and every segment of the pools with its blocks, by address.
    pub(super) fn views(&self) -> Vec<(SegmentView, Vec<BlockView>)> {
        let own = self.blocks.iter().map(|(_, block)| block.view());
        let mut views: Vec<_> = own.map(|(segment, block)| (segment, vec![block])).collect();
        self.beside.inner().visit(&mut |segment, blocks| views.push((segment, blocks.to_vec())));
        views.sort_unstable_by_key(|(segment, _)| segment.address);
        views
    }

    /// Walks everything; see [`Policy::check`](crate::Policy::check).
    pub(super) fn check_all(&self) -> Result<(), String> {
        self.beside.inner().check().map_err(|fault| format!("private pools: {fault}"))?;
        let mut last_end = 0;
        for (segment, _) in self.views() {
            if segment.address < last_end {
                return Err(format!("{segment:?} overlaps what is before it"));
            }
            last_end = segment.address + segment.size;
        }
        self.check_waiting()?;
        self.check_counters()
    }

    /// A block that was freed waits for its events, for the end of the capture, or for the device,
    /// and for one of them only.
    fn check_waiting(&self) -> Result<(), String> {
        let mut events: BTreeMap<BlockId, u32> = BTreeMap::new();
        for id in self.pending.iter() {
            *events.entry(id).or_default() += 1;
        }
        for (id, block) in self.blocks.iter() {
            let lists = [&self.deferred, &self.done].into_iter().flatten();
            let listed = lists.filter(|&&other| other == id).count();
            let waits = listed + usize::from(block.events > 0);
            let expected = usize::from(block.state == BlockState::PendingFree);
            if waits != expected || block.events != events.remove(&id).unwrap_or(0) {
                return Err(format!("{id:?} waits in {waits} ways: {block:?}"));
            }
        }
        if let Some(id) = events.keys().next() {
            return Err(format!("events of {id:?} are left, and it is gone"));
        }
        Ok(())
    }

    /// Counts everything anew and compares it with the statistics.
    fn check_counters(&self) -> Result<(), String> {
        let mut counted = Stats::default();
        counted.add_change(&Stats::default(), self.beside.inner().stats());
        for (_, block) in self.blocks.iter() {
            let is_small = block.is_small();
            counted.segment.increase(is_small, 1);
            counted.reserved_bytes.increase(is_small, block.size);
            counted.active.increase(is_small, 1);
            counted.active_bytes.increase(is_small, block.size);
            counted.requested_bytes.increase(is_small, block.requested);
            if block.state == BlockState::Allocated {
                counted.allocation.increase(is_small, 1);
                counted.allocated_bytes.increase(is_small, block.size);
            }
        }
        self.beside.stats.check_present(&counted)
    }
}

impl Simulated for Direct {
    fn rounded(&self, size: u64) -> u64 {
        size.next_multiple_of(ALIGNMENT)
    }
}
