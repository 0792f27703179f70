//! Looking at the lake: segments with their blocks, and the walk that checks everything.

use std::collections::{BTreeMap, BTreeSet};

use girih_trace::{BlockState, PoolId, StreamId};

use super::Lake;
use super::block::Block;
use super::views::Part;
use crate::caching::rounding::{MIN_BLOCK_SIZE, round_size};
use crate::chain::NIL;
use crate::device::Address;
use crate::policy::{Backing, BlockId, BlockView, Policy, SegmentView};
use crate::simulate::Simulated;
use crate::stats::Stats;
use crate::wrapper::Wrapper;

/// A block of the default pool that is alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Live {
    pub(crate) address: Address,
    pub(crate) requested: u64,
    pub(crate) stream: StreamId,
}

impl Lake {
    /// Every block of the default pool that is alive, those included whose free waits for a stream.
    pub(crate) fn live(&self) -> Vec<Live> {
        let alive = self.heap.blocks.values().filter(|block| block.is_alive());
        let live = alive.map(|&Block { address, requested, user: stream, .. }| Live {
            address,
            requested,
            stream,
        });
        live.collect()
    }

    fn block_view(&self, block: &Block) -> BlockView {
        let Block { address, size, requested, .. } = *block;
        if block.is_free() {
            return self.idle_view(block.segment, block.part());
        }
        let state = if block.allocated { BlockState::Allocated } else { BlockState::PendingFree };
        BlockView { address, size, requested, whole: 0, state }
    }

    fn idle_view(&self, segment: u32, part: Part) -> BlockView {
        let (whole, state) = (self.whole_bytes(segment, part), BlockState::Inactive);
        BlockView { address: part.address, size: part.size, requested: 0, whole, state }
    }

    /// What lies in a part of a plan's window; `planned` are all blocks in places, by address.
    fn places_view(&self, block: &Block, planned: &[&Block], views: &mut Vec<BlockView>) {
        let first = planned.partition_point(|other| other.address < block.address);
        let inside = planned[first..].iter().take_while(|other| other.address < block.end());
        let mut at = block.address;
        let idle = |from: Address, to: Address, views: &mut Vec<BlockView>| {
            if from < to {
                views.push(self.idle_view(block.segment, Part::between(from, to)));
            }
        };
        for other in inside {
            idle(at, other.address, views);
            views.push(self.block_view(other));
            at = other.end();
        }
        idle(at, block.end(), views);
    }

    /// The first block of every segment, and every view in use, by address.
    fn heads(&self) -> Vec<BlockId> {
        self.heap.sorted(|block| !block.planned && block.prev == NIL)
    }

    /// Every mapped run as a segment, and every view in use as one of its own; what is unmapped is left
    /// out, and so is what is lent. By address, private pools among them.
    pub(super) fn visit_all(&self, visitor: &mut dyn FnMut(SegmentView, &[BlockView])) {
        let mut seen: Vec<(SegmentView, Vec<BlockView>)> = Vec::new();
        let planned = self.heap.sorted(|block| block.planned).into_iter();
        let planned: Vec<&Block> = planned.map(|id| &self.heap.blocks[id]).collect();
        for head in self.heads() {
            let first = self.heap.blocks[head];
            let mut flush = |views: &mut Vec<BlockView>| {
                let Some(start) = views.first() else { return };
                let segment = SegmentView {
                    address: start.address,
                    size: views.iter().map(|view| view.size).sum(),
                    stream: first.home.stream,
                    pool: PoolId::DEFAULT,
                    is_small: first.home.is_small,
                    backing: match first.is_stitched() {
                        true => Backing::Stitched,
                        false => Backing::Expandable { page: self.granule },
                    },
                };
                seen.push((segment, std::mem::take(views)));
            };
            let mut views = Vec::new();
            for id in self.heap.chain(head) {
                let block = &self.heap.blocks[id];
                // What is lent is seen where it is used.
                if block.window {
                    self.places_view(block, &planned, &mut views);
                } else if block.mapped && !block.lent {
                    views.push(self.block_view(block));
                } else {
                    flush(&mut views);
                }
            }
            flush(&mut views);
        }
        self.inner().inner().visit(&mut |segment, blocks| seen.push((segment, blocks.to_vec())));
        seen.sort_unstable_by_key(|(segment, _)| segment.address);
        for (segment, blocks) in seen {
            visitor(segment, &blocks);
        }
    }

    /// Walks everything; see [`Policy::check`](crate::Policy::check).
    pub(super) fn check_all(&self) -> Result<(), String> {
        let (mut seen, mut last_end) = (0, 0);
        for head in self.heads() {
            if self.heap.blocks[head].address < last_end {
                return Err(format!("{:?} overlaps what is before it", self.heap.blocks[head]));
            }
            for id in self.heap.chain(head) {
                self.check_block(id)?;
                seen += 1;
                last_end = self.heap.blocks[id].end();
            }
        }
        let blocks = self.heap.blocks.values().filter(|block| !block.planned).count();
        if seen != blocks {
            return Err(format!("{blocks} blocks exist, {seen} are in segments"));
        }
        self.heap.check_shelves()?;
        self.check_pages()?;
        self.check_views()?;
        self.check_stains()?;
        self.check_followed()?;
        self.check_waiting()?;
        self.check_counters()?;
        self.inner().inner().check().map_err(|fault| format!("private pools: {fault}"))
    }

    fn check_block(&self, id: BlockId) -> Result<(), String> {
        let block = &self.heap.blocks[id];
        if block.size == 0 || !block.address.is_multiple_of(MIN_BLOCK_SIZE) {
            return Err(format!("{id:?} is malformed: {block:?}"));
        }
        if block.window && (block.allocated || block.events > 0 || block.shared || block.lent) {
            return Err(format!("{id:?} is in use and a window: {block:?}"));
        }
        if !block.mapped && !block.is_free() {
            return Err(format!("{id:?} is unmapped and in use: {block:?}"));
        }
        if block.shared != self.uses.contains_key(&id) {
            return Err(format!("{id:?} and the streams recorded on it disagree"));
        }
        let Some(next) = self.heap.next(id) else { return Ok(()) };
        let next = &self.heap.blocks[next];
        let same = (block.home, block.segment) == (next.home, next.segment);
        if next.prev != id || next.address != block.end() || !same {
            return Err(format!("{block:?} is not followed by {next:?}"));
        }
        let are_free = block.is_free() && next.is_free() && block.mapped == next.mapped;
        if are_free || (block.window && next.window) {
            return Err(format!("{block:?} and {next:?} should be one"));
        }
        Ok(())
    }

    /// Every segment has the pages that its blocks say, and they are all that is held.
    fn check_pages(&self) -> Result<(), String> {
        let mut mapped = BTreeMap::<u32, u64>::new();
        let tiles =
            self.heap.blocks.values().filter(|block| !block.is_stitched() && !block.planned);
        for block in tiles {
            *mapped.entry(block.segment).or_default() += if block.mapped { block.size } else { 0 };
        }
        let mut held = 0;
        for (place, segment) in self.segments.iter() {
            let (found, expected) = (segment.count(), mapped.remove(&place));
            if found.is_none() || expected != found {
                return Err(format!("in segment {place}: {expected:?}, not {found:?}"));
            }
            held += found.unwrap_or(0);
        }
        if let Some((place, _)) = mapped.first_key_value() {
            return Err(format!("blocks lie in segment {place}, which is gone"));
        }
        if held != self.held {
            return Err(format!("{held} bytes are mapped, {} are held", self.held));
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
        for (id, block) in self.heap.blocks.iter() {
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
        counted.add_change(&Stats::default(), Policy::stats(self.inner().inner()));
        let mut in_use = 0;
        for block in self.heap.blocks.values() {
            if block.mapped && !block.is_stitched() && !block.planned {
                counted.reserved_bytes.increase(block.home.is_small, block.size);
            }
            let is_small = block.is_small();
            if block.allocated {
                counted.allocation.increase(is_small, 1);
                counted.allocated_bytes.increase(is_small, block.size);
            }
            if block.is_alive() {
                counted.active.increase(is_small, 1);
                counted.active_bytes.increase(is_small, block.size);
                counted.requested_bytes.increase(is_small, block.requested);
                in_use += block.size;
            }
        }
        if in_use != self.in_use || self.in_use > self.most_in_use {
            return Err(format!("{in_use} bytes are in use, not {}", self.in_use));
        }
        self.beside.stats.check_present(&counted)
    }
}

impl Simulated for Lake {
    fn rounded(&self, size: u64) -> u64 {
        round_size(size, &self.beside.inner().config().roundup_power2_divisions)
    }
}
