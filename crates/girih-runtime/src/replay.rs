//! Replay: a trace runs again, through a policy, on the simulated device.
//!
//! Requests and frees come in their recorded order. What the recording says about time is kept: a
//! block whose free was completed late, because another stream still used it, is held back here for
//! as long; and where the recorded allocator gave memory back, the program is taken to have emptied
//! the cache.

use girih_trace::{Action, Event, Lifetimes, StreamId, Tick, Trace};

use crate::device::Address;
use crate::policy::{AllocError, BlockId, Env, Log, Policy, Request};
use crate::sim::SimDevice;

/// How a trace is replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Ends after the operation at this tick.
    pub until: Option<Tick>,
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
    /// What the policy took and gave back, in order.
    pub segment_events: Vec<SegmentEvent>,
    /// Of the ticks at which the policy held the most of the device, the first at which the most of
    /// it was allocated.
    pub peak_at: Tick,
    /// Of the ticks at which the policy came to hold more than ever before, the last at which it
    /// took the most at once: of the request that counts when free memory is judged.
    pub grown_at: Tick,
}

/// Replays `trace` through `policy` on `device`.
///
/// A request that fails is counted and left out, as if the program had caught the error and gone
/// on without it.
///
/// # Errors
/// What the device refuses for another reason than memory: a misuse, which is a bug of the policy,
/// or an injected failure. With `check_policy`, what the policy finds wrong with itself.
pub fn replay<P: Policy + ?Sized>(
    trace: &Trace,
    lives: &Lifetimes,
    policy: &mut P,
    device: &mut SimDevice,
    options: Options,
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
    run.go()?;
    run.result.segment_events = run.log.events;
    Ok(run.result)
}

struct Run<'a, P: ?Sized> {
    trace: &'a Trace,
    lives: &'a Lifetimes,
    policy: &'a mut P,
    device: &'a mut SimDevice,
    options: Options,
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
    fn go(&mut self) -> Result<(), AllocError> {
        for request in 0..self.lives.older as u32 {
            self.allocate(Tick(0), request)?;
        }
        let empties_cache = gives_back_whole_segments(self.trace);
        let mut marks = self.trace.marks.iter().peekable();
        let mut unclosed = self.lives.unclosed_deaths().into_iter().peekable();
        for (index, event) in self.trace.events.iter().enumerate() {
            let tick = Tick(index as u32);
            while let Some(mark) = marks.next_if(|mark| mark.before <= tick.0) {
                let mut env = Env { device: self.device, log: &mut self.log };
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
        let now = (stats.reserved_bytes.all.current, stats.allocated_bytes.all.current);
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
                let mut env = Env { device: self.device, log: &mut self.log };
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
        let mut env = Env { device: self.device, log: &mut self.log };
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
        let side = self.side_streams.take();
        self.device.hold(side);
        let mut env = Env { device: self.device, log: &mut self.log };
        self.policy.record_stream(&mut env, block, side)?;
        self.held.push((index, side));
        self.let_go(index, block, &[life.stream, side])
    }

    /// Frees a block that `users` have used, the stream of its request first.
    fn let_go(&mut self, index: u32, block: BlockId, users: &[StreamId]) -> Result<(), AllocError> {
        if self.options.check_order {
            let (address, size) = self.ranges[index as usize];
            self.device.release(address, size, users)?;
        }
        let mut env = Env { device: self.device, log: &mut self.log };
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
        let mut env = Env { device: self.device, log: &mut self.log };
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
}

/// True if segments that the recording gives back were given back by emptying the cache: with a
/// limit on splitting or a threshold of garbage collection, the allocator frees single ones of its
/// own accord.
fn gives_back_whole_segments(trace: &Trace) -> bool {
    let conf = &trace.settings.conf;
    !conf.contains("max_split_size_mb") && !conf.contains("garbage_collection_threshold")
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

/// The most bytes that the recording itself held of the device, from its segment events; None if
/// it has none or began late.
pub fn recorded_reserved_peak(trace: &Trace) -> Option<u64> {
    if trace.origin.truncated {
        return None;
    }
    let (mut reserved, mut peak) = (0u64, None);
    for event in &trace.events {
        match event.action {
            Action::SegmentAlloc | Action::SegmentMap => reserved += event.size,
            Action::SegmentFree | Action::SegmentUnmap => {
                reserved = reserved.saturating_sub(event.size);
            }
            _ => continue,
        }
        peak = peak.max(Some(reserved));
    }
    peak
}

/// The addresses at which the recorded allocator took segments, in order: given to the simulated
/// device, they settle the ties that address order decides in torch 2.11 and older.
pub fn recorded_segment_addresses(trace: &Trace) -> Vec<u64> {
    let segments = trace.events.iter().filter(|event| event.action == Action::SegmentAlloc);
    segments.map(|event| event.address).collect()
}
