//! What a plan says of itself: that its peak, its bound and its proof are those of its places.
//!
//! A reader of a plan shows these numbers to people and compares plans by them, so they are counted
//! again from the entries. They speak of the steady iteration with what comes in between, but not of
//! iterations of other kinds; of the whole sequence in a plan in which nothing repeats:
//!
//! - The peak is the highest end of a place in the arena.
//! - The bound is the most that is alive at once. Time stands still for the ring while an interlude
//!   goes on. What ends at the very place before which the interlude comes may or may not be alive in
//!   it, for a plan does not tell, so that the bound may then be anything in between.
//! - A peak at the bound is proven. A peak above it may be, by the exact search; that cannot be
//!   counted again, and is believed.
//!
//! This shares no code with the planners and none with the bound.

use std::cmp::max;

use crate::plan::{Plan, Role, Sequence, Tenancy};

/// What is wrong with what `plan` says of itself; its entries must be right. Linear in them.
pub(crate) fn fault(plan: &Plan) -> Option<String> {
    let (bound, peak) = (plan.lower_bound, plan.peak);
    let places = measured(plan).flat_map(|sequence| plan.tenancies(sequence));
    let top = places.map(|place| place.offset + place.size).max().unwrap_or(0);
    if peak != top {
        return Some(format!("it says that its peak is {peak} bytes, but its places reach {top}"));
    }
    let (least, most) = loads(plan);
    if bound < least || most < bound {
        return Some(format!(
            "it says that at least {bound} bytes are needed, but {least} are alive at once"
        ));
    }
    if peak == bound && !plan.proven {
        return Some(format!("its peak is the bound of {bound} bytes, but it says not proven"));
    }
    let entries = plan.steady().map_or(0, |steady| steady.entries.len());
    (plan.rounds == 0 || !entries.is_multiple_of(plan.rounds as usize)).then(|| {
        format!("its {entries} steady entries are not {} rounds of one length", plan.rounds)
    })
}

/// The sequences that the claims speak of.
fn measured(plan: &Plan) -> impl Iterator<Item = &Sequence> {
    let has_steady = plan.steady().is_some();
    let is_measured = |role: Role| matches!(role, Role::Steady | Role::Interlude(_));
    plan.sequences.iter().filter(move |sequence| !has_steady || is_measured(sequence.role))
}

/// The most bytes alive at once, without and with what may or may not be alive in an interlude.
fn loads(plan: &Plan) -> (u64, u64) {
    let ring = plan.steady().map_or(Vec::new(), |steady| plan.tenancies(steady));
    let count = plan.steady().map_or(0, |steady| steady.entries.len());
    let across = [across(&ring, count, 1), across(&ring, count, 0)];
    let mut loads = (0, 0);
    for sequence in measured(plan) {
        let [least, most] = match sequence.role {
            Role::Interlude(at) => [0, 1].map(|way| across[way][at as usize]),
            Role::Opening | Role::Steady | Role::Variant(_) => [0, 0],
        };
        let load = load(&plan.tenancies(sequence), sequence.entries.len());
        loads.0 = max(loads.0, load.saturating_add(least));
        loads.1 = max(loads.1, load.saturating_add(most));
    }
    loads
}

/// The most bytes of a sequence of `count` entries alive at once. What lives beyond its end goes on
/// at its beginning.
fn load(tenancies: &[Tenancy], count: usize) -> u64 {
    let (mut freed, mut born) = (vec![0; count + 1], vec![0; count + 1]);
    let mut alive = 0;
    for &Tenancy { lower, upper, size, .. } in tenancies {
        let (index, until) = (lower as usize, upper as usize);
        born[index] += size;
        if until > count {
            alive += size;
            freed[until - count] += size;
        } else if until > index {
            freed[until] += size;
        }
    }
    let mut load = 0;
    for index in 0..count {
        alive -= freed[index];
        alive += born[index];
        load = max(load, alive);
    }
    load
}

/// For each of the `count` entries of the ring, and for its end, the bytes that are alive before it
/// and for at least `beyond` entries more.
fn across(ring: &[Tenancy], count: usize, beyond: usize) -> Vec<u64> {
    // What comes before an entry minus what goes, with wrapping sums: the running total is exact.
    let mut bytes = vec![0u64; count + 2];
    let mut add = |from: usize, to: usize, size: u64| {
        if from < to {
            bytes[from] = bytes[from].wrapping_add(size);
            bytes[to] = bytes[to].wrapping_sub(size);
        }
    };
    for &Tenancy { lower, upper, size, .. } in ring {
        let until = upper as usize + 1 - beyond;
        add(lower as usize + 1, until.min(count + 1), size);
        add(0, until.saturating_sub(count), if until > count { size } else { 0 });
    }
    let mut total = 0u64;
    for change in &mut bytes {
        total = total.wrapping_add(*change);
        *change = total;
    }
    bytes
}
