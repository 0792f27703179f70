//! Iterations: where each training step begins, and which steps are alike.
//!
//! Marks say it where there are any. Otherwise the sequence itself does. A request is known by its
//! stream and its life, counted in requests, which stay the same from step to step even where
//! sizes do not. Runs of a dozen such requests that come back at regular distances are anchors:
//!
//! ```text
//!  model building     step 0 (other)     step 1          eval   step 2          step 3
//!  ...............|..A..mmmmmmm..o'....|..A..mmmmmmm..o..|eee|..A..mmmmmmm..o..|..A..mmm
//! ```
//!
//! `A` comes once a step. `m` comes at shorter distances (microbatches, layers) but stops in
//! between. Of all regular anchors, those are taken whose shortest period still covers the run and
//! at which the least memory is alive: there a plan of one step joins the next with the least that
//! crosses.

use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::align::{Key, align, births_before, keys};
use crate::event::Tick;
use crate::kinds::kinds;
use crate::lifetimes::Lifetimes;
use crate::mark::MarkKind;
use crate::trace::Trace;

/// Requests in a row that make an anchor.
const GRAM: usize = 12;

/// How the iterations were found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The trace has marks of steps.
    Marks,
    /// The sequence of requests repeats.
    Sequence,
    /// Neither: nothing repeats, or too few requests.
    None,
}

/// One iteration: what was asked from its beginning to the beginning of the next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Iteration {
    /// Its requests, as a range of [`Lifetimes::requests`].
    pub requests: Range<u32>,
    /// Its ticks, as a range of the trace's events.
    pub ticks: Range<u32>,
}

/// The iterations of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Iterations {
    /// How they were found.
    pub source: Source,
    /// The iterations in order. What comes before the first is model building.
    pub list: Vec<Iteration>,
    /// The first and the last of a run of iterations that are alike in structure: those a plan is
    /// made for. None if there are fewer than two of them.
    pub steady: Option<(usize, usize)>,
    /// Iterations that ask for the same, whatever comes between them ([`kinds`]).
    pub kinds: Vec<Vec<usize>>,
}

impl Iterations {
    /// Finds the iterations of a trace.
    pub fn of(trace: &Trace, lives: &Lifetimes) -> Iterations {
        let keys = keys(lives);
        let births = births_before(lives);
        let found = |source, bounds: &[u32]| {
            let list = split(bounds, &births, lives.requests.len() as u32);
            let steady = steady(&list, &keys, trace.events.len() as u32);
            let kinds = kinds(&list, &keys);
            Iterations { source, list, steady, kinds }
        };
        // Marks are believed, unless no two of the steps they mark are alike.
        let marked = marked_starts(trace).map(|bounds| found(Source::Marks, &bounds));
        if let Some(marked) = marked.as_ref().filter(|marked| !marked.members().is_empty()) {
            return marked.clone();
        }
        // Of a single whole step and a part of the next, marks cannot show that steps are alike, and what
        // repeats in them is no step.
        let events = trace.events.len() as u32;
        let is_one = marked.as_ref().is_some_and(|marked| whole(&marked.list, events) < 2);
        let repeated = match is_one {
            true => None,
            false => repeated_starts(lives, &keys).map(|at| found(Source::Sequence, &at)),
        };
        let repeats = |found: &Iterations| !found.members().is_empty();
        let repeated = repeated.filter(|repeated| repeats(repeated) || marked.is_none());
        repeated.or(marked).unwrap_or_else(|| found(Source::None, &[]))
    }

    /// What a user should know of how the iterations were found: that the recording ends within one, or
    /// that marks were not believed. Empty if there is nothing to say.
    pub fn notes(&self, trace: &Trace) -> Vec<String> {
        let mut notes = Vec::new();
        let count = whole(&self.list, trace.events.len() as u32);
        if let [.., before, last] = &self.list[..]
            && count < self.list.len()
        {
            notes.push(format!(
                "the recording ends within an iteration, the last of {}: {} requests are there, {} were \
                 in the one before",
                self.list.len(),
                last.requests.len(),
                before.requests.len()
            ));
        }
        let steps = trace.marks.iter().filter(|mark| mark.kind == MarkKind::Step).count();
        if steps > 1 && self.source == Source::Sequence {
            notes.push(format!(
                "no two of the {steps} steps that are marked are alike: the marks were left aside, and \
                 iterations were found in the sequence of requests"
            ));
        } else if steps > 1 && self.members().is_empty() {
            notes.push(format!(
                "no two of the {steps} steps that are marked are alike: the recording is planned as one"
            ));
        }
        notes
    }

    /// The iteration in which the request was born; None for model building and for what comes
    /// after the last whole iteration.
    pub fn index_of(&self, request: u32) -> Option<usize> {
        let after = self.list.partition_point(|it| it.requests.start <= request);
        let index = after.checked_sub(1)?;
        self.list[index].requests.contains(&request).then_some(index)
    }
}

/// Ticks of the marks that begin a step; of the optimizer's, if no step is marked: a step is a
/// ring, and may be cut there as well. Last the end of the trace. None with fewer than two.
fn marked_starts(trace: &Trace) -> Option<Vec<u32>> {
    [MarkKind::Step, MarkKind::Optimizer].into_iter().find_map(|kind| {
        let marks = trace.marks.iter().filter(|mark| mark.kind == kind);
        let mut starts: Vec<u32> = marks.map(|mark| mark.before).collect();
        starts.push(trace.events.len() as u32);
        starts.dedup();
        (starts.len() >= 3).then_some(starts)
    })
}

/// The iterations between these ticks; those without requests are left out.
fn split(bounds: &[u32], births: &[u32], requests: u32) -> Vec<Iteration> {
    let request_at = |tick: u32| births.get(tick as usize).copied().unwrap_or(requests);
    bounds
        .windows(2)
        .map(|pair| Iteration {
            requests: request_at(pair[0])..request_at(pair[1]),
            ticks: pair[0]..pair[1],
        })
        .filter(|iteration| !iteration.requests.is_empty())
        .collect()
}

/// How many iterations are whole: all, or all but a last one that the end of the recording, of so many
/// events, has cut short. One that lacks less than a fifth counts as whole.
fn whole(list: &[Iteration], events: u32) -> usize {
    match list {
        [.., before, last]
            if last.ticks.end == events && last.requests.len() * 5 < before.requests.len() * 4 =>
        {
            list.len() - 1
        }
        _ => list.len(),
    }
}

/// A part of an iteration shows that it is like another from so many requests on.
const PART_MIN: usize = 4 * GRAM;

/// The run of iterations that are alike: from the first that shares all but 1 % of its places with
/// the model iteration and adds nothing that stays, to the last. A last one that is cut short is alike
/// if it is the beginning of the model.
fn steady(list: &[Iteration], keys: &[Key], events: u32) -> Option<(usize, usize)> {
    let whole = whole(list, events);
    // A model that is cut short itself would be none, and a first step alone is not one.
    let model = model_iteration(&list[..whole])?;
    let slice = |index: usize| {
        let requests = &list[index].requests;
        &keys[requests.start as usize..requests.end as usize]
    };
    let template = slice(model);
    let is_alike = |index: usize| {
        if index == model {
            return true;
        }
        let other = slice(index);
        let is_part = index >= whole;
        // A little more than as many: the part may have requests that the model has not.
        let reach = if is_part { other.len() + other.len() / 64 + GRAM } else { usize::MAX };
        let template = &template[..reach.min(template.len())];
        let places = align(template, other);
        let found = places.iter().flatten().count();
        // What is added and never freed belongs to a first step: states and gradients that stay.
        let adds = (0..other.len()).any(|k| places[k].is_none() && other[k].life == Key::FOREVER);
        if is_part {
            // What lives when the recording ends is not known to stay.
            return other.len() >= PART_MIN && found * 100 >= other.len() * 99;
        }
        // One of the two may have an evaluation at its end, or be cut short by the recording's.
        let (short, long) = (template.len().min(other.len()), template.len().max(other.len()));
        found * 100 >= short * 99 && short * 5 >= long * 4 && !adds
    };
    let first = (0..=model).rev().take_while(|&index| is_alike(index)).last()?;
    let last = (model..list.len()).take_while(|&index| is_alike(index)).last()?;
    (last > first).then_some((first, last))
}

/// The iteration that the others are compared with: the latest of those with the most common
/// number of requests (of several that are as common, the smallest), the first and the last left out where there are others, for one is
/// different and the other may be cut short.
pub fn model_iteration(list: &[Iteration]) -> Option<usize> {
    let inner = match list.len() {
        0 | 1 => return None,
        2 => 1..2,
        3 => 1..2,
        n => 1..n - 1,
    };
    let mut counts: FxHashMap<usize, usize> = FxHashMap::default();
    for index in inner.clone() {
        *counts.entry(list[index].requests.len()).or_default() += 1;
    }
    inner.max_by_key(|&index| {
        let requests = list[index].requests.len();
        (counts[&requests], usize::MAX - requests, index)
    })
}

/// A gram that comes back: where, and how regularly.
#[derive(Clone)]
struct Anchor {
    /// A range of the sorted grams.
    positions: Range<usize>,
    period: usize,
}

/// Where the sequence could be cut into iterations.
struct Cut {
    /// The first request of each, counted from the first that the recording saw born.
    starts: Vec<usize>,
    /// Where the last whole iteration ends.
    end: usize,
    period: usize,
    /// The most bytes alive at a cut, those left out that are never freed.
    load: u64,
    /// Requests from the first cut to the end of the last whole iteration.
    covered: usize,
    /// Requests whose life is that of the request at the same place of the iteration before.
    alike: usize,
}

/// Ticks at which the repeating part of the sequence begins anew, and last the tick at which the
/// last whole period ends.
fn repeated_starts(lives: &Lifetimes, keys: &[Key]) -> Option<Vec<u32>> {
    let own = lives.older;
    let keys = &keys[own..];
    if keys.len() < 4 * GRAM {
        return None;
    }
    let mut order: Vec<(u64, u32)> = grams(keys).into_iter().zip(0..).collect();
    order.sort_unstable();
    let load = crossing_load(lives);
    let anchors = regular_anchors(&order);
    let cuts: Vec<Cut> =
        representatives(&anchors).iter().flat_map(|a| cuts_at(a, &order, &load, keys)).collect();
    let widest = cuts.iter().map(|cut| cut.covered).max()?;
    let most = cuts.iter().map(|cut| cut.alike).max()?;
    let wide = || cuts.iter().filter(|cut| cut.covered * 8 > widest * 5 && cut.alike * 2 > most);
    let least = wide().map(|cut| cut.load).min()?;
    let peak = load.iter().copied().max().unwrap_or(0);
    // Between microbatches gradients are alive that are not between steps.
    let allowed = least.saturating_add(least / 2).saturating_add(peak / 32);
    let low = || wide().filter(|cut| cut.load <= allowed);
    let period = low().map(|cut| cut.period).min()?;
    // Periods differ a little from anchor to anchor where something comes in between.
    let best = low()
        .filter(|cut| cut.period * 8 <= period * 9)
        .max_by_key(|cut| (cut.alike, u64::MAX - cut.load))?;
    let tick = |at: usize| match lives.requests.get(own + at) {
        Some(request) => request.birth.0,
        None => lives.request_of.len() as u32,
    };
    let ticks: Vec<u32> = best.starts.iter().chain([&best.end]).map(|&at| tick(at)).collect();
    (ticks.len() >= 3).then_some(ticks)
}

/// One anchor for each number of occurrences and each period, give or take a tenth: the earliest.
fn representatives(anchors: &[Anchor]) -> Vec<Anchor> {
    let mut sorted: Vec<&Anchor> = anchors.iter().collect();
    sorted.sort_by_key(|anchor| (anchor.positions.len(), anchor.period));
    let mut chosen: Vec<Anchor> = Vec::new();
    for anchor in sorted {
        let is_new = chosen.last().is_none_or(|last| {
            last.positions.len() != anchor.positions.len() || anchor.period * 10 > last.period * 11
        });
        if is_new {
            chosen.push(anchor.clone());
        }
    }
    chosen
}

/// The most places that are tried for a cut before one anchor.
const TRIED: usize = 48;

/// Looks backward from an anchor, up to a period, for places at which little is alive. What comes
/// in between two iterations comes before the cut: going backward from the anchor, all iterations
/// are alike up to there. Of neighbouring places the first and the last are tried.
fn cuts_at(anchor: &Anchor, order: &[(u64, u32)], load: &[u64], keys: &[Key]) -> Vec<Cut> {
    let at: Vec<usize> =
        order[anchor.positions.clone()].iter().map(|&(_, at)| at as usize).collect();
    let crossing = |back: usize| at.iter().map(|&at| load[at - back]).max().unwrap_or(0);
    let loads: Vec<u64> = (0..=at[0].min(anchor.period - 1)).map(crossing).collect();
    let peak = load.iter().copied().max().unwrap_or(0);
    let low = loads.iter().copied().min().unwrap_or(0).saturating_add(peak / 32);
    let is_low = |back: usize| loads.get(back).is_some_and(|&load| load <= low);
    let mut backs: Vec<usize> = (0..loads.len())
        .filter(|&back| is_low(back) && (back == 0 || !is_low(back - 1) || !is_low(back + 1)))
        .collect();
    backs.sort_by_key(|&back| loads[back]);
    backs.truncate(TRIED);
    let cut = |back: usize| {
        // A last iteration that is nearly whole was cut short by the end of the recording.
        let is_whole = |&start: &usize| (keys.len() - start) * 20 >= anchor.period * 19;
        let starts: Vec<usize> = at.iter().map(|&at| at - back).take_while(is_whole).collect();
        let last = *starts.last()?;
        // The shortest distance: what may come after the last iteration is not known to be its.
        let shortest = starts.windows(2).map(|pair| pair[1] - pair[0]).min();
        let end = (last + shortest.unwrap_or(anchor.period)).min(keys.len());
        let covered = end - starts[0];
        let alike = alike(&starts, end, keys);
        Some(Cut { starts, end, period: anchor.period, load: loads[back], covered, alike })
    };
    backs.into_iter().filter_map(cut).collect()
}

/// How many requests have the life of the request at the same place of the iteration before,
/// counted from the beginning or from the end of the iteration, whichever are more.
fn alike(starts: &[usize], end: usize, keys: &[Key]) -> usize {
    let bounds: Vec<usize> = starts.iter().copied().chain([end]).collect();
    let same = |&(a, b): &(&Key, &Key)| a.life == b.life && a.stream == b.stream;
    bounds
        .windows(3)
        .map(|bound| {
            let (before, after) = (&keys[bound[0]..bound[1]], &keys[bound[1]..bound[2]]);
            let forward = before.iter().zip(after).filter(same).count();
            let backward = before.iter().rev().zip(after.iter().rev()).filter(same).count();
            forward.max(backward)
        })
        .sum()
}

/// A hash of each run of [`GRAM`] requests: streams and lives, no sizes.
fn grams(keys: &[Key]) -> Vec<u64> {
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    let item = |key: &Key| {
        let mut hash = (u64::from(key.life) << 16) ^ u64::from(key.stream.0);
        hash = (hash ^ (hash >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        hash ^ (hash >> 32)
    };
    let oldest = (1..GRAM).fold(1u64, |power, _| power.wrapping_mul(STEP));
    let items: Vec<u64> = keys.iter().map(item).collect();
    let mut hash = items[..GRAM].iter().fold(0u64, |h, &i| h.wrapping_mul(STEP).wrapping_add(i));
    let mut grams = Vec::with_capacity(items.len() - GRAM + 1);
    grams.push(hash);
    for end in GRAM..items.len() {
        let gone = items[end - GRAM].wrapping_mul(oldest);
        hash = hash.wrapping_sub(gone).wrapping_mul(STEP).wrapping_add(items[end]);
        grams.push(hash);
    }
    grams
}

/// The grams, sorted by (gram, position), that come back at distances of which the longest is at
/// most a quarter longer than the shortest.
fn regular_anchors(order: &[(u64, u32)]) -> Vec<Anchor> {
    let mut anchors = Vec::new();
    let mut start = 0;
    for group in order.chunk_by(|a, b| a.0 == b.0) {
        let positions = start..start + group.len();
        start += group.len();
        if group.len() < 2 {
            continue;
        }
        let distances = group.windows(2).map(|pair| (pair[1].1 - pair[0].1) as usize);
        let (mut shortest, mut longest) = (usize::MAX, 0);
        for distance in distances {
            (shortest, longest) = (shortest.min(distance), longest.max(distance));
        }
        if shortest < GRAM || longest * 4 > shortest * 5 {
            continue;
        }
        let reach = (group[group.len() - 1].1 - group[0].1) as usize;
        anchors.push(Anchor { positions, period: reach / (group.len() - 1) });
    }
    anchors
}

/// Bytes alive just before each own request, those that are never freed left out.
fn crossing_load(lives: &Lifetimes) -> Vec<u64> {
    let mut change = vec![0i64; lives.request_of.len() + 1];
    for request in lives.requests.iter().filter(|request| request.death != Tick::NEVER) {
        // Only where sizes are beyond all bounds is it not exact.
        let (birth, death) = (request.birth.index(), request.death.index());
        change[birth] = change[birth].saturating_add_unsigned(request.size);
        change[death] = change[death].saturating_sub_unsigned(request.size);
    }
    let mut before = Vec::with_capacity(change.len());
    let mut live = 0i64;
    for change in change {
        before.push(live.max(0) as u64);
        live = live.saturating_add(change);
    }
    lives.requests[lives.older..].iter().map(|request| before[request.birth.index()]).collect()
}

/// What repeats inside a sequence of requests and covers most of it: where each repetition begins,
/// and the requests from one to the next. These are the microbatches of an iteration.
pub fn repeats_inside(keys: &[Key]) -> Option<(Vec<usize>, usize)> {
    if keys.len() < 4 * GRAM {
        return None;
    }
    let mut order: Vec<(u64, u32)> = grams(keys).into_iter().zip(0..).collect();
    order.sort_unstable();
    let anchors = regular_anchors(&order);
    let covered = |anchor: &Anchor| anchor.period * anchor.positions.len();
    let anchor = anchors
        .iter()
        .filter(|anchor| covered(anchor) * 3 > keys.len() * 2)
        // The shortest period first: two microbatches repeat as well as one.
        .min_by_key(|anchor| (anchor.period, order[anchor.positions.start].1))?;
    let period = anchor.period;
    let positions = order[anchor.positions.clone()].iter();
    let mut starts: Vec<usize> = positions.map(|&(_, at)| at as usize).collect();
    // Repetition begins as early as it can: an anchor may lie late in its microbatch, and the first
    // and the last microbatch may differ a little from the others.
    let back = starts[0].min(period - 1);
    starts.iter_mut().for_each(|start| *start -= back);
    while starts[0] * 10 >= period * 9 {
        starts.insert(0, starts[0].saturating_sub(period));
    }
    while (keys.len() - starts[starts.len() - 1]) * 10 >= period * 19 {
        starts.push(starts[starts.len() - 1] + period);
    }
    Some((starts, period))
}
