//! A step that repeats comes to rest where memory is full nearly all the time.

mod odd;

use girih_trace::compress::Limits;
use girih_trace::{Mark, MarkKind};

use super::*;
use crate::lake::turn::{PARTS_MAX, REQUESTS_MAX};
use crate::lake::views::Part;

/// What a program does in a step: it asks for blocks by number, and frees them.
#[derive(Clone, Copy, Debug)]
enum Act {
    Ask(usize, u64),
    Free(usize),
}

/// A step of training in which what does not fit goes to the host. The blocks that last into the next step have the
/// first numbers.
#[derive(Clone)]
struct Program {
    acts: Vec<Act>,
    lasting: usize,
    blocks: usize,
    /// The most bytes that are in use at once.
    peak: u64,
    /// Of what is alive at the beginning, if the step does not ask for all of it.
    sizes: Vec<u64>,
}

impl Program {
    /// A step as the heap of a GPU has seen it: `corpus/swapped_step.txt`.
    fn recorded() -> Program {
        let text = include_str!("../../../../../corpus/swapped_step.txt");
        let words =
            text.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace);
        let number = |word: &str| word.parse::<u64>().expect("a number");
        let mut acts: Vec<Act> = Vec::new();
        let mut older: Vec<u64> = Vec::new();
        let (mut alive, mut next) = (Vec::new(), 0);
        // Numbers are those of the file until it is known how many blocks last.
        for word in words {
            if let Some(size) = word.strip_prefix('=') {
                acts.push(Act::Free(usize::MAX - older.len()));
                older.push(number(size));
            } else if let Some(at) = word.strip_prefix('-') {
                let at = number(at) as usize;
                alive.retain(|(other, _)| *other != at);
                acts.push(Act::Free(at));
            } else {
                acts.push(Act::Ask(next, number(word)));
                alive.push((next, number(word)));
                next += 1;
            }
        }
        // What is left takes the place of what was freed of the step before, size by size.
        let mut lasting = alive.clone();
        let place: FxHashMap<usize, usize> = older
            .iter()
            .enumerate()
            .map(|(at, size)| {
                let left = lasting.iter().position(|(_, other)| other == size);
                (lasting.remove(left.expect("as much is left as was there")).0, at)
            })
            .collect();
        assert!(lasting.is_empty());
        let count = older.len();
        let number = |at: usize| match place.get(&at) {
            Some(lasting) => *lasting,
            None if at > next => usize::MAX - at,
            None => count + at,
        };
        for act in &mut acts {
            match act {
                Act::Ask(at, _) | Act::Free(at) => *at = number(*at),
            }
        }
        let mut program =
            Program { acts, lasting: count, blocks: count + next, peak: 0, sizes: Vec::new() };
        program.measure(older);
        program
    }

    /// Finds the peak, where blocks of these sizes are there when the step begins.
    fn measure(&mut self, lasting: Vec<u64>) {
        let mut sizes = lasting;
        sizes.resize(self.blocks, 0);
        let mut in_use: u64 = sizes.iter().sum();
        self.peak = in_use;
        for act in &self.acts {
            match *act {
                Act::Ask(at, size) => {
                    sizes[at] = size;
                    in_use += size;
                }
                Act::Free(at) => in_use -= sizes[at],
            }
            self.peak = self.peak.max(in_use);
        }
    }

    /// A step of a recording of a run that swaps, which is repeated.
    fn of_step(recording: &[u8], step: usize) -> Program {
        let read = girih_trace::open::detect_and_read(recording, Limits::default());
        let trace = read.expect("a recording").traces.swap_remove(0);
        let steps = trace.marks.iter().filter(|mark| mark.kind == MarkKind::Step);
        let bounds: Vec<usize> =
            steps.map(|mark| mark.before as usize).skip(step).take(2).collect();
        let (start, end) = (bounds[0], bounds[1]);
        // What is alive at the beginning, and what the step does. Blocks go by the event that they were born at.
        let (mut alive, mut older, mut acts) = (FxHashMap::default(), Vec::new(), Vec::new());
        let mut freed: Vec<(usize, u64)> = Vec::new();
        let mut numbers: FxHashMap<usize, usize> = FxHashMap::default();
        for (at, event) in trace.events.iter().enumerate() {
            if at == start {
                older = alive.values().copied().collect();
                older.sort_unstable();
                numbers.extend(older.iter().zip(0..).map(|(&(born, _), number)| (born, number)));
            }
            let is_in_step = (start..end).contains(&at);
            match event.action {
                Action::Alloc => {
                    alive.insert(event.address, (at, event.size));
                    if is_in_step {
                        acts.push((at, Some(event.size)));
                    }
                }
                Action::FreeRequested => {
                    let (born, size) = alive.remove(&event.address).expect("it is there");
                    if is_in_step {
                        acts.push((born, None));
                        if born < start {
                            freed.push((born, size));
                        }
                    } else if (start..end).contains(&born)
                        && let Some(place) = freed.iter().position(|(_, other)| *other == size)
                    {
                        // It lasts, and takes the place of one that the step has freed: in the order of frees.
                        let number = numbers[&freed.remove(place).0];
                        numbers.insert(born, number);
                    }
                }
                _ => {}
            }
        }
        let mut blocks = older.len();
        let mut number = |born: usize| {
            *numbers.entry(born).or_insert_with(|| {
                blocks += 1;
                blocks - 1
            })
        };
        let act = |(born, size): (usize, Option<u64>)| match size {
            Some(size) => Act::Ask(number(born), size),
            None => Act::Free(number(born)),
        };
        let acts = acts.into_iter().map(act).collect();
        let sizes: Vec<u64> = older.into_iter().map(|(_, size)| size).collect();
        let lasting = sizes.len();
        let mut program = Program { acts, lasting, blocks, peak: 0, sizes: sizes.clone() };
        program.measure(sizes);
        program
    }

    fn lasting(&self) -> Vec<(usize, u64)> {
        let asked = self.acts.iter().filter_map(|act| match *act {
            Act::Ask(at, size) if at < self.lasting => Some((at, size)),
            _ => None,
        });
        asked.collect()
    }
}

/// The program on a lake that owes time from the first view on.
struct Run {
    machine: Machine,
    blocks: Vec<Option<Granted>>,
    step: i64,
}

impl Run {
    /// With so many bytes beside the program's, and within its peak and one byte in `slack`.
    fn new(program: &Program, in_vain: u64, slack: u64) -> Run {
        let options =
            Options { in_vain, time_free_ms: 0, time_share: u64::MAX, ..Options::default() };
        let mut machine = Machine::of(options, config(), 64 * GIB);
        let beside = 64;
        let most = program.peak + beside * 40 * MIB;
        machine.with(|lake, _| lake.set_limit(Some(most + most / slack)));
        machine.lake.expect(Asked::default());
        let mut blocks = vec![None; program.blocks];
        for (at, size) in program.lasting() {
            blocks[at] = Some(machine.ask_unchecked(size));
        }
        for _ in 0..beside {
            machine.ask_unchecked(40 * MIB);
        }
        Run { machine, blocks, step: 0 }
    }

    fn mark(&mut self) {
        self.step += 1;
        let name = String::new();
        let mark = Mark { before: 0, time_us: self.step, kind: MarkKind::Step, name };
        self.machine.with(|lake, env| lake.mark(env, &mark)).unwrap();
    }

    /// Pages mapped in one step.
    fn step(&mut self, program: &Program) -> u64 {
        self.mark();
        let before = self.machine.calls(Call::Map);
        for act in &program.acts {
            match *act {
                Act::Ask(at, size) => self.blocks[at] = Some(self.machine.ask_unchecked(size)),
                Act::Free(at) => {
                    let block = self.blocks[at].take().expect("it is there");
                    self.machine.free_unchecked(block);
                }
            }
        }
        self.machine.calls(Call::Map) - before
    }
}

#[test]
fn a_step_that_repeats_makes_no_views_any_more() {
    let program = Program::recorded();
    let late = |in_vain: u64| -> Vec<u64> {
        let mut run = Run::new(&program, in_vain, 100);
        (0..12).map(|_| run.step(&program)).skip(6).collect()
    };
    let without = late(0);
    assert!(without.iter().all(|&pages| pages > 1000), "without it: {without:?}");
    assert_eq!(late(Options::default().in_vain), [0; 6]);
}

#[test]
fn where_nothing_comes_and_goes_places_are_not_had_again() {
    let program = Program::recorded();
    let mut run = Run::new(&program, Options::default().in_vain, 100);
    run.machine.lake.repeats = Repeats::new(&Options::default());
    let mut without = Run::new(&program, 0, 100);
    for _ in 0..8 {
        assert_eq!(run.step(&program), without.step(&program));
        assert!(!run.machine.lake.repeats.is_watching());
    }
}

/// Pages mapped in each of so many steps that are a step of a recording, on a device of so many MiB.
fn mapped_in_steps(
    weights: Options,
    recording: &[u8],
    step: usize,
    mib: u64,
    steps: usize,
) -> Vec<u64> {
    let program = Program::of_step(recording, step);
    let options = Options { time_free_ms: 0, time_share: u64::MAX, ..weights };
    let mut machine = Machine::of(options, config(), mib * MIB);
    machine.lake.expect(Asked::default());
    let mut blocks = vec![None; program.blocks];
    for (at, size) in program.sizes.iter().enumerate() {
        blocks[at] = Some(machine.ask_unchecked(*size));
    }
    let mut run = Run { machine, blocks, step: 0 };
    (0..steps).map(|_| run.step(&program)).collect()
}

#[test]
fn steps_of_runs_that_swap_are_laid_out_where_memory_is_full() {
    let batch16 = include_bytes!("../../../../../corpus/swapped/batch16.girih");
    let opt = include_bytes!("../../../../../corpus/swapped/opt.girih");
    let eleven = include_bytes!("../../../../../corpus/swapped/eleven.girih");
    // Three steps until two were the same, one in which what lasts moves, one in which the others do; and of eleven
    // layers, whose states come back in the order in which they leave, some until all have found their places.
    for (recording, step, mib, rests) in [
        (&batch16[..], 38, 24 << 10, 10),
        (&opt[..], 40, 18_000, 10),
        (&eleven[..], 25, 28_000, 18),
    ] {
        let mapped = mapped_in_steps(Options::swapping(), recording, step, mib, 24);
        assert!(mapped[..3].iter().all(|&pages| pages > 500), "{mapped:?}");
        assert!(mapped[rests..].iter().all(|&pages| pages == 0), "{mapped:?}");
    }
    // With smaller pages, as at the edge of a device: what was refused is tried again.
    for (recording, step, mib, rests) in
        [(&batch16[..], 38, 24 << 10, 24), (&opt[..], 40, 18_000, 10)]
    {
        let mapped = mapped_in_steps(Options::default(), recording, step, mib, 30);
        assert!(mapped[rests..].iter().all(|&pages| pages == 0), "{mapped:?}");
    }
}

/// The same with other sizes of what does not last.
fn varied(program: &Program, size: impl Fn(usize, u64) -> u64) -> Program {
    let mut varied = program.clone();
    for act in &mut varied.acts {
        if let Act::Ask(at, bytes) = act
            && *at >= program.lasting
        {
            *bytes = size(*at, *bytes);
        }
    }
    varied
}

#[test]
fn after_a_step_that_differs_the_run_comes_to_rest_again() {
    let program = Program::recorded();
    // What other sizes leave at the ends of pages is lost to views: a fiftieth is kept for it.
    let mut run = Run::new(&program, Options::default().in_vain, 50);
    (0..8).for_each(|_| _ = run.step(&program));
    for kind in 0..6 {
        assert_eq!(run.step(&program), 0);
        // Evaluations: all sizes are others, or each third is.
        let other = varied(&program, |at, size| match kind {
            0..4 => size * (kind + 2) / (kind + 3) + 512,
            _ if at % 3 == 0 => size / (kind - 2),
            _ => size,
        });
        run.step(&other);
        let after: Vec<u64> = (0..6).map(|_| run.step(&program)).collect();
        assert_eq!(after[3..], [0; 3], "{kind}: {after:?}");
    }
}

#[test]
fn a_place_whose_pages_went_back_is_not_had_as_it_was() {
    let program = Program::recorded();
    for size in [1, 3, 5, 7].map(|gib| gib * GIB) {
        let mut run = Run::new(&program, Options::default().in_vain, 50);
        (0..8).for_each(|_| _ = run.step(&program));
        assert_eq!(run.step(&program), 0);
        assert!(run.machine.lake.layings().stands);
        // Other pages come to the same addresses: larger ones, as of one request.
        run.machine.empty_cache();
        let block = run.machine.alloc(size);
        run.machine.free(block);
        // Each view is of the pages of its parts, or the walk at the end of each step fails.
        (0..4).for_each(|_| _ = run.step(&program));
    }
}

#[test]
fn a_place_in_a_segment_that_is_gone_is_not_shown() {
    let mut machine = Machine::of(Options::default(), config(), GIB);
    let block = machine.alloc(40 * MIB);
    let place = [Part { address: block.address, size: block.size }];
    assert!(machine.lake.can_be_shown(&place));
    machine.free(block);
    machine.empty_cache();
    assert!(!machine.lake.can_be_shown(&place));
}

#[test]
fn a_run_whose_sizes_vary_is_served_as_without_it() {
    let program = Program::recorded();
    let mapped = |in_vain: u64| -> Vec<u64> {
        let mut run = Run::new(&program, in_vain, 100);
        let step = |number: u64| {
            // No size comes twice.
            let differs = |at: usize, size: u64| match size > MIB {
                true => size - ((number * 1024 + at as u64) * 512) % (size / 2),
                false => size,
            };
            run.step(&varied(&program, differs))
        };
        (1..40).map(step).collect()
    };
    let (with, without) = (mapped(Options::default().in_vain), mapped(0));
    let sum = |pages: &[u64]| pages.iter().sum::<u64>();
    assert!(sum(&with) <= sum(&without) * 11 / 10, "{with:?}, {without:?} without it");
}

/// Eleven layers in memory in which they have no layout, and in which what they had before is of no use either. Where that
/// they have none is found out, nothing is tried; elsewhere it is, some times.
#[test]
fn what_is_tried_in_vain_takes_a_small_part_of_the_run() {
    let eleven = include_bytes!("../../../../../corpus/swapped/eleven.girih");
    let program = Program::of_step(&eleven[..], 25);
    let run = |in_vain: u64, lost: u64| {
        let options = Options { time_free_ms: 0, in_vain, lost, ..Options::swapping() };
        let mut machine = Machine::of(options, config(), 25_000 * MIB);
        machine.lake.expect(Asked::default());
        let mut blocks = vec![None; program.blocks];
        for (at, size) in program.sizes.iter().enumerate() {
            blocks[at] = Some(machine.ask_unchecked(*size));
        }
        let mut run = Run { machine, blocks, step: 0 };
        let pages: Vec<u64> = (0..200)
            .map(|_| {
                // A second for each.
                run.step += 999_999;
                run.step(&program)
            })
            .collect();
        (pages, run.machine.lake.layings())
    };
    let Options { in_vain, lost, .. } = Options::default();
    let (refused, layings) = run(in_vain, lost);
    let (tried, _) = run(in_vain, 0);
    let (without, _) = run(0, 0);
    assert!(layings.refused > 0 && layings.laid_out == 0 && layings.without_place > 512 * MIB);
    let sum = |pages: &[u64]| pages.iter().sum::<u64>();
    assert!(sum(&refused) * 100 < sum(&without) * 102, "{refused:?}, {without:?} without it");
    assert!(tried.iter().any(|&pages| pages > 24_000), "it was tried");
    assert!(sum(&tried) * 10 < sum(&without) * 13, "{tried:?}, {without:?} without it");
}

/// For each step of `corpus/swapped/batch16.girih` whether the executor of swapping had settled when it had ended.
const SETTLED: &str = "00000000000000000000101111111111011111111111";

/// A recording on a lake of the budget that it had, where views are dear. Pages mapped in each step. At the end of each the lake
/// is told whether what is to be copied is settled; and, where there is an `x`, that from then on it is something else.
fn mapped_in_recording(recording: &[u8], bytes: u64, told: &str) -> Vec<u64> {
    let read = girih_trace::open::detect_and_read(recording, Limits::default());
    let trace = read.expect("a recording").traces.swap_remove(0);
    let mut machine = Machine::of(Options::swapping(), config(), bytes);
    // As they are where a GPU is busy.
    machine.device.set_dearness(3);
    machine.lake.expect(Asked::default());
    let (mut blocks, mut alive) = (Vec::new(), FxHashMap::default());
    let mut told = told.bytes();
    let (mut marks, mut mapped) = (trace.marks.iter().peekable(), Vec::new());
    for (at, event) in trace.events.iter().enumerate() {
        while let Some(mark) = marks.next_if(|mark| mark.before as usize <= at) {
            if mark.kind != MarkKind::Step {
                continue;
            }
            if let Some(told) = told.next() {
                let (is_trying, is_other) = (told != b'1', told == b'x');
                machine.lake.expect(Asked { is_trying, is_other });
            }
            machine.with(|lake, env| lake.mark(env, mark)).unwrap();
            mapped.push(machine.calls(Call::Map));
        }
        match event.action {
            Action::Alloc => {
                alive.insert(event.address, blocks.len());
                blocks.push(Some(machine.ask_unchecked(event.size)));
            }
            Action::FreeRequested => {
                let block = alive.remove(&event.address).and_then(|it: usize| blocks[it].take());
                machine.free_unchecked(block.expect("it is there"));
            }
            _ => {}
        }
    }
    mapped.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn places_are_not_had_again_while_schedules_are_tried() {
    let batch16 = include_bytes!("../../../../../corpus/swapped/batch16.girih");
    let [told, untold] = [SETTLED, ""].map(|told| mapped_in_recording(batch16, 24 * GIB, told));
    let sum = |pages: &[u64]| pages.iter().sum::<u64>();
    assert!(sum(&told) * 4 <= sum(&untold) * 3, "{told:?}, and {untold:?} untold");
    // Settled in step 21 and, after one more schedule, in 23; layers are compared in step 32.
    assert_eq!(told[26..30], [0; 4], "{told:?}");
    assert_eq!(told[33..42], [0; 9], "{told:?}");
    // The last is another: the program reads its gradients.
    assert!(told[42] < 200, "{told:?}");
}

/// Eight layers, of which layers are compared in step 31. A schedule that is tried shortly before costs the places of the one
/// that stood, and that step what is had again: on an H200 views took a quarter of each of the 85 steps that came after it, for what
/// it had cost to find places twice was more than might be spent.
#[test]
fn rest_that_was_lost_is_found_again_once_what_that_costs_is_made_good_by_what_was_missed() {
    let products = include_bytes!("../../../../../corpus/swapped/products.girih");
    let told = "010000000000000000001111111x00000000111111111111111111111111";
    let mapped = mapped_in_recording(products, 24_864_931_328, told);
    assert_eq!(mapped[24..27], [0; 3], "at rest before: {mapped:?}");
    assert!(mapped[28..36].iter().all(|&pages| pages > 1000), "and not while: {mapped:?}");
    assert_eq!(mapped[42..58], [0; 16], "and after: {mapped:?}");
}

#[test]
fn what_is_remembered_of_a_step_is_bounded() {
    let program = Program::recorded();
    let mut run = Run::new(&program, u64::MAX, 100);
    (0..3).for_each(|_| _ = run.step(&program));
    for _ in 0..3 {
        run.mark();
        for _ in 0..REQUESTS_MAX + 100 {
            let block = run.machine.ask_unchecked(2 * MIB);
            run.machine.free_unchecked(block);
        }
        let (requests, parts) = run.machine.lake.repeats.remembered();
        assert!(requests <= REQUESTS_MAX && parts <= PARTS_MAX, "{requests} and {parts}");
    }
    assert!(run.machine.lake.repeats.is_watching());
}

impl Machine {
    /// Without a walk through everything, and without a kernel.
    fn ask_unchecked(&mut self, size: u64) -> Granted {
        let mut env = Env::new(&mut self.device, &mut self.log);
        let request = Request { size, stream: MAIN, pool: PoolId(0) };
        let granted = Policy::allocate(&mut self.lake, &mut env, request).unwrap();
        self.log.clear();
        granted
    }

    fn free_unchecked(&mut self, granted: Granted) {
        let mut env = Env::new(&mut self.device, &mut self.log);
        Policy::free(&mut self.lake, &mut env, granted.block).unwrap();
    }
}
