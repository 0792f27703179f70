//! Waste: what is reserved and not requested, by cause, to the byte.
//!
//! A segment's bytes are those that live blocks requested, and the rest:
//!
//! ```text
//!  |requested|round|remainder|      free      |pending|requested|...  free  ... |
//!                      ^                ^         ^                     ^
//!                    in a block    pinned, or   not yet          whole, or in whole pages
//!                                  in a page    reusable
//! ```
//!
//! Free bytes are looked at with the eyes of one request, the one for which the policy took more
//! memory: bytes that were free in another pool or for another stream could have served it, and
//! were out of its reach.

use girih_trace::{BlockState, PoolId, StreamId};

use crate::policy::{Backing, BlockView, Policy, SegmentView};

/// Bytes reserved and not requested, by cause. Each byte has one cause, the first that applies in
/// the order of the fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waste {
    /// In blocks that the program has freed, but that another stream may still use.
    pub pending_free: u64,
    /// In blocks: what rounding added to the request.
    pub rounding: u64,
    /// In blocks: what was too little to be split off.
    pub remainder: u64,
    /// Free, in the other pool (small or large), or in another private pool.
    pub other_pool: u64,
    /// Free, in a segment of another stream.
    pub other_stream: u64,
    /// Free, in a segment that a live block keeps from going back.
    pub split_pinned: u64,
    /// Free, in a page that a live block keeps from going back.
    pub page_granularity: u64,
    /// Free, in segments or pages that are free as a whole and could go back, mapped or not.
    pub cached_whole: u64,
}

impl Waste {
    /// The causes by name, in their order.
    pub fn causes(&self) -> [(&'static str, u64); 8] {
        [
            ("pending_free", self.pending_free),
            ("rounding", self.rounding),
            ("remainder", self.remainder),
            ("other_pool", self.other_pool),
            ("other_stream", self.other_stream),
            ("split_pinned", self.split_pinned),
            ("page_granularity", self.page_granularity),
            ("cached_whole", self.cached_whole),
        ]
    }

    /// All of it. Together with what live blocks requested, this is what is reserved.
    pub fn total(&self) -> u64 {
        self.causes().iter().map(|(_, bytes)| bytes).sum()
    }
}

/// The request with whose eyes free memory is looked at, and the rules of its policy.
#[derive(Clone, Copy)]
pub struct Viewpoint<'a> {
    /// Its stream.
    pub stream: StreamId,
    /// Its pool.
    pub pool: PoolId,
    /// True if it is of the small pool: at most 1 MiB.
    pub is_small: bool,
    /// Bytes that a request of some bytes is rounded up to.
    pub rounded: &'a dyn Fn(u64) -> u64,
}

/// Where the memory of `policy` goes that no live block requested.
pub fn waste(policy: &dyn Policy, from: Viewpoint<'_>) -> Waste {
    let mut waste = Waste::default();
    policy.visit(&mut |segment, blocks| {
        for block in blocks.iter().filter(|block| block.state != BlockState::Inactive) {
            add_block(&mut waste, block, from.rounded);
        }
        add_free(&mut waste, segment, blocks, from);
    });
    waste
}

fn add_block(waste: &mut Waste, block: &BlockView, rounded: &dyn Fn(u64) -> u64) {
    if block.state == BlockState::PendingFree {
        waste.pending_free += block.size;
        return;
    }
    let rounded = rounded(block.requested).clamp(block.requested, block.size);
    waste.rounding += rounded - block.requested;
    waste.remainder += block.size - rounded;
}

fn add_free(waste: &mut Waste, segment: SegmentView, blocks: &[BlockView], from: Viewpoint<'_>) {
    let is_free = |block: &&BlockView| block.state == BlockState::Inactive;
    let free: u64 = blocks.iter().filter(is_free).map(|block| block.size).sum();
    if segment.pool != from.pool || segment.is_small != from.is_small {
        waste.other_pool += free;
    } else if segment.stream != from.stream {
        waste.other_stream += free;
    } else if let Backing::Expandable { .. } = segment.backing {
        let whole: u64 = blocks.iter().filter(is_free).map(|block| block.whole).sum();
        waste.cached_whole += whole;
        waste.page_granularity += free - whole;
    } else if blocks.iter().all(|block| block.state == BlockState::Inactive) {
        waste.cached_whole += free;
    } else {
        waste.split_pinned += free;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caching::{Caching, Config};
    use crate::policy::{Env, Request};
    use crate::sim::SimDevice;

    const MIB: u64 = 1 << 20;

    fn request(size: u64, stream: u16) -> Request {
        Request { size, stream: StreamId(stream), pool: PoolId::DEFAULT }
    }

    fn from(stream: u16, is_small: bool) -> Viewpoint<'static> {
        Viewpoint {
            stream: StreamId(stream),
            pool: PoolId::DEFAULT,
            is_small,
            rounded: &|size| size.next_multiple_of(512),
        }
    }

    /// Makes the requests in order, frees those of the given indices, and looks.
    fn look(settings: &str, requests: &[Request], frees: &[usize], from: Viewpoint<'_>) -> Waste {
        let mut device = SimDevice::new(1 << 40);
        let mut policy = Caching::new(Config::parse(settings).unwrap());
        let mut log = ();
        let mut env = Env::new(&mut device, &mut log);
        let blocks: Vec<_> =
            requests.iter().map(|&r| policy.allocate(&mut env, r).unwrap().block).collect();
        for &index in frees {
            policy.free(&mut env, blocks[index]).unwrap();
        }
        let waste = waste(&policy, from);
        let live = (0..requests.len()).filter(|k| !frees.contains(k)).map(|k| requests[k].size);
        let reserved = policy.stats().reserved_bytes.all().current;
        assert_eq!(waste.total() + live.sum::<u64>(), reserved, "every byte has one cause");
        waste
    }

    #[test]
    fn rounding_and_the_remainder_of_a_block_are_told_apart() {
        // 19.5 MiB of a segment of 20 MiB: what is left is too little to be split off.
        let waste = look("", &[request(39 * MIB / 2, 0), request(700, 0)], &[], from(0, false));
        assert_eq!(waste.rounding, 1024 - 700);
        assert_eq!(waste.remainder, MIB / 2);
        assert_eq!(waste.other_pool, 2 * MIB - 1024);
    }

    #[test]
    fn a_live_block_pins_its_segment_and_a_free_segment_is_whole() {
        let sizes = [request(4 * MIB, 0), request(4 * MIB, 0), request(32 * MIB, 0)];
        let waste = look("", &sizes, &[0, 2], from(0, false));
        assert_eq!(waste.split_pinned, 16 * MIB);
        assert_eq!(waste.cached_whole, 32 * MIB);
    }

    #[test]
    fn memory_that_is_free_for_another_stream_is_out_of_reach() {
        let waste = look("", &[request(32 * MIB, 0), request(32 * MIB, 1)], &[0], from(1, false));
        assert_eq!(waste.other_stream, 32 * MIB);
    }

    #[test]
    fn pages_of_an_expandable_segment_go_back_alone() {
        let sizes = [request(20 * MIB, 0), request(50 * MIB, 0), request(10 * MIB, 0)];
        let waste = look("expandable_segments:True", &sizes, &[1], from(0, false));
        // 80 MiB mapped: 20 used, 50 free of which two pages are whole, 10 used.
        assert_eq!(waste.cached_whole, 40 * MIB);
        assert_eq!(waste.page_granularity, 10 * MIB);
    }
}
