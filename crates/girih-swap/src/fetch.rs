//! When what goes comes back: early enough for its copy, as late as that allows, and only where there is room until
//! its use.

use crate::links::Links;
use crate::room::Room;
use crate::settle::Item;
use crate::step::Step;

/// A copy in is begun so much earlier than it would have to be if it took what its bytes say.
const MARGIN: f64 = 1.25;

/// For each gap, when its bytes are taken again. `freed[k]`: the first operator before which the copy out of
/// `gaps[k]` is likely to have ended. `starts` are those of the operators if nothing waits; `gaps` are in order of their
/// `after`.
pub(crate) fn fetches(
    step: &Step,
    links: &Links,
    budget: u64,
    gaps: &[u32],
    freed: &[u32],
    starts: &[f64],
) -> Vec<Item> {
    let gap = |at: usize| step.gaps[gaps[at] as usize];
    let mut change = vec![0i64; step.ops.len() + 1];
    for (at, &freed) in freed.iter().enumerate() {
        if freed < gap(at).before {
            change[freed as usize] -= step.bytes(gaps[at]) as i64;
            change[gap(at).before as usize] += step.bytes(gaps[at]) as i64;
        }
    }
    let mut sum = 0;
    let held = step.load.iter().zip(&change).map(|(&load, change)| {
        sum += change;
        load as i64 + sum
    });
    let mut room = Room::new(&held.collect::<Vec<_>>());
    let mut order: Vec<usize> = (0..gaps.len()).collect();
    order.sort_by_key(|&at| (gap(at).before, gaps[at]));
    let latest = latest(step, links, gaps, &order, starts);
    let mut items = vec![Item { gap: 0, fetch: 0 }; gaps.len()];
    let mut earliest = 0;
    for &at in &order {
        let (gap, bytes) = (gap(at), step.bytes(gaps[at]) as i64);
        // From there on it has room until it is used; its own bytes are counted as gone up to there.
        let full = room.last_above(gap.before, budget as i64 - bytes).map_or(0, |op| op + 1);
        let from = full.max(earliest).max(freed[at]).max(gap.after + 1);
        let fetch = from.max(latest[at]).min(gap.before);
        room.add(fetch.max(freed[at]), gap.before, bytes);
        earliest = fetch;
        items[at] = Item { gap: gaps[at], fetch };
    }
    items
}

/// The last operator before which each copy in can be queued so that all are in time, one after another.
fn latest(step: &Step, links: &Links, gaps: &[u32], order: &[usize], starts: &[f64]) -> Vec<u32> {
    let (_, rate) = links.rates(true, true);
    let mut latest = vec![0; gaps.len()];
    let mut free_us = f64::INFINITY;
    for &at in order.iter().rev() {
        let due_us = starts[step.gaps[gaps[at] as usize].before as usize].min(free_us);
        free_us = due_us - MARGIN * step.bytes(gaps[at]) as f64 / rate;
        latest[at] = if free_us <= 0.0 { 0 } else { Step::op_at(starts, free_us) };
    }
    latest
}

/// For each gap, the first operator before which its copy out has ended, if the link is alone and nothing waits.
pub(crate) fn freed(step: &Step, links: &Links, gaps: &[u32], starts: &[f64]) -> Vec<u32> {
    let mut link_us = 0.0f64;
    let freed = gaps.iter().map(|&index| {
        let begin = starts[step.gaps[index as usize].after as usize + 1];
        link_us = link_us.max(begin) + step.bytes(index) as f64 / links.outward;
        starts.partition_point(|&start| start < link_us) as u32
    });
    freed.collect()
}
