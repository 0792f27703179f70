//! `girih diff`: which tensors one run has and another has not.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use girih_why::groups::{Difference, differences};
use serde::Serialize;

use super::why::{Look, ask};
use super::write_json;
use crate::Answer;
use crate::load::Loaded;
use crate::progress::Progress;
use crate::table::table;
use crate::units::{bytes, count};

#[derive(Args)]
pub(crate) struct DiffArgs {
    /// The recording that is compared with.
    before: PathBuf,
    /// The recording that is asked about.
    after: PathBuf,
    #[command(flatten)]
    look: Look,
}

#[derive(Serialize)]
struct Json {
    before: String,
    after: String,
    /// Bytes alive in each.
    bytes_before: u64,
    bytes_after: u64,
    differences: Vec<JsonDifference>,
}

#[derive(Serialize)]
struct JsonDifference {
    /// Bytes more in the second; fewer if it is negative.
    change: i64,
    bytes_before: u64,
    count_before: u64,
    bytes_after: u64,
    count_after: u64,
    #[serde(rename = "where")]
    place: String,
    category: &'static str,
}

impl JsonDifference {
    fn new(of: &Difference) -> JsonDifference {
        JsonDifference {
            change: i64::try_from(of.change()).unwrap_or(i64::MAX),
            bytes_before: of.before.0,
            count_before: of.before.1,
            bytes_after: of.after.0,
            count_after: of.after.1,
            place: of.place.clone(),
            category: of.category.name(),
        }
    }
}

pub(crate) fn run(args: &DiffArgs, json: bool, out: &mut dyn Write) -> anyhow::Result<Answer> {
    let progress = Progress::new();
    let mut groups = Vec::new();
    let mut names = Vec::new();
    for file in [&args.before, &args.after] {
        progress.say(format!("reading {}", file.display()));
        let loaded: Loaded = args.look.load(file)?;
        let question = args.look.question().without_replays();
        groups.push(ask(&loaded, &question, &mut |_, _| Ok(Vec::new()))?.lines);
        names.push(loaded.name);
    }
    drop(progress);
    let found = differences(&groups[0], &groups[1]);
    let sums: Vec<u64> =
        groups.iter().map(|groups| groups.iter().map(|group| group.bytes).sum()).collect();
    let shown = found.iter().take(args.look.top);
    if json {
        let differences = shown.map(JsonDifference::new).collect();
        let [before, after] = [names[0].clone(), names[1].clone()];
        let (bytes_before, bytes_after) = (sums[0], sums[1]);
        write_json(out, &Json { before, after, bytes_before, bytes_after, differences })?;
        return Ok(Answer::Yes);
    }
    writeln!(
        out,
        "{} has {} alive, {} has {}",
        names[0],
        bytes(sums[0]),
        names[1],
        bytes(sums[1])
    )?;
    let signed = |change: i128| {
        let size = bytes(u64::try_from(change.unsigned_abs()).unwrap_or(u64::MAX));
        if change < 0 { format!("-{size}") } else { format!("+{size}") }
    };
    let side = |(size, blocks): (u64, u64)| format!("{} in {}", bytes(size), count(blocks));
    let rows: Vec<Vec<String>> = shown
        .map(|of| vec![of.place.clone(), signed(of.change()), side(of.before), side(of.after)])
        .collect();
    if rows.is_empty() {
        writeln!(out, "they have the same alive, place by place")?;
    } else {
        write!(out, "{}", table(&[args.look.by(), "change", "before", "after"], &rows))?;
    }
    Ok(Answer::Yes)
}
