//! Runs that die for a reason that is known: a program, and a device on which PyTorch's allocator
//! refuses it.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(unreachable_pub, reason = "the tests are crates of their own")]

use girih_plan::granted;
use girih_runtime::caching::{Caching, Config};
use girih_runtime::record::record;
use girih_runtime::sim::SimDevice;
use girih_runtime::simulate::{Allocator, Setup, simulate};
use girih_trace::generate::{Chance, Death, Rng, died, died_with};
use girih_trace::{Action, Iterations, Lifetimes, PoolId, Tick, Trace};
use girih_why::diagnosis::one_by_one;
use girih_why::{Diagnosis, Known, Question, Recorded, Verdict, diagnose};

/// A run that died.
pub struct Dead {
    pub death: Death,
    pub seed: u64,
    /// What PyTorch would have recorded.
    pub trace: Trace,
    /// Bytes of the device.
    pub capacity: u64,
    /// What the error's text would have said.
    pub known: Known,
}

/// The verdict that is right.
pub fn right(death: Death) -> Verdict {
    match death {
        Death::TooMuch => Verdict::TooMuch,
        Death::Fragmented => Verdict::Fragmented,
        Death::LeakOfGraphs | Death::LeakByList => Verdict::Leak,
        Death::OtherProcess => Verdict::OtherProcess,
        Death::OtherPool => Verdict::OtherPool,
        Death::OptimizerSpike | Death::LineSpike => Verdict::Spike,
        Death::OtherStream => Verdict::OtherStream,
    }
}

/// What a program has at most, and where.
struct Needs {
    lives: Lifetimes,
    program: Trace,
}

impl Needs {
    fn peak(&self, from: usize, to: usize) -> u64 {
        let (mut live, mut peak) = (0, 0);
        for (tick, &request) in self.lives.request_of.iter().enumerate().take(to) {
            if request == Lifetimes::NONE {
                continue;
            }
            let life = &self.lives.requests[request as usize];
            if life.birth.index() == tick {
                live += granted(life.size);
            } else if life.death.index() == tick {
                live -= granted(life.size);
            }
            if tick >= from {
                peak = peak.max(live);
            }
        }
        peak
    }

    /// Ticks at which an event of this action has a frame with this text in it.
    fn at(&self, text: &str) -> Vec<usize> {
        let events = self.program.events.iter().enumerate();
        let has = |stack: u32| {
            let stack = self.program.stacks.get(stack as usize);
            let text = |frame: &u32| self.program.frames[*frame as usize].contains(text);
            stack.is_some_and(|stack| stack.iter().any(text))
        };
        let is = |event: &girih_trace::Event| event.action == Action::Alloc && has(event.stack.0);
        events.filter(|(_, event)| is(event)).map(|(tick, _)| tick).collect()
    }
}

/// The run of a reason and a seed; None where no device makes the program die of it.
pub fn die(death: Death, seed: u64) -> Option<Dead> {
    let program = died(death, seed);
    let needs = Needs { lives: Lifetimes::of(&program), program };
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37) ^ death as u64);
    (0..24).find_map(|_| attempt(death, seed, &needs, &mut rng))
}

fn attempt(death: Death, seed: u64, needs: &Needs, rng: &mut Rng) -> Option<Dead> {
    let end = needs.program.events.len();
    let peak = needs.peak(0, end);
    let building = needs.at("train.py:20 build");
    let weights = needs.peak(0, building.last()? + 1);
    let optimizer = needs.at("torch/optim/");
    let first_step = optimizer.first().copied().unwrap_or(end);
    let between = |rng: &mut Rng, low: u64, high: u64, from: u64, to: u64| {
        let share = from + rng.below(to - from);
        low + (high.saturating_sub(low)) / 100 * share
    };
    let native = |limit: u64| record_on(&needs.program, limit, false);
    let reserved = || reserved_peak(&native(1 << 42));
    let evaluation = needs.at("train.py:72 evaluate");
    let capacity = match death {
        Death::TooMuch => between(rng, weights, needs.peak(0, first_step), 30, 90),
        Death::Fragmented | Death::OtherPool | Death::OtherStream => {
            between(rng, peak, reserved(), 2, 95)
        }
        Death::LeakOfGraphs | Death::LeakByList => between(rng, weights, peak, 30, 95),
        Death::OtherProcess => between(rng, weights, peak, 40, 95),
        Death::OptimizerSpike => {
            between(rng, needs.peak(0, first_step), needs.peak(first_step, end), 10, 80)
        }
        Death::LineSpike => between(rng, needs.peak(0, *evaluation.first()?), peak, 15, 95),
    };
    let unwinds = rng.one_in(2);
    let trace = record_on(&needs.program, capacity, unwinds);
    let refused = trace.events.iter().position(|event| event.action == Action::Oom)?;
    let stack = trace.events[refused].stack;
    let frames: Vec<&str> = (trace.stacks[stack.0 as usize].iter())
        .map(|&frame| trace.frames[frame as usize].as_str())
        .collect();
    let dies_in = |text: &str| frames.iter().any(|frame| frame.contains(text));
    // It must have died of its reason, and not of another on the way.
    let is_right = match death {
        Death::OptimizerSpike => dies_in("torch/optim/"),
        Death::LineSpike => dies_in("train.py:72"),
        Death::TooMuch => !dies_in("torch/optim/"),
        // Lengths have varied for some steps.
        Death::Fragmented => needs_of(&trace).at("train.py:40").len() >= 4,
        Death::LeakOfGraphs | Death::LeakByList => {
            // Enough steps to see it grow: what it keeps is not yet there in the first two.
            let line = if death == Death::LeakByList { "train.py:40" } else { "train.py:60" };
            needs_of(&trace).at(line).len() >= 5
        }
        _ => true,
    };
    if !is_right {
        return None;
    }
    let card = (2 * peak).next_multiple_of(1 << 30) + (8 << 30);
    let others = card - capacity - (1 << 29);
    let known = match death {
        Death::OtherProcess => Known { card: Some(card), others: Some(others), ..Known::default() },
        _ => Known::default(),
    };
    Some(Dead { death, seed, trace, capacity, known })
}

fn needs_of(recorded: &Trace) -> Needs {
    Needs { lives: Lifetimes::of(recorded), program: recorded.clone() }
}

fn reserved_peak(trace: &Trace) -> u64 {
    girih_runtime::replay::recorded_reserved_peak(trace).unwrap_or(0)
}

fn record_on(program: &Trace, capacity: u64, unwinds: bool) -> Trace {
    let mut policy = Caching::new(Config::default());
    let mut device = SimDevice::new(capacity);
    let unwinds = |index: u32| unwinds && !index.is_multiple_of(3);
    record(program, &mut policy, &mut device, &unwinds).expect("the simulated device obeys")
}

/// Whether the whole program gets to its end as the advice says; None if nothing was advised that can
/// be tried here: another allocator for idle memory, a smaller batch for too much of it.
pub fn advice_helps(dead: &Dead, said: &Diagnosis) -> Option<bool> {
    let told = said.told.as_ref()?;
    let (allocator, share) = match said.verdict {
        Verdict::TooMuch => (Allocator::Native, told.smaller?),
        // The pool is given back: all its requests are those of the default pool.
        Verdict::OtherPool => (Allocator::Native, 1.0),
        Verdict::Fragmented | Verdict::OtherStream => {
            let fitting =
                told.would_fit.iter().filter(|fit| fit.fits && fit.setting.conf.is_empty());
            (fitting.max_by_key(|fit| fit.spare)?.setting.allocator, 1.0)
        }
        _ => return None,
    };
    // What a plan gives, stitching gives without.
    let allocator = if allocator == Allocator::Planned { Allocator::Stitch } else { allocator };
    let mut program = died_with(dead.death, dead.seed, share);
    if said.verdict == Verdict::OtherPool {
        program.events.iter_mut().for_each(|event| event.pool = PoolId::DEFAULT);
    }
    let lives = Lifetimes::of(&program);
    let setup = Setup { capacity: Some(dead.capacity), ..Setup::default() };
    let ran = simulate(&program, &lives, allocator, &setup).expect("it can be simulated");
    Some(ran.replayed.stop.is_none())
}

/// What is said of a recording.
pub fn ask(trace: &Trace, known: Known) -> Diagnosis {
    let lives = Lifetimes::of(trace);
    let iterations = Iterations::of(trace, &lives);
    let recorded = Recorded { trace, lives: &lives, iterations: &iterations };
    let question = Question { known, ..Question::default() };
    diagnose(recorded, &question, &mut one_by_one).expect("it can be replayed")
}

/// A recording without its first events, as when a ring was overwritten.
pub fn without_beginning(trace: &Trace, share: usize, keeps_segments: bool) -> Trace {
    let from = trace.events.len() * share / 100;
    let mut cut = Trace { events: trace.events[from..].to_vec(), ..trace.clone() };
    if !keeps_segments {
        cut.segments.clear();
    }
    cut.origin.truncated = true;
    cut
}

/// A recording without stacks.
pub fn without_stacks(trace: &Trace) -> Trace {
    let mut bare = Trace { stacks: Vec::new(), frames: Vec::new(), ..trace.clone() };
    for event in &mut bare.events {
        event.stack = girih_trace::StackId::NONE;
    }
    for block in bare.segments.iter_mut().flat_map(|segment| &mut segment.blocks) {
        block.stack = girih_trace::StackId::NONE;
    }
    bare
}

/// The last tick of a trace.
pub fn end(trace: &Trace) -> Tick {
    Tick(trace.events.len() as u32)
}
