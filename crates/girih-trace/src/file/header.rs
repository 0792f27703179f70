//! The header's JSON. These types are the format; those of the crate may change without it.

use serde::{Deserialize, Serialize};

use crate::mark::Recorded;
use crate::trace::{Origin, Settings, Trace};

#[derive(Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) traces: Vec<TraceHeader>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct TraceHeader {
    pub(super) device: u32,
    pub(super) settings: SettingsHeader,
    pub(super) origin: OriginHeader,
    pub(super) recorded: RecordedHeader,
    pub(super) columns: Vec<ColumnHeader>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct SettingsHeader {
    conf: String,
    expandable_segments: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) struct OriginHeader {
    kind: String,
    warnings: Vec<String>,
    truncated: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) struct RecordedHeader {
    allocated_peak: Option<u64>,
    reserved_peak: Option<u64>,
}

/// What there is to know of a column before its bytes.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct ColumnHeader {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: ColumnType,
    /// Elements; bytes for [`ColumnType::Json`].
    pub(super) count: u64,
    /// Bytes in the file.
    pub(super) bytes: u64,
    /// The first value of a column of differences; the first difference is then 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) first: Option<u64>,
}

impl ColumnHeader {
    /// Bytes of the column once it is decompressed.
    pub(super) fn decompressed(&self) -> u64 {
        self.count.saturating_mul(self.kind.width() as u64)
    }
}

/// The type of a column's elements, by numpy's names. Differences are of the signed ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ColumnType {
    U1,
    U2,
    U4,
    U8,
    I1,
    I2,
    I4,
    I8,
    /// Text: a JSON array of strings.
    Json,
}

impl ColumnType {
    /// Bytes of an element.
    pub(super) fn width(self) -> usize {
        match self {
            ColumnType::U1 | ColumnType::I1 | ColumnType::Json => 1,
            ColumnType::U2 | ColumnType::I2 => 2,
            ColumnType::U4 | ColumnType::I4 => 4,
            ColumnType::U8 | ColumnType::I8 => 8,
        }
    }

    pub(super) fn is_signed(self) -> bool {
        matches!(self, ColumnType::I1 | ColumnType::I2 | ColumnType::I4 | ColumnType::I8)
    }
}

impl TraceHeader {
    pub(super) fn new(trace: &Trace, columns: Vec<ColumnHeader>) -> Self {
        let Settings { conf, expandable_segments } = trace.settings.clone();
        let Origin { kind, warnings, truncated } = trace.origin.clone();
        let Recorded { allocated_peak, reserved_peak } = trace.recorded;
        TraceHeader {
            device: trace.device,
            settings: SettingsHeader { conf, expandable_segments },
            origin: OriginHeader { kind, warnings, truncated },
            recorded: RecordedHeader { allocated_peak, reserved_peak },
            columns,
        }
    }

    /// A trace with what the header says, and nothing of the columns.
    pub(super) fn to_trace(&self) -> Trace {
        let SettingsHeader { conf, expandable_segments } = &self.settings;
        let OriginHeader { kind, warnings, truncated } = &self.origin;
        let RecordedHeader { allocated_peak, reserved_peak } = self.recorded;
        Trace {
            device: self.device,
            settings: Settings { conf: conf.clone(), expandable_segments: *expandable_segments },
            origin: Origin {
                kind: kind.clone(),
                warnings: warnings.clone(),
                truncated: *truncated,
            },
            recorded: Recorded { allocated_peak, reserved_peak },
            ..Trace::default()
        }
    }
}
