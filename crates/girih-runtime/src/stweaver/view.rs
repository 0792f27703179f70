//! Looking at what is held, by address; and the walk that checks everything.

use std::collections::BTreeMap;

use girih_trace::{BlockState, PoolId, StreamId};

use super::{Stweaver, is_small};
use crate::policy::{Backing, BlockId, BlockView, Policy, SegmentView};
use crate::stats::Stats;
use crate::wrapper::Wrapper;

impl Stweaver {
    /// The pool, and every segment of the caching policy, with their blocks, by address.
    pub(super) fn views(&self) -> Vec<(SegmentView, Vec<BlockView>)> {
        let mut views: Vec<_> = self.pool_view().into_iter().collect();
        self.beside.inner().visit(&mut |segment, blocks| views.push((segment, blocks.to_vec())));
        views.sort_unstable_by_key(|(segment, _)| segment.address);
        views
    }

    fn pool_view(&self) -> Option<(SegmentView, Vec<BlockView>)> {
        let pool = self.pool.as_ref()?;
        let free = pool.space.ranges().map(|(start, end)| BlockView {
            address: pool.address + start,
            size: end - start,
            requested: 0,
            whole: 0,
            state: BlockState::Inactive,
        });
        let given = self.grants.iter().map(|(_, grant)| BlockView {
            address: pool.address + grant.offset,
            size: grant.size,
            requested: grant.requested,
            whole: 0,
            state: grant.state,
        });
        let mut blocks: Vec<BlockView> = free.chain(given).collect();
        blocks.sort_unstable_by_key(|block| block.address);
        let segment = SegmentView {
            address: pool.address,
            size: pool.size,
            stream: StreamId(0),
            pool: PoolId::DEFAULT,
            is_small: false,
            backing: Backing::Allocation,
        };
        Some((segment, blocks))
    }

    /// Walks everything; see [`Policy::check`].
    pub(super) fn check_all(&self) -> Result<(), String> {
        self.beside.inner().check().map_err(|fault| format!("the fallback: {fault}"))?;
        if let Some((segment, blocks)) = self.pool_view() {
            let mut at = segment.address;
            for block in &blocks {
                if block.address != at {
                    return Err(format!("{block:?} does not begin at {at}: {segment:?}"));
                }
                at += block.size;
            }
            if at != segment.address + segment.size {
                return Err(format!("the blocks end at {at}: {segment:?}"));
            }
        } else if let Some((id, grant)) = self.grants.iter().next() {
            return Err(format!("{id:?} lies in no pool: {grant:?}"));
        }
        self.check_waiting()?;
        self.check_counters()
    }

    /// A block that was freed waits for its events or for the end of the capture, not for both.
    fn check_waiting(&self) -> Result<(), String> {
        let mut events: BTreeMap<BlockId, u32> = BTreeMap::new();
        for id in self.pending.iter() {
            *events.entry(id).or_default() += 1;
        }
        for (id, grant) in self.grants.iter() {
            let listed = self.deferred.iter().filter(|&&other| other == id).count();
            let waits = listed + usize::from(grant.events > 0);
            let expected = usize::from(grant.state == BlockState::PendingFree);
            if waits != expected || grant.events != events.remove(&id).unwrap_or(0) {
                return Err(format!("{id:?} waits in {waits} ways: {grant:?}"));
            }
        }
        match events.keys().next() {
            Some(id) => Err(format!("events of {id:?} are left, and it is gone")),
            None => Ok(()),
        }
    }

    /// Counts everything anew and compares it with the statistics.
    fn check_counters(&self) -> Result<(), String> {
        let mut counted = Stats::default();
        counted.add_change(&Stats::default(), self.beside.inner().stats());
        if let Some(pool) = &self.pool {
            counted.segment.increase(false, 1);
            counted.reserved_bytes.increase(false, pool.size);
        }
        for (_, grant) in self.grants.iter() {
            let is_small = is_small(grant.size);
            counted.active.increase(is_small, 1);
            counted.active_bytes.increase(is_small, grant.size);
            counted.requested_bytes.increase(is_small, grant.requested);
            if grant.state == BlockState::Allocated {
                counted.allocation.increase(is_small, 1);
                counted.allocated_bytes.increase(is_small, grant.size);
            }
        }
        self.beside.stats.check_present(&counted)
    }
}
