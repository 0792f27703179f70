//! Waits of one stream for another: what they may take of the time, and what is bought instead of more.

use arbtest::arbitrary::Unstructured;
use girih_plan::{Entry, Place, Plan, Role, Sequence};
use girih_trace::MarkKind;

use super::*;

/// A program that prefetches on one stream what another computes with: the layers' gathered weights are there for a
/// layer's time, its activations until the backward.
#[derive(Debug)]
struct Prefetch {
    /// Of each layer, MiB gathered and MiB of activations.
    layers: Vec<(u64, u64)>,
    /// Milliseconds of a step.
    step_ms: i64,
}

impl Prefetch {
    fn arbitrary(u: &mut Unstructured<'_>) -> arbtest::arbitrary::Result<Prefetch> {
        let count = u.int_in_range(2..=6)?;
        let layers = (0..count).map(|_| Ok((u.int_in_range(20..=80)?, u.int_in_range(20..=400)?)));
        Ok(Prefetch {
            layers: layers.collect::<Result<_, _>>()?,
            step_ms: u.int_in_range(1..=500)?,
        })
    }
}

/// A program and what it is at.
struct Run {
    machine: Machine,
    program: Prefetch,
    time_us: i64,
}

impl Run {
    fn new(program: Prefetch, options: Options, device: u64) -> Run {
        Run { machine: Machine::of(options, config(), device), program, time_us: 0 }
    }

    /// Allocates. In debt a wait is made only where memory could not have been bought instead.
    fn ask(&mut self, mib: u64, stream: StreamId) -> Granted {
        let (size, machine) = (mib * MIB, &mut self.machine);
        let home = machine.lake.heap.home(stream, false);
        let search = Search { size, home };
        let mut env = Env::new(&mut machine.device, &mut machine.log);
        let may_hold = machine.lake.may_hold_in_debt(&mut env, &search);
        let (held, waits) = (machine.reserved(), machine.lake.order.waits());
        let granted = machine.used(size, stream);
        if let Some(may_hold) = may_hold.filter(|_| machine.lake.order.waits() > waits) {
            let lacking = size.next_multiple_of(machine.lake.granule());
            assert!(
                held + lacking > may_hold,
                "{held} + {lacking} of {may_hold}: {:?}",
                machine.lake.pace
            );
        }
        granted
    }

    /// Forward and backward. The waits that were made.
    fn step(&mut self) -> u64 {
        let before = self.machine.lake.order.waits();
        self.time_us += self.program.step_ms * 1000;
        let time_us = self.time_us;
        let mark = Mark { before: 0, time_us, kind: MarkKind::Step, name: String::new() };
        self.machine.with(|lake, env| lake.mark(env, &mark)).unwrap();
        let layers = self.program.layers.clone();
        let mut kept = Vec::new();
        let mut gathered = self.ask(layers[0].0, SIDE);
        for (at, &(_, activations)) in layers.iter().enumerate() {
            let next = layers.get(at + 1).map(|next| self.ask(next.0, SIDE));
            kept.push(self.ask(activations, MAIN));
            let scratch = self.ask(activations, MAIN);
            self.machine.free_used(scratch, MAIN);
            self.machine.free_used(gathered, SIDE);
            let Some(next) = next else { break };
            gathered = next;
        }
        for (&(size, activations), block) in layers.iter().zip(kept).rev() {
            let weights = self.ask(size, SIDE);
            let gradient = self.ask(activations / 2 + 1, MAIN);
            self.machine.free_used(block, MAIN);
            self.machine.free_used(gradient, MAIN);
            self.machine.free_used(weights, SIDE);
        }
        self.machine.lake.order.waits() - before
    }

    /// Waits in each of so many steps.
    fn steps(&mut self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.step()).collect()
    }
}

/// A program from numbers without pattern.
fn program(seed: u64) -> Prefetch {
    let mut state = seed;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        // Numerical Recipes' linear congruential generator.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as u8
    })
    .take(256)
    .collect();
    Prefetch::arbitrary(&mut Unstructured::new(&bytes)).expect("enough numbers")
}

#[test]
fn in_debt_nobody_waits_as_long_as_memory_can_be_bought() {
    arbtest::arbtest(|u| {
        let program = Prefetch::arbitrary(u)?;
        let options = Options { bought: u.int_in_range(1..=20)?, ..Options::default() };
        let device = if u.ratio(1, 3)? { 4 * GIB } else { 64 * GIB };
        let mut run = Run::new(program, options, device);
        run.machine.device.set_stall(u.int_in_range(0..=1_000_000)?);
        run.steps(20);
        let machine = &run.machine;
        let most = machine.lake.most_in_use;
        let bound = machine.lake.with_slack(most) + most / options.bought;
        // What no hole has a whole page of comes besides.
        assert!(machine.reserved() <= bound + bound / 50, "{} of {bound}", machine.reserved());
        Ok(())
    });
}

#[test]
fn programs_of_two_streams_settle_to_what_their_share_of_the_time_allows_if_memory_lasts() {
    let (mut waited, mut silent) = (0, 0);
    for seed in 0..24 {
        let program = Prefetch { step_ms: 20, ..program(seed) };
        let options = Options { bought: 1, bought_in_ms: 5, ..Options::default() };
        let mut run = Run::new(program, options, 64 * GIB);
        let waits = run.steps(60);
        waited += u64::from(waits[0] > 0);
        let late = &waits[40..];
        let sum: u64 = late.iter().sum();
        silent += u64::from(sum == 0);
        // What the share is beyond a whole wait is saved up for one more.
        let allowed = 20 * 20_000 / options.time_share / options.stall_max_us;
        assert!(sum <= allowed + 2, "seed {seed}: {sum} of {allowed}, {waits:?}");
    }
    assert!(waited > 12 && silent > 8, "{waited} of 24 waited at first, {silent} not at last");
}

/// Layers whose gathered weights take the holes that the activations leave.
fn layers(step_ms: i64) -> Prefetch {
    Prefetch { layers: vec![(40, 300); 4], step_ms }
}

/// Half as much again may be held.
fn generous() -> Options {
    Options { bought: 2, bought_in_ms: 5, ..Options::default() }
}

#[test]
fn waits_stay_where_memory_is_short_or_their_share_of_the_time_is_small() {
    let waits = |device: u64, step_ms: i64, options: Options| {
        let mut run = Run::new(layers(step_ms), options, device);
        let waits = run.steps(30);
        (waits[29], run.machine.reserved())
    };
    // One byte in 1000 buys nothing that helps.
    let (stay, most) = waits(64 * GIB, 20, Options { bought: 1000, ..Options::default() });
    assert!(stay > 0, "the program makes waits");
    assert_eq!(waits(64 * GIB, 20, generous()).0, 0);
    // 0.3 % of ten seconds are enough for all of them.
    assert_eq!(waits(64 * GIB, 10_000, generous()), (stay, most));
    // An eighth of the device stays free.
    let tight = (most + most / 8).next_multiple_of(2 * MIB);
    assert_eq!(waits(tight, 20, generous()), (stay, most), "there is no room");
}

#[test]
fn what_was_bought_for_waits_stays_and_the_time_at_the_beginning_hides_none() {
    let mut run = Run::new(layers(20), generous(), 64 * GIB);
    let waits = run.steps(20);
    assert!(waits[0] > 0 && waits[10..].iter().all(|&waits| waits == 0), "{waits:?}");
    let held = run.machine.reserved();
    // No debt any more, and no wait either.
    run.program.step_ms = 100_000;
    let later = run.steps(10);
    assert!(later.iter().all(|&waits| waits == 0), "{later:?}");
    assert_eq!(run.machine.reserved(), held);
}

/// Two streams take turns at one place: whoever follows that plan waits for each of its requests, whatever it owes, so
/// that memory would be bought in vain.
#[test]
fn for_the_places_of_a_plan_no_memory_is_bought() {
    let turns = |at: u64| if at.is_multiple_of(2) { MAIN } else { SIDE };
    let entries = (0..64).map(|at| Entry {
        size_min: 64 * MIB,
        size_max: 64 * MIB,
        stream: turns(at),
        place: Place::Arena(0),
        until: at as u32 + 1,
    });
    let plan = Plan {
        arena_bytes: 64 * MIB,
        in_use: 64 * MIB,
        rounds: 1,
        sequences: vec![Sequence {
            role: Role::Steady,
            entries: entries.collect(),
            boundaries: Vec::new(),
        }],
        ..Plan::default()
    };
    let mut machine = Machine::of(Options::default(), config(), 64 * GIB);
    machine.lake = Lake::new(Options::default(), Caching::new(config())).with_plan(Arc::new(plan));
    for step in 0..20 {
        let mark =
            Mark { before: 0, time_us: step * 10_000, kind: MarkKind::Step, name: String::new() };
        machine.with(|lake, env| lake.mark(env, &mark)).unwrap();
        let (waits, hits) = (machine.lake.order.waits(), machine.lake.following().hits);
        for at in 0..64 {
            let block = machine.used(64 * MIB, turns(at));
            machine.free_used(block, turns(at));
        }
        assert_eq!(machine.lake.following().hits - hits, 64);
        assert!(machine.lake.order.waits() - waits >= 63);
        assert!(!machine.lake.pace.is_in_debt(), "{:?} in step {step}", machine.lake.pace);
    }
}

#[test]
fn a_wait_for_which_no_stream_stands_still_costs_nothing() {
    for (stall, most, is_owed) in [(0, 300, false), (300_000, 0, false), (u64::MAX, 300, true)] {
        let options = Options { stall_max_us: most, ..generous() };
        let mut run = Run::new(layers(20), options, 64 * GIB);
        run.machine.device.set_stall(stall);
        assert_eq!(run.steps(20)[19] == 0, is_owed, "{stall} ns, {most} us at most");
    }
}

#[test]
fn one_hole_of_another_stream_is_taken_that_needs_no_wait_though_another_fits_better() {
    let mut machine = stitching(64 * GIB);
    let holes = [900, 940].map(|size| {
        let hole = machine.used(size * MIB, SIDE);
        machine.used(2 * MIB, SIDE);
        hole
    });
    machine.free_used(holes[1], SIDE);
    let lent = machine.used(920 * MIB, MAIN);
    assert_eq!((lent.address, machine.calls(Call::WaitEvent)), (holes[1].address, 1));
    machine.free_used(lent, MAIN);
    machine.free_used(holes[0], SIDE);
    let again = machine.used(890 * MIB, MAIN);
    assert_eq!((again.address, machine.calls(Call::WaitEvent)), (lent.address, 1));
}
