//! What the run asked for, kept so that it can be planned.
//!
//! The recorder keeps the allocations and frees of the run from its first request on, until there is
//! a plan. Afterwards it keeps only iterations that did not fit the plan. Where iterations are left
//! out, a *seam* makes up for them: it frees what was recorded as alive and is gone, and allocates
//! what is alive and was not recorded, so that the recording stays a trace.
//!
//! ```text
//!  run        opening  step 0  step 1  step 2  step 3  step 4  step 5  step 6
//!  fits                                  yes     yes     no      yes     no
//!  recording  opening  step 0  step 1            seam  step 4    seam  step 6
//! ```

use std::ops::Range;
use std::sync::Arc;

use girih_trace::{Action, Event, Mark, MarkKind, PoolId, StackId, StreamId};
use rustc_hash::FxHashMap;

use super::recording::Recording;
use crate::device::Address;
use crate::planned::Live;
use crate::policy::Log;

/// A recording that has become longer than this many events begins anew: 80 MB.
const EVENTS_MAX: usize = 2_000_000;

/// A recording under way.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    /// The kept events, which never change: copies of the recording share them.
    kept: Vec<Arc<Vec<Event>>>,
    /// How many events that is, and the marks before their end.
    kept_events: usize,
    kept_marks: usize,
    /// The events since, which may still be dropped.
    events: Vec<Event>,
    marks: Vec<Mark>,
    is_on: bool,
    /// Events are missing since the kept ones.
    has_gap: bool,
    /// The events of the seams.
    seams: Vec<Range<usize>>,
    /// What is alive after the first `noted` of the kept parts.
    open: FxHashMap<Address, Live>,
    noted: usize,
    /// The recording does not reach back to the first request.
    is_late: bool,
}

impl Recorder {
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Begins with nothing. `is_late` if requests came before.
    pub(super) fn restart(&mut self, is_late: bool) {
        *self = Recorder { is_on: true, is_late, ..Recorder::default() };
    }

    /// Goes on with an iteration that may be dropped. `live` gives what is alive now; it is asked
    /// if events are missing before.
    pub(super) fn resume(&mut self, live: impl FnOnce() -> Vec<Live>) {
        if self.is_on && !self.has_gap {
            return;
        }
        (self.is_on, self.has_gap) = (true, false);
        self.note_kept();
        let live = live();
        let now: FxHashMap<Address, Live> =
            live.iter().map(|block| (block.address, *block)).collect();
        let mut gone: Vec<Live> =
            self.open.values().filter(|old| now.get(&old.address) != Some(old)).copied().collect();
        let mut come: Vec<Live> =
            live.into_iter().filter(|new| self.open.get(&new.address) != Some(new)).collect();
        gone.sort_unstable_by_key(|block| block.address);
        come.sort_unstable_by_key(|block| block.address);
        let start = self.len();
        for block in &gone {
            self.push(Action::FreeCompleted, block);
        }
        come.iter().for_each(|block| self.push(Action::Alloc, block));
        self.seams.push(start..self.len());
    }

    fn len(&self) -> usize {
        self.kept_events + self.events.len()
    }

    /// Stops, and forgets what came since the last kept iteration.
    pub(super) fn stop(&mut self) {
        self.drop_iteration();
        self.is_on = false;
    }

    /// Stops and forgets everything.
    pub(super) fn forget(&mut self) {
        *self = Recorder::default();
    }

    /// Forgets what came since the last kept iteration.
    pub(super) fn drop_iteration(&mut self) {
        self.events.clear();
        self.marks.truncate(self.kept_marks);
        self.seams.retain(|seam| seam.end <= self.kept_events);
        self.has_gap = true;
    }

    /// Keeps what came up to now.
    pub(super) fn keep(&mut self) {
        if !self.events.is_empty() {
            self.kept_events += self.events.len();
            self.kept.push(Arc::new(std::mem::take(&mut self.events)));
        }
        self.kept_marks = self.marks.len();
    }

    /// Finds what is alive after the kept events.
    fn note_kept(&mut self) {
        for event in self.kept[self.noted..].iter().flat_map(|part| part.iter()) {
            match event.action {
                Action::Alloc => {
                    let Event { address, size: requested, stream, .. } = *event;
                    self.open.insert(address, Live { address, requested, stream });
                }
                Action::FreeCompleted => drop(self.open.remove(&event.address)),
                _ => {}
            }
        }
        self.noted = self.kept.len();
    }

    fn push(&mut self, action: Action, block: &Live) {
        let Live { address, requested: size, stream } = *block;
        let (stack, pool) = (StackId::NONE, PoolId::DEFAULT);
        self.events.push(Event { address, size, time_us: 0, stack, stream, pool, action });
    }

    /// Notes a mark. Those of modules are too many, and of no use to a plan.
    pub(super) fn mark(&mut self, kind: MarkKind) {
        use MarkKind::{BackwardIn, ForwardIn, ForwardOut, Other};
        if self.is_on && !matches!(kind, ForwardIn | ForwardOut | BackwardIn | Other) {
            let before = self.len() as u32;
            self.marks.push(Mark { before, time_us: 0, kind, name: String::new() });
        }
    }

    /// True if it is too long to go on.
    pub(super) fn is_full(&self) -> bool {
        self.len() > EVENTS_MAX
    }

    /// The recording up to now, to be planned. Costs a copy of what is not kept yet, however long it
    /// is.
    pub(super) fn recording(&self) -> Recording {
        let tail = Arc::new(self.events.clone());
        Recording {
            parts: self.kept.iter().cloned().chain([tail]).collect(),
            seams: self.seams.clone(),
            marks: self.marks.clone(),
            is_late: self.is_late,
        }
    }

    /// The latest requests recorded, the newest first, `count` at most.
    pub(super) fn latest(&self, count: usize) -> Vec<(u64, StreamId)> {
        let parts = self.kept.iter().map(|part| part.as_slice()).chain([self.events.as_slice()]);
        let parts: Vec<&[Event]> = parts.collect();
        let events = parts.iter().rev().flat_map(|part| part.iter().rev());
        let requests = events.filter(|event| event.action == Action::Alloc);
        requests.map(|event| (event.size, event.stream)).take(count).collect()
    }

    /// A log that writes to `log` and records.
    pub(super) fn tee<'a>(&'a mut self, log: &'a mut dyn Log) -> Tee<'a> {
        Tee { log, events: &mut self.events }
    }
}

/// A log that records what a plan is made from, and passes everything on.
pub(super) struct Tee<'a> {
    log: &'a mut dyn Log,
    events: &'a mut Vec<Event>,
}

impl Log for Tee<'_> {
    #[inline]
    fn record(&mut self, event: Event) {
        // Private pools have their own memory, and no plan. A block is alive until its free is
        // completed, whenever that was asked for.
        let is_planned = matches!(event.action, Action::Alloc | Action::FreeCompleted);
        if is_planned && event.pool == PoolId::DEFAULT {
            self.events.push(event);
        }
        self.log.record(event);
    }
}

#[cfg(test)]
mod tests {
    use girih_trace::Lifetimes;

    use super::*;

    fn live(address: u64, requested: u64) -> Live {
        Live { address, requested, stream: StreamId(0) }
    }

    fn alloc(recorder: &mut Recorder, address: u64, size: u64) {
        recorder.push(Action::Alloc, &live(address, size));
    }

    fn free(recorder: &mut Recorder, address: u64, size: u64) {
        recorder.push(Action::FreeCompleted, &live(address, size));
    }

    #[test]
    fn a_seam_makes_up_for_what_was_left_out() {
        let mut recorder = Recorder::default();
        recorder.restart(false);
        alloc(&mut recorder, 512, 10);
        alloc(&mut recorder, 1024, 20);
        recorder.keep();
        recorder.stop();
        // Meanwhile the block at 1024 was freed, and another one came in its place.
        recorder.resume(|| vec![live(512, 10), live(1024, 30)]);
        free(&mut recorder, 1024, 30);
        let lives = Lifetimes::of(&recorder.recording().into_trace());
        let sizes: Vec<u64> = lives.requests.iter().map(|request| request.size).collect();
        assert_eq!((lives.older, lives.unclosed, sizes), (0, 0, vec![10, 20, 30]));
        assert_eq!(lives.requests[0].death, girih_trace::Tick::NEVER);
    }

    #[test]
    fn what_a_seam_finds_and_nothing_frees_is_left_out() {
        let mut recorder = Recorder::default();
        recorder.restart(false);
        alloc(&mut recorder, 512, 10);
        recorder.keep();
        recorder.stop();
        recorder.resume(|| vec![live(512, 10), live(1024, 20), live(2048, 30)]);
        free(&mut recorder, 1024, 20);
        let lives = Lifetimes::of(&recorder.recording().into_trace());
        let sizes: Vec<u64> = lives.requests.iter().map(|request| request.size).collect();
        assert_eq!(sizes, [10, 20]);
    }

    #[test]
    fn an_iteration_that_is_dropped_leaves_no_trace() {
        let mut recorder = Recorder::default();
        recorder.restart(false);
        alloc(&mut recorder, 512, 10);
        recorder.keep();
        let before = recorder.recording().into_trace();
        alloc(&mut recorder, 1024, 20);
        recorder.mark(MarkKind::Step);
        recorder.drop_iteration();
        assert_eq!(recorder.recording().into_trace(), before);
    }
}
