//! Steps that differ from those before them, once or from then on.

use super::*;

/// Two blocks come where one did, and go where it went.
fn twice(program: &Program) -> Program {
    let mut twice = Program { acts: Vec::new(), ..program.clone() };
    let mut others: FxHashMap<usize, usize> = FxHashMap::default();
    for act in &program.acts {
        twice.acts.push(*act);
        match *act {
            Act::Ask(at, size) if at >= program.lasting => {
                others.insert(at, twice.blocks);
                twice.acts.push(Act::Ask(twice.blocks, size));
                twice.blocks += 1;
            }
            Act::Ask(..) => {}
            Act::Free(at) => twice.acts.extend(others.remove(&at).map(Act::Free)),
        }
    }
    twice
}

/// Steps that a program may do among its own, which take no more memory: all sizes a quarter or a sixth smaller, every
/// second an eighth, or twice as many of half the size.
const ODD_KINDS: u64 = 4;

fn odd(program: &Program, kind: u64) -> Program {
    let other = varied(program, |at, size| match kind {
        0 => size * 3 / 4 + 512,
        1 => size * 5 / 6 + 512,
        2 if at % 2 == 0 => size / 8 * 7,
        2 => size,
        _ => size / 2,
    });
    if kind == 3 { twice(&other) } else { other }
}

/// Recordings of steps that swap: a step of each, and the MiB of a device on which it is laid out.
const SWAPPED: [(&str, &[u8], usize, u64); 3] = [
    ("batch16", include_bytes!("../../../../../../corpus/swapped/batch16.girih"), 38, 24_832),
    ("opt", include_bytes!("../../../../../../corpus/swapped/opt.girih"), 40, 18_500),
    ("eleven", include_bytes!("../../../../../../corpus/swapped/eleven.girih"), 25, 28_500),
];

/// Pages mapped in each of so many steps of half a second on a device of so many MiB. Before each `next` says what the lake is
/// told, and whether it is the other program's.
fn mapped(
    [program, other]: [&Program; 2],
    (options, mib): (Options, u64),
    steps: usize,
    next: impl Fn(usize) -> (Asked, bool),
) -> Vec<u64> {
    let mut machine = Machine::of(options, config(), mib * MIB);
    // As views are where a GPU is busy.
    machine.device.set_dearness(3);
    machine.lake.expect(Asked::default());
    let mut blocks = vec![None; program.blocks.max(other.blocks)];
    for (at, size) in program.sizes.iter().enumerate() {
        blocks[at] = Some(machine.ask_unchecked(*size));
    }
    let mut run = Run { machine, blocks, step: 0 };
    let step = |number: usize| {
        let (asked, is_other) = next(number);
        run.machine.lake.expect(asked);
        run.step += 499_999;
        run.step(if is_other { other } else { program })
    };
    (0..steps).map(step).collect()
}

/// Of a run of which those steps are odd that are said to be.
fn mapped_with_odd_steps(
    (_, recording, step, mib): (&str, &[u8], usize, u64),
    kind: u64,
    in_vain: u64,
    is_odd: impl Fn(usize) -> bool,
    steps: usize,
) -> Vec<u64> {
    let program = Program::of_step(recording, step);
    let options = Options { time_free_ms: 0, in_vain, ..Options::swapping() };
    let next = |number| (Asked::default(), is_odd(number));
    mapped([&program, &odd(&program, kind)], (options, mib), steps, next)
}

/// Layers were compared in one step of an H200 that was at rest: it was given up just when its places were nearly found, and
/// views took a quarter of each step from then on.
#[test]
fn a_run_that_was_laid_out_comes_to_rest_again_after_a_step_of_any_kind() {
    let in_vain = Options::default().in_vain;
    for (at, kind) in [(0, 0), (0, 2), (0, 3), (1, 0), (1, 2), (2, 1)] {
        let mapped = mapped_with_odd_steps(SWAPPED[at], kind, in_vain, |step| step == 16, 48);
        assert_eq!(mapped[13..16], [0; 3], "{at}, {kind}: {mapped:?}");
        assert_eq!(mapped[45..], [0; 3], "{at}, {kind}: {mapped:?}");
    }
}

/// The same requests, of which every `each`th comes up to so many acts later, though before its own end: as where another
/// schedule has tensors come back later. No more is in use at any time.
fn rescheduled(program: &Program, each: usize, later: usize) -> Program {
    let mut acts: Vec<(usize, Act)> = program.acts.iter().copied().enumerate().collect();
    let ends: FxHashMap<usize, usize> = acts
        .iter()
        .filter_map(|(at, act)| match act {
            Act::Free(block) if *block >= program.lasting => Some((*block, *at)),
            _ => None,
        })
        .collect();
    for (at, act) in &mut acts {
        if let Act::Ask(block, _) = act
            && block.is_multiple_of(each)
            && let Some(end) = ends.get(block)
        {
            *at = (*at + later).min(end - 1);
        }
    }
    acts.sort_by_key(|(at, _)| *at);
    Program { acts: acts.into_iter().map(|(_, act)| act).collect(), ..program.clone() }
}

/// Of a run whose steps from `at` on follow another schedule, which is tried for five of them. With `is_told` the lake knows that
/// it is another.
fn mapped_with_another_schedule(
    (_, recording, step, mib): (&str, &[u8], usize, u64),
    (each, later): (usize, usize),
    is_told: bool,
    (at, steps): (usize, usize),
) -> Vec<u64> {
    let program = Program::of_step(recording, step);
    let options = Options { time_free_ms: 0, ..Options::swapping() };
    let next = |number| {
        let is_trying = (at..at + 5).contains(&number);
        (Asked { is_trying, is_other: is_told && number == at }, number >= at)
    };
    mapped([&program, &rescheduled(&program, each, later)], (options, mib), steps, next)
}

/// Every so many requests, up to so many acts later.
const OTHERS: [(usize, usize); 4] = [(2, 8), (3, 20), (1, 4), (5, 60)];

/// Two shapes of an H200 lost their rest to a schedule that had the same tensors come at other times: what the one before it had
/// was given for seven steps, at seven to nine times the views of a search, and there was no time left for more.
#[test]
fn where_the_same_tensors_come_at_other_times_steps_are_laid_out_anew() {
    for (swapped, other) in SWAPPED.into_iter().zip(OTHERS) {
        let [told, untold] = [true, false]
            .map(|is_told| mapped_with_another_schedule(swapped, other, is_told, (12, 40)));
        let sum = |pages: &[u64]| pages.iter().sum::<u64>();
        assert_eq!(told[9..12], [0; 3], "at rest before: {told:?}");
        assert_eq!(told[37..], [0; 3], "and after: {told:?}");
        // Untold it finds rest too, once what that costs is made good by what was missed.
        assert!(10 * sum(&told[12..]) < 9 * sum(&untold[12..]), "{told:?}, and {untold:?} untold");
        let views = told[12..17].iter().max();
        assert!(views < Some(&told[0]), "while it is tried nothing is had again: {told:?}");
    }
}

#[test]
#[ignore = "it prints a table"]
#[expect(clippy::print_stdout, reason = "it prints a table")]
fn ablation_of_other_schedules() {
    println!("| step | every, later by | pages, untold | from | told | from |");
    println!("| :-- | --: | --: | --: | --: | --: |");
    for swapped in SWAPPED {
        for other in OTHERS {
            let [untold, told] = [false, true].map(|is_told| {
                let mapped = mapped_with_another_schedule(swapped, other, is_told, (24, 64));
                let last = mapped.iter().rposition(|&pages| pages > 0).map_or(0, |last| last + 1);
                format!("{} | {last}", mapped[24..].iter().sum::<u64>())
            });
            println!("| {} | {other:?} | {untold} | {told} |", swapped.0);
        }
    }
}

/// Which steps of a run are odd: the first is not.
type IsOdd = fn(usize) -> bool;

const PATTERNS: [(&str, IsOdd); 6] = [
    ("each 4th", |step| step.is_multiple_of(4)),
    ("each 8th", |step| step.is_multiple_of(8)),
    ("each 16th", |step| step.is_multiple_of(16)),
    ("each 32nd", |step| step.is_multiple_of(32)),
    ("three of 24", |step| step % 24 > 20),
    ("one of 12, at random", |step| {
        (step as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(20).is_multiple_of(12)
    }),
];

#[test]
#[ignore = "it takes minutes and prints a table"]
#[expect(clippy::print_stdout, reason = "it prints a table")]
fn ablation_of_odd_steps() {
    const STEPS: usize = 96;
    println!("| recording | odd steps | without | pages a step | steps without views |");
    println!("| :-- | :-- | --: | --: | --: |");
    for swapped in SWAPPED {
        for (name, is_odd) in PATTERNS {
            let (mut pages, mut at_rest) = ([0, 0], 0);
            for kind in 0..ODD_KINDS {
                for (in_vain, pages) in [0, Options::default().in_vain].into_iter().zip(&mut pages)
                {
                    let is_odd = |step: usize| step > 0 && is_odd(step);
                    let mapped = mapped_with_odd_steps(swapped, kind, in_vain, is_odd, STEPS);
                    *pages += mapped.iter().sum::<u64>();
                    at_rest += mapped.iter().filter(|&&pages| pages == 0).count() as u64;
                }
            }
            let each = |all: u64| all / (ODD_KINDS * STEPS as u64);
            println!(
                "| {} | {name} | {} | {} | {} % |",
                swapped.0,
                each(pages[0]),
                each(pages[1]),
                each(100 * at_rest)
            );
        }
    }
}
