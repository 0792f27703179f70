//! The figures of a page, as `--json` prints them and as the page itself holds them: one type, so
//! that they cannot differ.

use girih_why::Group;
use serde::Serialize;

use crate::beside::{Against, Allocator, Beside};
use crate::picture::Picture;

/// Places that are listed.
const LINES: usize = 20;

/// The figures. Bytes are integers; what has no value is null.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figures {
    /// The recording's name.
    pub name: String,
    /// The device.
    pub device: u32,
    /// Events.
    pub events: usize,
    /// Requests that the recording saw.
    pub requests: usize,
    /// Requests that are older than it.
    pub older_requests: usize,
    /// Steps.
    pub steps: usize,
    /// The most that live blocks had requested.
    pub live_peak: u64,
    /// The event after which it was so.
    pub live_peak_event: u32,
    /// What was reserved then.
    pub reserved_at_live_peak: u64,
    /// The most that was active: no allocator can do with less.
    pub lower_bound: u64,
    /// The event after which it was so.
    pub lower_bound_event: u32,
    /// The most that was reserved.
    pub reserved_peak: u64,
    /// The event after which it was so.
    pub reserved_peak_event: u32,
    /// Requests that were refused.
    pub refused: usize,
    /// Bytes requested at the peak, by what they are for.
    pub categories: Vec<Share>,
    /// The same by line.
    pub lines: Vec<Share>,
    /// What allocators would have made of the run.
    pub allocators: Vec<Allocator>,
    /// What would go to the host and come back.
    pub copies: Option<CopyFigures>,
    /// The run that it is held against.
    pub against: Option<Against>,
    /// True if the recording lacks its beginning.
    pub truncated: bool,
    /// What one should know of the recording, in sentences.
    pub warnings: Vec<String>,
}

/// What one place, or one purpose, has alive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Share {
    /// Its name.
    #[serde(rename = "where")]
    pub place: String,
    /// What most of it is for.
    pub category: &'static str,
    /// Bytes.
    pub bytes: u64,
    /// Blocks.
    pub count: u64,
    /// Bytes of the largest.
    pub largest: u64,
}

impl Share {
    fn new(group: &Group) -> Share {
        let Group { place, category, bytes, count, largest } = group;
        let (place, category) = (place.clone(), category.name());
        Share { place, category, bytes: *bytes, count: *count, largest: *largest }
    }
}

/// What copies come to.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CopyFigures {
    /// How the schedule was made.
    pub method: &'static str,
    /// Whether it keeps to the budget.
    pub fits: bool,
    /// The most on the GPU.
    pub gpu_peak: u64,
    /// Bytes that go, and come back.
    pub bytes_out: u64,
    /// Copies.
    pub copies: usize,
    /// The step with them, in microseconds.
    pub step_us_swapped: f64,
    /// Of that, waiting.
    pub stall_us: f64,
    /// The time that copies take.
    pub copy_us: f64,
    /// Of that, what operators ran through.
    pub hidden_us: f64,
}

impl Figures {
    /// Adds a picture up.
    pub fn of(picture: &Picture<'_>, beside: &Beside) -> Figures {
        let subject = picture.subject;
        let series = &picture.series;
        let copies = beside.copies.as_ref().map(|of| CopyFigures {
            method: of.method,
            fits: of.fits,
            gpu_peak: of.gpu_peak,
            bytes_out: of.bytes_out,
            copies: of.copies.len(),
            step_us_swapped: of.step_us_swapped,
            stall_us: of.stall_us,
            copy_us: of.copy_us,
            hidden_us: of.hidden_us,
        });
        Figures {
            name: subject.name.to_owned(),
            device: subject.trace.device,
            events: series.events,
            requests: subject.lives.born().len(),
            older_requests: subject.lives.older,
            steps: picture.steps.len(),
            live_peak: series.requested.peak.0,
            live_peak_event: series.requested.peak.1.0,
            reserved_at_live_peak: series.reserved_at_peak,
            lower_bound: picture.lower_bound(),
            lower_bound_event: series.active.peak.1.0,
            reserved_peak: series.reserved.peak.0,
            reserved_peak_event: series.reserved.peak.1.0,
            refused: picture.refused.len(),
            categories: picture.at_peak.iter().map(Share::new).collect(),
            lines: picture.lines.iter().take(LINES).map(Share::new).collect(),
            allocators: beside.allocators.clone(),
            copies,
            against: beside.against.clone(),
            truncated: subject.trace.origin.truncated,
            warnings: warnings(picture),
        }
    }
}

fn warnings(picture: &Picture<'_>) -> Vec<String> {
    let mut said = picture.subject.trace.origin.warnings.clone();
    if let Some(why) = &picture.contradiction {
        said.push(format!("what was held before the recording cannot be told: {why}"));
    }
    if picture.series.is_raised {
        said.push(
            "the recording lacks segments: where it tells of less reserved than active, what was \
             active is shown as reserved"
                .to_owned(),
        );
    }
    said
}
