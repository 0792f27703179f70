//! A snapshot as PyTorch dumps it, for its viewer (pytorch.org/memory_viz) and for whatever else reads
//! one: `segments`, `device_traces`, `allocator_settings`.
//!
//! A recording that has final segments keeps them. One that lacks them is given those that its events
//! leave: the viewer starts from the end and goes back.

use std::io::{self, Write};

use girih_plan::granted;
use girih_trace::{Action, Block, BlockState, Event, Segment, StackId, Tick, Trace};
use girih_why::frames::Frame;
use rustc_hash::FxHashMap;

use crate::held::Run;
use crate::pickle::Pickler;
use crate::picture::Picture;

/// Writes the snapshot.
///
/// # Errors
/// Those of the writer.
pub fn write(picture: &Picture<'_>, out: &mut dyn Write) -> io::Result<()> {
    let trace = picture.subject.trace;
    let rebuilt;
    let segments = if trace.segments.is_empty() {
        rebuilt = at_the_end(picture);
        &rebuilt
    } else {
        &trace.segments
    };
    let mut writer = Writer { trace, stacks: FxHashMap::default() };
    let mut pickler = Pickler::new(out)?;
    pickler.dict(|pickler| {
        pickler.word("segments")?;
        pickler.list(segments, |pickler, segment| writer.segment(pickler, segment))?;
        pickler.word("device_traces")?;
        // Devices are told by their places: those before have nothing.
        pickler.list(0..=trace.device.min(255), |pickler, device| {
            let events = if device == trace.device { &trace.events[..] } else { &[] };
            pickler.list(events, |pickler, event| writer.event(pickler, event))
        })?;
        pickler.word("allocator_settings")?;
        pickler.dict(|pickler| {
            pickler.word("PYTORCH_CUDA_ALLOC_CONF")?;
            pickler.text(&trace.settings.conf)?;
            pickler.word("expandable_segments")?;
            pickler.bool(trace.settings.expandable_segments)
        })
    })?;
    pickler.end()
}

struct Writer<'a> {
    trace: &'a Trace,
    /// The number of each list of frames that was written.
    stacks: FxHashMap<u32, u32>,
}

impl Writer<'_> {
    fn event(&mut self, pickler: &mut Pickler<'_>, event: &Event) -> io::Result<()> {
        let Trace { streams, pools, .. } = self.trace;
        pickler.dict(|pickler| {
            pickler.word("action")?;
            pickler.word(event.action.name())?;
            let at = if event.action == Action::Oom { "device_free" } else { "addr" };
            pickler.item(at, event.address)?;
            pickler.item("size", event.size)?;
            pickler
                .item("stream", streams.get(usize::from(event.stream.0)).copied().unwrap_or(0))?;
            pickler.word("time_us")?;
            pickler.signed(event.time_us)?;
            pickler.word("pool_id")?;
            pickler.pair(pools.get(usize::from(event.pool.0)).copied().unwrap_or((0, 0)))?;
            self.frames(pickler, event.stack)
        })
    }

    fn segment(&mut self, pickler: &mut Pickler<'_>, segment: &Segment) -> io::Result<()> {
        let Trace { streams, pools, device, .. } = self.trace;
        let sum = |counts: &dyn Fn(&Block) -> u64| {
            segment.blocks.iter().fold(0_u64, |sum, block| sum.saturating_add(counts(block)))
        };
        let is = |block: &Block, state| block.state == state;
        let in_use = |block: &Block| !is(block, BlockState::Inactive);
        let allocated = |block: &Block| is(block, BlockState::Allocated);
        pickler.dict(|pickler| {
            pickler.item("device", u64::from(*device))?;
            pickler.item("address", segment.address)?;
            pickler.item("total_size", segment.size)?;
            pickler.item("allocated_size", sum(&|it| if allocated(it) { it.size } else { 0 }))?;
            pickler.item("active_size", sum(&|it| if in_use(it) { it.size } else { 0 }))?;
            pickler.item("requested_size", sum(&|it| if in_use(it) { it.requested } else { 0 }))?;
            pickler
                .item("stream", streams.get(usize::from(segment.stream.0)).copied().unwrap_or(0))?;
            pickler.word("segment_type")?;
            pickler.word(if segment.is_small { "small" } else { "large" })?;
            pickler.word("segment_pool_id")?;
            pickler.pair(pools.get(usize::from(segment.pool.0)).copied().unwrap_or((0, 0)))?;
            pickler.word("is_expandable")?;
            pickler.bool(segment.is_expandable)?;
            self.frames(pickler, StackId::NONE)?;
            pickler.word("blocks")?;
            pickler.list(&segment.blocks, |pickler, block| self.block(pickler, block))
        })
    }

    fn block(&mut self, pickler: &mut Pickler<'_>, block: &Block) -> io::Result<()> {
        pickler.dict(|pickler| {
            pickler.item("address", block.address)?;
            pickler.item("size", block.size)?;
            pickler.item("requested_size", block.requested)?;
            pickler.word("state")?;
            pickler.word(match block.state {
                BlockState::Allocated => "active_allocated",
                BlockState::PendingFree => "active_pending_free",
                BlockState::Inactive => "inactive",
            })?;
            self.frames(pickler, block.stack)
        })
    }

    /// The key `frames` with a stack, which is written once.
    fn frames(&mut self, pickler: &mut Pickler<'_>, stack: StackId) -> io::Result<()> {
        pickler.word("frames")?;
        if let Some(&number) = self.stacks.get(&stack.0) {
            return pickler.fetch(number);
        }
        let none = Vec::new();
        let indices = if stack.is_some() { self.trace.stacks.get(stack.0 as usize) } else { None };
        let texts = indices.unwrap_or(&none).iter();
        let texts = texts.filter_map(|&index| self.trace.frames.get(index as usize));
        pickler.list(texts, |pickler, text| {
            let frame = Frame::of(text);
            pickler.dict(|pickler| {
                pickler.word("filename")?;
                pickler.text(frame.file)?;
                pickler.item("line", u64::from(frame.line))?;
                pickler.word("name")?;
                pickler.text(frame.name)
            })
        })?;
        let number = pickler.memoize()?;
        self.stacks.insert(stack.0, number);
        Ok(())
    }
}

/// The segments that the events leave, by address, with what is alive in them.
fn at_the_end(picture: &Picture<'_>) -> Vec<Segment> {
    let mut runs: Vec<&Run> = picture.runs.iter().filter(|run| run.death == Tick::NEVER).collect();
    runs.sort_by_key(|run| run.address);
    let mut segments: Vec<Segment> = Vec::new();
    for run in runs {
        if let Some(last) = segments.last_mut() {
            let touches = last.address + last.size == run.address;
            let is_same = (last.stream, last.pool) == (run.stream, run.pool);
            if touches && is_same && last.is_expandable && run.is_expandable {
                last.size += run.size;
                continue;
            }
        }
        segments.push(Segment {
            address: run.address,
            size: run.size,
            stream: run.stream,
            pool: run.pool,
            // The size of the segments that serve requests of at most 1 MiB.
            is_small: !run.is_expandable && run.size == 2 << 20,
            is_expandable: run.is_expandable,
            blocks: Vec::new(),
        });
    }
    let lives = &picture.subject.lives.requests;
    let mut alive: Vec<_> = lives.iter().filter(|life| life.death == Tick::NEVER).collect();
    alive.sort_by_key(|life| life.address);
    let mut alive = alive.into_iter().peekable();
    for segment in &mut segments {
        let end = segment.address + segment.size;
        let mut free_from = segment.address;
        let mut blocks = Vec::new();
        let mut push = |address: u64, to: u64, requested, state, stack| {
            if address < to {
                blocks.push(Block { address, size: to - address, requested, state, stack });
            }
        };
        while let Some(life) = alive.next_if(|life| life.address < end) {
            // What lies in no segment, or upon another, the viewer cannot show.
            if life.address < free_from {
                continue;
            }
            push(free_from, life.address, 0, BlockState::Inactive, StackId::NONE);
            free_from = life.address.saturating_add(granted(life.size)).min(end);
            let is_pending = life.free_requested != Tick::NEVER;
            let state = if is_pending { BlockState::PendingFree } else { BlockState::Allocated };
            push(life.address, free_from, life.size, state, life.stack);
        }
        push(free_from, end, 0, BlockState::Inactive, StackId::NONE);
        segment.blocks = blocks;
    }
    segments
}
