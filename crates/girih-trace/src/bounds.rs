//! How much a recording may claim: bounds that no GPU comes near, and that a damaged file does not keep.
//!
//! Whoever understands a recording adds its sizes up, and a simulation keeps something for each page.
//! Both are safe once two things have been looked at: that no event is larger than
//! [`REQUEST_MAX`], which the one door of all files does ([`crate::open`]), and that no more is alive
//! at once than [`HELD_MAX`], which can only be known from the lifetimes ([`check_held`]).
//!
//! An event that was refused (`oom`) may have asked for anything: it held nothing.

use thiserror::Error;

use crate::event::{Action, Event};
use crate::lifetimes::Lifetimes;
use crate::trace::{BlockState, Segment, Trace};

/// The most bytes of an event or a segment: 256 TiB, as many as a GPU has addresses.
pub const REQUEST_MAX: u64 = 1 << 48;

/// The most bytes that are alive at once on a device: 4 TiB. A GPU has less, and so has the device
/// without memory on which large models are recorded.
pub const HELD_MAX: u64 = 1 << 42;

/// Which bound a recording does not keep. Events and segments are named by their index, from 0.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum BoundsError {
    /// An event is larger than any can be.
    #[error(
        "copy the recording again, it is damaged: device {device}, event {event} ({action}): {size} \
         bytes are more than the {REQUEST_MAX} that a GPU has addresses for"
    )]
    Event {
        /// The device.
        device: u32,
        /// The event.
        event: usize,
        /// What it says.
        action: Action,
        /// Its bytes.
        size: u64,
    },
    /// An event reaches beyond the last address.
    #[error(
        "copy the recording again, it is damaged: device {device}, event {event} ({action}): {size} \
         bytes at address {address} reach beyond the last address"
    )]
    Address {
        /// The device.
        device: u32,
        /// The event.
        event: usize,
        /// What it says.
        action: Action,
        /// Its address.
        address: u64,
        /// Its bytes.
        size: u64,
    },
    /// A final segment, or a block of it, is larger than any can be, or lies where it cannot.
    #[error(
        "copy the recording again, it is damaged: device {device}, segment {segment}: {problem}"
    )]
    Segment {
        /// The device.
        device: u32,
        /// The segment.
        segment: usize,
        /// What is wrong.
        problem: String,
    },
    /// More is alive at once than a device holds.
    #[error(
        "copy the recording again, it is damaged or not of a GPU: {bytes} bytes are alive at event \
         {event}, more than the {HELD_MAX} that a device may hold"
    )]
    Held {
        /// The event at which the most is alive.
        event: u32,
        /// Bytes that are alive then.
        bytes: u64,
    },
}

/// Makes sure that every event and every segment of a trace keeps the bounds. Linear.
///
/// # Errors
/// [`BoundsError`] with the first event or segment that does not.
pub fn check_sizes(trace: &Trace) -> Result<(), BoundsError> {
    let device = trace.device;
    for (event, &Event { address, size, action, .. }) in trace.events.iter().enumerate() {
        if matches!(action, Action::Oom | Action::Snapshot) {
            continue;
        }
        if size > REQUEST_MAX {
            return Err(BoundsError::Event { device, event, action, size });
        }
        if address.checked_add(size).is_none() {
            return Err(BoundsError::Address { device, event, action, address, size });
        }
    }
    for (index, segment) in trace.segments.iter().enumerate() {
        if let Some(problem) = segment_fault(segment) {
            return Err(BoundsError::Segment { device, segment: index, problem });
        }
    }
    Ok(())
}

/// What is wrong with a final segment, if anything is.
fn segment_fault(segment: &Segment) -> Option<String> {
    let &Segment { address, size, .. } = segment;
    if size > REQUEST_MAX {
        return Some(format!(
            "{size} bytes are more than the {REQUEST_MAX} that a GPU has addresses for"
        ));
    }
    let Some(end) = address.checked_add(size) else {
        return Some(format!("{size} bytes at address {address} reach beyond the last address"));
    };
    let mut next = address;
    for (number, block) in segment.blocks.iter().enumerate() {
        let after = block.address.checked_add(block.size).filter(|&after| after <= end);
        let Some(after) = after.filter(|_| block.address >= next) else {
            return Some(format!("block {number} is not behind the one before it and inside it"));
        };
        // What an inactive block says of its last request means nothing.
        if block.state != BlockState::Inactive && block.requested > REQUEST_MAX {
            return Some(format!("block {number} holds a request of {} bytes", block.requested));
        }
        next = after;
    }
    None
}

/// Makes sure that no more is alive at once than [`HELD_MAX`]. Linear.
///
/// # Errors
/// [`BoundsError::Held`] with the event at which the most is alive.
pub fn check_held(lives: &Lifetimes) -> Result<(), BoundsError> {
    let (bytes, event) = lives.peak(|size| size);
    if bytes > HELD_MAX {
        return Err(BoundsError::Held { event: event.0, bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{PoolId, StackId, StreamId};
    use crate::trace::Block;

    fn event(action: Action, address: u64, size: u64) -> Event {
        let (stream, pool) = (StreamId(0), PoolId::DEFAULT);
        Event { address, size, time_us: 0, stack: StackId::NONE, stream, pool, action }
    }

    fn trace(events: Vec<Event>) -> Trace {
        Trace { device: 3, events, ..Trace::default() }
    }

    #[test]
    fn a_request_that_no_gpu_has_addresses_for_is_named() {
        let largest = event(Action::Alloc, 1 << 40, REQUEST_MAX);
        assert_eq!(check_sizes(&trace(vec![largest])), Ok(()));
        let larger = event(Action::Alloc, 1 << 40, REQUEST_MAX + 1);
        let error = check_sizes(&trace(vec![largest, larger])).unwrap_err().to_string();
        assert!(error.contains("device 3, event 1 (alloc): 281474976710657 bytes"), "{error}");
        let refused = event(Action::Oom, u64::MAX, 1 << 60);
        assert_eq!(check_sizes(&trace(vec![refused])), Ok(()), "it held nothing");
        let last = event(Action::FreeCompleted, u64::MAX - 7, 8);
        let error = check_sizes(&trace(vec![last])).unwrap_err().to_string();
        assert!(error.contains("beyond the last address"), "{error}");
    }

    #[test]
    fn segments_and_their_blocks_keep_the_bounds_too() {
        let block = |address, size, requested, state| Block {
            address,
            size,
            requested,
            state,
            stack: StackId::NONE,
        };
        let segment = |size, blocks| Segment {
            address: 512,
            size,
            stream: StreamId(0),
            pool: PoolId::DEFAULT,
            is_small: false,
            is_expandable: false,
            blocks,
        };
        let fault = |size, blocks| {
            let trace = Trace { segments: vec![segment(size, blocks)], ..Trace::default() };
            check_sizes(&trace).err().map(|error| error.to_string())
        };
        let live = |address, size| block(address, size, size, BlockState::Allocated);
        assert_eq!(fault(1024, vec![live(512, 512), live(1024, 512)]), None);
        let stale = block(512, 1024, u64::MAX, BlockState::Inactive);
        assert_eq!(fault(1024, vec![stale]), None);
        assert!(fault(REQUEST_MAX + 1, vec![]).unwrap().contains("segment 0: 2814"));
        assert!(fault(1024, vec![live(512, 512), live(512, 512)]).unwrap().contains("block 1"));
        assert!(fault(1024, vec![live(512, 2048)]).unwrap().contains("block 0"));
        let large = block(512, 512, u64::MAX, BlockState::Allocated);
        assert!(fault(1024, vec![large]).unwrap().contains("holds a request of"));
    }

    #[test]
    fn what_is_alive_at_once_is_bounded_and_what_comes_one_after_another_is_not() {
        let half = HELD_MAX / 2;
        let mut events = Vec::new();
        for _ in 0..5 {
            events.push(event(Action::Alloc, 1 << 40, half));
            events.push(event(Action::FreeRequested, 1 << 40, half));
            events.push(event(Action::FreeCompleted, 1 << 40, half));
        }
        assert_eq!(check_held(&Lifetimes::of(&trace(events.clone()))), Ok(()));
        let together = [1u64, 2, 3].map(|at| event(Action::Alloc, at << 50, half));
        events.extend(together);
        let error = check_held(&Lifetimes::of(&trace(events))).unwrap_err().to_string();
        assert!(error.contains("alive at event 17"), "{error}");
    }
}
