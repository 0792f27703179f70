//! A trace in the making: events with addresses that no two live blocks share.

use std::collections::HashMap;

use crate::event::{Action, Event, PoolId, StackId, StreamId};
use crate::mark::{Mark, MarkKind};
use crate::trace::{Origin, Trace};
use crate::uses::{Operator, Use};

/// Blocks and segments begin at multiples of these, as PyTorch's do.
const BLOCK_BYTES: u64 = 512;
const SEGMENT_BYTES: u64 = 2 << 20;

/// A block that was allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Live {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) stream: StreamId,
    pub(super) pool: PoolId,
    pub(super) stack: StackId,
}

/// The stream and the pool that a piece of memory belongs to.
type Owner = (StreamId, PoolId);

/// Appends events. Its allocator is the simplest that is right: a freed piece serves the next
/// request of the same size, stream and pool; anything else comes from the end of a segment.
pub(super) struct Builder {
    pub(super) trace: Trace,
    clock_us: i64,
    free: HashMap<(Owner, u64), Vec<u64>>,
    /// The rest of the newest segment of each owner: next address, end.
    rest: HashMap<Owner, (u64, u64)>,
    next_segment: u64,
}

impl Builder {
    pub(super) fn new(device: u32, kind: &str) -> Self {
        let origin = Origin { kind: kind.to_owned(), ..Origin::default() };
        let trace =
            Trace { device, streams: vec![0], pools: vec![(0, 0)], origin, ..Trace::default() };
        Builder {
            trace,
            clock_us: 1_700_000_000_000_000,
            free: HashMap::new(),
            rest: HashMap::new(),
            next_segment: 0x7f00_0000_0000 + (u64::from(device) << 40),
        }
    }

    /// Lets time pass.
    pub(super) fn wait(&mut self, microseconds: u64) {
        self.clock_us += microseconds as i64;
    }

    /// Allocates `size` bytes, at least one.
    pub(super) fn alloc(
        &mut self,
        size: u64,
        stream: StreamId,
        pool: PoolId,
        stack: StackId,
    ) -> Live {
        let rounded = size.max(1).next_multiple_of(BLOCK_BYTES);
        let freed = self.free.get_mut(&((stream, pool), rounded)).and_then(Vec::pop);
        let address = match freed {
            Some(address) => address,
            None => self.place_in_segment(rounded, (stream, pool)),
        };
        let live = Live { address, size: size.max(1), stream, pool, stack };
        self.push(Action::Alloc, live);
        live
    }

    /// The program lets go of a block.
    pub(super) fn request_free(&mut self, live: Live) {
        self.push(Action::FreeRequested, live);
    }

    /// The block can be used again.
    pub(super) fn complete_free(&mut self, live: Live) {
        self.push(Action::FreeCompleted, live);
        let rounded = live.size.next_multiple_of(BLOCK_BYTES);
        self.free.entry(((live.stream, live.pool), rounded)).or_default().push(live.address);
    }

    /// Both at once, as nearly every free.
    pub(super) fn free(&mut self, live: Live) {
        self.request_free(live);
        self.complete_free(live);
    }

    /// A mark before the next event.
    pub(super) fn mark(&mut self, kind: MarkKind, name: &(impl ToString + ?Sized)) {
        self.clock_us += 1;
        let before = self.trace.events.len() as u32;
        let mark = Mark { before, time_us: self.clock_us, kind, name: name.to_string() };
        self.trace.marks.push(mark);
    }

    /// An operator begins before the next event, and lasts until the next one does.
    pub(super) fn operator(&mut self, name: &str) {
        let Trace { events, uses, .. } = &mut self.trace;
        let known = uses.names.iter().position(|other| other == name);
        let name = known.unwrap_or_else(|| {
            uses.names.push(name.to_owned());
            uses.names.len() - 1
        });
        uses.operators.push(Operator {
            name: name as u32,
            before: events.len() as u32,
            time_us: self.clock_us,
            duration_us: 0,
            stream: StreamId(0),
        });
    }

    /// The latest operator uses a block.
    pub(super) fn uses(&mut self, live: Live) {
        let uses = &mut self.trace.uses;
        if let Some(operator) = uses.operators.len().checked_sub(1) {
            uses.uses.push(Use { operator: operator as u32, address: live.address });
        }
    }

    fn place_in_segment(&mut self, rounded: u64, owner: Owner) -> u64 {
        let (next, end) = self.rest.get(&owner).copied().unwrap_or_default();
        let (address, end) = if next + rounded <= end {
            (next, end)
        } else {
            let size = rounded.next_multiple_of(SEGMENT_BYTES);
            let address = self.next_segment;
            self.next_segment += size;
            let (stream, pool) = owner;
            let segment = Live { address, size, stream, pool, stack: StackId::NONE };
            self.push(Action::SegmentAlloc, segment);
            (address, address + size)
        };
        self.rest.insert(owner, (address + rounded, end));
        address
    }

    fn push(&mut self, action: Action, live: Live) {
        let Live { address, size, stream, pool, stack } = live;
        self.clock_us += 1;
        let time_us = self.clock_us;
        self.trace.events.push(Event { address, size, time_us, stack, stream, pool, action });
    }
}
