//! The lake beside a model of bytes that is too simple to be wrong, and beside one that stitches nothing.

use girih_runtime::Policy;
use girih_runtime::caching::{Caching, Config};
use girih_runtime::lake::{Lake, Options};

use super::kinds::Stitcher;
use super::program::{Held, Kind, Program};
use super::shadow::Piece;
use super::world::{GIB, World};

/// The memory of each block, piece by piece.
fn memory<P: Policy>(world: &World<P>, live: &[Held]) -> Vec<Vec<Piece>> {
    let blocks = live.iter().map(|held| held.block);
    blocks.map(|block| world.shadow.pieces(block.address, block.size)).collect()
}

/// Compares every piece of every block with every piece of every other.
fn assert_apart(blocks: &[Vec<Piece>]) {
    for (at, block) in blocks.iter().enumerate() {
        for other in &blocks[at + 1..] {
            for (a, b) in block.iter().flat_map(|a| other.iter().map(move |b| (a, b))) {
                let apart = a.memory != b.memory || a.end <= b.start || b.end <= a.start;
                assert!(apart, "{a:?} and {b:?} are of two blocks");
            }
        }
    }
}

#[test]
fn no_two_blocks_share_a_byte_at_any_time() {
    for seed in 100..106 {
        let mut world = World::of(64 * GIB, Lake::busy());
        let seen = Program::run(&mut world, Kind::FULL, seed, |world, live| {
            let blocks = memory(world, live);
            assert_apart(&blocks);
            for (pieces, held) in blocks.iter().zip(live) {
                let bytes: u64 = pieces.iter().map(|piece| piece.end - piece.start).sum();
                assert_eq!(bytes, held.block.size);
            }
        });
        assert_eq!(seen.refused, 0, "there is memory for everything");
        assert!(seen.stitches > 10, "{seen:?}");
    }
}

#[test]
fn with_memory_for_everything_a_program_is_given_what_it_has_without_stitching() {
    for seed in 106..112 {
        let plain = Options { slack: 1, slack_min: 64 * GIB, ..Options::default() };
        let plain = Lake::new(plain, Caching::new(Config::default()));
        let mut plain = World::of(64 * GIB, plain);
        let mut stitched = World::of(64 * GIB, Lake::busy());
        let mut programs =
            [&mut plain, &mut stitched].map(|world| Program::new(world, Kind::FULL, seed));
        for operation in 0..Kind::FULL.operations {
            let [plain, stitched] = programs.each_mut().map(|program| {
                program.step();
                let sizes: Vec<u64> = program.live.iter().map(|held| held.block.size).collect();
                let stats = Policy::stats(&program.world.lake);
                let counters = (
                    stats.allocation,
                    stats.allocated_bytes,
                    stats.active_bytes,
                    stats.requested_bytes,
                );
                (sizes, counters)
            });
            assert_eq!(plain, stitched, "seed {seed}, operation {operation}");
        }
        let [plain, stitched] = programs.map(Program::finish);
        assert!((plain.stitches, plain.waits) == (0, 0) && stitched.stitches > 10);
    }
}
