//! What the envelope of all iterations is worth: the same recording followed with plans of more and
//! of fewer of them, and without any.
//!
//!     cargo run --release -p girih-runtime --example envelopes -- FILE.girih ...
//!
//! Plans are taken up where an iteration begins. *The last two*: of the two iterations before it
//! alone, whatever comes. *All so far*: of all before it. *All*: of the whole recording, from the
//! first request.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::sync::Arc;

use girih_plan::{Budget, Plan, profile, solve};
use girih_runtime::caching::{Caching, Config};
use girih_runtime::lake::Lake;
use girih_runtime::sim::SimDevice;
use girih_runtime::{BlockId, Env, Planned, Policy, Request};
use girih_trace::compress::Limits;
use girih_trace::{Action, Iterations, Lifetimes, Trace, open};

/// Bytes of the device: it sets no limit.
const DEVICE: u64 = 1 << 42;

/// Which iterations the plan of an iteration is made of.
#[derive(Clone, Copy, PartialEq)]
enum Known {
    Nothing,
    LastTwo,
    AllSoFar,
    All,
}

fn main() -> Result<(), Box<dyn Error>> {
    for path in std::env::args().skip(1) {
        let mut recording = open::detect_and_read(File::open(&path)?, Limits::default())?;
        recording.traces.sort_by_key(|trace| trace.events.len());
        let trace = recording.traces.pop().ok_or("there is no trace in it")?;
        println!("{path}");
        println!("| plan of | holes stitched | efficiency | off the plan | device calls |");
        println!("|:--|:--|--:|--:|--:|");
        for (name, known, moves) in [
            ("nothing: on line", Known::Nothing, false),
            ("nothing: on line", Known::Nothing, true),
            ("the last two", Known::LastTwo, true),
            ("all so far", Known::AllSoFar, true),
            ("all", Known::All, true),
        ] {
            let seen = run(&trace, known, moves)?;
            let moves = if moves { "yes" } else { "no" };
            println!(
                "| {name} | {moves} | {:.4} | {:.2} % | {} |",
                seen.efficiency,
                100.0 * seen.missed,
                seen.calls
            );
        }
        println!();
    }
    Ok(())
}

/// What came of a run.
struct Seen {
    efficiency: f64,
    /// Bytes that had no place, of all that were requested.
    missed: f64,
    calls: u64,
}

fn run(trace: &Trace, known: Known, stitches: bool) -> Result<Seen, Box<dyn Error>> {
    let lives = Lifetimes::of(trace);
    let iterations = Iterations::of(trace, &lives);
    let (first, last) = iterations.steady.ok_or("nothing repeats in it")?;
    let config = Config { expandable_segments: true, ..Config::default() };
    let fallback: Box<dyn Policy> = match stitches {
        true => Box::new(Lake::of(config)),
        false => Box::new(Caching::new(config)),
    };
    let mut policy = match known {
        Known::All => {
            let plan = plan_of(trace, &lives, &iterations, first..=last);
            Planned::new(plan, fallback, SimDevice::GRANULARITY)
        }
        _ => Planned::empty(fallback, SimDevice::GRANULARITY),
    };
    let mut device = SimDevice::new(DEVICE);
    let mut blocks: HashMap<u32, BlockId> = HashMap::new();
    let (mut marks, mut begun) = (trace.marks.iter().peekable(), 0);
    let mut requested = 0;
    for (tick, event) in (0..).zip(&trace.events) {
        let mut env = Env { device: &mut device, log: &mut () };
        if iterations.list.get(begun).is_some_and(|next| next.ticks.start <= tick) {
            // Two iterations are needed, and one after them, which says when the last blocks die.
            let before = match known {
                Known::LastTwo if begun >= 3 => Some(begun - 3..=begun - 1),
                Known::AllSoFar if begun >= 3 => Some(0..=begun - 1),
                _ => None,
            };
            if let Some(before) = before {
                policy.follow(&mut env, plan_of(trace, &lives, &iterations, before))?;
            }
            begun += 1;
        }
        while let Some(mark) = marks.next_if(|mark| mark.before <= tick) {
            policy.mark(&mut env, mark)?;
        }
        let index = lives.request_of[tick as usize];
        match event.action {
            Action::Alloc if index != Lifetimes::NONE => {
                let request = Request { size: event.size, stream: event.stream, pool: event.pool };
                requested += event.size;
                blocks.insert(index, policy.allocate(&mut env, request)?.block);
            }
            Action::FreeCompleted => {
                if let Some(block) = blocks.remove(&index) {
                    policy.free(&mut env, block)?;
                }
            }
            _ => {}
        }
    }
    let stats = policy.stats();
    let peaks = [&stats.allocated_bytes, &stats.reserved_bytes].map(|of| of.all.peak as f64);
    let missed = requested - policy.following().hit_bytes;
    Ok(Seen {
        efficiency: peaks[0] / peaks[1],
        missed: missed as f64 / requested as f64,
        calls: stats.num_device_alloc + stats.num_device_free,
    })
}

/// The plan of some iterations.
fn plan_of(
    trace: &Trace,
    lives: &Lifetimes,
    iterations: &Iterations,
    of: std::ops::RangeInclusive<usize>,
) -> Arc<Plan> {
    let of = Iterations { steady: Some((*of.start(), *of.end())), ..iterations.clone() };
    let plan = profile::plan(trace, lives, &of, |problem| {
        solve(problem, Budget::interactive(problem.buffers.len()))
    });
    Arc::new(plan.expect("lives of a recording"))
}
