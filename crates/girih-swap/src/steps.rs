//! The steps of a recording.
//!
//! Where the trace says which operators ran and what they used, these are the operators of a step. Where it does
//! not, as in PyTorch's recordings, each request is taken for an operator, and a block to be in use from its birth
//! to the fourth request after it on its stream, and again from the fourth request before its free:
//!
//! ```text
//!  requests of the stream   b . . . | . . . . . . . . | . . . f      b its birth, f its free
//!                           in use    idle              in use
//! ```
//!
//! A block that is older than the step, or lives on after it, never goes: nobody says when it is used.

use girih_trace::{
    Iteration, Iterations, Lifetimes, PhaseKind, Phases, PoolId, Source, StreamId, Tick, Trace,
};
use rustc_hash::FxHashMap;
use thiserror::Error;

use crate::step::{Gap, Op, Pass, Step, Tensor};

/// Requests of its stream for which a block is taken to be in use after its birth and before its free.
pub const ASSUMED_REQUESTS: usize = 4;

/// What was assumed of a recording that does not say it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Assumed {
    /// When blocks are in use.
    pub uses: bool,
    /// The times of operators: those at which their requests came, or those that were given.
    pub times: bool,
    /// The whole recording is one step: nothing in it repeats.
    pub one_step: bool,
}

/// Why a recording has no steps.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StepError {
    /// There is nothing to swap.
    #[error("give a recording with requests: this one has none, so nothing can be swapped")]
    Empty,
    /// Nobody says how long anything takes.
    #[error("say how long a step takes with --step-time, such as 800ms: the events have no times")]
    NoTimes,
}

/// The steps of a recording, in order.
#[derive(Clone, PartialEq, Debug)]
pub struct Steps {
    /// The steps.
    pub list: Vec<Step>,
    /// The one that stands for all: that is planned.
    pub model: usize,
    /// What was assumed.
    pub assumed: Assumed,
    /// For each step, the first tick of each operator, and last the tick at which it ends.
    ticks: Vec<Vec<u32>>,
}

/// A block that is alive during an operator and cannot be away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stuck {
    /// Its request.
    pub request: u32,
    /// Bytes requested.
    pub bytes: u64,
    /// Why it cannot.
    pub why: Why,
}

/// Why a block cannot be away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// It is in use then, or soon.
    InUse,
    /// It was there before the step, or lives on after it.
    Stays,
    /// It belongs to a private pool.
    Private,
}

impl Why {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Why::InUse => "in use",
            Why::Stays => "outlives the step",
            Why::Private => "of a private pool",
        }
    }
}

impl Steps {
    /// What is alive during an operator of a step and cannot be away, the largest first.
    pub fn stuck(&self, lives: &Lifetimes, step: usize, op: u32) -> Vec<Stuck> {
        let ticks = &self.ticks[step];
        let span = ticks[0]..ticks[ticks.len() - 1];
        let (from, to) = (ticks[op as usize], ticks[op as usize + 1]);
        let own = &self.list[step];
        let idle = own.gaps.iter().filter(|gap| gap.covers(op));
        let idle: rustc_hash::FxHashSet<u32> =
            idle.map(|gap| own.tensors[gap.tensor as usize].request).collect();
        let is_alive = |it: &girih_trace::Lifetime| it.birth.0 < to && it.death.0 > from;
        let alive = lives.requests.iter().zip(0u32..);
        let alive = alive.filter(|(it, index)| is_alive(it) && !idle.contains(index));
        let mut stuck: Vec<Stuck> = alive
            .map(|(it, request)| {
                let is_within = it.birth.0 >= span.start && it.free_requested.0 < span.end;
                let why = match (it.pool == PoolId::DEFAULT, is_within) {
                    (false, _) => Why::Private,
                    (true, true) => Why::InUse,
                    (true, false) => Why::Stays,
                };
                Stuck { request, bytes: it.size, why }
            })
            .collect();
        stuck.sort_by_key(|it| (std::cmp::Reverse(it.bytes), it.request));
        stuck
    }

    /// Finds them. With `step_us`, the model step takes so many microseconds, and others in proportion.
    ///
    /// # Errors
    /// If there are no requests, or no times and no `step_us`.
    pub fn of(
        trace: &Trace,
        lives: &Lifetimes,
        iterations: &Iterations,
        step_us: Option<f64>,
    ) -> Result<Steps, StepError> {
        if lives.born().is_empty() {
            return Err(StepError::Empty);
        }
        let one_step = iterations.source == Source::None || iterations.list.is_empty();
        let spans: Vec<Iteration> = match one_step {
            true => vec![Iteration {
                requests: lives.older as u32..lives.requests.len() as u32,
                ticks: 0..trace.events.len() as u32,
            }],
            false => iterations.list.clone(),
        };
        let reader = Reader::new(trace, lives, iterations);
        let mut list: Vec<Step> = spans.iter().map(|span| reader.step(span)).collect();
        let ticks = spans.iter().map(|span| reader.window(span).ticks()).collect();
        let highest = || (0..list.len()).max_by_key(|&step| (list[step].peak(), list.len() - step));
        let model = iterations.model().filter(|_| !one_step).or_else(highest).unwrap_or(0);
        let measured = list[model].us();
        match step_us {
            None if measured <= 0.0 => return Err(StepError::NoTimes),
            None => {}
            Some(step_us) => list.iter_mut().for_each(|step| scale(step, step_us, measured)),
        }
        let uses = trace.uses.is_empty();
        let has_durations = trace.uses.operators.iter().any(|operator| operator.duration_us > 0);
        let assumed = Assumed { uses, times: uses || !has_durations, one_step };
        Ok(Steps { list, model, assumed, ticks })
    }
}

/// Scales a step's times so that one of `measured` microseconds takes `step_us`; evenly where nothing was measured.
fn scale(step: &mut Step, step_us: f64, measured: f64) {
    let even = step_us / step.ops.len().max(1) as f64;
    for op in &mut step.ops {
        op.us = if measured > 0.0 { op.us * (step_us / measured) } else { even };
    }
}

/// What is looked up in a trace for each step.
struct Reader<'a> {
    trace: &'a Trace,
    lives: &'a Lifetimes,
    phases: Phases,
    /// Bytes alive after each event.
    live: Vec<u64>,
    /// The ticks at which operators begin: of the trace's, or of all requests.
    begins: Vec<u32>,
    /// The requests that each operator uses, where the trace says it.
    used: Option<Vec<Vec<u32>>>,
    /// The ticks at which requests of each stream are born.
    births: FxHashMap<StreamId, Vec<u32>>,
}

impl<'a> Reader<'a> {
    fn new(trace: &'a Trace, lives: &'a Lifetimes, iterations: &Iterations) -> Reader<'a> {
        let mut births: FxHashMap<StreamId, Vec<u32>> = FxHashMap::default();
        for request in lives.born() {
            births.entry(request.stream).or_default().push(request.birth.0);
        }
        let used = (!trace.uses.is_empty()).then(|| trace.uses.by_operator(lives));
        let begins = match &used {
            Some(_) => trace.uses.operators.iter().map(|operator| operator.before).collect(),
            None => lives.born().iter().map(|request| request.birth.0).collect(),
        };
        let phases = Phases::of(trace, lives, iterations);
        Reader { trace, lives, phases, live: live(lives), begins, used, births }
    }

    fn window<'b>(&'b self, span: &'b Iteration) -> Window<'b> {
        let first = self.begins.partition_point(|&tick| tick < span.ticks.start);
        let end = self.begins.partition_point(|&tick| tick < span.ticks.end);
        Window { reader: self, span, first, end }
    }

    fn step(&self, span: &Iteration) -> Step {
        let window = self.window(span);
        let mut step = Step { ops: window.ops(), load: window.load(), ..Step::default() };
        if step.ops.is_empty() {
            return step;
        }
        let used = window.used();
        for index in span.requests.clone() {
            let request = &self.lives.requests[index as usize];
            let is_freed = request.free_requested.0 < span.ticks.end;
            // What private pools hold belongs to graphs, which know addresses.
            if !is_freed || request.pool != PoolId::DEFAULT {
                continue;
            }
            let last_tick = request.death.0.min(span.ticks.end).saturating_sub(1);
            let (born, last) = (window.op_at(request.birth.0), window.op_at(last_tick));
            let tensor = step.tensors.len() as u32;
            let uses = match &used {
                Some(used) => used.get(&index).cloned().unwrap_or_default(),
                None => window.assumed_uses(request.stream, request.birth, request.free_requested),
            };
            let gaps = gaps(tensor, born, last, &uses, used.is_some());
            if !gaps.is_empty() {
                step.gaps.extend(gaps);
                step.tensors.push(Tensor { request: index, bytes: request.size, born, last });
            }
        }
        step.gaps.sort_unstable_by_key(|gap| (gap.after, gap.before, gap.tensor));
        step
    }
}

/// Where a tensor lies idle: between the operators `uses`, in which it is used, ascending. Where uses are known,
/// each is one operator; else they are the last of the first ones and the first of the last ones.
fn gaps(tensor: u32, born: u32, last: u32, uses: &[u32], is_known: bool) -> Vec<Gap> {
    let mut points: Vec<u32> =
        uses.iter().copied().filter(|op| (born..=last).contains(op)).collect();
    if is_known && points.first() != Some(&born) {
        points.insert(0, born);
    }
    let pairs = points.windows(2).filter(|pair| pair[1] >= pair[0] + 2);
    pairs.map(|pair| Gap { tensor, after: pair[0], before: pair[1] }).collect()
}

/// Bytes alive after each event.
fn live(lives: &Lifetimes) -> Vec<u64> {
    let mut change = vec![0i64; lives.request_of.len() + 1];
    let mut older = 0i64;
    for (index, request) in lives.requests.iter().enumerate() {
        let size = request.size.min(1 << 60) as i64;
        match index < lives.older {
            true => older += size,
            false => change[request.birth.index()] += size,
        }
        if request.death != Tick::NEVER {
            change[request.death.index()] -= size;
        }
    }
    let after = change.iter().take(lives.request_of.len()).scan(older, |sum, change| {
        *sum += change;
        Some((*sum).max(0) as u64)
    });
    after.collect()
}

/// The operators of one step.
struct Window<'a> {
    reader: &'a Reader<'a>,
    span: &'a Iteration,
    /// Its operators, as a range of [`Reader::begins`].
    first: usize,
    end: usize,
}

impl Window<'_> {
    /// The tick at which an operator begins; the first has what comes before it in the step.
    fn tick(&self, op: usize) -> u32 {
        match op {
            0 => self.span.ticks.start,
            _ if self.first + op >= self.end => self.span.ticks.end,
            _ => self.reader.begins[self.first + op],
        }
    }

    fn ticks(&self) -> Vec<u32> {
        (0..=self.count()).map(|op| self.tick(op)).collect()
    }

    fn count(&self) -> usize {
        self.end - self.first
    }

    fn op_at(&self, tick: u32) -> u32 {
        let begins = &self.reader.begins[self.first..self.end];
        begins.partition_point(|&begin| begin <= tick).saturating_sub(1) as u32
    }

    /// Microseconds of the recorder's clock at which an operator begins; of the last, the end of the step.
    fn time_us(&self, op: usize) -> i64 {
        let uses = &self.reader.trace.uses;
        if op < self.count() && !uses.is_empty() {
            return uses.operators[self.first + op].time_us;
        }
        let events = &self.reader.trace.events;
        let tick = (self.tick(op) as usize).min(events.len() - 1);
        events[tick].time_us
    }

    fn ops(&self) -> Vec<Op> {
        let keys = self.keys();
        let op = |op: usize| {
            let measured = self.reader.trace.uses.operators.get(self.first + op);
            let measured = measured.map_or(0, |operator| operator.duration_us);
            let us = match measured {
                0 => self.time_us(op + 1).saturating_sub(self.time_us(op)).max(0) as f64,
                measured => f64::from(measured),
            };
            let phase = self.reader.phases.index_of(Tick(self.tick(op)));
            let pass = match phase.map(|phase| self.reader.phases.list[phase].kind) {
                Some(PhaseKind::Forward) => Pass::Forward,
                Some(PhaseKind::Backward) => Pass::Backward,
                _ => Pass::Optimizer,
            };
            Op { key: keys[op], us, pass }
        };
        (0..self.count()).map(op).collect()
    }

    /// What kind of operator each is: its name; else which requests, counted back, were freed since the one
    /// before, which does not change with sizes.
    fn keys(&self) -> Vec<u64> {
        let Reader { trace, lives, .. } = self.reader;
        if !trace.uses.is_empty() {
            let operators = &trace.uses.operators[self.first..self.end];
            let key = |name: u32| trace.uses.names[name as usize].bytes().fold(1, mix_byte);
            return operators.iter().map(|operator| key(operator.name)).collect();
        }
        let key = |op: usize| {
            let request = (lives.older + self.first + op) as u32;
            let since = if op == 0 { self.span.ticks.start } else { self.tick(op - 1) + 1 };
            let freed = (since..self.tick(op)).map(|tick| lives.request_of[tick as usize]);
            let stream = u64::from(lives.requests[request as usize].stream.0);
            freed
                .filter(|&freed| freed != Lifetimes::NONE && freed >= self.span.requests.start)
                .fold(stream, |key, freed| mix(key, u64::from(request.saturating_sub(freed))))
        };
        (0..self.count()).map(key).collect()
    }

    fn load(&self) -> Vec<u64> {
        let live = &self.reader.live;
        let load = |op: usize| {
            let ticks = self.tick(op) as usize..self.tick(op + 1) as usize;
            // What is alive when the operator begins counts too.
            let before = ticks.start.checked_sub(1).filter(|_| !self.reader.trace.uses.is_empty());
            let most = live[ticks].iter().copied().max().unwrap_or(0);
            before.map_or(most, |tick| most.max(live[tick]))
        };
        (0..self.count()).map(load).collect()
    }

    /// For each request, the operators of the step that use it; none where the trace does not say.
    fn used(&self) -> Option<FxHashMap<u32, Vec<u32>>> {
        let all = self.reader.used.as_ref()?;
        let mut used: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
        for (op, requests) in (0u32..).zip(&all[self.first..self.end]) {
            for &request in requests {
                used.entry(request).or_default().push(op);
            }
        }
        Some(used)
    }

    /// The last operator of the use after the birth, and the first of the use before the free. One point where
    /// they touch.
    fn assumed_uses(&self, stream: StreamId, birth: Tick, free: Tick) -> Vec<u32> {
        let births = &self.reader.births[&stream];
        let own = births.partition_point(|&tick| tick < birth.0);
        let idle = births.get(own + ASSUMED_REQUESTS).copied().unwrap_or(u32::MAX);
        let freed = births.partition_point(|&tick| tick < free.0);
        let again = births[freed.saturating_sub(ASSUMED_REQUESTS)];
        if idle >= again || idle >= self.span.ticks.end {
            return Vec::new();
        }
        vec![self.op_at(idle).saturating_sub(1), self.op_at(again)]
    }
}

/// Mixes a number into a hash. Multiplication and rotation as in rustc-hash.
pub(crate) fn mix(hash: u64, value: u64) -> u64 {
    (hash.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn mix_byte(hash: u64, byte: u8) -> u64 {
    mix(hash, u64::from(byte))
}
