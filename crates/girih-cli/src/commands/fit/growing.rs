//! A parameter with which requests grow: recordings at a few values say what any other would be.

use anyhow::{Context, bail};
use girih_fit::{Family, Found, HeldOut, Outcome, Run, Subject, largest};
use girih_runtime::simulate::{Allocator, Setup, SimulateError};
use girih_trace::bounds::HELD_MAX;

use super::FitArgs;
use super::json::{Json, JsonBound, JsonGrowth, JsonHeldOut, JsonRequired, JsonRow};
use super::source::{Recording, VALUE_MAX};
use crate::commands::row::stop_sentence;
use crate::load::Loaded;
use crate::progress::Progress;
use crate::units::{bytes, count, percent};

/// Of the bytes at the peak, the part from which on it is said that they do not grow as they should.
const DOUBTFUL: f64 = 0.01;

pub(super) fn answer(
    args: &FitArgs,
    recordings: &[Recording],
    progress: &Progress,
) -> anyhow::Result<Json> {
    let runs: Vec<Run<'_>> = recordings.iter().map(run).collect();
    progress.say("matching requests".to_owned());
    let family = Family::new(&runs).with_context(|| {
        let names: Vec<&str> = runs.iter().map(|run| run.name).collect();
        format!("cannot fit {}", names.join(", "))
    })?;
    // The one at the largest value is what all else is built of.
    let Some(base) = recordings.last() else { bail!("name a recording with --at VALUE=RUN") };
    let setup = args.setup(base)?;
    let mut answer = Json::new(args, "growing", &base.loaded.name);
    answer.recordings = recordings.iter().map(Recording::described).collect();
    answer.growth = Some(JsonGrowth::new(&family));
    let limit = VALUE_MAX - VALUE_MAX % args.step;
    if family.bound(limit) == family.bound(family.drawn().1) {
        let (from, to) = family.drawn();
        bail!(
            "give recordings at two values of {}: nothing of {} that counts is larger at {to} than at {from}",
            args.of,
            base.loaded.name
        );
    }
    let most = family.most(args.capacity.min(HELD_MAX), args.step, limit);
    answer.bound = Some(JsonBound { value: most, bytes: family.bound(most.max(1)) });
    let search = |allocator| {
        let try_one = |allocator, value| tried(&family, &setup, allocator, value, Effort::Search);
        let mut found = largest(1..=most / args.step, |place| {
            try_one(allocator, place * args.step).map(|(outcome, _)| outcome)
        })?;
        // Of the value that is found it is said what `girih compare` says of a recording.
        if let (Allocator::Planned, Some((place, room))) = (allocator, &mut found.largest) {
            let value = *place * args.step;
            let (settled, _) = tried(&family, &setup, allocator, value, Effort::Answer)?;
            *room = settled.unwrap_or(*room);
        }
        let required = match args.require {
            Some(value) => try_one(allocator, value)?.0.is_some(),
            None => false,
        };
        // Why not even the smallest fits, where none does.
        let stopped = match &found.largest {
            None => try_one(allocator, args.step)?.1,
            Some(_) => None,
        };
        Ok((row(allocator, &found, args.step, stopped), required))
    };
    let rows = args.for_each(progress, search)?;
    answer.required = args.require.map(|value| JsonRequired {
        value,
        fits: rows.iter().filter(|(_, fits)| *fits).map(|(row, _)| row.allocator).collect(),
    });
    answer.rows = rows.into_iter().map(|(row, _)| row).collect();
    progress.say("holding against what was held out".to_owned());
    for held_out in family.held_out() {
        let recorded = recordings.iter().find(|it| it.value == Some(held_out.value));
        let replayed = recorded.map(|it| replayed(&family, held_out, it, &setup)).transpose()?;
        answer.held_out.push(JsonHeldOut::new(held_out, replayed.unwrap_or_default()));
    }
    answer.notes = notes(args, &family, &answer);
    Ok(answer)
}

fn run(recording: &Recording) -> Run<'_> {
    let Loaded { name, trace, lives, iterations, .. } = &recording.loaded;
    Run { value: recording.value.unwrap_or(0), name, trace, lives, iterations }
}

/// What an allocator makes of a value that fits.
#[derive(Clone, Copy)]
struct Room {
    reserved: u64,
    spare: u64,
    retries: u64,
}

/// What a value is tried for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// It is one of many.
    Search,
    /// It is the one that is answered.
    Answer,
}

/// What there is at a value, or none if it does not fit, and then where it stops.
fn tried(
    family: &Family,
    setup: &Setup,
    allocator: Allocator,
    value: u64,
    effort: Effort,
) -> Result<(Option<Room>, Option<String>), SimulateError> {
    let bound = family.bound(value);
    if bound > HELD_MAX {
        // Nothing is replayed that no GPU holds.
        let stopped = format!("stops: {} are alive at once at {}", bytes(bound), count(value));
        return Ok((None, Some(stopped)));
    }
    let (trace, lives) = family.at(value);
    let subject = Subject::built(trace, lives, setup.clone());
    let subject = if effort == Effort::Answer { subject.thoroughly() } else { subject };
    let outcome = subject.under(allocator)?;
    let stopped = outcome.stop.as_ref().map(|stop| stop_sentence(stop, subject.lives()));
    let Outcome { reserved, retries, .. } = outcome;
    Ok((outcome.spare.map(|spare| Room { reserved, spare, retries }), stopped))
}

fn row(allocator: Allocator, found: &Found<Room>, step: u64, stopped: Option<String>) -> JsonRow {
    let (value, room) = found.largest.unzip();
    JsonRow {
        allocator: allocator.name(),
        fits: value.is_some(),
        value: value.map(|place| place * step),
        reserved_peak: room.map(|room| room.reserved),
        spare: room.map(|room| room.spare),
        num_alloc_retries: room.map(|room| room.retries),
        worst: None,
        gaps: found.gaps().into_iter().map(|place| place * step).collect(),
        stopped,
    }
}

/// What `native` reserves of what was said and of what was recorded, on a device without a limit.
fn replayed(
    family: &Family,
    held_out: &HeldOut,
    recording: &Recording,
    setup: &Setup,
) -> Result<(u64, u64), SimulateError> {
    let setup = Setup { capacity: None, ..setup.clone() };
    let (trace, lives) = family.at(held_out.value);
    let said = Subject::built(trace, lives, setup.clone()).under(Allocator::Native)?;
    let Loaded { trace, lives, .. } = &recording.loaded;
    let recorded = Subject::built(trace.clone(), lives.clone(), setup).under(Allocator::Native)?;
    Ok((said.reserved, recorded.reserved))
}

/// What the answer is to be doubted for.
fn notes(args: &FitArgs, family: &Family, answer: &Json) -> Vec<String> {
    let mut notes = Vec::new();
    let Some(growth) = &answer.growth else { return notes };
    let share = |bytes: u64| bytes as f64 / growth.peak_bytes.max(1) as f64;
    let (from, to) = growth.drawn;
    for (law, what) in [
        (
            "falling",
            format!("is less at {to} than at {from}: something else than {} differs", args.of),
        ),
        ("alone", format!("has no like at {from} and is taken not to grow")),
        ("curve", format!("rises faster than {}, and is taken to rise with its square", args.of)),
    ] {
        let found = growth.laws.iter().find(|it| it.law == law);
        if let Some(found) = found.filter(|it| share(it.peak_bytes) >= DOUBTFUL) {
            let part = percent(share(found.peak_bytes));
            notes.push(format!("{} at the peak of {to} ({part}) {what}", bytes(found.peak_bytes)));
        }
    }
    let for_ever = family.growing_for_ever();
    if args.of == "microbatch" && share(for_ever) >= DOUBTFUL {
        notes.push(format!(
            "{} that are there before the first step and never freed grow with the microbatch: weights do not, so these may \
             be recordings of two models",
            bytes(for_ever)
        ));
    }
    for recording in answer.recordings.iter().filter(|it| it.refused) {
        notes.push(format!(
            "{} was refused memory: what it would have asked for after that is not known",
            recording.name
        ));
    }
    if let Some(iterations) = growth.iterations {
        let iterations = count(iterations as u64);
        notes.push(format!(
            "compared are the first {iterations} iterations: some recordings have no more"
        ));
    }
    if answer.held_out.is_empty() {
        notes.push(
            "two recordings cannot contradict each other: with a third, at another value, the answer is held against \
             what it was not made of"
                .to_owned(),
        );
    }
    notes
}
