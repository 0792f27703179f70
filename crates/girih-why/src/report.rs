//! The answer as JSON: its fields stay.

use serde::Serialize;

use crate::advice;
use crate::capacity::Source;
use crate::diagnosis::{Diagnosis, Step};
use crate::groups::Group;
use crate::replays::Fit;

/// The answer. Bytes are integers; what has no value is null.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The recording's name.
    pub name: String,
    /// One of the names of [`crate::Verdict`].
    pub verdict: &'static str,
    /// The verdict in one sentence.
    pub sentence: String,
    /// Bytes that were refused.
    pub requested: Option<u64>,
    /// Bytes that PyTorch could have in this process.
    pub capacity: Option<u64>,
    /// Where the capacity has bounds alone, the upper one.
    pub capacity_most: Option<u64>,
    /// What set the capacity: `device`, `limit` or `given`.
    pub capacity_from: Option<&'static str>,
    /// Bytes alive, as requested.
    pub live: Option<u64>,
    /// Bytes held of the device.
    pub reserved: Option<u64>,
    /// Of these, in no live block.
    pub idle: Option<u64>,
    /// Idle bytes by whose they are.
    pub idle_by_owner: Option<JsonIdle>,
    /// Bytes that the device had free.
    pub device_free: Option<u64>,
    /// Bytes of the card that others had, as far as is known.
    pub others: Option<u64>,
    /// The line that asked.
    pub line: Option<String>,
    /// Bytes that each step left behind, if it did.
    pub leak_each_step: Option<u64>,
    /// The share of the batch with which it would have fitted, where that was the trouble.
    pub batch_share: Option<f64>,
    /// What would have fitted.
    pub would_fit: Vec<JsonFit>,
    /// The tensors, by place.
    pub lines: Vec<JsonLine>,
    /// What shows the verdict.
    pub evidence: Vec<String>,
    /// What to do.
    pub advice: Vec<String>,
    /// Each step.
    pub steps: Vec<JsonStep>,
    /// Requests that were refused in the recording.
    pub refused: usize,
    /// Bytes alive at the most.
    pub live_peak: u64,
    /// True if the recording lacks its beginning.
    pub truncated: bool,
}

/// Idle bytes by whose they are.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct JsonIdle {
    /// Of the request's own stream and pool.
    pub own: u64,
    /// Of other streams.
    pub other_streams: u64,
    /// Of other pools.
    pub other_pools: u64,
}

/// What came of a setting.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct JsonFit {
    /// The setting.
    pub setting: &'static str,
    /// Whether it would have served the refused request.
    pub fits: bool,
    /// Bytes that it had not touched then.
    pub spare: Option<u64>,
}

/// The blocks of a place.
#[derive(Clone, Debug, Serialize)]
pub struct JsonLine {
    /// Bytes.
    pub bytes: u64,
    /// Blocks.
    pub count: u64,
    /// Bytes of the largest.
    pub largest: u64,
    /// The place.
    #[serde(rename = "where")]
    pub place: String,
    /// What most of its bytes are for.
    pub category: &'static str,
}

/// A step.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct JsonStep {
    /// The most bytes alive in it.
    pub peak: u64,
    /// Bytes asked for in it that are alive at the error.
    pub left: u64,
}

impl Report {
    /// The answer about the recording of this name, with at most `top` lines.
    pub fn new(name: &str, diagnosis: &Diagnosis, top: usize) -> Report {
        let told = diagnosis.told.as_ref();
        let source = |source| match source {
            Source::Device => "device",
            Source::Limit => "limit",
            Source::Given => "given",
        };
        Report {
            name: name.to_owned(),
            verdict: diagnosis.verdict.name(),
            sentence: advice::sentence(diagnosis),
            requested: told.map(|told| told.refusal.size),
            capacity: told.map(|told| told.capacity.bytes),
            capacity_most: told.map(|told| told.capacity.most),
            capacity_from: told.map(|told| source(told.capacity.source)),
            live: told.map(|told| told.moment.live),
            reserved: told.map(|told| told.moment.reserved),
            idle: told.map(|told| told.moment.idle()),
            idle_by_owner: told.map(|told| JsonIdle {
                own: told.idle.own,
                other_streams: told.idle.streams,
                other_pools: told.idle.pools,
            }),
            device_free: told.and_then(|told| told.refusal.device_free),
            others: told.and_then(|told| told.capacity.others),
            line: told.and_then(|told| told.line.clone()),
            leak_each_step: (told.and_then(|told| told.growth.as_ref())).map(|it| it.each_step),
            batch_share: told.and_then(|told| told.smaller),
            would_fit: told
                .map_or_else(Vec::new, |told| told.would_fit.iter().map(JsonFit::from).collect()),
            lines: diagnosis.lines.iter().take(top).map(JsonLine::from).collect(),
            evidence: advice::evidence(diagnosis),
            advice: advice::advice(diagnosis),
            steps: diagnosis.steps.iter().map(JsonStep::from).collect(),
            refused: diagnosis.refused,
            live_peak: diagnosis.live_peak,
            truncated: diagnosis.is_cut,
        }
    }
}

impl From<&Fit> for JsonFit {
    fn from(fit: &Fit) -> JsonFit {
        JsonFit { setting: fit.setting.name, fits: fit.fits, spare: fit.spare }
    }
}

impl From<&Group> for JsonLine {
    fn from(group: &Group) -> JsonLine {
        let Group { place, category, bytes, count, largest } = group;
        JsonLine {
            bytes: *bytes,
            count: *count,
            largest: *largest,
            place: place.clone(),
            category: category.name(),
        }
    }
}

impl From<&Step> for JsonStep {
    fn from(step: &Step) -> JsonStep {
        JsonStep { peak: step.peak, left: step.left }
    }
}
