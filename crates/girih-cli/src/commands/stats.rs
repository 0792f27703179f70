//! `girih stats`: what a recording holds.

use std::io::Write;

use clap::Args;
use girih_trace::{Action, Phases, Scope, Source, Statistics};
use serde::Serialize;

use super::write_json;
use crate::Answer;
use crate::load::{self, Loaded, timed};
use crate::table::table;
use crate::units::{bytes, count};

#[derive(Args)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    source: load::Source,
}

#[derive(Serialize)]
struct Json<'a> {
    name: &'a str,
    device: u32,
    devices: &'a [u32],
    events: usize,
    requests: usize,
    older_requests: usize,
    never_freed: u64,
    streams: usize,
    stream_shares: Vec<JsonShare>,
    iterations: JsonIterations,
    microbatches: u32,
    phases: usize,
    scopes: Vec<JsonShare>,
    marks: usize,
    distinct_sizes: u64,
    live_peak: u64,
    deferred_frees: u64,
    deferred_byte_seconds: f64,
    ooms: u64,
    truncated: bool,
    warnings: &'a [String],
    seconds: f64,
}

#[derive(Serialize)]
struct JsonIterations {
    count: usize,
    source: &'static str,
    steady: Option<[usize; 2]>,
    requests: Vec<u32>,
}

#[derive(Serialize)]
struct JsonShare {
    name: String,
    requests: u64,
    bytes: u64,
    live_peak: u64,
}

pub(crate) fn run(args: &StatsArgs, json: bool, out: &mut dyn Write) -> anyhow::Result<Answer> {
    let (result, seconds) = timed(|| {
        let loaded = args.source.load()?;
        let Loaded { trace, lives, iterations, .. } = &loaded;
        let phases = Phases::of(trace, lives, iterations);
        let statistics = Statistics::of(trace, lives, iterations, &phases);
        anyhow::Ok((loaded, phases, statistics))
    });
    let (loaded, phases, statistics) = result?;
    if json {
        write_json(out, &to_json(&loaded, &phases, &statistics, seconds))?;
    } else {
        print(&loaded, &phases, &statistics, seconds, out)?;
    }
    Ok(Answer::Yes)
}

fn source_name(source: Source) -> &'static str {
    match source {
        Source::Marks => "marks",
        Source::Sequence => "sequence",
        Source::None => "none",
    }
}

fn shares(loaded: &Loaded, statistics: &Statistics) -> (Vec<JsonShare>, Vec<JsonShare>) {
    let share = |name: String, share: &girih_trace::statistics::Share| JsonShare {
        name,
        requests: share.requests,
        bytes: share.bytes,
        live_peak: share.live_peak,
    };
    let streams = loaded.trace.streams.iter().zip(&statistics.streams);
    let streams = streams.filter(|(_, own)| own.requests > 0);
    let scopes = Scope::ALL.into_iter().zip(&statistics.scopes);
    (
        streams.map(|(handle, own)| share(format!("stream {handle}"), own)).collect(),
        scopes.map(|(scope, own)| share(scope.name().to_owned(), own)).collect(),
    )
}

fn to_json<'a>(
    loaded: &'a Loaded,
    phases: &Phases,
    statistics: &Statistics,
    seconds: f64,
) -> Json<'a> {
    let (stream_shares, scopes) = shares(loaded, statistics);
    let iterations = &loaded.iterations;
    Json {
        name: &loaded.name,
        device: loaded.trace.device,
        devices: &loaded.devices,
        events: loaded.trace.events.len(),
        requests: loaded.lives.born().len(),
        older_requests: loaded.lives.older,
        never_freed: statistics.never_freed,
        streams: stream_shares.len(),
        stream_shares,
        iterations: JsonIterations {
            count: iterations.list.len(),
            source: source_name(iterations.source),
            steady: iterations.steady.map(|(first, last)| [first, last]),
            requests: iterations.list.iter().map(|it| it.requests.len() as u32).collect(),
        },
        microbatches: phases.microbatches,
        phases: phases.list.len(),
        scopes,
        marks: loaded.trace.marks.len(),
        distinct_sizes: statistics.distinct_sizes,
        live_peak: statistics.all.live_peak,
        deferred_frees: statistics.deferred_frees,
        deferred_byte_seconds: statistics.deferred_byte_seconds,
        ooms: statistics.events[Action::Oom as usize],
        truncated: loaded.trace.origin.truncated,
        warnings: &loaded.trace.origin.warnings,
        seconds,
    }
}

fn print(
    loaded: &Loaded,
    phases: &Phases,
    statistics: &Statistics,
    seconds: f64,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let Loaded { name, trace, lives, iterations, devices } = loaded;
    let mut title = format!("{name}, device {}", trace.device);
    if devices.len() > 1 {
        let all: Vec<String> = devices.iter().map(u32::to_string).collect();
        title += &format!(" (of {}; choose with --device)", all.join(", "));
    }
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let mut rows = vec![
        row("events", count(trace.events.len() as u64)),
        row("requests", count(lives.born().len() as u64)),
        row("older than the recording", count(statistics.older)),
        row("never freed", count(statistics.never_freed)),
        row("distinct sizes", count(statistics.distinct_sizes)),
        row("most alive at once", bytes(statistics.all.live_peak)),
        row("frees that waited for a stream", count(statistics.deferred_frees)),
        row(
            "iterations",
            format!("{} (from {})", iterations.list.len(), source_name(iterations.source)),
        ),
    ];
    rows.push(row(
        "  alike",
        match iterations.steady {
            Some((first, last)) => format!("{first} to {last}"),
            None => "none".to_owned(),
        },
    ));
    let lengths: Vec<u64> = iterations.list.iter().map(|it| it.requests.len() as u64).collect();
    if let (Some(least), Some(most)) = (lengths.iter().min(), lengths.iter().max()) {
        let range = format!("{} to {}", count(*least), count(*most));
        rows.push(row("  requests in each", if least == most { count(*least) } else { range }));
    }
    if phases.microbatches > 0 {
        rows.push(row("  forward passes in each", phases.microbatches.to_string()));
    }
    let ooms = statistics.events[Action::Oom as usize];
    if ooms > 0 {
        rows.push(row("out-of-memory errors", count(ooms)));
    }
    writeln!(out, "{}", table(&[&title, ""], &rows))?;
    let (streams, scopes) = shares(loaded, statistics);
    let header = ["of which", "requests", "requested in all", "most alive at once"];
    let shares: Vec<Vec<String>> = streams
        .iter()
        .chain(&scopes)
        .map(|s| vec![s.name.clone(), count(s.requests), bytes(s.bytes), bytes(s.live_peak)])
        .collect();
    write!(out, "{}", table(&header, &shares))?;
    writeln!(out, "\nread and understood in {seconds:.2} s")?;
    Ok(())
}
