//! The policies that stitch, with settings under which they do it often.

use girih_runtime::Policy;
use girih_runtime::caching::{Caching, Config as Splitter};
use girih_runtime::gmlake::{Config, Gmlake};
use girih_runtime::lake::{Lake, Options};

use super::program::Chance;
use super::world::{MIB, World, eager};

/// A policy that stitches.
pub(crate) trait Stitcher: Policy + Sized {
    /// One that stitches whatever it can.
    fn eager() -> Self;

    /// One that gives up what it has stitched again and again, too.
    fn busy() -> Self;

    /// Bytes of a request.
    fn size(chance: &mut Chance) -> u64;

    /// How often it has stitched.
    fn stitches(world: &World<Self>) -> u64;

    /// What it has stitched, in words, as far as it tells.
    fn views(&self) -> String;

    /// True if pages that are new stay when what they were taken for fails afterwards.
    const GROWS_APART: bool;
    /// A request is served though an optimization for it was refused.
    const DEGRADES: bool;

    /// True if `releasable` bytes go back when `held` are and the program has `given` of them.
    fn may_release(releasable: u64, held: u64, given: u64) -> bool;
}

impl Stitcher for Gmlake {
    fn eager() -> Gmlake {
        Gmlake::new(eager(), Caching::new(Splitter::default()))
    }

    fn busy() -> Gmlake {
        let config = Config { stitched_limit: 300 * MIB, ..eager() };
        Gmlake::new(config, Caching::new(Splitter::default()))
    }

    /// Mostly sizes that come again, as in training.
    fn size(chance: &mut Chance) -> u64 {
        let size = if chance.below(4) == 0 { chance.below(40) } else { 6 * chance.below(8) };
        (size + 1) * 2 * MIB
    }

    /// Handles that were mapped again.
    fn stitches(world: &World<Gmlake>) -> u64 {
        world.shadow.mapped_again.values().sum()
    }

    fn views(&self) -> String {
        format!("{:?}", self.stitched())
    }

    const GROWS_APART: bool = false;
    const DEGRADES: bool = false;

    fn may_release(releasable: u64, held: u64, given: u64) -> bool {
        releasable == held - given
    }
}

fn pools() -> Splitter {
    Splitter { expandable_segments: true, own_order: true, ..Splitter::default() }
}

/// A lake whose pages have up to 16 MiB, as where tensors are swapped.
pub(crate) fn of_large_pages() -> Lake {
    Lake::weighed(Options::swapping(), pools())
}

impl Stitcher for Lake {
    fn eager() -> Lake {
        Lake::of(pools())
    }

    fn busy() -> Lake {
        Lake::new(Options { view_pages_max: 40, ..Options::default() }, Caching::new(pools()))
    }

    /// Sizes that come again, as in training; small ones; and any.
    fn size(chance: &mut Chance) -> u64 {
        let again = |chance: &mut Chance| {
            let at = chance.below(12);
            (at + 2) * 5 * MIB + at * 77 * 512
        };
        match chance.below(8) {
            0 => 1 + chance.below(MIB),
            1..3 => 1 + chance.below(48 * MIB),
            3 => 1 + chance.below(160 * MIB),
            _ => again(chance),
        }
    }

    fn stitches(world: &World<Lake>) -> u64 {
        Policy::stats(&world.lake).num_stitches
    }

    fn views(&self) -> String {
        String::new()
    }

    const GROWS_APART: bool = true;
    const DEGRADES: bool = true;

    /// Parts of pages stay.
    fn may_release(releasable: u64, held: u64, given: u64) -> bool {
        releasable.is_multiple_of(2 * MIB) && releasable <= held - given
    }
}

/// Expandable segments, of which nothing is stitched: for comparison.
impl Stitcher for Caching {
    fn eager() -> Caching {
        Caching::new(pools())
    }

    fn busy() -> Caching {
        Caching::eager()
    }

    fn size(chance: &mut Chance) -> u64 {
        Lake::size(chance)
    }

    fn stitches(world: &World<Caching>) -> u64 {
        world.lake.stats().num_stitches
    }

    fn views(&self) -> String {
        String::new()
    }

    const GROWS_APART: bool = true;
    const DEGRADES: bool = false;

    fn may_release(releasable: u64, held: u64, given: u64) -> bool {
        Lake::may_release(releasable, held, given)
    }
}
