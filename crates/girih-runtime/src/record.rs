//! A recording of a run that never was: a program through a policy on a simulated device, recorded
//! as PyTorch would.
//!
//! A replay says what became of a run; this says what a snapshot of it would have held: each event
//! with its address, what was taken and given back, the request that was refused, and at the end
//! every segment with its blocks. It ends with the first request that is refused.

use girih_trace::trace::Origin;
use girih_trace::{Action, Block, BlockState, Event, Lifetimes, Segment, StackId, Trace};
use rustc_hash::FxHashMap;

use crate::policy::{AllocError, Backing, BlockId, Env, Policy, Request};
use crate::sim::SimDevice;

/// Records `program` under `policy`, which holds nothing, on `device`, up to the first request that
/// is refused. Of what `unwinds` picks (indices of the lifetimes of `program`) the program lets go
/// after that, as when the error leaves functions.
///
/// Frees are done when they are asked for: no other stream is waited for.
///
/// # Errors
/// What the device refuses for another reason than memory.
pub fn record<P: Policy + ?Sized>(
    program: &Trace,
    policy: &mut P,
    device: &mut SimDevice,
    unwinds: &dyn Fn(u32) -> bool,
) -> Result<Trace, AllocError> {
    let lives = Lifetimes::of(program);
    let mut events: Vec<Event> = Vec::new();
    let mut given: FxHashMap<u32, (BlockId, u64)> = FxHashMap::default();
    let mut stack_at: FxHashMap<u64, StackId> = FxHashMap::default();
    for (index, event) in program.events.iter().enumerate() {
        let request = lives.request_of[index];
        let before = events.len();
        let mut env = Env::new(device, &mut events);
        match event.action {
            Action::Alloc => {
                let Event { size, stream, pool, .. } = *event;
                match policy.allocate(&mut env, Request { size, stream, pool }) {
                    Ok(granted) => {
                        given.insert(request, (granted.block, granted.address));
                        stack_at.insert(granted.address, event.stack);
                    }
                    Err(AllocError::OutOfMemory { .. }) => {
                        stamp(&mut events[before..], event);
                        unwind(policy, device, &mut events, &given, unwinds)?;
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
            Action::FreeRequested => {
                if let Some((block, _)) = given.remove(&request) {
                    policy.free(&mut env, block)?;
                }
            }
            _ => {}
        }
        stamp(&mut events[before..], event);
    }
    Ok(Trace {
        device: program.device,
        streams: program.streams.clone(),
        pools: program.pools.clone(),
        segments: segments(policy, &stack_at),
        stacks: program.stacks.clone(),
        frames: program.frames.clone(),
        origin: Origin { kind: "simulated".to_owned(), ..Origin::default() },
        events,
        ..Trace::default()
    })
}

/// Gives events the time and the stack of what caused them.
fn stamp(events: &mut [Event], cause: &Event) {
    for event in events {
        event.time_us = cause.time_us;
        event.stack = cause.stack;
    }
}

fn unwind<P: Policy + ?Sized>(
    policy: &mut P,
    device: &mut SimDevice,
    events: &mut Vec<Event>,
    given: &FxHashMap<u32, (BlockId, u64)>,
    unwinds: &dyn Fn(u32) -> bool,
) -> Result<(), AllocError> {
    let mut going: Vec<u32> = given.keys().copied().filter(|&index| unwinds(index)).collect();
    going.sort_unstable_by(|a, b| b.cmp(a));
    let time_us = events.last().map_or(0, |event| event.time_us);
    for index in going {
        let before = events.len();
        policy.free(&mut Env::new(device, events), given[&index].0)?;
        events[before..].iter_mut().for_each(|event| event.time_us = time_us);
    }
    Ok(())
}

fn segments<P: Policy + ?Sized>(policy: &P, stacks: &FxHashMap<u64, StackId>) -> Vec<Segment> {
    let mut segments = Vec::new();
    policy.visit(&mut |segment, blocks| {
        let block = |block: &crate::policy::BlockView| Block {
            address: block.address,
            size: block.size,
            requested: block.requested,
            state: block.state,
            stack: match block.state {
                BlockState::Inactive => StackId::NONE,
                _ => stacks.get(&block.address).copied().unwrap_or(StackId::NONE),
            },
        };
        segments.push(Segment {
            address: segment.address,
            size: segment.size,
            stream: segment.stream,
            pool: segment.pool,
            is_small: segment.is_small,
            is_expandable: matches!(segment.backing, Backing::Expandable { .. }),
            blocks: blocks.iter().map(block).collect(),
        });
    });
    segments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caching::{Caching, Config};
    use crate::simulate::{Allocator, Setup, simulate};
    use girih_trace::generate::{Training, training};
    use girih_trace::{PoolId, StreamId, Tick};

    #[test]
    fn what_is_recorded_is_what_a_replay_of_it_takes_and_gives_back() {
        let program = training(&Training::default(), 5);
        let mut policy = Caching::new(Config::default());
        let mut device = SimDevice::new(1 << 40);
        let recorded = record(&program, &mut policy, &mut device, &|_| false).expect("it fits");
        let lives = Lifetimes::of(&recorded);
        let again =
            simulate(&recorded, &lives, Allocator::Native, &Setup::default()).expect("it fits");
        let taken = crate::replay::recorded_segment_events(&recorded);
        assert!(!taken.is_empty());
        assert_eq!(again.replayed.segment_events, taken);
    }

    #[test]
    fn a_refused_request_ends_it_and_what_unwinds_is_freed() {
        let (stream, pool) = (StreamId(0), PoolId::DEFAULT);
        let events = (0..4).map(|at| Event::of(Action::Alloc, at << 40, 30 << 20, stream, pool));
        let program = Trace {
            events: events.collect(),
            streams: vec![0],
            pools: vec![(0, 0)],
            ..Trace::default()
        };
        let mut policy = Caching::new(Config::default());
        let mut device = SimDevice::new(64 << 20);
        let recorded =
            record(&program, &mut policy, &mut device, &|index| index == 1).expect("runs");
        let actions: Vec<Action> = recorded.events.iter().map(|event| event.action).collect();
        let (taken, given) = (Action::SegmentAlloc, Action::Alloc);
        let freed = [Action::FreeRequested, Action::FreeCompleted];
        assert_eq!(actions, [taken, given, taken, given, Action::Oom, freed[0], freed[1]]);
        assert_eq!(recorded.events[4].address, 4 << 20, "what the device had free");
        assert_eq!(recorded.segments.len(), 2);
        let lives = Lifetimes::of(&recorded);
        assert_eq!(lives.requests[1].death, Tick(6));
    }
}
