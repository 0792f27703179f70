//! Generated jobs: what is built from two recordings is the job at another value, request by request.

use arbtest::arbitrary::{Result, Unstructured};
use girih_fit::{Family, Kind, Run, Subject, Unlike, largest};
use girih_plan::granted;
use girih_runtime::simulate::{Allocator, Setup};
use girih_trace::generate::{Training, training};
use girih_trace::{Action, Event, Iterations, Lifetimes, Trace};

/// A recording with what was understood of it.
struct Recorded {
    value: u64,
    trace: Trace,
    lives: Lifetimes,
    iterations: Iterations,
}

impl Recorded {
    fn new(value: u64, trace: Trace) -> Recorded {
        let lives = Lifetimes::of(&trace);
        let iterations = Iterations::of(&trace, &lives);
        Recorded { value, trace, lives, iterations }
    }

    fn run(&self) -> Run<'_> {
        let Recorded { value, trace, lives, iterations } = self;
        Run { value: *value, name: "job", trace, lives, iterations }
    }
}

/// A dense job at a microbatch.
fn job(params: &Training, microbatch: u64) -> Recorded {
    Recorded::new(microbatch, training(&Training { microbatch, ..params.clone() }, 7))
}

fn family(recordings: &[Recorded]) -> Family {
    let runs: Vec<Run<'_>> = recordings.iter().map(Recorded::run).collect();
    Family::new(&runs).expect("recordings of one program")
}

/// Small jobs of every shape that the generator has, dense.
fn dense(u: &mut Unstructured<'_>) -> Result<Training> {
    let stages = u.int_in_range(1..=3)?;
    Ok(Training {
        layers: u.int_in_range(1..=3)?,
        hidden: u.int_in_range(1..=700)?,
        sequence: u.int_in_range(1..=900)?,
        microbatches: u.int_in_range(1..=4)?,
        stages,
        stage: u.int_in_range(0..=stages - 1)?,
        recompute: u.arbitrary()?,
        steps: u.int_in_range(1..=4)?,
        evaluate_every: u.int_in_range(0..=2)?,
        ..Training::default()
    })
}

/// Three values, the last anywhere.
fn values(u: &mut Unstructured<'_>) -> Result<(u64, u64, u64)> {
    let from = u.int_in_range(1..=8)?;
    Ok((from, from + u.int_in_range(1..=8)?, u.int_in_range(1..=40)?))
}

#[test]
fn the_recording_at_any_value_is_the_program_at_that_value() {
    arbtest::arbtest(|u| {
        let (params, (from, to, at)) = (dense(u)?, values(u)?);
        let family = family(&[job(&params, from), job(&params, to)]);
        let (trace, lives) = family.at(at);
        let there = job(&params, at);
        assert_eq!(lives.requests.len(), there.lives.requests.len());
        for (own, other) in lives.requests.iter().zip(&there.lives.requests) {
            assert_eq!((own.size, own.stream, own.pool), (other.size, other.stream, other.pool));
        }
        // Ticks are the base's, so what is compared of time is the order: of births, and of lives among them.
        assert_eq!(family.bound(at), there.lives.peak(granted).0);
        assert_eq!(trace.events.len(), lives.request_of.len());
        let exact = family
            .tally()
            .into_iter()
            .filter(|(kind, _)| kind.is_exact())
            .map(|(_, it)| it.requests);
        assert_eq!(exact.sum::<u64>(), lives.requests.len() as u64);
        Ok(())
    });
}

/// The job without what its allocator took: a replay takes segments where the recorded allocator did, and ties go by
/// that; and planners see ticks.
fn without_segments(job: Recorded) -> Recorded {
    let mut trace = job.trace;
    let events = std::mem::take(&mut trace.events);
    for mark in &mut trace.marks {
        let before = events[..mark.before as usize].iter();
        mark.before = before.filter(|event| !event.action.is_segment()).count() as u32;
    }
    trace.events = events.into_iter().filter(|event| !event.action.is_segment()).collect();
    Recorded::new(job.value, trace)
}

#[test]
fn every_allocator_reserves_as_much_on_what_is_built_as_on_the_program_itself() {
    arbtest::arbtest(|u| {
        let params = Training { steps: 3, ..dense(u)? };
        let (from, to, at) = values(u)?;
        let [from, to, there] = [from, to, at].map(|value| without_segments(job(&params, value)));
        let (trace, lives) = family(&[from, to]).at(at);
        let what = |event: &Event| (event.action, event.size, event.stream);
        let is_same = trace.events.iter().map(what).eq(there.trace.events.iter().map(what));
        assert!(is_same, "events differ");
        let built = Subject::built(trace, lives, Setup::default());
        let own = Subject::built(there.trace, there.lives, Setup::default());
        for allocator in
            [Allocator::Native, Allocator::Expandable, Allocator::Stitch, Allocator::Planned]
        {
            let reserved = |subject: &Subject| subject.under(allocator).map(|it| it.reserved).ok();
            assert_eq!(reserved(&built), reserved(&own), "{}", allocator.name());
        }
        Ok(())
    })
    .budget_ms(3000);
}

#[test]
fn sizes_that_a_recorder_rounded_are_off_by_no_more_than_rounding_can_be() {
    let rounded = |recorded: Recorded| {
        let mut trace = recorded.trace;
        trace.events.iter_mut().for_each(|event| event.size = granted(event.size));
        Recorded::new(recorded.value, trace)
    };
    arbtest::arbtest(|u| {
        let (params, (from, to, at)) = (dense(u)?, values(u)?);
        let family = family(&[rounded(job(&params, from)), rounded(job(&params, to))]);
        let (_, lives) = family.at(at);
        let there = rounded(job(&params, at));
        // A point is up to 511 bytes too high; a line through two is off by as many at both, and drawn on.
        let steps = at.abs_diff(from).max(at.abs_diff(to)).div_ceil(to - from);
        let most = 512 * (steps + 1);
        // What falls for rounding alone has both points within one block.
        for (own, other) in lives.requests.iter().zip(&there.lives.requests) {
            assert!(own.size.abs_diff(other.size) <= most, "{} {} {most}", own.size, other.size);
        }
        Ok(())
    });
}

#[test]
fn what_is_held_out_is_as_was_said_and_what_is_not_is_counted() {
    let params = Training { steps: 2, ..Training::default() };
    let own = family(&[job(&params, 1), job(&params, 4), job(&params, 6)]);
    assert_eq!((own.drawn(), own.held_out().len()), ((4, 6), 1));
    let held_out = &own.held_out()[0];
    assert_eq!((held_out.value, held_out.different, held_out.worst), (1, 0, None));
    assert_eq!(held_out.equal, held_out.requests);
    assert_eq!(held_out.peak.0, held_out.peak.1);
    // Another sequence length at the smallest value: activations are not as was said.
    let other = job(&Training { sequence: 1500, ..params.clone() }, 1);
    let own = family(&[other, job(&params, 4), job(&params, 6)]);
    let held_out = &own.held_out()[0];
    assert!(held_out.different > 100 && held_out.bytes_off > 1 << 20, "{held_out:?}");
    assert!(held_out.worst.is_some_and(|(_, said, recorded)| said < recorded));
}

/// Chance routes the tokens, another one at each microbatch: no law of the microbatch alone says how.
#[test]
fn experts_that_are_routed_by_data_show_in_what_is_held_out() {
    let params = Training { steps: 2, experts: 4, ..Training::default() };
    let routed = |microbatch: u64| {
        let trace = training(&Training { microbatch, ..params.clone() }, microbatch);
        Recorded::new(microbatch, trace)
    };
    let own = family(&[routed(2), routed(6), routed(8)]);
    let held_out = &own.held_out()[0];
    assert!(held_out.different * 10 > held_out.requests, "{held_out:?}");
    // Routed alike, all but the tokens that a division leaves over are as was said.
    let own = family(&[job(&params, 2), job(&params, 6), job(&params, 8)]);
    let held_out = &own.held_out()[0];
    let (said, recorded) = held_out.peak;
    assert!(said.abs_diff(recorded) * 1000 < recorded, "{held_out:?}");
}

#[test]
fn one_request_more_or_less_leaves_the_others_their_places() {
    use girih_trace::generate::{Change, ChangeKind};
    for kind in [ChangeKind::Extra(12_345), ChangeKind::Missing] {
        let params = Training { steps: 3, ..Training::default() };
        let change = Some(Change { step: 1, request: 40, kind });
        let changed = Training { change, ..params.clone() };
        let (at, all) = (8, job(&params, 8).lives.requests.len());
        // In the recording that laws are drawn through below the base.
        let own = family(&[job(&changed, 2), job(&params, 4)]);
        let (_, lives) = own.at(at);
        let there = job(&params, at);
        let wrong = lives.requests.iter().zip(&there.lives.requests);
        let wrong = wrong.filter(|(own, other)| own.size != other.size).count();
        assert!(lives.requests.len() == all && wrong <= 2, "{kind:?}: {wrong} of {all}");
        assert!(own.left_out() <= 1);
        // In the base: it stays there as it was.
        let own = family(&[job(&params, 2), job(&changed, 4)]);
        let alone =
            own.tally().iter().find(|(kind, _)| *kind == Kind::Alone).map(|it| it.1.requests);
        assert!(alone.is_some_and(|alone| alone <= 1), "{alone:?}");
    }
}

#[test]
fn recordings_with_fewer_steps_are_compared_as_far_as_they_go() {
    let params = Training::default();
    let short = Training { steps: 3, ..params.clone() };
    let own = family(&[job(&short, 2), job(&params, 4)]);
    assert_eq!(own.cut_to(), Some(3));
    let there = job(&short, 9);
    assert_eq!(own.at(9).1.requests.len(), there.lives.requests.len());
    assert_eq!(own.bound(9), there.lives.peak(granted).0);
}

#[test]
fn the_largest_that_fits_is_that_of_the_program_itself() {
    let params = Training { steps: 2, ..Training::default() };
    let own = family(&[job(&params, 2), job(&params, 3)]);
    let capacity = 2 << 30;
    let setup = Setup { capacity: Some(capacity), ..Setup::default() };
    let most = own.most(capacity, 1, 1 << 20);
    assert!(own.bound(most) <= capacity && own.bound(most + 1) > capacity);
    for allocator in [Allocator::Native, Allocator::Stitch, Allocator::Planned] {
        let found = largest(1..=most, |value| {
            let (trace, lives) = own.at(value);
            let outcome = Subject::built(trace, lives, setup.clone()).under(allocator)?;
            Ok::<_, girih_runtime::simulate::SimulateError>(outcome.spare)
        });
        let found = found.expect("it can be simulated");
        let fits = |value: u64| {
            let there = job(&params, value);
            let subject = Subject::built(there.trace, there.lives, setup.clone());
            subject.under(allocator).is_ok_and(|outcome| outcome.fits())
        };
        let largest = found.largest.map(|(value, _)| value).expect("one fits");
        assert!(fits(largest) && !fits(largest + 1), "{}: {largest}", allocator.name());
    }
}

#[test]
fn other_programs_are_refused_with_where_they_part() {
    let params = Training::default();
    let refuse = |other: &Training| {
        let (first, second) = (job(&params, 2), job(other, 4));
        Family::new(&[first.run(), second.run()]).err().expect("they are of two programs")
    };
    // Weights and workspaces are alike in both; the next is a weight in one, and an activation in the other.
    let deeper = refuse(&Training { layers: 7, ..params.clone() });
    assert!(matches!(deeper, Unlike::Parted { at: 35, .. }), "{deeper}");
    let recomputed = refuse(&Training { recompute: true, ..params.clone() });
    assert!(matches!(recomputed, Unlike::Parted { .. }), "{recomputed}");
    let said = recomputed.to_string();
    assert!(said.starts_with("record the same program at both values"), "{said}");
}

#[test]
fn weights_that_grow_show_that_the_models_are_two() {
    let params = Training::default();
    let wider = Training { hidden: 1536, ..params.clone() };
    let own = family(&[job(&params, 2), job(&wider, 4)]);
    let weights: u64 = 4 * (12 * 1536 * 1536 + 2 * 1536) * (2 + 4);
    assert_eq!(own.growing_for_ever(), weights);
    assert_eq!(family(&[job(&params, 2), job(&params, 4)]).growing_for_ever(), 0);
}

/// At other sizes PyTorch's allocator would have emptied its cache elsewhere.
#[test]
fn the_cache_is_emptied_where_it_was_in_both_recordings() {
    let params = Training { steps: 2, ..Training::default() };
    let emptied = |microbatch: u64, before: &[usize]| {
        let mut trace = training(&Training { microbatch, ..params.clone() }, 7);
        let births: Vec<usize> = (0..trace.events.len())
            .filter(|&index| trace.events[index].action == Action::Alloc)
            .collect();
        for &request in before.iter().rev() {
            let mut event = trace.events[births[request]];
            event.action = Action::SegmentFree;
            trace.events.insert(births[request], event);
        }
        Recorded::new(microbatch, trace)
    };
    let own = family(&[emptied(2, &[60, 200]), emptied(4, &[60, 130])]);
    let (trace, lives) = own.at(8);
    let left: Vec<usize> = (0..trace.events.len())
        .filter(|&index| trace.events[index].action == Action::SegmentFree)
        .collect();
    assert_eq!(left.len(), 1);
    assert_eq!(lives.request_of[left[0] + 1], 60);
    assert!(trace.events.iter().all(|event| event.action != Action::SegmentAlloc));
}

/// Whatever is in two recordings, they are a family or are refused, and what is built can be replayed.
#[test]
fn recordings_of_anything_are_a_family_or_refused() {
    use girih_trace::generate::{Bytes, recording};
    let mut families = 0;
    arbtest::arbtest(|u| {
        let bytes: Vec<u8> = u.arbitrary()?;
        let mut trace = |value| {
            let recording = recording(&mut Bytes::new(&bytes), 400);
            let mut trace = recording.traces.into_iter().next().unwrap_or_default();
            // The same events with other sizes, or with some left out.
            for event in &mut trace.events {
                event.size = event.size.saturating_mul(u.int_in_range(1..=3)?).min(1 << 30);
            }
            let left = u.int_in_range(0..=trace.events.len())?;
            if u.ratio(1, 3)? {
                trace.events.truncate(left);
                trace.marks.retain(|mark| mark.before <= left as u32);
            }
            Ok(Recorded::new(value, trace))
        };
        let (first, second) = (trace(3)?, trace(5)?);
        let Ok(family) = Family::new(&[first.run(), second.run()]) else { return Ok(()) };
        families += 1;
        for value in [1, 5, 1 << 33] {
            let (trace, lives) = family.at(value);
            assert_eq!(trace.events.len(), lives.request_of.len());
            let setup = Setup { capacity: Some(1 << 30), ..Setup::default() };
            let _ = Subject::built(trace, lives, setup).under(Allocator::Native);
        }
        assert!(family.bound(1) <= family.bound(5) && family.bound(5) <= family.bound(1 << 33));
        Ok(())
    });
    assert!(families > 10, "{families}");
}

#[test]
fn a_family_needs_two_values() {
    let params = Training::default();
    let (first, second) = (job(&params, 2), job(&params, 2));
    let alone = Family::new(&[first.run()]).err();
    assert_eq!(alone, Some(Unlike::TooFew));
    let same = Family::new(&[first.run(), second.run()]).err();
    assert!(matches!(same, Some(Unlike::SameValue(.., 2))), "{same:?}");
}
