//! Looking at a heap: counters, layout, and the trace of what was recorded.

use girih_runtime::{Backing, BlockView, Counters, SegmentView};
use girih_trace::{Block, PoolId, Segment, StackId, Trace};

use super::{Heap, State};
use crate::abi;
use crate::error::{Outcome, unsupported};

impl Heap {
    /// The counters, those of what came and went in all since the last reset; and the size from
    /// which on blocks are not split.
    ///
    /// # Errors
    /// After a panic inside the heap.
    pub fn stats(&self) -> Outcome<abi::Stats> {
        self.with(|state| {
            let policy = state.engine.policy();
            Ok(abi::Stats::of(policy.stats(), &state.baseline, policy.max_split_size()))
        })
    }

    /// Sets the peak of every counter to its present value (`resetPeakStats`).
    ///
    /// # Errors
    /// After a panic inside the heap.
    pub fn reset_peak_stats(&self) -> Outcome<()> {
        self.with(|state| {
            state.engine.policy_mut().reset_peak_stats();
            Ok(())
        })
    }

    /// Counts what comes and goes from 0 again (`resetAccumulatedStats`).
    ///
    /// # Errors
    /// After a panic inside the heap.
    pub fn reset_accumulated_stats(&self) -> Outcome<()> {
        self.with(|state| {
            state.baseline = state.engine.policy().stats().clone();
            state.pool_baselines = state.reserved_of_pools().collect();
            Ok(())
        })
    }

    /// Shows each private pool that holds or held memory, with the bytes of it: both size classes,
    /// small requests, large requests (`reserved_bytes_by_private_pools`). Under the lock.
    ///
    /// # Errors
    /// After a panic inside the heap.
    pub fn visit_pools(&self, visitor: &mut dyn FnMut(abi::Pool, [abi::Stat; 3])) -> Outcome<()> {
        self.with(|state| {
            for (pool, reserved) in state.reserved_of_pools() {
                let baseline = state.pool_baselines.get(&pool).copied().unwrap_or_default();
                visitor(state.journal.pool_pair(pool), abi::Stat::all_of(&reserved, &baseline));
            }
            Ok(())
        })
    }

    /// Shows each segment by address with its blocks, under the lock.
    ///
    /// # Errors
    /// After a panic inside the heap.
    pub fn visit(&self, visitor: &mut dyn FnMut(abi::Segment, &[BlockView])) -> Outcome<()> {
        self.with(|state| {
            state.engine.policy().visit(&mut |segment, blocks| {
                visitor(state.describe(segment), blocks);
            });
            Ok(())
        })
    }

    /// What was recorded, as a trace.
    ///
    /// # Errors
    /// If nothing is recorded.
    pub fn trace(&self) -> Outcome<Trace> {
        self.with(|state| state.trace())
    }
}

impl State {
    /// What each private pool holds that ever held any memory.
    fn reserved_of_pools(&self) -> impl Iterator<Item = (PoolId, Counters)> {
        let ids = (1..).zip(self.journal.pools.all().iter().skip(1)).map(|(id, _)| PoolId(id));
        ids.filter_map(|id| Some((id, self.engine.policy().reserved_of_pool(id)?)))
    }

    fn describe(&self, segment: SegmentView) -> abi::Segment {
        abi::Segment {
            address: segment.address,
            size: segment.size,
            stream: self.journal.stream_handle(segment.stream),
            pool: self.journal.pool_pair(segment.pool),
            device: self.ordinal as i32,
            registration: self.journal.registration(segment.address),
            is_large: !segment.is_small,
            is_expandable: segment.backing != Backing::Allocation,
        }
    }

    fn trace(&self) -> Outcome<Trace> {
        let Some(recorder) = self.journal.recorder() else {
            return Err(unsupported(format!(
                "enable Girih with record=True (`python -m girih run --option record=true`), with a \
                 trace file, or in the mode `profile`: nothing is recorded in the mode `{}`",
                self.mode.name()
            )));
        };
        let mut trace = recorder.trace(self.ordinal);
        trace.streams = self.journal.streams.handles().to_vec();
        trace.pools = self.journal.pools.all().to_vec();
        trace.settings.expandable_segments = self.config.expandable_segments;
        self.engine.policy().visit(&mut |segment, blocks| {
            trace.segments.push(recorded(segment, blocks));
        });
        Ok(trace)
    }
}

/// A segment as a trace holds it.
fn recorded(segment: SegmentView, blocks: &[BlockView]) -> Segment {
    let block = |block: &BlockView| Block {
        address: block.address,
        size: block.size,
        requested: block.requested,
        state: block.state,
        stack: StackId::NONE,
    };
    Segment {
        address: segment.address,
        size: segment.size,
        stream: segment.stream,
        pool: segment.pool,
        is_small: segment.is_small,
        is_expandable: segment.backing != Backing::Allocation,
        blocks: blocks.iter().map(block).collect(),
    }
}
