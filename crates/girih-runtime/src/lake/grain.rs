//! How large new pages are where a budget is full all the time.
//!
//! A lake that may not grow serves what no hole fits by views, and a view takes the driver its time by the page. Most runs
//! come to rest: after some steps what is asked for has its places, and no view is made any more. Where a run does not, for
//! what is swapped is another part of the whole in each step, views are a tax on all of them. Then pages are made
//! anew, and larger:
//!
//! ```text
//!  views took more than their part of so many steps in a row:
//!
//!   | used | 2 | 2 | 2 | 2 | used | 2 | 2 | 2 |      what is free is given back at the end of the step,
//!   | used |               | used |           |      and asked for when it is wanted,
//!   | used |       8       | used |           |  8   in pages so many times as large a part of the request
//! ```
//!
//! What cannot be had at the ends of large pages goes to the host, too, so that a run that comes to rest has no use for them.

use super::block::Block;
use super::{Lake, Options};
use crate::policy::{BlockId, Env};

/// How large pages are, and why.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grain {
    /// They are so many times as large a part of a request as the options say, and the largest so many times as large.
    times: u64,
    /// Steps in a row in which views took too much.
    dear: u64,
    /// Nanoseconds that views had taken in all at the last mark of a step, and its time.
    mapped: u64,
    last: Option<i64>,
}

impl Default for Grain {
    fn default() -> Grain {
        Grain { times: 1, dear: 0, mapped: 0, last: None }
    }
}

impl Grain {
    pub(super) fn times(&self) -> u64 {
        self.times
    }

    /// A step has ended at a time, by when views had taken so many nanoseconds in all. True if pages are to be larger, as
    /// they are at most once in a run.
    fn turn(&mut self, options: &Options, time_us: i64, mapped: u64) -> bool {
        let took = mapped.saturating_sub(std::mem::replace(&mut self.mapped, mapped));
        let passed = self.last.replace(time_us).map_or(0, |last| time_us.saturating_sub(last));
        let passed = u64::try_from(passed).unwrap_or(0).saturating_mul(1000);
        let is_dear = passed > 0 && took > passed / options.dear.max(1);
        self.dear = if is_dear { self.dear + 1 } else { 0 };
        self.dear >= options.dear_steps && self.times < options.coarsest
    }
}

impl Lake {
    /// New pages may become so many times as large. For a lake whose bytes are a budget that swapping fills in any case.
    pub fn coarsen(&mut self, most: u64) {
        self.options.coarsest = most;
    }

    /// A step has ended.
    pub(super) fn turn_grain(&mut self, env: &mut Env<'_>, time_us: i64) {
        let (options, mapped) = (self.options, self.pace.mapped());
        if self.grain.turn(&options, time_us, mapped) && !self.is_capturing() {
            self.grain.times = options.coarsest;
            self.renew(env);
        }
    }

    /// Gives back the whole pages of large requests that are free, once nobody uses them any more. What the device does
    /// not take back stays as it is.
    fn renew(&mut self, env: &mut Env<'_>) {
        let free = self.heap.free_blocks(true).filter(|&id| !self.heap.blocks[id].is_small());
        for id in free.collect::<Vec<BlockId>>() {
            if self.heap.blocks.get(id).is_some_and(Block::is_free) {
                let _ = self.release_pages(env, id);
            }
        }
    }
}
