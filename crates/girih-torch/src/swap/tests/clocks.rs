//! Which work of a device is ordered: vector clocks.
//!
//! A run of the streams in some order shows a wrong byte only if that order brings it about. Clocks tell of all orders at
//! once: each piece of work has a time of its stream, and knows of every other stream how much of it came surely before,
//! by events that were waited for and by what the host saw done. Two uses of a place, one of which writes, must be
//! ordered; if they are not, some run of the streams has them the other way round.
//!
//! ```text
//!  compute   write t ──── event a ─────────────── wait b ── write t again     ordered by b
//!  lane                     wait a ── copy t ──── event b
//! ```

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Of each stream, how many of its pieces of work came surely before.
#[derive(Clone, Debug, Default)]
struct Clock(BTreeMap<u64, u64>);

impl Clock {
    fn join(&mut self, other: &Clock) {
        for (&stream, &time) in &other.0 {
            let own = self.0.entry(stream).or_default();
            *own = time.max(*own);
        }
    }

    fn knows(&self, moment: Moment) -> bool {
        self.0.get(&moment.stream).is_some_and(|&time| time >= moment.time)
    }
}

/// A piece of work.
#[derive(Clone, Copy, Debug)]
struct Moment {
    stream: u64,
    time: u64,
}

/// How a piece of work uses a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    Read,
    Write,
}

/// Who used a place since it was written last.
#[derive(Clone, Debug, Default)]
struct Users {
    writer: Option<Moment>,
    readers: Vec<Moment>,
}

/// The clocks of a device, whose places are named by `P`.
#[derive(Debug)]
pub(super) struct Clocks<P> {
    streams: BTreeMap<u64, Clock>,
    events: HashMap<u64, Clock>,
    /// What the host has seen done: all work that it gives from then on comes after.
    host: Clock,
    users: HashMap<P, Users>,
}

impl<P> Default for Clocks<P> {
    fn default() -> Clocks<P> {
        let (streams, events) = (BTreeMap::new(), HashMap::new());
        Clocks { streams, events, host: Clock::default(), users: HashMap::new() }
    }
}

impl<P: Copy + Eq + Hash + std::fmt::Debug> Clocks<P> {
    /// A stream is given a piece of work.
    fn tick(&mut self, stream: u64) -> Moment {
        let clock = self.streams.entry(stream).or_default();
        clock.join(&self.host);
        let time = clock.0.entry(stream).or_default();
        *time += 1;
        Moment { stream, time: *time }
    }

    /// A piece of work of `stream` uses `places`. What it is not ordered with, in words.
    pub(super) fn work(&mut self, stream: u64, uses: Use, places: &[P]) -> Option<String> {
        let now = self.tick(stream);
        let clock = &self.streams[&stream];
        let mut unordered = None;
        for place in places {
            let users = self.users.entry(*place).or_default();
            let before = users.writer.iter().chain(match uses {
                Use::Read => &[][..],
                Use::Write => &users.readers[..],
            });
            if let Some(other) = before.copied().find(|&other| !clock.knows(other)) {
                let (here, there) = (now.stream, other.stream);
                unordered = Some(format!(
                    "stream {here}, {uses:?} of {place:?}: not ordered after stream {there}"
                ));
            }
            match uses {
                Use::Read => users.readers.push(now),
                Use::Write => *users = Users { writer: Some(now), readers: Vec::new() },
            }
        }
        unordered
    }

    /// An event is recorded on a stream; of one of several streams, once for each.
    pub(super) fn record(&mut self, stream: u64, event: u64) {
        self.tick(stream);
        let clock = self.streams[&stream].clone();
        self.events.entry(event).or_default().join(&clock);
    }

    /// A stream waits for an event.
    pub(super) fn wait(&mut self, stream: u64, event: u64) {
        self.tick(stream);
        if let (Some(clock), Some(event)) = (self.streams.get_mut(&stream), self.events.get(&event))
        {
            clock.join(event);
        }
    }

    /// The host has seen that an event was reached.
    pub(super) fn see(&mut self, event: u64) {
        if let Some(event) = self.events.get(&event) {
            self.host.join(event);
        }
    }

    /// The host has waited for everything.
    pub(super) fn see_all(&mut self) {
        for clock in self.streams.values() {
            self.host.join(clock);
        }
    }
}

#[test]
fn only_what_an_event_or_the_host_orders_is_ordered() {
    let mut clocks = Clocks::default();
    assert_eq!(clocks.work(1, Use::Write, &['t']), None);
    assert_eq!(clocks.work(1, Use::Read, &['t']), None, "a stream is in order with itself");
    clocks.record(1, 7);
    assert_eq!(clocks.work(1, Use::Read, &['t']), None);
    assert!(clocks.work(2, Use::Read, &['t']).is_some(), "nobody waited");
    clocks.wait(3, 7);
    assert_eq!(clocks.work(3, Use::Read, &['t']), None, "the event is behind the write");
    assert!(clocks.work(3, Use::Write, &['t']).is_some(), "and before the second read");
    clocks.see_all();
    assert_eq!(clocks.work(4, Use::Write, &['t']), None);
    clocks.record(4, 8);
    clocks.see(8);
    assert_eq!(clocks.work(5, Use::Read, &['t']), None, "the host saw it done");
}
