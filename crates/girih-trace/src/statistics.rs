//! What a trace amounts to, in numbers.

use rustc_hash::FxHashSet;

use crate::event::{Action, Tick};
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
        statistics.older = lives.older as u64;
        statistics.never_freed =
            requests.iter().filter(|request| request.death == Tick::NEVER).count() as u64;
        let sizes: FxHashSet<u64> = requests.iter().map(|request| request.size).collect();
        statistics.distinct_sizes = sizes.len() as u64;
        statistics.count_shares(trace, lives, &phases.scopes(lives, iterations));
        for request in requests.iter().filter(|request| request.is_deferred()) {
            statistics.deferred_frees += 1;
            if let Some(done) = trace.events.get(request.death.index()) {
                let asked = trace.events[request.free_requested.index()].time_us;
                let waited = done.time_us.saturating_sub(asked).max(0) as f64 / 1e6;
                statistics.deferred_byte_seconds += request.size as f64 * waited;
            }
        }
        statistics
    }

    /// Walks through time once and keeps every share up to date.
    fn count_shares(&mut self, trace: &Trace, lives: &Lifetimes, scopes: &[Scope]) {
        self.streams = vec![Share::default(); trace.streams.len()];
        let mut live = Live { all: 0, streams: vec![0; trace.streams.len()], scopes: [0; 3] };
        for (request, &scope) in lives.requests[..lives.older].iter().zip(scopes) {
            self.born(&mut live, request, scope, Tick(0));
        }
        let mut unclosed = lives.unclosed_deaths().into_iter().peekable();
        for (tick, &index) in lives.request_of.iter().enumerate() {
            while let Some((_, lost)) = unclosed.next_if(|&(death, _)| death.index() <= tick) {
                live.remove(&lives.requests[lost as usize], scopes[lost as usize]);
            }
            if index == Lifetimes::NONE {
                continue;
            }
            let (request, scope) = (&lives.requests[index as usize], scopes[index as usize]);
            if request.birth.index() == tick && index as usize >= lives.older {
                self.born(&mut live, request, scope, Tick(tick as u32));
            } else if request.death.index() == tick {
                live.remove(request, scope);
            }
        }
    }

    fn born(&mut self, live: &mut Live, request: &Lifetime, scope: Scope, tick: Tick) {
        let count = |share: &mut Share, live: &mut u64| {
            *live = live.saturating_add(request.size);
            share.requests += 1;
            share.bytes = share.bytes.saturating_add(request.size);
            share.live_peak = share.live_peak.max(*live);
        };
        if live.all.saturating_add(request.size) > self.all.live_peak {
            self.live_peak_at = tick;
        }
        count(&mut self.all, &mut live.all);
        count(&mut self.scopes[scope as usize], &mut live.scopes[scope as usize]);
        let stream = usize::from(request.stream.0);
        if let (Some(share), Some(live)) =
            (self.streams.get_mut(stream), live.streams.get_mut(stream))
        {
            count(share, live);
        }
    }
}

/// Bytes alive at a moment, by share.
struct Live {
    all: u64,
    streams: Vec<u64>,
    scopes: [u64; 3],
}

impl Live {
    fn remove(&mut self, request: &Lifetime, scope: Scope) {
        let less = |live: &mut u64| *live = live.saturating_sub(request.size);
        less(&mut self.all);
        less(&mut self.scopes[scope as usize]);
        if let Some(stream) = self.streams.get_mut(usize::from(request.stream.0)) {
            less(stream);
        }
    }
}
