//! Looking at the layout: segments with their blocks, and the walk that checks everything.

use std::collections::{BTreeMap, BTreeSet};

use girih_trace::BlockState;

use super::block::Block;
use super::rounding::{MIN_BLOCK_SIZE, round_size};
use super::{Adopted, Caching};
use crate::chain::NIL;
use crate::policy::{AllocError, Backing, BlockId, BlockView, SegmentView};
use crate::replay::{Beginning, begin};
use crate::sim::SimDevice;
use crate::simulate::{Recorded, Simulated};
use crate::stats::Stats;

impl Block {
    fn state(&self) -> BlockState {
        match self {
            _ if self.allocated => BlockState::Allocated,
            _ if self.is_free() => BlockState::Inactive,
            _ => BlockState::PendingFree,
        }
    }
}

impl Caching {
    fn block_view(&self, block: &Block) -> BlockView {
        let state = block.state();
        let (requested, whole) = match state {
            BlockState::Inactive => (0, self.bytes_of_whole_pages(block)),
            _ => (block.requested, 0),
        };
        BlockView { address: block.address, size: block.size, requested, whole, state }
    }

    /// The first block of every chain, by address.
    fn heads(&self) -> Vec<BlockId> {
        let heads = self.blocks.iter().filter(|(_, block)| block.prev == NIL);
        let mut heads: Vec<BlockId> = heads.map(|(id, _)| id).collect();
        heads.sort_unstable_by_key(|&id| self.blocks[id].address);
        heads
    }

    /// The ids of a chain.
    fn chain(&self, head: BlockId) -> impl Iterator<Item = BlockId> {
        let some = |id: BlockId| (id != NIL).then_some(id);
        std::iter::successors(some(head), move |&id| some(self.blocks[id].next))
    }

    /// Shows every mapped run as a segment; what is unmapped is left out.
    pub(super) fn visit_segments(&self, visitor: &mut dyn FnMut(SegmentView, &[BlockView])) {
        let mut views = Vec::new();
        for head in self.heads() {
            let first = self.blocks[head];
            let mut flush = |views: &mut Vec<BlockView>| {
                if let Some(start) = views.first() {
                    let segment = SegmentView {
                        address: start.address,
                        size: views.iter().map(|view| view.size).sum(),
                        stream: first.home.stream,
                        pool: self.pools.owner(first.home.pool).id,
                        is_small: first.home.is_small(),
                        backing: match self.segment(head) {
                            Some(segment) => Backing::Expandable { page: segment.page },
                            None => Backing::Allocation,
                        },
                    };
                    visitor(segment, views);
                    views.clear();
                }
            };
            for id in self.chain(head) {
                let block = &self.blocks[id];
                if block.mapped {
                    views.push(self.block_view(block));
                } else {
                    flush(&mut views);
                }
            }
            flush(&mut views);
        }
    }

    /// Walks everything; see [`Policy::check`](crate::Policy::check).
    pub(super) fn check_all(&self) -> Result<(), String> {
        let mut seen = 0;
        let mut last_end = 0;
        for head in self.heads() {
            if self.blocks[head].address < last_end {
                return Err(format!("{:?} overlaps the segment before it", self.blocks[head]));
            }
            for id in self.chain(head) {
                self.check_block(id)?;
                seen += 1;
                last_end = self.blocks[id].address + self.blocks[id].size;
            }
        }
        let blocks = self.blocks.iter().count();
        if seen != blocks {
            return Err(format!("{blocks} blocks exist, {seen} are in segments"));
        }
        self.check_sets()?;
        self.check_pages()?;
        self.check_waiting()?;
        self.check_counters()
    }

    fn check_block(&self, id: BlockId) -> Result<(), String> {
        let block = &self.blocks[id];
        if !block.exists || block.size == 0 || !block.address.is_multiple_of(MIN_BLOCK_SIZE) {
            return Err(format!("{id:?} is malformed: {block:?}"));
        }
        if !block.mapped && (!block.is_free() || !block.is_expandable()) {
            return Err(format!("{id:?} is unmapped and in use: {block:?}"));
        }
        if block.shared != self.uses.contains_key(&id) {
            return Err(format!("{id:?} and the streams recorded on it disagree"));
        }
        if block.next == NIL {
            return Ok(());
        }
        let next = &self.blocks[block.next];
        let same = (block.home, block.segment) == (next.home, next.segment);
        if next.prev != id || next.address != block.address + block.size || !same {
            return Err(format!("{block:?} is not followed by {next:?}"));
        }
        if block.is_free() && next.is_free() && block.mapped == next.mapped {
            return Err(format!("{block:?} and {next:?} should be one"));
        }
        Ok(())
    }

    /// Every expandable segment has the pages that its blocks say.
    fn check_pages(&self) -> Result<(), String> {
        let mut mapped = BTreeMap::<u32, u64>::new();
        for (_, block) in self.blocks.iter().filter(|(_, block)| block.is_expandable()) {
            *mapped.entry(block.segment).or_default() += if block.mapped { block.size } else { 0 };
        }
        for (at, bytes) in mapped {
            match self.segments.get(at as usize).and_then(Option::as_ref) {
                Some(segment) if segment.counts(bytes / segment.page) => {}
                found => return Err(format!("{bytes} bytes are mapped in {found:?}")),
            }
        }
        Ok(())
    }

    /// Every free block is in the set of its pool and stream, every unmapped one among the
    /// unmapped, and nothing else is.
    fn check_sets(&self) -> Result<(), String> {
        let mut expected = (0, 0);
        for (id, block) in self.blocks.iter().filter(|(_, block)| block.is_free()) {
            let found = if block.mapped {
                expected.0 += 1;
                let entry = self.entry(id);
                self.pools.shelf(block.home).find(&entry).is_some()
            } else {
                expected.1 += 1;
                let unmapped = &self.pools.get(block.home.pool).unmapped;
                unmapped.contains(&(block.home.stream, block.address, id))
            };
            if !found {
                return Err(format!("{id:?} is free but in no set: {block:?}"));
            }
        }
        let pools = &self.pools.pools;
        let free = self.pools.free_count();
        let unmapped: usize = pools.iter().map(|pool| pool.unmapped.len()).sum();
        if (free, unmapped) != expected {
            let counted = (free, unmapped);
            return Err(format!("free sets hold {counted:?} blocks, {expected:?} are free"));
        }
        Ok(())
    }

    /// Blocks wait for as many events as there are, and deferred blocks are shared.
    fn check_waiting(&self) -> Result<(), String> {
        let mut events = BTreeMap::new();
        for id in self.pending.iter() {
            *events.entry(id).or_insert(0) += 1;
        }
        let deferred: BTreeSet<BlockId> = self.deferred.iter().copied().collect();
        for (id, block) in self.blocks.iter() {
            let waits = events.get(&id).copied().unwrap_or(0);
            if u32::from(block.events) != waits || (block.allocated && waits > 0) {
                return Err(format!("{id:?} waits for {waits} events: {block:?}"));
            }
            if deferred.contains(&id) != (block.shared && !block.allocated) {
                return Err(format!("{id:?} and the deferred frees disagree: {block:?}"));
            }
        }
        Ok(())
    }

    /// Counts everything anew and compares it with the statistics.
    fn check_counters(&self) -> Result<(), String> {
        let mut counted = Stats::default();
        for (_, block) in self.blocks.iter() {
            let is_small = block.home.is_small();
            if block.mapped {
                counted.reserved_bytes.increase(is_small, block.size);
            }
            if block.allocated {
                counted.allocation.increase(is_small, 1);
                counted.allocated_bytes.increase(is_small, block.size);
            }
            if !block.is_free() {
                counted.active.increase(is_small, 1);
                counted.active_bytes.increase(is_small, block.size);
                counted.requested_bytes.increase(is_small, block.requested);
            }
            if block.is_expandable() {
                continue;
            }
            if block.prev == NIL {
                counted.segment.increase(is_small, 1);
            }
            if block.is_free() && block.is_split() {
                counted.inactive_split.increase(is_small, 1);
                counted.inactive_split_bytes.increase(is_small, block.size);
            }
        }
        self.stats.check_present(&counted)?;
        self.check_reserved_of_pools()
    }

    /// Counts what each private pool holds, and compares it with what is kept of that.
    fn check_reserved_of_pools(&self) -> Result<(), String> {
        for owner in self.pools.owners.iter().skip(1).filter(|owner| owner.exists) {
            let of_pool = |block: &Block| self.pools.owner(block.home.pool).id == owner.id;
            let held = self.blocks.iter().map(|(_, block)| block);
            let held = held.filter(|block| block.mapped && of_pool(block));
            let counted: u64 = held.map(|block| block.size).sum();
            let kept = self.pools.reserved(owner.id).map_or(0, |kept| kept.all().current);
            if kept != counted {
                return Err(format!("{:?} holds {counted} bytes, {kept} are kept", owner.id));
            }
        }
        Ok(())
    }
}

impl Simulated for Caching {
    fn begin(
        &mut self,
        recorded: &Recorded<'_>,
        device: &mut SimDevice,
    ) -> Result<(Beginning, Option<Adopted>), AllocError> {
        begin(recorded.trace, &recorded.earlier(), self, device)
    }

    fn rounded(&self, size: u64) -> u64 {
        round_size(size, &self.config.roundup_power2_divisions)
    }
}
