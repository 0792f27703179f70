//! How planning grows: generated training steps from ten thousand buffers to ten million.
//!
//! `growth [LARGEST] [SHAPE]` prints a row for each shape and size: buffers, the most that are alive
//! at once, how far the plan is above the bound, seconds, seconds of all cores, and the peak of memory
//! that planning added. One shape alone is run if its name is given. The gap is that of the usual
//! budget on two threads, the time that of the whole call of `solve`: the bound, the instance, all
//! attempts. A planner that is not linear shows in the last two columns.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]
#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::fs;
use std::time::Instant;

use girih_plan::check::check;
use girih_plan::{Budget, Buffer, Problem, solve};
use girih_trace::generate::{Chance, Rng, Training, training};
use girih_trace::{Lifetimes, MarkKind, Tick};

/// A kind of training step: its name, what is trained, and the experts of a layer (0 for none).
struct Shape {
    name: &'static str,
    training: Training,
    experts: u32,
}

/// The shapes, with 32 layers and one microbatch.
fn shapes() -> Vec<Shape> {
    let dense = Training {
        layers: 32,
        hidden: 4096,
        sequence: 4096,
        microbatch: 1,
        stages: 8,
        steps: 2,
        ..Training::default()
    };
    let shape = |name, training, experts| Shape { name, training, experts };
    vec![
        shape("first of 8 stages", dense.clone(), 0),
        shape("last of 8 stages", Training { stage: 7, ..dense.clone() }, 0),
        shape("recompute", Training { recompute: true, ..dense.clone() }, 0),
        shape("lengths vary", Training { jitter: 2048, ..dense.clone() }, 0),
        shape("experts", dense.clone(), 4),
        shape("experts, recompute", Training { recompute: true, ..dense }, 4),
    ]
}

impl Shape {
    /// A step of about `count` buffers, as many microbatches as that takes.
    fn problem(&self, count: u32) -> Problem {
        let buffers = |microbatches| {
            let problem = self.step(microbatches);
            problem.buffers.len() as u32
        };
        // Buffers of a microbatch, from the difference of two small steps.
        let each = ((buffers(20) - buffers(12)) / 8).max(1);
        self.step((count / each).max(1))
    }

    /// The second step of a run of so many microbatches, with what is born in it.
    fn step(&self, microbatches: u32) -> Problem {
        let trace = training(&Training { microbatches, ..self.training.clone() }, 1);
        let second = trace.marks.iter().filter(|mark| mark.kind == MarkKind::Step).nth(1);
        let first_tick = second.expect("two steps").before;
        let lives = Lifetimes::of(&trace);
        let period = trace.events.len() as u32 - first_tick;
        let born = lives.born().iter().filter(|life| life.birth.0 >= first_tick);
        let buffers = born.map(|life| {
            let end = if life.death == Tick::NEVER { first_tick + period } else { life.death.0 };
            Buffer { lower: life.birth.0 - first_tick, upper: end - first_tick, size: life.size }
        });
        let problem = Problem { buffers: buffers.collect(), period, alignment: 512 };
        if self.experts == 0 { problem } else { with_experts(&problem, self.experts) }
    }
}

/// The same with every wide activation divided among experts, who share its tokens unevenly.
fn with_experts(problem: &Problem, experts: u32) -> Problem {
    const WIDE: u64 = 4 * 4096 * 4096 * 2;
    let mut chance = Rng::new(7);
    let mut buffers = Vec::new();
    for &Buffer { lower, upper, size } in &problem.buffers {
        let (lower, upper) = (lower * experts, upper * experts);
        if size != WIDE {
            buffers.push(Buffer { lower, upper, size });
            continue;
        }
        let share = size / u64::from(experts);
        buffers.extend((0..experts).map(|expert| Buffer {
            lower: lower + expert,
            upper: upper + expert,
            size: share / 2 + 8192 * chance.below(share / 8192),
        }));
    }
    let period = problem.period * experts;
    for buffer in &mut buffers {
        buffer.upper = buffer.upper.min(period);
    }
    Problem { buffers, period, ..*problem }
}

/// A field of the process's status, in bytes; 0 where the system does not tell.
fn status(field: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse().ok());
    number.unwrap_or(0u64) * 1024
}

/// Seconds that all threads have computed so far, to a hundredth; 0 where the system does not tell.
fn computed() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in the second field may hold spaces: count from its end.
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

/// The most buffers that are alive at once.
fn most_alive(problem: &Problem) -> usize {
    let mut changes: Vec<(u32, i32)> = Vec::new();
    for buffer in &problem.buffers {
        changes.extend([(buffer.lower, 1), (buffer.upper, -1)]);
    }
    changes.sort_unstable();
    let loads = changes.iter().scan(0, |alive, (_, change)| {
        *alive += change;
        Some(*alive)
    });
    loads.max().unwrap_or(0) as usize
}

fn row(name: &str, problem: &Problem) {
    let count = problem.buffers.len();
    let budget = Budget::interactive(count).on_threads(2);
    // The peak so far is forgotten, so that the next one is that of planning.
    let _ = fs::write("/proc/self/clear_refs", "5");
    let (held, cpu, start) = (status("VmRSS:"), computed(), Instant::now());
    let outcome = solve(problem, budget).expect("a valid problem");
    let seconds = start.elapsed().as_secs_f64();
    let (cpu, peak) = (computed() - cpu, status("VmHWM:").saturating_sub(held) >> 20);
    check(problem, &outcome.solution).expect("a right solution");
    let gap = if outcome.is_proven() {
        "proven".to_owned()
    } else {
        format!("{:.4} %", 100.0 * outcome.gap())
    };
    println!(
        "{name:<20} {count:>9} {:>7} {gap:>10} {:>5} {seconds:>8.3} {cpu:>8.2} {peak:>6}  {}",
        most_alive(problem),
        outcome.attempts.len(),
        outcome.solution.planner
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let largest: u32 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(10_000_000);
    let only = arguments.next();
    println!(
        "{:<20} {:>9} {:>7} {:>10} {:>5} {:>8} {:>8} {:>6}  best",
        "shape", "buffers", "alive", "above", "tries", "s", "cpu s", "MiB"
    );
    let sizes = [10_000, 32_000, 100_000, 320_000, 1_000_000, 3_200_000, 10_000_000];
    for shape in shapes().iter().filter(|shape| only.as_ref().is_none_or(|it| it == shape.name)) {
        for &size in sizes.iter().filter(|&&size| size <= largest) {
            row(shape.name, &shape.problem(size));
        }
    }
}
