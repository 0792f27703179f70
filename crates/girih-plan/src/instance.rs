//! The problem as the planners see it: small numbers, in the order of birth.
//!
//! Four things are done once, so that no planner need think of them:
//!
//! - **Sizes** are counted in units of the alignment, rounded up: every sum of sizes is then a
//!   legal offset.
//! - **Ticks** become **sections**. A section is a longest run of ticks in which nothing is born
//!   after something died; only its last live set, which holds all the others of the run, matters.
//!   Two buffers meet in a section if and only if they meet at a tick.
//!
//! ```text
//!  births and deaths    b b d d b d b b d      (time goes right)
//!  sections             0 0 0 0 1 1 2 2 2      a birth after a death opens one
//! ```
//!
//! - **Residents**, alive in every section, are stacked at the bottom and forgotten: no place is
//!   better for them, and they would only hide the rest.
//! - **The ring is cut** where the fewest bytes are alive across the cut. If there are none, the
//!   ring was a line. Otherwise the items that cross it *wrap*: they live in `[lower, sections)`
//!   and in `[0, upper - sections)`.

use std::cmp::Reverse;

use crate::problem::{Buffer, Problem, ProblemError, Solution};

/// A buffer in units and sections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Item {
    /// The section of its birth.
    pub(crate) lower: u32,
    /// One past the section of its death; more than the number of sections if it wraps.
    pub(crate) upper: u32,
    /// Units of the alignment; at least 1.
    pub(crate) size: u64,
}

impl Item {
    /// Sections in which it lives.
    pub(crate) fn life(&self) -> u32 {
        self.upper - self.lower
    }
}

/// A [`Problem`] made ready to be planned.
#[derive(Debug)]
pub(crate) struct Instance {
    /// What is to be placed, by birth; ties by the index in the problem. The index of an item is
    /// therefore a time, and planners break ties by it: repetitive traces need that.
    pub(crate) items: Vec<Item>,
    /// Number of sections.
    pub(crate) sections: u32,
    /// Units that the residents take below all items.
    resident: u64,
    /// The index of each item in the problem.
    buffers: Vec<u32>,
    /// The offset of each resident, in units, with its index in the problem.
    residents: Vec<(u32, u64)>,
    /// Bytes of a unit.
    unit: u64,
}

impl Instance {
    /// Makes `problem` ready, or says why it has no meaning. O(n log n).
    pub(crate) fn new(problem: &Problem) -> Result<Instance, ProblemError> {
        Instance::with_residents(problem, |_| true)
    }

    /// The same; of the buffers that are always alive those alone are residents of which `may_reside` holds. The
    /// others are items like all.
    pub(crate) fn with_residents(
        problem: &Problem,
        may_reside: impl Fn(u32) -> bool,
    ) -> Result<Instance, ProblemError> {
        problem.validate()?;
        let unit = problem.alignment;
        let cut = if problem.period == 0 { 0 } else { quietest_tick(problem) };

        let mut lives: Vec<Life> = (0u32..)
            .zip(&problem.buffers)
            .filter(|(_, buffer)| buffer.size > 0)
            .map(|(index, buffer)| Life::of(buffer, index, cut, problem.period))
            .collect();
        lives.sort_unstable_by_key(|life| (life.birth, life.buffer));
        let sections = compress(&mut lives, problem.period);

        let mut instance = Instance {
            items: Vec::with_capacity(lives.len()),
            sections,
            resident: 0,
            buffers: Vec::with_capacity(lives.len()),
            residents: Vec::new(),
            unit,
        };
        for Life { birth, death, buffer } in lives {
            let size = problem.buffers[buffer as usize].size.div_ceil(unit);
            if u64::from(sections) <= death - birth && may_reside(buffer) {
                instance.residents.push((buffer, instance.resident));
                instance.resident += size;
            } else {
                instance.items.push(Item { lower: birth as u32, upper: death as u32, size });
                instance.buffers.push(buffer);
            }
        }
        Ok(instance)
    }

    /// An instance of items that are ready already: in the order of birth, none of them resident.
    /// It has no buffers of which it would make a [`Solution`].
    pub(crate) fn from_items(items: Vec<Item>, sections: u32) -> Instance {
        Instance {
            items,
            sections,
            resident: 0,
            buffers: Vec::new(),
            residents: Vec::new(),
            unit: 1,
        }
    }

    /// The height in bytes of a layout whose items reach `top` units.
    pub(crate) fn height(&self, top: u64) -> u64 {
        (self.resident + top) * self.unit
    }

    /// Whether `item` crosses the cut of the ring.
    pub(crate) fn wraps(&self, item: &Item) -> bool {
        item.upper > self.sections
    }

    /// The lifetime of `item` as one or two ranges of sections; the second is empty if it does not
    /// wrap.
    pub(crate) fn pieces(&self, item: &Item) -> [(u32, u32); 2] {
        let end = item.upper.min(self.sections);
        [(item.lower, end), (0, item.upper - end)]
    }

    /// Units alive in each section, without the residents. O(n).
    pub(crate) fn loads(&self) -> Vec<u64> {
        // What comes in a section minus what goes, with wrapping sums: the running total is exact.
        let mut loads = vec![0u64; self.sections as usize + 1];
        for item in &self.items {
            for (from, to) in self.pieces(item) {
                loads[from as usize] = loads[from as usize].wrapping_add(item.size);
                loads[to as usize] = loads[to as usize].wrapping_sub(item.size);
            }
        }
        let mut load = 0u64;
        for change in &mut loads {
            load = load.wrapping_add(*change);
            *change = load;
        }
        loads.truncate(self.sections as usize);
        loads
    }

    /// The first section with the largest load; 0 if there is none.
    pub(crate) fn peak(&self) -> u32 {
        let loads = (0u32..).zip(self.loads());
        loads.max_by_key(|&(section, load)| (load, Reverse(section))).map_or(0, |(peak, _)| peak)
    }

    /// The offsets of the items in `solution`, in units. None if they are not whole units, or if
    /// the residents do not lie where [`Instance::solution`] stacks them.
    pub(crate) fn layout(&self, solution: &Solution) -> Option<Vec<u64>> {
        let at = |buffer: u32| {
            let offset = solution.offsets[buffer as usize];
            offset.is_multiple_of(self.unit).then_some(offset / self.unit)
        };
        let stacked = self.residents.iter().all(|&(buffer, offset)| at(buffer) == Some(offset));
        let items = self.buffers.iter().map(|&buffer| at(buffer)?.checked_sub(self.resident));
        if stacked { items.collect() } else { None }
    }

    /// What is said `of` the buffers, for each item.
    pub(crate) fn of_items<T: Copy>(&self, of: &[T]) -> Vec<T> {
        self.buffers.iter().map(|&buffer| of[buffer as usize]).collect()
    }

    /// The layout of the items, in units, as a solution of the problem of `buffers` buffers.
    pub(crate) fn solution(
        &self,
        buffers: usize,
        layout: &[u64],
        top: u64,
        planner: &'static str,
    ) -> Solution {
        let mut offsets = vec![0; buffers];
        for &(buffer, offset) in &self.residents {
            offsets[buffer as usize] = offset * self.unit;
        }
        for (&buffer, &offset) in self.buffers.iter().zip(layout) {
            offsets[buffer as usize] = (self.resident + offset) * self.unit;
        }
        Solution { offsets, height: self.height(top), planner }
    }
}

/// The lifetime of a buffer, in ticks after the cut and later in sections. Wide enough for twice
/// a period.
struct Life {
    birth: u64,
    death: u64,
    buffer: u32,
}

impl Life {
    fn of(buffer: &Buffer, index: u32, cut: u32, period: u32) -> Life {
        let length = u64::from(buffer.upper - buffer.lower);
        let birth = match buffer.lower.checked_sub(cut) {
            Some(after) => u64::from(after),
            None => u64::from(buffer.lower) + u64::from(period) - u64::from(cut),
        };
        Life { birth, death: birth + length, buffer: index }
    }
}

/// Replaces ticks by sections in `lives`, which are sorted by birth, and returns the number of
/// sections. What is born at a tick does not meet what dies at it.
fn compress(lives: &mut [Life], period: u32) -> u32 {
    let period = u64::from(period);
    let wraps = |life: &Life| period > 0 && life.death > period;
    let mut deaths: Vec<(u64, u32)> = (0u32..)
        .zip(&*lives)
        .map(|(index, life)| (life.death - if wraps(life) { period } else { 0 }, index))
        .collect();
    deaths.sort_unstable();

    // `section` is the open one. What wraps is alive in section 0 before anything is born.
    let (mut section, mut something_died) = (0, false);
    let mut buried = 0;
    for born in 0..=lives.len() {
        let now = lives.get(born).map_or(u64::MAX, |life| life.birth);
        while let Some(&(_, index)) = deaths.get(buried).filter(|(death, _)| *death <= now) {
            // A death that wraps is marked by a second lap, which the last line below completes.
            let lap = u64::from(wraps(&lives[index as usize])) << 32;
            deaths[buried].0 = (section + 1) | lap;
            (something_died, buried) = (true, buried + 1);
        }
        if born < lives.len() {
            if something_died {
                (section, something_died) = (section + 1, false);
            }
            lives[born].birth = section;
        }
    }
    let sections = if lives.is_empty() { 0 } else { section + 1 };
    for (death, index) in deaths {
        let lap = if death >> 32 > 0 { sections } else { 0 };
        lives[index as usize].death = (death & u64::from(u32::MAX)) + lap;
    }
    sections as u32
}

/// The tick of a ring before which the fewest bytes are alive that are still alive at it, not
/// counting what is always alive. The first of several.
fn quietest_tick(problem: &Problem) -> u32 {
    let period = problem.period;
    let mut events: Vec<(u32, bool, u64)> = Vec::with_capacity(2 * problem.buffers.len());
    let mut crossing = 0u64;
    for buffer in problem.buffers.iter().filter(|b| b.upper - b.lower < period) {
        let wraps = buffer.upper > period;
        crossing += if wraps { buffer.size } else { 0 };
        events.push((if wraps { buffer.upper - period } else { buffer.upper }, false, buffer.size));
        events.push((buffer.lower, true, buffer.size));
    }
    events.sort_unstable();

    // Deaths of a tick come before its births, so that between them the load is what crosses.
    let mut best = (crossing, 0);
    for (tick, is_birth, size) in events {
        if is_birth {
            crossing += size;
        } else {
            crossing -= size;
            if tick < period && crossing < best.0 {
                best = (crossing, tick);
            }
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(buffers: &[(u32, u32, u64)], period: u32, alignment: u64) -> Instance {
        let buffers = buffers.iter().map(|&(lower, upper, size)| Buffer { lower, upper, size });
        let problem = Problem { buffers: buffers.collect(), period, alignment };
        Instance::new(&problem).expect("valid")
    }

    fn lives(instance: &Instance) -> Vec<(u32, u32)> {
        instance.items.iter().map(|item| (item.lower, item.upper)).collect()
    }

    #[test]
    fn only_a_birth_after_a_death_opens_a_section() {
        let line =
            instance(&[(0, 30, 1), (10, 20, 1), (40, 90, 1), (30, 50, 1), (60, 70, 1)], 0, 1);
        assert_eq!(line.sections, 3);
        assert_eq!(lives(&line), [(0, 1), (0, 1), (1, 2), (1, 3), (2, 3)]);
    }

    #[test]
    fn sizes_are_counted_in_units_and_nothing_is_left_out() {
        let line = instance(&[(0, 1, 1), (1, 2, 512), (1, 2, 0), (0, 1, 513)], 0, 512);
        assert_eq!(line.items.iter().map(|item| item.size).collect::<Vec<_>>(), [1, 2, 1]);
    }

    #[test]
    fn a_ring_is_cut_where_the_fewest_bytes_cross() {
        let crossing = |buffers: &[(u32, u32, u64)]| {
            let ring = instance(buffers, 10, 1);
            let wrapping = ring.items.iter().filter(|item| ring.wraps(item));
            wrapping.map(|item| item.size).collect::<Vec<_>>()
        };
        // Nothing is alive across tick 3: a line in the shape of a ring.
        assert!(crossing(&[(8, 13, 10), (4, 7, 1), (6, 7, 3)]).is_empty());
        // One byte is alive across tick 3, ten or more across all the others.
        assert_eq!(crossing(&[(8, 13, 10), (2, 9, 1), (0, 1, 5)]), [1]);
    }

    #[test]
    fn two_items_meet_in_a_section_if_and_only_if_they_meet_at_a_tick() {
        arbtest::arbtest(|u| {
            let period = u.int_in_range(0..=1)? * 12u32;
            let mut buffers = Vec::new();
            for _ in 0..u.int_in_range(2..=8)? {
                let (lower, life) = (u.int_in_range(0..=11)?, u.int_in_range(1..=12)?);
                buffers.push(Buffer { lower, upper: lower + life, size: 1 });
            }
            let problem = Problem { buffers, period, alignment: 1 };
            let instance = Instance::new(&problem).expect("valid");
            for (a, &of_a) in instance.items.iter().zip(&instance.buffers) {
                for (b, &of_b) in instance.items.iter().zip(&instance.buffers) {
                    let alive =
                        |buffer: u32, tick| problem.buffers[buffer as usize].is_alive(tick, period);
                    let at_a_tick = (0..24).any(|tick| alive(of_a, tick) && alive(of_b, tick));
                    let in_a_section = instance.pieces(a).iter().any(|(from, to)| {
                        instance.pieces(b).iter().any(|other| from < &other.1 && &other.0 < to)
                    });
                    assert_eq!(at_a_tick, in_a_section, "{of_a} {of_b} {problem:?}");
                }
            }
            Ok(())
        });
    }
}
