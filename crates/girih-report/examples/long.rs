//! A recording of so many events, for `scripts/report-page`: one that is given goes on with steps like
//! its own, under PyTorch's allocator, until it has as many.
//!
//! ```sh
//! cargo run --release -p girih-report --example long -- corpus/moe_vary.girih 10000000 long.girih
//! ```
//!
//! `generated` instead of a recording is a run that never repeats itself.

#![expect(clippy::print_stderr, reason = "an example says what it made")]

use std::env;
use std::error::Error;
use std::fs::File;
use std::io::BufWriter;

use girih_runtime::caching::{Caching, Config};
use girih_runtime::record::record;
use girih_runtime::sim::SimDevice;
use girih_trace::bounds::HELD_MAX;
use girih_trace::compress::Limits;
use girih_trace::generate::{Training, training};
use girih_trace::{Iterations, Lifetimes, Recording, Trace, file, open, parts};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [from, events, to] = &args[..] else { return Err("RECORDING EVENTS FILE".into()) };
    let wanted: usize = events.parse()?;
    let program = match from.as_str() {
        "generated" => generated(wanted),
        from => {
            let recording = open::detect_and_read(File::open(from)?, Limits::default())?;
            let trace = recording.traces.into_iter().next().ok_or("no events")?;
            prolonged(&trace, wanted).ok_or("none of its iterations are alike")?
        }
    };
    let mut policy = Caching::new(Config::default());
    let mut long = record(&program, &mut policy, &mut SimDevice::new(HELD_MAX), &|_| false)?;
    long.events.truncate(wanted);
    long.segments.clear();
    // A repeated step has the times of the recorded one: five microseconds an event instead.
    for (event, time_us) in long.events.iter_mut().zip((0..).step_by(5)) {
        event.time_us = time_us;
    }
    let lives = Lifetimes::of(&long);
    eprintln!("{} events, {} requests", long.events.len(), lives.requests.len());
    file::write(&Recording { traces: vec![long] }, BufWriter::new(File::create(to)?))?;
    Ok(())
}

/// Steps no two of which are alike: every size differs from step to step.
fn generated(events: usize) -> Trace {
    let one = Training { layers: 8, experts: 8, jitter: 900, ..Training::default() };
    let each = training(&Training { steps: 11, ..one.clone() }, 1).events.len() / 10;
    training(&Training { steps: (events * 13 / 10 / each) as u32, ..one }, 1)
}

/// The recording, with steps enough for so many events; each request has an address of its own.
fn prolonged(trace: &Trace, events: usize) -> Option<Trace> {
    let lives = Lifetimes::of(trace);
    let iterations = Iterations::of(trace, &lives);
    let (first, last) = iterations.steady?;
    let steady = &iterations.list[first..=last];
    let each = steady.iter().map(|it| it.ticks.len()).sum::<usize>() / steady.len();
    let count = iterations.list.len() + events / each.max(1) + 2;
    let (mut trace, lives) = parts::prolonged(trace, &lives, &iterations, count)?;
    for (event, &request) in trace.events.iter_mut().zip(&lives.request_of) {
        if let Some(life) = lives.requests.get(request as usize) {
            event.address = u64::from(request) << 12;
            event.size = life.size;
        }
    }
    Some(trace)
}
