//! The refused request: which one the question is about.
//!
//! PyTorch writes an `oom` entry when a request fails, after it has given back what it could: the
//! rounded size, and what the device had free. A trace without one may still be asked about a
//! device of so many bytes: then the first request that PyTorch's own allocator could not serve on
//! it is the refused one, and what that allocator holds at that moment is what is told.

use std::sync::Arc;

use girih_runtime::AllocError;
use girih_runtime::policy::{BlockView, SegmentView};
use girih_runtime::simulate::{
    Allocator, Setup, SimulateError, recorded_conf, simulate, simulate_until,
};
use girih_trace::bounds::REQUEST_MAX;
use girih_trace::{Action, Earlier, Lifetimes, PoolId, StackId, StreamId, Tick, Trace};

use crate::moment::{self, Moment};

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

/// What PyTorch's allocator makes of a run on a device of another size.
#[derive(Clone, PartialEq, Debug)]
pub enum OnDevice {
    /// It serves every request, and never has so many bytes of the device.
    Fits(u64),
    /// The first request that it could not have served.
    Refuses(Box<Replayed>),
}

/// A request that a replay could not serve, and what the replayed allocator held then: the recording was made
/// on another device, and tells of another moment.
#[derive(Clone, PartialEq, Debug)]
pub struct Replayed {
    /// The request.
    pub refusal: Refusal,
    /// What was alive and held.
    pub moment: Moment,
    /// The most that was held until then.
    pub most_held: u64,
}

/// What PyTorch's allocator, with the recorded settings, makes of the run on a device of `capacity` bytes.
///
/// # Errors
/// What [`simulate`] cannot carry out.
pub fn on_a_device_of(
    trace: &Trace,
    lives: &Lifetimes,
    earlier: &Arc<Result<Earlier, girih_trace::Contradiction>>,
    capacity: u64,
) -> Result<OnDevice, SimulateError> {
    let setup = Setup {
        conf: recorded_conf(trace),
        capacity: Some(capacity),
        earlier: Some(Arc::clone(earlier)),
        ..Setup::default()
    };
    let allocator = own_allocator(trace);
    let whole = simulate(trace, lives, allocator, &setup)?;
    let Some(stop) = whole.replayed.stop else {
        return Ok(OnDevice::Fits(capacity.saturating_sub(whole.stats.reserved_bytes.all().peak)));
    };
    let request = &lives.requests[stop.request as usize];
    let device_free = match stop.error {
        AllocError::OutOfMemory { device_free, .. } => Some(device_free),
        _ => None,
    };
    let refusal = Refusal {
        tick: stop.tick,
        size: stop.size,
        stream: request.stream,
        pool: request.pool,
        stack: request.stack,
        device_free,
    };
    let mut moment = Moment::of(lives, moment::alive(lives, stop.tick), stop.tick);
    let see = &mut |segment: SegmentView, blocks: &[BlockView]| moment.hold(segment, blocks);
    let until = simulate_until(trace, lives, allocator, &setup, stop.tick, see)?;
    let most_held = until.stats.reserved_bytes.all().peak;
    Ok(OnDevice::Refuses(Box::new(Replayed { refusal, moment, most_held })))
}

/// Which of PyTorch's allocators made the recording.
pub fn own_allocator(trace: &Trace) -> Allocator {
    if trace.settings.expandable_segments { Allocator::Expandable } else { Allocator::Native }
}
