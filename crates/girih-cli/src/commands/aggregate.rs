//! Many recordings in a few figures, as papers give them.
//!
//! *Efficiency* is peak allocated by peak reserved (GMLake, section 5.1; STWeaver, section 2.2), and what it
//! leaves of the reserved bytes is *fragmentation memory*. How much of `native`'s an allocator removes is
//! given as a share and in bytes (STWeaver, section 9). A run that stopped counts nowhere: it might have gone
//! on to hold anything.

use girih_runtime::simulate::{Allocator, Simulation};
use serde::Serialize;

use super::compare::has_column;
use super::row::efficiency;
use crate::table::table;
use crate::units::{bytes, count, percent};

/// What one allocator made of one recording.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    allocator: Allocator,
    reserved: u64,
    /// None if the run stopped.
    efficiency: Option<f64>,
}

impl Held {
    pub(crate) fn new(simulation: &Simulation) -> Held {
        Held {
            allocator: simulation.allocator,
            reserved: simulation.stats.reserved_bytes.all().peak,
            efficiency: efficiency(simulation),
        }
    }

    /// Reserved bytes that the program had nothing of, if the run went to its end.
    fn fragmentation(&self) -> Option<f64> {
        self.efficiency.map(|efficiency| self.reserved as f64 * (1.0 - efficiency))
    }
}

/// One recording in the table of many.
pub(crate) struct Line {
    /// What it is called there.
    pub(crate) name: String,
    /// Of each allocator, in the order of the columns.
    pub(crate) held: Vec<Held>,
}

/// Figures of all recordings. Null where there is nothing to take them of.
#[derive(Serialize)]
pub(crate) struct Aggregate {
    allocators: Vec<OfAllocator>,
}

/// Of one allocator.
#[derive(Serialize)]
struct OfAllocator {
    allocator: &'static str,
    /// Recordings that went to their end under it.
    recordings: usize,
    efficiency_average: Option<f64>,
    efficiency_least: Option<f64>,
    efficiency_largest: Option<f64>,
    /// Of the fragmentation memory of `native`, where both went to their end and `native` has some.
    removed_share_average: Option<f64>,
    removed_share_largest: Option<f64>,
    /// The same in bytes; below 0 where there is more of it.
    removed_bytes_average: Option<i64>,
    removed_bytes_largest: Option<i64>,
    /// What `native` reserves beyond this one, in sum, where both went to their end.
    bytes_saved: i64,
}

fn average(of: &[f64]) -> Option<f64> {
    (!of.is_empty()).then(|| of.iter().sum::<f64>() / of.len() as f64)
}

fn least(of: &[f64]) -> Option<f64> {
    of.iter().copied().reduce(f64::min)
}

fn largest(of: &[f64]) -> Option<f64> {
    of.iter().copied().reduce(f64::max)
}

impl Aggregate {
    pub(crate) fn of(lines: &[Line]) -> Aggregate {
        let columns = lines.first().map_or(0, |line| line.held.len());
        let allocators = (0..columns).map(|column| OfAllocator::of(lines, column)).collect();
        Aggregate { allocators }
    }

    /// The tables for people.
    pub(crate) fn text(&self, lines: &[Line]) -> String {
        let names = self.allocators.iter().map(|of| of.allocator).filter(|name| has_column(name));
        let share = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), percent);
        let header: Vec<&str> = ["efficiency"].into_iter().chain(names).collect();
        let rows = lines.iter().map(|line| {
            let shown = line.held.iter().filter(|held| has_column(held.allocator.name()));
            let cells = shown.map(|held| share(held.efficiency));
            [line.name.clone()].into_iter().chain(cells).collect()
        });
        let each = table(&header, &rows.collect::<Vec<_>>());
        let row = |of: &OfAllocator| {
            vec![
                of.allocator.to_owned(),
                count(of.recordings as u64),
                share(of.efficiency_average),
                share(of.efficiency_least),
                share(of.efficiency_largest),
            ]
        };
        let header = ["allocator", "recordings", "average", "least", "largest"];
        let all = table(&header, &self.allocators.iter().map(row).collect::<Vec<_>>());
        let amount = |amount: Option<i64>| amount.map_or_else(|| "-".to_owned(), signed);
        let row = |of: &OfAllocator| {
            vec![
                of.allocator.to_owned(),
                share(of.removed_share_average),
                share(of.removed_share_largest),
                amount(of.removed_bytes_average),
                amount(of.removed_bytes_largest),
                signed(of.bytes_saved),
            ]
        };
        let header = [
            "removed of native's waste",
            "average",
            "largest",
            "average",
            "largest",
            "saved in sum",
        ];
        let native = Allocator::Native.name();
        let others = self.allocators.iter().filter(|of| of.allocator != native);
        let removed = table(&header, &others.map(row).collect::<Vec<_>>());
        format!("{each}\n{all}\n{removed}")
    }
}

/// Bytes that may be fewer than none.
fn signed(amount: i64) -> String {
    let sign = if amount < 0 { "-" } else { "" };
    format!("{sign}{}", bytes(amount.unsigned_abs()))
}

impl OfAllocator {
    fn of(lines: &[Line], column: usize) -> OfAllocator {
        let allocator = lines[0].held[column].allocator;
        let efficiencies: Vec<f64> =
            lines.iter().filter_map(|line| line.held[column].efficiency).collect();
        // Of each recording that both went through: fragmentation memory, and what is reserved.
        let pairs: Vec<(f64, f64, i64)> = (lines.iter())
            .filter_map(|line| {
                let native = line.held.iter().find(|held| held.allocator == Allocator::Native)?;
                let own = &line.held[column];
                let saved = native.reserved as i64 - own.reserved as i64;
                Some((native.fragmentation()?, own.fragmentation()?, saved))
            })
            .collect();
        let removed: Vec<f64> = pairs.iter().map(|(native, own, _)| native - own).collect();
        let shares: Vec<f64> = (pairs.iter())
            .filter(|(native, ..)| *native > 0.0)
            .map(|(native, own, _)| (native - own) / native)
            .collect();
        let rounded = |amount: f64| amount.round() as i64;
        OfAllocator {
            allocator: allocator.name(),
            recordings: efficiencies.len(),
            efficiency_average: average(&efficiencies),
            efficiency_least: least(&efficiencies),
            efficiency_largest: largest(&efficiencies),
            removed_share_average: average(&shares),
            removed_share_largest: largest(&shares),
            removed_bytes_average: average(&removed).map(rounded),
            removed_bytes_largest: largest(&removed).map(rounded),
            bytes_saved: pairs.iter().map(|(.., saved)| saved).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(held: [(Allocator, u64, Option<f64>); 2]) -> Line {
        let held =
            held.map(|(allocator, reserved, efficiency)| Held { allocator, reserved, efficiency });
        Line { name: "run".to_owned(), held: held.to_vec() }
    }

    #[test]
    fn what_is_removed_is_of_the_fragmentation_memory_of_native() {
        let (native, stitch) = (Allocator::Native, Allocator::Stitch);
        let lines = [
            line([(native, 100, Some(0.5)), (stitch, 55, Some(10.0 / 11.0))]),
            line([(native, 200, Some(0.75)), (stitch, 210, Some(150.0 / 210.0))]),
            // Nothing to remove: no share, and yet a recording.
            line([(native, 80, Some(1.0)), (stitch, 80, Some(1.0))]),
            // Without one of them there is nothing to compare.
            line([(native, 900, None), (stitch, 10, Some(0.5))]),
        ];
        let all = Aggregate::of(&lines);
        let [native, stitch] = &all.allocators[..] else { panic!("two") };
        assert_eq!((native.recordings, stitch.recordings), (3, 4));
        assert_eq!((native.efficiency_least, native.efficiency_largest), (Some(0.5), Some(1.0)));
        assert_eq!(native.efficiency_average, Some(0.75));
        assert_eq!((native.removed_share_largest, native.bytes_saved), (Some(0.0), 0));
        // 45 of 50, then 10 more than 50.
        let shares = (stitch.removed_share_average, stitch.removed_share_largest);
        assert!((shares.0.unwrap() - (0.9 - 0.2) / 2.0).abs() < 1e-9, "{shares:?}");
        assert!((shares.1.unwrap() - 0.9).abs() < 1e-9, "{shares:?}");
        assert_eq!(stitch.removed_bytes_largest, Some(45));
        assert_eq!(stitch.removed_bytes_average, Some(12), "35 by three");
        assert_eq!(stitch.bytes_saved, 45 - 10);
    }

    #[test]
    fn of_no_recording_that_ended_there_are_no_figures() {
        let all =
            Aggregate::of(&[line([(Allocator::Native, 1, None), (Allocator::Auto, 1, None)])]);
        let auto = &all.allocators[1];
        assert_eq!((auto.recordings, auto.efficiency_average), (0, None));
        assert_eq!((auto.removed_share_average, auto.removed_bytes_average), (None, None));
        assert!(all.text(&[]).contains('-'));
        assert!(Aggregate::of(&[]).allocators.is_empty());
    }
}
