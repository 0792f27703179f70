//! Replay: a trace runs again, through a policy, on the simulated device.
//!
//! Requests and frees come in their recorded order. What the recording says about time is kept: a
//! block whose free was completed late, because another stream still used it, is held back here for
//! as long; and where the recorded allocator gave memory back, the program is taken to have emptied
//! the cache, unless it cached nothing: of such a run nobody knows when the program emptied it.
//!
//! What is older than the recording is asked for first, block by block. The allocator that made the
//! recording can do better: it takes over what was held, free memory and all ([`begin`]).

use girih_trace::bounds::HELD_MAX;
use girih_trace::{
    Action, Contradiction, Earlier, Event, Evidence, Lifetimes, StreamId, Tick, Trace,
};

use crate::caching::rounding::ROUND_LARGE;
use crate::caching::{Adopted, Caching};
use crate::device::{Address, Device};
use crate::policy::{AllocError, BlockId, Env, Log, Policy, Request};
use crate::sim::{CallTotals, SimDevice};

/// How a trace is replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options<'a> {
    /// Ticks, rising, before which the device's calls are looked at ([`Replayed::calls_before`]):
    /// where iterations begin.
    pub count_calls_at: &'a [Tick],
    /// Ends after the first operation with which the device has been called more often than this.
    pub calls_max: Option<u64>,
    /// Ends after the operation at this tick.
    pub until: Option<Tick>,
    /// Before this tick, and the marks there, the policy's peaks are set to what is there: from then on they, and
    /// [`Replayed::peak_at`] and [`Replayed::grown_at`], are of what follows.
    pub reset_peaks_at: Option<Tick>,
    /// Lets the simulated device check that each use of a byte comes after the last one. Slower.
    pub check_order: bool,
    /// Walks the whole policy after each operation. Much slower; for tests.
    pub check_policy: bool,
}

/// Where a replay stopped short: the request that got nothing.
#[derive(Clone, PartialEq, Debug)]
pub struct Stop {
    /// Tick of the request.
    pub tick: Tick,
    /// Index of the request in the lifetimes.
    pub request: u32,
    /// Bytes that it asked for.
    pub size: u64,
    /// Why it got nothing.
    pub error: AllocError,
}

/// What a policy took from the device and gave back, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentEvent {
    /// Requests served before it.
    pub requests: u32,
    /// What happened.
    pub action: Action,
    /// Bytes.
    pub size: u64,
}

/// What came of a replay. The counters are the policy's own.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Replayed {
    /// Events of the trace that were replayed.
    pub events: u64,
    /// Requests that were served, those older than the recording left out.
    pub requests: u64,
    /// The first request that was not served. Those after it were still tried.
    pub stop: Option<Stop>,
    /// Requests that were not served.
    pub failed: u64,
    /// Where the replay ended for [`Options::calls_max`], and the calls until then.
    pub overworked: Option<(Tick, u64)>,
    /// The device's calls so far, before each of [`Options::count_calls_at`] that was reached.
    pub calls_before: Vec<CallTotals>,
    /// What the policy took and gave back, in order.
    pub segment_events: Vec<SegmentEvent>,
    /// Of the ticks at which the policy held the most of the device, the first at which the most of
    /// it was allocated.
    pub peak_at: Tick,
    /// Of the ticks at which the policy came to hold more than ever before, the last at which it
    /// took the most at once: of the request that counts when free memory is judged.
    pub grown_at: Tick,
}

/// How a replay began.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Beginning {
    /// With nothing but the requests that are older than the recording, if there are any.
    #[default]
    Requested,
    /// With what the recorded allocator held.
    Rebuilt(Rebuilt),
    /// As `Requested`, for what was held cannot be rebuilt: a sentence says why.
    Contradicted(String),
}

/// What was held when a replay began. Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rebuilt {
    /// How it is known.
    pub evidence: Evidence,
    /// Segments, and mapped runs of expandable ones.
    pub segments: usize,
    /// Held of the device.
    pub reserved: u64,
    /// Requested by blocks that were in use.
    pub live: u64,
    /// Of `reserved`, what only the reported peaks tell of.
    pub untouched: u64,
    /// Live blocks that are assumed to have kept no remainder.
    pub assumed: u64,
}

/// Rebuilds in `policy`, which holds nothing yet, what was held before the first event of `trace`
/// as [`Earlier::of`] has `found` it, each segment at its recorded address. A device that has too little for that, in a replay that
/// asks what would have been, begins with the older requests alone.
///
/// The device is then ready to give segments at the recorded addresses, in any case.
///
/// # Errors
/// What the device refuses, other than memory that it has not.
pub fn begin(
    trace: &Trace,
    found: &Result<Earlier, Contradiction>,
    policy: &mut Caching,
    device: &mut SimDevice,
) -> Result<(Beginning, Option<Adopted>), AllocError> {
    let recorded = recorded_segment_addresses(trace);
    let made_it = policy.config().expandable_segments == trace.settings.expandable_segments;
    let info = device.memory_info();
    let found = match made_it {
        false => Ok(None),
        true => found.as_ref().map_err(ToString::to_string).and_then(|earlier| {
            let fits = !earlier.is_empty() && earlier.reserved() <= info.free.min(HELD_MAX);
            let checked = policy.check_adoption(info.total, earlier);
            checked.map(|()| fits.then_some(earlier)).map_err(|error| error.to_string())
        }),
    };
    let earlier = match found {
        Ok(Some(earlier)) => earlier,
        other => {
            device.script_allocs(recorded);
            return Ok((other.err().map_or(Beginning::Requested, Beginning::Contradicted), None));
        }
    };
    let whole = earlier.segments.iter().filter(|segment| !segment.is_expandable);
    device.script_allocs(whole.map(|segment| segment.address));
    let adopted = policy.adopt(device, earlier)?;
    device.script_allocs(recorded);
    let rebuilt = Rebuilt {
        evidence: earlier.evidence,
        segments: earlier.segments.len(),
        reserved: earlier.reserved(),
        live: earlier.requested(),
        untouched: earlier.untouched,
        assumed: adopted.assumed,
    };
    Ok((Beginning::Rebuilt(rebuilt), Some(adopted)))
}

/// Replays `trace` through `policy` on `device`, from a policy that holds nothing: see
/// [`replay_from`].
///
/// # Errors
/// As [`replay_from`].
pub fn replay<P: Policy + ?Sized>(
    trace: &Trace,
    lives: &Lifetimes,
    policy: &mut P,
    device: &mut SimDevice,
    options: Options<'_>,
) -> Result<Replayed, AllocError> {
    replay_from(trace, lives, policy, device, options, None)
}

/// Replays `trace` through `policy` on `device`. With `adopted` the policy holds already what was
/// held before the first event; without, the requests older than the recording are made first.
///
/// A request that fails is counted and left out, as if the program had caught the error and gone
/// on without it.
///
/// # Errors
/// What the device refuses for another reason than memory: a misuse, which is a bug of the policy,
/// or an injected failure. With `check_policy`, what the policy finds wrong with itself.
pub fn replay_from<P: Policy + ?Sized>(
    trace: &Trace,
    lives: &Lifetimes,
    policy: &mut P,
    device: &mut SimDevice,
    options: Options<'_>,
    adopted: Option<&Adopted>,
) -> Result<Replayed, AllocError> {
    if options.check_order {
        device.check_order();
    }
    let mut run = Run {
        trace,
        lives,
        policy,
        device,
        options,
        log: SegmentLog::default(),
        given: vec![None; lives.requests.len()],
        ranges: vec![(0, 0); if options.check_order { lives.requests.len() } else { 0 }],
        side_streams: SideStreams::new(trace.streams.len()),
        held: Vec::new(),
        peak: (0, 0),
        growth: 0,
        result: Replayed::default(),
    };
    match adopted {
        Some(adopted) => run.take_over(adopted)?,
        None => run.request_older()?,
    }
    run.go()?;
    run.result.segment_events = run.log.events;
    Ok(run.result)
}

struct Run<'a, P: ?Sized> {
    trace: &'a Trace,
    lives: &'a Lifetimes,
    policy: &'a mut P,
    device: &'a mut SimDevice,
    options: Options<'a>,
    log: SegmentLog,
    /// What each request was given; None before it comes, if it failed, and once it is freed.
    given: Vec<Option<BlockId>>,
    /// With `check_order`, the address and the bytes of each block that was given.
    ranges: Vec<(Address, u64)>,
    side_streams: SideStreams,
    /// Requests whose free was asked for and waits, with the stream that holds them.
    held: Vec<(u32, StreamId)>,
    /// The most that was reserved, and the most of it that was allocated while it was.
    peak: (u64, u64),
    /// The most by which the peak was raised at once.
    growth: u64,
    result: Replayed,
}

impl<P: Policy + ?Sized> Run<'_, P> {
    /// Makes the requests that are older than the recording.
    fn request_older(&mut self) -> Result<(), AllocError> {
        for request in 0..self.lives.older as u32 {
            self.allocate(Tick(0), request)?;
            if self.is_overworked(Tick(0)) {
                break;
            }
        }
        Ok(())
    }

    /// True if the device has been called more often than is allowed.
    fn is_overworked(&mut self, tick: Tick) -> bool {
        let calls = self.device.calls();
        if self.options.calls_max.is_some_and(|most| calls > most) {
            self.result.overworked = Some((tick, calls));
        }
        self.result.overworked.is_some()
    }

    /// Knows the blocks that the policy holds already, and holds back those whose free waits.
    fn take_over(&mut self, adopted: &Adopted) -> Result<(), AllocError> {
        for block in &adopted.blocks {
            let (index, granted) = (block.request as usize, block.granted);
            if self.options.check_order {
                let stream = self.lives.requests[index].stream;
                self.device.acquire(granted.address, granted.size, stream)?;
                self.ranges[index] = (granted.address, granted.size);
            }
            self.given[index] = Some(granted.block);
        }
        for block in adopted.blocks.iter().filter(|block| block.is_pending) {
            self.given[block.request as usize] = None;
            self.hold_back(block.request, block.granted.block)?;
        }
        self.policy.reset_peak_stats();
        Ok(())
    }

    fn go(&mut self) -> Result<(), AllocError> {
        let empties_cache = gives_back_whole_segments(self.trace);
        let mut marks = self.trace.marks.iter().peekable();
        let mut unclosed = self.lives.unclosed_deaths().into_iter().peekable();
        for (index, event) in self.trace.events.iter().enumerate() {
            let tick = Tick(index as u32);
            if self.is_overworked(tick) {
                break;
            }
            if self.options.reset_peaks_at == Some(tick) {
                self.policy.reset_peak_stats();
                (self.peak, self.growth) = ((0, 0), 0);
                self.note_peak(tick);
            }
            let at = self.options.count_calls_at;
            while at.get(self.result.calls_before.len()).is_some_and(|&start| start <= tick) {
                self.result.calls_before.push(self.device.totals().clone());
            }
            while let Some(mark) = marks.next_if(|mark| mark.before <= tick.0) {
                let mut env = Env::new(self.device, &mut self.log);
                self.policy.mark(&mut env, mark)?;
            }
            while let Some((_, lost)) = unclosed.next_if(|&(death, _)| death <= tick) {
                self.complete(lost)?;
            }
            self.apply(tick, event, empties_cache)?;
            self.result.events += 1;
            // Only requests raise what is reserved or allocated.
            if event.action == Action::Alloc || index == 0 {
                self.note_peak(tick);
            }
            if self.options.check_policy {
                self.policy.check().unwrap_or_else(|fault| panic!("after event {index}: {fault}"));
            }
            if self.options.until == Some(tick) {
                break;
            }
        }
        Ok(())
    }

    fn note_peak(&mut self, tick: Tick) {
        let stats = self.policy.stats();
        let now = (stats.reserved_bytes.all().current, stats.allocated_bytes.all().current);
        let growth = now.0.saturating_sub(self.peak.0);
        if growth > 0 && growth >= self.growth {
            self.growth = growth;
            self.result.grown_at = tick;
        }
        if now > self.peak {
            self.peak = now;
            self.result.peak_at = tick;
        }
    }

    fn apply(&mut self, tick: Tick, event: &Event, empties_cache: bool) -> Result<(), AllocError> {
        let request = self.lives.request_of[tick.index()];
        match event.action {
            Action::Alloc => self.allocate(tick, request),
            Action::FreeRequested if request != Lifetimes::NONE => self.free(tick, request),
            Action::FreeCompleted if request != Lifetimes::NONE => self.complete(request),
            Action::SegmentFree | Action::SegmentUnmap
                if empties_cache && begins_run(&self.trace.events, tick.index()) =>
            {
                let mut env = Env::new(self.device, &mut self.log);
                self.policy.empty_cache(&mut env)
            }
            _ => Ok(()),
        }
    }

    fn allocate(&mut self, tick: Tick, index: u32) -> Result<(), AllocError> {
        let life = &self.lives.requests[index as usize];
        if life.size == 0 {
            return Ok(());
        }
        let request = Request { size: life.size, stream: life.stream, pool: life.pool };
        let mut env = Env::new(self.device, &mut self.log);
        match self.policy.allocate(&mut env, request) {
            Ok(granted) => {
                if self.options.check_order {
                    self.device.acquire(granted.address, granted.size, life.stream)?;
                    self.ranges[index as usize] = (granted.address, granted.size);
                }
                self.given[index as usize] = Some(granted.block);
                let is_born = index as usize >= self.lives.older;
                self.result.requests += u64::from(is_born);
                self.log.requests += u32::from(is_born);
                Ok(())
            }
            Err(error @ AllocError::OutOfMemory { .. }) => {
                self.result.failed += 1;
                let stop = Stop { tick, request: index, size: life.size, error };
                self.result.stop.get_or_insert(stop);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn free(&mut self, tick: Tick, index: u32) -> Result<(), AllocError> {
        let life = &self.lives.requests[index as usize];
        // A block may be let go of twice in a trace that lost events; the first time counts.
        if life.free_requested != tick && life.death != tick {
            return Ok(());
        }
        let Some(block) = self.given[index as usize].take() else { return Ok(()) };
        if !life.is_deferred() {
            return self.let_go(index, block, &[life.stream]);
        }
        self.hold_back(index, block)
    }

    /// Frees a block that a stream of its own keeps from being reused.
    fn hold_back(&mut self, index: u32, block: BlockId) -> Result<(), AllocError> {
        let stream = self.lives.requests[index as usize].stream;
        let side = self.side_streams.take();
        self.device.hold(side);
        let mut env = Env::new(self.device, &mut self.log);
        self.policy.record_stream(&mut env, block, side)?;
        self.held.push((index, side));
        self.let_go(index, block, &[stream, side])
    }

    /// Frees a block that `users` have used, the stream of its request first.
    fn let_go(&mut self, index: u32, block: BlockId, users: &[StreamId]) -> Result<(), AllocError> {
        if self.options.check_order {
            let (address, size) = self.ranges[index as usize];
            self.device.release(address, size, users)?;
        }
        let mut env = Env::new(self.device, &mut self.log);
        self.policy.free(&mut env, block)
    }

    /// The recording says that the block can be reused: lets the stream that held it go on.
    fn complete(&mut self, index: u32) -> Result<(), AllocError> {
        if let Some(block) = self.given[index as usize].take() {
            // Freed without having been asked for: the recording lost that entry.
            let stream = self.lives.requests[index as usize].stream;
            return self.let_go(index, block, &[stream]);
        }
        let Some(at) = self.held.iter().position(|&(held, _)| held == index) else {
            return Ok(());
        };
        let (_, side) = self.held.swap_remove(at);
        self.device.resume(side);
        self.side_streams.give(side);
        let mut env = Env::new(self.device, &mut self.log);
        self.policy.process_events(&mut env)
    }
}

/// Streams that no recording has: each stands for whatever held one block back.
struct SideStreams {
    next: u16,
    idle: Vec<StreamId>,
}

impl SideStreams {
    fn new(streams: usize) -> SideStreams {
        SideStreams { next: streams as u16, idle: Vec::new() }
    }

    fn take(&mut self) -> StreamId {
        self.idle.pop().unwrap_or_else(|| {
            self.next += 1;
            StreamId(self.next - 1)
        })
    }

    fn give(&mut self, stream: StreamId) {
        self.idle.push(stream);
    }
}

/// Keeps the segment events of a policy, each with the number of requests served before it.
#[derive(Default)]
struct SegmentLog {
    requests: u32,
    events: Vec<SegmentEvent>,
}

impl Log for SegmentLog {
    fn record(&mut self, event: Event) {
        if event.action.is_segment() {
            let Event { action, size, .. } = event;
            self.events.push(SegmentEvent { requests: self.requests, action, size });
        }
    }

    fn listens(&self) -> bool {
        false
    }
}

/// True if segments that the recording gives back were given back by emptying the cache: with a
/// limit on splitting or a threshold of garbage collection, the allocator frees single ones of its
/// own accord, and one that caches nothing frees each with its block.
fn gives_back_whole_segments(trace: &Trace) -> bool {
    let conf = &trace.settings.conf;
    !conf.contains("max_split_size_mb")
        && !conf.contains("garbage_collection_threshold")
        && !is_uncached(trace)
}

/// True if the recorded allocator cached nothing, as in the modes `profile` and `phantom`: what it took of the
/// device are the blocks themselves. A cache takes whole multiples of 2 MiB.
fn is_uncached(trace: &Trace) -> bool {
    let mut taken = trace.events.iter().filter(|event| event.action == Action::SegmentAlloc);
    taken.any(|event| !event.size.is_multiple_of(ROUND_LARGE))
}

/// True if the event at `index` is the first of a run of segments that go back.
fn begins_run(events: &[Event], index: usize) -> bool {
    let gives_back =
        |event: &Event| matches!(event.action, Action::SegmentFree | Action::SegmentUnmap);
    index == 0 || !gives_back(&events[index - 1])
}

/// The segment events of the recording itself.
pub fn recorded_segment_events(trace: &Trace) -> Vec<SegmentEvent> {
    let mut requests = 0;
    let mut events = Vec::new();
    for event in &trace.events {
        if event.action.is_segment() {
            let Event { action, size, .. } = *event;
            events.push(SegmentEvent { requests, action, size });
        }
        requests += u32::from(event.action == Action::Alloc);
    }
    events
}

/// The first difference between the segment events of the recording and those of a replay, as a
/// sentence; None if they are equal.
pub fn first_segment_difference(
    recorded: &[SegmentEvent],
    replayed: &[SegmentEvent],
) -> Option<String> {
    let say = |event: Option<&SegmentEvent>| match event {
        Some(SegmentEvent { requests, action, size }) => {
            format!("{action} of {size} bytes after {requests} requests")
        }
        None => "nothing more".to_owned(),
    };
    let count = recorded.len().max(replayed.len());
    (0..count).find(|&k| recorded.get(k) != replayed.get(k)).map(|k| {
        let (was, is) = (say(recorded.get(k)), say(replayed.get(k)));
        format!("segment event {k}: the recording has {was}, the replay {is}")
    })
}

/// The most bytes that the recording itself held of the device during its events; None if it has no
/// segment events, or if it began late and has no final segments from which to count back.
pub fn recorded_reserved_peak(trace: &Trace) -> Option<u64> {
    let is_late = trace.origin.truncated;
    if is_late && trace.segments.is_empty() {
        return None;
    }
    let (mut change, mut most, mut any) = (0i128, 0, false);
    for event in &trace.events {
        match event.action {
            Action::SegmentAlloc | Action::SegmentMap => change += i128::from(event.size),
            Action::SegmentFree | Action::SegmentUnmap => change -= i128::from(event.size),
            _ => continue,
        }
        any = true;
        most = most.max(change);
    }
    let at_the_end = trace.segments.iter().map(|segment| i128::from(segment.size));
    let at_first = if is_late { at_the_end.sum::<i128>() - change } else { 0 };
    (any || is_late).then(|| u64::try_from(at_first + most).unwrap_or(0))
}

/// The addresses at which the recorded allocator took segments, in order: given to the simulated
/// device, they settle the ties that address order decides in torch 2.11 and older.
pub fn recorded_segment_addresses(trace: &Trace) -> Vec<u64> {
    let segments = trace.events.iter().filter(|event| event.action == Action::SegmentAlloc);
    segments.map(|event| event.address).collect()
}
