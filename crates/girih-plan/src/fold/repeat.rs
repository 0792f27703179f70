//! Where items come again and again, in the order of birth.
//!
//! Two items are *alike* if they have the same size and life, and come as many sections after the
//! item before them. From a probe on, the Z-algorithm says for each distance how many items in a row
//! are like those so much earlier, in linear time and by comparing each item twice at most:
//!
//! ```text
//!  items      w  w  w | a b c  a b c  a b c  a b c | x  y  z
//!                           ^ probe
//!  distance 3               '--- 7 alike ---'           the farthest reach: period 3
//!             before it:  ^ alike too                   and so on to the left
//! ```
//!
//! Lives count sections, and in a pipeline they differ from layer to layer: what repeats exactly is
//! the microbatch, and not its layers.

use std::ops::Range;

use crate::instance::{Instance, Item};

/// Items that repeat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Repeat {
    /// At least two periods. Each item but the first ones is like the one a period before it.
    pub(super) items: Range<usize>,
    /// Items until they come again.
    pub(super) period: usize,
    /// Sections from an item to its like, at least 1.
    pub(super) step: u32,
}

impl Repeat {
    /// The repetition with the most items of those at the middle and at the quarters: what repeats
    /// in so few places that it has none of them is not worth folding. Linear.
    pub(super) fn longest(instance: &Instance) -> Option<Repeat> {
        let items = &instance.items;
        let quarter = items.len() / 4;
        // The middle comes first, and mostly it settles the matter.
        let mut best = Repeat::around(items, 2 * quarter);
        for probe in [quarter, 3 * quarter] {
            if best.as_ref().is_some_and(|best| best.items.contains(&probe)) {
                continue;
            }
            let found = Repeat::around(items, probe);
            let length = |repeat: &Option<Repeat>| repeat.as_ref().map_or(0, |it| it.items.len());
            if length(&found) > length(&best) {
                best = found;
            }
        }
        best
    }

    /// The repetition that goes on longest from `probe`, extended to what comes before it. Of equals
    /// that with the shortest period.
    fn around(items: &[Item], probe: usize) -> Option<Repeat> {
        if probe == 0 {
            return None;
        }
        let (mut reach, mut period) = (0, 0);
        for_alike(items, probe, |distance, count| {
            if count >= distance && distance + count > reach {
                (reach, period) = (distance + count, distance);
            }
        });
        if period == 0 {
            return None;
        }
        let before = (1..probe).rev().take_while(|&item| are_alike(items, item, item + period));
        let step = items[probe + period].lower - items[probe].lower;
        let repeat = Repeat { items: probe - before.count()..probe + reach, period, step };
        (step > 0).then_some(repeat)
    }
}

/// Whether two items are alike. Neither may be the first of all.
fn are_alike(items: &[Item], a: usize, b: usize) -> bool {
    let (x, y) = (&items[a], &items[b]);
    let pause = |index: usize| items[index].lower - items[index - 1].lower;
    x.size == y.size && x.life() == y.life() && pause(a) == pause(b)
}

/// Tells `visit` for each distance, up to half of what there is, how many items from `probe` on are
/// followed at that distance by their like.
fn for_alike(items: &[Item], probe: usize, mut visit: impl FnMut(usize, usize)) {
    let length = items.len() - probe;
    let mut counts = vec![0u32; length / 2 + 1];
    // The stretch that reaches farthest: the items of [from, to) are like the first ones.
    let (mut from, mut to) = (0, 0);
    for distance in 1..=length / 2 {
        let known =
            if distance < to { (counts[distance - from] as usize).min(to - distance) } else { 0 };
        let more = (known..length - distance)
            .take_while(|&at| are_alike(items, probe + at, probe + distance + at));
        // What is known and ends before the stretch does goes no farther.
        let count = if distance + known < to { known } else { known + more.count() };
        if distance + count > to {
            (from, to) = (distance, distance + count);
        }
        counts[distance] = count as u32;
        visit(distance, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One item a section, of one section and of these sizes.
    fn instance(sizes: &[u64]) -> Instance {
        let item = |(lower, &size): (u32, &u64)| Item { lower, upper: lower + 1, size };
        Instance::from_items((0..).zip(sizes).map(item).collect(), sizes.len() as u32)
    }

    fn found(text: &str) -> Option<(Range<usize>, usize)> {
        let sizes: Vec<u64> = text.bytes().map(u64::from).collect();
        let repeat = Repeat::longest(&instance(&sizes))?;
        assert_eq!(repeat.step as usize, repeat.period, "one item a section");
        Some((repeat.items, repeat.period))
    }

    #[test]
    fn what_repeats_is_found_with_its_shortest_period_and_both_its_ends() {
        assert_eq!(found("xyzabcabcabcabcabcvw"), Some((3..18, 3)));
        assert_eq!(found("xyzaabaacaabaacaabaacaabaacvw"), Some((3..27, 6)));
        assert_eq!(found("abcdefghijklmnopqrst"), None);
        assert_eq!(found(""), None);
    }

    #[test]
    fn a_part_that_repeats_within_the_period_is_not_taken_for_it() {
        // The middle lies among the b's.
        assert_eq!(found(&"acbbbbbbbd".repeat(5)), Some((1..50, 10)));
    }

    #[test]
    fn of_two_repetitions_the_longer_one_is_taken() {
        assert_eq!(found("abcabcabcabcabcxyzuvxyzuvxyzuv"), Some((1..15, 3)));
    }

    #[test]
    fn items_that_come_at_other_intervals_are_not_alike() {
        let item = |(lower, size): (u32, u64)| Item { lower, upper: lower + 1, size };
        let births = [0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 15];
        let sizes = (0..births.len() as u64).map(|index| index % 2);
        let items: Vec<Item> = births.into_iter().zip(sizes).map(item).collect();
        let repeat = Repeat::longest(&Instance::from_items(items, 16));
        // Sizes repeat every two, births every three.
        assert_eq!(repeat.map(|it| (it.items, it.period, it.step)), None);
    }

    #[test]
    fn the_counts_are_those_of_trial() {
        arbtest::arbtest(|u| {
            let sizes: Vec<u64> = (0..u.int_in_range(2..=40)?)
                .map(|_| u.int_in_range(0..=1))
                .collect::<Result<_, _>>()?;
            let items = instance(&sizes).items;
            let probe = u.int_in_range(1..=items.len() - 1)?;
            let mut told = Vec::new();
            for_alike(&items, probe, |distance, count| told.push((distance, count)));
            let tried = (1..=(items.len() - probe) / 2).map(|distance| {
                let alike = |&at: &usize| are_alike(&items, probe + at, probe + distance + at);
                (distance, (0..items.len() - probe - distance).take_while(alike).count())
            });
            assert_eq!(told, tried.collect::<Vec<_>>(), "{sizes:?} from {probe}");
            Ok(())
        });
    }
}
