//! Problems like those of an accelerator's scratch memory, with a height that is known to be enough:
//! one rectangle is cut into pieces, some of them are made smaller, and their offsets are forgotten.
//!
//! ```text
//!  guillotine        pinwheel            shrunk, but for those of the full tick
//!  +-----+---+     +-----+---+          +-----+--+
//!  |     |   |     |     |   |          |     |  |
//!  +-+---+---+     +-+---+   |          +-+---++-+-
//!  | |       |     | |   |   |          | |   |  |
//!  | |       |     | +---+---+            |   |--+
//!  +-+-------+     +-+-------+          +-+------+
//! ```
//!
//! A pinwheel cannot be cut along a whole line: who stacks by halves does not find it. What is alive at
//! one tick stays as large as it was, so that the largest load is the height, and no layout is lower.

use girih_plan::{Buffer, Problem};
use girih_trace::generate::{Chance, Rng};

/// How a rectangle is cut up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Jigsaw {
    /// Pieces, about: a pinwheel may add four.
    pub(crate) pieces: usize,
    /// Ticks of the rectangle.
    pub(crate) ticks: u32,
    /// Its height in units of the alignment.
    pub(crate) height: u64,
    /// Of a hundred cuts, those that are pinwheels.
    pub(crate) pinwheels: u64,
    /// Of a hundred other cuts, those that part lifetimes and not sizes: few leave long lives.
    pub(crate) upright: u64,
    /// Of a hundred pieces, those that are made smaller.
    pub(crate) shrunk: u64,
    /// Bytes of a unit.
    pub(crate) alignment: u64,
}

/// A rectangle: ticks from, to; offsets from, to.
type Piece = (u32, u32, u64, u64);

impl Jigsaw {
    /// The problem of a seed. Its height is enough, and the largest load.
    pub(crate) fn problem(self, seed: u64) -> Problem {
        let mut chance = Rng::new(seed);
        let mut pieces: Vec<Piece> = vec![(0, self.ticks, 0, self.height)];
        let mut done = Vec::new();
        while pieces.len() + done.len() < self.pieces && !pieces.is_empty() {
            let piece = pieces.swap_remove(self.next(&mut chance, &pieces));
            let cut = self.cut(&mut chance, piece);
            if cut.len() == 1 { done.extend(cut) } else { pieces.extend(cut) }
        }
        pieces.extend(done);
        let full = chance.below(u64::from(self.ticks)) as u32;
        let mut buffers: Vec<Buffer> =
            pieces.into_iter().map(|piece| self.shrink(&mut chance, piece, full)).collect();
        buffers.sort_by_key(|buffer| (buffer.lower, buffer.size, buffer.upper));
        Problem { buffers, period: 0, alignment: self.alignment }
    }

    /// The piece that is cut next: the largest of three, so that small ones come about, too.
    fn next(self, chance: &mut Rng, pieces: &[Piece]) -> usize {
        let some = [(); 3].map(|()| chance.below(pieces.len() as u64) as usize);
        let area = |&at: &usize| {
            let (lower, upper, from, to) = pieces[at];
            (u64::from(upper - lower) * (to - from), at)
        };
        some.into_iter().max_by_key(area).expect("three")
    }

    /// The parts of a piece: two, five, or itself if it is too small.
    fn cut(self, chance: &mut Rng, piece: Piece) -> Vec<Piece> {
        let (lower, upper, from, to) = piece;
        let (life, size) = (upper - lower, to - from);
        if life > 2 && size > 2 && chance.below(100) < self.pinwheels {
            let a = lower + 1 + chance.below(u64::from(life) - 2) as u32;
            let b = a + 1 + chance.below(u64::from(upper - a) - 1) as u32;
            let c = from + 1 + chance.below(size - 2);
            let d = c + 1 + chance.below(to - c - 1);
            return vec![
                (lower, b, from, c),
                (b, upper, from, d),
                (a, upper, d, to),
                (lower, a, c, to),
                (a, b, c, d),
            ];
        }
        let is_upright = chance.below(100) < self.upright;
        if life > 1 && (is_upright || size < 2) {
            let at = lower + 1 + chance.below(u64::from(life) - 1) as u32;
            vec![(lower, at, from, to), (at, upper, from, to)]
        } else if size > 1 {
            let at = from + 1 + chance.below(size - 1);
            vec![(lower, upper, from, at), (lower, upper, at, to)]
        } else {
            vec![piece]
        }
    }

    /// The piece as a buffer, by chance a little smaller or shorter, unless it is alive at `full`.
    fn shrink(self, chance: &mut Rng, piece: Piece, full: u32) -> Buffer {
        let (mut lower, mut upper, from, to) = piece;
        let mut size = to - from;
        let may = !(lower..upper).contains(&full);
        if may && chance.below(100) < self.shrunk {
            match chance.below(3) {
                0 => size -= chance.below(size.div_ceil(4)),
                1 => lower += chance.below(u64::from(upper - lower).div_ceil(4)) as u32,
                _ => upper -= chance.below(u64::from(upper - lower).div_ceil(4)) as u32,
            }
        }
        Buffer { lower, upper, size: size * self.alignment }
    }
}
