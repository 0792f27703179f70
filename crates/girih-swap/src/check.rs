//! The checker: whether a run of a schedule is one that a GPU, a host and two links allow.
//!
//! It goes by the times of the [`Run`] alone, instant by instant, and shares no code with the schedulers, nor with
//! the simulator's queues: every schedule passes it before it is shown to anyone.

use std::fmt;

use crate::links::Links;
use crate::method::Budgets;
use crate::schedule::Schedule;
use crate::simulate::{Direction, Piece, Run};
use crate::step::Step;

/// Times are compared with such a part of the step as tolerance, and bytes with as many of a link's.
const TOLERANCE: f64 = 1e-9;

fn slack_us(run: &Run) -> f64 {
    run.step_us * TOLERANCE
}

/// What is wrong with a run.
#[derive(Clone, PartialEq, Debug)]
pub enum Fault {
    /// The run is not one of this schedule and step: something is missing, or there twice.
    Shape(String),
    /// An operator begins before the one before it has ended.
    Order(u32),
    /// More bytes are on the GPU than the budget.
    Gpu {
        /// The operator.
        op: u32,
        /// Bytes on the GPU.
        bytes: u64,
    },
    /// More bytes are on the host than the budget.
    Host {
        /// Bytes on the host.
        bytes: u64,
    },
    /// A copy begins before it may, or what waits for it begins before it ends.
    Copy {
        /// The entry of the schedule.
        away: u32,
        /// What is wrong.
        problem: &'static str,
    },
    /// A link does two copies at once, or copies faster than it can.
    Link(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Shape(problem) => write!(f, "the run is not of this schedule: {problem}"),
            Fault::Order(op) => write!(f, "operator {op} begins before the one before it ends"),
            Fault::Gpu { op, bytes } => write!(f, "{bytes} bytes on the GPU during operator {op}"),
            Fault::Host { bytes } => write!(f, "{bytes} bytes on the host"),
            Fault::Copy { away, problem } => write!(f, "entry {away}: {problem}"),
            Fault::Link(problem) => write!(f, "a link is overbooked: {problem}"),
        }
    }
}

impl std::error::Error for Fault {}

/// Checks a run. O(n log n) in operators and pieces, and quadratic in the copies that overlap.
///
/// # Errors
/// The first fault that is found.
pub fn check(
    step: &Step,
    links: &Links,
    budgets: &Budgets,
    schedule: &Schedule,
    run: &Run,
) -> Result<(), Fault> {
    let copies = Copies::of(step, schedule, run)?;
    check_order(step, run)?;
    check_copies(step, schedule, run, &copies)?;
    check_overlaps(step, schedule)?;
    check_gpu(step, budgets.gpu, schedule, run)?;
    check_host(step, budgets.host, schedule, run, &copies)?;
    check_wasted(step, schedule, run, &copies)?;
    check_links(links, run)
}

/// When each copy begins and ends.
struct Copies {
    out: Vec<(f64, f64)>,
    inward: Vec<(f64, f64)>,
}

impl Copies {
    fn of(step: &Step, schedule: &Schedule, run: &Run) -> Result<Copies, Fault> {
        let count = schedule.away.len();
        if run.times.len() != count || run.starts_us.len() != step.ops.len() {
            return Err(Fault::Shape("its tables have other lengths".to_owned()));
        }
        let spans = |direction: Direction| {
            let mut spans = vec![(f64::INFINITY, f64::NEG_INFINITY, 0.0); count];
            for piece in run.pieces.iter().filter(|piece| piece.direction == direction) {
                let Some(span) = spans.get_mut(piece.away as usize) else {
                    return Err(Fault::Shape("a piece belongs to no entry".to_owned()));
                };
                span.0 = f64::min(span.0, piece.from_us);
                span.1 = f64::max(span.1, piece.to_us);
                span.2 += piece.bytes;
            }
            for (away, span) in schedule.away.iter().zip(&spans) {
                let bytes = step.bytes(away.gap) as f64;
                if (span.2 - bytes).abs() > 1e-3 + 1e-9 * bytes {
                    let problem = format!("{} bytes copied of a tensor of {bytes}", span.2);
                    return Err(Fault::Shape(problem));
                }
            }
            Ok(spans.into_iter().map(|span| (span.0, span.1)).collect())
        };
        Ok(Copies { out: spans(Direction::Out)?, inward: spans(Direction::In)? })
    }
}

fn check_order(step: &Step, run: &Run) -> Result<(), Fault> {
    let slack_us = slack_us(run);
    let mut end = 0.0;
    for (op, (start, own)) in run.starts_us.iter().zip(&step.ops).enumerate() {
        if *start < end - slack_us {
            return Err(Fault::Order(op as u32));
        }
        end = start + own.us;
    }
    if run.step_us < end - slack_us {
        return Err(Fault::Order(step.ops.len() as u32));
    }
    Ok(())
}

fn check_copies(step: &Step, schedule: &Schedule, run: &Run, copies: &Copies) -> Result<(), Fault> {
    let slack_us = slack_us(run);
    for (index, away) in schedule.away.iter().enumerate() {
        let fail = |problem| Err(Fault::Copy { away: index as u32, problem });
        let Some(gap) = step.gaps.get(away.gap as usize) else { return fail("no such gap") };
        let ends = |op: u32| run.starts_us[op as usize] + step.ops[op as usize].us;
        let (out, inward, times) = (copies.out[index], copies.inward[index], run.times[index]);
        let is_before = |first: f64, then: f64| first <= then + slack_us;
        if !is_before(ends(gap.after), out.0) {
            return fail("it leaves while it is in use");
        }
        if !is_before(out.1, times.released_us) {
            return fail("its bytes are let go of before they are copied");
        }
        if !is_before(out.1, inward.0) {
            return fail("its copy in begins before its own copy out has ended");
        }
        if !is_before(times.taken_us, inward.0) || !is_before(times.released_us, times.taken_us) {
            return fail("its copy in begins before it has bytes on the GPU");
        }
        if !is_before(inward.1, run.starts_us[gap.before as usize]) {
            return fail("it is used before it is back");
        }
    }
    Ok(())
}

/// No gap goes twice, and a tensor is in one place at a time.
fn check_overlaps(step: &Step, schedule: &Schedule) -> Result<(), Fault> {
    let mut spans: Vec<(u32, u32, u32)> = Vec::new();
    for away in &schedule.away {
        let gap = step.gaps[away.gap as usize];
        spans.push((gap.tensor, gap.after, gap.before));
    }
    spans.sort_unstable();
    match spans.windows(2).find(|pair| pair[0].0 == pair[1].0 && pair[0].2 > pair[1].1) {
        Some(pair) => Err(Fault::Shape(format!("tensor {} goes twice at once", pair[0].0))),
        None => Ok(()),
    }
}

fn check_gpu(step: &Step, budget: u64, schedule: &Schedule, run: &Run) -> Result<(), Fault> {
    let slack_us = slack_us(run);
    let ends = |op: usize| run.starts_us[op] + step.ops[op].us;
    let mut away_bytes = vec![0i64; step.ops.len() + 1];
    for (away, times) in schedule.away.iter().zip(&run.times) {
        // Operators that run wholly while the bytes are gone.
        let first = run.starts_us.partition_point(|&at| at < times.released_us - slack_us);
        let mut end = run.starts_us.partition_point(|&at| at < times.taken_us - slack_us);
        while end > first && ends(end - 1) > times.taken_us + slack_us {
            end -= 1;
        }
        if first < end {
            let bytes = step.bytes(away.gap) as i64;
            away_bytes[first] += bytes;
            away_bytes[end] -= bytes;
        }
    }
    let mut gone = 0;
    for (op, &load) in step.load.iter().enumerate() {
        gone += away_bytes[op];
        let bytes = (load as i64 - gone) as u64;
        if bytes > budget {
            return Err(Fault::Gpu { op: op as u32, bytes });
        }
    }
    Ok(())
}

fn check_host(
    step: &Step,
    budget: Option<u64>,
    schedule: &Schedule,
    run: &Run,
    copies: &Copies,
) -> Result<(), Fault> {
    let slack_us = slack_us(run);
    let mut changes: Vec<(f64, i64)> = Vec::new();
    for (index, away) in schedule.away.iter().enumerate() {
        let bytes = step.bytes(away.gap) as i64;
        changes.push((copies.out[index].0, bytes));
        changes.push((copies.inward[index].1 - slack_us, -bytes));
    }
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut held = 0;
    for (_, change) in changes {
        held += change;
        if budget.is_some_and(|budget| held > budget as i64) {
            return Err(Fault::Host { bytes: held as u64 });
        }
    }
    Ok(())
}

/// What is copied for nothing is no more than the tensor, not before it may be, and whole unless the step ends first.
fn check_wasted(step: &Step, schedule: &Schedule, run: &Run, copies: &Copies) -> Result<(), Fault> {
    let slack_us = slack_us(run);
    let shape = |problem: &str| Err(Fault::Shape(format!("a copy for nothing {problem}")));
    let mut copied = vec![0.0; schedule.wasted.len()];
    for piece in &run.wasted {
        let Some(wasted) = schedule.wasted.get(piece.away as usize) else {
            return shape("belongs to no entry");
        };
        let Some(gap) = step.gaps.get(wasted.gap as usize) else { return shape("has no gap") };
        let used_us = run.starts_us[gap.after as usize] + step.ops[gap.after as usize].us;
        let own = schedule.away.iter().position(|away| away.gap == wasted.gap);
        let first_us = match (wasted.direction, own) {
            (Direction::In, Some(own)) => copies.out[own].1,
            (Direction::In, None) => return shape("comes back from nowhere"),
            (Direction::Out, _) => used_us,
        };
        if piece.direction != wasted.direction || piece.from_us < first_us - slack_us {
            return shape("goes another way, or too early");
        }
        copied[piece.away as usize] += piece.bytes;
    }
    for (wasted, bytes) in schedule.wasted.iter().zip(copied) {
        let all = step.bytes(wasted.gap) as f64;
        let is_whole = (bytes - all).abs() <= 1e-3 + 1e-9 * all;
        // Where the step has ended first its link was busy up to there.
        let own_link = run.pieces.iter().chain(&run.wasted);
        let own_link = own_link.filter(|piece| piece.direction == wasted.direction);
        let busy_us = own_link.map(|piece| piece.to_us).fold(0.0, f64::max);
        let is_cut = bytes < all && busy_us >= run.step_us - slack_us;
        if !is_whole && !is_cut {
            return shape("is of another size than its tensor");
        }
    }
    Ok(())
}

fn check_links(links: &Links, run: &Run) -> Result<(), Fault> {
    let slack_us = slack_us(run);
    let of = |direction: Direction| {
        let mut pieces: Vec<&Piece> =
            run.pieces.iter().chain(&run.wasted).filter(|it| it.direction == direction).collect();
        pieces.sort_by(|a, b| a.from_us.total_cmp(&b.from_us));
        pieces
    };
    let (out, inward) = (of(Direction::Out), of(Direction::In));
    for (pieces, rate) in [(&out, links.outward), (&inward, links.inward)] {
        for pair in pieces.windows(2) {
            if pair[1].from_us < pair[0].to_us - slack_us {
                return Err(Fault::Link(format!("two copies at {} us", pair[1].from_us)));
            }
        }
        for piece in pieces {
            let can = rate * (piece.to_us - piece.from_us + slack_us);
            if piece.bytes > can || piece.to_us < piece.from_us {
                return Err(Fault::Link(format!("{} bytes where {can} fit", piece.bytes)));
            }
        }
    }
    // Where both are busy, what they copy there is limited together: over every overlap, by its share.
    let mut first = 0;
    for piece in &out {
        while inward.get(first).is_some_and(|other| other.to_us <= piece.from_us) {
            first += 1;
        }
        for other in &inward[first..] {
            let us = piece.to_us.min(other.to_us) - piece.from_us.max(other.from_us);
            if other.from_us >= piece.to_us {
                break;
            }
            let rate = |it: &Piece| it.bytes / (it.to_us - it.from_us).max(f64::MIN_POSITIVE);
            let copied = (rate(piece) + rate(other)) * us;
            if copied > links.both * (us + slack_us) {
                return Err(Fault::Link(format!("{copied} bytes both ways in {us} us")));
            }
        }
    }
    Ok(())
}
