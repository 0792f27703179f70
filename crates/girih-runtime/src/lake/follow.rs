//! Following a plan: a preference for one place before all others.
//!
//! ```text
//!  request ─► follower ─► an entry of the plan ─► its place in the window ─► free now? ─► given     hit
//!                       └ none, too small, not free, or too much to be mapped ─► the next in turn   miss
//! ```
//!
//! A plan is a hint: a place is given only if no live block has any of its bytes, and a stream gets bytes of
//! another only after it. Whatever the plan says, no more is held than without it, but for the pages that its
//! places touch within the bound.
//!
//! A plan is followed from the first request on: its window is a segment of the stream that it asks for most. To drop
//! it is to cede the window. Blocks stay where they are, ids stay valid, nothing is mapped and nobody waits.

use std::sync::Arc;

use girih_plan::Plan;
use girih_trace::{MarkKind, StreamId};

use super::block::Block;
use super::cells::{Bits, Span};
use super::last_uses::LastUses;
use super::places::{Places, Reserved};
use super::views::Part;
use super::window::Window;
use super::{EntryId, Follower, Lake, Search};
use crate::device::DeviceError;
use crate::order::{Counts, Stamp};
use crate::policy::{BlockId, Env, Request};

/// How well plans were followed: what happened while there was one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Following {
    /// Requests that were given their place.
    pub hits: u64,
    /// Bytes requested by them.
    pub hit_bytes: u64,
    /// Requests that had no place or could not have it, those of private pools left out.
    pub misses: u64,
    /// Bytes requested by them.
    pub miss_bytes: u64,
    /// Bytes of those of them that had a place, which was taken or lacked pages.
    pub refused_bytes: u64,
    /// Waits of one stream for another that were put on the device.
    pub waits: u64,
}

impl Following {
    /// What came after `before`.
    pub(crate) fn since(self, before: Following) -> Following {
        Following {
            hits: self.hits - before.hits,
            hit_bytes: self.hit_bytes - before.hit_bytes,
            misses: self.misses - before.misses,
            miss_bytes: self.miss_bytes - before.miss_bytes,
            refused_bytes: self.refused_bytes - before.refused_bytes,
            waits: self.waits - before.waits,
        }
    }

    /// A request of `size` bytes was given its place, or something else.
    #[inline]
    fn note(&mut self, is_hit: bool, size: u64) {
        let (count, bytes) = match is_hit {
            true => (&mut self.hits, &mut self.hit_bytes),
            false => (&mut self.misses, &mut self.miss_bytes),
        };
        *count += 1;
        *bytes += size;
    }
}

/// A plan that is followed.
#[derive(Debug)]
pub(super) struct Followed {
    plan: Arc<Plan>,
    follower: Follower,
    places: Places,
    window: Window,
    /// All idle places were ceded, and are still.
    has_lent_all: bool,
}

impl Lake {
    /// A lake that follows `plan` from the first request on, unless it [does not help](Plan::helps); it holds nothing
    /// yet. The plan must have passed [`girih_plan::verify()`]: places that leave the window would otherwise be found
    /// out only when they are asked for.
    #[must_use]
    pub fn with_plan(mut self, plan: Arc<Plan>) -> Lake {
        self.first_plan = plan.helps().then_some(plan);
        self
    }

    /// The plan that is followed, if one is.
    pub fn plan(&self) -> Option<&Arc<Plan>> {
        self.first_plan.as_ref().or(self.followed.as_ref().map(|followed| &followed.plan))
    }

    /// How well plans were followed so far.
    pub fn following(&self) -> Following {
        Following { waits: self.order.waits(), ..self.following }
    }

    /// Drops the plan that is followed, if one is.
    pub fn unfollow(&mut self) {
        self.first_plan = None;
        if let Some(followed) = self.followed.take() {
            self.set_stays(followed.window.segment, false);
            self.cede_held(followed.window);
        }
    }

    /// Says whether a segment is kept, whatever is mapped in it.
    fn set_stays(&mut self, segment: u32, stays: bool) {
        if let Some(segment) = self.segments.get_mut(segment) {
            segment.stays = stays;
        }
    }

    /// Lets something be done with the plan and the rest of the lake. None if no plan is followed.
    fn with_followed<T>(&mut self, work: impl FnOnce(&mut Lake, &mut Followed) -> T) -> Option<T> {
        let mut followed = self.followed.take()?;
        let result = work(self, &mut followed);
        self.followed = Some(followed);
        Some(result)
    }

    /// Drops the plan if too much would be held with so many bytes more: blocks in its places cut the holes of
    /// the rest so finely that no page of them is whole.
    pub(super) fn give_up_if_strained(&mut self, search: &Search, missing: u64) {
        let Some(followed) = &self.followed else { return };
        let bearable = self.allowed(search).max(followed.window.foreseen);
        let bearable = bearable.saturating_add(bearable / self.options.strain.max(1));
        if self.held.saturating_add(missing) > bearable {
            self.unfollow();
            self.given_up += 1;
        }
    }

    /// How often a plan was dropped because more was held with it than stitching alone would hold.
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Nothing is held any more: the plan that is followed begins anew with the next request.
    pub(super) fn begin_anew(&mut self) {
        let plan = self.followed.as_ref().map(|followed| Arc::clone(&followed.plan));
        if plan.is_some() {
            self.unfollow();
            self.first_plan = plan;
        }
    }

    /// Lays the window of the plan that came before the first request. What is refused costs the plan.
    #[cold]
    pub(super) fn begin_plan(&mut self, env: &mut Env<'_>) {
        if let Some(plan) = self.first_plan.take() {
            self.followed = self.lay(env, plan).ok().flatten().map(Box::new);
        }
    }

    /// Lays the window of a plan, while nothing is held. None if it has no places.
    fn lay(&mut self, env: &mut Env<'_>, plan: Arc<Plan>) -> Result<Option<Followed>, DeviceError> {
        self.granule = env.device.granularity();
        let (places, cells) = Places::of(&plan, self.granule);
        let bytes = cells.bytes();
        let (Some(stream), Some(size)) =
            (main_stream(&plan), bytes.checked_next_multiple_of(self.granule))
        else {
            return Ok(None);
        };
        if size == 0 {
            return Ok(None);
        }
        let home = self.heap.home(stream, false);
        let base = env.device.reserve(size)?;
        let id = self.insert_segment(home, base, size);
        let segment = self.heap.blocks[id].segment;
        self.set_stays(segment, true);
        let page = self.page_of(bytes.max(self.most_in_use));
        // A plan is trusted with its places if they are what was in use at once, else with what was in use.
        let foreseen = if plan.is_tight() { bytes } else { plan.in_use.min(bytes) };
        // At first everything is ceded.
        let ceded = Bits::new(&cells, true);
        let window = Window {
            home,
            segment,
            base,
            held: ceded.clone(),
            ceded,
            last_uses: LastUses::of(stream),
            cells,
            page,
            foreseen: foreseen.saturating_add(self.whole_slack(foreseen)),
        };
        let follower = Follower::new(&plan);
        Ok(Some(Followed { plan, follower, places, window, has_lent_all: false }))
    }

    /// The place of a request as a block, if it has one that is free.
    ///
    /// In a run that repeats and has one stream, nearly all places are had as written here: the entry is the
    /// expected one, its place is free, and of the size that it always had. All else is another function, so
    /// that what it needs is not kept ready each time.
    #[inline(always)]
    pub(super) fn take_place(
        &mut self,
        env: &mut Env<'_>,
        request: &Request,
        size: u64,
    ) -> Option<BlockId> {
        let Followed { follower, places, window, .. } = &mut **self.followed.as_mut()?;
        window.last_uses.see(request.stream, window.cells.count(), &mut self.order);
        let entry = follower.follow(request.size, request.stream);
        if let Some(entry) = entry
            && let Some(&Reserved { offset, span, fence, .. }) = places.whole(entry, size)
            && window.last_uses.is_trivial()
            && window.held.take(span)
        {
            self.following.note(true, request.size);
            let block = Block::in_place(window.base + offset, size, span, window);
            return Some(self.heap.blocks.insert(Block { fence, ..block }));
        }
        self.take_place_of(env, request, size, entry)
    }

    /// The same of any entry, in any order of streams, and if it must be claimed.
    #[inline(never)]
    fn take_place_of(
        &mut self,
        env: &mut Env<'_>,
        request: &Request,
        size: u64,
        entry: Option<EntryId>,
    ) -> Option<BlockId> {
        let Followed { places, window, .. } = &mut **self.followed.as_mut()?;
        let spot = entry.and_then(|entry| places.spot(entry, size, &window.cells));
        let taken = spot.filter(|spot| window.held.take(spot.span));
        let taken = taken.or_else(|| spot.filter(|spot| self.claim_place(env, spot.span, size)));
        let is_hit = taken.is_some_and(|spot| self.is_in_order(env, spot.span, request.stream));
        self.following.note(is_hit, request.size);
        if spot.is_some() && !is_hit {
            self.following.refused_bytes += request.size;
        }
        let Followed { places, window, .. } = &mut **self.followed.as_mut()?;
        let spot = taken.filter(|_| is_hit)?;
        places.note(&spot, size);
        let block = Block::in_place(window.base + spot.offset, size, spot.span, window);
        Some(self.heap.blocks.insert(Block { fence: spot.fence, ..block }))
    }

    /// Claims the cells of a place, and holds them.
    #[cold]
    fn claim_place(&mut self, env: &mut Env<'_>, span: Span, size: u64) -> bool {
        let taken = self.with_followed(|lake, Followed { window, .. }| {
            // What is refused costs the place.
            lake.claim(env, window, span, size).unwrap_or(false) && window.held.take(span)
        });
        taken.unwrap_or(false)
    }

    /// Lets a stream wait for those who used held cells last. False, and they are held no more, if it cannot
    /// wait now.
    #[inline]
    fn is_in_order(&mut self, env: &mut Env<'_>, span: Span, stream: StreamId) -> bool {
        let Some(followed) = &mut self.followed else { return false };
        if followed.window.last_uses.is_trivial() {
            return true;
        }
        let latest = followed.window.last_uses.latest(span, stream);
        if self.wait_counted(env, latest, stream, Counts::No).unwrap_or(false) {
            return true;
        }
        if let Some(followed) = &mut self.followed {
            followed.window.held.fill(span, false);
        }
        false
    }

    /// Takes a block out of its place. It is gone afterwards.
    #[inline]
    pub(super) fn leave_place(&mut self, id: BlockId, freed: Stamp) {
        let block = &self.heap.blocks[id];
        let (span, user, fence) = (block.span(), block.user, block.fence);
        if let Some(followed) = &mut self.followed {
            let window = &mut followed.window;
            window.last_uses.free(span, user, freed);
            if fence && !window.last_uses.is_trivial() {
                self.order.want();
            }
            window.held.fill(span, false);
        }
        self.heap.blocks.remove(id);
    }

    /// Cedes idle places for a request, as few as will do, and such as are not wanted soon. False if there are none.
    pub(super) fn lend_places(&mut self, size: u64) -> bool {
        let furthest = self.options.ahead as usize;
        let has_lent = self.with_followed(|lake, Followed { follower, places, window, .. }| {
            [furthest, furthest / 64].into_iter().any(|count| {
                let soon = follower.ahead().take(count).map(|entry| places.get(entry));
                let soon = soon.filter(|place| place.bytes > 0).map(|place| place.span);
                lake.cede_for(window, size, soon)
            })
        });
        has_lent.unwrap_or(false)
    }

    /// Cedes all idle places. False if there are none.
    pub(super) fn lend_all_places(&mut self) -> bool {
        let has_lent = self.with_followed(|lake, followed| {
            followed.has_lent_all = true;
            lake.cede_all(&mut followed.window)
        });
        has_lent.unwrap_or(false)
    }

    /// Claims what was ceded and nobody has taken.
    pub(super) fn take_back_places(&mut self) {
        self.with_followed(|lake, followed| {
            if std::mem::take(&mut followed.has_lent_all) {
                lake.gather_in(&mut followed.window);
            }
        });
    }

    /// A mark of the program.
    pub(super) fn note_mark(&mut self, kind: MarkKind) {
        self.with_followed(|lake, followed| {
            followed.follower.mark(kind);
            if kind == MarkKind::Step {
                lake.gather_in(&mut followed.window);
            }
        });
    }

    /// The idle places, side by side, each with the index of the segment.
    pub(super) fn idle_places(&self) -> impl Iterator<Item = (u32, Part)> {
        let window = self.followed.iter().map(|followed| &followed.window);
        window.flat_map(|window| window.idle().map(|part| (window.segment, part)))
    }

    /// See [`Lake::check_window`].
    pub(super) fn check_followed(&self) -> Result<(), String> {
        match &self.followed {
            Some(followed) => self.check_window(&followed.window),
            None if self.heap.blocks.values().any(Block::is_apart) => {
                Err("blocks lie in a window that is gone".to_owned())
            }
            None => Ok(()),
        }
    }
}

/// The stream that a plan asks for most; none if it asks for nothing.
fn main_stream(plan: &Plan) -> Option<StreamId> {
    let mut bytes: Vec<(StreamId, u64)> = Vec::new();
    for entry in plan.sequences.iter().flat_map(|sequence| &sequence.entries) {
        match bytes.iter_mut().find(|(stream, _)| *stream == entry.stream) {
            Some((_, sum)) => *sum = sum.saturating_add(entry.size_max),
            None => bytes.push((entry.stream, entry.size_max)),
        }
    }
    bytes.into_iter().max_by_key(|&(_, sum)| sum).map(|(stream, _)| stream)
}
