//! Whole programs in which device calls fail: one, whichever it is, and many.
//!
//! The world walks the policy after each operation, checks the order of uses and who has which byte,
//! and refuses a call that breaks a rule of the device: what a policy owes to the device may hide
//! none.

use girih_runtime::Policy;
use girih_runtime::gmlake::Gmlake;
use girih_runtime::lake::Lake;
use girih_runtime::sim::{Fault, FaultKind, LiveObjects};

use super::kinds::Stitcher;
use super::program::{Chance, Kind, Program, Seen};
use super::world::{GIB, MIB, World};

/// A short program, so that each of its calls can fail in turn.
const SHORT: Kind = Kind { operations: 50, ..Kind::FULL };

/// Runs a program and empties the cache. At the end nothing may be held.
fn run<P: Stitcher>(world: &mut World<P>, kind: Kind, seed: u64, what: &str) -> Seen {
    let seen = Program::run(world, kind, seed, |_, _| ());
    // A fault may fall into the first of them.
    for _ in 0..60 {
        world.attempt(Policy::process_events);
        world.attempt(Policy::empty_cache);
        if world.device.live() == LiveObjects::default() {
            break;
        }
    }
    assert_eq!(world.device.live(), LiveObjects::default(), "{what}");
    assert_eq!((world.reserved(), world.shadow.held()), (0, 0), "{what}");
    let active = world.lake.stats().active_bytes;
    assert_eq!((active.all().current, active.large.current), (0, 0), "{what}");
    seen
}

/// Runs a program again and again, each time with another call that fails.
fn sweep<P: Stitcher>(bytes: u64, seed: u64) -> Seen {
    let mut world = World::of(bytes, P::busy());
    let seen = run(&mut world, SHORT, seed, "without a fault");
    let (calls, refused) = (world.device.calls(), world.refused());
    for call in 1..=calls {
        for out_of_memory in [false, true] {
            let what = format!("seed {seed}, call {call} of {calls}");
            let mut world = World::of(bytes, P::busy());
            world.device.inject(Fault { kind: FaultKind::Nth(call), out_of_memory });
            run(&mut world, SHORT, seed, &what);
            assert!(refused > 0 || world.refused() == 1, "{what}: {} refused", world.refused());
        }
    }
    seen
}

#[test]
fn under_stitch_whichever_call_fails_nothing_is_lost_and_nothing_used_too_early() {
    let mut all = Seen::default();
    // With memory for everything, and with too little.
    for (seed, bytes) in [(0, 16 * GIB), (2, 300 * MIB), (4, 300 * MIB)] {
        all += sweep::<Lake>(bytes, seed);
    }
    assert!(all.stitches > 10 && all.waits > 10 && all.retired > 0, "{all:?}");
}

#[test]
fn under_gmlake_whichever_call_fails_nothing_is_lost_and_nothing_used_too_early() {
    let all = sweep::<Gmlake>(300 * MIB, 5);
    assert!(all.stitches > 20, "{all:?}");
}

/// Long programs in which a call fails now and then.
fn storm<P: Stitcher>() -> Seen {
    let mut all = Seen::default();
    let long = Kind { operations: 800, ..Kind::FULL };
    for seed in 0..12 {
        let bytes = [400 * MIB, 16 * GIB][seed as usize % 2];
        let mut world = World::of(bytes, P::busy());
        let mut chance = Chance(seed);
        let mut call = 0;
        for _ in 0..60 {
            call += 1 + chance.below(100);
            let out_of_memory = chance.below(2) == 0;
            world.device.inject(Fault { kind: FaultKind::Nth(call), out_of_memory });
        }
        all += run(&mut world, long, seed, &format!("seed {seed}"));
        assert!(world.device.calls() > call / 2, "seed {seed}: too few faults have come");
    }
    all
}

#[test]
fn under_stitch_one_call_in_fifty_may_fail() {
    let all = storm::<Lake>();
    assert!(all.stitches > 200 && all.waits > 100, "{all:?}");
}

#[test]
fn under_gmlake_one_call_in_fifty_may_fail() {
    let all = storm::<Gmlake>();
    assert!(all.stitches > 200, "{all:?}");
}
