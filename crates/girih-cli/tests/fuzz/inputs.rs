//! Inputs from seeds: files that are damaged, and files that are whole and say what cannot be. The same
//! seed gives the same input.

use std::sync::OnceLock;

use girih_plan::{Budget, Place, Plan, csv, file, profile, solve};
use girih_trace::generate::{Training, training};
use girih_trace::{
    Action, Block, BlockState, Event, Iterations, Lifetimes, Mark, MarkKind, PoolId, Recording,
    Segment, StackId, StreamId, Trace,
};

use crate::check;

/// SplitMix64.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Chance {
        Chance(seed.wrapping_mul(0xA24B_AED4_963E_E407))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// A number of any of the 64 lengths, now and then right at a power of two.
    fn number(&mut self) -> u64 {
        let bits = self.below(65) as u32;
        let top = if bits == 0 { 0 } else { u64::MAX >> (64 - bits) };
        match self.below(5) {
            0 => top,
            1 => top.wrapping_add(1),
            _ => self.next() & top,
        }
    }
}

/// What is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Recording,
    Plan,
    Marks,
    Csv,
}

/// Makes the input of a seed and checks it: no panic, whatever comes.
pub(crate) fn run(seed: u64) {
    let chance = &mut Chance::new(seed);
    match kind_of(seed) {
        Kind::Plan if chance.below(2) == 0 => check::followed(&odd_plan(chance)),
        kind => check_bytes(kind, &input(kind, chance)),
    }
}

/// The kind of a seed.
pub(crate) fn kind_of(seed: u64) -> Kind {
    [Kind::Recording, Kind::Recording, Kind::Plan, Kind::Marks, Kind::Csv][(seed % 5) as usize]
}

fn check_bytes(kind: Kind, bytes: &[u8]) {
    match kind {
        Kind::Recording => check::recording(bytes),
        Kind::Plan => check::plan(bytes),
        Kind::Marks => check::marks(bytes),
        Kind::Csv => check::csv(bytes),
    }
}

fn input(kind: Kind, chance: &mut Chance) -> Vec<u8> {
    let is_whole = chance.below(3) > 0;
    let mut bytes = match kind {
        Kind::Recording => odd_recording(chance),
        Kind::Plan => with_odd_numbers(&bases().plan_file, chance),
        Kind::Marks => with_odd_numbers(&bases().marks, chance),
        Kind::Csv => odd_rows(chance),
    };
    if !is_whole {
        damage(&mut bytes, chance);
    }
    bytes
}

/// What inputs are made from.
struct Bases {
    trace: Trace,
    plan: Plan,
    plan_file: Vec<u8>,
    marks: Vec<u8>,
    /// Snapshots of the corpus, decompressed.
    snapshots: Vec<Vec<u8>>,
}

fn bases() -> &'static Bases {
    static BASES: OnceLock<Bases> = OnceLock::new();
    BASES.get_or_init(|| {
        let trace = training(&Training { steps: 4, ..Training::default() }, 1);
        let lives = Lifetimes::of(&trace);
        let iterations = Iterations::of(&trace, &lives);
        let plan = profile::plan(&trace, &lives, &iterations, |problem| {
            solve(problem, Budget::attempts(2))
        });
        let plan = plan.expect("a plan");
        let mut plan_file = Vec::new();
        file::write(&plan, &mut plan_file).expect("it is right");
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../corpus/");
        let read = |name: &str| {
            use std::io::Read;
            let file = std::fs::File::open(format!("{corpus}{name}")).expect("it is in the corpus");
            let mut bytes = Vec::new();
            flate2::read::MultiGzDecoder::new(file).read_to_end(&mut bytes).expect("it is whole");
            bytes
        };
        let marks = read("fsdp2_R_r0.marks.json.gz");
        Bases { trace, plan, plan_file, marks, snapshots: vec![read("mlp_stacks.pickle.gz")] }
    })
}

/// A recording that can be read and that says anything of sizes and addresses; or a real snapshot.
fn odd_recording(chance: &mut Chance) -> Vec<u8> {
    let trace = match chance.below(8) {
        0 => {
            let mut bytes = bases().snapshots[0].clone();
            damage(&mut bytes, chance);
            return bytes;
        }
        1..=3 => scaled(chance),
        _ => anything(chance),
    };
    let mut bytes = Vec::new();
    let recording = Recording { traces: vec![trace] };
    girih_trace::file::write(&recording, &mut bytes).expect("its ids are right");
    bytes
}

/// A training run whose sizes are larger by a power of two, a few of them anything, cut anywhere.
fn scaled(chance: &mut Chance) -> Trace {
    let mut trace = bases().trace.clone();
    let shift = chance.below(34) as u32;
    for event in &mut trace.events {
        event.size = event.size.saturating_mul(1 << shift);
    }
    for _ in 0..chance.below(4) {
        let at = chance.below(trace.events.len());
        trace.events[at].size = chance.number();
    }
    if chance.below(3) == 0 {
        trace.events.truncate(chance.below(trace.events.len()));
        let count = trace.events.len() as u32;
        trace.marks.retain(|mark| mark.before <= count);
    }
    trace
}

/// Events of any kind at a few addresses, on a few streams, again and again.
fn anything(chance: &mut Chance) -> Trace {
    let mut trace = Trace {
        streams: vec![0, chance.number(), 7],
        pools: vec![(0, 0), (0, 1)],
        ..Trace::default()
    };
    trace.settings.expandable_segments = chance.below(2) == 0;
    trace.origin.truncated = chance.below(2) == 0;
    if chance.below(3) == 0 {
        trace.recorded.allocated_peak = Some(chance.number());
        trace.recorded.reserved_peak = Some(chance.number());
    }
    let addresses: Vec<u64> = (0..1 + chance.below(12)).map(|_| chance.number()).collect();
    // Most sizes are such that the door lets them in.
    let top = 20 + chance.below(45) as u32;
    let size = |chance: &mut Chance| chance.number() & (u64::MAX >> (64 - top.clamp(1, 64)));
    let length = 1 + chance.below(60);
    let motif: Vec<Event> = (0..length)
        .map(|_| {
            let action = match chance.below(10) {
                0..=4 => Action::Alloc,
                5 | 6 => Action::FreeCompleted,
                7 => Action::FreeRequested,
                _ => Action::ALL[chance.below(Action::ALL.len())],
            };
            Event {
                address: addresses[chance.below(addresses.len())],
                size: size(chance),
                time_us: if chance.below(20) == 0 { chance.number() as i64 } else { 5 },
                stack: StackId::NONE,
                stream: StreamId(chance.below(3) as u16),
                pool: PoolId((chance.below(6) == 0) as u16),
                action,
            }
        })
        .collect();
    for round in 0..1 + chance.below(5) as u32 {
        let (before, name) = (trace.events.len() as u32, round.to_string());
        let kind = MarkKind::NAMES[chance.below(MarkKind::NAMES.len())].0;
        let kind = if chance.below(2) == 0 { MarkKind::Step } else { kind };
        trace.marks.push(Mark { before, time_us: 5, kind, name });
        trace.events.extend(&motif);
    }
    for _ in 0..chance.below(4) {
        let (address, bytes) = (chance.number(), size(chance));
        let state = [BlockState::Allocated, BlockState::PendingFree, BlockState::Inactive];
        trace.segments.push(Segment {
            address,
            size: bytes,
            stream: StreamId(0),
            pool: PoolId::DEFAULT,
            is_small: chance.below(2) == 0,
            is_expandable: chance.below(2) == 0,
            blocks: vec![Block {
                address,
                size: bytes,
                requested: if chance.below(3) == 0 { chance.number() } else { bytes },
                state: state[chance.below(3)],
                stack: StackId::NONE,
            }],
        });
    }
    trace
}

/// A plan, right before some of its numbers were changed to anything.
fn odd_plan(chance: &mut Chance) -> Plan {
    let mut plan = bases().plan.clone();
    if chance.below(2) == 0 {
        // Larger as a whole, so that it stays right.
        let shift = chance.below(40) as u32;
        let scale = |bytes: &mut u64| *bytes = bytes.saturating_mul(1 << shift);
        for bytes in [
            &mut plan.arena_bytes,
            &mut plan.persistent_bytes,
            &mut plan.lower_bound,
            &mut plan.peak,
        ] {
            scale(bytes);
        }
        for entry in plan.sequences.iter_mut().flat_map(|sequence| &mut sequence.entries) {
            entry.size_max = girih_plan::granted(entry.size_max);
            scale(&mut entry.size_max);
            scale(&mut entry.size_min);
            if let Place::Arena(offset) | Place::Persistent(offset) = &mut entry.place {
                scale(offset);
            }
        }
    }
    for _ in 0..chance.below(4) {
        let number = chance.number();
        let sequence = chance.below(plan.sequences.len());
        let entries = &mut plan.sequences[sequence].entries;
        let at = chance.below(entries.len());
        let entry = &mut entries[at];
        match chance.below(9) {
            0 => plan.arena_bytes = number,
            1 => plan.persistent_bytes = number,
            2 => plan.rounds = number as u32,
            3 => entry.size_max = number,
            4 => entry.size_min = number,
            5 => entry.until = number as u32,
            6 => entry.place = Place::Arena(number),
            7 => entry.place = Place::Persistent(number),
            _ => entry.place = Place::Room(number as u32),
        }
    }
    plan
}

/// Text with a few of its numbers changed to anything.
fn with_odd_numbers(text: &[u8], chance: &mut Chance) -> Vec<u8> {
    let mut bytes = text.to_vec();
    for _ in 0..1 + chance.below(3) {
        let from = chance.below(bytes.len());
        let Some(start) = bytes[from..].iter().position(u8::is_ascii_digit).map(|at| from + at)
        else {
            continue;
        };
        let digits = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let sign = if chance.below(8) == 0 { "-" } else { "" };
        let number = format!("{sign}{}", chance.number());
        bytes.splice(start..start + digits, number.into_bytes());
    }
    bytes
}

/// A planning problem of rows that may say anything.
fn odd_rows(chance: &mut Chance) -> Vec<u8> {
    let mut text = "id,lower,upper,size\n".to_owned();
    let wide = chance.below(2) == 0;
    let top = 1 + chance.below(64) as u32;
    for row in 0..chance.below(60) {
        let tick = |chance: &mut Chance| if wide { chance.number() } else { chance.next() % 40 };
        let (one, other) = (tick(chance), tick(chance));
        let size = chance.number() & (u64::MAX >> (64 - top));
        text += &format!("{row},{},{},{size}\n", one.min(other), one.max(other));
    }
    debug_assert!(csv::read(&b"id,lower,upper,size\n"[..]).is_ok());
    text.into_bytes()
}

/// Damages bytes: some are changed, left out, doubled, or put elsewhere.
fn damage(bytes: &mut Vec<u8>, chance: &mut Chance) {
    for _ in 0..1 + chance.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = chance.below(bytes.len());
        let length = (1 + chance.below(40)).min(bytes.len() - at);
        match chance.below(5) {
            0 => bytes[at] ^= 1 << chance.below(8),
            1 => bytes[at] = chance.next() as u8,
            2 => bytes.truncate(at),
            3 => _ = bytes.drain(at..at + length),
            _ => {
                let copied = bytes[at..at + length].to_vec();
                let to = chance.below(bytes.len());
                bytes.splice(to..to, copied);
            }
        }
    }
}
