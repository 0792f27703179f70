//! Policies that follow a plan, and plans that are as bad as can be, for the suite to run.

use std::sync::Arc;

use girih_plan::stweaver::{LayerSpaces, Synthesis};
use girih_plan::{Entry, Place, Plan, ROOM_GRAIN, Role, Room, Sequence};
use girih_trace::StreamId;

use crate::auto::{Auto, Planning};
use crate::caching::{Caching, Config};
use crate::gmlake;
use crate::hooked::{Hooked, Moment};
use crate::lake::{self, Lake};
use crate::policy::{Env, Policy};
use crate::registry::{Allocator, Property};
use crate::sim::SimDevice;
use crate::simulate::Setup;
use crate::stweaver::{self, Stweaver};

/// One of each policy, with settings under which those that stitch do it often, and give views up
/// often.
pub fn every_policy(seed: u64) -> Vec<Box<dyn Policy>> {
    let setup = Setup {
        gmlake: gmlake::Config { stitched_limit: 2 << 30, ..eager(seed).gmlake },
        lake: lake::Options { view_pages_max: 256, ..eager(seed).lake },
        ..eager(seed)
    };
    // Pages in the order of PyTorch want a program that keeps to more than these do.
    let config = |allocator: Allocator| Config {
        own_order: allocator.is(Property::Pages),
        ..Config::default()
    };
    let policy = |allocator: Allocator| allocator.policy(&config(allocator), &setup);
    let all = Allocator::ALL.into_iter().map(|allocator| policy(allocator).expect("it has a plan"));
    all.chain([dropping_its_plan(seed), woven(seed)]).collect()
}

/// Settings under which those that stitch do it whenever they can and give views up soon, and a
/// [`reckless_plan`].
pub fn eager(seed: u64) -> Setup {
    // Every other lake owes time from its first view on, and gives requests what they had in the step before; of these
    // every other lays steps out.
    let time_free_ms =
        if seed.is_multiple_of(2) { 0 } else { lake::Options::default().time_free_ms };
    let pages =
        if seed.is_multiple_of(3) { lake::Options::swapping() } else { lake::Options::default() };
    let lake = lake::Options {
        view_pages_max: 24,
        patched: 1,
        time_free_ms,
        in_vain: 1 << 20,
        lost: if seed.is_multiple_of(4) { 2 } else { 0 },
        ..pages
    };
    Setup {
        gmlake: gmlake::Config {
            fragmentation_limit: SimDevice::GRANULARITY,
            stitched_limit: 64 << 20,
            ..gmlake::Config::default()
        },
        lake,
        plan: Some(Arc::new(reckless_plan(seed))),
        ..Setup::default()
    }
}

/// A lake, with expandable segments for private pools.
fn lake() -> Lake {
    Lake::of(Config { expandable_segments: true, ..Config::default() })
}

/// A lake that follows `plan` from the first request on.
pub fn planned(plan: Plan) -> Box<dyn Policy> {
    Box::new(lake().with_plan(Arc::new(plan)))
}

/// A lake that follows a [`reckless_plan`] from the first request on and drops it at one of the first marks.
pub fn dropping_its_plan(seed: u64) -> Box<dyn Policy> {
    let lake = lake().with_plan(Arc::new(reckless_plan(seed)));
    let mut marks_left = seed % 5;
    Box::new(Hooked::new(lake, move |lake: &mut Lake, _: &mut Env<'_>, moment| {
        if moment == Moment::Mark {
            marks_left = marks_left.saturating_sub(1);
            if marks_left == 0 {
                lake.unfollow();
            }
        }
        Ok(())
    }))
}

/// A lake that follows one plan from the first request on. The places are large, and what comes is small: much of
/// the window is idle, and lent.
pub fn with_idle_places(seed: u64) -> Box<dyn Policy> {
    let mut plan = reckless_plan(seed);
    for entry in plan.sequences.iter_mut().flat_map(|sequence| &mut sequence.entries) {
        entry.size_max = 16 << 20;
    }
    planned(plan)
}

/// STWeaver's allocator with a plan of overlapping places and spaces, in which a dynamic layer begins or ends at every
/// third operation.
pub fn woven(seed: u64) -> Box<dyn Policy> {
    let plan = reckless_plan(seed);
    let half = plan.arena_bytes / 2;
    let spaces = vec![vec![(0, half)], vec![(4096, 8192), (half / 2, 2 * half)], Vec::new()];
    let layer = |first: u32| LayerSpaces { requests: vec![first, 2, 1 - first], longest: first };
    let (opening, steady) = (vec![layer(1)], vec![layer(0), layer(1), LayerSpaces::default()]);
    let synthesis = Arc::new(Synthesis { plan, spaces, opening, steady, ..Synthesis::default() });
    let mut inner = Stweaver::new(stweaver::Options::default(), Caching::new(Config::default()));
    inner.set_plan(synthesis);
    let mut operations = 0u32;
    Box::new(Hooked::new(inner, move |inner: &mut Stweaver, _: &mut Env<'_>, _| {
        operations += 1;
        inner.set_layer((!operations.is_multiple_of(3)).then_some(operations / 3));
        Ok(())
    }))
}

/// A policy that learns its plan, at once.
pub fn auto() -> Box<dyn Policy> {
    let mut auto = Auto::new(lake());
    auto.set_planning(Planning::AtOnce);
    Box::new(auto)
}

/// A plan that is wrong in every way that a plan can be: it takes any request, and its places
/// overlap while they are alive. Nothing but the guard stands between it and the program.
pub fn reckless_plan(seed: u64) -> Plan {
    const MIB: u64 = 1 << 20;
    const ROOMS: u64 = 4;
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let entries = (0..60).map(|index| {
        let size_max = 512 << next(15);
        let place = match next(6) {
            0 => Place::Outside,
            5 => Place::Room(next(ROOMS) as u32),
            1 => Place::Persistent(next(32 * MIB / 512) * 512),
            _ => Place::Arena(next(32 * MIB / 512) * 512),
        };
        let stream = StreamId(next(3) as u16);
        Entry { size_min: 1, size_max, stream, place, until: index + 1 }
    });
    let entries: Vec<Entry> = entries.collect();
    let rooms = (0..ROOMS).map(|_| Room {
        offset: next(32 * MIB / 512) * 512,
        bytes: (1 + next(64)) * ROOM_GRAIN / 4,
    });
    let sequence = Sequence { role: Role::Steady, entries, boundaries: Vec::new() };
    Plan {
        arena_bytes: 64 * MIB,
        persistent_bytes: 64 * MIB,
        lower_bound: 0,
        in_use: 0,
        peak: 64 * MIB,
        proven: false,
        planner: "chance".to_owned(),
        requests: 60,
        iterations: 2,
        rounds: 1,
        trial: None,
        rooms: rooms.collect(),
        sequences: vec![sequence],
    }
}
