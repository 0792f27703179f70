//! One training step as swapping sees it.
//!
//! Operators run one after another on the compute stream. A tensor is in use in some of them; between two uses it
//! lies idle, and there it can be away:
//!
//! ```text
//!  operator   0   1   2   3   4   5   6   7   8
//!  tensor     [ use ]   . . . idle . . .  [ use ]
//!                   ^after                ^before      a gap: away at most during 2 to 6
//! ```

/// The pass that an operator belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Pass {
    /// Activations are made.
    #[default]
    Forward,
    /// Activations are used up.
    Backward,
    /// Weights change; also whatever is neither.
    Optimizer,
}

/// One operator; in a recording without operators, one request.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Op {
    /// What kind of operator it is, the same in every step; sizes and addresses have no part in it.
    pub key: u64,
    /// Microseconds that it takes.
    pub us: f64,
    /// The pass that it is in.
    pub pass: Pass,
}

/// A tensor that could go: it is born and freed within the step, and large enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tensor {
    /// Its request in the trace.
    pub request: u32,
    /// Bytes requested.
    pub bytes: u64,
    /// The operator in which it is born.
    pub born: u32,
    /// The last operator during which it is alive.
    pub last: u32,
}

/// A time in which a tensor lies idle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Gap {
    /// The tensor, as an index into [`Step::tensors`].
    pub tensor: u32,
    /// The last operator that uses it before.
    pub after: u32,
    /// The first operator that uses it again; at least two later.
    pub before: u32,
}

impl Gap {
    /// True if the tensor can be away during this operator.
    pub fn covers(self, op: u32) -> bool {
        self.after < op && op < self.before
    }
}

/// One step.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Step {
    /// The operators, in order.
    pub ops: Vec<Op>,
    /// Bytes alive during each operator when nothing is swapped, those that never go included.
    pub load: Vec<u64>,
    /// The tensors that could go, by birth.
    pub tensors: Vec<Tensor>,
    /// Where they lie idle, in order of [`Gap::after`]. Gaps of one tensor do not overlap.
    pub gaps: Vec<Gap>,
}

impl Step {
    /// Bytes of a gap's tensor.
    pub fn bytes(&self, gap: u32) -> u64 {
        self.tensors[self.gaps[gap as usize].tensor as usize].bytes
    }

    /// Microseconds of the step when nothing is swapped.
    pub fn us(&self) -> f64 {
        self.ops.iter().map(|op| op.us).sum()
    }

    /// When each operator begins if nothing is swapped, in microseconds; last the end of the step.
    pub fn starts(&self) -> Vec<f64> {
        let ends = self.ops.iter().scan(0.0, |end, op| {
            *end += op.us;
            Some(*end)
        });
        std::iter::once(0.0).chain(ends).collect()
    }

    /// The most bytes alive when nothing is swapped.
    pub fn peak(&self) -> u64 {
        self.load.iter().copied().max().unwrap_or(0)
    }

    /// For each operator, the bytes of the tensors that lie idle during it.
    pub fn idle(&self) -> Vec<u64> {
        self.idle_of_gaps(|_| true)
    }

    /// Likewise, of the gaps for which `counts`, by their indices.
    pub fn idle_of_gaps(&self, counts: impl Fn(u32) -> bool) -> Vec<u64> {
        let mut change = vec![0i64; self.ops.len() + 1];
        for (index, gap) in (0u32..).zip(&self.gaps).filter(|(index, _)| counts(*index)) {
            let bytes = self.bytes(index) as i64;
            change[gap.after as usize + 1] += bytes;
            change[gap.before as usize] -= bytes;
        }
        let sums = change.iter().take(self.ops.len()).scan(0i64, |sum, change| {
            *sum += change;
            Some(*sum as u64)
        });
        sums.collect()
    }

    /// The smallest budget that any schedule can keep: what is left when all that lies idle is away; and the
    /// operator that needs so much. Bytes.
    pub fn least_budget(&self) -> (u64, u32) {
        let held = self.load.iter().zip(self.idle()).map(|(load, idle)| load.saturating_sub(idle));
        let held = held.zip(0u32..);
        held.max_by_key(|&(bytes, op)| (bytes, u32::MAX - op)).unwrap_or((0, 0))
    }

    /// The operator that runs at this time of [`Step::starts`]; the last one if it is later.
    pub(crate) fn op_at(starts: &[f64], us: f64) -> u32 {
        let after = starts.partition_point(|&start| start <= us);
        after.saturating_sub(1).min(starts.len().saturating_sub(2)) as u32
    }
}
