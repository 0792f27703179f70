//! What a page shows beside the recording itself: what others made of it.

use girih_trace::Tick;
use serde::Serialize;

use crate::held::Run;

/// What is shown beside a recording; nothing of it has to be there.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Beside {
    /// What allocators would have made of the run.
    pub allocators: Vec<Allocator>,
    /// Where another allocator would have put every block.
    pub layout: Option<Layout>,
    /// What would go to the host and come back.
    pub copies: Option<Copies>,
    /// The run that it is held against.
    pub against: Option<Against>,
}

/// An allocator's replay of the run. Bytes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Allocator {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub about: &'static str,
    /// The most that was allocated.
    pub allocated_peak: u64,
    /// The most that was reserved.
    pub reserved_peak: u64,
    /// Requests that got nothing: the run goes on without them.
    pub refused: u64,
    /// Peak allocated by peak reserved; none for a run that stopped.
    pub efficiency: Option<f64>,
    /// Where the bytes were that were reserved at its peak and not requested, by cause.
    pub waste: Vec<Waste>,
    /// What was reserved from which event on.
    #[serde(skip)]
    pub reserved: Vec<(Tick, u64)>,
}

/// A cause of waste.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Waste {
    /// Its name, as `girih compare` prints it.
    pub cause: &'static str,
    /// Bytes.
    pub bytes: u64,
}

/// Where another allocator puts the blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Its name.
    pub name: &'static str,
    /// Of each request of the lifetimes its address; None for one that was not served.
    pub addresses: Vec<Option<u64>>,
    /// What it held.
    pub runs: Vec<Run>,
}

/// What goes to the host and comes back within one step.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Copies {
    /// How the schedule was made.
    pub method: &'static str,
    /// The step, from 0.
    pub step: usize,
    /// The most bytes that may be on the GPU.
    pub gpu_budget: u64,
    /// Whether it kept to that.
    pub fits: bool,
    /// The most on the GPU, with and without copies.
    pub gpu_peak: u64,
    /// Without copies.
    pub gpu_peak_unswapped: u64,
    /// The most on the host.
    pub host_peak: u64,
    /// Bytes that go, and come back.
    pub bytes_out: u64,
    /// The step without copies, in microseconds.
    pub step_us: f64,
    /// With them.
    pub step_us_swapped: f64,
    /// Of that, waiting for copies.
    pub stall_us: f64,
    /// Of the time that copies take, what operators ran through.
    pub hidden_us: f64,
    /// The time that copies take, those of both links added.
    pub copy_us: f64,
    /// The copies, by beginning.
    pub copies: Vec<Copy>,
    /// From when on which pass runs, in microseconds: `forward`, `backward` or `optimizer`.
    pub passes: Vec<(f64, &'static str)>,
    /// When the operators wait, from and to, in microseconds.
    pub stalls: Vec<(f64, f64)>,
    /// What is on the GPU from when on: with copies.
    pub gpu_bytes: Vec<(f64, u64)>,
    /// The same without copies.
    pub gpu_bytes_unswapped: Vec<(f64, u64)>,
    /// What had to be assumed, in sentences.
    pub assumed: Vec<String>,
}

/// A copy.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Copy {
    /// True if it goes to the host.
    pub is_out: bool,
    /// When it begins, in microseconds of the step.
    pub from_us: f64,
    /// When it ends.
    pub to_us: f64,
    /// Bytes of the tensor.
    pub bytes: u64,
    /// The request of the tensor.
    pub request: u32,
}

/// Another run, and what differs. Bytes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Against {
    /// Its name.
    pub name: String,
    /// Its events.
    pub events: u64,
    /// The most that its live blocks had requested.
    pub live_peak: u64,
    /// The most that no allocator can do with less than.
    pub lower_bound: u64,
    /// The most that it reserved.
    pub reserved_peak: u64,
    /// What was requested over the run, the most of each of so many equal parts of its events.
    pub requested: Vec<u64>,
    /// What was reserved, likewise.
    pub reserved: Vec<u64>,
    /// Places that have more or less alive at this run's peak than at the other's, the largest
    /// change first.
    pub differences: Vec<Difference>,
}

/// What one place has alive at the peaks of two runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Difference {
    /// The line.
    #[serde(rename = "where")]
    pub place: String,
    /// What most of it is for.
    pub category: &'static str,
    /// Bytes in the other run.
    pub bytes_before: u64,
    /// Blocks in the other run.
    pub count_before: u64,
    /// Bytes in this run.
    pub bytes_after: u64,
    /// Blocks in this run.
    pub count_after: u64,
}
