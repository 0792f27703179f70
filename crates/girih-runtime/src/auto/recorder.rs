//! What the run asked for, kept so that it can be planned, within a window.
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
//!
//! The *window* bounds what is kept, and so what is planned: [`WINDOW_BYTES`] together, and of each kind
//! of iteration the latest [`ITERATIONS_MAX`]. It is enforced wherever something is recorded. The oldest
//! misfit goes first, then the oldest other iteration; what it did to the blocks that were there before
//! or are there after goes into the seam of the next one. Two things have no part that could go:
//!
//! - An iteration that is longer than half of the window is not recorded.
//! - What comes before the first iteration has all of the window until a mark tells where iterations
//!   begin, and half of it then. What is longer is forgotten, and the recording begins anew.

use girih_trace::{Action, Event, MarkKind, PoolId};

use super::recording::{Entry, Kind, Part, Recording, net};
use crate::lake::Live;
use crate::policy::Log;

/// Bytes that are recorded at most: 2 million allocations and frees, as many as come in four steps of a
/// quarter of a million requests each.
pub(super) const WINDOW_BYTES: usize = 48 << 20;
/// Iterations without a plan that are kept, and as many of those that did not fit one. A plan of a few
/// is as good as one of all; of many it takes long to make.
const ITERATIONS_MAX: usize = 32;

/// A recording under way.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    /// The most entries, those of seams and marks among them.
    window: usize,
    /// What is kept, and its entries.
    parts: Vec<Part>,
    kept: usize,
    /// What is alive at the end of it.
    open: Vec<Live>,
    /// The part under way, which may still be dropped.
    seam: Vec<Entry>,
    entries: Vec<Entry>,
    marks: Vec<(u32, MarkKind)>,
    is_on: bool,
    /// Events are missing since the kept ones.
    has_gap: bool,
    /// The recording does not reach back to the first request.
    is_late: bool,
    /// It is known where iterations begin.
    is_marked: bool,
    /// What came before the first iteration was too long, and nothing is recorded any more.
    has_overflowed: bool,
}

impl Recorder {
    /// Records nothing yet, and never more than so many bytes.
    pub(super) fn with_window(bytes: usize) -> Recorder {
        Recorder { window: bytes / size_of::<Entry>(), ..Recorder::default() }
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// True if everything was forgotten since it was too long: it must begin anew.
    pub(super) fn has_overflowed(&self) -> bool {
        self.has_overflowed
    }

    /// Begins with nothing. `is_late` if requests came before.
    pub(super) fn restart(&mut self, is_late: bool) {
        self.forget();
        (self.is_on, self.is_late) = (true, is_late);
    }

    /// Stops and forgets everything.
    pub(super) fn forget(&mut self) {
        let (window, is_marked) = (self.window, self.is_marked);
        *self = Recorder { window, is_marked, ..Recorder::default() };
    }

    /// The program marks where iterations begin: what was recorded up to now is the opening.
    pub(super) fn begin_iterations(&mut self) {
        self.is_marked = true;
        if self.len() > self.window / 2 {
            self.forget_opening();
        }
    }

    /// Forgets everything: iterations are recorded without what came before the first.
    fn forget_opening(&mut self) {
        self.forget();
        (self.is_late, self.has_gap) = (true, true);
    }

    /// Goes on with an iteration that may be dropped, where `live` is alive now.
    pub(super) fn resume(&mut self, live: Vec<Live>) {
        if self.is_on && !self.has_gap {
            // Nothing came since the last part, but perhaps a seam, which is of the next.
            if self.seam.is_empty() {
                self.open = live;
            }
            return;
        }
        (self.is_on, self.has_gap, self.has_overflowed) = (true, false, false);
        let known = self.open.iter().map(|&block| Entry { block, is_alloc: false });
        let live = live.into_iter().map(|block| Entry { block, is_alloc: true });
        self.seam = net(known.chain(live));
        self.make_room();
    }

    /// Entries of the part under way.
    fn tail(&self) -> usize {
        self.seam.len() + self.entries.len() + self.marks.len()
    }

    /// Entries of all.
    fn len(&self) -> usize {
        self.kept + self.tail()
    }

    /// Stops, and forgets what came since the last kept iteration.
    pub(super) fn stop(&mut self) {
        self.drop_iteration();
        self.entries = Vec::new();
        self.is_on = false;
    }

    /// Forgets what came since the last kept iteration.
    pub(super) fn drop_iteration(&mut self) {
        self.clear();
        self.has_gap = true;
    }

    /// Begins another part.
    fn clear(&mut self) {
        self.seam.clear();
        self.entries.clear();
        self.marks.clear();
    }

    /// Keeps what came up to now, as a part of this kind. False if there is nothing. [`Recorder::resume`] comes next.
    pub(super) fn keep(&mut self, kind: Kind) -> bool {
        if !self.is_on || self.entries.is_empty() {
            return false;
        }
        let part = self.under_way(kind);
        self.clear();
        self.kept += part.len();
        self.parts.push(part);
        let of_kind = self.parts.iter().filter(|part| part.kind == kind).count();
        if kind != Kind::Opening && of_kind > ITERATIONS_MAX {
            self.evict(kind);
        }
        true
    }

    /// Leaves the oldest part of a kind out. What is left of it goes into the next seam. False if there
    /// is none.
    fn evict(&mut self, kind: Kind) -> bool {
        let Some(place) = self.parts.iter().position(|part| part.kind == kind) else {
            return false;
        };
        let part = self.parts.remove(place);
        self.kept -= part.len();
        let left = net(part.seam.into_iter().chain(part.entries.iter().copied()));
        if let Some(next) = self.parts.get_mut(place) {
            self.kept -= next.seam.len();
            next.seam = net(left.into_iter().chain(next.seam.drain(..)));
            self.kept += next.seam.len();
            return true;
        }
        // It was the last: what is kept ends where it began.
        let open = self.open.iter().map(|&block| Entry { block, is_alloc: true });
        let undone = left.iter().rev().map(|entry| Entry { is_alloc: !entry.is_alloc, ..*entry });
        let before = net(open.chain(undone)).into_iter().filter(|entry| entry.is_alloc);
        self.open = before.map(|entry| entry.block).collect();
        if !self.has_gap {
            self.seam = net(left.into_iter().chain(self.seam.drain(..)));
        }
        true
    }

    /// The part under way.
    fn under_way(&self, kind: Kind) -> Part {
        let (entries, marks) = (self.entries.as_slice().into(), self.marks.as_slice().into());
        Part { kind, seam: self.seam.clone(), entries, marks }
    }

    /// Makes room for one entry more, if there is none.
    #[inline]
    fn make_room(&mut self) {
        let is_too_long = self.is_marked && self.tail() >= self.window / 2;
        if is_too_long || self.len() >= self.window {
            self.overflow();
        }
    }

    #[cold]
    fn overflow(&mut self) {
        if self.is_marked && self.tail() >= self.window / 2 {
            // This iteration cannot be planned. The next one may be shorter, if not its seam.
            let is_seam_long = self.seam.len() >= self.window / 4;
            self.stop();
            if is_seam_long {
                self.forget_opening();
            }
            return;
        }
        while self.len() >= self.window {
            if !self.evict(Kind::Misfit) && !self.evict(Kind::Iteration) {
                self.forget();
                (self.is_late, self.has_overflowed) = (true, true);
                return;
            }
        }
    }

    /// Records an entry.
    #[inline]
    fn push(&mut self, entry: Entry) {
        self.make_room();
        if self.is_on {
            self.entries.push(entry);
        }
    }

    /// Notes a mark. Those of modules are too many, and of no use to a plan.
    pub(super) fn mark(&mut self, kind: MarkKind) {
        use MarkKind::{BackwardIn, ForwardIn, ForwardOut, Other};
        if self.is_on && !matches!(kind, ForwardIn | ForwardOut | BackwardIn | Other) {
            self.make_room();
            let mark = (self.entries.len() as u32, kind);
            if self.is_on && self.marks.last() != Some(&mark) {
                self.marks.push(mark);
            }
        }
    }

    /// The recording up to now, to be planned. Costs a copy of what is not kept yet, however long it
    /// is.
    pub(super) fn recording(&self) -> Recording {
        let parts = self.parts.iter().cloned().chain([self.under_way(Kind::Iteration)]).collect();
        Recording { parts, is_late: self.is_late }
    }

    /// A log that writes to `log` and records.
    pub(super) fn tee<'a>(&'a mut self, log: &'a mut dyn Log) -> Tee<'a> {
        Tee { log, recorder: self }
    }
}

/// A log that records what a plan is made from, and passes everything on.
pub(super) struct Tee<'a> {
    log: &'a mut dyn Log,
    recorder: &'a mut Recorder,
}

impl Log for Tee<'_> {
    #[inline]
    fn record(&mut self, event: Event) {
        // Private pools have their own memory, and no plan. A block is alive until its free is
        // completed, whenever that was asked for.
        let is_planned = matches!(event.action, Action::Alloc | Action::FreeCompleted);
        if is_planned && event.pool == PoolId::DEFAULT {
            self.recorder.push(Entry::of(&event));
        }
        self.log.record(event);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use girih_trace::{Lifetimes, StreamId, Trace};

    use super::*;

    fn live(address: u64, requested: u64) -> Live {
        Live { address, requested, stream: StreamId(0) }
    }

    fn alloc(recorder: &mut Recorder, address: u64, size: u64) {
        recorder.push(Entry { block: live(address, size), is_alloc: true });
    }

    fn free(recorder: &mut Recorder, address: u64, size: u64) {
        recorder.push(Entry { block: live(address, size), is_alloc: false });
    }

    /// A recorder whose window has room for so many entries.
    fn small(entries: usize) -> Recorder {
        let mut recorder = Recorder::with_window(entries * size_of::<Entry>());
        recorder.restart(false);
        recorder
    }

    fn trace(recorder: &Recorder) -> Trace {
        recorder.recording().into_trace()
    }

    fn sizes(recorder: &Recorder) -> Vec<u64> {
        let lives = Lifetimes::of(&trace(recorder));
        lives.requests.iter().map(|request| request.size).collect()
    }

    #[test]
    fn a_seam_makes_up_for_what_was_left_out() {
        let mut recorder = small(100);
        alloc(&mut recorder, 512, 10);
        alloc(&mut recorder, 1024, 20);
        recorder.keep(Kind::Opening);
        recorder.resume(vec![live(512, 10), live(1024, 20)]);
        recorder.stop();
        // Meanwhile the block at 1024 was freed, and another one came in its place.
        recorder.resume(vec![live(512, 10), live(1024, 30)]);
        free(&mut recorder, 1024, 30);
        let lives = Lifetimes::of(&trace(&recorder));
        let sizes: Vec<u64> = lives.requests.iter().map(|request| request.size).collect();
        assert_eq!((lives.older, lives.unclosed, sizes), (0, 0, vec![10, 20, 30]));
        assert_eq!(lives.requests[0].death, girih_trace::Tick::NEVER);
    }

    #[test]
    fn what_a_seam_finds_and_nothing_frees_is_left_out() {
        let mut recorder = small(100);
        alloc(&mut recorder, 512, 10);
        recorder.keep(Kind::Opening);
        recorder.resume(vec![live(512, 10)]);
        recorder.stop();
        recorder.resume(vec![live(512, 10), live(1024, 20), live(2048, 30)]);
        free(&mut recorder, 1024, 20);
        assert_eq!(sizes(&recorder), [10, 20]);
    }

    #[test]
    fn an_iteration_that_is_dropped_leaves_no_trace() {
        let mut recorder = small(100);
        alloc(&mut recorder, 512, 10);
        recorder.keep(Kind::Opening);
        let before = trace(&recorder);
        alloc(&mut recorder, 1024, 20);
        recorder.mark(MarkKind::Step);
        recorder.drop_iteration();
        assert_eq!(trace(&recorder), before);
    }

    /// An iteration that asks for `sizes` and frees all of it.
    fn iteration(recorder: &mut Recorder, kind: Kind, sizes: &[u64]) {
        recorder.mark(MarkKind::Step);
        for &size in sizes {
            alloc(recorder, 512 * size, size);
            free(recorder, 512 * size, size);
        }
        recorder.keep(kind);
    }

    #[test]
    fn the_oldest_misfit_goes_first_and_then_the_oldest_other_iteration() {
        let mut recorder = small(36);
        recorder.begin_iterations();
        alloc(&mut recorder, 512, 1);
        recorder.keep(Kind::Opening);
        iteration(&mut recorder, Kind::Iteration, &[20, 21]);
        iteration(&mut recorder, Kind::Iteration, &[22, 23]);
        for size in 30..34 {
            iteration(&mut recorder, Kind::Misfit, &[size, size, size]);
        }
        // Three iterations of 5 and 7 entries are no more, one of 7 is there.
        assert_eq!(sizes(&recorder), [1, 20, 21, 22, 23, 31, 31, 31, 32, 32, 32, 33, 33, 33]);
        iteration(&mut recorder, Kind::Iteration, &[40, 41, 42, 43, 44, 45, 46]);
        iteration(&mut recorder, Kind::Iteration, &[50, 51, 52, 53, 54, 55, 56]);
        let left = [1, 22, 23, 40, 41, 42, 43, 44, 45, 46, 50, 51, 52, 53, 54, 55, 56];
        assert_eq!(sizes(&recorder), left);
        assert_eq!(trace(&recorder).marks.len(), 3);
    }

    #[test]
    fn of_each_kind_the_latest_iterations_are_kept() {
        let mut recorder = small(100_000);
        recorder.begin_iterations();
        for size in 1..=3 * ITERATIONS_MAX as u64 {
            iteration(&mut recorder, Kind::Iteration, &[size]);
            iteration(&mut recorder, Kind::Misfit, &[1000 + size]);
        }
        let latest = 2 * ITERATIONS_MAX as u64 + 1..=3 * ITERATIONS_MAX as u64;
        let expected: Vec<u64> = latest.flat_map(|size| [size, 1000 + size]).collect();
        assert_eq!(sizes(&recorder), expected);
    }

    #[test]
    fn an_iteration_that_is_too_long_is_not_recorded_and_the_next_one_is() {
        let mut recorder = small(100);
        recorder.begin_iterations();
        alloc(&mut recorder, 512, 1);
        recorder.keep(Kind::Opening);
        let long: Vec<u64> = (100..10_000).collect();
        iteration(&mut recorder, Kind::Iteration, &long);
        assert!(!recorder.is_on() && sizes(&recorder) == [1]);
        recorder.resume(vec![live(512, 1)]);
        iteration(&mut recorder, Kind::Iteration, &[7]);
        assert_eq!(sizes(&recorder), [1, 7]);
    }

    #[test]
    fn before_the_first_mark_what_is_too_long_begins_anew() {
        let mut recorder = small(100);
        (1..=49).for_each(|size| alloc(&mut recorder, 512 * size, size));
        assert!(!recorder.has_overflowed());
        (50..=120).for_each(|size| alloc(&mut recorder, 512 * size, size));
        assert!(recorder.has_overflowed() && !recorder.is_on() && sizes(&recorder).is_empty());
        recorder.restart(true);
        (1..=60).for_each(|size| alloc(&mut recorder, 512 * size, size));
        recorder.begin_iterations();
        assert!(sizes(&recorder).is_empty(), "it was more than half of the window");
    }

    /// A program at random and a recorder with a small window: whatever goes, what is left is a trace,
    /// at whose end is alive what is alive, and never more than the window.
    #[test]
    fn whatever_goes_the_window_is_kept_and_the_recording_stays_a_trace() {
        let mut overflows = 0;
        for seed in 0..40u64 {
            let mut state = seed;
            let mut below = |bound: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
                (state >> 33) % bound
            };
            let mut recorder = small(300);
            let mut alive: BTreeMap<u64, Live> = BTreeMap::new();
            for step in 0..200 {
                for _ in 0..below(if step % 37 == 0 { 400 } else { 30 }) {
                    let address = 512 * (1 + below(60));
                    if let Some(block) = alive.remove(&address) {
                        if recorder.is_on() {
                            recorder.push(Entry { block, is_alloc: false });
                        }
                    } else {
                        let block = live(address, 1 + below(5));
                        alive.insert(address, block);
                        if recorder.is_on() {
                            recorder.push(Entry { block, is_alloc: true });
                        }
                    }
                    assert!(recorder.len() <= 300, "seed {seed}, step {step}");
                }
                overflows += u32::from(!recorder.is_on());
                match below(4) {
                    0 => recorder.drop_iteration(),
                    1 => _ = recorder.keep(Kind::Misfit),
                    2 if below(8) == 0 => recorder.stop(),
                    _ => _ = recorder.keep(Kind::Iteration),
                }
                if step == 3 {
                    recorder.begin_iterations();
                }
                recorder.resume(alive.values().copied().collect());
                recorder.mark(MarkKind::Step);
                assert!(recorder.len() <= 300, "seed {seed}, step {step}");
                let trace = trace(&recorder);
                let lives = Lifetimes::of(&trace);
                assert_eq!((lives.older, lives.unclosed), (0, 0), "seed {seed}, step {step}");
                // What a seam finds and nothing frees is left out, and nothing else.
                let left = lives.requests.iter().filter(|r| r.death == girih_trace::Tick::NEVER);
                let left = left.map(|request| trace.events[request.birth.index()].address);
                assert!(left.into_iter().all(|address| alive.contains_key(&address)));
            }
        }
        assert!(overflows > 40, "{overflows} were too long");
    }
}
