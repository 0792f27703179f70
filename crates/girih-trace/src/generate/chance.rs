//! Where a generator takes its decisions from.

/// A source of numbers.
pub trait Chance {
    /// The next 64 bits.
    fn next_u64(&mut self) -> u64;

    /// True if the source has no more to say, and the generator should come to an end.
    fn is_over(&self) -> bool {
        false
    }

    /// A number below `limit`, 0 if `limit` is 0.
    fn below(&mut self, limit: u64) -> u64 {
        // The high half of the product: no division, and even enough for tests.
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// True in one of `count` cases.
    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// splitmix64: a seed, and 2^64 numbers. Fast, and good enough to look random to an allocator.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Rng { state: seed }
    }
}

impl Chance for Rng {
    fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// The bytes of a fuzzer, each decision taking two. Zeros when they are used up.
#[derive(Clone, Debug)]
pub struct Bytes<'a> {
    rest: &'a [u8],
}

impl<'a> Bytes<'a> {
    /// The decisions in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Bytes { rest: bytes }
    }
}

impl Chance for Bytes<'_> {
    fn next_u64(&mut self) -> u64 {
        let (taken, rest) = self.rest.split_at(self.rest.len().min(2));
        self.rest = rest;
        let byte = |at: usize| u64::from(taken.get(at).copied().unwrap_or(0));
        // In the highest bits, where `below` looks; some also in the lowest, for other uses.
        byte(0) << 56 | byte(1) << 48 | byte(1) << 8 | byte(0)
    }

    fn is_over(&self) -> bool {
        self.rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_below_its_limit_and_reaches_both_ends() {
        let mut rng = Rng::new(1);
        let drawn: Vec<u64> = (0..1000).map(|_| rng.below(7)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&0), Some(&6)));
        assert_eq!(rng.below(0), 0);
    }

    #[test]
    fn bytes_decide_and_then_end() {
        let mut bytes = Bytes::new(&[255, 255, 0]);
        assert_eq!(bytes.below(10), 9);
        assert_eq!(bytes.below(10), 0);
        assert!(bytes.is_over());
        assert_eq!(bytes.next_u64(), 0);
    }
}
