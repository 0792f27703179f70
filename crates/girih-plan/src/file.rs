//! The plan file: JSON that a person can read and compare, versioned.
//!
//! The types here are the wire format, apart from the domain's: a change of one cannot slip into
//! the other. Entries are written as columns, one array a field. Offsets count from the start of
//! the arena or of the persistent region, sizes are bytes.
//!
//! A plan is verified before it is written and after it is read. A file from anywhere can be
//! malformed: it gets an error that says where, and nothing larger than the file is allocated for
//! it.

use std::io::{self, Read, Write};

use girih_trace::{MarkKind, StreamId};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::plan::{Entry, Place, Plan, Role, Room, Sequence, Trial};
use crate::verify::{PlanError, verify};

/// What `format` must say.
const FORMAT: &str = "girih plan";
/// The version that this release writes, and the only one that it reads.
const VERSION: u32 = 1;

/// Why a plan could not be written or read.
#[derive(Debug, Error)]
pub enum PlanFileError {
    /// The file could not be written or read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is no JSON, or not of this shape.
    #[error("make the plan again with `girih plan`, this is none or it is damaged: {0}")]
    Json(#[from] serde_json::Error),
    /// It is of another kind or version.
    #[error(
        "make the plan again with `girih plan`: this is a file of format `{format}`, version {version}, \
         and this release reads `{FORMAT}`, version {VERSION}"
    )]
    Format {
        /// What the file says it is.
        format: String,
        /// Its version.
        version: u32,
    },
    /// Columns of a sequence have different lengths, or hold what cannot be.
    #[error("make the plan again with `girih plan`, it is damaged: sequence {sequence}: {reason}")]
    Columns {
        /// Index of the sequence.
        sequence: usize,
        /// What is wrong.
        reason: String,
    },
    /// The file was changed after it was written.
    #[error(
        "make the plan again with `girih plan`, it was changed: it says that its fingerprint is \
         {written:016x}, but that is {found:016x}"
    )]
    Fingerprint {
        /// What the file says.
        written: u64,
        /// What its entries give.
        found: u64,
    },
    /// The plan contradicts itself.
    #[error("make the plan again with `girih plan`, it is wrong: {0}")]
    Plan(#[from] PlanError),
}

/// The file as a whole.
#[derive(Serialize, Deserialize)]
struct WirePlan {
    format: String,
    version: u32,
    fingerprint: String,
    arena_bytes: u64,
    persistent_bytes: u64,
    lower_bound: u64,
    #[serde(default)]
    in_use: u64,
    peak: u64,
    proven: bool,
    planner: String,
    requests: u64,
    iterations: u32,
    rounds: u32,
    /// What the run held with the plan and without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trial: Option<(u64, u64)>,
    /// Offset and bytes of each room.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rooms: Vec<(u64, u64)>,
    sequences: Vec<WireSequence>,
}

/// A sequence, its entries as columns.
#[derive(Serialize, Deserialize)]
struct WireSequence {
    role: WireRole,
    boundaries: Vec<(u32, String)>,
    size_min: Vec<u64>,
    size_max: Vec<u64>,
    stream: Vec<u16>,
    /// `a` for the arena, `r` for a room, whose number is then the offset, `p` for the persistent
    /// region, `-` for outside: a letter an entry.
    region: String,
    offset: Vec<u64>,
    until: Vec<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WireRole {
    Opening,
    Steady,
    Interlude { before: u32 },
    Variant { round: u32 },
}

/// Writes a plan.
///
/// # Errors
/// If the plan is wrong, or the writer fails.
pub fn write(plan: &Plan, mut writer: impl Write) -> Result<(), PlanFileError> {
    verify(plan)?;
    // What fails here is the writer, never the JSON.
    serde_json::to_writer(&mut writer, &to_wire(plan)).map_err(io::Error::from)?;
    writer.write_all(b"\n")?;
    writer.flush()?;
    Ok(())
}

/// Reads a plan.
///
/// # Errors
/// If the file is no plan, is damaged or of another version, or if the plan in it is wrong.
pub fn read(reader: impl Read) -> Result<Plan, PlanFileError> {
    let wire: WirePlan = serde_json::from_reader(reader).map_err(|error| {
        if error.is_io() { PlanFileError::Io(error.into()) } else { error.into() }
    })?;
    if wire.format != FORMAT || wire.version != VERSION {
        return Err(PlanFileError::Format { format: wire.format, version: wire.version });
    }
    let written = u64::from_str_radix(&wire.fingerprint, 16).unwrap_or(0);
    let plan = from_wire(wire)?;
    verify(&plan)?;
    let found = plan.fingerprint();
    if found != written {
        return Err(PlanFileError::Fingerprint { written, found });
    }
    Ok(plan)
}

fn to_wire(plan: &Plan) -> WirePlan {
    WirePlan {
        format: FORMAT.to_owned(),
        version: VERSION,
        fingerprint: format!("{:016x}", plan.fingerprint()),
        arena_bytes: plan.arena_bytes,
        persistent_bytes: plan.persistent_bytes,
        lower_bound: plan.lower_bound,
        in_use: plan.in_use,
        peak: plan.peak,
        proven: plan.proven,
        planner: plan.planner.clone(),
        requests: plan.requests,
        iterations: plan.iterations,
        rounds: plan.rounds,
        trial: plan.trial.map(|trial| (trial.with, trial.without)),
        rooms: plan.rooms.iter().map(|room| (room.offset, room.bytes)).collect(),
        sequences: plan.sequences.iter().map(sequence_to_wire).collect(),
    }
}

fn sequence_to_wire(sequence: &Sequence) -> WireSequence {
    let entries = &sequence.entries;
    let place = |entry: &Entry| match entry.place {
        Place::Arena(offset) => ('a', offset),
        Place::Room(number) => ('r', u64::from(number)),
        Place::Persistent(offset) => ('p', offset),
        Place::Outside => ('-', 0),
    };
    WireSequence {
        role: match sequence.role {
            Role::Opening => WireRole::Opening,
            Role::Steady => WireRole::Steady,
            Role::Interlude(before) => WireRole::Interlude { before },
            Role::Variant(round) => WireRole::Variant { round },
        },
        boundaries: (sequence.boundaries.iter())
            .map(|&(entry, kind)| (entry, kind.name().to_owned()))
            .collect(),
        size_min: entries.iter().map(|entry| entry.size_min).collect(),
        size_max: entries.iter().map(|entry| entry.size_max).collect(),
        stream: entries.iter().map(|entry| entry.stream.0).collect(),
        region: entries.iter().map(|entry| place(entry).0).collect(),
        offset: entries.iter().map(|entry| place(entry).1).collect(),
        until: entries.iter().map(|entry| entry.until).collect(),
    }
}

fn from_wire(wire: WirePlan) -> Result<Plan, PlanFileError> {
    let sequences = wire.sequences.into_iter().enumerate();
    Ok(Plan {
        arena_bytes: wire.arena_bytes,
        persistent_bytes: wire.persistent_bytes,
        lower_bound: wire.lower_bound,
        in_use: wire.in_use,
        peak: wire.peak,
        proven: wire.proven,
        planner: wire.planner,
        requests: wire.requests,
        iterations: wire.iterations,
        rounds: wire.rounds,
        trial: wire.trial.map(|(with, without)| Trial { with, without }),
        rooms: wire.rooms.into_iter().map(|(offset, bytes)| Room { offset, bytes }).collect(),
        sequences: sequences
            .map(|(index, sequence)| {
                sequence_from_wire(&sequence)
                    .map_err(|reason| PlanFileError::Columns { sequence: index, reason })
            })
            .collect::<Result<_, _>>()?,
    })
}

fn sequence_from_wire(wire: &WireSequence) -> Result<Sequence, String> {
    let count = wire.size_min.len();
    for (name, length) in [
        ("size_max", wire.size_max.len()),
        ("stream", wire.stream.len()),
        ("region", wire.region.len()),
        ("offset", wire.offset.len()),
        ("until", wire.until.len()),
    ] {
        if length != count {
            return Err(format!("{length} of {name}, {count} of size_min: a column was cut"));
        }
    }
    let entries = (0..count).zip(wire.region.bytes()).map(|(k, region)| {
        let place = match region {
            b'a' => Place::Arena(wire.offset[k]),
            b'r' => match u32::try_from(wire.offset[k]) {
                Ok(number) => Place::Room(number),
                Err(_) => return Err(format!("entry {k}: there is no room {}", wire.offset[k])),
            },
            b'p' => Place::Persistent(wire.offset[k]),
            b'-' => Place::Outside,
            other => return Err(format!("entry {k}: no region is called {:?}", other as char)),
        };
        Ok(Entry {
            size_min: wire.size_min[k],
            size_max: wire.size_max[k],
            stream: StreamId(wire.stream[k]),
            place,
            until: wire.until[k],
        })
    });
    Ok(Sequence {
        role: match wire.role {
            WireRole::Opening => Role::Opening,
            WireRole::Steady => Role::Steady,
            WireRole::Interlude { before } => Role::Interlude(before),
            WireRole::Variant { round } => Role::Variant(round),
        },
        entries: entries.collect::<Result<_, _>>()?,
        boundaries: (wire.boundaries.iter())
            .map(|(entry, kind)| (*entry, MarkKind::from_name(kind)))
            .collect(),
    })
}
