//! What `girih fit` answers, as scripts read it.

use girih_fit::{Family, HeldOut, Outcome};
use girih_runtime::simulate::Allocator;
use girih_trace::Lifetimes;
use serde::Serialize;

use super::FitArgs;
use crate::commands::row::stop_sentence;

#[derive(Serialize)]
pub(super) struct Json {
    pub(super) name: String,
    /// `growing`, `worlds` or `alone`.
    pub(super) kind: &'static str,
    /// The name of the parameter.
    pub(super) of: String,
    pub(super) capacity: u64,
    pub(super) recordings: Vec<JsonRecording>,
    pub(super) rows: Vec<JsonRow>,
    /// The largest value at which what is alive at once is within the capacity, and those bytes: no allocator has
    /// room for more. Null but for `growing`.
    pub(super) bound: Option<JsonBound>,
    pub(super) growth: Option<JsonGrowth>,
    pub(super) held_out: Vec<JsonHeldOut>,
    pub(super) required: Option<JsonRequired>,
    /// Sentences on what the answer is to be doubted for.
    pub(super) notes: Vec<String>,
    pub(super) seconds: f64,
}

#[derive(Serialize)]
pub(super) struct JsonRecording {
    pub(super) value: Option<u64>,
    pub(super) name: String,
    /// Whether it was refused memory.
    pub(super) refused: bool,
}

/// One allocator.
#[derive(Serialize)]
pub(super) struct JsonRow {
    pub(super) allocator: &'static str,
    pub(super) fits: bool,
    /// The largest value, or of `worlds` the fewest GPUs; null if none fits, and of one recording alone.
    pub(super) value: Option<u64>,
    /// The most that it reserves there, and what that leaves.
    pub(super) reserved_peak: Option<u64>,
    pub(super) spare: Option<u64>,
    /// Requests there for which cached memory had to be given back first.
    pub(super) num_alloc_retries: Option<u64>,
    /// Of `worlds`, the rank that decides.
    pub(super) worst: Option<String>,
    /// Values below it at which it does not fit.
    pub(super) gaps: Vec<u64>,
    /// If nothing fits, where the first of all stops.
    pub(super) stopped: Option<String>,
}

#[derive(Serialize)]
pub(super) struct JsonBound {
    pub(super) value: u64,
    pub(super) bytes: u64,
}

/// What grows, and how well that is known.
#[derive(Serialize)]
pub(super) struct JsonGrowth {
    /// The values that were drawn through.
    pub(super) drawn: (u64, u64),
    pub(super) requests: usize,
    pub(super) laws: Vec<JsonLaw>,
    /// Requests of the recording at the smaller value that the other has not.
    pub(super) left_out: usize,
    /// Iterations that were compared, if some of the recordings have more.
    pub(super) iterations: Option<usize>,
    /// The most alive at once in the recording at the larger value, and how much of that does not grow.
    pub(super) peak_bytes: u64,
    pub(super) peak_bytes_fixed: u64,
    /// By how much the most alive at once rises from the larger value to the next.
    pub(super) bytes_each: u64,
}

#[derive(Serialize)]
pub(super) struct JsonLaw {
    pub(super) law: &'static str,
    pub(super) requests: u64,
    pub(super) peak_bytes: u64,
}

/// A recording that was not drawn through.
#[derive(Serialize)]
pub(super) struct JsonHeldOut {
    pub(super) value: u64,
    pub(super) name: String,
    pub(super) requests: usize,
    pub(super) equal: usize,
    pub(super) different: usize,
    pub(super) bytes_off: u64,
    pub(super) worst: Option<JsonWorst>,
    pub(super) peak_said: u64,
    pub(super) peak_recorded: u64,
    /// What `native` reserves in a replay of both, on a device without a limit.
    pub(super) native_said: u64,
    pub(super) native_recorded: u64,
}

#[derive(Serialize)]
pub(super) struct JsonWorst {
    pub(super) request: usize,
    pub(super) said: u64,
    pub(super) recorded: u64,
}

#[derive(Serialize)]
pub(super) struct JsonRequired {
    pub(super) value: u64,
    /// The allocators under which it fits.
    pub(super) fits: Vec<&'static str>,
}

impl Json {
    pub(super) fn new(args: &FitArgs, kind: &'static str, name: &str) -> Json {
        Json {
            name: name.to_owned(),
            kind,
            of: args.of.clone(),
            capacity: args.capacity,
            recordings: Vec::new(),
            rows: Vec::new(),
            bound: None,
            growth: None,
            held_out: Vec::new(),
            required: None,
            notes: Vec::new(),
            seconds: 0.0,
        }
    }
}

impl JsonRow {
    /// Of a recording, or of the worst of several.
    pub(super) fn of(allocator: Allocator, outcome: &Outcome, lives: &Lifetimes) -> JsonRow {
        JsonRow {
            allocator: allocator.name(),
            fits: outcome.fits(),
            value: None,
            reserved_peak: outcome.spare.map(|_| outcome.reserved),
            spare: outcome.spare,
            num_alloc_retries: outcome.spare.map(|_| outcome.retries),
            worst: None,
            gaps: Vec::new(),
            stopped: outcome.stop.as_ref().map(|stop| stop_sentence(stop, lives)),
        }
    }
}

impl JsonGrowth {
    pub(super) fn new(family: &Family) -> JsonGrowth {
        let tally = family.tally();
        let law = |(kind, tally): &(girih_fit::Kind, girih_fit::Tally)| JsonLaw {
            law: kind.name(),
            requests: tally.requests,
            peak_bytes: tally.peak_bytes,
        };
        let is_fixed = |law: &&JsonLaw| matches!(law.law, "same" | "alone" | "falling");
        let laws: Vec<JsonLaw> = tally.iter().map(law).collect();
        let drawn = family.drawn();
        JsonGrowth {
            drawn,
            requests: family.requests(),
            left_out: family.left_out(),
            iterations: family.cut_to(),
            peak_bytes: laws.iter().map(|law| law.peak_bytes).sum(),
            peak_bytes_fixed: laws.iter().filter(is_fixed).map(|law| law.peak_bytes).sum(),
            bytes_each: family.bound(drawn.1 + 1).saturating_sub(family.bound(drawn.1)),
            laws,
        }
    }
}

impl JsonHeldOut {
    pub(super) fn new(
        held_out: &HeldOut,
        (native_said, native_recorded): (u64, u64),
    ) -> JsonHeldOut {
        let worst = |(request, said, recorded)| JsonWorst { request, said, recorded };
        JsonHeldOut {
            value: held_out.value,
            name: held_out.name.clone(),
            requests: held_out.requests,
            equal: held_out.equal,
            different: held_out.different,
            bytes_off: held_out.bytes_off,
            worst: held_out.worst.map(worst),
            peak_said: held_out.peak.0,
            peak_recorded: held_out.peak.1,
            native_said,
            native_recorded,
        }
    }
}
