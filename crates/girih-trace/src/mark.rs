//! Marks: where a step, a phase or a module began, on the clock of the events.

/// What a mark says. The names are those of the marks file; anything else is kept as
/// [`MarkKind::Other`], so that a reader loses nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum MarkKind {
    /// A training step begins.
    Step = 0,
    /// A training step ends.
    StepEnd = 1,
    /// The forward pass of a step or of one microbatch begins.
    Forward = 2,
    /// The backward pass of a step or of one microbatch begins.
    Backward = 3,
    /// A pipeline schedule begins the forward pass of a microbatch.
    ForwardStep = 4,
    /// A pipeline schedule has ended the forward pass of a microbatch.
    ForwardStepEnd = 5,
    /// A pipeline schedule begins the backward pass of a microbatch.
    BackwardStep = 6,
    /// A pipeline schedule has ended the backward pass of a microbatch.
    BackwardStepEnd = 7,
    /// The optimizer begins.
    Optimizer = 8,
    /// Evaluation begins.
    Eval = 9,
    /// A module's forward begins.
    ForwardIn = 10,
    /// A module's forward has ended.
    ForwardOut = 11,
    /// A module's backward begins.
    BackwardIn = 12,
    /// Anything else: an annotation of the user's, or of a profiler.
    Other = 13,
}

impl MarkKind {
    /// Every kind with the name it has in a marks file, in the order of their codes.
    pub const NAMES: [(MarkKind, &'static str); 14] = [
        (MarkKind::Step, "step"),
        (MarkKind::StepEnd, "step_end"),
        (MarkKind::Forward, "forward"),
        (MarkKind::Backward, "backward"),
        (MarkKind::ForwardStep, "forward_step"),
        (MarkKind::ForwardStepEnd, "forward_step_end"),
        (MarkKind::BackwardStep, "backward_step"),
        (MarkKind::BackwardStepEnd, "backward_step_end"),
        (MarkKind::Optimizer, "optimizer"),
        (MarkKind::Eval, "eval"),
        (MarkKind::ForwardIn, "fwd_in"),
        (MarkKind::ForwardOut, "fwd_out"),
        (MarkKind::BackwardIn, "bwd_in"),
        (MarkKind::Other, "other"),
    ];

    /// The kind of that name; [`MarkKind::Other`] for a name that is not known.
    pub fn from_name(name: &str) -> MarkKind {
        MarkKind::NAMES
            .iter()
            .find(|(_, known)| *known == name)
            .map_or(MarkKind::Other, |(kind, _)| *kind)
    }

    /// The name in a marks file.
    pub fn name(self) -> &'static str {
        MarkKind::NAMES[self as usize].1
    }
}

/// One mark.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The mark stands before the event of this index; the number of events if it is the last.
    pub before: u32,
    /// Microseconds on the clock of the events.
    pub time_us: i64,
    /// What the mark says.
    pub kind: MarkKind,
    /// The microbatch, the module, or the text of an annotation. May be empty.
    pub name: String,
}

/// What the recorded process reported of itself at its end, from the marks file. Bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recorded {
    /// `max_memory_allocated()` of the run.
    pub allocated_peak: Option<u64>,
    /// `max_memory_reserved()` of the run.
    pub reserved_peak: Option<u64>,
}
