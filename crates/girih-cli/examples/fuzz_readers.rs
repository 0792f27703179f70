//! Fuzzing of every reader on the stable compiler: snapshots, trace files, plans, marks and CSV, their
//! sizes drawn from the whole of 64 bits. What is read is understood, planned and replayed.
//!
//! ```sh
//! cargo build -p girih-cli --example fuzz_readers
//! target/debug/examples/fuzz_readers SECONDS [FIRST_SEED]
//! ```
//!
//! Inputs are made and checked in a process of their own, batch by batch, which may have a gibibyte of
//! addresses and 10 seconds for an input: of processor time where the system tells it, so that a busy
//! machine makes no findings. A process that dies or stands still is a finding: its seed is printed, and
//! `fuzz_readers --seed SEED` does it again. Exit status 1 if there was any.

#[path = "../tests/fuzz/check.rs"]
mod check;
#[path = "../tests/fuzz/inputs.rs"]
mod inputs;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Bytes of addresses that a process may have.
const MEMORY: u64 = 1 << 30;
/// The processor time that an input may take.
const TIME: Duration = Duration::from_secs(10);
/// The time by the clock in which an input must have ended, whatever else the machine does.
const STANDSTILL: Duration = Duration::from_secs(120);
/// Inputs that one process checks.
const BATCH: u64 = 2_000;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse::<u64>().expect("a number");
    match words[..] {
        ["--batch", first] => batch(number(first)),
        ["--seed", seed] => {
            bound_memory();
            inputs::run(number(seed));
            ExitCode::SUCCESS
        }
        [seconds] => parent(number(seconds), 0),
        [seconds, first] => parent(number(seconds), number(first)),
        _ => panic!("fuzz_readers SECONDS [FIRST_SEED], or fuzz_readers --seed SEED"),
    }
}

#[cfg(unix)]
fn bound_memory() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit { current: Some(MEMORY), maximum: Some(MEMORY) };
    setrlimit(Resource::As, limit).expect("a limit of memory");
}

#[cfg(not(unix))]
fn bound_memory() {
    let _ = MEMORY;
}

/// Checks inputs, and says of each that it comes.
fn batch(first: u64) -> ExitCode {
    bound_memory();
    let mut out = std::io::stdout().lock();
    for seed in first..first + BATCH {
        writeln!(out, "{seed}").and_then(|()| out.flush()).expect("the parent listens");
        inputs::run(seed);
    }
    ExitCode::SUCCESS
}

#[expect(clippy::disallowed_methods, reason = "fuzzing goes by the clock")]
#[expect(clippy::print_stdout, reason = "what is found is said")]
fn parent(seconds: u64, mut seed: u64) -> ExitCode {
    let until = Instant::now() + Duration::from_secs(seconds);
    let (first, mut findings) = (seed, 0);
    let mut slowest = (Duration::ZERO, 0);
    while Instant::now() < until {
        let own = std::env::current_exe().expect("this program");
        let mut command = Command::new(own);
        command.args(["--batch", &seed.to_string()]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let (last, fault) = watch(&mut child, until, &mut slowest);
        match fault {
            Some(fault) => {
                findings += 1;
                let seed = last.unwrap_or(seed);
                println!("seed {seed} ({:?}): {fault}", inputs::kind_of(seed));
            }
            None if last.is_none() => break,
            None => {}
        }
        seed = last.unwrap_or(seed) + 1;
    }
    println!(
        "{} inputs, {findings} findings; the slowest, seed {}, took {:.2} s",
        seed - first,
        slowest.1,
        slowest.0.as_secs_f64()
    );
    if findings > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS }
}

/// How often a process that says nothing is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The processor time that a process has taken, all of its threads; none where the system does not tell.
#[derive(Clone, Copy)]
struct Taken(Option<Duration>);

impl Taken {
    #[cfg(target_os = "linux")]
    fn of(child: &Child) -> Self {
        let ticks = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
            // The name, which may hold anything, ends with the last parenthesis; user and system time are
            // the fourteenth and fifteenth fields of the line.
            let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
            let user: u64 = fields.next()?.parse().ok()?;
            let system: u64 = fields.next()?.parse().ok()?;
            Some(user + system)
        };
        let second = rustix::param::clock_ticks_per_second();
        Self(ticks().map(|ticks| Duration::from_millis(ticks * 1_000 / second)))
    }

    #[cfg(not(target_os = "linux"))]
    fn of(_: &Child) -> Self {
        Self(None)
    }

    fn since(self, earlier: Self) -> Option<Duration> {
        Some(self.0?.saturating_sub(earlier.0?))
    }
}

fn end(child: &mut Child) {
    child.kill().expect("it is there");
    child.wait().expect("it ends");
}

/// Follows a process until it ends, stands still, or the time is over: the last input that it began, and
/// what was wrong.
#[expect(clippy::disallowed_methods, reason = "an input has its time")]
fn watch(
    child: &mut Child,
    until: Instant,
    slowest: &mut (Duration, u64),
) -> (Option<u64>, Option<String>) {
    let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let (say, heard) = channel();
    let listener = std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if say.send(line).is_err() {
                break;
            }
        }
    });
    let mut last = None;
    let mut begun = Taken::of(child);
    let mut since = Instant::now();
    let fault = loop {
        match heard.recv_timeout(LOOK) {
            Ok(line) => {
                let now = Taken::of(child);
                let took = now.since(begun).unwrap_or_else(|| since.elapsed());
                if let Some(seed) = last.filter(|_| took > slowest.0) {
                    *slowest = (took, seed);
                }
                (last, begun, since) = (line.parse().ok(), now, Instant::now());
                if Instant::now() >= until {
                    end(child);
                    break None;
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                let took = Taken::of(child).since(begun).unwrap_or_else(|| since.elapsed());
                let (limit, what) = match since.elapsed() > STANDSTILL {
                    true => (STANDSTILL, "by the clock"),
                    false if took > TIME => (TIME, "of processor time"),
                    false => continue,
                };
                end(child);
                break Some(format!("took more than {} s {what}", limit.as_secs()));
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = child.wait().expect("it ends");
                break (!status.success()).then(|| format!("{status}"));
            }
        }
    };
    listener.join().expect("it only listens");
    (last, fault)
}
