//! What the numbers of [`Tuning`] are worth: steps of recordings, run by the executor on streams with clocks.
//!
//! Each operator of a step is a kernel of its time. A tensor that lies idle is saved when its use ends and used where it
//! is used again; what is alive besides is one block that stays and one for each operator. The first step is run by an
//! executor that knows nothing, the later ones as it has planned.
//!
//! ```text
//! cargo test --release -p girih-torch --lib -- --ignored --nocapture ablation
//! ```

use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering;

use girih_runtime::Address;
use girih_swap::{Gap, Step, Steps};
use girih_trace::compress::Limits;
use girih_trace::{Iterations, Lifetimes, MarkKind, marks, open};

use super::program::{NEXT, Program, with};
use super::timed::{Clock, RATES, Refused, Timed};
use crate::heap::{Heap, Saved};
use crate::swap::storages::StorageId;
use crate::swap::tuning::Tuning;
use crate::swap::{Shape, SwapReport};

/// Where recordings lie: those of the repository, and more beside it.
const FOLDERS: [&str; 2] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../corpus"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces"),
];
/// Steps in which much has to go at these shares of their peaks, and can.
const RUNS: [(&str, f64); 5] = [
    ("llama2b_vary.girih", 0.8),
    ("diffusion.pickle.gz", 0.6),
    ("segmentation.pickle.gz", 0.8),
    ("lightning.pickle.gz", 0.8),
    ("trainer.pickle.gz", 0.8),
];
/// Others, on which nothing was chosen: they say whether a choice holds.
const HELD_OUT: [(&str, f64); 4] = [
    ("llama2b_N.girih", 0.8),
    ("megatron_gpt2-V-R_r0.girih", 0.8),
    ("llama2b_R_vary.pickle.gz", 0.8),
    ("megatron_llama7b-V_r0.pickle.gz", 0.8),
];
/// The stream of the program.
const STREAM: u64 = 1;

/// The step of a recording that stands for all.
pub(super) fn step_of(name: &str) -> Option<Step> {
    let path = FOLDERS.iter().map(|folder| Path::new(folder).join(name)).find(|it| it.is_file())?;
    let file = File::open(&path).expect("it was there just now");
    let recording = open::detect_and_read(file, Limits::default()).expect("it is a recording");
    let mut traces = recording.traces;
    let mut trace = traces.swap_remove(0);
    let beside = path.with_file_name(name.replace(".pickle.gz", ".marks.json.gz"));
    if beside != path && beside.is_file() {
        let text = std::fs::read(beside).expect("marks");
        marks::apply(&mut trace, &text).expect("they are marks");
    }
    let trace = &trace;
    let lives = Lifetimes::of(trace);
    let iterations = Iterations::of(trace, &lives);
    let mut steps = Steps::of(trace, &lives, &iterations, None).expect("it has steps");
    Some(steps.list.swap_remove(steps.model))
}

/// A tensor of the step while it lives.
#[derive(Clone, Copy)]
struct Alive {
    storage: u64,
    size: u64,
    /// Its record; none before it is saved, 0 without one.
    record: Option<u64>,
}

pub(super) struct Run {
    heap: Heap,
    clock: Clock,
    step: Step,
    /// For each operator, the tensors that are born and that end there, the gaps that begin and end there, and the bytes
    /// besides.
    born: Vec<Vec<u32>>,
    ends: Vec<Vec<u32>>,
    after: Vec<Vec<Gap>>,
    before: Vec<Vec<Gap>>,
    besides: Vec<u64>,
    alive: Vec<Option<Alive>>,
    refused: u32,
}

impl Run {
    fn new(step: &Step, share: f64, tuning: Tuning) -> Run {
        Run::on(RATES, step, share, tuning)
    }

    /// On links of these rates: out and in.
    pub(super) fn on(rates: [f64; 2], step: &Step, share: f64, tuning: Tuning) -> Run {
        let (device, clock) = Timed::new(4 * step.peak(), rates);
        Run::over(device, clock, step, share, tuning)
    }

    /// On a device that refuses something.
    pub(super) fn refusing(refused: Refused, step: &Step, share: f64) -> Run {
        let (mut device, clock) = Timed::new(4 * step.peak(), RATES);
        device.refuse(refused);
        Run::over(device, clock, step, share, Tuning::default())
    }

    fn over(device: Timed, clock: Clock, step: &Step, share: f64, tuning: Tuning) -> Run {
        Program::prepare();
        let peak = step.peak();
        let json = format!(
            r#"{{"mode": "stitch", "gpu_budget": {}, "host_budget": {}}}"#,
            (peak as f64 * share) as u64,
            2 * peak
        );
        let settings = crate::Settings::parse(&json).expect("right settings");
        let heap = Heap::over(Box::new(device), 0, &settings);
        let tuned = heap.with(|state| {
            state.with_swap(|swap, _| {
                swap.tune(tuning);
                Ok(())
            })
        });
        assert_eq!(tuned.expect("it works"), Some(()), "it swaps");
        let count = step.ops.len();
        let (mut born, mut ends) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        let mut held = vec![0_i64; count + 1];
        for (tensor, number) in step.tensors.iter().zip(0..) {
            born[tensor.born as usize].push(number);
            ends[tensor.last as usize].push(number);
            held[tensor.born as usize] += tensor.bytes as i64;
            held[tensor.last as usize + 1] -= tensor.bytes as i64;
        }
        let (mut after, mut before) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        for gap in &step.gaps {
            after[gap.after as usize].push(*gap);
            before[gap.before as usize].push(*gap);
        }
        let held = held.iter().scan(0, |sum, change| {
            *sum += change;
            Some(*sum as u64)
        });
        let besides = step.load.iter().zip(held).map(|(load, held)| load.saturating_sub(held));
        let besides: Vec<u64> = besides.collect();
        let alive = vec![None; step.tensors.len()];
        let step = step.clone();
        let mut run =
            Run { heap, clock, step, born, ends, after, before, besides, alive, refused: 0 };
        let stays = run.besides.iter().copied().min().unwrap_or(0);
        if stays > 0 {
            run.allocate(stays);
            run.besides.iter_mut().for_each(|bytes| *bytes -= stays);
        }
        run
    }

    fn allocate(&mut self, size: u64) -> Option<Address> {
        let given = self.heap.allocate(size, STREAM, (0, 0)).ok();
        self.refused += u32::from(given.is_none());
        given
    }

    /// One step. Microseconds that it took.
    pub(super) fn step(&mut self) -> f64 {
        let _ = self.heap.mark(MarkKind::Step, "");
        let begin = self.clock.now(STREAM);
        for op in 0..self.step.ops.len() {
            for gap in self.before[op].clone() {
                if let Some(Alive { record: Some(id), .. }) = self.alive[gap.tensor as usize]
                    && id != 0
                    && self.heap.use_saved(id, STREAM).is_err()
                {
                    self.refused += 1;
                }
            }
            for number in self.born[op].clone() {
                let size = self.step.tensors[number as usize].bytes;
                if let Some(address) = self.allocate(size) {
                    let storage = NEXT.fetch_add(1, Ordering::Relaxed);
                    with(|all| all.insert(storage, (1, address)));
                    self.alive[number as usize] = Some(Alive { storage, size, record: None });
                }
            }
            let besides = match self.besides[op] {
                0 => None,
                bytes => self.allocate(bytes),
            };
            self.clock.run(STREAM, self.step.ops[op].us);
            if let Some(address) = besides {
                assert_eq!(self.heap.free(address).ok(), Some(true));
            }
            for gap in self.after[op].clone() {
                self.save(gap.tensor as usize);
            }
            for number in self.ends[op].clone() {
                self.end(number as usize);
            }
        }
        self.clock.now(STREAM) - begin
    }

    /// From now on autograd alone has the tensor.
    fn save(&mut self, number: usize) {
        let Some(tensor) = &mut self.alive[number] else { return };
        if tensor.record.is_none() {
            let address = with(|all| all[&tensor.storage].1);
            let (storage, size) = (StorageId(tensor.storage), tensor.size);
            let saved = Saved { storage, address, size, kind: size, shape: Shape::default() };
            tensor.record = Some(self.heap.save(saved, STREAM).unwrap_or(0));
        }
    }

    fn end(&mut self, number: usize) {
        let Some(tensor) = self.alive[number].take() else { return };
        if let Some(id) = tensor.record.filter(|&id| id != 0) {
            assert!(self.heap.drop_saved(id).is_ok());
        }
        let (_, address) = with(|all| all.remove(&tensor.storage)).expect("it lives");
        if address != 0 {
            assert_eq!(self.heap.free(address).ok(), Some(true));
        }
    }

    pub(super) fn finish_planning(&self) {
        let finished = self.heap.with(|state| {
            state.with_swap(|swap, _| {
                swap.steps.finish_planning();
                Ok(())
            })
        });
        finished.expect("it works");
    }

    /// Requests and uses that were refused.
    pub(super) fn refused(&self) -> u32 {
        self.refused
    }

    /// Copies of the step that runs whose time was taken.
    pub(super) fn timed_copies(&self) -> usize {
        let timed = self.heap.with(|state| state.with_swap(|swap, _| Ok(swap.links.timed())));
        timed.expect("it works").expect("it swaps")
    }

    pub(super) fn report(&self) -> SwapReport {
        self.heap.with(|state| Ok(state.swap_report())).expect("it works").expect("it swaps")
    }
}

/// How a setting did on one recording: the first step and the settled ones over the step without swapping, and what was
/// done badly.
#[derive(Clone, Copy, Default)]
struct Outcome {
    first: f64,
    settled: f64,
    demanded: u64,
    refused: u32,
    plans: f64,
}

/// Steps until a plan stays. Microseconds of the last.
fn settle(run: &mut Run) -> f64 {
    // What is read is a step old, and the plan that stays is taken up after that.
    let (mut left, mut us) = (4, f64::NAN);
    for _ in 0..200 {
        us = run.step();
        run.finish_planning();
        left -= u32::from(run.report().is_settled());
        if left == 0 {
            break;
        }
    }
    us
}

fn outcome(step: &Step, share: f64, tuning: Tuning, settles: bool) -> Outcome {
    let mut run = Run::new(step, share, tuning);
    let alone = step.us();
    let first = run.step() / alone;
    let report = run.report();
    let demanded = report.demanded();
    let settled = if settles { settle(&mut run) / alone } else { f64::NAN };
    let (refused, plans) = (run.refused, run.report().planning_seconds());
    Outcome { first, settled, demanded, refused, plans }
}

/// A number of the tuning with its name, other values for it, and whether steps must settle to show it.
struct Knob {
    name: &'static str,
    values: &'static [f64],
    settles: bool,
    set: fn(&mut Tuning, f64),
}

const KNOBS: [Knob; 9] = [
    Knob {
        name: "ahead_part",
        values: &[2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 1e18],
        settles: false,
        set: |tuning, value| tuning.ahead_part = value as u64,
    },
    Knob {
        name: "coming_part",
        values: &[1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 1e18],
        settles: false,
        set: |tuning, value| tuning.coming_part = value as u64,
    },
    Knob {
        name: "free_part",
        values: &[4.0, 8.0, 16.0, 32.0, 64.0, 1e18],
        settles: false,
        set: |tuning, value| tuning.free_part = value as u64,
    },
    Knob {
        name: "looked_at",
        values: &[1.0, 16.0, 64.0, 256.0, 4096.0],
        settles: true,
        set: |tuning, value| tuning.looked_at = value as usize,
    },
    Knob {
        name: "stamps",
        values: &[8.0, 32.0, 128.0, 512.0, 4096.0],
        settles: true,
        set: |tuning, value| tuning.stamps = value as usize,
    },
    Knob {
        name: "plans_max",
        values: &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
        settles: true,
        set: |tuning, value| tuning.plans_max = value as u32,
    },
    Knob {
        name: "in_vain_max",
        values: &[1.0, 2.0, 3.0, 4.0],
        settles: true,
        set: |tuning, value| tuning.in_vain_max = value as u32,
    },
    Knob {
        name: "better",
        values: &[0.0, 0.005, 0.02],
        settles: true,
        set: |tuning, value| tuning.better = value,
    },
    Knob {
        name: "steps_judged",
        values: &[2.0, 3.0, 5.0],
        settles: true,
        set: |tuning, value| tuning.steps_judged = value as u32,
    },
];

#[test]
#[ignore = "it takes minutes and prints a table"]
#[expect(clippy::print_stdout, reason = "it prints a table")]
fn ablation() {
    let read = |runs: &[(&'static str, f64)]| -> Vec<(&str, f64, Step)> {
        runs.iter().filter_map(|&(name, share)| Some((name, share, step_of(name)?))).collect()
    };
    let (steps, held_out) = (read(&RUNS), read(&HELD_OUT));
    for (name, share, step) in steps.iter().chain(&held_out) {
        println!(
            "{name}: {} operators, {} gaps, {:.0} ms, {:.1} GiB, of which {share} is given",
            step.ops.len(),
            step.gaps.len(),
            step.us() / 1e3,
            step.peak() as f64 / (1_u64 << 30) as f64
        );
    }
    println!("\n| number | value | first step | held out | late | settled | planning, s |");
    println!("| :-- | --: | --: | --: | --: | --: | --: |");
    for knob in &KNOBS {
        for &value in knob.values {
            let mut tuning = Tuning::default();
            let usual = tuning;
            (knob.set)(&mut tuning, value);
            let mark = if tuning == usual { " (chosen)" } else { "" };
            let mean = |runs: &[(&str, f64, Step)], settles: bool| {
                let mut sum = Outcome::default();
                for (_, share, step) in runs {
                    let one = outcome(step, *share, tuning, settles);
                    sum.first += one.first / runs.len() as f64;
                    sum.settled += one.settled / runs.len() as f64;
                    sum.demanded += one.demanded;
                    sum.plans += one.plans;
                    assert_eq!(one.refused, 0, "what fits is served");
                }
                sum
            };
            let (own, others) = (mean(&steps, knob.settles), mean(&held_out, knob.settles));
            let settled = match knob.settles {
                true => format!(
                    "{:.4} + {:.4} | {:.1}",
                    own.settled,
                    others.settled,
                    own.plans + others.plans
                ),
                false => " | ".to_owned(),
            };
            let shown = if value < 1e9 { value.to_string() } else { "none".to_owned() };
            println!(
                "| {} | {shown}{mark} | {:.4} | {:.4} | {} + {} | {settled} |",
                knob.name, own.first, others.first, own.demanded, others.demanded
            );
        }
    }
}

/// What it is worth to measure links: settled steps of some recordings on others than the usual ones, with and without.
#[test]
#[ignore = "it takes minutes and prints a table"]
#[expect(clippy::print_stdout, reason = "it prints a table")]
fn ablation_of_links() {
    println!("| recording | links, GB/s | links_least | settled | as planned last |");
    println!("| :-- | --: | --: | --: | --: |");
    let usual = Tuning::default();
    for (name, share) in [RUNS[0], HELD_OUT[0], HELD_OUT[1]] {
        let Some(step) = step_of(name) else { continue };
        for rate in [12e3, 25e3, 41e3] {
            for (shown, least) in [("64 MiB", usual.links_least), ("none", u64::MAX)] {
                let tuning = Tuning { links_least: least, ..usual };
                let mut run = Run::on([rate; 2], &step, share, tuning);
                let settled = settle(&mut run) / step.us();
                let report = serde_json::to_value(run.report()).expect("numbers");
                let planned = report["step_us_swapped"].as_f64().unwrap_or(0.0) / step.us();
                println!("| {name} | {} | {shown} | {settled:.4} | {planned:.4} |", rate / 1e3);
            }
        }
    }
}

/// The table is made by hand; that what makes it works is seen each time.
#[test]
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn a_step_of_a_recording_is_swapped_on_streams_with_clocks() {
    let Some(step) = step_of("llama2b_vary.girih") else {
        return eprintln!("SKIPPED: the recordings are not there");
    };
    let fits = outcome(&step, 1.2, Tuning::default(), false);
    assert!((fits.first - 1.0).abs() < 1e-9, "what fits takes its time and no more");
    let swapped = outcome(&step, 0.8, Tuning::default(), false);
    assert!(swapped.first > 1.0, "copies take time");
    assert_eq!(swapped.refused, 0);
    let alone = outcome(&step, 0.8, Tuning { ahead_part: u64::MAX, ..Tuning::default() }, false);
    assert!(alone.first > swapped.first, "{} without copies ahead", alone.first);
}

/// Without this a plan takes its own waits for work, sees that nothing is waited for, and stays.
#[test]
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn a_wait_for_a_copy_is_no_work_and_the_plan_with_the_shortest_step_stays() {
    let Some(step) = step_of("llama2b_vary.girih") else {
        return eprintln!("SKIPPED: the recordings are not there");
    };
    let mut run = Run::new(&step, 0.8, Tuning::default());
    let (mut times, mut planned, mut settled_at) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..26 {
        times.push(run.step() / step.us());
        run.finish_planning();
        let report = serde_json::to_value(run.report()).expect("numbers");
        planned.push(report["step_us"].as_f64().expect("a number") / step.us());
        settled_at.extend(run.report().is_settled().then_some(number));
    }
    let Tuning { in_vain_max, steps_judged, .. } = Tuning::default();
    assert!(
        settled_at[0] >= in_vain_max * steps_judged
            && settled_at == Vec::from_iter(settled_at[0]..26),
        "{settled_at:?}"
    );
    let first = planned.iter().find(|us| **us > 0.0).expect("it is planned");
    assert!((0.7..1.05).contains(first), "a step takes {first:.3} of itself without waits");
    assert!(times[3] > 1.3, "and there are waits");
    let (before, settled) = (&times[4..22], times[25]);
    let least = before.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(settled <= least * 1.001, "{settled:.3} in the end, {least:.3} before: {times:.3?}");
}
