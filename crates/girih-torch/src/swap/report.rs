//! What swapping says of itself.

use serde::Serialize;

use super::waits::WaitedFor;
use super::{Counts, Swap};

impl Swap {
    /// What it did, and how things stand.
    pub(crate) fn report(&self) -> SwapReport {
        let (saved, states) = (self.table.bytes_saved(), self.table.bytes_of_states());
        let (host, host_peak) = self.host.used();
        let [links_out, links_in, links_both] = self.links.gigabytes();
        SwapReport {
            at_the_edge: self.is_edge,
            gpu_room: (self.room != u64::MAX).then_some(self.room),
            host_budget: self.host.budget(),
            host_used: host,
            host_peak,
            host_pinned: self.host.pinned(),
            host_pageable: self.host.pageable(),
            pinned_late: self.host.late().0,
            pinned_late_us: self.host.late().1 * 1e6,
            records: self.table.len() as u64,
            going: saved.going + states.going,
            away: saved.away + states.away,
            coming: saved.coming + states.coming,
            states: self.table.states_anywhere().count() as u64,
            states_bytes: states.all(),
            states_away: states.away,
            states_wanted: self.states.wanted(),
            counts: self.counts,
            waits: self.waits.count,
            waited_us: self.waits.us,
            states_waits: self.waits.of_states.0,
            states_waited_us: self.waits.of_states.1,
            waited_for: self.waits.worst(),
            policies: self.steps.policies() as u64,
            policy_changes: self.steps.changes(),
            settled: self.steps.is_settled(),
            planning_seconds: self.steps.planning_seconds(),
            step_us: self.steps.planned_us()[0],
            step_us_swapped: self.steps.planned_us()[1],
            step_us_bound: self.steps.planned_us()[2],
            sequences: self.steps.sequences(),
            links_out,
            links_in,
            links_both,
        }
    }
}

/// What is known of steps that do the same. Times are in microseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct SequenceReport {
    /// Saves and uses of records in a step.
    pub(super) operators: u64,
    /// Steps whose times were read.
    pub(super) steps: u64,
    /// Schedules that were made for it.
    pub(super) plans: u64,
    /// One of them is followed; else steps without one are no longer.
    pub(super) has_policy: bool,
    /// No further one is made.
    pub(super) settled: bool,
    /// The shortest step, from its beginning to that of the next, under the schedule that has stayed so far; none if
    /// none was seen that followed it for two steps and more.
    pub(super) measured_us: Option<f64>,
    /// What a step takes by the schedule, with the shortest times of its operators that were seen: without swapping, as
    /// scheduled, and as no schedule can beat.
    pub(super) step_us: f64,
    pub(super) step_us_swapped: f64,
    pub(super) step_us_bound: f64,
    /// Steps that followed a schedule from their beginning to their end and were simulated afterwards, each with its own
    /// sizes and times; what they take by that, and what they took, all together.
    pub(super) checked: u64,
    pub(super) checked_us: f64,
    pub(super) checked_measured_us: f64,
}

/// What `girih.stats()` says of swapping. Bytes and counts.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct SwapReport {
    /// There is no budget: nothing goes before the GPU is full.
    at_the_edge: bool,
    /// Bytes that may be in use; none as long as nobody knows.
    gpu_room: Option<u64>,
    host_budget: u64,
    host_used: u64,
    host_peak: u64,
    host_pinned: u64,
    /// What could not be pinned: its copies keep the host waiting.
    host_pageable: u64,
    /// Copies whose place was not pinned yet, and how long they were held up. Microseconds.
    pinned_late: u64,
    pinned_late_us: f64,
    records: u64,
    going: u64,
    away: u64,
    coming: u64,
    /// States of optimizers that may go, of the records above: how many, their bytes, those on the host alone, and the
    /// bytes that leave when a step has ended.
    states: u64,
    states_bytes: u64,
    states_away: u64,
    states_wanted: u64,
    #[serde(flatten)]
    counts: Counts,
    /// How often a stream of the computation was queued to wait for a copy that was not over, how long such waits took
    /// (microseconds; of those that are over), and for whom the longest.
    waits: u64,
    waited_us: f64,
    /// The same of states of optimizers, of those above.
    states_waits: u64,
    states_waited_us: f64,
    waited_for: Vec<WaitedFor>,
    policies: u64,
    policy_changes: u64,
    /// The last step that is known fits, or follows the plan that has stayed of those that were tried for it.
    settled: bool,
    planning_seconds: f64,
    /// Microseconds of the step that was planned last: without swapping, as it was planned, and as no schedule can
    /// beat.
    step_us: f64,
    step_us_swapped: f64,
    step_us_bound: f64,
    /// Those that are known, of different programs or parts of one, with most steps first.
    sequences: Vec<SequenceReport>,
    /// What the links were measured to carry: alone each way, and both ways together. GB/s (10^9 bytes a second); none
    /// where too little was copied so.
    links_out: Option<f64>,
    links_in: Option<f64>,
    links_both: Option<f64>,
}

#[cfg(test)]
impl SwapReport {
    pub(crate) fn copies_out(&self) -> u64 {
        self.counts.copies_out
    }

    pub(crate) fn demanded(&self) -> u64 {
        self.counts.demanded
    }

    pub(crate) fn planning_seconds(&self) -> f64 {
        self.planning_seconds
    }

    pub(crate) fn victims(&self) -> u64 {
        self.counts.victims
    }

    pub(crate) fn averted(&self) -> u64 {
        self.counts.averted
    }

    pub(crate) fn host_pinned(&self) -> u64 {
        self.host_pinned
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.settled
    }

    pub(crate) fn policies(&self) -> u64 {
        self.policies
    }

    /// Steps that were simulated as they were, what they took by that, and as measured.
    pub(crate) fn checked(&self) -> (u64, f64, f64) {
        self.sequences.iter().fold((0, 0.0, 0.0), |(count, simulated, measured), one| {
            (count + one.checked, simulated + one.checked_us, measured + one.checked_measured_us)
        })
    }

    /// True if no record, and no byte of the host, is in use.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.records == 0 && self.host_used == 0 && self.going + self.away + self.coming == 0
    }
}
