//! What the policy holds, for those who look at its layout: the regions of the plan and the
//! fallback's segments.

use girih_trace::{BlockState, PoolId, StreamId};

use super::Planned;
use super::block::{Block, Home};
use super::region::Region;
use crate::device::Address;
use crate::policy::{Backing, BlockView, SegmentView};

/// A block of the default pool that is alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Live {
    pub(crate) address: Address,
    pub(crate) requested: u64,
    pub(crate) stream: StreamId,
}

impl Planned {
    /// Every block of the default pool that is alive, those included whose free waits for a stream.
    pub(crate) fn live(&self) -> Vec<Live> {
        let mut live: Vec<Live> = (self.blocks.iter())
            .map(|&Block { address, requested, stream, .. }| Live { address, requested, stream })
            .collect();
        self.fallback.visit(&mut |segment, blocks| {
            if segment.pool == PoolId::DEFAULT {
                let alive = blocks.iter().filter(|block| block.state != BlockState::Inactive);
                live.extend(alive.map(|&BlockView { address, requested, .. }| Live {
                    address,
                    requested,
                    stream: segment.stream,
                }));
            }
        });
        live
    }

    /// The mapped runs of all regions with what lies in them, and the fallback's segments, by
    /// address.
    pub(super) fn views(&self) -> Vec<(SegmentView, Vec<BlockView>)> {
        let mut views = Vec::new();
        self.fallback.visit(&mut |segment, blocks| views.push((segment, blocks.to_vec())));
        let mut blocks: Vec<&Block> = self.blocks.iter().collect();
        blocks.sort_by_key(|block| block.address);
        let planned = [&self.layout.arena, &self.layout.persistent];
        let regions = planned.into_iter().chain(self.retired.iter().flatten());
        for (address, size) in regions.flat_map(Region::mapped_runs) {
            let first = blocks.partition_point(|block| block.address < address);
            let inside = blocks[first..].iter().take_while(|block| block.address < address + size);
            let segment = SegmentView {
                address,
                size,
                stream: StreamId(0),
                pool: PoolId::DEFAULT,
                is_small: false,
                backing: Backing::Planned,
            };
            views.push((segment, tiles(address, size, inside)));
        }
        views.sort_by_key(|(segment, _)| segment.address);
        views
    }

    /// Walks everything; see [`Policy::check`](crate::Policy::check).
    pub(super) fn check_all(&self) -> Result<(), String> {
        self.fallback.check().map_err(|fault| format!("fallback: {fault}"))?;
        self.pool.check().map_err(|fault| format!("pool: {fault}"))?;
        if !self.is_counting {
            let own = (self.blocks.iter().count(), self.mapped(), self.retired.len());
            return if (own, self.pool.bytes()) == ((0, 0, 0), 0) {
                Ok(())
            } else {
                Err(format!("regions: {own:?}, {} bytes in the pool", self.pool.bytes()))
            };
        }
        let (mut in_arena, mut in_persistent) = (Vec::new(), Vec::new());
        let mut in_retired = vec![Vec::new(); self.retired.len()];
        for block in self.blocks.iter() {
            let (list, spot) = match block.home {
                Home::Arena(spot) => (&mut in_arena, spot),
                Home::Persistent(spot) => (&mut in_persistent, spot),
                Home::Retired(place, spot) => (&mut in_retired[place as usize], spot),
                Home::Vacant => continue,
            };
            list.push((spot.offset, spot.offset + block.size));
        }
        self.layout.arena.check(in_arena).map_err(|fault| format!("arena: {fault}"))?;
        let persistent = self.layout.persistent.check(in_persistent);
        persistent.map_err(|fault| format!("persistent region: {fault}"))?;
        for (region, blocks) in self.retired.iter().zip(in_retired) {
            match region {
                Some(region) => region.check(blocks).map_err(|f| format!("retired region: {f}"))?,
                None if blocks.is_empty() => {}
                None => return Err("blocks live in a region that is gone".to_owned()),
            }
        }
        self.check_counters()
    }

    fn check_counters(&self) -> Result<(), String> {
        let fallback = self.fallback.stats();
        let mut active = fallback.active_bytes.all.current;
        let mut allocated = fallback.allocated_bytes.all.current;
        for block in self.blocks.iter() {
            active += block.size;
            allocated += if block.state == BlockState::Allocated { block.size } else { 0 };
        }
        let reserved = self.mapped() + fallback.reserved_bytes.all.current + self.pool.bytes();
        for (name, counter, sum) in [
            ("active", self.stats.active_bytes, active),
            ("allocated", self.stats.allocated_bytes, allocated),
            ("reserved", self.stats.reserved_bytes, reserved),
        ] {
            if counter.all.current != sum {
                return Err(format!("{name}: counted {} bytes, found {sum}", counter.all.current));
            }
        }
        Ok(())
    }
}

/// The blocks of a mapped run and the idle bytes between them.
fn tiles<'a>(
    address: Address,
    size: u64,
    blocks: impl Iterator<Item = &'a &'a Block>,
) -> Vec<BlockView> {
    let idle = |from: Address, to: Address| BlockView {
        whole: 0,
        address: from,
        size: to - from,
        requested: 0,
        state: BlockState::Inactive,
    };
    let mut tiles = Vec::new();
    let mut at = address;
    for &&Block { address, size, requested, state, .. } in blocks {
        if address > at {
            tiles.push(idle(at, address));
        }
        tiles.push(BlockView { address, size, requested, whole: 0, state });
        at = address + size;
    }
    if at < address + size {
        tiles.push(idle(at, address + size));
    }
    tiles
}
