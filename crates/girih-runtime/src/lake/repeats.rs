//! Where the requests of a step lay in the step before.
//!
//! In a run that repeats, the same places would do again: what was given in one step is free again in the next, in the
//! same order, and the views over it are there. A search does not find them. Of holes it takes the one that fits best,
//! which is another as soon as anything lies elsewhere, and so on through the step. Where memory is full nearly all the
//! time, as it is when what does not fit goes to the host, nearly every large request is then a view made anew, in
//! every step, for ever. So, once views have taken more time than they may (`pace`), a large request is given
//!
//! 1. what it had in the step before;
//! 2. or bytes that nobody is going to want as long as it lives, as the step before tells;
//! 3. or bytes that none of those is going to want that *last*, which live on into the next step;
//! 4. or whatever the search finds.
//!
//! ```text
//!  step n    |  ── a ──     ──── b ────     ── c ─────|──   c lasts
//!  step n+1  |  ── a ──  ─────── d ───────  ── c ─────|──   d cannot have what it had: it is given bytes
//!            |                                              of neither b nor c, or else none of c
//! ```
//!
//! Within a step any places are as good as any others. What ties one step to the next is what lasts: where that keeps
//! its places, the step after has all of the places that this one has found, whatever they are, and makes no views. So
//! a run comes to rest after one step, if what lasts could be kept out of the way.
//!
//! Which request of the step before it is tell its size, its stream and how many like it came before it in the step. So
//! what comes in between shifts nothing but what is like it. That is done only once a step was like the one before
//! ([`Options::alike`]): where sizes vary, what little comes again would have its places at the expense of all else.
//! With [`Options::lost`] a step that is the same as the one before it is laid out (`layout`), and its requests are given what
//! they have there instead.
//!
//! Only where tensors come and go is it done ([`Lake::expect`]). Of a hundred and three recordings of runs in which none do
//! it began in nine, whose streams wait for each other, and views took more time in each of them (`bench/results/lake.md`,
//! "Two streams").
//!
//! Where all this does not help, it rests for a while, and for longer each time, until what it has cost is a small part of
//! the run's time ([`Options::trials`]). A step that differs scatters what was found. To find it again costs views, and
//! what that brings is over with the next such step: where it was a loss twice in a row, it rests, too. And it does not
//! begin while somebody is still trying what is best asked for ([`Lake::expect`]), as the executor of swapping is: each
//! schedule has other copies, and what was found for one step is of no use to those of the next. For the same reason all
//! is forgotten when another begins to be followed ([`Asked::is_other`]), even if it has the same requests.
//!
//! ```text
//!      a step takes too much       the next, like it, too
//!     ┌─> Off ───────────────> Watching ─────────────> On ──┐ views took less time,
//!     │    ^                      │  ^                  │ ^─┘ or one step differs
//!     │    └──────────────────────┘  └── three differ ──┤
//!     │      not, or none is alike                      │
//!     └─────────── in vain, or a loss twice ────────────┘
//! ```

use girih_trace::StreamId;
use rustc_hash::FxHashMap;

use super::laying::Layings;
use super::layout::{Layout, Ring};
use super::stitching::{Hole, collect, in_order};
use super::turn::{ALIVE, Alike, PARTS_MAX, REQUESTS_MAX, Seen, Turn, is_most};
use super::views::{Part, side_by_side};
use super::{Lake, Options, Search};
use crate::device::Address;
use crate::order::Stamp;
use crate::policy::{BlockId, Env};

/// What is known of the requests to come where tensors come and go ([`Lake::expect`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// Somebody is trying which are best to. Before it is found it is not tried whether places can be had again, and then
    /// at once if views take more time than they may.
    pub is_trying: bool,
    /// From the step that begins on it is others, or at other times, than in the one that ends. The requests of the two may
    /// be the same, and yet their places of no use to each other, for they are free at other times.
    pub is_other: bool,
}

/// What views took of the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Taken {
    pub(super) nanoseconds: u64,
    /// Pages that were mapped. A driver takes another time for each from one step to the next, so it is by these that steps
    /// are compared.
    pub(super) pages: u64,
}

impl Taken {
    const MAX: Taken = Taken { nanoseconds: u64::MAX, pages: u64::MAX };

    fn since(self, before: Taken) -> Taken {
        Taken {
            nanoseconds: self.nanoseconds - before.nanoseconds,
            pages: self.pages - before.pages,
        }
    }

    fn least(self, other: Taken) -> Taken {
        Taken {
            nanoseconds: self.nanoseconds.min(other.nanoseconds),
            pages: self.pages.min(other.pages),
        }
    }
}

/// Whether places are had again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Not in the next so many steps.
    Off(u64),
    /// Those of this step are remembered for the next. So many steps before it were unlike each other.
    Watching(u64),
    /// They are.
    On {
        /// What views took in the step that was watched last.
        before: Taken,
        /// The fewest pages that they have mapped since.
        least: u64,
        /// In how many steps in a row these were more than half of the first and three quarters of the second.
        in_vain: u64,
        /// How many up to the last were unlike the one before them.
        unlike: u64,
    },
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Repeats {
    stage: Stage,
    /// How long it rests after it was of no use.
    rest: u64,
    before: Turn,
    now: Turn,
    /// Blocks that are alive, by address: whether they are of this step, and their number.
    alive: FxHashMap<Address, (bool, u32)>,
    /// What views had taken in all when the step began.
    spent: Taken,
    /// Tensors come and go, so that memory is full nearly all the time.
    is_wanted: bool,
    /// What is asked for will be something else before long; and from the next step on.
    is_trying: bool,
    is_other: bool,
    /// The step that has ended, to be laid out where the next one reaches its cut.
    pub(super) ring: Option<Ring>,
    /// The step as it is laid out.
    pub(super) layout: Option<Layout>,
    pub(super) layings: Layings,
    /// The next time that places are had again nothing is laid out.
    skips_layout: bool,
    /// What views took in steps in which places were had again, beyond what they took before, less what they took less in
    /// others, and less what they took in all others once it is known that steps can come to rest; and what that may have
    /// been. Nanoseconds.
    cost: i64,
    allowed: i64,
    /// What it has become more by since places began to be had again, or were to be found again after a step that differed,
    /// nanoseconds; and how many times in a row that was a loss when the next such step came.
    since: i64,
    losses: u64,
    /// Steps with what is asked for now have come to rest; and with whatever was ever asked for.
    has_rested: bool,
    was_at_rest: bool,
    /// What views took in the step before, if places were not had again in it.
    usual: Taken,
    /// It is not tried again to lay a step out in so many steps, and for how many after the next time.
    untried: u64,
    pause: u64,
    /// So many steps up to the last were the same as the one before.
    same: u64,
    /// Requests of this step that are laid out.
    laid: u32,
}

impl Repeats {
    pub(super) fn new(options: &Options) -> Repeats {
        Repeats {
            stage: Stage::Off(0),
            rest: options.rest,
            before: Turn::default(),
            now: Turn::default(),
            alive: FxHashMap::default(),
            spent: Taken::default(),
            is_wanted: false,
            is_trying: false,
            is_other: false,
            ring: None,
            layout: None,
            layings: Layings::default(),
            skips_layout: false,
            cost: 0,
            allowed: 0,
            since: 0,
            losses: 0,
            has_rested: false,
            was_at_rest: false,
            usual: Taken::MAX,
            untried: 0,
            pause: options.rest,
            same: 0,
            laid: 0,
        }
    }

    /// Requests and parts of this step that are remembered.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> (usize, usize) {
        (self.now.requests.len(), self.now.parts.len())
    }

    /// True if the places of this step are remembered.
    #[inline]
    pub(super) fn is_watching(&self) -> bool {
        !matches!(self.stage, Stage::Off(_))
    }

    /// True if those of the step before are.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        matches!(self.stage, Stage::On { .. })
    }

    /// Where nothing is tried any more, or something else is asked for, what was of no use before may be.
    pub(super) fn expect(&mut self, options: &Options, Asked { is_trying, is_other }: Asked) {
        self.is_wanted = true;
        self.is_other |= is_other;
        let was_trying = std::mem::replace(&mut self.is_trying, is_trying);
        if is_trying || !was_trying && !is_other {
            return;
        }
        self.rest = options.rest;
        self.has_rested = false;
        (self.untried, self.pause, self.skips_layout) = (0, options.rest, false);
        if let Stage::Off(left) | Stage::Watching(left) = &mut self.stage {
            *left = 0;
        }
        if let Stage::On { in_vain, .. } = &mut self.stage {
            *in_vain = 0;
        }
    }

    /// A step ends and the next begins. Views have taken so much since the run began, and may take so many nanoseconds in
    /// such a step; time is owed, or not.
    pub(super) fn turn(&mut self, options: &Options, spent: Taken, share: u64, is_in_debt: bool) {
        let taken = spent.since(std::mem::replace(&mut self.spent, spent));
        // What is owed may be of steps that are long over.
        let is_dear = is_in_debt && taken.nanoseconds > share;
        let is_like = self.now.is_like(&self.before, options.alike);
        self.allowed = self.allowed.saturating_add_unsigned(share.saturating_mul(options.trials));
        let (more, less) = match self.stage {
            Stage::On { before, .. } => (taken.nanoseconds, before.nanoseconds),
            // What rest would have brought makes good what was paid for it.
            _ if self.was_at_rest => (0, taken.nanoseconds),
            _ => (0, 0),
        };
        let after = |cost: i64| cost.saturating_add_unsigned(more).saturating_sub_unsigned(less);
        self.cost = after(self.cost).max(-self.allowed);
        self.since = after(self.since);
        let may_try = self.is_wanted && options.in_vain > 0 && self.cost <= self.allowed;
        let is_other = std::mem::take(&mut self.is_other);
        let is_first = matches!(self.stage, Stage::On { unlike: 0, .. }) && !is_like && !is_other;
        let is_lost = is_first && self.is_lost();
        self.stage = match self.stage {
            // What was had is of no use to steps of another kind, however alike their requests are.
            Stage::On { .. } | Stage::Watching(_) if is_other => Stage::Off(0),
            Stage::Off(0) if is_dear && may_try && !self.is_trying => Stage::Watching(0),
            Stage::Off(left) => Stage::Off(left.saturating_sub(1)),
            Stage::Watching(_) if self.is_trying => Stage::Off(0),
            Stage::Watching(_) if is_like && is_dear && may_try => {
                let before = taken.least(self.usual);
                (self.since, self.losses) = (0, 0);
                Stage::On { before, least: u64::MAX, in_vain: 0, unlike: 0 }
            }
            Stage::Watching(_) if is_like => Stage::Off(0),
            // The first step that is watched has none before it.
            Stage::Watching(unlike) if unlike <= options.in_vain => Stage::Watching(unlike + 1),
            Stage::On { .. } if is_lost => self.rest(),
            // One that differs is unlike the one before it, and the one after it unlike it.
            Stage::On { before, unlike, .. } if !is_like && unlike < 2 => {
                Stage::On { before, least: u64::MAX, in_vain: 0, unlike: unlike + 1 }
            }
            Stage::On { unlike, .. } if !is_like => Stage::Watching(unlike + 1),
            Stage::On { before, least, .. } if taken.pages <= before.pages / 2 => {
                (self.rest, self.has_rested, self.was_at_rest) = (options.rest, true, true);
                (self.untried, self.pause) = (0, options.rest);
                Stage::On { before, least: least.min(taken.pages), in_vain: 0, unlike: 0 }
            }
            // What was laid out finds its places step by step.
            Stage::On { before, least, .. } if taken.pages <= least / 4 * 3 => {
                Stage::On { before, least: taken.pages, in_vain: 0, unlike: 0 }
            }
            Stage::On { before, least, in_vain, .. } if in_vain + 1 < options.in_vain => {
                Stage::On { before, least, in_vain: in_vain + 1, unlike: 0 }
            }
            Stage::On { before, least, .. } => {
                // Next time without a layout, if this one was in vain from the first.
                let is_no_help = !self.has_rested && least > before.pages / 2;
                self.skips_layout = self.layout.is_some() && is_no_help;
                self.rest()
            }
            Stage::Watching(_) => self.rest(),
        };
        self.usual = if self.is_on() { Taken::MAX } else { taken };
        if options.lost > 0 {
            self.turn_layout(is_dear);
        }
        if !self.is_watching() {
            self.forget();
            return;
        }
        self.before = std::mem::take(&mut self.now);
        // What is older than a step stays, as far as can be seen from here.
        self.alive.retain(|_, (is_of_now, _)| std::mem::replace(is_of_now, false));
    }

    /// A step ends. If it could be laid out and is not the one that is, it is going to be, unless that was tried not long ago.
    fn turn_layout(&mut self, is_dear: bool) {
        let is_same = self.now.is_same(&self.before);
        self.same = if is_same { self.same + 1 } else { 0 };
        let laid = std::mem::take(&mut self.laid);
        self.ring = None;
        self.untried = self.untried.saturating_sub(1);
        if !self.is_on() {
            self.layout = None;
            return;
        }
        let count = self.now.count();
        let is_of = |layout: &Layout| is_most(laid, count.max(layout.count()));
        let is_laid = self.layout.as_ref().is_some_and(is_of);
        if is_same && is_dear && !is_laid && self.untried == 0 && !self.skips_layout {
            self.untried = self.pause;
            self.pause = self.pause.saturating_mul(2);
            self.ring = self.now.ring(&self.before);
        }
        if let Some(layout) = &mut self.layout {
            layout.turn();
        }
    }

    /// A step could not be laid out: so many bytes of it had no place. To give requests what they had before has less choice
    /// than that, and costs more while it is in vain: it is not tried.
    pub(super) fn refuse(&mut self, without_place: u64) {
        self.layings.refused += 1;
        self.layings.without_place = without_place;
        self.layout = None;
        self.stage = self.rest();
        self.forget();
    }

    /// A step differs. True if places have cost more than they brought up to it, and up to the one before it.
    fn is_lost(&mut self) -> bool {
        self.losses = if self.since > 0 { self.losses + 1 } else { 0 };
        self.since = 0;
        self.losses > 1
    }

    /// Off, for twice as long as the last time.
    fn rest(&mut self) -> Stage {
        let rest = self.rest;
        self.rest = rest.saturating_mul(2);
        Stage::Off(rest)
    }

    /// What steps had is not remembered any more.
    fn forget(&mut self) {
        (self.before, self.now) = (Turn::default(), Turn::default());
        self.alive.clear();
    }

    /// The requests of the step before.
    pub(super) fn alike_before(&self) -> Alike {
        self.before.alike.clone()
    }

    /// Where the items of a ring lie that are alive at its cut, which this step has reached; empty for others.
    pub(super) fn lying(&self, ring: &Ring) -> Vec<Vec<Part>> {
        let mut lies = vec![Vec::new(); ring.items.len()];
        for &(is_of_now, number) in self.alive.values() {
            let turn = if is_of_now { &self.now } else { &self.before };
            let twin = if is_of_now { turn.requests[number as usize].twin } else { Some(number) };
            let at = twin.map(|twin| ring.items.binary_search_by_key(&twin, |item| item.number));
            if let Some(Ok(at)) = at
                && ring.left(&ring.items[at]).is_some()
            {
                lies[at] = turn.parts_of(number).to_vec();
            }
        }
        lies
    }

    /// Large requests of this step so far.
    pub(super) fn count(&self) -> u32 {
        self.now.count()
    }

    /// True if the last two steps were each the same as the one before: nothing is left of another.
    pub(super) fn is_steady(&self) -> bool {
        self.same > 1
    }

    /// The number that the next request like this one has in the layout.
    pub(super) fn next_laid(&mut self, search: &Search) -> Option<u32> {
        let like = (search.size, search.home.stream);
        let count = self.now.alike.get(&like).map_or(0, Vec::len);
        let number = self.layout.as_mut()?.next(like, count)?;
        self.laid += 1;
        Some(number)
    }

    /// The number that the next request like this one had in the step before.
    fn next(&self, search: &Search) -> Option<u32> {
        let like = (search.size, search.home.stream);
        let count = self.now.alike.get(&like).map_or(0, Vec::len);
        self.before.alike.get(&like)?.get(count).copied()
    }

    fn note(&mut self, search: &Search, address: Address, view: Option<u32>, parts: &[Part]) {
        let Turn { requests, parts: all, alike, known, is_cut_off } = &mut self.now;
        if requests.len() >= REQUESTS_MAX || all.len() + parts.len() > PARTS_MAX {
            *is_cut_off = true;
            return;
        }
        let number = requests.len() as u32;
        let like = (search.size, search.home.stream);
        let alike = alike.entry(like).or_default();
        let twin = self.before.alike.get(&like).and_then(|it| it.get(alike.len()).copied());
        *known += u32::from(twin.is_some());
        requests.push(Seen { address, view, parts: all.len() as u32, until: ALIVE, twin });
        all.extend_from_slice(parts);
        alike.push(number);
        self.alive.insert(address, (true, number));
    }

    /// A large block is freed.
    pub(super) fn freed(&mut self, address: Address) {
        let Some((is_of_now, number)) = self.alive.remove(&address) else { return };
        let now = self.now.count();
        let (turn, at) = match is_of_now {
            true => (&mut self.now, now),
            false => {
                let count = self.before.count();
                (&mut self.before, count + now)
            }
        };
        turn.requests[number as usize].until = at;
    }

    /// The bytes that those had in the step before that came within `count` requests after that number and lasted, or of
    /// all of them. After the last request of a step comes the first.
    fn wanted(&self, number: u32, count: u32, only_lasting: bool) -> Vec<Part> {
        let turn = &self.before;
        let all = turn.count();
        let after = (1..=count.min(all)).map(|ahead| (number + ahead) % all.max(1));
        let wanted = after.filter(|&other| {
            other != number && (!only_lasting || turn.lasts(&turn.requests[other as usize]))
        });
        wanted.flat_map(|other| turn.parts_of(other)).copied().collect()
    }
}

impl Lake {
    /// Tensors come and go. Said at the end of each step, from the first on in which any went; without it it is never tried
    /// whether places can be had again.
    pub fn expect(&mut self, asked: Asked) {
        self.repeats.expect(&self.options, asked);
    }

    /// A step has ended: see [`Repeats::turn`].
    pub(super) fn turn_repeats(&mut self) {
        let share = self.pace.share();
        let spent = Taken { nanoseconds: self.pace.mapped(), pages: self.views.mapped() };
        self.repeats.turn(&self.options, spent, share, self.pace.is_in_debt());
        self.cut_step();
    }

    /// A block for a large request by what it had in the step before, on no shelf. None if it is for the search.
    #[cold]
    #[inline(never)]
    pub(super) fn take_repeated(&mut self, env: &mut Env<'_>, search: &Search) -> Option<BlockId> {
        if self.options.lost > 0 {
            self.begin_layout();
            if self.repeats.layout.is_some() {
                return self.take_laid(env, search);
            }
        }
        let number = self.repeats.next(search)?;
        if !self.may_stitch(env, search) {
            return None;
        }
        // What the device refuses of it the search asks for in its own way.
        self.take_again(env, search, number).or_else(|| self.take_apart(env, search, number))
    }

    /// What a request had in the step before, if it is free.
    fn take_again(&mut self, env: &mut Env<'_>, search: &Search, number: u32) -> Option<BlockId> {
        let Seen { address, view, .. } = self.repeats.before.requests[number as usize];
        let reader = search.home.stream;
        let Some(place) = view else {
            let part = Part { address, size: search.size };
            self.segments.over(address)?;
            let latest = self.latest_use_of_parts(&[part], reader)?;
            return self.comes_after(env, latest, reader).then(|| self.lend_alone(&part))?;
        };
        // Another may have its place, or it other parts.
        let view = self.views.views.get(place as usize)?.as_ref()?;
        if (view.address, view.size) != (address, search.size) || !view.lent.is_empty() {
            return None;
        }
        let latest = self.latest_use_of_parts(&view.parts, reader)?;
        self.comes_after(env, latest, reader).then(|| self.use_view(search, place))
    }

    /// Bytes for a request that are not wanted while it lives: by nobody, or by none that lasts.
    fn take_apart(&mut self, env: &mut Env<'_>, search: &Search, number: u32) -> Option<BlockId> {
        let life = self.repeats.before.life(number);
        let found = [
            (life, false),
            (life, true),
            (life / 2, true),
            (life / 4, true),
            (life / 8, true),
            (0, true),
        ]
        .into_iter()
        .find_map(|(life, only_lasting)| {
            let wanted = self.repeats.wanted(number, life, only_lasting);
            self.parts_without(search, &wanted)
        });
        let (parts, reader) = (found?, search.home.stream);
        let latest = self.latest_use_of_parts(&parts, reader)?;
        let is_had = self.comes_after(env, latest, reader);
        if is_had { self.stitch_parts(env, search, parts).ok().flatten() } else { None }
    }

    /// Lets a stream wait for a free, unless time is owed: then the search looks first for what need not wait. False
    /// if it does not.
    pub(super) fn comes_after(
        &mut self,
        env: &mut Env<'_>,
        latest: Stamp,
        reader: StreamId,
    ) -> bool {
        let may_wait = latest == 0 || !self.pace.is_in_debt();
        may_wait && self.wait_for(env, latest, reader).unwrap_or(false)
    }

    /// Parts for a request that have none of the bytes of others: one hole that fits if there is one. None if they are
    /// too few.
    fn parts_without(&self, search: &Search, wanted: &[Part]) -> Option<Vec<Part>> {
        let wanted = wanted.iter().filter_map(|part| self.pages_around(*part)).collect();
        let wanted = side_by_side(wanted);
        let free = self.heap.free_blocks(true);
        let parts = free.flat_map(|id| {
            let part = self.heap.blocks[id].part();
            part.without_any(&wanted).into_iter().map(move |part| (id, part))
        });
        let reader = search.home.stream;
        let holes = parts.filter_map(|(id, part)| self.hole_within(id, part, reader));
        let mut holes: Vec<Hole> = holes.collect();
        holes.sort_unstable_by_key(in_order);
        let fitting = holes.iter().filter(|hole| hole.all.size >= search.size);
        if let Some(hole) = fitting.min_by_key(|hole| (hole.is_foreign, hole.all.size)) {
            return Some(vec![hole.all.first(search.size)]);
        }
        let (parts, missing) = collect(&holes, search.size);
        (missing == 0).then_some(parts)
    }

    /// A part with all of the pages that it touches: what is cut off beside it is whole pages, which others can be shown.
    /// None if it is of a segment that is gone.
    fn pages_around(&self, part: Part) -> Option<Part> {
        let (_, segment) = self.segments.over(part.address)?;
        let pages = segment.pages(part);
        let (start, end) = pages.fold((part.address, part.end()), |(start, end), page| {
            (start.min(page.address), end.max(page.part().end()))
        });
        Some(Part::between(start, end))
    }

    /// Remembers what a large request was given, for the next step.
    #[cold]
    pub(super) fn note_given(&mut self, search: &Search, id: BlockId) {
        let Lake { heap, views, repeats, .. } = self;
        let block = &heap.blocks[id];
        match block.is_stitched() {
            true => {
                let parts = &views.get(block.view).parts;
                repeats.note(search, block.address, Some(block.view), parts);
            }
            false => repeats.note(search, block.address, None, &[block.part()]),
        }
    }
}

#[cfg(test)]
mod tests;
