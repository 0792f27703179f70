//! Folding: what repeats is planned once.
//!
//! A step of many microbatches is a warm-up, a long middle in which one microbatch comes in and one
//! goes out, over and over, and a cool-down. The middle follows a pattern of one period
//! ([`stretch`]). A layout of the pattern that goes on for ever ([`rings`]) is a layout of the
//! middle, however long it is, and it says where all lies that is alive at the middle's two ends:
//!
//! ```text
//!               warm-up   |  the pattern, as often as it comes  | cool-down
//!  units            ######|#####################################|######
//!                 ########|#####################################|########      what crosses an end
//!               ###  #####|#####################################|####  ####    has its place from
//!                 # ## ###|#####################################|### ## #      the pattern
//!                         '------- taken out: one moment -------'
//! ```
//!
//! What is left is a short problem, in which the middle is a single moment and what crosses it lies
//! fixed; first fit puts the rest around it. What spans the middle without being a part of the
//! pattern lies at the bottom, below everything.
//!
//! That costs a linear look for repetitions, planning of what is short, and copying. And it finds
//! what the other planners miss: they must get every period right anew, and where each leaves the
//! next a little worse off, a layout that comes back exactly is not among what they try.
//!
//! Layers do not repeat in this sense, for their activations outlive them by a different time each.

mod repeat;
mod rings;
mod stretch;

use self::repeat::Repeat;
use self::rings::Rings;
use self::stretch::Stretch;
use crate::check::{Violation, check};
use crate::firstfit::{self, Order, first_fit};
use crate::instance::{Instance, Item};
use crate::planner::Limit;
use crate::problem::{Buffer, Problem, Solution};

/// What folding needs beside the items; kept between attempts so that it is allocated once.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    first_fit: firstfit::Scratch,
}

/// At least one of so many items must lie in the middle, or folding is not worth its time.
const WORTH: usize = 2;
/// Attempts at a ring at most; fewer where they would cost more than one at the whole.
const TRIES_MAX: usize = 8;
/// Stands for an offset that is still to be found.
const OPEN: u64 = u64::MAX;

/// Places all items, writes their offsets to `layout` and returns the top that they reach; `None` if
/// too little repeats, or as soon as they reach `limit`.
pub(crate) fn fold(
    instance: &Instance,
    limit: Limit<'_>,
    scratch: &mut Scratch,
    layout: &mut [u64],
) -> Option<u64> {
    let items = &instance.items;
    let stretch = Stretch::of(instance, &Repeat::longest(instance)?)?;
    let ring = stretch.pattern.items.len() * stretch.pattern.rounds() as usize;
    if stretch.items.len() * WORTH < items.len() || ring > items.len() {
        return None;
    }
    let rest = Rest::new(instance, &stretch);
    layout.fill(OPEN);
    let mut ground = 0;
    for &index in &stretch.spanning {
        layout[index] = ground;
        ground += items[index].size;
    }
    let peak = rest.instance.loads().into_iter().max().unwrap_or(0);
    let tries = (items.len() / ring).clamp(1, TRIES_MAX) as u32;
    let enough = (peak.saturating_sub(ground), tries);
    let rings = Rings::solve(&stretch.pattern, enough, &mut scratch.first_fit);
    for &(index, copy) in &stretch.begun {
        layout[index] = ground + rings.offset(copy);
    }
    for index in stretch.items.clone() {
        layout[index] = ground + rings.offset(stretch.copy(index));
    }
    rest.place((ground + rings.height, peak), limit, &mut scratch.first_fit, layout)?;
    // A layout of the pattern may be higher than its part that the problem has.
    let top = items.iter().zip(&*layout).map(|(item, offset)| offset + item.size).max()?;
    debug_assert_eq!(verdict(instance, layout, top), Ok(()), "what was unfolded is right");
    Some(top)
}

/// What the checker says of a layout.
fn verdict(instance: &Instance, layout: &[u64], height: u64) -> Result<(), Violation> {
    let items = instance.items.iter();
    let buffers = items.map(|&Item { lower, upper, size }| Buffer { lower, upper, size }).collect();
    let problem = Problem { buffers, period: instance.sections, alignment: 1 };
    check(&problem, &Solution { offsets: layout.to_vec(), height, planner: "folded" })
}

/// All that is not born and gone within the stretch, with the stretch taken out.
struct Rest {
    instance: Instance,
    /// The index of each of its items in the whole.
    items: Vec<usize>,
}

impl Rest {
    fn new(whole: &Instance, stretch: &Stretch) -> Rest {
        let (start, end) = (stretch.sections.start, stretch.sections.end);
        // All of the stretch is the moment at which it begins.
        let at = |section: u32| {
            if section <= start { section } else { start.max(section.saturating_sub(end - start)) }
        };
        let sections = at(whole.sections);
        let mut rest = (Vec::new(), Vec::new());
        for (index, item) in whole.items.iter().enumerate() {
            let is_inside = stretch.items.contains(&index);
            if is_inside && item.upper <= end {
                continue;
            }
            let lower = at(item.lower);
            let upper = match item.upper.checked_sub(whole.sections) {
                Some(around) if whole.wraps(item) => sections + at(around),
                _ => at(item.upper),
            };
            rest.0.push(Item { lower, upper, size: item.size });
            rest.1.push(index);
        }
        Rest { instance: Instance::from_items(rest.0, sections), items: rest.1 }
    }

    /// Places what is open in `layout` around what is not, which reaches up to `top`; the lowest top
    /// of all that some order gives. No layout of the rest is lower than its `peak`.
    fn place(
        &self,
        (top, peak): (u64, u64),
        limit: Limit<'_>,
        scratch: &mut firstfit::Scratch,
        layout: &mut [u64],
    ) -> Option<u64> {
        let fixed: Vec<u64> = self.items.iter().map(|&index| layout[index]).collect();
        let mut best: Option<(u64, Vec<u64>)> = None;
        for order in [Order::Area, Order::Size, Order::Life] {
            let mut own = fixed.clone();
            let below = best.as_ref().map_or(limit.top(), |best| best.0.min(limit.top()));
            let given = (top, Limit::below(below));
            let is_placed = |index: usize, _: &Item| fixed[index] != OPEN;
            let reached = first_fit(&self.instance, order, is_placed, given, scratch, &mut own);
            let Some(reached) = reached else { continue };
            best = Some((reached, own));
            if reached == top.max(peak) {
                break;
            }
        }
        let (reached, own) = best?;
        for (&index, offset) in self.items.iter().zip(own) {
            layout[index] = offset;
        }
        Some(reached)
    }
}
