//! Lifetimes: which request each event speaks of, and from when to when its block was alive.
//!
//! A trace names blocks by address, and addresses are used again and again. The k-th allocation at
//! an address and the free that follows it are one [`Lifetime`]. A block whose free was asked for
//! but whose streams still run is pending, and still alive:
//!
//! ```text
//!  tick   3          17               19
//!         alloc      free_requested   free_completed
//!         [ allocated ................)
//!         [ alive .....................)   = [birth, death)
//! ```
//!
//! Blocks older than the recording show themselves by a free that nothing allocated, or by an
//! active block of a final segment. They come first, are born at tick 0, and are called *older*.
//! Where the recording began late, has no final segments, and the run reported how much it had
//! allocated at most, what no event accounts for is one more of them, at address 0: the weights of
//! a model that was built before.

use rustc_hash::FxHashMap;

use crate::event::{Action, PoolId, StackId, StreamId, Tick};
use crate::trace::{BlockState, Trace};

/// One request and the life of its block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lifetime {
    /// Bytes requested. For an older block of which only a segment tells, bytes granted.
    pub size: u64,
    /// Device address of the block.
    pub address: u64,
    /// Tick of the allocation; 0 for an older block.
    pub birth: Tick,
    /// Tick at which the program let go of the block; [`Tick::NEVER`] if it never did.
    pub free_requested: Tick,
    /// First tick at which the block is no longer alive; [`Tick::NEVER`] if it lives on.
    pub death: Tick,
    /// The stack that allocated it.
    pub stack: StackId,
    /// The stream that it was allocated for.
    pub stream: StreamId,
    /// The pool that it came from.
    pub pool: PoolId,
}

impl Lifetime {
    /// True if something happened between the program's letting go and the block's reuse: another
    /// stream, or a graph capture, still held it.
    pub fn is_deferred(&self) -> bool {
        self.free_requested != Tick::NEVER
            && (self.death == Tick::NEVER || self.death.0 > self.free_requested.0 + 1)
    }
}

/// All lifetimes of a trace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lifetimes {
    /// The requests: first the older ones by address, then the others in order of birth.
    pub requests: Vec<Lifetime>,
    /// How many of `requests` are older than the recording.
    pub older: usize,
    /// For each event, the request that it speaks of; [`Lifetimes::NONE`] if it speaks of none.
    pub request_of: Vec<u32>,
    /// Allocations at an address that was still in use: the free between them is missing.
    pub unclosed: usize,
}

impl Lifetimes {
    /// Stands in [`Lifetimes::request_of`] for events that speak of no request.
    pub const NONE: u32 = u32::MAX;

    /// Rebuilds the lifetimes of a trace. Linear in its events.
    pub fn of(trace: &Trace) -> Lifetimes {
        Rebuild::new(trace).run(trace)
    }

    /// The requests that the recording saw born, in order.
    pub fn born(&self) -> &[Lifetime] {
        &self.requests[self.older..]
    }

    /// The requests that were closed by an allocation at their address, for their own free is
    /// missing, with the tick of that allocation; by tick.
    pub fn unclosed_deaths(&self) -> Vec<(Tick, u32)> {
        if self.unclosed == 0 {
            return Vec::new();
        }
        let is_lost = |&(index, request): &(u32, &Lifetime)| {
            self.request_of.get(request.death.index()).is_some_and(|&owner| owner != index)
        };
        let mut lost: Vec<(Tick, u32)> = (0..)
            .zip(&self.requests)
            .filter(is_lost)
            .map(|(index, request)| (request.death, index))
            .collect();
        lost.sort_unstable();
        lost
    }

    /// Puts a block of so many bytes, alive all along, before all others.
    fn add_older(&mut self, size: u64) {
        self.requests.insert(
            0,
            Lifetime {
                size,
                address: 0,
                birth: Tick(0),
                free_requested: Tick::NEVER,
                death: Tick::NEVER,
                stack: StackId::NONE,
                stream: StreamId(0),
                pool: PoolId::DEFAULT,
            },
        );
        self.older += 1;
        for request in self.request_of.iter_mut().filter(|index| **index != Lifetimes::NONE) {
            *request += 1;
        }
    }

    /// The most bytes alive at once when each request takes `granted(size)` bytes, and the tick at
    /// which that is first so. `(0, 0)` for a trace without requests.
    pub fn peak(&self, granted: impl Fn(u64) -> u64) -> (u64, Tick) {
        // A tick can end one life and begin another, so both go into one difference.
        // No run has as much memory as 63 bits count; a damaged file may claim it.
        let granted = |size| i64::try_from(granted(size)).unwrap_or(i64::MAX);
        let mut change = vec![0i64; self.request_of.len() + 1];
        for request in &self.requests {
            let size = granted(request.size);
            let birth = &mut change[request.birth.index()];
            *birth = birth.saturating_add(size);
            if request.death != Tick::NEVER {
                let death = &mut change[request.death.index()];
                *death = death.saturating_sub(size);
            }
        }
        let (mut live, mut peak, mut at) = (0i64, 0, Tick(0));
        for (tick, change) in change.into_iter().enumerate() {
            live = live.saturating_add(change);
            if live > peak {
                (peak, at) = (live, Tick(tick as u32));
            }
        }
        (peak as u64, at)
    }
}

/// Bytes that were alive all along in a recording that began late, and that no event speaks of: what
/// the run reported at its peak beyond what its events add up to. They are the most that there can
/// have been: the peak may have come before the first event. Final segments show every older block,
/// so with them there are none. Blocks are taken to be rounded to 512 bytes (`kMinBlockSize`).
fn unseen_bytes(trace: &Trace, lives: &Lifetimes) -> Option<u64> {
    let is_late = trace.origin.truncated && trace.segments.is_empty();
    let reported = trace.recorded.allocated_peak.filter(|_| is_late)?;
    let rounded = |size: u64| size.max(1).checked_next_multiple_of(512).unwrap_or(size);
    let (seen, _) = lives.peak(rounded);
    let unseen = reported.saturating_sub(seen);
    (unseen >= 512).then_some(unseen - unseen % 512)
}

/// The state of the walk: what is open at each address.
struct Rebuild {
    requests: Vec<Lifetime>,
    older: Vec<Lifetime>,
    request_of: Vec<u32>,
    /// Address to the request that is alive there. Older blocks carry [`OLDER`].
    open: FxHashMap<u64, u32>,
    unclosed: usize,
}

/// Set in an index that means one of the older requests, until both lists are joined.
const OLDER: u32 = 1 << 31;

impl Rebuild {
    fn new(trace: &Trace) -> Rebuild {
        let blocks = trace.events.len() / 3 + 1;
        Rebuild {
            requests: Vec::with_capacity(blocks),
            older: Vec::new(),
            request_of: vec![Lifetimes::NONE; trace.events.len()],
            open: FxHashMap::default(),
            unclosed: 0,
        }
    }

    fn run(mut self, trace: &Trace) -> Lifetimes {
        for (index, event) in trace.events.iter().enumerate() {
            let tick = Tick(index as u32);
            match event.action {
                Action::Alloc => {
                    let request = self.requests.len() as u32;
                    self.requests.push(Lifetime {
                        size: event.size,
                        address: event.address,
                        birth: tick,
                        free_requested: Tick::NEVER,
                        death: Tick::NEVER,
                        stack: event.stack,
                        stream: event.stream,
                        pool: event.pool,
                    });
                    if let Some(lost) = self.open.insert(event.address, request) {
                        self.unclosed += 1;
                        let lost = self.get(lost);
                        lost.free_requested = lost.free_requested.min(tick);
                        lost.death = tick;
                    }
                    self.request_of[index] = request;
                }
                Action::FreeRequested => {
                    let request = self.find_or_older(trace, index);
                    self.get(request).free_requested = tick;
                    self.request_of[index] = request;
                }
                Action::FreeCompleted => {
                    let request = self.find_or_older(trace, index);
                    self.open.remove(&event.address);
                    let life = self.get(request);
                    life.free_requested = life.free_requested.min(tick);
                    life.death = tick;
                    self.request_of[index] = request;
                }
                Action::Annotate => {
                    if let Some(&request) = self.open.get(&event.address) {
                        self.request_of[index] = request;
                    }
                }
                _ => {}
            }
        }
        self.add_survivors(trace);
        let mut lives = self.join();
        if let Some(unseen) = unseen_bytes(trace, &lives) {
            lives.add_older(unseen);
        }
        lives
    }

    fn get(&mut self, index: u32) -> &mut Lifetime {
        if index & OLDER == 0 {
            &mut self.requests[index as usize]
        } else {
            &mut self.older[(index & !OLDER) as usize]
        }
    }

    /// The request alive at the address of event `index`; a new older one if there is none.
    fn find_or_older(&mut self, trace: &Trace, index: usize) -> u32 {
        let event = &trace.events[index];
        if let Some(&request) = self.open.get(&event.address) {
            return request;
        }
        let request = OLDER | self.older.len() as u32;
        self.older.push(Lifetime {
            size: event.size,
            address: event.address,
            birth: Tick(0),
            free_requested: Tick::NEVER,
            death: Tick::NEVER,
            stack: StackId::NONE,
            stream: event.stream,
            pool: event.pool,
        });
        self.open.insert(event.address, request);
        request
    }

    /// Adds the active blocks of the final segments that no event allocated.
    fn add_survivors(&mut self, trace: &Trace) {
        for segment in &trace.segments {
            for block in &segment.blocks {
                if block.state == BlockState::Inactive || self.open.contains_key(&block.address) {
                    continue;
                }
                let request = OLDER | self.older.len() as u32;
                let size = if block.requested > 0 { block.requested } else { block.size };
                self.older.push(Lifetime {
                    size,
                    address: block.address,
                    birth: Tick(0),
                    free_requested: Tick::NEVER,
                    death: Tick::NEVER,
                    stack: block.stack,
                    stream: segment.stream,
                    pool: segment.pool,
                });
                self.open.insert(block.address, request);
            }
        }
    }

    /// Puts the older requests, by address, before the others.
    fn join(self) -> Lifetimes {
        let Rebuild { requests, older, mut request_of, unclosed, .. } = self;
        let count = older.len();
        if count == 0 {
            return Lifetimes { requests, older: 0, request_of, unclosed };
        }
        let mut order: Vec<u32> = (0..count as u32).collect();
        order.sort_by_key(|&index| older[index as usize].address);
        let mut rank = vec![0; count];
        for (place, &index) in order.iter().enumerate() {
            rank[index as usize] = place as u32;
        }
        for index in request_of.iter_mut().filter(|index| **index != Lifetimes::NONE) {
            *index = if *index & OLDER == 0 {
                *index + count as u32
            } else {
                rank[(*index & !OLDER) as usize]
            };
        }
        let mut all: Vec<Lifetime> = order.iter().map(|&index| older[index as usize]).collect();
        all.extend(requests);
        Lifetimes { requests: all, older: count, request_of, unclosed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::trace::{Block, Segment};

    /// Reads `+a8` as an allocation of 8 bytes at `a`, `?a8` as a free asked for, `-a8` as done.
    fn trace(text: &str) -> Trace {
        let event = |word: &str| {
            let action = match &word[..1] {
                "+" => Action::Alloc,
                "?" => Action::FreeRequested,
                "-" => Action::FreeCompleted,
                other => panic!("no such action: {other}"),
            };
            Event {
                action,
                address: u64::from(word.as_bytes()[1]),
                size: word[2..].parse().unwrap(),
                time_us: 0,
                stack: StackId::NONE,
                stream: StreamId(0),
                pool: PoolId::DEFAULT,
            }
        };
        Trace { events: text.split_whitespace().map(event).collect(), ..Trace::default() }
    }

    fn spans(lives: &Lifetimes) -> Vec<(u64, u32, u32, u32)> {
        let span = |l: &Lifetime| (l.size, l.birth.0, l.free_requested.0, l.death.0);
        lives.requests.iter().map(span).collect()
    }

    #[test]
    fn an_address_that_is_used_again_starts_another_life() {
        let lives = Lifetimes::of(&trace("+a8 ?a8 -a8 +a16 ?a16 -a16"));
        assert_eq!(spans(&lives), [(8, 0, 1, 2), (16, 3, 4, 5)]);
        assert_eq!(lives.request_of, [0, 0, 0, 1, 1, 1]);
        assert!(!lives.requests[0].is_deferred());
    }

    #[test]
    fn a_pending_block_is_alive_until_its_free_completes() {
        let lives = Lifetimes::of(&trace("+a8 ?a8 +b8 -a8"));
        assert_eq!(spans(&lives)[0], (8, 0, 1, 3));
        assert!(lives.requests[0].is_deferred());
        assert_eq!(lives.peak(|size| size), (16, Tick(2)));
    }

    #[test]
    fn a_free_that_nothing_allocated_is_of_an_older_block() {
        let lives = Lifetimes::of(&trace("+b8 ?a4 -a4 ?b8 -b8"));
        assert_eq!(lives.older, 1);
        assert_eq!(spans(&lives), [(4, 0, 1, 2), (8, 0, 3, 4)]);
        assert_eq!(lives.request_of, [1, 0, 0, 1, 1]);
        assert_eq!(lives.peak(|size| size), (12, Tick(0)));
    }

    #[test]
    fn an_active_block_of_a_final_segment_is_older_unless_an_event_allocated_it() {
        let mut trace = trace("+a8");
        let block = |address: u8, state| Block {
            address: u64::from(address),
            size: 512,
            requested: 8,
            state,
            stack: StackId::NONE,
        };
        trace.segments.push(Segment {
            address: 0,
            size: 1 << 20,
            stream: StreamId(0),
            pool: PoolId::DEFAULT,
            is_small: true,
            is_expandable: false,
            blocks: vec![
                block(b'a', BlockState::Allocated),
                block(b'b', BlockState::PendingFree),
                block(b'c', BlockState::Inactive),
            ],
        });
        let lives = Lifetimes::of(&trace);
        assert_eq!(lives.older, 1);
        assert_eq!(lives.requests[0].address, u64::from(b'b'));
        assert_eq!(lives.request_of, [1]);
    }

    #[test]
    fn what_a_late_recording_does_not_account_for_is_one_older_block() {
        let mut trace = trace("+a512 ?a512 -a512");
        trace.recorded.allocated_peak = Some(5000);
        assert_eq!(Lifetimes::of(&trace).older, 0, "a recording from the start has no such block");
        trace.origin.truncated = true;
        let lives = Lifetimes::of(&trace);
        assert_eq!(spans(&lives), [(4096, 0, u32::MAX, u32::MAX), (512, 0, 1, 2)]);
        assert_eq!(lives.request_of, [1, 1, 1]);
        assert_eq!(lives.peak(|size| size), (4608, Tick(0)));
    }

    #[test]
    fn an_allocation_over_a_live_block_closes_it() {
        let lives = Lifetimes::of(&trace("+a8 +a16"));
        assert_eq!(spans(&lives), [(8, 0, 1, 1), (16, 1, u32::MAX, u32::MAX)]);
        assert_eq!(lives.unclosed, 1);
        assert_eq!(lives.unclosed_deaths(), [(Tick(1), 0)]);
        assert_eq!(lives.peak(|size| size).0, 16);
    }
}
