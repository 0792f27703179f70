//! The subcommands, one a file. Each has its arguments and a `run` that writes to `out`.

mod aggregate;
pub(crate) mod alpha;
pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod compare;
mod compare_folders;
pub(crate) mod conform;
pub(crate) mod convert;
pub(crate) mod describe;
pub(crate) mod diff;
pub(crate) mod earlier;
pub(crate) mod effort;
pub(crate) mod fit;
mod folder;
mod in_order;
pub(crate) mod lab;
mod learn;
pub(crate) mod plan;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod row;
pub(crate) mod stats;
pub(crate) mod swap;
pub(crate) mod why;

use std::io::{self, Write};

use serde::Serialize;

/// Writes one JSON object on one line.
pub(crate) fn write_json(out: &mut dyn Write, value: &impl Serialize) -> anyhow::Result<()> {
    // serde_json hides the cause of a failed write; `main` must know a closed pipe.
    serde_json::to_writer(&mut *out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}
