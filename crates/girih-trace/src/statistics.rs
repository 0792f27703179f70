//! What a trace amounts to, in numbers.

use rustc_hash::FxHashSet;

use crate::event::{Action, StreamId, Tick};
use crate::iterations::Iterations;
use crate::lifetimes::{Lifetime, Lifetimes};
use crate::phases::{Phases, Scope};
use crate::trace::Trace;

/// A number of requests, what they asked for in all, and the most that was alive at once. Bytes as
/// requested, before any rounding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Requests.
    pub requests: u64,
    /// Bytes requested.
    pub bytes: u64,
    /// The most bytes alive at once.
    pub live_peak: u64,
}

/// What a trace amounts to.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Statistics {
    /// Events, by action in the order of [`Action::ALL`].
    pub events: [u64; Action::ALL.len()],
    /// All requests, those older than the recording included.
    pub all: Share,
    /// Requests older than the recording.
    pub older: u64,
    /// Requests whose blocks were never freed.
    pub never_freed: u64,
    /// Distinct sizes.
    pub distinct_sizes: u64,
    /// The tick at which the most was alive.
    pub live_peak_at: Tick,
    /// What each stream asked for, in the order of the trace's streams.
    pub streams: Vec<Share>,
    /// What lives how long, in the order of [`Scope::ALL`].
    pub scopes: [Share; 3],
    /// Frees that waited for another stream.
    pub deferred_frees: u64,
    /// What waiting frees held, in bytes times seconds of the recorder's clock.
    pub deferred_byte_seconds: f64,
}

impl Statistics {
    /// Counts a trace.
    pub fn of(
        trace: &Trace,
        lives: &Lifetimes,
        iterations: &Iterations,
        phases: &Phases,
    ) -> Statistics {
        let mut statistics = Statistics::default();
        for event in &trace.events {
            statistics.events[event.action as usize] += 1;
        }
        let requests = &lives.requests;
        let events = trace.events.len();
        let is_any = |_: &Lifetime| true;
        (statistics.all, statistics.live_peak_at) = share(requests, events, is_any);
        statistics.older = lives.older as u64;
        statistics.never_freed =
            requests.iter().filter(|request| request.death == Tick::NEVER).count() as u64;
        let sizes: FxHashSet<u64> = requests.iter().map(|request| request.size).collect();
        statistics.distinct_sizes = sizes.len() as u64;
        statistics.streams = (0..trace.streams.len())
            .map(|k| share(requests, events, |request| request.stream == StreamId(k as u16)).0)
            .collect();
        let scopes: Vec<Scope> =
            requests.iter().map(|request| phases.scope_of(request, iterations)).collect();
        statistics.scopes = Scope::ALL.map(|scope| {
            let mut scopes = scopes.iter();
            share(requests, events, |_| scopes.next() == Some(&scope)).0
        });
        for request in requests.iter().filter(|request| request.is_deferred()) {
            statistics.deferred_frees += 1;
            if let Some(done) = trace.events.get(request.death.index()) {
                let asked = trace.events[request.free_requested.index()].time_us;
                let waited = (done.time_us - asked).max(0) as f64 / 1e6;
                statistics.deferred_byte_seconds += request.size as f64 * waited;
            }
        }
        statistics
    }
}

/// The share of the requests that `is_one` picks; it is asked once for each, in order. And the tick
/// of its peak.
fn share(
    requests: &[Lifetime],
    events: usize,
    mut is_one: impl FnMut(&Lifetime) -> bool,
) -> (Share, Tick) {
    let mut share = Share::default();
    let mut change = vec![0i64; events + 1];
    for request in requests {
        if is_one(request) {
            share.requests += 1;
            share.bytes += request.size;
            change[request.birth.index()] += request.size as i64;
            if request.death != Tick::NEVER {
                change[request.death.index()] -= request.size as i64;
            }
        }
    }
    let (mut live, mut peak_at) = (0i64, Tick(0));
    for (tick, change) in change.into_iter().enumerate() {
        live += change;
        if live as u64 > share.live_peak {
            (share.live_peak, peak_at) = (live as u64, Tick(tick as u32));
        }
    }
    (share, peak_at)
}
