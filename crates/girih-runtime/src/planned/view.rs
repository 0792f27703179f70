//! What the policy holds, for those who look at its layout: the regions of the plan and the
//! fallback's segments.

use girih_trace::{BlockState, PoolId, StreamId};

use super::{Block, Home, Planned};
use crate::device::Address;
use crate::policy::{Backing, BlockView, SegmentView};

impl Planned {
    /// The mapped runs of both regions with what lies in them, and the fallback's segments, by
    /// address.
    pub(super) fn views(&self) -> Vec<(SegmentView, Vec<BlockView>)> {
        let mut views = Vec::new();
        self.fallback.visit(&mut |segment, blocks| views.push((segment, blocks.to_vec())));
        let is_ours = |block: &&Block| matches!(block.home, Home::Arena(_) | Home::Persistent(_));
        let mut blocks: Vec<&Block> = self.blocks.iter().filter(is_ours).collect();
        blocks.sort_by_key(|block| block.address);
        for (address, size) in
            self.arena.mapped_runs().into_iter().chain(self.persistent.mapped_runs())
        {
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
}

/// The blocks of a mapped run and the idle bytes between them.
fn tiles<'a>(
    address: Address,
    size: u64,
    blocks: impl Iterator<Item = &'a &'a Block>,
) -> Vec<BlockView> {
    let idle = |from: Address, to: Address| BlockView {
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
        tiles.push(BlockView { address, size, requested, state });
        at = address + size;
    }
    if at < address + size {
        tiles.push(idle(at, address + size));
    }
    tiles
}
