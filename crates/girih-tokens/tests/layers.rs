//! Recordings of few layers, and what they say of many.

use girih_tokens::recording::{Recorded, read};
use girih_tokens::scale::Scaled;
use girih_tokens::timeline::{peaks, run};
use girih_tokens::{Decision, Problem, baselines};
use girih_trace::{Action, Event, Iterations, Lifetimes, Mark, MarkKind, PoolId, StreamId, Trace};

const MIB: u64 = 1 << 20;
const TABLE: u64 = 130 * MIB;
const OF_A_LAYER: [u64; 2] = [40 * MIB, 80 * MIB];

/// Steps of training as a recorder sees them.
#[derive(Default)]
struct Steps {
    trace: Trace,
    next: u64,
    time_us: i64,
}

type Block = (u64, u64);

impl Steps {
    fn event(&mut self, action: Action, (address, size): Block, us: i64) {
        self.time_us += us;
        let event = Event::of(action, address, size, StreamId(0), PoolId::DEFAULT);
        self.trace.events.push(Event { time_us: self.time_us, ..event });
    }

    fn alloc(&mut self, size: u64, us: i64) -> Block {
        self.next += 1 << 34;
        self.event(Action::Alloc, (self.next, size), us);
        (self.next, size)
    }

    fn free(&mut self, block: Block, us: i64) {
        self.event(Action::FreeRequested, block, us);
        self.event(Action::FreeCompleted, block, 0);
    }

    fn mark(&mut self, kind: MarkKind, name: String) {
        let before = self.trace.events.len() as u32;
        self.trace.marks.push(Mark { before, time_us: self.time_us, kind, name });
    }

    /// A step of so many layers. Gradients live until the optimizer has seen them.
    fn step(&mut self, layers: u64) {
        self.mark(MarkKind::Step, String::new());
        self.mark(MarkKind::Forward, String::new());
        let mut handed = self.alloc(64 * MIB, 50);
        let mut kept = Vec::new();
        for layer in 0..layers {
            self.mark(MarkKind::ForwardIn, format!("layers.{layer}"));
            let mut own = vec![handed];
            for size in [65, 170, 90] {
                own.push(self.alloc(size * MIB, 100));
            }
            let scratch = self.alloc(200 * MIB, 10);
            self.free(scratch, 10);
            handed = self.alloc(64 * MIB, 30);
            self.mark(MarkKind::ForwardOut, format!("layers.{layer}"));
            kept.push(own);
        }
        let logits = self.alloc(300 * MIB, 70);
        self.mark(MarkKind::Backward, String::new());
        let mut gradients = vec![self.alloc(TABLE, 90)];
        self.free(logits, 5);
        self.free(handed, 5);
        for own in kept.into_iter().rev() {
            let scratch = self.alloc(150 * MIB, 60);
            gradients.extend(OF_A_LAYER.map(|size| self.alloc(size, 150)));
            self.free(scratch, 0);
            own.into_iter().rev().for_each(|block| self.free(block, 5));
        }
        gradients.push(self.alloc(TABLE, 40));
        self.mark(MarkKind::Optimizer, String::new());
        gradients.into_iter().for_each(|block| self.free(block, 10));
    }
}

/// A run of so many layers: weights and two states of each, tables at both ends.
fn model(layers: u64) -> Trace {
    let mut steps = Steps::default();
    for _ in 0..3 {
        (0..layers).for_each(|_| OF_A_LAYER.iter().for_each(|&size| _ = steps.alloc(size, 1)));
        [TABLE; 2].iter().for_each(|&size| _ = steps.alloc(size, 1));
    }
    (0..5).for_each(|_| steps.step(layers));
    steps.trace
}

fn recorded(layers: u64) -> Recorded {
    let trace = model(layers);
    let lives = Lifetimes::of(&trace);
    let iterations = Iterations::of(&trace, &lives);
    let step_us = None;
    read(&trace, &lives, &iterations, step_us).unwrap()
}

/// The most bytes that are alive in the run.
fn alive_at_most(trace: &Trace) -> u64 {
    let (mut alive, mut most) = (0, 0);
    for event in &trace.events {
        match event.action {
            Action::Alloc => alive += event.size,
            Action::FreeCompleted => alive -= event.size,
            _ => {}
        }
        most = most.max(alive);
    }
    most
}

fn plain_peak(problem: &Problem) -> u64 {
    peaks(problem, &Decision::plain(problem)).0
}

#[test]
fn a_recording_of_few_layers_says_what_many_take() {
    for few in [2, 3, 5] {
        for many in [3u32, 4, 9, 32] {
            let whole = recorded(u64::from(many));
            let said = Scaled::one(recorded(few), 1, 0.0).with_layers(many as usize).at(1);
            assert_eq!(said.layers.len(), whole.problem.layers.len());
            assert_eq!(said.static_bytes, whole.problem.static_bytes, "{few} for {many}");
            let (own, seen) = (plain_peak(&said), alive_at_most(&model(u64::from(many))));
            let off = own as f64 / seen as f64 - 1.0;
            assert!(off.abs() < 0.01, "{few} layers for {many}: {own} of {seen}, {off}");
            let less = |problem: &Problem| peaks(problem, &baselines::recompute(problem)).0;
            let off = less(&said) as f64 / less(&whole.problem) as f64 - 1.0;
            assert!(off.abs() < 0.01, "{few} layers for {many}, recomputed: {off}");
            let us = |problem: &Problem| run(problem, &Decision::plain(problem)).step_us;
            let off = us(&said) / us(&whole.problem) - 1.0;
            assert!(off.abs() < 0.05, "{few} layers for {many}: {off} of the time");
        }
    }
}

#[test]
fn without_gradients_of_the_step_all_that_is_static_grows() {
    let mut few = recorded(4);
    few.fixed.gradients.clear();
    few.fixed.other_gradients = 0;
    let before = few.problem.static_bytes;
    let more = Scaled::one(few, 1, 0.0).with_layers(12).at(1);
    assert_eq!(more.static_bytes, 3 * before);
}

#[test]
fn gradients_are_there_behind_the_layers_that_have_run() {
    let recorded = recorded(3);
    let own: u64 = OF_A_LAYER.iter().sum();
    assert_eq!(recorded.fixed.gradients, [own; 3]);
    assert_eq!(recorded.fixed.other_gradients, 2 * TABLE);
    let more = Scaled::one(recorded, 1, 0.0).with_layers(7).at(1);
    let falls = more.layers.windows(2).map(|it| it[0].backward.bytes - it[1].backward.bytes);
    assert!(falls.eq([own; 6]));
}
