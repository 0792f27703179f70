//! `girih conform`: holds the simulated allocator against PyTorch's own answers.

use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use girih_runtime::conform::{Conformance, OracleFile, conform};
use girih_trace::compress::{Input, Limits};
use serde::Serialize;

use super::write_json;
use crate::Answer;
use crate::files::{self, shown_input};
use crate::load::name_of;
use crate::progress::Progress;
use crate::table::table;

#[derive(Args)]
pub(crate) struct ConformArgs {
    /// Files of recorded answers (JSON, may be compressed).
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Json {
    files: Vec<JsonFile>,
}

#[derive(Serialize)]
struct JsonFile {
    name: String,
    runs: usize,
    exact: usize,
    first_difference: Option<String>,
}

pub(crate) fn run(args: &ConformArgs, json: bool, out: &mut dyn Write) -> anyhow::Result<Answer> {
    let progress = Progress::new();
    let mut files = Vec::with_capacity(args.files.len());
    for (done, path) in args.files.iter().enumerate() {
        progress.part(done, args.files.len());
        progress.say(format!("{}", path.display()));
        let name = name_of(path);
        let Conformance { runs, exact, first_difference } = conform(&read(path)?, &name);
        files.push(JsonFile { name, runs, exact, first_difference });
    }
    drop(progress);
    let all_exact = files.iter().all(|file| file.exact == file.runs);
    if json {
        write_json(out, &Json { files })?;
    } else {
        let cells = |file: &JsonFile| {
            vec![file.name.clone(), file.runs.to_string(), file.exact.to_string()]
        };
        let rows: Vec<Vec<String>> = files.iter().map(cells).collect();
        write!(out, "{}", table(&["file", "runs", "exact"], &rows))?;
        for difference in files.iter().filter_map(|file| file.first_difference.as_ref()) {
            writeln!(out, "{difference}")?;
        }
    }
    Ok(if all_exact { Answer::Yes } else { Answer::No })
}

fn read(path: &Path) -> anyhow::Result<OracleFile> {
    let shown = shown_input(path);
    let input = Input::new(files::open(path)?, Limits::default())
        .with_context(|| format!("cannot read {shown}"))?;
    serde_json::from_reader(BufReader::new(input))
        .with_context(|| format!("give a file of recorded answers: {shown} is none"))
}
