//! The refused request: which one the question is about.
//!
//! PyTorch writes an `oom` entry when a request fails, after it has given back what it could: the
//! rounded size, and what the device had free. A trace without one may still be asked about a
//! device of so many bytes: then the first request that PyTorch's own allocator could not serve on
//! it is the refused one.

use std::sync::Arc;

use girih_runtime::AllocError;
use girih_runtime::simulate::{Allocator, Setup, SimulateError, simulate};
use girih_trace::bounds::REQUEST_MAX;
use girih_trace::{Action, Earlier, Lifetimes, PoolId, StackId, StreamId, Tick, Trace};

/// A request that got nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// When: what the events before this tick did is done, and no more.
    pub tick: Tick,
    /// Bytes, as the recording has them: of an `oom` entry after rounding.
    pub size: u64,
    /// The stream that asked.
    pub stream: StreamId,
    /// The pool that was asked.
    pub pool: PoolId,
    /// The stack that asked, if stacks were recorded.
    pub stack: StackId,
    /// What the device had free then; None if it was found by a replay.
    pub device_free: Option<u64>,
}

/// Every request that the recorded run itself was refused, in order.
pub fn recorded(trace: &Trace) -> Vec<Refusal> {
    let refusal = |(index, event): (usize, &girih_trace::Event)| Refusal {
        tick: Tick(index as u32),
        // A request that failed may have asked for anything.
        size: event.size.min(REQUEST_MAX),
        stream: event.stream,
        pool: event.pool,
        stack: event.stack,
        device_free: Some(event.address.min(REQUEST_MAX)),
    };
    let events = trace.events.iter().enumerate();
    events.filter(|(_, event)| event.action == Action::Oom).map(refusal).collect()
}

/// The first request that PyTorch's allocator, with the recorded settings, could not have served on
/// a device of `capacity` bytes. None if it serves all.
///
/// # Errors
/// What [`simulate`] cannot carry out.
pub fn on_a_device_of(
    trace: &Trace,
    lives: &Lifetimes,
    earlier: &Arc<Result<Earlier, girih_trace::Contradiction>>,
    conf: &str,
    capacity: u64,
) -> Result<Option<Refusal>, SimulateError> {
    let setup = Setup {
        conf: conf.to_owned(),
        capacity: Some(capacity),
        earlier: Some(Arc::clone(earlier)),
        ..Setup::default()
    };
    let found = simulate(trace, lives, own_allocator(trace), &setup)?;
    Ok(found.replayed.stop.map(|stop| {
        let request = &lives.requests[stop.request as usize];
        let device_free = match stop.error {
            AllocError::OutOfMemory { device_free, .. } => Some(device_free),
            _ => None,
        };
        Refusal {
            tick: stop.tick,
            size: stop.size,
            stream: request.stream,
            pool: request.pool,
            stack: request.stack,
            device_free,
        }
    }))
}

/// Which of PyTorch's allocators made the recording.
pub fn own_allocator(trace: &Trace) -> Allocator {
    if trace.settings.expandable_segments { Allocator::Expandable } else { Allocator::Native }
}
