//! Another plan, in the middle of a run.
//!
//! The old plan's regions retire: blocks that live in them stay where they are. What is idle in them,
//! and what the fallback holds free, goes into the pool of pages, and from there to the new plan's
//! regions, which are mapped as its blocks come. If there is no new plan it goes to the device.
//!
//! ```text
//!  before      | arena 1: a  b . . c . |             | fallback: d . e . |
//!  follow      |    retired: a  b   c  | -> into the pool: the idle pages of both
//!  later       |    retired:        c  |             | fallback: d |
//!              | arena 2: f  g  h      | mapped chunk by chunk
//!  at last     | arena 2 |  d stays in the fallback
//! ```
//!
//! A plan with which little is found is dropped in the same way: then the fallback serves all. One
//! iteration that does not fit is no reason for that.

use std::sync::Arc;

use girih_plan::{Plan, Role};

use super::block::Home;
use super::follower::{EntryId, Follower};
use super::growth::Growth;
use super::guests::Guests;
use super::layout::{Layout, empty_plan};
use super::region::Region;
use super::{Following, Planned};
use crate::policy::{AllocError, Env};

/// A plan is dropped if less than this share of the requested bytes, one in so many, finds its
/// place.
const LEAST_SHARE: u64 = 10;
/// Misses before a plan is judged, at least.
const PATIENCE: u64 = 1000;

/// Whether places are given in this iteration.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Strain {
    /// None are, until the next iteration begins: the plan asked for more than it may.
    pub(super) is_suspended: bool,
    /// The entry that was found last.
    last: u32,
}

/// When the plan is judged next.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Review {
    /// At so many misses.
    at: u64,
    /// What had been found and missed when it was judged last.
    since: Following,
}

impl Planned {
    /// Follows `plan` from now on, at the beginning of its steady iteration (of its first sequence
    /// if it has none). Blocks stay where they are, and ids stay valid. Waits for all streams.
    /// Returns false, and nothing has changed, while a graph capture is under way: streams cannot
    /// be waited for then.
    ///
    /// The plan must have passed [`girih_plan::verify()`].
    ///
    /// # Errors
    /// Those of the device. The old plan is followed on.
    pub fn follow(&mut self, env: &mut Env<'_>, plan: Arc<Plan>) -> Result<bool, AllocError> {
        self.follow_within(env, plan, 0)
    }

    /// As [`Planned::follow`], and up to `most` bytes may be held under the plan, if that is more than
    /// was held before.
    pub(crate) fn follow_within(
        &mut self,
        env: &mut Env<'_>,
        plan: Arc<Plan>,
        most: u64,
    ) -> Result<bool, AllocError> {
        if self.captures > 0 {
            return Ok(false);
        }
        // Whatever may be refused comes first.
        self.settle_debts(env)?;
        self.process_own_events(env)?;
        if !self.synchronize(env)? {
            return Ok(false);
        }
        self.count_for_both();
        let layout = Layout::new(plan, self.granularity);
        let is_following = !layout.places.is_empty();
        self.make_free(env, is_following)?;

        self.last_uses.restart(layout.arena.cell_count());
        let Layout { arena, persistent, .. } = std::mem::replace(&mut self.layout, layout);
        let arena = self.retire(arena);
        let persistent = self.retire(persistent);
        for block in self.blocks.iter_mut() {
            match block.home {
                Home::Arena(spot) => block.home = Home::Retired(arena, spot),
                Home::Persistent(spot) => block.home = Home::Retired(persistent, spot),
                Home::Vacant | Home::Retired(..) => {}
            }
        }
        self.unmap_retired(env);
        // More than the arena is long it will not take: what stays is where it is. What is refused stays
        // in the pool.
        let arena_bytes = self.layout.plan.arena_bytes;
        let _ = self.pool.shrink(env.device, arena_bytes);
        self.count_pool();
        let top = self.growth.top().max(self.stats.reserved_bytes.all.peak).max(most);
        let held = self.held_by_parts();
        self.growth = Growth::of_switch(held, top, arena_bytes);
        self.follower = Follower::new(&self.layout.plan);
        self.follower.join();
        self.is_following = is_following;
        self.begin_review();
        self.guests = Guests::of_plan(true);
        self.relax();
        Ok(true)
    }

    /// Drops the plan: the fallback serves everything from now on. As [`Planned::follow`].
    pub fn unfollow(&mut self, env: &mut Env<'_>) -> Result<bool, AllocError> {
        self.follow(env, Arc::new(empty_plan()))
    }

    /// Drops the plan because it is worth nothing.
    pub(crate) fn give_up(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        self.given_up += u64::from(self.unfollow(env)?);
        Ok(())
    }

    /// From now on the statistics are those of all parts.
    fn count_for_both(&mut self) {
        if !self.is_counting {
            self.begin_counting();
            self.following.fallback_reserved_peak = self.stats.reserved_bytes.all.peak;
        }
    }

    /// Gives away what the fallback holds free before another plan is followed: into the pool, or to the
    /// device if `is_following` says that there will be no plan. On an error the old plan is followed on.
    fn make_free(&mut self, env: &mut Env<'_>, is_following: bool) -> Result<(), AllocError> {
        self.pool.keep(is_following);
        let result = self.with_fallback(env, |fallback, env| fallback.empty_cache(env));
        if result.is_err() {
            self.pool.keep(self.is_following);
            if !self.is_following {
                // What is refused now stays in the pool.
                let _ = self.drain(env);
            }
        }
        result
    }

    /// Keeps a region of a plan that is not followed any more; its index.
    fn retire(&mut self, region: Region) -> u32 {
        let vacant = self.retired.iter().position(Option::is_none);
        let place = vacant.unwrap_or(self.retired.len());
        if place == self.retired.len() {
            self.retired.push(None);
        }
        self.retired[place] = Some(region);
        place as u32
    }

    /// The plan is judged anew: an opening may fit badly and the iterations after it well.
    pub(super) fn begin_review(&mut self) {
        let opening = self.layout.plan.sequences.iter().find(|s| s.role == Role::Opening);
        let opening = opening.map_or(0, |sequence| sequence.entries.len() as u64);
        self.review_after(opening);
    }

    fn review_after(&mut self, opening: u64) {
        let iteration = self.layout.plan.iteration_requests() as u64;
        let since = self.following;
        self.review = Review { at: since.misses + opening + PATIENCE.max(2 * iteration), since };
    }

    /// An iteration begins. Pages that were in the pool throughout the one before go to the device.
    pub(super) fn begin_iteration(&mut self, env: &mut Env<'_>) {
        self.relax();
        // What is refused stays in the pool, and goes the next time.
        let _ = self.pool.age(env.device);
        self.count_pool();
    }

    /// An iteration begins: places are given again.
    pub(super) fn relax(&mut self) {
        self.strain = Strain::default();
        self.growth.begin_iteration();
        self.guests.begin_iteration(self.layout.plan.arena_bytes);
    }

    /// Where no marks tell, an iteration begins when the follower goes back to an earlier entry.
    #[inline]
    pub(super) fn find_next_iteration(&mut self, env: &mut Env<'_>, entry: EntryId) {
        if entry.0 < self.strain.last {
            self.begin_iteration(env);
        } else {
            self.strain.last = entry.0;
        }
    }

    /// After a miss: drops the plan if it has found next to nothing for long, or saves nothing.
    #[inline]
    pub(super) fn judge(&mut self, env: &mut Env<'_>) -> Result<(), AllocError> {
        if self.following.misses < self.review.at && !self.growth.is_in_vain() {
            return Ok(());
        }
        let Following { hit_bytes, miss_bytes, .. } = self.review.since;
        let hit = self.following.hit_bytes - hit_bytes;
        let missed = self.following.miss_bytes - miss_bytes;
        if self.growth.is_in_vain() || hit < (hit + missed) / LEAST_SHARE {
            self.give_up(env)?;
        } else {
            self.review_after(0);
        }
        Ok(())
    }
}
