//! HomoSize groups: requests of one size, in as few *memory layers* as can be.
//!
//! A layer is a row of memory as high as the size, which its requests use one after another.
//! Algorithm 1 of the paper takes the requests by birth and appends each to the layer that ended
//! last before it, or opens a new one:
//!
//! ```text
//!  layer 1   | . b b b b . d d d        b ended later than a, so that d comes after b and leaves
//!  layer 0   | a a a . . . e e .        the longer gap to others.
//!            +------------------ time
//! ```
//!
//! That needs no more layers than requests are alive at once. Layers that ended with nothing born
//! in between ended at the same time here: they are as idle as each other.
//!
//! On a ring a request that crosses its end opens a layer of its own, in which the others have the
//! time between its two parts. The paper has no rings; all of these meet each other.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::instance::{Instance, Item};

/// The layer of each of `items`, which are of one size and by birth, from 0, and the number of
/// layers.
pub(super) fn layers(instance: &Instance, items: &[Item]) -> (Vec<usize>, usize) {
    let mut layers = vec![0; items.len()];
    // The end of each layer and, the other way round so that the lowest is the last, its number.
    let mut ends: BTreeSet<(u32, Reverse<usize>)> = BTreeSet::new();
    // For the first layers, which are those of what crosses the end: when it comes again.
    let mut until = Vec::new();
    for (at, item) in items.iter().enumerate().filter(|(_, item)| instance.wraps(item)) {
        layers[at] = until.len();
        ends.insert((item.upper - instance.sections, Reverse(until.len())));
        until.push(item.lower);
    }
    let mut count = until.len();
    for (at, item) in items.iter().enumerate().filter(|(_, item)| !instance.wraps(item)) {
        let ended = ends.range(..=(item.lower, Reverse(0))).rev();
        let mut has_room = ended.filter(|(_, Reverse(layer))| {
            until.get(*layer).is_none_or(|&comes_again| item.upper <= comes_again)
        });
        let layer = match has_room.next().copied() {
            Some(found) => {
                ends.remove(&found);
                found.1.0
            }
            None => {
                count += 1;
                count - 1
            }
        };
        ends.insert((item.upper, Reverse(layer)));
        layers[at] = layer;
    }
    (layers, count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Buffer, Problem};

    /// Requests of one byte with these lives among others, one at each tick, so that no two ticks
    /// are one section; their numbers, by birth, and the items.
    fn unit(lives: &[(u32, u32)], period: u32) -> (Instance, Vec<usize>, Vec<Item>) {
        let buffers = lives.iter().map(|&(lower, upper)| Buffer { lower, upper, size: 1 });
        let clock = (0..20).map(|lower| Buffer { lower, upper: lower + 1, size: 2 });
        let clock = clock.filter(|buffer| period == 0 || buffer.lower < period);
        let buffers: Vec<Buffer> = buffers.chain(clock).collect();
        let numbers: Vec<usize> = (0..buffers.len()).collect();
        let instance = Instance::new(&Problem { buffers, period, alignment: 1 }).expect("valid");
        let numbers = instance.of_items(&numbers);
        let items = numbers.iter().copied().zip(instance.items.iter().copied());
        let (numbers, items) = items.filter(|(_, item)| item.size == 1).unzip();
        (instance, numbers, items)
    }

    #[test]
    fn a_request_goes_to_the_layer_that_ended_last_before_it() {
        // The drawing above; and a request that begins when another ends comes right after it.
        let (line, _, items) = unit(&[(0, 3), (1, 5), (6, 9), (7, 10), (9, 10)], 0);
        assert_eq!(layers(&line, &items), (vec![0, 1, 1, 0, 1], 2));
    }

    #[test]
    fn a_layer_on_a_ring_has_room_between_the_parts_of_what_crosses_its_end() {
        // Of what is as large and alive across tick 0, the first is gone at tick 3.
        let (ring, numbers, items) = unit(&[(8, 13), (3, 8), (4, 9), (1, 4)], 10);
        let (layers, count) = layers(&ring, &items);
        assert_eq!((count, items.iter().filter(|item| ring.wraps(item)).count()), (2, 1));
        let layer = |buffer| layers[numbers.iter().position(|&number| number == buffer).unwrap()];
        assert_eq!((layer(0), layer(2)), (layer(1), layer(3)));
    }

    #[test]
    fn on_a_line_there_are_as_many_layers_as_requests_are_alive_at_once() {
        arbtest::arbtest(|u| {
            let period = u.int_in_range(0..=1)? * 20u32;
            let mut lives = Vec::new();
            for _ in 0..u.int_in_range(1..=20)? {
                let lower = u.int_in_range(0..=19)?;
                let longest = if period > 0 { 19 } else { 19 - lower.min(18) };
                lives.push((lower, lower + u.int_in_range(1..=longest)?));
            }
            let (instance, _, items) = unit(&lives, period);
            let (layers, count) = layers(&instance, &items);
            let meet = |a: &Item, b: &Item| {
                let pieces = instance.pieces(b);
                let mut own = instance.pieces(a).into_iter();
                own.any(|(from, to)| pieces.iter().any(|p| from < p.1 && p.0 < to))
            };
            for (at, a) in items.iter().enumerate() {
                let mut before = items[..at].iter().zip(&layers);
                assert!(!before.any(|(b, layer)| *layer == layers[at] && meet(a, b)));
            }
            let alive = |section: u32| {
                let now = Item { lower: section, upper: section + 1, size: 1 };
                items.iter().filter(|item| meet(item, &now)).count()
            };
            let most = (0..instance.sections).map(alive).max().unwrap_or(0);
            assert!(most <= count && (period > 0 || count == most));
            Ok(())
        });
    }
}
