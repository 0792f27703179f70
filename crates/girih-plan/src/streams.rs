//! Distance between streams, where it costs no byte.
//!
//! Bytes that were freed on one stream and are used next on another make the later stream wait for
//! the earlier one. A planner that sees sizes and lifetimes alone packs memory as if there were one
//! stream, and puts the gather of the next layer into bytes that the layer before has only just let
//! go: communication then waits for computation, and no longer runs beside it. A wait costs nothing
//! if the other stream has long been past that point. So what is wanted is *distance*: sections
//! (`instance.rs`) between the end of one life and the beginning of the next, where the two share
//! bytes and not the stream.
//!
//! ```text
//!  bytes                                        bytes
//!    |                                            |          gggg     gggg
//!    |  ccc    ccccc   c                          |  ccc    ccccc   c
//!    |cccccgggg cccggggcc                         |ccccc     ccc     cc
//!    +------------------- time                    +------------------- time
//!   g waits for each c, and the next c for g      no byte more, no wait
//! ```
//!
//! The planners fill an arena from below, and only at the peak is it full: at all other times there
//! is room in which nobody has been for long. The buffers of all streams but the busiest are taken
//! one by one, those of most bytes and longest life first, and each moves to the place below the
//! height of the solution that is farthest from what other streams use before and after it, if that
//! is farther than where it is. Then those of the busiest stream that are still near to another
//! make way, and the others have another turn.
//!
//! A buffer's distance is that to the nearest of other streams, in halvings of the whole. A move
//! takes its buffer to a greater distance and brings no other buffer nearer than that. Written
//! down smallest first, the distances therefore grow in the order of a dictionary with each move:
//! what is worst is never made worse, and the end is reached.

use std::cmp::Reverse;

use girih_trace::StreamId;

use crate::instance::{Instance, Item};
use crate::occupancy::Occupancy;
use crate::problem::{Problem, ProblemError, Solution};

/// Whose buffers move in a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Movers {
    /// Those of all streams but the busiest.
    Guests,
    /// Those of the busiest stream that are near to another.
    Host,
}

impl Movers {
    /// The work that each takes for each of the streams: few of the host's are near to another.
    fn work(self) -> usize {
        match self {
            Movers::Guests => 16,
            Movers::Host => 4,
        }
    }
}

/// The passes. What moves leaves room that is free from the next pass on.
const PASSES: [Movers; 7] = {
    use Movers::{Guests, Host};
    [Guests, Guests, Guests, Guests, Host, Guests, Guests]
};

/// Work of all passes together, where entering a buffer is 1: about 0.15 s on one core. It is as
/// much as twice the buffers, if that is more.
const WORK: usize = 200_000;

/// Leaves of all trees together that are worth their memory, about 120 MiB. What is beyond is left
/// as it is: a hundred thousand sections of more than eight streams.
const LEAVES_MAX: usize = 1 << 20;

/// Buffers of the busiest stream are near if they are nearer than one part in so many of the
/// whole: about a layer or two of a model.
const NEAR: u32 = 32;

/// Moves buffers of `solution`, which must solve `problem`, away from those of other streams that
/// use the same bytes shortly before or after. `streams` are those of the buffers, in order. The
/// height does not grow. With one stream there is nothing to do, and nothing is done.
///
/// A solution that does not have the buffers that are always alive at the bottom, as every planner
/// here puts them, comes back as it is.
///
/// # Panics
///
/// If there are not as many streams and offsets as buffers.
pub fn keep_apart(
    problem: &Problem,
    streams: &[StreamId],
    solution: Solution,
) -> Result<Solution, ProblemError> {
    assert_eq!(streams.len(), problem.buffers.len(), "every buffer has a stream");
    assert_eq!(solution.offsets.len(), problem.buffers.len(), "every buffer has an offset");
    if streams.iter().all(|stream| *stream == streams[0]) {
        return Ok(solution);
    }
    let instance = Instance::new(problem)?;
    let Some(layout) = instance.layout(&solution) else { return Ok(solution) };
    let mut apart = Apart::new(&instance, problem.period > 0, &instance.of_items(streams), layout);
    apart.run();
    let top = apart.top();
    Ok(instance.solution(problem.buffers.len(), &apart.layout, top, solution.planner))
}

/// A layout, while its items are moved apart.
struct Apart<'i> {
    instance: &'i Instance,
    /// Whether the last section comes before the first.
    is_ring: bool,
    /// For each item its stream, numbered from 0.
    streams: Vec<usize>,
    /// The stream with the most items.
    host: usize,
    /// The offset of each item in units.
    layout: Vec<u64>,
    /// The unit that no item may reach.
    limit: u64,
    /// What is told apart, in sections: halves of the whole down to 0.
    distances: Vec<u32>,
    /// For each stream, where its items lie, and where those lay that have moved in this pass.
    places: Vec<Occupancy>,
}

impl<'i> Apart<'i> {
    fn new(instance: &'i Instance, is_ring: bool, of: &[StreamId], layout: Vec<u64>) -> Self {
        let mut kinds = of.to_vec();
        kinds.sort_unstable();
        kinds.dedup();
        let number = |stream| kinds.binary_search(stream).expect("every stream is listed");
        let streams: Vec<usize> = of.iter().map(number).collect();
        let mut counts = vec![0; kinds.len()];
        streams.iter().for_each(|&stream| counts[stream] += 1);
        let host = (0..kinds.len()).max_by_key(|&stream| (counts[stream], Reverse(stream)));
        let halves = std::iter::successors(Some(instance.sections), |whole| Some(whole / 2));
        let mut distances: Vec<u32> = halves.skip(1).take_while(|half| *half > 0).collect();
        distances.push(0);
        let mut apart = Apart {
            instance,
            is_ring,
            streams,
            host: host.unwrap_or(0),
            layout,
            limit: 0,
            distances,
            places: kinds.iter().map(|_| Occupancy::default()).collect(),
        };
        apart.limit = apart.top() + 1;
        apart
    }

    /// The unit that the highest item ends at.
    fn top(&self) -> u64 {
        let ends = self.instance.items.iter().zip(&self.layout).map(|(item, at)| at + item.size);
        ends.max().unwrap_or(0)
    }

    /// Makes the passes, as far as the work allows.
    fn run(&mut self) {
        let (items, streams) = (self.layout.len(), self.places.len());
        let leaves = (self.instance.sections as usize).next_power_of_two() * streams;
        if streams < 2 || leaves > LEAVES_MAX {
            return;
        }
        let mut work = WORK.max(2 * items);
        let mut idle = None;
        for movers in PASSES {
            let each = movers.work() * streams;
            let queue = self.queue(movers, work.saturating_sub(items) / each);
            // Where nothing has moved, the same movers will not move either.
            if !queue.is_empty() && idle != Some(movers) {
                work -= items + queue.len() * each;
                idle = (self.pass(movers, &queue) == 0).then_some(movers);
            }
        }
    }

    /// The movers in order, as many as `most`: those of most bytes and longest life first.
    fn queue(&self, movers: Movers, most: usize) -> Vec<usize> {
        let mut queue: Vec<usize> = (0..self.layout.len())
            .filter(|&index| (self.streams[index] == self.host) == (movers == Movers::Host))
            .collect();
        let area = |index: usize| {
            let item = &self.instance.items[index];
            u128::from(item.size) * u128::from(item.life())
        };
        queue.sort_by_key(|&index| (Reverse(area(index)), index));
        queue.truncate(most);
        queue
    }

    /// Lets each of the queue move once; returns how many did.
    fn pass(&mut self, movers: Movers, queue: &[usize]) -> usize {
        self.enter_all(queue);
        let near = (self.instance.sections / NEAR).max(1);
        let mut moved = 0;
        for &index in queue {
            let may_move = movers == Movers::Guests || !self.is_apart(index, near);
            moved += usize::from(may_move && self.step(index));
        }
        moved
    }

    /// Enters every item where it is, so that those of `queue` can be moved.
    fn enter_all(&mut self, queue: &[usize]) {
        let mut places = std::mem::take(&mut self.places);
        places.iter_mut().for_each(|places| places.clear(self.instance.sections));
        for &index in queue {
            let item = &self.instance.items[index];
            for (of, places) in places.iter_mut().enumerate() {
                if of == self.streams[index] {
                    places.allow(self.instance.pieces(item));
                    continue;
                }
                for &distance in &self.distances {
                    places.allow(self.widened(item, distance));
                }
            }
        }
        for (index, item) in self.instance.items.iter().enumerate() {
            places[self.streams[index]].enter(self.instance, item, self.layout[index]);
        }
        self.places = places;
    }

    /// Moves an item if there is a place that is farther from other streams than its own.
    fn step(&mut self, index: usize) -> bool {
        let level = self.level(index);
        let Some(offset) = self.farther(index, level) else { return false };
        let item = &self.instance.items[index];
        // Its old place stays entered: it is nobody's until the next pass.
        self.places[self.streams[index]].enter(self.instance, item, offset);
        self.layout[index] = offset;
        true
    }

    /// The first of the distances that an item has from all others streams where it is.
    fn level(&self, index: usize) -> usize {
        self.distances.partition_point(|&distance| !self.is_apart(index, distance))
    }

    /// Whether no item of another stream lies in the bytes of this one so shortly before or after.
    fn is_apart(&self, index: usize, distance: u32) -> bool {
        let item = &self.instance.items[index];
        let span = (self.layout[index], self.layout[index] + item.size);
        let asked = self.widened(item, distance);
        let mut others = (0..).zip(&self.places).filter(|(of, _)| *of != self.streams[index]);
        others.all(|(_, places)| places.is_free_during(asked, span))
    }

    /// The lowest place that is as far from other streams as can be, if it is farther than `level`.
    fn farther(&self, index: usize, level: usize) -> Option<u64> {
        let (mut from, mut to, mut found) = (0, level, None);
        while from < to {
            let middle = (from + to) / 2;
            match self.fit(index, self.distances[middle]) {
                Some(offset) => (found, to) = (Some(offset), middle),
                None => from = middle + 1,
            }
        }
        found
    }

    /// The lowest place for an item that is free while it lives, and so long before and after of
    /// other streams.
    fn fit(&self, index: usize, distance: u32) -> Option<u64> {
        let item = &self.instance.items[index];
        let (own, wide) = (self.instance.pieces(item), self.widened(item, distance));
        let asked = (0..)
            .zip(&self.places)
            .map(|(of, places)| (places, if of == self.streams[index] { own } else { wide }));
        Occupancy::first_fit_among(asked, item.size, self.limit)
    }

    /// The sections in which an item lives, and so many before and after, in one or two pieces.
    fn widened(&self, item: &Item, by: u32) -> [(u32, u32); 2] {
        let sections = self.instance.sections;
        if !self.is_ring {
            return [(item.lower.saturating_sub(by), (item.upper + by).min(sections)), (0, 0)];
        }
        if item.life() + 2 * by >= sections {
            return [(0, sections), (0, 0)];
        }
        let lower = (item.lower + sections - by) % sections;
        let upper = lower + item.life() + 2 * by;
        let end = upper.min(sections);
        [(lower, end), (0, upper - end)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::portfolio::{Budget, solve};
    use crate::problem::Buffer;

    fn problem(lives: &[(u32, u32, u64)], period: u32) -> Problem {
        let buffers = lives.iter().map(|&(lower, upper, size)| Buffer { lower, upper, size });
        Problem { buffers: buffers.collect(), period, alignment: 1 }
    }

    fn solution(offsets: &[u64], height: u64) -> Solution {
        Solution { offsets: offsets.to_vec(), height, planner: "by hand" }
    }

    fn streams(numbers: &[u16]) -> Vec<StreamId> {
        numbers.iter().copied().map(StreamId).collect()
    }

    #[test]
    fn a_gather_leaves_the_bytes_that_were_just_freed_for_others_long_idle() {
        // Five kernels in turn, the first of which needs all; the gather runs beside the fourth.
        let lives = [(0, 1, 9), (1, 2, 3), (2, 3, 3), (3, 4, 3), (4, 5, 3), (3, 4, 3)];
        let problem = problem(&lives, 0);
        let before = solution(&[0, 0, 3, 0, 0, 3], 9);
        let after = keep_apart(&problem, &streams(&[0, 0, 0, 0, 0, 1]), before).unwrap();
        assert_eq!((&after.offsets[..], after.height), (&[0, 0, 3, 0, 0, 6][..], 9));
    }

    #[test]
    fn what_ends_an_iteration_is_near_to_what_begins_the_next() {
        let lives = [(0, 1, 9), (1, 2, 3), (2, 3, 3), (3, 4, 3), (4, 5, 3), (5, 6, 3), (7, 8, 3)];
        let of = streams(&[0, 0, 0, 0, 0, 0, 1]);
        let before = solution(&[0, 6, 6, 6, 6, 6, 6], 9);
        let on_line = keep_apart(&problem(&lives, 0), &of, before.clone()).unwrap();
        assert_eq!(on_line.offsets, [0, 6, 6, 6, 6, 6, 0]);
        // On a ring the first kernel, which needs all, comes right after the gather, wherever that
        // is; only the kernel before it can make way.
        let on_ring = keep_apart(&problem(&lives, 8), &of, before).unwrap();
        assert_eq!(on_ring.offsets, [0, 6, 6, 6, 6, 0, 6]);
    }

    #[test]
    fn the_busiest_stream_makes_way_where_the_other_cannot() {
        // The gather fills the arena but for three units; the kernel after it can go there.
        let lives = [(0, 1, 3), (1, 2, 3), (2, 4, 6), (4, 5, 3), (6, 7, 3), (8, 9, 3), (10, 11, 3)];
        let before = solution(&[6, 6, 0, 0, 6, 6, 6], 9);
        let of = streams(&[0, 0, 1, 0, 0, 0, 0]);
        let after = keep_apart(&problem(&lives, 0), &of, before).unwrap();
        assert_eq!(after.offsets, [6, 6, 0, 6, 6, 6, 6]);
    }

    #[test]
    fn one_stream_is_left_alone() {
        let problem = problem(&[(0, 2, 3), (1, 3, 3), (2, 4, 3)], 0);
        let before = solution(&[50, 0, 20], 60);
        assert_eq!(keep_apart(&problem, &streams(&[7, 7, 7]), before.clone()), Ok(before));
    }

    #[test]
    fn a_solution_with_residents_in_the_middle_comes_back_as_it_is() {
        let problem = problem(&[(0, 4, 1), (0, 1, 1), (2, 4, 1), (1, 2, 1)], 4);
        let before = solution(&[1, 0, 0, 0], 2);
        assert_eq!(keep_apart(&problem, &streams(&[0, 0, 0, 1]), before.clone()), Ok(before));
    }

    /// The distance of each buffer to the nearest of other streams in its bytes, smallest first; by
    /// trial of every section. As [`Apart::distances`] tells it apart.
    fn levels(problem: &Problem, of: &[StreamId], solution: &Solution) -> Vec<Reverse<usize>> {
        let instance = Instance::new(problem).unwrap();
        let layout = instance.layout(solution).unwrap();
        let of = instance.of_items(of);
        let apart = Apart::new(&instance, problem.period > 0, &of, layout);
        let lives_in = |pieces: [(u32, u32); 2], section: u32| {
            pieces.iter().any(|piece| piece.0 <= section && section < piece.1)
        };
        let items = || instance.items.iter().zip(&apart.layout).zip(&of);
        let is_apart = |((a, at), stream): ((&Item, &u64), &StreamId), distance: u32| {
            items().all(|((b, other), stream_of_b)| {
                let share = at < &(other + b.size) && other < &(at + a.size);
                let meet = (0..instance.sections).any(|section| {
                    lives_in(instance.pieces(b), section)
                        && lives_in(apart.widened(a, distance), section)
                });
                stream == stream_of_b || !share || !meet
            })
        };
        let level = |item| apart.distances.iter().position(|&distance| is_apart(item, distance));
        let mut levels: Vec<_> =
            items().map(|item| Reverse(level(item).expect("no two share bytes"))).collect();
        levels.sort_unstable();
        levels
    }

    #[test]
    fn no_solution_becomes_wrong_higher_or_worse_where_it_was_worst() {
        arbtest::arbtest(|u| {
            let horizon = *u.choose(&[5, 12, 40])?;
            let period = if u.arbitrary()? { horizon } else { 0 };
            let (mut buffers, mut of) = (Vec::new(), Vec::new());
            for _ in 0..u.int_in_range(2..=30)? {
                let lower = u.int_in_range(0..=horizon - 1)?;
                let upper = lower + u.int_in_range(1..=1 + horizon / 2)?;
                let upper = if period > 0 { upper } else { upper.min(horizon) };
                buffers.push(Buffer { lower, upper, size: u.int_in_range(0..=5)? });
                of.push(StreamId(u.int_in_range(0..=5)? / 2));
            }
            let problem = Problem { buffers, period, alignment: *u.choose(&[1, 2])? };
            let before = solve(&problem, Budget::attempts(3)).unwrap().solution;
            let after = keep_apart(&problem, &of, before.clone()).unwrap();
            check(&problem, &after).unwrap();
            assert!(after.height <= before.height);
            assert_eq!(after, keep_apart(&problem, &of, before.clone()).unwrap());
            assert!(levels(&problem, &of, &after) >= levels(&problem, &of, &before));
            Ok(())
        });
    }
}
