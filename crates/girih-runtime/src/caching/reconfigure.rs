//! Settings that change while blocks are held.
//!
//! Nothing moves: blocks keep their sizes, segments their pages. What comes from now on follows the
//! new settings, and blocks are counted as oversize by the new limit, so that the counters stay those
//! of what is there. PyTorch leaves them as they are, and they may fall below 0 there.

use super::Caching;
use super::block::Block;
use super::config::Config;
use crate::chain::NIL;
use crate::stats::Counter;

impl Caching {
    /// Follows `new` from now on, but for what a program cannot set at run time: see
    /// [`Policy::configure`](crate::Policy::configure).
    pub(super) fn reconfigure(&mut self, new: &Config) {
        let now = &self.config;
        self.config = Config {
            memory_fraction: now.memory_fraction,
            tie_order: now.tie_order,
            own_order: now.own_order,
            ..new.clone()
        };
        self.count_oversize();
    }

    /// Counts anew what is not smaller than the limit of splitting.
    fn count_oversize(&mut self) {
        let limit = self.config.max_split_size;
        let (mut blocks, mut segments) = (0, 0);
        for (_, block) in self.blocks.iter() {
            blocks += u64::from(block.allocated && block.size >= limit);
            if block.prev == NIL && !block.is_expandable() {
                segments += u64::from(self.bytes_from(*block) >= limit);
            }
        }
        come_to(&mut self.stats.oversize_allocations, blocks);
        come_to(&mut self.stats.oversize_segments, segments);
    }

    /// Bytes of a block and all that follow it in its segment.
    fn bytes_from(&self, mut block: Block) -> u64 {
        let mut bytes = block.size;
        while block.next != NIL {
            block = self.blocks[block.next];
            bytes += block.size;
        }
        bytes
    }
}

/// Lets a counter rise or fall to a value.
fn come_to(counter: &mut Counter, value: u64) {
    match value.checked_sub(counter.current) {
        Some(more) => counter.increase(more),
        None => counter.decrease(counter.current - value),
    }
}
