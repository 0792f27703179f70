//! The lake beside a model of bytes that is too simple to be wrong, and beside one that stitches nothing.

use girih_runtime::caching::Caching;
use girih_runtime::lake::Lake;
use girih_runtime::{Counters, Policy, Stats};

use super::kinds::Stitcher;
use super::program::{Held, Kind, Program};
use super::shadow::Piece;
use super::world::{GIB, World};

/// The memory of each block, piece by piece.
fn memory<P: Policy>(world: &World<P>, live: &[Held]) -> Vec<Vec<Piece>> {
    let blocks = live.iter().map(|held| held.block);
    blocks.map(|block| world.shadow.pieces(block.address, block.size)).collect()
}

/// In the order of the bytes, each piece of a block ends before the next begins.
fn assert_apart(blocks: &[Vec<Piece>]) {
    let mut pieces: Vec<&Piece> = blocks.iter().flatten().collect();
    pieces.sort_unstable_by_key(|piece| (piece.memory, piece.start));
    for pair in pieces.windows(2) {
        let [one, next] = [pair[0], pair[1]];
        let apart = one.memory != next.memory || one.end <= next.start;
        assert!(apart, "{one:?} and {next:?} have the same bytes");
    }
}

/// Everything on three streams, for long enough that holes are stitched often.
const LONG: Kind = Kind { operations: 1200, ..Kind::FULL };

#[test]
fn no_two_blocks_share_a_byte_at_any_time() {
    for seed in 100..106 {
        let mut world = World::of(64 * GIB, Lake::busy());
        let seen = Program::run(&mut world, LONG, seed, |world, live| {
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

/// What a program has after its next step: the sizes of its blocks, and the counters of them.
fn seen<P: Stitcher>(program: &mut Program<'_, P>) -> (Vec<u64>, [Counters; 4]) {
    program.step();
    let sizes = program.live.iter().map(|held| held.block.size).collect();
    let stats = Policy::stats(&program.world.lake);
    let Stats { allocation, allocated_bytes, active_bytes, requested_bytes, .. } = *stats;
    (sizes, [allocation, allocated_bytes, active_bytes, requested_bytes])
}

#[test]
fn with_memory_for_everything_a_program_is_given_what_it_has_without_stitching() {
    for seed in 106..112 {
        let mut plain = World::of(64 * GIB, Caching::busy());
        let mut stitched = World::of(64 * GIB, Lake::busy());
        let mut programs =
            (Program::new(&mut plain, LONG, seed), Program::new(&mut stitched, LONG, seed));
        for operation in 0..LONG.operations {
            let [plain, stitched] = [seen(&mut programs.0), seen(&mut programs.1)];
            assert_eq!(plain, stitched, "seed {seed}, operation {operation}");
        }
        let [plain, stitched] = [programs.0.finish(), programs.1.finish()];
        assert!((plain.stitches, plain.waits) == (0, 0) && stitched.stitches > 10);
    }
}
