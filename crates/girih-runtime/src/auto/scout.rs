//! A scout: goes along a plan while the run goes on without it.
//!
//! It finds out whether the plan fits what comes now, and where the program marks nothing, when an
//! iteration begins:
//!
//! ```text
//!  ring of the plan    0 ........................... end | 0 ......
//!  run                      here ~~~~~~~~~~~~~~~~~~> late | early: here it begins
//! ```

use std::ops::Range;

use girih_plan::{Place, Plan};
use girih_trace::{MarkKind, StreamId};

use super::turn::fits;
use crate::planned::{EntryId, Follower};
use crate::policy::Request;

/// Requests in a row by which a scout knows where it is.
const IN_STEP: usize = 32;
/// Requests in a row that it does not find before it is lost.
const LOST: usize = 64;

/// A follower that goes ahead of the switch.
pub(super) struct Scout {
    follower: Follower,
    /// The most bytes that each entry has a place for; 0 for one without a place.
    room: Vec<u64>,
    /// Bytes that had their place.
    found: u64,
    /// Bytes that had none.
    missed: u64,
    has_set_out: bool,
    /// Iterations in a row that fitted.
    fitted: u32,
    /// Entries of the ring.
    ring: Range<u32>,
    /// The entry that was found last, once so many in a row were found that it can be trusted.
    last: Option<u32>,
    /// Requests in a row that were found.
    in_step: usize,
    /// Requests since one was found.
    lost: usize,
    /// Requests seen.
    seen: usize,
}

impl Scout {
    /// A scout that sets out along `plan` when an iteration begins.
    pub(super) fn waiting(plan: &Plan) -> Scout {
        let follower = Follower::new(plan);
        let start = follower.steady_start().map_or(0, |entry| entry.0);
        let count = plan.steady().map_or(0, |steady| steady.entries.len());
        let room = plan
            .sequences
            .iter()
            .flat_map(|sequence| &sequence.entries)
            .map(|entry| if entry.place == Place::Outside { 0 } else { entry.size_max });
        Scout {
            room: room.collect(),
            follower,
            found: 0,
            missed: 0,
            has_set_out: false,
            fitted: 0,
            ring: start..start + count as u32,
            last: None,
            in_step: 0,
            lost: 0,
            seen: 0,
        }
    }

    /// A scout along `plan`, in a run without marks whose latest requests were `recent`, the newest
    /// first.
    pub(super) fn lost(plan: &Plan, recent: &[(u64, StreamId)]) -> Scout {
        let mut scout = Scout::waiting(plan);
        scout.has_set_out = true;
        scout.locate(plan, recent);
        scout
    }

    /// True if it is on its way.
    pub(super) fn has_set_out(&self) -> bool {
        self.has_set_out
    }

    /// An iteration begins, and the scout with it.
    pub(super) fn set_out(&mut self) {
        self.has_set_out = true;
        self.follower.join();
    }

    /// An iteration that fitted has ended, and the scout goes along the next. Returns how many have fitted.
    pub(super) fn go_on(&mut self) -> u32 {
        (self.found, self.missed, self.seen) = (0, 0, 0);
        self.fitted += 1;
        self.set_out();
        self.fitted
    }

    /// True if what it has seen fits the plan.
    pub(super) fn fits(&self) -> bool {
        self.seen > 0 && fits(self.found, self.missed)
    }

    /// A mark of the program that begins no iteration.
    pub(super) fn mark(&mut self, kind: MarkKind) {
        if self.has_set_out {
            self.follower.mark(kind);
        }
    }

    /// A request. Gives the entry of the plan that it has.
    pub(super) fn see(&mut self, request: &Request) -> Option<u32> {
        if !self.has_set_out {
            return None;
        }
        self.seen += 1;
        let entry = self.follower.follow(request.size, request.stream).map(|entry| entry.0);
        match entry {
            Some(entry) if request.size <= self.room[entry as usize] => self.found += request.size,
            _ => self.missed += request.size,
        }
        entry
    }

    /// True if it has not found a request for so long that it should be told where it is.
    pub(super) fn is_lost(&self) -> bool {
        self.lost > LOST
    }

    /// Goes to where the latest requests are best known.
    pub(super) fn locate(&mut self, plan: &Plan, recent: &[(u64, StreamId)]) {
        let entries = plan.steady().map_or(&[][..], |steady| &steady.entries);
        let count = entries.len();
        // How many of the latest requests are those before an entry, up to the first few others.
        let known = |next: usize| {
            let (mut same, mut other) = (0, 0);
            for (back, &(size, stream)) in (1..=count).zip(recent) {
                let entry = &entries[(next + count - back) % count];
                let fits = entry.size_min <= size && size <= entry.size_max;
                let is_same = fits && entry.stream == stream;
                same += u32::from(is_same);
                other += u32::from(!is_same);
                if other > 4 {
                    break;
                }
            }
            same
        };
        if let Some(next) = (0..count).max_by_key(|&next| known(next)) {
            self.follower.go_to(EntryId(self.ring.start + next as u32));
        }
        self.lost = 0;
    }

    /// A request of a run without marks. True if an iteration has begun before it (the ring was left
    /// near its end, and is found again near its beginning) and one at least was seen, or if it
    /// takes too long to find one.
    pub(super) fn arrives(&mut self, request: &Request) -> bool {
        let found = self.see(request).filter(|entry| self.ring.contains(entry));
        match found {
            Some(_) => (self.in_step, self.lost) = (self.in_step + 1, 0),
            None => (self.in_step, self.lost) = (0, self.lost + 1),
        }
        let before = self.last;
        if self.in_step >= IN_STEP {
            self.last = found;
        }
        let count = self.ring.len();
        let quarter = count as u32 / 4;
        let was_late = before.is_some_and(|entry| entry >= self.ring.end - quarter);
        let is_early = found.is_some_and(|entry| entry < self.ring.start + quarter);
        (was_late && is_early && self.seen >= count / 2) || self.seen >= 4 * count
    }
}

#[cfg(test)]
mod tests {
    use girih_plan::{Entry, Role, Sequence};
    use girih_trace::PoolId;

    use super::*;
    use crate::planned::empty_plan;

    fn plan(sizes: &[u64]) -> Plan {
        let entry = |(index, &size): (usize, &u64)| Entry {
            size_min: size,
            size_max: size,
            stream: StreamId(0),
            place: Place::Arena(512 * index as u64),
            until: 0,
        };
        let entries = sizes.iter().enumerate().map(entry).collect();
        let steady = Sequence { role: Role::Steady, entries, boundaries: Vec::new() };
        Plan { sequences: vec![steady], iterations: 2, ..empty_plan() }
    }

    fn request(size: u64) -> Request {
        Request { size, stream: StreamId(0), pool: PoolId::DEFAULT }
    }

    fn sent(plan: &Plan, sizes: &[u64]) -> Scout {
        let mut scout = Scout::waiting(plan);
        assert_eq!(scout.see(&request(sizes[0])), None, "it has not set out");
        scout.set_out();
        for &size in sizes {
            scout.see(&request(size));
        }
        scout
    }

    #[test]
    fn an_iteration_like_the_planned_one_fits() {
        let sizes: Vec<u64> = (1..100).map(|k| 512 * k).collect();
        assert!(sent(&plan(&sizes), &sizes).fits());
        // One request too many of a hundred is no other iteration.
        let more: Vec<u64> =
            sizes[..50].iter().chain(&[700]).chain(&sizes[50..]).copied().collect();
        assert!(sent(&plan(&sizes), &more).fits());
    }

    #[test]
    fn an_iteration_of_other_sizes_does_not() {
        let sizes: Vec<u64> = (1..100).map(|k| 512 * k).collect();
        let longer: Vec<u64> = sizes.iter().map(|size| size * 3).collect();
        assert!(!sent(&plan(&sizes), &longer).fits());
    }

    #[test]
    fn larger_than_ever_seen_counts_as_missed_though_it_is_recognized() {
        let mut plan = plan(&[4096, 8192, 4096]);
        for entry in &mut plan.sequences[0].entries {
            entry.size_min = 512;
        }
        assert!(sent(&plan, &[600, 8000, 700]).fits());
        assert!(!sent(&plan, &[4096, 9000, 4096]).fits());
    }

    #[test]
    fn entries_without_a_place_count_as_missed() {
        let mut plan = plan(&[4096, 8192, 4096]);
        plan.sequences[0].entries[1].place = Place::Outside;
        assert!(!sent(&plan, &[4096, 8192, 4096]).fits());
    }

    #[test]
    fn without_marks_it_knows_when_an_iteration_begins_once_it_has_seen_much_of_one() {
        let sizes: Vec<u64> = (1..=200).map(|k| 512 * k).collect();
        let plan = plan(&sizes);
        let recent: Vec<(u64, StreamId)> =
            sizes[..40].iter().rev().map(|&size| (size, StreamId(0))).collect();
        let mut scout = Scout::lost(&plan, &recent);
        let arrived = sizes[40..].iter().chain(&sizes).position(|&s| scout.arrives(&request(s)));
        assert_eq!(arrived, Some(160));
        assert!(scout.fits());
    }
}
