//! `girih check`: is a plan file whole and right?

use std::io::{BufReader, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use girih_plan::file::{self, PlanFileError};
use serde::Serialize;

use super::write_json;
use crate::Answer;
use crate::files::{self, shown_input};
use crate::units::{bytes, count};

#[derive(Args)]
pub(crate) struct CheckArgs {
    /// The plan file; - is standard input.
    plan: PathBuf,
}

#[derive(Serialize)]
struct Json {
    valid: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    arena_bytes: Option<u64>,
    persistent_bytes: Option<u64>,
    entries: Option<usize>,
}

pub(crate) fn run(args: &CheckArgs, json: bool, out: &mut dyn Write) -> anyhow::Result<Answer> {
    let shown = shown_input(&args.plan);
    let read = match file::read(BufReader::new(files::open(&args.plan)?)) {
        Err(PlanFileError::Io(error)) => {
            return Err(error).with_context(|| format!("cannot read {shown}"));
        }
        other => other,
    };
    let (answer, result) = match &read {
        Ok(plan) => (
            Answer::Yes,
            Json {
                valid: true,
                fault: None,
                fingerprint: Some(format!("{:016x}", plan.fingerprint())),
                arena_bytes: Some(plan.arena_bytes),
                persistent_bytes: Some(plan.persistent_bytes),
                entries: Some(plan.sequences.iter().map(|s| s.entries.len()).sum()),
            },
        ),
        Err(fault) => (
            Answer::No,
            Json {
                valid: false,
                fault: Some(fault.to_string()),
                fingerprint: None,
                arena_bytes: None,
                persistent_bytes: None,
                entries: None,
            },
        ),
    };
    if json {
        write_json(out, &result)?;
    } else if let Ok(plan) = read {
        writeln!(
            out,
            "{shown} is right: {} places, arena {}, stays {}, fingerprint {:016x}",
            count(result.entries.unwrap_or(0) as u64),
            bytes(plan.arena_bytes),
            bytes(plan.persistent_bytes),
            plan.fingerprint()
        )?;
    } else {
        writeln!(out, "{shown} is not right: {}", result.fault.unwrap_or_default())?;
    }
    Ok(answer)
}
