//! What the calls of a device cost: host microseconds on one H200, driver 580, CUDA 13.0.
//!
//! Four sizes were measured for each call of the memory management; between them the cost is a
//! straight line, beyond them the last line goes on. Mapping costs per handle, not per byte, so
//! `set_access` and `unmap` over several handles cost as many times the price of one. Calls of
//! streams and events were not measured: they count one microsecond each.
//!
//! A wait of one stream for another costs the host next to nothing, and the stream that waits [`STALL_NS`].

const MIB: u64 = 1 << 20;

/// Nanoseconds that a stream stands still in a wait for a fence: the simulated device does all work at once, so
/// this is a price of a list. The first launch of FSDP2 on two H200s took 1.4 % of 1.49 s longer than
/// PyTorch's own for 70 waits in each step (`bench/results/gpu.md`).
pub const STALL_NS: u64 = 300_000;

/// A fallible call of [`Device`](crate::Device).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Call {
    /// `cuMemAlloc`.
    Alloc,
    /// `cuMemFree`.
    Free,
    /// `cuMemAddressReserve`.
    Reserve,
    /// `cuMemAddressFree`.
    Unreserve,
    /// `cuMemCreate`.
    Create,
    /// `cuMemRelease`.
    Release,
    /// `cuMemMap`.
    Map,
    /// `cuMemSetAccess`.
    SetAccess,
    /// `cuMemUnmap`.
    Unmap,
    /// `cuEventRecord`.
    RecordEvent,
    /// `cuCtxRecordEvent`.
    RecordFence,
    /// `cuStreamGetCaptureInfo`.
    CapturedEnds,
    /// `cuGraphNodeGetDependencies`.
    GraphDependencies,
    /// `cuEventQuery`.
    QueryEvent,
    /// `cuStreamWaitEvent`.
    WaitEvent,
    /// `cuEventSynchronize`.
    SynchronizeEvent,
    /// `cuEventDestroy`.
    DestroyEvent,
    /// `cuStreamSynchronize`.
    SynchronizeStream,
}

impl Call {
    /// Every call.
    pub const ALL: [Call; 18] = [
        Call::Alloc,
        Call::Free,
        Call::Reserve,
        Call::Unreserve,
        Call::Create,
        Call::Release,
        Call::Map,
        Call::SetAccess,
        Call::Unmap,
        Call::RecordEvent,
        Call::RecordFence,
        Call::CapturedEnds,
        Call::GraphDependencies,
        Call::QueryEvent,
        Call::WaitEvent,
        Call::SynchronizeEvent,
        Call::DestroyEvent,
        Call::SynchronizeStream,
    ];

    /// The name of the method of [`Device`](crate::Device).
    pub fn name(self) -> &'static str {
        match self {
            Call::Alloc => "alloc",
            Call::Free => "free",
            Call::Reserve => "reserve",
            Call::Unreserve => "unreserve",
            Call::Create => "create",
            Call::Release => "release",
            Call::Map => "map",
            Call::SetAccess => "set_access",
            Call::Unmap => "unmap",
            Call::RecordEvent => "record_event",
            Call::RecordFence => "record_fence",
            Call::CapturedEnds => "captured_ends",
            Call::GraphDependencies => "graph_dependencies",
            Call::QueryEvent => "query_event",
            Call::WaitEvent => "wait_event",
            Call::SynchronizeEvent => "synchronize_event",
            Call::DestroyEvent => "destroy_event",
            Call::SynchronizeStream => "synchronize_stream",
        }
    }

    /// Microseconds of one call on one allocation or handle of `size` bytes.
    pub fn microseconds(self, size: u64) -> f64 {
        interpolate(self.measured(), size)
    }

    /// The measured points: MiB and microseconds.
    fn measured(self) -> &'static [(u64, f64)] {
        match self {
            Call::Alloc => &[(2, 35.0), (20, 32.0), (512, 71.0), (2048, 149.0)],
            Call::Free => &[(2, 28.0), (20, 32.0), (512, 163.0), (2048, 579.0)],
            Call::Reserve | Call::Unreserve => &[(2, 25.0)],
            Call::Create => &[(2, 10.9), (20, 10.6), (128, 12.5), (1024, 22.5)],
            Call::Release => &[(2, 10.7), (20, 15.6), (128, 51.5), (1024, 298.5)],
            Call::Map => &[(2, 2.5), (20, 2.1), (128, 2.1), (1024, 3.0)],
            Call::SetAccess => &[(2, 27.5), (20, 22.4), (128, 26.7), (1024, 56.2)],
            Call::Unmap => &[(2, 16.7), (20, 14.8), (128, 17.2), (1024, 28.2)],
            _ => &[(0, 1.0)],
        }
    }
}

/// The value at `size` bytes of the line through `points` (MiB, value). Below the first point it is
/// the first value; above the last the last slope goes on.
fn interpolate(points: &[(u64, f64)], size: u64) -> f64 {
    let (first, last) = (points[0], points[points.len() - 1]);
    if points.len() == 1 || size <= first.0 * MIB {
        return if size <= first.0 * MIB { first.1 } else { last.1 };
    }
    let upper = points.iter().position(|point| size <= point.0 * MIB).unwrap_or(points.len() - 1);
    let (left, right) = (points[upper - 1], points[upper]);
    let at = (size - left.0 * MIB) as f64 / ((right.0 - left.0) * MIB) as f64;
    left.1 + at * (right.1 - left.1)
}

/// How many calls of a kind succeeded, and what they cost.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct CallTotal {
    /// Calls.
    pub calls: u64,
    /// Host microseconds.
    pub microseconds: f64,
}

/// The totals of every kind.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CallTotals([CallTotal; Call::ALL.len()]);

impl CallTotals {
    /// The total of one kind.
    pub fn of(&self, call: Call) -> CallTotal {
        self.0[call as usize]
    }

    /// The sum over all kinds.
    pub fn sum(&self) -> CallTotal {
        self.0.iter().fold(CallTotal::default(), |sum, total| CallTotal {
            calls: sum.calls + total.calls,
            microseconds: sum.microseconds + total.microseconds,
        })
    }

    /// What was called since `earlier`, which were the totals of the same device then.
    pub fn since(&self, earlier: &CallTotals) -> CallTotals {
        let mut since = self.clone();
        for (total, before) in since.0.iter_mut().zip(&earlier.0) {
            total.calls -= before.calls;
            total.microseconds -= before.microseconds;
        }
        since
    }

    /// Every kind that was called, in the order of [`Call::ALL`].
    pub fn called(&self) -> impl Iterator<Item = (Call, CallTotal)> {
        let all = Call::ALL.into_iter().map(|call| (call, self.of(call)));
        all.filter(|(_, total)| total.calls > 0)
    }

    /// Counts one call over `size` bytes that are `handles` handles.
    pub(super) fn add(&mut self, call: Call, size: u64, handles: u64) {
        let handles = handles.max(1);
        let total = &mut self.0[call as usize];
        total.calls += 1;
        total.microseconds += handles as f64 * call.microseconds(size / handles);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_size_costs_what_was_measured() {
        assert_eq!(Call::Alloc.microseconds(512 * MIB), 71.0);
        assert_eq!(Call::SetAccess.microseconds(2 * MIB), 27.5);
        assert_eq!(Call::Release.microseconds(1024 * MIB), 298.5);
    }

    #[test]
    fn a_size_between_two_points_costs_something_between() {
        let cost = Call::Free.microseconds(1280 * MIB);
        assert_eq!(cost, (163.0 + 579.0) / 2.0);
    }

    #[test]
    fn beyond_the_last_point_the_line_goes_on_and_before_the_first_it_is_flat() {
        assert_eq!(Call::Alloc.microseconds(512), 35.0);
        assert_eq!(Call::Alloc.microseconds((2048 + 1536) * MIB), 149.0 + 78.0);
        assert_eq!(Call::Reserve.microseconds(1 << 40), 25.0);
    }

    #[test]
    fn one_call_over_many_handles_costs_as_many_times_one() {
        let mut totals = CallTotals::default();
        totals.add(Call::Unmap, 20 * MIB, 10);
        assert_eq!(totals.of(Call::Unmap), CallTotal { calls: 1, microseconds: 167.0 });
        assert_eq!(totals.sum().calls, 1);
    }
}
