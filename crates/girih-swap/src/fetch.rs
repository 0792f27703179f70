//! When what goes comes back: early enough for its copy, as late as that allows, and only where there is room until
//! its use.

use crate::links::Links;
use crate::room::Room;
use crate::settle::{Item, Items};
use crate::step::Step;

/// What goes, with what does not depend on when it has gone.
pub(crate) struct Fetches<'a> {
    step: &'a Step,
    /// In order of their `after`.
    gaps: &'a [u32],
    /// The gaps by their use, as indices into them.
    order: Vec<u32>,
    /// For each gap, the last operator before which its copy in can be queued so that all are in time.
    latest: Vec<u32>,
}

impl<'a> Fetches<'a> {
    /// `starts` are those of the operators if nothing waits; `by_use` are all gaps of the step in order of their
    /// `before`.
    pub(crate) fn new(
        step: &'a Step,
        links: &Links,
        gaps: &'a [u32],
        by_use: &[u32],
        starts: &[f64],
    ) -> Fetches<'a> {
        let mut place = vec![u32::MAX; step.gaps.len()];
        (0..).zip(gaps).for_each(|(at, &gap)| place[gap as usize] = at);
        let order = by_use.iter().map(|&gap| place[gap as usize]).filter(|&at| at != u32::MAX);
        let order: Vec<u32> = order.collect();
        let latest = latest(step, links, gaps, &order, starts);
        Fetches { step, gaps, order, latest }
    }

    /// When the bytes of each gap are taken again, in the order in which they are. `freed[k]`: the first operator before
    /// which the copy out of `gaps[k]` is likely to have ended.
    pub(crate) fn within(&self, budget: u64, freed: &[u32]) -> Items {
        let Fetches { step, gaps, order, latest } = self;
        let gap = |at: usize| step.gaps[gaps[at] as usize];
        let mut held: Vec<i64> = step.load.iter().map(|&load| load as i64).collect();
        let mut change = vec![0i64; step.ops.len() + 1];
        for (at, &freed) in freed.iter().enumerate() {
            if freed < gap(at).before {
                change[freed as usize] -= step.bytes(gaps[at]) as i64;
                change[gap(at).before as usize] += step.bytes(gaps[at]) as i64;
            }
        }
        let mut sum = 0;
        for (held, change) in held.iter_mut().zip(&change) {
            sum += change;
            *held += sum;
        }
        let mut room = Room::new(held);
        let mut items = vec![Item { gap: 0, fetch: 0 }; gaps.len()];
        let mut earliest = 0;
        for &at in order {
            let at = at as usize;
            let (gap, bytes) = (gap(at), step.bytes(gaps[at]) as i64);
            // From there on it has room until it is used; its own bytes are counted as gone up to there.
            let from = earliest.max(freed[at]).max(gap.after + 1).max(latest[at]);
            let full = room.last_above(from, gap.before, budget as i64 - bytes);
            let fetch = full.map_or(from, |op| op + 1).min(gap.before);
            room.add(fetch.max(freed[at]), gap.before, bytes);
            earliest = fetch;
            items[at] = Item { gap: gaps[at], fetch };
        }
        Items { list: items, order: order.clone() }
    }
}

/// The last operator before which each copy in can be queued so that all are in time, one after another.
fn latest(step: &Step, links: &Links, gaps: &[u32], order: &[u32], starts: &[f64]) -> Vec<u32> {
    let (_, rate) = links.rates(true, true);
    let mut latest = vec![0; gaps.len()];
    let mut free_us = f64::INFINITY;
    let mut op = starts.len().saturating_sub(2);
    for &at in order.iter().rev() {
        let at = at as usize;
        let due_us = starts[step.gaps[gaps[at] as usize].before as usize].min(free_us);
        free_us = due_us - step.bytes(gaps[at]) as f64 / rate;
        // It only becomes earlier.
        while op > 0 && starts[op] > free_us {
            op -= 1;
        }
        latest[at] = op as u32;
    }
    latest
}

/// For each gap, the first operator before which its copy out has ended, if the link is alone, operators begin at `starts`,
/// and it goes so many times as fast as `hastes` of it says.
pub(crate) fn freed(
    step: &Step,
    links: &Links,
    gaps: &[u32],
    hastes: &[f64],
    starts: &[f64],
) -> Vec<u32> {
    let mut link_us = 0.0f64;
    let mut op = 0;
    let freed = gaps.iter().map(|&index| {
        let begin = starts[step.gaps[index as usize].after as usize + 1];
        let rate = links.outward * hastes[index as usize];
        link_us = link_us.max(begin) + step.bytes(index) as f64 / rate;
        // It only becomes later.
        while starts.get(op).is_some_and(|&start| start < link_us) {
            op += 1;
        }
        op as u32
    });
    freed.collect()
}
