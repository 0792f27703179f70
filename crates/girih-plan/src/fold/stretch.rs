//! The stretch of time in which a pattern repeats, and what of the rest takes part.
//!
//! A [`Pattern`] is one period, repeated for ever. A problem follows it in a *stretch* if all that is
//! born there is born as the pattern has it and dies no later, and if what is alive when it begins
//! has been left by the periods before. What is missing or goes earlier leaves its units idle: a layout
//! of the pattern is one of each part of it.
//!
//! ```text
//!           warm-up | stretch                    | cool-down
//!  #0  -------------|---                         |
//!  #1       --------|--------                    |            left by periods before: by death
//!  #2               |-------------               |
//!  #3               |     -------------          |            born as the pattern has it
//!  #4               |          ------------------|-----
//!  #5               |               -------------|---         dies sooner: fits as well
//!      -------------|----------------------------|-------     spans the stretch, apart from it
//! ```

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::repeat::Repeat;
use crate::instance::{Instance, Item};

/// What repeats, one period of it.
#[derive(Debug)]
pub(super) struct Pattern {
    /// In the order of birth, from section 0 on. Lives may be longer than a period.
    pub(super) items: Vec<Item>,
    /// Sections of a period.
    pub(super) step: u32,
}

/// A piece of the pattern, repeated for ever: which item of which period. Period 0 is the first of
/// the stretch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct CopyOf {
    pub(super) item: usize,
    pub(super) period: i64,
}

/// Where a problem follows a pattern.
#[derive(Debug)]
pub(super) struct Stretch {
    pub(super) pattern: Pattern,
    /// What is born in it.
    pub(super) items: Range<usize>,
    /// From the section of its first birth to that of the first birth that the pattern has not.
    pub(super) sections: Range<u32>,
    /// What is alive when it begins and is a copy of the pattern's items. By index.
    pub(super) begun: Vec<(usize, CopyOf)>,
    /// What is alive all the time and no part of the pattern. By index.
    pub(super) spanning: Vec<usize>,
}

impl Pattern {
    /// The most periods, begun or not, in which one of its items is alive.
    pub(super) fn rounds(&self) -> u32 {
        self.items.iter().map(Item::life).max().unwrap_or(1).div_ceil(self.step)
    }

    /// The first period of a repetition that begins at `item`, as a pattern.
    fn at(items: &[Item], item: usize, repeat: &Repeat) -> Pattern {
        let start = items[item].lower;
        let shifted = |it: &Item| Item { lower: it.lower - start, upper: it.upper - start, ..*it };
        let items = items[item..item + repeat.period].iter().map(shifted).collect();
        Pattern { items, step: repeat.step }
    }

    /// The section before which the fewest units are alive that were so before: the quietest moment
    /// of a period.
    fn quietest(&self) -> u32 {
        let step = self.step as usize;
        // Changes of the units across the moment before each section, of all periods together.
        let mut changes = vec![0i128; step + 1];
        for item in &self.items {
            let (size, first) = (i128::from(item.size), (item.lower as usize + 1) % step);
            let crossed = item.life() as usize - 1;
            changes[0] += size * (crossed / step) as i128;
            let end = first + crossed % step;
            changes[first] += size;
            changes[end.min(step)] -= size;
            if end > step {
                changes[0] += size;
                changes[end - step] -= size;
            }
        }
        let crossing = changes[..step].iter().scan(0, |sum, change| {
            *sum += change;
            Some(*sum)
        });
        (0u32..).zip(crossing).min_by_key(|&(at, units)| (units, at)).map_or(0, |(at, _)| at)
    }

    /// The copy of which `item` may be one that is born in a stretch that begins at `start` with the
    /// item `first`.
    fn copy(&self, (start, first): (u32, usize), index: usize, item: &Item) -> Option<CopyOf> {
        let (period, at) = ((index - first) / self.items.len(), (index - first) % self.items.len());
        let own = &self.items[at];
        let birth = u64::from(start) + period as u64 * u64::from(self.step) + u64::from(own.lower);
        let fits =
            item.size == own.size && u64::from(item.lower) == birth && item.life() <= own.life();
        fits.then_some(CopyOf { item: at, period: period as i64 })
    }

    /// What of the periods before is still alive when a stretch begins, by size and by the sections
    /// that are left of its life.
    fn left_over(&self) -> FxHashMap<(u64, u32), Vec<CopyOf>> {
        let mut left: FxHashMap<(u64, u32), Vec<CopyOf>> = FxHashMap::default();
        for (index, item) in self.items.iter().enumerate() {
            for period in 1..=item.upper / self.step {
                let life = item.upper - period * self.step;
                if life > 0 {
                    let copy = CopyOf { item: index, period: -i64::from(period) };
                    left.entry((item.size, life)).or_default().push(copy);
                }
            }
        }
        left
    }
}

impl Stretch {
    /// Cuts so many periods at most are tried as a beginning: after that what began before the
    /// repetition should be gone.
    const CUTS: u32 = 64;

    /// The stretch in which the problem follows what `repeat` repeats, if there is one of two
    /// periods or more.
    pub(super) fn of(instance: &Instance, repeat: &Repeat) -> Option<Stretch> {
        let items = &instance.items;
        let run = &repeat.items;
        let start = items[run.start].lower;
        let quietest = start + Pattern::at(items, run.start, repeat).quietest();
        // What was born before the repetition and is alive in it, with its end. What wraps is born
        // before everything, too.
        let earlier =
            (0..run.start).map(|index| (index, items[index].upper.min(instance.sections)));
        let wrapping = (0..items.len()).filter(|&index| instance.wraps(&items[index]));
        let around = wrapping.map(|index| (index, items[index].upper - instance.sections));
        let older: Vec<(usize, u32)> =
            earlier.chain(around).filter(|(_, end)| *end > start).collect();
        (0..Stretch::CUTS)
            .map_while(|periods| {
                let start = quietest + periods * repeat.step;
                let first = items.partition_point(|item| item.lower < start);
                (first + 2 * repeat.period <= run.end).then_some((start, first))
            })
            .filter(|(_, first)| *first >= run.start)
            .find_map(|cut| Stretch::from(instance, repeat, &older, cut))
    }

    /// The stretch that begins with the item `first` in the section `start`.
    fn from(
        instance: &Instance,
        repeat: &Repeat,
        older: &[(usize, u32)],
        (start, first): (u32, usize),
    ) -> Option<Stretch> {
        let items = &instance.items;
        if items[first].lower != start {
            return None;
        }
        let pattern = Pattern::at(items, first, repeat);
        let follows = |index: &usize| {
            let item = &items[*index];
            !instance.wraps(item) && pattern.copy((start, first), *index, item).is_some()
        };
        let end = first + (first..items.len()).take_while(follows).count();
        let until = items.get(end).map_or(instance.sections, |item| item.lower);

        let mut left = pattern.left_over();
        let (mut begun, mut spanning) = (Vec::new(), Vec::new());
        let younger = (repeat.items.start..first)
            .map(|index| (index, items[index].upper.min(instance.sections)));
        for (index, end) in older.iter().copied().chain(younger) {
            if end <= start {
                continue;
            }
            let item = &items[index];
            let copies = left.get_mut(&(item.size, end - start)).filter(|_| !instance.wraps(item));
            match copies.and_then(Vec::pop) {
                Some(copy) => begun.push((index, copy)),
                None if end >= until => spanning.push(index),
                None => return None,
            }
        }
        begun.sort_unstable();
        spanning.sort_unstable();
        spanning.dedup();
        Some(Stretch { pattern, items: first..end, sections: start..until, begun, spanning })
    }

    /// The copy that an item born in the stretch is.
    pub(super) fn copy(&self, index: usize) -> CopyOf {
        let (place, period) = (index - self.items.start, self.pattern.items.len());
        CopyOf { item: place % period, period: (place / period) as i64 }
    }
}
