//! Recordings that begin late: what was held before is rebuilt, and the rest replays as it was.

use std::fs;
use std::path::PathBuf;

use arbitrary::{Arbitrary, Unstructured};
use girih_runtime::caching::{Adopted, Caching, Config};
use girih_runtime::replay::{
    Options, Replayed, begin, recorded_reserved_peak, recorded_segment_addresses,
    recorded_segment_events, replay, replay_from,
};
use girih_runtime::sim::{Fault, SimDevice};
use girih_runtime::suite::{Op, Scenario};
use girih_runtime::wrapper::Wrapper;
use girih_runtime::{AllocError, BlockId, Env, Granted, Policy, Request};
use girih_trace::compress::Limits;
use girih_trace::{
    Action, Block, BlockState, Earlier, EarlierBlock, EarlierSegment, Event, Evidence, Lifetimes,
    PoolId, Segment, StackId, StreamId, Trace, marks, open,
};

const MIB: u64 = 1 << 20;
const DEVICE: u64 = 1 << 40;

/// A segment as it is seen: its address, and the size, the bytes requested and the state of each
/// block. A pending block counts as in use: the rebuilt allocator lets go of it when the replay
/// begins.
type Seen = (u64, Vec<(u64, u64, bool)>);

fn look(policy: &Caching, expandable: bool) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut base = None;
    policy.visit(&mut |segment, blocks| {
        // The simulated device reserves anew: expandable segments keep their distances alone.
        let origin = if expandable { *base.get_or_insert(segment.address) } else { 0 };
        let view = blocks.iter();
        let view = view.map(|it| (it.size, it.requested, it.state != BlockState::Inactive));
        seen.push((segment.address - origin, view.collect()));
    });
    seen
}

/// The segments of a policy as a snapshot has them.
fn segments(policy: &Caching) -> Vec<Segment> {
    let mut segments = Vec::new();
    policy.visit(&mut |segment, blocks| {
        let blocks = blocks.iter().map(|block| Block {
            address: block.address,
            size: block.size,
            requested: block.requested,
            state: block.state,
            stack: StackId::NONE,
        });
        segments.push(Segment {
            address: segment.address,
            size: segment.size,
            stream: segment.stream,
            pool: segment.pool,
            is_small: segment.is_small,
            is_expandable: policy.config().expandable_segments,
            blocks: blocks.collect(),
        });
    });
    segments
}

/// A program on an allocator, recorded from its start to its end.
struct Program {
    policy: Caching,
    device: SimDevice,
    log: Vec<Event>,
    live: Vec<BlockId>,
}

impl Program {
    fn new(config: &Config) -> Program {
        let policy = Caching::new(config.clone());
        Program { policy, device: SimDevice::new(DEVICE), log: Vec::new(), live: Vec::new() }
    }

    fn step(&mut self, op: Op) {
        let mut env = Env::new(&mut self.device, &mut self.log);
        let pick = |pick: u16, live: &[BlockId]| usize::from(pick) % live.len().max(1);
        match op {
            Op::Alloc { size, stream, pool } => {
                let request = Request { size, stream, pool };
                let granted = self.policy.allocate(&mut env, request).expect("memory is plenty");
                self.live.push(granted.block);
            }
            Op::Free { .. } | Op::RecordStream { .. } if self.live.is_empty() => {}
            Op::Free { pick: which } => {
                let block = self.live.swap_remove(pick(which, &self.live));
                self.policy.free(&mut env, block).unwrap();
            }
            Op::RecordStream { pick: which, stream } => {
                let block = self.live[pick(which, &self.live)];
                self.policy.record_stream(&mut env, block, stream).unwrap();
            }
            Op::Hold(stream) => self.device.hold(stream),
            Op::Resume(stream) => self.device.resume(stream),
            Op::ProcessEvents => self.policy.process_events(&mut env).unwrap(),
            Op::EmptyCache => self.policy.empty_cache(&mut env).unwrap(),
            // A mark, which this allocator has no use for, and what changes the program's ways.
            _ => {}
        }
    }
}

/// A trace that lost its first `cut` events.
fn cut(events: &[Event], cut: usize, end: &Caching) -> Trace {
    let mut trace = Trace {
        events: events[cut..].to_vec(),
        streams: (0..8).collect(),
        pools: (0..4).map(|pool| (0, pool)).collect(),
        segments: segments(end),
        ..Trace::default()
    };
    trace.settings.expandable_segments = end.config().expandable_segments;
    trace.origin.truncated = true;
    trace
}

/// A late recording replayed by the allocator that made it.
struct Late {
    policy: Caching,
    earlier: Earlier,
    adopted: Option<Adopted>,
    at_first: Vec<Seen>,
    replayed: Replayed,
    /// The address that each request was given.
    given: Vec<u64>,
}

fn replay_late(trace: &Trace, config: &Config) -> Late {
    let lives = Lifetimes::of(trace);
    let earlier = Earlier::of(trace, &lives).expect("events and segments fit together");
    let mut device = SimDevice::new(DEVICE);
    let mut policy = Caching::new(config.clone());
    policy.set_stream_handles(trace.streams.clone());
    let (_, adopted) = begin(trace, &Earlier::of(trace, &lives), &mut policy, &mut device).unwrap();
    policy.check().unwrap();
    let at_first = look(&policy, config.expandable_segments);
    let options = Options { check_order: true, ..Options::default() };
    let held = adopted.as_ref();
    let mut watched = Watched { policy, given: Vec::new() };
    let replayed = replay_from(trace, &lives, &mut watched, &mut device, options, held).unwrap();
    let Watched { policy, given } = watched;
    policy.check().unwrap();
    Late { policy, earlier, adopted, at_first, replayed, given }
}

/// An allocator that is watched: the address of each block that it gives.
struct Watched {
    policy: Caching,
    given: Vec<u64>,
}

impl Wrapper for Watched {
    type Inner = Caching;

    fn inner(&self) -> &Caching {
        &self.policy
    }

    fn inner_mut(&mut self) -> &mut Caching {
        &mut self.policy
    }

    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        let granted = self.policy.allocate(env, request)?;
        self.given.push(granted.address);
        Ok(granted)
    }
}

/// How many late recordings were made, and of how many everything was known.
#[derive(Default, Debug)]
struct Tally {
    made: u32,
    known: u32,
}

/// Records a random program, cuts its beginning off, rebuilds, and replays the rest.
fn second_half_replays_alike(
    u: &mut Unstructured<'_>,
    conf: &str,
    tally: &mut Tally,
) -> arbitrary::Result<()> {
    let config = Config::parse(conf).unwrap();
    let mut ops = Scenario::arbitrary(u)?.ops;
    if config.max_split_size < u64::MAX {
        // Such an allocator gives single segments back by itself, so a replay cannot tell.
        ops.retain(|op| *op != Op::EmptyCache);
    }
    let middle = if ops.is_empty() { 0 } else { ops.len() / 2 };
    let mut program = Program::new(&config);
    ops[..middle].iter().for_each(|&op| program.step(op));
    let expandable = config.expandable_segments;
    let at = program.log.len();
    let seen = look(&program.policy, expandable);
    let stats = program.policy.stats().clone();
    program.policy.reset_peak_stats();
    ops[middle..].iter().for_each(|&op| program.step(op));

    let trace = cut(&program.log, at, &program.policy);
    if trace.segments.is_empty() {
        // All was given back: there are no final segments to begin from.
        return Ok(());
    }
    let late = replay_late(&trace, &config);
    tally.made += 1;
    assert_eq!(late.earlier.reserved(), stats.reserved_bytes.all().current, "reserved at the cut");
    if late.adopted.as_ref().is_some_and(|adopted| adopted.assumed > 0) {
        return Ok(());
    }
    tally.known += 1;
    if !expandable {
        assert_eq!(late.at_first, seen, "the layout at the cut");
    }
    let replayed = late.policy.stats();
    let recorded = program.policy.stats();
    assert_eq!(late.replayed.segment_events, recorded_segment_events(&trace));
    assert_eq!(replayed.reserved_bytes.all().peak, recorded.reserved_bytes.all().peak);
    assert_eq!(recorded_reserved_peak(&trace), Some(recorded.reserved_bytes.all().peak));
    for (mine, theirs) in [
        (replayed.allocated_bytes, recorded.allocated_bytes),
        (replayed.active_bytes, recorded.active_bytes),
        (replayed.requested_bytes, recorded.requested_bytes),
        (replayed.inactive_split_bytes, recorded.inactive_split_bytes),
    ] {
        assert_eq!(mine.all().current, theirs.all().current);
        assert_eq!(mine.all().peak, theirs.all().peak);
    }
    if !expandable {
        let end = look(&program.policy, expandable);
        assert_eq!(look(&late.policy, expandable), end, "the layout at the end");
    }
    Ok(())
}

fn check_half(conf: &str, least_known: f64) {
    let mut tally = Tally::default();
    arbtest::arbtest(|u| second_half_replays_alike(u, conf, &mut tally))
        .size_min(200)
        .size_max(1200)
        .budget_ms(3_000)
        .run();
    let share = f64::from(tally.known) / f64::from(tally.made);
    assert!(share >= least_known, "{conf:?}: everything was known of {tally:?}");
}

#[test]
fn the_second_half_of_any_program_replays_as_it_was() {
    check_half("", 0.75);
}

#[test]
fn the_second_half_replays_as_it_was_where_large_blocks_are_not_split() {
    check_half("max_split_size_mb:64", 0.75);
}

#[test]
fn the_second_half_replays_as_it_was_where_requests_are_rounded_up() {
    check_half("roundup_power2_divisions:4", 0.75);
}

#[test]
fn the_second_half_replays_as_it_was_in_expandable_segments() {
    check_half("expandable_segments:True", 1.0);
}

#[test]
fn cuts_at_any_event_replay_as_it_was() {
    arbtest::arbtest(|u| {
        let conf = *u.choose(&["", "expandable_segments:True"])?;
        let config = Config::parse(conf).unwrap();
        let ops = Scenario::arbitrary(u)?.ops;
        let mut program = Program::new(&config);
        ops.iter().for_each(|&op| program.step(op));
        let at = program.log.len() * usize::from(u.arbitrary::<u8>().unwrap_or(77)) / 256;
        let trace = cut(&program.log, at, &program.policy);
        if trace.segments.is_empty() {
            return Ok(());
        }
        let late = replay_late(&trace, &config);
        if late.adopted.is_none_or(|adopted| adopted.assumed == 0) {
            assert_eq!(late.replayed.segment_events, recorded_segment_events(&trace), "cut {at}");
        }
        Ok(())
    })
    .size_min(200)
    .size_max(1200)
    .budget_ms(3_000)
    .run();
}

fn traces() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    if folder.is_dir() {
        return Some(folder);
    }
    #[expect(clippy::print_stderr, reason = "a test that skips says so")]
    {
        eprintln!("skipped: there is no folder {} of recordings", folder.display());
    }
    None
}

fn read(folder: &std::path::Path, name: &str) -> Trace {
    let file = fs::File::open(folder.join(format!("{name}.pickle.gz"))).unwrap();
    let mut traces = open::detect_and_read(file, Limits::default()).unwrap().traces;
    traces.sort_by_key(|trace| trace.events.len());
    let mut trace = traces.pop().unwrap();
    if let Ok(bytes) = fs::read(folder.join(format!("{name}.marks.json.gz"))) {
        marks::apply(&mut trace, &bytes).unwrap();
    }
    trace
}

#[test]
fn a_recording_that_lost_its_first_half_replays_as_it_was() {
    let Some(folder) = traces() else { return };
    for name in ["megatron_gpt2-R_r3", "megatron_llama7b-V_r0", "fsdp2_R_r0"] {
        let whole = read(&folder, name);
        let config = Config::default();
        let mut policy = Caching::new(config.clone());
        policy.set_stream_handles(whole.streams.clone());
        let mut device = SimDevice::new(DEVICE);
        device.script_allocs(recorded_segment_addresses(&whole));
        let lives = Lifetimes::of(&whole);
        replay(&whole, &lives, &mut policy, &mut device, Options::default()).unwrap();
        for sixteenth in [1, 5, 8, 12, 15] {
            let at = whole.events.len() * sixteenth / 16;
            let mut trace = cut(&whole.events, at, &policy);
            trace.streams.clone_from(&whole.streams);
            let late = replay_late(&trace, &config);
            let recorded = recorded_segment_events(&trace);
            assert_eq!(late.replayed.segment_events, recorded, "{name} from event {at}");
            let peak = late.policy.stats().reserved_bytes.all().peak;
            assert_eq!(Some(peak), recorded_reserved_peak(&trace), "{name} from event {at}");
        }
    }
}

/// What is known of a recording without final segments, and what it must come to.
struct Inferred {
    name: &'static str,
    /// The peak reserved, rebuilt without the peak that the run reported of it.
    unaided_peak: u64,
    /// Requests that are served, of 1000, at the address at which they were.
    at_their_place: usize,
}

#[test]
fn late_recordings_without_segments_take_and_give_segments_as_they_did() {
    let Some(folder) = traces() else { return };
    for Inferred { name, unaided_peak, at_their_place } in [
        Inferred { name: "gpt2m_R", unaided_peak: 59_972_255_744, at_their_place: 1000 },
        Inferred { name: "llama2b_R_vary", unaided_peak: 66_204_991_488, at_their_place: 550 },
        Inferred { name: "lora13b_R", unaided_peak: 57_248_055_296, at_their_place: 986 },
    ] {
        let mut trace = read(&folder, name);
        let reported = trace.recorded.reserved_peak.take();
        let recorded = recorded_segment_events(&trace);
        let unaided = replay_late(&trace, &Config::default());
        assert_eq!(unaided.replayed.segment_events, recorded, "{name}");
        assert_eq!(unaided.policy.stats().reserved_bytes.all().peak, unaided_peak, "{name}");
        let requests = trace.events.iter().filter(|event| event.action == Action::Alloc);
        let places = requests.zip(&unaided.given);
        let same = places.filter(|(event, given)| event.address == **given).count();
        let share = same * 1000 / unaided.given.len();
        assert!(share >= at_their_place, "{name}: {share} of 1000 requests at their place");

        trace.recorded.reserved_peak = reported;
        let aided = replay_late(&trace, &Config::default());
        assert_eq!(aided.replayed.segment_events, recorded, "{name}");
        assert_eq!(Some(aided.policy.stats().reserved_bytes.all().peak), reported, "{name}");
    }
}

/// Any events and segments, of few addresses, so that they meet.
fn arbitrary_trace(u: &mut Unstructured<'_>) -> arbitrary::Result<Trace> {
    let mut trace = Trace { streams: vec![0, 1], pools: vec![(0, 0), (0, 1)], ..Trace::default() };
    let address = |u: &mut Unstructured<'_>| -> arbitrary::Result<u64> {
        Ok(match u.int_in_range(0..=9)? {
            0 => u.arbitrary()?,
            1 => u64::MAX - u.int_in_range(0..=4)? * 512,
            _ => u.int_in_range(1..=40)? * *u.choose(&[512, MIB, 2 * MIB, 20 * MIB])?,
        })
    };
    for _ in 0..u.int_in_range(0..=40)? {
        trace.events.push(Event {
            address: address(u)?,
            size: address(u)?,
            time_us: 0,
            stack: StackId::NONE,
            stream: StreamId(u.int_in_range(0..=1)?),
            pool: PoolId(u.int_in_range(0..=1)?),
            action: *u.choose(&Action::ALL)?,
        });
    }
    for _ in 0..u.int_in_range(0..=4)? {
        let (address, size) = (address(u)?, address(u)?);
        let state = *u.choose(&[BlockState::Allocated, BlockState::PendingFree])?;
        let block = Block { address, size, requested: u.arbitrary()?, state, stack: StackId::NONE };
        trace.segments.push(Segment {
            address,
            size,
            stream: StreamId(u.int_in_range(0..=1)?),
            pool: PoolId(u.int_in_range(0..=1)?),
            is_small: u.arbitrary()?,
            is_expandable: u.arbitrary()?,
            blocks: vec![block],
        });
    }
    trace.settings.expandable_segments = u.arbitrary()?;
    trace.origin.truncated = u.arbitrary()?;
    trace.recorded.allocated_peak = u.arbitrary()?;
    trace.recorded.reserved_peak = u.arbitrary()?;
    Ok(trace)
}

#[test]
fn any_events_and_segments_are_rebuilt_or_refused_and_the_allocator_is_sound() {
    arbtest::arbtest(|u| {
        let trace = arbitrary_trace(u)?;
        let lives = Lifetimes::of(&trace);
        let text = if trace.settings.expandable_segments { "expandable_segments:True" } else { "" };
        let mut policy = Caching::new(Config::parse(text).unwrap());
        let mut device = SimDevice::new(DEVICE);
        let (beginning, adopted) =
            begin(&trace, &Earlier::of(&trace, &lives), &mut policy, &mut device).unwrap();
        policy.check().unwrap_or_else(|fault| panic!("{beginning:?}: {fault}"));
        let held = adopted.as_ref();
        let options = Options::default();
        replay_from(&trace, &lives, &mut policy, &mut device, options, held).unwrap();
        policy.check().unwrap_or_else(|fault| panic!("{beginning:?}: {fault}"));
        Ok(())
    })
    .budget_ms(2_000)
    .run();
}

#[test]
fn runs_of_one_reservation_that_touch_keep_their_blocks_where_they_were() {
    const PAGE: u64 = 20 * MIB;
    let base = 64 * PAGE;
    let run = |page: u64, used: (u64, u64)| EarlierSegment {
        address: base + page * PAGE,
        size: PAGE,
        stream: StreamId(0),
        pool: PoolId::DEFAULT,
        is_small: false,
        is_expandable: true,
        base,
        blocks: vec![EarlierBlock {
            address: base + page * PAGE + used.0 * MIB,
            requested: used.1 * MIB,
            end: None,
            is_pending: false,
            request: Some(page as u32),
        }],
    };
    // What is free at the end of one run and at the beginning of the next is one block.
    let segments = vec![run(0, (0, 4)), run(1, (2, 5)), run(2, (0, 20)), run(3, (0, 1))];
    let earlier = Earlier { segments, evidence: Evidence::Known, untouched: 0 };
    let mut policy = Caching::new(Config::parse("expandable_segments:True").unwrap());
    let mut device = SimDevice::new(DEVICE);
    let adopted = policy.adopt(&mut device, &earlier).unwrap();
    policy.check().unwrap();
    let first = adopted.blocks[0].granted.address;
    let places = adopted.blocks.iter().map(|block| (block.granted.address - first) / MIB);
    assert_eq!(places.collect::<Vec<_>>(), [0, 22, 40, 60]);
    let sizes = &look(&policy, true)[0].1;
    let sizes: Vec<u64> = sizes.iter().map(|&(size, ..)| size / MIB).collect();
    assert_eq!(sizes, [4, 18, 5, 13, 20, 1, 19]);
}

#[test]
fn a_device_that_refuses_leaves_an_allocator_that_is_sound() {
    for (conf, expandable) in [("", false), ("expandable_segments:True", true)] {
        let config = Config::parse(conf).unwrap();
        let mut program = Program::new(&config);
        for size in [100, 3 * MIB, 30 * MIB, 900, 90 * MIB] {
            program.step(Op::Alloc { size, stream: StreamId(0), pool: PoolId::DEFAULT });
        }
        program.step(Op::Free { pick: 2 });
        program.step(Op::EmptyCache);
        let trace = cut(&program.log, program.log.len(), &program.policy);
        let earlier = Earlier::of(&trace, &Lifetimes::of(&trace)).unwrap();
        assert!(!earlier.is_empty() && (!expandable || earlier.segments.len() > 1));
        for call in 1.. {
            let mut device = SimDevice::new(DEVICE);
            device.inject(Fault { out_of_memory: call % 2 == 0, ..Fault::nth(call) });
            let mut policy = Caching::new(config.clone());
            let refused = policy.adopt(&mut device, &earlier).is_err();
            policy.check().unwrap_or_else(|fault| panic!("{conf:?}, call {call}: {fault}"));
            if !refused {
                assert!(call > 2, "a call or two were made");
                break;
            }
        }
    }
}
