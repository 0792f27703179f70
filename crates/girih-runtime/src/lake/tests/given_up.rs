//! A plan that is in the way of the rest is given up.

use girih_plan::{Entry, Place, Plan, Role, Sequence};

use super::*;

/// A plan of one large block, and then of many of 2 MiB in its place, with 8 MiB from one to the next.
fn sparse(count: u64) -> Plan {
    let entry = |size: u64, offset: u64, until: u64| Entry {
        size_min: size,
        size_max: size,
        stream: MAIN,
        place: Place::Arena(offset),
        until: until as u32,
    };
    let arena_bytes = 8 * MIB * count;
    let small = (0..count).map(|at| entry(2 * MIB, 8 * MIB * at, count + 1));
    let entries = std::iter::once(entry(arena_bytes, 0, 1)).chain(small).collect();
    Plan {
        arena_bytes,
        in_use: arena_bytes,
        rounds: 1,
        sequences: vec![Sequence { role: Role::Steady, entries, boundaries: Vec::new() }],
        ..Plan::default()
    }
}

#[test]
fn a_plan_that_leaves_no_whole_page_to_the_rest_is_given_up() {
    // Little that is held beyond the 32 GiB that were in use, and much.
    for (rest, is_given_up) in [(512 * MIB, false), (GIB, true)] {
        let mut machine = stitching(128 * GIB);
        machine.lake =
            Lake::new(Options::default(), Caching::new(config())).with_plan(Arc::new(sparse(4096)));
        let large = machine.used(32 * GIB, MAIN);
        machine.free_used(large, MAIN);
        (0..4096).for_each(|_| {
            machine.used(2 * MIB, MAIN);
        });
        assert_eq!((machine.lake.following().hits, machine.reserved()), (4097, 32 * GIB));
        machine.used(rest, MAIN);
        // The hole behind the last block is beside the new pages.
        assert!(machine.reserved() >= 32 * GIB + rest - 8 * MIB, "{}", machine.reserved());
        let left = (machine.lake.given_up(), machine.lake.plan().is_some());
        assert_eq!(left, (is_given_up.into(), !is_given_up));
    }
}
