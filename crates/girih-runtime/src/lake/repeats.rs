//! Steps that repeat, and when they are laid out.
//!
//! In a run that repeats, the same places would do again. A search does not find them. Of holes it takes the one that
//! fits best, which is another as soon as anything lies elsewhere, and so on through the step. Where memory is full nearly
//! all the time, as it is when what does not fit goes to the host, nearly every large request is then a view made anew, in
//! every step, for ever. So, once views have taken more time than they may (`pace`), large requests are remembered for two
//! steps. If these are the same, the step is laid out (`layout`), and from then on a large request is given
//!
//! 1. what it has in the layout;
//! 2. or, if that is taken, bytes that are wanted as little as can be while it lives, if all that came before it in the
//!    step came as laid out;
//! 3. or whatever the search finds.
//!
//! Which request of the layout it is tell its size, its stream and how many like it came before it in the step. So what
//! comes in between shifts nothing but what is like it. A step that differs has its own places, and what it leaves behind is
//! in the way of the next alone.
//!
//! Where no layout has room for all, or it does not help, it rests for a while, and for longer each time. And it
//! does not begin while somebody is still trying what is best asked for ([`Lake::expect`]), as the executor of swapping is:
//! each schedule has other copies, and what was laid out for one step is of no use to those of the next.
//!
//! ```text
//!      a step takes too much       the next two are the same
//!     ┌─> Off ───────────────> Watching ─────────────> On ──┐ views took less time,
//!     │    ^                      │  ^                  │ ^─┘ or one step differs
//!     │    └──────────────────────┘  └── three differ ──┤
//!     │      not, or none is alike                      │
//!     └────────────── in vain, or no room ──────────────┘
//! ```

use girih_trace::StreamId;
use rustc_hash::FxHashMap;

use super::layout::{Item, Layout, Ring};
use super::views::Part;
use super::{Lake, Options, Search};
use crate::device::Address;
use crate::policy::BlockId;

/// Requests of a step at most that are remembered, and parts of theirs: together 2 MiB for a step, of which there are
/// two. What comes after them is served by the search.
pub(super) const REQUESTS_MAX: usize = 1 << 14;
pub(super) const PARTS_MAX: usize = 1 << 16;
/// The request is not freed yet.
const ALIVE: u32 = u32::MAX;
/// Steps are the same if no more than one request in so many is another: one that a tensor more or less that went to the
/// host has asked for.
const FEW: u32 = 200;
/// Steps in which views are made for a new layout, and for those after the first.
const SETTLING: u64 = 2;

/// The requests of one size and stream, by their numbers.
pub(super) type Alike = FxHashMap<(u64, StreamId), Vec<u32>>;

/// A request of a step, and what it was given.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Where its parts begin among those of the step.
    parts: u32,
    /// The number of the request before which it was freed. Those of the next step go on counting.
    until: u32,
    /// The number of the one that it is in the step before.
    twin: Option<u32>,
}

/// The requests of a step, in order.
#[derive(Debug, Default)]
struct Turn {
    requests: Vec<Seen>,
    parts: Vec<Part>,
    alike: Alike,
    /// How many of them came in the step before, too.
    known: u32,
    /// There were more than can be remembered.
    is_cut_off: bool,
}

impl Turn {
    fn count(&self) -> u32 {
        self.requests.len() as u32
    }

    /// True if it has the requests of the step before and no others, but for a few.
    fn is_same(&self, before: &Turn) -> bool {
        self.known > 0 && is_most(self.known, self.count().max(before.count()))
    }

    fn parts_of(&self, number: u32) -> &[Part] {
        let start_of = |number: usize| self.requests.get(number).map(|seen| seen.parts as usize);
        let start = start_of(number as usize).unwrap_or(self.parts.len());
        let end = start_of(number as usize + 1).unwrap_or(self.parts.len());
        &self.parts[start..end]
    }

    /// The requests that come again, of the stream that has most of the bytes, where this step is the same as the one
    /// before: what is alive yet lives as long as it did then.
    fn ring(&self, before: &Turn) -> Option<Ring> {
        if self.is_cut_off || before.is_cut_off {
            return None;
        }
        let count = self.count();
        let mut streams: FxHashMap<StreamId, u64> = FxHashMap::default();
        for (&(size, stream), numbers) in &self.alike {
            *streams.entry(stream).or_default() += size * numbers.len() as u64;
        }
        let (&stream, _) = streams.iter().max_by_key(|&(stream, bytes)| (*bytes, *stream))?;
        let mut items = Vec::new();
        for (&(size, of), numbers) in &self.alike {
            for &number in numbers.iter().filter(|_| of == stream) {
                let seen = &self.requests[number as usize];
                let life = match (seen.until, seen.twin) {
                    (ALIVE, Some(twin)) => match before.requests[twin as usize].until {
                        ALIVE => continue,
                        until => (until - twin).max(count - number + 1),
                    },
                    (ALIVE, None) => continue,
                    (until, _) => until - number,
                };
                if (1..=count).contains(&life) {
                    items.push(Item { number, size, life });
                }
            }
        }
        items.sort_unstable_by_key(|item| item.number);
        Some(Ring { items, stream, count, cut: 0 })
    }
}

/// True if so many of a step's requests are all but a few.
fn is_most(known: u32, count: u32) -> bool {
    count.saturating_sub(known) <= count / FEW
}

/// Whether steps are laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Not in the next so many steps.
    Off(u64),
    /// Requests are remembered. So many steps before this one were each another than the one before.
    Watching(u64),
    /// They are, or are about to be.
    On {
        /// What views took in the step that was watched last. Nanoseconds.
        before: u64,
        /// How many steps in a row they took more than half of that.
        in_vain: u64,
        /// How many up to the last were another than the one before them.
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
    /// What views had taken in all when the step began. Nanoseconds.
    spent: u64,
    /// What is asked for will be something else before long.
    is_trying: bool,
    /// The step that has ended, to be laid out where the next one reaches its cut.
    pub(super) ring: Option<Ring>,
    /// The step as it is laid out.
    pub(super) layout: Option<Layout>,
    /// Steps since it was to be laid out.
    age: u64,
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
            spent: 0,
            is_trying: false,
            ring: None,
            layout: None,
            age: 0,
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

    /// True if the requests of this step are remembered.
    #[inline]
    pub(super) fn is_watching(&self) -> bool {
        !matches!(self.stage, Stage::Off(_))
    }

    /// True if the step is laid out, or is going to be.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.layout.is_some() || self.ring.is_some()
    }

    /// What is asked for is still being tried, or will be as it was in the last step: what was of no use before may be
    /// then.
    pub(super) fn expect(&mut self, options: &Options, is_trying: bool) {
        let was_trying = std::mem::replace(&mut self.is_trying, is_trying);
        if is_trying || !was_trying {
            return;
        }
        self.rest = options.rest;
        (self.untried, self.pause) = (0, options.rest);
        if let Stage::Off(left) | Stage::Watching(left) = &mut self.stage {
            *left = 0;
        }
        if let Stage::On { in_vain, .. } = &mut self.stage {
            *in_vain = 0;
        }
    }

    /// A step ends and the next begins. Views have taken so many nanoseconds since the run began, and may take so many
    /// in such a step; time is owed, or not.
    pub(super) fn turn(&mut self, options: &Options, spent: u64, share: u64, is_in_debt: bool) {
        let taken = spent - std::mem::replace(&mut self.spent, spent);
        // What is owed may be of steps that are long over.
        let is_dear = is_in_debt && taken > share;
        let is_same = self.now.is_same(&self.before);
        self.same = if is_same { self.same + 1 } else { 0 };
        self.age += 1;
        self.stage = match self.stage {
            Stage::Off(0) if is_dear && options.in_vain > 0 && !self.is_trying => {
                Stage::Watching(0)
            }
            Stage::Off(left) => Stage::Off(left.saturating_sub(1)),
            Stage::Watching(_) if self.is_trying => Stage::Off(0),
            Stage::Watching(_) if is_same && is_dear => {
                Stage::On { before: taken, in_vain: 0, unlike: 0 }
            }
            Stage::Watching(_) if is_same => Stage::Off(0),
            // The first step that is watched has none before it.
            Stage::Watching(unlike) if unlike <= options.in_vain => Stage::Watching(unlike + 1),
            // One that differs is unlike the one before it, and the one after it unlike it.
            Stage::On { before, in_vain, unlike } if !is_same && unlike < 2 => {
                Stage::On { before, in_vain, unlike: unlike + 1 }
            }
            Stage::On { unlike, .. } if !is_same => Stage::Watching(unlike + 1),
            Stage::On { before, .. } if taken <= before / 2 => {
                self.rest = options.rest;
                Stage::On { before, in_vain: 0, unlike: 0 }
            }
            Stage::On { before, in_vain, .. }
                if self.layout.is_some() && in_vain + 1 < options.in_vain =>
            {
                let in_vain = in_vain + u64::from(self.age > SETTLING);
                Stage::On { before, in_vain, unlike: 0 }
            }
            Stage::Watching(_) | Stage::On { .. } => {
                let rest = self.rest;
                self.rest = rest.saturating_mul(2);
                Stage::Off(rest)
            }
        };
        self.turn_layout(is_same && is_dear);
        if !self.is_watching() {
            (self.before, self.now) = (Turn::default(), Turn::default());
            self.alive.clear();
            return;
        }
        self.before = std::mem::take(&mut self.now);
        // What is older than a step stays, as far as can be seen from here.
        self.alive.retain(|_, (is_of_now, _)| std::mem::replace(is_of_now, false));
    }

    /// A step ends. If it could be laid out and is not the one that is, it is going to be, unless that was tried not long ago.
    fn turn_layout(&mut self, is_possible: bool) {
        let laid = std::mem::take(&mut self.laid);
        self.ring = None;
        self.untried = self.untried.saturating_sub(1);
        if !matches!(self.stage, Stage::On { .. }) {
            self.layout = None;
            return;
        }
        let count = self.now.count();
        let is_laid =
            self.layout.as_ref().is_some_and(|layout| is_most(laid, count.max(layout.count())));
        if is_possible && !is_laid && self.untried == 0 {
            (self.untried, self.age) = (self.pause, 0);
            self.pause = self.pause.saturating_mul(2);
            self.ring = self.now.ring(&self.before);
        }
        if let Some(layout) = &mut self.layout {
            layout.turn();
        }
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
    pub(super) fn next(&mut self, search: &Search) -> Option<u32> {
        let like = (search.size, search.home.stream);
        let count = self.now.alike.get(&like).map_or(0, Vec::len);
        let number = self.layout.as_mut()?.next(like, count)?;
        self.laid += 1;
        Some(number)
    }

    fn note(&mut self, search: &Search, address: Address, parts: &[Part]) {
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
        requests.push(Seen { parts: all.len() as u32, until: ALIVE, twin });
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
}

impl Lake {
    /// Somebody is trying what is best asked for in a step, or has found it: nothing is laid out before that, and then at
    /// once if views take more time than they may. Said at the end of each step.
    pub fn expect(&mut self, is_trying: bool) {
        self.repeats.expect(&self.options, is_trying);
    }

    /// A step has ended: see [`Repeats::turn`].
    pub(super) fn turn_repeats(&mut self) {
        let (spent, share) = (self.pace.mapped(), self.pace.share());
        self.repeats.turn(&self.options, spent, share, self.pace.is_in_debt());
        self.cut_step();
    }

    /// Remembers what a large request was given.
    #[cold]
    pub(super) fn note_given(&mut self, search: &Search, id: BlockId) {
        let Lake { heap, views, repeats, .. } = self;
        let block = &heap.blocks[id];
        match block.is_stitched() {
            true => repeats.note(search, block.address, &views.get(block.view).parts),
            false => repeats.note(search, block.address, &[block.part()]),
        }
    }
}
