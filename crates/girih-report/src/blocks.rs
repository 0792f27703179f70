//! Every block from its birth to its death, small enough to stand in a page.
//!
//! Training repeats itself, and so do its blocks: the same address, size and stack come back step
//! after step, in the same order, for as long. So a block is a *slot* (what it is) and a *life* (when
//! it was), and of a life only that is written in which it differs from what was to be expected:
//!
//! ```text
//!  slot      the one that followed the last block's slot the last time    -> 0, else which
//!  birth     as many events after the last block's as the last time       -> 0, else the difference
//!  duration  that of the slot's last life                                 -> 0, else the difference
//! ```
//!
//! What repeats is zeros, and zeros deflate to nothing. Of a recording that does not repeat and has
//! too many blocks, those are left out that were the fewest bytes for the shortest time: the page
//! knows from the sums ([`crate::series`]) how much is missing at any instant, and says so.

use girih_plan::granted;
use girih_trace::{Lifetime, Lifetimes, Tick};
use girih_why::Category;
use rustc_hash::FxHashMap;

use crate::column::{Column, deflated};
use crate::lanes::Lanes;

/// Stands for no slot.
const NONE: u32 = u32::MAX;
/// Attempts to keep to a budget: each aims a little lower.
const ATTEMPTS: usize = 4;

/// What a block is, whenever it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    /// Device address.
    pub address: u64,
    /// Bytes requested.
    pub size: u64,
    /// The stack that asked, as an index of [`girih_trace::Trace::stacks`]; `u32::MAX` without one.
    pub stack: u32,
    /// The stream.
    pub stream: u16,
    /// The pool.
    pub pool: u16,
    /// What it is for.
    pub category: Category,
}

/// The blocks of a page.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Blocks {
    /// What blocks are, in the order in which they first come.
    pub slots: Vec<Slot>,
    /// The requests that are in the page, as indices of the lifetimes, with their slots.
    pub kept: Vec<(u32, u32)>,
    /// How many of them are older than the recording; they come first.
    pub older: usize,
    /// Requests that are left out.
    pub left_out: usize,
    /// The bytes of those that are alive at once at the most.
    pub left_out_most: u64,
    /// The lives, and then the frees that waited.
    lives: Column,
}

impl Blocks {
    /// The blocks of a recording of so many events, in at most `budget` bytes once deflated, as far as
    /// that can be had with those that are alive after the events of `always`.
    pub fn of(
        lives: &Lifetimes,
        categories: &[Category],
        events: usize,
        always: &[Tick],
        budget: usize,
    ) -> Blocks {
        let mut blocks = Blocks::with(lives, categories, None);
        let mut areas: Option<Vec<u128>> = None;
        let mut share = 1.0;
        for _ in 0..ATTEMPTS {
            let bytes =
                deflated(blocks.lives.bytes()).len() + deflated(blocks.slot_guess().bytes()).len();
            if bytes <= budget {
                break;
            }
            share *= budget as f64 / bytes as f64 * 0.97;
            let areas = areas.get_or_insert_with(|| {
                lives.requests.iter().map(|life| area(life, events, always)).collect()
            });
            let keep = ((areas.len() as f64 * share) as usize).min(areas.len() - 1);
            let mut sorted = areas.clone();
            let (_, &mut threshold, _) = sorted.select_nth_unstable_by(keep, |a, b| b.cmp(a));
            let keeps = |index: usize| areas[index] > threshold || areas[index] == u128::MAX;
            blocks = Blocks::with(lives, categories, Some(&keeps));
        }
        blocks.left_out_most = blocks.most_left_out(lives, events);
        blocks
    }

    fn with(
        lives: &Lifetimes,
        categories: &[Category],
        keeps: Option<&dyn Fn(usize) -> bool>,
    ) -> Blocks {
        let mut blocks = Blocks::default();
        let mut ids: FxHashMap<Slot, u32> = FxHashMap::default();
        let mut writer = Writer::default();
        let mut waited = Column::default();
        let (mut deferred, mut last_deferred) = (0, 0);
        for (index, life) in lives.requests.iter().enumerate() {
            if keeps.is_some_and(|keeps| !keeps(index)) {
                blocks.left_out += 1;
                continue;
            }
            let slot = Slot {
                address: life.address,
                size: life.size,
                stack: life.stack.0,
                stream: life.stream.0,
                pool: life.pool.0,
                category: categories[index],
            };
            let fresh = blocks.slots.len() as u32;
            let id = *ids.entry(slot).or_insert_with(|| {
                blocks.slots.push(slot);
                fresh
            });
            writer.add(id, life);
            if life.is_deferred() {
                waited.push((blocks.kept.len() - last_deferred) as u64);
                waited.push(u64::from(life.free_requested.0.saturating_sub(life.birth.0)));
                last_deferred = blocks.kept.len();
                deferred += 1;
            }
            blocks.older += usize::from(index < lives.older);
            blocks.kept.push((index as u32, id));
        }
        blocks.lives = writer.column(blocks.kept.len(), blocks.older);
        blocks.lives.push(deferred);
        blocks.lives.append(&waited);
        blocks
    }

    /// About the bytes of the slots.
    fn slot_guess(&self) -> Column {
        let mut column = Column::default();
        for slot in &self.slots {
            column.push(slot.address >> 9 & 0xf_ffff);
            column.push(slot.size);
            column.push(u64::from(slot.stack));
        }
        column
    }

    fn most_left_out(&self, lives: &Lifetimes, events: usize) -> u64 {
        if self.left_out == 0 {
            return 0;
        }
        let mut change = vec![0_i64; events + 1];
        let mut add = |life: &Lifetime, sign: i64| {
            let size = sign * i64::try_from(life.size).unwrap_or(i64::MAX);
            change[life.birth.index()] = change[life.birth.index()].saturating_add(size);
            if life.death != Tick::NEVER {
                change[life.death.index()] = change[life.death.index()].saturating_sub(size);
            }
        };
        lives.requests.iter().for_each(|life| add(life, 1));
        self.kept.iter().for_each(|&(index, _)| add(&lives.requests[index as usize], -1));
        let (mut now, mut most) = (0_i64, 0);
        for change in change {
            now = now.saturating_add(change);
            most = most.max(now);
        }
        most as u64
    }

    /// The ranges of addresses of the slots.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.slots.iter().map(|slot| (slot.address, granted(slot.size)))
    }

    /// The slots, and then the lives. `stack_of` numbers the stacks of the page; 0 is none.
    pub(crate) fn column(&self, lanes: &Lanes, stack_of: impl Fn(u32) -> u32) -> Column {
        let mut column = Column::default();
        column.push(self.slots.len() as u64);
        let mut end = 0;
        for slot in &self.slots {
            let offset = lanes.offset(slot.address);
            column.push_change(end, offset);
            end = offset.saturating_add(granted(slot.size));
        }
        self.slots.iter().for_each(|slot| column.push(slot.size));
        self.slots.iter().for_each(|slot| column.push(u64::from(stack_of(slot.stack))));
        for slot in &self.slots {
            column.push(u64::from(slot.stream));
            column.push(u64::from(slot.pool));
            column.push(slot.category as u64);
        }
        column.append(&self.lives);
        column
    }

    /// Where each kept request lies in another layout, by the same expectation: where the slot's last
    /// life lay.
    pub(crate) fn layout_column(&self, lanes: &Lanes, addresses: &[Option<u64>]) -> Column {
        let mut last = vec![0_u64; self.slots.len()];
        let mut column = Column::default();
        for &(index, slot) in &self.kept {
            let address = addresses.get(index as usize).copied().flatten();
            let place = address.map_or(0, |address| lanes.offset(address).saturating_add(1));
            column.push_change(last[slot as usize], place);
            last[slot as usize] = place;
        }
        column
    }
}

/// How many bytes for how many events; more than any for those that are always kept.
fn area(life: &Lifetime, events: usize, always: &[Tick]) -> u128 {
    if always.iter().any(|&at| life.birth <= at && at < life.death) {
        return u128::MAX;
    }
    let death = (life.death.0).min(events as u32);
    u128::from(life.size) * u128::from(death.saturating_sub(life.birth.0))
}

/// Writes lives by what was to be expected of them.
#[derive(Default)]
struct Writer {
    /// Of each slot: the one that followed, the gap before it, and how long it lived.
    expected: Vec<(u32, u32, u64)>,
    last: Option<u32>,
    birth: u32,
    slots: Column,
    gaps: Column,
    durations: Column,
}

impl Writer {
    fn add(&mut self, slot: u32, life: &Lifetime) {
        let fresh = self.expected.len() as u32;
        if slot == fresh {
            self.expected.push((NONE, 1, 0));
        }
        let follows = self.last.map_or(NONE, |last| self.expected[last as usize].0);
        let guess = if follows == NONE { fresh } else { follows };
        self.slots.push(match slot {
            slot if slot == guess => 0,
            slot if slot == fresh => 1,
            slot => u64::from(slot) + 2,
        });
        if let Some(last) = self.last {
            self.expected[last as usize].0 = slot;
        }
        self.last = Some(slot);
        let gap = life.birth.0.saturating_sub(self.birth);
        self.birth = self.birth.max(life.birth.0);
        let duration = match life.death {
            Tick::NEVER => 0,
            death => u64::from(death.0.saturating_sub(life.birth.0)) + 1,
        };
        let expected = &mut self.expected[slot as usize];
        self.gaps.push_change(u64::from(expected.1), u64::from(gap));
        self.durations.push_change(expected.2, duration);
        (expected.1, expected.2) = (gap, duration);
    }

    fn column(self, count: usize, older: usize) -> Column {
        let mut column = Column::default();
        column.push(count as u64);
        column.push(older as u64);
        column.append(&self.slots);
        column.append(&self.gaps);
        column.append(&self.durations);
        column
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use girih_trace::generate::{Training, training};

    /// Reads a column as the page does.
    struct Reader<'a>(&'a [u8]);

    impl Reader<'_> {
        fn int(&mut self) -> u64 {
            let (mut value, mut shift) = (0, 0);
            loop {
                let (&byte, rest) = self.0.split_first().expect("it goes on");
                self.0 = rest;
                value |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 {
                    return value;
                }
            }
        }

        fn signed(&mut self) -> i64 {
            let value = self.int();
            if value % 2 == 1 { -((value as i64 + 1) / 2) } else { value as i64 / 2 }
        }
    }

    /// Slot, birth and death of every life, read back.
    fn lives_of(blocks: &Blocks) -> Vec<(u32, u32, u32)> {
        let mut reader = Reader(blocks.lives.bytes());
        let (count, older) = (reader.int() as usize, reader.int() as usize);
        assert_eq!((count, older), (blocks.kept.len(), blocks.older));
        let mut follower = vec![None; blocks.slots.len()];
        let (mut last, mut fresh) = (None, 0);
        let slots: Vec<u32> = (0..count)
            .map(|_| {
                let guess = last.and_then(|last: u32| follower[last as usize]).unwrap_or(fresh);
                let slot = match reader.int() {
                    0 => guess,
                    1 => fresh,
                    code => code as u32 - 2,
                };
                fresh += u32::from(slot == fresh);
                if let Some(last) = last {
                    follower[last as usize] = Some(slot);
                }
                last = Some(slot);
                slot
            })
            .collect();
        let mut gaps = vec![1_i64; blocks.slots.len()];
        let mut at = 0;
        let births: Vec<u32> = (slots.iter())
            .map(|&slot| {
                gaps[slot as usize] += reader.signed();
                at += gaps[slot as usize];
                at as u32
            })
            .collect();
        let mut durations = vec![0_i64; blocks.slots.len()];
        (slots.into_iter().zip(births))
            .map(|(slot, birth)| {
                durations[slot as usize] += reader.signed();
                let death = match durations[slot as usize] {
                    0 => u32::MAX,
                    lived => birth + lived as u32 - 1,
                };
                (slot, birth, death)
            })
            .collect()
    }

    #[test]
    fn lives_are_read_back_as_they_were_and_what_repeats_is_small() {
        for (seed, budget) in [(1, usize::MAX), (2, usize::MAX), (3, 500)] {
            let trace = training(&Training::default(), seed);
            let lives = Lifetimes::of(&trace);
            let categories = vec![Category::Other; lives.requests.len()];
            let blocks = Blocks::of(&lives, &categories, trace.events.len(), &[], budget);
            let read = lives_of(&blocks);
            for (&(index, slot), read) in blocks.kept.iter().zip(read) {
                let life = &lives.requests[index as usize];
                assert_eq!(read, (slot, life.birth.0, life.death.0));
                let is = blocks.slots[slot as usize];
                assert_eq!((is.address, is.size), (life.address, life.size));
            }
            assert_eq!(budget == usize::MAX, blocks.left_out == 0);
        }
        // A hundred steps that are alike hardly take more than ten.
        let bytes = |steps| {
            let trace = training(&Training { steps, ..Training::default() }, 5);
            let lives = Lifetimes::of(&trace);
            let categories = vec![Category::Other; lives.requests.len()];
            let blocks = Blocks::of(&lives, &categories, trace.events.len(), &[], usize::MAX);
            deflated(blocks.lives.bytes()).len()
        };
        let (ten, hundred) = (bytes(10), bytes(100));
        assert!(hundred < 2 * ten, "{ten} bytes of ten steps, {hundred} of a hundred");
    }
}
