//! A layout of a pattern that goes on for ever.
//!
//! The simplest one comes back after as many periods as a life may touch: it is planned as a *ring*
//! of so many rounds. That is not always enough. Where the peak leaves no unit free, what one round
//! frees must lie beside what is idle already, so that the large ones that come then find room. On a
//! ring the same units are idle in every round, and no more than a few neighbours have a place beside
//! them:
//!
//! ```text
//!  rings of 3 rounds      |   a   |   b   |   c   |idle|       a and b do not touch what is idle
//!
//!  two rings, of          |  a  |  b  |  c  || a' | b' | c' |idle|
//!  3 and of 4 rounds      |  d  |  b  |  c  ||idle| b' | c' | d' |    what is idle moves on, and
//!                         |  d  |  e  |  c  || e' |idle| c' | d' |    lies beside b', c', d', ...
//! ```
//!
//! So the pattern is *split*: what lives long is divided so that each round has as many units in the
//! second ring as are idle. The second has one round more than the first and takes all that lives
//! shortly, too. Both are full at the peak. Together they come back after the product of their
//! rounds, which no planner would find; each alone is small. Of the second, what is alive at its peak
//! is planned first, some dozens of items at which the exact search may try its strength.

use std::cmp::Reverse;
use std::ops::ControlFlow;

use super::stretch::{CopyOf, Pattern};
use crate::firstfit::{self, Order, first_fit};
use crate::instance::{Instance, Item};
use crate::planner::Limit;
use crate::portfolio::{Budget, Progress, schedule, solve_among};
use crate::problem::{Buffer, Problem};

/// Attempts at the core of a second ring, and nodes of the exact search.
const CORE: Budget = Budget { attempts: 100, threads: 1, nodes: 10_000 };
/// Items of a core at most.
const CORE_MAX: usize = 500;

/// Where each copy of a pattern's items lies.
#[derive(Debug)]
pub(super) struct Rings {
    /// One ring, or two, one upon the other.
    rings: Vec<Ring>,
    /// For each item of the pattern its ring, and its place among those of a round there.
    places: Vec<(usize, usize)>,
    /// Units that all rings take.
    pub(super) height: u64,
}

/// Copies of some items of a pattern, as many rounds of them as come before the first place is taken
/// again.
#[derive(Debug)]
struct Ring {
    /// The unit at which it begins.
    base: u64,
    /// Items of a round.
    count: usize,
    /// Above the base, round by round.
    offsets: Vec<u64>,
    /// Units.
    height: u64,
}

impl Rings {
    /// Lays a pattern out in `enough` units, or in as few as can be. No more than `tries` attempts
    /// are made at a ring.
    pub(super) fn solve(
        pattern: &Pattern,
        (enough, tries): (u64, u32),
        scratch: &mut firstfit::Scratch,
    ) -> Rings {
        let all = Rounds::new(pattern, |_| true, pattern.rounds());
        let goal = enough.max(all.peak());
        let ring = all.plan(goal, tries);
        if ring.height > goal
            && let Some(split) = Rings::split(pattern, (goal, tries), scratch)
        {
            return split;
        }
        let places = (0..pattern.items.len()).map(|place| (0, place)).collect();
        Rings { height: ring.height, rings: vec![ring], places }
    }

    /// Lays a pattern out in `goal` units with two rings, if that is possible.
    fn split(
        pattern: &Pattern,
        (goal, tries): (u64, u32),
        scratch: &mut firstfit::Scratch,
    ) -> Option<Rings> {
        let is_second = divide(pattern, goal)?;
        let first = Rounds::new(pattern, |item| !is_second[item], pattern.rounds());
        let second = Rounds::new(pattern, |item| is_second[item], pattern.rounds() + 1);
        let first = first.plan(first.peak(), tries);
        let second = second.plan_around_core(goal.checked_sub(first.height)?, scratch)?;

        let mut counts = [0, 0];
        let places = is_second.iter().map(|&is_second| {
            let count = &mut counts[usize::from(is_second)];
            *count += 1;
            (usize::from(is_second), *count - 1)
        });
        let places = places.collect();
        let height = first.height + second.height;
        let second = Ring { base: first.height, ..second };
        Some(Rings { rings: vec![first, second], places, height })
    }

    /// The first unit of a copy.
    pub(super) fn offset(&self, copy: CopyOf) -> u64 {
        let (ring, place) = self.places[copy.item];
        let Ring { base, count, offsets, .. } = &self.rings[ring];
        let rounds = (offsets.len() / count) as i64;
        base + offsets[copy.period.rem_euclid(rounds) as usize * count + place]
    }
}

/// Which items of a pattern go to the second ring: the short-lived ones, and of the long-lived ones
/// so many units as are idle at a peak of `goal` units. `None` if these cannot be had to the unit.
///
/// The first to die comes first, for it makes room for the peak; then the largest that fit, so that
/// there are few.
fn divide(pattern: &Pattern, goal: u64) -> Option<Vec<bool>> {
    let items = &pattern.items;
    let mut is_second: Vec<bool> = items.iter().map(|item| item.life() < pattern.step).collect();
    let mut long: Vec<usize> = (0..items.len()).filter(|&item| !is_second[item]).collect();
    let of_a_round: u64 = long.iter().map(|&item| items[item].size).sum();
    let mut idle = goal.checked_sub(of_a_round.checked_mul(u64::from(pattern.rounds()))?)?;
    if idle == 0 || idle >= of_a_round {
        return None;
    }
    long.sort_by_key(|&item| items[item].life());
    long[1..].sort_by_key(|&item| (Reverse(items[item].size), items[item].life()));
    for item in long {
        if items[item].size <= idle {
            idle -= items[item].size;
            is_second[item] = true;
        }
    }
    (idle == 0).then_some(is_second)
}

/// A ring before it is planned: so many rounds of a pattern's items.
struct Rounds {
    instance: Instance,
    /// Items of a round.
    count: usize,
}

impl Rounds {
    fn new(pattern: &Pattern, is_member: impl Fn(usize) -> bool, rounds: u32) -> Rounds {
        let members = || (0..).zip(&pattern.items).filter(|(item, _)| is_member(*item));
        let items = (0..rounds).flat_map(|round| {
            let by = round * pattern.step;
            members().map(move |(_, item)| Item {
                lower: item.lower + by,
                upper: item.upper + by,
                size: item.size,
            })
        });
        let instance = Instance::from_items(items.collect(), rounds * pattern.step);
        Rounds { instance, count: members().count() }
    }

    /// The most units alive at once.
    fn peak(&self) -> u64 {
        self.instance.loads().into_iter().max().unwrap_or(0)
    }

    /// Some of the items as a planning problem.
    fn problem(&self, is_member: impl Fn(&Item) -> bool) -> Problem {
        let members = self.instance.items.iter().filter(|item| is_member(item));
        let buffers =
            members.map(|&Item { lower, upper, size }| Buffer { lower, upper, size }).collect();
        Problem { buffers, period: self.instance.sections, alignment: 1 }
    }

    /// Plans the ring, until it is as low as `goal`.
    fn plan(&self, goal: u64, tries: u32) -> Ring {
        let problem = self.problem(|_| true);
        let (offsets, height) = solve_until(&problem, Budget::attempts(tries), goal);
        Ring { base: 0, count: self.count, offsets, height }
    }

    /// Plans the ring no higher than `goal`: what is alive at the peaks, and then the rest around it.
    fn plan_around_core(&self, goal: u64, scratch: &mut firstfit::Scratch) -> Option<Ring> {
        let loads = self.instance.loads();
        let peak = loads.iter().copied().max()?;
        // For each section, how many before it are peaks.
        let mut peaks = vec![0u32; loads.len() + 1];
        for (section, load) in loads.iter().enumerate() {
            peaks[section + 1] = peaks[section] + u32::from(*load == peak);
        }
        let is_core = |item: &Item| {
            let pieces = self.instance.pieces(item);
            pieces.iter().any(|&(from, to)| peaks[to as usize] > peaks[from as usize])
        };
        let core = self.problem(is_core);
        if core.buffers.len() > CORE_MAX || peak > goal {
            return None;
        }
        let (offsets, height) = solve_until(&core, CORE, goal);
        if height > goal {
            return None;
        }
        let mut offsets_of_core = offsets.into_iter();
        let items = self.instance.items.iter();
        let mut layout: Vec<u64> = items
            .map(|item| if is_core(item) { offsets_of_core.next().unwrap_or(0) } else { 0 })
            .collect();
        let limit = Limit::below(goal.saturating_add(1));
        let is_placed = |_: usize, item: &Item| is_core(item);
        let given = (height, limit);
        let height =
            first_fit(&self.instance, Order::Area, is_placed, given, scratch, &mut layout)?;
        Some(Ring { base: 0, count: self.count, offsets: layout, height })
    }
}

/// The offsets and the height of the lowest solution within the budget, or of the first one as low as
/// `goal`. In units, for that is what the problem counts in.
fn solve_until(problem: &Problem, budget: Budget, goal: u64) -> (Vec<u64>, u64) {
    let until = |now: Progress| {
        if now.height <= goal { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let outcome = solve_among(problem, budget, schedule(), until);
    let solution = outcome.expect("items of an instance are a problem with a meaning").solution;
    (solution.offsets, solution.height)
}
