//! Layers where no modules are marked: what repeats in the sizes of a forward pass's requests.
//!
//! A run of period p is a stretch of requests of which each has the size of the one p before it. Parts of a layer
//! repeat too, and so do pairs of layers. So the run is taken that covers the most bytes of what is kept for the
//! backward pass, and of those that cover as much, the shortest period:
//!
//! ```text
//!  sizes   7 | a b a c d  a b a c d  a b a c d  a b | 9 7 ...
//!            '------------- period 5 ---------------'
//! ```
//!
//! A run can be cut into layers anywhere. It is cut where the least that is transient is alive: between layers that is
//! only what one hands to the next.

use std::ops::Range;

/// A layer has at least so many requests.
const PERIOD_MIN: usize = 4;
/// Longer layers are not looked for.
const PERIOD_MAX: usize = 4096;
/// A period is as good as another one if it covers all but a hundredth of the bytes.
const AS_GOOD: f64 = 0.99;

/// One request of a forward pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Bytes.
    pub size: u64,
    /// Whether it is kept for the backward pass.
    pub is_kept: bool,
    /// How many requests of the pass are born by the time it is freed.
    pub until: usize,
}

/// The layers, as ranges of the requests; none if fewer than two repeat.
pub fn layers(asked: &[Asked]) -> Vec<Range<usize>> {
    let mut kept = vec![0u64; asked.len() + 1];
    for (index, it) in asked.iter().enumerate() {
        kept[index + 1] = kept[index] + if it.is_kept { it.size } else { 0 };
    }
    let longest = PERIOD_MAX.min(asked.len() / 2);
    let runs: Vec<(Range<usize>, usize)> = (PERIOD_MIN..=longest)
        .filter_map(|period| Some((run(asked, &kept, period)?, period)))
        .collect();
    let bytes = |run: &Range<usize>| kept[run.end] - kept[run.start];
    let most = runs.iter().map(|(run, _)| bytes(run)).max().unwrap_or(0);
    let best = runs.into_iter().find(|(run, _)| bytes(run) as f64 >= most as f64 * AS_GOOD);
    best.filter(|_| most > 0).map(|(run, period)| cut(asked, &run, period)).unwrap_or_default()
}

/// The run of a period that covers the most kept bytes, of two periods at least.
fn run(asked: &[Asked], kept: &[u64], period: usize) -> Option<Range<usize>> {
    let mut best: Option<Range<usize>> = None;
    let mut start = 0;
    for at in 0..=asked.len() - period {
        let goes_on = at + period < asked.len() && asked[at].size == asked[at + period].size;
        if goes_on {
            continue;
        }
        let run = start..at + period;
        let bytes = |run: &Range<usize>| kept[run.end] - kept[run.start];
        if at >= start + period && best.as_ref().is_none_or(|best| bytes(&run) > bytes(best)) {
            best = Some(run);
        }
        start = at + 1;
    }
    best
}

/// Cuts a run where the least that is transient is alive.
fn cut(asked: &[Asked], run: &Range<usize>, period: usize) -> Vec<Range<usize>> {
    // For each cut within a period, the transient bytes over all of its cuts.
    let mut crossing = vec![0u128; period];
    for (index, it) in asked.iter().enumerate().take(run.end).skip(run.start) {
        if !it.is_kept {
            // A life of more than a period crosses each cut.
            let until = it.until.min(index + period + 1).min(run.end);
            for at in index + 1..until {
                crossing[(at - run.start) % period] += u128::from(it.size);
            }
        }
    }
    let pieces = |cut: usize| (run.len() - cut) / period;
    // Per cut, for those further back have fewer.
    let worth = |&cut: &usize| (crossing[cut] / pieces(cut).max(1) as u128, cut);
    let first = (0..period).filter(|&cut| pieces(cut) >= 2).min_by_key(worth).unwrap_or(0);
    let start = run.start + first;
    (0..pieces(first)).map(|piece| start + piece * period..start + (piece + 1) * period).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(layers: usize) -> Vec<Asked> {
        let mut all = vec![(7, true, 99), (3, false, 2)];
        for _ in 0..layers {
            // Two parts that are alike, and between layers nothing but the last is alive.
            all.extend([(5, true, 99), (2, false, 2), (4, false, 3), (1, false, 2)]);
            all.extend([(5, true, 99), (2, false, 2), (9, true, 99), (3, false, 2)]);
        }
        all.extend([(8, true, 99), (6, false, 1)]);
        let asked = all.into_iter().enumerate();
        asked
            .map(|(at, (size, is_kept, lives))| Asked { size, is_kept, until: at + lives })
            .collect()
    }

    #[test]
    fn layers_are_found_though_parts_of_them_repeat() {
        let found = layers(&asked(5));
        assert!(found.len() >= 4, "{found:?}");
        assert!(found.iter().all(|it| it.len() == 8), "{found:?}");
        assert!(found.windows(2).all(|pair| pair[0].end == pair[1].start));
    }

    #[test]
    fn what_does_not_repeat_has_no_layers() {
        assert_eq!(layers(&asked(0)), []);
        let all = (0..40).map(|at| Asked { size: 1 << at, is_kept: true, until: 99 });
        assert_eq!(layers(&all.collect::<Vec<_>>()), []);
        assert_eq!(layers(&[]), []);
    }

    #[test]
    fn what_is_kept_of_nothing_has_no_layers() {
        let all = (0..40).map(|at| Asked { size: at % 4, is_kept: false, until: 99 });
        assert_eq!(layers(&all.collect::<Vec<_>>()), []);
    }
}
