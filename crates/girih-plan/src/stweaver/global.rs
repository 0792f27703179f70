//! Global planning: HomoSize groups from the largest size to the smallest.
//!
//! The requests of a size first go into the idle time of layers of larger sizes; those that find
//! none get layers of their own, on top of all others.
//!
//! ```text
//!  address
//!     |   s s s |     s s s s            second: a layer for the s that found no room
//!     |---------+---------------
//!     |   L L L | s s | L L L            first: an s in the idle time of a larger layer
//!     |   L L L | . . | L L L            (above it there is room for another)
//!     +------------------------- time
//! ```
//!
//! The paper does not say which layer is asked first, nor where in a layer a smaller request lies.
//! Here layers are asked from the bottom, where the largest are, and a request goes to the lowest
//! place of a layer that is free all its life. It never lies across two layers.
//!
//! That is first fit between walls, and the segment tree of the first-fit planners does it: a wall
//! between two layers is a range without bytes, which is in nobody's way and cannot be crossed.
//!
//! With *open bubbles* the rectangle of a group finds its place whole, and what is then taken are its
//! requests alone: what it leaves idle is idle time of its layer, and smaller requests go there too.

use std::cmp::Reverse;

use super::Steps;
use super::layers::layers;
use crate::instance::{Instance, Item};
use crate::occupancy::Occupancy;

/// The layers, from the bottom up, and what is in them.
struct Stack<'a> {
    instance: &'a Instance,
    occupancy: Occupancy,
    /// The ends of the layers, at all times: a tree of a single moment.
    walls: Occupancy,
    /// Units up to the top of the last layer.
    top: u64,
}

/// Where in [`Stack::walls`] anything is asked: at its only moment.
const ALWAYS: [(u32, u32); 2] = [(0, 1), (0, 0)];

/// What gets a place of its own: a request, or the rectangle of a group.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// Its life and its size.
    pub(super) item: Item,
    /// With open bubbles, the requests in a rectangle: their items, and their offsets from its bottom in units.
    pub(super) parts: Option<Vec<(u32, u64)>>,
}

impl Block {
    /// A request, or a rectangle that is closed.
    pub(super) fn whole(item: Item) -> Block {
        Block { item, parts: None }
    }
}

/// Writes the offset of every block to `layout`, in units, and returns the top of all.
pub(super) fn place(
    instance: &Instance,
    blocks: &[Block],
    steps: &mut Steps,
    layout: &mut [u64],
) -> u64 {
    let mut order: Vec<u32> = (0..blocks.len() as u32).collect();
    let size = |index: &u32| blocks[*index as usize].item.size;
    // Stable: within a size they stay in the order of birth.
    order.sort_by_key(|index| Reverse(size(index)));
    let mut stack = Stack::new(instance);
    for block in blocks.iter().filter(|block| block.parts.is_some()) {
        stack.occupancy.allow(instance.pieces(&block.item));
    }
    for group in order.chunk_by(|a, b| size(a) == size(b)) {
        steps.sizes += 1;
        let mut left: Vec<u32> = Vec::new();
        for &index in group {
            let block = &blocks[index as usize];
            match stack.find(&block.item) {
                Some(offset) => {
                    stack.enter(block, offset);
                    layout[index as usize] = offset;
                }
                None => left.push(index),
            }
        }
        steps.inserted += group.len() - left.len();
        let items: Vec<Item> = left.iter().map(|&i| blocks[i as usize].item).collect();
        let (layers, count) = layers(instance, &items);
        let bottom = stack.top;
        for ((&index, item), layer) in left.iter().zip(&items).zip(layers) {
            let offset = bottom + layer as u64 * item.size;
            stack.enter(&blocks[index as usize], offset);
            layout[index as usize] = offset;
        }
        stack.raise(size(&group[0]), count);
        steps.layers += count;
    }
    stack.top
}

impl Stack<'_> {
    fn new(instance: &Instance) -> Stack<'_> {
        let mut occupancy = Occupancy::default();
        occupancy.reset(instance);
        let mut walls = Occupancy::default();
        walls.clear(1);
        walls.allow(ALWAYS);
        Stack { instance, occupancy, walls, top: 0 }
    }

    /// The lowest place in a layer that has room for `item` all its life; None if none has.
    fn find(&self, item: &Item) -> Option<u64> {
        let trees = [(&self.occupancy, self.instance.pieces(item)), (&self.walls, ALWAYS)];
        // The tree refuses what reaches its limit.
        let limit = self.top + 1;
        Occupancy::first_fit_among(trees.into_iter(), item.size, limit)
    }

    /// Takes what `block` needs at `offset`.
    fn enter(&mut self, block: &Block, offset: u64) {
        match &block.parts {
            None => self.occupancy.enter(self.instance, &block.item, offset),
            Some(parts) => {
                for &(part, above) in parts {
                    let item = &self.instance.items[part as usize];
                    self.occupancy.enter(self.instance, item, offset + above);
                }
            }
        }
    }

    /// Adds so many layers of `size` units.
    fn raise(&mut self, size: u64, layers: usize) {
        for _ in 0..layers {
            self.top += size;
            let wall = Item { lower: 0, upper: 1, size: 0 };
            self.walls.enter(self.instance, &wall, self.top);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Buffer, Problem};

    /// The offsets of `buffers` on a line, by birth, and what was done.
    fn placed(buffers: &[(u32, u32, u64)]) -> (Vec<u64>, u64, Steps) {
        let buffers = buffers.iter().map(|&(lower, upper, size)| Buffer { lower, upper, size });
        let problem = Problem { buffers: buffers.collect(), period: 0, alignment: 1 };
        let instance = Instance::new(&problem).expect("valid");
        let mut steps = Steps::default();
        let mut layout = vec![0; instance.items.len()];
        let blocks: Vec<Block> = instance.items.iter().copied().map(Block::whole).collect();
        let top = place(&instance, &blocks, &mut steps, &mut layout);
        (layout, top, steps)
    }

    #[test]
    fn the_idle_time_of_larger_layers_is_filled_before_a_layer_is_added() {
        // The drawing above: two large ones in one layer, small ones between them and above.
        let (offsets, top, steps) =
            placed(&[(0, 3, 2), (0, 3, 1), (3, 5, 1), (3, 5, 1), (5, 8, 2), (5, 9, 1)]);
        assert_eq!(offsets, [0, 2, 0, 1, 0, 2]);
        assert_eq!((top, steps.sizes, steps.inserted, steps.layers), (3, 2, 2, 2));
    }

    #[test]
    fn nothing_lies_across_two_layers() {
        // Between ticks 2 and 4 units 2 to 6 are free, but there the layers meet at unit 3.
        let (offsets, top, _) =
            placed(&[(0, 2, 3), (0, 2, 3), (1, 4, 1), (2, 4, 2), (2, 4, 2), (2, 4, 2), (4, 5, 1)]);
        assert_eq!(offsets[..2], [0, 3]);
        assert_eq!(offsets[3..6], [0, 3, 6]);
        assert_eq!((offsets[2], top), (8, 9));
    }

    #[test]
    fn a_size_does_not_fill_gaps_of_its_own_layers_but_by_algorithm_one() {
        let (offsets, top, steps) = placed(&[(0, 2, 2), (1, 6, 2), (3, 5, 2), (7, 9, 2)]);
        assert_eq!(offsets[..3], [0, 2, 0]);
        assert_eq!((top, steps.inserted, steps.layers), (4, 0, 2));
    }
}
