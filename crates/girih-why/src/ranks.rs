//! Several ranks of one run: which is the worst, and how the others differ from it.

use crate::report::Report;
use crate::units::bytes;

/// The order of ranks, the worst first: those that were refused, by how little was lacking for the
/// others; then those with the most alive. Indices of `reports`.
pub fn worst_first(reports: &[Report]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..reports.len()).collect();
    order.sort_by_key(|&index| {
        let report = &reports[index];
        let is_refused = report.requested.is_some();
        let used = report.live.unwrap_or(report.live_peak);
        let left = report.capacity.map(|capacity| capacity.saturating_sub(used));
        (!is_refused, left.unwrap_or(u64::MAX), std::cmp::Reverse(used))
    });
    order
}

/// How the ranks differ, in sentences. Empty for one.
pub fn differences(reports: &[Report], order: &[usize]) -> Vec<String> {
    let (Some(&worst), true) = (order.first(), order.len() > 1) else { return Vec::new() };
    let refused = reports.iter().filter(|report| report.requested.is_some()).count();
    let mut said = vec![format!(
        "{refused} of {} ranks were refused memory; {} is the worst.",
        reports.len(),
        reports[worst].name
    )];
    let alive = |report: &Report| report.live.unwrap_or(report.live_peak);
    let least = order.iter().min_by_key(|&&index| alive(&reports[index]));
    if let Some(&least) = least
        && least != worst
    {
        let (most, fewest) = (alive(&reports[worst]), alive(&reports[least]));
        said.push(format!(
            "It has {} alive, {} has {}: {} apart.",
            bytes(most),
            reports[least].name,
            bytes(fewest),
            bytes(most.abs_diff(fewest))
        ));
        said.extend(differing_line(&reports[worst], &reports[least]));
    }
    let verdicts: std::collections::BTreeSet<&str> =
        reports.iter().filter(|it| it.requested.is_some()).map(|it| it.verdict).collect();
    if verdicts.len() > 1 {
        let all: Vec<&str> = verdicts.into_iter().collect();
        said.push(format!("The verdicts differ: {}.", all.join(", ")));
    }
    said
}

/// The line in which two ranks differ most.
fn differing_line(worst: &Report, least: &Report) -> Option<String> {
    let of = |report: &Report, place: &str| {
        report.lines.iter().find(|line| line.place == place).map_or(0, |line| line.bytes)
    };
    let line =
        worst.lines.iter().max_by_key(|line| line.bytes.saturating_sub(of(least, &line.place)))?;
    let (more, fewer) = (line.bytes, of(least, &line.place));
    (more > fewer).then(|| {
        format!("Most of that is {}: {} against {}.", line.place, bytes(more), bytes(fewer))
    })
}
