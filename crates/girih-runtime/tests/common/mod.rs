//! What several tests need: recordings that go on for longer.

use girih_trace::{Action, Event, Iterations, Lifetimes, Mark, Tick, Trace};

/// Addresses of repeated blocks, apart from every other.
const REPEATED: u64 = 1 << 62;

/// The trace with its last whole steady iteration but one repeated so many times, after the last
/// steady one begins: what came after that is left out.
///
/// A block that crosses into the next iteration is freed there where the recorded one was.
pub fn repeated(trace: &Trace, times: usize) -> Trace {
    let lives = Lifetimes::of(trace);
    let iterations = Iterations::of(trace, &lives);
    let (first, last) = iterations.steady.expect("a recording with steady iterations");
    let at = (last - 1).max(first);
    let ticks = iterations.list[at].ticks.clone();
    let inside = |tick: Tick| tick != Tick::NEVER && ticks.contains(&tick.0);
    let born = |request: &girih_trace::Lifetime| request.birth >= Tick(ticks.start);
    // What crosses out of the iteration, and what crosses into it, in order of birth.
    let all = || lives.requests.iter().enumerate();
    let out: Vec<usize> = all()
        .filter(|(_, r)| inside(r.birth) && born(r) && !inside(r.death) && r.death != Tick::NEVER)
        .map(|(index, _)| index)
        .collect();
    let into: Vec<usize> = all()
        .filter(|(index, r)| (*index < lives.older || !born(r)) && inside(r.death))
        .map(|(index, _)| index)
        .collect();
    if out.len() != into.len() {
        eprintln!("OUT {} INTO {}", out.len(), into.len());
    }
    let mut repeated = trace.clone();
    repeated.events.truncate(ticks.end as usize);
    repeated.marks.retain(|mark| mark.before < ticks.end);
    repeated.segments.clear();
    let mut before: Vec<u64> = out.iter().map(|&index| lives.requests[index].address).collect();
    let mut next = REPEATED;
    for _ in 0..times {
        let start = repeated.events.len() as u32;
        let mut addresses = std::collections::HashMap::new();
        for tick in ticks.clone() {
            let event = trace.events[tick as usize];
            let request = lives.request_of[tick as usize] as usize;
            let crossing = into.iter().position(|&index| index == request);
            let address = match event.action {
                Action::Alloc => {
                    next += event.size.next_multiple_of(512).max(512);
                    addresses.insert(request, next);
                    Some(next)
                }
                Action::FreeRequested | Action::FreeCompleted => match crossing {
                    Some(place) => before.get(place).copied(),
                    None => addresses.get(&request).copied(),
                },
                _ => None,
            };
            // Marks keep their distance: what has no place here leaves a gap that nobody reads.
            let action = if address.is_some() { event.action } else { Action::Snapshot };
            repeated.events.push(Event { address: address.unwrap_or(0), action, ..event });
        }
        before = out.iter().filter_map(|index| addresses.get(index).copied()).collect();
        let own = trace.marks.iter().filter(|mark| ticks.contains(&mark.before));
        repeated.marks.extend(
            own.map(|mark| Mark { before: mark.before - ticks.start + start, ..mark.clone() }),
        );
    }
    repeated
}
