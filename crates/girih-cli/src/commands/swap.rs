//! `girih swap`: what goes to the host and comes back where a step does not fit.

use std::io::Write;

use anyhow::{Context, bail};
use clap::Args;
use girih_swap::steps::Stuck;
use girih_swap::{
    Answer as Swapped, Budgets, Gap, Later, Links, Method, Step, Steps, Tensor, later,
};
use girih_trace::{Lifetimes, Trace};
use serde::Serialize;

use super::write_json;
use crate::Answer;
use crate::files::shown_input;
use crate::load::{self, Loaded, timed};
use crate::progress::Progress;
use crate::table::table;
use crate::units::{
    bytes, count, milliseconds, parse_bytes, parse_microseconds, parse_name, parse_rate,
    percent_more,
};

#[derive(Args)]
pub(crate) struct SwapArgs {
    #[command(flatten)]
    source: load::Source,
    /// The most bytes on the GPU: 40GiB, 512MiB, 123B.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    gpu_budget: u64,
    /// The most bytes on the host. Without this, no limit.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    host_budget: Option<u64>,
    /// How the schedule is made.
    #[arg(long, value_name = "NAME", value_parser = parse_name(Method::ALL, Method::name), default_value = "girih")]
    method: Method,
    /// How long a step takes without swapping: 800ms, 1.2s. Without this, as its events say.
    #[arg(long, value_name = "TIME", value_parser = parse_microseconds)]
    step_time: Option<f64>,
    /// Gigabytes (10^9 bytes) a second of the link to the host, of the link back, and of both together.
    #[arg(long, value_name = "OUT,IN,BOTH", value_delimiter = ',', value_parser = parse_rate("GB/s"),
          default_value = "55,55,101")]
    links: Vec<f64>,
    /// Other steps of the recording that are run under what was learnt from the one that is scheduled.
    #[arg(long, value_name = "N", default_value_t = 3)]
    later: usize,
    /// Ends with exit status 1 if no schedule keeps the budgets.
    #[arg(long)]
    require_fit: bool,
}

#[derive(Serialize)]
struct Json {
    name: String,
    method: &'static str,
    fits: bool,
    gpu_budget: u64,
    host_budget: Option<u64>,
    /// Bytes that no schedule can do with fewer than.
    gpu_least: u64,
    gpu_peak: u64,
    gpu_peak_unswapped: u64,
    host_peak: u64,
    bytes_out: u64,
    bytes_in: u64,
    step: usize,
    step_us: f64,
    step_us_swapped: f64,
    step_us_bound: f64,
    stall_us: f64,
    tensors: usize,
    largest: Vec<JsonTensor>,
    stalls: Vec<JsonStall>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cannot_go: Vec<JsonStuck>,
    /// Steps that it was not learnt from, under what was learnt.
    later: Vec<JsonLater>,
    assumed: Vec<String>,
    seconds: f64,
}

/// Another step under the same policy, or policies.
#[derive(Serialize)]
struct JsonLater {
    step: usize,
    /// A policy was known for exactly its sequence.
    known: bool,
    fits: bool,
    gpu_peak: u64,
    bytes_out: u64,
    step_us: f64,
    step_us_swapped: f64,
    step_us_bound: f64,
    stall_us: f64,
    /// Tensors that went only as memory ran out, and that came only when they were used.
    passive: u32,
    demanded: u32,
    policy_changes: u32,
    /// The operator at which the method looked for a tensor that is not there, and died.
    #[serde(skip_serializing_if = "Option::is_none")]
    died_at: Option<u32>,
}

impl JsonLater {
    fn new(later: &Later, list: &[Step]) -> JsonLater {
        let Later { step, answer, is_known, passive, demanded, changes, died_at } = later;
        JsonLater {
            step: *step,
            known: *is_known,
            fits: answer.fits,
            gpu_peak: answer.gpu_peak,
            bytes_out: answer.bytes,
            step_us: list[*step].us(),
            step_us_swapped: answer.run.step_us,
            step_us_bound: answer.bound_us,
            stall_us: answer.run.stall_us(),
            passive: *passive,
            demanded: *demanded,
            policy_changes: *changes,
            died_at: *died_at,
        }
    }
}

/// A tensor that goes. Operators are counted from the beginning of the step; where the recording has none, each
/// request is one.
#[derive(Serialize)]
struct JsonTensor {
    bytes: u64,
    request: u32,
    /// The last operator that uses it before it goes.
    out_after: u32,
    /// The first operator that uses it again.
    in_before: u32,
}

#[derive(Serialize)]
struct JsonStall {
    us: f64,
    op: u32,
    request: u32,
    bytes: u64,
    waits_for: &'static str,
}

#[derive(Serialize)]
struct JsonStuck {
    request: u32,
    bytes: u64,
    why: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    frame: Option<String>,
}

/// Tensors and stalls that are listed.
const LISTED: usize = 10;

pub(crate) fn run(args: &SwapArgs, json: bool, out: &mut dyn Write) -> anyhow::Result<Answer> {
    let progress = Progress::new();
    progress.say(format!("reading {}", shown_input(&args.source.file)));
    let loaded = args.source.load()?;
    let steps = Steps::of(&loaded.trace, &loaded.lives, &loaded.iterations, args.step_time)
        .with_context(|| format!("cannot schedule {}", shown_input(&args.source.file)))?;
    let budgets = Budgets { gpu: args.gpu_budget, host: args.host_budget };
    let [outward, inward, both] = args.links[..] else {
        bail!("--links has three rates with commas between: out, in, and both together");
    };
    let links = links_of("--links", outward, inward, both)?;
    progress.say(format!("scheduling by {}", args.method.name()));
    let step = &steps.list[steps.model];
    let (swapped, seconds) = timed(|| args.method.answer(step, &links, &budgets));
    let refused = "please report this bug of Girih: the checker refuses the schedule";
    let swapped = swapped.context(refused)?;
    progress.say("running other steps under it");
    let learnt = (steps.model, &swapped.schedule);
    let later = later(args.method, &steps.list, learnt, &links, &budgets, args.later);
    let later = later.context(refused)?;
    drop(progress);
    let result = to_json(args, &loaded, &steps, (&swapped, &later), seconds);
    let answer = if args.require_fit && !result.fits { Answer::No } else { Answer::Yes };
    match json {
        true => write_json(out, &result)?,
        false => print(&result, step, out)?,
    }
    Ok(answer)
}

fn to_json(
    args: &SwapArgs,
    loaded: &Loaded,
    steps: &Steps,
    (swapped, later): (&Swapped, &[Later]),
    seconds: f64,
) -> Json {
    let step = &steps.list[steps.model];
    let Swapped { schedule, run, fits, gpu_peak, host_peak, bytes, bound_us } = swapped;
    let (gpu_least, tightest) = step.least_budget();
    let gap = |away: u32| step.gaps[schedule.away[away as usize].gap as usize];
    let mut largest: Vec<JsonTensor> = (0..schedule.away.len() as u32)
        .map(|away| {
            let Gap { tensor, after, before } = gap(away);
            let Tensor { bytes, request, .. } = step.tensors[tensor as usize];
            JsonTensor { bytes, request, out_after: after, in_before: before }
        })
        .collect();
    largest.sort_by_key(|it| (std::cmp::Reverse(it.bytes), it.out_after));
    largest.truncate(LISTED);
    let mut stalls: Vec<JsonStall> = run
        .stalls
        .iter()
        .map(|stall| {
            let tensor = step.tensors[gap(stall.away).tensor as usize];
            let waits_for = match stall.direction {
                girih_swap::simulate::Direction::Out => "copy out",
                girih_swap::simulate::Direction::In => "copy in",
            };
            let (us, op, bytes) = (stall.us, stall.op, tensor.bytes);
            JsonStall { us, op, request: tensor.request, bytes, waits_for }
        })
        .collect();
    stalls.sort_by(|a, b| b.us.total_cmp(&a.us));
    stalls.truncate(LISTED);
    let is_too_small = gpu_least > args.gpu_budget;
    let cannot_go = match is_too_small {
        true => steps.stuck(&loaded.lives, steps.model, tightest),
        false => Vec::new(),
    };
    let stuck = |it: &Stuck| to_stuck(it, &loaded.trace, &loaded.lives);
    Json {
        name: loaded.name.clone(),
        method: args.method.name(),
        fits: *fits,
        gpu_budget: args.gpu_budget,
        host_budget: args.host_budget,
        gpu_least,
        gpu_peak: *gpu_peak,
        gpu_peak_unswapped: step.peak(),
        host_peak: *host_peak,
        bytes_out: *bytes,
        bytes_in: *bytes,
        step: steps.model,
        step_us: step.us(),
        step_us_swapped: run.step_us,
        step_us_bound: *bound_us,
        stall_us: run.stall_us(),
        tensors: schedule.away.len(),
        largest,
        stalls,
        cannot_go: cannot_go.iter().take(LISTED).map(stuck).collect(),
        later: later.iter().map(|later| JsonLater::new(later, &steps.list)).collect(),
        assumed: assumptions(args.step_time, steps),
        seconds,
    }
}

fn to_stuck(stuck: &Stuck, trace: &Trace, lives: &Lifetimes) -> JsonStuck {
    let stack = lives.requests[stuck.request as usize].stack;
    let frames = trace.stacks.get(stack.0 as usize).map(Vec::as_slice).unwrap_or_default();
    // The innermost frames are the allocator's own; the first of Python says more.
    let names = frames.iter().filter_map(|&frame| trace.frames.get(frame as usize));
    let frame = names.clone().find(|name| name.contains(".py:")).or(names.clone().next()).cloned();
    JsonStuck { request: stuck.request, bytes: stuck.bytes, why: stuck.why.name(), frame }
}

/// What is assumed of a recording, in sentences; `step_time` is what was given, in microseconds.
pub(crate) fn assumptions(step_time: Option<f64>, steps: &Steps) -> Vec<String> {
    let mut said = Vec::new();
    if steps.assumed.uses {
        said.push(
            "the recording does not say which operator uses what: a block is taken to be in use \
             from its birth to the fourth request after it on its stream, and again from the \
             fourth request before its free"
                .to_owned(),
        );
    }
    if let Some(us) = step_time {
        said.push(format!("a step takes {}, as was given", milliseconds(us)));
    } else if steps.assumed.times {
        said.push(
            "an operator takes as long as until the next one on the events' clock".to_owned(),
        );
    }
    if steps.assumed.one_step {
        said.push("nothing repeats in the recording: all of it is taken for one step".to_owned());
    }
    said
}

/// Links of these rates, in GB/s, as an option names them.
pub(super) fn links_of(
    option: &str,
    outward: f64,
    inward: f64,
    both: f64,
) -> anyhow::Result<Links> {
    if !Links::are_possible(outward, inward, both) {
        bail!(
            "give {option} a rate of both together that is at least each alone and at most their sum: {outward} \
             out, {inward} in and {both} together cannot be"
        );
    }
    Ok(Links::of_gigabytes(outward, inward, both))
}

fn print(result: &Json, step: &Step, out: &mut dyn Write) -> anyhow::Result<()> {
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let cost = |us: f64| format!("{} ({})", milliseconds(us), percent_more(us, result.step_us));
    let rows = vec![
        row("fits", if result.fits { "yes" } else { "no" }.to_owned()),
        row("on the GPU at most, without swapping", bytes(result.gpu_peak_unswapped)),
        row("on the GPU at most", bytes(result.gpu_peak)),
        row("on the host at most", bytes(result.host_peak)),
        row("tensors that go", count(result.tensors as u64)),
        row("copied out, and in again", bytes(result.bytes_out)),
        row("step without swapping", milliseconds(result.step_us)),
        row("step", cost(result.step_us_swapped)),
        row("no schedule is faster than", cost(result.step_us_bound)),
        row("waited for copies", milliseconds(result.stall_us)),
    ];
    let title = format!("{}, step {}, {}", result.name, result.step, result.method);
    write!(out, "{}", table(&[&title, ""], &rows))?;
    if !result.largest.is_empty() {
        let row = |it: &JsonTensor| {
            let idle = it.in_before - it.out_after - 1;
            let place = |op: u32| count(u64::from(op));
            vec![bytes(it.bytes), place(it.out_after), place(it.in_before), place(idle)]
        };
        let rows: Vec<Vec<String>> = result.largest.iter().map(row).collect();
        let header = ["the largest that go", "out after", "in before", "operators between"];
        write!(out, "\n{}", table(&header, &rows))?;
        writeln!(out, "operators of the step, of {}", count(step.ops.len() as u64))?;
    }
    if !result.stalls.is_empty() {
        let row = |it: &JsonStall| {
            let what = format!("{} of {}", it.waits_for, bytes(it.bytes));
            vec![milliseconds(it.us), count(u64::from(it.op)), what]
        };
        let rows: Vec<Vec<String>> = result.stalls.iter().map(row).collect();
        write!(out, "\n{}", table(&["the longest waits", "before operator", "for"], &rows))?;
    }
    if !result.later.is_empty() {
        write!(out, "\n{}", later_table(&result.later))?;
    }
    if !result.fits {
        writeln!(out, "\n{}", misfit(result))?;
    }
    if !result.cannot_go.is_empty() {
        let row = |it: &JsonStuck| {
            vec![bytes(it.bytes), it.why.to_owned(), it.frame.clone().unwrap_or_default()]
        };
        let rows: Vec<Vec<String>> = result.cannot_go.iter().map(row).collect();
        write!(out, "\n{}", table(&["the largest that cannot go", "why", "from"], &rows))?;
    }
    for said in &result.assumed {
        writeln!(out, "\nassumed: {said}")?;
    }
    Ok(())
}

/// Steps that were not learnt from.
fn later_table(later: &[JsonLater]) -> String {
    let row = |it: &JsonLater| {
        let fits = match (it.died_at, it.fits) {
            (Some(op), _) => format!("died at {}", count(u64::from(op))),
            (None, true) => "yes".to_owned(),
            (None, false) => "no".to_owned(),
        };
        vec![
            it.step.to_string(),
            fits,
            milliseconds(it.step_us),
            percent_more(it.step_us_swapped, it.step_us),
            percent_more(it.step_us_bound, it.step_us),
            count(u64::from(it.passive)),
            count(u64::from(it.policy_changes)),
        ]
    };
    let rows: Vec<Vec<String>> = later.iter().map(row).collect();
    let header =
        ["other steps", "fits", "plain", "swapped", "bound", "at the edge", "policy changes"];
    table(&header, &rows)
}

/// Why the budgets are not kept, in bytes.
fn misfit(result: &Json) -> String {
    if result.gpu_least > result.gpu_budget {
        return format!(
            "does not fit: {} are in use or cannot go at once, {} more than the budget of {}; what \
             is shown keeps to that",
            bytes(result.gpu_least),
            bytes(result.gpu_least - result.gpu_budget),
            bytes(result.gpu_budget)
        );
    }
    match result.host_budget.filter(|&host| result.host_peak > host) {
        Some(host) => format!(
            "does not fit: {} must be on the host at once, {} more than its budget of {}",
            bytes(result.host_peak),
            bytes(result.host_peak - host),
            bytes(host)
        ),
        None => format!(
            "does not fit: {} leaves {} on the GPU, {} more than the budget; it has no more to \
             offer",
            result.method,
            bytes(result.gpu_peak),
            bytes(result.gpu_peak - result.gpu_budget)
        ),
    }
}
