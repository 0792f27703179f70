//! Why a run was refused memory: the library of the command, for a program that asks of itself.

use girih_trace::bounds::check_held;
use girih_trace::compress::Limits;
use girih_trace::{Iterations, Lifetimes, Trace, open};
use girih_why::diagnosis::one_by_one;
use girih_why::{Known, Question, Recorded, Report, diagnose, read_sentence};

/// Places that are listed.
const TOP: usize = 10;

/// What is asked, and about what.
pub(crate) struct Asked<'a> {
    pub(crate) recording: &'a [u8],
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
    pub(crate) device: Option<u32>,
    pub(crate) capacity: Option<u64>,
    pub(crate) card: Option<u64>,
}

/// The answer as JSON, or what is wrong with the recording.
pub(crate) fn answer(asked: &Asked<'_>) -> Result<String, String> {
    let trace = trace_of(asked)?;
    let lives = Lifetimes::of(&trace);
    check_held(&lives).map_err(|error| error.to_string())?;
    let iterations = Iterations::of(&trace, &lives);
    let told = read_sentence(asked.text).unwrap_or_default();
    let known = Known { capacity: asked.capacity, card: asked.card.or(told.card), ..told };
    let question = Question { known, ..Question::default() };
    let recorded = Recorded { trace: &trace, lives: &lives, iterations: &iterations };
    let diagnosis =
        diagnose(recorded, &question, &mut one_by_one).map_err(|error| error.to_string())?;
    let report = Report::new(asked.name, &diagnosis, TOP);
    serde_json::to_string(&report).map_err(|error| error.to_string())
}

fn trace_of(asked: &Asked<'_>) -> Result<Trace, String> {
    let recording = open::detect_and_read(asked.recording, Limits::default())
        .map_err(|error| format!("cannot read {}: {error}", asked.name))?;
    let of_device = |trace: &Trace| asked.device.is_none_or(|device| trace.device == device);
    let traces = recording.traces.into_iter().rev().filter(of_device);
    let most = traces.max_by_key(|trace| trace.events.len());
    most.filter(|trace| !trace.events.is_empty()).ok_or_else(|| {
        format!(
            "{} has no events: call torch.cuda.memory._record_memory_history() before the model is \
             built, or run the program with `python -m girih run --why`",
            asked.name
        )
    })
}
