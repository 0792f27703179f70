//! What an allocation and its free cost through the C interface: nanoseconds a pair.
//!
//! The device is simulated and nothing is asked of it in steady state, so this is the cost of
//! Girih alone: the lock, the ids, the policy, the table of addresses. One thread in each mode,
//! then several threads on one device, and as many on a device each.
//!
//! ```text
//!  cargo bench -p girih-torch --bench abi            all of it
//!  cargo bench -p girih-torch --bench abi planned    one row
//! ```
//!
//! The settings of a process are chosen once, so each row runs in a process of its own.

#![expect(unsafe_code, reason = "it calls a C interface")]
#![expect(clippy::print_stdout, reason = "a benchmark prints its result")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads clocks, threads and arguments")]

use std::ffi::c_void;
use std::fs::File;
use std::hint::black_box;
use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use girih_plan::{Budget, profile, solve};
use girih_torch::abi::{Pool, Status, blocks, storages};
use girih_torch::control;
use girih_trace::compress::Limits;
use girih_trace::generate::{Training, training};
use girih_trace::{Action, Iterations, Lifetimes, Trace, marks, open};

/// Where recorded runs lie.
const RECORDINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces");
/// The recording that is followed.
const RECORDING: &str = "gpt2m_R";
/// How long each measurement goes on at least.
const WHILE: Duration = Duration::from_millis(400);
/// The best of so many is reported: others disturb, nothing helps.
const TRIES: usize = 5;

const ROWS: [&str; 17] = [
    "lock",
    "table",
    "cached one size",
    "cached mix",
    "expandable mix",
    "stitch mix",
    "stitch swap off",
    "stitch far",
    "stitch half full",
    "a view of 2 parts",
    "a view of 20 parts",
    "planned",
    "2 threads",
    "4 threads",
    "8 threads",
    "2 devices",
    "4 devices",
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if let Some(row) = arguments.first().and_then(|a| a.strip_prefix("row=")) {
        println!("{row:<18} {:>8.1} ns a pair", run(row));
        return;
    }
    let wanted = |row: &&&str| arguments.is_empty() || arguments.iter().any(|a| row.contains(a));
    for row in ROWS.iter().filter(wanted) {
        let program = std::env::current_exe().expect("this program has a file");
        let status = Command::new(program).arg(format!("row={row}")).status();
        assert!(status.is_ok_and(|status| status.success()), "{row} failed");
    }
}

fn run(row: &str) -> f64 {
    match row {
        "lock" => lock(),
        "table" => table(),
        "cached one size" => {
            start("native", "");
            one_size(3 << 20);
            best(|| one_size(3 << 20))
        }
        "a view of 2 parts" => view(2),
        "a view of 20 parts" => view(20),
        "cached mix" | "expandable mix" | "stitch mix" => {
            start(
                row.split(' ').next().map_or("", |m| if m == "cached" { "native" } else { m }),
                "",
            );
            mix()
        }
        "stitch swap off" => edge(r#", "swap": "off""#, 0),
        "stitch far" => edge("", 0),
        "stitch half full" => edge("", 600 << 30),
        "planned" => planned(),
        threads => {
            start("native", "");
            let count = threads.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
            best(|| on_threads(count, threads.ends_with("devices")))
        }
    }
}

/// Chooses the settings of this process.
fn start(mode: &str, more: &str) {
    let options = format!(r#"{{"mode": "{mode}", "sim": {{"capacity": {}}} {more}}}"#, 1_u64 << 40);
    control::configure(&options).expect("the settings are right");
    assert_eq!(blocks::girih_init(8), Status::Ok);
}

fn alloc(size: u64, stream: u64) -> *mut c_void {
    alloc_on(0, size, stream)
}

fn alloc_on(device: i32, size: u64, stream: u64) -> *mut c_void {
    let (mut address, pool) = (null_mut(), Pool::default());
    // SAFETY: `address` can be written to.
    let status = unsafe { blocks::girih_alloc(device, size, stream, pool, &raw mut address) };
    assert_eq!(status, Status::Ok);
    address
}

fn free(address: *mut c_void) {
    assert_eq!(blocks::girih_free(address), Status::Ok);
}

/// The least of several measurements.
fn best(measure: impl FnMut() -> f64) -> f64 {
    std::iter::repeat_with(measure).take(TRIES).fold(f64::INFINITY, f64::min)
}

/// Nanoseconds of one call of `work`: the least of many short batches. A batch is short enough to
/// be left alone by the rest of the machine now and then.
fn nanoseconds(mut work: impl FnMut()) -> f64 {
    const BATCH: u32 = 500;
    let (whole, mut least) = (Instant::now(), f64::INFINITY);
    while whole.elapsed() < WHILE {
        let started = Instant::now();
        (0..BATCH).for_each(|_| work());
        least = least.min(started.elapsed().as_nanos() as f64 / f64::from(BATCH));
    }
    least
}

fn one_size(size: u64) -> f64 {
    nanoseconds(|| free(alloc(black_box(size), 0)))
}

/// Requests of which each looks how near the edge of out of memory is, with so many bytes in use besides.
fn edge(more: &str, besides: u64) -> f64 {
    extern "C" fn of_tensor(_: u64, _: *mut u64) -> u64 {
        0
    }
    extern "C" fn number(_: u64) -> u64 {
        0
    }
    extern "C" fn give(_: u64, _: u64) {}
    // SAFETY: nobody saves a tensor, so they are never called.
    unsafe {
        storages::girih_set_storages(
            Some(of_tensor),
            Some(number),
            Some(number),
            Some(number),
            Some(give),
        );
    }
    start("stitch", more);
    if besides > 0 {
        black_box(alloc(besides, 0));
    }
    best(|| one_size(3 << 20))
}

/// A request that fits no hole and that a view of so many holes serves.
fn view(holes: usize) -> f64 {
    const HOLE: u64 = 40 << 20;
    start("stitch", "");
    let blocks: Vec<_> = (0..2 * holes).map(|_| alloc(HOLE, 0)).collect();
    blocks.into_iter().step_by(2).for_each(free);
    let size = holes as u64 * HOLE;
    one_size(size);
    best(|| one_size(size))
}

/// Taking and giving back a lock twice: what no pair can be below.
fn lock() -> f64 {
    let lock = std::sync::Mutex::new(0_u64);
    best(|| {
        nanoseconds(|| {
            *black_box(&lock).lock().expect("nobody panics") += 1;
            *black_box(&lock).lock().expect("nobody panics") += 1;
        })
    })
}

/// The standard hash map in the place of the table of addresses: insert, find, remove.
fn table() -> f64 {
    let mut table: rustc_hash::FxHashMap<u64, u32> = rustc_hash::FxHashMap::default();
    table.extend((0..5000).map(|k| (0x7000_0000_0000 + k * 0x1_2000, k as u32)));
    let mut k = 0;
    best(|| {
        nanoseconds(|| {
            k = (k + 7919) % 5000;
            let address = 0x7100_0000_0000 + k * 0x1_2000;
            table.insert(address, 7);
            black_box(table.get(&address));
            table.remove(&address);
        })
    })
}

/// The requests and frees of a recorded run, over and over; of a generated one if there is none.
fn mix() -> f64 {
    let trace = recording();
    let replay = Replay::of(&trace, 0..trace.events.len());
    best(|| replay.nanoseconds())
}

/// A run that follows a plan made from a recording, in steady state.
fn planned() -> f64 {
    let trace = recording();
    let lives = Lifetimes::of(&trace);
    let iterations = Iterations::of(&trace, &lives);
    let plan = profile::plan(&trace, &lives, &iterations, |problem| {
        solve(problem, Budget::interactive(problem.buffers.len()))
    })
    .expect("it has a meaning");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plan");
    girih_plan::file::write(&plan, File::create(&path).expect("a file")).expect("it is written");
    start("plan", &format!(r#", "plan": "{}""#, path.display()));
    // The opening once, as the program would; then one steady iteration again and again.
    let (first, last) = iterations.steady.expect("the recording repeats");
    let born = |index: usize| lives.requests[index].birth.index();
    let begin = |k: usize| born(iterations.list[k].requests.start as usize);
    let opening = Replay::of(&trace, 0..begin(first));
    let steady = Replay::of(&trace, begin(last - 1)..begin(last));
    let kept = opening.once();
    let result = best(|| steady.nanoseconds());
    black_box(kept);
    let report = control::report(Some(0)).expect("it was used");
    let field = |name: &str| {
        let from = report.find(name).map_or("", |at| &report[at + name.len() + 2..]);
        from.split([',', '}']).next().unwrap_or("").to_owned()
    };
    println!("  hits {}, misses {}", field("hits"), field("misses"));
    result
}

/// Requests and frees in order.
struct Replay {
    steps: Vec<Step>,
    requests: usize,
}

#[derive(Clone, Copy)]
enum Step {
    Alloc(u32, u64, u64),
    Free(u32),
}

impl Replay {
    fn of(trace: &Trace, ticks: std::ops::Range<usize>) -> Replay {
        let lives = Lifetimes::of(trace);
        let mut index = vec![u32::MAX; lives.requests.len()];
        let (mut steps, mut requests) = (Vec::new(), 0);
        for tick in ticks {
            let (event, request) = (&trace.events[tick], lives.request_of[tick] as usize);
            match event.action {
                Action::Alloc => {
                    index[request] = requests;
                    let stream = trace.streams[usize::from(event.stream.0)];
                    steps.push(Step::Alloc(requests, event.size, stream));
                    requests += 1;
                }
                Action::FreeRequested if request < index.len() && index[request] != u32::MAX => {
                    steps.push(Step::Free(index[request]));
                    index[request] = u32::MAX;
                }
                _ => {}
            }
        }
        Replay { steps, requests: requests as usize }
    }

    /// Does all once and returns what is still in use.
    fn once(&self) -> Vec<*mut c_void> {
        let mut given = vec![null_mut(); self.requests];
        self.go(&mut given);
        given
    }

    fn go(&self, given: &mut [*mut c_void]) {
        for &step in &self.steps {
            match step {
                Step::Alloc(index, size, stream) => given[index as usize] = alloc(size, stream),
                Step::Free(index) => {
                    free(std::mem::replace(&mut given[index as usize], null_mut()));
                }
            }
        }
    }

    /// Nanoseconds of a pair. What is left at the end is freed, as the next round would.
    fn nanoseconds(&self) -> f64 {
        let mut given = vec![null_mut(); self.requests];
        let (whole, mut least) = (Instant::now(), f64::INFINITY);
        while whole.elapsed() < WHILE {
            let started = Instant::now();
            self.go(&mut given);
            given.iter_mut().for_each(|address| free(std::mem::replace(address, null_mut())));
            least = least.min(started.elapsed().as_nanos() as f64 / self.requests as f64);
        }
        least
    }
}

/// Pairs on several threads at once, each with a stream and a size of its own, and perhaps a device:
/// nanoseconds of the wall clock for each pair that any of them did on one device. The least of many
/// short rounds in which all threads ran at the same time, if there are cores for that; if they never
/// did, infinity.
fn on_threads(count: usize, on_devices: bool) -> f64 {
    const PAIRS: usize = 2000;
    let has_cores = std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= count);
    let (arrived, rounds) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
    let began = Instant::now();
    let work = |thread: usize| {
        let device = if on_devices { thread as i32 } else { 0 };
        let mut times = Vec::new();
        loop {
            if thread == 0 && began.elapsed() > WHILE {
                rounds.store(times.len(), Ordering::Relaxed);
            }
            arrived.fetch_add(1, Ordering::AcqRel);
            while arrived.load(Ordering::Acquire) < (times.len() + 1) * count {
                std::thread::yield_now();
            }
            // Thread 0 may be ahead by now: what it says of a later round is not for this one.
            if times.len() >= rounds.load(Ordering::Relaxed) {
                return times;
            }
            let start = began.elapsed();
            for _ in 0..PAIRS {
                free(alloc_on(device, black_box((thread as u64 + 1) << 20), thread as u64));
            }
            times.push((start, began.elapsed()));
        }
    };
    let times: Vec<Vec<(Duration, Duration)>> = std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread fails")).collect()
    });
    let of_round = |round: usize| {
        let starts = || times.iter().map(move |of_thread| of_thread[round].0);
        let ends = || times.iter().map(move |of_thread| of_thread[round].1);
        let all = ends().max()? - starts().min()?;
        let together = ends().min()?.saturating_sub(starts().max()?);
        (!has_cores || together * 10 >= all * 9).then_some(all)
    };
    let done = if on_devices { PAIRS } else { PAIRS * count };
    let least = (0..times[0].len()).filter_map(of_round).min();
    least.map_or(f64::INFINITY, |time| time.as_nanos() as f64 / done as f64)
}

/// The recorded run, or a generated one where there is no folder of them.
fn recording() -> Trace {
    let path = format!("{RECORDINGS}/{RECORDING}.pickle.gz");
    let Ok(file) = File::open(&path) else {
        println!("  (no recording at {path}: a generated run)");
        return training(&Training::default(), 1);
    };
    let recording = open::detect_and_read(file, Limits::default()).expect("it is a recording");
    let mut traces = recording.traces;
    let mut trace = traces.swap_remove(0);
    let marks_file = format!("{RECORDINGS}/{RECORDING}.marks.json.gz");
    marks::apply(&mut trace, &std::fs::read(marks_file).expect("marks")).expect("they are marks");
    trace
}
