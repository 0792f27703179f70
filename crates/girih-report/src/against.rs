//! Two runs held against each other: their curves by the share of their events, and what their peaks
//! have that differs, by line.

use girih_why::groups::differences;

use crate::beside::{Against, Difference};
use crate::picture::Picture;
use crate::series::Band;

/// Points of the other run's curves.
const POINTS: usize = 1_200;
/// Places that are listed.
const LISTED: usize = 20;

impl Against {
    /// What another run has, and how this one differs from it.
    pub fn of(other: &Picture<'_>, own: &Picture<'_>) -> Against {
        let found = differences(&other.lines, &own.lines);
        let difference = |of: &girih_why::groups::Difference| Difference {
            place: of.place.clone(),
            category: of.category.name(),
            bytes_before: of.before.0,
            count_before: of.before.1,
            bytes_after: of.after.0,
            count_after: of.after.1,
        };
        Against {
            name: other.subject.name.to_owned(),
            events: other.series.events as u64,
            live_peak: other.series.requested.peak.0,
            lower_bound: other.lower_bound(),
            reserved_peak: other.series.reserved.peak.0,
            requested: thinned(&other.series.requested),
            reserved: thinned(&other.series.reserved),
            differences: found.iter().take(LISTED).map(difference).collect(),
        }
    }
}

/// The most of each of so many equal parts.
fn thinned(band: &Band) -> Vec<u64> {
    let count = band.high.len();
    let points = POINTS.min(count);
    let edge = |point: usize| point * count / points.max(1);
    (0..points)
        .map(|point| band.high[edge(point)..edge(point + 1)].iter().copied().max().unwrap_or(0))
        .collect()
}
