//! `girih replay`: a recording again, under one allocator.

use std::io::Write;

use clap::Args;
use girih_runtime::simulate::{Allocator, Property, simulate};

use super::earlier::earlier_sentence;
use super::row::{
    JsonRow, WhatIf, again_sentence, allocator_names, columns, compared_with_recording,
    mapping_work, recorded_peak, stop_and_rest_sentence, table_row, unhelpful_sentence,
};
use super::write_json;
use crate::Answer;
use crate::load::{self, timed};
use crate::progress::Progress;
use crate::table::table;
use crate::units::{bytes, count};

#[derive(Args)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    source: load::Source,
    /// The allocator.
    #[arg(long, value_parser = allocator_names(), default_value = "native")]
    allocator: Allocator,
    /// Checks that each use of a byte comes after the last one, across streams. Slower.
    #[arg(long)]
    check_order: bool,
    #[command(flatten)]
    what_if: WhatIf,
}

pub(crate) fn run(args: &ReplayArgs, json: bool, out: &mut dyn Write) -> anyhow::Result<Answer> {
    let progress = Progress::new();
    progress.say(format!("reading {}", args.source.file.display()));
    let loaded = args.source.load()?;
    let mut setup = args.what_if.setup(&loaded)?;
    setup.check_order = args.check_order;
    let allocator = args.allocator;
    args.what_if.say_if_not_followed(&[allocator]);
    if allocator.is(Property::Plan) {
        progress.say("planning");
        setup.plan = Some(args.what_if.plan(&loaded, &setup)?);
    }
    if allocator == Allocator::Again {
        progress.say("a first launch");
        setup.kept = WhatIf::kept(&loaded, &setup)?;
    }
    progress.say(format!("replaying under {}", allocator.name()));
    let (simulation, seconds) = timed(|| simulate(&loaded.trace, &loaded.lives, allocator, &setup));
    let simulation = simulation?;
    drop(progress);
    let fits = simulation.replayed.stop.is_none();
    let answer = if args.what_if.requires_fit() && !fits { Answer::No } else { Answer::Yes };
    if json {
        write_json(out, &JsonRow::new(&simulation, &loaded.trace, &setup, seconds))?;
        return Ok(answer);
    }
    writeln!(out, "{}", loaded.name)?;
    write!(out, "{}", table(&columns(&setup), &[table_row(&simulation, &setup)]))?;
    if let Some(stop) = &simulation.replayed.stop {
        writeln!(out, "{}", stop_and_rest_sentence(stop, &simulation, &loaded.lives))?;
    }
    if let Some(sentence) = earlier_sentence([&simulation.beginning], &loaded.lives) {
        writeln!(out, "{sentence}")?;
    }
    if allocator == Allocator::Again {
        writeln!(out, "{}", again_sentence(setup.kept.as_deref()))?;
    } else if allocator == Allocator::Auto {
        writeln!(out, "auto follows no plan in this run: one that fits is for the next launch")?;
    }
    if let Some(sentence) = unhelpful_sentence(setup.plan.as_deref()) {
        writeln!(out, "{sentence}")?;
    } else if let Some(following) = simulation.following.filter(|it| it.hits + it.misses > 0) {
        writeln!(
            out,
            "followed the plan: {} hits ({}), {} misses ({})",
            count(following.hits),
            bytes(following.hit_bytes),
            count(following.misses),
            bytes(following.miss_bytes),
        )?;
    }
    if let Some(work) = mapping_work(&simulation) {
        write!(out, "calls of the device, by iteration\n{work}")?;
    }
    if let Some(peak) = recorded_peak(&loaded.trace) {
        writeln!(out, "the recorded run reserved {} at most", bytes(peak))?;
    }
    match compared_with_recording(&simulation, &loaded.trace) {
        Some(None) => writeln!(out, "every segment came and went as in the recording")?,
        Some(Some(difference)) => writeln!(out, "{difference}")?,
        None => {}
    }
    let events = simulation.replayed.events;
    let rate = events as f64 / seconds.max(1e-9) / 1e6;
    writeln!(out, "{} events in {seconds:.3} s: {rate:.1} million a second", count(events))?;
    Ok(answer)
}
