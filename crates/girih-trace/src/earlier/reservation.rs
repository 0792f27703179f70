//! Where the reservations of expandable segments begin, as far as the events tell.
//!
//! A reservation is filled from its low end. If its first pages were given back before the first
//! event, no mapped run shows where it begins, but an event that maps them again does:
//!
//! ```text
//!  reservation:  | given back earlier |  mapped run  | unmapped ...
//!                 ▲ base: a later event maps here
//! ```
//!
//! Pages that are never mapped again do not matter: no request that came had room there.

use rustc_hash::FxHashMap;

use super::EarlierSegment;
use crate::event::{Action, PoolId, StreamId};
use crate::ranges::Ranges;
use crate::trace::Trace;

/// The largest request of the small pool (`kSmallSize`).
const SMALL_SIZE: u64 = 1 << 20;

/// What has reservations of its own.
type Home = (PoolId, StreamId, bool);

/// What is mapped of a reservation, and the lowest address of it.
#[derive(Default)]
struct Reservation {
    mapped: Ranges,
    base: u64,
    is_gone: bool,
}

/// Sets the base of each expandable segment: one reservation for each pool and stream. A
/// reservation of which nothing is mapped any more is gone, and what comes after is another.
pub(super) fn find_bases(trace: &Trace, segments: &mut [EarlierSegment]) {
    let mut reservations: FxHashMap<Home, Reservation> = FxHashMap::default();
    for segment in segments.iter().filter(|segment| segment.is_expandable) {
        let reservation = reservations
            .entry(home(segment))
            .or_insert_with(|| Reservation { base: segment.address, ..Reservation::default() });
        reservation.mapped.insert(segment.address, segment.address + segment.size);
    }
    if reservations.is_empty() {
        return;
    }
    let mut maps = Vec::new();
    for event in &trace.events {
        let end = event.address.saturating_add(event.size);
        match event.action {
            Action::SegmentMap => maps.push((event.address, end)),
            Action::Alloc => {
                // Pages are mapped for the request that follows, whose size tells the pool.
                let home = (event.pool, event.stream, event.size <= SMALL_SIZE);
                for (start, end) in maps.drain(..) {
                    if let Some(reservation) = reservations.get_mut(&home)
                        && !reservation.is_gone
                    {
                        reservation.base = reservation.base.min(start);
                        reservation.mapped.insert(start, end);
                    }
                }
            }
            Action::SegmentUnmap => {
                for reservation in reservations.values_mut() {
                    reservation.mapped.remove(event.address, end);
                    reservation.is_gone |= reservation.mapped.iter().next().is_none();
                }
            }
            _ => {}
        }
    }
    for segment in segments.iter_mut().filter(|segment| segment.is_expandable) {
        if let Some(reservation) = reservations.get(&home(segment)) {
            segment.base = reservation.base;
        }
    }
}

fn home(segment: &EarlierSegment) -> Home {
    (segment.pool, segment.stream, segment.is_small)
}
