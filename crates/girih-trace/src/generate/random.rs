//! Arbitrary valid recordings.

use super::builder::{Builder, Live};
use super::chance::Chance;
use crate::event::{Action, Event, PoolId, StackId, StreamId};
use crate::mark::{MarkKind, Recorded};
use crate::trace::{Block, BlockState, Recording, Segment, Settings, Trace};
use crate::uses::{Operator, Use};

/// Names of marks and frames: plain, empty, and what trips a careless writer.
const NAMES: [&str; 6] = ["", "layers.0", "a\nb\"c\\", "müßig ✓", "N/A", "action"];

/// A valid recording of up to three devices, with at most `max_events` events each: addresses that
/// no two live blocks share, frees of live blocks only, marks in order, segments that are tiled by
/// their blocks. Ends early when `chance` is over.
pub fn recording(chance: &mut impl Chance, max_events: usize) -> Recording {
    let mut traces = Vec::new();
    for device in 0..3 {
        if device == 0 || chance.one_in(4) {
            let trace = trace(chance, device, max_events);
            if !trace.events.is_empty() || !trace.segments.is_empty() {
                traces.push(trace);
            }
        }
    }
    Recording { traces }
}

fn trace(chance: &mut impl Chance, device: u32, max_events: usize) -> Trace {
    let mut builder = Builder::new(device, "generated");
    add_tables(chance, &mut builder.trace);
    let mut live: Vec<Live> = Vec::new();
    let mut pending: Vec<Live> = Vec::new();
    while builder.trace.events.len() < max_events && !chance.is_over() {
        builder.wait(chance.below(50));
        match chance.below(10) {
            0..=3 => live.push(alloc(chance, &mut builder)),
            4..=6 if !live.is_empty() => builder.free(take(chance, &mut live)),
            7 if !live.is_empty() => {
                let block = take(chance, &mut live);
                builder.request_free(block);
                pending.push(block);
            }
            8 if !pending.is_empty() => builder.complete_free(take(chance, &mut pending)),
            9 => add_rarity(chance, &mut builder, &live),
            _ => {}
        }
    }
    builder.trace.events.truncate(max_events);
    let count = builder.trace.events.len() as u32;
    for mark in &mut builder.trace.marks {
        mark.before = mark.before.min(count);
    }
    add_segments(chance, &mut builder.trace);
    if chance.one_in(2) && !builder.trace.events.is_empty() {
        add_uses(chance, &mut builder.trace);
    }
    builder.trace
}

/// Operators between the events, with uses of blocks that are there and of some that are not.
fn add_uses(chance: &mut impl Chance, trace: &mut Trace) {
    let Trace { events, streams, uses, .. } = trace;
    uses.names = NAMES[..1 + chance.below(NAMES.len() as u64) as usize]
        .iter()
        .map(|name| (*name).to_owned())
        .collect();
    let mut before = 0;
    while (uses.operators.is_empty() || !chance.is_over()) && (before as usize) < events.len() {
        for _ in 0..chance.below(4) {
            let address = pick(chance, events).address;
            uses.uses.push(Use { operator: uses.operators.len() as u32, address });
        }
        uses.operators.push(Operator {
            name: chance.below(uses.names.len() as u64) as u32,
            before,
            time_us: events[before as usize].time_us,
            duration_us: chance.below(1 << 20) as u32,
            stream: StreamId(chance.below(streams.len() as u64) as u16),
        });
        before += chance.below(6) as u32;
        if uses.operators.len() > 2 * events.len() {
            break;
        }
    }
}

fn add_tables(chance: &mut impl Chance, trace: &mut Trace) {
    for stream in 0..chance.below(3) {
        trace.streams.push(0x55aa_0000_0000 + stream * 16);
    }
    for pool in 0..chance.below(2) {
        trace.pools.push((pool, 1 + chance.below(1 << 40)));
    }
    for frame in 0..chance.below(6) {
        let name = pick(chance, &NAMES);
        trace.frames.push(format!("file{frame}.py:{frame} {name}"));
    }
    if !trace.frames.is_empty() {
        for stack in 0..chance.below(5) {
            // The first frame makes the stacks differ.
            let first = stack.min(trace.frames.len() as u64 - 1) as u32;
            let depth = chance.below(4);
            let frame = |_| chance.below(trace.frames.len() as u64) as u32;
            trace.stacks.push(std::iter::once(first).chain((0..depth).map(frame)).collect());
        }
    }
    trace.settings = Settings {
        conf: (*pick(chance, &["", "expandable_segments:True"])).to_owned(),
        expandable_segments: chance.one_in(2),
    };
    let peak = |chance: &mut dyn FnMut(u64) -> u64| match chance(2) {
        0 => None,
        _ => Some(chance(u64::MAX)),
    };
    let mut draw = |limit| chance.below(limit);
    let (allocated_peak, reserved_peak) = (peak(&mut draw), peak(&mut draw));
    trace.recorded = Recorded { allocated_peak, reserved_peak };
}

fn alloc(chance: &mut impl Chance, builder: &mut Builder) -> Live {
    let size = match chance.below(4) {
        0 => chance.below(1 << 10),
        1 => 512 * chance.below(1 << 8),
        2 => chance.below(1 << 22),
        _ => chance.below(1 << 34),
    };
    let stream = StreamId(chance.below(builder.trace.streams.len() as u64) as u16);
    let pool = PoolId(chance.below(builder.trace.pools.len() as u64) as u16);
    let stack = stack(chance, &builder.trace);
    builder.alloc(size, stream, pool, stack)
}

fn stack(chance: &mut impl Chance, trace: &Trace) -> StackId {
    match chance.below(trace.stacks.len() as u64 + 1) {
        0 => StackId::NONE,
        number => StackId(number as u32 - 1),
    }
}

/// A mark, or an event that neither allocates nor frees.
fn add_rarity(chance: &mut impl Chance, builder: &mut Builder, live: &[Live]) {
    let rare = |action, address, size| Event {
        address,
        size,
        time_us: 0,
        stack: StackId::NONE,
        stream: StreamId(0),
        pool: PoolId::DEFAULT,
        action,
    };
    let last_us = builder.trace.events.last().map_or(0, |event| event.time_us);
    let event = match (chance.below(4), live.last()) {
        (0, _) => rare(Action::Oom, chance.below(1 << 36), chance.below(1 << 36)),
        (1, _) => rare(Action::Snapshot, 0, chance.below(1 << 36)),
        (2, Some(block)) => Event {
            stream: block.stream,
            pool: block.pool,
            ..rare(Action::Annotate, block.address, block.size)
        },
        _ => {
            let (kind, _) = MarkKind::NAMES[chance.below(MarkKind::NAMES.len() as u64) as usize];
            return builder.mark(kind, *pick(chance, &NAMES));
        }
    };
    builder.trace.events.push(Event { time_us: last_us, ..event });
}

/// Segments that have nothing to do with the events: a reader must not care.
fn add_segments(chance: &mut impl Chance, trace: &mut Trace) {
    let mut next = 0x7e00_0000_0000;
    for _ in 0..chance.below(4) {
        let address = next;
        let mut blocks = Vec::new();
        for _ in 0..1 + chance.below(4) {
            let size = 512 * (1 + chance.below(4096));
            let states = [BlockState::Allocated, BlockState::PendingFree, BlockState::Inactive];
            blocks.push(Block {
                address: next,
                size,
                requested: chance.below(size + 1),
                state: *pick(chance, &states),
                stack: stack(chance, trace),
            });
            next += size;
        }
        trace.segments.push(Segment {
            address,
            size: next - address,
            stream: StreamId(chance.below(trace.streams.len() as u64) as u16),
            pool: PoolId(chance.below(trace.pools.len() as u64) as u16),
            is_small: chance.one_in(2),
            is_expandable: chance.one_in(2),
            blocks,
        });
        next += 1 << 21;
    }
}

fn take(chance: &mut impl Chance, blocks: &mut Vec<Live>) -> Live {
    let index = chance.below(blocks.len() as u64) as usize;
    blocks.swap_remove(index)
}

fn pick<'a, T>(chance: &mut impl Chance, choices: &'a [T]) -> &'a T {
    &choices[chance.below(choices.len() as u64) as usize]
}
