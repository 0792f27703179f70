//! The laboratory: small programs that show when PyTorch's allocator fragments, and why.
//!
//! A [`Case`] is a program of a few allocations and frees, with an explanation of each. It is data:
//! [`run`] sends it through the production allocator, [`Caching`], on the simulated device, and
//! reports after each step what is held and how it is laid out. Where the source of the case
//! gives a number, the report has it beside the one that was measured.
//!
//! ```text
//!  case: settings + steps ─► Caching over SimDevice ─► after each step: reserved, calls, layout
//!                                                                           │
//!               large 32 MiB [16 MiB free | 16 MiB used]  ◄── draw ─────────┘
//! ```
//!
//! As in the source, a case runs in a fresh private pool, so that nothing else is in its way. Graphs that
//! a case captures share it.

mod cases;

use std::fmt;

use girih_trace::{BlockState, PoolId, StreamId};
use thiserror::Error;

pub use self::cases::{CASES, find};
use crate::caching::{Caching, Config, ConfigError};
use crate::policy::{AllocError, BlockId, BlockView, Env, Granted, Policy, Request, SegmentView};
use crate::sim::{Call, SimDevice};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Bytes of the simulated device: far more than a case needs, so that only fragmentation decides.
const DEVICE_BYTES: u64 = 8 << 30;
/// The private pool in which a case runs (`torch.cuda.MemPool`).
const POOL: PoolId = PoolId(1);
/// The stream of all requests.
const STREAM: StreamId = StreamId(0);

/// A small program that shows one behaviour of the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case<'a> {
    /// Its name on the command line, in kebab-case.
    pub name: &'a str,
    /// What it shows, in one line.
    pub title: &'a str,
    /// Text of `PYTORCH_CUDA_ALLOC_CONF`.
    pub settings: &'a str,
    /// What the program does, in order.
    pub steps: &'a [Step<'a>],
}

/// One step of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step<'a> {
    /// What is done.
    pub operation: Operation<'a>,
    /// What the allocator makes of it, in one or two sentences.
    pub explanation: &'a str,
    /// Bytes reserved after the step, if the source gives a number there.
    pub expected: Option<u64>,
}

/// What a step does. Blocks are numbered from 0 in the order in which the case allocates them; a
/// number is not used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation<'a> {
    /// Allocates `count` blocks of `size` bytes each, one after the other.
    Allocate {
        /// Blocks.
        count: u32,
        /// Bytes of each, more than 0.
        size: u64,
    },
    /// Frees the blocks of these numbers, in this order.
    Free(&'a [usize]),
    /// Frees every block in use, the oldest first.
    FreeAll,
    /// Begins to capture a graph into the pool, from the stream of all requests. One at a time.
    Capture,
    /// The capture is over. The graph stays, and so does what it was given.
    EndCapture,
}

/// `allocate 8 x 16 MiB`, `free #0 and #2`, `free everything`.
impl fmt::Display for Operation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Operation::Allocate { count: 1, size } => write!(f, "allocate {}", Size(size)),
            Operation::Allocate { count, size } => write!(f, "allocate {count} x {}", Size(size)),
            Operation::Free(blocks) => {
                f.write_str("free")?;
                for (at, block) in blocks.iter().enumerate() {
                    let joint = match at {
                        0 => " ",
                        _ if at + 1 == blocks.len() => " and ",
                        _ => ", ",
                    };
                    write!(f, "{joint}#{block}")?;
                }
                Ok(())
            }
            Operation::FreeAll => f.write_str("free everything"),
            Operation::Capture => f.write_str("capture a graph"),
            Operation::EndCapture => f.write_str("end the capture"),
        }
    }
}

/// What one step came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepReport<'a> {
    /// The step.
    pub step: Step<'a>,
    /// Bytes reserved after it (`reserved_bytes`): segments and mapped pages.
    pub reserved: u64,
    /// Successful calls of the device that it took, by kind; kinds without a call are left out.
    pub calls: Vec<(Call, u64)>,
    /// The layout after it, by ascending address.
    pub segments: Vec<SegmentLayout>,
}

impl StepReport<'_> {
    /// Whether the measured number is the expected one; none where none is expected.
    pub fn is_equal(&self) -> Option<bool> {
        self.step.expected.map(|expected| expected == self.reserved)
    }
}

/// A segment, or a mapped run of an expandable one, with its blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentLayout {
    /// The segment.
    pub segment: SegmentView,
    /// The blocks that tile it, by ascending address.
    pub blocks: Vec<BlockView>,
}

impl SegmentLayout {
    /// The segment as one line: `large 32 MiB [16 MiB free | 16 MiB used]`.
    pub fn draw(&self) -> String {
        let class = if self.segment.is_small { "small" } else { "large" };
        let blocks: Vec<String> = self
            .blocks
            .iter()
            .map(|block| format!("{} {}", Size(block.size), state_word(block.state)))
            .collect();
        format!("{class} {} [{}]", Size(self.segment.size), blocks.join(" | "))
    }
}

/// The state of a block in one word: `used`, `pending` or `free`.
pub fn state_word(state: BlockState) -> &'static str {
    match state {
        BlockState::Allocated => "used",
        BlockState::PendingFree => "pending",
        BlockState::Inactive => "free",
    }
}

/// Bytes, written exactly: `0.5 MiB`, `20 MiB`, `3 KiB`, `512 bytes`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Size(bytes) = *self;
        // Quarters have two decimals at most; finer sizes read better in a smaller unit.
        let text = if bytes.is_multiple_of(MIB) {
            format!("{} MiB", bytes / MIB)
        } else if bytes.is_multiple_of(MIB / 4) {
            format!("{} MiB", bytes as f64 / MIB as f64)
        } else if bytes.is_multiple_of(KIB) {
            format!("{} KiB", bytes / KIB)
        } else {
            format!("{bytes} bytes")
        };
        f.pad(&text)
    }
}

/// Why a case could not be run to its end. The cases of [`CASES`] always can.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LabError {
    /// The settings of the case are malformed.
    #[error("case {case}: {error}")]
    Settings {
        /// Name of the case.
        case: String,
        /// What is wrong with them.
        error: ConfigError,
    },
    /// A step frees a block that is not in use.
    #[error(
        "free a block that an earlier step allocated, and only once: case {case}, step {step}: block \
         #{block} is not in use"
    )]
    NotInUse {
        /// Name of the case.
        case: String,
        /// Number of the step, from 1.
        step: usize,
        /// Number of the block, from 0.
        block: usize,
    },
    /// A step begins a capture within another, or ends one where there is none.
    #[error("capture one graph after the other: case {case}, step {step} is not in its turn")]
    Turn {
        /// Name of the case.
        case: String,
        /// Number of the step, from 1.
        step: usize,
    },
    /// The allocator refused a step.
    #[error("case {case}, step {step}: {error}")]
    Refused {
        /// Name of the case.
        case: String,
        /// Number of the step, from 1.
        step: usize,
        /// Why.
        error: AllocError,
    },
}

/// Runs a case on a fresh allocator, and reports on each of its steps.
///
/// # Errors
/// [`LabError`]: settings that PyTorch would refuse, a free of what is not in use, or an
/// allocation for which the device has no room.
pub fn run<'a>(case: &Case<'a>) -> Result<Vec<StepReport<'a>>, LabError> {
    let name = || case.name.to_owned();
    let config =
        Config::parse(case.settings).map_err(|error| LabError::Settings { case: name(), error })?;
    let mut bench = Bench::new(config);
    let mut reports = Vec::with_capacity(case.steps.len());
    for (number, step) in (1..).zip(case.steps) {
        let report = bench.run(*step).map_err(|failure| match failure {
            Failure::NotInUse(block) => LabError::NotInUse { case: name(), step: number, block },
            Failure::Turn => LabError::Turn { case: name(), step: number },
            Failure::Refused(error) => LabError::Refused { case: name(), step: number, error },
        })?;
        reports.push(report);
    }
    Ok(reports)
}

/// Why a step failed; [`run`] adds where.
enum Failure {
    NotInUse(usize),
    Turn,
    Refused(AllocError),
}

impl From<AllocError> for Failure {
    fn from(error: AllocError) -> Failure {
        Failure::Refused(error)
    }
}

/// An allocator on its device, and the blocks that the program holds.
struct Bench {
    policy: Caching,
    device: SimDevice,
    /// Every block ever given, by number; `None` once it is freed.
    blocks: Vec<Option<BlockId>>,
    is_capturing: bool,
}

impl Bench {
    fn new(config: Config) -> Bench {
        let mut policy = Caching::new(config);
        policy.create_pool(POOL);
        let device = SimDevice::new(DEVICE_BYTES);
        Bench { policy, device, blocks: Vec::new(), is_capturing: false }
    }

    fn run<'a>(&mut self, step: Step<'a>) -> Result<StepReport<'a>, Failure> {
        let before = self.device.totals().clone();
        self.apply(step.operation)?;
        debug_assert_eq!(self.policy.check(), Ok(()));
        let calls = self.device.totals().since(&before);
        Ok(StepReport {
            step,
            reserved: self.policy.stats().reserved_bytes.all().current,
            calls: calls.called().map(|(call, total)| (call, total.calls)).collect(),
            segments: self.layout(),
        })
    }

    fn apply(&mut self, operation: Operation<'_>) -> Result<(), Failure> {
        match operation {
            Operation::Allocate { count, size } => (0..count).try_for_each(|_| self.allocate(size)),
            Operation::Free(blocks) => blocks.iter().try_for_each(|&block| self.free(block)),
            Operation::FreeAll => (0..self.blocks.len())
                .try_for_each(|at| if self.blocks[at].is_some() { self.free(at) } else { Ok(()) }),
            Operation::Capture => self.capture(true),
            Operation::EndCapture => self.capture(false),
        }
    }

    /// Begins a capture, or ends it.
    fn capture(&mut self, begins: bool) -> Result<(), Failure> {
        if self.is_capturing == begins {
            return Err(Failure::Turn);
        }
        self.is_capturing = begins;
        if begins {
            self.device.begin_capture(STREAM);
            self.policy.begin_pool(POOL, true);
        } else {
            self.policy.end_pool(POOL, true);
            self.device.end_capture(STREAM);
        }
        Ok(())
    }

    fn allocate(&mut self, size: u64) -> Result<(), Failure> {
        let mut env =
            Env { device: &mut self.device, log: &mut (), listens: false, may_wait: true };
        let request = Request { size, stream: STREAM, pool: POOL };
        let Granted { block, .. } = self.policy.allocate(&mut env, request)?;
        self.blocks.push(Some(block));
        Ok(())
    }

    fn free(&mut self, number: usize) -> Result<(), Failure> {
        let place = self.blocks.get_mut(number).ok_or(Failure::NotInUse(number))?;
        let block = place.take().ok_or(Failure::NotInUse(number))?;
        let mut env =
            Env { device: &mut self.device, log: &mut (), listens: false, may_wait: true };
        Ok(self.policy.free(&mut env, block)?)
    }

    fn layout(&self) -> Vec<SegmentLayout> {
        let mut segments = Vec::new();
        self.policy.visit(&mut |segment, blocks| {
            segments.push(SegmentLayout { segment, blocks: blocks.to_vec() });
        });
        segments
    }
}
