//! A recording with all that is drawn of it.

use girih_trace::{Action, Contradiction, Earlier, Iterations, Lifetimes, Phases, Tick, Trace};
use girih_why::category::{Categories, Category};
use girih_why::frames::Stacks;
use girih_why::groups::{By, Group, Grouping};
use girih_why::{moment, steps};

use crate::held::{self, Run};
use crate::series::Series;

/// A recording and what was understood of it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Its name.
    pub name: &'a str,
    /// The recording.
    pub trace: &'a Trace,
    /// Its lifetimes.
    pub lives: &'a Lifetimes,
    /// Its iterations.
    pub iterations: &'a Iterations,
}

/// What is drawn of a recording.
pub struct Picture<'a> {
    /// The recording.
    pub subject: Subject<'a>,
    /// Bytes over time.
    pub series: Series,
    /// What was held of the device.
    pub runs: Vec<Run>,
    /// What each request is for.
    pub categories: Vec<Category>,
    /// Its stacks.
    pub stacks: Stacks,
    /// Where steps begin.
    pub steps: Vec<Tick>,
    /// Forward, backward, optimizer.
    pub phases: Phases,
    /// Requests that were refused: the event, and the bytes.
    pub refused: Vec<(Tick, u64)>,
    /// The places that have memory when the most is requested, those with the most first.
    pub lines: Vec<Group>,
    /// The same by what it is for.
    pub at_peak: Vec<Group>,
    /// Why what was held before the recording cannot be told, if so.
    pub contradiction: Option<String>,
}

impl<'a> Picture<'a> {
    /// Understands a recording. `earlier` is what [`Earlier::of`] says of it.
    pub fn of(subject: Subject<'a>, earlier: &Result<Earlier, Contradiction>) -> Picture<'a> {
        let Subject { trace, lives, iterations, .. } = subject;
        let series = Series::of(trace, lives, earlier);
        let stacks = Stacks::of(trace);
        let phases = Phases::of(trace, lives, iterations);
        let refused: Vec<(Tick, u64)> = (trace.events.iter().enumerate())
            .filter(|(_, event)| event.action == Action::Oom)
            .map(|(index, event)| (Tick(index as u32), event.size))
            .collect();
        // What an error frees on its way out is no end of anything.
        let end = refused.last().map_or(Tick(trace.events.len() as u32), |&(tick, _)| tick);
        let steps = steps::starts(trace, lives, iterations, &stacks, end);
        let (categories, lines, at_peak) = {
            let of = Categories::new(lives, &stacks, &phases, steps.first().copied(), end);
            let grouping = Grouping { trace, lives, stacks: &stacks, categories: &of };
            let alive = moment::alive(lives, Tick(series.peak_at().0 + 1));
            (of.over_time(&alive), grouping.of(&alive, By::Line), grouping.of(&alive, By::Category))
        };
        Picture {
            subject,
            series,
            runs: held::runs(trace, earlier),
            categories,
            stacks,
            steps,
            phases,
            refused,
            lines,
            at_peak,
            contradiction: earlier.as_ref().err().map(ToString::to_string),
        }
    }

    /// What no allocator can do with less than: the most that was alive at once, in blocks of 512
    /// bytes.
    pub fn lower_bound(&self) -> u64 {
        self.series.active.peak.0
    }
}
