//! Recordings that go on for longer.

use std::collections::HashMap;

use girih_trace::{Action, Event, Iterations, Lifetimes, Mark, Tick, Trace};

/// Addresses of repeated blocks, apart from every other.
const REPEATED: u64 = 1 << 62;

/// The trace up to the end of its last whole steady iteration, with this one repeated so many
/// times.
///
/// A block that crosses into the next iteration is freed there where the recorded one was. Time goes on: an iteration
/// takes what the model did, up to the mark behind it.
pub(crate) fn repeated(trace: &Trace, times: usize) -> Trace {
    let lives = Lifetimes::of(trace);
    let iterations = Iterations::of(trace, &lives);
    let (first, last) = iterations.steady.expect("a recording with steady iterations");
    let model = &iterations.list[(last - 1).max(first)];
    let (own, ticks) = (model.requests.clone(), model.ticks.clone());
    let dies_inside = |tick: Tick| tick != Tick::NEVER && ticks.contains(&tick.0);
    // What crosses out of the iteration, and what crosses into it, in order of birth.
    let death = |index: &u32| lives.requests[*index as usize].death;
    let crosses_out = |index: &u32| death(index) != Tick::NEVER && !dies_inside(death(index));
    let out: Vec<u32> = own.clone().filter(crosses_out).collect();
    let into: Vec<u32> = (0..own.start).filter(|index| dies_inside(death(index))).collect();

    let mut repeated = trace.clone();
    repeated.events.truncate(ticks.end as usize);
    repeated.marks.retain(|mark| mark.before < ticks.end);
    repeated.segments.clear();
    let mut before: Vec<u64> =
        out.iter().map(|&index| lives.requests[index as usize].address).collect();
    let mut address = REPEATED;
    let of_model = trace.marks.iter().filter(|mark| ticks.contains(&mark.before));
    let begun = of_model.map(|mark| mark.time_us).min().unwrap_or(0);
    let behind = trace.marks.iter().find(|mark| mark.before >= ticks.end);
    let behind = behind.or(trace.marks.last()).map_or(0, |mark| mark.time_us);
    let mut later_us = 0;
    for _ in 0..times {
        let start = repeated.events.len() as u32;
        later_us += behind - begun;
        let mut addresses: HashMap<u32, u64> = HashMap::new();
        for tick in ticks.clone() {
            let (event, request) = (trace.events[tick as usize], lives.request_of[tick as usize]);
            let known = match event.action {
                Action::Alloc => {
                    address += event.size.next_multiple_of(512).max(512);
                    addresses.insert(request, address);
                    Some(address)
                }
                Action::FreeRequested | Action::FreeCompleted => {
                    let place = into.iter().position(|&index| index == request);
                    let crossing = place.and_then(|place| before.get(place));
                    crossing.or(addresses.get(&request)).copied()
                }
                _ => None,
            };
            // Marks keep their distance: an event that means nothing here stands for nothing.
            let action = if known.is_some() { event.action } else { Action::Snapshot };
            repeated.events.push(Event { address: known.unwrap_or(0), action, ..event });
        }
        before = out.iter().filter_map(|index| addresses.get(index).copied()).collect();
        let marks = trace.marks.iter().filter(|mark| ticks.contains(&mark.before));
        let moved = marks.map(|mark| Mark {
            before: mark.before - ticks.start + start,
            time_us: mark.time_us + later_us,
            ..mark.clone()
        });
        repeated.marks.extend(moved);
    }
    repeated
}
