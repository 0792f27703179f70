//! Where the large requests of a step lie, laid out ahead: if [`Options::lost`](super::Options::lost) says so.
//!
//! Bytes of a view need not lie side by side. So a request is content with any pages that nobody has while it lives, and
//! to lay a step out is not to pack rectangles but to colour intervals, of which pages are the colours. Within a step
//! as many as are in use at once would do. What makes it hard is what *lasts*: a request that lives on into the next step
//! has the same pages at the beginning of that one and at the end of this, so that each of them is free from when
//! it leaves until it comes back. That is said of a step that is cut open wherever it is best, not where its mark stands.
//!
//! ```text
//!  request after the cut   0                                             count
//!  pages of what lasts     ─── leaves │      a window, for others     │ comes back ───
//!                                     ├── ── ──  ─────── ────  ── ────┤
//! ```
//!
//! What comes first is placed first, in the windows that end soonest after it is freed. What is left over at the ends of
//! pages is the beginning or the end of a view, or serves what is no larger. Once all have places, each step has all of
//! its views, whatever there was before, and the driver is not asked for any more.
//!
//! Where what lasts lies now there may be no room for others: then it moves first. One step, the *first*, goes from the
//! places of now to those where it is going to stay, and all that come after it are laid out around these.
//!
//! A request that has no place, or finds it taken, is given the bytes that are wanted latest, and has them from then on. So
//! a few that do not fit find theirs within some steps, and a request too many in one step disturbs that step alone.

mod ring;
mod sheet;
mod uses;

#[cfg(test)]
mod tests;

use girih_trace::StreamId;
use rustc_hash::FxHashMap;

pub(super) use self::ring::{Item, Ring};
pub(super) use self::sheet::Run;
use self::sheet::Sheet;
use self::uses::Uses;
use super::turn::{Alike, PARTS_MAX};
use super::views::Part;

/// Pages of all places of a step at most: 8 MiB for a step, of which there are two. One with more is not laid out.
const RUNS_MAX: usize = 1 << 18;

/// Parts for each request of a step, by its number; none for one without a place.
type Places = Vec<Vec<Part>>;

/// What a step is laid out on.
#[derive(Debug)]
pub(super) struct Ground {
    /// All bytes, page by page.
    pub(super) runs: Vec<Run>,
    /// Where those of the ring's items lie that are alive at the cut, in the order of its items; empty for the others.
    pub(super) lies: Places,
    /// What views there are, by their bytes.
    pub(super) views: FxHashMap<u64, Vec<Vec<Part>>>,
}

/// How often what has no place is tried before all others, where what lasts has moved for it.
const ROUNDS: usize = 4;

/// Places for the items of a ring, in their order, and the bytes of those that have none.
#[derive(Clone, Debug)]
struct Laid {
    places: Places,
    without: u64,
}

impl Ground {
    /// A step at whose beginning what lasts lies in `lies`, and at whose end it lies in `lasting`, or anywhere if there is none.
    /// Places that its items had before are theirs again, if that is as good as others.
    fn place_all(
        &mut self,
        ring: &Ring,
        lies: &Places,
        lasting: Option<&Places>,
        own: Option<&Places>,
        rounds: usize,
    ) -> Laid {
        let mut order: Vec<usize> = ring.in_order().collect();
        let mut best: Option<Laid> = None;
        for _ in 0..rounds {
            let mut sheet = Sheet::new(self.runs.clone());
            let mut laid = Laid { places: vec![Vec::new(); ring.items.len()], without: 0 };
            for (at, item) in ring.items.iter().enumerate() {
                let Some(left) = ring.left(item) else { continue };
                sheet.give(&lies[at], 0, left);
                if let Some(lasting) = lasting {
                    sheet.give(&lasting[at], ring.birth(item), ring.until(item));
                    laid.places[at].clone_from(&lasting[at]);
                }
            }
            let is_open = |at: usize| lasting.is_none() || ring.left(&ring.items[at]).is_none();
            for &at in order.iter().filter(|&&at| is_open(at)) {
                let own = own.map_or(&[][..], |own| &own[at]);
                laid.places[at] = self.place(ring, &ring.items[at], &mut sheet, own);
            }
            let is_without = |at: usize| laid.places[at].is_empty();
            laid.without = (0..ring.items.len())
                .filter(|&at| is_without(at))
                .map(|at| ring.items[at].size)
                .sum();
            order.sort_by_key(|&at| !is_without(at));
            if best.as_ref().is_none_or(|best| laid.without < best.without) {
                best = Some(laid);
            }
            if best.as_ref().is_some_and(|best| best.without == 0) {
                break;
            }
        }
        best.expect("one round at least")
    }

    /// Gives an item its own parts, those of a view that is there, or others: the first of these of which none is wanted
    /// later than it must be. Bytes that are wanted late serve those that live long, and that a view shows them is no
    /// reason to take them. None if there are too few.
    fn place(&mut self, ring: &Ring, item: &Item, sheet: &mut Sheet, own: &[Part]) -> Vec<Part> {
        let (birth, until) = (ring.birth(item), ring.until(item));
        let known = self.views.entry(item.size).or_default();
        let Some(new) = sheet.find(item.size, birth, until) else { return Vec::new() };
        let latest = sheet.wanted(&new, birth, until).map_or(u32::MAX, |(_, last)| last);
        let soonest = |parts: &[Part]| {
            let wanted = sheet.wanted(parts, birth, until);
            wanted.filter(|&(_, last)| last <= latest).map(|(first, _)| first)
        };
        let parts = if !own.is_empty() && soonest(own).is_some() {
            own.to_vec()
        } else {
            let known = known.iter().filter_map(|parts| Some((soonest(parts)?, parts)));
            known.min_by_key(|(first, _)| *first).map_or(new, |(_, parts)| parts.clone())
        };
        if !known.contains(&parts) {
            known.push(parts.clone());
        }
        sheet.give(&parts, birth, until);
        parts
    }

    /// Places for the items of a ring: in the first step after the cut, if what lasts moves in it, and in all that come
    /// after it. If more than so many bytes have no place, how many.
    fn lay_out(mut self, ring: &Ring, most: u64) -> Result<(Option<Places>, Laid), u64> {
        let (lies, views) = (self.lies.clone(), self.views.clone());
        let at_once = self.place_all(ring, &lies, Some(&lies), None, 1);
        if at_once.without == 0 {
            return Ok((None, at_once));
        }
        self.views = views;
        let first = self.place_all(ring, &lies, None, None, ROUNDS);
        let lasting = &first.places;
        let then = self.place_all(ring, lasting, Some(lasting), Some(lasting), ROUNDS);
        let without = first.without.max(then.without);
        if then.without < at_once.without && without <= most {
            return Ok((Some(first.places), then));
        }
        if at_once.without <= most {
            return Ok((None, at_once));
        }
        Err(without.min(at_once.without))
    }
}

/// A step that is laid out.
#[derive(Debug)]
pub(super) struct Layout {
    alike: Alike,
    /// How long each lives; 0 if that is not known.
    lives: Vec<u32>,
    cut: u32,
    /// The step has passed the cut.
    is_behind_cut: bool,
    /// Of the first step, where it is another, and of all others: the last stays.
    stages: Vec<(Places, Uses)>,
    /// Parts of the last, and pages of theirs.
    parts: usize,
    runs: usize,
    /// Bytes that had no place in it when it was made.
    pub(super) without: u64,
}

impl Layout {
    /// Lays a step out, whose requests of one size and stream have these numbers. `runs_of` says on which pages parts
    /// lie. If more than `most` bytes have no place it says how many; 0 of them if there is too much to remember.
    pub(super) fn new(
        ring: &Ring,
        alike: Alike,
        ground: Ground,
        most: u64,
        runs_of: impl Fn(&[Part]) -> Vec<Run>,
    ) -> Result<Layout, u64> {
        let (first, Laid { places, without }) = ground.lay_out(ring, most)?;
        let mut lives = vec![0; ring.count as usize];
        for item in &ring.items {
            lives[item.number as usize] = item.life;
        }
        let (mut stages, mut parts, mut runs) = (Vec::new(), 0, 0);
        for of_items in first.into_iter().chain([places]) {
            let mut places = vec![Vec::new(); ring.count as usize];
            let mut uses = Uses::new(ring.count);
            (parts, runs) = (0, 0);
            for (item, place) in ring.items.iter().zip(of_items) {
                let under = runs_of(&place);
                (parts, runs) = (parts + place.len(), runs + under.len());
                if parts > PARTS_MAX || runs > RUNS_MAX {
                    return Err(0);
                }
                uses.add(item.number, ring.left(item).is_some(), &under);
                places[item.number as usize] = place;
            }
            stages.push((places, uses));
        }
        let cut = ring.cut;
        Ok(Layout { alike, lives, cut, is_behind_cut: true, stages, parts, runs, without })
    }

    /// A step begins.
    pub(super) fn turn(&mut self) {
        self.is_behind_cut = false;
    }

    /// The number of the request that is this one: the one of its size and stream that comes after so many.
    pub(super) fn next(&mut self, like: (u64, StreamId), count: usize) -> Option<u32> {
        let number = self.alike.get(&like)?.get(count).copied()?;
        if number >= self.cut && !self.is_behind_cut {
            self.is_behind_cut = true;
            if self.stages.len() > 1 {
                self.stages.remove(0);
            }
        }
        Some(number)
    }

    /// What a request has.
    pub(super) fn place(&self, number: u32) -> &[Part] {
        &self.stages[0].0[number as usize]
    }

    /// Parts for a request that cannot have what it has: see [`Uses::find`]. None of one that is not laid out.
    pub(super) fn find(&self, size: u64, number: u32, free: &[Run]) -> Option<Vec<Part>> {
        let life = Some(self.lives[number as usize]).filter(|&life| life > 0)?;
        self.stages[0].1.find(size, number, life, free)
    }

    /// Requests of the step.
    pub(super) fn count(&self) -> u32 {
        self.lives.len() as u32
    }

    /// A request has other parts from now on.
    pub(super) fn settle(
        &mut self,
        number: u32,
        parts: Vec<Part>,
        runs_of: impl Fn(&[Part]) -> Vec<Run>,
    ) {
        let is_last = self.stages.len() == 1;
        let (places, uses) = &mut self.stages[0];
        let place = &mut places[number as usize];
        let (old, new) = (runs_of(place), runs_of(&parts));
        let after = self.parts + parts.len() - place.len();
        let runs = (self.runs + new.len()).saturating_sub(old.len());
        if !is_last || after > PARTS_MAX || runs > RUNS_MAX {
            return;
        }
        let (count, life) = (self.lives.len() as u32, self.lives[number as usize]);
        let lasts = (number + count - self.cut) % count + life > count;
        uses.remove(number, &old);
        uses.add(number, lasts, &new);
        (*place, self.parts, self.runs) = (parts, after, runs);
    }
}
